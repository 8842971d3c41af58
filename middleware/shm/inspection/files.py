"""What the inspector knows of any file in shared memory: what its header says, whose it is, who sits there.

Looking must not disturb: files are opened to be read, and read with system calls. Nothing is mapped, so a
file that is cut short under our eyes is an error in words and not a signal, and a log of many gigabytes costs
no more than a small one. No seat is taken, and nothing is written anywhere.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from middleware.shm.atomics import Words
from middleware.shm.errors import LayoutError, NotFound, PermissionsError
from middleware.shm.mapping import Header, Layout, open_checked
from middleware.shm.seats import Identity, SeatSight, see_seats

WORD_BYTES = 8
LOOKS_MAX = 5  # a file whose words move while they are looked at is only damaged if it stays so
LOOK_AGAIN_S = 0.001
START_SLACK_NS = 2_000_000_000  # a process's start and our clock are told in different clocks

_PROC = Path("/proc")
_STARTED_FIELD = 19  # of /proc/PID/stat, counted behind the command's name: start, in ticks since boot
_STOPPED_STATES = ("T", "t")  # by a signal, by a debugger

T = TypeVar("T")


class Condition(StrEnum):
    """What there is to say of an item in a word or two."""

    LIVE = "live"
    ENDED = "ended"  # its writer has said that nothing more will come
    NO_WRITER = "no writer"
    NO_PRODUCER = "no producer"
    NO_CONSUMER = "no consumer"
    UNUSED = "unused"  # nobody is there
    PRESENT = "present"  # it is sound, and of more nobody can know
    UNSEEN = "unseen"  # we have no right to see who is there
    UNFINISHED = "unfinished"  # a place without its file: being made, or its maker died
    UNREADABLE = "unreadable"  # we have no right to look
    DAMAGED = "damaged"


class Life(StrEnum):
    """Whether a process that sat down somewhere is still there."""

    ALIVE = "alive"
    STOPPED = "stopped"  # alive, but a signal or a debugger holds it
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who sits on a seat, or died there. `name` is empty for one whose record says nothing."""

    name: str
    pid: int
    since_ns: int
    life: Life

    @property
    def is_alive(self) -> bool:
        return self.life is not Life.DEAD

    def __str__(self) -> str:
        who = f"'{self.name}' (process {self.pid})" if self.name else "an unknown process"
        return who if self.life is Life.ALIVE else f"{who}, {self.life}"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who uses an item now, and as what: while there is one, it is in use."""

    role: str
    holder: Holder

    def __str__(self) -> str:
        return f"{self.role} {self.holder}"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a checked header and the file system say of a file."""

    path: str
    version: int
    file_bytes: int
    incarnation: int
    created_ns: int
    mode: str
    owner: str
    group: str
    geometry: Mapping[str, int] = field(default_factory=dict)


class FileSight:
    """A file that is looked at word by word, each time anew; indexing it is one system call."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._fd, self.header = open_checked(path, layout, os.O_RDONLY)

    def __getitem__(self, index: int, /) -> int:
        return int(self.read(index, 1)[0])

    def read(self, first: int, count: int) -> Words:
        """Return `count` words from word `first` on, as they are now."""
        return np.frombuffer(self.read_bytes(first * WORD_BYTES, count * WORD_BYTES), dtype=np.int64)

    def read_bytes(self, first: int, count: int) -> bytes:
        content = os.pread(self._fd, count, first)
        if len(content) < count:
            found = f"{os.fstat(self._fd).st_size} bytes"
            raise LayoutError(self.path, "file size", found, f"{self.header.file_bytes} bytes")
        return content

    @property
    def facts(self) -> FileFacts:
        header: Header = self.header
        status = os.fstat(self._fd)
        return FileFacts(
            str(self.path),
            self.layout.version,
            header.file_bytes,
            header.incarnation,
            header.created_ns,
            stat.filemode(status.st_mode),
            user_name(status.st_uid),
            group_name(status.st_gid),
            dict(header.geometry),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


def settled(look: Callable[[], T]) -> T:
    """Return what `look` finds. Damage must be there several times before it is believed.

    Words that belong together are read one after the other while their writers move them; a look that falls
    between two such moves finds a contradiction, and the next one does not.
    """
    for _ in range(LOOKS_MAX - 1):
        with suppress(LayoutError):
            return look()
        time.sleep(LOOK_AGAIN_S)
    return look()


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True, slots=True)
class SeatsSeen:
    """The seats of one file; `problem` says why they cannot be seen, if so."""

    seats: Mapping[int, SeatSight] = field(default_factory=dict)
    problem: str = ""

    def holder(self, index: int) -> Holder | None:
        """Return who sits on a seat or died there; None if it is free, or cannot be seen."""
        return holder_of(self.seats[index]) if index in self.seats else None

    def is_taken(self, index: int) -> bool:
        return index in self.seats and self.seats[index].is_taken


def look_at_seats(path: Path, count: int, first: int = 0) -> SeatsSeen:
    """Return who sits where. A file that is not ours to read or not there yet is said so, not raised."""
    try:
        return SeatsSeen(dict(enumerate(see_seats(path, count, first), first)))
    except PermissionsError:
        return SeatsSeen(problem=f"no right to read {path}: only its owner sees who is there")
    except NotFound:
        return SeatsSeen()  # nobody can have sat down yet
    except LayoutError as error:
        return SeatsSeen(problem=str(error))


def holder_of(seat: SeatSight) -> Holder | None:
    """Return who sits there or died there; None if nobody does or did."""
    if seat.identity is None:
        return Holder("", 0, 0, Life.ALIVE) if seat.is_taken else None
    return held_by(seat.identity, is_alive=seat.is_taken)


def held_by(identity: Identity, *, is_alive: bool) -> Holder:
    life = Life.DEAD
    if is_alive:
        life = Life.STOPPED if _is_stopped(identity) else Life.ALIVE
    return Holder(identity.name, identity.pid, identity.since_ns, life)


def _is_stopped(identity: Identity) -> bool:
    """Return whether the process is held by a signal or a debugger, as far as this process can tell.

    In another process namespace the number may be that of another process, or of none: one that started
    after the seat was taken is not who took it.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = (_PROC / str(identity.pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD])
        since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if boot_ns + since_boot_ns <= identity.since_ns + START_SLACK_NS:
            return fields[0] in _STOPPED_STATES
    return False
