"""Playing a capture: its packets as they are, in their own protocol, with re-requests answered from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from feeds import formats as f
from feeds.errors import FeedError
from feeds.exchange.config import ExchangeConfig, Play
from feeds.exchange.history import CaptureHistory, history_of
from feeds.exchange.lines import ExchangeLine
from feeds.exchange.programs import SessionReport
from feeds.order_flow.flow import DIGEST_BYTES
from feeds.pcap.reader import open_datagrams

_BATCH_PACKETS = 256  # taken in at once: re-requests wait meanwhile
_QUIET_NS = 100_000_000  # after this, overtaken packets wait no longer


class CaptureProgram:
    """The packets of a capture, as they are, at the times they have or as fast as the lines take them."""

    def __init__(self, config: ExchangeConfig, lines: Sequence[ExchangeLine], now_ns: int) -> None:
        assert isinstance(config.source, Play)
        self._lines = lines
        self._speed = config.source.speed
        self._format = f.load(config.source.exchange_format)
        self._history: CaptureHistory = history_of(self._format.name, config, now_ns)
        self._reader = open_datagrams(config.source.path, batch_datagrams=_BATCH_PACKETS)
        self._transport = np.zeros(self._format.transport_state_size, np.int64)
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._name = config.source.path.name
        self._message_count = 0
        self._message_bytes = 0
        self._too_long = 0
        self._broken = 0
        self._end_ns = config.end_ns
        self._ends_ns: int | None = None
        self._is_finished = False
        self._is_stopping = False
        self._began_ns = now_ns
        self._first_ns: int | None = None
        self._arena: f.ByteArray = np.zeros(0, np.uint8)
        self._rows: f.IntArray = np.zeros((0, f.DATAGRAM_FIELDS), np.int64)
        self._counts: f.IntArray = np.zeros(0, np.int64)
        self._packet_bytes_max = min(line.slot_bytes for line in lines)
        self._done = [0] * len(lines)
        self._offered_ns = now_ns
        self._read_batch(now_ns)

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    @property
    def is_ending(self) -> bool:
        return self._ends_ns is not None

    @property
    def message_count(self) -> int:
        return self._message_count

    def offer(self, now_ns: int) -> bool:
        if self._ends_ns is not None:
            self._is_finished = now_ns >= self._ends_ns
            return False
        if min(self._done) == len(self._rows):
            self._read_batch(now_ns)
            return True
        due = self._due_rows(now_ns)
        is_offered = False
        for number, line in enumerate(self._lines):
            if self._done[number] < due:
                taken = line.offer_datagrams(
                    self._arena, self._rows[:due], self._counts, self._done[number], now_ns
                )
                self._done[number] += taken
                is_offered = is_offered or taken > 0
        if is_offered:
            self._offered_ns = now_ns
        return is_offered

    def wake_ns(self, now_ns: int) -> int:
        return now_ns + 1_000_000

    def start_clock(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._offered_ns = now_ns

    def is_flushing(self, now_ns: int) -> bool:
        return self._ends_ns is not None or now_ns - self._offered_ns >= _QUIET_NS

    def stop(self, now_ns: int) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._ends_ns is None:
            self._end(now_ns)
        else:
            self._ends_ns = now_ns

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]:
        return self._history.answer(request, client, now_ns)

    def session_reports(self) -> list[SessionReport]:
        return [SessionReport(self._name, self._message_count, self._message_bytes, self._digest.hexdigest())]

    def request_report(self) -> dict[str, Any]:
        return self._history.report()

    def warnings(self) -> list[str]:
        found = []
        if self._reader.cut is not None:
            found.append(f"{self._name}: {self._reader.cut}")
        if self._too_long:
            found.append(f"{self._name}: {self._too_long} packets are cut short or longer than a packet here")
        if self._broken:
            found.append(f"{self._name}: {self._broken} packets are not of {self._format.title}")
        return found + self._history.warnings()

    def close(self) -> None:
        self._reader.close()

    def _end(self, now_ns: int) -> None:
        """Send nothing more, and answer re-requests for a while."""
        self._ends_ns = now_ns + self._end_ns
        self._reader.close()

    def _due_rows(self, now_ns: int) -> int:
        if self._speed is None:
            return len(self._rows)
        assert self._first_ns is not None
        until_ns = self._first_ns + int((now_ns - self._began_ns) * self._speed)
        # Captures of several interfaces may step back a little; such a packet goes with the one before it.
        later = np.flatnonzero(self._rows[min(self._done) :, f.DATAGRAM_TIME_NS] > until_ns)
        return min(self._done) + int(later[0]) if later.size else len(self._rows)

    def _read_batch(self, now_ns: int) -> None:
        try:
            batch = self._reader.read_batch()
        except FeedError:
            self._reader.close()
            raise
        if batch is None:
            self._end(now_ns)
            return
        is_whole = (batch.datagrams[:, f.DATAGRAM_BYTES] > 0) & (
            batch.datagrams[:, f.DATAGRAM_BYTES] <= self._packet_bytes_max
        )
        self._too_long += int(np.count_nonzero(~is_whole))
        self._arena = batch.arena
        self._rows = np.ascontiguousarray(batch.datagrams[is_whole])
        self._done = [0] * len(self._lines)
        if self._first_ns is None and len(self._rows):
            self._first_ns = int(self._rows[0, f.DATAGRAM_TIME_NS])
        self._account()

    def _account(self) -> None:
        """Count the messages of the batch and keep them for those who will ask."""
        packets = np.zeros((len(self._rows), f.PACKET_FIELDS), np.int64)
        self._format.parse_packets_kernel(self._arena, self._rows, len(self._rows), self._transport, packets)
        is_data = packets[:, f.PACKET_KIND] == f.KIND_DATA
        self._broken += int(np.count_nonzero(packets[:, f.PACKET_KIND] == f.KIND_BAD))
        self._counts = np.where(is_data, packets[:, f.PACKET_COUNT], 0)
        self._message_count += int(self._counts.sum())
        self._message_bytes += int(packets[is_data, f.PACKET_BYTES].sum())
        for begin, size in packets[is_data][:, [f.PACKET_OFFSET, f.PACKET_BYTES]].tolist():
            self._digest.update(self._arena[begin : begin + size].data)
        for begin, size in self._rows[:, [f.DATAGRAM_OFFSET, f.DATAGRAM_BYTES]].tolist():
            self._history.keep(self._arena[begin : begin + size].tobytes())
