"""What the arbitration kernels are compared with: the same rules over sets of numbers, one message at a time.

Too plain to be wrong, and slow. It has no hold slots, so it never overflows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from feeds.formats import KIND_BAD, KIND_DATA, KIND_END, KIND_HEARTBEAT, LINE_COUNT, LINE_RECOVERY

PAST_SESSIONS = 16


def message_of(session: int, seq: int) -> bytes:
    """Return the message with that number: lengths differ, and now and then one is empty."""
    if seq % 11 == 0:
        return b""
    return f"{session}/{seq}".encode() + b"." * (seq % 5)


@dataclass(frozen=True)
class Packet:
    line: int
    kind: int
    session: int
    seq: int
    count: int = 0
    time_ns: int = 1

    @property
    def end(self) -> int:
        return self.seq + self.count


def data(line: int, session: int, seq: int, count: int, time_ns: int = 1) -> Packet:
    return Packet(line, KIND_DATA, session, seq, count, time_ns)


def heartbeat(line: int, session: int, seq: int, time_ns: int = 1) -> Packet:
    return Packet(line, KIND_HEARTBEAT, session, seq, 0, time_ns)


def end_of_session(line: int, session: int, seq: int, time_ns: int = 1) -> Packet:
    return Packet(line, KIND_END, session, seq, 0, time_ns)


def bad(line: int, reason: int, time_ns: int = 1) -> Packet:
    return Packet(line, KIND_BAD, 0, 0, reason, time_ns)


@dataclass
class Session:
    number: int
    expected: int
    high: int
    start: int = 1
    first_seen: int = 0
    is_ended: bool = False
    waiting: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)


@dataclass
class LineView:
    """What one line brought of the session it is in."""

    session: int | None = None
    begin: int = 0
    end: int = 0
    seen: set[int] = field(default_factory=set)
    lost_before: int = 0

    @property
    def lost(self) -> int:
        return self.lost_before + len(set(range(self.begin, self.end)) - self.seen)


class ReferenceArbiter:
    def __init__(self, jump_limit: int, start: int | None = None) -> None:
        self.jump_limit = jump_limit
        self.start = start
        self.current: Session | None = None
        self.following: Session | None = None
        self.past: list[int] = []
        self.far: int | None = None
        self.delivered: list[tuple[int, int]] = []
        self.counts = [Counter[str]() for _ in range(LINE_COUNT)]
        self.lines = [LineView() for _ in range(LINE_COUNT)]

    def on_packet(self, packet: Packet) -> None:
        count = self.counts[packet.line]
        count["packets"] += 1
        if packet.kind == KIND_BAD:
            count["bad"] += 1
            return
        if packet.kind == KIND_DATA:
            count["messages"] += packet.count
        else:
            count["heartbeats"] += 1
        session = self._session_of(packet)
        if session is None:
            return
        if packet.seq - session.high > self.jump_limit:
            is_agreed = self.far is not None and 0 < packet.seq - self.far <= self.jump_limit
            self.far = None if is_agreed else packet.seq
            if not is_agreed:
                count["far"] += packet.count
                return
        self._follow_line(packet)
        session.first_seen = min(session.first_seen, packet.seq)
        high_before = session.high
        session.high = max(high_before, packet.end)
        session.is_ended = session.is_ended or packet.kind == KIND_END
        for seq in range(packet.seq, packet.end):
            if seq < session.start:
                count["early"] += 1
            elif seq in session.lost:
                count["late"] += 1
            elif seq < session.expected or seq in session.waiting:
                count["duplicate"] += 1
            else:
                count["first"] += 1
                count["filled"] += seq < high_before
                session.waiting.add(seq)
        self._deliver()

    def give_up(self, last: int) -> None:
        assert self.current is not None
        session = self.current
        session.lost |= set(range(session.expected, last + 1))
        session.expected = last + 1
        self._deliver()

    def roll(self) -> None:
        assert self.current is not None
        assert self.following is not None
        self.past = [*self.past, self.current.number][-PAST_SESSIONS:]
        self.current, self.following, self.far = self.following, None, None
        self._deliver()

    def holes(self) -> list[tuple[int, int]]:
        if self.current is None:
            return []
        found: list[tuple[int, int]] = []
        for seq in range(self.current.expected, self.current.high):
            if seq in self.current.waiting:
                continue
            if found and found[-1][1] == seq - 1:
                found[-1] = (found[-1][0], seq)
            else:
                found.append((seq, seq))
        return found

    def _session_of(self, packet: Packet) -> Session | None:
        if self.current is None:
            start = packet.seq if self.start is None else self.start
            self.current = Session(packet.session, start, start, start)
        if packet.session == self.current.number:
            return self.current
        if self.following is not None and packet.session == self.following.number:
            return self.following
        if packet.session in self.past:
            self.counts[packet.line]["stale"] += packet.count
            return None
        if self.following is not None or packet.line == LINE_RECOVERY:
            self.counts[packet.line]["foreign"] += packet.count
            return None
        self.following = Session(packet.session, 1, 1, first_seen=packet.seq)
        return self.following

    def _follow_line(self, packet: Packet) -> None:
        line = self.lines[packet.line]
        if packet.line == LINE_RECOVERY:
            return
        if packet.session != line.session:
            if line.session is None:
                line.begin = line.end = packet.seq
            elif self.following is not None and line.session == self.following.number:
                return
            else:
                line.lost_before = line.lost
                line.begin = line.end = 1
                line.seen = set()
            line.session = packet.session
        line.seen |= set(range(packet.seq, packet.end))
        line.end = max(line.end, packet.end)

    def _deliver(self) -> None:
        assert self.current is not None
        while self.current.expected in self.current.waiting:
            self.current.waiting.remove(self.current.expected)
            self.delivered.append((self.current.number, self.current.expected))
            self.current.expected += 1
