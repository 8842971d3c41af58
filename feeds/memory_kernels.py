"""Reading and writing integers at any byte offset of a buffer, from compiled code.

All values are int64, whatever their width on the wire: numba turns int64 mixed with uint64 into float64,
so unsigned 64-bit values travel as the int64 of the same bits. The compiled forms are single unaligned
machine instructions without a bounds check; the caller has compared the message's length with the size of
its type before. With bounds checks on, or without jit, each byte goes through the array instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.compiled import IS_CHECKED, i64, kernel

Buffer = np.ndarray[Any, np.dtype[np.uint8]]


@kernel
def _load_be_checked(buffer: Buffer, offset: int, byte_count: int) -> int:
    value = i64(0)
    for index in range(byte_count):
        value = (value << i64(8)) | i64(buffer[offset + index])
    return value


@kernel
def _load_le_checked(buffer: Buffer, offset: int, byte_count: int) -> int:
    value = i64(0)
    for index in range(byte_count):
        value |= i64(buffer[offset + index]) << i64(8 * index)
    return value


@kernel
def _store_be_checked(buffer: Buffer, offset: int, value: int, byte_count: int) -> None:
    for index in range(byte_count):
        shift = i64(8 * (byte_count - 1 - index))
        buffer[offset + index] = np.uint8((i64(value) >> shift) & i64(0xFF))


@kernel
def _store_le_checked(buffer: Buffer, offset: int, value: int, byte_count: int) -> None:
    for index in range(byte_count):
        buffer[offset + index] = np.uint8((i64(value) >> i64(8 * index)) & i64(0xFF))


def _pointer(context: Any, builder: Any, signature: Any, args: Any, bits: int) -> Any:
    """Return an iN* at buffer.data + offset; `signature.args` starts with (buffer, offset)."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    offset = context.cast(builder, args[1], signature.args[1], types.intp)
    address = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [offset])
    return builder.bitcast(address, ir.IntType(bits).as_pointer())


def _load_intrinsic(bits: int, is_big_endian: bool) -> Any:
    @intrinsic
    def load(_typing: Any, buffer: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature, args, bits))
            value.align = 1
            if is_big_endian:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(buffer, offset), generate

    return load


