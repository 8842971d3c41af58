"""Line A and line B, and answers from the re-request server, as one ordered stream of messages.

`LineArbiter` owns the memory and runs the kernels that put messages in order. `LineHandler` decides what
only time can decide: when a hole is asked for, when it is lost, when a session is over, whether a line has
gone silent. Neither has a socket or a clock: packets and the time are handed in, requests and events come
out, so that a test is a list of calls. feeds.lines.sockets puts sockets around them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from feeds.errors import ConfigError
from feeds.formats import (
    BAD_REASON_TEXT,
    LINE_COUNT,
    PACKET_FIELDS,
    SEQUENCE_LIMIT,
    ByteArray,
    ExchangeFormat,
    IntArray,
)
from feeds.lines.arbitrate_kernels import (
    arbitrate_kernel,
    dismiss_kernel,
    give_up_kernel,
    holes_kernel,
    roll_kernel,
    settle_kernel,
    withdraw_kernel,
)
from feeds.lines.events import (
    JumpAccepted,
    JumpRefused,
    Line,
    LineBack,
    LineEvent,
    LineSilent,
    Lost,
    SessionDismissed,
    SessionEnded,
    SessionJoined,
    SessionRolled,
)
from feeds.lines.gaps import SECOND, Fill, GapConfig, GapPolicy
from feeds.lines.tables import (
    ARBITER_ABANDONED,
    ARBITER_CLAIM_COUNT,
    ARBITER_DELIVERED,
    ARBITER_EXPECTED,
    ARBITER_FAR_COUNT,
    ARBITER_FAR_LAST,
    ARBITER_FILL_COUNT,
    ARBITER_HIGH,
    ARBITER_IDENTITY_0,
    ARBITER_IDENTITY_1,
    ARBITER_IS_ENDED,
    ARBITER_IS_PROVISIONAL,
    ARBITER_JUMP_COUNT,
    ARBITER_JUMP_FROM,
    ARBITER_JUMP_TO,
    ARBITER_LOST,
    ARBITER_ROW_BEGIN,
    ARBITER_ROW_END,
    ARBITER_SEEN_HIGH,
    ARBITER_SESSION,
    ARBITER_SESSION_NS,
    ARBITER_START,
    COUNT_BAD,
    COUNT_DUPLICATE,
    COUNT_EARLY,
    COUNT_FAR,
    COUNT_FILLED,
    COUNT_FIRST,
    COUNT_FOREIGN,
    COUNT_HEARTBEATS,
    COUNT_LATE,
    COUNT_LOST,
    COUNT_MESSAGES,
    COUNT_OVERFLOW,
    COUNT_PACKETS,
    COUNT_REORDERED,
    COUNT_REPEATED,
    COUNT_STALE,
    CURRENT,
    FILL_FIRST,
    FILL_LAST,
    FILL_LINE,
    FILL_SLOTS,
    FOLLOWING,
    LINE_TIME_NS,
    NEXT_BEGIN_NS,
    NEXT_DATA,
    NEXT_FIRST,
    NEXT_PACKETS,
    NEXT_SESSION,
    NEXT_SESSION_NS,
    NO_SESSION,
    START_FIRST_SEEN,
    LineTables,
    new_tables,
)

SLOT_BYTES_MIN = 64
SLOT_BYTES_MAX = 1 << 16  # no UDP datagram is longer
BATCH_PACKETS_MAX = 4_096
HOLD_SLOTS_MAX = 1 << 20
SESSION_MAX = (1 << 32) - 1

# Unchecked loads may look at a whole word at the end of the last slot.
ARENA_MARGIN_BYTES = 64


@dataclass(frozen=True, slots=True)
class LineConfig:
    """How one exchange stream's lines are followed."""

    # Of the first session; later ones start at 1. The first packet seen is delivered when a second one agrees
    # with it (or none has come for silence_ns): its number alone could be a damaged one.
    start: int | Literal["first-seen"] = "first-seen"
    start_session: int | None = None  # go on with this session; None: with the first that is seen
    gaps: GapConfig = field(default_factory=GapConfig)
    silence_ns: int = 3 * SECOND  # heartbeats come every second or so, on some lines up to 2.3 s apart
    batch_packets: int = 192  # per step, shared by the lines
    slot_bytes: int = 2_048  # the longest datagram
    hold_slots: int = 4_096  # packets that may wait for earlier ones
    jump_limit: int = 1_000_000  # a number further ahead than this needs a second packet that agrees
    events_max: int = 65_536  # kept until taken; older ones make room and are counted

    def __post_init__(self) -> None:
        _check_range("batch_packets", self.batch_packets, LINE_COUNT, BATCH_PACKETS_MAX)
        _check_range("slot_bytes", self.slot_bytes, SLOT_BYTES_MIN, SLOT_BYTES_MAX)
        _check_range("hold_slots", self.hold_slots, 1, HOLD_SLOTS_MAX)
        _check_range("jump_limit", self.jump_limit, 1, SEQUENCE_LIMIT)
        _check_range("events_max", self.events_max, 1, 1 << 24)
        if self.slot_bytes % 8:
            raise ConfigError(f"slot_bytes must be a multiple of 8, was {self.slot_bytes}")
        if self.start != "first-seen":
            _check_range("start", self.start, 1, SEQUENCE_LIMIT - 1)
        if self.start_session is not None:
            _check_range("start_session", self.start_session, 0, SESSION_MAX)
            if self.start == "first-seen":
                raise ConfigError("start must be a number when start_session is given, was 'first-seen'")
        if self.silence_ns <= self.gaps.patience_ns:
            raise ConfigError(
                f"silence_ns must be longer than patience_ns = {self.gaps.patience_ns}, was {self.silence_ns}"
            )


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} must be {lowest} to {highest}, was {value}")


