"""The memory of order books, and the small steps on it that order and level books share.

All books of one stream live in a few flat int64 arrays, so that a kernel needs no object per book:

    index        instrument id -> instrument number, open addressing, one word each
    instruments  one row per instrument: trading state, and what is shown while an event is under way
    sides        one row each; side 2 * number holds the bids, 2 * number + 1 the asks
    entries      a side's keys, sorted with the best last, and behind them the levels that they lead to
    levels       one row per price: total size and number of orders. Unused ones form a list
    state        the numbers that belong to none of the above, and the counters

A key is the price for bids and its complement (~price, which cannot overflow) for asks, so the best price has
the largest key on either side and one search serves both. Nearly all changes happen near the best price,
which is why it is last: an insertion there moves few entries or none.

Kernels do not allocate. Python gives them room for a batch beforehand; only the entries of a side that has
to double its block may run out in between, and then the kernel stops before the frame that needs them.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import inlined_kernel, kernel
from feeds.word_kernels import WordVector, load, store

U32 = 0xFFFFFFFF
NONE = -1

# Fibonacci hashing modulo 2**32. The multiplier is below 2**31, so that a product fits int64.
MULTIPLIER = 0x61C88647

# A slot of `index` holds instrument_id | (number + 1) << 32, or 0. Exchanges number instruments densely, so
# the low bits keep their order and a day's busy instruments share few cache lines.
_INDEX_NEAR_BITS = 4

INSTRUMENT_ID = 0
INSTRUMENT_STATE = 1  # the exchange's letter of the trading state, 0 when not known
INSTRUMENT_EVENT_OPEN = 2  # 1 while an event of several level updates is under way
INSTRUMENT_EVENT_NS = 3  # the time of that event
INSTRUMENT_SHOWN = 4  # bid price, bid size, ask price, ask size as they were before that event
INSTRUMENT_WORDS = 8

SIDE_OFFSET = 0  # of its block in `entries`
SIDE_COUNT = 1  # levels in use
SIDE_CAPACITY = 2  # of its block: 0 or a power of two
SIDE_INSTRUMENT_ID = 3
SIDE_WORDS = 4
BID = 0
ASK = 1
LETTER_BUY = ord("B")
LETTER_SELL = ord("S")

# A block of capacity c is 2 * c words of `entries`: c keys, then c levels.
BLOCK_CAPACITY_MIN = 4  # one cache line
BLOCK_CLASSES = 32
GLANCE = 8  # keys compared at once: one cache line. As many words in front of the first block are not used

LEVEL_PRICE = 0  # of an unused level: the next unused one
LEVEL_SIZE = 1
LEVEL_ORDERS = 2  # 0 where the exchange tells levels only
LEVEL_SIDE = 3  # side | instrument_id << 32
LEVEL_WORDS = 4

STATE_ORDERS = 0  # live now
STATE_NEXT_ARRIVAL = 1
STATE_LEVELS = 2  # live now
STATE_LEVELS_USED = 3  # rows of `levels` ever used; row 0 never is, so that 0 can mean "no level"
STATE_LEVELS_UNUSED = 4  # first of the list of levels to use again, 0 for none
STATE_ENTRIES_USED = 5  # words of `entries` ever used
STATE_INSTRUMENTS = 6
STATE_SOURCE = 7  # source_stream_id | source_session << 32 of the frames that these books are made of
STATE_STATUS = 8  # why a kernel stopped early: one of STOPPED_*
STATE_LAST_EVENT_NS = 9
STATE_UNUSED_BLOCKS = 16  # per power of two: first block to use again, 0 for none
STATE_AHEAD = STATE_UNUSED_BLOCKS + BLOCK_CLASSES  # what the order kernel found out about frames to come
AHEAD_ROWS = 64
AHEAD_WORDS = 2
STATE_COUNTERS = STATE_AHEAD + AHEAD_ROWS * AHEAD_WORDS

COUNT_ADDS = STATE_COUNTERS
COUNT_EXECUTES = STATE_COUNTERS + 1
COUNT_CANCELS = STATE_COUNTERS + 2
COUNT_DELETES = STATE_COUNTERS + 3
COUNT_REPLACES = STATE_COUNTERS + 4
COUNT_LEVELS = STATE_COUNTERS + 5
COUNT_QUOTES = STATE_COUNTERS + 6
COUNT_STATUSES = STATE_COUNTERS + 7
COUNT_IGNORED = STATE_COUNTERS + 8
COUNT_UNKNOWN_EXECUTES = STATE_COUNTERS + 9
COUNT_UNKNOWN_CANCELS = STATE_COUNTERS + 10
COUNT_UNKNOWN_DELETES = STATE_COUNTERS + 11
COUNT_UNKNOWN_REPLACES = STATE_COUNTERS + 12
COUNT_UNKNOWN_LEVELS = STATE_COUNTERS + 13
COUNT_DUPLICATE_ORDERS = STATE_COUNTERS + 14
COUNT_OVERSIZED_EXECUTES = STATE_COUNTERS + 15
COUNT_OVERSIZED_CANCELS = STATE_COUNTERS + 16
COUNT_EMPTY_ORDERS = STATE_COUNTERS + 17
COUNT_BAD_SIDES = STATE_COUNTERS + 18
COUNT_INSTRUMENT_MISMATCHES = STATE_COUNTERS + 19
COUNTER_COUNT = 20
STATE_FIELDS = STATE_COUNTERS + COUNTER_COUNT

STOPPED_NOT = 0
STOPPED_ENTRIES = 1  # a side must double its block and `entries` has no room for it
STOPPED_SOURCE = 2  # the frame belongs to another stream or session than the books


@inlined_kernel
def bump(state: WordVector, field: int, step: int) -> None:
    """Add `step` to a number in the state."""
    store(state, field, load(state, field) + step)


@inlined_kernel
def index_slot(instrument_id: int, index_size: int) -> int:
    """Return where the search for `instrument_id` starts; index_size is a power of two."""
    spread = ((instrument_id >> _INDEX_NEAR_BITS) * MULTIPLIER) & U32
    region = (spread ^ (spread >> 16)) << _INDEX_NEAR_BITS
    return (region | (instrument_id & ((1 << _INDEX_NEAR_BITS) - 1))) & (index_size - 1)


@inlined_kernel
def find_instrument(index: WordVector, instrument_id: int) -> int:
    """Return the instrument's number, or NONE."""
    mask = index.size - 1
    slot = index_slot(instrument_id, index.size)
    while True:
        word = load(index, slot)
        if word == 0:
            return NONE
        if word & U32 == instrument_id:
            return (word >> 32) - 1
        slot = (slot + 1) & mask


