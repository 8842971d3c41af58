"""Order books from single orders: adds, executions, cancels, deletes and replaces, a batch per call.

Orders live in one hash table for the whole stream and are found by order id alone: an exchange's ids are
unique in its session, and all messages but the add name nothing else. Linear probing in a table that is never
crowded; a removal moves the orders behind it back, so there are no tombstones and a search ends at the
first empty slot. Exchanges count their ids up and young orders are the busiest, so neighbouring ids stay
neighbours in the table, and the orders of the last moments are in the caches.

The older orders are not, nor are most of the levels. So a frame is visited four times, by distances that
give memory time to answer: to ask for its order's slot, then for what that slot points to, then for the best
prices of its side; and only then to be applied.
"""

from __future__ import annotations

import numpy as np

from feeds.book.store_kernels import (
    AHEAD_ROWS,
    AHEAD_WORDS,
    ASK,
    BID,
    COUNT_ADDS,
    COUNT_BAD_SIDES,
    COUNT_CANCELS,
    COUNT_DELETES,
    COUNT_DUPLICATE_ORDERS,
    COUNT_EMPTY_ORDERS,
    COUNT_EXECUTES,
    COUNT_IGNORED,
    COUNT_INSTRUMENT_MISMATCHES,
    COUNT_OVERSIZED_CANCELS,
    COUNT_OVERSIZED_EXECUTES,
    COUNT_REPLACES,
    COUNT_STATUSES,
    COUNT_UNKNOWN_CANCELS,
    COUNT_UNKNOWN_DELETES,
    COUNT_UNKNOWN_EXECUTES,
    COUNT_UNKNOWN_REPLACES,
    GLANCE,
    INSTRUMENT_STATE,
    INSTRUMENT_WORDS,
    LETTER_BUY,
    LETTER_SELL,
    LEVEL_ORDERS,
    LEVEL_PRICE,
    LEVEL_SIDE,
    LEVEL_SIZE,
    LEVEL_WORDS,
    MULTIPLIER,
    NONE,
    SIDE_CAPACITY,
    SIDE_COUNT,
    SIDE_OFFSET,
    SIDE_WORDS,
    STATE_AHEAD,
    STATE_ENTRIES_USED,
    STATE_FIELDS,
    STATE_LAST_EVENT_NS,
    STATE_LEVELS_USED,
    STATE_NEXT_ARRIVAL,
    STATE_ORDERS,
    STATE_SOURCE,
    STATE_STATUS,
    STOPPED_ENTRIES,
    STOPPED_NOT,
    STOPPED_SOURCE,
    U32,
    add_instrument,
    bump,
    find_instrument,
    find_level,
    find_or_add_level,
    remove_level,
    reserve_entry,
)
from feeds.compiled import inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, PAYLOAD_WORD, StatusType, WordArray
from feeds.wire_kernels import (
    ORDER_ADD,
    ORDER_CANCEL,
    ORDER_DELETE,
    ORDER_EXECUTE,
    ORDER_REPLACE,
    STATUS,
)
from feeds.word_kernels import WordVector, frame_word, load, prefetch, store

ORDER_ID = 0
ORDER_SIZE_LEVEL = 1  # size | level << 32; 0 is an empty slot: a live order has shares left
ORDER_WORDS = 2

FOUND_SIDE = 0
FOUND_PRICE = 1
FOUND_ARRIVAL = 2
FOUND_ID = 3
FOUND_SIZE = 4
FOUND_WORDS = 5

STATUS_TRADING = int(StatusType.TRADING)

# Ids that differ only in their last REGION_BITS bits stay together, in order: two cache lines.
REGION_BITS = 3
REGION_MASK = (1 << REGION_BITS) - 1

# How many frames ahead each visit is.
_FAR = 36
_MIDDLE = 24
_NEAR = 12
assert _FAR < AHEAD_ROWS

_W_SOURCE = 1
_W_EVENT_NS = 4
_W_INSTRUMENT = 6
_P0 = PAYLOAD_WORD
_P1 = PAYLOAD_WORD + 1
_P2 = PAYLOAD_WORD + 2
_P3 = PAYLOAD_WORD + 3


@inlined_kernel
def table_shift(slot_count: int) -> int:
    """Return the shift that makes a 32-bit hash the number of a region; slot_count is a power of two."""
    shift = 32 + REGION_BITS
    while slot_count > 1:
        slot_count >>= 1
        shift -= 1
    return shift


