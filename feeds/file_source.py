"""The bytes of a capture file, plain or gzip, in pieces: everything that can be read, then how it ended.

gzip is inflated here and not by Python's gzip module because of damaged files: that module loses what it had
inflated when it meets the damage, and all before the damage must be delivered.
"""

from __future__ import annotations

import zlib
from typing import Protocol

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: expect a gzip header, largest window
_PIECE_BYTES = 64 << 10  # of compressed data


class ByteStream(Protocol):
    """What a capture is read from: a file opened in binary, io.BytesIO, a pipe."""

    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def close(self) -> None: ...


class DamagedStream(Exception):
    """The compressed data cannot be inflated any further. All that could be has been delivered."""


class PlainSource:
    """The file as it is; the first bytes may have been read already."""

    cut_reason = ""  # only a compressed stream knows where it should have ended

    def __init__(self, stream: ByteStream, head: bytes = b"") -> None:
        self._stream = stream
        self._head = head

    def read_into(self, view: memoryview) -> int:
        """Fill some of `view` and return how many bytes that were; 0 at the end."""
        if self._head:
            count = min(len(self._head), len(view))
            view[:count] = self._head[:count]
            self._head = self._head[count:]
            return count
        return self._stream.readinto(view) or 0

    def close(self) -> None:
        self._stream.close()


class GzipSource:
    """The content of a gzip file of one or several members."""

    def __init__(self, compressed: PlainSource) -> None:
        self.cut_reason = ""
        self._compressed = compressed
        self._piece = bytearray(_PIECE_BYTES)
        self._waiting = b""  # read but not inflated yet
        self._inflater = zlib.decompressobj(_GZIP_WINDOW)
        self._damage: zlib.error | None = None

    def read_into(self, view: memoryview) -> int:
        """Fill some of `view` and return how many bytes that were; 0 at the end. Raises DamagedStream."""
        while True:
            if self._damage is not None:
                raise DamagedStream(str(self._damage))
            if not self._waiting and not self._read_compressed():
                return 0
            if self._inflater.eof:
                if not self._begin_member():
                    return 0
                continue
            content = self._inflate(len(view))
            if content:
                view[: len(content)] = content
                return len(content)

    def close(self) -> None:
        self._compressed.close()

    def _read_compressed(self) -> bool:
        count = self._compressed.read_into(memoryview(self._piece))
        self._waiting = bytes(self._piece[:count])
        if not count and not self._inflater.eof:
            self.cut_reason = "the compressed stream ends before its end mark"
        return count > 0

    def _begin_member(self) -> bool:
        """Go on behind the end of a member: with another one, or with zeros that pad the file."""
        self._waiting = self._waiting.lstrip(b"\0")
        while not self._waiting:
            if not self._read_compressed():
                return False
            self._waiting = self._waiting.lstrip(b"\0")
        if _GZIP_MAGIC.startswith(self._waiting[: len(_GZIP_MAGIC)]):
            self._inflater = zlib.decompressobj(_GZIP_WINDOW)
        else:
            self._damage = zlib.error("bytes behind the end of the gzip data")
        return True

    def _inflate(self, limit: int) -> bytes:
        before = self._inflater.copy()
        try:
            content = self._inflater.decompress(self._waiting, limit)
        except zlib.error as error:
            self._damage = error
            return _inflate_until_damage(before, self._waiting, limit)
        self._waiting = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        return content


def _inflate_until_damage(inflater: zlib._Decompress, compressed: bytes, limit: int) -> bytes:
    """Return what can be inflated before the damage, found by going on one byte at a time."""
    pieces = []
    room = limit  # never used up: the whole of it would have been inflated without meeting the damage
    for index in range(len(compressed)):
        try:
            piece = inflater.decompress(compressed[index : index + 1], room)
        except zlib.error:
            break
        pieces.append(piece)
        room -= len(piece)
        if room == 0:
            break
    return b"".join(pieces)


def open_source(stream: ByteStream) -> PlainSource | GzipSource:
    """Return the source for `stream`, by its first two bytes."""
    head = bytearray(len(_GZIP_MAGIC))
    filled = 0
    while filled < len(head):
        count = stream.readinto(memoryview(head)[filled:])
        if not count:
            break
        filled += count
    plain = PlainSource(stream, bytes(head[:filled]))
    return GzipSource(plain) if head == _GZIP_MAGIC else plain
