"""The compiled packet parser against the plain MoldUDP64 module."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import formats as f
from feeds import moldudp64
from feeds.itch50 import FORMAT, transport
from feeds.itch50.transport_kernels import STATE_SESSION, parse_packets_kernel, session_number
from feeds.moldudp64 import MoldError, PacketKind

pytestmark = pytest.mark.kernels

SESSIONS = (b"000010059B", b"1567326030", b"          ", bytes(10), b"\xff" * 10)

sequences = st.one_of(st.integers(1, 2**62 - 1), st.sampled_from([0, 1, 2**62 - 1, 2**62, 2**63, 2**64 - 1]))


@st.composite
def good_packets(draw: st.DrawFn) -> bytes:
    messages = draw(st.lists(st.binary(max_size=50), max_size=6))
    count = draw(st.sampled_from([len(messages)] * 4 + [0xFFFF])) if not messages else len(messages)
    blocks = b"".join(len(message).to_bytes(2, "big") + message for message in messages)
    sequence = draw(sequences).to_bytes(8, "big")
    return draw(st.sampled_from(SESSIONS)) + sequence + count.to_bytes(2, "big") + blocks


@st.composite
def bad_packets(draw: st.DrawFn) -> bytes:
    packet = bytearray(draw(good_packets()))
    for _ in range(draw(st.integers(0, 2))):
        packet[draw(st.integers(0, len(packet) - 1))] ^= draw(st.integers(1, 255))
    return bytes(packet[: draw(st.integers(0, len(packet)))]) + draw(st.binary(max_size=3))


def parse(packets: list[bytes]) -> tuple[f.IntArray, int, f.ByteArray]:
    data = np.frombuffer(bytearray(b"".join(packets) + b"\0"), dtype=np.uint8)
    datagrams = np.zeros((max(1, len(packets)), f.DATAGRAM_FIELDS), dtype=np.int64)
    offset = 0
    for index, packet in enumerate(packets):
        datagrams[index] = offset, len(packet), index % 2, 1_000 + index
        offset += len(packet)
    found = np.full((max(1, len(packets)), f.PACKET_FIELDS), -77, dtype=np.int64)
    state = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    bad_count = parse_packets_kernel(data, datagrams, len(packets), state, found)
    return found, bad_count, data


@given(packets=st.lists(st.one_of(good_packets(), bad_packets()), max_size=8))
def test_kernel_and_plain_module_agree_on_every_packet(packets: list[bytes]) -> None:
    found, bad_count, data = parse(packets)
    bad_expected = 0
    offset = 0
    for index, packet in enumerate(packets):
        row = found[index]
        assert row[f.PACKET_LINE] == index % 2
        assert row[f.PACKET_TIME_NS] == 1_000 + index
        sequence = int.from_bytes(packet[10:18], "big")
        try:
            expected = moldudp64.decode_downstream(packet)
        except MoldError:
            expected = None
        if expected is None or not 1 <= sequence < f.SEQUENCE_LIMIT:
            bad_expected += 1
            assert row[f.PACKET_KIND] == f.KIND_BAD
            if len(packet) < moldudp64.HEADER_BYTES:
                assert row[f.PACKET_COUNT] == f.BAD_SHORT
            elif not 1 <= sequence < f.SEQUENCE_LIMIT:
                assert row[f.PACKET_COUNT] == f.BAD_SEQUENCE
            else:
                assert row[f.PACKET_COUNT] == f.BAD_BLOCKS
        else:
            kinds = {
                PacketKind.DATA: f.KIND_DATA,
                PacketKind.HEARTBEAT: f.KIND_HEARTBEAT,
                PacketKind.END_OF_SESSION: f.KIND_END,
            }
            assert row[f.PACKET_KIND] == kinds[expected.kind]
            assert row[f.PACKET_SEQ] == expected.sequence
            assert row[f.PACKET_COUNT] == len(expected.messages)
            begin = int(row[f.PACKET_OFFSET])
            assert begin == offset + moldudp64.HEADER_BYTES
            assert row[f.PACKET_BYTES] == len(packet) - moldudp64.HEADER_BYTES
            identity = (int(row[f.PACKET_IDENTITY_0]), int(row[f.PACKET_IDENTITY_1]))
            assert transport.session_of_identity(*identity) == packet[:10]
            assert transport.session_identity(packet[:10]) == identity
            assert row[f.PACKET_SESSION] == session_number(*identity)
        offset += len(packet)
    assert bad_count == bad_expected
    assert data.size == offset + 1


@given(packet=good_packets())
def test_a_datagram_marked_as_cut_is_bad_whatever_it_holds(packet: bytes) -> None:
    data = np.frombuffer(bytearray(packet), dtype=np.uint8)
    datagrams = np.array([[0, -len(packet), f.LINE_B, 5]], dtype=np.int64)
    found = np.zeros((1, f.PACKET_FIELDS), dtype=np.int64)
    state = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    assert parse_packets_kernel(data, datagrams, 1, state, found) == 1
    assert found[0, f.PACKET_KIND] == f.KIND_BAD
    assert found[0, f.PACKET_COUNT] == f.BAD_TRUNCATED
    assert state[STATE_SESSION] == 0


def fnv1a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 % 2**32
    return value or 1


@given(session=st.binary(min_size=10, max_size=10))
def test_a_session_has_one_number_that_every_adapter_finds_alone(session: bytes) -> None:
    assert session_number(*transport.session_identity(session)) == fnv1a(session)


@given(first=st.integers(1, 2**40), count=st.integers(1, 2_000))
def test_requests_cover_a_hole_exactly(first: int, count: int) -> None:
    identity = transport.session_identity(b"000010059B")
    wanted = first
    for packet in FORMAT.gap_requests(*identity, first, count):
        request = moldudp64.decode_request(packet)
        assert request.session == b"000010059B"
        assert request.sequence == wanted
        assert 1 <= request.count <= transport.REQUEST_MESSAGES_MAX
        wanted += request.count
    assert wanted == first + count
