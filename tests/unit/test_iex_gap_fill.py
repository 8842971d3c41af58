"""The gap fill server keeps the exchange's rules: over UDP it ignores, over TCP it hangs up."""

from __future__ import annotations

import pytest

from feeds.errors import ConfigError, SourceError
from feeds.iex import transport as t
from feeds.iex.continuity import Continuity, SegmentStream, Step
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.history import new_history
from feeds.request_limits import RateLimits

IDENTITY = t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 0x4CB00000)
NOW_NS = 1_700_000_000_000_000_000
MESSAGES = [f"message {number} ".encode() * (1 + number % 5) for number in range(1, 3_001)]


def make_server(limits: RateLimits | None = None) -> GapFillServer:
    server = GapFillServer(IDENTITY, limits=limits)
    for begin in range(0, len(MESSAGES), 70):
        server.append(MESSAGES[begin : begin + 70])
    return server


def ask(*ranges: tuple[int, int], identity: t.StreamIdentity = IDENTITY) -> bytes:
    return t.encode_request(t.GapRequest(identity, ranges))


def offset_of(sequence: int) -> int:
    return sum(2 + len(message) for message in MESSAGES[: sequence - 1])


def test_an_answer_carries_exactly_the_messages_asked_for() -> None:
    answer = make_server().on_datagram(ask((5, 300), (302, 302)), NOW_NS)
    found: dict[int, bytes] = {}
    for packet in answer:
        segment = t.decode_segment(packet)
        assert len(packet) <= t.HEADER_BYTES + t.DATAGRAM_PAYLOAD_BYTES
        assert segment.identity == IDENTITY
        assert segment.send_time_ns == NOW_NS
        assert segment.stream_offset == offset_of(segment.sequence)
        found.update(enumerate(segment.messages, segment.sequence))
    assert found == {number: MESSAGES[number - 1] for number in [*range(5, 301), 302]}


def test_requests_made_by_gap_requests_fill_any_gap() -> None:
    server = make_server()
    packets = t.gap_requests(*IDENTITY.words, 2, 2_700)
    segments = [
        t.decode_segment(answer)
        for second, packet in enumerate(packets)
        for answer in server.on_datagram(packet, second * 1_000_000_000)
    ]
    assert [message for segment in segments for message in segment.messages] == MESSAGES[1:2_701]
    assert server.counters.messages == 2_700
    assert server.counters.ignored == 0


def test_a_probe_is_answered_with_the_next_position_also_before_any_data() -> None:
    empty = GapFillServer(IDENTITY)
    (answer,) = empty.on_datagram(t.probe_request(IDENTITY), NOW_NS)
    assert t.decode_segment(answer) == t.Segment(IDENTITY, 1, 0, NOW_NS)
    (answer,) = make_server().on_datagram(t.probe_request(IDENTITY), NOW_NS)
    assert t.decode_segment(answer) == t.Segment(IDENTITY, 3_001, offset_of(3_001), NOW_NS)


@pytest.mark.parametrize(
    "request_packet,fault",
    [
        (ask((1, 1_001)), "at most 1000 messages"),
        (ask((1, 600), (700, 1_200)), "at most 1000 messages"),
        (ask((1, 2), identity=t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 0x4CAF0000)), "identity"),
        (ask((1, 2), identity=t.StreamIdentity(t.PROTOCOL_TOPS_1_6, 1, 0x4CB00000)), "identity"),
        (t.encode_request(t.GapRequest(IDENTITY, ((0, 9),), t.RequestType.BYTES)), "request type"),
        (ask((1, 2))[:-1], "bytes for 1 ranges"),
        (b"", "16 bytes or more"),
    ],
)
def test_a_udp_request_that_breaks_a_rule_is_ignored_and_counted(request_packet: bytes, fault: str) -> None:
    server = make_server()
    assert server.on_datagram(request_packet, NOW_NS) == []
    assert server.counters.ignored == 1
    assert fault in server.counters.last_fault


def messages_of(datagrams: list[bytes]) -> list[bytes]:
    return [message for datagram in datagrams for message in t.decode_segment(datagram).messages]


