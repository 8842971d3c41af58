"""No wake-up is lost, whatever order the steps of waiters and writers come in and however long each takes.

The kernels themselves run here, interpreted: every access to shared memory, every look at the clock and
every system call is a step, and the test decides who takes the next one and how late it gets meanwhile. The
clock and the futex are played by the stage, which knows of every sleeper. Once nobody can move, a sleeper's
slice runs out; the kernels count it as late if what it waited for had happened.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.shm import atomics, bell_kernels, waiting_kernels
from middleware.shm.atomics import Words
from middleware.shm.system_kernels import CHANGED, TIMED_OUT, WOKEN
from middleware.shm.waiting import Strategy, Waiting, late_count, sleep_count
from middleware.shm.waiting_kernels import FOREVER_NS, LINGER_NS, SLICE_NS

pytestmark = pytest.mark.interpreted

STEPS_MAX = 20_000
DEADLOCK_SECONDS = 30.0  # of real time, after which the stage itself is broken

WORD, SLEEPER = 0, 1


@dataclass
class Pace:
    """Who moves next, and how long that takes: usually up to `usual_ns`; now and then it is preempted for
    about as long as a waiter lingers, and rarely for as long as it sleeps.

    One party at a time is held still for about `hold_steps` steps, wherever it is, while the others go on:
    that is what it takes to lose a wake-up. Of the others the last, a waiter, moves most if `favour` is high.
    """

    chance: random.Random
    usual_ns: int
    favour: int
    hold_steps: int
    held: Party | None = None

    def step_ns(self) -> int:
        kind = self.chance.randrange(200)
        if kind == 0:
            return SLICE_NS
        if kind < 5:
            return self.chance.randrange(2 * LINGER_NS)
        return self.chance.randrange(self.usual_ns + 1)

    def choose(self, ready: list[Party]) -> Party:
        if self.hold_steps and self.chance.randrange(self.hold_steps) == 0:
            self.held = self.chance.choice(ready)
        free = [party for party in ready if party is not self.held] or ready
        return free[min(self.chance.randrange(len(free) + self.favour), len(free) - 1)]


class Party:
    """One thread that moves only when the stage lets it."""

    def __init__(self, stage: Stage, body: Callable[[], None]) -> None:
        self.go = threading.Semaphore(0)
        self.is_done = False
        self.sleeps_on: int | None = None
        self.outcome = WOKEN
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(stage, body), daemon=True)

    def _run(self, stage: Stage, body: Callable[[], None]) -> None:
        self.go.acquire()
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - the stage raises it in the test's own thread
            self.error = error
        self.is_done = True
        stage.paused.release()


class Stage:
    """Plays the clock, the cores and the futex. `pace` decides who moves next and how late it gets."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.clock_ns = 1_000_000_000
        self.paused = threading.Semaphore(0)
        self.parties: list[Party] = []
        self.moving: Party | None = None

    def add(self, body: Callable[[], None]) -> None:
        self.parties.append(Party(self, body))

    def turn(self, _what: str = "") -> None:
        party = self.moving
        assert party is not None
        self.paused.release()
        assert party.go.acquire(timeout=DEADLOCK_SECONDS)

    def now_ns(self) -> int:
        self.turn()
        return self.clock_ns

    def futex_wait(self, words: Words, index: int, seen: int, _timeout_ns: int) -> int:
        self.turn()
        if int(words[index]) != seen:  # the system compares and puts to sleep in one step
            return CHANGED
        party = self.moving
        assert party is not None
        party.sleeps_on = index
        self.turn()
        return party.outcome

    def futex_wake(self, _words: Words, index: int, _count: int) -> int:
        self.turn()
        sleepers = [party for party in self.parties if party.sleeps_on == index]
        for party in sleepers:
            party.sleeps_on, party.outcome = None, WOKEN
        return len(sleepers)

    def play(self) -> None:
        for party in self.parties:
            party.thread.start()
        for _ in range(STEPS_MAX):
            self.clock_ns += self.pace.step_ns()
            ready = [party for party in self.parties if not party.is_done and party.sleeps_on is None]
            if not ready:
                asleep = [party for party in self.parties if not party.is_done]
                if not asleep:
                    break
                self.clock_ns += SLICE_NS
                for party in asleep:
                    party.sleeps_on, party.outcome = None, TIMED_OUT
                continue
            self.moving = self.pace.choose(ready)
            self.moving.go.release()
            assert self.paused.acquire(timeout=DEADLOCK_SECONDS)
            if self.moving.error is not None:
                raise self.moving.error
        else:
            pytest.fail(f"nobody came to an end in {STEPS_MAX} steps")


@contextmanager
def staged(pace: Pace) -> Iterator[Stage]:
    stage = Stage(pace)
    with pytest.MonkeyPatch.context() as patch:
        for module in (waiting_kernels, bell_kernels):
            patch.setattr(module, "now_ns", stage.now_ns)
            patch.setattr(module, "futex_wake", stage.futex_wake)
        patch.setattr(waiting_kernels, "futex_wait", stage.futex_wait)
        patch.setattr(waiting_kernels, "give_way", stage.turn)
        patch.setattr(atomics, "observer", stage.turn)
        yield stage


def follow(words: Words, wait: Callable[[int], int], last: int) -> Callable[[], None]:
    """Return a waiter that waits until it has seen `last`."""

    def body() -> None:
        seen = 0
        while seen != last:
            newer = wait(seen)
            assert newer > seen
            seen = newer
        assert int(words[WORD]) == last

    return body


