"""What the exchange sends: a program, and the usual one, sessions of messages with heartbeats and ends.

A program is sans-IO: it is given the time, offers packets to the lines and answers re-requests. The loop
around it owns sockets and clock (exchange.py).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from feeds.exchange.config import ExchangeConfig, Play
from feeds.exchange.lines import ExchangeLine
from feeds.exchange.sources import DayFileSource, FlowSource, MessageSource
from feeds.message_store import MemoryStore
from feeds.moldudp64 import (
    RequestServer,
    encode_end_of_session,
    encode_heartbeat,
    session_bytes,
)
from feeds.order_flow.flow import DIGEST_BYTES, FlowBlock, FlowConfig, OrderFlow

BATCH_MESSAGES = 2_048  # offered at once; more would only be late
END_REPEAT_NS = 100_000_000  # between two announcements of the end of a session
_PACE_NS = 500_000  # between two batches: fewer turns, and packets that have a chance to fill
_WAKE_NS = 20_000_000  # a program looks at the clock at least so often
_CAPTURE_BATCH = 256  # packets taken in at once: re-requests wait meanwhile
_SESSIONS_KEPT = 2  # the present one, and the one before for clients that are still catching up


@dataclass(frozen=True, slots=True)
class SessionReport:
    """What one session consisted of: the truth about what a receiver should have."""

    session: str
    message_count: int
    message_bytes: int  # with their lengths
    digest: str  # blake2b over all blocks in order, each message behind its two-byte length
    lost_everywhere: int | None = None  # messages that every line lost; None for a capture


class Program(Protocol):
    """One exchange's worth of packets."""

    @property
    def is_finished(self) -> bool: ...

    @property
    def is_ending(self) -> bool:
        """Whether everything was offered, and only ends and answers are still sent."""
        ...

    @property
    def message_count(self) -> int:
        """Messages offered so far, in all sessions."""
        ...

    def offer(self, now_ns: int) -> bool:
        """Offer to the lines what is due; return whether something was."""
        ...

    def wake_ns(self, now_ns: int) -> int:
        """Return when to call `offer` again at the latest."""
        ...

    def start_clock(self, now_ns: int) -> None:
        """Begin to count time: setting up took some that must not be made good for in a rush."""
        ...

    def is_flushing(self, now_ns: int) -> bool:
        """Return whether overtaken packets need not wait any longer: nothing follows soon."""
        ...

    def stop(self, now_ns: int) -> None:
        """End what is being sent, in the way the protocol ends things."""
        ...

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]:
        """Return the packets that answer a re-request."""
        ...

    def session_reports(self) -> list[SessionReport]: ...

    def request_report(self) -> dict[str, Any]: ...

    def warnings(self) -> list[str]: ...

    def close(self) -> None:
        """Close the files that are being played."""
        ...


class _State(enum.Enum):
    PUBLISHING = "publishing"
    ENDING = "ending"
    FINISHED = "finished"


