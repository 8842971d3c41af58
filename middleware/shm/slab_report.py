"""What is in a slab, for people: how full it is, who takes part, and what the dead have left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from middleware.shm.errors import NotFound
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from middleware.shm.slab_completion_kernels import done_ticket_kernel
from middleware.shm.slab_layout import (
    CLAIMED,
    COUNTER_WORDS,
    COUNTERS,
    FREED,
    INCARNATION,
    OVERFLOWED,
    OWNED,
    OWNER_MASK,
    PID,
    PLAN_SLOTS,
    REFUSED,
    SEAT_BITS,
    SEAT_MASK,
    SINCE_NS,
    STATE_BITS,
    STATE_MASK,
    USED_MAX,
)
from middleware.shm.slab_members import SEATS_FILE, SLAB_FILE, Members, SlabFile, open_slab_file
from middleware.shm.slab_recovery_kernels import held_kernel, usage_kernel

_LISTED_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class ClassReport:
    """The slots of one size. `used_max` is sampled, and a kill at the wrong moment leaves it one off."""

    slot_bytes: int
    slot_count: int
    free: int
    owned: int
    shared: int
    used_max: int
    claimed: int  # since the slab was made, as are the rest
    freed: int
    overflowed: int  # bodies of this size that took a larger slot because there was none
    refused: int  # allocations that found no slot, not even a larger one


@dataclass(frozen=True, slots=True)
class ParticipantReport:
    """One seat that belongs to somebody. What a dead one holds awaits recovery."""

    name: str
    pid: int
    since_ns: int
    is_alive: bool
    last_ticket: int
    owned: int
    shared: int
    inherited: int  # slots of its predecessors, which are dead


@dataclass(frozen=True, slots=True)
class SlabReport:
    name: str
    path: Path
    classes: tuple[ClassReport, ...]
    participants: tuple[ParticipantReport, ...]


def inspect(runtime: Runtime, name: str) -> SlabReport:
    """Return the state of a slab without taking part in it; the slab is mapped read-only."""
    place = runtime.place("slabs", name)
    if not (place / SLAB_FILE).exists():
        raise NotFound(f"there is no slab '{name}' in {runtime.path}")
    file = open_slab_file(place / SLAB_FILE, is_writable=False)
    seats = Seats(place / SEATS_FILE)
    try:
        members = Members(file, seats)
        return SlabReport(name, file.path, _classes(file, members), _participants(file, members))
    finally:
        seats.close()


def _classes(file: SlabFile, members: Members) -> tuple[ClassReport, ...]:
    classes = file.config.classes
    usage = np.zeros((len(classes), 3), dtype=np.int64)
    usage_kernel(file.words, file.plan, usage.reshape(-1))
    blocks = np.array([members.block(seat) for seat in range(1, members.count + 1)])
    reports = []
    for which, each in enumerate(classes):
        counters = blocks[:, COUNTERS + which * COUNTER_WORDS :][:, :COUNTER_WORDS]
        free, owned, shared = usage[which].tolist()
        reports.append(
            ClassReport(
                slot_bytes=each.slot_bytes,
                slot_count=each.slot_count,
                free=free,
                owned=owned,
                shared=shared,
                used_max=max(int(counters[:, USED_MAX].max()), owned + shared),
                claimed=int(counters[:, CLAIMED].sum()),
                freed=int(counters[:, FREED].sum()),
                overflowed=int(counters[:, OVERFLOWED].sum()),
                refused=int(counters[:, REFUSED].sum()),
            )
        )
    return tuple(reports)


def _participants(file: SlabFile, members: Members) -> tuple[ParticipantReport, ...]:
    held: dict[tuple[int, int], int] = {}  # by owner and state
    handles, states = (np.zeros(_LISTED_AT_ONCE, dtype=np.int64) for _ in range(2))
    slot = 0
    while slot < file.plan[PLAN_SLOTS]:
        slot, listed = held_kernel(file.words, file.plan, slot, handles, states)
        for word in states[:listed].tolist():
            key = word >> STATE_BITS & OWNER_MASK, word & STATE_MASK
            held[key] = held.get(key, 0) + 1
    reports = []
    for seat in range(1, members.count + 1):
        name, block = members.name(seat), members.block(seat)
        if not name:
            continue
        owner = int(block[INCARNATION]) << SEAT_BITS | seat
        mine = {state: count for (each, state), count in held.items() if each == owner}
        all_of_seat = sum(count for (each, _), count in held.items() if each & SEAT_MASK == seat)
        reports.append(
            ParticipantReport(
                name=name,
                pid=int(block[PID]),
                since_ns=int(block[SINCE_NS]),
                is_alive=members.is_taken(seat),
                last_ticket=done_ticket_kernel(file.words, file.plan, seat),
                owned=mine.get(OWNED, 0),
                shared=sum(mine.values()) - mine.get(OWNED, 0),
                inherited=all_of_seat - sum(mine.values()),
            )
        )
    return tuple(reports)
