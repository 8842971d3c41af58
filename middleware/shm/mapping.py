"""A file in shared memory: made whole or not at all, and believed only after its header was checked.

The first page says what the file is. Nothing in it changes once the file has its name:

     0       8            16     24        28             32           40            48           56
     | magic | byte order | kind | version | header bytes | file bytes | incarnation | created ns | crc | 0
     64                                128                         192
     | geometry: eight int64, by kind  | name, padded with NULs    | zeros, to HEADER_BYTES

What follows, from `HEADER_BYTES` on, belongs to the kind: control words first, then data.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, SupportsInt

import numpy as np

from middleware.shm.atomics import Words
from middleware.shm.errors import AlreadyThere, LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.names import NAME_BYTES_MAX, checked_name

HEADER_BYTES = 4_096
LINE_WORDS = 16  # 128 bytes: two cache lines, because cores fetch them in pairs
FILE_BYTES_MAX = 1 << 40
SCRATCH_PREFIX = ".new-"

_MAGIC = b"TWINTAPE"
_BYTE_ORDER = 0x0102030405060708
_GEOMETRY_COUNT = 8
_HEADER = struct.Struct("<8sQ8sIIQQqII8q64s")
_CRC_OFFSET = 56
_DRAWN_BYTES = 192
assert _HEADER.size == _DRAWN_BYTES
assert NAME_BYTES_MAX <= 64


@dataclass(frozen=True, slots=True)
class Layout:
    """What a kind of file promises: its name, its version, and what its geometry words are called."""

    kind: str
    version: int
    geometry: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.kind.encode()) <= 8
        assert len(self.geometry) <= _GEOMETRY_COUNT


@dataclass(frozen=True, slots=True)
class Header:
    """What a checked header says. `incarnation` tells a file from another that had its name before."""

    name: str
    file_bytes: int
    incarnation: int
    created_ns: int
    geometry: Mapping[str, int]


class ReadableWords(Protocol):
    """Words of a file by index: those of a mapping, or of a file that is looked at with system calls."""

    def __getitem__(self, index: int, /) -> SupportsInt: ...


class MappedFile:
    """One open file: `words` is all of it, as int64. Unmapped when the last array over it is gone."""

    __slots__ = ("header", "path", "words")

    def __init__(self, path: Path, header: Header, words: Words) -> None:
        self.path = path
        self.header = header
        self.words = words


def create(
    path: Path,
    layout: Layout,
    name: str,
    geometry: Mapping[str, int],
    body_bytes: int,
    mode: int,
    words: Mapping[int, int] | None = None,
) -> MappedFile:
    """Make a file of zeros after its header, all its memory taken now, and give it its name last.

    `words`, by index, are those that must not be zero even for who finds the file of a maker that died at
    once. Memory that is taken later would be refused later, by a signal in the middle of a message.
    """
    checked_name(name)
    file_bytes = HEADER_BYTES + body_bytes
    if body_bytes < 0 or body_bytes % mmap.PAGESIZE or file_bytes > FILE_BYTES_MAX:
        raise ShmError(f"{path}: size must be whole pages up to {FILE_BYTES_MAX} bytes, was {file_bytes}")
    fd, scratch = _open_scratch(path)
    try:
        os.posix_fallocate(fd, 0, file_bytes)
        os.pwrite(fd, _packed(layout, name, geometry, file_bytes), 0)
        for index, value in (words or {}).items():
            assert HEADER_BYTES <= 8 * index < file_bytes
            os.pwrite(fd, struct.pack("<q", value), 8 * index)
        os.fchmod(fd, mode)
        os.link(scratch, path)  # unlike a rename, never over a file that is there already
    except FileExistsError:
        raise AlreadyThere(path) from None
    except FileNotFoundError as error:  # its directory was removed meanwhile
        raise NotFound(f"cannot make {path}: {error.strerror}") from error
    except OSError as error:
        raise ShmError(f"cannot make {path} of {file_bytes} bytes: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)
        os.close(fd)
    return open_file(path, layout, is_writable=True)


def _open_scratch(path: Path) -> tuple[int, Path]:
    """Return a new file beside `path`, locked for as long as it is being made.

    The lock tells `remove_scratch` that its maker lives; a process number would not, since in a container
    the next start has the same one.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        scratch = path.with_name(f"{SCRATCH_PREFIX}{secrets.token_hex(8)}")
        try:
            fd = os.open(scratch, flags, 0o600)
        except FileNotFoundError as error:
            raise NotFound(f"cannot make {path}: {error.strerror}") from error
        except PermissionError as error:
            raise PermissionsError(f"cannot make {path}: {error.strerror}") from error
        except OSError as error:
            raise ShmError(f"cannot make {path}: {error.strerror}") from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, scratch
        os.close(fd)  # removed as a dead one's, between its making and its lock


