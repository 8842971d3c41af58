"""Bodies that tell whose they are, and a user of a slab that does nothing but use it, at full speed."""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from middleware.shm.atomics import Words, load_relaxed, pause, store_relaxed
from middleware.shm.slab_completion_kernels import relinquish_kernel
from middleware.shm.slab_kernels import allocate_kernel, free_kernel, share_kernel
from middleware.shm.slab_slot_kernels import COMPLETED, DONE, FULL, body_at, tiny_slab

FOREIGN_BYTES, WRONG_ANSWER = -1, -2
BODY_WORDS_MAX = 24
_MULTIPLIER, _INCREMENT, _MASK = 1_103_515_245, 12_345, (1 << 31) - 1


@kernel
def stamp(words: Words, at: int, word_count: int, handle: int) -> None:
    for index in range(word_count):
        store_relaxed(words, at + index, handle ^ (index << 48))


@kernel
def is_stamped(words: Words, at: int, word_count: int, handle: int) -> bool:
    wrong = 0
    for index in range(word_count):
        wrong |= load_relaxed(words, at + index) ^ handle ^ (index << 48)
    return wrong == 0


@kernel
def churn_kernel(words: Words, plan: Words, mine: Words, seed: int, round_count: int, ticket: int) -> int:
    """Allocate, write, share, look and relinquish, or give back; return the next ticket, or what is wrong."""
    randomness = seed & _MASK
    for _ in range(round_count):
        randomness = (randomness * _MULTIPLIER + _INCREMENT) & _MASK
        word_count = 1 + (randomness >> 8) % BODY_WORDS_MAX
        handle = allocate_kernel(words, plan, mine, 8 * word_count, ticket)
        if handle < 0:
            return WRONG_ANSWER
        if handle == FULL:
            pause()
            continue
        at = body_at(plan, handle)
        stamp(words, at, word_count, handle)
        if (randomness >> 16) & 7 == 0:
            if not is_stamped(words, at, word_count, handle):
                return FOREIGN_BYTES
            if free_kernel(words, plan, mine, handle) != DONE:
                return WRONG_ANSWER
            continue
        if share_kernel(words, plan, mine, handle) != DONE:
            return WRONG_ANSWER
        if not is_stamped(words, at, word_count, handle):
            return FOREIGN_BYTES
        if relinquish_kernel(words, plan, mine, handle, 1, ticket) != COMPLETED:
            return WRONG_ANSWER
        ticket += 1
    return ticket


def warm_up() -> None:
    words, plan, mine = tiny_slab()
    churn_kernel(words, plan, mine, 1, 3, 1)
    is_stamped(np.zeros(1, dtype=np.int64), 0, 1, 0)
