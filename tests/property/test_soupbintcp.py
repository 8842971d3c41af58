"""SoupBinTCP: kernels against plain loops, any cut of the stream, any garbage, any number of reconnects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.message_store import SEQUENCE_MAX, MemoryStore, MessageBlock
from feeds.soupbintcp import (
    Accounts,
    ClientConnection,
    Closed,
    CloseReason,
    DebugText,
    Event,
    LoginRequest,
    PacketType,
    SequencedData,
    ServerConnection,
    State,
    StoredSessions,
    UnsequencedData,
    protocol,
)
from feeds.soupbintcp.connection import Connection
from feeds.soupbintcp.framing_kernels import frame_sequenced_kernel, scan_sequenced_kernel

messages_lists = st.lists(st.binary(max_size=60), max_size=30)
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=6)
ACCOUNTS = Accounts({"trader": "hush"})
LOGIN = LoginRequest("trader", "hush")


def streaming_client() -> ClientConnection:
    client = ClientConnection(LOGIN, 0)
    client.login(0)
    client.on_bytes(protocol.encode_login_accepted("DAY1", 1), 0)
    client.take_output(0)
    return client


def streaming_server(store: MemoryStore) -> ServerConnection:
    server = ServerConnection(ACCOUNTS, StoredSessions(store), 0)
    server.on_bytes(protocol.encode_login_request(LOGIN), 0)
    server.take_output(0)
    return server


def flattened(events: list[Event]) -> list[object]:
    """Events with runs of messages taken apart, so that how they were grouped does not matter."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, SequencedData):
            flat.extend((event.first_sequence + index, message) for index, message in enumerate(event.block))
        elif isinstance(event, Closed):
            flat.append((event.reason, event.detail, event.next_sequence))
        else:
            flat.append(event)
    return flat


# Kernels and their references.


def frame_reference(messages: list[bytes], room_bytes: int) -> tuple[int, bytes]:
    framed = b""
    for count, message in enumerate(messages):
        packet = (1 + len(message)).to_bytes(2, "big") + b"S" + message
        if len(framed) + len(packet) > room_bytes:
            return count, framed
        framed += packet
    return len(messages), framed


def scan_reference(data: bytes, begin: int, length_max: int, room_count: int) -> tuple[list[bytes], int]:
    found: list[bytes] = []
    while len(found) < room_count and len(data) - begin >= 3:
        length = int.from_bytes(data[begin : begin + 2], "big")
        packet = data[begin + 2 : begin + 2 + length]
        if not 1 <= length <= length_max or data[begin + 2 : begin + 3] != b"S" or len(packet) < length:
            break
        found.append(packet[1:])
        begin += 2 + length
    return found, begin


@pytest.mark.kernels
@given(messages_lists, st.integers(0, 40), st.integers(0, 600))
def test_framing_kernel_equals_its_reference(messages: list[bytes], position: int, room_bytes: int) -> None:
    block = MessageBlock.of(messages)
    target = np.full(position + room_bytes, 0xEE, np.uint8)
    count, end = frame_sequenced_kernel(block.buffer, block.offsets, block.lengths, target, position)
    expected_count, expected = frame_reference(messages, room_bytes)
    assert (count, target[position:end].tobytes()) == (expected_count, expected)
    assert (target[:position] == 0xEE).all()
    assert (target[end:] == 0xEE).all()


@pytest.mark.kernels
@given(messages_lists, st.binary(max_size=20), st.integers(0, 5), st.integers(1, 61), st.integers(0, 30))
def test_scanning_kernel_equals_its_reference(
    messages: list[bytes], tail: bytes, begin: int, length_max: int, room_count: int
) -> None:
    data = bytes(begin) + frame_reference(messages, 1 << 20)[1] + tail
    offsets, lengths = np.empty(room_count, np.int64), np.empty(room_count, np.int64)
    count, end = scan_sequenced_kernel(np.frombuffer(data, np.uint8), begin, length_max, offsets, lengths)
    found = [
        data[offset : offset + length]
        for offset, length in zip(offsets[:count], lengths[:count], strict=True)
    ]
    assert (found, end) == scan_reference(data, begin, length_max, room_count)


# Packets.


@given(names, names, names, st.integers(0, SEQUENCE_MAX))
def test_a_login_request_survives_the_wire(username: str, password: str, session: str, sequence: int) -> None:
    request = LoginRequest(username, password, session, sequence)
    assert protocol.decode_login_request(protocol.encode_login_request(request)[3:]) == request


@given(names, st.integers(1, SEQUENCE_MAX))
def test_a_login_answer_survives_the_wire(session: str, sequence: int) -> None:
    packet = protocol.encode_login_accepted(session, sequence)
    assert protocol.decode_login_accepted(packet[3:]) == (session, sequence)


# Streams.

server_packets = st.one_of(
    st.tuples(st.just(PacketType.SEQUENCED_DATA), st.binary(max_size=40)),
    st.tuples(st.just(PacketType.UNSEQUENCED_DATA), st.binary(max_size=40)),
    st.tuples(st.just(PacketType.DEBUG), st.binary(max_size=20)),
    st.tuples(st.just(PacketType.SERVER_HEARTBEAT), st.just(b"")),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(server_packets, max_size=20),
    st.sampled_from([b"", b"\x00\x01Z", b"\x00\x00", b"\x00\x01?", b"\x00\x02Hx", b"\x00\x09S"]),
    st.lists(st.integers(0, 2_000), max_size=40),
)
def test_how_tcp_cuts_the_stream_changes_nothing(
    packets: list[tuple[PacketType, bytes]], tail: bytes, places: list[int]
) -> None:
    data = b"".join(protocol.packet(kind, payload) for kind, payload in packets) + tail
    whole, pieces = streaming_client(), streaming_client()
    expected = flattened(whole.on_bytes(data, 1))
    found: list[Event] = []
    for piece in cut(data, places):
        found.extend(pieces.on_bytes(piece, 1))
    assert flattened(found) == expected
    assert (pieces.state, pieces.next_sequence) == (whole.state, whole.next_sequence)


