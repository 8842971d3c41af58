"""Snapshots of books: BOOK_BEGIN, then the levels, then the orders, as frames of kind SNAPSHOT.

    BOOK_BEGIN                  how many levels and orders follow, trading state, where the stream goes on
    BOOK_LEVEL index 0, 1, ...  bids best first, then asks best first
    BOOK_LEVEL index SHOWN      twice (buy, sell), only while an event of several level updates is under way:
                                the best prices from before it, size 0 for an empty side, and its time
    BOOK_ORDER index 0, 1, ...  in the order of the levels, and oldest first within a level

A book that takes the orders in this sequence gives them the same priority and is from then on the same book.
`index` counts every level and order; `part` counts all frames and starts over after 65535, so a book of any
size can be told. The last frame has LAST_PART. `source_seq` is the last source message that is in the book.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feeds import wire
from feeds.book import order_kernels as ok
from feeds.book import store_kernels as k
from feeds.book.store import BookStore
from feeds.errors import ConfigError
from feeds.wire import Flag, Kind, Schema

SHOWN = 0xFFFFFFFF  # the index of a level that is shown and not (any more) in the book
PART_COUNT = 1 << 16
_LETTERS = np.array([b"B", b"S"])

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Position:
    """What the headers of a snapshot's frames say."""

    source: int  # source_stream_id | source_session << 32, as an int64 word
    next_source_seq: int
    message_seq: int
    event_time_ns: int
    publish_time_ns: int
    epoch: int

    def __post_init__(self) -> None:
        for name in ("next_source_seq", "message_seq", "publish_time_ns", "epoch"):
            limit = k.U32 if name == "epoch" else (1 << 63) - 1
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise ConfigError(f"{name} must be 0 to {limit}, was {value}")


def side_levels(store: BookStore, side: int) -> Rows:
    """Return a copy of the rows of `levels` that are on `side`, best first."""
    row = store.sides[side * k.SIDE_WORDS : (side + 1) * k.SIDE_WORDS]
    first = row[k.SIDE_OFFSET] + row[k.SIDE_CAPACITY]
    handles = store.entries[first : first + row[k.SIDE_COUNT]][::-1]
    return store.levels.reshape(-1, k.LEVEL_WORDS)[handles]


def find_orders(store: BookStore, numbers: Sequence[int]) -> Rows:
    """Return all orders of the instruments with these numbers, by side, best price first, oldest first."""
    wanted = np.zeros(max(1, store.instrument_count), dtype=np.int64)
    wanted[list(numbers)] = 1
    order_count = sum(
        int(side_levels(store, 2 * number + side)[:, k.LEVEL_ORDERS].sum())
        for number in numbers
        for side in (k.BID, k.ASK)
    )
    found = np.zeros((order_count, ok.FOUND_WORDS), dtype=np.int64)
    if order_count == 0:
        return found
    count = ok.collect_orders_kernel(store.orders, store.arrivals, store.levels, wanted, found)
    assert count == order_count, f"levels know of {order_count} orders, the table of {count}"
    sides = found[:, ok.FOUND_SIDE]
    keys = found[:, ok.FOUND_PRICE] ^ -(sides & 1)
    return found[np.lexsort((found[:, ok.FOUND_ARRIVAL], ~keys, sides))]


def take(
    store: BookStore, instrument_ids: Sequence[int], position: Position, starts: Mapping[int, int]
) -> Iterator[wire.FrameArray]:
    """Return an iterator over the snapshots of these instruments as they are now.

    `starts` names the instruments whose books are ahead of the stream, because they were restored.
    """
    numbers = [store.number_of(instrument_id) for instrument_id in instrument_ids]
    known = sorted({number for number in numbers if number is not None})
    orders = find_orders(store, known)
    owners = orders[:, ok.FOUND_SIDE] >> 1
    books: list[tuple[Position, Rows, Rows, Rows]] = []
    for instrument_id, number in zip(instrument_ids, numbers, strict=True):
        at = position
        if starts.get(instrument_id, 0) > position.next_source_seq:
            at = replace(position, next_source_seq=starts[instrument_id])
        if number is None:
            nothing = np.zeros(k.INSTRUMENT_WORDS, dtype=np.int64)
            nothing[k.INSTRUMENT_ID] = instrument_id
            books.append((at, nothing, np.zeros((0, k.LEVEL_WORDS), dtype=np.int64), orders[:0]))
            continue
        own = slice(*np.searchsorted(owners, [number, number + 1]))
        row = store.instruments[number * k.INSTRUMENT_WORDS : (number + 1) * k.INSTRUMENT_WORDS].copy()
        sides = [side_levels(store, 2 * number + side) for side in (k.BID, k.ASK)]
        books.append((at, row, np.concatenate(sides), orders[own]))
    return (_make(*book) for book in books)


def _make(at: Position, instrument: Rows, levels: Rows, orders: Rows) -> wire.FrameArray:
    level_count = len(levels)
    shown_count = 2 if instrument[k.INSTRUMENT_EVENT_OPEN] else 0
    order_begin = 1 + level_count + shown_count
    frames = wire.empty(order_begin + len(orders))
    frames["length"] = wire.FRAME_BYTES
    frames["version"] = wire.VERSION
    frames["kind"] = Kind.SNAPSHOT
    wire.words(frames)[:, 1] = at.source
    frames["source_seq"] = max(0, at.next_source_seq - 1)
    frames["message_seq"] = at.message_seq
    frames["event_time_ns"] = at.event_time_ns
    frames["publish_time_ns"] = at.publish_time_ns
    frames["instrument_id"] = instrument[k.INSTRUMENT_ID]
    frames["epoch"] = at.epoch
    frames["part"] = np.arange(len(frames)) % PART_COUNT
    frames["flags"][-1] = Flag.LAST_PART

    begin = frames[:1].view(wire.FRAMES[Schema.BOOK_BEGIN])
    begin["schema_id"] = Schema.BOOK_BEGIN
    begin["next_source_seq"] = at.next_source_seq
    begin["order_count"] = len(orders)
    begin["level_count"] = level_count
    begin["state"] = bytes([instrument[k.INSTRUMENT_STATE]])

    told = frames[1:order_begin].view(wire.FRAMES[Schema.BOOK_LEVEL])
    told["schema_id"] = Schema.BOOK_LEVEL
    rows = told[:level_count]
    rows["price"] = levels[:, k.LEVEL_PRICE]
    rows["size"] = levels[:, k.LEVEL_SIZE]
    rows["order_count"] = levels[:, k.LEVEL_ORDERS]
    rows["index"] = np.arange(level_count)
    rows["side"] = _LETTERS[levels[:, k.LEVEL_SIDE] & 1]
    if shown_count:
        rows = told[level_count:]
        shown = instrument[k.INSTRUMENT_SHOWN : k.INSTRUMENT_SHOWN + 4]
        rows["price"] = shown[0::2]
        rows["size"] = shown[1::2]
        rows["index"] = SHOWN
        rows["side"] = _LETTERS
        rows["event_time_ns"] = instrument[k.INSTRUMENT_EVENT_NS]

    queue = frames[order_begin:].view(wire.FRAMES[Schema.BOOK_ORDER])
    queue["schema_id"] = Schema.BOOK_ORDER
    queue["order_id"] = orders[:, ok.FOUND_ID].view(np.uint64)
    queue["price"] = orders[:, ok.FOUND_PRICE]
    queue["size"] = orders[:, ok.FOUND_SIZE]
    queue["index"] = np.arange(len(orders))
    queue["side"] = _LETTERS[orders[:, ok.FOUND_SIDE] & 1]
    return frames
