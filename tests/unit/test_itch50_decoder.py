"""`Decoder` on ITCH bytes: what it counts, what it refuses, and how it words a problem."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pytest

from feeds import formats as f
from feeds import wire
from feeds.decoder import Decoder, as_data, check_runs, new_runs
from feeds.errors import ConfigError, SourceError
from feeds.itch50 import FORMAT
from feeds.session_time import midnight_ns, parse_date, session_date_of_name, session_of_date
from feeds.wire import Schema, UnparsedReason
from tests import itch50_reference as reference

pytestmark = pytest.mark.kernels


def add(order: int, locate: int = 1, stock: bytes = b"AAPL    ", side: bytes = b"B") -> bytes:
    fields = {"order": order, "side": side, "shares": 100, "stock": stock, "price": 12_3400}
    return reference.pack(b"A", locate, 0, order, **fields)


def runs_of(*runs: tuple[int, int, int, int, int]) -> f.IntArray:
    array = new_runs(len(runs))
    array[:] = runs
    return array


def decode_file(decoder: Decoder, data: bytes, **options: Any) -> wire.FrameArray:
    batches = [batch.copy() for batch in decoder.decode(data, runs_of((0, len(data), 1, -1, 9)), **options)]
    return np.concatenate(batches) if batches else wire.empty(0)


def test_problems_are_told_by_number_position_and_reason() -> None:
    blocks = [add(1), b"z" * 12, add(2)[:-1], add(3, side=b"?"), b"\x07abc"]
    decoder = Decoder(FORMAT, 1)
    decode_file(decoder, reference.blocks_of(blocks))
    assert [str(problem) for problem in decoder.problems] == [
        "message 2 at byte 38: unknown type 'z' (12 bytes)",
        "message 3 at byte 52: type 'A' must be 36 bytes, was 35",
        "message 4 at byte 89: type 'A' (36 bytes) holds a value that is not allowed",
        "message 5 at byte 127: unknown type 0x07 (4 bytes)",
    ]
    assert decoder.problem_count == 4
    assert decoder.counts_by_type == {"A": 3, "\x07": 1, "z": 1}


def test_positions_count_from_the_base_that_was_given() -> None:
    decoder = Decoder(FORMAT, 1)
    decode_file(decoder, reference.blocks_of([add(1), b"z"]), position_base=1_000_000)
    assert decoder.problems[0].position == 1_000_038


def test_an_empty_block_in_a_packet_takes_a_number_and_in_a_file_ends_the_session() -> None:
    data = reference.blocks_of([add(1), b"", add(2)])
    packet = Decoder(FORMAT, 1)
    frames = next(packet.decode(data, runs_of((0, len(data), 10, 3, 9))))
    assert frames["source_seq"].tolist() == [10, 11, 12]
    assert frames["schema_id"].tolist() == [Schema.ORDER_ADD, Schema.UNPARSED, Schema.ORDER_ADD]
    assert str(packet.problems[0]) == "message 11 at byte 38: no bytes at all"
    assert packet.problems[0].reason is UnparsedReason.WRONG_LENGTH
    assert packet.stop is None

    file = Decoder(FORMAT, 1)
    assert len(decode_file(file, data)) == 1
    assert file.stop is not None
    assert (file.stop.reason, file.stop.position) == (f.STOP_ZERO_LENGTH, 38)


def test_a_file_cut_at_any_byte_stops_at_its_last_whole_message() -> None:
    data = reference.blocks_of([add(1), add(2)])
    for length in range(len(data)):
        decoder = Decoder(FORMAT, 1)
        frames = decode_file(decoder, data[:length])
        assert len(frames) == length // 38
        if length % 38 == 0:
            assert decoder.stop is None
        else:
            assert decoder.stop is not None
            assert (decoder.stop.reason, decoder.stop.position) == (f.STOP_CUT_SHORT, length // 38 * 38)


def test_a_run_whose_count_exceeds_its_bytes_stops_and_says_so() -> None:
    data = reference.blocks_of([add(1)])
    decoder = Decoder(FORMAT, 1)
    assert len(list(decoder.decode(data, runs_of((0, len(data), 1, 2, 9))))) == 1
    assert decoder.stop is not None
    assert decoder.stop.reason == f.STOP_CUT_SHORT


def test_runs_of_several_sessions_share_one_stream_of_message_numbers() -> None:
    data = reference.blocks_of([add(1), add(2)])
    decoder = Decoder(FORMAT, 1, first_message_seq=100)
    runs = runs_of((0, 76, 7, 2, 0xFFFFFFFF), (38, 38, 1, 1, 5), (0, 0, 1, 0, 6))
    frames = next(decoder.decode(data, runs))
    assert frames["source_session"].tolist() == [0xFFFFFFFF, 0xFFFFFFFF, 5]
    assert frames["source_seq"].tolist() == [7, 8, 1]
    assert frames["message_seq"].tolist() == [100, 101, 102]
    assert decoder.frame_count == decoder.message_count == 3


def test_symbols_are_learned_looked_up_and_their_changes_counted() -> None:
    decoder = Decoder(FORMAT, 1)
    decode_file(decoder, reference.blocks_of([add(1, 7, b"AAPL    "), add(2, 8, b"MSFT    ")]))
    assert decoder.symbol_of(7) == "AAPL"
    assert decoder.instrument_of("MSFT") == 8
    assert decoder.symbol_of(9) is None
    assert decoder.symbol_of(70_000) is None
    assert decoder.instrument_of("TOOLONGNAME") is None
    assert decoder.instrument_of("\u20ac") is None
    assert decoder.instrument_of("") is None
    decode_file(decoder, reference.blocks_of([add(3, 7, b"ZZZZ    "), add(4, 0, b"NONE    ")]))
    assert decoder.symbol_of(7) == "ZZZZ"
    assert decoder.symbol_of(0) is None
    assert decoder.symbol_changes == 1


def test_only_the_latest_problems_are_kept_but_all_are_counted() -> None:
    decoder = Decoder(FORMAT, 1)
    decode_file(decoder, reference.blocks_of([b"z"] * 1_000))
    assert decoder.problem_count == 1_000
    assert [problem.source_seq for problem in decoder.problems] == list(range(745, 1_001))


def test_a_batch_is_a_view_that_the_next_step_overwrites() -> None:
    data = reference.blocks_of([add(order) for order in range(8)])
    decoder = Decoder(FORMAT, 1, frame_capacity=5)
    steps = decoder.decode(data, runs_of((0, len(data), 1, 8, 9)))
    first = next(steps)
    assert first["source_seq"].tolist() == [1, 2, 3]
    second = next(steps)
    assert np.shares_memory(first, second)
    assert first["source_seq"].tolist() == [4, 5, 6]


def test_an_abandoned_pass_cannot_be_continued() -> None:
    data = reference.blocks_of([add(order) for order in range(8)])
    decoder = Decoder(FORMAT, 1, frame_capacity=5)
    runs = runs_of((0, len(data), 1, 8, 9))
    old = decoder.decode(data, runs)
    next(old)
    decoder.decode(data, runs)
    with pytest.raises(ConfigError, match="one pass at a time"):
        next(old)


@pytest.mark.parametrize(
    "run, field",
    [
        ((-1, 5, 1, 1, 1), "offset"),
        ((0, 101, 1, 1, 1), "bytes"),
        ((60, 50, 1, 1, 1), "end"),
        ((0, 5, -1, 1, 1), "seq"),
        ((0, 5, 1, -2, 1), "count"),
        ((0, 5, 1, 1, 2**32), "session"),
    ],
)
def test_a_run_that_leaves_its_data_is_refused(run: tuple[int, int, int, int, int], field: str) -> None:
    good = (0, 100, 1, 1, 1)
    with pytest.raises(SourceError, match=f"run 1: {field} must be"):
        check_runs(runs_of(good, run), 100)


@pytest.mark.parametrize("runs", [np.zeros((1, 4), dtype=np.int64), np.zeros((1, 5), dtype=np.int32)])
def test_runs_of_another_shape_are_refused(runs: Any) -> None:
    with pytest.raises(ConfigError, match="runs must be int64"):
        check_runs(runs, 100)


def test_read_only_and_strided_runs_are_refused() -> None:
    frozen = new_runs(1)
    frozen.flags.writeable = False
    with pytest.raises(ConfigError, match="writable"):
        check_runs(frozen, 100)
    with pytest.raises(ConfigError, match="contiguous"):
        check_runs(new_runs(4)[::2], 100)


def test_data_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="uint8"):
        as_data(np.zeros(4, dtype=np.int32))
    with pytest.raises(ConfigError, match="contiguous"):
        as_data(np.zeros(8, dtype=np.uint8)[::2])


@pytest.mark.parametrize(
    "options",
    [
        {"stream_id": 2**32},
        {"stream_id": -1},
        {"epoch": 2**32},
        {"first_message_seq": -1},
        {"frame_capacity": 2},
        {"frame_capacity": 2**24 + 1},
    ],
)
def test_a_decoder_names_the_setting_that_is_out_of_range(options: dict[str, int]) -> None:
    name = next(iter(options))
    with pytest.raises(ConfigError, match=f"{name} must be"):
        Decoder(FORMAT, **({"stream_id": 1} | options))


@pytest.mark.parametrize(
    "day, expected",
    [
        (date(2019, 12, 30), 1_577_682_000),  # 05:00 UTC, winter
        (date(2019, 7, 30), 1_564_459_200),  # 04:00 UTC, summer
    ],
)
def test_midnight_is_new_york_s(day: date, expected: int) -> None:
    assert midnight_ns(day, FORMAT.time_zone) == expected * 1_000_000_000


def test_session_dates_come_from_the_names_that_nasdaq_gives() -> None:
    from pathlib import PurePath

    assert session_date_of_name(PurePath("/a/12302019.NASDAQ_ITCH50.gz")) == date(2019, 12, 30)
    assert session_date_of_name(PurePath("S081321-v50.txt.gz")) == date(2021, 8, 13)
    assert session_of_date(date(2019, 12, 30)) == 20_191_230
    for name in ("RITCH_ex20101224.TEST_ITCH_50", "13322019.NASDAQ_ITCH50", "123020199.x", ""):
        with pytest.raises(ConfigError, match="MMDDYYYY"):
            session_date_of_name(PurePath(name))


def test_dates_and_zones_that_do_not_exist_are_refused() -> None:
    assert parse_date("2019-12-30") == date(2019, 12, 30)
    with pytest.raises(ConfigError, match="YYYY-MM-DD"):
        parse_date("30.12.2019")
    with pytest.raises(ConfigError, match="IANA"):
        midnight_ns(date(2019, 12, 30), "Mars/Olympus")
