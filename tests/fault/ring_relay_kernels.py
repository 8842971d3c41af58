"""Records that prove themselves, produced, passed on and checked by compiled code.

Record `n` has a body of `8 + n * 7 mod 120` bytes: its number, then words that follow from number and place.
A relay puts the position that the record had in the first ring before it. So a body with a word of another
record, a record left out, repeated or out of order, is found by who reads the second ring.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import Words, load_relaxed
from middleware.shm.ring_kernels import (
    DAMAGED,
    READ,
    RECORD,
    RECORD_BYTES,
    RECORDS,
    STATE_WORDS,
    advance_to,
    attach_consumer_kernel,
    attach_producer_kernel,
    drop_staged,
    next_record,
    publish,
    rewind,
    stage_words,
)

BODY_BYTES_MAX = 8 + 119
RELAYED_BYTES_MAX = BODY_BYTES_MAX + 8
SCRATCH_WORDS = 32
WRONG = -100  # a record is not what it should be; below all answers of the ring's own kernels

_PER_NUMBER = 2_654_435_761
_PER_WORD = 40_503
_MASK = (1 << 62) - 1
NUMBER_MAX = 1 << 30  # so that nothing here passes 2**63


@inlined_kernel
def _body_bytes(number: int) -> int:
    return 8 + number * 7 % 120


@inlined_kernel
def _word(number: int, word: int, byte_count: int) -> int:
    """Return a word of a body, of which only the bytes that belong to it count."""
    value = number if word == 0 else (number * _PER_NUMBER ^ word * _PER_WORD) & _MASK
    rest = byte_count - 8 * word
    return value if rest >= 8 else value & ((1 << (8 * rest)) - 1)


@kernel
def produce_kernel(words: Words, state: Words, scratch: Words, first: int, count: int, together: int) -> int:
    """Commit records from number `first` on, up to `together` at a time; return how many, or DAMAGED."""
    staged = published = 0
    for number in range(first, first + count):
        byte_count = _body_bytes(number)
        for word in range((byte_count + 7) // 8):
            scratch[word] = _word(number, word, byte_count)
        position = stage_words(words, state, scratch, 0, byte_count)
        if position == DAMAGED:
            return DAMAGED
        if position < 0:
            break
        staged += 1
        if staged % together == 0:
            publish(words, state)
            published = staged
    if staged > published:
        publish(words, state)
    return staged


@kernel
def relay_kernel(
    inward: Words,
    inward_state: Words,
    outward: Words,
    outward_state: Words,
    scratch: Words,
    passed_on: int,
    together: int,
) -> int:
    """Pass up to `together` records on, commit them at once, then advance; return how many, or DAMAGED.

    Records up to position `passed_on` were passed on by a predecessor that died before it advanced.
    """
    rewind(inward_state)
    done = inward_state[READ]
    count = 0
    while count < together:
        body_word = next_record(inward, inward_state)
        if body_word == DAMAGED:
            return DAMAGED
        if body_word < 0:
            break
        position, byte_count = inward_state[RECORD], inward_state[RECORD_BYTES]
        if position > passed_on:
            scratch[0] = position
            for word in range((byte_count + 7) // 8):
                scratch[1 + word] = load_relaxed(inward, body_word + word)
            answer = stage_words(outward, outward_state, scratch, 0, 8 + byte_count)
            if answer == DAMAGED:
                drop_staged(outward_state)
                return DAMAGED
            if answer < 0:
                break
        done = inward_state[READ]
        count += 1
    if count > 0:
        publish(outward, outward_state)
        advance_to(inward, inward_state, done)
    return count


@kernel
def check_kernel(words: Words, state: Words, progress: Words, limit: int) -> int:
    """Consume up to `limit` relayed records and check every bit of them; return how many, DAMAGED or WRONG.

    `progress` is the number that comes next, and the first ring's position of the record before.
    """
    rewind(state)
    count = 0
    while count < limit:
        body_word = next_record(words, state)
        if body_word == DAMAGED:
            return DAMAGED
        if body_word < 0:
            break
        number, byte_count = progress[0], state[RECORD_BYTES] - 8
        if byte_count != _body_bytes(number) or load_relaxed(words, body_word) <= progress[1]:
            return WRONG
        for word in range((byte_count + 7) // 8):
            if load_relaxed(words, body_word + 1 + word) != _word(number, word, byte_count):
                return WRONG
        progress[0], progress[1] = number + 1, load_relaxed(words, body_word)
        count += 1
    if count > 0:
        advance_to(words, state, state[READ])
    return count


def warm_up() -> None:
    rings = [np.zeros(RECORDS + 512, dtype=np.int64) for _ in range(2)]
    producers, consumers = ([np.zeros(STATE_WORDS, dtype=np.int64) for _ in rings] for _ in range(2))
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    for words, producer, consumer in zip(rings, producers, consumers, strict=True):
        attach_producer_kernel(words, producer)
        attach_consumer_kernel(words, consumer)
    assert produce_kernel(rings[0], producers[0], scratch, 0, 3, 2) == 3
    assert relay_kernel(rings[0], consumers[0], rings[1], producers[1], scratch, -1, 3) == 3
    assert check_kernel(rings[1], consumers[1], np.array([0, -1]), 3) == 3
