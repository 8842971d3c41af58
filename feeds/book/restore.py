"""The way back from a snapshot's frames to a book: strict checks, then ordinary frames that build it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeds import wire
from feeds.book import order_kernels as ok
from feeds.book import store_kernels as k
from feeds.book.snapshot import PART_COUNT, SHOWN, Rows, find_orders, side_levels
from feeds.book.store import BookStore
from feeds.errors import LimitError, SnapshotError
from feeds.validation import validate
from feeds.wire import Flag, Schema

_SEQUENCE_LIMIT = 1 << 62
_LETTER_SELL = b"S"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One instrument's snapshot, found to be whole, and the ordinary frames that build its book."""

    source: int
    instrument_id: int
    next_source_seq: int
    event_time_ns: int
    state: int
    level_count: int
    order_ids: Rows
    additions: wire.FrameArray
    shown: Rows | None  # bid price, bid size, ask price, ask size while an event is under way
    shown_event_ns: int


def read(frames: Any, has_orders: bool) -> list[Snapshot]:
    """Return the snapshots in `frames`, one behind the other; anything missing or odd is a SnapshotError."""
    batch = validate(frames)
    begins = np.flatnonzero(batch["schema_id"] == Schema.BOOK_BEGIN)
    if not begins.size or begins[0] != 0:
        found = f"a frame of schema {int(batch['schema_id'][0])}" if len(batch) else "no frame at all"
        raise _refusal(None, f"must start with BOOK_BEGIN, not with {found}")
    snapshots = [_read_one(piece, has_orders) for piece in np.split(batch, begins[1:])]
    seen: set[int] = set()
    for snapshot in snapshots:
        if snapshot.instrument_id in seen:
            raise _refusal(snapshot.instrument_id, "is there twice")
        seen.add(snapshot.instrument_id)
        if snapshot.source != snapshots[0].source:
            raise _refusal(snapshot.instrument_id, "is of another stream or session than the one before it")
    return snapshots


def _read_one(frames: wire.FrameArray, has_orders: bool) -> Snapshot:
    begin = frames[:1].view(wire.FRAMES[Schema.BOOK_BEGIN])[0]
    instrument_id = int(begin["instrument_id"])
    level_rows = frames[frames["schema_id"] == Schema.BOOK_LEVEL].view(wire.FRAMES[Schema.BOOK_LEVEL])
    orders = frames[frames["schema_id"] == Schema.BOOK_ORDER].view(wire.FRAMES[Schema.BOOK_ORDER])
    levels, shown = level_rows[level_rows["index"] != SHOWN], level_rows[level_rows["index"] == SHOWN]

    def insist(holds: bool, complaint: str) -> None:
        if not holds:
            raise _refusal(instrument_id, complaint)

    for what, rows, count in (
        ("levels", levels, int(begin["level_count"])),
        ("orders", orders, int(begin["order_count"])),
    ):
        missing = count - len(rows)
        insist(missing <= 0, f"is incomplete: {missing} of {count} {what} are missing")
        insist(missing == 0, f"has {len(rows)} {what}, its beginning says {count}")
        insist(np.array_equal(rows["index"], np.arange(count)), f"has {what} out of order")
    whole = 1 + len(levels) + len(shown) + len(orders)
    insist(whole == len(frames), f"has {len(frames) - whole} frames that are neither levels nor orders")
    schemas = np.array([Schema.BOOK_BEGIN, Schema.BOOK_LEVEL, Schema.BOOK_ORDER], dtype=np.uint16)
    expected = np.repeat(schemas, [1, len(level_rows), len(orders)])
    insist(np.array_equal(frames["schema_id"], expected), "mixes levels and orders")
    insist(np.array_equal(frames["part"], np.arange(len(frames)) % PART_COUNT), "has parts out of order")
    is_last = (frames["flags"] & Flag.LAST_PART) != 0
    insist(bool(is_last[-1]), "is incomplete: its last part is missing")
    insist(is_last.sum() == 1, "has a last part in the middle")
    sources = wire.words(frames)[:, 1]
    insist(bool((sources == sources[0]).all()), "mixes streams or sessions")
    insist(bool((frames["instrument_id"] == instrument_id).all()), "has frames of another instrument")
    next_source_seq = int(begin["next_source_seq"])
    insist(
        next_source_seq < _SEQUENCE_LIMIT, f"goes on at message {next_source_seq}, which no session reaches"
    )
    _check_levels(levels, has_orders, insist)
    _check_orders(levels, orders, has_orders, insist)
    insist(len(shown) in (0, 2), f"has {len(shown)} levels that are shown, must be none or one for each side")
    insist(not (has_orders and len(shown)), "is of a book of levels, these books are of orders")
    insist(shown["side"].tolist() == [b"B", b"S"][: len(shown)], "must show a bid and then an ask")
    return Snapshot(
        source=int(sources[0]),
        instrument_id=instrument_id,
        next_source_seq=next_source_seq,
        event_time_ns=int(begin["event_time_ns"]),
        state=ord(begin["state"] or b"\0"),
        level_count=len(levels),
        order_ids=orders["order_id"].view(np.int64),
        additions=_adds(orders) if has_orders else _updates(levels),
        shown=np.stack([shown["price"], shown["size"].astype(np.int64)], axis=1).ravel()
        if len(shown)
        else None,
        shown_event_ns=int(shown["event_time_ns"][0]) if len(shown) else 0,
    )


