"""The simulated exchange, live: lines of UDP packets, a re-request server, a snapshot service, one clock.

    config = ExchangeConfig(lines=(LineTarget(Endpoint("127.0.0.1", 26400)),), rate=Rate(50_000))
    with Exchange(config) as exchange:
        summary = exchange.run()

One thread sends and answers re-requests, in turns of at most a few thousand messages; snapshots are given by
another. What was sent, and what each line did to it, is in the summary: the truth for whoever received it.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from feeds.errors import FeedError
from feeds.exchange.capture import CaptureProgram
from feeds.exchange.config import NS_PER_S, ExchangeConfig, Play
from feeds.exchange.lines import ExchangeLine, ExchangeLineCounts, ExchangeLineSocket, warm_up_line
from feeds.exchange.programs import Program, SessionProgram, SessionReport
from feeds.exchange.snapshots import SnapshotThread
from feeds.lines.sockets import Endpoint
from feeds.order_flow.flow import Snapshot, Top

LINE_NAMES = ("a", "b")
TOP_SYMBOLS = 12  # busiest symbols whose best prices the summary names
_CAPTURE_SLOT_BYTES = 9_216  # captures may have jumbo frames
_REQUESTS_PER_TURN = 64
_REQUEST_BYTES_MAX = 65_535
_WAIT_MS_MAX = 20

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running exchange is."""

    seconds: float
    message_count: int
    messages_per_second: float  # since the progress before
    lines: dict[str, ExchangeLineCounts]


