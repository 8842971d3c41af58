"""When to ask for missing messages again, whom, and when to give up: a policy without sockets or clock.

A hole first gets `patience_ns` to fill by itself, because the other line is usually only a little later.
Then the re-request servers are asked in turn, with growing pauses, lowest numbers first and never for more
than `outstanding_max` messages at once. A hole that no message came to for `give_up_ns` is lost; any message
of it that arrives starts that time anew, so nothing is given up while a server answers, however large the
hole or slow the server.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from feeds.errors import ConfigError
from feeds.lines.events import HoleFilled, HoleOpened, HoleRequested, HoleWithdrawn, Line, LineEvent
from feeds.request_limits import TokenBucket

MS = 1_000_000
SECOND = 1_000 * MS
ATTEMPTS_MIN = 2  # a request or its answer may get lost: one without an answer says little


@dataclass(frozen=True, slots=True)
class GapConfig:
    """The times and limits of re-requesting."""

    patience_ns: int = 5 * MS
    retry_ns: int = 20 * MS  # to the second request; doubles with each that brings nothing
    retry_max_ns: int = 200 * MS
    settle_ns: int = 2 * MS  # after an answer brought only a part: how long more of it may still come
    give_up_ns: int = 1 * SECOND
    outstanding_max: int = 4_096  # messages asked for and not yet there
    holes_max: int = 1_024  # looked after at once; those behind them wait their turn
    # Servers silently drop what exceeds their limit per client, so we stay below it, lowest numbers first.
    requests_per_second: int = 80
    requests_burst: int = 80

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, was {getattr(self, name)}")
        if self.give_up_ns < self.patience_ns + self.retry_max_ns:
            raise ConfigError(
                f"give_up_ns must leave time for a request: at least patience_ns + retry_max_ns = "
                f"{self.patience_ns + self.retry_max_ns}, was {self.give_up_ns}"
            )
        if self.retry_max_ns < self.retry_ns:
            raise ConfigError(
                f"retry_max_ns must be at least retry_ns = {self.retry_ns}, was {self.retry_max_ns}"
            )
        if self.settle_ns > self.retry_ns:
            raise ConfigError(f"settle_ns must be at most retry_ns = {self.retry_ns}, was {self.settle_ns}")


@dataclass(slots=True)
class Hole:
    """Missing messages that share one history of being waited and asked for."""

    first: int
    last: int
    request_at_ns: int
    deadline_ns: int
    attempts: int = 0  # since the last message of it came
    server: int = 0  # that was asked last
    is_asked: bool = False  # at least once, ever
    asked_last: int = 0  # the request that is out goes up to here

    @property
    def outstanding(self) -> int:
        return max(min(self.asked_last, self.last) - self.first + 1, 0)


@dataclass(frozen=True, slots=True)
class Fill:
    """A line brought messages of this range whose absence was known."""

    first: int
    last: int
    line: Line


@dataclass(frozen=True, slots=True)
class GapRequest:
    """Ask `server` for these messages."""

    server: int
    first: int
    last: int
    attempt: int


@dataclass(slots=True)
class GapPolicy:
    """Follows the holes of one session; `on_scan` is told how they are now."""

    config: GapConfig
    server_count: int
    session: int = -1
    server: int = 0  # to ask next; the first one until it fails to answer
    holes: list[Hole] = field(default_factory=list)  # by number, never overlapping
    answered_ns: int | None = None  # when a server last brought something
    _bucket: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        burst = self.config.requests_burst
        self._bucket = TokenBucket(self.config.requests_per_second, burst, burst, 0)

    def on_session(self, session: int) -> None:
        """Start afresh: the holes of another session are no concern any more."""
        self.session = session
        self.holes.clear()

    def on_scan(
        self, found: Sequence[tuple[int, int]], fills: Sequence[Fill], now_ns: int
    ) -> list[LineEvent]:
        """Compare the holes there are with those known; return what opened and what was filled."""
        events: list[LineEvent] = []
        remaining: list[Hole] = []
        fill_index = _FillIndex(fills)
        if any(fill.line is Line.RECOVERY for fill in fills):
            self.answered_ns = now_ns
        for hole in self.holes:
            pieces = _overlaps(found, hole.first, hole.last)
            if pieces == [(hole.first, hole.last)]:
                remaining.append(hole)
                continue
            events += self._filled(hole, pieces, fill_index, now_ns)
            remaining += [self._shrunk(hole, first, last, now_ns) for first, last in pieces]
        self.holes = remaining
        for first, last in _subtract(found, remaining):
            if len(self.holes) >= self.config.holes_max:
                break
            events.append(HoleOpened(now_ns, self.session, first, last))
            self._add(first, last, now_ns)
        return events

    def on_withdrawn(self, high: int, now_ns: int) -> list[LineEvent]:
        """Forget what was missing from `high` on, because it does not exist."""
        events: list[LineEvent] = []
        while self.holes and self.holes[-1].last >= high:
            hole = self.holes.pop()
            events.append(HoleWithdrawn(now_ns, self.session, max(hole.first, high), hole.last))
            if hole.first < high:
                self.holes.append(replace(hole, last=high - 1))
        return events[::-1]

    def on_answers_dropped(self, now_ns: int) -> None:
        """Note that answers came for which there was no room: that is no reason to give up their holes.

        The hole that delivery stands before is not among them: its answers need no room, and if it could
        live on others' answers, one message that no server has would hold up the stream for ever.
        """
        for hole in self.holes[1:]:
            if hole.is_asked:
                hole.attempts = 0
                hole.request_at_ns = now_ns + self.config.retry_ns
                hole.deadline_ns = now_ns + self.config.give_up_ns

    def due_requests(self, now_ns: int) -> tuple[list[GapRequest], list[LineEvent]]:
        """Return what to ask for now; asking is assumed to happen."""
        requests: list[GapRequest] = []
        if self.server_count == 0:
            return requests, []
        waiting = sum(hole.outstanding for hole in self.holes if now_ns < hole.request_at_ns)
        allowed = self.config.outstanding_max - waiting
        for hole in self.holes:
            if allowed <= 0:
                break
            if now_ns < hole.request_at_ns:
                continue
            if not self._bucket.take(now_ns):
                break
            last = min(hole.last, hole.first + allowed - 1)
            if hole.attempts > 0 and hole.server == self.server:
                self.server = (self.server + 1) % self.server_count  # it did not answer
            hole.server = self.server
            hole.attempts += 1
            hole.asked_last = last
            pause_ns = self.config.retry_ns << min(hole.attempts - 1, 32)
            hole.request_at_ns = now_ns + min(pause_ns, self.config.retry_max_ns)
            if not hole.is_asked:
                # Waiting for its turn must not cost a hole its time.
                hole.is_asked = True
                hole.deadline_ns = now_ns + self.config.give_up_ns - self.config.patience_ns
            allowed -= last - hole.first + 1
            requests.append(GapRequest(hole.server, hole.first, last, hole.attempts))
        return requests, [
            HoleRequested(now_ns, self.session, ask.first, ask.last, ask.server, ask.attempt)
            for ask in requests
        ]

    def take_expired(self, expected: int, now_ns: int, doubtful: int | None = None) -> Hole | None:
        """Return the hole that delivery stands before, and forget it, if its time is up.

        Numbers from `doubtful` on are kept: perhaps they do not exist, and nothing waits behind them.
        """
        if not self.holes or self.holes[0].first != expected:
            return None
        hole = self.holes[0]
        if now_ns < hole.deadline_ns or (self.server_count > 0 and not hole.is_asked):
            return None
        if hole.attempts < ATTEMPTS_MIN and self._is_answering(now_ns):
            return None  # it waited for its turn to be asked for again, while others were answered
        if doubtful is not None and hole.last >= doubtful:
            if hole.first >= doubtful:
                return None
            self.holes[0] = replace(hole, first=doubtful)
            return replace(hole, last=doubtful - 1)
        return self.holes.pop(0)

    def _is_answering(self, now_ns: int) -> bool:
        return self.answered_ns is not None and now_ns - self.answered_ns < self.config.give_up_ns

    def next_due_ns(self) -> int | None:
        """Return when the next request or give-up is due, or None if there is no hole."""
        dues = [hole.deadline_ns for hole in self.holes]
        if self.server_count > 0:
            dues += [hole.request_at_ns for hole in self.holes]
        return min(dues, default=None)

    def _add(self, first: int, last: int, now_ns: int) -> None:
        """Take up a new hole, as part of the one before it while that still has all its time before it."""
        index = bisect_left(self.holes, first, key=lambda hole: hole.first)
        if index > 0:
            before = self.holes[index - 1]
            if before.last + 1 == first and not before.is_asked and now_ns < before.request_at_ns:
                before.last = last
                return
        config = self.config
        self.holes.insert(index, Hole(first, last, now_ns + config.patience_ns, now_ns + config.give_up_ns))

    def _shrunk(self, hole: Hole, first: int, last: int, now_ns: int) -> Hole:
        """Return what is left of a hole after some of it arrived: a sign of life that renews its time."""
        rest = replace(hole, first=first, last=last, deadline_ns=now_ns + self.config.give_up_ns)
        if hole.is_asked:
            rest.attempts = 0
            rest.request_at_ns = now_ns + self.config.settle_ns
        return rest

    def _filled(
        self, hole: Hole, pieces: Sequence[tuple[int, int]], fills: _FillIndex, now_ns: int
    ) -> list[LineEvent]:
        rest = [Hole(first, last, 0, 0) for first, last in pieces]
        return [
            HoleFilled(now_ns, self.session, first, last, fills.filler(first, last))
            for first, last in _subtract([(hole.first, hole.last)], rest)
        ]


def _subtract(ranges: Sequence[tuple[int, int]], holes: Sequence[Hole]) -> list[tuple[int, int]]:
    """Return the parts of `ranges` that no hole has; both are sorted."""
    left: list[tuple[int, int]] = []
    index = 0
    for first, last in ranges:
        while index < len(holes) and holes[index].last < first:
            index += 1
        position = index
        while first <= last and position < len(holes) and holes[position].first <= last:
            if holes[position].first > first:
                left.append((first, holes[position].first - 1))
            first = max(first, holes[position].last + 1)
            position += 1
        if first <= last:
            left.append((first, last))
    return left


def _overlaps(ranges: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of the sorted `ranges` that lie within `first` to `last`."""
    index = max(bisect_right(ranges, first, key=lambda pair: pair[0]) - 1, 0)
    parts: list[tuple[int, int]] = []
    while index < len(ranges) and ranges[index][0] <= last:
        if ranges[index][1] >= first:
            parts.append((max(ranges[index][0], first), min(ranges[index][1], last)))
        index += 1
    return parts


class _FillIndex:
    """Finds who brought a range, without looking at every fill for each hole."""

    def __init__(self, fills: Sequence[Fill]) -> None:
        self._fills = sorted(fills, key=lambda fill: fill.first)
        self._span_max = max((fill.last - fill.first for fill in fills), default=0)

    def filler(self, first: int, last: int) -> Line | None:
        """Return the line that brought messages of this range, None if there were several or none known."""
        index = bisect_left(self._fills, first - self._span_max, key=lambda fill: fill.first)
        lines: set[Line] = set()
        while index < len(self._fills) and self._fills[index].first <= last:
            if self._fills[index].last >= first:
                lines.add(self._fills[index].line)
            index += 1
        return lines.pop() if len(lines) == 1 else None
