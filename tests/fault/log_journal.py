"""What a reader under test says that it got: a line for every run of frames and for every range it missed.

A line is one write, so a reader that is killed leaves whole lines, but for a last one that is cut off and not
counted. It goes on at `resume_at` when it is started again, so that all its lives together are one account.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DELIVERED, MISSED = "delivered", "missed"


@dataclass(frozen=True, slots=True)
class Entry:
    what: str
    first: int
    last: int
    generation: int = 0  # of the writer, for what was delivered


class Journal:
    """Written by one reader at a time, appended to by its successors."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        whole = b"".join(_whole_lines(path.read_bytes()))
        os.truncate(self._fd, len(whole))
        self._waiting: Entry | None = None

    def note(self, entry: Entry) -> None:
        """Note an entry, joined to the one before where it continues that."""
        held = self._waiting
        if held is not None and held.last + 1 == entry.first and _label(held) == _label(entry):
            self._waiting = Entry(held.what, held.first, entry.last, held.generation)
        else:
            self.flush()
            self._waiting = entry

    def flush(self) -> None:
        held, self._waiting = self._waiting, None
        if held is not None:
            os.write(self._fd, f"{held.what} {held.first} {held.last} {held.generation}\n".encode())

    def close(self) -> None:
        self.flush()
        os.close(self._fd)


def read_journal(path: Path) -> list[Entry]:
    """Return all whole entries; none if the reader did not live to make its journal."""
    if not path.exists():
        return []
    entries = []
    for line in _whole_lines(path.read_bytes()):
        what, first, last, generation = line.decode().split()
        entries.append(Entry(what, int(first), int(last), int(generation)))
    return entries


def resume_at(path: Path) -> int | None:
    """Return the number after the last that a journal accounts for."""
    entries = read_journal(path)
    return entries[-1].last + 1 if entries else None


def insist_complete(entries: Sequence[Entry], last_seq: int) -> None:
    """Insist that every number from the first entry's to `last_seq` is accounted for, once and in order."""
    assert entries, "the journal is empty"
    expected = entries[0].first
    for entry in entries:
        assert entry.first == expected, f"{entry} does not continue at {expected}"
        assert entry.first <= entry.last, f"{entry} is empty"
        expected = entry.last + 1
    assert expected == last_seq + 1, f"the account ends at {expected - 1}, not at {last_seq}"


def insist_writers(entries: Sequence[Entry], starts: Sequence[tuple[int, int]]) -> None:
    """Insist that each delivered frame is of the writer whose turn it was.

    `starts` are (first number, generation) of the writers in their order. A writer that was killed in the
    middle of a frame left that one where its successor begins: it must never be delivered.
    """
    for entry in entries:
        if entry.what == DELIVERED:
            turns = [generation for first, generation in starts if first <= entry.first]
            ends = [first for first, generation in starts if generation > entry.generation]
            assert turns, f"{entry} was delivered before any writer began"
            assert entry.generation == turns[-1], f"{entry} should be of generation {turns[-1]}"
            assert not ends or entry.last < ends[0], f"{entry} reaches into the next writer's, from {ends[0]}"


def _label(entry: Entry) -> tuple[str, int]:
    return entry.what, entry.generation


def _whole_lines(content: bytes) -> list[bytes]:
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
