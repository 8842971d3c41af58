"""Entitlements: what they add up to, from which message on, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeds.errors import LimitError
from stream_admin.entitlements import (
    ENTITLEMENTS_MAX,
    Entitlement,
    NotEntitled,
    Right,
    Span,
    insist_right,
)
from stream_admin.protocol.errors import ProtocolError
from stream_admin.store import Conflict, StreamEntry, Unknown
from tests.unit.stream_admin_scene import STREAM, WHY, store_with_stream


def reading(*instruments: str, streams: str = STREAM) -> Entitlement:
    return Entitlement("desk-7", streams, instruments, (Right.READ,))


@pytest.mark.parametrize(
    ("held", "asked", "is_allowed"),
    [
        (Right.READ, Right.READ, True),
        (Right.READ, Right.OPERATE, False),
        (Right.OPERATE, Right.OPERATE, True),
        (Right.OPERATE, Right.READ, False),
        (Right.OPERATE, Right.ADMIN, False),
        (Right.ADMIN, Right.ADMIN, True),
        (Right.ADMIN, Right.OPERATE, True),
        (Right.ADMIN, Right.READ, False),
    ],
)
def test_right_includes_what_the_table_says(held: Right, asked: Right, is_allowed: bool) -> None:
    instruments = ("*",) if held is Right.READ else ()
    entitlement = Entitlement("desk-7", "XNAS.*", instruments, (held,))
    with pytest.raises(NotEntitled, match=f"desk-7 may not {asked.value} XNYS"):
        insist_right([entitlement], "desk-7", "XNYS", asked)
    if is_allowed:
        insist_right([entitlement], "desk-7", STREAM, asked)
        return
    with pytest.raises(NotEntitled):
        insist_right([entitlement], "desk-7", STREAM, asked)


@pytest.mark.parametrize(
    ("rights", "instruments", "spans", "field"),
    [
        ((), ("*",), (), "rights"),
        ((Right.READ, Right.READ), ("*",), (), "rights"),
        ((Right.READ,), (), (), "instruments"),
        ((Right.ADMIN,), ("*",), (), "instruments"),
        ((Right.READ,), ("*",), (Span("XNYS", 0, None),), "spans[0].stream"),
        ((Right.READ,), ("*",), (Span(STREAM, 0, None), Span(STREAM, 1, None)), "spans"),
    ],
)
def test_entitlement_that_contradicts_itself_is_refused(
    rights: tuple[Right, ...], instruments: tuple[str, ...], spans: tuple[Span, ...], field: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        Entitlement("desk-7", STREAM, instruments, rights, spans)
    assert caught.value.field == field


def test_change_takes_effect_at_its_position_and_nowhere_else(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        assert store.reading_filter("desk-7", STREAM, 1).is_nothing_from(1)
        number = store.grant(reading("AAPL"), {STREAM: 100}, WHY)
        store.grant(reading("MS*"), {STREAM: 200}, WHY)
        store.end_entitlement(number, {STREAM: 300}, WHY)
        made = store.reading_filter("desk-7", STREAM, 1)
        steps = [(step.effective_from, step.instruments) for step in made.steps]
        assert steps == [(0, ()), (100, ("AAPL",)), (200, ("AAPL", "MS*")), (300, ("MS*",))]
        assert made.revision == 3
        later = store.reading_filter("desk-7", STREAM, 250)
        assert [(step.effective_from, step.instruments) for step in later.steps] == [
            (0, ("AAPL", "MS*")),
            (300, ("MS*",)),
        ]
        with pytest.raises(Conflict, match="ended already"):
            store.end_entitlement(number, {STREAM: 400}, WHY)


def test_end_before_the_beginning_means_never(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        number = store.grant(reading("AAPL"), {STREAM: 100}, WHY)
        store.end_entitlement(number, {STREAM: 50}, WHY)
        assert store.reading_filter("desk-7", STREAM, 0).is_nothing_from(0)


def test_every_stream_that_is_meant_must_be_given_a_position_and_no_other(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        store.add_stream(StreamEntry("XNAS.BX", 10), WHY)
        entries = len(store.audit(0, 1_000))
        with pytest.raises(ProtocolError, match=r"given for XNAS\.BX"):
            store.grant(reading("*", streams="XNAS.*"), {STREAM: 1}, WHY)
        with pytest.raises(ProtocolError, match="only for streams"):
            store.grant(reading("*"), {STREAM: 1, "XNAS.BX": 1}, WHY)
        assert store.entitlements("desk-7") == []
        assert len(store.audit(0, 1_000)) == entries
        number = store.grant(reading("*", streams="XNAS.*"), {STREAM: 1, "XNAS.BX": 7}, WHY)
        store.add_stream(StreamEntry("XNAS.PSX", 11), WHY)
        assert store.reading_filter("desk-7", "XNAS.PSX", 0).is_whole_from(0)
        assert not store.reading_filter("desk-7", "XNAS.BX", 0).is_whole_from(6)
        with pytest.raises(ProtocolError, match=r"given for XNAS\.PSX"):
            store.end_entitlement(number, {STREAM: 9, "XNAS.BX": 9}, WHY)
        store.end_entitlement(number, {STREAM: 9, "XNAS.BX": 9, "XNAS.PSX": 3}, WHY)
        assert store.reading_filter("desk-7", "XNAS.PSX", 0).matcher_at(2).is_whole
        assert store.reading_filter("desk-7", "XNAS.PSX", 0).is_nothing_from(3)
        store.add_stream(StreamEntry("XNAS.NEW", 12), WHY)
        assert store.reading_filter("desk-7", "XNAS.NEW", 0).is_nothing_from(0)


def test_number_of_entitlements_and_of_their_patterns_is_bounded_when_granted(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        most = tuple(sorted(f"S{index:03}" for index in range(256)))
        store.grant(reading(*most), {STREAM: 1}, WHY)
        with pytest.raises(ProtocolError, match="at most 256 patterns"):
            store.grant(reading("ONE.MORE"), {STREAM: 2}, WHY)
        assert len(store.entitlements("desk-7")) == 1
        for _ in range(ENTITLEMENTS_MAX - 1):
            store.grant(reading("S001"), {STREAM: 2}, WHY)
        with pytest.raises(LimitError, match="256 entitlements of desk-7"):
            store.grant(reading("S001"), {STREAM: 2}, WHY)


def test_unknown_things_are_named(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        stranger = Entitlement("stranger", STREAM, ("*",), (Right.READ,))
        with pytest.raises(Unknown, match="no principal 'stranger'"):
            store.grant(stranger, {STREAM: 1}, WHY)
        with pytest.raises(Unknown, match="no principal 'stranger'"):
            store.reading_filter("stranger", STREAM, 1)
        with pytest.raises(Unknown, match="no stream 'XNYS'"):
            store.reading_filter("desk-7", "XNYS", 1)
        for number in (0, 99, 2**70):
            with pytest.raises(Unknown, match="no entitlement"):
                store.end_entitlement(number, {}, WHY)
