"""Frames back to ITCH 5.0 blocks: what decode_kernels did, undone byte for byte.

That a message survives the way there and back is the proof that its frames lost nothing; and it is how a
stream of frames becomes an ITCH feed again. Stock names come from the directory, as orders carry only their
locate. What no ITCH message can say (a price finer than 1e-4, a level update) stops with a reason.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import IntArray
from feeds.itch50 import messages as m
from feeds.itch50.decode_kernels import PRICE4_STEP, PRICE8_STEP
from feeds.itch50.encode_kernels import (
    write_add_order,
    write_add_order_attributed,
    write_auction_collar,
    write_breaker_levels,
    write_breaker_status,
    write_broken_trade,
    write_cross_trade,
    write_direct_listing,
    write_ipo_quoting,
    write_net_order_imbalance,
    write_operational_halt,
    write_order_cancel,
    write_order_delete,
    write_order_executed,
    write_order_executed_priced,
    write_order_replace,
    write_participant_position,
    write_reg_sho,
    write_retail_interest,
    write_stock_directory,
    write_system_event,
    write_trade,
    write_trading_action,
)
from feeds.memory_kernels import Buffer, pad_spaces, store_be16, store_byte
from feeds.wire import FRAME_WORDS, PAYLOAD_WORD, StatusType, WordArray
from feeds.wire_kernels import (
    AUCTION,
    AUCTION_PRICES,
    BREAKER_LEVELS,
    COLLAR,
    CROSS,
    DIRECT_LISTING,
    INSTRUMENT,
    IPO,
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
    schema_of,
)

# Why encoding stopped, in status[STATUS_REASON].
ENCODED = 0
OUTPUT_FULL = 1  # go on with the next frame and an empty output
NOT_ITCH = 2
BAD_PRICE = 3
BAD_TIME = 4
BAD_INSTRUMENT = 5
NO_SYMBOL = 6
PARTS_MISSING = 7
HEAD_ONLY = 8  # an unparsed message whose end the frame does not hold

STATUS_ROW = 0  # the first frame not encoded
STATUS_REASON = 1
STATUS_MESSAGES = 2
STATUS_FIELDS = 3

_UNPARSED_HEAD_BYTES = 24
_U32 = 0xFFFFFFFF
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


@kernel
def price4_of(price: int) -> int:
    """Return our price in ITCH's 32 bits, or -1 if they cannot hold it."""
    if price < 0 or price % PRICE4_STEP != 0 or price // PRICE4_STEP > _U32:
        return -1
    return price // PRICE4_STEP


@kernel
def part_follows(words: WordArray, row: int, frame_count: int, part: int, schema: int) -> bool:
    """Return whether the frame `part` rows behind `row` is that part of the same message."""
    if row + part >= frame_count:
        return False
    return (
        words[row + part, 6] >> 48 == part
        and schema_of(words, row + part) == schema
        and words[row + part, 2] == words[row, 2]
    )


