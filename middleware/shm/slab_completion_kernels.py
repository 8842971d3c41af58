"""Completion of bodies in a slab, compiled: counting who is done with one, exactly once each through SIGKILL.

A body goes when as many users have relinquished it as its limit says; the limit comes with the last of them,
or before, in any order. The count is one word, moved by compare-exchange, so exactly one user reaches the
limit, and the generation in the word keeps stale handles off.

A user that is killed around its compare-exchange must not count again when its successor takes over, nor be
forgotten. So relinquishing can be given a *ticket*, a number that grows, such as the position of the
instruction on a ring, and is done once for each ticket:

    announce   what is about to be done (handle, count to be reached, ticket), in the user's own block
    exchange   the count, and with it the user's seat
    note       the ticket as done, in the user's own block

Between exchange and note only the count word knows. It names the last user alone, so whoever is about to
change it, or to free the slot, first testifies for that user, in that user's block. `done_ticket_kernel`
puts the three sources together for the successor.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import (
    Words,
    compare_exchange,
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from middleware.shm.slab_layout import (
    APPLIED_SEQ,
    COUNT,
    COUNT_BITS,
    COUNT_GENERATION_MASK,
    COUNT_GENERATION_SHIFT,
    COUNT_MAX,
    DONE_TICKET,
    GENERATION_SHIFT,
    INTENT_COUNT,
    INTENT_HANDLE,
    INTENT_SEQ,
    INTENT_TICKET,
    LIMIT,
    MY_BLOCK,
    MY_DONE_TICKET,
    MY_SEAT,
    PLAN_PARTICIPANTS,
    SEAT_BITS,
    SEAT_MASK,
    SHARED,
    STATE,
    STATE_MASK,
)
from middleware.shm.slab_slot_kernels import (
    COMPLETED,
    COUNT_EXCEEDED,
    DONE,
    LIMIT_CONFLICT,
    LIMIT_OUT_OF_RANGE,
    NO_LIMIT,
    REPEATED,
    STALE,
    block_at,
    free_word,
    generation_of_handle,
    is_shared,
    slot_at,
    tiny_slab,
)


@inlined_kernel
def testify(words: Words, plan: Words, handle: int, count_word: int) -> None:
    """Before the count is changed or its slot freed: leave word with who changed it last that it did.

    Who was killed right after its compare-exchange could not say afterwards whether it had happened, once
    others have counted on. A count is reached once only, so what it was about to do tells whether it is this.
    """
    seat = count_word & SEAT_MASK
    if seat == 0 or seat > plan[PLAN_PARTICIPANTS]:
        return
    block = block_at(plan, seat)
    seq = load_acquire(words, block + INTENT_SEQ)  # SYNC intent: pairs with announce
    if seq & 1:
        return  # it is about to do another thing, so it knows of this one
    intent_handle = load_relaxed(words, block + INTENT_HANDLE)
    intent_count = load_relaxed(words, block + INTENT_COUNT)
    fence_acquire()
    if load_relaxed(words, block + INTENT_SEQ) != seq:
        return
    if intent_handle != handle or intent_count != (count_word >> SEAT_BITS) & COUNT_MAX:
        return
    applied = load_relaxed(words, block + APPLIED_SEQ)
    while applied < seq:  # it only grows, so this ends
        seen = compare_exchange(words, block + APPLIED_SEQ, applied, seq)
        if seen == applied:
            return
        applied = seen


@inlined_kernel
def announce(words: Words, mine: Words, handle: int, count: int, ticket: int) -> None:
    """Say what we are about to do, before we do it: make the count of `handle` to be `count`."""
    block = int(mine[MY_BLOCK])
    seq = load_relaxed(words, block + INTENT_SEQ) | 1  # odd while the words below it are in the making
    store_release(words, block + INTENT_SEQ, seq)  # the ticket before is noted by now: see done_ticket_kernel
    fence_release()
    store_relaxed(words, block + INTENT_HANDLE, handle)
    store_relaxed(words, block + INTENT_COUNT, count)
    store_relaxed(words, block + INTENT_TICKET, ticket)
    store_release(words, block + INTENT_SEQ, seq + 1)  # SYNC intent: pairs with testify


@kernel
def free_completed(words: Words, plan: Words, mine: Words, handle: int) -> int:
    """Free a shared body if everybody has relinquished it; return whether it was us who freed it."""
    at, generation = slot_at(plan, handle), generation_of_handle(handle)
    if at < 0:
        return 0  # made of a damaged state word
    for _ in range(4):  # its owner may disown it meanwhile, which happens once
        word = load_acquire(words, at + STATE)
        count_word = load_acquire(words, at + COUNT)
        limit_word = load_acquire(words, at + LIMIT)
        if word >> GENERATION_SHIFT != generation or word & STATE_MASK != SHARED:
            return 0
        if count_word >> COUNT_GENERATION_SHIFT != generation & COUNT_GENERATION_MASK:
            return 0
        limit = limit_word & COUNT_MAX
        if limit == NO_LIMIT or limit_word >> COUNT_BITS != generation:
            return 0
        if (count_word >> SEAT_BITS) & COUNT_MAX != limit:
            return 0
        testify(words, plan, handle, count_word)
        if free_word(words, plan, mine, handle, word):
            return 1
    return 0


@inlined_kernel
def set_limit(words: Words, at: int, generation: int, limit: int) -> int:
    """Set the limit, once. To set it again to the same is no change: its setter may have been replaced."""
    unset = generation << COUNT_BITS
    seen = compare_exchange(words, at + LIMIT, unset, unset | limit)
    if seen == unset or seen == unset | limit:
        return DONE
    return LIMIT_CONFLICT if seen >> COUNT_BITS == generation else STALE


@kernel
def relinquish_kernel(words: Words, plan: Words, mine: Words, handle: int, limit: int, ticket: int) -> int:
    """Count one user less; with a limit, say after how many the body can go. Who reaches the limit frees it.

    DONE, COMPLETED, REPEATED, or STALE, LIMIT_CONFLICT, COUNT_EXCEEDED, LIMIT_OUT_OF_RANGE.
    """
    if 0 < ticket <= mine[MY_DONE_TICKET]:
        return REPEATED
    at, generation = slot_at(plan, handle), generation_of_handle(handle)
    if at < 0 or not is_shared(words, at, handle):
        return STALE
    if limit != NO_LIMIT:
        if not 0 < limit <= COUNT_MAX:
            return LIMIT_OUT_OF_RANGE
        if (load_relaxed(words, at + COUNT) >> SEAT_BITS) & COUNT_MAX >= limit:
            return COUNT_EXCEEDED
        answer = set_limit(words, at, generation, limit)
        if answer != DONE:
            return answer
    seat = int(mine[MY_SEAT]) if ticket > 0 else 0
    while True:  # another turn only after somebody else counted, which the limit bounds
        count_word = load_acquire(words, at + COUNT)
        limit_word = load_acquire(words, at + LIMIT)
        if count_word >> COUNT_GENERATION_SHIFT != generation & COUNT_GENERATION_MASK:
            return STALE
        count = ((count_word >> SEAT_BITS) & COUNT_MAX) + 1
        if limit_word >> COUNT_BITS != generation:
            return STALE
        known_limit = limit_word & COUNT_MAX
        if count > (COUNT_MAX if known_limit == NO_LIMIT else known_limit):
            return COUNT_EXCEEDED
        if count_word & SEAT_MASK != mine[MY_SEAT]:
            testify(words, plan, handle, count_word)
        if ticket > 0:
            announce(words, mine, handle, count, ticket)
        new_word = (
            (count_word >> COUNT_GENERATION_SHIFT << COUNT_GENERATION_SHIFT) | count << SEAT_BITS | seat
        )
        if compare_exchange(words, at + COUNT, count_word, new_word) == count_word:
            break
    if ticket > 0:
        store_relaxed(words, int(mine[MY_BLOCK]) + DONE_TICKET, ticket)
        mine[MY_DONE_TICKET] = ticket
    # The limit was set before its setter counted, and read after the count: who counts last has seen it.
    if count != known_limit:
        return DONE
    free_completed(words, plan, mine, handle)
    return COMPLETED


@kernel
def relinquish_many_kernel(
    words: Words, plan: Words, mine: Words, handles: Words, limits: Words, tickets: Words, answers: Words
) -> int:
    """Relinquish each; return how many were accepted, `answers` says what became of each."""
    accepted = 0
    for index in range(handles.size):
        answers[index] = relinquish_kernel(
            words, plan, mine, int(handles[index]), int(limits[index]), int(tickets[index])
        )
        accepted += answers[index] >= 0
    return accepted


@kernel
def done_ticket_kernel(words: Words, plan: Words, seat: int) -> int:
    """Return the last ticket that was done from a seat whose user is dead, noted or not."""
    block = block_at(plan, seat)
    seq = load_acquire(words, block + INTENT_SEQ)
    done_ticket = load_relaxed(words, block + DONE_TICKET)
    if seq & 1 or seq == 0:
        return done_ticket  # it died before it did anything about another
    handle = load_relaxed(words, block + INTENT_HANDLE)
    count = load_relaxed(words, block + INTENT_COUNT)
    ticket = load_relaxed(words, block + INTENT_TICKET)
    at, generation = slot_at(plan, handle), generation_of_handle(handle)
    if at >= 0:
        count_word = load_acquire(words, at + COUNT)  # before the testimony: who changed it testified first
        is_same = count_word >> COUNT_GENERATION_SHIFT == generation & COUNT_GENERATION_MASK
        if is_same and (count_word >> SEAT_BITS) & COUNT_MAX == count and count_word & SEAT_MASK == seat:
            return ticket
    return ticket if load_acquire(words, block + APPLIED_SEQ) == seq else done_ticket


def warm_up() -> None:
    words, plan, mine = tiny_slab()
    numbers = np.ones(1, dtype=np.int64)
    relinquish_kernel(words, plan, mine, 0, 1, 1)
    relinquish_many_kernel(words, plan, mine, numbers, numbers, numbers, numbers)
    done_ticket_kernel(words, plan, 1)