PACES = st.builds(
    Pace,
    st.integers(0, 2**32).map(random.Random),
    st.sampled_from([10, 1_000, 3_000, 10_000, 30_000]),
    st.sampled_from([0, 2, 10]),
    st.sampled_from([0, 0, 4, 8, 16]),
)
PLAYS = 5  # of each example: one pace leads to many orders


@given(pace=PACES, publishes=st.integers(1, 4), waiters=st.integers(1, 2))
def test_sleeper_never_misses_a_store_that_its_writer_thought_nobody_slept_through(
    pace: Pace, publishes: int, waiters: int
) -> None:
    for _ in range(PLAYS):
        play_writer(pace, publishes, waiters)


def play_writer(pace: Pace, publishes: int, waiters: int) -> None:
    words = np.zeros(2, dtype=np.int64)
    plans = [Waiting(Strategy.BLOCK, spin_ns=0).plan for _ in range(waiters)]
    with staged(pace) as stage:

        def write() -> None:
            previous_before_ns = 0
            for value in range(1, publishes + 1):
                before_ns = stage.now_ns()
                atomics.store_release(words, WORD, value)
                after_ns = stage.now_ns()
                waiting_kernels.wake_if_silent(words, WORD, previous_before_ns, after_ns)
                previous_before_ns = before_ns

        stage.add(write)
        for plan in plans:
            stage.add(follow(words, waiter_on_word(words, plan), publishes))
        stage.play()

    assert [late_count(plan) for plan in plans] == [0] * waiters


def waiter_on_word(words: Words, plan: Words) -> Callable[[int], int]:
    return lambda seen: waiting_kernels.wait_for_change(words, WORD, seen, plan, FOREVER_NS)


def waiter_on_bell(words: Words, plan: Words) -> Callable[[int], int]:
    return lambda seen: bell_kernels.wait_bell(words, WORD, SLEEPER, seen, plan, FOREVER_NS)


@given(pace=PACES, rings=st.integers(1, 3), ringers=st.integers(1, 3), waiters=st.integers(1, 2))
def test_no_ring_is_lost_among_several_ringers_and_sleepers(
    pace: Pace, rings: int, ringers: int, waiters: int
) -> None:
    for _ in range(PLAYS):
        play_ringers(pace, rings, ringers, waiters)


def play_ringers(pace: Pace, rings: int, ringers: int, waiters: int) -> None:
    words = np.zeros(2, dtype=np.int64)
    plans = [Waiting(Strategy.BLOCK, spin_ns=0).plan for _ in range(waiters)]
    with staged(pace) as stage, pytest.MonkeyPatch.context() as patch:
        # Straight to bed: what matters is the order of the few steps around sleeping and waking.
        patch.setattr(waiting_kernels, "awake_ns", lambda _plan, _timeout_ns: 0)

        def ring() -> None:
            for _ in range(rings):
                bell_kernels.ring_bell(words, WORD, SLEEPER)

        for _ in range(ringers):
            stage.add(ring)
        for plan in plans:
            stage.add(follow(words, waiter_on_bell(words, plan), rings * ringers))
        stage.play()

    assert [late_count(plan) for plan in plans] == [0] * waiters


def test_the_stage_notices_a_lost_wake_up() -> None:
    """A writer that never wakes: the sleeper's slice runs out, and that is what the tests above look for."""
    words = np.zeros(2, dtype=np.int64)
    plan = Waiting(Strategy.BLOCK, spin_ns=0).plan
    with staged(Pace(random.Random(1), LINGER_NS, favour=1_000, hold_steps=0)) as stage:
        stage.add(lambda: atomics.store_release(words, WORD, 1))
        stage.add(follow(words, waiter_on_word(words, plan), 1))
        stage.play()

    assert sleep_count(plan) == 1
    assert late_count(plan) == 1


def test_a_ticket_that_was_answered_is_not_valid_again_for_who_comes_late_to_sleep() -> None:
    """One waiter is held between its last look and its sleep while the bell rings and another goes to sleep.

    Were the sleepers' word set back by the ringer instead of raised, the second waiter's announcement would
    make the first one's ticket valid again: it would sleep although its ring is over.
    """
    words = np.zeros(2, dtype=np.int64)
    first, second = (Waiting(Strategy.BLOCK, spin_ns=0).plan for _ in range(2))
    slept_for: list[int] = []

    def futex_wait(words: Words, index: int, ticket: int, _timeout_ns: int) -> int:
        if not slept_for:
            slept_for.append(ticket)
            bell_kernels.ring_bell(words, WORD, SLEEPER)
            assert bell_kernels.wait_bell(words, WORD, SLEEPER, 1, second, LINGER_NS + 1) == 1
        elif ticket not in slept_for:
            slept_for.append(ticket)
        return CHANGED if int(words[index]) != ticket else TIMED_OUT

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_kernels, "awake_ns", lambda _plan, _timeout_ns: 0)
        patch.setattr(waiting_kernels, "futex_wait", futex_wait)
        assert bell_kernels.wait_bell(words, WORD, SLEEPER, 0, first, FOREVER_NS) == 1

    assert slept_for == [1, 3], "each announcement has a ticket of its own"
    assert (late_count(first), late_count(second)) == (0, 0)
