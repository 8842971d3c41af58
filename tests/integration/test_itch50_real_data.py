"""Real and hostile ITCH files give the counts and sums that were found independently."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeds import wire
from feeds.dayfile import DayFile, DayFileError, EndingKind, Lengths
from feeds.itch50 import FORMAT
from feeds.itch50.encode import encode_frames
from feeds.session_time import midnight_ns
from feeds.validation import validate
from feeds.wire import Schema, StatusType

REAL = "12302019_SNIPPET.NASDAQ_ITCH50"
HOSTILE = "RITCH_ex20101224.TEST_ITCH_50"
# Name, date (None: in the name) and where the lengths come from.
READINGS = {REAL: (None, Lengths.PREFIXED), HOSTILE: (date(2010, 12, 24), Lengths.BY_TYPE)}


class Reading:
    """One file's frames, all of them, and the figures that they must have."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / "itch50" / name
        self.expected: dict[str, Any] = json.loads((directory / "itch50" / "expected.json").read_text())[
            "files"
        ][name]
        session_date, lengths = READINGS[name]
        with DayFile(self.path, FORMAT, session_date=session_date, lengths=lengths) as day:
            self.frames = np.concatenate([frames.copy() for frames in day.frames()])
            self.decoder = day.decoder
            self.ending = day.ending
            self.midnight_ns = midnight_ns(day.session_date, FORMAT.time_zone)

    def of(self, schema: Schema) -> Any:
        return wire.view(self.frames, schema)[self.frames["schema_id"] == schema]


@pytest.fixture(scope="module", params=list(READINGS))
def reading(request: pytest.FixtureRequest, market_data: Path) -> Reading:
    return Reading(market_data, request.param)


def test_every_message_is_counted_and_none_is_a_problem(reading: Reading) -> None:
    assert reading.decoder.message_count == reading.expected["messages"]
    assert reading.decoder.counts_by_type == pytest.approx(reading.expected["counts"], abs=0)
    assert reading.decoder.problem_count == 0
    assert reading.ending is not None
    assert reading.ending.kind is EndingKind.WHOLE
    assert reading.ending.position == reading.expected["bytes"]


def test_frames_are_valid_numbered_and_complete(reading: Reading) -> None:
    frames = reading.frames
    validate(frames)
    assert frames["message_seq"].tolist() == list(range(1, len(frames) + 1))
    last_parts = frames[frames["flags"] & wire.Flag.LAST_PART != 0]
    assert last_parts["source_seq"].tolist() == list(range(1, reading.expected["messages"] + 1))


def test_times_and_instruments_match(reading: Reading) -> None:
    times = reading.frames["event_time_ns"] - reading.midnight_ns
    assert times[0] == reading.expected["first_ts"]
    assert times[-1] == reading.expected["last_ts"]
    assert (times.min(), times.max()) == (reading.expected["min_ts"], reading.expected["max_ts"])
    assert np.count_nonzero(np.diff(times) < 0) == reading.expected["ts_decreases"]
    locates = np.unique(reading.frames["instrument_id"])
    assert locates.size == reading.expected["distinct_locates"]
    assert (locates.min(), locates.max()) == (reading.expected["min_locate"], reading.expected["max_locate"])


