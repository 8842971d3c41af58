"""IEX-TP datagrams to packet descriptors: the line protocol of IEX feeds, compiled.

feeds/iex/transport.py is the readable truth about segments. This kernel looks at a batch of datagrams without
making an object of any, and checks that the blocks of each fill it exactly, so that arbitration and decoding
may walk them without looking at lengths twice. Which incarnation of the session a packet belongs to, and
whether its numbers can be believed, is incarnation_kernels' to say. IEX-TP has no end-of-session packet: a
session ends with a message (system event C).
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    BAD_BLOCKS,
    BAD_SEQUENCE,
    BAD_SHORT,
    BAD_TRUNCATED,
    BAD_VERSION,
    DATAGRAM_BYTES,
    DATAGRAM_FIELDS,
    DATAGRAM_LINE,
    DATAGRAM_OFFSET,
    DATAGRAM_TIME_NS,
    KIND_BAD,
    KIND_DATA,
    KIND_HEARTBEAT,
    LINE_RECOVERY,
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
from feeds.iex import transport as t
from feeds.iex.incarnation_kernels import (
    AGREEMENT,
    LINE_WORDS,
    REFUSED,
    STATE_AGREED,
    STATE_LINES,
    STATE_SIZE,
    STATE_STREAM,
    place_on_line,
    place_recovered,
)
from feeds.iex.messages import PREFIX_BYTES
from feeds.memory_kernels import Buffer, load_byte, load_le16, load_le32, load_le64


@kernel
def stream_of(data: Buffer, offset: int) -> int:
    """Return protocol and channel of a segment as one number."""
    channel = load_le32(data, offset + t.AT_CHANNEL)
    return load_le16(data, offset + t.AT_PROTOCOL) | (channel << t.IDENTITY_CHANNEL_SHIFT)


@kernel
def agree_on_stream(state: IntArray, stream: int) -> None:
    """Count a good packet of a stream. Two streams before any two packets agreed: the earlier was damage."""
    if state[STATE_AGREED] > 0 and state[STATE_STREAM] != stream:
        state[:] = 0
    state[STATE_STREAM] = stream
    state[STATE_AGREED] = min(state[STATE_AGREED] + 1, AGREEMENT)


@kernel
def find_fault(data: Buffer, offset: int, byte_count: int, state: IntArray) -> int:
    """Return what is wrong with the segment at `offset` taken by itself, one of BAD_*, or 0."""
    if byte_count < 0:
        return BAD_TRUNCATED
    if byte_count < t.HEADER_BYTES:
        return BAD_SHORT
    protocol = load_le16(data, offset + t.AT_PROTOCOL)
    is_ours = protocol in (t.PROTOCOL_DEEP_1_0, t.PROTOCOL_TOPS_1_6)
    if load_byte(data, offset + t.AT_VERSION) != t.VERSION or not is_ours:
        return BAD_VERSION
    if state[STATE_AGREED] == AGREEMENT and state[STATE_STREAM] != stream_of(data, offset):
        return BAD_VERSION

    payload_bytes = load_le16(data, offset + t.AT_PAYLOAD_BYTES)
    if payload_bytes > byte_count - t.HEADER_BYTES:
        return BAD_TRUNCATED
    if payload_bytes < byte_count - t.HEADER_BYTES:
        return BAD_BLOCKS
    count = load_le16(data, offset + t.AT_COUNT)
    seq = load_le64(data, offset + t.AT_SEQUENCE)
    stream_offset = load_le64(data, offset + t.AT_STREAM_OFFSET)
    if seq < t.FIRST_SEQUENCE or seq > SEQUENCE_LIMIT - count:
        return BAD_SEQUENCE
    if stream_offset < 0 or stream_offset > SEQUENCE_LIMIT - payload_bytes:
        return BAD_SEQUENCE

    end = offset + byte_count
    position = offset + t.HEADER_BYTES
    blocks = 0
    while blocks < count and position + PREFIX_BYTES <= end:
        position += PREFIX_BYTES + load_le16(data, position)
        blocks += 1
    if blocks < count or position != end:
        return BAD_BLOCKS
    return 0


@kernel
def parse_packets_kernel(
    data: Buffer, datagrams: IntArray, datagram_count: int, transport_state: IntArray, packets: IntArray
) -> int:
    """Describe datagram i in row i of `packets`; return how many of them are KIND_BAD."""
    bad_count = 0
    for index in range(datagram_count):
        offset = datagrams[index, DATAGRAM_OFFSET]
        byte_count = datagrams[index, DATAGRAM_BYTES]
        line = datagrams[index, DATAGRAM_LINE]
        packets[index, PACKET_LINE] = line
        packets[index, PACKET_TIME_NS] = datagrams[index, DATAGRAM_TIME_NS]
        packets[index, PACKET_OFFSET] = offset + t.HEADER_BYTES
        packets[index, PACKET_BYTES] = 0
        packets[index, PACKET_SEQ] = 0
        packets[index, PACKET_SESSION] = 0
        packets[index, PACKET_IDENTITY_0] = 0
        packets[index, PACKET_IDENTITY_1] = 0
        fault = find_fault(data, offset, byte_count, transport_state)
        if fault == 0:
            stream = stream_of(data, offset)
            agree_on_stream(transport_state, stream)
            session_id = load_le32(data, offset + t.AT_SESSION)
            payload_bytes = load_le16(data, offset + t.AT_PAYLOAD_BYTES)
            count = load_le16(data, offset + t.AT_COUNT)
            stream_offset = load_le64(data, offset + t.AT_STREAM_OFFSET)
            seq = load_le64(data, offset + t.AT_SEQUENCE)
            send_ns = load_le64(data, offset + t.AT_SEND_TIME)
            packets[index, PACKET_BYTES] = payload_bytes
            packets[index, PACKET_SEQ] = seq
            packets[index, PACKET_IDENTITY_0] = session_id
            packets[index, PACKET_IDENTITY_1] = stream
            if line < LINE_RECOVERY:
                session = place_on_line(
                    transport_state,
                    STATE_LINES + line * LINE_WORDS,
                    session_id,
                    seq,
                    seq + count,
                    stream_offset,
                    stream_offset + payload_bytes,
                    send_ns,
                )
            else:
                session = place_recovered(transport_state, session_id, seq, count, send_ns)
            if session == REFUSED:
                fault = BAD_SEQUENCE
            else:
                packets[index, PACKET_SESSION] = session
                packets[index, PACKET_COUNT] = count
                packets[index, PACKET_KIND] = KIND_DATA if count > 0 else KIND_HEARTBEAT
        if fault != 0:
            packets[index, PACKET_KIND] = KIND_BAD
            packets[index, PACKET_COUNT] = fault
            bad_count += 1
    return bad_count


def expect_stream(transport_state: IntArray, protocol_id: int, channel_id: int) -> None:
    """Tell a new `transport_state` which stream its lines carry; packets of any other are BAD_VERSION."""
    transport_state[STATE_STREAM] = t.StreamIdentity(protocol_id, channel_id, 0).words[1]
    transport_state[STATE_AGREED] = AGREEMENT


def warm_up() -> None:
    parse_packets_kernel(
        np.zeros(64, dtype=np.uint8),
        np.zeros((1, DATAGRAM_FIELDS), dtype=np.int64),
        1,
        np.zeros(STATE_SIZE, dtype=np.int64),
        np.zeros((1, PACKET_FIELDS), dtype=np.int64),
    )
