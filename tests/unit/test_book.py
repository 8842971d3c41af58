"""One rule of the books each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feeds import wire
from feeds.book.books import Books, Top
from feeds.book.store import CHUNK_FRAMES, BookLimits
from feeds.errors import ConfigError, FeedError, FrameError, LimitError, SnapshotError
from feeds.validation import validate
from feeds.wire import QuoteCondition, Schema, StatusType
from tests.book_reference import ReferenceBooks, frames_of

Row = tuple[Schema, dict[str, Any]]
STOCK = 7
OTHER = 8


def add(order_id: int, side: bytes, price: int, size: int, instrument_id: int = STOCK) -> Row:
    fields = {"order_id": order_id, "side": side, "price": price, "size": size}
    return Schema.ORDER_ADD, {**fields, "instrument_id": instrument_id}


def execute(order_id: int, size: int, instrument_id: int = STOCK) -> Row:
    return Schema.ORDER_EXECUTE, {"order_id": order_id, "size": size, "instrument_id": instrument_id}


def cancel(order_id: int, size: int) -> Row:
    return Schema.ORDER_CANCEL, {"order_id": order_id, "size": size, "instrument_id": STOCK}


def delete(order_id: int) -> Row:
    return Schema.ORDER_DELETE, {"order_id": order_id, "instrument_id": STOCK}


def replace(order_id: int, new_order_id: int, price: int, size: int) -> Row:
    fields = {"order_id": order_id, "new_order_id": new_order_id, "price": price, "size": size}
    return Schema.ORDER_REPLACE, {**fields, "instrument_id": STOCK}


def level(side: bytes, price: int, size: int, is_complete: bool = True, event_time_ns: int = 1) -> Row:
    fields = {"side": side, "price": price, "size": size, "is_event_complete": is_complete}
    return Schema.LEVEL, {**fields, "event_time_ns": event_time_ns, "instrument_id": STOCK}


def status(state: bytes, status_type: StatusType = StatusType.TRADING) -> Row:
    return Schema.STATUS, {"state": state, "status_type": status_type, "instrument_id": STOCK}


def order_books(*rows: Row) -> Books:
    books = Books()
    books.apply(frames_of(*rows))
    return books


def level_books(*rows: Row) -> Books:
    books = Books(has_orders=False)
    books.apply(frames_of(*rows))
    return books


def queue(books: Books, instrument_id: int = STOCK) -> list[int]:
    frames = books.snapshot(instrument_id)
    orders = frames[frames["schema_id"] == Schema.BOOK_ORDER].view(wire.FRAMES[Schema.BOOK_ORDER])
    found: list[int] = orders["order_id"].tolist()
    return found


class TestOrders:
    def test_the_best_bid_is_the_highest_and_the_best_ask_the_lowest(self) -> None:
        books = order_books(
            add(1, b"B", 90, 5),
            add(2, b"B", 95, 6),
            add(3, b"S", 110, 7),
            add(4, b"S", 105, 8),
            add(5, b"B", 95, 1),
        )
        assert books.top(STOCK) == Top(95, 7, 2, 105, 8, 1)

    def test_depth_goes_from_the_best_price_on_and_pads_the_shorter_side(self) -> None:
        books = order_books(add(1, b"B", 90, 5), add(2, b"B", 95, 6), add(3, b"S", 110, 7))
        assert books.depth(STOCK).tolist() == [(95, 6, 1, 110, 7, 1), (90, 5, 1, 0, 0, 0)]
        assert len(books.depth(STOCK, levels=1)) == 1

    def test_prices_may_be_negative_and_extreme(self) -> None:
        lowest, highest = -(1 << 63), (1 << 63) - 1
        books = order_books(
            add(1, b"B", lowest, 1), add(2, b"B", -1, 2), add(3, b"S", highest, 3), add(4, b"S", lowest, 4)
        )
        assert books.top(STOCK) == Top(-1, 2, 1, lowest, 4, 1)
        assert books.depth(STOCK)["ask_price"].tolist() == [lowest, highest]

    def test_an_execution_takes_from_the_order_and_its_level(self) -> None:
        books = order_books(add(1, b"B", 90, 5), add(2, b"B", 90, 6), execute(1, 4))
        assert books.top(STOCK)[:3] == (90, 7, 2)

    def test_an_order_without_shares_leaves_with_its_level(self) -> None:
        books = order_books(add(1, b"B", 90, 5), add(2, b"B", 80, 6), execute(1, 3), cancel(1, 2))
        assert books.top(STOCK)[:3] == (80, 6, 1)
        assert (books.order_count, books.level_count) == (1, 1)

    def test_a_replace_keeps_side_and_instrument_and_loses_its_place_in_the_queue(self) -> None:
        books = order_books(add(1, b"S", 90, 5), add(2, b"S", 90, 6), replace(1, 3, 90, 4))
        assert books.top(STOCK)[3:] == (90, 10, 2)
        assert queue(books) == [2, 3]

    def test_a_replace_may_keep_its_order_id(self) -> None:
        books = order_books(add(1, b"S", 90, 5), add(2, b"S", 90, 6), replace(1, 1, 91, 4))
        assert books.depth(STOCK)["ask_size"].tolist() == [6, 4]
        assert books.counters.duplicate_orders == 0

    def test_orders_older_than_the_stream_are_counted_by_kind(self) -> None:
        books = order_books(execute(1, 1), cancel(2, 1), cancel(2, 1), delete(3), replace(4, 5, 90, 1))
        counters = books.counters
        assert (counters.unknown_executes, counters.unknown_cancels) == (1, 2)
        assert (counters.unknown_deletes, counters.unknown_replaces) == (1, 1)
        assert counters.unknown_orders == 5
        assert books.order_count == 0

    def test_more_than_is_left_is_counted_and_no_size_goes_below_nothing(self) -> None:
        books = order_books(
            add(1, b"B", 90, 5), add(2, b"B", 90, 6), add(3, b"B", 90, 7), execute(1, 99), cancel(2, 7)
        )
        assert books.top(STOCK)[:3] == (90, 7, 1)
        assert (books.counters.oversized_executes, books.counters.oversized_cancels) == (1, 1)

    def test_an_id_used_twice_is_counted_and_the_newer_order_stays(self) -> None:
        books = order_books(add(1, b"B", 90, 5), add(1, b"S", 95, 6, OTHER))
        assert books.top(STOCK) == Top()
        assert books.top(OTHER) == Top(0, 0, 0, 95, 6, 1)
        assert books.counters.duplicate_orders == 1

    def test_a_replace_onto_a_live_id_takes_its_place(self) -> None:
        books = order_books(add(1, b"B", 90, 5), add(2, b"B", 91, 6), replace(1, 2, 92, 7))
        assert books.depth(STOCK)["bid_price"].tolist() == [92]
        assert (books.order_count, books.counters.duplicate_orders) == (1, 1)

    def test_an_order_of_size_nothing_is_not_put_into_the_book(self) -> None:
        books = order_books(add(1, b"B", 90, 0), add(2, b"B", 80, 5), replace(2, 3, 85, 0))
        assert books.order_count == 0
        assert books.counters.empty_orders == 2

    def test_a_frame_of_the_wrong_instrument_is_counted_and_the_order_counts(self) -> None:
        books = order_books(add(1, b"B", 90, 5), execute(1, 2, OTHER))
        assert books.top(STOCK)[:2] == (90, 3)
        assert books.counters.instrument_mismatches == 1

    def test_only_trading_states_are_kept(self) -> None:
        books = order_books(status(b"H"), status(b"T"), status(b"1", StatusType.SHORT_SALE))
        assert books.trading_state(STOCK) == "T"
        assert books.trading_state(OTHER) == ""

    def test_other_schemas_are_counted_as_ignored(self) -> None:
        books = order_books(
            (Schema.TRADE, {}), (Schema.LEVEL, {"side": b"B", "size": 1}), (Schema.HEARTBEAT, {})
        )
        assert books.counters.ignored == 3
        assert books.instruments().size == 0


class TestLevels:
    def test_a_level_replaces_its_size_and_nothing_removes_it(self) -> None:
        books = level_books(level(b"B", 90, 5), level(b"B", 90, 6), level(b"B", 91, 7), level(b"B", 91, 0))
        assert books.top(STOCK) == Top(90, 6, 0, 0, 0, 0)

    def test_best_prices_stay_until_the_event_is_complete(self) -> None:
        books = level_books(level(b"B", 90, 5), level(b"B", 90, 0, is_complete=False, event_time_ns=2))
        assert books.top(STOCK).bid_price == 90
        assert not books.is_settled(STOCK)
        assert books.depth(STOCK).size == 0
        books.apply(frames_of(level(b"B", 80, 4, event_time_ns=2)))
        assert books.top(STOCK)[:2] == (80, 4)
        assert books.is_settled(STOCK)

    def test_an_event_ends_when_the_time_of_its_instrument_changes(self) -> None:
        books = level_books(level(b"B", 90, 5), level(b"B", 90, 0, is_complete=False, event_time_ns=2))
        trade: Row = (Schema.TRADE, {"instrument_id": OTHER, "event_time_ns": 3})
        books.apply(frames_of(trade))
        assert books.top(STOCK).bid_price == 90  # another instrument's time says nothing
        books.apply(frames_of((Schema.TRADE, {"instrument_id": STOCK, "event_time_ns": 3})))
        assert books.top(STOCK) == Top()

    def test_a_new_event_shows_the_prices_from_before_itself(self) -> None:
        books = level_books(
            level(b"B", 90, 5),
            level(b"B", 91, 1, is_complete=False, event_time_ns=2),
            level(b"B", 92, 2, is_complete=False, event_time_ns=3),
            level(b"B", 93, 3, is_complete=False, event_time_ns=3),
        )
        assert books.top(STOCK)[:2] == (91, 1)

    def test_removing_a_level_that_is_not_there_is_counted(self) -> None:
        assert level_books(level(b"B", 90, 0)).counters.unknown_levels == 1

    def test_a_quote_is_the_whole_book(self) -> None:
        quote = {"bid_price": 90, "bid_size": 5, "ask_price": 95, "ask_size": 6, "instrument_id": STOCK}
        books = level_books(level(b"B", 94, 1), level(b"B", 93, 1), (Schema.QUOTE, quote))
        assert books.depth(STOCK).tolist() == [(90, 5, 0, 95, 6, 0)]
        books.apply(frames_of((Schema.QUOTE, {**quote, "ask_size": 0})))
        assert books.top(STOCK) == Top(90, 5, 0, 0, 0, 0)


class TestSource:
    def test_a_new_session_empties_the_books_and_keeps_the_counters(self) -> None:
        books = order_books(add(1, b"B", 90, 5), status(b"H"))
        books.apply(frames_of(add(2, b"S", 95, 6), session=2))
        assert books.top(STOCK) == Top(0, 0, 0, 95, 6, 1)
        assert books.trading_state(STOCK) == ""
        assert (books.counters.adds, books.counters.sessions, books.source) == (2, 2, (3, 2))

    def test_a_session_that_changes_within_a_batch_empties_the_books_there(self) -> None:
        first, second = frames_of(add(1, b"B", 90, 5)), frames_of(add(2, b"B", 80, 6), session=0xFFFF_FFFF)
        books = Books()
        books.apply(np.concatenate([first, second]))
        assert books.top(STOCK)[:2] == (80, 6)

    def test_stream_zero_session_zero_is_a_source_like_any_other(self) -> None:
        books = Books()
        books.apply(frames_of(add(1, b"B", 90, 5), stream_id=0, session=0))
        books.apply(frames_of(add(2, b"B", 80, 6), stream_id=0, session=1))
        assert books.top(STOCK)[:2] == (80, 6)

    def test_frames_of_another_stream_are_refused_by_name(self) -> None:
        books = order_books(add(1, b"B", 90, 5))
        with pytest.raises(FeedError, match="belong to stream 3, a frame came from stream 4"):
            books.apply(frames_of(add(2, b"B", 91, 5), stream_id=4))
        assert books.top(STOCK)[:2] == (90, 5)

    def test_the_next_message_is_known_and_a_message_of_parts_counts_when_whole(self) -> None:
        frames = frames_of(add(1, b"B", 90, 5), (Schema.AUCTION, {}), (Schema.HEARTBEAT, {"source_seq": 0}))
        books = Books()
        assert books.next_source_seq == 0
        books.apply(frames)
        assert books.next_source_seq == 3
        frames["flags"][1] = 0
        books.apply(frames)
        assert books.next_source_seq == 2


class TestTops:
    def test_tops_are_valid_quotes_of_what_the_books_show(self) -> None:
        books = order_books(
            add(1, b"B", 90, 0xFFFF_FFFF), add(2, b"B", 90, 5), add(3, b"S", 95, 6), add(4, b"B", 1, 1, OTHER)
        )
        quotes = validate(books.tops([OTHER, STOCK, 99], publish_time_ns=5, first_message_seq=10)).view(
            wire.FRAMES[Schema.QUOTE]
        )
        assert quotes["instrument_id"].tolist() == [OTHER, STOCK, 99]
        assert quotes["bid_price"].tolist() == [1, 90, 0]
        assert quotes["bid_size"].tolist() == [1, 0xFFFF_FFFF, 0]
        assert quotes["ask_size"].tolist() == [0, 6, 0]
        assert quotes["source_seq"].tolist() == [4, 4, 4]
        assert quotes["message_seq"].tolist() == [10, 11, 12]
        assert quotes["source_stream_id"].tolist() == [3, 3, 3]

    def test_tops_of_all_come_in_the_order_of_instruments(self) -> None:
        books = order_books(add(1, b"B", 90, 1, OTHER), add(2, b"B", 91, 1))
        assert books.tops()["instrument_id"].tolist() == books.instruments().tolist() == [OTHER, STOCK]

    def test_an_instrument_that_does_not_trade_is_marked(self) -> None:
        halted, trading = order_books(status(b"H")), order_books(status(b"T"))
        assert halted.tops([STOCK])["conditions"] == QuoteCondition.NOT_AVAILABLE
        assert trading.tops([STOCK])["conditions"] == 0

    def test_ids_that_cannot_be_are_refused(self) -> None:
        books = order_books(add(1, b"B", 90, 1))
        for ids in ([-1], [1 << 32], [1.5]):
            with pytest.raises(ConfigError, match="instrument_ids must be"):
                books.tops(ids)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="instrument_id must be 0 to 4294967295, was -1"):
            books.top(-1)
        with pytest.raises(ConfigError, match="levels must be at least 1, was 0"):
            books.depth(STOCK, 0)


class TestLimits:
    def test_a_limit_is_named_and_what_was_applied_stays(self) -> None:
        books = Books(limits=BookLimits(orders_max=2))
        with pytest.raises(LimitError, match="3 live orders, more than orders_max = 2 allows"):
            books.apply(frames_of(*(add(number, b"B", 90, 1) for number in range(3))))
        with pytest.raises(LimitError, match="orders_max"):
            books.apply(frames_of(delete(0)))
        assert books.top(STOCK)[:3] == (90, 3, 3)

    @pytest.mark.parametrize(
        ("setting", "what"), [("levels_max", "price levels"), ("instruments_max", "instruments")]
    )
    def test_levels_and_instruments_have_limits_too(self, setting: str, what: str) -> None:
        books = Books(limits=BookLimits(**{setting: 2}))
        with pytest.raises(LimitError, match=f"3 {what}, more than {setting} = 2 allows"):
            books.apply(frames_of(*(add(number, b"B", 90 + number, 1, number) for number in range(3))))

    def test_limits_themselves_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="orders_max must be 1 to"):
            BookLimits(orders_max=0)
        with pytest.raises(ConfigError, match="orders_expected must be 0 to orders_max 5, was 6"):
            Books(limits=BookLimits(orders_max=5), orders_expected=6)

    @pytest.mark.kernels
    @pytest.mark.parametrize("stride", [1, 2, 64, 1 << 33])
    def test_all_tables_grow_without_losing_an_order(self, stride: int) -> None:
        count = CHUNK_FRAMES + 2000  # more orders, levels and instruments than the first tables have
        frames = wire.empty(count).view(wire.FRAMES[Schema.ORDER_ADD])
        frames[:] = frames_of(add(0, b"B", 0, 1)).view(wire.FRAMES[Schema.ORDER_ADD])[0]
        numbers = np.arange(count)
        frames["order_id"] = numbers * stride
        frames["instrument_id"] = numbers % 3000
        frames["price"] = numbers // 3
        books = Books()
        books.apply(frames)
        assert (books.order_count, books.instruments().size) == (count, 3000)
        reference = ReferenceBooks(has_orders=True)
        reference.apply(frames)
        for instrument_id in (0, 1, 1234, 2999):
            assert books.depth(instrument_id, 99).tolist() == reference.depth(instrument_id)
        frames["schema_id"] = Schema.ORDER_DELETE
        wire.words(frames)[:, wire.PAYLOAD_WORD + 1 :] = 0
        books.apply(frames[::-1].copy())
        assert (books.order_count, books.level_count) == (0, 0)
        assert books.counters.unknown_orders == 0

    @pytest.mark.kernels
    def test_a_deep_side_stays_sorted_wherever_its_prices_come(self) -> None:
        prices = np.random.default_rng(5).permutation(700)
        books = order_books(*(add(number, b"S", int(price), 1) for number, price in enumerate(prices)))
        assert books.depth(STOCK, 1000)["ask_price"].tolist() == list(range(700))
        books.apply(frames_of(*(delete(number) for number in range(0, 700, 2))))
        assert books.depth(STOCK, 1000)["ask_price"].tolist() == sorted(prices[1::2].tolist())


class TestSnapshots:
    def whole(self) -> wire.FrameArray:
        books = order_books(
            add(1, b"B", 90, 5), add(2, b"B", 90, 6), add(3, b"B", 80, 7), add(4, b"S", 95, 8), status(b"T")
        )
        return books.snapshot(STOCK, message_seq=4, publish_time_ns=9, epoch=2)

    def test_a_snapshot_is_told_in_valid_frames(self) -> None:
        frames = validate(self.whole())
        assert frames["schema_id"].tolist() == [Schema.BOOK_BEGIN] + 3 * [Schema.BOOK_LEVEL] + 4 * [
            Schema.BOOK_ORDER
        ]
        assert frames["part"].tolist() == list(range(8))
        assert frames["flags"].tolist() == [0] * 7 + [wire.Flag.LAST_PART]
        begin = frames.view(wire.FRAMES[Schema.BOOK_BEGIN])[0]
        assert (begin["next_source_seq"], begin["source_seq"], begin["state"]) == (6, 5, b"T")
        assert (begin["level_count"], begin["order_count"]) == (3, 4)
        assert (begin["message_seq"], begin["publish_time_ns"], begin["epoch"]) == (4, 9, 2)
        levels = frames[1:4].view(wire.FRAMES[Schema.BOOK_LEVEL])
        assert levels[["price", "size", "order_count", "index", "side"]].tolist() == [
            (90, 11, 2, 0, b"B"),
            (80, 7, 1, 1, b"B"),
            (95, 8, 1, 2, b"S"),
        ]
        assert frames[4:].view(wire.FRAMES[Schema.BOOK_ORDER])["order_id"].tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("first", "last", "complaint"),
        [
            (0, 7, "of instrument 7 is incomplete: 1 of 4 orders are missing"),
            (0, 4, "is incomplete: 4 of 4 orders are missing"),
            (0, 2, "is incomplete: 2 of 3 levels are missing"),
            (1, 8, "must start with BOOK_BEGIN, not with a frame of schema 24"),
            (0, 0, "not with no frame at all"),
        ],
    )
    def test_a_cut_snapshot_is_refused_with_what_is_missing(
        self, first: int, last: int, complaint: str
    ) -> None:
        with pytest.raises(SnapshotError, match=complaint):
            Books().restore(self.whole()[first:last])

    @pytest.mark.parametrize(
        ("row", "field", "value", "complaint"),
        [
            (0, "order_count", 3, "has 4 orders, its beginning says 3"),
            (0, "level_count", 2, "has 3 levels, its beginning says 2"),
            (0, "next_source_seq", 1 << 62, "which no session reaches"),
            (1, "size", 12, "has a level whose size is not that of its orders"),
            (1, "price", 70, "has levels that are not sorted from the best price on"),
            (1, "index", 1, "has levels out of order"),
            (2, "order_count", 0, "has a level without orders"),
            (3, "side", b"B", "has levels that are not sorted from the best price on"),
            (3, "part", 9, "has parts out of order"),
            (2, "flags", 1, "has a last part in the middle"),
            (7, "flags", 0, "is incomplete: its last part is missing"),
            (5, "instrument_id", 8, "has frames of another instrument"),
            (5, "source_session", 8, "mixes streams or sessions"),
            (5, "order_id", 1, "has an order id twice"),
            (5, "price", 80, "has an order that is not in the place of its level"),
            (5, "size", 0, "has an order of size 0"),
            (6, "index", 0, "has orders out of order"),
        ],
    )
    def test_a_snapshot_that_contradicts_itself_is_refused(
        self, row: int, field: str, value: Any, complaint: str
    ) -> None:
        frames = self.whole()
        schema = Schema(int(frames["schema_id"][row]))
        frames[row : row + 1].view(wire.FRAMES[schema])[field] = value
        books = order_books(add(9, b"B", 70, 1))
        with pytest.raises(SnapshotError, match=complaint):
            books.restore(frames)
        assert books.top(STOCK) == Top(70, 1, 1, 0, 0, 0)

    def test_a_frame_that_breaks_its_layout_is_refused(self) -> None:
        frames = self.whole()
        frames["version"][2] = 9
        with pytest.raises(FrameError, match="version"):
            Books().restore(frames)

    def test_books_of_orders_and_of_levels_do_not_mix(self) -> None:
        with pytest.raises(SnapshotError, match="has levels of single orders, these books are of levels"):
            Books(has_orders=False).restore(self.whole())
        of_levels = level_books(level(b"B", 90, 5)).snapshot(STOCK)
        with pytest.raises(SnapshotError, match="has a level without orders, these books are of orders"):
            Books().restore(of_levels)

    def test_ids_that_live_in_another_instrument_are_refused(self) -> None:
        books = order_books(add(2, b"B", 70, 1, OTHER))
        with pytest.raises(SnapshotError, match="has order 2, which is live in instrument 8"):
            books.restore(self.whole())
        assert books.order_count == 1

    def test_an_instrument_may_not_be_told_twice(self) -> None:
        with pytest.raises(SnapshotError, match="of instrument 7 is there twice"):
            Books().restore(np.concatenate([self.whole(), self.whole()]))

    def test_snapshots_of_two_sessions_are_refused(self) -> None:
        other = Books()
        other.apply(frames_of(add(9, b"B", 70, 1, OTHER), session=2))
        with pytest.raises(SnapshotError, match="of instrument 8 is of another stream or session"):
            Books().restore(np.concatenate([self.whole(), other.snapshot(OTHER)]))

    def test_a_snapshot_of_a_new_session_starts_over(self) -> None:
        old = Books()
        old.apply(frames_of(add(1, b"B", 70, 1, OTHER), session=9))
        assert old.restore(self.whole()) == 6
        assert old.top(OTHER) == Top()
        assert old.top(STOCK).bid_price == 90

    def test_more_than_may_be_held_is_refused_before_anything_changes(self) -> None:
        books = Books(limits=BookLimits(orders_max=3))
        with pytest.raises(LimitError, match=r"snapshots of 4 orders do not fit .* orders_max = 3"):
            books.restore(self.whole())
        assert books.order_count == 0
        books.apply(frames_of(add(1, b"B", 70, 1, OTHER), session=9))
        with pytest.raises(LimitError, match="do not fit beside 0 that stay"):
            books.restore(self.whole())
        assert books.top(OTHER).bid_price == 70

    def test_books_take_their_own_snapshot_although_two_of_it_would_not_fit(self) -> None:
        limits = BookLimits(orders_max=7, levels_max=5, instruments_max=2)
        books = Books(limits=limits)
        books.restore(self.whole())
        books.apply(frames_of(add(9, b"B", 70, 1, OTHER)))
        assert books.restore(self.whole()) == 6
        assert (books.order_count, books.level_count) == (5, 4)
        assert queue(books) == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("limits", "complaint"),
        [
            (
                BookLimits(orders_max=4),
                "snapshots of 4 orders do not fit beside 1 that stay: orders_max = 4",
            ),
            (
                BookLimits(levels_max=3),
                "snapshots of 3 levels do not fit beside 1 that stay: levels_max = 3",
            ),
            (
                BookLimits(instruments_max=2),
                "snapshots of 2 instruments do not fit beside 1 that stay: instruments_max = 2",
            ),
        ],
    )
    def test_every_limit_is_looked_at_before_a_book_is_replaced(
        self, limits: BookLimits, complaint: str
    ) -> None:
        books = Books(limits=limits)
        books.apply(frames_of(add(8, b"B", 60, 2), add(9, b"B", 70, 1, OTHER)))
        frames = self.whole()
        if limits.instruments_max == 2:
            third = order_books(add(10, b"B", 50, 1, 99))
            frames = np.concatenate([frames, third.snapshot(99)])
        with pytest.raises(LimitError, match=complaint):
            books.restore(frames)
        assert (books.top(STOCK), books.top(OTHER)) == (Top(60, 2, 1, 0, 0, 0), Top(70, 1, 1, 0, 0, 0))
        assert books.next_source_seq == 3
        books.apply(frames_of(delete(8)))
        assert books.order_count == 1

    def test_books_of_levels_keep_their_limit_of_levels_too(self) -> None:
        frames = level_books(*(level(b"B", 90 + step, 5) for step in range(3))).snapshot(STOCK)
        books = Books(has_orders=False, limits=BookLimits(levels_max=2))
        books.apply(frames_of(level(b"S", 99, 1)))
        with pytest.raises(LimitError, match="snapshots of 3 levels do not fit beside 0 that stay"):
            books.restore(frames)
        assert books.top(STOCK).ask_price == 99

    def test_books_without_a_frame_have_no_snapshot(self) -> None:
        with pytest.raises(FeedError, match="belong to no stream"):
            Books().snapshot(STOCK)

    def test_an_instrument_without_a_book_has_an_empty_snapshot(self) -> None:
        frames = order_books(add(1, b"B", 90, 5)).snapshot(OTHER)
        assert len(frames) == 1
        books = Books()
        books.restore(frames)
        assert books.instruments().tolist() == [OTHER]

    def test_restoring_counts_nothing(self) -> None:
        books = Books()
        books.restore(self.whole())
        assert books.counters.adds == 0
        assert books.counters.sessions == 1

    def test_frames_from_before_the_snapshot_are_left_out_and_counted(self) -> None:
        books = Books()
        assert books.restore(self.whole()) == 6
        live = frames_of(add(1, b"B", 90, 5), execute(2, 6), add(6, b"S", 99, 1, OTHER), execute(4, 8))
        live["source_seq"] = [1, 5, 5, 6]
        books.apply(live)
        assert books.top(STOCK) == Top(90, 11, 2, 0, 0, 0)
        assert books.top(OTHER).ask_price == 99
        assert books.counters.before_snapshot == 2

    def test_a_restored_book_says_where_it_stands_though_the_stream_is_behind(self) -> None:
        books = Books()
        books.restore(self.whole())
        live = frames_of(add(6, b"S", 99, 1, OTHER))
        live["source_seq"] = 2
        books.apply(live)
        begin = books.snapshot(STOCK).view(wire.FRAMES[Schema.BOOK_BEGIN])[0]
        assert begin["next_source_seq"] == 6
        assert books.snapshot(OTHER).view(wire.FRAMES[Schema.BOOK_BEGIN])[0]["next_source_seq"] == 3

    @pytest.mark.kernels
    def test_more_parts_than_the_header_can_count_start_over(self) -> None:
        count = 70_000
        frames = wire.empty(count).view(wire.FRAMES[Schema.ORDER_ADD])
        frames[:] = frames_of(add(0, b"B", 90, 1)).view(wire.FRAMES[Schema.ORDER_ADD])[0]
        frames["order_id"] = np.arange(count)[::-1]
        books = Books()
        books.apply(frames)
        told = books.snapshot(STOCK)
        assert told["part"].max() == 65_535
        orders = told[2:].view(wire.FRAMES[Schema.BOOK_ORDER])
        assert (orders["index"] == np.arange(count)).all()
        assert (orders["order_id"] == np.arange(count)[::-1]).all()
        restored = Books()
        restored.restore(told)
        assert (restored.snapshot(STOCK) == told).all()

    def test_an_event_under_way_travels_with_the_snapshot(self) -> None:
        books = level_books(level(b"B", 90, 5), level(b"B", 90, 0, is_complete=False, event_time_ns=2))
        restored = Books(has_orders=False)
        restored.restore(validate(books.snapshot(STOCK)))
        assert restored.top(STOCK).bid_price == 90
        assert not restored.is_settled(STOCK)
        restored.apply(
            frames_of((Schema.TRADE, {"instrument_id": STOCK, "event_time_ns": 3, "source_seq": 3}))
        )
        assert restored.top(STOCK) == Top()