@dataclass(frozen=True, slots=True)
class Summary:
    """What an exchange did from beginning to end."""

    seconds: float
    message_count: int
    sessions: list[SessionReport]
    lines: dict[str, ExchangeLineCounts]
    requests: dict[str, Any]
    requests_ignored: int  # on purpose, see rerequest_loss
    snapshots_given: int
    tops: dict[str, Top] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the summary in plain types."""
        figures = asdict(self)
        figures["tops"] = {symbol: top._asdict() for symbol, top in self.tops.items()}
        return figures


class Exchange:
    """One run of the exchange. Opened when made; `run` sends everything and returns the summary."""

    def __init__(self, config: ExchangeConfig, clock: Clock = time.monotonic_ns) -> None:
        self.config = config
        self._clock = clock
        self._stop = threading.Event()
        self._lock = threading.Lock()  # held while the market moves, so that a snapshot is of one moment
        self._chance = random.Random(config.seed)
        self._requests_ignored = 0
        self._sockets: list[ExchangeLineSocket] = []
        self._requests: socket.socket | None = None
        self._snapshots: SnapshotThread | None = None
        self._poll = select.poll()
        warm_up_line()
        is_capture = isinstance(config.source, Play) and config.source.is_capture
        self._lines = [
            ExchangeLine(
                line.impairment,
                line.cut,
                config.seed * len(LINE_NAMES) + number,
                slot_bytes=_CAPTURE_SLOT_BYTES if is_capture else None,
            )
            for number, line in enumerate(config.lines)
        ]
        kind = CaptureProgram if is_capture else SessionProgram
        self._program: Program = kind(config, self._lines, clock())
        try:
            self._open_sockets()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all sockets and files, whatever state they are in."""
        self._program.close()
        for line in self._sockets:
            line.close()
        if self._requests is not None:
            self._requests.close()
        if self._snapshots is not None:
            snapshots, self._snapshots = self._snapshots, None
            snapshots.close()

    @property
    def addresses(self) -> dict[str, str]:
        """Where everything is, with the ports that were found free."""
        found = {f"line_{LINE_NAMES[number]}": str(line.target) for number, line in enumerate(self._sockets)}
        if self._requests is not None:
            found["rerequest"] = str(Endpoint(*self._requests.getsockname()))
        if self._snapshots is not None:
            found["snapshot"] = str(self._snapshots.address)
        return found

    @property
    def is_ending(self) -> bool:
        """Whether every message was sent, and only announcements of the end and answers still are."""
        return self._program.is_ending and not any(line.waiting_count for line in self._lines)

    def stop(self) -> None:
        """Ask a running exchange to end the session and return. May be called from a signal handler."""
        self._stop.set()

    def run(
        self, on_progress: Callable[[Progress], None] | None = None, progress_ns: int = NS_PER_S
    ) -> Summary:
        """Send until everything is sent, the time is up, or `stop` was called; return what happened."""
        began_ns = self._clock()
        self._program.start_clock(began_ns)
        seconds_max = self.config.seconds_max
        stop_ns = None if seconds_max is None else began_ns + int(seconds_max * NS_PER_S)
        told_ns, told_count = began_ns, 0
        while not self._program.is_finished:
            now_ns = self._clock()
            if self._stop.is_set() or (stop_ns is not None and now_ns >= stop_ns):
                self._program.stop(now_ns)
            if not self.turn(now_ns):
                self._wait(now_ns)
            if on_progress is not None and now_ns - told_ns >= progress_ns:
                count = self._program.message_count
                rate = (count - told_count) * NS_PER_S / (now_ns - told_ns)
                on_progress(Progress((now_ns - began_ns) / NS_PER_S, count, rate, self._line_counts()))
                told_ns, told_count = now_ns, count
        return self._summary((self._clock() - began_ns) / NS_PER_S)

    def turn(self, now_ns: int) -> bool:
        """Offer, send and answer what is due now; return whether there was anything to do."""
        with self._lock:
            is_busy = self._program.offer(now_ns)
        is_flushing = self._program.is_flushing(now_ns)
        for line in self._sockets:
            is_busy = line.send(now_ns, is_flushing=is_flushing) > 0 or is_busy
        return self._answer_requests(now_ns) > 0 or is_busy

    def _open_sockets(self) -> None:
        for line, settings in zip(self._lines, self.config.lines, strict=True):
            self._sockets.append(ExchangeLineSocket(line, settings.target))
        if self.config.rerequest is not None:
            self._requests = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._requests.setblocking(False)
            try:
                self._requests.bind((self.config.rerequest.host, self.config.rerequest.port))
            except OSError as error:
                raise FeedError(f"re-requests on {self.config.rerequest}: {error.strerror}") from error
            self._poll.register(self._requests, select.POLLIN)
        if self.config.snapshot is not None:
            self._snapshots = SnapshotThread(self.config.snapshot, self._take_snapshot)

    def _take_snapshot(self) -> tuple[str, Snapshot]:
        """Return the market between two messages. Called from the snapshot service's thread."""
        assert isinstance(self._program, SessionProgram)
        with self._lock:
            flow = self._program.flow
            assert flow is not None
            return self._program.session, flow.snapshot()

    def _answer_requests(self, now_ns: int) -> int:
        """Answer what has been asked, within a bound, so that a flood of requests does not stop the lines."""
        if self._requests is None:
            return 0
        for count in range(_REQUESTS_PER_TURN):
            try:
                request, client = self._requests.recvfrom(_REQUEST_BYTES_MAX)
            except BlockingIOError:
                return count
            except ConnectionError:
                continue  # an earlier answer found nobody
            if self.config.rerequest_loss and self._chance.random() < self.config.rerequest_loss:
                self._requests_ignored += 1
                continue
            for packet in self._program.answer(request, client, now_ns):
                try:
                    self._requests.sendto(packet, client)
                except BlockingIOError:
                    self._requests_ignored += 1  # the client asks again
        return _REQUESTS_PER_TURN

    def _wait(self, now_ns: int) -> None:
        """Sleep until something is due or somebody asks."""
        wake_ns = self._program.wake_ns(now_ns)
        for line in self._lines:
            due_ns = line.next_due_ns
            if due_ns is not None:
                wake_ns = min(wake_ns, max(due_ns, now_ns + NS_PER_S // 10_000))
        left_ns = wake_ns - self._clock()
        if left_ns <= 0:
            return
        if left_ns < NS_PER_S // 500:
            time.sleep(left_ns / NS_PER_S)  # finer than poll can: requests wait for two milliseconds at most
        else:
            self._poll.poll(min(left_ns // 1_000_000, _WAIT_MS_MAX))

    def _line_counts(self) -> dict[str, ExchangeLineCounts]:
        return {LINE_NAMES[number]: line.counts for number, line in enumerate(self._lines)}

    def _summary(self, seconds: float) -> Summary:
        tops: dict[str, Top] = {}
        if isinstance(self._program, SessionProgram) and self._program.flow is not None:
            flow = self._program.flow
            tops = {symbol: flow.top(symbol) for symbol in flow.busiest_symbols(TOP_SYMBOLS)}
        return Summary(
            seconds=seconds,
            message_count=self._program.message_count,
            sessions=self._program.session_reports(),
            lines=self._line_counts(),
            requests=self._program.request_report(),
            requests_ignored=self._requests_ignored,
            snapshots_given=self._snapshots.given_count if self._snapshots is not None else 0,
            tops=tops,
            warnings=self._program.warnings(),
        )