def test_every_datagram_of_an_answer_counts_against_its_clients_limit() -> None:
    server = make_server(RateLimits(client_requests_per_second=10, client_requests_burst=12))
    answer = server.on_datagram(ask((1, 1_000)), NOW_NS, "greedy")
    assert len(answer) == 12
    sent = messages_of(answer)
    assert sent == MESSAGES[: len(sent)]
    assert server.on_datagram(ask((1, 1)), NOW_NS, "greedy") == []
    assert len(server.on_datagram(ask((1, 1_000)), NOW_NS, "another")) == 12
    # A tenth of a second later there is one more, and what is missing is asked for from there.
    more = server.on_datagram(ask((len(sent) + 1, 1_000)), NOW_NS + 100_000_000, "greedy")
    assert len(more) == 1
    assert messages_of(more) == MESSAGES[len(sent) : len(sent) + len(messages_of(more))]
    assert (server.counters.client_limited, server.counters.all_limited) == (4, 0)
    assert server.counters.datagrams == 25
    assert server.counters.messages == 2 * len(sent) + len(messages_of(more))


def test_forged_clients_together_get_no_more_than_the_limit_for_all() -> None:
    server = make_server(RateLimits(all_requests_per_second=10, all_requests_burst=30))
    answers = [server.on_datagram(ask((1, 1_000)), NOW_NS, f"forged {index}") for index in range(50)]
    assert sum(len(answer) for answer in answers) == 30
    assert server.counters.all_limited > 0
    assert len(server.on_datagram(ask((1, 1_000)), NOW_NS + 100_000_000, "honest")) == 1


def test_requests_that_break_a_rule_and_probes_use_up_the_limit_too() -> None:
    server = make_server(RateLimits(client_requests_per_second=1, client_requests_burst=2))
    assert server.on_datagram(b"junk", NOW_NS, "c") == []
    assert len(server.on_datagram(t.probe_request(IDENTITY), NOW_NS, "c")) == 1
    assert server.on_datagram(t.probe_request(IDENTITY), NOW_NS, "c") == []
    assert server.counters.client_limited == 1


def test_a_played_capture_answers_within_the_limits_that_it_was_given() -> None:
    history = new_history(RateLimits(client_requests_burst=3), 8 << 20, NOW_NS)
    offset = 0
    for index, message in enumerate(MESSAGES[:1_000]):
        history.keep(t.encode_segment(t.Segment(IDENTITY, index + 1, offset, NOW_NS, (message,))))
        offset += 2 + len(message)
    assert len(history.answer(ask((1, 1_000)), ("127.0.0.1", 1), NOW_NS)) == 3
    assert len(history.answer(ask((1, 1_000)), ("127.0.0.1", 2), NOW_NS)) == 3
    assert history.report()["client_limited"] == 2


def test_what_is_no_longer_or_not_yet_there_is_left_out_of_the_answer() -> None:
    server = GapFillServer(IDENTITY, first_sequence=100, first_stream_offset=5_000)
    server.append([b"one", b"two"])
    segments = [t.decode_segment(packet) for packet in server.on_datagram(ask((90, 500)), 0)]
    assert [(segment.sequence, segment.stream_offset, segment.messages) for segment in segments] == [
        (100, 5_000, (b"one", b"two"))
    ]


def test_stream_offsets_stay_right_when_the_oldest_messages_have_been_let_go() -> None:
    server = GapFillServer(IDENTITY, retain_bytes=2 << 20)
    message_bytes, count = 1_000, 4_000
    for _ in range(count):
        server.append([bytes(message_bytes)])
    (first, *_) = server.on_datagram(ask((count - 1_100, count - 1_000)), 0)
    segment = t.decode_segment(first)
    assert segment.stream_offset == (segment.sequence - 1) * (2 + message_bytes)
    assert server.on_datagram(ask((1, 10)), 0) == []
    oldest = t.decode_segment(server.on_datagram(ask((1_951, 2_950)), 0, "another")[0])
    assert oldest.stream_offset == (oldest.sequence - 1) * (2 + message_bytes)


