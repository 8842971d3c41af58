"""MoldUDP64: what is encoded is decoded, what is decoded is canonical, and garbage is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.message_store import SEQUENCE_MAX, MemoryStore, MessageBlock
from feeds.moldudp64 import (
    HEADER_BYTES,
    MoldError,
    PacketBuilder,
    PacketKind,
    RequestLimits,
    RequestPacket,
    RequestServer,
    decode_downstream,
    decode_request,
    encode_downstream,
    encode_end_of_session,
    encode_heartbeat,
    encode_request,
    session_bytes,
)

sessions = st.binary(min_size=10, max_size=10)
sequences = st.integers(1, SEQUENCE_MAX - 100)
messages_lists = st.lists(st.binary(max_size=70), max_size=40)
ENCODERS = {PacketKind.HEARTBEAT: encode_heartbeat, PacketKind.END_OF_SESSION: encode_end_of_session}


def encoded_again(data: bytes) -> bytes:
    packet = decode_downstream(data)
    if packet.kind is PacketKind.DATA:
        return encode_downstream(packet.session, packet.sequence, packet.messages)
    return ENCODERS[packet.kind](packet.session, packet.sequence)


@given(sessions, sequences, messages_lists.filter(len))
def test_a_packet_survives_the_wire(session: bytes, sequence: int, messages: list[bytes]) -> None:
    packet = decode_downstream(encode_downstream(session, sequence, messages))
    assert (packet.session, packet.sequence, packet.messages) == (session, sequence, tuple(messages))
    assert packet.next_sequence == sequence + len(messages)


@given(sessions, st.integers(0, SEQUENCE_MAX), st.integers(1, 0xFFFE))
def test_a_request_survives_the_wire(session: bytes, sequence: int, count: int) -> None:
    request = RequestPacket(session, sequence, count)
    assert decode_request(encode_request(request)) == request


# Counts and lengths near the truth, so that most of the garbage is nearly right.
near_packets = st.builds(
    lambda head, count, blocks, tail: head + count.to_bytes(2, "big") + b"".join(blocks) + tail,
    st.binary(min_size=18, max_size=18),
    st.one_of(st.integers(0, 5), st.just(0xFFFF)),
    st.lists(st.builds(lambda body: len(body).to_bytes(2, "big") + body, st.binary(max_size=9)), max_size=5),
    st.binary(max_size=3),
)


@given(st.one_of(st.binary(max_size=80), near_packets))
def test_bytes_are_refused_or_are_exactly_one_packet(data: bytes) -> None:
    try:
        again = encoded_again(data)
    except MoldError as error:
        assert 0 <= error.offset <= len(data)  # noqa: PT017 - either outcome is right, each in its way
    else:
        assert again == data


@given(messages_lists.filter(len), st.data())
def test_no_packet_cut_short_or_made_longer_passes(messages: list[bytes], data: st.DataObject) -> None:
    packet = encode_downstream(bytes(10), 1, messages)
    shorter = packet[: data.draw(st.integers(0, len(packet) - 1))]
    with pytest.raises(MoldError):
        decode_downstream(shorter)
    with pytest.raises(MoldError):
        decode_downstream(packet + data.draw(st.binary(min_size=1, max_size=5)))


@given(messages_lists, st.integers(HEADER_BYTES + 72, 400), st.integers(1, 10), sequences)
def test_cutting_loses_nothing_keeps_limits_and_wastes_no_packet(
    messages: list[bytes], packet_bytes_max: int, message_count_max: int, sequence: int
) -> None:
    builder = PacketBuilder(bytes(10), sequence, packet_bytes_max, message_count_max)
    raw = list(builder.cut(messages))
    packets = [decode_downstream(data) for data in raw]
    assert [message for packet in packets for message in packet.messages] == messages
    assert builder.next_sequence == sequence + len(messages)
    assert all(len(data) <= packet_bytes_max for data in raw)
    assert all(len(packet.messages) <= message_count_max for packet in packets)
    for data, packet, following in zip(raw[:-1], packets[:-1], packets[1:], strict=True):
        assert packet.next_sequence == following.sequence
        is_full = len(packet.messages) == message_count_max
        assert is_full or len(data) + 2 + len(following.messages[0]) > packet_bytes_max


@given(
    messages_lists,
    st.integers(0, 60),
    st.integers(1, 100),
    st.integers(1, 20),
    st.integers(HEADER_BYTES + 2, 300),
)
def test_an_answer_is_a_prefix_of_what_was_asked_and_keeps_the_limits(
    messages: list[bytes], sequence: int, count: int, message_count_max: int, packet_bytes_max: int
) -> None:
    store = MemoryStore("DAY1", chunk_messages=7)
    store.append_block(MessageBlock.of(messages))
    server = RequestServer(RequestLimits(message_count_max, packet_bytes_max), 0)
    server.add_session(store)
    answer = server.on_request(encode_request(RequestPacket(session_bytes("DAY1"), sequence, count)), "c", 0)
    if not 1 <= sequence <= len(messages):
        assert answer is None
        assert server.counters.out_of_range == 1
        return
    assert answer is not None
    sent = list(decode_downstream(answer).messages)
    assert 1 <= len(sent) <= min(count, message_count_max)
    assert sent == messages[sequence - 1 : sequence - 1 + len(sent)]
    assert len(answer) <= packet_bytes_max or len(sent) == 1


@given(st.lists(st.one_of(st.binary(max_size=30), st.binary(min_size=20, max_size=20)), max_size=30))
def test_no_garbage_is_answered_and_all_of_it_is_counted(requests: list[bytes]) -> None:
    server = RequestServer(RequestLimits(client_requests_burst=10), 0)
    assert all(server.on_request(data, "c", 0) is None for data in requests)
    counters = server.counters
    assert counters.malformed + counters.unknown_session + counters.client_limited == len(requests)
    assert counters.client_limited == max(len(requests) - 10, 0)