@dataclass(frozen=True, slots=True)
class LineCounts:
    """What one line did. Counts are of messages unless the name says otherwise."""

    packets: int
    heartbeats: int
    messages: int
    first: int
    duplicate: int
    filled: int
    early: int
    late: int
    stale: int
    foreign: int
    far: int
    overflow: int
    lost: int
    repeated: int
    reordered_packets: int
    bad_packets: dict[str, int]


class LineArbiter:
    """Memory and kernels: packets in any order in, runs of consecutive messages out."""

    def __init__(self, exchange: ExchangeFormat, config: LineConfig) -> None:
        self.config = config
        # A hold slot is as large as a receive slot, so that whatever was received can be held.
        hold_offset = config.batch_packets * config.slot_bytes
        arena_bytes = hold_offset + config.hold_slots * config.slot_bytes + ARENA_MARGIN_BYTES
        self.arena: ByteArray = np.zeros(arena_bytes, dtype=np.uint8)
        self.packets: IntArray = np.zeros((config.batch_packets, PACKET_FIELDS), dtype=np.int64)
        self.tables: LineTables = new_tables(
            is_prefix_big_endian=exchange.is_prefix_big_endian,
            batch_packets=config.batch_packets,
            hold_slots=config.hold_slots,
            hold_offset=hold_offset,
            hold_slot_bytes=config.slot_bytes,
            jump_limit=config.jump_limit,
            patience_ns=config.gaps.patience_ns,
            start_seq=START_FIRST_SEEN if config.start == "first-seen" else config.start,
            start_session=NO_SESSION if config.start_session is None else config.start_session,
        )
        self._holes: IntArray = np.zeros((config.gaps.holes_max, 2), dtype=np.int64)

    def on_packets(self, packet_count: int) -> IntArray:
        """Arbitrate the first rows of `packets`; return the runs, which hold until the next call."""
        run_count = arbitrate_kernel(self.arena, self.packets, packet_count, self.tables)
        return self.tables.runs[:run_count]

    def holes(self) -> list[tuple[int, int]]:
        """Return what is missing of the current session, (first, last), lowest first."""
        count = holes_kernel(self.tables, self._holes)
        return [(first, last) for first, last in self._holes[:count].tolist()]

    def fills_since(self, seen_count: int) -> tuple[list[Fill], int]:
        """Return the fills after the first `seen_count` that are still known, and the count of all."""
        count = int(self.tables.state[ARBITER_FILL_COUNT])
        oldest = max(seen_count, count - FILL_SLOTS)
        rows = self.tables.fills[np.arange(oldest, count) % FILL_SLOTS].tolist()
        return [Fill(row[FILL_FIRST], row[FILL_LAST], Line(row[FILL_LINE])) for row in rows], count

    def give_up(self, last: int) -> int:
        """Go on behind `last`; return the count of runs, with those that became deliverable."""
        return give_up_kernel(self.arena, self.tables, last)

    def roll(self) -> int:
        """Go on with the session that follows; return the count of runs, with its first ones."""
        return roll_kernel(self.arena, self.tables)

    def settle(self) -> int:
        """Believe the joining point; return the count of runs, with those of its packet."""
        return settle_kernel(self.arena, self.tables)

    def withdraw(self) -> int:
        """Forget numbers that a single heartbeat claimed and the lines deny; return the number behind all."""
        return withdraw_kernel(self.tables)

    def dismiss_next(self) -> None:
        dismiss_kernel(self.tables)

    def value(self, name: int) -> int:
        """Return one ARBITER_* or NEXT_* value."""
        return int(self.tables.state[name])

    @property
    def held_packets(self) -> int:
        """How many packets of both sessions wait for earlier ones."""
        state = self.tables.state
        return sum(
            int(state[ARBITER_ROW_END + side] - state[ARBITER_ROW_BEGIN + side])
            for side in (CURRENT, FOLLOWING)
        )

    def counts(self, line: Line) -> LineCounts:
        row = self.tables.counts[line].tolist()
        bad = {text: row[COUNT_BAD + reason] for reason, text in BAD_REASON_TEXT.items()}
        return LineCounts(
            packets=row[COUNT_PACKETS],
            heartbeats=row[COUNT_HEARTBEATS],
            messages=row[COUNT_MESSAGES],
            first=row[COUNT_FIRST],
            duplicate=row[COUNT_DUPLICATE],
            filled=row[COUNT_FILLED],
            early=row[COUNT_EARLY],
            late=row[COUNT_LATE],
            stale=row[COUNT_STALE],
            foreign=row[COUNT_FOREIGN],
            far=row[COUNT_FAR],
            overflow=row[COUNT_OVERFLOW],
            lost=row[COUNT_LOST],
            repeated=row[COUNT_REPEATED],
            reordered_packets=row[COUNT_REORDERED],
            bad_packets={text: count for text, count in bad.items() if count},
        )


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send this datagram to the re-request server with that index."""

    server: int
    datagram: bytes


class LineHandler:
    """The judgement that needs a clock. Call `on_timer` when `is_due` says so and all runs are decoded."""

    def __init__(
        self,
        exchange: ExchangeFormat,
        config: LineConfig | None = None,
        *,
        server_count: int = 0,
        lines: Sequence[Line] = (Line.A, Line.B),
    ) -> None:
        self.exchange = exchange
        self.config = config if config is not None else LineConfig()
        self.arbiter = LineArbiter(exchange, self.config)
        self.gaps = GapPolicy(self.config.gaps, server_count)
        self.events: deque[LineEvent] = deque(maxlen=self.config.events_max)
        self.events_dropped = 0
        self._lines = tuple(lines)
        self._state = self.arbiter.tables.state
        self._session = NO_SESSION  # the one that was announced
        self._is_end_announced = False
        self._jumps_refused = 0
        self._jumps_accepted = 0
        self._fills_seen = 0
        self._answers_dropped = 0
        self._scan_ns = 0  # holes are not looked at before this
        self._scan_every_ns = max(self.config.gaps.patience_ns // 4, 1)
        self._due_ns = 0
        self._started_ns: int | None = None
        self._silent_since_ns: dict[Line, int] = {}

    @property
    def session(self) -> int | None:
        """The session that is being delivered, None before the first packet."""
        session = self.arbiter.value(ARBITER_SESSION)
        return None if session == NO_SESSION else session

    @property
    def expected(self) -> int:
        """The next number to be delivered."""
        return self.arbiter.value(ARBITER_EXPECTED)

    @property
    def is_complete(self) -> bool:
        """Whether everything that is known to exist was delivered or given up."""
        return self.arbiter.value(ARBITER_EXPECTED) >= self.arbiter.value(ARBITER_HIGH)

    @property
    def is_ended(self) -> bool:
        """Whether the exchange has closed the session and nothing of it is missing."""
        return self.is_complete and bool(self.arbiter.value(ARBITER_IS_ENDED))

    @property
    def is_finished(self) -> bool:
        """Whether nothing more can come of what has arrived, of this session or of one that follows it."""
        return self.is_complete and self.arbiter.value(NEXT_SESSION) == NO_SESSION

    @property
    def delivered_count(self) -> int:
        return self.arbiter.value(ARBITER_DELIVERED)

    @property
    def lost_count(self) -> int:
        return self.arbiter.value(ARBITER_LOST)

    @property
    def abandoned_count(self) -> int:
        """Messages that were held of a session when it was left."""
        return self.arbiter.value(ARBITER_ABANDONED)

    def take_events(self) -> list[LineEvent]:
        """Return what happened since the last call, oldest first."""
        taken = list(self.events)
        self.events.clear()
        return taken

    def is_due(self, now_ns: int) -> bool:
        """Return whether `on_timer` has something to look at. Cheap: it is asked after every batch."""
        state = self._state
        if now_ns >= self._due_ns or state[NEXT_SESSION] != NO_SESSION:
            return True
        if state[ARBITER_IS_PROVISIONAL]:
            return False
        if state[ARBITER_SESSION] != self._session:
            return True
        if state[ARBITER_EXPECTED] < state[ARBITER_HIGH] or self.gaps.holes:
            return now_ns >= self._scan_ns
        return bool(state[ARBITER_IS_ENDED]) != self._is_end_announced

    @property
    def next_due_ns(self) -> int:
        """The time at which `is_due` will be true even if nothing arrives until then."""
        state = self._state
        if state[NEXT_SESSION] != NO_SESSION or state[ARBITER_EXPECTED] < state[ARBITER_HIGH]:
            return self._scan_ns
        return self._due_ns

    def on_timer(self, now_ns: int) -> list[SendRequest]:
        """Judge by the time; return the requests to send. May add runs: decode before the next batch."""
        if self._started_ns is None:
            self._started_ns = now_ns
        if self.arbiter.value(ARBITER_IS_PROVISIONAL) and self._quiet_ns(now_ns) >= self.config.silence_ns:
            self.arbiter.settle()
        self._announce_session(now_ns)
        self._watch_lines(now_ns)
        self._tell_jumps(now_ns)
        self._scan(now_ns)
        self._give_up(now_ns)
        self._finish_session(now_ns)
        requests = self._request(now_ns)
        wait_ns = self.config.silence_ns // 4
        due_ns = self.gaps.next_due_ns()
        self._due_ns = (
            now_ns + wait_ns if due_ns is None else max(min(due_ns, now_ns + wait_ns), self._scan_ns)
        )
        return requests

    def _tell(self, event: LineEvent) -> None:
        if len(self.events) == self.events.maxlen:
            self.events_dropped += 1
        self.events.append(event)

    def _announce_session(self, now_ns: int) -> None:
        session = self.arbiter.value(ARBITER_SESSION)
        if session != self._session and not self.arbiter.value(ARBITER_IS_PROVISIONAL):
            self._tell(SessionJoined(now_ns, session, self.arbiter.value(ARBITER_START)))
            self._take_up(session)

    def _take_up(self, session: int) -> None:
        self._session = session
        self._is_end_announced = False
        self._fills_seen = self.arbiter.value(ARBITER_FILL_COUNT)
        self.gaps.on_session(session)

    def _watch_lines(self, now_ns: int) -> None:
        assert self._started_ns is not None
        for line in self._lines:
            last_ns = int(self.arbiter.tables.counts[line, LINE_TIME_NS]) or self._started_ns
            since_ns = self._silent_since_ns.get(line)
            if since_ns is None:
                if now_ns - last_ns >= self.config.silence_ns:
                    self._silent_since_ns[line] = last_ns
                    self._tell(LineSilent(now_ns, line, last_ns))
            elif last_ns > since_ns:
                del self._silent_since_ns[line]
                self._tell(LineBack(now_ns, line, last_ns - since_ns))

    def _tell_jumps(self, now_ns: int) -> None:
        value = self.arbiter.value
        refused = value(ARBITER_FAR_COUNT) - self._jumps_refused
        if refused > 0:
            self._jumps_refused += refused
            self._tell(JumpRefused(now_ns, self._session, value(ARBITER_FAR_LAST), refused))
        if value(ARBITER_JUMP_COUNT) > self._jumps_accepted:
            self._jumps_accepted = value(ARBITER_JUMP_COUNT)
            self._tell(JumpAccepted(now_ns, self._session, value(ARBITER_JUMP_FROM), value(ARBITER_JUMP_TO)))

    def _scan(self, now_ns: int) -> None:
        self._scan_ns = now_ns + self._scan_every_ns
        if self.is_complete and not self.gaps.holes:
            return
        for event in self.gaps.on_withdrawn(self.arbiter.withdraw(), now_ns):
            self._tell(event)
        fills, self._fills_seen = self.arbiter.fills_since(self._fills_seen)
        for event in self.gaps.on_scan(self.arbiter.holes(), fills, now_ns):
            self._tell(event)
        answers_dropped = int(self.arbiter.tables.counts[Line.RECOVERY, COUNT_OVERFLOW])
        if answers_dropped > self._answers_dropped:
            self._answers_dropped = answers_dropped
            self.gaps.on_answers_dropped(now_ns)

    def _give_up(self, now_ns: int) -> None:
        doubtful = self._doubtful_from(now_ns)
        while (hole := self.gaps.take_expired(self.expected, now_ns, doubtful)) is not None:
            self.arbiter.give_up(hole.last)
            self._tell(Lost(now_ns, self._session, hole.first, hole.last))

    def _doubtful_from(self, now_ns: int) -> int | None:
        """Return the number from which on only a single heartbeat speaks for messages, if there is one.

        Giving those up would win nothing, since nothing is held behind them, and if they do not exist yet it
        would lose them. The next heartbeat on either line decides, or silence.
        """
        value = self.arbiter.value
        if value(ARBITER_CLAIM_COUNT) > 1 or value(ARBITER_IS_ENDED):
            return None
        if self._quiet_ns(now_ns) >= self.config.silence_ns:
            return None
        return max(value(ARBITER_EXPECTED), value(ARBITER_SEEN_HIGH))

    def _quiet_ns(self, now_ns: int) -> int:
        """Return for how long nothing of our session has come on a line, since we listen."""
        return now_ns - (self.arbiter.value(ARBITER_SESSION_NS) or self._started_ns or now_ns)

    def _finish_session(self, now_ns: int) -> None:
        value = self.arbiter.value
        if value(ARBITER_IS_PROVISIONAL):
            return
        if not value(ARBITER_IS_ENDED):
            self._is_end_announced = False  # it went on after all
        if self.is_ended and not self._is_end_announced:
            self._is_end_announced = True
            self._tell(SessionEnded(now_ns, self._session, value(ARBITER_HIGH) - 1))
        following = value(NEXT_SESSION)
        if following == NO_SESSION:
            return
        if self._is_over(now_ns):
            self.arbiter.roll()
            self._tell(SessionRolled(now_ns, self._session, following))
            self._take_up(following)
        elif value(ARBITER_SESSION_NS) - value(NEXT_SESSION_NS) > self.config.gaps.give_up_ns:
            self.arbiter.dismiss_next()
            self._tell(SessionDismissed(now_ns, following))

    def _is_over(self, now_ns: int) -> bool:
        """Return whether nothing more can come of this session, now that another one has been seen.

        A single stray packet must not end a session, and a session cannot be taken up again: so ours must
        be complete, and either closed by the exchange, or silent for longer than any pause between
        heartbeats, or quiet while the other began at number 1 and goes on with messages.
        """
        if not self.is_complete:
            return False
        value = self.arbiter.value
        quiet_ns = self._quiet_ns(now_ns)
        if value(ARBITER_IS_ENDED) or quiet_ns >= self.config.silence_ns:
            return True
        patience_ns = self.config.gaps.patience_ns
        if value(NEXT_FIRST) > 1 or quiet_ns < patience_ns:
            return False
        lasted_ns = value(NEXT_SESSION_NS) - value(NEXT_BEGIN_NS)
        return value(NEXT_PACKETS) >= 2 and value(NEXT_DATA) >= 1 and lasted_ns >= patience_ns

    def _request(self, now_ns: int) -> list[SendRequest]:
        requests, events = self.gaps.due_requests(now_ns)
        for event in events:
            self._tell(event)
        identity = self.arbiter.value(ARBITER_IDENTITY_0), self.arbiter.value(ARBITER_IDENTITY_1)
        return [
            SendRequest(ask.server, datagram)
            for ask in requests
            for datagram in self.exchange.gap_requests(*identity, ask.first, ask.last - ask.first + 1)
        ]
