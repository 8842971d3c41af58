"""Where everything in a slab's file is, and what the bits of its words mean. Arithmetic alone, no memory.

    | header | participants: one block for each seat | class 0: hints, slots, bodies | class 1: ... |

A class holds bodies up to one size. Each of its slots has a line of words, apart from its body, so that
nobody who writes past the end of a body can damage them:

    state    generation 40 | incarnation 10 | seat + 1, 10 | state 2      the truth about the slot: moved by
                                                                         compare-exchange, by anybody
    count    generation 33 | relinquished 20 | seat + 1 of the last, 10   moved by compare-exchange
    limit    generation 40 | limit 20, 0 is unset                         set once, by compare-exchange
    tag      whatever the owner wants its successor to know               written by the owner, before sharing
    bytes    length of the body                                           written by the owner, before sharing

A file of zeros is an empty slab: nothing has to be written before it is given its name. A handle is one word:
generation 40 | class 3 | slot 20, never zero, for no generation is.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Self

import numpy as np

from feeds.errors import ConfigError
from middleware.shm.arguments import whole
from middleware.shm.atomics import Words
from middleware.shm.mapping import HEADER_BYTES, LINE_WORDS, Layout

WORD_BYTES = 8
CLASSES_MAX = 7  # with the number of participants they fill the header's eight words
SLOT_BITS, CLASS_BITS, GENERATION_BITS = 20, 3, 40
SLOTS_MAX = 1 << SLOT_BITS
BODY_BYTES_MAX = 1 << 30
BODY_BYTES_STEP = 64  # bodies begin on a cache line
PARTICIPANTS_MAX = 1_000

SLOT_MASK = (1 << SLOT_BITS) - 1
CLASS_MASK = (1 << CLASS_BITS) - 1
GENERATION_MASK = (1 << GENERATION_BITS) - 1

# The state word.
FREE, OWNED, SHARED = 0, 1, 2
STATE_BITS, SEAT_BITS, INCARNATION_BITS = 2, 10, 10
STATE_MASK = (1 << STATE_BITS) - 1
SEAT_MASK = (1 << SEAT_BITS) - 1
INCARNATION_COUNT = 1 << INCARNATION_BITS
OWNER_MASK = (1 << (SEAT_BITS + INCARNATION_BITS)) - 1
NOBODY = 0
GENERATION_SHIFT = STATE_BITS + SEAT_BITS + INCARNATION_BITS

# The completion words.
COUNT_BITS = 20
COUNT_MAX = (1 << COUNT_BITS) - 1
COUNT_GENERATION_MASK = (1 << 33) - 1
COUNT_GENERATION_SHIFT = SEAT_BITS + COUNT_BITS

# A slot's words. One line each: two slots never share one.
STATE, COUNT, LIMIT, TAG, BYTES = range(5)
SLOT_RECORD_WORDS = 8

# A participant's block: who it is | what it is relinquishing | what others saw of that | what it counted.
INCARNATION, NAME, PID, SINCE_NS = 0, 1, 9, 10
NAME_WORDS = PID - NAME
INTENT_SEQ, INTENT_HANDLE, INTENT_COUNT, INTENT_TICKET, DONE_TICKET = range(LINE_WORDS, LINE_WORDS + 5)
APPLIED_SEQ = 2 * LINE_WORDS  # the only word of a block that others write
COUNTERS = 3 * LINE_WORDS
CLAIMED, FREED, OVERFLOWED, REFUSED, USED_MAX = range(5)
COUNTER_WORDS = 5
PARTICIPANT_WORDS = 6 * LINE_WORDS
assert COUNTERS + CLASSES_MAX * COUNTER_WORDS <= PARTICIPANT_WORDS

HINTS_PER_WORD = 32

# The plan: where the parts are, for kernels. Some words, then a row for each class.
PLAN_CLASSES, PLAN_PARTICIPANTS, PLAN_PARTICIPANTS_AT, PLAN_SLOTS = range(4)
PLAN_ROWS, PLAN_ROW_WORDS = 8, 8
ROW_SLOT_BYTES, ROW_SLOTS, ROW_HINTS, ROW_HINTS_AT, ROW_SLOTS_AT, ROW_BODIES_AT, ROW_FIRST_SLOT = range(7)

# A participant's private words: who it is, then for each class where it looks next.
MY_SEAT, MY_OWNER, MY_BLOCK, MY_DONE_TICKET = range(4)
MY_ROWS, MY_ROW_WORDS = 8, 8
ROW_CURSOR, ROW_SWEEP_AT, ROW_FRUITLESS, ROW_DRY, ROW_UNSAMPLED = range(5)
PRIVATE_WORDS = MY_ROWS + CLASSES_MAX * MY_ROW_WORDS

LAYOUT = Layout("slab", 1, ("participants", *(f"class_{which}" for which in range(CLASSES_MAX))))
_GEOMETRY_SHIFT = 24  # a class's word in the header: slot bytes | slot count


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Slots for bodies of up to `slot_bytes`."""

    slot_bytes: int
    slot_count: int

    def __post_init__(self) -> None:
        for field in ("slot_bytes", "slot_count"):
            object.__setattr__(self, field, whole(field, getattr(self, field)))
        if not BODY_BYTES_STEP <= self.slot_bytes <= BODY_BYTES_MAX or self.slot_bytes % BODY_BYTES_STEP:
            raise ConfigError(
                f"slot_bytes must be a multiple of {BODY_BYTES_STEP} up to {BODY_BYTES_MAX}, "
                f"was {self.slot_bytes}"
            )
        if not 1 <= self.slot_count <= SLOTS_MAX:
            raise ConfigError(f"slot_count must be 1 to {SLOTS_MAX}, was {self.slot_count}")


