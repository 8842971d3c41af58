"""Compiled handlers: an application's own function, called from a kernel with a chunk of frames at a time.

    def count_trades(frames, memory):              # frames: int64[n, 12], memory: int64[...] of its own
        for row in range(frames.shape[0]):
            ...

    handler = compiled_handler(count_trades, memory)
    reader.poll(handler, limit=10_000)

Kernels reach it through its address, so they are compiled once for all handlers and kept on disk. A handler
must not raise: there is no Python around it that could catch what it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from feeds.compiled import IS_INTERPRETED
from feeds.errors import ConfigError
from feeds.wire import FRAME_WORDS, WordArray
from middleware.shm.atomics import Words

MEMORY_WORDS = 64  # what a handler gets that brings no memory of its own

Function = Callable[[WordArray, Words], None]

_numba: Any = numba  # types only some of what it offers
_words_at: Any = _numba.types.CPointer(types.int64)
_SIGNATURE = types.void(_words_at, types.int64, _words_at, types.int64)  # frames, count, memory, words


class CompiledHandler:
    """A function with an address, and the memory that it keeps between calls."""

    __slots__ = ("_entry", "address", "function", "memory")

    def __init__(self, function: Function, memory: Words) -> None:
        if memory.dtype != np.int64 or memory.ndim != 1 or not memory.flags.c_contiguous:
            raise ConfigError(
                f"a handler's memory must be one row of int64, was {memory.dtype} of shape {memory.shape}"
            )
        self.function = function
        self.memory = memory
        self._entry: Any = None if IS_INTERPRETED else _entry_of(function)
        self.address: int = 0 if self._entry is None else self._entry.address


def compiled_handler(function: Function, memory: Words | None = None) -> CompiledHandler:
    """Compile `function(frames, memory)` for use with `poll`; a numba function is taken as it is."""
    return CompiledHandler(function, np.zeros(MEMORY_WORDS, np.int64) if memory is None else memory)


def _entry_of(function: Function) -> Any:
    """Return a C function around the handler that makes arrays of the addresses it is given."""
    carray = _numba.carray
    inner: Any = function if hasattr(function, "py_func") else _numba.njit(nogil=True)(function)

    def enter(frames: Any, count: int, memory: Any, memory_words: int) -> None:
        inner(carray(frames, (count, FRAME_WORDS)), carray(memory, (memory_words,)))

    return _numba.cfunc(_SIGNATURE, nopython=True)(enter)
