"""What must be so in a slab's file: one rule for who takes part in it and for who looks on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feeds.errors import ConfigError
from middleware.shm.arguments import INT64_MAX
from middleware.shm.atomics import Words
from middleware.shm.errors import LayoutError
from middleware.shm.mapping import HEADER_BYTES, Header
from middleware.shm.slab_layout import (
    APPLIED_SEQ,
    DONE_TICKET,
    INCARNATION,
    INCARNATION_COUNT,
    INTENT_SEQ,
    INTENT_TICKET,
    SlabConfig,
    plan_of,
)
from middleware.shm.slab_recovery_kernels import SOUND, check_kernel

# As check_kernel numbers them.
_SLOT_FIELDS = ("state", "body length", "relinquish count", "relinquish limit")
# Names are not among them: who looks on may see one while it is written.
_BLOCK_LIMITS = {
    "incarnation": (INCARNATION, INCARNATION_COUNT),
    "announced number": (INTENT_SEQ, INT64_MAX),
    "announced ticket": (INTENT_TICKET, INT64_MAX),
    "last ticket": (DONE_TICKET, INT64_MAX),
    "testimony": (APPLIED_SEQ, INT64_MAX),
}


@dataclass(frozen=True, slots=True)
class WrongSlot:
    """A slot with a word that no participant writes; slots are numbered through all classes."""

    slot: int
    field: str
    word: int

    def error(self, path: Path) -> LayoutError:
        field = f"{self.field} of slot {self.slot}"
        return LayoutError(path, field, f"{self.word:#018x}", "a word that a slab can write")


def checked_plan(path: Path, header: Header) -> tuple[SlabConfig, Words]:
    """Return what a slab was made with and where its parts are; its header and its size must agree on it."""
    geometry = dict(header.geometry)
    try:
        config = SlabConfig.from_geometry(geometry)
    except ConfigError as error:
        raise LayoutError(path, "geometry", geometry, str(error)) from error
    plan, body_bytes = plan_of(config)
    expected_bytes = HEADER_BYTES + body_bytes
    if header.file_bytes != expected_bytes:
        raise LayoutError(path, "file size", f"{header.file_bytes} bytes", f"{expected_bytes} bytes")
    return config, plan


def check_blocks(path: Path, blocks: Words) -> None:
    """Insist that the participants' blocks, a row for each seat, hold what participants write."""
    for field, (offset, end) in _BLOCK_LIMITS.items():
        found = blocks[:, offset]
        is_wrong = (found < 0) | (found >= end)
        if is_wrong.any():
            index = int(np.argmax(is_wrong))
            raise LayoutError(path, f"{field} of seat {index + 1}", int(found[index]), f"0 to {end - 1}")


def first_wrong_slot(words: Words, plan: Words) -> WrongSlot | None:
    """Return the first slot that cannot be, of those in the plan; None if all are sound."""
    found = np.zeros(2, dtype=np.int64)
    slot = check_kernel(words, plan, found)
    return None if slot == SOUND else WrongSlot(slot, _SLOT_FIELDS[found[0]], int(found[1]))
