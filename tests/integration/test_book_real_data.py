"""Books of real streams: IEX's final books as they were found independently, ITCH's against another program.

itch-book (C++) tells every change of a stock's best prices and of its first 50 levels, so the two programs
are compared message by message, on real files and on a simulated day.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import itch_book
import numpy as np
import pytest

from feeds import wire
from feeds.book.books import Books
from feeds.dayfile import DayFile, Lengths
from feeds.itch50 import FORMAT
from feeds.order_flow.flow import write_day_file
from feeds.wire import Schema, StatusType
from tests.book_reference import ReferenceBooks
from tests.iex_capture import CAPTURE, DecodedCapture, decode_capture

IEX_PRICE = 100_000  # 1e-4 dollars, in 1e-9
ITCH_PRICE = 100_000
REAL = "12302019_SNIPPET.NASDAQ_ITCH50"
HOSTILE = "RITCH_ex20101224.TEST_ITCH_50"
LEVELS = 50  # the most that itch-book tells
SESSION_DATE = datetime.date(2019, 12, 30)


@pytest.fixture(scope="module")
def capture(market_data: Path) -> DecodedCapture:
    return decode_capture(market_data / CAPTURE)


@pytest.fixture(scope="module")
def expected(market_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((market_data / "iex" / "expected.json").read_text())["expected"]
    return found


@pytest.fixture(scope="module")
def iex_books(capture: DecodedCapture) -> Books:
    books = Books(has_orders=False)
    for batch in np.array_split(capture.frames, 50):
        books.apply(batch)
    return books


def updated(capture: DecodedCapture) -> dict[str, int]:
    """Return the instruments that have level updates, by symbol."""
    levels = capture.frames["schema_id"] == Schema.LEVEL
    return {capture.symbol(each): int(each) for each in np.unique(capture.frames["instrument_id"][levels])}


def side_of(books: Books, instrument_id: int, side: str) -> list[list[int]]:
    depth = books.depth(instrument_id, 10_000)
    held = depth[depth[f"{side}_size"] > 0]
    return [[int(row[f"{side}_price"]) // IEX_PRICE, int(row[f"{side}_size"])] for row in held]


def test_the_final_iex_books_are_those_that_were_found_independently(
    capture: DecodedCapture, iex_books: Books, expected: dict[str, Any]
) -> None:
    lines: list[str] = []
    totals: Counter[str] = Counter()
    for symbol, instrument_id in sorted(updated(capture).items(), key=lambda item: item[0].encode()):
        bids, asks = (side_of(iex_books, instrument_id, side) for side in ("bid", "ask"))
        lines += [f"{symbol}|B|{price}|{size}\n" for price, size in reversed(bids)]
        lines += [f"{symbol}|S|{price}|{size}\n" for price, size in asks]
        totals["symbols_with_updates"] += 1
        totals["symbols_non_empty"] += bool(bids or asks)
        totals["symbols_two_sided"] += bool(bids and asks)
        totals["bid_levels"] += len(bids)
        totals["ask_levels"] += len(asks)
        totals["bid_shares"] += sum(size for _, size in bids)
        totals["ask_shares"] += sum(size for _, size in asks)
    assert dict(totals) == {name: expected["book"][name] for name in totals}
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest == expected["book"]["sha256_of_canonical_final_books"]


def test_the_busiest_iex_books_are_as_listed(
    capture: DecodedCapture, iex_books: Books, expected: dict[str, Any]
) -> None:
    instruments = updated(capture)
    listed = expected["book"]["top5_most_active"] + expected["book"]["five_most_active_two_sided"]
    assert listed
    for book in listed:
        instrument_id = instruments[book["symbol"]]
        top = iex_books.top(instrument_id)
        best = [[top.bid_price // IEX_PRICE, top.bid_size], [top.ask_price // IEX_PRICE, top.ask_size]]
        assert best == [book["best_bid"] or [0, 0], book["best_ask"] or [0, 0]]
        assert side_of(iex_books, instrument_id, "bid") == book["bids"]
        assert side_of(iex_books, instrument_id, "ask") == book["asks"]


def test_every_iex_removal_meets_its_level_and_every_state_is_kept(
    capture: DecodedCapture, iex_books: Books, expected: dict[str, Any]
) -> None:
    counters = iex_books.counters
    assert counters.levels == expected["counts"]["8"] + expected["counts"]["5"]
    assert counters.unknown_levels == expected["book"]["invariants"]["stray_removals"] == 0
    assert counters.statuses == expected["counts"]["H"]
    typed = wire.view(capture.frames, Schema.STATUS)
    is_trading = (typed["schema_id"] == Schema.STATUS) & (typed["status_type"] == StatusType.TRADING)
    last = {int(row["instrument_id"]): row["state"].decode() for row in typed[is_trading]}
    assert {each: iex_books.trading_state(each) for each in last} == last


def test_iex_books_are_never_crossed_after_an_event(capture: DecodedCapture) -> None:
    books = Books(has_orders=False)
    levels = np.flatnonzero(capture.frames["schema_id"] == Schema.LEVEL)
    for row in levels:
        books.apply(capture.frames[row : row + 1])
        top = books.top(int(capture.frames["instrument_id"][row]))
        assert not (top.bid_size and top.ask_size) or top.bid_price < top.ask_price


def itch_frames(path: Path) -> wire.FrameArray:
    with DayFile(path, FORMAT, session_date=SESSION_DATE) as day:
        return np.concatenate([frames.copy() for frames in day.frames()])


def with_lengths(path: Path, target: Path) -> Path:
    """Write the hostile file as it should be: each message behind its true length."""
    with (
        DayFile(path, FORMAT, session_date=SESSION_DATE, lengths=Lengths.BY_TYPE) as day,
        target.open("wb") as file,
    ):
        for blocks in day.blocks():
            file.write(bytes(blocks.data))
    return target


@pytest.fixture(scope="module", params=["real", "hostile", "simulated"])
def itch_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("itch")
    if request.param == "simulated":
        write_day_file(directory / "day.itch", 40_000, 11, symbol_count=20)
        return directory / "day.itch"
    market_data: Path = request.getfixturevalue("market_data")
    if request.param == "real":
        return market_data / "itch50" / REAL
    return with_lengths(market_data / "itch50" / HOSTILE, directory / "with_lengths.itch")


def changes_of(frames: wire.FrameArray, books: Books) -> Iterator[tuple[int, ...]]:
    """Yield (message, instrument, best prices) whenever a message changed them, and bring the books along."""
    shown: dict[int, tuple[int, ...]] = {}
    for row in range(len(frames)):
        books.apply(frames[row : row + 1])
        if not Schema.ORDER_ADD <= frames["schema_id"][row] <= Schema.ORDER_REPLACE:
            continue
        instrument_id = int(frames["instrument_id"][row])
        top = books.top(instrument_id)
        best = (top.bid_price, top.bid_size, top.ask_price, top.ask_size)
        if shown.get(instrument_id, (0, 0, 0, 0)) != best:
            shown[instrument_id] = best
            yield int(frames["source_seq"][row]), instrument_id, *top


def test_itch_books_change_as_those_of_another_program(itch_file: Path) -> None:
    feed = itch_book.open(str(itch_file), date=SESSION_DATE, price_type="fixed")
    batches = list(feed.batches(tables=("bbo", "depth"), depth=LEVELS))
    stats = feed.stats
    assert stats is not None
    columns = ("seq", "locate", "bid_px", "bid_sz", "bid_ct", "ask_px", "ask_sz", "ask_ct")
    peer = np.concatenate(
        [np.stack([batch.bbo[name].astype(np.int64) for name in columns], axis=1) for batch in batches]
    )
    peer[:, [2, 5]] *= ITCH_PRICE

    # It refuses an order whose number is 0, and the synthetic file has one that nothing refers to again.
    frames = itch_frames(itch_file)
    is_zero = (frames["schema_id"] == Schema.ORDER_ADD) & (
        wire.view(frames, Schema.ORDER_ADD)["order_id"] == 0
    )
    assert is_zero.sum() == stats["rejected"]
    books = Books()
    ours = np.array(list(changes_of(frames[~is_zero], books)), dtype=np.int64)
    assert len(peer) > 0
    assert np.array_equal(ours, peer)

    counters = books.counters
    assert books.order_count == stats["live_orders"]
    assert counters.unknown_orders == stats["missing_ref"]
    assert counters.duplicate_orders == stats["dup_ref"]
    assert counters.oversized_executes + counters.oversized_cancels == stats["clamped"]
    assert counters.empty_orders == 0
    compare_depths(books, batches)


def compare_depths(books: Books, batches: list[Any]) -> None:
    last: dict[int, tuple[Any, int]] = {}
    for batch in batches:
        last |= {int(locate): (batch.depth, row) for row, locate in enumerate(batch.depth["locate"])}
    assert last
    for instrument_id, (table, row) in last.items():
        ours = books.depth(instrument_id, LEVELS)
        for side in ("bid", "ask"):
            held = ours[ours[f"{side}_size"] > 0]
            theirs = [
                tuple(int(table[f"{side}_{what}_{level:02d}"][row]) for what in ("px", "sz", "ct"))
                for level in range(LEVELS)
            ]
            assert [
                (
                    int(each[f"{side}_price"]) // ITCH_PRICE,
                    int(each[f"{side}_size"]),
                    int(each[f"{side}_orders"]),
                )
                for each in held
            ] == [each for each in theirs if each[1]]


def test_itch_books_equal_plain_books(itch_file: Path) -> None:
    frames = itch_frames(itch_file)
    books, reference = Books(), ReferenceBooks(has_orders=True)
    books.apply(frames)
    reference.apply(frames)
    assert books.instruments().tolist() == reference.instruments
    counters = books.counters
    assert {name: getattr(counters, name) for name in reference.counts} == dict(reference.counts)
    by_instrument = {order.instrument_id for order in reference.orders.values()}
    for instrument_id in sorted(by_instrument)[:40]:
        assert books.top(instrument_id) == reference.top(instrument_id)
        assert books.depth(instrument_id, 10_000).tolist() == reference.depth(instrument_id)


def test_most_orders_of_the_real_file_are_older_than_the_file(market_data: Path) -> None:
    books = Books()
    books.apply(itch_frames(market_data / "itch50" / REAL))
    counters = books.counters
    references = counters.executes + counters.cancels + counters.deletes + counters.replaces
    # 394 orders are older than the file; 5 more were replaced in it when they were unknown already.
    assert (references, counters.unknown_orders) == (427, 394 + 5)
    assert counters.instrument_mismatches == counters.oversized_executes == counters.oversized_cancels == 0


def test_a_book_restored_in_the_middle_of_a_real_stream_ends_the_same(itch_file: Path) -> None:
    frames = itch_frames(itch_file)
    half = len(frames) // 2
    original, restored = Books(), Books()
    original.apply(frames[:half])
    restored.restore(np.concatenate(list(original.snapshots())))
    original.apply(frames[half:])
    restored.apply(frames)  # from the beginning: what the snapshots have in them is left out
    for ours, theirs in zip(original.snapshots(), restored.snapshots(original.instruments()), strict=True):
        assert np.array_equal(ours, theirs)
    assert restored.counters.before_snapshot > 0
    assert original.tops().tobytes() == restored.tops(original.instruments()).tobytes()
