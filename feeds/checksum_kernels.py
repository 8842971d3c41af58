"""CRC32C of frames, as they cross a disk or a network: the CPU's own instruction, or a table without it.

The checksum covers the whole frame with its own field taken as zero. 0 in the field means "not stamped"; a
frame whose checksum happens to be 0 is stamped as 0xFFFFFFFF, which the check accepts for both.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from feeds.compiled import IS_INTERPRETED, i64, kernel
from feeds.memory_kernels import Buffer, load_byte, load_le64
from feeds.wire import FRAME_WORDS, WordArray, place

_INSTRUCTION = "llvm.x86.sse42.crc32.64.64"
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_CRC_WORD = place("crc32c").word
_CRC_SHIFT = place("crc32c").shift
_MASK32 = 0xFFFFFFFF
_WITHOUT_CRC = (1 << _CRC_SHIFT) - 1
assert _CRC_SHIFT == 32  # the checksum is the upper half of its word
ZERO_STAND_IN = 0xFFFFFFFF  # written for a checksum of 0, which would read as "not stamped"

HAS_INSTRUCTION = (
    not IS_INTERPRETED
    and platform.machine() == "x86_64"
    and bool(binding.get_host_cpu_features().get("sse4.2", False))
)


def _make_table() -> np.ndarray[Any, np.dtype[np.int64]]:
    table = np.zeros(256, dtype=np.int64)
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table[index] = value
    return table


_TABLE = _make_table()


@kernel
def crc_byte(crc: int, byte: int) -> int:
    """Return the running checksum after one byte."""
    return i64(_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8))


@kernel
def crc_word_by_table(crc: int, word: int) -> int:
    for index in range(8):
        crc = crc_byte(crc, (word >> (8 * index)) & 0xFF)
    return crc


@intrinsic
def _crc_word_by_instruction(_typing: Any, crc: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64_type = ir.IntType(64)
        function = builder.module.globals.get(_INSTRUCTION)
        if function is None:
            function_type = ir.FunctionType(i64_type, [i64_type, i64_type])
            function = ir.Function(builder.module, function_type, _INSTRUCTION)
        crc64 = context.cast(builder, args[0], signature.args[0], types.int64)
        word64 = context.cast(builder, args[1], signature.args[1], types.int64)
        return builder.call(function, [crc64, word64])

    return types.int64(crc, word), generate


# Returns the running checksum after eight bytes, little-endian.
crc_word = cast(
    "Callable[[int, int], int]", _crc_word_by_instruction if HAS_INSTRUCTION else crc_word_by_table
)


@kernel
def crc32c_kernel(buffer: Buffer, byte_count: int) -> int:
    """Return the CRC32C of the first `byte_count` bytes of `buffer`."""
    crc = i64(_MASK32)
    whole = byte_count - byte_count % 8
    for offset in range(0, whole, 8):
        crc = crc_word(crc, load_le64(buffer, offset))
    for offset in range(whole, byte_count):
        crc = crc_byte(crc, load_byte(buffer, offset))
    return crc ^ _MASK32


@kernel
def frame_crc(words: WordArray, row: int) -> int:
    """Return what the crc32c field of frame `row` must hold."""
    crc = i64(_MASK32)
    for word in range(FRAME_WORDS):
        value = words[row, word]
        if word == _CRC_WORD:
            value &= _WITHOUT_CRC
        crc = crc_word(crc, value)
    crc ^= _MASK32
    return crc if crc != 0 else ZERO_STAND_IN


@kernel
def stamp_crc_kernel(words: WordArray) -> None:
    for row in range(words.shape[0]):
        words[row, _CRC_WORD] = (words[row, _CRC_WORD] & _WITHOUT_CRC) | (frame_crc(words, row) << _CRC_SHIFT)


@kernel
def find_bad_crc_kernel(words: WordArray) -> int:
    """Return the first frame whose checksum does not fit (an unstamped one does not), else -1."""
    for row in range(words.shape[0]):
        if (words[row, _CRC_WORD] >> _CRC_SHIFT) & _MASK32 != frame_crc(words, row):
            return row
    return -1


def warm_up() -> None:
    words = np.zeros((1, FRAME_WORDS), dtype=np.int64)
    stamp_crc_kernel(words)
    find_bad_crc_kernel(words)
    crc32c_kernel(np.zeros(9, dtype=np.uint8), 9)
