"""The ledger: for one subscriber's stream, which positions were delivered, from where, and which were lost.

It is written as messages are delivered, a range at a time, and read at the end of a session: by the operator,
and beside the recorder's. Neighbouring ranges of the same fate are one entry, so that a day without trouble
is a handful of lines. No position is in it twice, and none between its first and its last is missing.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self

from feeds.errors import ConfigError, LimitError

ENTRIES_MAX = 1_000_000  # 1,000 gaps a second would reach it after a quarter of an hour: something is broken
FORM_VERSION = 1


class Fate(StrEnum):
    """What became of a position."""

    ACTIVE = "active"  # delivered, from the active stream first
    BACKUP = "backup"  # delivered, from the backup stream first
    FILLED = "filled"  # delivered, from an adapter's history, the recorder, or a stream out of step
    LOST = "lost"  # given up


@dataclass(frozen=True, slots=True)
class Entry:
    """Positions `first` to `last`, both included, that had the same fate; `detail` says who or why."""

    first: int
    last: int
    fate: Fate
    detail: str = ""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Ledger:
    """One stream's entries, in order and without a hole, and the counts that belong to no position."""

    stream: str
    entries: list[Entry] = field(default_factory=list)
    duplicates: dict[str, int] = field(default_factory=dict)  # by where they came from

    def add(self, first: int, last: int, fate: Fate, detail: str = "") -> None:
        """Note the fate of the next positions. They must follow those that were noted last."""
        if last < first:
            raise ConfigError(f"a range must not end before it begins, was {first} to {last}")
        newest = self.entries[-1] if self.entries else None
        if newest is not None and first != newest.last + 1:
            raise ConfigError(
                f"{self.stream}: position {newest.last + 1} comes next in the ledger, was {first}"
            )
        if newest is not None and (newest.fate, newest.detail) == (fate, detail):
            self.entries[-1] = Entry(newest.first, last, fate, detail)
        elif len(self.entries) < ENTRIES_MAX:
            self.entries.append(Entry(first, last, fate, detail))
        else:
            raise LimitError(f"{self.stream}: the ledger has {ENTRIES_MAX} entries: begin a new one")

    def add_duplicates(self, source: str, count: int) -> None:
        if count < 0:
            raise ConfigError(f"a count must not be negative, was {count}")
        self.duplicates[source] = self.duplicates.get(source, 0) + count

    @property
    def next_position(self) -> int | None:
        """The position that must be noted next; None before the first."""
        return self.entries[-1].last + 1 if self.entries else None

    def count(self, fate: Fate) -> int:
        return sum(entry.count for entry in self.entries if entry.fate is fate)

    @property
    def delivered_count(self) -> int:
        return sum(entry.count for entry in self.entries if entry.fate is not Fate.LOST)

    @property
    def lost(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.fate is Fate.LOST]

    def fate_of(self, position: int) -> Entry | None:
        """Return the entry that a position is in, or None for one that is outside of the ledger."""
        index = bisect_right(self.entries, position, key=lambda entry: entry.first) - 1
        if index < 0 or position > self.entries[index].last:
            return None
        return self.entries[index]

    def differences(self, other: Ledger) -> Iterator[tuple[int, int, str, str]]:
        """Yield (first, last, here, there) of each range that was delivered in only one of the ledgers.

        Who delivered a position is no difference; whether it was delivered is.
        """
        cuts = sorted(
            {entry.first for ledger in (self, other) for entry in ledger.entries}
            | {entry.last + 1 for ledger in (self, other) for entry in ledger.entries}
        )
        found: tuple[int, int, str, str] | None = None
        for first, end in pairwise(cuts):
            here, there = (_word_for(ledger.fate_of(first)) for ledger in (self, other))
            if here == there:
                continue
            if found is not None and found[1] + 1 == first and found[2:] == (here, there):
                found = (found[0], end - 1, here, there)
                continue
            if found is not None:
                yield found
            found = (first, end - 1, here, there)
        if found is not None:
            yield found

    def as_json(self) -> str:
        return json.dumps(
            {
                "version": FORM_VERSION,
                "stream": self.stream,
                "entries": [[entry.first, entry.last, entry.fate, entry.detail] for entry in self.entries],
                "duplicates": self.duplicates,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a ledger back; whatever is not one is an error that says what is wrong with it."""
        try:
            form: Any = json.loads(text)
            if form["version"] != FORM_VERSION:
                raise ConfigError(f"a ledger's version must be {FORM_VERSION}, was {form['version']!r}")
            ledger = cls(str(form["stream"]))
            for first, last, fate, detail in form["entries"]:
                ledger.add(int(first), int(last), Fate(fate), str(detail))
            for source, count in form["duplicates"].items():
                ledger.add_duplicates(str(source), int(count))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is not a ledger: {type(error).__name__}: {error}") from error
        return ledger


def _word_for(entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    return "lost" if entry.fate is Fate.LOST else "delivered"
