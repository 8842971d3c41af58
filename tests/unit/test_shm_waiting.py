"""The rules of waiting, one each: what the configuration may say, what a wait returns, how it sleeps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from feeds.compiled import i64, kernel
from feeds.errors import ConfigError
from middleware.shm import waiting_kernels
from middleware.shm.atomics import Words, store_release
from middleware.shm.system_kernels import TIMED_OUT, now_ns, wake_all_kernel
from middleware.shm.waiting import Strategy, Waiting, late_count, sleep_count, wait
from middleware.shm.waiting_kernels import (
    FOREVER_NS,
    LINGER_NS,
    SILENCE_NS,
    SLEEP_NS_MIN,
    SLICE_NS,
    STAY_WAITS,
    wait_kernel,
    wake_if_silent,
    wake_kernel,
)

LONG_NS = 300_000_000  # on a busy machine a single yield may take milliseconds of it

ALL = pytest.mark.parametrize("strategy", list(Strategy))


@kernel
def publish_kernel(words: Words, index: int, value: int) -> int:
    store_release(words, index, value)
    return wake_if_silent(words, index, 0, now_ns())


@kernel
def publish_and_die_kernel(words: Words, index: int, value: int) -> None:
    """What a writer leaves that was killed between its store and its call."""
    store_release(words, index, value)


class Clock:
    """A clock that moves when it is looked at, when the core is offered to others, and during a sleep."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_000
        self.yield_ns = 300
        self.yields = 0
        self.sleeps_ns: list[int] = []

    def now_ns(self) -> int:
        self.time_ns += 1_000
        return self.time_ns

    def give_way(self) -> None:
        self.yields += 1
        self.time_ns += self.yield_ns

    def futex_wait(self, _words: Words, _index: int, _seen: int, timeout_ns: int) -> int:
        self.sleeps_ns.append(timeout_ns)
        self.time_ns += timeout_ns
        return TIMED_OUT


@contextmanager
def sleeper(words: Words) -> Iterator[tuple[Words, list[int]]]:
    """Have a thread wait for the first word to change; give its plan once it sleeps, and what it will answer.

    Somebody must change the word; the thread has ended when this has.
    """
    plan = Waiting(Strategy.BLOCK).plan
    answers: list[int] = []
    waiter = threading.Thread(target=lambda: answers.append(wait(words, 0, 0, plan, 20_000_000_000)))
    waiter.start()
    while sleep_count(plan) == 0:
        time.sleep(0.001)
    yield plan, answers
    waiter.join()


def read_only(words: Words) -> Words:
    view = words.view()
    view.flags.writeable = False
    return view


class TestConfiguration:
    def test_default_blocks(self) -> None:
        assert Waiting().strategy is Strategy.BLOCK

    @pytest.mark.parametrize("word", ["spin", "yield", "back_off", "block"])
    def test_word_names_its_strategy(self, word: str) -> None:
        assert Waiting.parse(word).strategy == word

    @pytest.mark.parametrize("word", ["", "Block", "sleep", "back off", "block "])
    def test_unknown_word_is_refused_with_the_words_allowed(self, word: str) -> None:
        with pytest.raises(ConfigError) as raised:
            Waiting.parse(word)
        assert str(raised.value) == (f"a waiting strategy must be spin, yield, back_off, block, was {word!r}")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("spin_ns", -1),
            ("spin_ns", LINGER_NS + 1),
            ("sleep_ns_max", LINGER_NS - 1),
            ("sleep_ns_max", SLICE_NS + 1),
        ],
    )
    def test_measure_outside_its_limits_is_refused_by_name(self, field: str, value: int) -> None:
        with pytest.raises(ConfigError, match=rf"^{field} must be \d+ to \d+, was {value}$"):
            Waiting(**{field: value})  # type: ignore[arg-type]

    def test_each_plan_counts_for_itself(self) -> None:
        waiting = Waiting(Strategy.BLOCK)
        first, second = waiting.plan, waiting.plan
        words = np.zeros(1, dtype=np.int64)

        wait_kernel(words, i64(0), i64(0), first, i64(LONG_NS))

        assert sleep_count(first) > 0
        assert sleep_count(second) == 0


