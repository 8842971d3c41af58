"""Going through all slots of a slab, compiled: checking a file, finding what the dead held.

Slots are numbered through all classes here. Everything may run while others allocate and free: a slot is
changed only by a compare-exchange of the state word that was looked at.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from middleware.shm.atomics import (
    Words,
    compare_exchange,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from middleware.shm.slab_completion_kernels import done_ticket_kernel
from middleware.shm.slab_kernels import sweep_hints
from middleware.shm.slab_layout import (
    BYTES,
    COUNT,
    COUNT_BITS,
    COUNT_GENERATION_MASK,
    COUNT_GENERATION_SHIFT,
    COUNT_MAX,
    COUNTER_WORDS,
    COUNTERS,
    DONE_TICKET,
    FREE,
    FREED,
    GENERATION_MASK,
    GENERATION_SHIFT,
    INCARNATION,
    INTENT_SEQ,
    LIMIT,
    MY_BLOCK,
    MY_DONE_TICKET,
    MY_OWNER,
    NAME,
    NAME_WORDS,
    NOBODY,
    OWNED,
    PID,
    PLAN_CLASSES,
    PLAN_PARTICIPANTS,
    PLAN_SLOTS,
    ROW_FIRST_SLOT,
    ROW_SLOT_BYTES,
    ROW_SLOTS,
    ROW_SLOTS_AT,
    SEAT_BITS,
    SEAT_MASK,
    SHARED,
    SINCE_NS,
    SLOT_RECORD_WORDS,
    STATE,
    STATE_BITS,
    STATE_MASK,
)
from middleware.shm.slab_slot_kernels import (
    block_at,
    free_word,
    generation_of_handle,
    handle_of,
    owner_of,
    row_of,
    slot_at,
    state_word,
    tiny_slab,
)

SOUND = -1
FIELD_STATE, FIELD_BYTES, FIELD_COUNT, FIELD_LIMIT = range(4)


@kernel
def check_kernel(words: Words, plan: Words, found: Words) -> int:
    """Return the number of the first slot whose words cannot be, or SOUND; `found` is which word, and it."""
    for size_class in range(int(plan[PLAN_CLASSES])):
        row = row_of(size_class)
        for slot in range(int(plan[row + ROW_SLOTS])):
            at = int(plan[row + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS
            word = load_acquire(words, at + STATE)
            byte_count = load_relaxed(words, at + BYTES)
            count_word = load_relaxed(words, at + COUNT)
            limit_word = load_relaxed(words, at + LIMIT)
            if load_acquire(words, at + STATE) != word:
                continue  # it is in use at this moment, and by somebody who has looked at it
            state, seat = word & STATE_MASK, owner_of(word) & SEAT_MASK
            generation = word >> GENERATION_SHIFT
            is_legal = 0 <= generation <= GENERATION_MASK and seat <= plan[PLAN_PARTICIPANTS]
            if state == FREE:
                is_legal = is_legal and owner_of(word) == NOBODY
            elif state == OWNED:
                is_legal = is_legal and generation > 0 and seat > 0
            else:
                is_legal = is_legal and generation > 0 and state == SHARED
            field, value = FIELD_STATE, word
            if is_legal and state == SHARED:
                limit = limit_word & COUNT_MAX
                count = (count_word >> SEAT_BITS) & COUNT_MAX
                if not 0 <= byte_count <= plan[row + ROW_SLOT_BYTES]:
                    is_legal, field, value = False, FIELD_BYTES, byte_count
                elif limit_word >> COUNT_BITS != generation:
                    is_legal, field, value = False, FIELD_LIMIT, limit_word
                elif (
                    count_word >> COUNT_GENERATION_SHIFT != generation & COUNT_GENERATION_MASK
                    or count_word & SEAT_MASK > plan[PLAN_PARTICIPANTS]
                    or (limit > 0 and count > limit)
                ):
                    is_legal, field, value = False, FIELD_COUNT, count_word
            if not is_legal:
                found[0], found[1] = field, value
                return int(plan[row + ROW_FIRST_SLOT]) + slot
    return SOUND


@kernel
def held_kernel(words: Words, plan: Words, first: int, handles: Words, states: Words) -> tuple[int, int]:
    """List slots that have an owner, from number `first` on; return where to go on and how many there are."""
    listed = 0
    for size_class in range(int(plan[PLAN_CLASSES])):
        row = row_of(size_class)
        first_slot, slot_count = int(plan[row + ROW_FIRST_SLOT]), int(plan[row + ROW_SLOTS])
        for slot in range(max(first - first_slot, 0), slot_count):
            if listed == handles.size:
                return first_slot + slot, listed
            # SYNC owner-seen: pairs with claim_slot. Whether it lives is asked after the word was seen.
            word = load_acquire(words, int(plan[row + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS + STATE)
            if word & STATE_MASK != FREE and owner_of(word) != NOBODY:
                handles[listed] = handle_of(size_class, slot, word >> GENERATION_SHIFT)
                states[listed] = word
                listed += 1
    return int(plan[PLAN_SLOTS]), listed


@kernel
def free_word_kernel(words: Words, plan: Words, mine: Words, handle: int, word: int) -> int:
    """Free what a dead owner left, if it is still as it was seen; return whether it was us who freed it."""
    return free_word(words, plan, mine, handle, word)


@kernel
def disown_kernel(words: Words, plan: Words, handle: int, word: int) -> int:
    """Leave a shared body to its users, if it is still as it was seen; return whether it was us."""
    at, kept = slot_at(plan, handle), state_word(generation_of_handle(handle), NOBODY, SHARED)
    return int(at >= 0 and compare_exchange(words, at + STATE, word, kept) == word)


@kernel
def heal_kernel(words: Words, plan: Words, mine: Words) -> int:
    """Make all hints anew and free bodies that everybody relinquished; return how many bodies."""
    completed = 0
    for size_class in range(int(plan[PLAN_CLASSES])):
        at = int(mine[MY_BLOCK]) + COUNTERS + size_class * COUNTER_WORDS + FREED
        before = load_relaxed(words, at)
        sweep_hints(words, plan, mine, size_class, 0, int(plan[row_of(size_class) + ROW_SLOTS]))
        completed += load_relaxed(words, at) - before
    return completed


@kernel
def release_all_kernel(words: Words, plan: Words, mine: Words) -> int:
    """Before we leave: free what is ours alone, leave what is shared to its users; return how many slots."""
    released = 0
    for size_class in range(int(plan[PLAN_CLASSES])):
        row = row_of(size_class)
        for slot in range(int(plan[row + ROW_SLOTS])):
            word = load_relaxed(words, int(plan[row + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS + STATE)
            if word & STATE_MASK == FREE or owner_of(word) != mine[MY_OWNER]:
                continue
            handle = handle_of(size_class, slot, word >> GENERATION_SHIFT)
            if word & STATE_MASK == OWNED:
                released += free_word(words, plan, mine, handle, word)
            else:
                released += disown_kernel(words, plan, handle, word)
    return released


@kernel
def incarnations_kernel(words: Words, plan: Words, seat: int, is_used: Words) -> int:
    """Mark the incarnations of a seat that still own slots; return how many slots they own."""
    owned = 0
    for size_class in range(int(plan[PLAN_CLASSES])):
        row = row_of(size_class)
        for slot in range(int(plan[row + ROW_SLOTS])):
            word = load_acquire(words, int(plan[row + ROW_SLOTS_AT]) + slot * SLOT_RECORD_WORDS + STATE)
            if word & STATE_MASK != FREE and owner_of(word) & SEAT_MASK == seat:
                is_used[owner_of(word) >> SEAT_BITS] = 1
                owned += 1
    return owned


@kernel
def sit_kernel(
    words: Words, plan: Words, mine: Words, seat: int, incarnation: int, name: Words, is_successor: int
) -> None:
    """Begin an incarnation on a seat whose lock we hold: as successor of the same name, or as somebody new.

    `name` is followed by the process and the time. Killed in the middle, it is done again by the next.
    """
    block = block_at(plan, seat)
    if is_successor:
        done_ticket = done_ticket_kernel(words, plan, seat)
    else:
        done_ticket = 0
        # Odd: what the last one here had announced says nothing about us.
        store_relaxed(words, block + INTENT_SEQ, load_relaxed(words, block + INTENT_SEQ) | 1)
    store_release(words, block + DONE_TICKET, done_ticket)
    store_relaxed(words, block + PID, name[NAME_WORDS])
    store_relaxed(words, block + SINCE_NS, name[NAME_WORDS + 1])
    for index in range(NAME_WORDS - 1, -1, -1):  # the first word last: with it the seat has its name
        store_release(words, block + NAME + index, name[index])
    store_release(words, block + INCARNATION, incarnation)
    mine[MY_DONE_TICKET] = done_ticket


@kernel
def vacate_kernel(words: Words, plan: Words, seat: int) -> None:
    """Take the name off a seat whose lock we hold, so that anybody may have it."""
    store_release(words, block_at(plan, seat) + NAME, 0)


@kernel
def set_done_ticket_kernel(words: Words, mine: Words, ticket: int) -> None:
    """Begin the tickets anew. What was announced last must not speak for them, so it becomes odd."""
    block = int(mine[MY_BLOCK])
    store_release(words, block + INTENT_SEQ, load_relaxed(words, block + INTENT_SEQ) | 1)
    store_release(words, block + DONE_TICKET, ticket)
    mine[MY_DONE_TICKET] = ticket


@kernel
def load_kernel(words: Words, index: int, count: int, target: Words) -> None:
    """Read single words for people: names, counters, tags."""
    for offset in range(count):
        target[offset] = load_acquire(words, index + offset)


def warm_up() -> None:
    words, plan, mine = tiny_slab()
    numbers = np.zeros(16, dtype=np.int64)
    sit_kernel(words, plan, mine, 1, 0, numbers, 1)
    set_done_ticket_kernel(words, mine, 0)
    incarnations_kernel(words, plan, 1, numbers)
    heal_kernel(words, plan, mine)
    release_all_kernel(words, plan, mine)
    free_word_kernel(words, plan, mine, handle_of(0, 0, 1), 1 << STATE_BITS)
    disown_kernel(words, plan, handle_of(0, 0, 1), 1 << STATE_BITS)
    vacate_kernel(words, plan, 1)
    load_kernel(words, 0, 1, numbers)
    held_kernel(words, plan, 0, numbers, numbers)
    for is_writable in (True, False):  # the inspector checks what it has read, which is another type
        words.flags.writeable = is_writable
        check_kernel(words, plan, numbers)
