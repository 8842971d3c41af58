"""Day files: an exchange's messages one behind the other, each with its length in two bytes before it.

Nasdaq calls them BinaryFILE. A zero length is the end of the session; whatever follows it, a message that
runs over the end of the file, or a gzip file cut in the middle is told with its position once everything
before it has been delivered, and never guessed at. Files without lengths (two zero bytes before every
message) are refused like that too, unless `Lengths.BY_TYPE` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from feeds import formats as f
from feeds.dayfile_kernels import (
    PREFIX_BYTES,
    STOP_UNKNOWN_TYPE,
    WALK_BLOCKS,
    WALK_FIELDS,
    WALK_POSITION,
    WALK_STOPPED,
    restore_lengths_kernel,
    walk_blocks_kernel,
)
from feeds.decoder import FRAME_CAPACITY_DEFAULT, Decoder, new_runs
from feeds.errors import ConfigError, SourceError
from feeds.file_windows import WINDOW_BYTES_DEFAULT, FileWindows, Window, open_windows
from feeds.session_time import midnight_ns, session_date_of_name, session_of_date
from feeds.wire import FrameArray


class Lengths(StrEnum):
    """Where the length of a message comes from."""

    PREFIXED = "prefixed"  # the two bytes before it
    BY_TYPE = "by-type"  # its type letter, whatever the two bytes say


class EndingKind(Enum):
    WHOLE = "the last message ends with the file"
    MARKED = "a zero length ends the session"
    TRAILING = "a zero length ends the session, but bytes follow"
    CUT_SHORT = "the last message is cut short"
    UNKNOWN_TYPE = "a type letter that has no length"
    DAMAGED = "the compressed data breaks off"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a day file ended."""

    kind: EndingKind
    position: int  # of the length at which reading ended, in the unpacked file
    trailing_bytes: int  # behind the last message or the end marker (of a stream: those seen so far)
    message_count: int
    detail: str = ""

    @property
    def is_clean(self) -> bool:
        return self.kind in (EndingKind.WHOLE, EndingKind.MARKED)

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"{self.kind.value}{detail}: at byte {self.position}, after {self.message_count} messages, "
            f"with {self.trailing_bytes} bytes left"
        )


