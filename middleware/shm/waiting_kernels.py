"""How a kernel waits for a word of shared memory to change, and when its writer must wake those who sleep.

**The contract of blocking.** A reader maps its log read-only, so it cannot announce that it is about to
sleep; and a writer that called the operating system after every store, in case somebody sleeps, would pay
more for the call than for the message. Time takes the place of the announcement:

- A waiter goes to sleep only after it has itself seen the same value for `LINGER_NS`; and the operating
  system compares the word with that value, once more, in one step with putting it to sleep.
- The writer (one, and the word never returns to an earlier value) reads the clock before and after each
  publishing store, and calls `wake_if_silent` with the time *before the previous* store and the time *after
  this* one. Only if at least `SILENCE_NS` lie between them does it wake anybody.

So a stream that is busy makes no system call on either side, and the first message after a silence makes one.

**Why no wake-up is lost**, wherever either of them is interrupted and for however long. Suppose a waiter
sleeps through store k. Name the moments, on the one monotonic clock of the host:

    before[k-1]  the writer, before it stored value k-1
    since        the waiter, after it had loaded value k-1 for the first time in this wait
    asleep       the operating system compared the word with value k-1, found it there, and put it to sleep
    after[k]     the writer, after it stored value k

    before[k-1] <= since             the waiter saw what was stored after that reading of the clock
    since + LINGER_NS <= asleep      the waiter looked at the clock after lingering, and slept after that
    asleep <= after[k] + drain       value k was not there yet. A core may read the clock while its last store
                                     is still on the way to the others: `drain`, below a microsecond

    together:  after[k] - before[k-1] >= LINGER_NS - drain > SILENCE_NS

and so the writer wakes it. Being preempted between any two steps only moves the later moments further back.
The half of `LINGER_NS` that is not needed covers `drain` and clocks of different cores that differ a little.
The call itself cannot overtake the store: the operating system orders both before it looks for sleepers.

Any moment before `before[k-1]` is as good, only less economical; 0 means "wake in any case", which is what
a writer passes that does not know when the word was stored last: the first store after a start.

A waiter that is woken, or interrupted, or looks again, and finds the same value still, may go back to sleep
without lingering: `since` is when it saw that value first.

What this cannot cover: a writer that is killed between its store and its call. And a futex compares 32 bits,
so a word that moves by a multiple of 2**32 within one step looks unmoved. Nobody sleeps for longer than
`SLICE_NS` at a time without looking again, which bounds both: the last message of a killed writer is seen at
most a second late, unless its successor publishes, and so wakes everybody, before that. The same bounds how
late a signal is handled that arrives after Python looked for signals and before the sleep begins; one that
arrives during the sleep ends it at once. To look more often costs an idle process measurable time.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from middleware.shm.atomics import Words, load_acquire, pause
from middleware.shm.system_kernels import (
    ALL_WAITERS,
    CHANGED,
    INTERRUPTED,
    TIMED_OUT,
    WOKEN,
    futex_wait,
    futex_wake,
    give_way,
    now_ns,
)

LINGER_NS = 50_000  # about what it costs to go to sleep, be woken and get a core back
SILENCE_NS = LINGER_NS // 2  # a writer may save the wake-up call only within this of its previous store
SLICE_NS = 1_000_000_000
AWAKE_NS = 100_000_000  # who stays awake for good gives Python the occasion to handle signals this often
SLEEP_NS_MIN = LINGER_NS  # timers of the operating system are this inexact anyway
STAY_WAITS = 1_000  # a yield that was answered late is not tried again for so many waits
FOREVER_NS = (1 << 63) - 1

# A plan: what `Waiting` says, as words for kernels, and what became of it. Its owner's alone, not shared.
PLAN_STRATEGY, PLAN_SPIN_NS, PLAN_SLEEP_NS_MAX, PLAN_STAY, PLAN_SLEEPS, PLAN_LATE = range(6)
PLAN_WORDS = 8
SPIN, YIELD, BACK_OFF, BLOCK = range(4)

_LOOKS_PER_CLOCK = 32  # the clock costs 25 ns, as much as two or three looks


@kernel
def linger(words: Words, index: int, seen: int, plan: Words, since_ns: int, patience_ns: int) -> int:
    """Stay awake until the word is not `seen` or `patience_ns` have passed since `since_ns`; return the word.

    Spins first, because an answer often comes within a microsecond; then offers its core to others between
    any two looks, because on few cores the writer, or another reader, may be waiting for this very one.

    Others who wait return it within microseconds. Somebody who computes keeps it for milliseconds. Measured
    under load (two cores, each with such a neighbour, a message every 200 us): a waiter that yields got it
    100 to 3,400 us late at the median, one that spins and then sleeps 4 to 13 us, because who was asleep is
    preferred. So after a yield that took too long, the next `STAY_WAITS` waits spin while they stay awake.
    """
    strategy = plan[PLAN_STRATEGY]
    spin_ns = min(plan[PLAN_SPIN_NS], patience_ns)
    if strategy == SPIN:
        spin_ns = patience_ns
    elif strategy != YIELD and plan[PLAN_STAY] > 0:
        spin_ns = patience_ns
        plan[PLAN_STAY] -= 1
    elapsed_ns = now_ns() - since_ns
    while elapsed_ns < spin_ns:
        for _ in range(_LOOKS_PER_CLOCK):
            value = load_acquire(words, index)
            if value != seen:
                return value
            pause()
        elapsed_ns = now_ns() - since_ns
    while elapsed_ns < patience_ns:
        value = load_acquire(words, index)
        if value != seen:
            return value
        give_way()
        yielded_ns = now_ns() - since_ns - elapsed_ns
        elapsed_ns += yielded_ns
        if yielded_ns > LINGER_NS:
            plan[PLAN_STAY] = STAY_WAITS
    return load_acquire(words, index)


@inlined_kernel
def is_awake(plan: Words) -> bool:
    """Return whether a wait of this plan never sleeps."""
    return bool(plan[PLAN_STRATEGY] <= YIELD)


@inlined_kernel
def awake_ns(plan: Words, timeout_ns: int) -> int:
    """Return how long a wait of at most `timeout_ns` stays awake at a time, or before it may sleep."""
    return min(timeout_ns, AWAKE_NS if is_awake(plan) else LINGER_NS)


@inlined_kernel
def longer_nap_ns(plan: Words, nap_ns: int) -> int:
    """Return how long the sleep after one of `nap_ns` may be."""
    return min(2 * nap_ns, plan[PLAN_SLEEP_NS_MAX]) if plan[PLAN_STRATEGY] == BACK_OFF else nap_ns


@kernel
def sleep_on(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """Sleep for at most `timeout_ns` while the word is `seen`; return what ended it, as `futex_wait` does."""
    plan[PLAN_SLEEPS] += 1
    outcome = futex_wait(words, index, seen, timeout_ns)
    if outcome != WOKEN and outcome != CHANGED and outcome != TIMED_OUT and outcome != INTERRUPTED:
        give_way()  # no sleep to be had here (a sandbox without futexes): at least be polite
    return outcome


@kernel
def linger_first(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """Begin a wait: return the word once it is not `seen`, or `seen` when the plan allows to sleep.

    A timeout of zero or less looks once. Who stays awake for good returns after AWAKE_NS, and is asked again.
    """
    value = load_acquire(words, index)  # SYNC silence: before `since`; pairs with wake_if_silent
    if value != seen or timeout_ns <= 0:
        return value
    return linger(words, index, seen, plan, now_ns(), awake_ns(plan, timeout_ns))


@kernel
def sleep_slice(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """Go on with a wait in which `linger_first` has returned `seen`: sleep for a slice, or to its timeout.

    Returns the word as soon as it is not `seen`. Returns `seen` also when woken without a change, so that
    the caller looks at whatever else concerns it, and when a signal came, so that it can be handled.
    """
    since_ns = now_ns()
    slice_ns = min(timeout_ns, SLICE_NS)
    left_ns = slice_ns
    nap_ns = SLEEP_NS_MIN if plan[PLAN_STRATEGY] == BACK_OFF else slice_ns
    outcome = TIMED_OUT
    value = seen
    while value == seen and outcome == TIMED_OUT and left_ns > 0:
        # On the word under BACK_OFF, too: a writer that wakes ends a nap early.
        outcome = sleep_on(words, index, seen, plan, min(nap_ns, left_ns))
        value = load_acquire(words, index)
        if outcome == TIMED_OUT and value != seen:
            plan[PLAN_LATE] += 1  # it changed and nobody woke us: under BLOCK, a wake-up was lost
        nap_ns = longer_nap_ns(plan, nap_ns)
        left_ns = slice_ns - (now_ns() - since_ns)
    return value


@kernel
def wait_for_change(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """Return the word once it is not `seen`, or `seen` after `timeout_ns`; everything before it is visible.

    A timeout of zero or less looks once. The word may be mapped read-only. How to wait is the plan's; under
    BLOCK its writer must call `wake_if_silent`, and under the other strategies need not.
    """
    since_ns = now_ns()
    value = linger_first(words, index, seen, plan, timeout_ns)
    while value == seen and timeout_ns > 0:
        left_ns = timeout_ns - (now_ns() - since_ns)  # this way around nothing overflows
        if left_ns <= 0:
            return value
        if is_awake(plan):
            value = linger_first(words, index, seen, plan, left_ns)
        else:
            value = sleep_slice(words, index, seen, plan, left_ns)
    return value


@inlined_kernel
def wake_if_silent(words: Words, index: int, previous_before_ns: int, after_ns: int) -> int:
    """Wake who may sleep on a word that was just stored to; return how many that were.

    `previous_before_ns` is the time before the previous store, or any earlier one; `after_ns` the time after
    this store. See the contract above.
    """
    if after_ns - previous_before_ns < SILENCE_NS:  # SYNC silence: pairs with wait_for_change
        return 0
    return futex_wake(words, index, ALL_WAITERS)


@kernel
def linger_kernel(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """`linger_first`, for Python."""
    return linger_first(words, index, seen, plan, timeout_ns)


@kernel
def sleep_kernel(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """`sleep_slice`, for Python."""
    return sleep_slice(words, index, seen, plan, timeout_ns)


@kernel
def wait_kernel(words: Words, index: int, seen: int, plan: Words, timeout_ns: int) -> int:
    """`wait_for_change`, for Python, which handles no signal before it returns: see `waiting.wait`."""
    return wait_for_change(words, index, seen, plan, timeout_ns)


@kernel
def wake_kernel(words: Words, index: int, previous_before_ns: int, after_ns: int) -> int:
    """`wake_if_silent`, for Python."""
    return wake_if_silent(words, index, previous_before_ns, after_ns)


def warm_up() -> None:
    words = np.zeros(8, dtype=np.int64)
    plan = np.zeros(PLAN_WORDS, dtype=np.int64)
    wake_kernel(words, 0, 0, 0)
    read_only = words.view()
    read_only.flags.writeable = False  # as readers map it
    for view in (words, read_only):
        linger_kernel(view, 0, 0, plan, 1)
        sleep_kernel(view, 0, 0, plan, 1)
        wait_kernel(view, 0, 0, plan, 1)
