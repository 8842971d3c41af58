"""Writers of IEX message bytes: one function per message type, each puts a whole block and returns its end.

A block is the two-byte length and the message, as segments carry it. Values are in IEX's own units: times in
ns since 1970 UTC, prices in 1e-4 dollars. Text arrives as the little-endian word of its bytes, already padded
with spaces (`directory.symbol_word`). The caller has made sure that BLOCK_BYTES_MAX bytes fit behind `at`.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.iex import messages as m
from feeds.memory_kernels import Buffer, store_byte, store_le16, store_le32, store_le64

_SIZE_S = m.SIZE_OF_TYPE[m.SYSTEM_EVENT]
_SIZE_D = m.SIZE_OF_TYPE[m.DIRECTORY]
_SIZE_H = m.SIZE_OF_TYPE[m.TRADING_STATUS]
_SIZE_I = m.SIZE_OF_TYPE[m.RETAIL_INTEREST]
_SIZE_O = m.SIZE_OF_TYPE[m.OPERATIONAL_HALT]
_SIZE_P = m.SIZE_OF_TYPE[m.SHORT_SALE]
_SIZE_E = m.SIZE_OF_TYPE[m.SECURITY_EVENT]
_SIZE_LEVEL = m.SIZE_OF_TYPE[m.LEVEL_BUY]  # the same for selling
_SIZE_TRADE = m.SIZE_OF_TYPE[m.TRADE]  # the same for a break
_SIZE_X = m.SIZE_OF_TYPE[m.OFFICIAL_PRICE]
_SIZE_A = m.SIZE_OF_TYPE[m.AUCTION]
_SIZE_Q = m.SIZE_OF_TYPE[m.QUOTE]

_WARM_UP_SYMBOL = int.from_bytes(b"WARMUP  ", "little")


@kernel
def write_head(buffer: Buffer, at: int, size: int, letter: int, code: int, time_ns: int) -> int:
    """Put the length and what all messages begin with; return where the message itself begins."""
    store_le16(buffer, at, size)
    start = at + m.PREFIX_BYTES
    store_byte(buffer, start, letter)
    store_byte(buffer, start + m.AT_CODE, code)
    store_le64(buffer, start + m.AT_TIME, time_ns)
    return start


@kernel
def write_system_event(buffer: Buffer, at: int, event: int, time_ns: int) -> int:
    return write_head(buffer, at, _SIZE_S, m.SYSTEM_EVENT, event, time_ns) + _SIZE_S


@kernel
def write_directory(
    buffer: Buffer,
    at: int,
    flags: int,
    time_ns: int,
    symbol: int,
    round_lot: int,
    close: int,
    luld_tier: int,
) -> int:
    start = write_head(buffer, at, _SIZE_D, m.DIRECTORY, flags, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_DIRECTORY_ROUND_LOT, round_lot)
    store_le64(buffer, start + m.AT_DIRECTORY_CLOSE, close)
    store_byte(buffer, start + m.AT_DIRECTORY_LULD_TIER, luld_tier)
    return start + _SIZE_D


@kernel
def write_trading_status(buffer: Buffer, at: int, status: int, time_ns: int, symbol: int, reason: int) -> int:
    start = write_head(buffer, at, _SIZE_H, m.TRADING_STATUS, status, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_STATUS_REASON, reason)
    return start + _SIZE_H


@kernel
def write_retail_interest(buffer: Buffer, at: int, interest: int, time_ns: int, symbol: int) -> int:
    start = write_head(buffer, at, _SIZE_I, m.RETAIL_INTEREST, interest, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    return start + _SIZE_I


@kernel
def write_operational_halt(buffer: Buffer, at: int, status: int, time_ns: int, symbol: int) -> int:
    start = write_head(buffer, at, _SIZE_O, m.OPERATIONAL_HALT, status, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    return start + _SIZE_O


@kernel
def write_short_sale(buffer: Buffer, at: int, status: int, time_ns: int, symbol: int, detail: int) -> int:
    """`status` is binary: 0 or 1."""
    start = write_head(buffer, at, _SIZE_P, m.SHORT_SALE, status, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_byte(buffer, start + m.AT_SHORT_SALE_DETAIL, detail)
    return start + _SIZE_P


@kernel
def write_security_event(buffer: Buffer, at: int, event: int, time_ns: int, symbol: int) -> int:
    start = write_head(buffer, at, _SIZE_E, m.SECURITY_EVENT, event, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    return start + _SIZE_E


@kernel
def write_level(
    buffer: Buffer, at: int, letter: int, flags: int, time_ns: int, symbol: int, size: int, price: int
) -> int:
    """`letter` is LEVEL_BUY or LEVEL_SELL."""
    start = write_head(buffer, at, _SIZE_LEVEL, letter, flags, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_SIZE, size)
    store_le64(buffer, start + m.AT_PRICE, price)
    return start + _SIZE_LEVEL


@kernel
def write_trade(
    buffer: Buffer,
    at: int,
    letter: int,
    flags: int,
    time_ns: int,
    symbol: int,
    size: int,
    price: int,
    trade_id: int,
) -> int:
    """`letter` is TRADE or TRADE_BREAK."""
    start = write_head(buffer, at, _SIZE_TRADE, letter, flags, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_SIZE, size)
    store_le64(buffer, start + m.AT_PRICE, price)
    store_le64(buffer, start + m.AT_TRADE_ID, trade_id)
    return start + _SIZE_TRADE


@kernel
def write_official_price(
    buffer: Buffer, at: int, price_type: int, time_ns: int, symbol: int, price: int
) -> int:
    start = write_head(buffer, at, _SIZE_X, m.OFFICIAL_PRICE, price_type, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le64(buffer, start + m.AT_OFFICIAL_PRICE, price)
    return start + _SIZE_X


@kernel
def write_auction(
    buffer: Buffer,
    at: int,
    auction_type: int,
    time_ns: int,
    symbol: int,
    paired: int,
    reference: int,
    indicative: int,
    imbalance: int,
    side: int,
    extensions: int,
    scheduled_s: int,
    clearing: int,
    collar_reference: int,
    collar_lower: int,
    collar_upper: int,
) -> int:
    start = write_head(buffer, at, _SIZE_A, m.AUCTION, auction_type, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_AUCTION_PAIRED, paired)
    store_le64(buffer, start + m.AT_AUCTION_REFERENCE, reference)
    store_le64(buffer, start + m.AT_AUCTION_INDICATIVE, indicative)
    store_le32(buffer, start + m.AT_AUCTION_IMBALANCE, imbalance)
    store_byte(buffer, start + m.AT_AUCTION_SIDE, side)
    store_byte(buffer, start + m.AT_AUCTION_EXTENSIONS, extensions)
    store_le32(buffer, start + m.AT_AUCTION_SCHEDULED, scheduled_s)
    store_le64(buffer, start + m.AT_AUCTION_CLEARING, clearing)
    store_le64(buffer, start + m.AT_AUCTION_COLLAR_REFERENCE, collar_reference)
    store_le64(buffer, start + m.AT_AUCTION_COLLAR_LOWER, collar_lower)
    store_le64(buffer, start + m.AT_AUCTION_COLLAR_UPPER, collar_upper)
    return start + _SIZE_A


@kernel
def write_quote(
    buffer: Buffer,
    at: int,
    flags: int,
    time_ns: int,
    symbol: int,
    bid_size: int,
    bid_price: int,
    ask_price: int,
    ask_size: int,
) -> int:
    start = write_head(buffer, at, _SIZE_Q, m.QUOTE, flags, time_ns)
    store_le64(buffer, start + m.AT_SYMBOL, symbol)
    store_le32(buffer, start + m.AT_QUOTE_BID_SIZE, bid_size)
    store_le64(buffer, start + m.AT_QUOTE_BID_PRICE, bid_price)
    store_le64(buffer, start + m.AT_QUOTE_ASK_PRICE, ask_price)
    store_le32(buffer, start + m.AT_QUOTE_ASK_SIZE, ask_size)
    return start + _SIZE_Q


@kernel
def exercise_kernel(buffer: Buffer, at: int) -> int:
    """Write one block of every type and return where they end, so that the warm-up compiles them all."""
    symbol = _WARM_UP_SYMBOL
    at = write_system_event(buffer, at, 79, 1)
    at = write_directory(buffer, at, 0x80, 1, symbol, 100, 10_000, 1)
    at = write_trading_status(buffer, at, 84, 1, symbol, 0x20202020)
    at = write_retail_interest(buffer, at, 32, 1, symbol)
    at = write_operational_halt(buffer, at, 78, 1, symbol)
    at = write_short_sale(buffer, at, 0, 1, symbol, 32)
    at = write_security_event(buffer, at, 79, 1, symbol)
    at = write_level(buffer, at, m.LEVEL_BUY, 1, 1, symbol, 100, 10_000)
    at = write_level(buffer, at, m.LEVEL_SELL, 1, 1, symbol, 100, 10_100)
    at = write_trade(buffer, at, m.TRADE, 0x40, 1, symbol, 100, 10_000, 1)
    at = write_official_price(buffer, at, m.PRICE_TYPE_OPEN, 1, symbol, 10_000)
    at = write_trade(buffer, at, m.TRADE_BREAK, 0x40, 1, symbol, 100, 10_000, 1)
    at = write_auction(buffer, at, 67, 1, symbol, 1, 2, 3, 4, 66, 0, 5, 6, 7, 8, 9)
    return write_quote(buffer, at, 0x40, 1, symbol, 100, 10_000, 10_100, 100)


def warm_up() -> None:
    exercise_kernel(np.zeros(len(m.MESSAGE_TYPES) * m.BLOCK_BYTES_MAX, dtype=np.uint8), 0)
