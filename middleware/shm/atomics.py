"""The few machine operations that shared memory is made of, for kernels; each names the order it keeps.

The compiler merges plain stores and lifts plain loads out of loops, as if no other process existed, so every
word that two processes share goes through these:

    load_acquire(words, i)                 later reads happen after it         pairs with store_release
    store_release(words, i, value)         earlier writes happen before it     pairs with load_acquire
    load_relaxed, store_relaxed            whole words, in no order
    fetch_add(words, i, value)             returns the word as it was
    fetch_or, fetch_and                    the same, for bits
    compare_exchange(words, i, old, new)   returns the word as it was; it was exchanged if that is `old`
    copy_words(to, t, from, f, count)      many plain words at once
    fence_acquire, fence_release, fence_full
    pause()                                tells the core that it spins

`words` are C-contiguous int64 arrays; indices count words, whatever the array's shape. Compiled, each is
one instruction without a bounds check, and with NUMBA_BOUNDSCHECK=1 the same after an `assert`.

Without jit they are plain Python, and `observer` is told of every access: a test raises from it to stop a
writer after any store, or lets another process take its turn between any two accesses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.compiled import IS_BOUNDS_CHECKED, IS_INTERPRETED, kernel

Words = np.ndarray[Any, np.dtype[np.int64]]

Observer = Callable[[str], None]
observer: Observer | None = None  # of the plain twins: called before each "load", after each "store"

_WORD = ir.IntType(64)
_WORD_BYTES = 8
_untyped: Any = cgutils  # numba types only some of it


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """Return the address of one word, whatever the array's shape."""
    data = context.make_array(array_type)(context, builder, array).data
    position = context.cast(builder, index, index_type, types.intp)
    return builder.gep(builder.bitcast(data, _WORD.as_pointer()), [position])