# Market data is mostly small: some 44 MB in all, of which half are for bodies up to 1 KiB.
DEFAULT_CLASSES = (
    SizeClass(256, 16_384),
    SizeClass(1_024, 16_384),
    SizeClass(8_192, 1_024),
    SizeClass(65_536, 128),
    SizeClass(1 << 20, 8),
)


@dataclass(frozen=True, slots=True)
class SlabConfig:
    """What a slab is made with; it cannot be changed while the file lives."""

    classes: tuple[SizeClass, ...] = DEFAULT_CLASSES
    participants: int = 64

    def __post_init__(self) -> None:
        if not 1 <= len(self.classes) <= CLASSES_MAX:
            raise ConfigError(f"a slab must have 1 to {CLASSES_MAX} size classes, was {len(self.classes)}")
        sizes = [each.slot_bytes for each in self.classes]
        if sizes != sorted(set(sizes)):
            raise ConfigError(f"slot_bytes of the size classes must grow, were {sizes}")
        object.__setattr__(self, "participants", whole("participants", self.participants))
        if not 1 <= self.participants <= PARTICIPANTS_MAX:
            raise ConfigError(f"participants must be 1 to {PARTICIPANTS_MAX}, was {self.participants}")

    def geometry(self) -> dict[str, int]:
        packed = [each.slot_bytes << _GEOMETRY_SHIFT | each.slot_count for each in self.classes]
        figures = [self.participants, *packed, *([0] * (CLASSES_MAX - len(packed)))]
        return dict(zip(LAYOUT.geometry, figures, strict=True))

    @classmethod
    def from_geometry(cls, geometry: dict[str, int]) -> Self:
        """Return what a header's words say, or raise ConfigError where they cannot be."""
        participants, *packed = (geometry[name] for name in LAYOUT.geometry)
        used = [word for word in packed if word]
        if packed[: len(used)] != used:
            raise ConfigError(f"size classes must leave no gap, were {packed}")
        mask = (1 << _GEOMETRY_SHIFT) - 1
        return cls(tuple(SizeClass(word >> _GEOMETRY_SHIFT, word & mask) for word in used), participants)

    @property
    def body_bytes_max(self) -> int:
        return self.classes[-1].slot_bytes


def _whole_lines(word_count: int) -> int:
    return -(-word_count // LINE_WORDS) * LINE_WORDS


def plan_of(config: SlabConfig) -> tuple[Words, int]:
    """Return the plan of a slab and how many bytes follow its header, in whole pages."""
    plan = np.zeros(PLAN_ROWS + len(config.classes) * PLAN_ROW_WORDS, dtype=np.int64)
    at = HEADER_BYTES // WORD_BYTES
    plan[PLAN_CLASSES], plan[PLAN_PARTICIPANTS] = len(config.classes), config.participants
    plan[PLAN_PARTICIPANTS_AT] = at
    at += config.participants * PARTICIPANT_WORDS
    first_slot = 0
    for which, each in enumerate(config.classes):
        row = plan[PLAN_ROWS + which * PLAN_ROW_WORDS :]
        hint_words = -(-each.slot_count // HINTS_PER_WORD)
        row[ROW_SLOT_BYTES], row[ROW_SLOTS], row[ROW_HINTS] = each.slot_bytes, each.slot_count, hint_words
        row[ROW_FIRST_SLOT] = first_slot
        row[ROW_HINTS_AT] = at
        at += _whole_lines(hint_words)
        row[ROW_SLOTS_AT] = at
        at += _whole_lines(each.slot_count * SLOT_RECORD_WORDS)
        row[ROW_BODIES_AT] = at
        at += _whole_lines(each.slot_count * (each.slot_bytes // WORD_BYTES))
        first_slot += each.slot_count
    plan[PLAN_SLOTS] = first_slot
    body_bytes = at * WORD_BYTES - HEADER_BYTES
    return plan, -(-body_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def part_of_plan(plan: Words, which: int, first: int, count: int) -> Words:
    """Return a plan for `count` slots of a class from slot `first` on, for words that begin with theirs.

    Who reads a file in parts has nothing but those words: neither hints nor bodies can be found with it.
    """
    part = np.zeros(PLAN_ROWS + PLAN_ROW_WORDS, dtype=np.int64)
    part[:PLAN_ROWS] = plan[:PLAN_ROWS]
    part[PLAN_CLASSES] = 1
    row = part[PLAN_ROWS:]
    row[:] = plan[PLAN_ROWS + which * PLAN_ROW_WORDS :][:PLAN_ROW_WORDS]
    row[ROW_SLOTS], row[ROW_SLOTS_AT] = count, 0
    row[ROW_FIRST_SLOT] += first
    return part


def handle_text(handle: int) -> str:
    """Return a handle for people: class, slot and generation."""
    slot, size_class = handle & SLOT_MASK, handle >> SLOT_BITS & CLASS_MASK
    return f"{size_class}:{slot}#{handle >> (SLOT_BITS + CLASS_BITS)}"
