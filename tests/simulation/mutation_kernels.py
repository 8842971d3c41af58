"""Damage to packets, compiled: a million mutated packets take a second, so that millions can be tried.

Each packet is copied from a pool of good ones into a slot of its own and hit up to six times: bits flipped,
bytes set to the values that break parsers, cut, grown, pieces of it moved, its numbers replaced.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import i64, kernel
from feeds.formats import (
    DATAGRAM_BYTES,
    DATAGRAM_FIELDS,
    DATAGRAM_LINE,
    DATAGRAM_OFFSET,
    DATAGRAM_TIME_NS,
    ByteArray,
    IntArray,
)

_MASK63 = (1 << 63) - 1
_EDGES = np.array([0, 1, 2, 0x20, 0x41, 0x7F, 0x80, 0xFE, 0xFF], dtype=np.uint8)
MUTATION_KINDS = 8


@kernel
def next_random(state: IntArray) -> int:
    """Return a number in [0, 2**31) from a xorshift generator whose only word is state[0] (never 0)."""
    x = i64(state[0])
    x ^= (x << 13) & _MASK63
    x ^= x >> 7
    x ^= (x << 17) & _MASK63
    state[0] = x & _MASK63
    return i64((x >> 20) & 0x7FFFFFFF)


@kernel
def mutate_packet(arena: ByteArray, begin: int, byte_count: int, slot_bytes: int, state: IntArray) -> int:
    """Hit the packet at `begin` once and return its new length, at most `slot_bytes`."""
    kind = next_random(state) % MUTATION_KINDS
    if kind == 0 or byte_count == 0:  # grow by random bytes
        grown = min(slot_bytes, byte_count + 1 + next_random(state) % 40)
        for index in range(byte_count, grown):
            arena[begin + index] = next_random(state) & 0xFF
        return grown
    at = next_random(state) % byte_count
    if kind == 1:  # cut
        return at
    if kind == 2:  # flip one bit
        arena[begin + at] ^= 1 << (next_random(state) & 7)
    elif kind == 3:  # an edge value
        arena[begin + at] = _EDGES[next_random(state) % _EDGES.size]
    elif kind == 4:  # two edge values side by side: a length or a count
        arena[begin + at] = _EDGES[next_random(state) % _EDGES.size]
        if at + 1 < byte_count:
            arena[begin + at + 1] = _EDGES[next_random(state) % _EDGES.size]
    elif kind == 5:  # a piece moved over another
        source = next_random(state) % byte_count
        for index in range(min(next_random(state) % 64, byte_count - max(at, source))):
            arena[begin + at + index] = arena[begin + source + index]
    elif kind == 6:  # a random byte in the first 40: the header of every line protocol
        arena[begin + at % min(byte_count, 40)] = next_random(state) & 0xFF
    else:  # a random byte anywhere
        arena[begin + at] = next_random(state) & 0xFF
    return byte_count


@kernel
def mutate_kernel(
    pool: ByteArray,
    pool_begin: IntArray,  # [packet + 1]
    arena: ByteArray,
    slot_bytes: int,
    datagrams: IntArray,
    datagram_count: int,
    state: IntArray,
) -> None:
    """Fill `datagram_count` slots with packets of the pool, most of them damaged."""
    pool_count = pool_begin.size - 1
    for row in range(datagram_count):
        chosen = next_random(state) % pool_count
        begin = row * slot_bytes
        byte_count = min(slot_bytes, pool_begin[chosen + 1] - pool_begin[chosen])
        for index in range(byte_count):
            arena[begin + index] = pool[pool_begin[chosen] + index]
        for _ in range(next_random(state) % 7):
            byte_count = mutate_packet(arena, begin, byte_count, slot_bytes, state)
        datagrams[row, DATAGRAM_OFFSET] = begin
        datagrams[row, DATAGRAM_BYTES] = byte_count
        datagrams[row, DATAGRAM_LINE] = next_random(state) % 3
        datagrams[row, DATAGRAM_TIME_NS] = row


def warm_up() -> None:
    mutate_kernel(
        np.zeros(64, dtype=np.uint8),
        np.array([0, 64], dtype=np.int64),
        np.zeros(256, dtype=np.uint8),
        128,
        np.zeros((2, DATAGRAM_FIELDS), dtype=np.int64),
        2,
        np.array([88172645463325252], dtype=np.int64),
    )
