"""Compiled books against the plain ones, on streams that contain everything a feed should not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feeds import wire
from feeds.book.books import Books
from feeds.wire import Schema, StatusType
from tests.book_reference import SIDES, ReferenceBooks, frames_of

pytestmark = pytest.mark.kernels

INSTRUMENTS = (0, 1, 7, 0x8000_0001, 0xFFFF_FFFF)
# Few ids, so that they meet again; neighbours and far ones, and the largest there is.
ORDER_IDS = (0, 1, 2, 3, 8, 64, 1 << 20, (1 << 20) + 1, 1 << 40, 1 << 63, (1 << 64) - 1)
PRICES = (*range(0, 40_000_000_000, 1_000_000_000), -5, (1 << 63) - 1, -(1 << 63))
SIZES = (0, 1, 2, 3, 100, 0xFFFF_FFFF)

instruments = st.sampled_from(INSTRUMENTS)
order_ids = st.sampled_from(ORDER_IDS)
prices = st.sampled_from(PRICES)
sizes = st.sampled_from(SIZES)
sides = st.sampled_from((b"B", b"S"))


def frame(
    schema: Schema, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[tuple[Schema, dict[str, Any]]]:
    header = {"instrument_id": instruments, "event_time_ns": st.integers(1, 3)}
    return st.tuples(st.just(schema), st.fixed_dictionaries({**header, **fields}))


adds = frame(Schema.ORDER_ADD, order_id=order_ids, price=prices, size=sizes, side=sides)
trading = frame(
    Schema.STATUS, status_type=st.sampled_from(list(StatusType)), state=st.sampled_from((b"T", b"H", b"P"))
)
order_messages = st.one_of(
    adds,
    adds,
    frame(Schema.ORDER_EXECUTE, order_id=order_ids, size=sizes),
    frame(Schema.ORDER_CANCEL, order_id=order_ids, size=sizes),
    frame(Schema.ORDER_DELETE, order_id=order_ids),
    frame(Schema.ORDER_REPLACE, order_id=order_ids, new_order_id=order_ids, price=prices, size=sizes),
    trading,
    frame(Schema.TRADE, price=prices, size=sizes),
    frame(Schema.ORDER_ADD, order_id=order_ids, price=prices, size=sizes, side=st.just(b"?")),
)
level_messages = st.one_of(
    frame(Schema.LEVEL, price=prices, size=sizes, side=sides, is_event_complete=st.sampled_from((0, 1))),
    frame(Schema.LEVEL, price=prices, size=sizes, side=sides, is_event_complete=st.just(0)),
    frame(Schema.QUOTE, bid_price=prices, bid_size=sizes, ask_price=prices, ask_size=sizes),
    frame(Schema.TRADE, price=prices, size=sizes),
    frame(Schema.HEARTBEAT),
    trading,
)
streams = st.one_of(
    st.tuples(st.just(True), st.lists(order_messages, min_size=1, max_size=120)),
    st.tuples(st.just(False), st.lists(level_messages, min_size=1, max_size=120)),
)


def assert_same(books: Books, reference: ReferenceBooks) -> None:
    assert books.instruments().tolist() == reference.instruments
    counters = books.counters
    found = {name: getattr(counters, name) for name in counters.__dataclass_fields__}
    assert {name: count for name, count in found.items() if count and name != "sessions"} == +reference.counts
    quotes = books.tops(INSTRUMENTS)
    for index, instrument_id in enumerate(INSTRUMENTS):
        top = books.top(instrument_id)
        assert top == reference.top(instrument_id)
        assert books.depth(instrument_id, 1000).tolist() == reference.depth(instrument_id)
        assert books.trading_state(instrument_id) == reference.states.get(instrument_id, b"").decode()
        assert books.is_settled(instrument_id) == (instrument_id not in reference.open_events)
        quote = quotes[index]
        assert (quote["bid_price"], quote["ask_price"]) == (top.bid_price, top.ask_price)
        assert quote["bid_size"] == min(top.bid_size, 0xFFFF_FFFF)
        assert quote["ask_size"] == min(top.ask_size, 0xFFFF_FFFF)
        if books.source is not None:
            assert_same_queue(books.snapshot(instrument_id), instrument_id, reference)


def assert_same_queue(snapshot: wire.FrameArray, instrument_id: int, reference: ReferenceBooks) -> None:
    orders = snapshot[snapshot["schema_id"] == Schema.BOOK_ORDER].view(wire.FRAMES[Schema.BOOK_ORDER])
    expected = [
        (each.order_id, each.price, each.size, each.side)
        for side in SIDES
        for each in reference.queue(instrument_id, side)
    ]
    assert [tuple(row) for row in orders[["order_id", "price", "size", "side"]].tolist()] == expected


def cut(frames: wire.FrameArray, lengths: list[int]) -> list[wire.FrameArray]:
    return np.split(frames, np.cumsum(lengths)[np.cumsum(lengths) < len(frames)]) if len(frames) else []


@given(streams, st.lists(st.integers(1, 40), max_size=6))
def test_books_equal_plain_books_after_every_batch(
    stream: tuple[bool, list[Any]], lengths: list[int]
) -> None:
    has_orders, messages = stream
    books, reference = Books(has_orders), ReferenceBooks(has_orders)
    for batch in cut(frames_of(*messages), lengths):
        books.apply(batch)
        reference.apply(batch)
        assert_same(books, reference)


def everything(books: Books) -> list[bytes]:
    """Return all that the books can tell, byte for byte."""
    return [books.tops(INSTRUMENTS).tobytes(), *(books.snapshot(each).tobytes() for each in INSTRUMENTS)]


@given(streams, st.integers(0, 120), st.lists(st.integers(1, 40), max_size=4))
def test_a_restored_book_is_the_same_for_ever(
    stream: tuple[bool, list[Any]], restored_at: int, lengths: list[int]
) -> None:
    has_orders, messages = stream
    frames = frames_of(*messages)
    before, after = frames[:restored_at], frames[restored_at:]
    original = Books(has_orders)
    original.apply(before)
    assume(original.source is not None)
    restored = Books(has_orders)
    snapshots = list(original.snapshots(INSTRUMENTS))
    assert restored.restore(np.concatenate(snapshots)) == original.next_source_seq
    assert everything(restored) == everything(original)
    for batch in cut(after, lengths):
        original.apply(batch)
        restored.apply(batch)
        assert everything(restored) == everything(original)


@given(streams, st.integers(0, 120), st.integers(0, 120))
def test_a_restored_book_leaves_out_what_it_has(
    stream: tuple[bool, list[Any]], joined_at: int, restored_at: int
) -> None:
    has_orders, messages = stream
    frames = frames_of(*messages)
    joined_at, restored_at = sorted((joined_at, restored_at))
    original = Books(has_orders)
    original.apply(frames[:restored_at])
    assume(original.source is not None)
    late = Books(has_orders)
    late.restore(np.concatenate(list(original.snapshots(INSTRUMENTS))))
    original.apply(frames[restored_at:])
    late.apply(frames[joined_at:])  # the live stream began before the snapshot
    assert everything(late) == everything(original)


@given(streams, streams)
@settings(max_examples=30)
def test_a_snapshot_takes_the_place_of_what_was_there(
    stream: tuple[bool, list[Any]], other: tuple[bool, list[Any]]
) -> None:
    has_orders, messages = stream
    source, target = Books(has_orders), Books(has_orders)
    source.apply(frames_of(*messages))
    assume(source.source is not None)
    if other[0] == has_orders:
        target.apply(frames_of(*other[1]))
    target.restore(np.concatenate(list(source.snapshots(INSTRUMENTS, next_source_seq=200))))
    for instrument_id in INSTRUMENTS:
        assert target.top(instrument_id) == source.top(instrument_id)
        assert (target.depth(instrument_id, 99) == source.depth(instrument_id, 99)).all()
    assert target.order_count == source.order_count
    assert target.level_count == source.level_count