@pytest.mark.kernels
class TestWait:
    @ALL
    def test_word_that_has_changed_already_is_returned_at_once(self, strategy: Strategy) -> None:
        words = np.array([0, 9], dtype=np.int64)
        plan = Waiting(strategy).plan

        assert wait_kernel(words, i64(1), i64(8), plan, i64(FOREVER_NS)) == 9
        assert sleep_count(plan) == 0

    @ALL
    @pytest.mark.parametrize("timeout_ns", [0, -1, -(2**63)])
    def test_no_time_looks_once(self, strategy: Strategy, timeout_ns: int) -> None:
        words = np.array([5], dtype=np.int64)
        plan = Waiting(strategy).plan

        assert wait_kernel(words, i64(0), i64(5), plan, i64(timeout_ns)) == 5
        assert wait_kernel(words, i64(0), i64(4), plan, i64(timeout_ns)) == 5
        assert sleep_count(plan) == 0

    @ALL
    def test_timeout_returns_what_was_seen_and_not_too_early(self, strategy: Strategy) -> None:
        words = np.array([5], dtype=np.int64)
        timeout_ns = 3 * LINGER_NS
        start_ns = time.monotonic_ns()

        assert wait_kernel(words, i64(0), i64(5), Waiting(strategy).plan, i64(timeout_ns)) == 5
        assert time.monotonic_ns() - start_ns >= timeout_ns

    @pytest.mark.parametrize("strategy", [Strategy.SPIN, Strategy.YIELD])
    def test_spinning_and_yielding_never_sleep(self, strategy: Strategy) -> None:
        plan = Waiting(strategy).plan
        wait_kernel(np.zeros(1, dtype=np.int64), i64(0), i64(0), plan, i64(10 * LINGER_NS))
        assert sleep_count(plan) == 0

    def test_blocking_sleeps_only_after_it_has_lingered(self) -> None:
        plan = Waiting(Strategy.BLOCK).plan
        words = np.zeros(1, dtype=np.int64)
        wait_kernel(words, i64(0), i64(0), plan, i64(LINGER_NS))
        assert sleep_count(plan) == 0
        wait_kernel(words, i64(0), i64(0), plan, i64(LONG_NS))
        assert sleep_count(plan) > 0

    def test_naps_of_back_off_grow_up_to_their_limit(self) -> None:
        """50, 100, 200, 400, 400, ... us. Without growth there would be more, without a limit fewer."""
        plan = Waiting(Strategy.BACK_OFF, sleep_ns_max=400_000).plan
        wait_kernel(np.zeros(1, dtype=np.int64), i64(0), i64(0), plan, i64(LONG_NS))
        growing = 3
        without_limit = (LONG_NS // SLEEP_NS_MIN).bit_length()
        assert without_limit < sleep_count(plan) <= growing + LONG_NS // 400_000

    @ALL
    @pytest.mark.parametrize("view", [lambda words: words, read_only], ids=["writable", "read-only"])
    def test_store_of_another_thread_ends_the_wait(
        self, strategy: Strategy, view: Callable[[Words], Words]
    ) -> None:
        words = np.zeros(32, dtype=np.int64)
        plan = Waiting(strategy).plan
        answers: list[int] = []
        waiter = threading.Thread(
            target=lambda: answers.append(wait(view(words), 16, 0, plan, 20_000_000_000))
        )
        waiter.start()
        publish_kernel(words, i64(16), i64(3))
        waiter.join()

        assert answers == [3]

    def test_two_sleepers_are_both_woken(self) -> None:
        words = np.zeros(32, dtype=np.int64)
        plans = [Waiting(Strategy.BLOCK).plan for _ in range(2)]
        answers: list[int] = []

        def sleep(plan: Words) -> None:
            answers.append(wait(words, 0, 0, plan, 20_000_000_000))

        waiters = [threading.Thread(target=sleep, args=(plan,)) for plan in plans]
        for waiter in waiters:
            waiter.start()
        while any(sleep_count(plan) == 0 for plan in plans):
            time.sleep(0.001)
        publish_kernel(words, i64(0), i64(1))
        for waiter in waiters:
            waiter.join()

        assert answers == [1, 1]

    def test_writer_that_died_before_its_call_costs_one_slice_and_is_counted(self) -> None:
        words = np.zeros(1, dtype=np.int64)
        with sleeper(words) as (plan, answers):
            publish_and_die_kernel(words, i64(0), i64(1))

        assert answers == [1]
        # Had its slice run out just then, it saw the store by itself, on its way to the next.
        assert late_count(plan) <= 1

    def test_who_is_woken_without_a_change_asks_whether_it_is_over(self) -> None:
        words = np.zeros(1, dtype=np.int64)
        plan = Waiting(Strategy.BLOCK).plan
        is_over = threading.Event()
        answers: list[int] = []
        waiter = threading.Thread(
            target=lambda: answers.append(wait(words, 0, 0, plan, 20_000_000_000, is_over.is_set))
        )
        waiter.start()
        while sleep_count(plan) == 0:
            time.sleep(0.001)
        is_over.set()
        while wake_all_kernel(words, i64(0)) == 0 and waiter.is_alive():
            continue  # it had counted its sleep, and was on its way there
        waiter.join()

        assert answers == [0]
        assert sleep_count(plan) <= 2

    @ALL
    def test_what_is_over_already_is_not_slept_for(self, strategy: Strategy) -> None:
        plan = Waiting(strategy).plan
        assert wait(np.zeros(1, dtype=np.int64), 0, 0, plan, 3_600_000_000_000, lambda: True) == 0
        assert sleep_count(plan) == 0

    @ALL
    def test_signal_is_handled_during_a_wait(self, strategy: Strategy) -> None:
        class Handled(Exception):
            """What the handler raises."""

        def on_signal(_number: int, _frame: object) -> None:
            raise Handled

        previous = signal.signal(signal.SIGALRM, on_signal)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Handled):
                wait(np.zeros(1, dtype=np.int64), 0, 0, Waiting(strategy).plan, 20_000_000_000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def test_index_outside_the_words_is_refused(self) -> None:
        words = np.zeros(4, dtype=np.int64)
        for index in (-1, 4):
            with pytest.raises(IndexError, match=f"must be 0 to 3, was {index}"):
                wait(words, index, 0, Waiting().plan, 0)


@pytest.mark.interpreted
class TestSteps:
    """What a wait does when, on a clock of the test's own: offer its core to others, sleep."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(waiting_kernels, "now_ns", clock.now_ns)
        monkeypatch.setattr(waiting_kernels, "give_way", clock.give_way)
        monkeypatch.setattr(waiting_kernels, "futex_wait", clock.futex_wait)
        monkeypatch.setattr(time, "monotonic_ns", clock.now_ns)
        return clock

    def test_core_is_offered_while_it_comes_back_at_once(self, clock: Clock) -> None:
        plan = Waiting(Strategy.BLOCK, spin_ns=0).plan
        for _ in range(3):
            before = clock.yields
            wait_kernel(np.zeros(1, dtype=np.int64), 0, 0, plan, LINGER_NS)
            assert clock.yields > before

    def test_core_that_came_back_late_is_kept_for_the_next_waits(self, clock: Clock) -> None:
        plan = Waiting(Strategy.BLOCK, spin_ns=0).plan
        clock.yield_ns = 3_000_000
        words = np.zeros(1, dtype=np.int64)
        wait_kernel(words, 0, 0, plan, LINGER_NS)
        assert clock.yields == 1
        for _ in range(STAY_WAITS):
            wait_kernel(words, 0, 0, plan, LINGER_NS)
        assert clock.yields == 1
        wait_kernel(words, 0, 0, plan, LINGER_NS)
        assert clock.yields == 2, "the neighbour may have gone: it is tried again"

    def test_who_asked_to_yield_yields_however_late_the_core_comes_back(self, clock: Clock) -> None:
        plan = Waiting(Strategy.YIELD, spin_ns=0).plan
        clock.yield_ns = 3_000_000
        for _ in range(3):
            wait_kernel(np.zeros(1, dtype=np.int64), 0, 0, plan, LINGER_NS)
        assert clock.yields == 3

    @pytest.mark.parametrize("way", [wait, wait_kernel])
    def test_sleeps_are_cut_into_slices_and_only_the_first_is_preceded_by_lingering(
        self, clock: Clock, way: Callable[[Words, int, int, Words, int], int]
    ) -> None:
        plan = Waiting(Strategy.BLOCK, spin_ns=0).plan
        words = np.zeros(1, dtype=np.int64)
        way(words, 0, 0, plan, LINGER_NS // 2 + 10 * SLICE_NS + SLICE_NS // 2)
        assert len(clock.sleeps_ns) == 11
        assert clock.sleeps_ns[:10] == [SLICE_NS] * 10
        assert clock.yields * clock.yield_ns < LINGER_NS


@pytest.mark.kernels
class TestWake:
    def test_busy_writer_makes_no_call(self) -> None:
        """Within SILENCE_NS of its previous store nobody can have fallen asleep, so nobody is woken."""
        words = np.zeros(1, dtype=np.int64)
        with sleeper(words) as (_, answers):
            assert wake_kernel(words, i64(0), i64(1_000), i64(1_000 + SILENCE_NS - 1)) == 0
            publish_kernel(words, i64(0), i64(1))
        assert answers == [1]

    def test_silence_is_half_of_what_a_waiter_lingers(self) -> None:
        """The other half is what makes up for a store that is still on its way when the clock is read."""
        assert 2 * SILENCE_NS == LINGER_NS
