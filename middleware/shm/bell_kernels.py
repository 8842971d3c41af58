"""A bell: a word that many ring and that somebody may sleep on, and the word in which sleepers say so.

Unlike a log's readers, who waits for a bell may write to it. So whoever rings need not guess from the time
whether somebody sleeps (`waiting_kernels`): the sleeper announces itself, and a ring costs no system call
unless somebody did. There may be any number of ringers and of sleepers.

    bell     counts the rings; or any word that never returns to an earlier value, such as a ring's cursor
    sleeper  odd: somebody sleeps, or is about to. A ringer that finds it odd makes it even, one higher, and
             wakes all; so each odd value is announced, and answered, once

    waiter                                    ringer
    ticket = sleeper | 1  (fetch_or)          bell += 1
    full fence                                full fence
    bell still `seen`? else done              sleeper odd? else done
    sleep while sleeper == ticket             sleeper: odd -> odd + 1; wake all who sleep on it

**Why no ring is lost.** The fences leave two cases: the ringer finds the waiter's announcement or what came
after it, or the waiter finds the ring. In the first case, if `sleeper` is still the ticket, the ringer
changes it and wakes: the waiter sleeps already and is woken, or comes to sleep and is turned away, since the
operating system finds another value than the ticket. If `sleeper` is no longer the ticket, another ringer
has changed it, and does the same for this waiter. Values are never used twice (before 2**31 of them), so a
ticket cannot become valid again through somebody else's announcement.

**Who dies** harms nobody: a sleeper's ticket costs the next ringer one call. A ringer that dies between its
ring and its call leaves the waiter asleep until the next ring, or to the end of its slice (`SLICE_NS`).
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import Words, compare_exchange, fence_full, fetch_add, fetch_or, load_acquire
from middleware.shm.system_kernels import ALL_WAITERS, TIMED_OUT, futex_wake, now_ns
from middleware.shm.waiting_kernels import (
    BACK_OFF,
    PLAN_LATE,
    PLAN_SLEEP_NS_MAX,
    PLAN_STRATEGY,
    PLAN_WORDS,
    SLEEP_NS_MIN,
    SLICE_NS,
    awake_ns,
    linger,
    sleep_on,
)


@kernel
def wake_sleepers(words: Words, sleeper_index: int) -> int:
    """Wake who announced to sleep; return how many were woken. To be called after the store they wait for."""
    fence_full()  # SYNC bell: the ring before the look for sleepers; pairs with wait_bell
    ticket = load_acquire(words, sleeper_index)
    if ticket & 1 == 0:
        return 0
    if compare_exchange(words, sleeper_index, ticket, ticket + 1) != ticket:
        return 0  # another ringer has answered this announcement, and wakes
    return futex_wake(words, sleeper_index, ALL_WAITERS)


@inlined_kernel
def ring_bell(words: Words, bell_index: int, sleeper_index: int) -> int:
    """Ring; return how many sleepers were woken."""
    fetch_add(words, bell_index, 1)
    return wake_sleepers(words, sleeper_index)


@kernel
def wait_bell(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """Return the bell's word once it is not `seen`, or `seen` after `timeout_ns`.

    What was stored before a ring is visible after it. A timeout of zero or less looks once.
    """
    value = load_acquire(words, bell_index)
    if value != seen or timeout_ns <= 0:
        return value
    since_ns = now_ns()
    value = linger(words, bell_index, seen, plan, since_ns, awake_ns(plan, timeout_ns))
    nap_ns = SLEEP_NS_MIN
    while value == seen:
        left_ns = timeout_ns - (now_ns() - since_ns)
        if left_ns <= 0:
            return value
        slice_ns = SLICE_NS
        if plan[PLAN_STRATEGY] == BACK_OFF:
            slice_ns = nap_ns
            nap_ns = min(2 * nap_ns, plan[PLAN_SLEEP_NS_MAX])
        ticket = fetch_or(words, sleeper_index, 1) | 1
        fence_full()  # SYNC bell: the announcement before the last look; pairs with wake_sleepers
        value = load_acquire(words, bell_index)
        if value != seen:
            return value
        outcome = sleep_on(words, sleeper_index, ticket, plan, min(slice_ns, left_ns))
        value = load_acquire(words, bell_index)
        if outcome == TIMED_OUT and value != seen:
            plan[PLAN_LATE] += 1
    return value


@kernel
def ring_bell_kernel(words: Words, bell_index: int, sleeper_index: int) -> int:
    """`ring_bell`, for Python."""
    return ring_bell(words, bell_index, sleeper_index)


@kernel
def wait_bell_kernel(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """`wait_bell`, for Python. Signals are handled only when it returns, so ask in slices."""
    return wait_bell(words, bell_index, sleeper_index, seen, plan, timeout_ns)


def warm_up() -> None:
    words = np.zeros(8, dtype=np.int64)
    ring_bell_kernel(words, 0, 1)
    wait_bell_kernel(words, 0, 1, 1, np.zeros(PLAN_WORDS, dtype=np.int64), 1)
