"""IEX messages to frames: one compiled pass for DEEP 1.0 and TOPS 1.6 over runs of length-prefixed messages.

    S STATUS system            8 5 LEVEL           D INSTRUMENT, OFFICIAL_PRICE (adjusted previous close)
    H STATUS trading           T   TRADE           A AUCTION, AUCTION_PRICES, COLLAR
    I STATUS retail interest   B   TRADE_BREAK     Q QUOTE
    O STATUS operational       X   OFFICIAL_PRICE
    P STATUS short sale
    E STATUS security event    anything else: UNPARSED, and a row in `problems`

What is passed on and what is not:
- Flags of D, T, B and Q travel as they came, also bits that wire.py has no name for: the exchange says that
  flag fields may gain bits, and whoever tests a named bit is not disturbed by another. Of the flags of 8 and
  5 only "event complete" has a place in a frame; other bits, none of which is defined, are dropped.
- Bytes behind a known message's size are a later version's fields; they are skipped.
- A message is refused as BAD_VALUE when a frame could not say what it says: a blank or unprintable symbol or
  reason, a price beyond int64 in 1e-9, an official price that is neither opening nor closing, a short sale
  status that is neither 0 nor 1, a limit up/down tier of more than one digit, a time before 1970 (the frame
  that tells of it has none).
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    PROBLEM_FIELDS,
    PROBLEM_SLOTS,
    RUN_BYTES,
    RUN_COUNT,
    RUN_FIELDS,
    RUN_OFFSET,
    RUN_SEQ,
    RUN_SESSION,
    STATE_BYTE_INDEX,
    STATE_EPOCH,
    STATE_FIELDS,
    STATE_FRAME_COUNT,
    STATE_MESSAGE_COUNT,
    STATE_MESSAGE_INDEX,
    STATE_NEXT_MESSAGE_SEQ,
    STATE_PUBLISH_NS,
    STATE_RUN_INDEX,
    STATE_STOPPED,
    STATE_STREAM_ID,
    STOP_CUT_SHORT,
    STOP_NONE,
    STOP_ZERO_LENGTH,
    TYPE_COUNT,
    IntArray,
)
from feeds.iex import messages as m
from feeds.iex.encode_kernels import exercise_kernel as write_every_type
from feeds.iex.symbol_kernels import DIRECTORY_WORDS, learn_symbol
from feeds.memory_kernels import Buffer, load_byte, load_le16, load_le32, load_le64, trim_spaces
from feeds.unparsed_kernels import BAD_VALUE, UNKNOWN_TYPE, WRONG_LENGTH, report_unparsed
from feeds.wire import FRAME_WORDS, StatusType, WordArray
from feeds.wire_kernels import (
    AUCTION,
    AUCTION_PRICES,
    COLLAR,
    INSTRUMENT,
    KIND_DATA,
    LAST_PART,
    LEVEL,
    OFFICIAL_PRICE,
    QUOTE,
    STATUS,
    TRADE,
    TRADE_BREAK,
    UNPARSED,
    put_auction,
    put_auction_prices,
    put_collar,
    put_header,
    put_instrument,
    put_level,
    put_official_price,
    put_quote,
    put_status,
    put_trade,
)

_BUY = ord("B")
_SELL = ord("S")
_DIGIT_0 = ord("0")
_PREVIOUS_CLOSE = ord("P")
_COLLAR_AUCTION = ord("A")
_STATUS_SYSTEM = int(StatusType.SYSTEM)
_STATUS_TRADING = int(StatusType.TRADING)
_STATUS_SHORT_SALE = int(StatusType.SHORT_SALE)
_STATUS_OPERATIONAL = int(StatusType.OPERATIONAL)
_STATUS_RETAIL = int(StatusType.RETAIL_INTEREST)
_STATUS_SECURITY_EVENT = int(StatusType.SECURITY_EVENT)

# Least length of each type, 0 for letters that are no type.
_SIZES = np.zeros(TYPE_COUNT, dtype=np.int64)
for _letter, _size in m.SIZE_OF_TYPE.items():
    _SIZES[_letter] = _size

# What the one-byte code of a plain status message is about, per type letter; 0 for other types.
_PLAIN_STATUS = np.zeros(TYPE_COUNT, dtype=np.int64)
_PLAIN_STATUS[m.RETAIL_INTEREST] = _STATUS_RETAIL
_PLAIN_STATUS[m.OPERATIONAL_HALT] = _STATUS_OPERATIONAL
_PLAIN_STATUS[m.SECURITY_EVENT] = _STATUS_SECURITY_EVENT


@kernel
def is_price(price_e4: int) -> bool:
    """Return whether a price in 1e-4 still fits int64 in 1e-9."""
    return -m.PRICE_MAX <= price_e4 <= m.PRICE_MAX


@kernel
def is_printable(text: int, byte_count: int) -> bool:
    for index in range(byte_count):
        character = (text >> (8 * index)) & 0xFF
        if character < 0x20 or character > 0x7E:
            return False
    return True


@kernel
def put_directory(data: Buffer, start: int, words: WordArray, row: int) -> int:
    close_e4 = load_le64(data, start + m.AT_DIRECTORY_CLOSE)
    luld_tier = load_byte(data, start + m.AT_DIRECTORY_LULD_TIER)
    if not is_price(close_e4) or luld_tier > m.LULD_TIER_MAX:
        return 0
    put_instrument(
        words,
        row,
        trim_spaces(load_le64(data, start + m.AT_SYMBOL), m.SYMBOL_BYTES),
        load_le32(data, start + m.AT_DIRECTORY_ROUND_LOT),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        _DIGIT_0 + luld_tier,
        0,
        0,
        load_byte(data, start + m.AT_CODE),
        0,
    )
    put_official_price(words, row + 1, close_e4 * m.PRICE_FACTOR, _PREVIOUS_CLOSE, 0)
    return INSTRUMENT | (OFFICIAL_PRICE << 16)


@kernel
def put_auction_parts(data: Buffer, start: int, words: WordArray, row: int) -> int:
    reference_e4 = load_le64(data, start + m.AT_AUCTION_REFERENCE)
    indicative_e4 = load_le64(data, start + m.AT_AUCTION_INDICATIVE)
    clearing_e4 = load_le64(data, start + m.AT_AUCTION_CLEARING)
    collar_e4 = load_le64(data, start + m.AT_AUCTION_COLLAR_REFERENCE)
    lower_e4 = load_le64(data, start + m.AT_AUCTION_COLLAR_LOWER)
    upper_e4 = load_le64(data, start + m.AT_AUCTION_COLLAR_UPPER)
    highest_e4 = max(reference_e4, indicative_e4, clearing_e4, collar_e4, lower_e4, upper_e4)
    lowest_e4 = min(reference_e4, indicative_e4, clearing_e4, collar_e4, lower_e4, upper_e4)
    if not is_price(highest_e4) or not is_price(lowest_e4):
        return 0
    put_auction(
        words,
        row,
        load_le32(data, start + m.AT_AUCTION_PAIRED),
        load_le32(data, start + m.AT_AUCTION_IMBALANCE),
        reference_e4 * m.PRICE_FACTOR,
        load_byte(data, start + m.AT_AUCTION_SIDE),
        load_byte(data, start + m.AT_CODE),
        0,
        load_byte(data, start + m.AT_AUCTION_EXTENSIONS),
        0,
    )
    put_auction_prices(
        words,
        row + 1,
        indicative_e4 * m.PRICE_FACTOR,
        clearing_e4 * m.PRICE_FACTOR,
        load_le32(data, start + m.AT_AUCTION_SCHEDULED),
        0,
    )
    put_collar(
        words,
        row + 2,
        collar_e4 * m.PRICE_FACTOR,
        lower_e4 * m.PRICE_FACTOR,
        upper_e4 * m.PRICE_FACTOR,
        0,
        _COLLAR_AUCTION,
        0,
    )
    return AUCTION | (AUCTION_PRICES << 16) | (COLLAR << 32)


@kernel
def put_message(data: Buffer, start: int, letter: int, words: WordArray, row: int) -> int:
    """Put the payloads of a message whose type, length and symbol are checked.

    Returns the schemas of its parts, the first in the lowest 16 bits, or 0 for a value that we cannot take.
    """
    code = load_byte(data, start + m.AT_CODE)
    if letter == m.LEVEL_BUY or letter == m.LEVEL_SELL:
        price_e4 = load_le64(data, start + m.AT_PRICE)
        if not is_price(price_e4):
            return 0
        side = _BUY if letter == m.LEVEL_BUY else _SELL
        size = load_le32(data, start + m.AT_SIZE)
        put_level(words, row, price_e4 * m.PRICE_FACTOR, size, side, code & m.EVENT_COMPLETE, 0)
        return LEVEL
    if letter == m.TRADE or letter == m.TRADE_BREAK:
        price_e4 = load_le64(data, start + m.AT_PRICE)
        if not is_price(price_e4):
            return 0
        size = load_le32(data, start + m.AT_SIZE)
        trade_id = load_le64(data, start + m.AT_TRADE_ID)
        put_trade(words, row, price_e4 * m.PRICE_FACTOR, 0, trade_id, size, 0, code, 0)
        return TRADE if letter == m.TRADE else TRADE_BREAK
    if letter == m.QUOTE:
        bid_e4 = load_le64(data, start + m.AT_QUOTE_BID_PRICE)
        ask_e4 = load_le64(data, start + m.AT_QUOTE_ASK_PRICE)
        if not is_price(bid_e4) or not is_price(ask_e4):
            return 0
        bid_size = load_le32(data, start + m.AT_QUOTE_BID_SIZE)
        ask_size = load_le32(data, start + m.AT_QUOTE_ASK_SIZE)
        put_quote(words, row, bid_e4 * m.PRICE_FACTOR, ask_e4 * m.PRICE_FACTOR, bid_size, ask_size, code, 0)
        return QUOTE
    if _PLAIN_STATUS[letter] != 0:
        put_status(words, row, _PLAIN_STATUS[letter], code, 0, 0, 0, 0)
        return STATUS
    if letter == m.SHORT_SALE:
        if code > 1:
            return 0
        detail = load_byte(data, start + m.AT_SHORT_SALE_DETAIL)
        put_status(words, row, _STATUS_SHORT_SALE, _DIGIT_0 + code, 0, detail, 0, 0)
        return STATUS
    if letter == m.TRADING_STATUS:
        reason = load_le32(data, start + m.AT_STATUS_REASON)
        if not is_printable(reason, m.REASON_BYTES):
            return 0
        put_status(words, row, _STATUS_TRADING, code, 0, 0, trim_spaces(reason, m.REASON_BYTES), 0)
        return STATUS
    if letter == m.SYSTEM_EVENT:
        put_status(words, row, _STATUS_SYSTEM, code, 0, 0, 0, 0)
        return STATUS
    if letter == m.OFFICIAL_PRICE:
        price_e4 = load_le64(data, start + m.AT_OFFICIAL_PRICE)
        if not is_price(price_e4) or (code != m.PRICE_TYPE_OPEN and code != m.PRICE_TYPE_CLOSE):
            return 0
        put_official_price(words, row, price_e4 * m.PRICE_FACTOR, code, 0)
        return OFFICIAL_PRICE
    if letter == m.DIRECTORY:
        return put_directory(data, start, words, row)
    return put_auction_parts(data, start, words, row)  # the one type that is left


@kernel
def decode_kernel(
    data: Buffer,
    runs: IntArray,
    run_count: int,
    state: IntArray,
    counts: IntArray,
    problems: IntArray,
    directory: IntArray,
    words: WordArray,
) -> int:
    """Decode from where `state` stands until the runs end or fewer than three rows are left; return rows.

    A run of known count (a packet) takes a zero length as a message of no bytes. A run of unknown count (a
    file) ends there, or where its last message leaves it, with the reason in `state`.
    """
    row = 0
    row_limit = words.shape[0] - m.FRAMES_PER_MESSAGE_MAX
    run_index = state[STATE_RUN_INDEX]
    byte_index = state[STATE_BYTE_INDEX]
    message_index = state[STATE_MESSAGE_INDEX]
    message_seq = state[STATE_NEXT_MESSAGE_SEQ]
    publish_ns = state[STATE_PUBLISH_NS]
    epoch = state[STATE_EPOCH]
    message_count = 0
    stopped = STOP_NONE

    while run_index < run_count and row <= row_limit:
        run_offset = runs[run_index, RUN_OFFSET]
        run_end = run_offset + runs[run_index, RUN_BYTES]
        run_messages = runs[run_index, RUN_COUNT]
        first_seq = runs[run_index, RUN_SEQ]
        stream_and_session = state[STATE_STREAM_ID] | (runs[run_index, RUN_SESSION] << 32)
        position = run_offset + byte_index
        is_run_done = False

        while row <= row_limit:
            if message_index == run_messages or (run_messages < 0 and position == run_end):
                is_run_done = True
                break
            if position + m.PREFIX_BYTES > run_end:
                stopped = STOP_CUT_SHORT
                break
            length = load_le16(data, position)
            start = position + m.PREFIX_BYTES
            if start + length > run_end:
                stopped = STOP_CUT_SHORT
                break
            if length == 0 and run_messages < 0:
                stopped = STOP_ZERO_LENGTH
                break

            source_seq = first_seq + message_index
            letter = 0
            if length > 0:
                letter = load_byte(data, start)
            size = _SIZES[letter]
            counts[letter] += 1
            instrument_id = 0
            event_ns = 0
            schemas = 0
            if size != 0 and length >= size:
                event_ns = load_le64(data, start + m.AT_TIME)
                if letter != m.SYSTEM_EVENT:
                    instrument_id = learn_symbol(directory, state, load_le64(data, start + m.AT_SYMBOL))
                if event_ns < 0:
                    event_ns = 0
                elif instrument_id != 0 or letter == m.SYSTEM_EVENT:
                    schemas = put_message(data, start, letter, words, row)

            if schemas == 0:
                reason = BAD_VALUE
                if length == 0 or length < size:
                    reason = WRONG_LENGTH
                elif size == 0:
                    reason = UNKNOWN_TYPE
                report_unparsed(
                    data, start, length, position, source_seq, reason, letter, state, problems, words, row
                )
                schemas = UNPARSED

            part = 0
            while True:
                rest = schemas >> 16
                put_header(
                    words,
                    row,
                    KIND_DATA,
                    LAST_PART if rest == 0 else 0,
                    stream_and_session,
                    source_seq,
                    message_seq,
                    event_ns,
                    publish_ns,
                    instrument_id,
                    schemas & 0xFFFF,
                    part,
                    epoch,
                )
                row += 1
                message_seq += 1
                if rest == 0:
                    break
                schemas = rest
                part += 1
            message_index += 1
            message_count += 1
            position = start + length

        byte_index = position - run_offset
        if stopped != STOP_NONE:
            break
        if is_run_done:
            run_index += 1
            byte_index = 0
            message_index = 0

    state[STATE_RUN_INDEX] = run_index
    state[STATE_BYTE_INDEX] = byte_index
    state[STATE_MESSAGE_INDEX] = message_index
    state[STATE_NEXT_MESSAGE_SEQ] = message_seq
    state[STATE_MESSAGE_COUNT] += message_count
    state[STATE_FRAME_COUNT] += row
    state[STATE_STOPPED] = stopped
    return row


def warm_up() -> None:
    data = np.zeros(len(m.MESSAGE_TYPES) * m.BLOCK_BYTES_MAX, dtype=np.uint8)
    runs = np.zeros((1, RUN_FIELDS), dtype=np.int64)
    runs[0, RUN_BYTES] = write_every_type(data, 0)
    runs[0, RUN_COUNT] = -1
    decode_kernel(
        data,
        runs,
        1,
        np.zeros(STATE_FIELDS, dtype=np.int64),
        np.zeros(TYPE_COUNT, dtype=np.int64),
        np.zeros((PROBLEM_SLOTS, PROBLEM_FIELDS), dtype=np.int64),
        np.zeros(DIRECTORY_WORDS, dtype=np.int64),
        np.zeros((64, FRAME_WORDS), dtype=np.int64),
    )
