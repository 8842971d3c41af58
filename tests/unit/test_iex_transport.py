"""IEX-TP by the letter: what is refused and how it is said, requests and limits, restarts one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feeds import formats as f
from feeds.errors import ConfigError
from feeds.iex import FORMAT
from feeds.iex import incarnation_kernels as kernels
from feeds.iex import transport as t
from feeds.iex.continuity import Continuity, SegmentStream, Step
from feeds.iex.transport_kernels import expect_stream

IDENTITY = t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 0x4CB00000)
GOLDEN = bytes.fromhex(
    "01000480010000000000b04c0c0002000700000000000000030000000000000015cd5b070000000003004142430500444546474a"
)


def segment(sequence: int = 1, offset: int = 0, send_ns: int = 0, *messages: bytes) -> t.Segment:
    return t.Segment(IDENTITY, sequence, offset, send_ns, messages)


def test_a_segment_has_the_bytes_of_the_specification() -> None:
    made = t.encode_segment(segment(3, 7, 123_456_789, b"ABC", b"DEFGJ"))
    assert made == GOLDEN
    assert t.decode_segment(GOLDEN).messages == (b"ABC", b"DEFGJ")


def test_a_heartbeat_is_a_header_that_names_the_next_message() -> None:
    beat = segment(48_326, 1_057_125, 5)
    assert beat.is_heartbeat
    assert len(t.encode_segment(beat)) == t.HEADER_BYTES
    assert t.decode_segment(t.encode_segment(beat)) == beat


@pytest.mark.parametrize(
    "data,text",
    [
        (GOLDEN[:39], "segment at byte 0 must be 40 bytes or more, was 39 bytes"),
        (b"\2" + GOLDEN[1:], "version at byte 0 must be 1, was 2"),
        (GOLDEN[:2] + b"\2" + GOLDEN[3:], "message protocol id at byte 2"),
        (GOLDEN[:-1], "payload length at byte 12 must be at most the 11 bytes"),
        (GOLDEN + b"\0", "payload length at byte 12 must be 13"),
        (GOLDEN[:14] + b"\3" + GOLDEN[15:], "message count at byte 14 must be 2"),
        (
            GOLDEN[:14] + b"\1" + GOLDEN[15:],
            "payload length at byte 12 must be 5, the bytes of its 1 blocks, was 12",
        ),
        (GOLDEN[:45] + b"\6" + GOLDEN[46:], "length of block 1 at byte 45 must be at most the 5 bytes"),
        (GOLDEN[:24] + bytes(8) + GOLDEN[32:], "first message sequence number at byte 24"),
        (GOLDEN[:23] + b"\x80" + GOLDEN[24:], "stream offset at byte 16"),
    ],
)
def test_a_damaged_segment_is_refused_by_name_and_place(data: bytes, text: str) -> None:
    with pytest.raises(t.SegmentError) as caught:
        t.decode_segment(data)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "made",
    [
        segment(0),
        segment(1, -1),
        segment(2**62 + 1),
        t.Segment(IDENTITY, 1, 0, 0, (bytes(40_000), bytes(40_000))),
    ],
)
def test_an_impossible_segment_is_not_encoded(made: t.Segment) -> None:
    with pytest.raises(ConfigError):
        t.encode_segment(made)


def test_cut_segments_carry_all_messages_and_keep_to_the_limit() -> None:
    messages = [bytes([index]) * (index + 1) for index in range(60)]
    cut = list(t.cut_segments(IDENTITY, 11, 500, 9, messages, payload_bytes_max=100))
    assert [message for piece in cut for message in piece.messages] == messages
    position = (11, 500)
    for piece in cut:
        assert (piece.sequence, piece.stream_offset) == position
        assert piece.payload_bytes <= 100
        position = (piece.next_sequence, piece.next_stream_offset)


def test_a_message_longer_than_the_limit_goes_alone() -> None:
    cut = list(t.cut_segments(IDENTITY, 1, 0, 0, [b"a", bytes(200), b"b"], payload_bytes_max=50))
    assert [len(piece.messages) for piece in cut] == [1, 1, 1]


def test_a_request_decodes_to_the_ranges_of_the_exchanges_example() -> None:
    data = bytes.fromhex(
        "01010480010000000000b04c0200000034300000000000003e30000000000000d5dd000000000000dfdd000000000000"
    )
    request = t.decode_request(data)
    assert request == t.GapRequest(IDENTITY, ((12_340, 12_350), (56_789, 56_799)))
    assert t.encode_request(request) == data


def test_a_byte_range_request_and_a_probe_survive_encoding() -> None:
    by_bytes = t.GapRequest(IDENTITY, ((0, 10), (11, 20)), t.RequestType.BYTES)
    assert t.decode_request(t.encode_request(by_bytes)) == by_bytes
    assert t.decode_request(t.probe_request(IDENTITY)).is_test


@pytest.mark.parametrize(
    "ranges",
    [((5, 4),), ((0, 4),), ((1, 4), (4, 8)), ((9, 12), (1, 2)), ((1, 2**62),)],
    ids=["backwards", "before the first", "overlapping", "descending", "beyond all sessions"],
)
def test_ranges_that_the_exchange_would_ignore_are_not_sent(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match="range"):
        t.encode_request(t.GapRequest(IDENTITY, ranges))


@pytest.mark.parametrize(
    "data,text",
    [
        (bytes(15), "16 bytes or more"),
        (b"\2" + t.probe_request(IDENTITY)[1:], "version"),
        (b"\1\3" + t.probe_request(IDENTITY)[2:], "request type"),
        (t.probe_request(IDENTITY) + b"\0", "16 bytes for 0 ranges"),
        (t.probe_request(IDENTITY)[:12] + b"\xff\xff\xff\xff", "range count"),
        (t.probe_request(IDENTITY)[:12] + b"\1\0\0\0" + bytes(16), "ascending"),
    ],
)
def test_a_damaged_request_is_refused_by_name(data: bytes, text: str) -> None:
    with pytest.raises(t.SegmentError, match=text):
        t.decode_request(data)


def test_gap_requests_ask_for_every_message_once_within_the_limit() -> None:
    packets = t.gap_requests(*IDENTITY.words, 7, 2_500)
    ranges = [t.decode_request(packet).ranges for packet in packets]
    assert ranges == [((7, 1_006),), ((1_007, 2_006),), ((2_007, 2_506),)]
    assert {t.decode_request(packet).identity for packet in packets} == {IDENTITY}


def test_a_huge_gap_is_asked_for_in_bounded_pieces_from_its_beginning() -> None:
    packets = t.gap_requests(*IDENTITY.words, 1, 10**15)
    assert len(packets) == t.REQUESTS_AT_ONCE_MAX
    assert t.decode_request(packets[0]).ranges[0][0] == 1


@pytest.mark.parametrize("first,count", [(0, 1), (1, 0), (-1, 5), (2**62, 1)])
def test_a_gap_that_cannot_be_is_not_asked_for(first: int, count: int) -> None:
    with pytest.raises(ConfigError, match="must be for 1 or more messages"):
        t.gap_requests(*IDENTITY.words, first, count)


# ------------------------------------------------------------------------------------------- continuity


def test_continuity_tells_next_ahead_behind_and_restart() -> None:
    follow = Continuity()
    assert follow.on_segment(segment(5, 100, 0, b"xx")) is Step.NEXT  # joined in mid-stream
    assert follow.on_segment(segment(6, 104)) is Step.NEXT
    assert follow.on_segment(segment(8, 112, 0, b"xx")) is Step.AHEAD
    assert follow.on_segment(segment(5, 100, 0, b"xx")) is Step.BEHIND
    assert (follow.next_sequence, follow.next_stream_offset) == (9, 116)
    assert follow.on_segment(segment(1, 0, 0, b"a")) is Step.RESTART
    assert (follow.next_sequence, follow.next_stream_offset, follow.restart_count) == (2, 3, 1)


@pytest.mark.parametrize("offset", [103, 105])
def test_a_stream_offset_that_does_not_fit_its_number_is_an_error(offset: int) -> None:
    follow = Continuity()
    follow.on_segment(segment(5, 100, 0, b"xx"))
    with pytest.raises(t.SegmentError, match="stream offset"):
        follow.on_segment(segment(6, offset, 0, b"y"))


def test_segments_come_out_of_a_tcp_stream_however_it_is_cut() -> None:
    sent = [segment(1, 0, 0, b"abc"), segment(2, 5, 0), segment(2, 5, 0, b"d" * 300, b"")]
    data = b"".join(t.encode_segment(piece) for piece in sent)
    for step in (1, 7, 41, len(data)):
        stream = SegmentStream()
        found = [piece for at in range(0, len(data), step) for piece in stream.feed(data[at : at + step])]
        assert found == sent
        assert stream.held_bytes == 0


# ------------------------------------------------------------------------------ the kernel's incarnations


class Feed:
    """Feeds single segments to the kernel and says which restart it takes them for."""

    def __init__(self) -> None:
        self.state = np.zeros(FORMAT.transport_state_size, dtype=np.int64)

    def __call__(
        self,
        line: int,
        sequence: int,
        offset: int,
        send_ns: int,
        count: int = 1,
        session_id: int = 0,
        stream: tuple[int, int] = (t.PROTOCOL_DEEP_1_0, 1),
    ) -> int | str:
        """Return the restarts counted for a segment of 8-byte messages, or the reason it is bad."""
        identity = t.StreamIdentity(*stream, 0x4CB00000 + (session_id << 16))
        made = t.Segment(identity, sequence, offset, send_ns, (b"message!",) * count)
        data = np.frombuffer(t.encode_segment(made), dtype=np.uint8).copy()
        datagrams = np.array([[0, data.size, line, 0]], dtype=np.int64)
        packets = np.zeros((1, f.PACKET_FIELDS), dtype=np.int64)
        FORMAT.parse_packets_kernel(data, datagrams, 1, self.state, packets)
        if packets[0, f.PACKET_KIND] == f.KIND_BAD:
            return f.BAD_REASON_TEXT[int(packets[0, f.PACKET_COUNT])]
        return int(packets[0, f.PACKET_SESSION]) - identity.session_id


REFUSED = f.BAD_REASON_TEXT[f.BAD_SEQUENCE]
OTHER_STREAM = f.BAD_REASON_TEXT[f.BAD_VERSION]
A, B, RECOVERY = f.LINE_A, f.LINE_B, f.LINE_RECOVERY
pytestmark = pytest.mark.kernels


def at(sequence: int) -> int:
    """Return the stream offset of a message of Feed."""
    return (sequence - 1) * 10


def test_a_stream_that_begins_anew_at_one_is_the_next_incarnation() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100) == 0
    assert feed(A, 2, at(2), 200, 50) == 0
    assert feed(A, 1, 0, 300) == 1
    assert feed(A, 2, at(2), 400) == 1


def test_a_late_copy_of_packet_one_is_not_a_restart() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100) == 0
    assert feed(A, 2, at(2), 200, 50) == 0
    assert feed(A, 1, 0, 100) == 0
    assert feed(A, 52, at(52), 300) == 0


def test_a_heartbeat_at_one_announces_a_restart() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100, 9) == 0
    assert feed(A, 1, 0, 200, 0) == 1
    assert feed(A, 1, 0, 300, 0) == 1
    assert feed(A, 1, 0, 400) == 1


def test_the_second_line_joins_a_restart_instead_of_counting_it_again() -> None:
    feed = Feed()
    for line in (A, B):
        assert feed(line, 1, 0, 100, 50) == 0
    assert feed(A, 1, 0, 200) == 1
    assert feed(B, 51, at(51), 150) == 0  # it is still finishing
    assert feed(B, 1, 0, 199) == 1  # and its clock may be a little behind
    assert feed(B, 2, at(2), 250) == 1
    assert feed.state[kernels.STATE_RESTART_COUNT] == 1


def test_a_line_that_missed_a_restart_catches_up_by_the_send_time() -> None:
    feed = Feed()
    for line in (A, B):
        assert feed(line, 1, 0, 100, 50) == 0
    assert feed(A, 1, 0, 200, 60) == 1
    assert feed(A, 1, 0, 300, 60) == 2
    assert feed(B, 61, at(61), 310) == 2  # ahead of where it stood: by its number alone it would go on
    assert feed(A, 61, at(61), 311) == 2


def test_a_restart_whose_first_packet_was_lost_needs_two_packets_that_agree() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100, 90) == 0
    assert feed(A, 5, at(5), 200) == REFUSED
    assert feed(A, 6, at(6), 300) == 1
    assert feed(A, 4, at(4), 190) == 1  # late, sent after the last packet of the old incarnation
    assert feed(A, 91, at(91), 101) == 0  # late, of the old incarnation


def test_one_damaged_header_does_not_end_a_session() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100, 90) == 0
    assert feed(A, 5, at(5), 200) == REFUSED
    assert feed(A, 91, at(91), 150) == 0
    assert feed(A, 92, at(92), 300, session_id=1) == REFUSED
    assert feed(A, 92, at(92), 160) == 0
    assert feed(A, 93, 7, 170) == REFUSED  # an offset that does not fit
    assert feed(A, 93, at(93), 180) == 0


def test_a_new_session_id_is_believed_at_one_and_when_two_packets_agree() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100, 90) == 0
    assert feed(A, 1, 0, 200, session_id=1) == 0
    assert feed(A, 40, at(40), 300, session_id=2) == REFUSED
    assert feed(A, 41, at(41), 310, session_id=2) == 0
    assert feed(A, 2, at(2), 210, session_id=1) == 0  # late, of the session before
    assert feed(B, 42, at(42), 320, session_id=2) == 0


def test_a_line_whose_packets_were_refused_still_counts_its_own_restart() -> None:
    feed = Feed()
    for line in (A, B):
        assert feed(line, 1, 0, 100, 90) == 0
    assert feed(A, 40, at(40), 300, session_id=1) == REFUSED
    assert feed(B, 1, 0, 299, session_id=1) == 0
    assert feed(A, 1, 0, 400, session_id=1) == 1
    assert feed(B, 1, 0, 401, session_id=1) == 1


def test_gap_fill_answers_belong_to_the_newest_incarnation_or_the_one_they_fit() -> None:
    feed = Feed()
    assert feed(RECOVERY, 5, at(5), 50) == 0
    assert feed(A, 1, 0, 100, 90) == 0
    assert feed(A, 1, 0, 200, 20) == 1
    assert feed(RECOVERY, 5, at(5), 500) == 1
    assert feed(RECOVERY, 80, at(80), 500) == 0  # the new incarnation has not come that far
    assert feed(RECOVERY, 5, at(5), 90) == 0  # sent before it began
    assert feed.state[kernels.STATE_RESTART_COUNT] == 1


def test_an_adapter_that_joins_late_adopts_the_count_of_its_sibling() -> None:
    feed = Feed()
    kernels.adopt_incarnation(feed.state, 0x4CB00000, 3)
    assert feed(RECOVERY, 70, at(70), 90) == 3
    assert feed(A, 80, at(80), 100) == 3
    assert feed(B, 81, at(81), 90) == 3
    assert feed(A, 1, 0, 200) == 4


def test_another_channel_or_protocol_on_the_line_is_not_mixed_in() -> None:
    feed = Feed()
    assert feed(A, 1, 0, 100) == 0
    assert feed(A, 2, at(2), 200) == 0
    for protocol_id, channel_id in ((t.PROTOCOL_TOPS_1_6, 1), (t.PROTOCOL_DEEP_1_0, 2)):
        assert feed(A, 3, at(3), 300, stream=(protocol_id, channel_id)) == OTHER_STREAM
    assert feed(A, 3, at(3), 300) == 0


def test_a_stream_that_is_expected_is_the_only_one_from_the_first_packet_on() -> None:
    feed = Feed()
    expect_stream(feed.state, t.PROTOCOL_DEEP_1_0, 1)
    assert feed(A, 1, 0, 100, stream=(t.PROTOCOL_TOPS_1_6, 1)) == OTHER_STREAM
    assert feed(A, 1, 0, 100) == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"sequence": 900},
        {"offset": 12_345},
        {"session_id": 77},
        {"send_ns": 1 << 60},
        {"send_ns": -5},
        {"stream": (t.PROTOCOL_TOPS_1_6, 1)},
        {"stream": (t.PROTOCOL_DEEP_1_0, 5)},
    ],
)
def test_a_damaged_first_packet_is_forgotten_when_the_second_contradicts_it(damage: dict[str, Any]) -> None:
    feed = Feed()
    feed(**({"line": A, "sequence": 40, "offset": at(40), "send_ns": 100} | damage))
    for sequence in range(41, 45):
        assert feed(A, sequence, at(sequence), sequence * 100) == 0
    assert feed(A, 1, 0, 10_000) == 1  # and the first restart is the first that is counted


def test_a_datagram_cut_short_is_reported_as_such() -> None:
    data = np.frombuffer(GOLDEN, dtype=np.uint8).copy()
    datagrams = np.array([[0, -30, A, 0], [0, 45, A, 0], [0, 39, A, 0]], dtype=np.int64)
    packets = np.zeros((3, f.PACKET_FIELDS), dtype=np.int64)
    state = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    assert FORMAT.parse_packets_kernel(data, datagrams, 3, state, packets) == 3
    assert list(packets[:, f.PACKET_COUNT]) == [f.BAD_TRUNCATED, f.BAD_TRUNCATED, f.BAD_SHORT]
