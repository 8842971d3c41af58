"""Unaligned loads and stores equal `int.from_bytes` and `int.to_bytes`, at any offset, in every mode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import memory_kernels as memory
from feeds.compiled import i64, kernel
from feeds.formats import IntArray
from feeds.memory_kernels import Buffer

pytestmark = pytest.mark.kernels


@kernel
def load_all_kernel(buffer: Buffer, offset: int, out: IntArray) -> None:
    out[0] = memory.load_byte(buffer, offset)
    out[1] = memory.load_be16(buffer, offset)
    out[2] = memory.load_be32(buffer, offset)
    out[3] = memory.load_be48(buffer, offset)
    out[4] = memory.load_be64(buffer, offset)
    out[5] = memory.load_le16(buffer, offset)
    out[6] = memory.load_le32(buffer, offset)
    out[7] = memory.load_le64(buffer, offset)


@kernel
def store_all_kernel(buffer: Buffer, offset: int, value: int) -> None:
    memory.store_byte(buffer, offset, value)
    memory.store_be16(buffer, offset + 1, value)
    memory.store_be32(buffer, offset + 3, value)
    memory.store_be48(buffer, offset + 7, value)
    memory.store_be64(buffer, offset + 13, value)
    memory.store_le16(buffer, offset + 21, value)
    memory.store_le32(buffer, offset + 23, value)
    memory.store_le64(buffer, offset + 27, value)


@given(data=st.binary(min_size=8, max_size=40), seed=st.integers(0, 10_000))
def test_loads_equal_from_bytes(data: bytes, seed: int) -> None:
    offset = seed % (len(data) - 7)
    out = np.zeros(8, dtype=np.int64)
    load_all_kernel(np.frombuffer(data, dtype=np.uint8).copy(), offset, out)

    def expected(byte_count: int, order: str) -> int:
        piece = data[offset : offset + byte_count]
        signed = byte_count == 8
        return int.from_bytes(piece, "big" if order == "big" else "little", signed=signed)

    plan = [
        (1, "big"),
        (2, "big"),
        (4, "big"),
        (6, "big"),
        (8, "big"),
        (2, "little"),
        (4, "little"),
        (8, "little"),
    ]
    assert out.tolist() == [expected(*step) for step in plan]


@given(value=st.integers(-(2**63), 2**63 - 1), offset=st.integers(0, 20))
def test_stores_equal_to_bytes_and_touch_nothing_else(value: int, offset: int) -> None:
    buffer = np.full(64, 0xEE, dtype=np.uint8)
    store_all_kernel(buffer, offset, value)
    bits = value & (2**64 - 1)
    pieces = [
        (bits & (2 ** (8 * size) - 1)).to_bytes(size, "big" if order == "be" else "little")
        for size, order in [
            (1, "be"), (2, "be"), (4, "be"), (6, "be"), (8, "be"), (2, "le"), (4, "le"), (8, "le"),
        ]
    ]  # fmt: skip
    middle = b"".join(pieces)
    assert buffer.tobytes() == b"\xee" * offset + middle + b"\xee" * (64 - offset - len(middle))


TEXT = st.text(alphabet="ABZ .-", max_size=8).map(lambda text: text.rstrip(" ").encode())


@given(text=TEXT)
def test_padding_with_spaces_and_trimming_are_inverse(text: bytes) -> None:
    width = 8
    trimmed = int.from_bytes(text.ljust(width, b"\0"), "little", signed=True)
    padded = int.from_bytes(text.ljust(width, b" "), "little", signed=True)

    assert memory.trim_spaces(i64(padded), width) == trimmed
    assert memory.pad_spaces(i64(trimmed), width) == padded
