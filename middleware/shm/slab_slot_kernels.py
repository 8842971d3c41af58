"""A slot of a slab, compiled: from a handle to its words and its body, and back to free.

`words` is the slab's file, `plan` says where its parts are, `mine` are the private words of one participant:
who it is and where it looks next. slab_layout.py draws all three.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import (
    Words,
    compare_exchange,
    fetch_or,
    load_acquire,
    load_relaxed,
    store_relaxed,
)
from middleware.shm.slab_layout import (
    BYTES,
    CLASS_BITS,
    CLASS_MASK,
    COUNTER_WORDS,
    COUNTERS,
    FREE,
    FREED,
    GENERATION_SHIFT,
    HINTS_PER_WORD,
    MY_BLOCK,
    MY_OWNER,
    MY_SEAT,
    NOBODY,
    OWNER_MASK,
    PARTICIPANT_WORDS,
    PLAN_CLASSES,
    PLAN_PARTICIPANTS_AT,
    PLAN_ROW_WORDS,
    PLAN_ROWS,
    PRIVATE_WORDS,
    ROW_BODIES_AT,
    ROW_HINTS_AT,
    ROW_SLOT_BYTES,
    ROW_SLOTS,
    ROW_SLOTS_AT,
    SHARED,
    SLOT_BITS,
    SLOT_MASK,
    SLOT_RECORD_WORDS,
    STATE,
    STATE_BITS,
    STATE_MASK,
    WORD_BYTES,
    SizeClass,
    SlabConfig,
    plan_of,
)

# What an operation answers instead of a handle or a length.
FULL = 0
DONE, COMPLETED, REPEATED = 0, 1, 2  # of relinquish: counted | and so the body is gone | was counted before
STALE, NOT_OWNER, TOO_LARGE, DAMAGED = -1, -2, -3, -4
LIMIT_CONFLICT, COUNT_EXCEEDED, LIMIT_OUT_OF_RANGE = -5, -6, -7
NO_LIMIT = 0

_PAYLOAD_SHIFT = SLOT_BITS + CLASS_BITS


@inlined_kernel
def state_word(generation: int, owner: int, state: int) -> int:
    return (generation << GENERATION_SHIFT) | (owner << STATE_BITS) | state


@inlined_kernel
def owner_of(word: int) -> int:
    return (word >> STATE_BITS) & OWNER_MASK


@inlined_kernel
def generation_of_handle(handle: int) -> int:
    return handle >> _PAYLOAD_SHIFT


@inlined_kernel
def handle_of(size_class: int, slot: int, generation: int) -> int:
    return (generation << _PAYLOAD_SHIFT) | (size_class << SLOT_BITS) | slot


@inlined_kernel
def row_of(size_class: int) -> int:
    return PLAN_ROWS + size_class * PLAN_ROW_WORDS


@inlined_kernel
def slot_at(plan: Words, handle: int) -> int:
    """Return where the slot's words are that a handle names, or STALE if this slab has no such slot."""
    size_class, slot = (handle >> SLOT_BITS) & CLASS_MASK, handle & SLOT_MASK
    if handle <= 0 or size_class >= plan[PLAN_CLASSES] or slot >= plan[row_of(size_class) + ROW_SLOTS]:
        return STALE
    return int(plan[row_of(size_class) + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS


@inlined_kernel
def body_at(plan: Words, handle: int) -> int:
    """Return where the body begins, in words, of a handle that `slot_at` accepts."""
    row = row_of((handle >> SLOT_BITS) & CLASS_MASK)
    return int(plan[row + ROW_BODIES_AT]) + (handle & SLOT_MASK) * (
        int(plan[row + ROW_SLOT_BYTES]) // WORD_BYTES
    )


@inlined_kernel
def block_at(plan: Words, seat: int) -> int:
    """Return where the block of a participant begins; seats count from 1 here, as in the state word."""
    return int(plan[PLAN_PARTICIPANTS_AT]) + (seat - 1) * PARTICIPANT_WORDS


@inlined_kernel
def count_one(words: Words, mine: Words, size_class: int, counter: int) -> None:
    """Add one to a counter of ours: nobody else writes it."""
    at = int(mine[MY_BLOCK]) + COUNTERS + size_class * COUNTER_WORDS + counter
    store_relaxed(words, at, load_relaxed(words, at) + 1)


@kernel
def free_word(words: Words, plan: Words, mine: Words, handle: int, word: int) -> int:
    """Free a slot whose state word is `word`; return whether it was us who freed it."""
    size_class, slot = (handle >> SLOT_BITS) & CLASS_MASK, handle & SLOT_MASK
    at = slot_at(plan, handle)
    if at < 0:
        return 0
    if (
        compare_exchange(words, at + STATE, word, state_word(generation_of_handle(handle), NOBODY, FREE))
        != word
    ):
        return 0
    count_one(words, mine, size_class, FREED)
    hint_at = int(plan[row_of(size_class) + ROW_HINTS_AT]) + slot // HINTS_PER_WORD
    fetch_or(words, hint_at, 1 << (slot % HINTS_PER_WORD))
    return 1


@inlined_kernel
def checked_bytes(words: Words, plan: Words, handle: int, at: int) -> int:
    byte_count = load_relaxed(words, at + BYTES)
    if 0 <= byte_count <= plan[row_of((handle >> SLOT_BITS) & CLASS_MASK) + ROW_SLOT_BYTES]:
        return byte_count
    return DAMAGED


@inlined_kernel
def is_shared(words: Words, at: int, handle: int) -> bool:
    word = load_acquire(words, at + STATE)  # SYNC body-visible: pairs with share_kernel
    return word & STATE_MASK == SHARED and word >> GENERATION_SHIFT == generation_of_handle(handle)


def tiny_slab() -> tuple[Words, Words, Words]:
    """Return the words, plan and private words of a slab in ordinary memory, for warming up."""
    plan, body_bytes = plan_of(SlabConfig((SizeClass(64, 4),), participants=1))
    words = np.zeros(plan[PLAN_PARTICIPANTS_AT] + body_bytes // WORD_BYTES, dtype=np.int64)
    mine = np.zeros(PRIVATE_WORDS, dtype=np.int64)
    mine[MY_SEAT], mine[MY_OWNER], mine[MY_BLOCK] = 1, 1, plan[PLAN_PARTICIPANTS_AT]
    return words, plan, mine
