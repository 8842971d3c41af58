"""Books from price levels and quotes, for exchanges that tell no single orders; and the tops of any book.

A level update replaces what its price held, and a size of 0 removes it. One event of the exchange may take
several updates; until its last one the book is half-way, so the best prices from before the event stay the
ones that are shown. An event ends with the update that is marked complete, and also when anything of that
instrument comes with another time: exchanges leave out the mark when the last step changed no level.
"""

from __future__ import annotations

import numpy as np

from feeds.book.store_kernels import (
    ASK,
    BID,
    COUNT_BAD_SIDES,
    COUNT_IGNORED,
    COUNT_LEVELS,
    COUNT_QUOTES,
    COUNT_STATUSES,
    COUNT_UNKNOWN_LEVELS,
    GLANCE,
    INSTRUMENT_EVENT_NS,
    INSTRUMENT_EVENT_OPEN,
    INSTRUMENT_SHOWN,
    INSTRUMENT_STATE,
    INSTRUMENT_WORDS,
    LETTER_BUY,
    LETTER_SELL,
    LEVEL_PRICE,
    LEVEL_SIZE,
    LEVEL_WORDS,
    NONE,
    STATE_ENTRIES_USED,
    STATE_FIELDS,
    STATE_LAST_EVENT_NS,
    STATE_LEVELS_USED,
    STATE_SOURCE,
    STATE_STATUS,
    STOPPED_ENTRIES,
    STOPPED_NOT,
    STOPPED_SOURCE,
    U32,
    add_instrument,
    best_level,
    bump,
    find_instrument,
    find_level,
    find_or_add_level,
    remove_level,
    reserve_entry,
)
from feeds.compiled import inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, PAYLOAD_WORD, QuoteCondition, StatusType, WordArray
from feeds.wire_kernels import KIND_DATA, LAST_PART, LEVEL, QUOTE, STATUS, put_header, put_quote
from feeds.word_kernels import WordVector, frame_word, load, store

STATUS_TRADING = int(StatusType.TRADING)
NOT_AVAILABLE = int(QuoteCondition.NOT_AVAILABLE)
LETTER_TRADING = ord("T")

_W_KIND = 0
_W_SOURCE = 1
_W_EVENT_NS = 4
_W_INSTRUMENT = 6
_P0 = PAYLOAD_WORD
_P1 = PAYLOAD_WORD + 1
_P2 = PAYLOAD_WORD + 2
_P3 = PAYLOAD_WORD + 3


@inlined_kernel
def show_best(
    levels: WordVector, entries: WordVector, sides: WordVector, instruments: WordVector, number: int
) -> None:
    """Remember the best prices as they are now, to be shown until the event is over."""
    shown = number * INSTRUMENT_WORDS + INSTRUMENT_SHOWN
    for side in range(2):
        level = best_level(entries, sides, 2 * number + side) * LEVEL_WORDS  # row 0 is all zeros
        store(instruments, shown + 2 * side, load(levels, level + LEVEL_PRICE))
        store(instruments, shown + 2 * side + 1, load(levels, level + LEVEL_SIZE))


@inlined_kernel
def set_level(
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    state: WordVector,
    side: int,
    price: int,
    size: int,
) -> None:
    """Make `price` hold `size`; the side has a free entry."""
    if size > 0:
        level = find_or_add_level(entries, levels, sides, state, side, price)
        store(levels, level * LEVEL_WORDS + LEVEL_SIZE, size)
        return
    level = find_level(entries, sides, side, price)
    if level != 0:
        remove_level(entries, levels, sides, state, level)
    else:
        bump(state, COUNT_UNKNOWN_LEVELS, 1)


@inlined_kernel
def set_only_level(
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    state: WordVector,
    side: int,
    price: int,
    size: int,
) -> None:
    """Make `price` the only one of its side, or leave the side empty when `size` is 0."""
    level = best_level(entries, sides, side)
    while level != 0:
        remove_level(entries, levels, sides, state, level)
        level = best_level(entries, sides, side)
    if size > 0:
        level = find_or_add_level(entries, levels, sides, state, side, price)
        store(levels, level * LEVEL_WORDS + LEVEL_SIZE, size)


