"""Gates: readers that the log's writer waits for, up to a bound, before it overwrites what they need.

A reader asks in its own file, which the writer only ever *reads*, with system calls: a file that is cut
short, filled with nonsense or made to look like a device costs the writer nothing but that reader's gate. The
writer answers in the log: there is the key of every reader that it waits for.

A gate is taken away when its reader dies, or when it has used up the writer's patience: `patience_ns` at
once, and a tenth of the time in the long run. So a reader that is a little too slow all the time cannot make
the feed as slow as itself. It is then a reader like any other, which can be lapped and is told so, until it
has caught up and its debt is paid.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

from middleware.shm.atomics import Words
from middleware.shm.log_kernels import (
    CLAIM,
    GATE_COUNT,
    GATES,
    NO_LIMIT,
    POSITION,
)
from middleware.shm.log_layout import READER_BODY_BYTES, READER_SEAT_BYTE, SEQUENCE_MAX
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.seats import SEAT_BYTES, Identity, is_locked

READERS_MAX = 1_024  # files looked at; more is somebody playing with the directory
CAUGHT_UP_SHARE = 2  # who is within half a log of the newest frame has caught up
REST_SHARE = 10  # what a reader made the writer wait is forgiven in ten times that time

_ASKED = struct.Struct("<qqq")  # POSITION, IS_GATING, READER_KEY
_ASKED_BYTE = POSITION * 8


class GateChange(StrEnum):
    OPENED = "opened"  # the writer now waits for this reader
    LEFT = "left"  # the reader closed, or no longer asks to be waited for
    DIED = "died"  # its process is gone
    OVERRUN = "overrun"  # the writer has waited as long as it may, and goes on without it
    BROKEN = "broken"  # its file is not what a reader's file is
    REFUSED = "refused"  # all gates are taken


@dataclass(frozen=True, slots=True)
class GateEvent:
    """What happened to a reader's gate; `position` is the first message that the reader still needed."""

    reader: str
    change: GateChange
    position: int
    waited_ns: int = 0

    def __str__(self) -> str:
        told = f"reader '{self.reader}' at message {self.position}: {self.change}"
        return f"{told} after {self.waited_ns / 1e6:.1f} ms" if self.waited_ns else told


@dataclass(slots=True)
class Gate:
    """One reader that is waited for: an open file of it, and what we granted."""

    reader: str
    fd: int
    index: int
    key: int
    position: int
    debt_ns: int = 0  # how long the writer has waited for it, less what was forgiven
    debt_at_ns: int = 0

    def charge(self, waited_ns: int, now_ns: int) -> None:
        forgiven_ns = (now_ns - waited_ns - self.debt_at_ns) // REST_SHARE
        self.debt_ns = max(self.debt_ns - max(forgiven_ns, 0), 0) + waited_ns
        self.debt_at_ns = now_ns


@dataclass(slots=True)
class Gates:
    """All gates of one log, on the writer's side."""

    words: Words  # the log
    slot_count: int
    directory: Path
    patience_ns: int
    open_gates: list[Gate] = field(default_factory=list)
    events: list[GateEvent] = field(default_factory=list)
    _rest_until_ns: dict[str, int] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Forget what the writer before us granted: its readers are looked at anew."""
        for index in range(GATE_COUNT):
            self.words[GATES + index] = 0

    def scan(self, now_ns: int) -> None:
        """Look for readers that ask to be waited for, and for those that no longer do."""
        known = {gate.reader for gate in self.open_gates}
        for reader in self._reader_names():
            if reader not in known and self._rest_until_ns.get(reader, 0) <= now_ns:
                self._admit(reader)
        self.claim_limit()

    def claim_limit(self) -> int:
        """Return how far slots may be claimed without overwriting what an open gate still needs."""
        limit = NO_LIMIT
        for gate in list(self.open_gates):
            asked = _asked(gate.fd)
            if asked is None:
                self._take_away(gate, GateChange.BROKEN)
                continue
            position, is_gating, key = asked  # SYNC gate-position: pairs with read_kernel
            if key != gate.key or not is_gating:
                self._take_away(gate, GateChange.LEFT)
            elif not is_locked(gate.fd):
                self._take_away(gate, GateChange.DIED)
            else:
                # It only grows; a reader that claims to have gone back would ask for what is overwritten.
                gate.position = max(gate.position, position)
                limit = min(limit, gate.position + self.slot_count)
        return limit

    def on_waited(self, sequence: int, waited_ns: int, now_ns: int) -> None:
        """Charge a wait before message `sequence` to the readers in its way; drop the exhausted."""
        for gate in list(self.open_gates):
            if gate.position + self.slot_count <= sequence:
                gate.charge(waited_ns, now_ns)
                if gate.debt_ns >= self.patience_ns:
                    self._rest_until_ns[gate.reader] = now_ns + REST_SHARE * self.patience_ns
                    self._take_away(gate, GateChange.OVERRUN, gate.debt_ns)

    def take_events(self) -> list[GateEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        for gate in self.open_gates:
            os.close(gate.fd)
            self.words[GATES + gate.index] = 0
        self.open_gates.clear()

    def _reader_names(self) -> list[str]:
        try:
            return [path.name for path in islice(self.directory.iterdir(), READERS_MAX)]
        except FileNotFoundError:
            return []

    def _admit(self, reader: str) -> None:
        fd = open_reader_file(self.directory / reader)
        if fd is None:
            return
        asked = _asked(fd)
        if asked is None or not asked[1] or not is_locked(fd):
            os.close(fd)
            return
        position, _, key = asked
        taken = {gate.index for gate in self.open_gates}
        index = next((index for index in range(GATE_COUNT) if index not in taken), None)
        if position < int(self.words[CLAIM]) - self.slot_count // CAUGHT_UP_SHARE:
            os.close(fd)  # waiting for who is far behind would begin at once, and not help
        elif index is None:
            os.close(fd)
            if key not in self._refused:  # said once
                self._refused = {*self._refused, key} if len(self._refused) < READERS_MAX else {key}
                self.events.append(GateEvent(reader, GateChange.REFUSED, position))
        else:
            self.open_gates.append(Gate(reader, fd, index, key, position))
            self.words[GATES + index] = key
            self.events.append(GateEvent(reader, GateChange.OPENED, position))

    def _take_away(self, gate: Gate, change: GateChange, waited_ns: int = 0) -> None:
        self.open_gates.remove(gate)
        os.close(gate.fd)
        self.words[GATES + gate.index] = 0
        self.events.append(GateEvent(gate.reader, change, gate.position, waited_ns))


def is_waited_for(words: Words, key: int) -> bool:
    """Return whether the log's writer waits for the reader with that key."""
    return key in words[GATES : GATES + GATE_COUNT].tolist()


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
    """Return (position, whether to wait for it, key) of a reader's file; None if that is nonsense."""
    content = os.pread(fd, _ASKED.size, _ASKED_BYTE)
    if len(content) < _ASKED.size:
        return None
    position, is_gating, key = _ASKED.unpack(content)
    if not 0 <= position <= SEQUENCE_MAX or is_gating not in (0, 1) or key == 0:
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
