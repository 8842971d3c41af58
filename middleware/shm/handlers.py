"""Compiled handlers: an application's own function, called from a kernel with a chunk of frames at a time.

    def count_trades(frames, memory):              # frames: int64[n, 12], memory: int64[...] of its own
        for row in range(frames.shape[0]):
            ...

    handler = compiled_handler(count_trades, memory)
    reader.poll(handler, limit=10_000)

Kernels reach it through its address, so they are compiled once for all handlers and kept on disk. There is no
Python around it that could pass on what it raises: the interpreter prints that, and `poll` stops before the
chunk that it was called with and says so. The next poll gives that chunk to it again, whole.
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
# Frames, their count; memory, its words; and a word that the entry clears if the handler came to its end.
_SIGNATURE = types.void(_words_at, types.int64, _words_at, types.int64, _words_at)


class CompiledHandler:
    """A function with an address, and the memory that it keeps between calls."""

    __slots__ = ("_entry", "address", "function", "memory")

    def __init__(self, function: Function, memory: Words) -> None:
        if not isinstance(memory, np.ndarray):
            raise ConfigError(f"a handler's memory must be an array of int64, was {type(memory).__name__}")
        if memory.dtype != np.int64 or memory.ndim != 1 or not memory.flags.c_contiguous:
            raise ConfigError(
                f"a handler's memory must be one row of int64, was {memory.dtype} of shape {memory.shape}"
            )
        if not memory.flags.writeable or not memory.flags.aligned:  # it is reached by its address
            found = "unaligned" if memory.flags.writeable else "read-only"
            raise ConfigError(f"a handler's memory must be writable and aligned to its words, was {found}")
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

    def enter(frames: Any, count: int, memory: Any, memory_words: int, is_unfinished: Any) -> None:
        inner(carray(frames, (count, FRAME_WORDS)), carray(memory, (memory_words,)))
        is_unfinished[0] = 0  # not reached if the handler raised

    return _numba.cfunc(_SIGNATURE, nopython=True)(enter)
