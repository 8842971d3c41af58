"""Large files seen through a window that moves: memory is bounded by the window, not by the file.

A regular file is mapped, privately, so that kernels may write into what they see without touching the file,
and pages behind the window are given back. Anything else (a gzip file, a pipe) is read into one buffer whose
rest moves to its front. Either way a window is bytes [begin, end) of an array and says where that array
begins in the (unpacked) file.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

import numpy as np

from feeds.errors import ConfigError
from feeds.file_source import DamagedStream, GzipSource, PlainSource, open_source
from feeds.formats import ByteArray

WINDOW_BYTES_DEFAULT = 4 << 20
WINDOW_BYTES_MIN = 1 << 17  # two of the largest blocks that a 16-bit length allows
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes [begin, end) of `data`; data[0] is byte `base` of the file."""

    data: ByteArray
    begin: int
    end: int
    base: int
    is_last: bool  # nothing of the file lies behind the window


class FileWindows(Protocol):
    """A file as windows, asked for in order: `window(position)` forgets what lies before it."""

    damage: str  # why the bytes end before the file's content does, once that is seen; else empty

    def window(self, position: int) -> Window: ...

    def unread_bytes(self, position: int) -> int:
        """Return how many bytes lie behind `position`; of a stream, how many of them have come so far."""

    def progress(self) -> float | None:
        """Return how much of the file has been seen, 0.0 to 1.0, or None where its end is not known."""

    def close(self) -> None: ...


def open_windows(path: Path, window_bytes: int = WINDOW_BYTES_DEFAULT) -> FileWindows:
    """Return `path` as windows of at most `window_bytes`: mapped if it is a plain file, else streamed."""
    if window_bytes < WINDOW_BYTES_MIN:
        raise ConfigError(f"window_bytes must be {WINDOW_BYTES_MIN} or more, was {window_bytes}")
    file = path.open("rb", buffering=0)
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return StreamWindows(file, None, window_bytes)
        if os.pread(file.fileno(), len(_GZIP_MAGIC), 0) == _GZIP_MAGIC:
            return StreamWindows(file, status.st_size, window_bytes)
        windows = MappedWindows(file, status.st_size, window_bytes)
    except BaseException:
        file.close()
        raise
    file.close()  # a map outlives its descriptor
    return windows


class MappedWindows:
    """A regular file, mapped as a whole. Should another process shrink it meanwhile, the kernel ends us."""

    def __init__(self, file: FileIO, file_bytes: int, window_bytes: int) -> None:
        self.damage = ""
        self._file_bytes = file_bytes
        self._window_bytes = window_bytes
        self._seen_bytes = 0
        self._released_bytes = 0
        self._map: mmap.mmap | None = None
        self._data = np.zeros(0, dtype=np.uint8)
        if file_bytes:
            self._map = mmap.mmap(file.fileno(), file_bytes, access=mmap.ACCESS_COPY)
            self._map.madvise(mmap.MADV_SEQUENTIAL)
            self._data = np.frombuffer(self._map, dtype=np.uint8)

    def window(self, position: int) -> Window:
        end = min(position + self._window_bytes, self._file_bytes)
        self._release(position)
        self._seen_bytes = end
        return Window(self._data, position, end, 0, end == self._file_bytes)

    def unread_bytes(self, position: int) -> int:
        return self._file_bytes - position

    def _release(self, position: int) -> None:
        """Give back the pages that lie wholly before `position`; touched again, they come from the file."""
        end = position - position % mmap.PAGESIZE
        if self._map is not None and end > self._released_bytes:
            self._map.madvise(mmap.MADV_DONTNEED, self._released_bytes, end - self._released_bytes)
            self._released_bytes = end

    def progress(self) -> float | None:
        return self._seen_bytes / self._file_bytes if self._file_bytes else 1.0

    def close(self) -> None:
        # The map itself goes when the last array over it does: closing it under a reader would be a crash.
        self._data = np.zeros(0, dtype=np.uint8)
        self._map = None


class StreamWindows:
    """Bytes that come one after the other, in one buffer of the window's size."""

    def __init__(self, file: FileIO, file_bytes: int | None, window_bytes: int) -> None:
        self.damage = ""
        self._file = file
        self._file_bytes = file_bytes
        self._source: PlainSource | GzipSource = open_source(file)
        self._data = np.zeros(window_bytes, dtype=np.uint8)
        self._base = 0  # of data[0] in the unpacked file
        self._filled_bytes = 0
        self._is_at_end = False

    def window(self, position: int) -> Window:
        used_bytes = position - self._base
        assert 0 <= used_bytes <= self._filled_bytes, "windows must be asked for in order"
        rest_bytes = self._filled_bytes - used_bytes
        self._data[:rest_bytes] = self._data[used_bytes : self._filled_bytes].copy()
        self._base = position
        self._filled_bytes = rest_bytes
        self._fill()
        return Window(self._data, 0, self._filled_bytes, position, self._is_at_end)

    def _fill(self) -> None:
        view = self._data.data
        while self._filled_bytes < len(view) and not self._is_at_end:
            try:
                piece_bytes = self._source.read_into(view[self._filled_bytes :])
            except DamagedStream as error:
                self.damage = str(error)  # what came before it is good; whoever reaches the end is told
                piece_bytes = 0
            self._filled_bytes += piece_bytes
            self._is_at_end = piece_bytes == 0
        if self._is_at_end:
            self.damage = self.damage or self._source.cut_reason

    def unread_bytes(self, position: int) -> int:
        return self._base + self._filled_bytes - position

    def progress(self) -> float | None:
        return self._file.tell() / self._file_bytes if self._file_bytes else None

    def close(self) -> None:
        self._source.close()
