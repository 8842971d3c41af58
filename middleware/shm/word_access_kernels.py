"""Single words that processes share, for Python: whole, and in the order that `atomics` keeps.

numpy reads and writes an aligned word in one piece too, but nothing says so, and on processors with a weaker
order than x86 nothing would come before or after it. These cost 0.2 us a call.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from middleware.shm.atomics import Words, load_acquire, store_release


@kernel
def load_kernel(words: Words, index: int) -> int:
    """Return the word; what is read afterwards is at least as new as it."""
    return load_acquire(words, index)


@kernel
def store_kernel(words: Words, index: int, value: int) -> None:
    """Set the word; who sees it sees everything that was written before it."""
    store_release(words, index, value)


def load_word(words: Words, index: int) -> int:
    """Return one word of a mapped file, which may be read-only, as an acquire load."""
    if not 0 <= index < words.size:  # compiled, they are without a check
        raise IndexError(f"a word's index must be 0 to {words.size - 1}, was {index}")
    return load_kernel(words, index)


def store_word(words: Words, index: int, value: int) -> None:
    """Set one word of a mapped file, which must be writable, as a release store."""
    if not words.flags.writeable:
        raise ValueError("these words are mapped read-only")
    if not 0 <= index < words.size:
        raise IndexError(f"a word's index must be 0 to {words.size - 1}, was {index}")
    store_kernel(words, index, value)


def warm_up() -> None:
    words = np.zeros(8, dtype=np.int64)
    as_reader = words.view()
    as_reader.flags.writeable = False
    store_word(words, 1, 7)
    assert load_word(words, 1) == 7
    assert load_word(as_reader, 1) == 7
