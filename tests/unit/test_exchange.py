"""The exchange's programs without sockets: sessions, pace, heartbeats, ends, re-requests, configuration."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.errors import ConfigError, SourceError
from feeds.exchange import command as exchange_command
from feeds.exchange.capture import CaptureProgram
from feeds.exchange.config import NS_PER_S, ExchangeConfig, LineTarget, Play, Rate, SnapshotService
from feeds.exchange.lines import Cut, ExchangeLine, Impairment
from feeds.exchange.programs import SessionProgram, count_common
from feeds.lines.sockets import Endpoint
from feeds.moldudp64 import (
    DownstreamPacket,
    PacketKind,
    RequestPacket,
    decode_downstream,
    encode_downstream,
    encode_request,
    session_bytes,
)
from feeds.order_flow.flow import DIGEST_BYTES, FlowConfig, OrderFlow, write_day_file
from feeds.pcap.writer import PcapWriter

MS = 1_000_000
DAY = FlowConfig(seed=3, message_count=3_000, symbol_count=20)
LINE = LineTarget(Endpoint("127.0.0.1", 26400))
CONFIG = ExchangeConfig(lines=(LINE, LINE), source=DAY, end_ns=NS_PER_S)


class Bench:
    """A program, its lines, and the time."""

    def __init__(self, config: ExchangeConfig) -> None:
        self.lines = [
            ExchangeLine(line.impairment, line.cut, seed) for seed, line in enumerate(config.lines, 1)
        ]
        self.now_ns = 0
        self.program = SessionProgram(config, self.lines, 0)
        self.packets: list[list[DownstreamPacket]] = [[] for _ in self.lines]
        self.times: list[tuple[int, int]] = []  # when, and how many messages had been sent

    def run_until(self, end_ns: int, step_ns: int = MS) -> Bench:
        while self.now_ns <= end_ns and not self.program.is_finished:
            while self.program.offer(self.now_ns):
                self.collect()
            self.collect()
            self.times.append((self.now_ns, self.program.message_count))
            self.now_ns += step_ns
        return self

    def collect(self) -> None:
        is_flushing = self.program.is_flushing(self.now_ns)
        for line, found in zip(self.lines, self.packets, strict=True):
            found += map(decode_downstream, line.take(self.now_ns, is_flushing=is_flushing))

    def kinds(self, kind: PacketKind, line: int = 0) -> list[DownstreamPacket]:
        return [packet for packet in self.packets[line] if packet.kind is kind]

    def blocks(self, line: int = 0, session: str = "TWIN000001") -> bytes:
        """Return what a line carried of a session, put in order, without repetitions."""
        held: dict[int, bytes] = {}
        for packet in self.kinds(PacketKind.DATA, line):
            if packet.session == session_bytes(session):
                held |= dict(enumerate(packet.messages, packet.sequence))
        assert sorted(held) == list(range(1, len(held) + 1))
        return b"".join(len(held[n]).to_bytes(2, "big") + held[n] for n in sorted(held))


def digest(blocks: bytes) -> str:
    return hashlib.blake2b(blocks, digest_size=DIGEST_BYTES).hexdigest()


def test_both_lines_carry_the_whole_session_and_the_report_names_its_digest() -> None:
    bench = Bench(CONFIG).run_until(10 * NS_PER_S)
    (report,) = bench.program.session_reports()
    assert bench.program.is_finished
    assert report.message_count == DAY.message_count
    assert report.digest == digest(bench.blocks(0)) == digest(bench.blocks(1))
    assert report.message_bytes == len(bench.blocks(0))


def test_a_session_that_rolls_over_has_a_new_name_a_new_day_and_starts_at_one() -> None:
    bench = Bench(replace(CONFIG, session_count=2)).run_until(10 * NS_PER_S)
    first, second = bench.program.session_reports()
    assert (first.session, second.session) == ("TWIN000001", "TWIN000002")
    assert first.digest == digest(bench.blocks())
    assert second.digest == digest(bench.blocks(session="TWIN000002")) != first.digest


def test_the_end_of_a_session_is_repeated_and_names_the_next_number() -> None:
    bench = Bench(CONFIG).run_until(10 * NS_PER_S)
    ends = bench.kinds(PacketKind.END_OF_SESSION)
    assert len(ends) >= 9, "ten times a second for a second"
    assert {packet.sequence for packet in ends} == {DAY.message_count + 1}


def test_a_steady_rate_is_kept_at_every_moment() -> None:
    bench = Bench(replace(CONFIG, rate=Rate(2_000))).run_until(NS_PER_S)
    for when_ns, sent in bench.times:
        assert when_ns * 2_000 // NS_PER_S - 4 <= sent <= when_ns * 2_000 // NS_PER_S + 1


def test_bursts_keep_the_mean_and_come_at_the_beginning_of_each_period() -> None:
    rate = Rate(1_000, burst_factor=8, burst_ns=100 * MS, period_ns=NS_PER_S)
    assert rate.due(100 * MS) == 800
    assert rate.due(NS_PER_S) == 1_000
    assert rate.due(2 * NS_PER_S + 50 * MS) == 2_400
    dues = [rate.due(at) for at in range(0, 3 * NS_PER_S, MS)]
    assert dues == sorted(dues)


def test_idle_lines_get_a_heartbeat_with_the_next_number() -> None:
    bench = Bench(replace(CONFIG, rate=Rate(0.25))).run_until(3_500 * MS)
    beats = bench.kinds(PacketKind.HEARTBEAT)
    assert len(beats) == 3
    assert {packet.sequence for packet in beats} == {1}


def test_overtaken_packets_do_not_wait_for_ever_on_an_idle_line() -> None:
    line = LineTarget(LINE.target, Cut(1, 1), Impairment(reordering=1.0))
    bench = Bench(replace(CONFIG, lines=(line,), rate=Rate(0.9))).run_until(3_600 * MS)
    numbers = {packet.sequence for packet in bench.kinds(PacketKind.DATA)}
    assert {1, 2} <= numbers


def test_a_stopped_session_ends_where_it_is_and_still_answers() -> None:
    bench = Bench(replace(CONFIG, rate=Rate(1_000))).run_until(NS_PER_S)
    bench.program.stop(bench.now_ns)
    bench.run_until(5 * NS_PER_S)
    (report,) = bench.program.session_reports()
    assert bench.program.is_finished
    assert 990 <= report.message_count <= 1_010
    assert report.digest == digest(bench.blocks())
    assert bench.kinds(PacketKind.END_OF_SESSION)[0].sequence == report.message_count + 1


def test_a_stop_while_the_end_is_announced_cuts_the_announcement_short() -> None:
    bench = Bench(replace(CONFIG, end_ns=60 * NS_PER_S)).run_until(NS_PER_S)
    assert bench.kinds(PacketKind.END_OF_SESSION)
    assert not bench.program.is_finished
    bench.program.stop(bench.now_ns)
    bench.run_until(bench.now_ns + NS_PER_S)
    assert bench.program.is_finished


def test_a_lost_range_can_be_asked_for_again() -> None:
    bench = Bench(CONFIG).run_until(100 * MS)
    request = encode_request(RequestPacket(session_bytes("TWIN000001"), 100, 20))
    (answer,) = bench.program.answer(request, "client", bench.now_ns)
    held = dict(enumerate(decode_downstream(answer).messages, 100))
    for packet in bench.kinds(PacketKind.DATA):
        for number, message in enumerate(packet.messages, packet.sequence):
            assert held.get(number, message) == message
    assert set(held) == set(range(100, 120))
    assert bench.program.request_report()["answered"] == 1


def test_what_every_line_lost_is_counted_exactly() -> None:
    bad = Impairment(loss=0.3)
    lines = (LineTarget(LINE.target, Cut(1, 9), bad), LineTarget(LINE.target, Cut(1, 5), bad))
    bench = Bench(replace(CONFIG, lines=lines)).run_until(10 * NS_PER_S)
    arrived = {
        number
        for line in (0, 1)
        for packet in bench.kinds(PacketKind.DATA, line)
        for number in range(packet.sequence, packet.next_sequence)
    }
    (report,) = bench.program.session_reports()
    assert report.lost_everywhere == DAY.message_count - len(arrived) > 0


@given(st.lists(st.sets(st.integers(0, 60)), min_size=1, max_size=2))
def test_common_numbers_of_ranges_are_those_of_sets(sets: list[set[int]]) -> None:
    # Each number as a range of its own, and neighbours joined at random places, must not matter.
    ranges = [[(number, number + 1) for number in sorted(numbers)] for numbers in sets]
    joined = [[(group[0], group[-1] + 1) for group in _neighbours(sorted(numbers))] for numbers in sets]
    expected = len(set.intersection(*sets))
    assert count_common(ranges) == count_common(joined) == expected
    assert count_common([ranges[0], joined[-1]]) == expected


def _neighbours(numbers: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for number in numbers:
        if groups and groups[-1][-1] == number - 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def test_a_request_beyond_the_session_is_ignored_and_counted() -> None:
    bench = Bench(CONFIG).run_until(100 * MS)
    request = encode_request(RequestPacket(session_bytes("TWIN000001"), 1 << 40, 20))
    assert bench.program.answer(request, "client", bench.now_ns) == []
    assert bench.program.request_report()["out_of_range"] == 1


def test_a_line_without_room_delays_messages_but_loses_none() -> None:
    """The queue of a slow line fills up; the exchange waits for it instead of dropping."""
    slow = LineTarget(LINE.target, Cut(1, 1), Impairment(delay_ns=200 * MS))
    config = replace(CONFIG, lines=(slow, LINE), source=FlowConfig(3, 9_000, 20), end_ns=3 * NS_PER_S)
    bench = Bench(config).run_until(20 * NS_PER_S)
    (report,) = bench.program.session_reports()
    assert report.digest == digest(bench.blocks(0)) == digest(bench.blocks(1))


def test_a_played_day_file_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    expected = write_day_file(path, 3_000, seed=4)
    bench = Bench(replace(CONFIG, source=Play(path, speed=None))).run_until(10 * NS_PER_S)
    (report,) = bench.program.session_reports()
    assert report.digest == expected == digest(bench.blocks())
    assert bench.program.warnings() == []


def test_a_played_day_file_keeps_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    flow = OrderFlow(DAY)
    flow.set_clock(9 * 3_600 * NS_PER_S, 10 * MS)
    path.write_bytes(flow.next_block(2_000).data.tobytes())
    config = replace(CONFIG, source=Play(path, speed=2.0))
    bench = Bench(config).run_until(4 * NS_PER_S)
    for when_ns, sent in bench.times:  # 200 messages per second at twice the speed
        assert abs(sent - (1 + when_ns * 200 // NS_PER_S)) <= 1


def test_a_day_file_that_is_cut_short_is_played_to_the_cut_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    path.write_bytes(OrderFlow(DAY).next_block(100).data.tobytes()[:-3])
    bench = Bench(replace(CONFIG, source=Play(path, speed=None))).run_until(10 * NS_PER_S)
    assert bench.program.session_reports()[0].message_count == 99
    (warning,) = bench.program.warnings()
    assert "day.itch" in warning


def test_a_file_with_nothing_to_play_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.itch"
    path.write_bytes(b"\0\0 and then something")
    with pytest.raises(SourceError, match="no message in it can be played"):
        Bench(replace(CONFIG, source=Play(path, speed=None)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: replace(CONFIG, lines=()), "one or two lines, was given 0"),
        (lambda: replace(CONFIG, session_prefix="TOOLONG"), "session must be at most 10"),
        (lambda: replace(CONFIG, rerequest_loss=2.0), "rerequest_loss must be a probability"),
        (lambda: replace(CONFIG, heartbeat_ns=1), "heartbeat_ns must be in 1 ms to 60 s, was 1"),
        (lambda: Rate(0.0), "per_second must be more than 0"),
        (lambda: Rate(10, burst_factor=11), "burst_factor must be in 1 to 10"),
        (lambda: Play(Path("x"), speed=0.0), "speed must be more than 0"),
        (
            lambda: replace(CONFIG, source=Play(Path("x")), rate=Rate(5)),
            "its speed or by a rate, not by both",
        ),
        (lambda: replace(CONFIG, source=Play(Path("x"), None, "iex")), "only captures are played"),
        (
            lambda: replace(CONFIG, source=Play(Path("x")), snapshot=SnapshotService(LINE.target, "u", "p")),
            "a played file has none",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_with_the_reason(change: object, said: str) -> None:
    assert callable(change)
    with pytest.raises(ConfigError, match=said):
        change()


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(SnapshotService(LINE.target, "user", "hunter2"))


def parse(*words: str) -> ExchangeConfig:
    parser = argparse.ArgumentParser()
    exchange_command.configure(parser)
    return exchange_command.build_config(parser.parse_args(words))


def test_the_command_without_options_runs_without_end_on_two_perfect_lines() -> None:
    config = parse()
    assert [str(line.target) for line in config.lines] == ["127.0.0.1:26400", "127.0.0.1:26401"]
    assert {line.impairment for line in config.lines} == {Impairment()}
    assert config.lines[0].cut != config.lines[1].cut
    assert config.rate.per_second == 50_000
    assert config.session_count > 100_000


def test_an_option_for_one_line_beats_the_option_for_both() -> None:
    first, second = parse("--loss", "0.1", "--loss-b", "0.2", "--cut-a", "3", "--delay", "1.5").lines
    assert (first.impairment.loss, second.impairment.loss) == (0.1, 0.2)
    assert (first.cut.messages_min, first.cut.messages_max) == (3, 3)
    assert first.impairment.delay_ns == second.impairment.delay_ns == 1_500_000


def test_seconds_at_a_rate_make_a_whole_day_of_that_length() -> None:
    config = parse("--seconds", "4", "--rate", "100000")
    assert isinstance(config.source, FlowConfig)
    assert config.source.message_count == 400_000
    assert config.seconds_max is None
    assert parse("--seconds", "4", "--rate", "max").seconds_max == 4


def test_playing_a_file_follows_its_speed_or_a_rate() -> None:
    slow = parse("--play", "day.itch", "--speed", "10")
    fast = parse("--play", "day.itch", "--rate", "1000")
    assert slow.source == Play(Path("day.itch"), 10.0)
    assert fast.source == Play(Path("day.itch"), None)
    assert slow.snapshot is None
    assert parse("--play", "x.pcap.gz", "--format", "iex", "--speed", "max").rate.per_second is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "fast"), "--rate must be a number or 'max', was 'fast'"),
        (("--cut", "a-b"), "--cut must be two numbers such as 1-40"),
        (("--line-a", "nowhere"), "an address must be IPv4"),
        (("--messages", "10"), "message_count must be"),
    ],
)
def test_the_command_refuses_nonsense_by_name(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(*words)


GROUP = ("239.1.1.1", 26400)


def write_capture(path: Path, packets: list[bytes], gap_ns: int = 10 * MS) -> None:
    with PcapWriter(path) as capture:
        for index, packet in enumerate(packets):
            capture.write(packet, NS_PER_S + index * gap_ns, source=("10.0.0.1", 9), destination=GROUP)


def mold_packets(numbers: range, session: str = "REAL000001") -> list[bytes]:
    return [encode_downstream(session_bytes(session), number, [b"message %d" % number]) for number in numbers]


class CaptureBench:
    def __init__(self, path: Path, speed: float | None) -> None:
        config = replace(CONFIG, lines=(LINE,), source=Play(path, speed), end_ns=100 * MS)
        self.line = ExchangeLine(Impairment(), Cut(), 1)
        self.program = CaptureProgram(config, [self.line], 0)

    def run_until(self, begin_ns: int, end_ns: int) -> list[bytes]:
        found: list[bytes] = []
        for now_ns in range(begin_ns, end_ns, MS):
            while self.program.offer(now_ns):
                found += self.line.take(now_ns)
            found += self.line.take(now_ns, is_flushing=self.program.is_flushing(now_ns))
        return found


def test_a_capture_is_sent_packet_by_packet_as_it_is(tmp_path: Path) -> None:
    packets = [*mold_packets(range(1, 600)), b"no packet of this protocol"]
    write_capture(tmp_path / "a.pcap", packets)
    bench = CaptureBench(tmp_path / "a.pcap", None)
    assert bench.run_until(0, 300 * MS) == packets
    assert bench.program.is_finished
    assert bench.program.message_count == 599
    (warning,) = bench.program.warnings()
    assert "1 packets are not of Nasdaq TotalView-ITCH 5.0" in warning


def test_a_capture_keeps_its_spacing_times_its_speed(tmp_path: Path) -> None:
    write_capture(tmp_path / "a.pcap", mold_packets(range(1, 41)))
    bench = CaptureBench(tmp_path / "a.pcap", 2.0)
    assert len(bench.run_until(0, 50 * MS)) == 10  # every 5 ms, the first at once
    assert len(bench.run_until(50 * MS, 100 * MS)) == 10
    bench.program.close()


def test_a_played_capture_answers_for_what_it_sent(tmp_path: Path) -> None:
    write_capture(tmp_path / "a.pcap", [*mold_packets(range(50, 60)), *mold_packets(range(70, 80))])
    bench = CaptureBench(tmp_path / "a.pcap", None)
    bench.run_until(0, 20 * MS)

    def ask(first: int, count: int) -> list[bytes]:
        request = encode_request(RequestPacket(session_bytes("REAL000001"), first, count))
        return bench.program.answer(request, "client", 0)

    (answer,) = ask(72, 3)
    assert decode_downstream(answer).messages == (b"message 72", b"message 73", b"message 74")
    assert ask(65, 1) == [], "the capture does not have it"
    assert bench.program.warnings() == ["the capture itself has 1 holes"]


def test_a_capture_that_is_cut_is_played_to_the_cut_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    write_capture(path, mold_packets(range(1, 11)))
    path.write_bytes(path.read_bytes()[:-5])
    bench = CaptureBench(path, None)
    assert len(bench.run_until(0, 20 * MS)) == 9
    (warning,) = bench.program.warnings()
    assert warning.startswith("a.pcap: cut at byte")


def test_stopping_a_capture_ends_it_where_it_is(tmp_path: Path) -> None:
    write_capture(tmp_path / "a.pcap", mold_packets(range(1, 1_001)))
    bench = CaptureBench(tmp_path / "a.pcap", 1.0)
    sent = bench.run_until(0, 100 * MS)
    bench.program.stop(100 * MS)
    assert bench.run_until(100 * MS, 300 * MS) == []
    assert bench.program.is_finished
    assert len(sent) == 10
