"""The stream log's moves: claim slots, fill them, make them visible; copy them out, make sure, go on.

A log file, in words of 8 bytes after its header page. The writer alone writes it; readers map it read-only:

     512     TAIL            first message number that is not visible yet
     528     CLAIM           first number whose slot is not being written; never more than a margin past TAIL
     529     BEGIN           lowest number since the log was made, or since its numbers last jumped
     530     STATE           LIVE, or ENDED
     544     PUBLISHED_AT    the monotonic clock after the last publication, and after the one before
     560     gates           the keys of the readers that the writer waits for
     1024    slots           frame n is in slot n mod slot_count, FRAME_WORDS each

Two pairs of accesses carry everything:

  frames-visible   The writer fills slots and then moves TAIL with a release store; a reader that acquires
                   TAIL sees whole frames below it. What is not below TAIL does not exist: a writer that dies
                   in the middle of a frame leaves a log that the next one continues at TAIL.
  slots-claimed    Before it fills a slot again, the writer moves CLAIM past the slot's new number. A reader
                   copies frames out first and looks at CLAIM again *afterwards*: what lies below CLAIM -
                   slot_count may have been overwritten during the copy, so it is thrown away and reported as
                   missed, and what does not is intact. So no torn frame is ever shown, at any speed.

CLAIM moves ahead by a margin, an eighth of the log, so that it costs one store in thousands of frames and
its cache line stays with the readers; in return, up to an eighth of the log's oldest frames are given up
early.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from feeds.compiled import IS_INTERPRETED, inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, WordArray, place
from feeds.word_kernels import prefetch
from middleware.shm.atomics import (
    Words,
    copy_words,
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from middleware.shm.mapping import HEADER_BYTES, LINE_WORDS
from middleware.shm.system_kernels import now_ns
from middleware.shm.waiting_kernels import wake_if_silent

CONTROL_WORD = HEADER_BYTES // 8
TAIL = CONTROL_WORD
CLAIM = CONTROL_WORD + LINE_WORDS
BEGIN = CLAIM + 1
STATE = CLAIM + 2
PUBLISHED_AT = CONTROL_WORD + 2 * LINE_WORDS
PUBLISHED_BEFORE = PUBLISHED_AT + 1
GATES = CONTROL_WORD + 3 * LINE_WORDS
GATE_COUNT = 32  # one word each; 0: free
CONTROL_BYTES = 4_096
SLOTS = CONTROL_WORD + CONTROL_BYTES // 8
assert GATES + GATE_COUNT <= SLOTS

LIVE, ENDED = 0, 1  # values of STATE

MARGIN_SHARE = 8  # CLAIM runs at most slot_count / 8 ahead of TAIL
RESUME_SHARE = 16  # a lapped reader goes on slot_count / 16 above the oldest frame, not to be lapped at once

# A reader's file, after its header page: the reader alone writes it, the log's writer looks at it.
POSITION = CONTROL_WORD  # the first number that the reader still needs
IS_GATING = CONTROL_WORD + 1  # 1: the reader asks to be waited for
READER_KEY = CONTROL_WORD + 2  # a random number, chosen anew each time the reader starts

# A writer's state, private to its process.
CLAIM_LIMIT = 0  # CLAIM must not pass it: the slowest gate's position + slot_count
WRITER_WORDS = 8
NO_LIMIT = 1 << 62

# A reader's state, private to its process.
NEXT = 0  # the number that it reads next
MISSED_FIRST, MISSED_END = 1, 2  # the range that the last move gave up
MISSED_COUNT = 3  # frames missed since the reader was opened
DAMAGED_AT = 4  # the number whose slot held another
IS_UNFINISHED = 5  # 1: a compiled handler was called and has not come to its end
READER_WORDS = 8

LAPPED = -1
DAMAGED = -2
RAISED = -3

_SEQ = place("message_seq").word
_LINE_OF_WORDS = 8  # 64 bytes


@inlined_kernel
def slot_word(words: Words, sequence: int) -> int:
    """Return where frame `sequence` lies. The number of slots, a power of two, follows from the size."""
    mask = (words.size - SLOTS) // FRAME_WORDS - 1
    return SLOTS + (sequence & mask) * FRAME_WORDS


@inlined_kernel
def slots_of(words: Words) -> int:
    return (words.size - SLOTS) // FRAME_WORDS


@kernel
def publish_frames(words: Words, state: Words, frames: WordArray, begin_row: int, end_row: int) -> int:
    """Publish rows of `frames`, whose message numbers continue the log; return how many.

    Fewer than asked means that a gate is closed, or that the row after them has the wrong number.
    """
    slot_count = slots_of(words)
    margin = slot_count // MARGIN_SHARE
    row = begin_row
    tail = load_relaxed(words, TAIL)  # nobody else writes it
    claim = load_relaxed(words, CLAIM)
    claim_limit = state[CLAIM_LIMIT]
    while row < end_row:
        slot = tail & (slot_count - 1)
        count = min(end_row - row, margin, slot_count - slot)
        if tail + count > claim:
            claim_next = min(tail + margin, claim_limit)
            if claim_next < claim:  # a gate opened behind what was claimed before it
                claim_next = claim
            count = min(count, claim_next - tail)
            if claim_next > claim:
                claim = claim_next
                store_relaxed(words, CLAIM, claim)
                fence_release()  # SYNC slots-claimed: pairs with copy_out
        numbered = _numbered_rows(frames, row, row + count, tail)
        if numbered == 0:
            break
        copy_words(words, SLOTS + slot * FRAME_WORDS, frames, row * FRAME_WORDS, numbered * FRAME_WORDS)
        tail += numbered
        store_release(words, TAIL, tail)  # SYNC frames-visible: pairs with copy_out
        row += numbered
        _wake(words)
    return row - begin_row


@inlined_kernel
def _numbered_rows(frames: WordArray, begin_row: int, end_row: int, sequence: int) -> int:
    """Return how many rows carry the numbers from `sequence` on, one after the other."""
    row = begin_row
    while row < end_row and frames[row, _SEQ] == sequence + row - begin_row:
        row += 1
    return row - begin_row


@inlined_kernel
def _wake(words: Words) -> None:
    """Wake sleeping readers, if the log was silent for long enough that one can be asleep.

    The clock is read once, after the store; the reading of two publications ago was certainly taken before
    the last store, which is what the rule of `wake_if_silent` asks for.
    """
    after_ns = now_ns()
    earlier_ns = load_relaxed(words, PUBLISHED_BEFORE)
    store_relaxed(words, PUBLISHED_BEFORE, load_relaxed(words, PUBLISHED_AT))
    store_relaxed(words, PUBLISHED_AT, after_ns)
    wake_if_silent(words, TAIL, earlier_ns, after_ns)


@kernel
def publish_kernel(words: Words, state: Words, frames: WordArray, begin_row: int, end_row: int) -> int:
    """Publish frames, and ask for the lines of the next slot while nobody waits for them.

    Returns how many; or -1 - row, and publishes none, if that row's number does not follow.
    """
    numbered = _numbered_rows(frames, begin_row, end_row, load_relaxed(words, TAIL))
    if begin_row + numbered < end_row:
        return -1 - (begin_row + numbered)
    published = publish_frames(words, state, frames, begin_row, end_row)
    ahead = slot_word(words, load_relaxed(words, TAIL))
    prefetch(words, ahead)
    prefetch(words, ahead + _LINE_OF_WORDS)
    return published


@kernel
def skip_kernel(words: Words, sequence: int) -> None:
    """Give up every number below `sequence`. BEGIN goes first: `resume_kernel` completes what was begun."""
    store_release(words, BEGIN, sequence)
    resume_kernel(words)


@kernel
def resume_kernel(words: Words) -> None:
    """Make a log that a writer left at any store one that can be continued."""
    begin = load_acquire(words, BEGIN)
    if begin > load_acquire(words, TAIL):
        if begin > load_acquire(words, CLAIM):
            store_release(words, CLAIM, begin)
        store_release(words, TAIL, begin)


@inlined_kernel
def oldest_of(words: Words) -> int:
    """Return the lowest number that can still be read."""
    return max(load_acquire(words, BEGIN), load_acquire(words, CLAIM) - slots_of(words))


@inlined_kernel
def copy_out(words: Words, state: Words, frames: WordArray, limit: int) -> int:
    """Copy up to `limit` frames, from NEXT on, into `frames`; return how many, LAPPED or DAMAGED.

    NEXT stays: the caller goes on behind them when they are dealt with. LAPPED: the writer came around;
    MISSED_FIRST and MISSED_END say what was missed, and NEXT is behind it. Nothing of `frames` may be used
    then.
    """
    sequence: int = state[NEXT]
    tail = load_acquire(words, TAIL)  # SYNC frames-visible: pairs with publish_frames
    if sequence >= tail:
        return 0
    slot_count = slots_of(words)
    count = min(limit, tail - sequence, slot_count)  # a damaged TAIL must not lead outside of the memory
    oldest = oldest_of(words)
    if sequence >= oldest:
        first = min(count, slot_count - (sequence & (slot_count - 1)))
        copy_words(frames, 0, words, slot_word(words, sequence), first * FRAME_WORDS)
        if first < count:
            copy_words(frames, first * FRAME_WORDS, words, SLOTS, (count - first) * FRAME_WORDS)
        fence_acquire()  # SYNC slots-claimed: pairs with publish_frames
        oldest = load_relaxed(words, CLAIM) - slot_count
    if sequence < oldest:
        return _give_up(words, state, oldest, tail)
    for row in range(count):
        if frames[row, _SEQ] != sequence + row:
            state[DAMAGED_AT] = sequence + row
            return DAMAGED
    return count


@inlined_kernel
def _give_up(words: Words, state: Words, oldest: int, tail: int) -> int:
    """Move NEXT to where reading can go on: well above what is overwritten next, but not above the newest.

    After a jump of the numbers nothing is about to be overwritten, and reading goes on right behind the jump.
    """
    overwritten_end = load_relaxed(words, CLAIM) - slots_of(words)
    resume = max(oldest, overwritten_end, min(overwritten_end + slots_of(words) // RESUME_SHARE, tail))
    state[MISSED_FIRST] = state[NEXT]
    state[MISSED_END] = resume
    state[MISSED_COUNT] += resume - state[NEXT]
    state[NEXT] = resume
    return LAPPED


@kernel
def read_kernel(words: Words, own: Words, state: Words, frames: WordArray, limit: int) -> int:
    """Copy frames out as `copy_out` does, go on behind them, and say so in the reader's own file."""
    count = copy_out(words, state, frames, limit)
    if count > 0:
        state[NEXT] += count
    if count != 0:
        store_release(own, POSITION, state[NEXT])  # SYNC gate-position: pairs with Gates.claim_limit
    return count


