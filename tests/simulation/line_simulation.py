"""An exchange, two bad lines, a re-request server and our line handler, in one process and in virtual time.

One seed decides everything: how much each line loses, repeats, delays and reorders, how it cuts packets, when
it goes dark, whether the server answers, how many sessions there are, and which strays arrive. Packets are
real bytes and take the real path: parse, arbitrate, decode. What must hold is checked at every step.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import numpy as np

from feeds import formats as f
from feeds.decoder import Decoder
from feeds.lines.events import LineEvent, Lost, SessionRolled
from feeds.lines.handler import LineConfig, LineHandler
from feeds.lines.tables import ARBITER_RUN_COUNT
from tests.simulation.venues import VENUES, Venue

MS = 1_000_000
SECOND = 1_000 * MS
START_NS = 1_700_000_000 * SECOND
STEP_LIMIT = 200_000  # of the event loop: far above what any seed needs, so that a stall is found


@dataclass
class LineFaults:
    """What one line does to packets."""

    loss: float
    duplication: float
    jitter_ns: int
    messages_per_packet: int
    dark: list[tuple[int, int]] = field(default_factory=list)  # times at which nothing passes

    def is_dark(self, now_ns: int) -> bool:
        return any(begin <= now_ns < end for begin, end in self.dark)


@dataclass
class Truth:
    """What the exchange published in one session: number of each message, from sequence 1 on."""

    numbers: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """What came out, in order, and what was given up."""

    delivered: list[tuple[int, int, int]] = field(default_factory=list)  # session, sequence, number
    lost: list[Lost] = field(default_factory=list)
    rolls: list[SessionRolled] = field(default_factory=list)
    published_count: int = 0
    requests: int = 0
    steps: int = 0

    @property
    def lost_count(self) -> int:
        return sum(event.last - event.first + 1 for event in self.lost)


class LineSimulation:
    def __init__(self, seed: int, format_name: str, is_server_up: bool) -> None:
        self.random = random.Random(f"{seed} {format_name} {is_server_up}")
        self.exchange = f.load(format_name)
        self.venue: Venue = VENUES[format_name]()
        self.is_server_up = is_server_up
        self.now_ns = START_NS
        self.truths: list[Truth] = []
        self.outcome = Outcome()
        self.lines = [self._make_faults(), self._make_faults()]
        hold_slots = self.random.choice([4, 64, 1_024])
        self.handler = LineHandler(
            self.exchange,
            LineConfig(start=1, batch_packets=16, slot_bytes=2_048, hold_slots=hold_slots),
            server_count=1,
        )
        self.decoder = Decoder(self.exchange, stream_id=1, frame_capacity=64)
        self._transport = np.zeros(self.exchange.transport_state_size, dtype=np.int64)
        self._datagrams = np.zeros((16, f.DATAGRAM_FIELDS), dtype=np.int64)
        self._queue: list[tuple[int, int, int, bytes]] = []  # arrival, order, line, datagram
        self._order = 0
        self._number = 0
        self._old_packets: list[tuple[int, bytes]] = []

    def _make_faults(self) -> LineFaults:
        rng = self.random
        dark = []
        if rng.random() < 0.5:
            begin = START_NS + rng.randrange(2 * SECOND)
            dark.append((begin, begin + rng.randrange(500 * MS)))
        return LineFaults(
            loss=rng.choice([0.0, 0.01, 0.05, 0.3]),
            duplication=rng.choice([0.0, 0.05]),
            jitter_ns=rng.choice([0, MS, 4 * MS, 30 * MS]),
            messages_per_packet=rng.choice([1, 3, 17, 40]),
            dark=dark,
        )

    def run(self) -> Outcome:
        for session in range(self.random.choice([1, 1, 2, 3])):
            self._run_session(session)
        self._advance(5 * SECOND)
        self.outcome.published_count = sum(len(truth.numbers) for truth in self.truths)
        self._check_end()
        return self.outcome

    def _run_session(self, index: int) -> None:
        rng = self.random
        self.venue.begin_session(index)
        truth = Truth()
        self.truths.append(truth)
        pending: list[list[bytes]] = [[], []]
        begin = [1, 1]  # sequence of the first pending message of each line
        target = rng.choice([1, 40, 300, 900])
        while len(truth.numbers) < target:
            burst = [self._next_message(truth) for _ in range(rng.randrange(1, 60))]
            self.venue.publish(burst)
            for line in (0, 1):
                pending[line] += burst
                self._cut(line, pending[line], begin, is_last=len(truth.numbers) >= target)
            if rng.random() < 0.05 and self._old_packets:  # a packet of long ago comes again
                self._post(*rng.choice(self._old_packets), delay_ns=rng.randrange(SECOND))
            self._advance(rng.choice([0, MS // 10, MS, 20 * MS]))
        next_seq = len(truth.numbers) + 1
        for _ in range(3):  # a line that lost the tail learns of it by heartbeats
            self._advance(SECOND // 2)
            for line in (0, 1):
                self._send(line, self.venue.heartbeat(next_seq, self.now_ns))
        self._settle(next_seq)
        end = self.venue.end(next_seq)
        if end is not None:
            for _ in range(5):
                for line in (0, 1):
                    self._send(line, end)
                self._advance(20 * MS)

    def _settle(self, next_seq: int) -> None:
        """Heartbeats until the handler has, or has given up, all of the session, as exchanges do at night."""
        for _ in range(200):
            if self.handler.expected >= next_seq and len(self.truths) - 1 == len(self.outcome.rolls):
                return
            self._advance(SECOND // 2)
            for line in (0, 1):
                self._send(line, self.venue.heartbeat(next_seq, self.now_ns), is_clean=True)
        raise AssertionError(
            f"session {len(self.truths)}: expected {self.handler.expected} of {next_seq} after 100 s"
        )

    def _next_message(self, truth: Truth) -> bytes:
        self._number += 1
        truth.numbers.append(self._number)
        return self.venue.message(self._number)

    def _cut(self, line: int, pending: list[bytes], begin: list[int], is_last: bool) -> None:
        size = self.lines[line].messages_per_packet
        while len(pending) >= size or (pending and is_last):
            count = self.random.randrange(1, min(size, len(pending)) + 1)
            packet = self.venue.data(begin[line], pending[:count], self.now_ns)
            if begin[line] == 1 and self.venue.is_restart:
                self._post(line, packet, delay_ns=0)  # without it nobody could tell the restart from the rest
            else:
                self._send(line, packet)
            del pending[:count]
            begin[line] += count

    def _send(self, line: int, packet: bytes, is_clean: bool = False) -> None:
        faults = self.lines[line]
        rng = self.random
        if rng.random() < 0.01:
            self._old_packets.append((line, packet))
        if not is_clean and (faults.is_dark(self.now_ns) or rng.random() < faults.loss):
            return
        for _ in range(2 if rng.random() < faults.duplication else 1):
            self._post(line, packet, delay_ns=rng.randrange(faults.jitter_ns + 1))

    def _post(self, line: int, packet: bytes, delay_ns: int) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._order, line, packet))

    def _advance(self, duration_ns: int) -> None:
        """Let time pass; deliver what arrives meanwhile, in batches, and let the handler judge."""
        until_ns = self.now_ns + duration_ns
        while True:
            self.outcome.steps += 1
            assert self.outcome.steps < STEP_LIMIT, "the event loop does not come to an end"
            due_ns = max(self.handler.next_due_ns, self.now_ns)
            arrival_ns = self._queue[0][0] if self._queue else until_ns + 1
            next_ns = min(due_ns, arrival_ns)
            if next_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(next_ns, self.now_ns)
            batch: list[tuple[int, bytes]] = []
            limit = self.random.randrange(1, 17)
            while self._queue and len(batch) < limit and self._queue[0][0] <= self.now_ns:
                _, _, line, packet = heapq.heappop(self._queue)
                batch.append((line, packet))
            self._receive(batch)
            if due_ns <= self.now_ns and not batch:
                self.now_ns += 1  # a due time that stays in the past must not stop the clock

    def _receive(self, batch: list[tuple[int, bytes]]) -> None:
        arbiter = self.handler.arbiter
        for row, (line, packet) in enumerate(batch):
            offset = row * arbiter.config.slot_bytes
            arbiter.arena[offset : offset + len(packet)] = np.frombuffer(packet, dtype=np.uint8)
            self._datagrams[row] = offset, len(packet), line, self.now_ns
        self.exchange.parse_packets_kernel(
            arbiter.arena, self._datagrams, len(batch), self._transport, arbiter.packets
        )
        # All are whole packets; a doubtful restart may be refused by its number until a second one agrees.
        bad = arbiter.packets[: len(batch)][arbiter.packets[: len(batch), f.PACKET_KIND] == f.KIND_BAD]
        assert (bad[:, f.PACKET_COUNT] == f.BAD_SEQUENCE).all()
        self._decode(arbiter.on_packets(len(batch)))
        if self.handler.is_due(self.now_ns):
            decoded_count = arbiter.value(ARBITER_RUN_COUNT)
            for request in self.handler.on_timer(self.now_ns):
                self._ask(request.datagram)
            for event in self.handler.take_events():
                self._on_event(event)
            self._decode(arbiter.tables.runs[decoded_count : arbiter.value(ARBITER_RUN_COUNT)])

    def _ask(self, request: bytes) -> None:
        self.outcome.requests += 1
        rng = self.random
        if not self.is_server_up or rng.random() < 0.1:
            return
        for answer in self.venue.answer(request, self.now_ns):
            if rng.random() >= 0.1:
                self._post(f.LINE_RECOVERY, answer, delay_ns=rng.randrange(MS, 10 * MS))

    def _on_event(self, event: LineEvent) -> None:
        if isinstance(event, Lost):
            self.outcome.lost.append(event)
        elif isinstance(event, SessionRolled):
            self.outcome.rolls.append(event)

    def _decode(self, runs: f.IntArray) -> None:
        for frames in self.decoder.decode(self.handler.arbiter.arena, runs, publish_time_ns=self.now_ns):
            numbers = self.venue.numbers(frames)
            for frame, number in zip(frames, numbers, strict=True):
                self._on_message(int(frame["source_session"]), int(frame["source_seq"]), number)

    def _on_message(self, session: int, sequence: int, number: int) -> None:
        delivered = self.outcome.delivered
        if delivered:
            last_session, last_sequence, last_number = delivered[-1]
            assert number > last_number, f"message {number} came twice or behind {last_number}"
            if session == last_session:
                assert sequence > last_sequence
        delivered.append((session, sequence, number))

    def _check_end(self) -> None:
        """Every message was delivered or is in a reported range, none in both; numbers match their places."""
        lost_ranges = [(event.session, event.first, event.last) for event in self.outcome.lost]
        got: dict[int, dict[int, int]] = {}
        for session, sequence, number in self.outcome.delivered:
            got.setdefault(session, {})[sequence] = number
        for session, first, last in lost_ranges:
            inside = [seq for seq in got.get(session, {}) if first <= seq <= last]
            assert not inside, f"{inside} were delivered and reported as lost"
        seen_sessions = list(dict.fromkeys(session for session, _, _ in self.outcome.delivered))
        lost_counts = dict.fromkeys(seen_sessions, 0)
        for session, first, last in lost_ranges:
            lost_counts[session] = lost_counts.get(session, 0) + last - first + 1
        whole = list(lost_counts)
        assert len(whole) == len(self.truths), f"{len(self.truths)} sessions were sent, {len(whole)} seen"
        for session, truth in zip(whole, self.truths, strict=True):
            messages = got.get(session, {})
            for sequence, number in messages.items():
                assert truth.numbers[sequence - 1] == number, "a message stands at another one's number"
            assert len(messages) + lost_counts[session] == len(truth.numbers)
        if self.is_server_up:
            assert not self.outcome.lost, "lost although the server answered"
