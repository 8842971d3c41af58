"""Order books of one stream, built from its frames: best prices, depth, and snapshots to continue from.

    books = Books(has_orders=True)
    books.apply(frames)                     # any mixture of schemas, as often as frames arrive
    books.top(instrument_id).bid_price

`has_orders` says what the exchange tells: single orders (ITCH), or price levels and quotes (IEX). The frames
of a stream must come in order and once; that is the middleware's work. What a stream may still contain is
counted and survived: orders that were added before the first frame, executions of more than is left, ids
that are used twice. A new session of the exchange empties the books, because its order ids start over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from feeds import wire
from feeds.book import restore as book_restore
from feeds.book import snapshot as book_snapshot
from feeds.book import store_kernels as k
from feeds.book.level_kernels import apply_levels_kernel, quotes_kernel
from feeds.book.order_kernels import apply_orders_kernel
from feeds.book.store import CHUNK_FRAMES, BookLimits, BookStore
from feeds.errors import ConfigError, FeedError

DEPTH = np.dtype(
    [
        ("bid_price", "<i8"),
        ("bid_size", "<i8"),
        ("bid_orders", "<i8"),
        ("ask_price", "<i8"),
        ("ask_size", "<i8"),
        ("ask_orders", "<i8"),
    ]
)


class Top(NamedTuple):
    """The best prices of a book. A size of 0 says that the side is empty; orders are 0 in level books."""

    bid_price: int = 0
    bid_size: int = 0
    bid_orders: int = 0
    ask_price: int = 0
    ask_size: int = 0
    ask_orders: int = 0


@dataclass(frozen=True, slots=True)
class BookCounters:
    """What the books were given and what was odd about it, since they were made."""

    adds: int = 0
    executes: int = 0
    cancels: int = 0
    deletes: int = 0
    replaces: int = 0
    levels: int = 0
    quotes: int = 0
    statuses: int = 0
    ignored: int = 0  # frames that say nothing about a book
    unknown_executes: int = 0  # of orders that are older than the first frame, or never were
    unknown_cancels: int = 0
    unknown_deletes: int = 0
    unknown_replaces: int = 0
    unknown_levels: int = 0  # removals of levels that were not there
    duplicate_orders: int = 0  # an id that was live already; the newer order took its place
    oversized_executes: int = 0  # of more than was left; the order went, no more than that
    oversized_cancels: int = 0
    empty_orders: int = 0  # orders of size 0: not put into the book
    bad_sides: int = 0  # neither buy nor sell
    instrument_mismatches: int = 0  # a frame named another instrument than its order has; the order's counts
    sessions: int = 0  # how many sessions of the exchange the frames came from
    before_snapshot: int = 0  # frames that a restored snapshot had in it already

    @property
    def unknown_orders(self) -> int:
        return self.unknown_executes + self.unknown_cancels + self.unknown_deletes + self.unknown_replaces


assert [field.name for field in fields(BookCounters)][k.COUNTER_COUNT :] == ["sessions", "before_snapshot"]


class Books:
    """All order books of one stream."""

    def __init__(
        self, has_orders: bool = True, *, limits: BookLimits | None = None, orders_expected: int = 0
    ) -> None:
        self.has_orders = has_orders
        self._store = BookStore(has_orders, limits or BookLimits(), orders_expected)
        self._source: int | None = None
        self._sessions = 0
        self._before_snapshot = 0
        self._next_source_seq = 0
        self._resume: dict[int, int] = {}  # instrument -> first source_seq that its restored book lacks

    @property
    def counters(self) -> BookCounters:
        counted = [*self._store.state[k.STATE_COUNTERS :].tolist(), self._sessions, self._before_snapshot]
        names = (field.name for field in fields(BookCounters))
        return BookCounters(**dict(zip(names, counted, strict=True)))

    @property
    def order_count(self) -> int:
        """Live orders in all books."""
        return self._store.order_count

    @property
    def level_count(self) -> int:
        """Price levels in all books."""
        return self._store.level_count

    @property
    def memory_bytes(self) -> int:
        return self._store.memory_bytes

    @property
    def source(self) -> tuple[int, int] | None:
        """The stream id and session that the books belong to, or None before the first frame."""
        return None if self._source is None else (self._source & k.U32, (self._source >> 32) & k.U32)

    @property
    def next_source_seq(self) -> int:
        """The first source message that the books have not seen whole; 0 before the first frame."""
        return self._next_source_seq

    def apply(self, frames: Any) -> None:
        """Bring the books up to date with `frames` (anything that wire.view takes)."""
        words = wire.words(frames)
        if self._resume:
            words = self._without_restored(words)
        self._apply_words(words)
        for row in range(len(words) - 1, -1, -1):
            if (int(words[row, 0]) >> 40) & 0xFF == wire.Kind.DATA:
                is_whole = bool((int(words[row, 0]) >> 48) & wire.Flag.LAST_PART)
                self._next_source_seq = (int(words[row, 2]) & _U64) + is_whole
                break

    def _apply_words(self, words: wire.WordArray) -> None:
        store = self._store
        if self._source is None:
            is_data = (words[:, 0] >> 40) & 0xFF == wire.Kind.DATA
            if not is_data.any():
                store.state[k.COUNT_IGNORED] += len(words)
                return
            self._follow_source(int(words[int(is_data.argmax()), 1]))
        row, end = 0, len(words)
        while row < end:
            store.check_limits()
            chunk_end = min(row + CHUNK_FRAMES, end)
            store.make_room(chunk_end - row)
            tables = (store.levels, store.entries, store.sides, store.instruments, store.index, store.state)
            if self.has_orders:
                row = apply_orders_kernel(words, row, chunk_end, store.orders, store.arrivals, *tables)
            else:
                row = apply_levels_kernel(words, row, chunk_end, *tables)
            status = store.state[k.STATE_STATUS]
            if status == k.STOPPED_ENTRIES:
                store.make_entry_room()
            elif status == k.STOPPED_SOURCE:
                self._follow_source(int(words[row, 1]))
        store.check_limits()

    def _follow_source(self, source: int) -> None:
        """Take the stream and session that frames now come from: the first, or a new session of the same."""
        if self._source is not None and (source ^ self._source) & k.U32:
            raise FeedError(
                f"these books belong to stream {self._source & k.U32}, "
                f"a frame came from stream {source & k.U32}: make one Books for each stream"
            )
        if self._source is not None:
            self.clear()
        self._source = source
        self._sessions += 1
        self._store.state[k.STATE_SOURCE] = source

    def clear(self) -> None:
        """Forget all books and what stream they belong to; counters go on."""
        self._store.clear()
        self._source = None
        self._next_source_seq = 0
        self._resume.clear()

    def instruments(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the ids of all instruments that have a book, in the order of their first frames."""
        rows = self._store.instruments.reshape(-1, k.INSTRUMENT_WORDS)
        return rows[: self._store.instrument_count, k.INSTRUMENT_ID].astype(np.uint32)

    def trading_state(self, instrument_id: int) -> str:
        """Return the exchange's letter for the trading state ("T", "H", ...), or "" while it is not known."""
        number = self._store.number_of(instrument_id)
        if number is None:
            return ""
        letter = int(self._store.instruments[number * k.INSTRUMENT_WORDS + k.INSTRUMENT_STATE])
        return chr(letter) if letter else ""

    def is_settled(self, instrument_id: int) -> bool:
        """Return whether no event is under way, so that `depth` agrees with `top`."""
        number = self._store.number_of(instrument_id)
        return number is None or self._is_settled(number)

    def _is_settled(self, number: int) -> bool:
        return not self._store.instruments[number * k.INSTRUMENT_WORDS + k.INSTRUMENT_EVENT_OPEN]

    def top(self, instrument_id: int) -> Top:
        """Return the best prices; while an event of several level updates goes on, those from before it."""
        store = self._store
        number = store.number_of(instrument_id)
        if number is None:
            return Top()
        if not self._is_settled(number):
            first = number * k.INSTRUMENT_WORDS + k.INSTRUMENT_SHOWN
            bid_price, bid_size, ask_price, ask_size = (
                int(word) for word in store.instruments[first : first + 4]
            )
            return Top(bid_price, bid_size, 0, ask_price, ask_size, 0)
        values: list[int] = []
        for side in (2 * number + k.BID, 2 * number + k.ASK):
            best = int(k.best_level(store.entries, store.sides, side)) * k.LEVEL_WORDS
            values += (int(word) for word in store.levels[best : best + k.LEVEL_SIDE])
        return Top(*values)

    def depth(self, instrument_id: int, levels: int = 10) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return up to `levels` rows of DEPTH, best prices first; the shorter side ends in rows of zeros.

        It is the book as it stands, also in the middle of an event.
        """
        if levels < 1:
            raise ConfigError(f"levels must be at least 1, was {levels}")
        number = self._store.number_of(instrument_id)
        if number is None:
            return np.zeros(0, dtype=DEPTH)
        bids, asks = (book_snapshot.side_levels(self._store, 2 * number + side) for side in (k.BID, k.ASK))
        rows = np.zeros(min(levels, max(len(bids), len(asks))), dtype=DEPTH)
        for prefix, side_rows in (("bid", bids[:levels]), ("ask", asks[:levels])):
            rows[f"{prefix}_price"][: len(side_rows)] = side_rows[:, k.LEVEL_PRICE]
            rows[f"{prefix}_size"][: len(side_rows)] = side_rows[:, k.LEVEL_SIZE]
            rows[f"{prefix}_orders"][: len(side_rows)] = side_rows[:, k.LEVEL_ORDERS]
        return rows

    def tops(
        self,
        instrument_ids: Sequence[int] | np.ndarray[Any, Any] | None = None,
        *,
        first_message_seq: int = 0,
        publish_time_ns: int = 0,
        epoch: int = 0,
    ) -> wire.FrameArray:
        """Return a QUOTE frame for each instrument (all that have a book, if none are named).

        Sizes beyond 32 bits are told as 2**32 - 1. An instrument without a book has an empty quote; one
        whose trading state is known and is not trading is marked NOT_AVAILABLE. The frames' time is that of
        the last frame applied, their source_seq the last source message in the books.
        """
        ids = self.instruments() if instrument_ids is None else np.asarray(instrument_ids)
        if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > k.U32)):
            raise ConfigError(
                f"instrument_ids must be a list of ids from 0 to {k.U32}, was {instrument_ids!r}"
            )
        store = self._store
        frames = wire.empty(ids.size)
        quotes_kernel(
            ids.astype(np.int64),
            store.levels,
            store.entries,
            store.sides,
            store.instruments,
            store.index,
            store.state,
            max(0, self._next_source_seq - 1),
            first_message_seq,
            publish_time_ns,
            epoch,
            wire.words(frames),
        )
        return frames.view(wire.FRAMES[wire.Schema.QUOTE])

    def snapshot(
        self,
        instrument_id: int,
        next_source_seq: int | None = None,
        *,
        message_seq: int = 0,
        publish_time_ns: int = 0,
        epoch: int = 0,
    ) -> wire.FrameArray:
        """Return the frames from which another book of this instrument can continue at `next_source_seq`.

        It defaults to the message after the last one applied. Finding one instrument's orders reads the whole
        table of orders; for many instruments take `snapshots`, which reads it once.
        """
        made = self.snapshots(
            [instrument_id],
            next_source_seq,
            message_seq=message_seq,
            publish_time_ns=publish_time_ns,
            epoch=epoch,
        )
        return next(made)

    def snapshots(
        self,
        instrument_ids: Sequence[int] | np.ndarray[Any, Any] | None = None,
        next_source_seq: int | None = None,
        *,
        message_seq: int = 0,
        publish_time_ns: int = 0,
        epoch: int = 0,
    ) -> Iterator[wire.FrameArray]:
        """Return an iterator over snapshots of the given instruments, or of all that have a book.

        All show the books as they are at this call, whatever is applied while they are taken out.
        """
        if self._source is None:
            raise FeedError("books that no frame was applied to belong to no stream and have no snapshot")
        position = book_snapshot.Position(
            source=self._source,
            next_source_seq=self._next_source_seq if next_source_seq is None else next_source_seq,
            message_seq=message_seq,
            event_time_ns=int(self._store.state[k.STATE_LAST_EVENT_NS]),
            publish_time_ns=publish_time_ns,
            epoch=epoch,
        )
        ids = [int(each) for each in (self.instruments() if instrument_ids is None else instrument_ids)]
        starts = self._resume if next_source_seq is None else {}
        return book_snapshot.take(self._store, ids, position, starts)

    def restore(self, frames: Any) -> int:
        """Take the books of one or several snapshots in place of what was there; return where to go on.

        Nothing is changed unless every snapshot is whole (SnapshotError says what is missing or wrong) and
        they all fit beside the books that stay (LimitError says which limit is in the way).
        Frames that an instrument's snapshot has in it already are left out by `apply`, so the live stream
        may begin anywhere before the result: the first source message that not all of these books have.
        """
        snapshots = book_restore.read(frames, self.has_orders)
        starts_over = snapshots[0].source != self._source
        book_restore.check_fit(self._store, snapshots, starts_over)
        if starts_over:
            self._follow_source(snapshots[0].source)
        counters = self._store.state[k.STATE_COUNTERS :].copy()
        self._apply_words(wire.words(book_restore.removals(self._store, snapshots, self.has_orders)))
        for snapshot in snapshots:
            self._apply_words(wire.words(snapshot.additions))
            book_restore.finish(self._store, snapshot)
            self._resume[snapshot.instrument_id] = snapshot.next_source_seq
        self._store.state[k.STATE_COUNTERS :] = counters
        self._next_source_seq = max(self._next_source_seq, *(each.next_source_seq for each in snapshots))
        return min(snapshot.next_source_seq for snapshot in snapshots)

    def _without_restored(self, words: wire.WordArray) -> wire.WordArray:
        """Return the frames that the restored books do not have in them yet."""
        is_ours = words[:, 1] == self._source
        sequences = words[:, 2]
        if is_ours.any() and sequences[is_ours].min() >= max(self._resume.values()):
            self._resume.clear()  # the live stream has passed every snapshot
            return words
        ids = np.fromiter(self._resume, dtype=np.int64, count=len(self._resume))
        starts = np.fromiter(self._resume.values(), dtype=np.int64, count=len(self._resume))
        order = np.argsort(ids)
        ids, starts = ids[order], starts[order]
        frame_ids = words[:, 6] & k.U32
        places = np.minimum(np.searchsorted(ids, frame_ids), ids.size - 1)
        is_old = is_ours & (ids[places] == frame_ids) & (sequences < starts[places])
        self._before_snapshot += int(is_old.sum())
        return np.ascontiguousarray(words[~is_old])


_U64 = (1 << 64) - 1