class DayFileError(SourceError):
    """A day file does not end as one should. Everything before `ending.position` was delivered."""

    def __init__(self, path: Path, ending: Ending) -> None:
        self.path = path
        self.ending = ending
        super().__init__(f"{path.name}: {ending}")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole blocks, length and message, in `data[begin:end]`; valid until the next step."""

    data: f.ByteArray
    begin: int
    end: int
    first_seq: int
    message_count: int


class DayFile:
    """One day file, read once from its beginning: as frames, or as blocks for playing it.

    An ending that is not clean raises DayFileError after the last batch; with `is_strict=False` it does not,
    and `ending` tells.
    """

    def __init__(
        self,
        path: str | Path,
        exchange_format: f.ExchangeFormat,
        *,
        session_date: date | None = None,
        stream_id: int = 1,
        lengths: Lengths | str = Lengths.PREFIXED,
        is_strict: bool = True,
        frame_capacity: int = FRAME_CAPACITY_DEFAULT,
        window_bytes: int = WINDOW_BYTES_DEFAULT,
    ) -> None:
        if lengths not in tuple(Lengths):
            raise ConfigError(f"lengths must be {' or '.join(Lengths)}, was {lengths!r}")
        self.path = Path(path)
        self.format = exchange_format
        self.ending: Ending | None = None
        self._session_date = session_date
        self._stream_id = stream_id
        self._lengths = Lengths(lengths)
        self._is_strict = is_strict
        self._frame_capacity = frame_capacity
        self._is_started = False
        self._walk = np.zeros(WALK_FIELDS, dtype=np.int64)
        self._sizes = np.zeros(f.TYPE_COUNT, dtype=np.int64)
        for message in exchange_format.message_types:
            self._sizes[message.letter[0]] = message.size
        self._windows: FileWindows = open_windows(self.path, window_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._windows.close()

    @cached_property
    def session_date(self) -> date:
        """The date given, or the one in the file's name; neither is a ConfigError."""
        return self._session_date or session_date_of_name(self.path)

    @cached_property
    def decoder(self) -> Decoder:
        """What `frames` decodes with: its counts, problems and symbols."""
        return Decoder(
            self.format,
            self._stream_id,
            midnight_ns=midnight_ns(self.session_date, self.format.time_zone),
            frame_capacity=self._frame_capacity,
        )

    def progress(self) -> float | None:
        """Return how much of the file has been read, 0.0 to 1.0, or None where that cannot be known."""
        return self._windows.progress()

    def frames(self) -> Iterator[FrameArray]:
        """Return an iterator over all messages as frames, in batches that the next step overwrites."""
        decoder = self.decoder  # a missing date is told now and not at the first step
        self._start()
        return self._frames(decoder, session_of_date(self.session_date))

    def blocks(self, message_limit: int = 1 << 16) -> Iterator[Blocks]:
        """Return an iterator over the messages as they are, at most `message_limit` of them at a time."""
        if message_limit < 1:
            raise ConfigError(f"message_limit must be 1 or more, was {message_limit}")
        self._start()
        return self._blocks(message_limit)

    def _start(self) -> None:
        if self._is_started:
            raise ConfigError(f"{self.path.name} is read once; open it again to read it again")
        self._is_started = True

    def _frames(self, decoder: Decoder, source_session: int) -> Iterator[FrameArray]:
        runs = new_runs(1)
        position = 0
        while self.ending is None:
            window = self._windows.window(position)
            end, stopped = self._restore_lengths(window)
            runs[0, f.RUN_OFFSET] = window.begin
            runs[0, f.RUN_BYTES] = end - window.begin
            runs[0, f.RUN_SEQ] = decoder.message_count + 1
            runs[0, f.RUN_COUNT] = -1
            runs[0, f.RUN_SESSION] = source_session
            yield from decoder.decode(window.data, runs, position_base=window.base)
            position = window.base + end
            if decoder.stop is not None:
                position, stopped = decoder.stop.position, decoder.stop.reason
            self.ending = self._ending(window, position, stopped, decoder.message_count)
        self._finish(self.ending)

    def _blocks(self, message_limit: int) -> Iterator[Blocks]:
        position = 0
        message_count = 0
        while self.ending is None:
            window = self._windows.window(position)
            end, stopped = self._restore_lengths(window)
            begin = window.begin
            while begin < end:
                walk = self._walk
                is_big_endian = self.format.is_prefix_big_endian
                walk_blocks_kernel(window.data, begin, end, message_limit, is_big_endian, walk)
                found = int(walk[WALK_BLOCKS])
                if found:
                    yield Blocks(window.data, begin, int(walk[WALK_POSITION]), message_count + 1, found)
                message_count += found
                begin = int(walk[WALK_POSITION])
                if walk[WALK_STOPPED] != f.STOP_NONE:
                    stopped = int(walk[WALK_STOPPED])
                    break
            position = window.base + begin
            self.ending = self._ending(window, position, stopped, message_count)
        self._finish(self.ending)

    def _restore_lengths(self, window: Window) -> tuple[int, int]:
        """Return where the usable blocks of a window end, and why; write their lengths if they have none."""
        if self._lengths is Lengths.PREFIXED:
            return window.end, f.STOP_NONE
        walk = self._walk
        is_big_endian = self.format.is_prefix_big_endian
        restore_lengths_kernel(window.data, window.begin, window.end, self._sizes, is_big_endian, walk)
        return int(walk[WALK_POSITION]), int(walk[WALK_STOPPED])

    def _ending(self, window: Window, position: int, stopped: int, message_count: int) -> Ending | None:
        """Return how the file ended, if it did in this window; else None: the next begins at `position`."""
        is_cut = stopped == f.STOP_CUT_SHORT
        if (stopped == f.STOP_NONE or is_cut) and not window.is_last:
            return None
        if stopped == f.STOP_ZERO_LENGTH and not window.is_last:
            window = self._windows.window(position)  # a stream may end with this window and not know it yet
        unread_bytes = self._windows.unread_bytes(position)
        detail = ""
        if stopped == f.STOP_ZERO_LENGTH:
            unread_bytes -= PREFIX_BYTES  # the marker itself was read
            is_over = unread_bytes == 0 and window.is_last
            kind = EndingKind.MARKED if is_over else EndingKind.TRAILING
        elif stopped == STOP_UNKNOWN_TYPE:
            kind = EndingKind.UNKNOWN_TYPE
            letter = int(window.data[position - window.base + PREFIX_BYTES])
            detail = f"{letter:#04x}"
        elif self._windows.damage:
            kind = EndingKind.DAMAGED
            detail = self._windows.damage
        else:
            kind = EndingKind.CUT_SHORT if is_cut else EndingKind.WHOLE
        return Ending(kind, position, unread_bytes, message_count, detail)

    def _finish(self, ending: Ending) -> None:
        if self._is_strict and not ending.is_clean:
            raise DayFileError(self.path, ending)
