"""The arbiter's moves: frames of several streams in, one out, every message once and in order (A5, A6).

Each input is a window of frames in the order in which one adapter published them: the active stream, the
backup stream, and what came back from an adapter's history or from the recorder. The arbiter looks at the
heads of the windows and takes the frame that comes next, from whichever has it first:

    data      has a key, (source session, source number, part), that all adapters give alike
    admin     has a number of its own, counted for the life of a stream

What was delivered is known by its key, so nothing is delivered twice, whoever sends it again. What comes next
is known by its position (message_seq), which has no holes in one adapter's stream; so a hole is noticed
across sessions and administrative messages too. Only a stream *in step* is believed about positions. One that
is not (it says so, is of an epoch that is over, or has a key that was not delivered at a position that was)
has the right data all the same: a *filler*, used where nobody else has it and the gap policy allows it.

    the head is                                          it is
    a key, or an admin number, delivered already         a duplicate: consumed
    data of a session that is over                       late: consumed
    admin of an epoch that is over, or out of step       refused: a stale active may add data, never these
    in step and at the next position                     delivered
    in step and further on                               waiting for the hole before it
    out of step, with the very next key                  a filler: waits, or is delivered at the next position
    out of step, anything else                           waiting

Where the exchange's own numbers jump in a stream that is in step, both adapters have lost the same messages:
that is no hole of ours, and is noted as a source gap.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import i64, inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, Flag, Kind, WordArray, place
from middleware.shm.atomics import Words

WINDOW_COUNT = 3
ACTIVE, BACKUP, RECOVERY = range(WINDOW_COUNT)
Windows = tuple[WordArray, WordArray, WordArray]

# The arbiter's state: what a subscriber keeps to go on where it was ...
POSITION = 0  # message_seq that is delivered next
SESSION = 1  # source session that is being delivered; NO_SESSION before the first
NEXT_SEQ, NEXT_PART = 2, 3  # the data key that comes next in it
NEXT_ADMIN, NEXT_ADMIN_PART = 4, 5  # the administrative message that comes next
EPOCH = 6  # the highest that was announced or delivered
FINISHED_COUNT = 7  # sessions that are over, ever
# ... and what one call is told and tells.
IS_FILLING = 8  # 1: fillers may be delivered
HOLE_END = 9  # the lowest position that waits behind the hole; 0: none waits, or nobody knows where it ends
FILLERS = 10  # windows whose head is a filler, as bits
GAP_COUNT = 11  # rows of `gaps` in use
STATE_WORDS = 16
NO_SESSION = -1

FINISHED_MAX = 8
FINISHED_SESSION, FINISHED_NEXT_SEQ = 0, 1
FINISHED_FIELDS = 2

GAP_SESSION, GAP_FIRST, GAP_LAST, GAP_POSITION = range(4)
GAP_FIELDS = 4

DELIVERED, DUPLICATES, LATE, REFUSED, FILLED, UNWANTED = range(6)
COUNT_FIELDS = 8

_SEQ, _MESSAGE_SEQ = place("source_seq").word, place("message_seq").word
_KIND_ADMIN = int(Kind.ADMIN)
_LAST_PART, _UNSYNCED = int(Flag.LAST_PART), int(Flag.UNSYNCED)

_DUPLICATE, _OVER, _REFUSE, _TAKE, _FILLER, _AHEAD, _WAIT = range(7)

_KIND_WORD, _KIND_SHIFT = place("kind").word, place("kind").shift
_FLAGS_WORD, _FLAGS_SHIFT = place("flags").word, place("flags").shift
_SESSION_WORD, _SESSION_SHIFT = place("source_session").word, place("source_session").shift
_PART_WORD, _PART_SHIFT = place("part").word, place("part").shift
_EPOCH_WORD = place("epoch").word
_INSTRUMENT_WORD = place("instrument_id").word
assert place("epoch").shift == place("instrument_id").shift == 0


@inlined_kernel
def _kind(frames: WordArray, row: int) -> int:
    return i64((frames[row, _KIND_WORD] >> _KIND_SHIFT) & 0xFF)


@inlined_kernel
def _flags(frames: WordArray, row: int) -> int:
    return i64((frames[row, _FLAGS_WORD] >> _FLAGS_SHIFT) & 0xFFFF)


@inlined_kernel
def _session(frames: WordArray, row: int) -> int:
    return i64((frames[row, _SESSION_WORD] >> _SESSION_SHIFT) & 0xFFFFFFFF)


@inlined_kernel
def _part(frames: WordArray, row: int) -> int:
    return i64((frames[row, _PART_WORD] >> _PART_SHIFT) & 0xFFFF)


@inlined_kernel
def _epoch(frames: WordArray, row: int) -> int:
    return i64(frames[row, _EPOCH_WORD] & 0xFFFFFFFF)


@inlined_kernel
def _is_before(seq: int, part: int, next_seq: int, next_part: int) -> bool:
    return seq < next_seq or (seq == next_seq and part < next_part)


@inlined_kernel
def _is_over(finished: WordArray, finished_count: int, session: int) -> bool:
    row = min(finished_count, FINISHED_MAX) - 1
    while row >= 0 and finished[row, FINISHED_SESSION] != session:
        row -= 1
    return row >= 0


@kernel
def judge(state: Words, finished: WordArray, frames: WordArray, row: int) -> int:
    """Say what a head is: the table above, in its order."""
    seq, part, position = frames[row, _SEQ], _part(frames, row), frames[row, _MESSAGE_SEQ]
    is_in_step = (
        (_flags(frames, row) & _UNSYNCED) == 0
        and _epoch(frames, row) >= state[EPOCH]
        and position >= state[POSITION]
    )
    if _kind(frames, row) == _KIND_ADMIN:
        if _is_before(seq, part, state[NEXT_ADMIN], state[NEXT_ADMIN_PART]):
            return _DUPLICATE
        if not is_in_step:
            return _REFUSE
        return _TAKE if position == state[POSITION] else _AHEAD
    session = _session(frames, row)
    is_current = session == state[SESSION]
    if is_current and _is_before(seq, part, state[NEXT_SEQ], state[NEXT_PART]):
        return _DUPLICATE
    if not is_current and _is_over(finished, state[FINISHED_COUNT], session):
        return _OVER
    if is_in_step:
        return _TAKE if position == state[POSITION] else _AHEAD
    is_next = is_current and seq == state[NEXT_SEQ] and part == state[NEXT_PART]
    return _FILLER if is_next else _WAIT


@inlined_kernel
def _note_gap(state: Words, gaps: WordArray, session: int, first: int, last: int) -> None:
    row = state[GAP_COUNT]
    gaps[row, GAP_SESSION] = session
    gaps[row, GAP_FIRST] = first
    gaps[row, GAP_LAST] = last
    gaps[row, GAP_POSITION] = state[POSITION]
    state[GAP_COUNT] = row + 1


@kernel
def move_behind(state: Words, finished: WordArray, gaps: WordArray, frames: WordArray, row: int) -> None:
    """Make a frame that is delivered the one that was delivered last."""
    seq, part = frames[row, _SEQ], _part(frames, row)
    is_last = (_flags(frames, row) & _LAST_PART) != 0
    next_seq, next_part = (seq + 1, 0) if is_last else (seq, part + 1)
    if _kind(frames, row) == _KIND_ADMIN:
        state[NEXT_ADMIN], state[NEXT_ADMIN_PART] = next_seq, next_part
    else:
        session = _session(frames, row)
        if session != state[SESSION]:
            if state[SESSION] != NO_SESSION:
                over = state[FINISHED_COUNT] % FINISHED_MAX
                finished[over, FINISHED_SESSION] = state[SESSION]
                finished[over, FINISHED_NEXT_SEQ] = state[NEXT_SEQ]
                state[FINISHED_COUNT] += 1
            state[SESSION] = session
        elif seq > state[NEXT_SEQ]:
            _note_gap(state, gaps, session, state[NEXT_SEQ], seq - 1)
        state[NEXT_SEQ], state[NEXT_PART] = next_seq, next_part
    state[EPOCH] = max(state[EPOCH], _epoch(frames, row))
    state[POSITION] += 1


@inlined_kernel
def _is_wanted(wanted: Words, frames: WordArray, row: int) -> bool:
    """Return whether a frame's instrument is in the set; an empty set wants all; what has none is for all.

    `wanted` is a table of instrument numbers + 1, probed one by one; its size is a power of two.
    """
    if wanted.size == 0:
        return True
    instrument = frames[row, _INSTRUMENT_WORD] & 0xFFFFFFFF
    if instrument == 0:
        return True
    mask = wanted.size - 1
    place_of = instrument & mask
    while wanted[place_of] != 0:
        if wanted[place_of] == instrument + 1:
            return True
        place_of = (place_of + 1) & mask
    return False


@inlined_kernel
def _deliver(
    state: Words,
    finished: WordArray,
    gaps: WordArray,
    counts: Words,
    wanted: Words,
    frames: WordArray,
    row: int,
    out: WordArray,
    written: int,
) -> int:
    """Put a frame out at the next position, unless its instrument is not wanted; return how many are out."""
    if _is_wanted(wanted, frames, row):
        for word in range(FRAME_WORDS):
            out[written, word] = frames[row, word]
        out[written, _MESSAGE_SEQ] = state[POSITION]
        written += 1
    else:
        counts[UNWANTED] += 1
    counts[DELIVERED] += 1
    move_behind(state, finished, gaps, frames, row)
    return written


@kernel
def arbitrate_kernel(
    state: Words,
    finished: WordArray,
    gaps: WordArray,
    counts: WordArray,
    wanted: Words,
    windows: Windows,
    begins: Words,
    ends: Words,
    out: WordArray,
) -> int:
    """Deliver what can be delivered into `out`; move `begins` behind what was consumed; return how many.

    It ends when `out` or `gaps` is full or no head can be delivered: then HOLE_END and FILLERS say what is
    in the way.
    """
    written = 0
    is_moving = True
    state[HOLE_END] = state[FILLERS] = 0
    while is_moving and written < out.shape[0] and state[GAP_COUNT] < gaps.shape[0]:
        is_moving = False
        hole_end = fillers = 0
        filler = -1
        for window in range(WINDOW_COUNT):
            frames = windows[window]
            row, end = begins[window], ends[window]
            while row < end and written < out.shape[0] and state[GAP_COUNT] < gaps.shape[0]:
                verdict = judge(state, finished, frames, row)
                if verdict == _TAKE:
                    written = _deliver(
                        state, finished, gaps, counts[window], wanted, frames, row, out, written
                    )
                elif verdict == _DUPLICATE:
                    counts[window, DUPLICATES] += 1
                elif verdict == _OVER:
                    counts[window, LATE] += 1
                elif verdict == _REFUSE:
                    counts[window, REFUSED] += 1
                else:
                    if verdict == _FILLER:
                        fillers |= 1 << window
                        if filler < 0:
                            filler = window
                    elif verdict == _AHEAD:
                        position = frames[row, _MESSAGE_SEQ]
                        hole_end = position if hole_end == 0 else min(hole_end, position)
                    break
                row += 1
                is_moving = True
            begins[window] = row
        if not is_moving:
            if filler >= 0 and state[IS_FILLING] == 1:
                row = begins[filler]
                written = _deliver(
                    state, finished, gaps, counts[filler], wanted, windows[filler], row, out, written
                )
                counts[filler, FILLED] += 1
                begins[filler] = row + 1
                is_moving = True
            else:
                state[HOLE_END], state[FILLERS] = hole_end, fillers
    return written


def warm_up() -> None:
    frames = np.zeros((1, FRAME_WORDS), dtype=np.int64)
    as_read_only = frames.view()
    as_read_only.flags.writeable = False
    for window in (frames, as_read_only):
        state = np.zeros(STATE_WORDS, dtype=np.int64)
        state[SESSION] = NO_SESSION
        arbitrate_kernel(
            state,
            np.zeros((FINISHED_MAX, FINISHED_FIELDS), dtype=np.int64),
            np.zeros((4, GAP_FIELDS), dtype=np.int64),
            np.zeros((WINDOW_COUNT, COUNT_FIELDS), dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            (window, window, window),
            np.zeros(WINDOW_COUNT, dtype=np.int64),
            np.ones(WINDOW_COUNT, dtype=np.int64),
            np.zeros((4, FRAME_WORDS), dtype=np.int64),
        )