@inlined_kernel
def home_slot(order_id: int, shift: int) -> int:
    """Return where the search for `order_id` starts."""
    region = order_id >> REGION_BITS
    folded = (region ^ (region >> 32)) & U32
    place = ((folded * MULTIPLIER) & U32) >> shift
    return (place << REGION_BITS) | (order_id & REGION_MASK)


@inlined_kernel
def find_order(orders: WordVector, order_id: int, mask: int, shift: int) -> int:
    """Return the order's slot, or NONE."""
    slot = home_slot(order_id, shift)
    while load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) != 0:
        if load(orders, slot * ORDER_WORDS + ORDER_ID) == order_id:
            return slot
        slot = (slot + 1) & mask
    return NONE


@inlined_kernel
def free_slot(orders: WordVector, arrivals: WordVector, slot: int, mask: int, shift: int) -> None:
    """Empty a slot, moving back what was pushed on by it, so that every search still ends where it should."""
    hole = slot
    probe = (slot + 1) & mask
    while load(orders, probe * ORDER_WORDS + ORDER_SIZE_LEVEL) != 0:
        home = home_slot(load(orders, probe * ORDER_WORDS + ORDER_ID), shift)
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            store(orders, hole * ORDER_WORDS + ORDER_ID, load(orders, probe * ORDER_WORDS + ORDER_ID))
            kept = load(orders, probe * ORDER_WORDS + ORDER_SIZE_LEVEL)
            store(orders, hole * ORDER_WORDS + ORDER_SIZE_LEVEL, kept)
            store(arrivals, hole, load(arrivals, probe))
            hole = probe
        probe = (probe + 1) & mask
    store(orders, hole * ORDER_WORDS + ORDER_SIZE_LEVEL, 0)


@inlined_kernel
def remove_order(
    orders: WordVector,
    arrivals: WordVector,
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    state: WordVector,
    slot: int,
    mask: int,
    shift: int,
) -> None:
    """Take the whole order out of its level, and the level out of its side when it was the last."""
    size_and_level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL)
    level = size_and_level >> 32
    left = load(levels, level * LEVEL_WORDS + LEVEL_ORDERS) - 1
    if left == 0:
        remove_level(entries, levels, sides, state, level)
    else:
        store(levels, level * LEVEL_WORDS + LEVEL_ORDERS, left)
        bump(levels, level * LEVEL_WORDS + LEVEL_SIZE, -(size_and_level & U32))
    free_slot(orders, arrivals, slot, mask, shift)
    bump(state, STATE_ORDERS, -1)


@inlined_kernel
def put_order(
    orders: WordVector,
    arrivals: WordVector,
    levels: WordVector,
    state: WordVector,
    order_id: int,
    size: int,
    level: int,
    mask: int,
    shift: int,
) -> None:
    """Put an order that is not in the table at the end of its level's queue."""
    slot = home_slot(order_id, shift)
    while load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) != 0:
        slot = (slot + 1) & mask
    bump(levels, level * LEVEL_WORDS + LEVEL_SIZE, size)
    bump(levels, level * LEVEL_WORDS + LEVEL_ORDERS, 1)
    store(orders, slot * ORDER_WORDS + ORDER_ID, order_id)
    store(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL, size | (level << 32))
    store(arrivals, slot, load(state, STATE_NEXT_ARRIVAL))
    bump(state, STATE_NEXT_ARRIVAL, 1)
    bump(state, STATE_ORDERS, 1)


@inlined_kernel
def ask_for_best(entries: WordVector, sides: WordVector, side: int) -> None:
    """Ask for the keys of a side's best prices, and for the levels they lead to."""
    row = side * SIDE_WORDS
    last = load(sides, row + SIDE_OFFSET) + load(sides, row + SIDE_COUNT) - 1
    prefetch(entries, last)
    prefetch(entries, last + 1 - GLANCE)
    prefetch(entries, last + load(sides, row + SIDE_CAPACITY))


@inlined_kernel
def schema_at(words: WordArray, row: int) -> int:
    return (frame_word(words, row, _W_INSTRUMENT) >> 32) & 0xFFFF


@inlined_kernel
def side_of(number: int, letter: int) -> int:
    return 2 * number + (ASK if letter == LETTER_SELL else BID)


