"""IEX-TP: the packet kernel against the plain parser, and incarnations against a simulated publisher."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeds import formats as f
from feeds.iex import FORMAT
from feeds.iex import incarnation_kernels as kernels
from feeds.iex import transport as t

pytestmark = pytest.mark.kernels

IDENTITY = t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, 0x4CB00000)


def parse(packets: list[tuple[int, bytes]], state: f.IntArray | None = None) -> tuple[f.IntArray, f.IntArray]:
    """Return packet rows and transport state for (line, datagram) pairs given in one batch."""
    data = np.frombuffer(b"".join(data for _, data in packets) + b"\xff" * 64, dtype=np.uint8).copy()
    datagrams = np.zeros((len(packets), f.DATAGRAM_FIELDS), dtype=np.int64)
    at = 0
    for row, (line, datagram) in enumerate(packets):
        datagrams[row] = (at, len(datagram), line, 1_000 + row)
        at += len(datagram)
    if state is None:
        state = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    rows = np.full((len(packets), f.PACKET_FIELDS), -1, dtype=np.int64)
    bad = FORMAT.parse_packets_kernel(data, datagrams, len(packets), state, rows)
    assert bad == np.count_nonzero(rows[:, f.PACKET_KIND] == f.KIND_BAD)
    return rows, state


segments = st.builds(
    t.Segment,
    st.builds(
        t.StreamIdentity,
        st.sampled_from(sorted(t.PROTOCOLS)),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    st.integers(1, 2**62 - 6),
    st.integers(0, 2**62 - 300),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.binary(max_size=40), max_size=6).map(tuple),
)


@given(segments)
def test_a_segment_survives_encoding_and_decoding(segment: t.Segment) -> None:
    assert t.decode_segment(t.encode_segment(segment)) == segment


@given(segments)
def test_the_kernel_describes_a_good_segment_as_the_plain_parser_does(segment: t.Segment) -> None:
    rows, _ = parse([(f.LINE_A, t.encode_segment(segment))])
    row = rows[0]
    assert row[f.PACKET_KIND] == (f.KIND_HEARTBEAT if segment.is_heartbeat else f.KIND_DATA)
    assert row[f.PACKET_SEQ] == segment.sequence
    assert row[f.PACKET_COUNT] == len(segment.messages)
    assert row[f.PACKET_OFFSET] == t.HEADER_BYTES
    assert row[f.PACKET_BYTES] == segment.payload_bytes
    assert row[f.PACKET_SESSION] == segment.identity.session_id
    words = (int(row[f.PACKET_IDENTITY_0]), int(row[f.PACKET_IDENTITY_1]))
    assert words == segment.identity.words
    assert t.StreamIdentity.from_words(*words) == segment.identity
    assert row[f.PACKET_TIME_NS] == 1_000


@given(segments, st.data())
def test_the_kernel_refuses_what_the_plain_parser_refuses(segment: t.Segment, data: st.DataObject) -> None:
    packet = bytearray(t.encode_segment(segment))
    for _ in range(data.draw(st.integers(0, 3), label="mutations")):
        at = data.draw(st.integers(0, len(packet) - 1))
        packet[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packet)), label="cut")
    tail = data.draw(st.binary(max_size=3), label="tail")
    mutated = bytes(packet[:cut]) + tail if data.draw(st.booleans()) else bytes(packet)
    try:
        t.decode_segment(mutated)
    except t.SegmentError:
        is_good = False
    else:
        is_good = True
    rows, _ = parse([(f.LINE_A, mutated)])
    assert (rows[0, f.PACKET_KIND] != f.KIND_BAD) == is_good
    if not is_good:
        assert rows[0, f.PACKET_COUNT] in f.BAD_REASON_TEXT


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=90)), max_size=10))
def test_no_datagram_is_lost_or_read_beyond_its_end(packets: list[tuple[int, bytes]]) -> None:
    rows, _ = parse(packets)
    assert (rows[:, f.PACKET_KIND] >= 0).all()
    assert list(rows[:, f.PACKET_LINE]) == [line for line, _ in packets]


@given(st.lists(st.tuples(st.integers(0, 2), segments), max_size=8))
def test_any_numbers_at_all_are_judged_without_overflow(packets: list[tuple[int, t.Segment]]) -> None:
    rows, _ = parse([(line, t.encode_segment(segment)) for line, segment in packets])
    for row, (_, segment) in zip(rows, packets, strict=True):
        if row[f.PACKET_KIND] != f.KIND_BAD:
            restarts = (int(row[f.PACKET_SESSION]) - segment.identity.session_id) % 2**32
            assert restarts <= len(packets)


@dataclass(frozen=True)
class Sent:
    """A segment on a line, and the source_session it truly belongs to."""

    segment: t.Segment
    session: int


class Publisher:
    """Sends the same messages on two lines, cut differently, and restarts under one session id."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 1_000_000_000

    def stream(self, session_id: int, restarts: int) -> tuple[list[Sent], list[Sent]]:
        """Return one incarnation as line A and line B carry it."""
        rng = self.random
        messages = [bytes(rng.randrange(1, 30)) for _ in range(rng.randrange(100, 160))]
        lines: tuple[list[Sent], list[Sent]] = ([], [])
        times = (self.now_ns, self.now_ns + rng.randrange(-500, 500))  # clocks of the two senders differ
        for line, begin_ns in zip(lines, times, strict=True):
            sequence, offset, now_ns = 1, 0, begin_ns
            while sequence <= len(messages):
                count = 0 if rng.random() < 0.1 else rng.randrange(1, 5)
                carried = tuple(messages[sequence - 1 : sequence - 1 + count])
                identity = t.StreamIdentity(t.PROTOCOL_DEEP_1_0, 1, session_id)
                segment = t.Segment(identity, sequence, offset, now_ns, carried)
                line.append(Sent(segment, session_id + restarts))
                sequence, offset = segment.next_sequence, segment.next_stream_offset
                now_ns += rng.randrange(1_000, 50_000)
            self.now_ns = max(self.now_ns, now_ns)
        self.now_ns += rng.randrange(1_000_000, 5_000_000)  # a restart takes its time
        return lines


