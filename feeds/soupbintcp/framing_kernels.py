"""Compiled framing of sequenced data: many messages to packets, and packets back to places of messages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feeds.compiled import i64, kernel
from feeds.message_store_kernels import copy_message_kernel

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

PREFIX_BYTES = 3  # 16-bit big-endian length of what follows it, then the type
SEQUENCED_TYPE = 0x53  # "S"


@kernel
def frame_sequenced_kernel(
    buffer: Bytes, offsets: Places, lengths: Places, target: Bytes, position: int
) -> tuple[int, int]:
    """Write messages as sequenced packets to `target[position:]` until one does not fit.

    Return how many were written and the position behind the last.
    """
    count = 0
    while count < offsets.size:
        offset = offsets[count]
        length = lengths[count]
        if position + PREFIX_BYTES + length > target.size:
            break
        target[position] = (length + 1) >> 8
        target[position + 1] = (length + 1) & 0xFF
        target[position + 2] = SEQUENCED_TYPE
        position += PREFIX_BYTES
        copy_message_kernel(buffer, offset, target, position, length)
        position += length
        count += 1
    return count, position


@kernel
def scan_sequenced_kernel(
    buffer: Bytes, position: int, length_max: int, offsets: Places, lengths: Places
) -> tuple[int, int]:
    """Find the run of whole sequenced packets that starts at `position`.

    Return how many messages were placed in `offsets` and `lengths`, and where the first packet stands that
    is not one: of another type, of a forbidden length, incomplete, or one too many for the arrays.
    """
    count = 0
    while count < offsets.size and position + PREFIX_BYTES <= buffer.size:
        length = i64(buffer[position]) << 8 | i64(buffer[position + 1])
        if length < 1 or length > length_max or buffer[position + 2] != SEQUENCED_TYPE:
            break
        if position + 2 + length > buffer.size:
            break
        offsets[count] = position + PREFIX_BYTES
        lengths[count] = length - 1
        position += 2 + length
        count += 1
    return count, position


def warm_up() -> None:
    """Frame one message of a block as `MessageBlock` shows it, read-only, and find it again."""
    message = np.frombuffer(b"message", np.uint8)
    offsets, lengths = np.zeros(1, np.int64), np.full(1, message.size, np.int64)
    for array in (offsets, lengths):
        array.flags.writeable = False
    target = np.zeros(PREFIX_BYTES + message.size, np.uint8)
    frame_sequenced_kernel(message, offsets, lengths, target, 0)
    found = np.zeros(1, np.int64)
    scan_sequenced_kernel(np.frombuffer(target.tobytes(), np.uint8), 0, target.size, found, found.copy())