def test_sums_over_shares_and_prices_match(reading: Reading) -> None:
    expected = reading.expected
    adds = reading.of(Schema.ORDER_ADD)
    shares = adds["size"].astype(np.int64)
    prices = adds["price"] // 100_000
    assert shares[adds["is_attributed"] == 0].sum() == expected["added_shares"]["A"]
    assert shares[adds["is_attributed"] == 1].sum() == expected["added_shares"]["F"]
    assert shares[adds["side"] == b"B"].sum() == expected["added_shares"]["buy"]
    assert shares[adds["side"] == b"S"].sum() == expected["added_shares"]["sell"]
    assert (shares * prices).sum() == expected["added_price_x_shares"]

    executes = reading.of(Schema.ORDER_EXECUTE)
    assert executes["size"][executes["is_priced"] == 0].sum() == expected["executed_shares"]["E"]
    assert executes["size"][executes["is_priced"] == 1].sum() == expected["executed_shares"]["C"]
    trades = reading.of(Schema.TRADE)
    assert trades["size"].sum() == expected["executed_shares"]["P"]
    traded = (trades["size"].astype(np.int64) * (trades["price"] // 100_000)).sum()
    assert traded == expected["p_price_x_shares"]
    assert reading.of(Schema.ORDER_CANCEL)["size"].sum() == expected["cancelled_shares_X"]
    assert reading.of(Schema.ORDER_REPLACE)["size"].sum() == expected["replace_shares_U"]
    assert reading.of(Schema.CROSS)["size"].sum() == expected["cross_shares_Q"]


def test_system_events_and_tracking_numbers_match(reading: Reading) -> None:
    statuses = reading.of(Schema.STATUS)
    system = statuses[statuses["status_type"] == StatusType.SYSTEM]
    assert b"".join(system["state"].tolist()).decode() == reading.expected["system_events"]
    every = wire.view(reading.frames, Schema.ORDER_ADD)  # tracking has one place in all schemas used here
    assert np.unique(every["tracking"]).size == reading.expected["distinct_tracking"]


def test_every_symbol_is_known_by_the_directory(reading: Reading) -> None:
    # The expected figure counts orders and trades; the real file's four imbalances name four stocks more.
    traded = [
        reading.of(schema)["instrument_id"] for schema in (Schema.ORDER_ADD, Schema.TRADE, Schema.CROSS)
    ]
    symbols = {reading.decoder.symbol_of(int(locate)) for locate in np.concatenate(traded)}
    assert len(symbols) == reading.expected["distinct_stock_names"]
    assert reading.decoder.symbol_changes == 0
    for instrument_id in np.flatnonzero(reading.decoder.directory):
        symbol = reading.decoder.symbol_of(int(instrument_id))
        assert symbol is not None
        assert reading.decoder.instrument_of(symbol) == instrument_id


def test_frames_become_the_file_s_bytes_again(reading: Reading) -> None:
    original = bytearray(reading.path.read_bytes())
    if reading.path.name == HOSTILE:  # its two bytes before each message are zero, not a length
        position = 0
        sizes = {message.letter[0]: message.size for message in FORMAT.message_types}
        while position < len(original):
            size = sizes[original[position + 2]]
            original[position : position + 2] = size.to_bytes(2, "big")
            position += 2 + size
    encoded = encode_frames(reading.frames, reading.decoder.directory, reading.midnight_ns)
    assert encoded == bytes(original)


def test_hostile_framing_is_refused_with_position_and_reason(market_data: Path) -> None:
    path = market_data / "itch50" / HOSTILE
    with (
        DayFile(path, FORMAT, session_date=date(2010, 12, 24)) as day,
        pytest.raises(DayFileError, match="a zero length ends the session, but bytes follow") as caught,
    ):
        assert list(day.frames()) == []
    ending = caught.value.ending
    assert (ending.position, ending.message_count) == (0, 0)
    assert ending.trailing_bytes == path.stat().st_size - 2
    assert day.decoder.message_count == 0


def test_the_real_file_cut_at_any_byte_gives_its_whole_messages(market_data: Path, tmp_path: Path) -> None:
    data = (market_data / "itch50" / REAL).read_bytes()
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 2 + int.from_bytes(data[ends[-1] : ends[-1] + 2], "big"))
    for length in range(len(data) - 120, len(data)):
        path = tmp_path / REAL
        path.write_bytes(data[:length])
        whole = max(index for index, end in enumerate(ends) if end <= length)
        with DayFile(path, FORMAT, is_strict=False) as day:
            assert sum(len(frames) for frames in day.frames()) == day.decoder.frame_count
            assert day.decoder.message_count == whole
            assert day.ending is not None
            assert day.ending.position == ends[whole]
            assert day.ending.is_clean == (ends[whole] == length)
