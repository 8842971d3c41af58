"""Frames as lines for people and as JSON for programs. The slow and readable side of wire.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from feeds import wire
from feeds.session_time import NS_PER_S
from feeds.wire import Schema, StatusType, UnparsedReason

_HEADER_COUNT = len(wire.HEADER.names or ())
_ENUMS: dict[tuple[Schema, str], type[StatusType] | type[UnparsedReason]] = {
    (Schema.STATUS, "status_type"): StatusType,
    (Schema.UNPARSED, "reason"): UnparsedReason,
}
_SAYS_NOTHING = ("", 0, wire.price_text(0))
_SYMBOL_WIDTH = 8
_SCHEMA_WIDTH = max(len(schema.name) for schema in Schema)


class FrameText:
    """Words frames. Symbols come from `symbol_of`, times of day are those of `time_zone`."""

    def __init__(self, symbol_of: Callable[[int], str | None], time_zone: str) -> None:
        self._symbol_of = symbol_of
        zone = ZoneInfo(time_zone)

        @lru_cache(maxsize=4_096)
        def second_text(second: int, form: str) -> str:
            return datetime.fromtimestamp(second, tz=zone).strftime(form)

        self._second_text = second_text

    def lines(self, frames: wire.FrameArray) -> Iterator[str]:
        """Yield one line for each frame: number, time, symbol, schema, fields that say something."""
        for header, schema, fields in self._records(frames):
            seq = f"{header['source_seq']}.{header['part']}" if header["part"] else str(header["source_seq"])
            symbol = self._symbol_of(header["instrument_id"]) or "-"
            told = " ".join(f"{name}={value}" for name, value in fields.items() if value not in _SAYS_NOTHING)
            yield (
                f"{seq:>10}  {self.time_of_day(header['event_time_ns'])}  {symbol:<{_SYMBOL_WIDTH}}  "
                f"{schema.name.lower():<{_SCHEMA_WIDTH}}  {told}"
            )

    def json_lines(self, frames: wire.FrameArray) -> Iterator[str]:
        """Yield one JSON object for each frame: every header field, the symbol, every payload field.

        Prices are decimal texts, because a JSON number loses digits in many readers.
        """
        for header, schema, fields in self._records(frames):
            names = {"schema": schema.name, "symbol": self._symbol_of(header["instrument_id"])}
            own_symbol = {"payload_symbol": fields.pop("symbol")} if "symbol" in fields else {}
            yield json.dumps({**header, **names, **fields, **own_symbol}, separators=(",", ":"))

    def time_of_day(self, time_ns: int) -> str:
        """Return 09:30:00.000000230; a frame without a time (an unparsed message) has dashes."""
        if time_ns == 0:
            return "--:--:--.---------"
        second, rest = divmod(time_ns, NS_PER_S)
        return f"{self._second_text(second, '%H:%M:%S')}.{rest:09d}"

    def date_and_time(self, time_ns: int) -> str:
        second, rest = divmod(time_ns, NS_PER_S)
        return f"{self._second_text(second, '%Y-%m-%d %H:%M:%S')}.{rest:09d}"

    def _records(self, frames: wire.FrameArray) -> Iterator[tuple[dict[str, int], Schema, dict[str, Any]]]:
        views: dict[int, wire.FrameArray] = {}
        for row, schema_id in enumerate(frames["schema_id"].tolist()):
            if schema_id not in views:
                views[schema_id] = wire.view(frames, Schema(schema_id))
            record = views[schema_id][row]
            names = record.dtype.names
            values = record.item()
            schema = Schema(schema_id)
            header = dict(zip(names[:_HEADER_COUNT], values[:_HEADER_COUNT], strict=True))
            yield header, schema, _payload(schema, names[_HEADER_COUNT:], values[_HEADER_COUNT:])


def _payload(schema: Schema, names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _value(schema, name, value) for name, value in zip(names, values, strict=True)}


def _value(schema: Schema, name: str, value: Any) -> str | int:
    """Return a payload field as a person or JSON can take it."""
    if name == "head":
        return bytes(value).hex()
    if isinstance(value, bytes):
        return value.decode("ascii", errors="backslashreplace")
    if name.endswith("price"):
        return wire.price_text(value)
    enum = _ENUMS.get((schema, name))
    return enum(value).name if enum is not None else int(value)
