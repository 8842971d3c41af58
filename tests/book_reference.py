"""Order books in plain Python, too plain to be wrong: what feeds.book.books is compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feeds import wire
from feeds.wire import Kind, Schema, StatusType

SIDES = (b"B", b"S")


@dataclass
class Order:
    order_id: int
    instrument_id: int
    side: bytes
    price: int
    size: int
    arrival: int


@dataclass
class ReferenceBooks:
    """Books of one session; `counts` has the names of feeds.book.books.BookCounters."""

    has_orders: bool
    orders: dict[int, Order] = field(default_factory=dict)
    levels: dict[tuple[int, bytes], dict[int, int]] = field(
        default_factory=dict
    )  # (instrument, side) -> price -> size
    states: dict[int, bytes] = field(default_factory=dict)
    instruments: list[int] = field(default_factory=list)
    open_events: dict[int, tuple[int, Any]] = field(
        default_factory=dict
    )  # instrument -> time, top from before
    counts: Counter[str] = field(default_factory=Counter)
    arrivals: int = 0

    def apply(self, frames: wire.FrameArray) -> None:
        for index in range(len(frames)):
            schema = Schema(int(frames["schema_id"][index]))
            frame = frames[index : index + 1].view(wire.FRAMES[schema])[0]
            if self.has_orders:
                self._apply_to_orders(schema, frame)
            else:
                self._apply_to_levels(schema, frame)

    def _know(self, instrument_id: int) -> None:
        if instrument_id not in self.instruments:
            self.instruments.append(instrument_id)

    def _apply_to_orders(self, schema: Schema, frame: Any) -> None:
        instrument_id = int(frame["instrument_id"])
        if schema is Schema.ORDER_ADD:
            self.counts["adds"] += 1
            if frame["size"] == 0:
                self.counts["empty_orders"] += 1
            elif frame["side"] not in SIDES:
                self.counts["bad_sides"] += 1
            else:
                self._know(instrument_id)
                self._join(int(frame["order_id"]), instrument_id, frame["side"], frame)
        elif schema is Schema.ORDER_REPLACE:
            self.counts["replaces"] += 1
            old = self._find(int(frame["order_id"]), instrument_id, "unknown_replaces")
            if old is not None:
                del self.orders[old.order_id]
                if frame["size"] == 0:
                    self.counts["empty_orders"] += 1
                else:
                    self._join(int(frame["new_order_id"]), old.instrument_id, old.side, frame)
        elif schema in (Schema.ORDER_EXECUTE, Schema.ORDER_CANCEL):
            kind = "executes" if schema is Schema.ORDER_EXECUTE else "cancels"
            self.counts[kind] += 1
            order = self._find(int(frame["order_id"]), instrument_id, f"unknown_{kind}")
            if order is not None:
                if frame["size"] > order.size:
                    self.counts[f"oversized_{kind}"] += 1
                order.size -= int(frame["size"])
                if order.size <= 0:
                    del self.orders[order.order_id]
        elif schema is Schema.ORDER_DELETE:
            self.counts["deletes"] += 1
            order = self._find(int(frame["order_id"]), instrument_id, "unknown_deletes")
            if order is not None:
                del self.orders[order.order_id]
        elif schema is Schema.STATUS and frame["status_type"] == StatusType.TRADING:
            self._set_state(instrument_id, frame)
        else:
            self.counts["ignored"] += 1

    def _find(self, order_id: int, instrument_id: int, unknown: str) -> Order | None:
        order = self.orders.get(order_id)
        if order is None:
            self.counts[unknown] += 1
        elif order.instrument_id != instrument_id:
            self.counts["instrument_mismatches"] += 1
        return order

    def _join(self, order_id: int, instrument_id: int, side: bytes, frame: Any) -> None:
        if self.orders.pop(order_id, None) is not None:
            self.counts["duplicate_orders"] += 1
        self.arrivals += 1
        price, size = int(frame["price"]), int(frame["size"])
        self.orders[order_id] = Order(order_id, instrument_id, side, price, size, self.arrivals)

    def _set_state(self, instrument_id: int, frame: Any) -> None:
        self._know(instrument_id)
        self.counts["statuses"] += 1
        self.states[instrument_id] = frame["state"]

    def _apply_to_levels(self, schema: Schema, frame: Any) -> None:
        instrument_id, event_ns = int(frame["instrument_id"]), int(frame["event_time_ns"])
        if frame["kind"] != Kind.DATA:
            self.counts["ignored"] += 1
            return
        if instrument_id in self.open_events and self.open_events[instrument_id][0] != event_ns:
            del self.open_events[instrument_id]
        if schema is Schema.LEVEL:
            self.counts["levels"] += 1
            self._know(instrument_id)
            if frame["side"] not in SIDES:
                self.counts["bad_sides"] += 1
                return
            if frame["is_event_complete"]:
                event = None
            else:
                event = self.open_events.get(instrument_id, (event_ns, self._best(instrument_id)))
            prices = self.levels.setdefault((instrument_id, frame["side"]), {})
            if frame["size"] > 0:
                prices[int(frame["price"])] = int(frame["size"])
            elif prices.pop(int(frame["price"]), None) is None:
                self.counts["unknown_levels"] += 1
            self.open_events.pop(instrument_id, None)
            if event is not None:
                self.open_events[instrument_id] = event
        elif schema is Schema.QUOTE:
            self.counts["quotes"] += 1
            self._know(instrument_id)
            self.open_events.pop(instrument_id, None)
            for side, name in zip(SIDES, ("bid", "ask"), strict=True):
                size = int(frame[f"{name}_size"])
                self.levels[instrument_id, side] = {int(frame[f"{name}_price"]): size} if size else {}
        elif schema is Schema.STATUS and frame["status_type"] == StatusType.TRADING:
            self._set_state(instrument_id, frame)
        else:
            self.counts["ignored"] += 1

    def queue(self, instrument_id: int, side: bytes) -> list[Order]:
        """Return a side's orders in the order in which they would trade."""
        sign = -1 if side == b"B" else 1
        own = [
            each for each in self.orders.values() if (each.instrument_id, each.side) == (instrument_id, side)
        ]
        return sorted(own, key=lambda each: (sign * each.price, each.arrival))

    def side(self, instrument_id: int, side: bytes) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of a side's levels, best first."""
        if not self.has_orders:
            prices = self.levels.get((instrument_id, side), {})
            return [(price, prices[price], 0) for price in sorted(prices, reverse=side == b"B")]
        found: dict[int, tuple[int, int]] = {}
        for order in self.queue(instrument_id, side):
            size, count = found.get(order.price, (0, 0))
            found[order.price] = (size + order.size, count + 1)
        return [(price, size, count) for price, (size, count) in found.items()]

    def _best(self, instrument_id: int) -> tuple[int, ...]:
        none = [(0, 0, 0)]
        return tuple(value for side in SIDES for value in (self.side(instrument_id, side) or none)[0])

    def top(self, instrument_id: int) -> tuple[int, ...]:
        """Return what feeds.book.books.Top must be equal to."""
        if instrument_id in self.open_events:
            shown: tuple[int, ...] = self.open_events[instrument_id][1]
            return shown
        return self._best(instrument_id)

    def depth(self, instrument_id: int) -> list[tuple[int, ...]]:
        """Return what the rows of feeds.book.books.Books.depth must be equal to."""
        bids, asks = (self.side(instrument_id, side) for side in SIDES)
        count = max(len(bids), len(asks))
        none = (0, 0, 0)
        padded = [side + [none] * (count - len(side)) for side in (bids, asks)]
        return [bid + ask for bid, ask in zip(*padded, strict=True)]


def frames_of(*rows: tuple[Schema, dict[str, Any]], stream_id: int = 3, session: int = 1) -> wire.FrameArray:
    """Return frames of the given schemas and fields, numbered 1, 2, ... unless they say otherwise."""
    frames = wire.empty(len(rows))
    frames["length"] = wire.FRAME_BYTES
    frames["version"] = wire.VERSION
    frames["flags"] = wire.Flag.LAST_PART
    frames["source_stream_id"] = stream_id
    frames["source_session"] = session
    frames["source_seq"] = np.arange(1, len(rows) + 1)
    for index, (schema, fields) in enumerate(rows):
        frame = frames[index : index + 1].view(wire.FRAMES[schema])
        frame["kind"] = wire.KIND_OF_SCHEMA[schema]
        frame["schema_id"] = schema
        for name, value in fields.items():
            frame[name] = value
    return frames
