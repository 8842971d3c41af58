"""The participants of a slab: which seat belongs to which name, who lives, and whose slots have no master.

A seat belongs to a name. Who ends in order gives it up; the seat of a killed participant is kept for its
successor, the next process of that name, because it holds what only that one can make sense of. Each process
on a seat is another *incarnation*, and slots say which one owns them, so that a successor is never taken for
its predecessor. Taking a seat and giving one up happens under one lock, the registrar's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feeds.errors import LimitError
from middleware.shm.atomics import Words
from middleware.shm.errors import InUse, LayoutError, NotFound, ShmError
from middleware.shm.mapping import MappedFile, create, open_file
from middleware.shm.names import checked_name
from middleware.shm.runtime import Runtime
from middleware.shm.seats import SEATS_MAX, Seats
from middleware.shm.slab_checks import check_blocks, checked_plan, first_wrong_slot
from middleware.shm.slab_layout import (
    INCARNATION,
    INCARNATION_COUNT,
    LAYOUT,
    MY_BLOCK,
    MY_OWNER,
    MY_ROW_WORDS,
    MY_ROWS,
    MY_SEAT,
    NAME,
    NAME_WORDS,
    PARTICIPANT_WORDS,
    PARTICIPANTS_MAX,
    PLAN_PARTICIPANTS,
    PLAN_ROW_WORDS,
    PLAN_ROWS,
    PRIVATE_WORDS,
    ROW_CURSOR,
    ROW_HINTS,
    SEAT_BITS,
    SEAT_MASK,
    WORD_BYTES,
    SlabConfig,
    plan_of,
)
from middleware.shm.slab_recovery_kernels import (
    incarnations_kernel,
    load_kernel,
    release_all_kernel,
    set_done_ticket_kernel,
    sit_kernel,
    vacate_kernel,
)
from middleware.shm.slab_slot_kernels import block_at

SLAB_FILE, SEATS_FILE = "slab", "seats"
ROLE = "participant"
REGISTRAR_SEAT = SEATS_MAX - 1
REGISTRAR_PATIENCE_S = 10.0  # registering takes milliseconds, but its process may be stopped in the middle
_REGISTRAR_RETRY_S = 0.001
assert REGISTRAR_SEAT >= PARTICIPANTS_MAX


@dataclass(frozen=True, slots=True)
class SlabFile:
    """A slab's file, checked: its memory and where the parts are."""

    path: Path
    config: SlabConfig
    words: Words
    plan: Words


def open_slab_file(path: Path) -> SlabFile:
    """Map a slab's file and check all of it that can be wrong; LayoutError says what was found."""
    return _checked(open_file(path, LAYOUT, is_writable=True))


def make_slab_file(path: Path, name: str, config: SlabConfig, mode: int) -> SlabFile:
    """Make the file, or open the one that is there if it was made with the same configuration."""
    if path.exists():
        file = open_slab_file(path)
        if file.config != config:
            raise LayoutError(path, "configuration", file.config, config)
        return file
    _, body_bytes = plan_of(config)
    return _checked(create(path, LAYOUT, name, config.geometry(), body_bytes, mode))


def _checked(file: MappedFile) -> SlabFile:
    config, plan = checked_plan(file.path, file.header)
    blocks = np.zeros((config.participants, PARTICIPANT_WORDS), dtype=np.int64)
    load_kernel(file.words, block_at(plan, 1), blocks.size, blocks.reshape(-1))
    check_blocks(file.path, blocks)
    wrong = first_wrong_slot(file.words, plan)
    if wrong is not None:
        raise wrong.error(file.path)
    return SlabFile(file.path, config, file.words, plan)


@contextlib.contextmanager
def registrar(seats: Seats, who: str) -> Iterator[None]:
    """Hold the lock under which seats change hands."""
    deadline_s = time.monotonic() + REGISTRAR_PATIENCE_S
    while True:
        try:
            seats.take(REGISTRAR_SEAT, who, "registrar")
            break
        except InUse:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_REGISTRAR_RETRY_S)
    try:
        yield
    finally:
        seats.leave(REGISTRAR_SEAT)


