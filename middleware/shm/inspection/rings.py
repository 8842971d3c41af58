"""The inspector's look at a ring: who produces, who consumes, where they are, and what was committed last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from middleware.shm.errors import LayoutError
from middleware.shm.inspection.files import (
    LOOKS_MAX,
    Condition,
    FileFacts,
    FileSight,
    Holder,
    User,
    look_at_seats,
    settled,
)
from middleware.shm.ring_file import (
    CONSUMER_SEAT,
    LAYOUT,
    PRODUCER_SEAT,
    RING_FILE,
    SEAT_ROLES,
    SEATS_FILE,
    check_sizes,
    record_bytes_max,
)
from middleware.shm.ring_kernels import HEAD, MARKS_BYTES, RECORDS, TAIL, WORD_BYTES

SHOWN_BYTES = 32

# A mark, as ring_kernels.py draws it: position / 8 (31 bits) | bytes (32 bits).
_MARK_BYTES_MASK = (1 << 32) - 1
_MARK_POSITION_MASK = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RecordReport:
    """A record: where it is, how long, and how it begins."""

    position: int
    byte_count: int
    first_bytes: str  # hexadecimal


@dataclass(frozen=True, slots=True)
class RingReport:
    """A ring as an onlooker sees it."""

    kind: str
    name: str
    condition: Condition
    reason: str
    facts: FileFacts
    producer: Holder | None
    consumer: Holder | None
    capacity_bytes: int
    head: int  # the position of the first record that is not consumed
    tail: int  # the position behind the last committed one
    fill_bytes: int
    fill_share: float
    last: RecordReport | None  # None if there never was one, or it changed at every look


def inspect_ring(place: Path) -> RingReport:
    """Look at the ring in directory `place`; ShmError says why that cannot be."""
    with FileSight(place / RING_FILE, LAYOUT) as ring:
        capacity_bytes = check_sizes(ring.path, ring.header)
        head, tail = settled(lambda: _look_at_cursors(ring, capacity_bytes))
        last = settled(lambda: _look_at_last(ring, capacity_bytes))
        seats = look_at_seats(place / SEATS_FILE, len(SEAT_ROLES))
        producer, consumer = seats.holder(PRODUCER_SEAT), seats.holder(CONSUMER_SEAT)
        condition = Condition.UNSEEN if seats.problem else _condition(producer, consumer)
        fill_bytes = tail - head
        return RingReport(
            kind="ring",
            name=place.name,
            condition=condition,
            reason=seats.problem,
            facts=ring.facts,
            producer=producer,
            consumer=consumer,
            capacity_bytes=capacity_bytes,
            head=head,
            tail=tail,
            fill_bytes=fill_bytes,
            fill_share=fill_bytes / capacity_bytes,
            last=last,
        )


def ring_users(place: Path) -> list[User]:
    """Return who holds an end of the ring now."""
    seats = look_at_seats(place / SEATS_FILE, len(SEAT_ROLES))
    ends = ((role, seats.holder(seat)) for seat, role in SEAT_ROLES.items())
    return [User(role, holder) for role, holder in ends if holder is not None and holder.is_alive]


def _condition(producer: Holder | None, consumer: Holder | None) -> Condition:
    is_produced = producer is not None and producer.is_alive
    is_consumed = consumer is not None and consumer.is_alive
    if is_produced:
        return Condition.LIVE if is_consumed else Condition.NO_CONSUMER
    return Condition.NO_PRODUCER if is_consumed else Condition.UNUSED


def _look_at_cursors(ring: FileSight, capacity_bytes: int) -> tuple[int, int]:
    """Return HEAD and TAIL. While both move, they are as close as two looks come."""
    before, tail, head = ring[HEAD], ring[TAIL], ring[HEAD]
    # True of a sound ring at any speed: TAIL was ahead of the HEAD before it, and HEAD only grows.
    if tail % WORD_BYTES or not before <= tail <= head + capacity_bytes:
        expected = f"a multiple of {WORD_BYTES} from {before} to {head + capacity_bytes}"
        raise LayoutError(ring.path, "tail", tail, expected)
    if head % WORD_BYTES or not 0 <= before <= head:
        raise LayoutError(ring.path, "head", head, f"a multiple of {WORD_BYTES}, 0 or more, that only grows")
    return head, max(tail, head)


def _look_at_last(ring: FileSight, capacity_bytes: int) -> RecordReport | None:
    """Return the last committed record, consumed or not: it stays in place until there is another."""
    for _ in range(LOOKS_MAX):
        tail = ring[TAIL]
        if tail < MARKS_BYTES:
            return None
        mark = ring[_word_of(tail - WORD_BYTES, capacity_bytes)]
        byte_count = mark & _MARK_BYTES_MASK
        is_sound = byte_count <= record_bytes_max(capacity_bytes)
        padded_bytes = (byte_count + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES
        position = tail - MARKS_BYTES - padded_bytes
        first_bytes = b""
        if is_sound and position >= 0:
            first_word = _word_of(position, capacity_bytes)
            is_sound = mark >> 32 == (position // WORD_BYTES) & _MARK_POSITION_MASK == ring[first_word] >> 32
            first_bytes = ring.read_bytes((first_word + 1) * WORD_BYTES, min(byte_count, SHOWN_BYTES))
        if ring[TAIL] != tail:
            continue  # there is another one meanwhile
        if not is_sound or position < 0:
            field = f"the mark of the last record, which ends at position {tail}"
            raise LayoutError(ring.path, field, f"{mark:#018x}", "that of a whole record")
        return RecordReport(position, byte_count, first_bytes.hex())
    return None


def _word_of(position: int, capacity_bytes: int) -> int:
    return RECORDS + position % capacity_bytes // WORD_BYTES
