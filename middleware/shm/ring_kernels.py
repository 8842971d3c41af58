"""The ring's moves: claim room, write a record, make it visible; find the next record, read it, give it back.

A ring file, in words of 8 bytes after its header page. Each of these words has cache lines of its own:

     512     TAIL               the producer's: the position behind the last committed record
     528     HEAD               the consumer's: the position of the first record that is not consumed
     544     PRODUCER_SLEEPS    a sleeper word (bell_kernels.py) of who waits for HEAD to move
     560     CONSUMER_SLEEPS    a sleeper word of who waits for TAIL to move
     1024    records            position p is at byte p mod capacity

A position counts bytes since the ring was made and never goes back, so it names a record for ever. A record
begins at its position and lies in one piece:

     | mark | body, zeros up to a whole word | mark |     mark: position / 8 in 31 bits, body's bytes in 32

The first mark leads from HEAD to TAIL, the second from TAIL back to the last record, consumed or not. The
position in it tells a record from what an earlier round left at the same place. A record that does not fit
before the end of the ring begins at its start; a mark with the PADDING bit fills the gap. Padding becomes
visible together with the record behind it, never alone, so the last thing below TAIL is always a record.

Two pairs of accesses carry everything:

  record-visible   The producer writes beyond TAIL and then moves TAIL with one release store; a consumer that
                   acquires TAIL sees whole records below it. What is beyond TAIL does not exist: a producer
                   that dies there leaves a ring that the next one continues at TAIL, over the debris.
  room-free        The consumer reads a record and then moves HEAD with one release store; a producer that
                   acquires HEAD may overwrite what is below it, but never the last committed record: a
                   producer that starts must be able to read what its predecessor committed last, whatever was
                   consumed since.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import i64, inlined_kernel, kernel
from middleware.shm.atomics import (
    Words,
    copy_words,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from middleware.shm.bell_kernels import wake_sleepers
from middleware.shm.mapping import HEADER_BYTES, LINE_WORDS

WORD_BYTES = 8
CONTROL_WORD = HEADER_BYTES // WORD_BYTES
TAIL = CONTROL_WORD
HEAD = CONTROL_WORD + LINE_WORDS
PRODUCER_SLEEPS = CONTROL_WORD + 2 * LINE_WORDS
CONSUMER_SLEEPS = CONTROL_WORD + 3 * LINE_WORDS
CONTROL_BYTES = 4_096
RECORDS = CONTROL_WORD + CONTROL_BYTES // WORD_BYTES

# With a record of this share of the ring protected and one of the same size to come, padding included, three
# shares are taken; so a record of the largest size always finds room once the consumer has caught up.
RECORD_SHARE = 4
MARKS_BYTES = 2 * WORD_BYTES

PADDING = 1 << 31
_BYTES_MASK = 0xFFFF_FFFF
_POSITION_MASK = 0x7FFF_FFFF
_POSITION_SHIFT = 32

# Answers in the place of a position, a word or a count.
NONE = -1  # no room for the record, or no record
DAMAGED = -2  # the state says what, where, and what was found
TOO_LARGE = -3  # no ring of this size takes a record of that size

# A producer's state, private to its process.
COMMITTED = 0  # TAIL: nobody else writes it
STAGED = 1  # the end of what is written, committed or not
LAST = 2  # position of the last committed record; meaningless while COMMITTED is 0
STAGED_LAST = 3  # position of the last written record
HEAD_SEEN = 4  # HEAD when it was last looked at: the consumer can only be further
CLAIMED = 5  # position of the record that is being written
LAST_WORD = 6  # where the last committed record's body begins, once it was asked for

# A consumer's state, private to its process.
CONSUMED = 0  # HEAD: nobody else writes it
READ = 1  # the end of what was shown to the caller, consumed or not
TAIL_SEEN = 2  # TAIL when it was last looked at: the producer can only be further
RECORD = 3  # position of the record that was shown last
RECORD_BYTES = 4

# Both ends' states: what is wrong with the file, where, and what was found there.
PROBLEM = 8
PROBLEM_AT = 9
PROBLEM_FOUND = 10
STATE_WORDS = 16

# A batch of records that a consumer was shown: one row for each of these, one column for each record.
BATCH_POSITION, BATCH_BODY_WORD, BATCH_BYTES, BATCH_END = range(4)
BATCH_ROWS = 4

TAIL_WRONG, HEAD_WRONG, MARK_WRONG, SECOND_MARK_WRONG, LAST_WRONG = 1, 2, 3, 4, 5


@inlined_kernel
def capacity_of(words: Words) -> int:
    """Return how many bytes the ring holds, a power of two: it follows from the file's size."""
    return (words.size - RECORDS) * WORD_BYTES


@inlined_kernel
def word_of(words: Words, position: int) -> int:
    return RECORDS + (position & (capacity_of(words) - 1)) // WORD_BYTES