@kernel
def apply_orders_kernel(
    words: WordArray,
    begin: int,
    end: int,
    orders: WordVector,
    arrivals: WordVector,
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    instruments: WordVector,
    index: WordVector,
    state: WordVector,
) -> int:
    """Apply the frames [begin, end) and return how far it came: end, or the frame that STATE_STATUS is about.

    The caller has made room for one order, level and instrument more per frame; entries may run out.
    """
    mask = arrivals.size - 1
    shift = table_shift(arrivals.size)
    source = load(state, STATE_SOURCE)
    store(state, STATE_STATUS, STOPPED_NOT)
    for row in range(begin - _FAR, end):
        visited = row + _FAR
        if visited < end:
            ahead = STATE_AHEAD + (visited & (AHEAD_ROWS - 1)) * AHEAD_WORDS
            prefetch(orders, home_slot(frame_word(words, visited, _P0), shift) * ORDER_WORDS)
            if schema_at(words, visited) == ORDER_REPLACE:
                prefetch(orders, home_slot(frame_word(words, visited, _P1), shift) * ORDER_WORDS)
            number = find_instrument(index, frame_word(words, visited, _W_INSTRUMENT) & U32)
            store(state, ahead, number)
            if number != NONE:
                prefetch(sides, 2 * number * SIDE_WORDS)

        visited = row + _MIDDLE
        if begin <= visited < end:
            ahead = STATE_AHEAD + (visited & (AHEAD_ROWS - 1)) * AHEAD_WORDS
            schema = schema_at(words, visited)
            if schema == ORDER_ADD:
                number = load(state, ahead)
                if number != NONE:
                    letter = frame_word(words, visited, _P3) & 0xFF
                    ask_for_best(entries, sides, side_of(number, letter))
            elif ORDER_EXECUTE <= schema <= ORDER_REPLACE:
                slot = find_order(orders, frame_word(words, visited, _P0), mask, shift)
                store(state, ahead + 1, slot)
                if slot != NONE:
                    level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) >> 32
                    prefetch(levels, level * LEVEL_WORDS)

        visited = row + _NEAR
        if begin <= visited < end:
            ahead = STATE_AHEAD + (visited & (AHEAD_ROWS - 1)) * AHEAD_WORDS
            schema = schema_at(words, visited)
            if schema == ORDER_ADD:
                number = load(state, ahead)
                level = 0
                if number != NONE:
                    letter = frame_word(words, visited, _P3) & 0xFF
                    level = find_level(
                        entries, sides, side_of(number, letter), frame_word(words, visited, _P1)
                    )
                    prefetch(levels, level * LEVEL_WORDS)
                store(state, ahead + 1, level)
            elif ORDER_EXECUTE <= schema <= ORDER_REPLACE:
                slot = load(state, ahead + 1)
                if slot != NONE:
                    level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) >> 32
                    if schema == ORDER_REPLACE or load(levels, level * LEVEL_WORDS + LEVEL_ORDERS) == 1:
                        ask_for_best(entries, sides, load(levels, level * LEVEL_WORDS + LEVEL_SIDE) & U32)

        if row < begin:
            continue
        schema = schema_at(words, row)
        if not (ORDER_ADD <= schema <= ORDER_REPLACE or schema == STATUS):
            bump(state, COUNT_IGNORED, 1)
            continue
        if frame_word(words, row, _W_SOURCE) != source:
            store(state, STATE_STATUS, STOPPED_SOURCE)
            return row
        store(state, STATE_LAST_EVENT_NS, frame_word(words, row, _W_EVENT_NS))
        ahead = STATE_AHEAD + (row & (AHEAD_ROWS - 1)) * AHEAD_WORDS
        instrument_id = frame_word(words, row, _W_INSTRUMENT) & U32

        leaving = NONE  # the slot of an order to be removed
        joining = False  # whether an order is to be added, and which:
        new_id = 0
        new_price = 0
        new_size = 0
        new_side = 0
        new_level = 0

        if schema == ORDER_ADD:
            new_size = frame_word(words, row, _P2) & U32
            letter = frame_word(words, row, _P3) & 0xFF
            if new_size == 0 or (letter != LETTER_BUY and letter != LETTER_SELL):
                bump(state, COUNT_ADDS, 1)
                bump(state, COUNT_EMPTY_ORDERS if new_size == 0 else COUNT_BAD_SIDES, 1)
                continue
            number = load(state, ahead)
            if number == NONE:
                number = find_instrument(index, instrument_id)
                if number == NONE:
                    number = add_instrument(index, instruments, sides, state, instrument_id)
            new_side = side_of(number, letter)
            if not reserve_entry(entries, sides, state, new_side):
                store(state, STATE_STATUS, STOPPED_ENTRIES)
                return row
            bump(state, COUNT_ADDS, 1)
            joining = True
            new_id = frame_word(words, row, _P0)
            new_price = frame_word(words, row, _P1)
            new_level = load(state, ahead + 1)
            leaving = find_order(orders, new_id, mask, shift)
            if leaving != NONE:
                bump(state, COUNT_DUPLICATE_ORDERS, 1)

        elif schema == STATUS:
            if frame_word(words, row, _P0) & 0xFF != STATUS_TRADING:
                bump(state, COUNT_IGNORED, 1)
                continue
            number = find_instrument(index, instrument_id)
            if number == NONE:
                number = add_instrument(index, instruments, sides, state, instrument_id)
            letter = (frame_word(words, row, _P0) >> 8) & 0xFF
            store(instruments, number * INSTRUMENT_WORDS + INSTRUMENT_STATE, letter)
            bump(state, COUNT_STATUSES, 1)
            continue

        else:
            order_id = frame_word(words, row, _P0)
            slot = load(state, ahead + 1)
            if (
                slot == NONE
                or load(orders, slot * ORDER_WORDS + ORDER_ID) != order_id
                or load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) == 0
            ):
                slot = find_order(orders, order_id, mask, shift)
            kind = schema - ORDER_EXECUTE  # the counters of the four kinds are in the order of their schemas
            if slot == NONE:
                bump(state, COUNT_EXECUTES + kind, 1)
                bump(state, COUNT_UNKNOWN_EXECUTES + kind, 1)
                continue
            size_and_level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL)
            level = size_and_level >> 32
            side_and_instrument = load(levels, level * LEVEL_WORDS + LEVEL_SIDE)
            new_size = frame_word(words, row, _P3) & U32
            if schema == ORDER_REPLACE:
                new_side = side_and_instrument & U32
                if not reserve_entry(entries, sides, state, new_side):
                    store(state, STATE_STATUS, STOPPED_ENTRIES)
                    return row
                leaving = slot
                joining = new_size > 0
                new_id = frame_word(words, row, _P1)
                new_price = frame_word(words, row, _P2)
                if not joining:
                    bump(state, COUNT_EMPTY_ORDERS, 1)
            else:
                held = size_and_level & U32
                if schema == ORDER_DELETE or new_size >= held:
                    leaving = slot
                    if schema != ORDER_DELETE and new_size > held:
                        bump(state, COUNT_OVERSIZED_EXECUTES + kind, 1)
                else:
                    store(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL, size_and_level - new_size)
                    bump(levels, level * LEVEL_WORDS + LEVEL_SIZE, -new_size)
            bump(state, COUNT_EXECUTES + kind, 1)
            if (side_and_instrument >> 32) & U32 != instrument_id:
                bump(state, COUNT_INSTRUMENT_MISMATCHES, 1)

        while leaving != NONE:
            remove_order(orders, arrivals, levels, entries, sides, state, leaving, mask, shift)
            leaving = NONE
            if joining and schema == ORDER_REPLACE:  # the newest word on an id counts: what has it goes
                leaving = find_order(orders, new_id, mask, shift)
                if leaving != NONE:
                    bump(state, COUNT_DUPLICATE_ORDERS, 1)
        if joining:
            if (
                new_level == 0
                or load(levels, new_level * LEVEL_WORDS + LEVEL_ORDERS) == 0
                or load(levels, new_level * LEVEL_WORDS + LEVEL_PRICE) != new_price
                or load(levels, new_level * LEVEL_WORDS + LEVEL_SIDE) & U32 != new_side
            ):
                new_level = find_or_add_level(entries, levels, sides, state, new_side, new_price)
            put_order(orders, arrivals, levels, state, new_id, new_size, new_level, mask, shift)
    return end