def open_file(path: Path, layout: Layout, *, is_writable: bool) -> MappedFile:
    """Check a file against its layout and map it; whatever does not match is a LayoutError that says what."""
    fd, header = open_checked(path, layout, os.O_RDWR if is_writable else os.O_RDONLY)
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # page faults now, not in the middle of a message
        memory = mmap.mmap(fd, header.file_bytes, flags=flags, prot=protection)
    except OSError as error:
        raise ShmError(f"cannot map {path} of {header.file_bytes} bytes: {error.strerror}") from error
    finally:
        os.close(fd)
    return MappedFile(path, header, np.frombuffer(memory, dtype=np.int64))


def read_header(path: Path, layout: Layout) -> Header:
    """Check a file's header without mapping it."""
    fd, header = open_checked(path, layout, os.O_RDONLY)
    os.close(fd)
    return header


def open_checked(path: Path, layout: Layout, access: int) -> tuple[int, Header]:
    """Return a file, open, and its header, which is as it must be. A FIFO in its place is not waited for."""
    try:
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except PermissionError as error:
        raise PermissionsError(f"cannot open {path}: {error.strerror}") from error
    except OSError as error:
        raise LayoutError(path, "file", error.strerror, "a regular file") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise LayoutError(path, "file", stat.filemode(status.st_mode), "a regular file")
        return fd, _checked(path, os.pread(fd, HEADER_BYTES, 0), layout, status.st_size)
    except BaseException:
        os.close(fd)
        raise


def remove_scratch(directory: Path) -> list[str]:
    """Remove files that were being made by processes which died before naming them; return their names."""
    removed = []
    for path in directory.glob(f"{SCRATCH_PREFIX}*"):
        # Somebody else was faster; or it is another user's, in a directory for guests, and stays theirs.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if not stat.S_ISREG(path.lstat().st_mode):
                continue  # we did not make it
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed.append(path.name)
            except BlockingIOError:
                continue  # still at it
            finally:
                os.close(fd)
    return removed


def _packed(layout: Layout, name: str, geometry: Mapping[str, int], file_bytes: int) -> bytes:
    assert tuple(geometry) == layout.geometry, f"geometry must be {layout.geometry}, was {tuple(geometry)}"
    figures = [*geometry.values(), *([0] * (_GEOMETRY_COUNT - len(geometry)))]
    header = _HEADER.pack(
        _MAGIC,
        _BYTE_ORDER,
        layout.kind.encode(),
        layout.version,
        HEADER_BYTES,
        file_bytes,
        secrets.randbits(63),
        time.time_ns(),
        0,
        0,
        *figures,
        name.encode(),
    )
    whole = header.ljust(HEADER_BYTES, b"\0")
    return whole[:_CRC_OFFSET] + struct.pack("<I", _crc(whole)) + whole[_CRC_OFFSET + 4 :]


def _crc(header: bytes) -> int:
    return zlib.crc32(header[:_CRC_OFFSET] + b"\0\0\0\0" + header[_CRC_OFFSET + 4 :])


def _checked(path: Path, header: bytes, layout: Layout, found_bytes: int) -> Header:
    """Return what the header says, or say the first thing about it that is not as expected."""

    def insist(field: str, found: object, expected: object) -> None:
        if found != expected:
            raise LayoutError(path, field, found, expected)

    if len(header) < HEADER_BYTES:
        raise LayoutError(path, "file size", f"{found_bytes} bytes", f"at least {HEADER_BYTES} bytes")
    fields = _HEADER.unpack_from(header)
    magic, order, kind, version, header_bytes, file_bytes, incarnation, created_ns, crc = fields[:9]
    insist("magic", magic, _MAGIC)
    insist("byte order mark", f"{order:#018x}", f"{_BYTE_ORDER:#018x}")
    insist("kind", kind.rstrip(b"\0").decode("ascii", "backslashreplace"), layout.kind)
    insist("version", version, layout.version)
    insist("header size", header_bytes, HEADER_BYTES)
    insist("header checksum", f"{crc:#010x}", f"{_crc(header):#010x}")
    insist("file size", f"{found_bytes} bytes", f"{file_bytes} bytes")
    if file_bytes % mmap.PAGESIZE or not HEADER_BYTES <= file_bytes <= FILE_BYTES_MAX:
        allowed = f"whole pages from {HEADER_BYTES} to {FILE_BYTES_MAX} bytes"
        raise LayoutError(path, "file size", f"{file_bytes} bytes", allowed)
    geometry = dict(zip(layout.geometry, fields[10:18], strict=False))
    name = fields[18].rstrip(b"\0").decode("ascii", "backslashreplace")
    return Header(name, file_bytes, incarnation, created_ns, geometry)
