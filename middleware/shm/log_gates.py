"""Gates: readers that the log's writer waits for, up to a bound, before it overwrites what they need.

A reader asks in its own file, which the writer only ever *reads*, with system calls: a file that is cut
short, filled with nonsense or made to look like a device costs that reader its gate and the writer nothing.
The writer answers in the log: there is the key of every reader that it waits for.

What readers can cost the writer is bounded, whoever they are and however many. All waiting is charged to one
account, which forgives a tenth of the time that passes: when it reaches `patience_ns`, the writer goes on
without every reader that stands in its way, says so, and opens no gate again until half of the account is
forgiven. Looking for readers that ask takes at most a hundredth of the writer's time, a few files at each
look. A reader without its gate is one like any other: it can be lapped, is told so, and is waited for again
once it has caught up.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

from middleware.shm.atomics import Words
from middleware.shm.errors import ShmError
from middleware.shm.log_kernels import CLAIM, GATE_COUNT, GATES, NO_LIMIT, POSITION
from middleware.shm.log_layout import READER_BODY_BYTES, READER_SEAT_BYTE, SEQUENCE_MAX
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.seats import SEAT_BYTES, Identity, Seats, is_locked
from middleware.shm.word_access_kernels import load_word, store_word

READERS_MAX = 1_024  # files looked at in one go; more is somebody playing with the directory
CAUGHT_UP_SHARE = 2  # who is within half a log of the newest frame has caught up
FORGIVEN_SHARE = 10  # what the writer waited is forgiven in ten times that time
LOOK_FILES = 8  # at each look
LOOK_EVERY_NS = 10_000_000  # how soon a reader's gate is noticed, if there are few
LOOK_COST_SHARE = 100  # a look that took long is followed by a hundred times as long without one
DEAD_FOR_NS = 1_000_000_000  # a file that nobody holds may be one that is just being made

_ASKED = struct.Struct("<qqq")  # POSITION, IS_GATING, READER_KEY
_ASKED_BYTE = POSITION * 8


class GateChange(StrEnum):
    OPENED = "opened"  # the writer now waits for this reader
    LEFT = "left"  # the reader closed, or no longer asks to be waited for
    DIED = "died"  # its process is gone, or another one has its name
    OVERRUN = "overrun"  # the writer has waited as long as it may, and goes on without it
    BEHIND = "behind"  # it asks, but is more than half a log behind: it must catch up first
    BROKEN = "broken"  # its file is not what a reader's file is
    REFUSED = "refused"  # all gates are taken


@dataclass(frozen=True, slots=True)
class GateEvent:
    """What happened to a reader's gate; `position` is the first message that the reader still needed."""

    reader: str
    change: GateChange
    position: int
    waited_ns: int = 0  # by the writer, of late, for all readers together

    def __str__(self) -> str:
        told = f"reader '{self.reader}' at message {self.position}: {self.change}"
        return f"{told} after {self.waited_ns / 1e6:.1f} ms" if self.waited_ns else told


@dataclass(slots=True)
class Gate:
    """One reader that is waited for: an open file of it, and where it stands."""

    reader: str
    fd: int
    index: int
    key: int
    position: int


