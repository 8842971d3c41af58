"""MoldUDP64 datagrams to packet descriptors: the line protocol of ITCH feeds, compiled.

feeds/moldudp64.py is the readable truth about these packets; this kernel looks at a batch of datagrams
without making an object of any, and checks that the blocks of each fill it exactly, so that arbitration
and decoding may walk them without looking at lengths twice.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    BAD_BLOCKS,
    BAD_SEQUENCE,
    BAD_SHORT,
    BAD_TRUNCATED,
    DATAGRAM_BYTES,
    DATAGRAM_FIELDS,
    DATAGRAM_LINE,
    DATAGRAM_OFFSET,
    DATAGRAM_TIME_NS,
    KIND_BAD,
    KIND_DATA,
    KIND_END,
    KIND_HEARTBEAT,
    PACKET_BYTES,
    PACKET_COUNT,
    PACKET_FIELDS,
    PACKET_IDENTITY_0,
    PACKET_IDENTITY_1,
    PACKET_KIND,
    PACKET_LINE,
    PACKET_OFFSET,
    PACKET_SEQ,
    PACKET_SESSION,
    PACKET_TIME_NS,
    SEQUENCE_LIMIT,
    IntArray,
)
from feeds.itch50.messages import PREFIX_BYTES
from feeds.itch50.transport import TRANSPORT_STATE_SIZE
from feeds.memory_kernels import Buffer, load_be16, load_be64, load_le16, load_le64
from feeds.moldudp64 import COUNT_END_OF_SESSION, HEADER_BYTES, SESSION_BYTES

AT_SESSION = 0
AT_SEQUENCE = SESSION_BYTES
AT_COUNT = AT_SEQUENCE + 8

# transport_state: the session of the last packet and its number, because hashing each again would cost more
# than all the rest of a small packet.
STATE_IDENTITY_0 = 0
STATE_IDENTITY_1 = 1
STATE_SESSION = 2  # 0: none yet
assert STATE_SESSION + 1 == TRANSPORT_STATE_SIZE

_FNV_BASIS = 0x811C9DC5
_FNV_PRIME = 0x01000193


@kernel
def session_number(identity_0: int, identity_1: int) -> int:
    """Return the source_session of a session's ten bytes: FNV-1a in 32 bits, never 0.

    Adapters that never spoke to each other must give a session one number, and 32 bits are what a frame has
    for it; so it is a function of the name alone and not a count of sessions seen.
    """
    number = _FNV_BASIS
    for index in range(SESSION_BYTES):
        word = identity_0 if index < 8 else identity_1
        letter = (word >> 8 * (index & 7)) & 0xFF
        number = ((number ^ letter) * _FNV_PRIME) & 0xFFFFFFFF
    return number if number != 0 else 1


@kernel
def parse_packets_kernel(
    data: Buffer, datagrams: IntArray, datagram_count: int, transport_state: IntArray, packets: IntArray
) -> int:
    """Describe datagram i in row i of `packets`; return how many of them are KIND_BAD."""
    bad_count = 0
    for index in range(datagram_count):
        offset = datagrams[index, DATAGRAM_OFFSET]
        byte_count = datagrams[index, DATAGRAM_BYTES]
        packets[index, PACKET_LINE] = datagrams[index, DATAGRAM_LINE]
        packets[index, PACKET_TIME_NS] = datagrams[index, DATAGRAM_TIME_NS]
        packets[index, PACKET_OFFSET] = offset + HEADER_BYTES
        packets[index, PACKET_BYTES] = 0
        packets[index, PACKET_SEQ] = 0
        packets[index, PACKET_SESSION] = 0
        packets[index, PACKET_IDENTITY_0] = 0
        packets[index, PACKET_IDENTITY_1] = 0
        if byte_count < HEADER_BYTES:
            packets[index, PACKET_KIND] = KIND_BAD
            packets[index, PACKET_COUNT] = BAD_TRUNCATED if byte_count < 0 else BAD_SHORT
            bad_count += 1
            continue

        identity_0 = load_le64(data, offset + AT_SESSION)
        identity_1 = load_le16(data, offset + AT_SESSION + 8)
        is_known = (
            transport_state[STATE_SESSION] != 0
            and transport_state[STATE_IDENTITY_0] == identity_0
            and transport_state[STATE_IDENTITY_1] == identity_1
        )
        if not is_known:
            transport_state[STATE_IDENTITY_0] = identity_0
            transport_state[STATE_IDENTITY_1] = identity_1
            transport_state[STATE_SESSION] = session_number(identity_0, identity_1)
        packets[index, PACKET_SESSION] = transport_state[STATE_SESSION]
        packets[index, PACKET_IDENTITY_0] = identity_0
        packets[index, PACKET_IDENTITY_1] = identity_1

        sequence = load_be64(data, offset + AT_SEQUENCE)
        count = load_be16(data, offset + AT_COUNT)
        packets[index, PACKET_SEQ] = sequence
        if sequence < 1 or sequence >= SEQUENCE_LIMIT:  # numbers start at 1; from 2**63 on they look negative
            packets[index, PACKET_KIND] = KIND_BAD
            packets[index, PACKET_COUNT] = BAD_SEQUENCE
            bad_count += 1
            continue

        end = offset + byte_count
        position = offset + HEADER_BYTES
        message_count = count
        if count == COUNT_END_OF_SESSION:
            packets[index, PACKET_KIND] = KIND_END
            message_count = 0
        elif count == 0:
            packets[index, PACKET_KIND] = KIND_HEARTBEAT
        else:
            packets[index, PACKET_KIND] = KIND_DATA
        packets[index, PACKET_COUNT] = message_count
        packets[index, PACKET_BYTES] = end - position
        blocks = 0
        while blocks < message_count and position + PREFIX_BYTES <= end:
            position += PREFIX_BYTES + load_be16(data, position)
            blocks += 1
        if blocks < message_count or position != end:
            packets[index, PACKET_KIND] = KIND_BAD
            packets[index, PACKET_COUNT] = BAD_BLOCKS
            bad_count += 1
    return bad_count


def warm_up() -> None:
    parse_packets_kernel(
        np.zeros(64, dtype=np.uint8),
        np.zeros((1, DATAGRAM_FIELDS), dtype=np.int64),
        1,
        np.zeros(TRANSPORT_STATE_SIZE, dtype=np.int64),
        np.zeros((1, PACKET_FIELDS), dtype=np.int64),
    )
    session_number(0, 0)
