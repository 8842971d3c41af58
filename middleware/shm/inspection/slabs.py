"""The inspector's look at a slab: how full its size classes are, who takes part, what the dead still hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from middleware.shm.atomics import Words
from middleware.shm.inspection.files import (
    Condition,
    FileFacts,
    FileSight,
    Holder,
    SeatsSeen,
    User,
    held_by,
    holder_of,
    look_at_seats,
)
from middleware.shm.seats import Identity
from middleware.shm.slab_checks import check_blocks, checked_plan, first_wrong_slot
from middleware.shm.slab_layout import (
    CLAIMED,
    CLASSES_MAX,
    COUNTER_WORDS,
    COUNTERS,
    DONE_TICKET,
    FREE,
    FREED,
    INCARNATION,
    LAYOUT,
    NAME,
    NAME_WORDS,
    NOBODY,
    OVERFLOWED,
    OWNED,
    OWNER_MASK,
    PARTICIPANT_WORDS,
    PID,
    PLAN_PARTICIPANTS_AT,
    PLAN_ROW_WORDS,
    PLAN_ROWS,
    REFUSED,
    ROW_FIRST_SLOT,
    ROW_SLOTS,
    ROW_SLOTS_AT,
    SEAT_BITS,
    SEAT_MASK,
    SHARED,
    SINCE_NS,
    SLOT_RECORD_WORDS,
    STATE,
    STATE_BITS,
    STATE_MASK,
    USED_MAX,
    SlabConfig,
    part_of_plan,
)
from middleware.shm.slab_members import REGISTRAR_SEAT, ROLE, SEATS_FILE, SLAB_FILE

SLOTS_AT_ONCE = 1 << 14  # a megabyte of slots' words


@dataclass(frozen=True, slots=True)
class ClassReport:
    """The slots for bodies of up to `slot_bytes`."""

    slot_bytes: int
    slot_count: int
    owned: int  # by one participant, not shared yet
    shared: int
    used_max: int  # the most that were used at once, as participants sampled it
    claimed: int  # since the slab was made, as are the rest
    freed: int
    overflowed: int  # bodies of this size that went to a larger class
    refused: int  # bodies that found no room at all

    @property
    def used(self) -> int:
        return self.owned + self.shared

    @property
    def free(self) -> int:
        return self.slot_count - self.used


@dataclass(frozen=True, slots=True)
class ParticipantReport:
    """One seat that belongs to somebody, and the slots that name it as their owner."""

    seat: int
    holder: Holder | None  # None: we have no right to see whether it lives
    name: str
    pid: int
    owned: int
    shared: int
    left_owned: int  # of its life before: waits for somebody to recover it
    left_shared: int
    claimed: int
    freed: int
    last_ticket: int  # that it noted; one that was killed may have done another, which its successor finds

    @property
    def is_alive(self) -> bool:
        return self.holder is not None and self.holder.is_alive

    @property
    def left(self) -> int:
        """How many slots a dead process still holds here."""
        is_dead = self.holder is not None and not self.holder.is_alive
        return self.left_owned + self.left_shared + (self.owned + self.shared if is_dead else 0)


@dataclass(frozen=True, slots=True)
class SlabReport:
    """A slab as an onlooker sees it."""

    kind: str
    name: str
    condition: Condition
    reason: str
    facts: FileFacts
    participants_max: int
    registrar: Holder | None  # who is sitting down or getting up at this moment
    classes: tuple[ClassReport, ...]
    participants: tuple[ParticipantReport, ...]

    @property
    def slot_count(self) -> int:
        return sum(each.slot_count for each in self.classes)

    @property
    def used(self) -> int:
        return sum(each.used for each in self.classes)

    @property
    def left(self) -> int:
        return sum(each.left for each in self.participants)


def inspect_slab(place: Path) -> SlabReport:
    """Look at the slab in directory `place`; ShmError says why that cannot be."""
    with FileSight(place / SLAB_FILE, LAYOUT) as slab:
        config, plan = checked_plan(slab.path, slab.header)
        # The owners before the seats: who is seen to own something and then not to live is dead.
        counts, holdings = _look_at_slots(slab, config, plan)
        blocks = _look_at_blocks(slab, config, plan)
        seats = look_at_seats(place / SEATS_FILE, config.participants)
        participants = tuple(_participants(blocks, seats, holdings))
        registrar = look_at_seats(place / SEATS_FILE, 1, REGISTRAR_SEAT).holder(REGISTRAR_SEAT)
        condition = Condition.UNUSED
        if seats.problem:
            condition = Condition.UNSEEN
        elif any(each.is_alive for each in participants):
            condition = Condition.LIVE
        return SlabReport(
            kind="slab",
            name=place.name,
            condition=condition,
            reason=seats.problem,
            facts=slab.facts,
            participants_max=config.participants,
            registrar=registrar if registrar is not None and registrar.is_alive else None,
            classes=tuple(_classes(config, counts, blocks)),
            participants=participants,
        )


def slab_users(place: Path) -> list[User]:
    """Return who takes part in the slab now, or is about to."""
    seats = look_at_seats(place / SEATS_FILE, REGISTRAR_SEAT + 1)
    holders = map(holder_of, seats.seats.values())
    return [User(ROLE, holder) for holder in holders if holder is not None and holder.is_alive]


def _look_at_slots(
    slab: FileSight, config: SlabConfig, plan: Words
) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
    """Return (owned, shared) for each class, and how many slots each (owner, state) has."""
    counts = []
    holdings: dict[tuple[int, int], int] = {}
    for which in range(len(config.classes)):
        row = PLAN_ROWS + which * PLAN_ROW_WORDS
        first_word, slot_count = int(plan[row + ROW_SLOTS_AT]), int(plan[row + ROW_SLOTS])
        owned = shared = 0
        for first in range(0, slot_count, SLOTS_AT_ONCE):
            count = min(SLOTS_AT_ONCE, slot_count - first)
            records = slab.read(first_word + first * SLOT_RECORD_WORDS, count * SLOT_RECORD_WORDS)
            words = records.reshape(count, SLOT_RECORD_WORDS)[:, STATE]
            _insist_sound(slab, plan, which, first, records)
            states = words & STATE_MASK
            owned += int(np.count_nonzero(states == OWNED))
            shared += int(np.count_nonzero(states == SHARED))
            held = words[states != FREE] & (OWNER_MASK << STATE_BITS | STATE_MASK)
            for key, times in zip(*np.unique(held, return_counts=True), strict=True):
                owner, state = int(key) >> STATE_BITS, int(key) & STATE_MASK
                if owner != NOBODY:
                    holdings[owner, state] = holdings.get((owner, state), 0) + int(times)
        counts.append((owned, shared))
    return counts, holdings


def _insist_sound(slab: FileSight, plan: Words, which: int, first: int, records: Words) -> None:
    """Insist that slots, read from slot `first` of a class on, are such as participants leave them.

    A slot may have moved on while it was read. So one that looks wrong is looked at again, and believed to
    be wrong only if its state is the same before and after: a state never comes back.
    """
    row = PLAN_ROWS + which * PLAN_ROW_WORDS
    first_word, first_slot = int(plan[row + ROW_SLOTS_AT]), int(plan[row + ROW_FIRST_SLOT])
    begin, end = first, first + records.size // SLOT_RECORD_WORDS
    while begin < end:
        unchecked = records[(begin - first) * SLOT_RECORD_WORDS :]
        suspect = first_wrong_slot(unchecked, part_of_plan(plan, which, begin, end - begin))
        if suspect is None:
            return
        index = suspect.slot - first_slot
        at = first_word + index * SLOT_RECORD_WORDS
        before, again, after = slab[at + STATE], slab.read(at, SLOT_RECORD_WORDS), slab[at + STATE]
        if before == again[STATE] == after:
            wrong = first_wrong_slot(again, part_of_plan(plan, which, index, 1))
            if wrong is not None:
                raise wrong.error(slab.path)
        begin = index + 1


def _look_at_blocks(slab: FileSight, config: SlabConfig, plan: Words) -> Words:
    """Return what participants say of themselves, a row for each seat."""
    words = slab.read(int(plan[PLAN_PARTICIPANTS_AT]), config.participants * PARTICIPANT_WORDS)
    blocks = words.reshape(config.participants, PARTICIPANT_WORDS)
    check_blocks(slab.path, blocks)
    return blocks


def _classes(config: SlabConfig, counts: list[tuple[int, int]], blocks: Words) -> Iterator[ClassReport]:
    for which, (size_class, (owned, shared)) in enumerate(zip(config.classes, counts, strict=True)):
        begin = COUNTERS + which * COUNTER_WORDS
        counters = blocks[:, begin : begin + COUNTER_WORDS]
        used_max = max(int(counters[:, USED_MAX].max()), owned + shared)
        sums = (int(counters[:, each].sum()) for each in (CLAIMED, FREED, OVERFLOWED, REFUSED))
        yield ClassReport(size_class.slot_bytes, size_class.slot_count, owned, shared, used_max, *sums)


def _participants(
    blocks: Words, seats: SeatsSeen, holdings: dict[tuple[int, int], int]
) -> Iterator[ParticipantReport]:
    for index, block in enumerate(blocks):
        seat = index + 1
        of_seat = {key: times for key, times in holdings.items() if key[0] & SEAT_MASK == seat}
        is_named = block[NAME] != 0  # who leaves in order takes its name off
        if not is_named and not of_seat:
            continue
        name = block[NAME : NAME + NAME_WORDS].tobytes().rstrip(b"\0").decode("ascii", "backslashreplace")
        name = name if is_named else ""
        pid, since_ns, incarnation = int(block[PID]), int(block[SINCE_NS]), int(block[INCARNATION])
        holder = None
        if not seats.problem:
            holder = held_by(Identity(name, pid, since_ns), is_alive=seats.is_taken(index))
        owner_now = incarnation << SEAT_BITS | seat
        mine = {state: times for (owner, state), times in of_seat.items() if owner == owner_now}
        total_owned, total_shared = (
            sum(times for (_, state), times in of_seat.items() if state == wanted)
            for wanted in (OWNED, SHARED)
        )
        owned, shared = mine.get(OWNED, 0), mine.get(SHARED, 0)
        counters = block[COUNTERS : COUNTERS + CLASSES_MAX * COUNTER_WORDS]
        claimed, freed = (int(counters[each::COUNTER_WORDS].sum()) for each in (CLAIMED, FREED))
        yield ParticipantReport(
            seat=seat,
            holder=holder,
            name=name,
            pid=pid,
            owned=owned,
            shared=shared,
            left_owned=total_owned - owned,
            left_shared=total_shared - shared,
            claimed=claimed,
            freed=freed,
            last_ticket=int(block[DONE_TICKET]),
        )
