"""Bare access to arrays of 64-bit words, for tables whose every index a kernel has made itself.

numba's `array[i]` allows for negative indices, which costs three instructions each time and keeps it from
comparing eight neighbours at once. `load`, `store` and `frame_word` are one instruction; `prefetch` asks
for a cache line that will be wanted soon, so that memory answers while other work goes on (a first touch of
a large table costs some 200 ns on a virtual machine). With bounds checks on, or without jit, all of them go
through the array, and an index outside it is an error: so tests can prove that none is ever made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.compiled import IS_CHECKED, kernel
from feeds.wire import FRAME_WORDS, WordArray

WordVector = np.ndarray[Any, np.dtype[np.int64]]


def _address(context: Any, builder: Any, signature: Any, args: Any, index: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [index])


def _load_intrinsic() -> Any:
    @intrinsic
    def load(_typing: Any, words: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            position = context.cast(builder, args[1], signature.args[1], types.intp)
            return builder.load(_address(context, builder, signature, args, position))

        return types.int64(words, index), generate

    return load


def _store_intrinsic() -> Any:
    @intrinsic
    def store(_typing: Any, words: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            position = context.cast(builder, args[1], signature.args[1], types.intp)
            word = context.cast(builder, args[2], signature.args[2], types.int64)
            builder.store(word, _address(context, builder, signature, args, position))
            return context.get_dummy_value()

        return types.void(words, index, value), generate

    return store


def _frame_word_intrinsic() -> Any:
    @intrinsic
    def frame_word(_typing: Any, words: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            row_index = context.cast(builder, args[1], signature.args[1], types.intp)
            column_index = context.cast(builder, args[2], signature.args[2], types.intp)
            first = builder.mul(row_index, row_index.type(FRAME_WORDS))
            return builder.load(_address(context, builder, signature, args, builder.add(first, column_index)))

        return types.int64(words, row, column), generate

    return frame_word


_FOR_WRITING = 1
_KEEP_IN_ALL_CACHES = 3
_DATA_CACHE = 1


def _prefetch_intrinsic() -> Any:
    @intrinsic
    def prefetch(_typing: Any, words: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            position = context.cast(builder, args[1], signature.args[1], types.intp)
            address = _address(context, builder, signature, args, position)
            number = ir.IntType(32)
            hint = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], hint)
            hints = (_FOR_WRITING, _KEEP_IN_ALL_CACHES, _DATA_CACHE)
            builder.call(
                function, [builder.bitcast(address, cgutils.voidptr_t), *(number(hint) for hint in hints)]
            )
            return context.get_dummy_value()

        return types.void(words, index), generate

    return prefetch


if IS_CHECKED:

    @kernel
    def load(words: WordVector, index: int) -> int:
        assert index >= 0
        word: int = words[index]
        return word

    @kernel
    def store(words: WordVector, index: int, value: int) -> None:
        assert index >= 0
        words[index] = value

    @kernel
    def frame_word(words: WordArray, row: int, column: int) -> int:
        assert row >= 0
        word: int = words[row, column]
        return word

    @kernel
    def prefetch(words: WordVector, index: int) -> None:
        assert 0 <= index < words.size

else:
    load = _load_intrinsic()
    store = _store_intrinsic()
    frame_word = _frame_word_intrinsic()
    prefetch = _prefetch_intrinsic()


@kernel
def exercise_kernel(words: WordVector, frames: WordArray) -> int:
    """Use every access once, so that the warm-up compiles them all."""
    prefetch(words, 0)
    store(words, 0, 1)
    return load(words, 0) + frame_word(frames, 0, 0)


def warm_up() -> None:
    exercise_kernel(np.zeros(8, dtype=np.int64), np.zeros((1, FRAME_WORDS), dtype=np.int64))