def impair(sent: list[Sent], lag_ns: int, rng: random.Random) -> list[tuple[int, Sent]]:
    """Return (arrival, packet): at most ten in a row are lost, some come twice or late; the first arrives."""
    arrived: list[tuple[int, Sent]] = []
    lost_in_a_row = 0
    for position, packet in enumerate(sent):
        if position and rng.random() < 0.4 and lost_in_a_row < 10:
            lost_in_a_row += 1
            continue
        lost_in_a_row = 0
        arrival_ns = packet.segment.send_time_ns + lag_ns
        is_late = position and rng.random() < 0.3
        arrived.append((arrival_ns + (rng.randrange(300_000) if is_late else 0), packet))
        if position and rng.random() < 0.1:
            arrived.append((arrival_ns + rng.randrange(300_000), packet))
    return arrived


@settings(max_examples=max(10, settings().max_examples // 4))  # each is several hundred packets
@given(st.integers(0, 2**32 - 1))
def test_every_packet_is_given_the_incarnation_that_sent_it(seed: int) -> None:
    publisher = Publisher(seed)
    rng = publisher.random
    lines: tuple[list[Sent], list[Sent]] = ([], [])
    session_id, restarts, incarnation_count = 0x4CB00000, 0, rng.randrange(2, 7)
    for _ in range(incarnation_count):
        for line, packets in zip(lines, publisher.stream(session_id, restarts), strict=True):
            line.extend(packets)
        if rng.random() < 0.25:
            session_id, restarts = session_id + 0x10000, 0
        else:
            restarts += 1
    lag_ns = rng.randrange(1_500_000)  # line B may be behind by a whole restart
    arrivals = [(when, f.LINE_A, sent) for when, sent in impair(lines[0], 0, rng)]
    arrivals += [(when, f.LINE_B, sent) for when, sent in impair(lines[1], lag_ns, rng)]
    arrivals.sort(key=lambda item: item[0])

    rows, state = parse([(line, t.encode_segment(sent.segment)) for _, line, sent in arrivals])
    refused = 0
    for row, (_, _, sent) in zip(rows, arrivals, strict=True):
        if row[f.PACKET_KIND] == f.KIND_BAD:
            assert row[f.PACKET_COUNT] == f.BAD_SEQUENCE
            refused += 1
        else:
            assert row[f.PACKET_SESSION] == sent.session, sent.segment
    assert refused <= len(arrivals) // 10
    final = lines[0][-1].session
    assert state[kernels.STATE_SESSION_ID] + state[kernels.STATE_RESTARTS] == final
    assert state[kernels.STATE_RESTART_COUNT] == incarnation_count - 1