assert [schema - ORDER_EXECUTE for schema in (ORDER_CANCEL, ORDER_DELETE, ORDER_REPLACE)] == [1, 2, 3]
assert [count - COUNT_EXECUTES for count in (COUNT_CANCELS, COUNT_DELETES, COUNT_REPLACES)] == [1, 2, 3]
assert COUNT_UNKNOWN_CANCELS - COUNT_UNKNOWN_EXECUTES == 1
assert COUNT_UNKNOWN_DELETES - COUNT_UNKNOWN_EXECUTES == 2
assert COUNT_UNKNOWN_REPLACES - COUNT_UNKNOWN_EXECUTES == 3
assert COUNT_OVERSIZED_CANCELS - COUNT_OVERSIZED_EXECUTES == 1


@kernel
def rehash_orders_kernel(
    old_orders: WordVector, old_arrivals: WordVector, orders: WordVector, arrivals: WordVector
) -> int:
    """Move every order into the larger, empty table and return how many there were."""
    mask = arrivals.size - 1
    shift = table_shift(arrivals.size)
    moved = 0
    for old_slot in range(old_arrivals.size):
        size_and_level = load(old_orders, old_slot * ORDER_WORDS + ORDER_SIZE_LEVEL)
        if size_and_level == 0:
            continue
        order_id = load(old_orders, old_slot * ORDER_WORDS + ORDER_ID)
        slot = home_slot(order_id, shift)
        while load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) != 0:
            slot = (slot + 1) & mask
        store(orders, slot * ORDER_WORDS + ORDER_ID, order_id)
        store(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL, size_and_level)
        store(arrivals, slot, load(old_arrivals, old_slot))
        moved += 1
    return moved


