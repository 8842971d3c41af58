"""The atomics, one process alone: each does to one word what its name says, and nothing to any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.compiled import i64, kernel
from middleware.shm import atomics
from middleware.shm.atomics import Words

pytestmark = pytest.mark.kernels

WORD_COUNT = 6
LOAD_ACQUIRE, LOAD_RELAXED, STORE_RELEASE, STORE_RELAXED = range(4)
FETCH_ADD, FETCH_OR, FETCH_AND, EXCHANGE, FENCES = range(4, 9)


@kernel
def apply_kernel(words: Words, operation: int, index: int, value: int, desired: int) -> int:
    """Return what one operation answers; -1 where it has no answer."""
    answer = i64(-1)
    if operation == LOAD_ACQUIRE:
        answer = atomics.load_acquire(words, index)
    elif operation == LOAD_RELAXED:
        answer = atomics.load_relaxed(words, index)
    elif operation == STORE_RELEASE:
        atomics.store_release(words, index, value)
    elif operation == STORE_RELAXED:
        atomics.store_relaxed(words, index, value)
    elif operation == FETCH_ADD:
        answer = atomics.fetch_add(words, index, value)
    elif operation == FETCH_OR:
        answer = atomics.fetch_or(words, index, value)
    elif operation == FETCH_AND:
        answer = atomics.fetch_and(words, index, value)
    elif operation == EXCHANGE:
        answer = atomics.compare_exchange(words, index, value, desired)
    else:
        atomics.fence_acquire()
        atomics.fence_release()
        atomics.fence_full()
        atomics.pause()
    return answer


@kernel
def load_kernel(words: Words, index: int) -> int:
    return atomics.load_acquire(words, index) + atomics.load_relaxed(words, index)


@kernel
def copy_kernel(target: Words, target_word: int, source: Words, source_word: int, count: int) -> None:
    atomics.copy_words(target, target_word, source, source_word, count)


def wrapped(number: int) -> int:
    """Return what 64 bits make of a number."""
    return (number + 2**63) % 2**64 - 2**63


def apply_plainly(words: list[int], operation: int, index: int, value: int, desired: int) -> int:
    old = words[index]
    if operation in (STORE_RELEASE, STORE_RELAXED):
        words[index] = value
    elif operation == FETCH_ADD:
        words[index] = wrapped(old + value)
    elif operation == FETCH_OR:
        words[index] = old | value
    elif operation == FETCH_AND:
        words[index] = old & value
    elif operation == EXCHANGE and old == value:
        words[index] = desired
    return -1 if operation in (STORE_RELEASE, STORE_RELAXED, FENCES) else old


# Few values, so that exchanges succeed; and the ends of the range, where additions wrap around.
VALUES = st.sampled_from([0, 1, -1, 2, 0x5555_5555, -(2**63), 2**63 - 1, 2**32]) | st.integers(
    -(2**63), 2**63 - 1
)
STEPS = st.tuples(st.integers(0, FENCES), st.integers(0, WORD_COUNT - 1), VALUES, VALUES)


@given(start=st.lists(VALUES, min_size=WORD_COUNT, max_size=WORD_COUNT), steps=st.lists(STEPS, max_size=40))
def test_atomics_do_what_plain_python_does(start: list[int], steps: list[tuple[int, int, int, int]]) -> None:
    words = np.array(start, dtype=np.int64)
    model = list(start)
    for operation, index, value, desired in steps:
        answer = apply_kernel(words, operation, index, i64(value), i64(desired))
        assert answer == apply_plainly(model, operation, index, value, desired)
        assert words.tolist() == model


@given(values=st.lists(VALUES, min_size=12, max_size=12), index=st.integers(0, 11))
def test_index_counts_words_whatever_the_shape(values: list[int], index: int) -> None:
    table = np.array(values, dtype=np.int64).reshape(3, 4)

    assert apply_kernel(table, FETCH_ADD, index, 1, 0) == values[index]

    expected = values.copy()
    expected[index] = wrapped(values[index] + 1)
    assert table.reshape(-1).tolist() == expected


@given(value=st.integers(-(2**62), 2**62 - 1))
def test_loads_work_on_memory_that_is_mapped_read_only(value: int) -> None:
    words = np.array([0, value], dtype=np.int64)
    words.flags.writeable = False

    assert load_kernel(words, 1) == 2 * value


@given(
    values=st.lists(VALUES, min_size=1, max_size=30),
    target_words=st.integers(1, 30),
    data=st.data(),
)
def test_copy_moves_the_named_words_and_no_other(
    values: list[int], target_words: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, min(len(values), target_words)))
    source_word = data.draw(st.integers(0, len(values) - count))
    target_word = data.draw(st.integers(0, target_words - count))
    target = np.full(target_words, 77, dtype=np.int64)

    copy_kernel(target, target_word, np.array(values, dtype=np.int64), source_word, count)

    expected = [77] * target_words
    expected[target_word : target_word + count] = values[source_word : source_word + count]
    assert target.tolist() == expected
