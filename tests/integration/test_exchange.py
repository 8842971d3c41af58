"""The exchange on real sockets with real receivers at the other end: nothing missing, nothing twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from feeds import iex, itch50
from feeds.errors import FeedError
from feeds.exchange.config import NS_PER_S, ExchangeConfig, LineTarget, Play, Rate, SnapshotService
from feeds.exchange.exchange import Exchange, Summary
from feeds.exchange.lines import Cut, Impairment
from feeds.formats import STATE_MIDNIGHT_NS, ExchangeFormat
from feeds.itch50.encode import encode_frames
from feeds.lines.events import Line, Lost
from feeds.lines.gaps import GapConfig
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.lines.sockets import Endpoint, steady_clock
from feeds.order_flow.flow import DIGEST_BYTES, FlowConfig
from feeds.snapshot_service import fetch_snapshot
from feeds.soupbintcp.client_shell import LoginRefused
from feeds.wire import FrameArray

LOCAL = Endpoint("127.0.0.1", 0)
BAD = Impairment(loss=0.05, duplication=0.02, reordering=0.05, burst_loss=0.002)
DAY = FlowConfig(seed=11, message_count=30_000, symbol_count=200)
DEADLINE_NS = 40 * NS_PER_S


def open_receiver(exchange_format: ExchangeFormat = itch50.FORMAT) -> LineReceiver:
    return LineReceiver(
        exchange_format, 1, ReceiverConfig(line_a=LOCAL, line_b=LOCAL, lines=LineConfig(start=1))
    )


def targets(receiver: LineReceiver, impairment: Impairment = BAD) -> tuple[LineTarget, LineTarget]:
    return (
        LineTarget(Endpoint(*receiver.local_address(Line.A)), Cut(1, 40), impairment),
        LineTarget(Endpoint(*receiver.local_address(Line.B)), Cut(1, 9), impairment),
    )


class Pair:
    """An exchange in a thread and a receiver in this one; the receiver knows the re-request server."""

    def __init__(
        self,
        make_config: Callable[[tuple[LineTarget, LineTarget]], ExchangeConfig],
        exchange_format: ExchangeFormat = itch50.FORMAT,
        give_up_ns: int = 20 * NS_PER_S,  # a machine that stalls must not look like a lost message
    ) -> None:
        # The line ports must be known to the exchange, and the server's port to the receiver: a first
        # receiver finds free ports, and the second one takes them over.
        with open_receiver(exchange_format) as finder:
            places = targets(finder)
        self.exchange = Exchange(make_config(places))
        servers = tuple(
            Endpoint(host, int(port))
            for name, address in self.exchange.addresses.items()
            if name == "rerequest"
            for host, port in (address.split(":"),)
        )
        self.receiver = LineReceiver(
            exchange_format,
            1,
            ReceiverConfig(
                line_a=places[0].target,
                line_b=places[1].target,
                servers=servers,
                lines=LineConfig(
                    start=1 if exchange_format is itch50.FORMAT else "first-seen",
                    gaps=GapConfig(give_up_ns=give_up_ns),
                ),
            ),
        )
        self.summary: Summary | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.summary = self.exchange.run()

    def frames(self, is_done: Callable[[], bool]) -> Iterator[FrameArray]:
        """Yield frames until `is_done`; a run that takes too long fails."""
        clock = steady_clock()
        end_ns = clock() + DEADLINE_NS
        self._thread.start()
        is_quiet = False
        while self.receiver.has_pending or not is_quiet or not is_done():
            now_ns = clock()
            if now_ns > end_ns:
                pytest.fail(
                    f"not done after {DEADLINE_NS // NS_PER_S} s: next is {self.receiver.handler.expected}"
                )
            frames = self.receiver.poll(now_ns)
            is_quiet = frames.size == 0
            if is_quiet:
                self.receiver.wait(now_ns, 1_000_000)
            else:
                yield frames

    def finish(self) -> Summary:
        self.exchange.stop()
        self._thread.join(20)
        assert self.summary is not None
        return self.summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exchange.stop()
        if self._thread.ident is not None:
            self._thread.join(20)
        self.receiver.close()
        self.exchange.close()


def test_two_bad_lines_and_re_requests_make_one_perfect_session() -> None:
    with Pair(
        lambda lines: ExchangeConfig(
            lines=lines,
            source=DAY,
            rate=Rate(60_000),
            rerequest=LOCAL,
            rerequest_loss=0.2,
            end_ns=30 * NS_PER_S,
            seed=5,
        )
    ) as pair:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        decoder = pair.receiver.decoder
        for frames in pair.frames(lambda: pair.receiver.handler.is_ended):
            digest.update(encode_frames(frames, decoder.directory, int(decoder.state[STATE_MIDNIGHT_NS])))
        summary = pair.finish()
        assert pair.receiver.handler.lost_count == 0
        assert pair.receiver.handler.delivered_count == DAY.message_count
        assert digest.hexdigest() == summary.sessions[0].digest
        assert min(counts.dropped_packets for counts in summary.lines.values()) > 0
        assert summary.requests["answered"] > 0
        assert summary.requests_ignored > 0


def test_without_re_requests_exactly_what_both_lines_lost_is_reported() -> None:
    with Pair(
        lambda lines: ExchangeConfig(
            lines=lines, source=DAY, rate=Rate(60_000), end_ns=30 * NS_PER_S, seed=6
        ),
        give_up_ns=NS_PER_S,
    ) as pair:
        delivered: set[int] = set()
        for frames in pair.frames(lambda: pair.receiver.handler.is_ended):
            delivered.update(frames["source_seq"].tolist())
        lost: set[int] = set()
        for event in pair.receiver.take_events():
            if isinstance(event, Lost):
                lost.update(range(event.first, event.last + 1))
        summary = pair.finish()
        assert lost
        assert not lost & delivered
        assert lost | delivered == set(range(1, summary.message_count + 1))
        assert len(lost) == summary.sessions[0].lost_everywhere


def test_a_second_session_follows_on_the_same_lines() -> None:
    with Pair(
        lambda lines: ExchangeConfig(
            lines=lines,
            source=FlowConfig(1, 4_000, 20),
            rate=Rate(20_000),
            session_count=2,
            rerequest=LOCAL,
            end_ns=NS_PER_S // 2,
        )
    ) as pair:
        sessions: dict[int, int] = {}

        def is_done() -> bool:
            return len(sessions) == 2 and pair.receiver.handler.is_ended

        for frames in pair.frames(is_done):
            parts = frames[frames["part"] == 0]
            for session in set(parts["source_session"].tolist()):
                count = int((parts["source_session"] == session).sum())
                sessions[session] = sessions.get(session, 0) + count
        summary = pair.finish()
        assert list(sessions.values()) == [4_000, 4_000]
        assert [report.session for report in summary.sessions] == ["TWIN000001", "TWIN000002"]


def test_an_iex_capture_is_played_with_its_gap_fill_server(market_data: Path) -> None:
    with Pair(
        lambda lines: ExchangeConfig(
            lines=lines,
            source=Play(market_data / "iex" / "deep-2023-10-02.pcap.gz", None, "iex"),
            rerequest=LOCAL,
            end_ns=30 * NS_PER_S,
            seed=3,
        ),
        iex.FORMAT,
    ) as pair:
        handler = pair.receiver.handler
        first_seen: list[int] = []
        count = 0
        for frames in pair.frames(lambda: pair.exchange.is_ending and handler.is_complete):
            first_seen.append(int(frames["source_seq"][0]))
            count += int((frames["part"] == 0).sum())
        summary = pair.finish()
        assert summary.message_count == 48_325
        assert handler.lost_count == 0
        # The lines may have lost the very first and the very last packets, which nothing tells of.
        assert 48_000 < count == handler.delivered_count
        assert first_seen == sorted(first_seen)


def test_multicast_lines_reach_whoever_joined() -> None:
    with open_receiver() as finder:
        port = finder.local_address(Line.A)[1]
    groups = [Endpoint(f"239.255.77.{number}", port, "lo") for number in (1, 2)]
    config = ExchangeConfig(
        lines=tuple(LineTarget(group) for group in groups),
        source=FlowConfig(1, 4_000, 20),
        rate=Rate(20_000),
        end_ns=NS_PER_S,
    )
    receiving = ReceiverConfig(line_a=groups[0], line_b=groups[1], lines=LineConfig(start=1))
    with LineReceiver(itch50.FORMAT, 1, receiving) as receiver:
        clock = steady_clock()
        end_ns = clock() + DEADLINE_NS
        with running(Exchange(config)):
            while not receiver.handler.is_ended and clock() < end_ns:
                receiver.poll(clock())
                receiver.wait(clock(), 1_000_000)
        assert receiver.handler.delivered_count == 4_000
        assert min(receiver.counts(line).messages for line in (Line.A, Line.B)) == 4_000


@contextmanager
def running(exchange: Exchange) -> Iterator[None]:
    thread = threading.Thread(target=exchange.run)
    thread.start()
    try:
        yield
    finally:
        exchange.stop()
        thread.join(20)
        exchange.close()
    assert not thread.is_alive()


def test_a_snapshot_and_the_lines_behind_it_fit_together() -> None:
    with open_receiver() as receiver:
        lines = targets(receiver, Impairment())
        config = ExchangeConfig(
            lines=lines,
            source=DAY,
            rate=Rate(20_000),
            snapshot=SnapshotService(LOCAL, "reader", "secret"),
            end_ns=0,
        )
        exchange = Exchange(config)
        host, port = exchange.addresses["snapshot"].split(":")
        with running(exchange):
            clock = steady_clock()
            end_ns = clock() + DEADLINE_NS
            while receiver.handler.delivered_count < 8_000:
                assert clock() < end_ns
                receiver.poll(clock())
                receiver.wait(clock(), 1_000_000)
            snapshot = asyncio.run(fetch_snapshot(host, int(port), "reader", "secret"))
            with pytest.raises(LoginRefused):
                asyncio.run(fetch_snapshot(host, int(port), "reader", "wrong"))
    types = [message[:1] for block in snapshot.blocks for message in block]
    assert snapshot.session == "TWIN000001"
    assert 8_000 <= snapshot.next_sequence <= DAY.message_count + 1
    assert types.count(b"R") == DAY.symbol_count
    assert types.count(b"A") + types.count(b"F") > 0


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with open_receiver() as receiver:
        config = ExchangeConfig(lines=targets(receiver), source=DAY, rerequest=LOCAL)
        with Exchange(config) as first:
            host, port = first.addresses["rerequest"].split(":")
            taken = Endpoint(host, int(port))
            with pytest.raises(FeedError, match=f"re-requests on {taken}: Address already in use"):
                Exchange(ExchangeConfig(lines=targets(receiver), source=DAY, rerequest=taken))


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "twintape", "exchange", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_session_with_its_summary(number: signal.Signals) -> None:
    with open_receiver() as receiver:
        line_a, line_b = (str(line.target) for line in targets(receiver))
        words = ["--json", "--line-a", line_a, "--line-b", line_b, "--rerequest", "127.0.0.1:0"]
        with command(
            *words, "--snapshot", "127.0.0.1:0", "--rate", "20000", "--end-seconds", "0.2"
        ) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["event"] == "ready"
            assert not ready["addresses"]["rerequest"].endswith(":0")
            assert json.loads(process.stdout.readline())["event"] == "progress"
            process.send_signal(number)
            output, errors = process.communicate(timeout=20)
            summary = json.loads(output.splitlines()[-1])
    assert (process.returncode, errors) == (0, "")
    assert summary["event"] == "summary"
    assert summary["message_count"] == summary["sessions"][0]["message_count"] > 0


def test_the_command_says_in_words_what_it_did() -> None:
    with open_receiver() as receiver:
        line_a, _ = (str(line.target) for line in targets(receiver))
        words = ["--line-a", line_a, "--line-b", "none", "--rerequest", "none", "--snapshot", "none"]
        with command(*words, "--rate", "max", "--messages", "5000", "--end-seconds", "0") as process:
            output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith(f"ready: line a {line_a}\n")
    assert "session TWIN000001: 5,000 messages, digest " in output