class SessionProgram:
    """Sessions of messages over MoldUDP64, one after the other."""

    def __init__(self, config: ExchangeConfig, lines: Sequence[ExchangeLine], now_ns: int) -> None:
        self._config = config
        self._lines = lines
        self._server = RequestServer(config.rerequest_limits, now_ns)
        self._reports: list[SessionReport] = []
        self._warnings: list[str] = []
        self._state = _State.PUBLISHING
        self._stores: list[MemoryStore] = []
        self._is_stopping = False
        self._begin_session(now_ns)

    @property
    def is_finished(self) -> bool:
        return self._state is _State.FINISHED

    @property
    def is_ending(self) -> bool:
        is_last = len(self._reports) == self._config.session_count or self._is_stopping
        return self._state is not _State.PUBLISHING and is_last

    @property
    def message_count(self) -> int:
        return sum(report.message_count for report in self._reports) + self._offered

    @property
    def flow(self) -> OrderFlow | None:
        """The simulated market of the present session, None when a file is played."""
        return self._source.flow if isinstance(self._source, FlowSource) else None

    @property
    def session(self) -> str:
        return self._store.session

    def offer(self, now_ns: int) -> bool:
        if self._state is _State.FINISHED:
            return False
        if not self._is_block_done():
            return self._offer_block(now_ns)
        if self._state is _State.ENDING:
            return self._offer_end(now_ns)
        if self._source.is_over:
            self._end_session(now_ns)
            return True
        limit = self._message_limit(now_ns)
        block = self._source.next_block(limit, now_ns - self._began_ns) if limit > 0 else None
        if block is None or len(block) == 0:
            return self._offer_heartbeat(now_ns)
        self._take_block(block)
        return self._offer_block(now_ns)

    def wake_ns(self, now_ns: int) -> int:
        if self._state is not _State.PUBLISHING or not self._is_block_done():
            return now_ns + 1_000_000
        rate = self._config.rate
        if rate.per_second is None:
            return now_ns + (0 if not self._is_paced_by_file else 1_000_000)
        next_ns = self._offered_ns + min(max(rate.gap_ns, _PACE_NS), _WAKE_NS)
        return max(next_ns, now_ns + _PACE_NS)  # woken in vain, at a trickle: sleep on rather than spin

    def start_clock(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._offered_ns = now_ns

    def is_flushing(self, now_ns: int) -> bool:
        is_quiet = now_ns - self._offered_ns >= self._config.heartbeat_ns
        return self._state is not _State.PUBLISHING or is_quiet

    def stop(self, now_ns: int) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._state is _State.ENDING:
            self._ends_ns = now_ns  # the end has been announced, and whoever stops us knows best
        elif self._is_block_done():
            self._end_session(now_ns)

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]:
        packet = self._server.on_request(request, client, now_ns)
        return [] if packet is None else [packet]

    def session_reports(self) -> list[SessionReport]:
        is_open = self._state is _State.PUBLISHING
        return [*self._reports, self._session_report()] if is_open else list(self._reports)

    def request_report(self) -> dict[str, Any]:
        return asdict(self._server.counters)

    def warnings(self) -> list[str]:
        return list(self._warnings)

    def close(self) -> None:
        self._source.close()

    def _begin_session(self, now_ns: int) -> None:
        config = self._config
        index = len(self._reports)
        self._store = MemoryStore(config.session_name(index), retain_bytes=config.store_bytes)
        self._stores.append(self._store)
        self._server.add_session(self._store)
        if len(self._stores) > _SESSIONS_KEPT:
            self._server.remove_session(self._stores.pop(0).session)
        self._session = session_bytes(self._store.session)
        if index:
            self._source.close()
        self._source: MessageSource = _open_source(config, index)
        self._is_paced_by_file = isinstance(config.source, Play) and config.source.speed is not None
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._began_ns = now_ns
        self._offered = 0  # messages of this session
        self._offered_bytes = 0
        self._lost_everywhere = 0
        self._offered_ns = now_ns
        self._block: FlowBlock | None = None
        self._block_done = [0] * len(self._lines)  # blocks that each line has taken
        self._ends_ns = 0
        self._end_due_ns = 0
        self._state = _State.PUBLISHING

    def _message_limit(self, now_ns: int) -> int:
        rate = self._config.rate
        if rate.per_second is None:
            return BATCH_MESSAGES
        late = rate.due(now_ns - self._began_ns) - self._offered
        is_too_soon = now_ns - self._offered_ns < _PACE_NS and late < BATCH_MESSAGES
        return 0 if is_too_soon else min(late, BATCH_MESSAGES)

    def _take_block(self, block: FlowBlock) -> None:
        self._block = block
        self._block_done = [0] * len(self._lines)
        self._store.append_block(block.messages)
        self._digest.update(block.data.data)
        self._offered += len(block)
        self._offered_bytes += block.data.size

    def _is_block_done(self) -> bool:
        return self._block is None or all(done == len(self._block) for done in self._block_done)

    def _offer_block(self, now_ns: int) -> bool:
        """Offer the present block to every line that has room; return whether any had."""
        assert self._block is not None
        block = self._block
        taken = 0
        for number, line in enumerate(self._lines):
            done = self._block_done[number]
            if done < len(block):
                self._block_done[number] += line.offer_blocks(
                    self._session, block.first_sequence, block.data, block.offsets, done, now_ns
                )
                taken += self._block_done[number] - done
        if self._is_block_done():
            self._lost_everywhere += count_common([line.take_drops() for line in self._lines])
        self._offered_ns = now_ns
        if self._is_stopping and self._is_block_done():
            self._end_session(now_ns)
        return taken > 0

    def _offer_heartbeat(self, now_ns: int) -> bool:
        if now_ns - self._offered_ns < self._config.heartbeat_ns:
            return False
        self._offer_to_all(encode_heartbeat(self._session, self._offered + 1), now_ns)
        return True

    def _offer_to_all(self, packet: bytes, now_ns: int) -> None:
        for line in self._lines:
            line.offer_packet(packet, now_ns)  # a line without room is busy, and needs no sign of life
        self._offered_ns = now_ns

    def _end_session(self, now_ns: int) -> None:
        self._store.end()
        self._reports.append(self._session_report())
        self._warnings += self._source.warnings()
        self._offered = 0
        self._ends_ns = now_ns + self._config.end_ns
        self._end_due_ns = now_ns
        self._state = _State.ENDING

    def _offer_end(self, now_ns: int) -> bool:
        if now_ns >= self._end_due_ns:
            self._end_due_ns = now_ns + END_REPEAT_NS
            next_sequence = self._reports[-1].message_count + 1
            self._offer_to_all(encode_end_of_session(self._session, next_sequence), now_ns)
            return True
        if now_ns >= self._ends_ns:
            if len(self._reports) < self._config.session_count and not self._is_stopping:
                self._begin_session(now_ns)
            else:
                self._state = _State.FINISHED
            return True
        return False

    def _session_report(self) -> SessionReport:
        return SessionReport(
            self._store.session,
            self._offered,
            self._offered_bytes,
            self._digest.hexdigest(),
            self._lost_everywhere,
        )


def count_common(ranges: Sequence[Sequence[tuple[int, int]]]) -> int:
    """Return how many numbers are in all of one or two lists of ascending, half-open ranges."""
    first, last = ranges[0], ranges[-1]
    count = place = 0
    for begin, end in first:
        while place < len(last) and last[place][1] <= begin:
            place += 1
        at = place
        while at < len(last) and last[at][0] < end:
            count += min(end, last[at][1]) - max(begin, last[at][0])
            at += 1
    return count


def _open_source(config: ExchangeConfig, index: int) -> MessageSource:
    source = config.source
    if isinstance(source, Play):
        return DayFileSource(source)
    day = FlowConfig(
        source.seed + index, source.message_count, source.symbol_count, source.open_orders, source.has_breaker
    )
    return FlowSource(day, uses_wall_clock=config.uses_wall_clock, rate=config.rate)