@given(st.lists(server_packets, max_size=20))
def test_a_client_reports_what_was_sent_and_nothing_else(packets: list[tuple[PacketType, bytes]]) -> None:
    data = b"".join(protocol.packet(kind, payload) for kind, payload in packets)
    expected: list[object] = []
    sequence = 1
    for kind, payload in packets:
        if kind is PacketType.SEQUENCED_DATA:
            expected.append((sequence, payload))
            sequence += 1
        elif kind is PacketType.UNSEQUENCED_DATA:
            expected.append(UnsequencedData(payload))
        elif kind is PacketType.DEBUG:
            expected.append(DebugText(payload.decode("ascii", "replace")))
    assert flattened(streaming_client().on_bytes(data, 1)) == expected


@given(messages_lists, st.lists(st.integers(0, 3_000), max_size=12), st.data())
def test_every_message_arrives_once_and_in_order_however_often_the_connection_breaks(
    messages: list[bytes], breaks: list[int], data: st.DataObject
) -> None:
    store = MemoryStore("DAY1", chunk_messages=4)
    sessions = StoredSessions(store)
    received: list[object] = []
    request = LOGIN
    last: Closed | None = None
    waiting = list(messages)
    for attempt in [*breaks, None]:
        added = len(waiting) if attempt is None else data.draw(st.integers(0, len(waiting)))
        store.append_block(MessageBlock.of(waiting[:added]))
        del waiting[:added]
        if attempt is None:
            store.end()
        server = ServerConnection(ACCOUNTS, sessions, 0)
        client = ClientConnection(request, 0)
        client.login(0)
        server.on_bytes(client.take_output(0), 0)
        stream = server.take_output(0)
        events = client.on_bytes(stream if attempt is None else stream[:attempt], 0)
        events += client.on_peer_closed(1)
        received.extend(item for item in flattened(events) if isinstance(item, tuple) and len(item) == 2)
        last = client.close_event
        if client.session:
            request = LoginRequest("trader", "hush", client.session, client.next_sequence)
    assert received == list(enumerate(messages, start=1))
    assert last is not None
    assert last.reason is CloseReason.END_OF_SESSION


# Garbage.


def check_survival(machine: Connection, pieces: list[bytes]) -> None:
    """Feed anything: no exception, one end at the most, silence after it, and a way to the end."""
    ends = 0
    for now_ns, piece in enumerate(pieces):
        was_open = machine.is_open
        events = machine.on_bytes(piece, now_ns)
        assert was_open or events == []
        ends += sum(isinstance(event, Closed) for event in events)
        assert machine.is_open == (ends == 0)
        assert len(machine._input) <= 65_537
    assert ends <= 1
    for _ in range(100):
        deadline_ns = machine.next_deadline_ns
        if deadline_ns is None:
            break
        machine.on_timer(deadline_ns)
        machine.take_output(deadline_ns)
    assert machine.state is State.CLOSED


# Mostly legal heads, so that garbage gets past the first check.
hostile_packets = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda length, kind, payload: length.to_bytes(2, "big") + bytes((kind,)) + payload,
        st.one_of(st.integers(0, 60), st.integers(0, 65_535)),
        st.sampled_from(sorted(PacketType)),
        st.binary(max_size=60),
    ),
    st.builds(protocol.packet, st.sampled_from(sorted(PacketType)), st.binary(max_size=60)),
    st.just(protocol.encode_login_request(LOGIN)),
    st.just(protocol.encode_login_accepted("DAY1", 1)),
)
hostile_streams = st.lists(hostile_packets, max_size=12)


@given(hostile_streams, st.booleans())
def test_no_garbage_crashes_or_hangs_a_server(pieces: list[bytes], is_logged_in: bool) -> None:
    store = MemoryStore("DAY1")
    store.append(b"one")
    sessions = StoredSessions(store)
    server = streaming_server(store) if is_logged_in else ServerConnection(ACCOUNTS, sessions, 0)
    check_survival(server, pieces)


@given(hostile_streams, st.booleans())
def test_no_garbage_crashes_or_hangs_a_client(pieces: list[bytes], is_logged_in: bool) -> None:
    client = streaming_client()
    if not is_logged_in:
        client = ClientConnection(LOGIN, 0)
        client.login(0)
    check_survival(client, pieces)


@given(
    messages_lists, st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), min_size=1, max_size=5)
)
def test_a_damaged_stream_never_gives_a_message_a_number_it_cannot_have(
    messages: list[bytes], damage: list[tuple[int, int]]
) -> None:
    stream = bytearray(frame_reference(messages, 1 << 20)[1])
    for place, value in damage:
        if stream:
            stream[place % len(stream)] = value
    client = streaming_client()
    flat = flattened(client.on_bytes(bytes(stream), 1))
    numbers = [item[0] for item in flat if isinstance(item, tuple) and len(item) == 2]
    assert numbers == list(range(1, len(numbers) + 1))
    assert client.next_sequence == len(numbers) + 1
