"""The arrays of book_store_kernels: who owns them, how they grow, and where they must not."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from feeds.book import order_kernels as ok
from feeds.book import store_kernels as k
from feeds.errors import ConfigError, LimitError
from feeds.word_kernels import WordVector

CHUNK_FRAMES = 8192  # room is made, and limits are looked at, for so many frames at a time

# At a quarter full, the orders of a simulated day were 0.12 slots from where their search starts, on average;
# at half full 0.4, and the day took a tenth longer, because removals had to move more orders.
_SLOTS_PER_ORDER = 4
_SLOTS_MIN = 1 << 15
_SLOTS_NONE = 1 << ok.REGION_BITS  # of books without orders: the table stays empty
_LEVELS_MIN = 1 << 12
_INSTRUMENTS_MIN = 1 << 10
_ENTRIES_MIN = 1 << 15
_COUNT_LIMIT = 1 << 30  # levels have 31 bits beside an order's size; a table of orders has 32-bit hashes


@dataclass(frozen=True, slots=True)
class BookLimits:
    """How much the books of one stream may hold. Memory is taken as needed: 96 to 192 bytes an order."""

    orders_max: int = 1 << 24
    levels_max: int = 1 << 22
    instruments_max: int = 1 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 1 <= value <= _COUNT_LIMIT:
                raise ConfigError(f"{field.name} must be 1 to {_COUNT_LIMIT}, was {value}")


class BookStore:
    """Owns the memory of all books of one stream, and grows it between batches."""

    def __init__(self, has_orders: bool, limits: BookLimits, orders_expected: int = 0) -> None:
        if not 0 <= orders_expected <= limits.orders_max:
            raise ConfigError(
                f"orders_expected must be 0 to orders_max {limits.orders_max}, was {orders_expected}"
            )
        self.limits = limits
        expected = max(_SLOTS_MIN, _power_of_two(_SLOTS_PER_ORDER * orders_expected))
        slot_count = expected if has_orders else _SLOTS_NONE
        self.orders = _zeros(slot_count * ok.ORDER_WORDS)
        self.arrivals = _zeros(slot_count)
        self.levels = _zeros(_LEVELS_MIN * k.LEVEL_WORDS)
        self.entries = _zeros(_ENTRIES_MIN)
        self.sides = _zeros(_INSTRUMENTS_MIN * 2 * k.SIDE_WORDS)
        self.instruments = _zeros(_INSTRUMENTS_MIN * k.INSTRUMENT_WORDS)
        self.index = _zeros(_INSTRUMENTS_MIN * 2)
        self.state = _zeros(k.STATE_FIELDS)
        self._room_frames = 0  # that the tables have room for, whatever they are
        self._reset_state()

    def _reset_state(self) -> None:
        self.state[k.STATE_LEVELS_USED] = 1
        self.state[k.STATE_ENTRIES_USED] = k.GLANCE

    def clear(self) -> None:
        """Forget every book, and keep the counters and the memory."""
        counters = self.state[k.STATE_COUNTERS :].copy()
        for array in (*self._tables(), self.state):
            array[:] = 0
        self._reset_state()
        self.state[k.STATE_COUNTERS :] = counters

    @property
    def order_count(self) -> int:
        return int(self.state[k.STATE_ORDERS])

    @property
    def level_count(self) -> int:
        return int(self.state[k.STATE_LEVELS])

    @property
    def instrument_count(self) -> int:
        return int(self.state[k.STATE_INSTRUMENTS])

    def _tables(self) -> tuple[WordVector, ...]:
        return (
            self.orders,
            self.arrivals,
            self.levels,
            self.entries,
            self.sides,
            self.instruments,
            self.index,
        )

    @property
    def memory_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables())

    def number_of(self, instrument_id: int) -> int | None:
        """Return the number of an instrument that has a book, or None."""
        if not 0 <= instrument_id <= k.U32:
            raise ConfigError(f"instrument_id must be 0 to {k.U32}, was {instrument_id}")
        number = k.find_instrument(self.index, instrument_id)
        return None if number == k.NONE else int(number)

    def check_limits(self) -> None:
        """Raise a LimitError when the books have outgrown what they may hold."""
        limits, state = self.limits, self.state
        if (
            state[k.STATE_ORDERS] <= limits.orders_max
            and state[k.STATE_LEVELS] <= limits.levels_max
            and state[k.STATE_INSTRUMENTS] <= limits.instruments_max
        ):
            return
        for what, found, setting in (
            ("live orders", self.order_count, "orders_max"),
            ("price levels", self.level_count, "levels_max"),
            ("instruments", self.instrument_count, "instruments_max"),
        ):
            allowed = getattr(limits, setting)
            if found > allowed:
                raise LimitError(f"books hold {found} {what}, more than {setting} = {allowed} allows")

    def make_room(self, frame_count: int) -> None:
        """Make sure that `frame_count` frames find room, each for one order, two levels and an instrument.

        Room is made for CHUNK_FRAMES at once, so that small batches seldom look further than this.
        """
        assert frame_count <= CHUNK_FRAMES
        self._room_frames -= frame_count
        if self._room_frames >= 0:
            return
        self._room_frames = CHUNK_FRAMES - frame_count
        self._make_order_room(self.order_count + CHUNK_FRAMES)
        level_rows = int(self.state[k.STATE_LEVELS_USED]) + 2 * CHUNK_FRAMES
        self.levels = _grown(self.levels, level_rows * k.LEVEL_WORDS)
        instrument_rows = self.instrument_count + CHUNK_FRAMES
        self.instruments = _grown(self.instruments, instrument_rows * k.INSTRUMENT_WORDS)
        self.sides = _grown(self.sides, instrument_rows * 2 * k.SIDE_WORDS)
        if self.index.size < 2 * instrument_rows:
            self.index = _zeros(_power_of_two(2 * instrument_rows))
            k.rebuild_index_kernel(self.index, self.instruments, self.instrument_count)

    def _make_order_room(self, order_count: int) -> None:
        old_orders, old_arrivals = self.orders, self.arrivals
        if self.arrivals.size < _SLOTS_PER_ORDER * order_count and self.arrivals.size > _SLOTS_NONE:
            slot_count = _power_of_two(_SLOTS_PER_ORDER * order_count)
            self.orders = _zeros(slot_count * ok.ORDER_WORDS)
            self.arrivals = _zeros(slot_count)
            moved = ok.rehash_orders_kernel(old_orders, old_arrivals, self.orders, self.arrivals)
            assert moved == self.order_count, f"{self.order_count} orders became {moved} as their table grew"

    def make_entry_room(self) -> None:
        """Give a side that must double its block the room to do so."""
        words_max = 16 * (self.limits.levels_max + self.limits.instruments_max + CHUNK_FRAMES)
        if self.entries.size >= words_max:
            raise LimitError(
                f"the sorted prices of all books take {self.entries.size} words, "
                f"more than levels_max = {self.limits.levels_max} allows"
            )
        self.entries = _grown(self.entries, 2 * self.entries.size)


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def _zeros(word_count: int) -> WordVector:
    """Return zeroed words that start on a cache line, so that no row of a table straddles two."""
    raw = np.zeros(word_count + 8, dtype=np.int64)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + word_count]


def _grown(array: WordVector, at_least: int) -> WordVector:
    if array.size >= at_least:
        return array
    larger = _zeros(_power_of_two(at_least))
    larger[: array.size] = array
    return larger