def test_segments_of_a_line_become_the_session_and_a_restart_begins_it_anew() -> None:
    server = GapFillServer(IDENTITY)
    server.append_segment(t.Segment(IDENTITY, 1, 0, 0, (b"a", b"b")))
    server.append_segment(t.Segment(IDENTITY, 3, 6, 0))
    server.append_segment(t.Segment(IDENTITY, 1, 0, 0, (b"c",)))
    assert server.next_sequence == 2
    (answer,) = server.on_datagram(ask((1, 9)), 0)
    assert t.decode_segment(answer).messages == (b"c",)
    with pytest.raises(SourceError, match="missing"):
        server.append_segment(t.Segment(IDENTITY, 9, 50, 0, (b"x",)))


def test_a_capture_of_another_day_may_begin_anywhere() -> None:
    tomorrow = t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 0x4CB10000)
    server = make_server()
    server.append_segment(t.Segment(tomorrow, 50, 900, 0, (b"late",)))
    assert server.on_datagram(ask((1, 5)), 0) == []
    (answer,) = server.on_datagram(ask((1, 50), identity=tomorrow), 0)
    assert t.decode_segment(answer) == t.Segment(tomorrow, 50, 900, 0, (b"late",))


def test_a_message_that_no_segment_can_carry_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 65533 bytes"):
        GapFillServer(IDENTITY).append([bytes(65_534)])


# ---------------------------------------------------------------------------------------------------- TCP


def drain(server: GapFillServer, *requests: bytes) -> tuple[list[t.Segment], str]:
    """Return the segments that a connection sends until it closes, and why it closed."""
    connection = server.connect(NOW_NS)
    for request in requests:
        for at in range(0, len(request), 5):
            connection.on_bytes(request[at : at + 5])
    stream, segments = SegmentStream(), []
    for _ in range(1_000):
        piece = connection.take(NOW_NS)
        if not piece:
            break
        segments += stream.feed(piece)
    assert stream.held_bytes == 0
    return segments, connection.close_reason


def test_a_tcp_answer_has_no_limit_and_the_server_closes_behind_it() -> None:
    segments, reason = drain(make_server(), ask((1, 2_500)), ask((2_502, 2_600)))
    sent = [message for segment in segments for message in segment.messages]
    assert sent == MESSAGES[:2_500] + MESSAGES[2_501:2_600]
    assert max(segment.payload_bytes for segment in segments) > t.DATAGRAM_PAYLOAD_BYTES
    assert reason == "all ranges were sent"
    follow = Continuity()
    assert {follow.on_segment(segment) for segment in segments} == {Step.NEXT, Step.AHEAD}


def test_a_tcp_range_may_end_beyond_the_newest_message() -> None:
    segments, reason = drain(make_server(), ask((2_990, 10**9)))
    assert [message for segment in segments for message in segment.messages] == MESSAGES[2_989:]
    assert reason == "caught up with the live stream"


@pytest.mark.parametrize(
    "requests,fault",
    [
        ((ask((10, 20)), ask((15, 30))), "range 0 must begin at 21 or later"),
        ((t.probe_request(IDENTITY),), "at least one range"),
        ((ask((1, 2), identity=t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 1)),), "identity"),
        ((t.probe_request(IDENTITY)[:12] + b"\xff\xff\xff\xff",), "at most 16016 bytes"),
        ((b"\2" + ask((1, 2))[1:],), "version"),
    ],
)
def test_a_tcp_request_that_breaks_a_rule_closes_the_connection(
    requests: tuple[bytes, ...], fault: str
) -> None:
    connection = make_server().connect(NOW_NS)
    for request in requests:
        connection.on_bytes(request)
    assert connection.is_closed
    assert fault in connection.close_reason
    assert connection.take(NOW_NS) == b""


def test_a_tcp_client_that_does_not_ask_at_once_is_disconnected() -> None:
    server = make_server()
    idle, busy = server.connect(NOW_NS), server.connect(NOW_NS)
    busy.on_bytes(ask((1, 2)))
    for connection in (idle, busy):
        connection.on_timer(NOW_NS)
        assert not connection.is_closed
        connection.on_timer(NOW_NS + 2_000_000_000)
    assert idle.is_closed
    assert not busy.is_closed
