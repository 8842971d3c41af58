"""The slab's file: what it keeps, where it keeps it, what damage is refused, and what a report says of it."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from pathlib import Path

import pytest

from middleware.shm.errors import LayoutError, NotFound
from middleware.shm.inspection.look import inspect_one, kind_named
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.runtime import Runtime
from middleware.shm.slab import (
    SizeClass,
    Slab,
    SlabConfig,
)
from middleware.shm.slab_layout import (
    APPLIED_SEQ,
    BYTES,
    CLASSES_MAX,
    COUNT,
    DONE_TICKET,
    GENERATION_SHIFT,
    INCARNATION,
    INTENT_SEQ,
    INTENT_TICKET,
    LIMIT,
    MY_BLOCK,
    PLAN_ROW_WORDS,
    PLAN_ROWS,
    PLAN_SLOTS,
    ROW_BODIES_AT,
    ROW_FIRST_SLOT,
    ROW_HINTS,
    ROW_HINTS_AT,
    ROW_SLOTS,
    ROW_SLOTS_AT,
    SLOT_RECORD_WORDS,
    STATE,
    TAG,
    plan_of,
)
from middleware.shm.slab_slot_kernels import slot_at
from tests.slab_members import SMALL, Join, class_report, die, look, owned, shared

pytestmark = pytest.mark.kernels


def test_a_slab_outlives_its_users(join: Join, runtime: Runtime) -> None:
    maker = join("maker")
    handle = shared(maker, b"still here")
    maker.close()
    with Slab.open(runtime, "bodies", who="later") as slab:
        assert slab.read(handle) == b"still here"
        assert slab.config == SMALL


def test_a_slab_that_is_not_there_is_named(runtime: Runtime, join: Join) -> None:
    join("a")
    with pytest.raises(NotFound, match="no slab 'others'"):
        Slab.open(runtime, "others", who="a")
    with pytest.raises(NotFound, match="no slab 'others'"):
        inspect_one(runtime, kind_named("slab"), "others")


def test_a_slab_of_another_configuration_is_refused(join: Join) -> None:
    join("a")
    with pytest.raises(LayoutError, match=r"configuration must be .*128.* was .*256") as refusal:
        join("b", SlabConfig((SizeClass(64, 4), SizeClass(128, 2)), participants=4))
    assert refusal.value.found == SMALL


def test_files_are_their_owners_alone(join: Join, runtime: Runtime) -> None:
    join("a")
    place = runtime.place("slabs", "bodies")
    for path in (place / "slab", place / "seats"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _damage(path: Path, word: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<q", value))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (STATE, 3, "state of slot 1"),
        (STATE, -1, "state of slot 1"),
        (STATE, 1 << 2, "state of slot 1"),  # free, and yet somebody's
        (STATE, 1 << GENERATION_SHIFT | 1, "state of slot 1"),  # owned by nobody
        (STATE, 2, "state of slot 1"),  # shared before it was ever allocated
        (STATE, 1 << GENERATION_SHIFT | 5 << 2 | 1, "state of slot 1"),  # a seat that is not there
        (STATE, 1 << 62, "state of slot 1"),
        (BYTES, 65, "body length of slot 1"),
        (BYTES, -1, "body length of slot 1"),
        (COUNT, 0, "relinquish count of slot 1"),
        (COUNT, 1 << 30 | 5, "relinquish count of slot 1"),
        (LIMIT, 0, "relinquish limit of slot 1"),
    ],
)
def test_a_damaged_slot_is_refused_by_name(
    join: Join, runtime: Runtime, field: int, value: int, named: str
) -> None:
    slab = join("a")
    shared(slab)
    at = slot_at(slab.plan, shared(slab))
    slab.close()
    path = runtime.place("slabs", "bodies") / "slab"
    _damage(path, at + field, value)
    for attempt in (lambda: join("a"), lambda: look(runtime)):
        with pytest.raises(LayoutError, match=named):
            attempt()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (INCARNATION, 1 << 10, "incarnation of seat 2 must be 0 to 1023, was 1024"),
        (INTENT_SEQ, -2, "announced number of seat 2"),
        (INTENT_TICKET, -1, "announced ticket of seat 2"),
        (DONE_TICKET, -1, "last ticket of seat 2"),
        (APPLIED_SEQ, -1, "testimony of seat 2"),
    ],
)
def test_a_damaged_participant_is_refused_by_name(
    join: Join, runtime: Runtime, field: int, value: int, named: str
) -> None:
    join("a")
    at = int(join("b").private[MY_BLOCK])
    _damage(runtime.place("slabs", "bodies") / "slab", at + field, value)
    for attempt in (lambda: join("c"), lambda: look(runtime)):
        with pytest.raises(LayoutError, match=named):
            attempt()


def test_a_body_length_damaged_while_running_is_refused_not_followed(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    slab.words[slot_at(slab.plan, handle) + BYTES] = 1 << 50
    for use in (slab.view, slab.read):
        with pytest.raises(LayoutError, match="body length of 0:0#1"):
            use(handle)


@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize("value", [-1, 1, 64 << 24 | 500, 1 << 55, (1 << 63) - 1])
def test_a_damaged_geometry_is_refused_even_with_a_right_checksum(
    join: Join, runtime: Runtime, which: int, value: int
) -> None:
    # Sizes of whole pages, so that every other geometry needs another file size.
    join("a", SlabConfig((SizeClass(4_096, 64), SizeClass(8_192, 8)), participants=64)).close()
    path = runtime.place("slabs", "bodies") / "slab"
    header = bytearray(path.read_bytes()[:HEADER_BYTES])
    header[64 + 8 * which : 72 + 8 * which] = struct.pack("<q", value)
    header[56:60] = bytes(4)
    header[56:60] = struct.pack("<I", zlib.crc32(header))
    with path.open("r+b") as file:
        file.write(header)
    for attempt in (lambda: Slab.open(runtime, "bodies", who="a"), lambda: look(runtime)):
        with pytest.raises(LayoutError):
            attempt()


def test_the_report_says_who_holds_what(join: Join, runtime: Runtime) -> None:
    one, two = join("one"), join("two")
    owned(one)
    handle = shared(one)
    shared(two, b"x" * 100)
    two.relinquish(handle, ticket=4)
    die(one)
    report = look(runtime)
    small, large = report.classes
    assert (small.free, small.owned, small.shared, small.used_max) == (2, 1, 1, 2)
    assert (large.free, large.owned, large.shared) == (1, 0, 1)
    first, second = report.participants
    assert (first.name, first.is_alive, first.owned, first.shared) == ("one", False, 1, 1)
    assert (second.name, second.is_alive, second.shared, second.last_ticket) == ("two", True, 1, 4)
    assert second.pid == os.getpid()


def test_the_high_water_mark_is_sampled_among_all_participants(join: Join, runtime: Runtime) -> None:
    config = SlabConfig((SizeClass(64, 512),), participants=2)
    one, two = join("one", config), join("two", config)
    handles = [shared(slab) for _ in range(128) for slab in (one, two)]
    for handle in handles:
        two.relinquish(handle, limit=1)
    report = class_report(runtime)
    assert report.free == 512
    assert 256 - 64 <= report.used_max <= 256


def test_the_words_of_a_slot_are_where_the_drawing_says(join: Join) -> None:
    slab = join("a")
    handle = shared(slab, b"body", tag=-5)
    slab.relinquish(handle, limit=3, ticket=8)
    record = slab.words[slot_at(slab.plan, handle) :][:5].tolist()
    generation, seat = 1, 1
    incarnation = 1
    assert record[STATE] == generation << 22 | incarnation << 12 | seat << 2 | 2
    assert record[COUNT] == generation << 30 | 1 << 10 | seat
    assert record[LIMIT] == generation << 20 | 3
    assert (record[TAG], record[BYTES]) == (-5, 4)
    assert slab.words[slab.private[MY_BLOCK] + DONE_TICKET] == 8


def test_the_parts_of_a_slab_do_not_overlap_and_fill_its_file() -> None:
    config = SlabConfig(tuple(SizeClass(64 * n, 7 * n) for n in range(1, CLASSES_MAX + 1)), participants=3)
    plan, body_bytes = plan_of(config)
    end = HEADER_BYTES // 8
    slots = 0
    for which, each in enumerate(config.classes):
        row = plan[PLAN_ROWS + which * PLAN_ROW_WORDS :]
        assert end <= row[ROW_HINTS_AT] < row[ROW_SLOTS_AT] < row[ROW_BODIES_AT]
        assert row[ROW_HINTS_AT] + row[ROW_HINTS] <= row[ROW_SLOTS_AT]
        assert row[ROW_SLOTS_AT] + each.slot_count * SLOT_RECORD_WORDS <= row[ROW_BODIES_AT]
        assert row[ROW_BODIES_AT] % 8 == 0
        assert row[ROW_FIRST_SLOT] == slots
        end = int(row[ROW_BODIES_AT]) + each.slot_count * each.slot_bytes // 8
        slots += int(row[ROW_SLOTS])
    assert slots == plan[PLAN_SLOTS]
    assert 0 <= HEADER_BYTES + body_bytes - 8 * end < 4_096 + 128