@kernel
def collect_orders_kernel(
    orders: WordVector, arrivals: WordVector, levels: WordVector, wanted: WordVector, found: WordArray
) -> int:
    """Write the live orders of instruments whose number is marked in `wanted`; return how many there were.

    A row of `found`, which the caller has made large enough: side, price, arrival, order id, size.
    """
    count = 0
    for slot in range(arrivals.size):
        size_and_level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL)
        if size_and_level == 0:
            continue
        level = (size_and_level >> 32) * LEVEL_WORDS
        side = load(levels, level + LEVEL_SIDE) & U32
        if load(wanted, side >> 1) == 0:
            continue
        found[count, FOUND_SIDE] = side
        found[count, FOUND_PRICE] = load(levels, level + LEVEL_PRICE)
        found[count, FOUND_ARRIVAL] = load(arrivals, slot)
        found[count, FOUND_ID] = load(orders, slot * ORDER_WORDS + ORDER_ID)
        found[count, FOUND_SIZE] = size_and_level & U32
        count += 1
    return count


@kernel
def find_sides_kernel(
    orders: WordVector, arrivals: WordVector, levels: WordVector, order_ids: WordVector, sides: WordVector
) -> int:
    """Write for every id the side that its live order is on, or NONE; return how many are live."""
    mask = arrivals.size - 1
    shift = table_shift(arrivals.size)
    live = 0
    for position in range(order_ids.size):
        slot = find_order(orders, order_ids[position], mask, shift)
        sides[position] = NONE
        if slot != NONE:
            level = load(orders, slot * ORDER_WORDS + ORDER_SIZE_LEVEL) >> 32
            sides[position] = load(levels, level * LEVEL_WORDS + LEVEL_SIDE) & U32
            live += 1
    return live


def warm_up() -> None:
    frames = np.zeros((1, FRAME_WORDS), dtype=np.int64)
    orders = np.zeros(32 * ORDER_WORDS, dtype=np.int64)
    arrivals = np.zeros(32, dtype=np.int64)
    table = np.zeros(256, dtype=np.int64)
    state = np.zeros(STATE_FIELDS, dtype=np.int64)
    state[STATE_LEVELS_USED] = 1
    state[STATE_ENTRIES_USED] = GLANCE
    apply_orders_kernel(
        frames, 0, 1, orders, arrivals, table, table.copy(), table.copy(), table.copy(), table.copy(), state
    )
    rehash_orders_kernel(orders, arrivals, orders.copy(), arrivals.copy())
    find_sides_kernel(orders, arrivals, table, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    collect_orders_kernel(
        orders, arrivals, table, np.zeros(4, dtype=np.int64), np.zeros((1, FOUND_WORDS), dtype=np.int64)
    )
