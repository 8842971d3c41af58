"""MoldUDP64: the bytes, the cutting into packets, and the re-request server."""

from __future__ import annotations

import pytest

from feeds.errors import ConfigError
from feeds.message_store import MemoryStore
from feeds.moldudp64 import (
    MESSAGE_COUNT_MAX,
    UDP_PAYLOAD_BYTES_MAX,
    DownstreamPacket,
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
from feeds.request_limits import TokenBucket

SECOND = 1_000_000_000
SESSION = b"000010059B"


# The bytes.


def test_a_packet_has_the_bytes_of_the_specification() -> None:
    assert encode_downstream(SESSION, 3_466_217, [b"ab", b"", b"c"]) == (
        b"000010059B"
        + bytes.fromhex("000000000034e3e9")
        + b"\x00\x03"
        + b"\x00\x02ab"
        + b"\x00\x00"
        + b"\x00\x01c"
    )


def test_heartbeat_and_end_of_session_name_the_next_number() -> None:
    heartbeat = encode_heartbeat(SESSION, 5)
    assert heartbeat == SESSION + bytes(7) + b"\x05\x00\x00"
    assert decode_downstream(heartbeat) == DownstreamPacket(SESSION, 5, PacketKind.HEARTBEAT)
    end = encode_end_of_session(SESSION, 5)
    assert end == SESSION + bytes(7) + b"\x05\xff\xff"
    assert decode_downstream(end) == DownstreamPacket(SESSION, 5, PacketKind.END_OF_SESSION)
    assert decode_downstream(end).next_sequence == 5


def test_a_message_of_no_bytes_takes_a_number() -> None:
    packet = decode_downstream(encode_downstream(SESSION, 9, [b"", b"x"]))
    assert packet == DownstreamPacket(SESSION, 9, PacketKind.DATA, (b"", b"x"))
    assert packet.next_sequence == 11


def test_a_count_above_the_sign_bit_is_a_count() -> None:
    messages = [b""] * 32_000
    packet = decode_downstream(encode_downstream(SESSION, 1, messages))
    assert len(packet.messages) == 32_000
    header = SESSION + bytes(7) + b"\x01" + b"\x80\x00"
    with pytest.raises(MoldError, match=r"message count at byte 18 must be 0, .*, was 32768"):
        decode_downstream(header)


GOOD = encode_downstream(SESSION, 7, [b"abc", b"de"])


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "packet at byte 0 must be at least the 20 of a header, was 0 bytes"),
        (GOOD[:19], "was 19 bytes"),
        (GOOD[:20], "message count at byte 18 must be 0, the number of blocks in the packet, was 2"),
        (GOOD[:21], "message count at byte 18 must be 0"),
        (GOOD[:24], "length of block 0 at byte 20 must be at most the 2 bytes that are left, was 3"),
        (GOOD[:25], "message count at byte 18 must be 1, the number of blocks in the packet, was 2"),
        (GOOD[:-1], "length of block 1 at byte 25 must be at most the 1 bytes that are left, was 2"),
        (GOOD + b"\x00", "packet at byte 29 must be over after its 29 bytes, was 30 bytes long"),
        (encode_heartbeat(SESSION, 1) + b"\x00\x01x", "over after its 20 bytes"),
        (encode_end_of_session(SESSION, 1) + b"\x00", "over after its 20 bytes"),
        (SESSION + bytes(8) + b"\x00\x01\x00\x00", "sequence at byte 10 must be 1 to"),
        (SESSION + b"\xff" * 8 + b"\x00\x01\x00\x00", "sequence at byte 10 must be 1 to"),
    ],
)
def test_a_packet_that_breaks_the_framing_is_refused_with_place_found_and_allowed(
    data: bytes, expected: str
) -> None:
    with pytest.raises(MoldError) as caught:
        decode_downstream(data)
    assert expected in str(caught.value)


def test_requests_have_the_same_header() -> None:
    request = RequestPacket(SESSION, 258, 3)
    assert encode_request(request) == SESSION + bytes(6) + b"\x01\x02" + b"\x00\x03"
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "data, expected",
    [
        (SESSION, "was 10 bytes"),
        (SESSION + bytes(11), "over after its 20 bytes"),
        (SESSION + bytes(10), "requested count at byte 18 must be 1 to 65535, was 0"),
    ],
)
def test_a_malformed_request_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(MoldError) as caught:
        decode_request(data)
    assert expected in str(caught.value)