class Members:
    """Who sits on the seats of a slab. Seats count from 1 here, as in the slots' words."""

    __slots__ = ("_file", "_seats")

    def __init__(self, file: SlabFile, seats: Seats) -> None:
        self._file = file
        self._seats = seats

    @property
    def count(self) -> int:
        return int(self._file.plan[PLAN_PARTICIPANTS])

    def block(self, seat: int) -> Words:
        """Return a copy of a seat's block."""
        block = np.zeros(PARTICIPANT_WORDS, dtype=np.int64)
        load_kernel(self._file.words, block_at(self._file.plan, seat), PARTICIPANT_WORDS, block)
        return block

    def name(self, seat: int) -> str:
        """Return whose seat it is; empty if it is nobody's."""
        if not 1 <= seat <= self.count:
            return ""
        name_words = self.block(seat)[NAME : NAME + NAME_WORDS]
        if name_words[0] == 0:  # what follows is left of somebody who gave it up
            return ""
        return name_words.tobytes().rstrip(b"\0").decode("ascii", "backslashreplace")

    def is_taken(self, seat: int) -> bool:
        """Return whether another Slab object, of any process, sits there."""
        return self._seats.is_taken(seat - 1)

    def is_dead(self, owner: int, mine: Words) -> bool:
        """Return whether the owner in a slot's word, seen before this is asked, is gone for good."""
        if owner == mine[MY_OWNER]:
            return False
        seat, incarnation = owner & SEAT_MASK, owner >> SEAT_BITS
        if not 1 <= seat <= self.count:  # it was in order when the file was opened
            raise LayoutError(self._file.path, "owner of a slot", f"seat {seat}", f"1 to {self.count}")
        is_superseded = int(self.block(seat)[INCARNATION]) != incarnation
        return is_superseded or not self.is_taken(seat)

    def sit(self, who: str) -> Words:
        """Take the seat of `who`, or a seat that is nobody's; return the private words of its new holder."""
        seat, is_successor = self._find_seat(who)
        plan = self._file.plan
        is_used = np.zeros(INCARNATION_COUNT, dtype=np.int64)
        incarnations_kernel(self._file.words, plan, seat, is_used)
        # Not one that still owns slots. There are more incarnations than anybody leaves unrecovered.
        start = int(self.block(seat)[INCARNATION]) + 1
        candidates = [(start + step) % INCARNATION_COUNT for step in range(INCARNATION_COUNT)]
        incarnation = next((each for each in candidates if not is_used[each]), None)
        if incarnation is None:
            raise LimitError(
                f"{self._file.path}: '{who}' was killed {INCARNATION_COUNT} times and what it held was never "
                f"recovered: run recover"
            )
        mine = np.zeros(PRIVATE_WORDS, dtype=np.int64)
        mine[MY_SEAT] = seat
        mine[MY_OWNER] = incarnation << SEAT_BITS | seat
        mine[MY_BLOCK] = block_at(plan, seat)
        for size_class in range(len(self._file.config.classes)):
            # Everybody begins elsewhere, so that two rarely look at the same line.
            hint_words = int(plan[PLAN_ROWS + size_class * PLAN_ROW_WORDS + ROW_HINTS])
            mine[MY_ROWS + size_class * MY_ROW_WORDS + ROW_CURSOR] = (seat - 1) * hint_words // self.count
        name = who.encode().ljust(NAME_WORDS * WORD_BYTES, b"\0")
        record = np.array([*np.frombuffer(name, dtype=np.int64), os.getpid(), time.time_ns()], dtype=np.int64)
        sit_kernel(self._file.words, plan, mine, seat, incarnation, record, int(is_successor))
        return mine

    def _find_seat(self, who: str) -> tuple[int, bool]:
        names = {seat: self.name(seat) for seat in range(1, self.count + 1)}
        for seat, name in names.items():
            if name == who:
                self._seats.take(seat - 1, who, f"{ROLE} '{who}'")  # InUse names the process that lives
                return seat, True
        for seat, name in names.items():
            if not name:
                with contextlib.suppress(InUse):  # who is leaving has taken its name off already
                    self._seats.take(seat - 1, who, ROLE)
                    return seat, False
        dead = [name for seat, name in names.items() if not self.is_taken(seat)]
        raise LimitError(
            f"{self._file.path}: all {self.count} seats (setting 'participants') belong to others; these "
            f"were killed and have no successor, forget who will have none: {', '.join(dead) or 'nobody'}"
        )

    def leave(self, mine: Words) -> None:
        """End an incarnation in order. The name stays while predecessors own bodies yet undecided."""
        words, plan, seat = self._file.words, self._file.plan, int(mine[MY_SEAT])
        release_all_kernel(words, plan, mine)
        if self._owned(seat):
            set_done_ticket_kernel(words, mine, 0)
        else:
            vacate_kernel(words, plan, seat)

    def _owned(self, seat: int) -> int:
        """Return how many slots all incarnations of a seat own."""
        is_used = np.zeros(INCARNATION_COUNT, dtype=np.int64)
        return incarnations_kernel(self._file.words, self._file.plan, seat, is_used)

    def forget(self, who: str) -> None:
        """Take the seat of a dead participant away for good; refused while it lives or owns anything."""
        seats = [seat for seat in range(1, self.count + 1) if self.name(seat) == who]
        if not seats:
            raise NotFound(f"{self._file.path} has no {ROLE} '{who}'")
        seat = seats[0]
        self._seats.take(seat - 1, who, f"{ROLE} '{who}'")
        try:
            owned = self._owned(seat)
            if owned:
                raise ShmError(
                    f"{self._file.path}: '{who}' left {owned} bodies: recover them before it is forgotten"
                )
            vacate_kernel(self._file.words, self._file.plan, seat)
        finally:
            self._seats.leave(seat - 1)


def forget(runtime: Runtime, name: str, who: str) -> None:
    """Take the seat of a killed participant that will have no successor away."""
    place = runtime.place("slabs", name)
    seats = Seats(place / SEATS_FILE)
    try:
        with registrar(seats, checked_name(who)):
            seats.insist_current()
            Members(open_slab_file(place / SLAB_FILE), seats).forget(who)
    finally:
        seats.close()