@kernel
def write_unparsed(words: WordArray, row: int, out: Buffer, at: int) -> int:
    """Put back a message that was not understood, if the frame holds all of it; else return HEAD_ONLY."""
    length = (words[row, PAYLOAD_WORD] >> 16) & 0xFFFF
    if length > _UNPARSED_HEAD_BYTES:
        return -HEAD_ONLY
    store_be16(out, at, length)
    for index in range(length):
        word = words[row, PAYLOAD_WORD + 1 + index // 8]
        store_byte(out, at + m.PREFIX_BYTES + index, (word >> 8 * (index % 8)) & 0xFF)
    end: int = at + m.PREFIX_BYTES + length
    return end


@kernel
def write_status(
    words: WordArray, row: int, locate: int, tracking: int, time_ns: int, stock: int, out: Buffer, at: int
) -> int:
    word = words[row, PAYLOAD_WORD]
    status_type = word & 0xFF
    state = (word >> 8) & 0xFF
    if status_type == _STATUS_SYSTEM:
        return write_system_event(out, at, locate, tracking, time_ns, state)
    if status_type == _STATUS_BREAKER:
        return write_breaker_status(out, at, locate, tracking, time_ns, state)
    if stock == 0:
        return -NO_SYMBOL
    if status_type == _STATUS_TRADING:
        reason = pad_spaces((word >> 32) & _U32, 4)
        return write_trading_action(
            out, at, locate, tracking, time_ns, stock, state, (word >> 24) & 0xFF, reason
        )
    if status_type == _STATUS_SHORT_SALE:
        return write_reg_sho(out, at, locate, tracking, time_ns, stock, state)
    if status_type == _STATUS_OPERATIONAL:
        return write_operational_halt(out, at, locate, tracking, time_ns, stock, (word >> 16) & 0xFF, state)
    if status_type == _STATUS_RETAIL:
        return write_retail_interest(out, at, locate, tracking, time_ns, stock, state)
    return -NOT_ITCH


@kernel
def write_instrument(
    words: WordArray, row: int, locate: int, tracking: int, time_ns: int, out: Buffer, at: int
) -> int:
    lots = words[row, PAYLOAD_WORD + 1]
    letters = words[row, PAYLOAD_WORD + 2]
    more = words[row, PAYLOAD_WORD + 3]
    return write_stock_directory(
        out,
        at,
        locate,
        tracking,
        time_ns,
        pad_spaces(words[row, PAYLOAD_WORD], 8),
        letters & 0xFF,
        (letters >> 8) & 0xFF,
        lots & _U32,
        (letters >> 16) & 0xFF,
        (letters >> 24) & 0xFF,
        pad_spaces((letters >> 32) & 0xFFFF, 2),
        (letters >> 48) & 0xFF,
        (letters >> 56) & 0xFF,
        more & 0xFF,
        (more >> 8) & 0xFF,
        (more >> 16) & 0xFF,
        (lots >> 32) & _U32,
        (more >> 24) & 0xFF,
    )


@kernel
def write_listing(
    words: WordArray, row: int, locate: int, tracking: int, time_ns: int, stock: int, out: Buffer, at: int
) -> int:
    """Put the direct listing whose allowed range and auction collar are in the two rows behind `row`."""
    near = price4_of(words[row, PAYLOAD_WORD])
    minimum = price4_of(words[row + 1, PAYLOAD_WORD + 1])
    maximum = price4_of(words[row + 1, PAYLOAD_WORD + 2])
    lower = price4_of(words[row + 2, PAYLOAD_WORD + 1])
    upper = price4_of(words[row + 2, PAYLOAD_WORD + 2])
    if min(near, minimum, maximum, lower, upper) < 0:
        return -BAD_PRICE
    eligible = words[row, PAYLOAD_WORD + 2] & 0xFF
    near_time = words[row, PAYLOAD_WORD + 1]
    return write_direct_listing(
        out, at, locate, tracking, time_ns, stock, eligible, minimum, maximum, near, near_time, lower, upper
    )


@kernel
def write_imbalance(
    words: WordArray, row: int, locate: int, tracking: int, time_ns: int, stock: int, out: Buffer, at: int
) -> int:
    """Put the imbalance whose near and far prices are in the row behind `row`."""
    reference = price4_of(words[row, PAYLOAD_WORD + 2])
    near = price4_of(words[row + 1, PAYLOAD_WORD])
    far = price4_of(words[row + 1, PAYLOAD_WORD + 1])
    if min(reference, near, far) < 0:
        return -BAD_PRICE
    last = words[row, PAYLOAD_WORD + 3]
    return write_net_order_imbalance(
        out,
        at,
        locate,
        tracking,
        time_ns,
        words[row, PAYLOAD_WORD],
        words[row, PAYLOAD_WORD + 1],
        last & 0xFF,
        stock,
        far,
        near,
        reference,
        (last >> 8) & 0xFF,
        (last >> 16) & 0xFF,
    )


@kernel
def encode_message(
    words: WordArray,
    row: int,
    frame_count: int,
    midnight_ns: int,
    directory: IntArray,
    out: Buffer,
    at: int,
) -> int:
    """Put the message that begins with frame `row` at `at`; return its end, or minus a reason."""
    schema = schema_of(words, row)
    if schema == UNPARSED:
        return write_unparsed(words, row, out, at)
    p0 = words[row, PAYLOAD_WORD]
    p1 = words[row, PAYLOAD_WORD + 1]
    p2 = words[row, PAYLOAD_WORD + 2]
    p3 = words[row, PAYLOAD_WORD + 3]
    tracking = (p3 >> 48) & 0xFFFF
    time_ns = words[row, 4] - midnight_ns
    locate = words[row, 6] & _U32
    if time_ns < 0 or time_ns > m.TIME_MASK:
        return -BAD_TIME
    if locate >= m.LOCATE_COUNT:
        return -BAD_INSTRUMENT
    stock = directory[locate]

    if schema == ORDER_DELETE:
        return write_order_delete(out, at, locate, tracking, time_ns, p0)
    if schema == ORDER_CANCEL:
        return write_order_cancel(out, at, locate, tracking, time_ns, p0, p3 & _U32)
    if schema == ORDER_EXECUTE:
        is_printable = (p3 >> 32) & 0xFF
        if (p3 >> 40) & 0xFF == 0:
            if is_printable == 0:
                return -NOT_ITCH  # an execution without a price is always printed
            return write_order_executed(out, at, locate, tracking, time_ns, p0, p3 & _U32, p1)
        price = price4_of(p2)
        if price < 0:
            return -BAD_PRICE
        printable = _YES if is_printable else _NO
        return write_order_executed_priced(
            out, at, locate, tracking, time_ns, p0, p3 & _U32, p1, printable, price
        )
    if schema == ORDER_REPLACE:
        price = price4_of(p2)
        if price < 0:
            return -BAD_PRICE
        return write_order_replace(out, at, locate, tracking, time_ns, p0, p1, p3 & _U32, price)
    if schema == TRADE_BREAK:
        return write_broken_trade(out, at, locate, tracking, time_ns, p2)
    if schema == STATUS:
        return write_status(words, row, locate, tracking, time_ns, stock, out, at)
    if schema == INSTRUMENT:
        return write_instrument(words, row, locate, tracking, time_ns, out, at)
    if schema == BREAKER_LEVELS:
        if min(p0, p1, p2) < 0 or p0 % PRICE8_STEP or p1 % PRICE8_STEP or p2 % PRICE8_STEP:
            return -BAD_PRICE
        return write_breaker_levels(
            out, at, locate, tracking, time_ns, p0 // PRICE8_STEP, p1 // PRICE8_STEP, p2 // PRICE8_STEP
        )
    if schema == IPO:
        price = price4_of(p0)
        if price < 0:
            return -BAD_PRICE
        return write_ipo_quoting(
            out,
            at,
            locate,
            tracking,
            time_ns,
            pad_spaces(p2, 8),
            p1 & _U32,
            (p1 >> 32) & 0xFF,
            price,
        )

    # The rest name their stock, which only the directory knows.
    if stock == 0:
        return -NO_SYMBOL
    if schema == ORDER_ADD:
        price = price4_of(p1)
        if price < 0:
            return -BAD_PRICE
        shares = p2 & _U32
        if (p3 >> 8) & 0xFF == 0:
            return write_add_order(out, at, locate, tracking, time_ns, p0, p3 & 0xFF, shares, stock, price)
        attribution = pad_spaces((p2 >> 32) & _U32, 4)
        return write_add_order_attributed(
            out, at, locate, tracking, time_ns, p0, p3 & 0xFF, shares, stock, price, attribution
        )
    if schema == TRADE:
        price = price4_of(p0)
        if price < 0:
            return -BAD_PRICE
        side = (p3 >> 32) & 0xFF
        return write_trade(out, at, locate, tracking, time_ns, p1, side, p3 & _U32, stock, price, p2)
    if schema == CROSS:
        price = price4_of(p0)
        if price < 0:
            return -BAD_PRICE
        return write_cross_trade(out, at, locate, tracking, time_ns, p1, stock, price, p2, p3 & 0xFF)
    if schema == PARTICIPANT:
        return write_participant_position(
            out,
            at,
            locate,
            tracking,
            time_ns,
            pad_spaces(p0 & _U32, 4),
            stock,
            (p0 >> 32) & 0xFF,
            (p0 >> 40) & 0xFF,
            (p0 >> 48) & 0xFF,
        )
    if schema == AUCTION:
        if not part_follows(words, row, frame_count, 1, AUCTION_PRICES):
            return -PARTS_MISSING
        return write_imbalance(words, row, locate, tracking, time_ns, stock, out, at)
    if schema == DIRECT_LISTING:
        has_parts = (
            part_follows(words, row, frame_count, 1, COLLAR)
            and part_follows(words, row, frame_count, 2, COLLAR)
            and (words[row + 1, PAYLOAD_WORD + 3] >> 32) & 0xFF == _COLLAR_DIRECT
            and (words[row + 2, PAYLOAD_WORD + 3] >> 32) & 0xFF == _COLLAR_AUCTION
        )
        if not has_parts:
            return -PARTS_MISSING
        return write_listing(words, row, locate, tracking, time_ns, stock, out, at)
    if schema == COLLAR and (p3 >> 32) & 0xFF == _COLLAR_LIMIT:
        reference = price4_of(p0)
        lower = price4_of(p1)
        upper = price4_of(p2)
        if min(reference, lower, upper) < 0:
            return -BAD_PRICE
        return write_auction_collar(
            out, at, locate, tracking, time_ns, stock, reference, upper, lower, p3 & _U32
        )
    return -NOT_ITCH


@kernel
def frames_of_schema(schema: int) -> int:
    """Return how many frames a message has whose first frame is of `schema`."""
    if schema == AUCTION:
        return 2
    if schema == DIRECT_LISTING:
        return 3
    return 1


@kernel
def encode_frames_kernel(
    words: WordArray, first_row: int, midnight_ns: int, directory: IntArray, out: Buffer, status: IntArray
) -> int:
    """Write the blocks of the frames from `first_row` on into `out`; return the bytes written.

    It stops before the first frame that it cannot write, with the row and the reason in `status`.
    """
    frame_count = words.shape[0]
    row = first_row
    at = 0
    messages = 0
    reason = ENCODED
    while row < frame_count:
        if at + m.BLOCK_BYTES_MAX > out.size:
            reason = OUTPUT_FULL
            break
        end = encode_message(words, row, frame_count, midnight_ns, directory, out, at)
        if end < 0:
            reason = -end
            break
        row += frames_of_schema(schema_of(words, row))
        at = end
        messages += 1
    status[STATUS_ROW] = row
    status[STATUS_REASON] = reason
    status[STATUS_MESSAGES] = messages
    return at


def warm_up() -> None:
    encode_frames_kernel(
        np.zeros((1, FRAME_WORDS), dtype=np.int64),
        0,
        0,
        np.zeros(m.LOCATE_COUNT, dtype=np.int64),
        np.zeros(m.BLOCK_BYTES_MAX, dtype=np.uint8),
        np.zeros(STATUS_FIELDS, dtype=np.int64),
    )
