"""Walking the length-prefixed blocks of a day file without reading what is in them."""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import STOP_CUT_SHORT, STOP_NONE, STOP_ZERO_LENGTH, TYPE_COUNT, IntArray
from feeds.memory_kernels import Buffer, load_be16, load_byte, load_le16, store_be16, store_le16

STOP_UNKNOWN_TYPE = 16  # beside formats.STOP_*: lengths come from the type, and this letter has none

PREFIX_BYTES = 2

WALK_POSITION = 0  # behind the last whole block
WALK_BLOCKS = 1
WALK_STOPPED = 2
WALK_FIELDS = 3


@kernel
def walk_blocks_kernel(
    data: Buffer, begin: int, end: int, block_limit: int, is_big_endian: bool, walk: IntArray
) -> None:
    """Find the whole blocks in [begin, end), at most `block_limit` of them, and why they end, in `walk`."""
    position = begin
    blocks = 0
    stopped = STOP_NONE
    while position < end and blocks < block_limit:
        if position + PREFIX_BYTES > end:
            stopped = STOP_CUT_SHORT
            break
        length = load_be16(data, position) if is_big_endian else load_le16(data, position)
        if length == 0:
            stopped = STOP_ZERO_LENGTH
            break
        if position + PREFIX_BYTES + length > end:
            stopped = STOP_CUT_SHORT
            break
        position += PREFIX_BYTES + length
        blocks += 1
    walk[WALK_POSITION] = position
    walk[WALK_BLOCKS] = blocks
    walk[WALK_STOPPED] = stopped


@kernel
def restore_lengths_kernel(
    data: Buffer, begin: int, end: int, sizes: IntArray, is_big_endian: bool, walk: IntArray
) -> None:
    """Overwrite the prefixes in [begin, end) with the lengths that the type letters have; end in `walk`."""
    position = begin
    blocks = 0
    stopped = STOP_NONE
    while position < end:
        if position + PREFIX_BYTES >= end:
            stopped = STOP_CUT_SHORT
            break
        size = sizes[load_byte(data, position + PREFIX_BYTES)]
        if size == 0:
            stopped = STOP_UNKNOWN_TYPE
            break
        if position + PREFIX_BYTES + size > end:
            stopped = STOP_CUT_SHORT
            break
        if is_big_endian:
            store_be16(data, position, size)
        else:
            store_le16(data, position, size)
        position += PREFIX_BYTES + size
        blocks += 1
    walk[WALK_POSITION] = position
    walk[WALK_BLOCKS] = blocks
    walk[WALK_STOPPED] = stopped


def warm_up() -> None:
    data = np.zeros(64, dtype=np.uint8)
    walk = np.zeros(WALK_FIELDS, dtype=np.int64)
    for is_big_endian in (True, False):
        walk_blocks_kernel(data, 0, 64, 1, is_big_endian, walk)
        restore_lengths_kernel(data, 0, 64, np.zeros(TYPE_COUNT, dtype=np.int64), is_big_endian, walk)
