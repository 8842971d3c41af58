"""The compiled twin of wire.py: writers that put one frame's words, one function per schema.

A frame is twelve int64 words: eight of header, four of payload. The shifts below restate the offsets of
wire.py for the compiler; a test writes every field through these functions and reads it back through the
dtypes, so the two cannot drift apart. All values are int64 (see memory_kernels), text is little-endian.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import i64, kernel
from feeds.wire import FRAME_BYTES, FRAME_WORDS, PAYLOAD_WORD, VERSION, Flag, Kind, Schema, WordArray

# Enum members are not constants for the compiler: plain integers are.
KIND_DATA = int(Kind.DATA)
LAST_PART = int(Flag.LAST_PART)
TRADE = int(Schema.TRADE)
CROSS = int(Schema.CROSS)
TRADE_BREAK = int(Schema.TRADE_BREAK)
QUOTE = int(Schema.QUOTE)
ORDER_ADD = int(Schema.ORDER_ADD)
ORDER_EXECUTE = int(Schema.ORDER_EXECUTE)
ORDER_CANCEL = int(Schema.ORDER_CANCEL)
ORDER_DELETE = int(Schema.ORDER_DELETE)
ORDER_REPLACE = int(Schema.ORDER_REPLACE)
LEVEL = int(Schema.LEVEL)
STATUS = int(Schema.STATUS)
INSTRUMENT = int(Schema.INSTRUMENT)
AUCTION = int(Schema.AUCTION)
AUCTION_PRICES = int(Schema.AUCTION_PRICES)
COLLAR = int(Schema.COLLAR)
OFFICIAL_PRICE = int(Schema.OFFICIAL_PRICE)
BREAKER_LEVELS = int(Schema.BREAKER_LEVELS)
PARTICIPANT = int(Schema.PARTICIPANT)
IPO = int(Schema.IPO)
DIRECT_LISTING = int(Schema.DIRECT_LISTING)
UNPARSED = int(Schema.UNPARSED)
BOOK_BEGIN = int(Schema.BOOK_BEGIN)
BOOK_LEVEL = int(Schema.BOOK_LEVEL)
BOOK_ORDER = int(Schema.BOOK_ORDER)

_LENGTH_AND_VERSION = FRAME_BYTES | VERSION << 32
_P0 = PAYLOAD_WORD
_P1 = PAYLOAD_WORD + 1
_P2 = PAYLOAD_WORD + 2
_P3 = PAYLOAD_WORD + 3


@kernel
def put_header(
    words: WordArray,
    row: int,
    kind: int,
    flags: int,
    stream_and_session: int,  # source_stream_id | source_session << 32: the same for a whole batch
    source_seq: int,
    message_seq: int,
    event_time_ns: int,
    publish_time_ns: int,
    instrument_id: int,
    schema: int,
    part: int,
    epoch: int,
) -> None:
    words[row, 0] = _LENGTH_AND_VERSION | (kind << 40) | (flags << 48)
    words[row, 1] = stream_and_session
    words[row, 2] = source_seq
    words[row, 3] = message_seq
    words[row, 4] = event_time_ns
    words[row, 5] = publish_time_ns
    words[row, 6] = instrument_id | (schema << 32) | (part << 48)
    words[row, 7] = epoch


@kernel
def put_trade(
    words: WordArray,
    row: int,
    price: int,
    order_id: int,
    trade_id: int,
    size: int,
    side: int,
    conditions: int,
    tracking: int,
) -> None:
    """TRADE and TRADE_BREAK."""
    words[row, _P0] = price
    words[row, _P1] = order_id
    words[row, _P2] = trade_id
    words[row, _P3] = size | (side << 32) | (conditions << 40) | (tracking << 48)


@kernel
def put_cross(
    words: WordArray, row: int, price: int, size: int, trade_id: int, cross_type: int, tracking: int
) -> None:
    words[row, _P0] = price
    words[row, _P1] = size
    words[row, _P2] = trade_id
    words[row, _P3] = cross_type | (tracking << 48)


@kernel
def put_quote(
    words: WordArray,
    row: int,
    bid_price: int,
    ask_price: int,
    bid_size: int,
    ask_size: int,
    conditions: int,
    tracking: int,
) -> None:
    words[row, _P0] = bid_price
    words[row, _P1] = ask_price
    words[row, _P2] = bid_size | (ask_size << 32)
    words[row, _P3] = conditions | (tracking << 48)


@kernel
def put_order_add(
    words: WordArray,
    row: int,
    order_id: int,
    price: int,
    size: int,
    attribution: int,
    side: int,
    is_attributed: int,
    tracking: int,
) -> None:
    words[row, _P0] = order_id
    words[row, _P1] = price
    words[row, _P2] = size | (attribution << 32)
    words[row, _P3] = side | (is_attributed << 8) | (tracking << 48)


@kernel
def put_order_execute(
    words: WordArray,
    row: int,
    order_id: int,
    trade_id: int,
    price: int,
    size: int,
    is_printable: int,
    is_priced: int,
    tracking: int,
) -> None:
    words[row, _P0] = order_id
    words[row, _P1] = trade_id
    words[row, _P2] = price
    words[row, _P3] = size | (is_printable << 32) | (is_priced << 40) | (tracking << 48)


@kernel
def put_order_reduce(words: WordArray, row: int, order_id: int, size: int, tracking: int) -> None:
    """ORDER_CANCEL, and ORDER_DELETE with size 0."""
    words[row, _P0] = order_id
    words[row, _P1] = 0
    words[row, _P2] = 0
    words[row, _P3] = size | (tracking << 48)


@kernel
def put_order_replace(
    words: WordArray, row: int, order_id: int, new_order_id: int, price: int, size: int, tracking: int
) -> None:
    words[row, _P0] = order_id
    words[row, _P1] = new_order_id
    words[row, _P2] = price
    words[row, _P3] = size | (tracking << 48)


@kernel
def put_level(
    words: WordArray, row: int, price: int, size: int, side: int, is_event_complete: int, tracking: int
) -> None:
    words[row, _P0] = price
    words[row, _P1] = 0
    words[row, _P2] = 0
    words[row, _P3] = size | (side << 32) | (is_event_complete << 40) | (tracking << 48)


@kernel
def put_status(
    words: WordArray,
    row: int,
    status_type: int,
    state: int,
    market: int,
    detail: int,
    reason: int,
    tracking: int,
) -> None:
    words[row, _P0] = status_type | (state << 8) | (market << 16) | (detail << 24) | (reason << 32)
    words[row, _P1] = 0
    words[row, _P2] = 0
    words[row, _P3] = tracking << 48


@kernel
def put_instrument(
    words: WordArray,
    row: int,
    symbol: int,
    round_lot: int,
    leverage: int,
    market_category: int,
    financial_status: int,
    round_lots_only: int,
    issue_class: int,
    issue_subtype: int,
    authenticity: int,
    short_sale_threshold: int,
    ipo: int,
    luld_tier: int,
    etp: int,
    inverse: int,
    instrument_flags: int,
    tracking: int,
) -> None:
    words[row, _P0] = symbol
    words[row, _P1] = round_lot | (leverage << 32)
    words[row, _P2] = (
        market_category
        | (financial_status << 8)
        | (round_lots_only << 16)
        | (issue_class << 24)
        | (issue_subtype << 32)
        | (authenticity << 48)
        | (short_sale_threshold << 56)
    )
    words[row, _P3] = (
        ipo | (luld_tier << 8) | (etp << 16) | (inverse << 24) | (instrument_flags << 32) | (tracking << 48)
    )


@kernel
def put_auction(
    words: WordArray,
    row: int,
    paired: int,
    imbalance: int,
    reference_price: int,
    side: int,
    auction_type: int,
    variation: int,
    extensions: int,
    tracking: int,
) -> None:
    words[row, _P0] = paired
    words[row, _P1] = imbalance
    words[row, _P2] = reference_price
    words[row, _P3] = side | (auction_type << 8) | (variation << 16) | (extensions << 24) | (tracking << 48)


@kernel
def put_auction_prices(
    words: WordArray, row: int, near_price: int, far_price: int, scheduled_s: int, tracking: int
) -> None:
    words[row, _P0] = near_price
    words[row, _P1] = far_price
    words[row, _P2] = scheduled_s
    words[row, _P3] = tracking << 48


@kernel
def put_collar(
    words: WordArray,
    row: int,
    reference_price: int,
    lower_price: int,
    upper_price: int,
    extension: int,
    collar_type: int,
    tracking: int,
) -> None:
    words[row, _P0] = reference_price
    words[row, _P1] = lower_price
    words[row, _P2] = upper_price
    words[row, _P3] = extension | (collar_type << 32) | (tracking << 48)


@kernel
def put_official_price(words: WordArray, row: int, price: int, price_type: int, tracking: int) -> None:
    words[row, _P0] = price
    words[row, _P1] = price_type
    words[row, _P2] = 0
    words[row, _P3] = tracking << 48


@kernel
def put_breaker_levels(
    words: WordArray, row: int, level1_price: int, level2_price: int, level3_price: int, tracking: int
) -> None:
    words[row, _P0] = level1_price
    words[row, _P1] = level2_price
    words[row, _P2] = level3_price
    words[row, _P3] = tracking << 48


@kernel
def put_participant(
    words: WordArray, row: int, mpid: int, primary: int, mode: int, state: int, tracking: int
) -> None:
    words[row, _P0] = mpid | (primary << 32) | (mode << 40) | (state << 48)
    words[row, _P1] = 0
    words[row, _P2] = 0
    words[row, _P3] = tracking << 48


@kernel
def put_ipo(
    words: WordArray, row: int, price: int, release_s: int, qualifier: int, symbol: int, tracking: int
) -> None:
    words[row, _P0] = price
    words[row, _P1] = release_s | (qualifier << 32)
    words[row, _P2] = symbol
    words[row, _P3] = tracking << 48


@kernel
def put_direct_listing(
    words: WordArray, row: int, near_price: int, near_time: int, is_eligible: int, tracking: int
) -> None:
    words[row, _P0] = near_price
    words[row, _P1] = near_time
    words[row, _P2] = is_eligible
    words[row, _P3] = tracking << 48


@kernel
def put_unparsed(
    words: WordArray,
    row: int,
    reason: int,
    message_type: int,
    message_bytes: int,
    head0: int,
    head1: int,
    head2: int,
) -> None:
    words[row, _P0] = reason | (message_type << 8) | (message_bytes << 16)
    words[row, _P1] = head0
    words[row, _P2] = head1
    words[row, _P3] = head2


@kernel
def put_book_begin(
    words: WordArray, row: int, next_source_seq: int, order_count: int, level_count: int, state: int
) -> None:
    words[row, _P0] = next_source_seq
    words[row, _P1] = order_count | (level_count << 32)
    words[row, _P2] = state
    words[row, _P3] = 0


@kernel
def put_book_level(
    words: WordArray, row: int, price: int, size: int, order_count: int, index: int, side: int
) -> None:
    words[row, _P0] = price
    words[row, _P1] = size
    words[row, _P2] = order_count | (index << 32)
    words[row, _P3] = side


@kernel
def put_book_order(
    words: WordArray, row: int, order_id: int, price: int, size: int, index: int, side: int
) -> None:
    words[row, _P0] = order_id
    words[row, _P1] = price
    words[row, _P2] = size | (index << 32)
    words[row, _P3] = side


@kernel
def schema_of(words: WordArray, row: int) -> int:
    return i64((words[row, 6] >> 32) & 0xFFFF)


@kernel
def instrument_of(words: WordArray, row: int) -> int:
    return i64(words[row, 6] & 0xFFFFFFFF)


@kernel
def exercise_kernel(words: WordArray) -> int:
    """Call every writer once, so that the warm-up compiles them all."""
    put_header(words, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)
    put_trade(words, 0, 1, 1, 1, 1, 1, 1, 1)
    put_cross(words, 0, 1, 1, 1, 1, 1)
    put_quote(words, 0, 1, 1, 1, 1, 1, 1)
    put_order_add(words, 0, 1, 1, 1, 1, 1, 1, 1)
    put_order_execute(words, 0, 1, 1, 1, 1, 1, 1, 1)
    put_order_reduce(words, 0, 1, 1, 1)
    put_order_replace(words, 0, 1, 1, 1, 1, 1)
    put_level(words, 0, 1, 1, 1, 1, 1)
    put_status(words, 0, 1, 1, 1, 1, 1, 1)
    put_instrument(words, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    put_auction(words, 0, 1, 1, 1, 1, 1, 1, 1, 1)
    put_auction_prices(words, 0, 1, 1, 1, 1)
    put_collar(words, 0, 1, 1, 1, 1, 1, 1)
    put_official_price(words, 0, 1, 1, 1)
    put_breaker_levels(words, 0, 1, 1, 1, 1)
    put_participant(words, 0, 1, 1, 1, 1, 1)
    put_ipo(words, 0, 1, 1, 1, 1, 1)
    put_direct_listing(words, 0, 1, 1, 1, 1)
    put_unparsed(words, 0, 1, 1, 1, 1, 1, 1)
    put_book_begin(words, 0, 1, 1, 1, 1)
    put_book_level(words, 0, 1, 1, 1, 1, 1)
    put_book_order(words, 0, 1, 1, 1, 1, 1)
    return schema_of(words, 0) + instrument_of(words, 0)


def warm_up() -> None:
    exercise_kernel(np.zeros((1, FRAME_WORDS), dtype=np.int64))
