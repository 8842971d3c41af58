"""Allocating, sharing and reading bodies of a slab, compiled. See slab.py for what they mean.

Nobody waits for anybody: a failed compare-exchange means that somebody else got on, and whoever is killed
leaves nothing that others wait for.

The truth about a slot is its state word. The hints, a bit for each slot that may be free, are not: a bit is
taken before the slot is claimed and set after the slot was freed, so a kill loses a hint at worst. When the
hints run dry, the class is swept for slots that are free without one.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import (
    Words,
    compare_exchange,
    copy_words,
    fence_acquire,
    fence_release,
    fetch_and,
    fetch_or,
    load_relaxed,
    store_relaxed,
)
from middleware.shm.slab_completion_kernels import (
    free_completed,
    relinquish_many_kernel,
)
from middleware.shm.slab_layout import (
    BYTES,
    CLAIMED,
    COUNT,
    COUNT_BITS,
    COUNT_GENERATION_MASK,
    COUNT_GENERATION_SHIFT,
    COUNTER_WORDS,
    COUNTERS,
    FREE,
    FREED,
    GENERATION_MASK,
    GENERATION_SHIFT,
    HINTS_PER_WORD,
    LIMIT,
    MY_BLOCK,
    MY_OWNER,
    MY_ROW_WORDS,
    MY_ROWS,
    OVERFLOWED,
    OWNED,
    PLAN_CLASSES,
    PLAN_PARTICIPANTS,
    REFUSED,
    ROW_CURSOR,
    ROW_DRY,
    ROW_FRUITLESS,
    ROW_HINTS,
    ROW_HINTS_AT,
    ROW_SLOT_BYTES,
    ROW_SLOTS,
    ROW_SLOTS_AT,
    ROW_SWEEP_AT,
    ROW_UNSAMPLED,
    SHARED,
    SLOT_RECORD_WORDS,
    STATE,
    STATE_MASK,
    TAG,
    USED_MAX,
    WORD_BYTES,
)
from middleware.shm.slab_slot_kernels import (
    DAMAGED,
    DONE,
    FULL,
    NOT_OWNER,
    STALE,
    TOO_LARGE,
    block_at,
    body_at,
    checked_bytes,
    count_one,
    free_word,
    generation_of_handle,
    handle_of,
    is_shared,
    row_of,
    slot_at,
    state_word,
    tiny_slab,
)

SWEEP_SLOTS = 1_024  # at most so many slots are looked at by one allocation of a class that seems full
SWEEP_PATIENCE = 64  # a class that was swept whole in vain is swept again at every 64th dry allocation
SAMPLE_CLAIMS = 64  # the number of used slots is added up after so many claims
_HINTS_MASK = (1 << HINTS_PER_WORD) - 1


@inlined_kernel
def lowest_bit(bits: int) -> int:
    """Return the index of the lowest bit set, of up to 32."""
    index = 0
    if bits & 0xFFFF == 0:
        bits >>= 16
        index = 16
    if bits & 0xFF == 0:
        bits >>= 8
        index += 8
    if bits & 0xF == 0:
        bits >>= 4
        index += 4
    if bits & 0x3 == 0:
        bits >>= 2
        index += 2
    return index + 1 - (bits & 1)


@kernel
def sample_used(words: Words, plan: Words, mine: Words, size_class: int) -> None:
    """Note how many slots are used, if it is the most that we saw: the difference of everybody's counters.

    Who is killed between a slot's word and its counter leaves them one apart, so it is kept in bounds.
    """
    used = 0
    for seat in range(1, int(plan[PLAN_PARTICIPANTS]) + 1):
        at = block_at(plan, seat) + COUNTERS + size_class * COUNTER_WORDS
        used += load_relaxed(words, at + CLAIMED) - load_relaxed(words, at + FREED)
    used = min(used, int(plan[row_of(size_class) + ROW_SLOTS]))
    at = int(mine[MY_BLOCK]) + COUNTERS + size_class * COUNTER_WORDS + USED_MAX
    if used > load_relaxed(words, at):
        store_relaxed(words, at, used)


@inlined_kernel
def claim_slot(words: Words, plan: Words, mine: Words, size_class: int, slot: int) -> int:
    """Return the handle of a slot that was free and is ours now, or FULL."""
    at = int(plan[row_of(size_class) + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS
    word = load_relaxed(words, at + STATE)
    if word & STATE_MASK != FREE:
        return FULL
    generation = ((word >> GENERATION_SHIFT) & GENERATION_MASK) + 1
    if generation > GENERATION_MASK:
        generation = 1
    # SYNC owner-seen: pairs with held_kernel. Our incarnation is in our block before it is in a slot.
    if compare_exchange(words, at + STATE, word, state_word(generation, int(mine[MY_OWNER]), OWNED)) != word:
        return FULL
    # SYNC body-recycled: pairs with read_kernel. What we write to the body comes after the new generation.
    fence_release()
    return handle_of(size_class, slot, generation)


@kernel
def claim_by_hint(words: Words, plan: Words, mine: Words, size_class: int) -> int:
    """Return the handle of a free slot that a hint led to, or FULL when there are no hints."""
    row, mine_row = row_of(size_class), MY_ROWS + size_class * MY_ROW_WORDS
    hint_words, slot_count = int(plan[row + ROW_HINTS]), int(plan[row + ROW_SLOTS])
    hints_at, start = int(plan[row + ROW_HINTS_AT]), int(mine[mine_row + ROW_CURSOR])
    for step in range(hint_words):
        position = start + step
        if position >= hint_words:
            position -= hint_words
        bits = load_relaxed(words, hints_at + position) & _HINTS_MASK
        for _ in range(2 * HINTS_PER_WORD):  # others may set bits as fast as we take them
            if bits == 0:
                break
            index = lowest_bit(bits)
            old = fetch_and(words, hints_at + position, ~(1 << index))
            if (old >> index) & 1:  # it was there, so it is ours to follow
                slot = position * HINTS_PER_WORD + index
                handle = claim_slot(words, plan, mine, size_class, slot) if slot < slot_count else FULL
                if handle != FULL:
                    mine[mine_row + ROW_CURSOR] = position
                    return handle
            bits = old & ~(1 << index) & _HINTS_MASK
    return FULL


@kernel
def sweep_hints(words: Words, plan: Words, mine: Words, size_class: int, first: int, end: int) -> int:
    """Set the hints of all slots in a range that are free, free what is complete; return how many are free.

    The range begins at a whole word of hints. A hint may be set for a slot that somebody claims right now;
    hints may be wrong.
    """
    row = row_of(size_class)
    slots_at, hints_at = int(plan[row + ROW_SLOTS_AT]), int(plan[row + ROW_HINTS_AT])
    found = 0
    for group in range(first, end, HINTS_PER_WORD):
        bits = 0
        for slot in range(group, min(group + HINTS_PER_WORD, end)):
            word = load_relaxed(words, slots_at + slot * SLOT_RECORD_WORDS + STATE)
            if word & STATE_MASK == SHARED:
                # Its last user was killed between the last count and the freeing, if it is complete.
                found += free_completed(
                    words, plan, mine, handle_of(size_class, slot, word >> GENERATION_SHIFT)
                )
            elif word & STATE_MASK == FREE:
                bits |= 1 << (slot - group)
                found += 1
        hint_at = hints_at + group // HINTS_PER_WORD
        if bits & ~load_relaxed(words, hint_at):
            fetch_or(words, hint_at, bits)
    return found


@kernel
def claim_by_sweep(words: Words, plan: Words, mine: Words, size_class: int) -> int:
    """Look for slots that are free without a hint; return the handle of one, ours now, or FULL.

    The hints of a new file are all missing, later only those that a killed process had taken. So a class
    that was swept whole in vain is looked at again only now and then, and a part at a time.
    """
    mine_row, slot_count = MY_ROWS + size_class * MY_ROW_WORDS, int(plan[row_of(size_class) + ROW_SLOTS])
    mine[mine_row + ROW_DRY] += 1
    is_doubtful = mine[mine_row + ROW_FRUITLESS] < slot_count
    if not is_doubtful and mine[mine_row + ROW_DRY] % SWEEP_PATIENCE != 0:
        return FULL
    for _ in range(slot_count // SWEEP_SLOTS + 2):
        first = int(mine[mine_row + ROW_SWEEP_AT])
        end = min(first + SWEEP_SLOTS, slot_count)
        mine[mine_row + ROW_SWEEP_AT] = 0 if end == slot_count else end
        if sweep_hints(words, plan, mine, size_class, first, end) > 0:
            mine[mine_row + ROW_FRUITLESS] = 0
            mine[mine_row + ROW_CURSOR] = first // HINTS_PER_WORD
            handle = claim_by_hint(words, plan, mine, size_class)
            if handle != FULL:
                return handle
        else:
            mine[mine_row + ROW_FRUITLESS] += end - first
        if not is_doubtful or mine[mine_row + ROW_FRUITLESS] >= slot_count:
            break
    if mine[mine_row + ROW_FRUITLESS] >= slot_count:
        store_relaxed(
            words, int(mine[MY_BLOCK]) + COUNTERS + size_class * COUNTER_WORDS + USED_MAX, slot_count
        )
    return FULL


@kernel
def claim(words: Words, plan: Words, mine: Words, size_class: int) -> int:
    """Return the handle of a free slot of one class, ours now, or FULL."""
    handle = claim_by_hint(words, plan, mine, size_class)
    if handle == FULL:
        handle = claim_by_sweep(words, plan, mine, size_class)
        if handle == FULL:
            return FULL
    count_one(words, mine, size_class, CLAIMED)
    mine_row = MY_ROWS + size_class * MY_ROW_WORDS
    mine[mine_row + ROW_UNSAMPLED] += 1
    if mine[mine_row + ROW_UNSAMPLED] >= SAMPLE_CLAIMS:
        mine[mine_row + ROW_UNSAMPLED] = 0
        sample_used(words, plan, mine, size_class)
    return handle


@kernel
def allocate_kernel(words: Words, plan: Words, mine: Words, byte_count: int, tag: int) -> int:
    """Return the handle of a slot for a body of `byte_count`, owned by us, or FULL, or TOO_LARGE.

    A class that is full is helped out by the next larger one.
    """
    class_count = int(plan[PLAN_CLASSES])
    fitting = 0
    while fitting < class_count and byte_count > plan[row_of(fitting) + ROW_SLOT_BYTES]:
        fitting += 1
    if fitting == class_count or byte_count < 0:
        return TOO_LARGE
    for size_class in range(fitting, class_count):
        handle = claim(words, plan, mine, size_class)
        if handle != FULL:
            at, generation = slot_at(plan, handle), generation_of_handle(handle)
            store_relaxed(words, at + TAG, tag)
            store_relaxed(words, at + BYTES, byte_count)
            store_relaxed(words, at + LIMIT, generation << COUNT_BITS)
            store_relaxed(words, at + COUNT, (generation & COUNT_GENERATION_MASK) << COUNT_GENERATION_SHIFT)
            if size_class > fitting:
                count_one(words, mine, fitting, OVERFLOWED)
            return handle
    count_one(words, mine, fitting, REFUSED)
    return FULL


@kernel
def share_kernel(words: Words, plan: Words, mine: Words, handle: int) -> int:
    """Let everybody who is given the handle see the body. DONE, STALE or NOT_OWNER."""
    at = slot_at(plan, handle)
    if at < 0:
        return STALE
    generation, owner = generation_of_handle(handle), int(mine[MY_OWNER])
    owned = state_word(generation, owner, OWNED)
    # SYNC body-visible: pairs with view_kernel and read_kernel.
    seen = compare_exchange(words, at + STATE, owned, state_word(generation, owner, SHARED))
    if seen == owned:
        return DONE
    return NOT_OWNER if seen >> GENERATION_SHIFT == generation and seen & STATE_MASK == OWNED else STALE


@kernel
def free_kernel(words: Words, plan: Words, mine: Words, handle: int) -> int:
    """Give back a slot that we own and have not shared. DONE, STALE or NOT_OWNER."""
    at = slot_at(plan, handle)
    if at < 0:
        return STALE
    generation = generation_of_handle(handle)
    word = load_relaxed(words, at + STATE)
    if word >> GENERATION_SHIFT != generation or word & STATE_MASK == FREE:
        return STALE
    if word != state_word(generation, int(mine[MY_OWNER]), OWNED):
        return NOT_OWNER
    return DONE if free_word(words, plan, mine, handle, word) else STALE


@kernel
def view_kernel(words: Words, plan: Words, handle: int) -> int:
    """Return the length of a shared body, or STALE, or DAMAGED."""
    at = slot_at(plan, handle)
    if at < 0 or not is_shared(words, at, handle):
        return STALE
    return checked_bytes(words, plan, handle, at)


@kernel
def owned_kernel(words: Words, plan: Words, mine: Words, handle: int) -> int:
    """Return the length of a body that is ours alone, or STALE, NOT_OWNER or DAMAGED."""
    at = slot_at(plan, handle)
    if at < 0:
        return STALE
    word, generation = load_relaxed(words, at + STATE), generation_of_handle(handle)
    if word >> GENERATION_SHIFT != generation or word & STATE_MASK == FREE:
        return STALE
    if word != state_word(generation, int(mine[MY_OWNER]), OWNED):
        return NOT_OWNER
    return checked_bytes(words, plan, handle, at)


@kernel
def read_kernel(words: Words, plan: Words, handle: int, target: Words) -> int:
    """Copy a shared body to private words; return its length, or STALE if it went meanwhile, or DAMAGED.

    TOO_LARGE if `target` cannot hold it.
    """
    at = slot_at(plan, handle)
    if at < 0 or not is_shared(words, at, handle):
        return STALE
    byte_count = checked_bytes(words, plan, handle, at)
    word_count = (byte_count + WORD_BYTES - 1) // WORD_BYTES
    if byte_count < 0 or word_count > target.size:
        return DAMAGED if byte_count < 0 else TOO_LARGE
    copy_words(target, 0, words, body_at(plan, handle), word_count)
    fence_acquire()  # SYNC body-recycled: pairs with claim_slot
    return byte_count if is_shared(words, at, handle) else STALE


@kernel
def allocate_many_kernel(
    words: Words, plan: Words, mine: Words, byte_counts: Words, tags: Words, handles: Words
) -> int:
    """Allocate for each length until the slab is full or one is too large; return how many there are."""
    for index in range(byte_counts.size):
        handle = allocate_kernel(words, plan, mine, int(byte_counts[index]), int(tags[index]))
        if handle <= 0:
            return index
        handles[index] = handle
    return int(byte_counts.size)


@kernel
def share_many_kernel(words: Words, plan: Words, mine: Words, handles: Words, answers: Words) -> int:
    """Share each; return how many were shared, `answers` says what became of each."""
    shared = 0
    for index in range(handles.size):
        answers[index] = share_kernel(words, plan, mine, int(handles[index]))
        shared += answers[index] == DONE
    return shared


def warm_up() -> None:
    words, plan, mine = tiny_slab()
    handle = allocate_kernel(words, plan, mine, 8, 0)
    owned_kernel(words, plan, mine, handle)
    body_at(plan, handle)  # Python calls these, too
    slot_at(plan, handle)
    block_at(plan, 1)
    share_kernel(words, plan, mine, handle)
    view_kernel(words, plan, handle)
    read_kernel(words, plan, handle, np.zeros(8, dtype=np.int64))
    free_kernel(words, plan, mine, allocate_kernel(words, plan, mine, 8, 0))
    sizes, handles, answers = (np.full(2, 8, dtype=np.int64) for _ in range(3))
    allocate_many_kernel(words, plan, mine, sizes, sizes, handles)
    share_many_kernel(words, plan, mine, handles, answers)
    relinquish_many_kernel(words, plan, mine, handles, answers, answers, answers)
