"""What `twintape decode` tells at the end: counts, times and findings, and the books of some symbols."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from feeds.book.books import Books
from feeds.decode_sources import FrameSource
from feeds.formats import ExchangeFormat
from feeds.frame_text import FrameText
from feeds.wire import FrameArray, Schema, price_text

BOOK_LEVELS = 10


class Summary:
    """Counts frames as they pass."""

    def __init__(self, source: FrameSource, exchange: ExchangeFormat, text: FrameText) -> None:
        self._source = source
        self._exchange = exchange
        self._text = text
        self._schemas: Counter[int] = Counter()
        self._first_ns = 0
        self._last_ns = 0

    def on_frames(self, frames: FrameArray) -> None:
        ids, counts = np.unique(frames["schema_id"], return_counts=True)
        self._schemas.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        times = frames["event_time_ns"][frames["event_time_ns"] != 0]  # unparsed messages have no time
        if times.size:
            self._first_ns = self._first_ns or int(times[0])
            self._last_ns = int(times[-1])

    def _by_schema(self) -> dict[str, int]:
        return {Schema(schema).name.lower(): count for schema, count in self._schemas.most_common()}

    def as_json(self) -> str:
        decoder = self._source.decoder
        facts = {
            "format": self._exchange.name,
            "messages": decoder.message_count,
            "frames": decoder.frame_count,
            "problems": decoder.problem_count,
            "first_event_time_ns": self._first_ns,
            "last_event_time_ns": self._last_ns,
            "messages_by_type": decoder.counts_by_type,
            "frames_by_schema": self._by_schema(),
            "symbol_changes": decoder.symbol_changes,
            "findings": self._source.findings(),
        }
        return json.dumps(facts, indent=2)

    def as_lines(self) -> list[str]:
        decoder = self._source.decoder
        exchange = self._exchange
        names = {message.letter.decode(): message.name for message in exchange.message_types}
        lines = [f"{exchange.title}: {decoder.message_count:,} messages, {decoder.frame_count:,} frames"]
        if self._first_ns:
            first, last = (self._text.date_and_time(time) for time in (self._first_ns, self._last_ns))
            lines.append(f"from {first} to {last} ({exchange.time_zone})")
        lines += ["", f"{'messages':>14}  type"]
        for letter, count in decoder.counts_by_type.items():
            shown = letter if letter.isprintable() else f"{ord(letter):#04x}"
            lines.append(f"{count:>14,}  {shown}  {names.get(letter, 'not a type of this format')}")
        lines += ["", f"{'frames':>14}  schema"]
        lines += [f"{count:>14,}  {name}" for name, count in self._by_schema().items()]
        lines += ["", f"{decoder.problem_count:,} messages could not be read"]
        if decoder.symbol_changes:
            lines.append(
                f"{decoder.symbol_changes:,} times an instrument came with another symbol than before"
            )
        return lines + self._source.findings()


def book_lines(books: Books, source: FrameSource, symbol: str) -> list[str]:
    """Return the book of a symbol as it was at the end, best prices first."""
    instrument_id = source.decoder.instrument_of(symbol)
    if instrument_id is None:
        return [f"{symbol}: no message names it"]
    rows = books.depth(instrument_id, BOOK_LEVELS)
    lines = [
        f"{symbol}:",
        f"{'orders':>8} {'bid size':>10} {'bid':>14}   {'ask':<14} {'ask size':<10} orders",
    ]
    for row in rows:
        bid = price_text(int(row["bid_price"])) if row["bid_size"] else ""
        ask = price_text(int(row["ask_price"])) if row["ask_size"] else ""
        bid_size, ask_size = (f"{row[name]:,}" if row[name] else "" for name in ("bid_size", "ask_size"))
        bid_orders, ask_orders = (row[name] or "" for name in ("bid_orders", "ask_orders"))
        lines.append(
            f"{bid_orders:>8} {bid_size:>10} {bid:>14}   {ask:<14} {ask_size:<10} {ask_orders}".rstrip()
        )
    return lines if rows.size else [f"{symbol}: its book is empty"]
