"""Compiled loops over blocks of messages: checking them and copying them together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feeds.compiled import i64, kernel
from feeds.memory_kernels import load_le64, store_le64

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


@kernel
def find_misplaced_kernel(buffer_bytes: int, offsets: Places, lengths: Places, message_bytes_max: int) -> int:
    """Return the index of the first message that is too long or leaves the buffer, else -1."""
    for index in range(offsets.size):
        offset = offsets[index]
        length = lengths[index]
        # Written without `offset + length`, which could wrap around.
        if length < 0 or length > message_bytes_max or offset < 0 or offset > buffer_bytes - length:
            return index
    return -1


@kernel
def copy_message_kernel(source: Bytes, offset: int, target: Bytes, position: int, length: int) -> None:
    """Copy one message. The caller has seen to it that both places lie within their arrays."""
    # Eight bytes at a time: messages are too short for a call of memcpy and too long for single bytes.
    done = 0
    while done + 8 <= length:
        store_le64(target, position + done, load_le64(source, offset + done))
        done += 8
    while done < length:
        target[position + done] = source[offset + done]
        done += 1


@kernel
def gather_kernel(
    source: Bytes,
    offsets: Places,
    lengths: Places,
    begin: int,
    target: Bytes,
    target_ends: Places,
    target_count: int,
) -> int:
    """Append messages from index `begin` on to `target` until one does not fit; return how many did.

    `target_ends[i]` is where message i of the target ends and message i + 1 begins.
    """
    position = i64(target_ends[target_count - 1]) if target_count > 0 else i64(0)
    index = begin
    while index < offsets.size and target_count < target_ends.size:
        offset = offsets[index]
        length = lengths[index]
        if position + length > target.size:
            break
        copy_message_kernel(source, offset, target, position, length)
        position += length
        target_ends[target_count] = position
        target_count += 1
        index += 1
    return index - begin


def warm_up() -> None:
    """Check, copy and gather one message of a block as `MessageBlock` shows it: read-only."""
    source = np.frombuffer(b"message", np.uint8)
    offsets, lengths = np.zeros(1, np.int64), np.full(1, source.size, np.int64)
    for array in (offsets, lengths):
        array.flags.writeable = False
    target = np.zeros(source.size, np.uint8)
    find_misplaced_kernel(source.size, offsets, lengths, source.size)
    copy_message_kernel(source, 0, target, 0, source.size)
    gather_kernel(source, offsets, lengths, 0, target, np.zeros(1, np.int64), 0)
