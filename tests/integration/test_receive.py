"""Real sockets on the loopback interface: from datagrams to frames through the compiled step."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from feeds import formats
from feeds.errors import ConfigError, SourceError
from feeds.formats import DATAGRAM_BYTES, DATAGRAM_FIELDS, DATAGRAM_LINE, DATAGRAM_OFFSET, DATAGRAM_TIME_NS
from feeds.itch50.transport import session_identity
from feeds.itch50.transport_kernels import session_number
from feeds.lines.events import HoleFilled, Line, Lost, SessionRolled
from feeds.lines.gaps import MS, SECOND, GapConfig
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.lines.sockets import Endpoint, dropped_datagrams, open_line_socket, receive_buffer, steady_clock
from feeds.moldudp64 import decode_request, encode_downstream, encode_end_of_session, encode_heartbeat
from feeds.pcap.reader import open_datagrams
from feeds.session_time import midnight_ns
from feeds.wire import FRAMES, FrameArray, Schema

pytestmark = pytest.mark.kernels

ITCH = formats.load("itch50")
SESSION = b"000010059B"
ANYWHERE = Endpoint("127.0.0.1", 0)
POLLS_MAX = 2_000
DELETE = struct.Struct(">cHHHIQ")


def delete_order(number: int) -> bytes:
    return DELETE.pack(b"D", 7, 0, 0, number, 1_000_000 + number)


def packet(first: int, count: int, session: bytes = SESSION) -> bytes:
    return encode_downstream(session, first, [delete_order(seq) for seq in range(first, first + count)])


def line_config(**changes: object) -> LineConfig:
    settings: dict[str, object] = {"start": 1, "batch_packets": 24, "slot_bytes": 2_048, "hold_slots": 64}
    return LineConfig(**{**settings, **changes})  # type: ignore[arg-type]


class Wire:
    """A receiver on loopback ports, with somebody to send to it."""

    def __init__(self, **changes: object) -> None:
        self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.server.bind(("127.0.0.1", 0))
        self.server.settimeout(5)
        settings: dict[str, object] = {
            "line_a": ANYWHERE,
            "line_b": ANYWHERE,
            "servers": (Endpoint(*self.server.getsockname()),),
            "lines": line_config(),
            "session_date": date(2019, 12, 30),
        }
        config = ReceiverConfig(**{**settings, **changes})  # type: ignore[arg-type]
        self.receiver = LineReceiver(ITCH, 5, config)
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.now_ns = SECOND

    def send(self, line: Line, *datagrams: bytes) -> None:
        address = self.receiver.local_address(line)
        for datagram in datagrams:
            self.sender.sendto(datagram, address)

    def poll(self) -> FrameArray:
        return self.receiver.poll(self.now_ns).copy()

    def collect(self, message_count: int) -> FrameArray:
        """Poll until that many frames are there: loopback delivers before sendto returns."""
        found = [self.poll()]
        while sum(frames.size for frames in found) < message_count:
            assert len(found) < POLLS_MAX, f"only {sum(frames.size for frames in found)} frames came"
            self.receiver.wait(self.now_ns, MS)
            found.append(self.poll())
        return np.concatenate(found)

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()
        self.server.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    opened = Wire()
    yield opened
    opened.close()


def assert_consecutive(frames: FrameArray, first: int, count: int) -> None:
    assert frames["source_seq"].tolist() == list(range(first, first + count))
    assert (frames["schema_id"] == Schema.ORDER_DELETE).all()
    orders = frames.view(FRAMES[Schema.ORDER_DELETE])["order_id"]
    assert (orders == 1_000_000 + frames["source_seq"]).all()


def test_two_lines_become_one_stream_of_frames(wire: Wire) -> None:
    wire.send(Line.A, packet(1, 10), packet(21, 10))
    wire.send(Line.B, packet(1, 4), packet(5, 12), packet(17, 10))
    frames = wire.collect(30)
    assert_consecutive(frames, 1, 30)
    assert frames["message_seq"].tolist() == list(range(1, 31))
    assert set(frames["source_stream_id"].tolist()) == {5}
    midnight = midnight_ns(date(2019, 12, 30), "America/New_York")
    assert frames["event_time_ns"][0] == midnight + 1
    assert frames["publish_time_ns"].tolist() == [wire.now_ns] * 30
    first_by_line = [wire.receiver.counts(line).first for line in (Line.A, Line.B)]
    assert sum(first_by_line) == 30
    assert wire.receiver.counts(Line.A).lost == 10


def test_frames_that_do_not_fit_come_with_the_next_polls() -> None:
    wire = Wire(frame_capacity=8)
    try:
        wire.send(Line.A, packet(1, 30), packet(31, 30))
        sizes: list[int] = []
        while sum(sizes) < 60:
            sizes.append(wire.poll().size)
            assert len(sizes) < POLLS_MAX
        assert max(sizes) <= 8
        assert wire.poll().size == 0
        assert not wire.receiver.has_pending
    finally:
        wire.close()


def test_what_both_lines_lost_is_asked_for_and_filled(wire: Wire) -> None:
    wire.send(Line.A, packet(1, 2), packet(6, 2))
    assert wire.collect(2).size == 2
    wire.poll()
    wire.now_ns += 10 * MS
    wire.poll()
    wire.now_ns += 10 * MS
    wire.poll()
    request, client = wire.server.recvfrom(2_048)
    asked = decode_request(request)
    assert (asked.session, asked.sequence, asked.count) == (SESSION, 3, 3)
    wire.server.sendto(packet(3, 3), client)
    assert_consecutive(wire.collect(5), 3, 5)
    wire.now_ns += 10 * MS
    wire.poll()
    filled = [event for event in wire.receiver.take_events() if isinstance(event, HoleFilled)]
    assert [(event.first, event.last, event.by) for event in filled] == [(3, 5, Line.RECOVERY)]


def test_an_answer_from_a_stranger_is_not_received(wire: Wire) -> None:
    wire.send(Line.A, packet(1, 1), packet(3, 1))
    wire.collect(1)
    for _ in range(3):
        wire.now_ns += 10 * MS
        wire.poll()
    _, client = wire.server.recvfrom(2_048)
    wire.sender.sendto(packet(2, 1), client)  # not from the server's address
    assert wire.poll().size == 0
    wire.server.sendto(packet(2, 1), client)
    assert_consecutive(wire.collect(2), 2, 2)
    assert wire.receiver.counts(Line.RECOVERY).packets == 1


def test_a_hole_that_nobody_fills_is_lost_and_delivery_goes_on(wire: Wire) -> None:
    wire.send(Line.A, packet(1, 1), packet(3, 1))
    wire.collect(1)
    found = []
    for _ in range(400):
        wire.now_ns += 5 * MS
        found += wire.poll()["source_seq"].tolist()
    assert found == [3]
    lost = [event for event in wire.receiver.take_events() if isinstance(event, Lost)]
    assert [(event.first, event.last) for event in lost] == [(2, 2)]


def test_a_session_rolls_to_its_own_day() -> None:
    wire = Wire(session_date=None)
    zone = "America/New_York"
    try:
        wire.now_ns = midnight_ns(date(2024, 3, 7), zone) + 4 * 3_600 * SECOND
        wire.poll()  # the process is up long before the session begins
        wire.now_ns = midnight_ns(date(2024, 3, 8), zone) + 4 * 3_600 * SECOND
        wire.send(Line.A, packet(1, 1), encode_end_of_session(SESSION, 2))
        frames = wire.collect(1)
        assert frames["event_time_ns"][0] == midnight_ns(date(2024, 3, 8), zone) + 1
        wire.now_ns = midnight_ns(date(2024, 3, 11), zone) + 4 * 3_600 * SECOND
        wire.send(Line.A, packet(1, 1, b"0000000002"))
        frames = wire.collect(1)
        assert frames["event_time_ns"][0] == midnight_ns(date(2024, 3, 11), zone) + 1
        assert frames["message_seq"][0] == 2
        rolled = [event for event in wire.receiver.take_events() if isinstance(event, SessionRolled)]
        assert len(rolled) == 1
    finally:
        wire.close()


def test_a_session_that_is_resumed_has_the_day_it_now_is() -> None:
    midnight = midnight_ns(date(2024, 3, 8), "America/New_York")
    session = int(session_number(*session_identity(SESSION)))
    wire = Wire(session_date=None, lines=line_config(start=4, start_session=session))
    try:
        wire.now_ns = midnight + 4 * 3_600 * SECOND
        wire.send(Line.A, packet(4, 1))
        frames = wire.collect(1)
        assert wire.receiver.handler.session == session
        assert frames["event_time_ns"].tolist() == [midnight + 4]
    finally:
        wire.close()


# --- what a sibling hands over --------------------------------------------------------------------------


def iex_segment(seq: int, send_ns: int) -> bytes:
    """Return a segment of one trading-status message; all have the same size."""
    message = struct.pack("<cBq", b"S", ord("O"), send_ns)
    block = struct.pack("<H", len(message)) + message
    header = (1, 0, 0x8004, 1, 0x4CB00000, len(block), 1, (seq - 1) * len(block), seq, send_ns)
    return struct.pack("<BBHIIHHqqq", *header) + block


def feed_one(receiver: LineReceiver, datagram: bytes, now_ns: int) -> list[int]:
    """Feed one datagram of line A; return the sessions of the frames it gave."""
    row = np.array([[0, len(datagram), int(Line.A), now_ns]], dtype=np.int64)
    assert receiver.feed(np.frombuffer(datagram, dtype=np.uint8).copy(), row) == 1
    sessions: list[int] = receiver.poll(now_ns)["source_session"].tolist()
    while receiver.has_pending:
        sessions += receiver.poll(now_ns)["source_session"].tolist()
    return sessions


def test_a_late_joiner_that_is_told_of_restarts_names_the_session_as_its_sibling_does() -> None:
    iex = formats.load("iex")
    begin_ns = 1_700_000_000 * SECOND
    sibling = LineReceiver(iex, 1, ReceiverConfig(lines=line_config()))
    for seq, after in ((1, 0), (2, 1), (1, 20), (2, 40)):  # restarts at 1 under the same id
        feed_one(sibling, iex_segment(seq, begin_ns + after * MS), begin_ns + after * MS)
    told = ReceiverConfig(lines=line_config(start=3), transport_state=sibling.transport_state())
    joiners = [LineReceiver(iex, 1, told), LineReceiver(iex, 1, ReceiverConfig(lines=line_config(start=3)))]
    later_ns = begin_ns + 60 * MS
    expected = feed_one(sibling, iex_segment(3, later_ns), later_ns)
    assert expected == [0x4CB00001]
    assert [feed_one(joiner, iex_segment(3, later_ns), later_ns) for joiner in joiners] == [
        expected,
        [0x4CB00000],  # nobody told this one
    ]


@pytest.mark.parametrize(
    "numbers, complaint",
    [((1, 2, 3, 4, 5), "transport_state must have 3 numbers for itch50, had 5"), ((0, 0, 1 << 64), "fit 64")],
)
def test_a_transport_state_that_cannot_be_is_refused(numbers: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LineReceiver(ITCH, 1, ReceiverConfig(transport_state=numbers))


def test_a_datagram_longer_than_its_slot_is_reported_and_asked_for_again() -> None:
    wire = Wire(lines=line_config(slot_bytes=256))
    try:
        wire.send(Line.A, packet(1, 1), packet(2, 20), packet(22, 1))
        assert_consecutive(wire.collect(1), 1, 1)
        counts = wire.receiver.counts(Line.A)
        assert counts.bad_packets == {"datagram cut short": 1}
        assert wire.receiver.source_counts()[0].truncated == 1
        assert wire.receiver.handler.arbiter.holes() == [(2, 21)]
    finally:
        wire.close()


def test_rubbish_on_a_line_is_counted_and_nothing_else(wire: Wire) -> None:
    wire.send(Line.A, b"", b"short", packet(1, 2)[:-1], packet(1, 2) + b"x")
    wire.send(Line.A, packet(1, 2), encode_heartbeat(SESSION, 3))
    assert_consecutive(wire.collect(2), 1, 2)
    assert sum(wire.receiver.counts(Line.A).bad_packets.values()) == 4
    assert wire.receiver.counts(Line.A).heartbeats == 1


def test_neither_line_is_always_read_first(wire: Wire) -> None:
    for seq in range(1, 13):
        wire.send(Line.A, packet(seq, 1))
        wire.send(Line.B, packet(seq, 1))
        wire.collect(1)
    first = [wire.receiver.counts(line).first for line in (Line.A, Line.B)]
    assert sum(first) == 12
    assert min(first) >= 3


def test_a_server_that_is_not_there_is_an_error_count_and_no_stop(wire: Wire) -> None:
    wire.server.close()
    wire.send(Line.A, packet(1, 1), packet(3, 1))
    wire.collect(1)
    for _ in range(100):
        wire.now_ns += 5 * MS
        wire.poll()
    recovery = wire.receiver.source_counts()[2]
    assert recovery.line is Line.RECOVERY
    refused = recovery.errors + wire.receiver.send_errors
    assert refused >= 1
    assert recovery.last_errno in (0, errno.ECONNREFUSED)
    wire.send(Line.B, packet(2, 1))
    assert_consecutive(wire.collect(2), 2, 2)


def test_datagrams_dropped_by_the_system_are_told() -> None:
    wire = Wire(line_b=None, buffer_bytes=4_096)
    try:
        for seq in range(1, 201):
            wire.send(Line.A, packet(seq, 30))
        assert wire.receiver.source_counts()[0].dropped > 0
        taken = -1
        while taken < wire.receiver.source_counts()[0].datagrams:
            taken = wire.receiver.source_counts()[0].datagrams
            wire.poll()
            while wire.receiver.has_pending:
                wire.poll()
        assert taken + wire.receiver.source_counts()[0].dropped == 200
    finally:
        wire.close()


def test_waiting_returns_at_once_when_there_is_something(wire: Wire) -> None:
    wire.poll()
    assert not wire.receiver.wait(wire.now_ns, 0)
    wire.send(Line.B, packet(1, 1))
    assert wire.receiver.wait(wire.now_ns, 60 * SECOND)


def test_a_closed_receiver_still_gives_what_it_has() -> None:
    wire = Wire(frame_capacity=8)
    try:
        wire.send(Line.A, packet(1, 30))
        assert wire.poll().size > 0
        wire.receiver.close()
        rest = 0
        while wire.receiver.has_pending:
            rest += wire.poll().size
        assert rest >= 22
        assert wire.poll().size == 0
    finally:
        wire.close()


# --- sockets ------------------------------------------------------------------------------------------


def test_a_group_is_joined_on_its_interface_and_hears_only_itself() -> None:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    probe.close()
    ours = open_line_socket(Endpoint("239.255.71.1", port, "127.0.0.1"), 65_536)
    twin = open_line_socket(Endpoint("239.255.71.1", port, "lo"), 65_536)
    other = open_line_socket(Endpoint("239.255.71.2", port, "lo"), 65_536)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    try:
        sender.sendto(b"to the first", ("239.255.71.1", port))
        sender.sendto(b"to the second", ("239.255.71.2", port))
        assert ours.recv(100) == b"to the first"
        assert twin.recv(100) == b"to the first"
        assert other.recv(100) == b"to the second"
        with pytest.raises(BlockingIOError):
            ours.recv(100)
    finally:
        for opened in (ours, twin, other, sender):
            opened.close()


def test_an_address_of_our_own_cannot_be_taken_twice() -> None:
    first = open_line_socket(ANYWHERE, 65_536)
    try:
        with pytest.raises(SourceError, match=r"cannot listen on 127\.0\.0\.1"):
            open_line_socket(Endpoint("127.0.0.1", first.getsockname()[1]), 65_536)
    finally:
        first.close()


def test_the_receive_buffer_says_what_it_got() -> None:
    line = open_line_socket(ANYWHERE, 65_536)
    try:
        assert receive_buffer(line) == 65_536
        assert dropped_datagrams(line) == 0
    finally:
        line.close()


@pytest.mark.parametrize(
    "host, port, interface, complaint",
    [
        ("example.org", 1, None, "host must be an IPv4 address"),
        ("127.0.0.1", 70_000, None, "port must be 0 to 65535"),
        ("127.0.0.1", 1, "lo", "interface is for multicast groups"),
    ],
)
def test_endpoints_that_cannot_be_are_refused(
    host: str, port: int, interface: str | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Endpoint(host, port, interface)


def test_an_unknown_interface_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"one of .*\blo\b.*, was 'nosuch0'"):
        open_line_socket(Endpoint("239.255.71.1", 0, "nosuch0"), 65_536)


def test_the_steady_clock_is_near_the_wall_clock_and_never_goes_back() -> None:
    clock = steady_clock()
    before = time.time_ns()
    readings = [clock() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert abs(readings[0] - before) < SECOND


# --- captures through the same path ---------------------------------------------------------------------


def as_datagrams(packets: list[bytes], time_step_ns: int) -> tuple[formats.ByteArray, formats.IntArray]:
    """Return packets as a capture would: one buffer, and rows that point into it."""
    rows = np.zeros((len(packets), DATAGRAM_FIELDS), dtype=np.int64)
    offset = 0
    for index, content in enumerate(packets):
        rows[index, DATAGRAM_OFFSET] = offset
        rows[index, DATAGRAM_BYTES] = len(content)
        rows[index, DATAGRAM_LINE] = Line.A
        rows[index, DATAGRAM_TIME_NS] = SECOND + index * time_step_ns
        offset += len(content)
    return np.frombuffer(b"".join(packets), dtype=np.uint8).copy(), rows


def test_fed_datagrams_take_the_same_path_as_received_ones() -> None:
    config = ReceiverConfig(lines=line_config(), frame_capacity=16, session_date=date(2019, 12, 30))
    receiver = LineReceiver(ITCH, 5, config)
    data, rows = as_datagrams([packet(1 + 5 * index, 5) for index in range(100)], MS)
    frames = np.concatenate([batch.copy() for batch in receiver.frames_of(data, rows)])
    assert_consecutive(frames, 1, 500)


def test_a_capture_that_ends_before_a_hole_closes_gives_what_it_holds() -> None:
    receiver = LineReceiver(ITCH, 5, ReceiverConfig(lines=line_config(), session_date=date(2019, 12, 30)))
    data, rows = as_datagrams([packet(1, 2), packet(5, 2), packet(9, 1)], MS)
    frames = [batch.copy() for batch in receiver.frames_of(data, rows)]
    frames += [batch.copy() for batch in receiver.frames_at_end(int(rows[-1, DATAGRAM_TIME_NS]))]
    assert np.concatenate(frames)["source_seq"].tolist() == [1, 2, 5, 6, 9]
    lost = [event for event in receiver.take_events() if isinstance(event, Lost)]
    assert [(event.first, event.last) for event in lost] == [(3, 4), (7, 8)]


def test_a_datagram_outside_its_buffer_is_refused() -> None:
    receiver = LineReceiver(ITCH, 5)
    data, rows = as_datagrams([packet(1, 2)], MS)
    rows[0, DATAGRAM_BYTES] += 1
    with pytest.raises(ConfigError, match="datagrams must lie within"):
        receiver.feed(data, rows)


def test_a_datagram_of_no_line_is_refused() -> None:
    receiver = LineReceiver(ITCH, 5)
    data, rows = as_datagrams([packet(1, 2)], MS)
    rows[0, DATAGRAM_LINE] = formats.LINE_COUNT
    with pytest.raises(ConfigError, match="a datagram's line must be 0 to 2"):
        receiver.feed(data, rows)


def test_frames_that_waited_for_a_timer_carry_the_time_they_were_published(wire: Wire) -> None:
    wire.send(Line.A, packet(2, 1))
    wire.poll()
    published: list[int] = []
    for _ in range(400):
        wire.now_ns += 5 * MS
        published += wire.poll()["publish_time_ns"].tolist()
    assert len(published) == 1
    assert published[0] > SECOND + GapConfig().give_up_ns


def test_the_iex_capture_gives_all_its_messages_through_the_receive_path(market_data: Path) -> None:
    receiver = LineReceiver(formats.load("iex"), 6)
    found = 0
    last_seq = 0
    with open_datagrams(market_data / "iex" / "deep-2023-10-02.pcap.gz") as capture:
        for batch in capture:
            for frames in receiver.frames_of(batch.arena, batch.datagrams):
                assert frames["source_seq"][0] in (last_seq, last_seq + 1)
                last_seq = int(frames["source_seq"][-1])
                found += int((frames["part"] == 0).sum())
    assert found == 48_325
    assert last_seq == 48_325
    counts = receiver.counts(Line.A)
    assert (counts.packets, counts.heartbeats, counts.lost) == (5_000, 1_264, 0)
    assert receiver.decoder.problem_count == 0


def test_the_iex_capture_over_two_lossy_lines_is_whole_again(market_data: Path) -> None:
    """Each line misses other packets; what neither has is reported and nothing else."""
    receiver = LineReceiver(
        formats.load("iex"), 6, ReceiverConfig(lines=LineConfig(start=1, gaps=GapConfig(), hold_slots=8_192))
    )
    missing: set[int] = set()
    found: list[int] = []
    rng = np.random.default_rng(8841)
    now_ns = 0
    with open_datagrams(market_data / "iex" / "deep-2023-10-02.pcap.gz") as capture:
        for batch in capture:
            rows = np.repeat(batch.datagrams, 2, axis=0)
            rows[1::2, DATAGRAM_LINE] = Line.B
            kept = rng.random(len(rows)) >= 0.05
            for row in batch.datagrams[~kept[::2] & ~kept[1::2]]:
                segment = batch.arena[row[DATAGRAM_OFFSET] : row[DATAGRAM_OFFSET] + 40].tobytes()
                count, _, first = struct.unpack_from("<Hqq", segment, 14)
                missing |= set(range(first, first + count))
            now_ns = int(rows[-1, DATAGRAM_TIME_NS])
            for frames in receiver.frames_of(batch.arena, rows[kept]):
                found += frames["source_seq"][frames["part"] == 0].tolist()
    for frames in receiver.frames_at_end(now_ns):
        found += frames["source_seq"][frames["part"] == 0].tolist()
    lost = [
        seq
        for event in receiver.take_events()
        if isinstance(event, Lost)
        for seq in range(event.first, event.last + 1)
    ]
    assert missing, "the seed must make both lines lose something"
    assert set(lost) == missing
    assert found == sorted(set(range(1, 48_326)) - missing)