def _refusal(instrument_id: int | None, complaint: str) -> SnapshotError:
    of = "" if instrument_id is None else f" of instrument {instrument_id}"
    return SnapshotError(f"the snapshot{of} {complaint}", instrument_id)


def _check_levels(levels: wire.FrameArray, has_orders: bool, insist: Any) -> None:
    is_ask = levels["side"] == _LETTER_SELL
    keys = levels["price"] ^ -is_ask.astype(np.int64)
    insist(bool((np.diff(is_ask.astype(np.int8)) >= 0).all()), "has bids behind asks")
    same_side = is_ask[1:] == is_ask[:-1]
    insist(
        bool((keys[1:] < keys[:-1])[same_side].all()), "has levels that are not sorted from the best price on"
    )
    size_limit = k.U32 if not has_orders else (1 << 63) - 1
    insist(
        bool(((levels["size"] > 0) & (levels["size"] <= size_limit)).all()), "has a level of impossible size"
    )
    with_orders = levels["order_count"] > 0
    if has_orders:
        insist(bool(with_orders.all()), "has a level without orders, these books are of orders")
    else:
        insist(not with_orders.any(), "has levels of single orders, these books are of levels")


def _check_orders(levels: wire.FrameArray, orders: wire.FrameArray, has_orders: bool, insist: Any) -> None:
    if not has_orders:
        insist(len(orders) == 0, f"has {len(orders)} orders, these books are of levels")
        return
    order_counts = levels["order_count"].astype(np.int64)
    total = int(order_counts.sum())
    insist(total == len(orders), f"has {len(orders)} orders, its levels say {total}")
    if not total:
        return
    owners = np.repeat(np.arange(len(levels)), order_counts)
    is_placed = (orders["price"] == levels["price"][owners]) & (orders["side"] == levels["side"][owners])
    insist(bool(is_placed.all()), "has an order that is not in the place of its level")
    insist(bool((orders["size"] > 0).all()), "has an order of size 0")
    firsts = np.concatenate(([0], np.cumsum(order_counts)[:-1]))
    sizes = np.add.reduceat(orders["size"].astype(np.uint64), firsts)
    insist(np.array_equal(sizes, levels["size"]), "has a level whose size is not that of its orders")
    insist(np.unique(orders["order_id"]).size == total, "has an order id twice")


def _as_data(rows: wire.FrameArray, schema: Schema) -> wire.FrameArray:
    """Return frames of `schema` with the headers of `rows` and an empty payload."""
    frames = rows.view(wire.FRAME).copy()
    frames["kind"] = wire.Kind.DATA
    frames["schema_id"] = schema
    wire.words(frames)[:, wire.PAYLOAD_WORD :] = 0
    return frames.view(wire.FRAMES[schema])


def _adds(orders: wire.FrameArray) -> wire.FrameArray:
    frames = _as_data(orders, Schema.ORDER_ADD)
    for field in ("order_id", "price", "size", "side"):
        frames[field] = orders[field]
    return frames


def _updates(levels: wire.FrameArray) -> wire.FrameArray:
    frames = _as_data(levels, Schema.LEVEL)
    for field in ("price", "size", "side"):
        frames[field] = levels[field]
    frames["is_event_complete"] = 1
    return frames