def _store_intrinsic(bits: int, is_big_endian: bool) -> Any:
    @intrinsic
    def store(_typing: Any, buffer: Any, offset: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            whole = context.cast(builder, args[2], signature.args[2], types.int64)
            piece = whole if bits == 64 else builder.trunc(whole, ir.IntType(bits))
            if is_big_endian:
                piece = builder.bswap(piece)
            builder.store(piece, _pointer(context, builder, signature, args, bits), align=1)
            return context.get_dummy_value()

        return types.void(buffer, offset, value), generate

    return store


if IS_CHECKED:

    @kernel
    def load_be16(buffer: Buffer, offset: int) -> int:
        return _load_be_checked(buffer, offset, 2)

    @kernel
    def load_be32(buffer: Buffer, offset: int) -> int:
        return _load_be_checked(buffer, offset, 4)

    @kernel
    def load_be64(buffer: Buffer, offset: int) -> int:
        return _load_be_checked(buffer, offset, 8)

    @kernel
    def load_le16(buffer: Buffer, offset: int) -> int:
        return _load_le_checked(buffer, offset, 2)

    @kernel
    def load_le32(buffer: Buffer, offset: int) -> int:
        return _load_le_checked(buffer, offset, 4)

    @kernel
    def load_le64(buffer: Buffer, offset: int) -> int:
        return _load_le_checked(buffer, offset, 8)

    @kernel
    def load_byte(buffer: Buffer, offset: int) -> int:
        return i64(buffer[offset])

    @kernel
    def store_be16(buffer: Buffer, offset: int, value: int) -> None:
        _store_be_checked(buffer, offset, value, 2)

    @kernel
    def store_be32(buffer: Buffer, offset: int, value: int) -> None:
        _store_be_checked(buffer, offset, value, 4)

    @kernel
    def store_be64(buffer: Buffer, offset: int, value: int) -> None:
        _store_be_checked(buffer, offset, value, 8)

    @kernel
    def store_le16(buffer: Buffer, offset: int, value: int) -> None:
        _store_le_checked(buffer, offset, value, 2)

    @kernel
    def store_le32(buffer: Buffer, offset: int, value: int) -> None:
        _store_le_checked(buffer, offset, value, 4)

    @kernel
    def store_le64(buffer: Buffer, offset: int, value: int) -> None:
        _store_le_checked(buffer, offset, value, 8)

    @kernel
    def store_byte(buffer: Buffer, offset: int, value: int) -> None:
        buffer[offset] = np.uint8(value & 0xFF)

else:
    load_be16 = _load_intrinsic(16, is_big_endian=True)
    load_be32 = _load_intrinsic(32, is_big_endian=True)
    load_be64 = _load_intrinsic(64, is_big_endian=True)
    load_le16 = _load_intrinsic(16, is_big_endian=False)
    load_le32 = _load_intrinsic(32, is_big_endian=False)
    load_le64 = _load_intrinsic(64, is_big_endian=False)
    load_byte = _load_intrinsic(8, is_big_endian=False)
    store_be16 = _store_intrinsic(16, is_big_endian=True)
    store_be32 = _store_intrinsic(32, is_big_endian=True)
    store_be64 = _store_intrinsic(64, is_big_endian=True)
    store_le16 = _store_intrinsic(16, is_big_endian=False)
    store_le32 = _store_intrinsic(32, is_big_endian=False)
    store_le64 = _store_intrinsic(64, is_big_endian=False)
    store_byte = _store_intrinsic(8, is_big_endian=False)


@kernel
def load_be48(buffer: Buffer, offset: int) -> int:
    """Return the six bytes at `offset`: a time of day in ns, as ITCH sends it."""
    return (load_be16(buffer, offset) << 32) | load_be32(buffer, offset + 2)


@kernel
def store_be48(buffer: Buffer, offset: int, value: int) -> None:
    store_be16(buffer, offset, value >> 32)
    store_be32(buffer, offset + 2, value)


@kernel
def trim_spaces(word: int, byte_count: int) -> int:
    """Return a little-endian text word without the spaces that pad it on the right; NULs take their place."""
    shift = i64(8 * (byte_count - 1))
    while shift >= 0 and ((word >> shift) & 0xFF) == 0x20:
        word &= ~(i64(0xFF) << shift)
        shift -= 8
    return word


@kernel
def pad_spaces(word: int, byte_count: int) -> int:
    """Return the text word with spaces where `trim_spaces` put NULs."""
    shift = i64(8 * (byte_count - 1))
    while shift >= 0 and ((word >> shift) & 0xFF) == 0:
        word |= i64(0x20) << shift
        shift -= 8
    return word


@kernel
def exercise_kernel(buffer: Buffer) -> int:
    """Use every load and store once, so that the warm-up compiles them all."""
    store_be16(buffer, 0, 1)
    store_be32(buffer, 2, 2)
    store_be48(buffer, 6, 3)
    store_be64(buffer, 12, 4)
    store_le16(buffer, 20, 5)
    store_le32(buffer, 22, 6)
    store_le64(buffer, 26, 7)
    store_byte(buffer, 34, 8)
    total = load_be16(buffer, 0) + load_be32(buffer, 2) + load_be48(buffer, 6) + load_be64(buffer, 12)
    total += load_le16(buffer, 20) + load_le32(buffer, 22) + load_le64(buffer, 26) + load_byte(buffer, 34)
    return total + pad_spaces(trim_spaces(0x20, 1), 1)


def warm_up() -> None:
    exercise_kernel(np.zeros(64, dtype=np.uint8))