@kernel
def apply_levels_kernel(
    words: WordArray,
    begin: int,
    end: int,
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    instruments: WordVector,
    index: WordVector,
    state: WordVector,
) -> int:
    """Apply the frames [begin, end) and return how far it came: end, or the frame that STATE_STATUS is about.

    The caller has made room for two levels and an instrument more per frame; entries may run out.
    """
    source = load(state, STATE_SOURCE)
    store(state, STATE_STATUS, STOPPED_NOT)
    for row in range(begin, end):
        if (frame_word(words, row, _W_KIND) >> 40) & 0xFF != KIND_DATA:
            bump(state, COUNT_IGNORED, 1)
            continue
        if frame_word(words, row, _W_SOURCE) != source:
            store(state, STATE_STATUS, STOPPED_SOURCE)
            return row
        schema = (frame_word(words, row, _W_INSTRUMENT) >> 32) & 0xFFFF
        instrument_id = frame_word(words, row, _W_INSTRUMENT) & U32
        event_ns = frame_word(words, row, _W_EVENT_NS)
        is_trading_status = schema == STATUS and frame_word(words, row, _P0) & 0xFF == STATUS_TRADING
        number = find_instrument(index, instrument_id)
        if number == NONE and (schema in (LEVEL, QUOTE) or is_trading_status):
            number = add_instrument(index, instruments, sides, state, instrument_id)
        instrument = number * INSTRUMENT_WORDS
        if (
            number != NONE
            and load(instruments, instrument + INSTRUMENT_EVENT_OPEN) != 0
            and load(instruments, instrument + INSTRUMENT_EVENT_NS) != event_ns
        ):
            store(instruments, instrument + INSTRUMENT_EVENT_OPEN, 0)

        if schema == LEVEL:
            letter = (frame_word(words, row, _P3) >> 32) & 0xFF
            if letter != LETTER_BUY and letter != LETTER_SELL:
                bump(state, COUNT_LEVELS, 1)
                bump(state, COUNT_BAD_SIDES, 1)
                continue
            side = 2 * number + (ASK if letter == LETTER_SELL else BID)
            if not reserve_entry(entries, sides, state, side):
                store(state, STATE_STATUS, STOPPED_ENTRIES)
                return row
            is_complete = (frame_word(words, row, _P3) >> 40) & 0xFF != 0
            if not is_complete and load(instruments, instrument + INSTRUMENT_EVENT_OPEN) == 0:
                show_best(levels, entries, sides, instruments, number)
                store(instruments, instrument + INSTRUMENT_EVENT_NS, event_ns)
            store(instruments, instrument + INSTRUMENT_EVENT_OPEN, 0 if is_complete else 1)
            price = frame_word(words, row, _P0)
            set_level(levels, entries, sides, state, side, price, frame_word(words, row, _P3) & U32)
            bump(state, COUNT_LEVELS, 1)
        elif schema == QUOTE:
            if not (
                reserve_entry(entries, sides, state, 2 * number + BID)
                and reserve_entry(entries, sides, state, 2 * number + ASK)
            ):
                store(state, STATE_STATUS, STOPPED_ENTRIES)
                return row
            store(instruments, instrument + INSTRUMENT_EVENT_OPEN, 0)
            sizes = frame_word(words, row, _P2)
            for side in range(2):
                price = frame_word(words, row, _P1 if side == ASK else _P0)
                size = (sizes >> (32 * side)) & U32
                set_only_level(levels, entries, sides, state, 2 * number + side, price, size)
            bump(state, COUNT_QUOTES, 1)
        elif is_trading_status:
            letter = (frame_word(words, row, _P0) >> 8) & 0xFF
            store(instruments, instrument + INSTRUMENT_STATE, letter)
            bump(state, COUNT_STATUSES, 1)
        else:
            bump(state, COUNT_IGNORED, 1)
            continue
        store(state, STATE_LAST_EVENT_NS, event_ns)
    return end


@kernel
def quotes_kernel(
    instrument_ids: WordVector,
    levels: WordVector,
    entries: WordVector,
    sides: WordVector,
    instruments: WordVector,
    index: WordVector,
    state: WordVector,
    source_seq: int,
    first_message_seq: int,
    publish_time_ns: int,
    epoch: int,
    words: WordArray,
) -> int:
    """Write one QUOTE frame per instrument, of what its book shows; return how many have a book."""
    known = 0
    for row in range(instrument_ids.size):
        instrument_id = instrument_ids[row]
        number = find_instrument(index, instrument_id)
        conditions = 0
        prices = (0, 0)
        sizes = (0, 0)
        if number != NONE:
            known += 1
            instrument = number * INSTRUMENT_WORDS
            letter = load(instruments, instrument + INSTRUMENT_STATE)
            if letter != 0 and letter != LETTER_TRADING:
                conditions = NOT_AVAILABLE
            if load(instruments, instrument + INSTRUMENT_EVENT_OPEN) != 0:
                shown = instrument + INSTRUMENT_SHOWN
                prices = (load(instruments, shown), load(instruments, shown + 2))
                sizes = (load(instruments, shown + 1), load(instruments, shown + 3))
            else:
                # An empty side's best level is row 0, which is all zeros.
                bid = best_level(entries, sides, 2 * number + BID) * LEVEL_WORDS
                ask = best_level(entries, sides, 2 * number + ASK) * LEVEL_WORDS
                prices = (load(levels, bid + LEVEL_PRICE), load(levels, ask + LEVEL_PRICE))
                sizes = (load(levels, bid + LEVEL_SIZE), load(levels, ask + LEVEL_SIZE))
        put_header(
            words,
            row,
            KIND_DATA,
            LAST_PART,
            load(state, STATE_SOURCE),
            source_seq,
            first_message_seq + row,
            load(state, STATE_LAST_EVENT_NS),
            publish_time_ns,
            instrument_id,
            QUOTE,
            0,
            epoch,
        )
        put_quote(words, row, prices[0], prices[1], min(sizes[0], U32), min(sizes[1], U32), conditions, 0)
    return known


def warm_up() -> None:
    frames = np.zeros((1, FRAME_WORDS), dtype=np.int64)
    table = np.zeros(256, dtype=np.int64)
    state = np.zeros(STATE_FIELDS, dtype=np.int64)
    state[STATE_LEVELS_USED] = 1
    state[STATE_ENTRIES_USED] = GLANCE
    tables = (table, table.copy(), table.copy(), table.copy(), table.copy())
    apply_levels_kernel(frames, 0, 1, *tables, state)
    quotes_kernel(np.zeros(1, dtype=np.int64), *tables, state, 0, 0, 0, 0, frames)
