"""The atomics' rules that are not about values: checked indices, and what an observer is told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from feeds.compiled import kernel
from middleware.shm import atomics
from middleware.shm.atomics import Words


@kernel
def load_kernel(words: Words, index: int) -> int:
    return atomics.load_acquire(words, index)


@kernel
def store_kernel(words: Words, index: int, value: int) -> None:
    atomics.store_release(words, index, value)


@kernel
def copy_kernel(target: Words, source: Words, count: int) -> None:
    atomics.copy_words(target, 0, source, 0, count)


@pytest.mark.checked
def test_word_outside_the_array_is_noticed_where_indices_are_checked() -> None:
    words = np.zeros(4, dtype=np.int64)
    for index in (-1, 4, 2**40):
        with pytest.raises(AssertionError):
            load_kernel(words, index)
        with pytest.raises(AssertionError):
            store_kernel(words, index, 1)
    for target_count, source_count, count in ((3, 4, 4), (4, 3, 4), (4, 4, -1)):
        with pytest.raises(AssertionError):
            copy_kernel(np.zeros(target_count, dtype=np.int64), np.zeros(source_count, dtype=np.int64), count)
    assert words.tolist() == [0, 0, 0, 0]


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What the observer was told, in order."""
    messages: list[str] = []
    atomics.observer = messages.append
    yield messages
    atomics.observer = None


@pytest.mark.interpreted
class TestObserver:
    def test_is_told_before_a_load_and_after_a_store(self, told: list[str]) -> None:
        words = np.zeros(2, dtype=np.int64)
        states: list[tuple[str, int]] = []
        atomics.observer = lambda what: states.append((what, int(words[0])))

        atomics.store_relaxed(words, 0, 5)
        atomics.load_acquire(words, 0)

        assert states == [("store", 5), ("load", 5)]
        assert told == []

    def test_read_modify_write_is_one_step(self, told: list[str]) -> None:
        """Nobody gets a turn between its load and its store: that is what makes it atomic."""
        words = np.array([3], dtype=np.int64)
        seen: list[int] = []
        atomics.observer = lambda _what: seen.append(int(words[0]))

        atomics.fetch_add(words, 0, 4)
        atomics.compare_exchange(words, 0, 7, 9)
        atomics.compare_exchange(words, 0, 7, 11)

        assert seen == [3, 7, 7, 9, 9]
        assert told == []

    def test_can_stop_a_copy_after_any_word(self, told: list[str]) -> None:
        class Stopped(Exception):
            pass

        source = np.arange(1, 6, dtype=np.int64)
        for stop_after in range(1, 6):
            target = np.zeros(5, dtype=np.int64)
            told.clear()

            def stop(what: str, limit: int = stop_after) -> None:
                told.append(what)
                if told.count("store") == limit:
                    raise Stopped

            atomics.observer = stop
            with pytest.raises(Stopped):
                atomics.copy_words(target, 0, source, 0, 5)
            atomics.observer = None

            assert target.tolist() == [*range(1, stop_after + 1), *([0] * (5 - stop_after))]
