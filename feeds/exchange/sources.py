"""Where the simulated exchange's messages come from: a simulated day, or a recorded day file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

import numpy as np

from feeds import itch50
from feeds.dayfile import DayFile
from feeds.errors import SourceError
from feeds.exchange.config import Play, Rate
from feeds.exchange.lines import find_blocks
from feeds.exchange.lines_kernels import count_until_kernel
from feeds.formats import ByteArray, IntArray
from feeds.order_flow.flow import FlowBlock, FlowConfig, OrderFlow, warm_up_flow
from feeds.session_time import midnight_ns

_CHUNK_MESSAGES = 1 << 14


class MessageSource(Protocol):
    """Messages of one session, in order, each given out once."""

    @property
    def is_over(self) -> bool: ...

    def next_block(self, message_limit: int, elapsed_ns: int) -> FlowBlock:
        """Return what may go after so long, at most so many; possibly nothing. Valid until the next call."""
        ...

    def warnings(self) -> list[str]:
        """Return what a person should know about the source, at its end."""
        ...

    def close(self) -> None: ...


class FlowSource:
    """A simulated day."""

    def __init__(self, config: FlowConfig, *, uses_wall_clock: bool, rate: Rate) -> None:
        warm_up_flow()  # so that the first messages do not wait for the compiler
        self.flow = OrderFlow(config)
        self._gap_ns = rate.gap_ns if uses_wall_clock else 0
        self._midnight_ns = _midnight_now_ns() if uses_wall_clock else 0

    @property
    def is_over(self) -> bool:
        return self.flow.is_over

    def next_block(self, message_limit: int, elapsed_ns: int) -> FlowBlock:  # noqa: ARG002 - the rate decides
        if self._gap_ns:
            self.flow.set_clock(time.time_ns() - self._midnight_ns, self._gap_ns)
        return self.flow.next_block(message_limit)

    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class DayFileSource:
    """A recorded day file, by the times in its messages or as fast as it is asked for."""

    def __init__(self, play: Play) -> None:
        # The date matters to decoding only, so none is asked for. An end that is not clean is told at last.
        self._file = DayFile(play.path, itch50.FORMAT, is_strict=False)
        self._speed = play.speed
        self._blocks = self._file.blocks(_CHUNK_MESSAGES)
        self._data: ByteArray = np.zeros(0, np.uint8)
        self._offsets: IntArray = np.zeros(1, np.int64)
        self._next = 0  # block of this chunk that goes next
        self._sequence = 1
        self._first_ns = -1
        self._is_read = False
        self._refill()
        if self._is_read:
            self._file.close()
            raise SourceError(f"{play.path}: no message in it can be played: {self._file.ending}")

    @property
    def is_over(self) -> bool:
        return self._is_read

    def next_block(self, message_limit: int, elapsed_ns: int) -> FlowBlock:
        begin = self._next
        end = min(begin + message_limit, self._offsets.size - 1)
        if self._speed is not None:
            until_ns = self._first_ns + int(elapsed_ns * self._speed)
            end = begin + count_until_kernel(self._data, self._offsets, begin, end, until_ns)
        first_byte = int(self._offsets[begin])
        block = FlowBlock(
            self._sequence,
            self._data[first_byte : int(self._offsets[end])],
            self._offsets[begin : end + 1] - first_byte,
        )
        self._next = end
        self._sequence += end - begin
        if self._next == self._offsets.size - 1:
            self._refill()
        return block

    def warnings(self) -> list[str]:
        ending = self._file.ending
        return [] if ending is None or ending.is_clean else [f"{self._file.path.name}: {ending}"]

    def close(self) -> None:
        self._file.close()

    def _refill(self) -> None:
        chunk = next(self._blocks, None)
        if chunk is None:
            self._is_read = True
            self._file.close()
            return
        # A copy of our own: the file's window moves on, and the block before must stay valid meanwhile.
        self._data = chunk.data[chunk.begin : chunk.end].copy()
        self._offsets = find_blocks(self._data)
        self._next = 0
        if self._first_ns < 0:
            self._first_ns = int.from_bytes(self._data[7:13].tobytes(), "big")


def _midnight_now_ns() -> int:
    """Return when today began at the exchange."""
    today = datetime.now(UTC).astimezone(ZoneInfo(itch50.FORMAT.time_zone)).date()
    return midnight_ns(today, itch50.FORMAT.time_zone)