@kernel
def fetch_kernel(words: Words, own: Words, state: Words, frames: WordArray, limit: int) -> int:
    """Copy frames out as `copy_out` does, and stay before them: see `pass_kernel`."""
    count = copy_out(words, state, frames, limit)
    if count == LAPPED:
        store_release(own, POSITION, state[NEXT])  # SYNC gate-position: pairs with Gates.claim_limit
    return count


@kernel
def pass_kernel(own: Words, state: Words, count: int) -> None:
    """Go on behind `count` frames that `fetch_kernel` copied out: they are handled, and no longer needed."""
    state[NEXT] += count
    store_release(own, POSITION, state[NEXT])  # SYNC gate-position: pairs with Gates.claim_limit


@kernel
def peek_kernel(words: Words, state: Words, limit: int) -> int:
    """Return how many frames, from NEXT on and without a break, may be looked at in place.

    Or LAPPED, or DAMAGED, as `copy_out` does.
    """
    sequence: int = state[NEXT]
    tail = load_acquire(words, TAIL)  # SYNC frames-visible: pairs with publish_frames
    if sequence >= tail:
        return 0
    slot_count = slots_of(words)
    count = min(limit, tail - sequence, slot_count - (sequence & (slot_count - 1)))
    numbered = 0
    while numbered < count and load_relaxed(words, slot_word(words, sequence + numbered) + _SEQ) == (
        sequence + numbered
    ):
        numbered += 1
    fence_acquire()  # SYNC slots-claimed: pairs with publish_frames
    oldest = oldest_of(words)
    if sequence < oldest:
        return _give_up(words, state, oldest, tail)
    if numbered < count:
        state[DAMAGED_AT] = sequence + numbered
        return DAMAGED
    return count


