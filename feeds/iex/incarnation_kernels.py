"""Which incarnation of an IEX session a packet belongs to; compiled.

IEX can restart a stream at sequence 1 and offset 0 under an unchanged session id. Our source_session is
therefore the session id plus the number of restarts seen (ids of two days are 65,536 apart), and every packet
of line A or B is judged by the memory of its own line:

- A packet that goes on from where its line stands, or lies ahead of it by a plausible number of bytes per
  message, moves the line. One that lies behind and was sent before the line's last packet is late: it keeps
  the line's incarnation, or the one before if it was sent before this one began (see side_of_restart).
- A packet that lies *behind* and was sent *later* cannot be late: the stream restarted. At sequence 1, offset
  0 that is believed at once. So is a new session id.
- Any other contradiction (behind but sent later, a new session id in mid-stream, an offset that does not fit
  its sequence number) is refused as BAD_SEQUENCE until a second packet contradicts in the same way and goes
  on from the first: one damaged header must not end a session. What was refused comes from the other line or
  by gap fill.
- The very first packet is believed until the second one contradicts it; then the second is the first.

The first line to see a restart founds the incarnation; the other one joins it instead of counting again, at
its own restart or with its first packet that was sent after the founding. So both lines reach the same
number, also when one of them missed a restart altogether.

Answers to gap requests judge nothing: they belong to the newest incarnation, unless they were sent before it
began or reach beyond what A and B have shown of it; then to the one before.

An adapter that joins after a restart cannot know how many there were: `adopt_incarnation` tells it. A restart
across which the publisher's clock went back looks like late packets and is not recognised.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import LINE_RECOVERY, IntArray
from feeds.iex import transport as t
from feeds.iex.messages import PREFIX_BYTES

# transport_state: what the lines share, then one row of LINE_* for line A and one for line B. All zero to
# begin with. Protocol and channel are those of the first packets that agree, unless `expect_stream` set them.
STATE_STREAM = 0  # protocol and channel, as in PACKET_IDENTITY_1
STATE_AGREED = 1  # packets seen of that stream, up to AGREEMENT
STATE_IS_KNOWN = 2  # an incarnation has been founded
STATE_SESSION_ID = 3  # of the newest incarnation
STATE_RESTARTS = 4
STATE_FOUNDED_NS = 5  # send time of the earliest packet known of it, and that packet's number
STATE_FOUNDED_SEQ = 6
STATE_HIGH = 7  # the sequence number behind all that A and B have shown of it
STATE_SEND_NS = 8  # send time of the latest packet known of it
STATE_HAS_PREVIOUS = 9
STATE_PREVIOUS_ID = 10  # session id of the incarnation before
STATE_PREVIOUS_RESTARTS = 11
STATE_PREVIOUS_HIGH = 12
STATE_PREVIOUS_SEND_NS = 13
STATE_RESTART_COUNT = 14  # restarts and new sessions seen, for whoever reports them
STATE_IS_PROVEN = 15  # more than one packet speaks for the newest incarnation
STATE_LINES = 16

LINE_IS_KNOWN = 0
LINE_SESSION_ID = 1
LINE_RESTARTS = 2
LINE_NEXT_SEQ = 3
LINE_NEXT_OFFSET = 4
LINE_SEND_NS = 5  # of the packet that brought the line to NEXT
LINE_SUSPECT_SEQ = 6  # where a contradicting packet ended; 0: there is none
LINE_SUSPECT_OFFSET = 7
LINE_SUSPECT_NS = 8
LINE_SUSPECT_ID = 9
LINE_IS_PROVEN = 10  # more than one packet speaks for where the line stands
LINE_WORDS = 16

STATE_SIZE = STATE_LINES + LINE_RECOVERY * LINE_WORDS
assert STATE_SIZE == t.TRANSPORT_STATE_SIZE  # transport.py names it without importing the compiler

REFUSED = -1
_AFTER = 0
_BEFORE = 1
_UNCLEAR = 2
AGREEMENT = 2
_LOW_32 = 0xFFFFFFFF
_BLOCK_BYTES_MIN = PREFIX_BYTES
_BLOCK_BYTES_MAX = PREFIX_BYTES + 0xFFFF
_STEP_MESSAGES_MAX = 1 << 40  # no session is that long, and the product with a block's bytes fits int64
_FIRST_SEQ = t.FIRST_SEQUENCE


@kernel
def is_plausible_step(messages: int, stream_bytes: int) -> bool:
    """Return whether that many messages can take that many bytes of the stream."""
    if messages > _STEP_MESSAGES_MAX:
        return False
    return messages * _BLOCK_BYTES_MIN <= stream_bytes <= messages * _BLOCK_BYTES_MAX


@kernel
def found_incarnation(state: IntArray, session_id: int, restarts: int, seq: int, send_ns: int) -> None:
    if state[STATE_IS_KNOWN] != 0:
        state[STATE_HAS_PREVIOUS] = 1
        state[STATE_PREVIOUS_ID] = state[STATE_SESSION_ID]
        state[STATE_PREVIOUS_RESTARTS] = state[STATE_RESTARTS]
        state[STATE_PREVIOUS_HIGH] = state[STATE_HIGH]
        state[STATE_PREVIOUS_SEND_NS] = state[STATE_SEND_NS]
        state[STATE_RESTART_COUNT] += 1
    state[STATE_IS_KNOWN] = 1
    state[STATE_SESSION_ID] = session_id
    state[STATE_RESTARTS] = restarts
    state[STATE_FOUNDED_NS] = send_ns
    state[STATE_FOUNDED_SEQ] = seq
    state[STATE_HIGH] = 0
    state[STATE_SEND_NS] = send_ns
    state[STATE_IS_PROVEN] = 0


@kernel
def enter_incarnation(
    state: IntArray, line: int, session_id: int, seq: int, send_ns: int, is_start: bool
) -> None:
    """Move a line that has begun anew to the newest incarnation, founding it if it was in that one already.

    It was in it also if it showed a later part of it, in a packet that was refused for want of proof.
    """
    is_newest_id = state[STATE_IS_KNOWN] != 0 and state[STATE_SESSION_ID] == session_id
    is_in_it = (
        state[line + LINE_IS_KNOWN] != 0
        and state[line + LINE_SESSION_ID] == session_id
        and state[line + LINE_RESTARTS] == state[STATE_RESTARTS]
    )
    is_refused_in_it = (
        is_start
        and state[line + LINE_SUSPECT_SEQ] > _FIRST_SEQ
        and state[line + LINE_SUSPECT_ID] == session_id
        and state[STATE_FOUNDED_NS] <= state[line + LINE_SUSPECT_NS] < send_ns
    )
    if not is_newest_id:
        found_incarnation(state, session_id, 0, seq, send_ns)
    elif is_in_it or is_refused_in_it:
        found_incarnation(state, session_id, state[STATE_RESTARTS] + 1, seq, send_ns)
    else:
        state[STATE_IS_PROVEN] = 1  # the other line speaks for it
    state[line + LINE_IS_PROVEN] = 0
    state[line + LINE_IS_KNOWN] = 1
    state[line + LINE_SESSION_ID] = session_id
    state[line + LINE_RESTARTS] = state[STATE_RESTARTS]


@kernel
def note_packet(state: IntArray, line: int, seq: int, end_seq: int, send_ns: int) -> int:
    """Widen what is known of the line's incarnation by one of its packets; return its source_session."""
    session_id = state[line + LINE_SESSION_ID]
    restarts = state[line + LINE_RESTARTS]
    if session_id == state[STATE_SESSION_ID] and restarts == state[STATE_RESTARTS]:
        state[STATE_HIGH] = max(state[STATE_HIGH], end_seq)
        state[STATE_SEND_NS] = max(state[STATE_SEND_NS], send_ns)
        if send_ns < state[STATE_FOUNDED_NS]:
            state[STATE_FOUNDED_NS] = send_ns
            state[STATE_FOUNDED_SEQ] = min(state[STATE_FOUNDED_SEQ], seq)
    elif session_id == state[STATE_PREVIOUS_ID] and restarts == state[STATE_PREVIOUS_RESTARTS]:
        state[STATE_PREVIOUS_HIGH] = max(state[STATE_PREVIOUS_HIGH], end_seq)
        state[STATE_PREVIOUS_SEND_NS] = max(state[STATE_PREVIOUS_SEND_NS], send_ns)
    return int(session_id + restarts) & _LOW_32


