"""Seats: places that one process at a time may hold, such as a log's writer. The dead hold none.

A file of seats has one record for each, which says who sits there, and a lock of the kernel's on that
record's bytes, which is the truth: it goes when its process goes, however it goes. These are *open file
description* locks: two users in one process exclude each other too, and closing the file elsewhere in the
process gives nothing away. A fork would share them, so a forked child lets go of them at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from feeds.errors import ConfigError
from middleware.shm.errors import InUse, LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.names import checked_name

SEAT_BYTES = 256
SEATS_MAX = 1_024

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process: struct flock


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sits on a seat: a name that people know, the process, and since when."""

    name: str
    pid: int
    since_ns: int

    def __str__(self) -> str:
        return f"'{self.name}' (process {self.pid})"

    @classmethod
    def of_this_process(cls, name: str) -> Self:
        return cls(checked_name(name), os.getpid(), time.time_ns())

    def packed(self) -> bytes:
        record = json.dumps(asdict(self)).encode()
        assert len(record) <= SEAT_BYTES
        return record.ljust(SEAT_BYTES, b"\0")

    @classmethod
    def unpacked(cls, record: bytes) -> Self | None:
        """Return what a record says; None for one that says nothing, or nothing sensible."""
        if not record.strip(b"\0"):
            return None
        with suppress(ValueError, TypeError, KeyError, OverflowError, ConfigError):
            fields = json.loads(record.rstrip(b"\0"))
            return cls(checked_name(str(fields["name"])), int(fields["pid"]), int(fields["since_ns"]))
        return None


class Seats:
    """A file of seats. Opening it takes none; `take` does, until `leave`, `close` or death."""

    def __init__(self, path: Path, *, is_creator: bool = False, first_byte: int = 0) -> None:
        """Open the file; as its creator, make it where it is missing, its owner's alone.

        `first_byte` is where the records begin in a file that holds other things too.
        """
        self.path = path
        self._first_byte = first_byte
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if is_creator else 0)
        try:
            self._fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise NotFound(f"there is no {path}") from None
        except PermissionError as error:
            raise PermissionsError(f"cannot open {path}: {error.strerror}") from error
        except OSError as error:
            raise LayoutError(path, "file", error.strerror, "a file of seats") from error
        # Who drops this object without closing it holds nothing on: nobody could free those seats again.
        self._close_fd = weakref.finalize(self, os.close, self._fd)
        mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            self.forget()
            raise LayoutError(path, "file", stat.filemode(mode), "a file of seats")
        self._held: set[int] = set()
        _open_seats.add(self)

    def take(self, index: int, who: str, role: str) -> Identity:
        """Sit down on seat `index`, or raise InUse with the name of who sits there."""
        identity = Identity.of_this_process(who)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK, index))
        except BlockingIOError:
            raise InUse(self.path.parent, role, self._told(index)) from None
        if index in self._held:  # the kernel lets one opening lock its own bytes again
            raise InUse(self.path.parent, role, self._told(index))
        try:
            os.pwrite(self._fd, identity.packed(), self._place(index))
        except OSError as error:  # the file system is full: nobody may sit there without a name
            self._unlock(index)
            raise ShmError(f"cannot write to {self.path}: {error.strerror}") from error
        self._held.add(index)
        return identity

    def _place(self, index: int) -> int:
        return self._first_byte + index * SEAT_BYTES

    def take_any(self, first: int, end: int, who: str, role: str) -> tuple[int, Identity]:
        """Sit down on the first free seat of a range; InUse if there is none."""
        for index in range(first, end):
            with suppress(InUse):
                return index, self.take(index, who, role)
        raise InUse(self.path.parent, role, f"each of {end - first} others")

    def leave(self, index: int) -> None:
        """Get up; leaving a seat that is not ours is our own bug."""
        assert index in self._held
        os.pwrite(self._fd, bytes(SEAT_BYTES), self._place(index))
        self._held.discard(index)
        self._unlock(index)

    def _unlock(self, index: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _range(fcntl.F_UNLCK, index))

    def is_taken(self, index: int) -> bool:
        """Return whether another opening of this file holds the seat: ours do not count."""
        return is_locked(self._fd, index)

    def holder(self, index: int) -> Identity | None:
        """Return who sits there now, alive."""
        return self.last_holder(index) if self.is_taken(index) else None

    def last_holder(self, index: int) -> Identity | None:
        """Return who sat there last, alive or not, unless it left."""
        return Identity.unpacked(os.pread(self._fd, SEAT_BYTES, self._place(index)))

    def _told(self, index: int) -> str:
        identity = self.last_holder(index)
        return str(identity) if identity is not None else "another process"

    def insist_current(self) -> None:
        """Make sure that the file we have open is the one of that name still.

        Somebody may have removed it between our opening it and our taking a seat: then we would sit where
        nobody else looks.
        """
        if not self.is_at(self.path):
            raise NotFound(f"{self.path} was removed while it was being opened")

    def is_at(self, path: Path) -> bool:
        """Return whether the file that we have open is still the one at `path`."""
        try:
            return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def close(self) -> None:
        """Give up every seat taken through this object."""
        if self.is_open:
            for index in self._held:  # a name that stays behind is that of somebody who died
                os.pwrite(self._fd, bytes(SEAT_BYTES), self._place(index))
            # A child that is being forked right now shares the locks until it has let go of them: unlock
            # first, so that the seats are free when this returns.
            everything = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, everything)
            self._held.clear()
            self.forget()

    def forget(self) -> None:
        """Close our copy of the file and leave the seats to the process that we were forked from."""
        self._close_fd()
        self._fd = -1


@dataclass(frozen=True, slots=True)
class SeatSight:
    """A seat as an onlooker sees it: who its record names, and whether somebody sits there now.

    A name without somebody is that of a process that died; who leaves takes its name along.
    """

    identity: Identity | None
    is_taken: bool


def see_seats(path: Path, count: int, first: int = 0) -> list[SeatSight]:
    """Look at `count` seats from `first` on, of a file that we may not be allowed to write; take none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except PermissionError as error:
        raise PermissionsError(f"cannot open {path}: {error.strerror}") from error
    except OSError as error:
        raise LayoutError(path, "file", error.strerror, "a file of seats") from error
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise LayoutError(path, "file", stat.filemode(mode), "a file of seats")
        return [
            SeatSight(Identity.unpacked(os.pread(fd, SEAT_BYTES, index * SEAT_BYTES)), is_locked(fd, index))
            for index in range(first, first + count)
        ]
    finally:
        os.close(fd)


def is_locked(fd: int, index: int = 0) -> bool:
    """Return whether somebody holds seat `index` of an open file. Asking needs no right to write."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _range(fcntl.F_WRLCK, index))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _range(kind: int, index: int) -> bytes:
    if not 0 <= index < SEATS_MAX:
        raise IndexError(f"a seat's index must be 0 to {SEATS_MAX - 1}, was {index}")
    return _FLOCK.pack(kind, os.SEEK_SET, index * SEAT_BYTES, SEAT_BYTES, 0)


_open_seats: weakref.WeakSet[Seats] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for seats in list(_open_seats):
        if seats.is_open:
            seats.forget()


os.register_at_fork(after_in_child=_let_go_in_child)
