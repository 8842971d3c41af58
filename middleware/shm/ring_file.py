"""A ring's file: how it is made, found and removed, and what is said when it is damaged."""

from __future__ import annotations

from pathlib import Path

from feeds.errors import ConfigError
from middleware.shm.arguments import whole
from middleware.shm.atomics import Words
from middleware.shm.errors import LayoutError, ShmError
from middleware.shm.mapping import HEADER_BYTES, Header, Layout, MappedFile, create, open_file
from middleware.shm.places import remove_place
from middleware.shm.ring_kernels import (
    CONTROL_BYTES,
    HEAD_WRONG,
    LAST_WRONG,
    MARK_WRONG,
    MARKS_BYTES,
    PROBLEM,
    PROBLEM_AT,
    PROBLEM_FOUND,
    RECORD_SHARE,
    SECOND_MARK_WRONG,
    TAIL_WRONG,
    WORD_BYTES,
)
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats

KIND = "rings"
RING_FILE, SEATS_FILE = "ring", "seats"
CAPACITY_BYTES_MIN = 4_096
CAPACITY_BYTES_MAX = 1 << 30
CAPACITY_BYTES_DEFAULT = 1 << 20

PRODUCER_SEAT, CONSUMER_SEAT = 0, 1
SEAT_ROLES = {PRODUCER_SEAT: "producer", CONSUMER_SEAT: "consumer"}

LAYOUT = Layout("ring", 1, ("capacity_bytes",))


def record_bytes_max(capacity_bytes: int) -> int:
    """Return how large a record's body may be: a quarter of the ring, less its two marks."""
    return capacity_bytes // RECORD_SHARE - MARKS_BYTES


def make_ring(runtime: Runtime, name: str, capacity_bytes: int = CAPACITY_BYTES_DEFAULT) -> None:
    """Make a ring unless there is one of this name, which must then have the same capacity.

    Either end may come first, so both may call this, at once too.
    """
    capacity_bytes = whole("capacity_bytes", capacity_bytes)
    _check_capacity(capacity_bytes)
    path = runtime.make_place(KIND, name) / RING_FILE
    if not path.exists():
        geometry = {"capacity_bytes": capacity_bytes}
        try:
            create(path, LAYOUT, name, geometry, CONTROL_BYTES + capacity_bytes, runtime.file_mode)
        except ShmError:
            if not path.exists():
                raise
    found = open_ring(runtime, name, is_writable=False).header.geometry["capacity_bytes"]
    if found != capacity_bytes:
        raise LayoutError(path, "capacity_bytes", found, capacity_bytes)
    Seats(path.with_name(SEATS_FILE), is_creator=True).close()


def open_ring(runtime: Runtime, name: str, *, is_writable: bool) -> MappedFile:
    """Map an existing ring, its sizes checked."""
    path = runtime.place(KIND, name) / RING_FILE
    file = open_file(path, LAYOUT, is_writable=is_writable)
    check_sizes(path, file.header)
    return file


def check_sizes(path: Path, header: Header) -> int:
    """Return a ring's capacity, which its header and its size must agree on."""
    capacity_bytes = header.geometry["capacity_bytes"]
    try:
        _check_capacity(capacity_bytes)
    except ConfigError as error:
        raise LayoutError(path, "capacity_bytes", capacity_bytes, "as a ring's is") from error
    expected_bytes = HEADER_BYTES + CONTROL_BYTES + capacity_bytes
    if header.file_bytes != expected_bytes:
        raise LayoutError(path, "file size", f"{header.file_bytes} bytes", f"{expected_bytes} bytes")
    return capacity_bytes


def remove_ring(runtime: Runtime, name: str) -> None:
    """Remove a ring and the records in it; InUse if one of its ends is alive."""
    seats = Seats(runtime.place(KIND, name) / SEATS_FILE)
    try:
        for seat, role in SEAT_ROLES.items():
            seats.take(seat, "remover", role)
        seats.insist_current()
        remove_place(seats, RING_FILE)
    finally:
        seats.close()


def damage(path: Path, state: Words, capacity_bytes: int) -> LayoutError:
    """Return the error for what a kernel found wrong and wrote to its state."""
    problem, position, found = (int(state[word]) for word in (PROBLEM, PROBLEM_AT, PROBLEM_FOUND))
    step = f"a multiple of {WORD_BYTES}"
    if problem == TAIL_WRONG:
        allowed = f"{step}, not below what it was, nor more than {capacity_bytes} above head {found}"
        return LayoutError(path, "tail", position, allowed)
    if problem == HEAD_WRONG:
        allowed = f"{step}, not below what it was, and 0 to {capacity_bytes} below tail {found}"
        return LayoutError(path, "head", position, allowed)
    size = f"0 to {record_bytes_max(capacity_bytes)} bytes within the ring and below tail"
    fields = {
        MARK_WRONG: f"the mark of the record at position {position}",
        SECOND_MARK_WRONG: f"the second mark of the record at position {position}",
        LAST_WRONG: f"the mark of the last record, which ends at position {position}",
    }
    expected = {
        MARK_WRONG: f"this position and {size}",
        SECOND_MARK_WRONG: "that of its first",
        LAST_WRONG: f"that of a whole record, {size}",
    }
    return LayoutError(path, fields[problem], f"{found:#018x}", expected[problem])


def _check_capacity(capacity_bytes: int) -> None:
    is_power = capacity_bytes > 0 and capacity_bytes & (capacity_bytes - 1) == 0
    if not is_power or not CAPACITY_BYTES_MIN <= capacity_bytes <= CAPACITY_BYTES_MAX:
        raise ConfigError(
            f"a ring's capacity must be a power of two from {CAPACITY_BYTES_MIN} to {CAPACITY_BYTES_MAX} "
            f"bytes, was {capacity_bytes}"
        )