@kernel
def forget_line(state: IntArray, line: int) -> None:
    """Unlearn a position, and an incarnation, that only one packet spoke for."""
    is_newest = (
        state[line + LINE_SESSION_ID] == state[STATE_SESSION_ID]
        and state[line + LINE_RESTARTS] == state[STATE_RESTARTS]
    )
    if is_newest and state[STATE_IS_PROVEN] == 0:
        state[STATE_IS_KNOWN] = 0
    state[line + LINE_IS_KNOWN] = 0


@kernel
def move_line(state: IntArray, line: int, seq: int, end_seq: int, end_offset: int, send_ns: int) -> int:
    """Let a line stand behind the packet at hand; return the packet's source_session."""
    state[line + LINE_NEXT_SEQ] = end_seq
    state[line + LINE_NEXT_OFFSET] = end_offset
    state[line + LINE_SEND_NS] = send_ns
    state[line + LINE_SUSPECT_SEQ] = 0
    return note_packet(state, line, seq, end_seq, send_ns)


@kernel
def previous_session(state: IntArray, session_id: int) -> int:
    """Return the source_session of a packet from before the newest incarnation."""
    if state[STATE_HAS_PREVIOUS] != 0 and state[STATE_PREVIOUS_ID] == session_id:
        return int(session_id + state[STATE_PREVIOUS_RESTARTS]) & _LOW_32
    return session_id


