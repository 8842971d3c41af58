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
    is_provisional: bool = False  # joined at its first packet, and no second one has agreed
    seen_high: int = 1
    claims: int = 1  # heartbeats that named `high`, the first of them at:
    high_ns: int = 0
    line_claims: dict[int, tuple[int, int]] = field(default_factory=dict)  # line: next number, when
    time_ns: int = 0
    packets: int = 0
    data_packets: int = 0
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
    def __init__(self, jump_limit: int, start: int | None = None, patience_ns: int = 1) -> None:
        self.jump_limit = jump_limit
        self.patience_ns = patience_ns
        self.start = start
        self.current: Session | None = None
        self.following: Session | None = None
        self.past: list[int] = []
        self.far: list[Packet] = []  # those that named the same number, too far ahead
        self.refused = 0
        self.abandoned = 0
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
        if packet.line != LINE_RECOVERY:
            session.time_ns = packet.time_ns
            session.packets += 1
            session.data_packets += packet.kind == KIND_DATA
        if packet.seq - session.high > self.jump_limit and not self._is_jump(packet):
            count["far"] += packet.count
            return
        self._follow_line(packet)
        session.first_seen = min(session.first_seen, packet.seq)
        high_before = session.high
        session.high = max(high_before, packet.end)
        if packet.kind == KIND_DATA:
            session.is_ended &= packet.end <= high_before
            session.seen_high = max(session.seen_high, packet.end)
        else:
            self._judge_claim(session, packet, high_before)
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
        if session is self.current and packet.line != LINE_RECOVERY and packet.end >= session.expected:
            session.line_claims[packet.line] = packet.end, packet.time_ns

    def _is_jump(self, packet: Packet) -> bool:
        """Return whether an earlier packet agrees with one that is far ahead."""
        is_agreed = False
        if self.far:
            first = self.far[0]
            is_other = packet.line != first.line or packet.time_ns - first.time_ns >= self.patience_ns
            is_repeated = packet.seq == first.seq and (is_other or len(self.far) == 2)
            is_agreed = is_repeated or 0 < packet.seq - first.seq <= self.jump_limit
        if is_agreed:
            self.far = []
            return True
        self.refused += 1
        is_same = bool(self.far) and self.far[0].seq == packet.seq
        self.far = [*self.far, packet] if is_same else [packet]
        return False

    def _judge_claim(self, session: Session, packet: Packet, high_before: int) -> None:
        """Take what a heartbeat or an end of session says about the next number."""
        if session is self.current:
            if packet.seq > high_before:
                session.claims, session.high_ns = 1, packet.time_ns
            elif packet.seq == high_before:
                session.claims += 1
        if packet.kind == KIND_END:
            session.is_ended |= packet.seq >= high_before
        elif packet.seq > high_before:
            session.is_ended = False
        elif session is self.current and packet.seq >= session.expected:
            session.is_ended &= packet.seq == high_before

    def withdraw(self) -> None:
        """Forget numbers that one heartbeat named, no data showed, and the lines have denied since."""
        session = self.current
        if session is None or session.claims > 1 or session.is_ended:
            return
        since_ns = session.high_ns + self.patience_ns
        claims = [number for number, time_ns in session.line_claims.values() if time_ns >= since_ns]
        if not claims:
            return
        session.high = min(session.high, max(session.expected, session.seen_high, *claims))
        for line in self.lines:
            if line.session == session.number:
                line.begin = min(line.begin, session.high)  # a line may have joined with that heartbeat
                line.end = min(line.end, session.high)

    def settle(self) -> None:
        assert self.current is not None
        self.current.is_provisional = False
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
        self.current, self.following, self.far = self.following, None, []
        self.current.claims, self.current.high_ns = 1, self.current.time_ns
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
        if self.current is not None and self.current.is_provisional:
            is_near = abs(packet.seq - self.current.start) <= self.jump_limit
            if packet.session == self.current.number and is_near:
                self.settle()
            else:
                self.abandoned += len(self.current.waiting)
                self.current = None
                self.lines = [LineView() for _ in range(LINE_COUNT)]
        if self.current is None:
            start = packet.seq if self.start is None else self.start
            self.current = Session(packet.session, start, start, start, seen_high=start)
            self.current.is_provisional = self.start is None
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
        if self.current.is_provisional:
            return
        while self.current.expected in self.current.waiting:
            self.current.waiting.remove(self.current.expected)
            self.delivered.append((self.current.number, self.current.expected))
            self.current.expected += 1