def test_what_would_be_an_illegal_packet_is_not_made() -> None:
    with pytest.raises(ConfigError, match="1 to 65534 messages, was 0"):
        encode_downstream(SESSION, 1, [])
    with pytest.raises(ConfigError, match="was 65535"):
        encode_downstream(SESSION, 1, [b""] * (MESSAGE_COUNT_MAX + 1))
    with pytest.raises(ConfigError, match="sequence must be 1 to"):
        encode_downstream(SESSION, 0, [b""])
    with pytest.raises(ConfigError, match=f"at most {UDP_PAYLOAD_BYTES_MAX} bytes"):
        encode_downstream(SESSION, 1, [bytes(40_000)] * 2)
    with pytest.raises(ConfigError, match=f"a message must be at most {UDP_PAYLOAD_BYTES_MAX}"):
        encode_downstream(SESSION, 1, [bytes(70_000)])
    with pytest.raises(ConfigError, match="session must be 10 bytes"):
        encode_heartbeat(b"short", 1)
    with pytest.raises(ConfigError, match="sequence must be 0 to"):
        encode_heartbeat(SESSION, 2**64)
    with pytest.raises(ConfigError, match="requested count must be 1 to 65534, was 65535"):
        encode_request(RequestPacket(SESSION, 1, 0xFFFF))
    with pytest.raises(ConfigError, match="printable ASCII"):
        session_bytes("elevenchars")


# Cutting.


def test_packets_are_cut_by_bytes() -> None:
    builder = PacketBuilder(SESSION, packet_bytes_max=20 + 2 * (2 + 10))
    packets = [decode_downstream(packet) for packet in builder.cut([bytes(10)] * 5)]
    assert [(packet.sequence, len(packet.messages)) for packet in packets] == [(1, 2), (3, 2), (5, 1)]
    assert builder.next_sequence == 6


def test_packets_are_cut_by_count() -> None:
    builder = PacketBuilder(SESSION, next_sequence=100, message_count_max=3)
    packets = [decode_downstream(packet) for packet in builder.cut([b"x"] * 7)]
    assert [(packet.sequence, len(packet.messages)) for packet in packets] == [(100, 3), (103, 3), (106, 1)]


def test_a_message_waits_until_its_packet_is_full_or_flushed() -> None:
    builder = PacketBuilder(SESSION, message_count_max=2)
    assert [builder.add(text) for text in (b"a", b"b")] == [None, None]
    assert (builder.pending_count, builder.next_sequence) == (2, 1)
    full = builder.add(b"c")
    assert full is not None
    assert decode_downstream(full).messages == (b"a", b"b")
    last = builder.flush()
    assert last is not None
    assert decode_downstream(last) == DownstreamPacket(SESSION, 3, PacketKind.DATA, (b"c",))
    assert builder.flush() is None


def test_a_message_that_fits_no_packet_is_refused_and_loses_nothing() -> None:
    builder = PacketBuilder(SESSION, packet_bytes_max=32)
    builder.add(b"0123456789")
    with pytest.raises(ConfigError, match="at most 10 bytes"):
        builder.add(b"0123456789X")
    assert builder.pending_count == 1


