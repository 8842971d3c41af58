"""The ledger: every position once, none forgotten, and two ledgers compared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.errors import ConfigError, LimitError
from middleware import ledger as ledger_module
from middleware.ledger import Entry, Fate, Ledger


def ledger_of(*entries: tuple[int, int, Fate]) -> Ledger:
    ledger = Ledger("XNAS.ITCH")
    for first, last, fate in entries:
        ledger.add(first, last, fate)
    return ledger


def test_neighbours_of_one_fate_are_one_entry() -> None:
    ledger = ledger_of((1, 10, Fate.ACTIVE), (11, 20, Fate.ACTIVE), (21, 21, Fate.BACKUP))
    ledger.add(22, 30, Fate.FILLED, "history of a")
    ledger.add(31, 40, Fate.FILLED, "recorder")
    assert ledger.entries == [
        Entry(1, 20, Fate.ACTIVE),
        Entry(21, 21, Fate.BACKUP),
        Entry(22, 30, Fate.FILLED, "history of a"),
        Entry(31, 40, Fate.FILLED, "recorder"),
    ]
    assert ledger.next_position == 41
    assert (ledger.count(Fate.FILLED), ledger.delivered_count, ledger.lost) == (19, 40, [])


@pytest.mark.parametrize("first, last", [(10, 12), (12, 13), (1, 5)])
def test_a_position_cannot_be_noted_twice_or_left_out(first: int, last: int) -> None:
    ledger = ledger_of((1, 10, Fate.ACTIVE))
    with pytest.raises(ConfigError, match=f"position 11 comes next in the ledger, was {first}"):
        ledger.add(first, last, Fate.BACKUP)
    assert ledger.entries == [Entry(1, 10, Fate.ACTIVE)]


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of((1, 10, Fate.ACTIVE))
    with pytest.raises(ConfigError, match="must not end before it begins, was 11 to 10"):
        ledger.add(11, 10, Fate.ACTIVE)
    with pytest.raises(ConfigError, match="must not be negative, was -1"):
        ledger.add_duplicates("active", -1)
    monkeypatch.setattr(ledger_module, "ENTRIES_MAX", 1)
    with pytest.raises(LimitError, match="has 1 entries"):
        ledger.add(11, 11, Fate.LOST)


fates = st.lists(st.tuples(st.sampled_from(list(Fate)), st.integers(1, 4)), max_size=12)


def from_runs(start: int, runs: list[tuple[Fate, int]]) -> tuple[Ledger, dict[int, Fate]]:
    ledger, plain = Ledger("S"), dict[int, Fate]()
    position = start
    for fate, count in runs:
        ledger.add(position, position + count - 1, fate)
        plain |= dict.fromkeys(range(position, position + count), fate)
        position += count
    return ledger, plain


@given(st.integers(0, 5), fates)
def test_it_says_of_every_position_what_a_plain_table_says(start: int, runs: list[tuple[Fate, int]]) -> None:
    ledger, plain = from_runs(start, runs)
    for position in range(start + 60):
        entry = ledger.fate_of(position)
        assert (entry.fate if entry else None) == plain.get(position)
    for fate in Fate:
        assert ledger.count(fate) == list(plain.values()).count(fate)
    assert Ledger.from_json(ledger.as_json()) == ledger


@given(st.integers(0, 5), fates, st.integers(0, 5), fates)
def test_differences_are_those_of_plain_tables(
    here_start: int, here_runs: list[tuple[Fate, int]], there_start: int, there_runs: list[tuple[Fate, int]]
) -> None:
    here, here_plain = from_runs(here_start, here_runs)
    there, there_plain = from_runs(there_start, there_runs)

    def word(fate: Fate | None) -> str:
        return "absent" if fate is None else "lost" if fate is Fate.LOST else "delivered"

    expected = {}
    for position in {*here_plain, *there_plain}:
        words = word(here_plain.get(position)), word(there_plain.get(position))
        if words[0] != words[1]:
            expected[position] = words
    found = list(here.differences(there))
    told = {
        position: (mine, theirs) for first, last, mine, theirs in found for position in range(first, last + 1)
    }
    assert told == expected
    assert len(told) == sum(last - first + 1 for first, last, _, _ in found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"version": 2, "stream": "S", "entries": [], "duplicates": {}}),
        json.dumps({"version": 1, "stream": "S", "entries": [[1, 2]], "duplicates": {}}),
        json.dumps({"version": 1, "stream": "S", "entries": [[1, 2, "eaten", ""]], "duplicates": {}}),
        json.dumps({"version": 1, "stream": "S", "entries": [[5, 2, "lost", ""]], "duplicates": {}}),
        json.dumps({"version": 1, "stream": "S", "entries": [], "duplicates": []}),
    ],
)
def test_what_is_no_ledger_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ledger|range"):
        Ledger.from_json(text)


def test_duplicates_add_up_by_source() -> None:
    ledger = Ledger("S")
    for source, count in (("active", 3), ("backup", 5), ("active", 4)):
        ledger.add_duplicates(source, count)
    assert ledger.duplicates == {"active": 7, "backup": 5}
    assert ledger.next_position is None
