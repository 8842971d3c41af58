"""Waiting strategies: what a process does with its core while there is nothing to read.

spin        look again at once               lowest latency; takes a whole core
yield       spin a little, then offer the    low latency; takes what nobody else wants
            core to others between looks
back_off    yield a little, then naps that   for words whose writer wakes nobody; as late as a nap
            grow up to a limit
block       yield a little, then sleep       the default: microseconds late, idle at no cost
            until the writer wakes us
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np

from feeds.compiled import i64
from feeds.errors import ConfigError
from middleware.shm.arguments import whole, whole_word
from middleware.shm.atomics import Words
from middleware.shm.waiting_kernels import (
    BACK_OFF,
    BLOCK,
    LINGER_NS,
    PLAN_LATE,
    PLAN_SLEEP_NS_MAX,
    PLAN_SLEEPS,
    PLAN_SPIN_NS,
    PLAN_STRATEGY,
    PLAN_WORDS,
    SLEEP_NS_MIN,
    SLICE_NS,
    SPIN,
    YIELD,
    linger_kernel,
    sleep_kernel,
)

# 5 us is several round trips between two cores: who answers at once is still seen by a spinning waiter. On
# one core whoever we wait for cannot run while we spin.
_SPIN_NS_DEFAULT = 5_000 if (os.cpu_count() or 1) > 1 else 0


class Strategy(StrEnum):
    """The words that the configuration knows."""

    SPIN = "spin"
    YIELD = "yield"
    BACK_OFF = "back_off"
    BLOCK = "block"


_PLAN_STRATEGIES = {
    Strategy.SPIN: SPIN,
    Strategy.YIELD: YIELD,
    Strategy.BACK_OFF: BACK_OFF,
    Strategy.BLOCK: BLOCK,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A strategy and its measures. `spin_ns`: how long it spins before it yields; `sleep_ns_max`: how long
    a nap of `back_off` gets at most."""

    strategy: Strategy = Strategy.BLOCK
    spin_ns: int = _SPIN_NS_DEFAULT
    sleep_ns_max: int = 1_000_000

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise ConfigError(f"a waiting strategy must be {_allowed()}, was {self.strategy!r}")
        _insist_within("spin_ns", whole("spin_ns", self.spin_ns), 0, LINGER_NS)
        _insist_within("sleep_ns_max", whole("sleep_ns_max", self.sleep_ns_max), SLEEP_NS_MIN, SLICE_NS)

    @classmethod
    def parse(cls, word: str) -> Self:
        """Return the strategy that the configuration names, with the usual measures."""
        try:
            return cls(Strategy(word))
        except ValueError:
            raise ConfigError(f"a waiting strategy must be {_allowed()}, was {word!r}") from None

    @property
    def plan(self) -> Words:
        """The same for kernels: a new array, because they count in it what became of their waits."""
        plan = np.zeros(PLAN_WORDS, dtype=np.int64)
        plan[PLAN_STRATEGY] = _PLAN_STRATEGIES[self.strategy]
        plan[PLAN_SPIN_NS] = self.spin_ns
        plan[PLAN_SLEEP_NS_MAX] = self.sleep_ns_max
        return plan


def wait(
    words: Words,
    index: int,
    seen: int,
    plan: Words,
    timeout_ns: int,
    is_over: Callable[[], bool] | None = None,
) -> int:
    """Return the word once it is not `seen`, or `seen` after `timeout_ns`. Signals are handled meanwhile.

    `is_over` ends the wait early: see `wait_in_steps`.
    """
    place = whole("a word's index", index)
    if not 0 <= place < words.size:
        raise IndexError(f"a word's index must be 0 to {words.size - 1}, was {index}")
    at, value_seen = i64(place), i64(whole_word("the value seen", seen))

    def linger(step_ns: int) -> int:
        return linger_kernel(words, at, value_seen, plan, i64(step_ns))

    def sleep(step_ns: int) -> int:
        return sleep_kernel(words, at, value_seen, plan, i64(step_ns))

    return wait_in_steps(linger, sleep, seen, plan, timeout_ns, is_over)


def wait_in_steps(
    linger: Callable[[int], int],
    sleep: Callable[[int], int],
    seen: int,
    plan: Words,
    timeout_ns: int,
    is_over: Callable[[], bool] | None = None,
) -> int:
    """Wait by steps of a kernel that each take a time and return a word; Python handles signals in between.

    `linger` begins, and is all there is for a plan that never sleeps; `sleep` goes on, without lingering
    again, for as long as the word is `seen`. `is_over` is asked before each sleep: so when lingering was in
    vain, whenever somebody wakes us without a change, and each SLICE_NS at the latest. Who makes it true and
    then wakes the sleepers of the word ends their waits at once, and that of one who was about to fall asleep
    just then after a slice.
    """
    left_ns = whole("timeout_ns", timeout_ns)
    deadline_ns = time.monotonic_ns() + left_ns
    is_first = True
    while True:
        is_lingering = is_first or plan[PLAN_STRATEGY] <= YIELD
        value = (linger if is_lingering else sleep)(max(min(left_ns, SLICE_NS), 0))
        is_first = False
        left_ns = deadline_ns - time.monotonic_ns()
        if value != seen or left_ns <= 0 or (is_over is not None and is_over()):
            return int(value)


def sleep_count(plan: Words) -> int:
    """Return how often waits of this plan went to sleep."""
    return int(plan[PLAN_SLEEPS])


def late_count(plan: Words) -> int:
    """Return how many sleeps of this plan ran out although the word had changed: wake-ups that were lost."""
    return int(plan[PLAN_LATE])


def _allowed() -> str:
    return ", ".join(Strategy)


def _insist_within(field: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        raise ConfigError(f"{field} must be {least} to {most}, was {found}")