@inlined_kernel
def span_of(byte_count: int) -> int:
    """Return how many bytes of the ring a body of `byte_count` bytes takes, marks and padding included."""
    return MARKS_BYTES + (byte_count + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES


@inlined_kernel
def mark_of(position: int, byte_count: int) -> int:
    return ((position // WORD_BYTES) & _POSITION_MASK) << _POSITION_SHIFT | byte_count


@inlined_kernel
def padding_of(words: Words, position: int) -> int:
    """Return the mark that skips from `position` to the end of the ring."""
    capacity = capacity_of(words)
    return mark_of(position, PADDING | (capacity - (position & (capacity - 1)) - WORD_BYTES))


@inlined_kernel
def _damaged(state: Words, problem: int, position: int, found: int) -> int:
    state[PROBLEM], state[PROBLEM_AT], state[PROBLEM_FOUND] = problem, position, found
    return DAMAGED


# ---- the producer


@inlined_kernel
def _room_end(words: Words, state: Words) -> int:
    """Return the position that writing must not reach beyond: neither unread records nor the last one."""
    return min(i64(state[HEAD_SEEN]), i64(state[LAST])) + capacity_of(words)


@inlined_kernel
def see_head(words: Words, state: Words) -> int:
    """Look where the consumer is; return its position, or DAMAGED for one that cannot be."""
    head = load_acquire(words, HEAD)  # SYNC room-free: pairs with advance_to
    if head < state[HEAD_SEEN] or head > state[COMMITTED] or head % WORD_BYTES != 0:
        return _damaged(state, HEAD_WRONG, head, state[COMMITTED])
    state[HEAD_SEEN] = head
    return head


@inlined_kernel
def claim(words: Words, state: Words, byte_count: int) -> int:
    """Return the word at which a body of `byte_count` bytes may be written now, or NONE, TOO_LARGE, DAMAGED.

    Follows what is staged. A claim that is not finished with `stage` is forgotten by the next.
    """
    capacity = capacity_of(words)
    span = span_of(byte_count)
    if byte_count < 0 or span > capacity // RECORD_SHARE:
        return TOO_LARGE
    start = state[STAGED]
    before_end = capacity - (start & (capacity - 1))
    if span > before_end:
        start += before_end
    if start + span > _room_end(words, state):
        if see_head(words, state) < 0:
            return DAMAGED
        if start + span > _room_end(words, state):
            return NONE
    state[CLAIMED] = start
    return word_of(words, start) + 1


@inlined_kernel
def stage(words: Words, state: Words, byte_count: int) -> int:
    """Finish the claimed record, whose body of `byte_count` bytes is written; return its position.

    The body may have turned out smaller than claimed. Nothing is visible before `publish`.
    """
    start, staged = state[CLAIMED], state[STAGED]
    if start != staged:
        store_relaxed(words, word_of(words, staged), padding_of(words, staged))
    mark = mark_of(start, byte_count)
    end = start + span_of(byte_count)
    store_relaxed(words, word_of(words, start), mark)
    store_relaxed(words, word_of(words, end - WORD_BYTES), mark)
    state[STAGED], state[STAGED_LAST] = end, start
    return i64(start)


@inlined_kernel
def publish(words: Words, state: Words) -> None:
    """Commit everything staged, at once: all of it survives us, or none."""
    state[COMMITTED], state[LAST] = state[STAGED], state[STAGED_LAST]
    store_release(words, TAIL, state[STAGED])  # SYNC record-visible: pairs with see_tail
    wake_sleepers(words, CONSUMER_SLEEPS)


@inlined_kernel
def drop_staged(state: Words) -> None:
    """Forget what was staged since the last `publish`."""
    state[STAGED], state[STAGED_LAST] = state[COMMITTED], state[LAST]


@inlined_kernel
def stage_words(words: Words, state: Words, source: Words, source_word: int, byte_count: int) -> int:
    """Stage a record of `byte_count` bytes from a word of `source` on; return its position, or as `claim`."""
    target = claim(words, state, byte_count)
    if target < 0:
        return target
    whole = byte_count // WORD_BYTES
    copy_words(words, target, source, source_word, whole)
    rest = byte_count - whole * WORD_BYTES
    if rest != 0:
        kept = load_relaxed(source, source_word + whole) & ((1 << (8 * rest)) - 1)
        store_relaxed(words, target + whole, kept)
    return stage(words, state, byte_count)


@inlined_kernel
def append_words(words: Words, state: Words, source: Words, source_word: int, byte_count: int) -> int:
    """Commit one record; return its position, or as `claim` does."""
    position = stage_words(words, state, source, source_word, byte_count)
    if position >= 0:
        publish(words, state)
    return position


# ---- the consumer


@inlined_kernel
def see_tail(words: Words, state: Words) -> int:
    """Look how far the producer has committed; return that position, or DAMAGED for one that cannot be."""
    tail = load_acquire(words, TAIL)  # SYNC record-visible: pairs with publish
    if tail < state[TAIL_SEEN] or tail > state[CONSUMED] + capacity_of(words) or tail % WORD_BYTES != 0:
        return _damaged(state, TAIL_WRONG, tail, state[CONSUMED])
    state[TAIL_SEEN] = tail
    return tail


@inlined_kernel
def _body_bytes(words: Words, state: Words, position: int, end: int) -> int:
    """Return the body's size of the record at `position`, which must end before `end`; or DAMAGED.

    Nothing that the record says is believed: not its place, its size, nor that its two marks agree.
    """
    capacity = capacity_of(words)
    mark = load_relaxed(words, word_of(words, position))
    byte_count = mark & _BYTES_MASK
    span = span_of(byte_count)
    if (
        mark != mark_of(position, byte_count)
        or span > capacity // RECORD_SHARE
        or span > capacity - (position & (capacity - 1))
        or span > end - position
    ):
        return _damaged(state, MARK_WRONG, position, mark)
    second = load_relaxed(words, word_of(words, position + span - WORD_BYTES))
    if second != mark:
        return _damaged(state, SECOND_MARK_WRONG, position, second)
    return byte_count


@inlined_kernel
def _behind_padding(words: Words, position: int) -> int:
    """Return where the record at or after `position` begins: at the ring's start, if there is padding."""
    capacity = capacity_of(words)
    mark = load_relaxed(words, word_of(words, position))
    if mark & PADDING != 0 and mark == padding_of(words, position):
        return position + capacity - (position & (capacity - 1))
    return position


@inlined_kernel
def next_record(words: Words, state: Words) -> int:
    """Return the word at which the next record's body begins, NONE, or DAMAGED.

    The state then holds the record's position and its body's size. It is consumed by `advance_to` only.
    """
    position = state[READ]
    if position >= state[TAIL_SEEN]:
        tail = see_tail(words, state)
        if tail < 0:
            return DAMAGED
        if position == tail:
            return NONE
    position = _behind_padding(words, position)
    byte_count = _body_bytes(words, state, position, state[TAIL_SEEN])
    if byte_count < 0:
        return DAMAGED
    state[RECORD], state[RECORD_BYTES] = position, byte_count
    state[READ] = position + span_of(byte_count)
    return word_of(words, position) + 1


@inlined_kernel
def advance_to(words: Words, state: Words, position: int) -> None:
    """Consume everything below `position`, the end of a record that was read: it will not be seen again."""
    state[CONSUMED] = position
    store_release(words, HEAD, position)  # SYNC room-free: pairs with see_head
    wake_sleepers(words, PRODUCER_SLEEPS)


@inlined_kernel
def rewind(state: Words) -> None:
    """Read again from the first record that is not consumed."""
    state[READ] = state[CONSUMED]


# ---- taking over what is in the file


@inlined_kernel
def _check_cursors(words: Words, state: Words, head: int, tail: int) -> int:
    """Return 0 if records lead from `head` exactly to `tail`, else DAMAGED. Ends: each record takes room."""
    if tail < 0 or tail % WORD_BYTES != 0:
        return _damaged(state, TAIL_WRONG, tail, head)
    if head < 0 or head > tail or tail - head > capacity_of(words) or head % WORD_BYTES != 0:
        return _damaged(state, HEAD_WRONG, head, tail)
    position = head
    while position < tail:
        position = _behind_padding(words, position)
        byte_count = _body_bytes(words, state, position, tail)
        if byte_count < 0:
            return DAMAGED
        position += span_of(byte_count)
    return 0


@inlined_kernel
def _find_last(words: Words, state: Words, tail: int) -> int:
    """Return the position of the last committed record, consumed or not, or DAMAGED."""
    mark = load_relaxed(words, word_of(words, tail - WORD_BYTES))
    byte_count = mark & _BYTES_MASK
    position = tail - span_of(byte_count)
    if position < 0 or _body_bytes(words, state, position, tail) != byte_count:
        return _damaged(state, LAST_WRONG, tail, mark)
    return position


@kernel
def attach_producer_kernel(words: Words, state: Words) -> int:
    """Continue where the last producer stopped; return 0, or DAMAGED. The seat is ours already."""
    head = load_acquire(words, HEAD)  # SYNC room-free: pairs with advance_to
    tail = load_acquire(words, TAIL)
    if _check_cursors(words, state, head, tail) < 0:
        return DAMAGED
    last = 0
    if tail > 0:
        last = _find_last(words, state, tail)
        if last < 0:
            return DAMAGED
    state[HEAD_SEEN], state[COMMITTED], state[LAST] = head, tail, last
    drop_staged(state)
    wake_sleepers(words, CONSUMER_SLEEPS)  # the last producer may have died between a record and this call
    return 0


@kernel
def attach_consumer_kernel(words: Words, state: Words) -> int:
    """Continue where the last consumer stopped; return 0, or DAMAGED. The seat is ours already."""
    tail = load_acquire(words, TAIL)  # SYNC record-visible: pairs with publish
    head = load_acquire(words, HEAD)
    if _check_cursors(words, state, head, tail) < 0:
        return DAMAGED
    state[CONSUMED], state[TAIL_SEEN] = head, tail
    rewind(state)
    wake_sleepers(words, PRODUCER_SLEEPS)  # the last consumer may have died between moving HEAD and this call
    return 0


# ---- for callers in Python


@kernel
def append_kernel(words: Words, state: Words, source: Words, byte_count: int) -> int:
    return append_words(words, state, source, 0, byte_count)


@kernel
def append_batch_kernel(words: Words, state: Words, source: Words, byte_counts: Words, count: int) -> int:
    """Commit up to `count` records at once, as many as there is room for; return how many, or as `claim`.

    Their bodies lie one after the other in `source`, each from a whole word on.
    """
    source_word = 0
    for index in range(count):
        byte_count = byte_counts[index]
        position = stage_words(words, state, source, source_word, byte_count)
        if position < 0:
            if index > 0:
                publish(words, state)
                return index
            return 0 if position == NONE else position
        source_word += (byte_count + WORD_BYTES - 1) // WORD_BYTES
    if count > 0:
        publish(words, state)
    return count


@kernel
def claim_kernel(words: Words, state: Words, byte_count: int) -> int:
    return claim(words, state, byte_count)


@kernel
def commit_kernel(words: Words, state: Words, byte_count: int) -> int:
    """Commit the claimed record, written in place; return its position, or NONE if its claim is over."""
    if state[CLAIMED] < state[STAGED]:
        return NONE
    rest = byte_count % WORD_BYTES
    if rest != 0:  # the body's last word keeps nothing of what was there before
        last_word = word_of(words, state[CLAIMED]) + 1 + byte_count // WORD_BYTES
        store_relaxed(words, last_word, load_relaxed(words, last_word) & ((1 << (8 * rest)) - 1))
    position = stage(words, state, byte_count)
    publish(words, state)
    return position


@kernel
def read_last_kernel(words: Words, state: Words) -> int:
    """Return the size of the last committed record's body, or DAMAGED; the state says where it begins."""
    last = _find_last(words, state, state[COMMITTED])
    if last != state[LAST]:
        return DAMAGED if last < 0 else _damaged(state, LAST_WRONG, state[COMMITTED], last)
    state[LAST_WORD] = word_of(words, state[LAST]) + 1
    return load_relaxed(words, word_of(words, state[LAST])) & _BYTES_MASK


@kernel
def read_batch_kernel(words: Words, state: Words, batch: Words, limit: int) -> int:
    """Describe up to `limit` records from HEAD on; return how many, or DAMAGED if the first one is."""
    rewind(state)
    for index in range(limit):
        body_word = next_record(words, state)
        if body_word < 0:
            return DAMAGED if body_word == DAMAGED and index == 0 else index
        batch[BATCH_POSITION, index] = state[RECORD]
        batch[BATCH_BODY_WORD, index] = body_word
        batch[BATCH_BYTES, index] = state[RECORD_BYTES]
        batch[BATCH_END, index] = state[READ]
    return limit


@kernel
def advance_kernel(words: Words, state: Words, position: int) -> int:
    """Advance and return the position; or return NONE if we are there, or further, already."""
    if position <= state[CONSUMED]:
        return NONE
    advance_to(words, state, position)
    return position


@kernel
def see_head_kernel(words: Words, state: Words) -> int:
    return see_head(words, state)


@kernel
def see_tail_kernel(words: Words, state: Words) -> int:
    return see_tail(words, state)


def warm_up() -> None:
    words = np.zeros(RECORDS + 512, dtype=np.int64)
    producer, consumer = (np.zeros(STATE_WORDS, dtype=np.int64) for _ in range(2))
    source, byte_counts = np.ones(4, dtype=np.int64), np.full(2, 9, dtype=np.int64)
    attach_producer_kernel(words, producer)
    attach_consumer_kernel(words, consumer)
    append_kernel(words, producer, source, 9)
    append_batch_kernel(words, producer, source, byte_counts, 2)
    claim_kernel(words, producer, 9)
    commit_kernel(words, producer, 9)
    read_last_kernel(words, producer)
    read_batch_kernel(words, consumer, np.zeros((BATCH_ROWS, 4), dtype=np.int64), 4)
    advance_kernel(words, consumer, int(consumer[READ]))
    see_head_kernel(words, producer)
    see_tail_kernel(words, consumer)