@kernel
def release_kernel(words: Words, own: Words, state: Words, count: int) -> int:
    """Go on behind `count` frames that were looked at in place; LAPPED if the writer came around meanwhile.

    Then all of them are reported as missed: which of them were looked at before, nobody knows.
    """
    sequence: int = state[NEXT]
    fence_acquire()  # SYNC slots-claimed: pairs with publish_frames
    oldest = load_relaxed(words, CLAIM) - slots_of(words)
    status = count
    if sequence < oldest:
        status = _give_up(words, state, max(oldest, sequence + count), load_acquire(words, TAIL))
    else:
        state[NEXT] = sequence + count
    store_release(own, POSITION, state[NEXT])  # SYNC gate-position: pairs with Gates.claim_limit
    return status


# --- handlers --------------------------------------------------------------------------------------


def _call_intrinsic() -> Any:
    @intrinsic
    def call(_typing: Any, address: Any, frames: Any, count: Any, memory: Any, state: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            target, number = (
                context.cast(builder, args[which], signature.args[which], types.int64) for which in (0, 2)
            )
            frames_at, memory_at, state_at = (
                context.make_array(signature.args[which])(context, builder, args[which]).data
                for which in (1, 3, 4)
            )
            memory_words = builder.extract_value(
                context.make_array(signature.args[3])(context, builder, args[3]).shape, 0
            )
            unfinished_at = builder.gep(state_at, [word(IS_UNFINISHED)])
            pointer = word.as_pointer()
            function_type = ir.FunctionType(ir.VoidType(), [pointer, word, pointer, word, pointer])
            function = builder.inttoptr(target, function_type.as_pointer())
            builder.call(function, [frames_at, number, memory_at, memory_words, unfinished_at])
            return context.get_dummy_value()

        return types.void(address, frames, count, memory, state), generate

    return call


if not IS_INTERPRETED:
    _call_handler = _call_intrinsic()

    @kernel
    def poll_kernel(
        words: Words,
        own: Words,
        state: Words,
        frames: WordArray,
        limit: int,
        handler: int,
        memory: Words,
    ) -> int:
        """Hand up to `limit` frames, a chunk at a time, to the compiled handler at address `handler`.

        Returns how many were handled; or LAPPED or DAMAGED, if nothing was. A lap that ends the call after
        some were handled shows in MISSED_FIRST and MISSED_END alone. RAISED, whatever was handled before:
        NEXT is the first number of the chunk that the handler did not finish.
        """
        begin: int = state[NEXT]
        handled = 0
        while handled < limit:
            count = copy_out(words, state, frames, min(limit - handled, frames.shape[0]))
            if count <= 0:
                if handled == 0:
                    handled = count
                break
            state[IS_UNFINISHED] = 1
            _call_handler(handler, frames, count, memory, state)
            if state[IS_UNFINISHED] != 0:
                handled = RAISED
                break
            state[NEXT] += count
            handled += count
        if state[NEXT] != begin:
            store_release(own, POSITION, state[NEXT])  # SYNC gate-position: pairs with Gates.claim_limit
        return handled


def warm_up() -> None:
    from middleware.shm.handlers import compiled_handler

    slot_count = 128
    words = np.zeros(SLOTS + slot_count * FRAME_WORDS, dtype=np.int64)
    as_reader = words.view()
    as_reader.flags.writeable = False
    writer_state, reader_state = np.zeros(WRITER_WORDS, np.int64), np.zeros(READER_WORDS, np.int64)
    writer_state[CLAIM_LIMIT] = NO_LIMIT
    own = np.zeros(CONTROL_WORD + LINE_WORDS, dtype=np.int64)
    frames = np.zeros((4, FRAME_WORDS), dtype=np.int64)
    frames[:, _SEQ] = range(1, 5)
    skip_kernel(words, 1)
    assert publish_kernel(words, writer_state, frames, 0, 3) == 3
    relayed = frames[3:]  # what another log's reader shows in place, or what came as bytes
    relayed.flags.writeable = False
    assert publish_kernel(words, writer_state, relayed, 0, 1) == 1
    reader_state[NEXT] = 1
    assert read_kernel(as_reader, own, reader_state, frames, 1) == 1
    assert fetch_kernel(as_reader, own, reader_state, frames, 1) == 1
    pass_kernel(own, reader_state, 1)
    assert peek_kernel(as_reader, reader_state, 1) == 1
    assert release_kernel(as_reader, own, reader_state, 1) == 1
    if not IS_INTERPRETED:
        handler = compiled_handler(_count_frames)
        assert poll_kernel(as_reader, own, reader_state, frames, 9, handler.address, handler.memory) == 1


def _count_frames(frames: WordArray, memory: Words) -> None:
    memory[0] += frames.shape[0]
