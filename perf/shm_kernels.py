"""Compiled senders and receivers around the stream log: what an adapter and an application in numba would be.

The receiver hands every frame to a handler, which takes the time, sums the frame up and checks its number.
The sender publishes when a frame is due, or as fast as it can; a log does not wait for ordinary readers, so
in the second case the receiver says in a word of its own how far it is (`progress`), and the sender keeps
within the log's slots.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import IS_INTERPRETED, inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, WordArray, place
from middleware.shm.atomics import Words, load_acquire, store_release
from middleware.shm.log_kernels import DAMAGED, MARGIN_SHARE, NEXT, publish_kernel, slots_of
from middleware.shm.mapping import LINE_WORDS
from middleware.shm.system_kernels import give_way
from perf.clock_kernels import ticks

if not IS_INTERPRETED:
    from middleware.shm.log_kernels import poll_kernel

# A handler's memory: what came so far, and behind it, in a scheduled round, when each frame came.
TAKEN, SUM, XOR, WRONG_AT, STAMPS = 0, 1, 2, 3, 8

HELD, SPENT, TALLY_WORDS = 0, 1, 8  # a sender's account of its time

TIMED_OUT = -9
POLL_ONCE_FRAMES = 4_096  # of one log, before the others have their turn
_SPINS_CHECK = 1 << 12
_SEQ = place("message_seq").word


def fold(frames: WordArray, memory: Words) -> None:
    """The handler of a round without a schedule: sum, exclusive or, and the first wrong number."""
    _fold(frames, memory)


def stamp_and_fold(frames: WordArray, memory: Words) -> None:
    """The handler of a scheduled round: the time first, then the same."""
    now = ticks()
    taken = memory[TAKEN]
    for row in range(frames.shape[0]):
        if STAMPS + taken + row < memory.size:
            memory[STAMPS + taken + row] = now
    _fold(frames, memory)


@inlined_kernel
def _fold(frames: WordArray, memory: Words) -> None:
    word_sum, word_xor, taken = memory[SUM], memory[XOR], memory[TAKEN]
    for row in range(frames.shape[0]):
        for word in range(FRAME_WORDS):
            word_sum += frames[row, word]
            word_xor ^= frames[row, word]
        taken += 1
        if frames[row, _SEQ] != taken and memory[WRONG_AT] == 0:
            memory[WRONG_AT] = taken
    memory[SUM], memory[XOR], memory[TAKEN] = word_sum, word_xor, taken


@kernel
def await_ticks(due: int) -> int:
    """Spin until the counter shows `due`; return what it shows."""
    now = ticks()
    while now < due:
        now = ticks()
    return now


@kernel
def send_scheduled_kernel(words: Words, state: Words, pool: WordArray, due: Words, begun: Words) -> int:
    """Publish frame i, one at a time, when the counter shows due[i]; return how many were published."""
    for index in range(due.size):
        row = index & (pool.shape[0] - 1)
        pool[row, _SEQ] = index + 1
        begun[index] = await_ticks(due[index])
        if publish_kernel(words, state, pool, row, row + 1) != 1:
            return index
    return due.size


@kernel
def send_all_kernel(
    words: Words,
    state: Words,
    pool: WordArray,
    frame_count: int,
    batch_frames: int,
    progress: Words,
    reader_count: int,
    tally: Words,
    first: int,
    deadline: int,
) -> int:
    """Publish all frames, a batch at a time, never further ahead of a reader than the log holds.

    Returns how many were published. The first `reader_count` lines of `progress` are waited for, 0: nobody;
    how long, and how long everything took, is put into `tally`, in ticks.
    """
    reach = slots_of(words) - slots_of(words) // MARGIN_SHARE  # a reader further behind would be lapped
    began = await_ticks(first)
    sent = taken = held = 0
    while sent < frame_count:
        row = sent & (pool.shape[0] - 1)
        count = min(batch_frames, frame_count - sent, pool.shape[0] - row)
        for offset in range(count):
            pool[row + offset, _SEQ] = sent + offset + 1
        if reader_count > 0 and sent + count - taken > reach:
            since = ticks()
            while sent + count - taken > reach:
                taken = slowest_of(progress, reader_count)
                if ticks() > deadline:
                    return TIMED_OUT
            held += ticks() - since
        if publish_kernel(words, state, pool, row, row + count) != count:
            return sent
        sent += count
    tally[HELD], tally[SPENT] = held, ticks() - began
    return sent


@inlined_kernel
def slowest_of(progress: Words, reader_count: int) -> int:
    """Return how far the slowest reader is; each says so on a line of its own."""
    taken = load_acquire(progress, 0)  # SYNC bench-progress: pairs with receive_kernel
    for reader in range(1, reader_count):
        taken = min(taken, load_acquire(progress, reader * LINE_WORDS))
    return taken


@kernel
def number_kernel(pool: WordArray, begin_row: int, first_seq: int, count: int) -> None:
    """Give rows of the pool the numbers from `first_seq` on."""
    for offset in range(count):
        pool[begin_row + offset, _SEQ] = first_seq + offset


@kernel
def publish_within_kernel(
    words: Words,
    state: Words,
    pool: WordArray,
    row: int,
    count: int,
    progress: Words,
    at_word: int,
    wanted: int,
    deadline: int,
) -> int:
    """Publish `count` rows once the log's reader is as far as `wanted`; return how many were."""
    while load_acquire(progress, at_word) < wanted:  # SYNC bench-progress: pairs with poll_once_kernel
        if ticks() > deadline:
            return TIMED_OUT
    return publish_kernel(words, state, pool, row, row + count)