def _word_at(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return the address that an operation's first two arguments, array and index, name."""
    return _pointer(context, builder, signature.args[0], args[0], signature.args[1], args[1])


def _value(context: Any, builder: Any, signature: Any, args: Any, which: int) -> Any:
    return context.cast(builder, args[which], signature.args[which], types.int64)


def _load(ordering: str) -> Any:
    @intrinsic
    def load(_typing: Any, words: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load_atomic(_word_at(context, builder, signature, args), ordering, _WORD_BYTES)

        return types.int64(words, index), generate

    return load


def _store(ordering: str) -> Any:
    @intrinsic
    def store(_typing: Any, words: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _word_at(context, builder, signature, args)
            builder.store_atomic(_value(context, builder, signature, args, 2), address, ordering, _WORD_BYTES)
            return context.get_dummy_value()

        return types.void(words, index, value), generate

    return store


def _fetch(operation: str) -> Any:
    @intrinsic
    def fetch(_typing: Any, words: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _word_at(context, builder, signature, args)
            return builder.atomic_rmw(
                operation, address, _value(context, builder, signature, args, 2), "seq_cst"
            )

        return types.int64(words, index, value), generate

    return fetch


def _exchange() -> Any:
    @intrinsic
    def exchange(_typing: Any, words: Any, index: Any, expected: Any, desired: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _word_at(context, builder, signature, args)
            old, new = (_value(context, builder, signature, args, which) for which in (2, 3))
            return builder.extract_value(builder.cmpxchg(address, old, new, "seq_cst", "seq_cst"), 0)

        return types.int64(words, index, expected, desired), generate

    return exchange


def _copy() -> Any:
    @intrinsic
    def copy(_typing: Any, target: Any, target_word: Any, source: Any, source_word: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to = _word_at(context, builder, signature, args)
            origin = _pointer(context, builder, signature.args[2], args[2], signature.args[3], args[3])
            number = context.cast(builder, args[4], signature.args[4], types.intp)
            _untyped.raw_memcpy(builder, to, origin, number, _WORD_BYTES, align=_WORD_BYTES)
            return context.get_dummy_value()

        return types.void(target, target_word, source, source_word, count), generate

    return copy


def _fence(ordering: str) -> Any:
    @intrinsic
    def fence(_typing: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), generate

    return fence


# What tells a core that it spins, by processor: the name of LLVM's intrinsic and its 32-bit arguments.
_PAUSES: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
}


def _pause() -> Any:
    @intrinsic
    def pause(_typing: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            hint = _PAUSES.get(builder.module.triple.partition("-")[0])
            if hint is not None:  # elsewhere spinning is merely less polite
                name, values = hint
                number = ir.IntType(32)
                function_type = ir.FunctionType(ir.VoidType(), [number] * len(values))
                function = builder.module.globals.get(name) or ir.Function(
                    builder.module, function_type, name
                )
                builder.call(function, [number(value) for value in values])
            return context.get_dummy_value()

        return types.void(), generate

    return pause


if IS_INTERPRETED:

    def _tell(what: str) -> None:
        if observer is not None:
            observer(what)

    def _flat(words: Words) -> Words:
        return words.reshape(-1)  # a view: the arrays are contiguous

    def load_relaxed(words: Words, index: int) -> int:
        _tell("load")
        assert 0 <= index < words.size
        return int(_flat(words)[index])

    def store_relaxed(words: Words, index: int, value: int) -> None:
        assert 0 <= index < words.size
        _flat(words)[index] = value
        _tell("store")

    load_acquire = load_relaxed
    store_release = store_relaxed

    def fetch_add(words: Words, index: int, value: int) -> int:
        old = load_relaxed(words, index)
        whole = (old + int(value)) & 0xFFFF_FFFF_FFFF_FFFF
        store_relaxed(words, index, whole - (1 << 64) if whole >> 63 else whole)
        return old

    def fetch_or(words: Words, index: int, value: int) -> int:
        old = load_relaxed(words, index)
        store_relaxed(words, index, old | int(value))
        return old

    def fetch_and(words: Words, index: int, value: int) -> int:
        old = load_relaxed(words, index)
        store_relaxed(words, index, old & int(value))
        return old

    def compare_exchange(words: Words, index: int, expected: int, desired: int) -> int:
        old = load_relaxed(words, index)
        if old == expected:
            store_relaxed(words, index, desired)
        return old

    def copy_words(target: Words, target_word: int, source: Words, source_word: int, count: int) -> None:
        assert 0 <= target_word <= target_word + count <= target.size
        assert 0 <= source_word <= source_word + count <= source.size
        for offset in range(count):  # word by word, so that a test can stop or look between any two
            _tell("load")
            _flat(target)[target_word + offset] = _flat(source)[source_word + offset]
            _tell("store")

    def fence_acquire() -> None:
        """One process at a time needs no fence."""

    def fence_release() -> None:
        """One process at a time needs no fence."""

    def fence_full() -> None:
        """One process at a time needs no fence."""

    def pause() -> None:
        _tell("load")

else:
    fence_acquire = _fence("acquire")
    fence_release = _fence("release")
    fence_full = _fence("seq_cst")
    pause = _pause()

    if IS_BOUNDS_CHECKED:
        _bare_load_acquire, _bare_load_relaxed = _load("acquire"), _load("monotonic")
        _bare_store_release, _bare_store_relaxed = _store("release"), _store("monotonic")
        _bare_add, _bare_or, _bare_and = _fetch("add"), _fetch("or"), _fetch("and")
        _bare_exchange, _bare_copy = _exchange(), _copy()

        @kernel
        def load_acquire(words: Words, index: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_load_acquire(words, index))

        @kernel
        def load_relaxed(words: Words, index: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_load_relaxed(words, index))

        @kernel
        def store_release(words: Words, index: int, value: int) -> None:
            assert 0 <= index < words.size
            _bare_store_release(words, index, value)

        @kernel
        def store_relaxed(words: Words, index: int, value: int) -> None:
            assert 0 <= index < words.size
            _bare_store_relaxed(words, index, value)

        @kernel
        def fetch_add(words: Words, index: int, value: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_add(words, index, value))

        @kernel
        def fetch_or(words: Words, index: int, value: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_or(words, index, value))

        @kernel
        def fetch_and(words: Words, index: int, value: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_and(words, index, value))

        @kernel
        def compare_exchange(words: Words, index: int, expected: int, desired: int) -> int:
            assert 0 <= index < words.size
            return int(_bare_exchange(words, index, expected, desired))

        @kernel
        def copy_words(target: Words, target_word: int, source: Words, source_word: int, count: int) -> None:
            assert 0 <= target_word <= target_word + count <= target.size
            assert 0 <= source_word <= source_word + count <= source.size
            _bare_copy(target, target_word, source, source_word, count)

    else:
        load_acquire, load_relaxed = _load("acquire"), _load("monotonic")
        store_release, store_relaxed = _store("release"), _store("monotonic")
        fetch_add, fetch_or, fetch_and = _fetch("add"), _fetch("or"), _fetch("and")
        compare_exchange, copy_words = _exchange(), _copy()