@dataclass(slots=True)
class Account:
    """How long the writer has waited of late: what it waited, less a tenth of the time since."""

    debt_ns: int = 0
    at_ns: int = 0

    def settle(self, now_ns: int) -> int:
        """Forgive what has been forgiven by now; return what is left."""
        self.debt_ns = max(self.debt_ns - max(now_ns - self.at_ns, 0) // FORGIVEN_SHARE, 0)
        self.at_ns = now_ns
        return self.debt_ns

    def charge(self, waited_ns: int, now_ns: int) -> int:
        """Add a wait that ends now; return what is owed."""
        self.settle(now_ns - waited_ns)
        self.debt_ns += waited_ns
        self.at_ns = now_ns
        return self.debt_ns


@dataclass(slots=True)
class Gates:
    """All gates of one log, on the writer's side."""

    words: Words  # the log
    slot_count: int
    directory: Path
    patience_ns: int
    open_gates: list[Gate] = field(default_factory=list)
    events: list[GateEvent] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    _look_at_ns: int = 0
    _listing: Iterator[Path] | None = None
    _told: set[tuple[int, GateChange]] = field(default_factory=set)

    def start(self, now_ns: int) -> None:
        """Forget what the writer before us granted, and look at all readers once.

        Here half a log is not too far behind: the writer before us may have been waiting for it.
        """
        for index in range(GATE_COUNT):
            store_word(self.words, GATES + index, 0)
        for path in islice(_entries(self.directory), READERS_MAX):
            self._look_at(path, now_ns, room=self.slot_count, dead_for_ns=0)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._look_at_ns

    def look(self, now_ns: int) -> None:
        """Look at a few readers' files: who asks to be waited for, and whose file nobody holds any more."""
        known = {gate.reader for gate in self.open_gates}
        for path in self._next_files(LOOK_FILES):
            if path.name not in known:
                self._look_at(path, now_ns, room=self.slot_count // CAUGHT_UP_SHARE)
        took_ns = max(time.monotonic_ns() - now_ns, 0)
        self._look_at_ns = now_ns + max(LOOK_EVERY_NS, took_ns * LOOK_COST_SHARE)

    def claim_limit(self) -> int:
        """Return how far slots may be claimed without overwriting what an open gate still needs."""
        limit = NO_LIMIT
        for gate in list(self.open_gates):
            asked = _asked(gate.fd)
            if asked is None:
                self._close_gate(gate, GateChange.BROKEN)
                continue
            position, is_gating, key = asked  # SYNC gate-position: pairs with whoever stores POSITION
            if key == gate.key and not is_gating:
                self._close_gate(gate, GateChange.LEFT)
            elif key != gate.key or not is_locked(gate.fd):
                self._close_gate(gate, GateChange.DIED)
            else:
                # It only grows; a reader that claims to have gone back would ask for what is overwritten.
                gate.position = max(gate.position, position)
                limit = min(limit, gate.position + self.slot_count)
        return limit

    def on_waited(self, sequence: int, waited_ns: int, now_ns: int) -> None:
        """Charge a wait before message `sequence`; go on without who is in its way if that was enough."""
        debt_ns = self.account.charge(waited_ns, now_ns)
        if debt_ns >= self.patience_ns:
            for gate in list(self.open_gates):
                if gate.position + self.slot_count <= sequence:
                    self._told.add((gate.key, GateChange.BEHIND))  # it goes without saying
                    self._close_gate(gate, GateChange.OVERRUN, debt_ns)

    def take_events(self) -> list[GateEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        for gate in self.open_gates:
            os.close(gate.fd)
            store_word(self.words, GATES + gate.index, 0)
        self.open_gates.clear()

    def _next_files(self, count: int) -> list[Path]:
        """Return the next files of the directory, and begin anew at its end: so that all have their turn."""
        if self._listing is None:
            self._listing = _entries(self.directory)
        paths = list(islice(self._listing, count))
        if len(paths) < count:
            self._listing = None
        return paths

    def _look_at(self, path: Path, now_ns: int, room: int, dead_for_ns: int = DEAD_FOR_NS) -> None:
        fd = open_reader_file(path)
        if fd is None:
            return
        is_kept = False
        try:
            asked = _asked(fd)
            if not is_locked(fd):
                if time.time_ns() - os.fstat(fd).st_mtime_ns >= dead_for_ns:
                    _remove_dead(path)
            elif asked is not None and asked[1] and asked[2]:
                position, _, key = asked
                if position < load_word(self.words, CLAIM) - room:
                    self._tell_once(GateEvent(path.name, GateChange.BEHIND, position), key)
                else:
                    is_kept = self._open_gate(path.name, fd, position, key, now_ns)
        finally:
            if not is_kept:
                os.close(fd)

    def _open_gate(self, reader: str, fd: int, position: int, key: int, now_ns: int) -> bool:
        """Open a gate for a reader that asks, if there is one and we owe nobody; return whether we did."""
        taken = {gate.index for gate in self.open_gates}
        index = next((index for index in range(GATE_COUNT) if index not in taken), None)
        if index is None:
            self._tell_once(GateEvent(reader, GateChange.REFUSED, position), key)
            return False
        if 2 * self.account.settle(now_ns) > self.patience_ns:
            return False
        self.open_gates.append(Gate(reader, fd, index, key, position))
        store_word(self.words, GATES + index, key)
        self._told -= {(key, GateChange.BEHIND), (key, GateChange.REFUSED)}
        self.events.append(GateEvent(reader, GateChange.OPENED, position))
        return True

    def _tell_once(self, event: GateEvent, key: int) -> None:
        if (key, event.change) not in self._told:
            if len(self._told) >= READERS_MAX:
                self._told.clear()
            self._told.add((key, event.change))
            self.events.append(event)

    def _close_gate(self, gate: Gate, change: GateChange, waited_ns: int = 0) -> None:
        self.open_gates.remove(gate)
        os.close(gate.fd)
        store_word(self.words, GATES + gate.index, 0)
        self.events.append(GateEvent(gate.reader, change, gate.position, waited_ns))


def _remove_dead(path: Path) -> None:
    """Remove the file of a reader that died without doing so itself; one that is being made is made again."""
    with suppress(ShmError, OSError):  # it is back, or gone, or not ours to remove
        seats = Seats(path, first_byte=READER_SEAT_BYTE)
        try:
            seats.take(0, "remover", "reader")
            if seats.is_at(path):
                path.unlink()
        finally:
            seats.close()


def _entries(directory: Path) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield directory / entry.name
    except FileNotFoundError:
        return


def is_waited_for(words: Words, key: int) -> bool:
    """Return whether the log's writer waits for the reader with that key."""
    return any(load_word(words, GATES + index) == key for index in range(GATE_COUNT))


def open_reader_file(path: Path) -> int | None:
    """Open a reader's file to look at it, or return None for anything that is not one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None  # gone since it was listed, or no file of a reader: either way nobody to wait for
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd


def _asked(fd: int) -> tuple[int, int, int] | None:
    """Return (position, whether to wait for it, key) of a reader's file; None if that is nonsense.

    The key is 0 while the reader is joining.
    """
    content = os.pread(fd, _ASKED.size, _ASKED_BYTE)
    if len(content) < _ASKED.size:
        return None
    position, is_gating, key = _ASKED.unpack(content)
    if not 0 <= position <= SEQUENCE_MAX or is_gating not in (0, 1):
        return None
    return position, is_gating, key


@dataclass(frozen=True, slots=True)
class ReaderSight:
    """What can be seen of a reader from outside."""

    name: str
    identity: Identity | None
    is_alive: bool
    position: int
    is_gating: bool  # asks to be waited for; whether it is: `is_waited_for`
    key: int


def see_readers(directory: Path) -> Iterator[ReaderSight]:
    """Look at all readers' files of a log, without touching them."""
    paths: list[Path] = []
    with suppress(FileNotFoundError):
        paths = sorted(islice(directory.iterdir(), READERS_MAX))
    for path in paths:
        fd = open_reader_file(path)
        if fd is None:
            continue
        try:
            asked = _asked(fd)
            if asked is not None and os.fstat(fd).st_size == HEADER_BYTES + READER_BODY_BYTES:
                identity = Identity.unpacked(os.pread(fd, SEAT_BYTES, READER_SEAT_BYTE))
                position, is_gating, key = asked
                yield ReaderSight(path.name, identity, is_locked(fd), position, bool(is_gating), key)
        finally:
            os.close(fd)