@kernel
def side_of_restart(state: IntArray, session_id: int, seq: int, send_ns: int) -> int:
    """Return whether a packet of the newest session is _AFTER or _BEFORE that session's last restart.

    Between the last packet known of the old incarnation and the first of the new one its number must help:
    what the new one had sent by then has low numbers, what the old one had left to send has high ones.
    """
    is_restarted = state[STATE_HAS_PREVIOUS] != 0 and state[STATE_PREVIOUS_ID] == session_id
    if not is_restarted or state[STATE_SESSION_ID] != session_id or send_ns >= state[STATE_FOUNDED_NS]:
        return _AFTER
    if send_ns <= state[STATE_PREVIOUS_SEND_NS] or seq >= state[STATE_PREVIOUS_HIGH]:
        return _BEFORE
    return _AFTER if seq <= state[STATE_FOUNDED_SEQ] else _UNCLEAR


@kernel
def place_on_line(
    state: IntArray,
    line: int,  # where its row begins in `state`
    session_id: int,
    seq: int,
    end_seq: int,
    offset: int,
    end_offset: int,
    send_ns: int,
) -> int:
    """Return the source_session of a packet of line A or B, or REFUSED."""
    side = side_of_restart(state, session_id, seq, send_ns)
    if side == _UNCLEAR:
        return REFUSED
    is_start = seq == _FIRST_SEQ and offset == 0
    is_newest_id = state[STATE_IS_KNOWN] == 0 or state[STATE_SESSION_ID] == session_id
    is_line_known = state[line + LINE_IS_KNOWN] != 0
    is_later = send_ns > (state[line + LINE_SEND_NS] if is_line_known else state[STATE_FOUNDED_NS])
    is_proven = (
        state[line + LINE_SUSPECT_SEQ] != 0
        and state[line + LINE_SUSPECT_ID] == session_id
        and state[line + LINE_SUSPECT_NS] < send_ns
        and seq >= state[line + LINE_SUSPECT_SEQ]
        and is_plausible_step(
            seq - state[line + LINE_SUSPECT_SEQ], offset - state[line + LINE_SUSPECT_OFFSET]
        )
    )
    if is_line_known and state[line + LINE_SESSION_ID] == session_id:
        is_left_behind = is_newest_id and state[line + LINE_RESTARTS] < state[STATE_RESTARTS]
        if side == _BEFORE and not is_left_behind:
            return previous_session(state, session_id)
        step = seq - state[line + LINE_NEXT_SEQ]
        step_bytes = offset - state[line + LINE_NEXT_OFFSET]
        is_anew = is_left_behind and side == _AFTER
        if not is_anew:
            if step >= 0 and (is_proven or is_plausible_step(step, step_bytes)):
                state[line + LINE_IS_PROVEN] = 1
                if not is_left_behind:
                    state[STATE_IS_PROVEN] = 1
                return move_line(state, line, seq, end_seq, end_offset, send_ns)
            if step < 0 and not is_later and is_plausible_step(-step, -step_bytes):
                return note_packet(state, line, seq, end_seq, send_ns)
            is_anew = step < 0 and is_later and (is_start or is_proven)
    elif is_newest_id and (is_later or not is_line_known):
        if side == _BEFORE:
            return previous_session(state, session_id)
        is_anew = True  # the other line has shown that this session is there, or nobody has shown another
    elif is_later:
        is_anew = is_start or is_proven
    else:
        return previous_session(state, session_id)

    if not is_anew and is_line_known and state[line + LINE_IS_PROVEN] == 0:
        forget_line(state, line)
        is_anew = True
    if is_anew:
        enter_incarnation(state, line, session_id, seq, send_ns, is_start)
        if is_start or is_proven:
            state[line + LINE_IS_PROVEN] = 1
            state[STATE_IS_PROVEN] = 1
        return move_line(state, line, seq, end_seq, end_offset, send_ns)
    state[line + LINE_SUSPECT_SEQ] = end_seq
    state[line + LINE_SUSPECT_OFFSET] = end_offset
    state[line + LINE_SUSPECT_NS] = send_ns
    state[line + LINE_SUSPECT_ID] = session_id
    return REFUSED


