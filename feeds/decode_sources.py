"""Where `twintape decode` gets its frames from: a day file, or a capture of the exchange's lines.

Both are read in bounded memory and both tell at the end what was wrong with them, in sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Protocol

import numpy as np

from feeds import formats as f
from feeds.dayfile import DayFile, DayFileError, Lengths
from feeds.decoder import Decoder
from feeds.errors import SourceError
from feeds.file_source import open_source
from feeds.lines.events import Line, LineEvent, Lost, SessionEnded, SessionRolled
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.pcap.reader import PcapReader, open_datagrams
from feeds.wire import FrameArray

STREAM_ID = 1
CAPTURE_SLOT_BYTES = 9_216  # captures may hold jumbo frames
LOSSES_TOLD = 20
_CAPTURE_MAGICS = frozenset(
    bytes.fromhex(magic) for magic in ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a")
)


class FrameSource(Protocol):
    """Frames from a file, the decoder that made them, and what there is to say about the file."""

    decoder: Decoder

    def frames(self) -> Iterator[FrameArray]: ...

    def progress(self) -> float | None: ...

    def findings(self) -> list[str]:
        """Return what a person should know about the file, once all frames have been taken."""

    @property
    def fault(self) -> SourceError | None:
        """What makes the file unusable from some point on, once all frames have been taken."""

    def close(self) -> None: ...


def is_capture(path: Path) -> bool:
    """Return whether a file (or what is in it, if it is packed) begins like pcap or pcapng."""
    with path.open("rb", buffering=0) as file:
        if not path.is_file():
            return False  # looking at a pipe would take its first bytes away
        source = open_source(file)
        head = bytearray(4)
        filled = 0
        while filled < len(head) and (count := source.read_into(memoryview(head)[filled:])):
            filled += count
        return bytes(head) in _CAPTURE_MAGICS


class DayFileSource:
    """The messages of a day file."""

    def __init__(
        self, path: Path, exchange: f.ExchangeFormat, session_date: date | None, lengths: Lengths
    ) -> None:
        self._day = DayFile(
            path,
            exchange,
            session_date=session_date,
            stream_id=STREAM_ID,
            lengths=lengths,
            is_strict=False,
        )
        try:
            self.decoder = self._day.decoder
        except BaseException:
            self._day.close()
            raise

    def frames(self) -> Iterator[FrameArray]:
        return self._day.frames()

    def progress(self) -> float | None:
        return self._day.progress()

    def findings(self) -> list[str]:
        ending = self._day.ending
        return [str(ending)] if ending is not None else []

    @property
    def fault(self) -> SourceError | None:
        ending = self._day.ending
        return None if ending is None or ending.is_clean else DayFileError(self._day.path, ending)

    def close(self) -> None:
        self._day.close()


class CaptureSource:
    """The messages of a capture, arbitrated as if its packets came from the wire."""

    def __init__(self, path: Path, exchange: f.ExchangeFormat | None, session_date: date | None) -> None:
        self.exchange = exchange if exchange is not None else guess_format(path)
        self._path = path
        self._capture: PcapReader = open_datagrams(path)
        lines = LineConfig(slot_bytes=CAPTURE_SLOT_BYTES)
        self._receiver = LineReceiver(
            self.exchange, STREAM_ID, ReceiverConfig(lines=lines, session_date=session_date)
        )
        self.decoder: Decoder = self._receiver.decoder
        self._fault: SourceError | None = None
        self._losses: list[Lost] = []
        self._lost_count = 0
        self._events: Counter[type[LineEvent]] = Counter()

    def frames(self) -> Iterator[FrameArray]:
        now_ns = 0
        try:
            for batch in self._capture:
                now_ns = int(batch.datagrams[-1, f.DATAGRAM_TIME_NS])
                yield from self._receiver.frames_of(batch.arena, batch.datagrams)
                self._take_events()
        except SourceError as error:
            self._fault = error  # what came before the damage is still delivered
        yield from self._receiver.frames_at_end(now_ns)
        self._take_events()

    def _take_events(self) -> None:
        for event in self._receiver.take_events():
            self._events[type(event)] += 1
            if isinstance(event, Lost):
                self._lost_count += event.last - event.first + 1
                if len(self._losses) < LOSSES_TOLD:
                    self._losses.append(event)

    def progress(self) -> float | None:
        return None

    def findings(self) -> list[str]:
        counts = self._capture.counts
        line = self._receiver.counts(Line.A)
        told = [f"{counts.records} packets captured, {counts.datagrams} of them datagrams of UDP"]
        told.append(f"{line.messages} messages and {line.heartbeats} heartbeats in {line.packets} packets")
        told += [
            f"{count} datagrams refused: {reason}" for reason, count in line.bad_packets.items() if count
        ]
        if counts.truncated:
            told.append(f"{counts.truncated} datagrams were cut short by the capture")
        if line.duplicate:
            told.append(f"{line.duplicate} messages came twice")
        if self._events[SessionRolled] or self._events[SessionEnded]:
            rolled, ended = self._events[SessionRolled], self._events[SessionEnded]
            told.append(f"{rolled} changes of session, {ended} sessions ended")
        if self._lost_count:
            told.append(f"{self._lost_count} messages are missing from the capture")
            told += [f"messages {loss.first} to {loss.last} are missing" for loss in self._losses]
        if self._capture.cut is not None:
            told.append(f"the capture was {self._capture.cut}")
        return told

    @property
    def fault(self) -> SourceError | None:
        line = self._receiver.counts(Line.A)
        if self._fault is None and line.packets and sum(line.bad_packets.values()) == line.packets:
            title = self.exchange.title
            return SourceError(f"{self._path.name}: none of its {line.packets} packets is of {title}")
        return self._fault

    def close(self) -> None:
        self._receiver.close()
        self._capture.close()


def guess_format(path: Path) -> f.ExchangeFormat:
    """Return the format whose line protocol fits the first packets of a capture, else a SourceError."""
    with open_datagrams(path, batch_datagrams=256) as capture:
        batch = capture.read_batch()
    if batch is None:
        raise SourceError(f"{path.name}: no UDP datagrams in it")
    count = batch.datagrams.shape[0]
    bad_counts = {}
    for name in f.names():
        exchange = f.load(name)
        packets = np.zeros((count, f.PACKET_FIELDS), dtype=np.int64)
        state = np.zeros(exchange.transport_state_size, dtype=np.int64)
        bad_counts[name] = exchange.parse_packets_kernel(batch.arena, batch.datagrams, count, state, packets)
    best = min(bad_counts, key=lambda name: bad_counts[name])
    if bad_counts[best] * 2 > count:
        raise SourceError(
            f"{path.name}: its packets are of none of the protocols we know ({', '.join(bad_counts)}); "
            "name the format if it is one of them"
        )
    return f.load(best)