@kernel
def add_instrument(
    index: WordVector, instruments: WordVector, sides: WordVector, state: WordVector, instrument_id: int
) -> int:
    """Return the number of a new instrument. The caller has made room for it."""
    number = load(state, STATE_INSTRUMENTS)
    store(state, STATE_INSTRUMENTS, number + 1)
    store(instruments, number * INSTRUMENT_WORDS + INSTRUMENT_ID, instrument_id)
    for side in range(2 * number, 2 * number + 2):
        store(sides, side * SIDE_WORDS + SIDE_OFFSET, GLANCE)
        store(sides, side * SIDE_WORDS + SIDE_INSTRUMENT_ID, instrument_id)
    put_in_index(index, instrument_id, number)
    return number


@inlined_kernel
def put_in_index(index: WordVector, instrument_id: int, number: int) -> None:
    slot = index_slot(instrument_id, index.size)
    while load(index, slot) != 0:
        slot = (slot + 1) & (index.size - 1)
    store(index, slot, instrument_id | ((number + 1) << 32))


@kernel
def rebuild_index_kernel(index: WordVector, instruments: WordVector, instrument_count: int) -> int:
    """Fill the empty `index` from `instruments`, after it was made larger."""
    for number in range(instrument_count):
        put_in_index(index, load(instruments, number * INSTRUMENT_WORDS + INSTRUMENT_ID), number)
    return instrument_count


@inlined_kernel
def reserve_entry(entries: WordVector, sides: WordVector, state: WordVector, side: int) -> bool:
    """Return whether `side` has room for one level more, doubling its block if it is full.

    Doing so changes no book, so a kernel may reserve first and stop cleanly when there is no room.
    """
    row = side * SIDE_WORDS
    if load(sides, row + SIDE_COUNT) < load(sides, row + SIDE_CAPACITY):
        return True
    return double_block(entries, sides, state, row)


@inlined_kernel
def block_class(capacity: int) -> int:
    """Return the exponent of a block's capacity."""
    exponent = 0
    while (1 << exponent) < capacity:
        exponent += 1
    return exponent


@kernel
def double_block(entries: WordVector, sides: WordVector, state: WordVector, row: int) -> bool:
    """Move the full side at `row` to a block of twice the size; return whether there was one."""
    count = load(sides, row + SIDE_COUNT)
    new_capacity = max(BLOCK_CAPACITY_MIN, 2 * count)
    unused = STATE_UNUSED_BLOCKS + block_class(new_capacity)
    new_offset = load(state, unused)
    if new_offset != 0:
        store(state, unused, load(entries, new_offset))
    else:
        new_offset = load(state, STATE_ENTRIES_USED)
        if new_offset + 2 * new_capacity > entries.size:
            return False
        store(state, STATE_ENTRIES_USED, new_offset + 2 * new_capacity)
    if count > 0:
        old_offset = load(sides, row + SIDE_OFFSET)
        for position in range(count):
            store(entries, new_offset + position, load(entries, old_offset + position))
            moved = load(entries, old_offset + count + position)
            store(entries, new_offset + new_capacity + position, moved)
        unused = STATE_UNUSED_BLOCKS + block_class(count)
        store(entries, old_offset, load(state, unused))
        store(state, unused, old_offset)
    store(sides, row + SIDE_OFFSET, new_offset)
    store(sides, row + SIDE_CAPACITY, new_capacity)
    return True


@inlined_kernel
def key_of(price: int, side: int) -> int:
    """Return the price as a number that is larger the better the price is for its side."""
    return price ^ -(side & 1)


