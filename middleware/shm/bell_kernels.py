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
    PLAN_STRATEGY,
    PLAN_WORDS,
    SLEEP_NS_MIN,
    SLICE_NS,
    is_awake,
    linger_first,
    longer_nap_ns,
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
def sleep_for_bell(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """Sleep for a slice, or `timeout_ns`; return the bell's word as soon as it is not `seen`.

    Returns `seen` also when woken without a ring, and when a signal came, so that it can be handled.
    """
    since_ns = now_ns()
    slice_ns = min(timeout_ns, SLICE_NS)
    left_ns = slice_ns
    nap_ns = SLEEP_NS_MIN if plan[PLAN_STRATEGY] == BACK_OFF else slice_ns
    outcome = TIMED_OUT
    value = seen
    while value == seen and outcome == TIMED_OUT and left_ns > 0:
        ticket = fetch_or(words, sleeper_index, 1) | 1
        fence_full()  # SYNC bell: the announcement before the last look; pairs with wake_sleepers
        value = load_acquire(words, bell_index)
        if value != seen:
            return value
        outcome = sleep_on(words, sleeper_index, ticket, plan, min(nap_ns, left_ns))
        value = load_acquire(words, bell_index)
        if outcome == TIMED_OUT and value != seen:
            plan[PLAN_LATE] += 1
        nap_ns = longer_nap_ns(plan, nap_ns)
        left_ns = slice_ns - (now_ns() - since_ns)
    return value


@kernel
def wait_bell(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """Return the bell's word once it is not `seen`, or `seen` after `timeout_ns`.

    What was stored before a ring is visible after it. A timeout of zero or less looks once.
    """
    since_ns = now_ns()
    value = linger_first(words, bell_index, seen, plan, timeout_ns)
    while value == seen and timeout_ns > 0:
        left_ns = timeout_ns - (now_ns() - since_ns)
        if left_ns <= 0:
            return value
        if is_awake(plan):
            value = linger_first(words, bell_index, seen, plan, left_ns)
        else:
            value = sleep_for_bell(words, bell_index, sleeper_index, seen, plan, left_ns)
    return value


@kernel
def ring_bell_kernel(words: Words, bell_index: int, sleeper_index: int) -> int:
    """`ring_bell`, for Python."""
    return ring_bell(words, bell_index, sleeper_index)


@kernel
def wait_bell_kernel(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """`wait_bell`, for Python, which handles no signal before it returns: see `bell.wait_for_bell`."""
    return wait_bell(words, bell_index, sleeper_index, seen, plan, timeout_ns)


@kernel
def sleep_for_bell_kernel(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """`sleep_for_bell`, for Python."""
    return sleep_for_bell(words, bell_index, sleeper_index, seen, plan, timeout_ns)


def warm_up() -> None:
    words = np.zeros(8, dtype=np.int64)
    plan = np.zeros(PLAN_WORDS, dtype=np.int64)
    ring_bell_kernel(words, 0, 1)
    wait_bell_kernel(words, 0, 1, 1, plan, 1)
    sleep_for_bell_kernel(words, 0, 1, 1, plan, 1)
