"""ITCH 5.0 to frames: one compiled pass over runs of length-prefixed messages.

Every message gives at least one frame. One whose type is unknown, whose length is not its type's, or that
holds a value which our schema does not allow becomes an UNPARSED frame and a row in `problems`: nothing is
guessed at and nothing is skipped. Time and instrument of such a frame are 0, unless type and length were
right and only a value was not. A net order imbalance becomes two frames, a direct listing three.

`directory` holds, for each stock locate, the last symbol that came with it, as the word of the eight padded
bytes on the wire (comparing the raw word costs an order nothing; `symbol_of` trims it), 0 for none yet.
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
    STATE_MIDNIGHT_NS,
    STATE_NEXT_MESSAGE_SEQ,
    STATE_PUBLISH_NS,
    STATE_RUN_INDEX,
    STATE_STOPPED,
    STATE_STREAM_ID,
    STATE_SYMBOL_CHANGES,
    STOP_CUT_SHORT,
    STOP_NONE,
    STOP_ZERO_LENGTH,
    TYPE_COUNT,
    IntArray,
)
from feeds.itch50 import messages as m
from feeds.itch50.encode_kernels import exercise_kernel as write_every_type
from feeds.memory_kernels import (
    Buffer,
    load_be16,
    load_be32,
    load_be64,
    load_byte,
    load_le16,
    load_le32,
    load_le64,
    trim_spaces,
)
from feeds.unparsed_kernels import BAD_VALUE, UNKNOWN_TYPE, WRONG_LENGTH, report_unparsed
from feeds.wire import FRAME_WORDS, PRICE_SCALE, StatusType, WordArray
from feeds.wire_kernels import (
    AUCTION,
    AUCTION_PRICES,
    BREAKER_LEVELS,
    COLLAR,
    CROSS,
    DIRECT_LISTING,
    INSTRUMENT,
    IPO,
    KIND_DATA,
    LAST_PART,
    ORDER_ADD,
    ORDER_CANCEL,
    ORDER_DELETE,
    ORDER_EXECUTE,
    ORDER_REPLACE,
    PARTICIPANT,
    STATUS,
    TRADE,
    TRADE_BREAK,
    UNPARSED,
    put_auction,
    put_auction_prices,
    put_breaker_levels,
    put_collar,
    put_cross,
    put_direct_listing,
    put_header,
    put_instrument,
    put_ipo,
    put_order_add,
    put_order_execute,
    put_order_reduce,
    put_order_replace,
    put_participant,
    put_status,
    put_trade,
)

PRICE4_STEP = PRICE_SCALE // m.PRICE4_SCALE
PRICE8_STEP = PRICE_SCALE // m.PRICE8_SCALE
PRICE8_MAX = ((1 << 63) - 1) // PRICE8_STEP  # beyond it our price would overflow

_BUY = ord("B")
_SELL = ord("S")
_YES = ord("Y")
_NO = ord("N")
_COLLAR_LIMIT = ord("L")
_COLLAR_AUCTION = ord("A")
_COLLAR_DIRECT = ord("D")
_STATUS_SYSTEM = int(StatusType.SYSTEM)
_STATUS_TRADING = int(StatusType.TRADING)
_STATUS_SHORT_SALE = int(StatusType.SHORT_SALE)
_STATUS_OPERATIONAL = int(StatusType.OPERATIONAL)
_STATUS_RETAIL = int(StatusType.RETAIL_INTEREST)
_STATUS_BREAKER = int(StatusType.BREAKER)

# Length of each type, 0 for letters that are no type: one look-up finds unknown types and wrong lengths.
_SIZES = np.zeros(TYPE_COUNT, dtype=np.int64)
for _letter, _size in m.SIZE_OF_TYPE.items():
    _SIZES[_letter] = _size


@kernel
def learn_symbol(directory: IntArray, locate: int, stock: int, state: IntArray) -> None:
    """Remember which symbol a locate stands for; locate 0 stands for none."""
    known = directory[locate]
    if known != stock and locate != 0:
        directory[locate] = stock
        if known != 0:
            state[STATE_SYMBOL_CHANGES] += 1


@kernel
def put_rare_message(
    data: Buffer,
    start: int,
    letter: int,
    tracking: int,
    locate: int,
    directory: IntArray,
    state: IntArray,
    words: WordArray,
    row: int,
) -> int:
    """Put the payloads of a message that is not about a single order; length and type are checked.

    Returns schemas of its parts, the first in the lowest 16 bits, or 0 for a value that we cannot take.
    """
    if letter == m.NET_ORDER_IMBALANCE:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_IMBALANCE_STOCK), state)
        put_auction(
            words,
            row,
            load_be64(data, start + m.AT_IMBALANCE_PAIRED),
            load_be64(data, start + m.AT_IMBALANCE_SHARES),
            load_be32(data, start + m.AT_IMBALANCE_REFERENCE) * PRICE4_STEP,
            load_byte(data, start + m.AT_IMBALANCE_DIRECTION),
            load_byte(data, start + m.AT_IMBALANCE_CROSS_TYPE),
            load_byte(data, start + m.AT_IMBALANCE_VARIATION),
            0,
            tracking,
        )
        put_auction_prices(
            words,
            row + 1,
            load_be32(data, start + m.AT_IMBALANCE_NEAR) * PRICE4_STEP,
            load_be32(data, start + m.AT_IMBALANCE_FAR) * PRICE4_STEP,
            0,
            tracking,
        )
        return AUCTION | (AUCTION_PRICES << 16)
    if letter == m.CROSS_TRADE:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_CROSS_STOCK), state)
        put_cross(
            words,
            row,
            load_be32(data, start + m.AT_CROSS_PRICE) * PRICE4_STEP,
            load_be64(data, start + m.AT_CROSS_SHARES),
            load_be64(data, start + m.AT_CROSS_MATCH),
            load_byte(data, start + m.AT_CROSS_TYPE),
            tracking,
        )
        return CROSS
    if letter == m.TRADING_ACTION:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_STATE_STOCK), state)
        put_status(
            words,
            row,
            _STATUS_TRADING,
            load_byte(data, start + m.AT_STATE),
            0,
            load_byte(data, start + m.AT_ACTION_RESERVED),
            trim_spaces(load_le32(data, start + m.AT_ACTION_REASON), 4),
            tracking,
        )
        return STATUS
    if letter == m.REG_SHO:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_STATE_STOCK), state)
        put_status(words, row, _STATUS_SHORT_SALE, load_byte(data, start + m.AT_STATE), 0, 0, 0, tracking)
        return STATUS
    if letter == m.RETAIL_INTEREST:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_STATE_STOCK), state)
        put_status(words, row, _STATUS_RETAIL, load_byte(data, start + m.AT_STATE), 0, 0, 0, tracking)
        return STATUS
    if letter == m.OPERATIONAL_HALT:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_STATE_STOCK), state)
        action = load_byte(data, start + m.AT_HALT_ACTION)
        market = load_byte(data, start + m.AT_HALT_MARKET)
        put_status(words, row, _STATUS_OPERATIONAL, action, market, 0, 0, tracking)
        return STATUS
    if letter == m.SYSTEM_EVENT:
        put_status(words, row, _STATUS_SYSTEM, load_byte(data, start + m.AT_EVENT), 0, 0, 0, tracking)
        return STATUS
    if letter == m.BREAKER_STATUS:
        put_status(words, row, _STATUS_BREAKER, load_byte(data, start + m.AT_EVENT), 0, 0, 0, tracking)
        return STATUS
    if letter == m.PARTICIPANT_POSITION:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_POSITION_STOCK), state)
        put_participant(
            words,
            row,
            trim_spaces(load_le32(data, start + m.AT_POSITION_MPID), 4),
            load_byte(data, start + m.AT_POSITION_PRIMARY),
            load_byte(data, start + m.AT_POSITION_MODE),
            load_byte(data, start + m.AT_POSITION_STATE),
            tracking,
        )
        return PARTICIPANT
    if letter == m.STOCK_DIRECTORY:
        stock = load_le64(data, start + m.AT_DIRECTORY_STOCK)
        learn_symbol(directory, locate, stock, state)
        put_instrument(
            words,
            row,
            trim_spaces(stock, 8),
            load_be32(data, start + m.AT_DIRECTORY_ROUND_LOT),
            load_be32(data, start + m.AT_DIRECTORY_LEVERAGE),
            load_byte(data, start + m.AT_DIRECTORY_MARKET_CATEGORY),
            load_byte(data, start + m.AT_DIRECTORY_FINANCIAL_STATUS),
            load_byte(data, start + m.AT_DIRECTORY_ROUND_LOTS_ONLY),
            load_byte(data, start + m.AT_DIRECTORY_ISSUE_CLASS),
            trim_spaces(load_le16(data, start + m.AT_DIRECTORY_ISSUE_SUBTYPE), 2),
            load_byte(data, start + m.AT_DIRECTORY_AUTHENTICITY),
            load_byte(data, start + m.AT_DIRECTORY_SHORT_SALE_THRESHOLD),
            load_byte(data, start + m.AT_DIRECTORY_IPO),
            load_byte(data, start + m.AT_DIRECTORY_LULD_TIER),
            load_byte(data, start + m.AT_DIRECTORY_ETP),
            load_byte(data, start + m.AT_DIRECTORY_INVERSE),
            0,
            tracking,
        )
        return INSTRUMENT
    if letter == m.BROKEN_TRADE:
        put_trade(words, row, 0, 0, load_be64(data, start + m.AT_BROKEN_MATCH), 0, 0, 0, tracking)
        return TRADE_BREAK
    if letter == m.BREAKER_LEVELS:
        level1_e8 = load_be64(data, start + m.AT_LEVEL_1)
        level2_e8 = load_be64(data, start + m.AT_LEVEL_2)
        level3_e8 = load_be64(data, start + m.AT_LEVEL_3)
        # As unsigned values; the upper half of them looks negative here.
        if min(level1_e8, level2_e8, level3_e8) < 0 or max(level1_e8, level2_e8, level3_e8) > PRICE8_MAX:
            return 0
        put_breaker_levels(
            words, row, level1_e8 * PRICE8_STEP, level2_e8 * PRICE8_STEP, level3_e8 * PRICE8_STEP, tracking
        )
        return BREAKER_LEVELS
    if letter == m.IPO_QUOTING:
        stock = load_le64(data, start + m.AT_IPO_STOCK)
        learn_symbol(directory, locate, stock, state)
        put_ipo(
            words,
            row,
            load_be32(data, start + m.AT_IPO_PRICE) * PRICE4_STEP,
            load_be32(data, start + m.AT_IPO_RELEASE),
            load_byte(data, start + m.AT_IPO_QUALIFIER),
            trim_spaces(stock, 8),
            tracking,
        )
        return IPO
    if letter == m.AUCTION_COLLAR:
        learn_symbol(directory, locate, load_le64(data, start + m.AT_COLLAR_STOCK), state)
        put_collar(
            words,
            row,
            load_be32(data, start + m.AT_COLLAR_REFERENCE) * PRICE4_STEP,
            load_be32(data, start + m.AT_COLLAR_LOWER) * PRICE4_STEP,
            load_be32(data, start + m.AT_COLLAR_UPPER) * PRICE4_STEP,
            load_be32(data, start + m.AT_COLLAR_EXTENSION),
            _COLLAR_LIMIT,
            tracking,
        )
        return COLLAR
    # The one type that is left: a direct listing.
    learn_symbol(directory, locate, load_le64(data, start + m.AT_LISTING_STOCK), state)
    put_direct_listing(
        words,
        row,
        load_be32(data, start + m.AT_LISTING_NEAR) * PRICE4_STEP,
        load_be64(data, start + m.AT_LISTING_NEAR_TIME),
        load_byte(data, start + m.AT_LISTING_ELIGIBLE),
        tracking,
    )
    put_collar(
        words,
        row + 1,
        0,
        load_be32(data, start + m.AT_LISTING_MIN) * PRICE4_STEP,
        load_be32(data, start + m.AT_LISTING_MAX) * PRICE4_STEP,
        0,
        _COLLAR_DIRECT,
        tracking,
    )
    put_collar(
        words,
        row + 2,
        0,
        load_be32(data, start + m.AT_LISTING_LOWER) * PRICE4_STEP,
        load_be32(data, start + m.AT_LISTING_UPPER) * PRICE4_STEP,
        0,
        _COLLAR_AUCTION,
        tracking,
    )
    return DIRECT_LISTING | (COLLAR << 16) | (COLLAR << 32)


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
    midnight_ns = state[STATE_MIDNIGHT_NS]
    epoch = state[STATE_EPOCH]
    message_count = 0
    symbol_changes = 0
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
            length = load_be16(data, position)
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
            type_bytes = _SIZES[letter]
            counts[letter] += 1
            locate = 0
            event_ns = 0
            schemas = 0
            if length == type_bytes and type_bytes != 0:
                locate = load_be16(data, start + m.AT_LOCATE)
                tracking_and_time = load_be64(data, start + m.AT_TRACKING)
                tracking = (tracking_and_time >> 48) & 0xFFFF
                event_ns = midnight_ns + (tracking_and_time & m.TIME_MASK)
                if letter == m.ADD_ORDER or letter == m.ADD_ORDER_ATTRIBUTED or letter == m.TRADE:
                    side = load_byte(data, start + m.AT_ADD_SIDE)
                    if side in (_BUY, _SELL):
                        # learn_symbol by hand: as a call it would count references for each order.
                        stock = load_le64(data, start + m.AT_ADD_STOCK)
                        known = directory[locate]
                        if known != stock and locate != 0:
                            directory[locate] = stock
                            if known != 0:
                                symbol_changes += 1
                        order_id = load_be64(data, start + m.AT_ADD_ORDER)
                        price = load_be32(data, start + m.AT_ADD_PRICE) * PRICE4_STEP
                        size = load_be32(data, start + m.AT_ADD_SHARES)
                        if letter == m.TRADE:
                            schemas = TRADE
                            trade_id = load_be64(data, start + m.AT_TRADE_MATCH)
                            put_trade(words, row, price, order_id, trade_id, size, side, 0, tracking)
                        else:
                            schemas = ORDER_ADD
                            attribution = 0
                            is_attributed = 0
                            if letter == m.ADD_ORDER_ATTRIBUTED:
                                attribution = trim_spaces(load_le32(data, start + m.AT_ADD_ATTRIBUTION), 4)
                                is_attributed = 1
                            put_order_add(
                                words, row, order_id, price, size, attribution, side, is_attributed, tracking
                            )
                elif letter == m.ORDER_DELETE:
                    schemas = ORDER_DELETE
                    put_order_reduce(words, row, load_be64(data, start + m.AT_REDUCE_ORDER), 0, tracking)
                elif letter == m.ORDER_REPLACE:
                    schemas = ORDER_REPLACE
                    put_order_replace(
                        words,
                        row,
                        load_be64(data, start + m.AT_REPLACE_ORDER),
                        load_be64(data, start + m.AT_REPLACE_NEW_ORDER),
                        load_be32(data, start + m.AT_REPLACE_PRICE) * PRICE4_STEP,
                        load_be32(data, start + m.AT_REPLACE_SHARES),
                        tracking,
                    )
                elif letter == m.ORDER_EXECUTED:
                    schemas = ORDER_EXECUTE
                    put_order_execute(
                        words,
                        row,
                        load_be64(data, start + m.AT_EXECUTE_ORDER),
                        load_be64(data, start + m.AT_EXECUTE_MATCH),
                        0,
                        load_be32(data, start + m.AT_EXECUTE_SHARES),
                        1,
                        0,
                        tracking,
                    )
                elif letter == m.ORDER_CANCEL:
                    schemas = ORDER_CANCEL
                    put_order_reduce(
                        words,
                        row,
                        load_be64(data, start + m.AT_REDUCE_ORDER),
                        load_be32(data, start + m.AT_REDUCE_SHARES),
                        tracking,
                    )
                elif letter == m.ORDER_EXECUTED_PRICED:
                    printable = load_byte(data, start + m.AT_EXECUTE_PRINTABLE)
                    if printable in (_YES, _NO):
                        schemas = ORDER_EXECUTE
                        put_order_execute(
                            words,
                            row,
                            load_be64(data, start + m.AT_EXECUTE_ORDER),
                            load_be64(data, start + m.AT_EXECUTE_MATCH),
                            load_be32(data, start + m.AT_EXECUTE_PRICE) * PRICE4_STEP,
                            load_be32(data, start + m.AT_EXECUTE_SHARES),
                            1 if printable == _YES else 0,
                            1,
                            tracking,
                        )
                else:
                    schemas = put_rare_message(
                        data, start, letter, tracking, locate, directory, state, words, row
                    )

            if schemas == 0:
                reason = BAD_VALUE
                if type_bytes == 0 and length > 0:
                    reason = UNKNOWN_TYPE
                elif length != type_bytes or length == 0:
                    reason = WRONG_LENGTH
                report_unparsed(
                    data, start, length, position, source_seq, reason, letter, state, problems, words, row
                )
                schemas = UNPARSED

            part = 0
            while True:
                rest = schemas >> 16
                flags = 0
                if rest == 0:
                    flags = LAST_PART
                put_header(
                    words,
                    row,
                    KIND_DATA,
                    flags,
                    stream_and_session,
                    source_seq,
                    message_seq,
                    event_ns,
                    publish_ns,
                    locate,
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
    state[STATE_SYMBOL_CHANGES] += symbol_changes
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
        np.zeros(m.LOCATE_COUNT, dtype=np.int64),
        np.zeros((64, FRAME_WORDS), dtype=np.int64),
    )
