"""The inspector's look at a bell: how often it was rung.

Who rings it and who waits for it nobody can know: a bell has no seats, and the mark of a sleeper stays after
one that was killed or gave up waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from middleware.shm.bell import BELL_FILE, BELL_WORD, LAYOUT, check_size
from middleware.shm.errors import LayoutError
from middleware.shm.inspection.files import Condition, FileFacts, FileSight, User


@dataclass(frozen=True, slots=True)
class BellReport:
    """A bell as an onlooker sees it."""

    kind: str
    name: str
    condition: Condition
    reason: str
    facts: FileFacts
    ring_count: int


def inspect_bell(place: Path) -> BellReport:
    """Look at the bell in directory `place`; ShmError says why that cannot be."""
    with FileSight(place / BELL_FILE, LAYOUT) as bell:
        check_size(bell.path, bell.header)
        ring_count = bell[BELL_WORD]
        if ring_count < 0:
            raise LayoutError(bell.path, "count of rings", ring_count, "0 or more")
        return BellReport("bell", place.name, Condition.PRESENT, "", bell.facts, ring_count)


def bell_users(_place: Path) -> list[User]:
    """Return nobody: there may be users, but none that can be seen."""
    return []