@pytest.mark.parametrize(
    "changes", [{"packet_bytes_max": 21}, {"packet_bytes_max": 65_508}, {"message_count_max": 0}]
)
def test_limits_of_packets_that_cannot_work_are_refused_by_name(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        PacketBuilder(SESSION, **changes)
    with pytest.raises(ConfigError, match=next(iter(changes))):
        RequestLimits(**changes)


# The re-request server.


def make_server(limits: RequestLimits | None = None, message_count: int = 100) -> RequestServer:
    server = RequestServer(limits or RequestLimits(), 0)
    store = MemoryStore(SESSION.decode())
    for number in range(1, message_count + 1):
        store.append(b"message %d" % number)
    server.add_session(store)
    return server


def ask(
    server: RequestServer, sequence: int, count: int, client: str = "c", now_ns: int = 0
) -> list[bytes] | None:
    answer = server.on_request(encode_request(RequestPacket(SESSION, sequence, count)), client, now_ns)
    if answer is None:
        return None
    packet = decode_downstream(answer)
    assert (packet.session, packet.sequence) == (SESSION, sequence)
    return list(packet.messages)


def test_requested_messages_are_sent_again() -> None:
    server = make_server()
    assert ask(server, 5, 3) == [b"message 5", b"message 6", b"message 7"]
    assert (server.counters.answered, server.counters.messages_sent) == (1, 3)
    assert server.counters.bytes_sent == 20 + 3 * (2 + 9)


def test_an_answer_carries_what_there_is_of_what_was_asked() -> None:
    assert ask(make_server(), 99, 50) == [b"message 99", b"message 100"]


def test_an_answer_is_cut_to_one_packet() -> None:
    server = make_server(RequestLimits(packet_bytes_max=20 + 4 * (2 + 10)))
    assert ask(server, 20, 50) == [b"message %d" % number for number in range(20, 24)]


def test_an_answer_is_cut_to_the_messages_of_one_request() -> None:
    assert ask(make_server(RequestLimits(message_count_max=2)), 20, 50) == [b"message 20", b"message 21"]


def test_an_answer_goes_on_across_the_pieces_of_a_store() -> None:
    server = RequestServer(RequestLimits(), 0)
    store = MemoryStore(SESSION.decode(), chunk_messages=3)
    for number in range(1, 11):
        store.append(b"%d" % number)
    server.add_session(store)
    assert ask(server, 2, 7) == [b"%d" % number for number in range(2, 9)]


def test_a_long_message_is_sent_alone_even_beyond_the_packet_limit() -> None:
    server = make_server()
    store = MemoryStore("LONG")
    store.append(bytes(5_000))
    store.append(b"x")
    store.append(bytes(65_500))
    server.add_session(store)
    answers = [
        server.on_request(encode_request(RequestPacket(session_bytes("LONG"), number, 2)), "c", 0)
        for number in (1, 3)
    ]
    assert answers[0] is not None
    assert decode_downstream(answers[0]).messages == (bytes(5_000),)
    assert answers[1] is None
    assert server.counters.too_long == 1


def test_what_cannot_be_answered_is_ignored_and_counted() -> None:
    server = make_server()
    assert ask(server, 0, 1) is None
    assert ask(server, 101, 1) is None
    assert server.counters.out_of_range == 2
    assert server.on_request(encode_request(RequestPacket(b"OTHERDAY  ", 1, 1)), "c", 0) is None
    assert server.counters.unknown_session == 1
    for junk in (b"", b"junk", bytes(20), bytes(2_000)):
        assert server.on_request(junk, "c", 0) is None
    assert server.counters.malformed == 4
    assert server.counters.answered == 0


def test_messages_that_are_no_longer_kept_are_out_of_range() -> None:
    server = RequestServer(RequestLimits(), 0)
    store = MemoryStore(SESSION.decode(), retain_bytes=140_000, chunk_bytes=70_000, chunk_messages=10)
    for number in range(1, 41):
        store.append(b"%d" % number)
    server.add_session(store)
    assert ask(server, 20, 1) is None
    assert server.counters.out_of_range == 1
    assert ask(server, 21, 1) == [b"21"]


def test_a_session_that_was_removed_is_unknown() -> None:
    server = make_server()
    server.remove_session(SESSION.decode())
    assert ask(server, 1, 1) is None
    assert server.counters.unknown_session == 1


def test_two_stores_of_one_session_are_refused() -> None:
    with pytest.raises(ConfigError, match="name of its own"):
        make_server().add_session(MemoryStore(SESSION.decode()))


def test_a_client_that_asks_too_often_waits_and_others_do_not() -> None:
    server = make_server(RequestLimits(client_requests_per_second=10, client_requests_burst=3))
    assert [ask(server, 1, 1, "greedy") is not None for _ in range(5)] == [True, True, True, False, False]
    assert ask(server, 1, 1, "modest") is not None
    assert ask(server, 1, 1, "greedy", SECOND // 10) is not None
    assert ask(server, 1, 1, "greedy", SECOND // 10) is None
    assert server.counters.client_limited == 3


def test_all_clients_together_are_limited_too() -> None:
    server = make_server(RequestLimits(all_requests_per_second=1, all_requests_burst=2))
    assert [ask(server, 1, 1, f"forged {index}") is not None for index in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert server.counters.all_limited == 2


def test_the_table_of_clients_is_bounded_and_forgets_the_longest_unheard() -> None:
    server = make_server(RequestLimits(client_count_max=2, client_requests_burst=1))
    for client in ("a", "b", "a", "c"):
        ask(server, 1, 1, client)
    assert server._gate.clients == ["a", "c"]
    assert server.counters.client_limited == 1


def test_a_clock_that_goes_back_gives_no_tokens_twice() -> None:
    bucket = TokenBucket(per_second=1, burst=2, tokens=0, refilled_ns=10 * SECOND)
    assert bucket.take(11 * SECOND)
    assert not bucket.take(5 * SECOND)
    assert not bucket.take(11 * SECOND)
    assert bucket.take(12 * SECOND)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_requests_per_second": 0},
        {"all_requests_per_second": -1},
        {"client_requests_burst": 0},
        {"all_requests_burst": 0},
        {"client_count_max": 0},
    ],
)
def test_request_limits_that_would_answer_nobody_are_refused_by_name(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        RequestLimits(**changes)