@kernel
def place_recovered(state: IntArray, session_id: int, seq: int, count: int, send_ns: int) -> int:
    """Return the source_session of an answer to a gap request, or REFUSED."""
    if state[STATE_IS_KNOWN] == 0:
        return session_id
    if state[STATE_SESSION_ID] != session_id:
        return previous_session(state, session_id)
    is_restarted = state[STATE_HAS_PREVIOUS] != 0 and state[STATE_PREVIOUS_ID] == session_id
    is_unseen = count > 0 and seq + count > state[STATE_HIGH]
    side = side_of_restart(state, session_id, seq, send_ns)
    if side == _UNCLEAR:
        return REFUSED
    if side == _BEFORE or (is_restarted and is_unseen):
        return previous_session(state, session_id)
    return int(session_id + state[STATE_RESTARTS]) & _LOW_32


def adopt_incarnation(transport_state: IntArray, session_id: int, restarts: int, founded_ns: int = 0) -> None:
    """Tell a new `transport_state` what its sibling knows: how often this session has been restarted."""
    assert not transport_state[STATE_IS_KNOWN], "an incarnation can only be adopted before the first packet"
    found_incarnation(transport_state, session_id, restarts, _FIRST_SEQ, founded_ns)
    transport_state[STATE_IS_PROVEN] = 1


def warm_up() -> None:
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    place_on_line(state, STATE_LINES, 0, 1, 1, 0, 0, 0)
    place_recovered(state, 0, 1, 0, 0)
    found_incarnation(state, 0, 0, 0, 0)
