"""`LineReceiver`: from the exchange's lines to frames; the thin shell around compiled step and policy.

with LineReceiver(itch50.FORMAT, stream_id=1, config=config) as receiver:
    while running:
        frames = receiver.poll(clock())
        ...                                   # frames hold until the next poll
        if not frames.size:
            receiver.wait(clock(), 1_000_000)
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from zoneinfo import ZoneInfo

import numpy as np

from feeds import formats as f
from feeds.decoder import FRAME_CAPACITY_DEFAULT, Decoder, as_data
from feeds.errors import ConfigError
from feeds.lines.events import Line, LineEvent
from feeds.lines.handler import LineConfig, LineCounts, LineHandler, SendRequest
from feeds.lines.hop_step_kernels import HopTables, flatten
from feeds.lines.receive_kernels import (
    RECEIVE_FED_COUNT,
    SOURCE_BYTES,
    SOURCE_CALLS,
    SOURCE_DATAGRAMS,
    SOURCE_ERRNO,
    SOURCE_ERRORS,
    SOURCE_FD,
    SOURCE_TRUNCATED,
    feed_kernel,
    new_receive_tables,
)
from feeds.lines.sockets import (
    Endpoint,
    SocketWaiter,
    dropped_datagrams,
    open_line_socket,
    open_server_socket,
    receive_buffer,
)
from feeds.lines.tables import ARBITER_RUN_COUNT, ARBITER_SESSION, ARBITER_SESSION_NS, NO_SESSION
from feeds.session_time import NS_PER_S, midnight_ns
from feeds.wire import FrameArray

SERVERS_MAX = 8
_NEVER_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """Where the lines are and how they are followed. Without addresses a receiver is fed by `feed`."""

    line_a: Endpoint | None = None
    line_b: Endpoint | None = None
    servers: tuple[Endpoint, ...] = ()
    lines: LineConfig = field(default_factory=LineConfig)
    buffer_bytes: int = 8 << 20  # of each line's socket: 6,000 full packets, 10 ms of a 5 Gbit/s burst
    frame_capacity: int = FRAME_CAPACITY_DEFAULT
    first_message_seq: int = 1
    epoch: int = 0
    session_date: date | None = None  # of the first session; None: the day at the exchange when it is joined
    # What a receiver of the same stream knows that cannot be learned from packets any more, such as how often
    # the session was restarted: its `transport_state()`. Without it one that joins late names sessions anew.
    transport_state: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.servers) > SERVERS_MAX:
            raise ConfigError(f"servers must be at most {SERVERS_MAX}, were {len(self.servers)}")
        if self.servers and self.line_a is None and self.line_b is None:
            raise ConfigError("re-request servers are of no use without a line: give line_a or line_b")


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """What one socket did, and what the system dropped before we could read it."""

    line: Line
    datagrams: int
    bytes: int
    calls: int
    truncated: int
    errors: int
    last_errno: int
    buffer_bytes: int
    dropped: int


class LineDecoder(Decoder):
    """A decoder whose kernel runs inside a hop."""

    def hop_tables(
        self, handler: LineHandler, sources: list[tuple[int, int]], transport_state: f.IntArray
    ) -> HopTables:
        arbiter = handler.arbiter
        config = handler.config
        return HopTables(
            receive=new_receive_tables(arbiter.arena, config.batch_packets, config.slot_bytes, sources),
            transport_state=transport_state,
            packets=arbiter.packets,
            lines=arbiter.tables,
            decoder_state=self.state,
            type_counts=self.counts,
            problems=self._problem_rows,
            directory=self.directory,
            words=self._words,
        )

    def frames(self, frame_count: int) -> FrameArray:
        """Return the frames that the hop has just made."""
        self._collect_problems(0)
        return self._frames[:frame_count]


def _new_transport_state(exchange: f.ExchangeFormat, handed_over: tuple[int, ...] | None) -> f.IntArray:
    size = exchange.transport_state_size
    if handed_over is None:
        return np.zeros(size, dtype=np.int64)
    if len(handed_over) != size:
        raise ConfigError(
            f"transport_state must have {size} numbers for {exchange.name}, had {len(handed_over)}"
        )
    try:
        return np.array(handed_over, dtype=np.int64)
    except OverflowError:
        raise ConfigError("transport_state must be of numbers that fit 64 bits") from None


class LineReceiver:
    """Receives one exchange stream; one thread uses it."""

    def __init__(
        self, exchange: f.ExchangeFormat, stream_id: int, config: ReceiverConfig | None = None
    ) -> None:
        self.config = config if config is not None else ReceiverConfig()
        ends = {Line.A: self.config.line_a, Line.B: self.config.line_b}
        lines = tuple(line for line, endpoint in ends.items() if endpoint is not None)
        self.exchange = exchange
        transport_state = _new_transport_state(exchange, self.config.transport_state)
        self.handler = LineHandler(
            exchange, self.config.lines, server_count=len(self.config.servers), lines=lines
        )
        self.decoder = LineDecoder(
            exchange,
            stream_id,
            epoch=self.config.epoch,
            first_message_seq=self.config.first_message_seq,
            frame_capacity=self.config.frame_capacity,
        )
        self.send_errors = 0
        self._sockets: list[tuple[Line, socket.socket]] = []
        self._servers: list[socket.socket] = []
        self._waiter = SocketWaiter()
        self._day_end_ns = 0
        try:
            for line, endpoint in ends.items():
                if endpoint is not None:
                    self._add(line, open_line_socket(endpoint, self.config.buffer_bytes))
            for endpoint in self.config.servers:
                server = open_server_socket(endpoint, self.config.buffer_bytes)
                self._servers.append(server)
                self._add(Line.RECOVERY, server)
        except BaseException:
            self.close()
            raise
        sources = [(source.fileno(), int(line)) for line, source in self._sockets]
        self._tables = self.decoder.hop_tables(self.handler, sources, transport_state)
        self._flat = flatten(self._tables)
        self._hop = exchange.hop_kernel
        self._arena = self.handler.arbiter.arena
        self._decoder_state = self.decoder.state
        self._line_state = self.handler.arbiter.tables.state
        if self.config.session_date is not None:
            self._set_day(self.config.session_date)
            self._day_end_ns = _NEVER_NS  # the clock has no say before this session is over

    def __enter__(self) -> LineReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets; what was received is still decoded by further polls."""
        if hasattr(self, "_tables"):
            self._tables.receive.sources[:, SOURCE_FD] = -1
        self._waiter.clear()
        for _, source in self._sockets:
            source.close()

    @property
    def has_pending(self) -> bool:
        """Whether the next poll has frames to give without any datagram."""
        return bool(
            self._decoder_state[f.STATE_RUN_INDEX] < self._line_state[ARBITER_RUN_COUNT]
            or self._tables.receive.state[RECEIVE_FED_COUNT]
        )

    def poll(self, now_ns: int) -> FrameArray:
        """Return the next frames, none if there is nothing; they are overwritten by the next poll.

        `now_ns` is a clock that never steps (feeds.lines.sockets.steady_clock), or virtual time.
        """
        # Also when the session to go on with was given: until it is heard, its day is the day that it is.
        if now_ns >= self._day_end_ns and self._line_state[ARBITER_SESSION_NS] == 0:
            self._follow_calendar(now_ns)
        frame_count = self._hop(self._arena, self._flat, now_ns)
        frames = self.decoder.frames(frame_count)
        is_decoded = self._decoder_state[f.STATE_RUN_INDEX] >= self._line_state[ARBITER_RUN_COUNT]
        if is_decoded and self.handler.is_due(now_ns):
            self._on_timer(now_ns)
        return frames

    def wait(self, now_ns: int, timeout_ns: int) -> bool:
        """Block until a datagram is there, a timer is due or the time is over; return whether to poll now."""
        if self.has_pending:
            return True
        until_due_ns = self.handler.next_due_ns - now_ns
        is_ready = self._waiter.wait(min(timeout_ns, max(until_due_ns, 0)))
        return is_ready or until_due_ns <= timeout_ns

    def take_events(self) -> list[LineEvent]:
        """Return what happened on the lines since the last call, oldest first."""
        return self.handler.take_events()

    def transport_state(self) -> tuple[int, ...]:
        """Return what a sibling that joins now must be told, as its `ReceiverConfig.transport_state`."""
        return tuple(self._tables.transport_state.tolist())

    def counts(self, line: Line) -> LineCounts:
        return self.handler.arbiter.counts(line)

    def source_counts(self) -> list[SourceCounts]:
        """Return what each socket did, in the order: line A, line B, servers."""
        rows = self._tables.receive.sources.tolist()
        return [
            SourceCounts(
                line=line,
                datagrams=row[SOURCE_DATAGRAMS],
                bytes=row[SOURCE_BYTES],
                calls=row[SOURCE_CALLS],
                truncated=row[SOURCE_TRUNCATED],
                errors=row[SOURCE_ERRORS],
                last_errno=row[SOURCE_ERRNO],
                buffer_bytes=receive_buffer(source),
                dropped=dropped_datagrams(source),
            )
            for (line, source), row in zip(self._sockets, rows, strict=True)
        ]

    def local_address(self, line: Line) -> tuple[str, int]:
        """Return where a line's socket listens: the port that port 0 became."""
        for found, source in self._sockets:
            if found is line:
                host, port = source.getsockname()
                return str(host), int(port)
        raise ConfigError(f"{line} has no socket here")

    def feed(self, data: f.ByteArray, datagrams: f.IntArray, first: int = 0) -> int:
        """Hand in datagrams from `first` on that lie in `data`; return how many were taken.

        Those taken are processed by the next poll. None are taken before the frames of earlier ones have
        been polled.
        """
        if self.has_pending:
            return 0
        if not 0 <= first <= datagrams.shape[0]:
            raise ConfigError(f"first must be 0 to {datagrams.shape[0]}, was {first}")
        data = as_data(data)
        rows = datagrams[first : first + self.config.lines.batch_packets]
        offsets, lines = rows[:, f.DATAGRAM_OFFSET], rows[:, f.DATAGRAM_LINE]
        ends = offsets + np.abs(rows[:, f.DATAGRAM_BYTES])
        # The kernels trust these: what they address must exist.
        if ((offsets < 0) | (ends > data.size)).any():
            raise ConfigError(f"datagrams must lie within the {data.size} bytes of data")
        if ((lines < 0) | (lines >= f.LINE_COUNT)).any():
            raise ConfigError(f"a datagram's line must be 0 to {f.LINE_COUNT - 1}")
        return feed_kernel(data, datagrams, first, rows.shape[0], self._arena, self._tables.receive)

    def frames_of(self, data: f.ByteArray, datagrams: f.IntArray) -> Iterator[FrameArray]:
        """Return an iterator over the frames of captured datagrams, by the clock of the capture."""
        data = as_data(data)
        first = 0
        while first < datagrams.shape[0] or self.has_pending:
            taken = self.feed(data, datagrams, first) if first < datagrams.shape[0] else 0
            first += taken
            frames = self.poll(int(datagrams[max(first - 1, 0), f.DATAGRAM_TIME_NS]))
            if frames.size:
                yield frames

    def frames_at_end(self, now_ns: int) -> Iterator[FrameArray]:
        """Return an iterator over what is still held when no more datagrams will come.

        Time is taken to pass as the configuration demands, so holes are given up and sessions finished as
        if one had waited. With live lines, poll and wait instead.
        """
        gaps = self.config.lines.gaps
        patient_ns = gaps.give_up_ns + self.config.lines.silence_ns + 2 * gaps.patience_ns
        place, end_ns = None, now_ns + patient_ns
        while (self.has_pending or not self.handler.is_finished) and now_ns <= end_ns:
            frames = self.poll(now_ns)
            if frames.size:
                yield frames
            if place != (self.handler.session, self.handler.expected):
                place, end_ns = (self.handler.session, self.handler.expected), now_ns + patient_ns
            now_ns += gaps.patience_ns

    def _add(self, line: Line, source: socket.socket) -> None:
        self._sockets.append((line, source))
        self._waiter.add(source)

    def _on_timer(self, now_ns: int) -> None:
        session = self._line_state[ARBITER_SESSION]
        for request in self.handler.on_timer(now_ns):
            self._send(request)
        if session != NO_SESSION and self._line_state[ARBITER_SESSION] != session:
            self._follow_calendar(now_ns)  # before the first message of the new session is decoded

    def _send(self, request: SendRequest) -> None:
        try:
            self._servers[request.server].send(request.datagram)
        except OSError:
            self.send_errors += 1  # the server is away or our queue is full: it is asked again in any case

    def _follow_calendar(self, now_ns: int) -> None:
        """Take the day it now is at the exchange as the session's date."""
        zone = ZoneInfo(self.exchange.time_zone)
        today = datetime.fromtimestamp(now_ns // NS_PER_S, tz=UTC).astimezone(zone).date()
        self._set_day(today)

    def _set_day(self, session_date: date) -> None:
        zone = self.exchange.time_zone
        self._decoder_state[f.STATE_MIDNIGHT_NS] = midnight_ns(session_date, zone)
        self._day_end_ns = midnight_ns(session_date + timedelta(days=1), zone)