@inlined_kernel
def count_not_better(entries: WordVector, offset: int, count: int, key: int) -> int:
    """Return how many of a side's keys are not above `key`: where a level of that key is, or belongs.

    The key before the result is `key` itself, or the side has no level of that key. The best few keys are
    compared all at once, without a branch that could be mispredicted; what is in front of a short side's
    block is read too, and left out of the sum.
    """
    better = 0
    first = offset + count - GLANCE
    for step in range(GLANCE):
        better += (load(entries, first + step) > key) & (step >= GLANCE - count)
    if better < GLANCE:
        return count - better
    low = 0
    high = count - GLANCE
    while low < high:
        middle = (low + high) >> 1
        if load(entries, offset + middle) <= key:
            low = middle + 1
        else:
            high = middle
    return low


@inlined_kernel
def find_level(entries: WordVector, sides: WordVector, side: int, price: int) -> int:
    """Return the level of `price` on `side`, or 0."""
    row = side * SIDE_WORDS
    key = key_of(price, side)
    offset = load(sides, row + SIDE_OFFSET)
    position = count_not_better(entries, offset, load(sides, row + SIDE_COUNT), key)
    if position > 0 and load(entries, offset + position - 1) == key:
        return load(entries, offset + load(sides, row + SIDE_CAPACITY) + position - 1)
    return 0


@inlined_kernel
def find_or_add_level(
    entries: WordVector, levels: WordVector, sides: WordVector, state: WordVector, side: int, price: int
) -> int:
    """Return the level of `price` on `side`, a new and empty one where there was none; room is reserved."""
    row = side * SIDE_WORDS
    keys = load(sides, row + SIDE_OFFSET)
    handles = keys + load(sides, row + SIDE_CAPACITY)
    count = load(sides, row + SIDE_COUNT)
    key = key_of(price, side)
    position = count_not_better(entries, keys, count, key)
    if position > 0 and load(entries, keys + position - 1) == key:
        return load(entries, handles + position - 1)
    level = load(state, STATE_LEVELS_UNUSED)
    if level != 0:
        store(state, STATE_LEVELS_UNUSED, load(levels, level * LEVEL_WORDS))
    else:
        level = load(state, STATE_LEVELS_USED)
        store(state, STATE_LEVELS_USED, level + 1)
    bump(state, STATE_LEVELS, 1)
    store(levels, level * LEVEL_WORDS + LEVEL_PRICE, price)
    store(levels, level * LEVEL_WORDS + LEVEL_SIZE, 0)
    store(levels, level * LEVEL_WORDS + LEVEL_ORDERS, 0)
    store(levels, level * LEVEL_WORDS + LEVEL_SIDE, side | (load(sides, row + SIDE_INSTRUMENT_ID) << 32))
    for moved in range(count, position, -1):
        store(entries, keys + moved, load(entries, keys + moved - 1))
        store(entries, handles + moved, load(entries, handles + moved - 1))
    store(entries, keys + position, key)
    store(entries, handles + position, level)
    store(sides, row + SIDE_COUNT, count + 1)
    return level


@inlined_kernel
def remove_level(
    entries: WordVector, levels: WordVector, sides: WordVector, state: WordVector, level: int
) -> None:
    """Take the level out of its side and keep its row for another."""
    side = load(levels, level * LEVEL_WORDS + LEVEL_SIDE) & U32
    row = side * SIDE_WORDS
    keys = load(sides, row + SIDE_OFFSET)
    handles = keys + load(sides, row + SIDE_CAPACITY)
    count = load(sides, row + SIDE_COUNT)
    key = key_of(load(levels, level * LEVEL_WORDS + LEVEL_PRICE), side)
    for moved in range(count_not_better(entries, keys, count, key), count):
        store(entries, keys + moved - 1, load(entries, keys + moved))
        store(entries, handles + moved - 1, load(entries, handles + moved))
    store(sides, row + SIDE_COUNT, count - 1)
    store(levels, level * LEVEL_WORDS + LEVEL_ORDERS, 0)
    store(levels, level * LEVEL_WORDS, load(state, STATE_LEVELS_UNUSED))
    store(state, STATE_LEVELS_UNUSED, level)
    bump(state, STATE_LEVELS, -1)


@inlined_kernel
def best_level(entries: WordVector, sides: WordVector, side: int) -> int:
    """Return the best level of `side`, or 0."""
    row = side * SIDE_WORDS
    count = load(sides, row + SIDE_COUNT)
    if count == 0:
        return 0
    last = load(sides, row + SIDE_OFFSET) + load(sides, row + SIDE_CAPACITY) + count - 1
    return load(entries, last)


def warm_up() -> None:
    index = np.zeros(4, dtype=np.int64)
    table = np.zeros(64, dtype=np.int64)
    add_instrument(index, table, table.copy(), np.zeros(STATE_FIELDS, dtype=np.int64), 1)
    rebuild_index_kernel(np.zeros(4, dtype=np.int64), table, 0)
    find_instrument(index, 1)
    best_level(table, np.zeros(64, dtype=np.int64), 0)
