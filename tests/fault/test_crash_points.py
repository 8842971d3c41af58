"""The crash points themselves: they stop where they say, and say when nothing was tested."""

from __future__ import annotations

import numpy as np
import pytest

from middleware.shm import atomics
from middleware.shm.atomics import Words, copy_words, load_acquire, store_release
from tests.fault.crash_points import (
    Crash,
    at_access,
    at_every_access,
    count_accesses,
    count_stores,
    crash_after,
    every_crash_point,
)

pytestmark = pytest.mark.interpreted


def words() -> Words:
    return np.zeros(8, dtype=np.int64)


def write_three(memory: Words) -> None:
    store_release(memory, 0, 1)
    copy_words(memory, 1, np.array([2, 3], dtype=np.int64), 0, 2)


def test_a_crash_leaves_exactly_the_stores_before_it() -> None:
    left = []
    for store_number in every_crash_point(lambda: write_three(words())):
        memory = words()
        with crash_after(store_number) as point:
            write_three(memory)
        assert point.has_happened
        left.append(memory[:3].tolist())
    assert left == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]


def test_a_block_with_fewer_stores_runs_to_its_end() -> None:
    memory = words()
    with crash_after(4) as point:
        write_three(memory)
    assert not point.has_happened
    assert memory[:3].tolist() == [1, 2, 3]


def test_error_handling_does_not_survive_the_crash() -> None:
    memory = words()
    with crash_after(1):
        try:
            store_release(memory, 0, 1)
        except Exception:  # noqa: BLE001 - the broadest that a program may have
            pytest.fail("a process handled its own death")
    assert not issubclass(Crash, Exception)


def test_stores_after_the_crash_are_reported() -> None:
    memory = words()

    def tidy_up_when_killed() -> None:
        try:
            store_release(memory, 0, 1)
        finally:
            store_release(memory, 1, 1)

    with pytest.raises(AssertionError, match="1 stores were made after the crash at store 1"), crash_after(1):
        tidy_up_when_killed()


def test_an_action_that_stores_nothing_is_no_scenario() -> None:
    with pytest.raises(AssertionError, match="no store"):
        list(every_crash_point(lambda: load_acquire(words(), 0)))


def test_accesses_are_counted() -> None:
    def load_and_write() -> None:
        memory = words()
        load_acquire(memory, 0)
        write_three(memory)

    assert count_stores(load_and_write) == 3
    assert count_accesses(load_and_write) == 6  # each copied word is a load and a store


def test_a_turn_is_taken_at_every_access_and_its_own_accesses_give_none() -> None:
    memory = words()
    seen = []

    def look() -> None:
        seen.append([load_acquire(memory, index) for index in range(3)])

    with at_every_access(look):
        write_three(memory)
    assert seen == [[1, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 0], [1, 2, 3]]


def test_a_single_turn_is_taken_at_its_access() -> None:
    memory = words()
    with at_access(3, lambda: store_release(memory, 7, int(memory[1]))):
        write_three(memory)
    assert memory.tolist() == [1, 2, 3, 0, 0, 0, 0, 2]


def test_the_observer_is_gone_afterwards_and_cannot_be_nested() -> None:
    with crash_after(1):
        write_three(words())
    assert atomics.observer is None
    with (
        at_every_access(lambda: None),
        pytest.raises(RuntimeError, match="observed already"),
        crash_after(1),
    ):
        pass
    assert atomics.observer is None