@kernel
def say_kernel(progress: Words, at_word: int, taken: int) -> None:
    store_release(progress, at_word, taken)  # SYNC bench-progress: pairs with send_all_kernel


if not IS_INTERPRETED:

    @kernel
    def receive_kernel(
        words: Words,
        own: Words,
        state: Words,
        chunk: WordArray,
        frame_count: int,
        handler: int,
        memory: Words,
        progress: Words,
        at_word: int,
        is_sharing: int,
        deadline: int,
    ) -> int:
        """Poll until frame `frame_count` was passed; return how many were handled, or what ended it before.

        Frames that the writer overwrote before they could be read are counted by the reader's state. Who
        shares a core with other readers lets them have it while there is nothing to read.
        """
        taken = spins = 0
        while state[NEXT] <= frame_count:
            count = poll_kernel(words, own, state, chunk, frame_count - taken, handler, memory)
            if count > 0:
                taken += count
                store_release(progress, at_word, taken)  # SYNC bench-progress: pairs with send_all_kernel
            elif count == DAMAGED:
                return count
            else:
                spins += 1
                if is_sharing:
                    give_way()
                if spins % _SPINS_CHECK == 0 and ticks() > deadline:
                    return TIMED_OUT
        return taken

    @kernel
    def poll_once_kernel(
        words: Words,
        own: Words,
        state: Words,
        chunk: WordArray,
        handler: int,
        memory: Words,
        progress: Words,
        at_word: int,
    ) -> int:
        """Handle what is there now; return how many frames that were, or the status."""
        count = poll_kernel(words, own, state, chunk, POLL_ONCE_FRAMES, handler, memory)
        if count > 0:
            taken = memory[TAKEN]
            store_release(progress, at_word, taken)  # SYNC bench-progress: pairs with publish_within_kernel
        return count


def warm_up() -> None:
    from middleware.shm.log_kernels import (
        CLAIM_LIMIT,
        CONTROL_WORD,
        NO_LIMIT,
        READER_WORDS,
        SLOTS,
        WRITER_WORDS,
        skip_kernel,
    )

    slot_count, frame_count = 128, 4
    words = np.zeros(SLOTS + slot_count * FRAME_WORDS, dtype=np.int64)
    as_reader = words.view()
    as_reader.flags.writeable = False
    writer_state, reader_state = np.zeros(WRITER_WORDS, np.int64), np.zeros(READER_WORDS, np.int64)
    writer_state[CLAIM_LIMIT] = NO_LIMIT
    reader_state[NEXT] = 1
    own, progress = np.zeros(CONTROL_WORD + LINE_WORDS, np.int64), np.zeros(8, np.int64)
    pool = np.zeros((frame_count, FRAME_WORDS), dtype=np.int64)
    due, begun = np.zeros(frame_count, np.int64), np.zeros(frame_count, np.int64)
    skip_kernel(words, 1)
    assert send_scheduled_kernel(words, writer_state, pool, due, begun) == frame_count
    say_kernel(progress, 0, 0)
    number_kernel(pool, 0, 1, frame_count)
    publish_within_kernel(words, writer_state, pool, 0, 0, progress, 0, 0, 0)
    send_all_kernel(words, writer_state, pool, 0, 1, progress, 0, np.zeros(TALLY_WORDS, np.int64), 0, 0)
    if not IS_INTERPRETED:
        chunk, memory = np.zeros((2, FRAME_WORDS), np.int64), np.zeros(STAMPS + frame_count, np.int64)
        receive_kernel(as_reader, own, reader_state, chunk, 0, 0, memory, progress, 0, 0, 0)
        reader_state[NEXT] = frame_count + 1  # nothing is there: no handler is called
        poll_once_kernel(as_reader, own, reader_state, chunk, 0, memory, progress, 0)