def check_fit(store: BookStore, snapshots: Sequence[Snapshot], starts_over: bool) -> None:
    """Refuse snapshots whose order ids belong to other instruments, or that are more than may be held.

    With `starts_over` the books that are there now will be gone.
    """
    ids = np.concatenate([snapshot.order_ids for snapshot in snapshots])
    if np.unique(ids).size != ids.size:
        raise _refusal(None, "has an order id in two instruments")
    replaced = [] if starts_over else [store.number_of(snapshot.instrument_id) for snapshot in snapshots]
    numbers = {number for number in replaced if number is not None}
    _check_limits(store, snapshots, numbers, starts_over)
    if starts_over:
        return
    sides = np.zeros(ids.size, dtype=np.int64)
    ok.find_sides_kernel(store.orders, store.arrivals, store.levels, np.ascontiguousarray(ids), sides)
    for order_id, side in zip(ids[sides != k.NONE], sides[sides != k.NONE], strict=True):
        if int(side) >> 1 not in numbers:
            owner = int(store.sides[side * k.SIDE_WORDS + k.SIDE_INSTRUMENT_ID])
            raise _refusal(None, f"has order {int(order_id) & _U64}, which is live in instrument {owner}")


def _check_limits(
    store: BookStore, snapshots: Sequence[Snapshot], replaced: set[int], starts_over: bool
) -> None:
    """Refuse snapshots that would be too much beside the books that stay; those of `replaced` do not."""
    leaving = [side_levels(store, 2 * number + side) for number in replaced for side in (k.BID, k.ASK)]
    for what, setting, present, left, added in (
        (
            "orders",
            "orders_max",
            store.order_count,
            sum(int(rows[:, k.LEVEL_ORDERS].sum()) for rows in leaving),
            sum(snapshot.order_ids.size for snapshot in snapshots),
        ),
        (
            "levels",
            "levels_max",
            store.level_count,
            sum(len(rows) for rows in leaving),
            sum(snapshot.level_count for snapshot in snapshots),
        ),
        ("instruments", "instruments_max", store.instrument_count, len(replaced), len(snapshots)),
    ):
        stays = 0 if starts_over else present - left
        allowed = getattr(store.limits, setting)
        if stays + added > allowed:
            raise LimitError(
                f"snapshots of {added} {what} do not fit beside {stays} that stay: {setting} = {allowed}"
            )


def removals(store: BookStore, snapshots: Sequence[Snapshot], has_orders: bool) -> wire.FrameArray:
    """Return the frames that empty the books which the snapshots will take the place of."""
    numbers = [store.number_of(snapshot.instrument_id) for snapshot in snapshots]
    known = sorted(number for number in numbers if number is not None)
    if has_orders:
        orders = find_orders(store, known)
        frames = _blank(store, len(orders), Schema.ORDER_DELETE)
        frames["order_id"] = orders[:, ok.FOUND_ID].view(np.uint64)
        sides = orders[:, ok.FOUND_SIDE]
    else:
        every_side = [2 * number + side for number in known for side in (k.BID, k.ASK)]
        rows = np.concatenate(
            [side_levels(store, side) for side in every_side] or [np.zeros((0, 4), np.int64)]
        )
        frames = _blank(store, len(rows), Schema.LEVEL)
        frames["price"] = rows[:, k.LEVEL_PRICE]
        sides = rows[:, k.LEVEL_SIDE] & k.U32
        frames["side"] = np.where(sides & 1, _LETTER_SELL, b"B")
        frames["is_event_complete"] = 1
    frames["instrument_id"] = store.sides.reshape(-1, k.SIDE_WORDS)[sides, k.SIDE_INSTRUMENT_ID]
    return frames


def _blank(store: BookStore, count: int, schema: Schema) -> wire.FrameArray:
    frames = wire.empty(count).view(wire.FRAMES[schema])
    frames["length"] = wire.FRAME_BYTES
    frames["version"] = wire.VERSION
    frames["kind"] = wire.Kind.DATA
    frames["schema_id"] = schema
    wire.words(frames)[:, 1] = store.state[k.STATE_SOURCE]
    return frames


def finish(store: BookStore, snapshot: Snapshot) -> None:
    """Give the instrument what orders and levels do not say: its trading state and an event under way."""
    store.make_room(1)
    number = store.number_of(snapshot.instrument_id)
    if number is None:
        number = k.add_instrument(
            store.index, store.instruments, store.sides, store.state, snapshot.instrument_id
        )
    row = store.instruments[number * k.INSTRUMENT_WORDS : (number + 1) * k.INSTRUMENT_WORDS]
    row[k.INSTRUMENT_STATE] = snapshot.state
    row[k.INSTRUMENT_EVENT_OPEN] = snapshot.shown is not None
    if snapshot.shown is not None:
        row[k.INSTRUMENT_EVENT_NS] = snapshot.shown_event_ns
        row[k.INSTRUMENT_SHOWN : k.INSTRUMENT_SHOWN + 4] = snapshot.shown
    store.state[k.STATE_LAST_EVENT_NS] = snapshot.event_time_ns


_U64 = (1 << 64) - 1
