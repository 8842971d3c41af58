"""Single shared words, from Python: what is stored is loaded, and what cannot be is refused."""

import numpy as np
import pytest

from middleware.shm.word_access_kernels import load_word, store_word

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("value", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_a_word_is_loaded_as_it_was_stored(value: int) -> None:
    words = np.zeros(8, dtype=np.int64)
    store_word(words, 3, value)
    assert load_word(words, 3) == value
    assert type(load_word(words, 3)) is int
    assert words.tolist() == [0, 0, 0, value, 0, 0, 0, 0]


def test_read_only_words_are_loaded_and_not_stored() -> None:
    words = np.full(8, 5, dtype=np.int64)
    words.flags.writeable = False
    assert load_word(words, 7) == 5
    with pytest.raises(ValueError, match="read-only"):
        store_word(words, 7, 1)
    assert words.tolist() == [5] * 8


@pytest.mark.parametrize("index", [-1, 8, 1 << 40])
def test_words_outside_are_refused(index: int) -> None:
    words = np.zeros(8, dtype=np.int64)
    with pytest.raises(IndexError, match=f"0 to 7, was {index}"):
        load_word(words, index)
    with pytest.raises(IndexError, match=f"0 to 7, was {index}"):
        store_word(words, index, 1)
