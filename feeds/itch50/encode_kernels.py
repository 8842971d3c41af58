"""Writers of ITCH 5.0 bytes: one function per message type, each puts a whole block and returns its end.

A block is the two-byte length and the message, as files and MoldUDP64 packets carry it. Values are in ITCH's
own units: times in ns since midnight, prices in 1e-4 dollars. Text arrives as the little-endian word of its
bytes, already padded with spaces (`padded_word(b"AAPL", 8)`), so that a caller pads a symbol once and not
once per order. The caller has made sure that BLOCK_BYTES_MAX bytes fit behind `at`.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.itch50 import messages as m
from feeds.memory_kernels import (
    Buffer,
    store_be16,
    store_be32,
    store_be64,
    store_byte,
    store_le16,
    store_le32,
    store_le64,
)

_SIZE_S = m.SIZE_OF_TYPE[m.SYSTEM_EVENT]
_SIZE_R = m.SIZE_OF_TYPE[m.STOCK_DIRECTORY]
_SIZE_H = m.SIZE_OF_TYPE[m.TRADING_ACTION]
_SIZE_Y = m.SIZE_OF_TYPE[m.REG_SHO]
_SIZE_L = m.SIZE_OF_TYPE[m.PARTICIPANT_POSITION]
_SIZE_V = m.SIZE_OF_TYPE[m.BREAKER_LEVELS]
_SIZE_W = m.SIZE_OF_TYPE[m.BREAKER_STATUS]
_SIZE_K = m.SIZE_OF_TYPE[m.IPO_QUOTING]
_SIZE_J = m.SIZE_OF_TYPE[m.AUCTION_COLLAR]
_SIZE_HALT = m.SIZE_OF_TYPE[m.OPERATIONAL_HALT]
_SIZE_A = m.SIZE_OF_TYPE[m.ADD_ORDER]
_SIZE_F = m.SIZE_OF_TYPE[m.ADD_ORDER_ATTRIBUTED]
_SIZE_E = m.SIZE_OF_TYPE[m.ORDER_EXECUTED]
_SIZE_C = m.SIZE_OF_TYPE[m.ORDER_EXECUTED_PRICED]
_SIZE_X = m.SIZE_OF_TYPE[m.ORDER_CANCEL]
_SIZE_D = m.SIZE_OF_TYPE[m.ORDER_DELETE]
_SIZE_U = m.SIZE_OF_TYPE[m.ORDER_REPLACE]
_SIZE_P = m.SIZE_OF_TYPE[m.TRADE]
_SIZE_Q = m.SIZE_OF_TYPE[m.CROSS_TRADE]
_SIZE_B = m.SIZE_OF_TYPE[m.BROKEN_TRADE]
_SIZE_I = m.SIZE_OF_TYPE[m.NET_ORDER_IMBALANCE]
_SIZE_N = m.SIZE_OF_TYPE[m.RETAIL_INTEREST]
_SIZE_O = m.SIZE_OF_TYPE[m.DIRECT_LISTING]


def padded_word(text: bytes, byte_count: int) -> int:
    """Return `text` padded with spaces to `byte_count` bytes, as the signed word that the writers take."""
    assert len(text) <= byte_count <= 8, f"{text!r} does not fit {byte_count} bytes"
    return int.from_bytes(text.ljust(byte_count), "little", signed=byte_count == 8)


@kernel
def write_head(
    buffer: Buffer, at: int, size: int, letter: int, locate: int, tracking: int, time_ns: int
) -> int:
    """Put the length and the common head; return where the message itself begins."""
    store_be16(buffer, at, size)
    start = at + m.PREFIX_BYTES
    store_byte(buffer, start, letter)
    store_be16(buffer, start + m.AT_LOCATE, locate)
    store_be16(buffer, start + m.AT_TRACKING, tracking)
    store_be16(buffer, start + m.AT_TIME, time_ns >> 32)
    store_be32(buffer, start + m.AT_TIME + 2, time_ns)
    return start


@kernel
def write_system_event(buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, event: int) -> int:
    start = write_head(buffer, at, _SIZE_S, m.SYSTEM_EVENT, locate, tracking, time_ns)
    store_byte(buffer, start + m.AT_EVENT, event)
    return start + _SIZE_S


@kernel
def write_stock_directory(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    stock: int,
    market_category: int,
    financial_status: int,
    round_lot: int,
    round_lots_only: int,
    issue_class: int,
    issue_subtype: int,
    authenticity: int,
    short_sale_threshold: int,
    ipo: int,
    luld_tier: int,
    etp: int,
    leverage: int,
    inverse: int,
) -> int:
    start = write_head(buffer, at, _SIZE_R, m.STOCK_DIRECTORY, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_DIRECTORY_STOCK, stock)
    store_byte(buffer, start + m.AT_DIRECTORY_MARKET_CATEGORY, market_category)
    store_byte(buffer, start + m.AT_DIRECTORY_FINANCIAL_STATUS, financial_status)
    store_be32(buffer, start + m.AT_DIRECTORY_ROUND_LOT, round_lot)
    store_byte(buffer, start + m.AT_DIRECTORY_ROUND_LOTS_ONLY, round_lots_only)
    store_byte(buffer, start + m.AT_DIRECTORY_ISSUE_CLASS, issue_class)
    store_le16(buffer, start + m.AT_DIRECTORY_ISSUE_SUBTYPE, issue_subtype)
    store_byte(buffer, start + m.AT_DIRECTORY_AUTHENTICITY, authenticity)
    store_byte(buffer, start + m.AT_DIRECTORY_SHORT_SALE_THRESHOLD, short_sale_threshold)
    store_byte(buffer, start + m.AT_DIRECTORY_IPO, ipo)
    store_byte(buffer, start + m.AT_DIRECTORY_LULD_TIER, luld_tier)
    store_byte(buffer, start + m.AT_DIRECTORY_ETP, etp)
    store_be32(buffer, start + m.AT_DIRECTORY_LEVERAGE, leverage)
    store_byte(buffer, start + m.AT_DIRECTORY_INVERSE, inverse)
    return start + _SIZE_R


@kernel
def write_trading_action(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    stock: int,
    state: int,
    reserved: int,
    reason: int,
) -> int:
    start = write_head(buffer, at, _SIZE_H, m.TRADING_ACTION, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_STATE_STOCK, stock)
    store_byte(buffer, start + m.AT_STATE, state)
    store_byte(buffer, start + m.AT_ACTION_RESERVED, reserved)
    store_le32(buffer, start + m.AT_ACTION_REASON, reason)
    return start + _SIZE_H


@kernel
def write_reg_sho(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, stock: int, action: int
) -> int:
    start = write_head(buffer, at, _SIZE_Y, m.REG_SHO, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_STATE_STOCK, stock)
    store_byte(buffer, start + m.AT_STATE, action)
    return start + _SIZE_Y


@kernel
def write_participant_position(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    mpid: int,
    stock: int,
    primary: int,
    mode: int,
    state: int,
) -> int:
    start = write_head(buffer, at, _SIZE_L, m.PARTICIPANT_POSITION, locate, tracking, time_ns)
    store_le32(buffer, start + m.AT_POSITION_MPID, mpid)
    store_le64(buffer, start + m.AT_POSITION_STOCK, stock)
    store_byte(buffer, start + m.AT_POSITION_PRIMARY, primary)
    store_byte(buffer, start + m.AT_POSITION_MODE, mode)
    store_byte(buffer, start + m.AT_POSITION_STATE, state)
    return start + _SIZE_L


@kernel
def write_breaker_levels(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    level1_e8: int,
    level2_e8: int,
    level3_e8: int,
) -> int:
    start = write_head(buffer, at, _SIZE_V, m.BREAKER_LEVELS, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_LEVEL_1, level1_e8)
    store_be64(buffer, start + m.AT_LEVEL_2, level2_e8)
    store_be64(buffer, start + m.AT_LEVEL_3, level3_e8)
    return start + _SIZE_V


@kernel
def write_breaker_status(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, level: int
) -> int:
    start = write_head(buffer, at, _SIZE_W, m.BREAKER_STATUS, locate, tracking, time_ns)
    store_byte(buffer, start + m.AT_EVENT, level)
    return start + _SIZE_W


@kernel
def write_ipo_quoting(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    stock: int,
    release_s: int,
    qualifier: int,
    price: int,
) -> int:
    start = write_head(buffer, at, _SIZE_K, m.IPO_QUOTING, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_IPO_STOCK, stock)
    store_be32(buffer, start + m.AT_IPO_RELEASE, release_s)
    store_byte(buffer, start + m.AT_IPO_QUALIFIER, qualifier)
    store_be32(buffer, start + m.AT_IPO_PRICE, price)
    return start + _SIZE_K


@kernel
def write_auction_collar(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    stock: int,
    reference: int,
    upper: int,
    lower: int,
    extension: int,
) -> int:
    start = write_head(buffer, at, _SIZE_J, m.AUCTION_COLLAR, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_COLLAR_STOCK, stock)
    store_be32(buffer, start + m.AT_COLLAR_REFERENCE, reference)
    store_be32(buffer, start + m.AT_COLLAR_UPPER, upper)
    store_be32(buffer, start + m.AT_COLLAR_LOWER, lower)
    store_be32(buffer, start + m.AT_COLLAR_EXTENSION, extension)
    return start + _SIZE_J


@kernel
def write_operational_halt(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, stock: int, market: int, action: int
) -> int:
    start = write_head(buffer, at, _SIZE_HALT, m.OPERATIONAL_HALT, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_STATE_STOCK, stock)
    store_byte(buffer, start + m.AT_HALT_MARKET, market)
    store_byte(buffer, start + m.AT_HALT_ACTION, action)
    return start + _SIZE_HALT


@kernel
def write_add_order(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    order: int,
    side: int,
    shares: int,
    stock: int,
    price: int,
) -> int:
    start = write_head(buffer, at, _SIZE_A, m.ADD_ORDER, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_ADD_ORDER, order)
    store_byte(buffer, start + m.AT_ADD_SIDE, side)
    store_be32(buffer, start + m.AT_ADD_SHARES, shares)
    store_le64(buffer, start + m.AT_ADD_STOCK, stock)
    store_be32(buffer, start + m.AT_ADD_PRICE, price)
    return start + _SIZE_A


@kernel
def write_add_order_attributed(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    order: int,
    side: int,
    shares: int,
    stock: int,
    price: int,
    attribution: int,
) -> int:
    start = write_head(buffer, at, _SIZE_F, m.ADD_ORDER_ATTRIBUTED, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_ADD_ORDER, order)
    store_byte(buffer, start + m.AT_ADD_SIDE, side)
    store_be32(buffer, start + m.AT_ADD_SHARES, shares)
    store_le64(buffer, start + m.AT_ADD_STOCK, stock)
    store_be32(buffer, start + m.AT_ADD_PRICE, price)
    store_le32(buffer, start + m.AT_ADD_ATTRIBUTION, attribution)
    return start + _SIZE_F


@kernel
def write_order_executed(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, order: int, shares: int, match: int
) -> int:
    start = write_head(buffer, at, _SIZE_E, m.ORDER_EXECUTED, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_EXECUTE_ORDER, order)
    store_be32(buffer, start + m.AT_EXECUTE_SHARES, shares)
    store_be64(buffer, start + m.AT_EXECUTE_MATCH, match)
    return start + _SIZE_E


@kernel
def write_order_executed_priced(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    order: int,
    shares: int,
    match: int,
    printable: int,
    price: int,
) -> int:
    start = write_head(buffer, at, _SIZE_C, m.ORDER_EXECUTED_PRICED, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_EXECUTE_ORDER, order)
    store_be32(buffer, start + m.AT_EXECUTE_SHARES, shares)
    store_be64(buffer, start + m.AT_EXECUTE_MATCH, match)
    store_byte(buffer, start + m.AT_EXECUTE_PRINTABLE, printable)
    store_be32(buffer, start + m.AT_EXECUTE_PRICE, price)
    return start + _SIZE_C


@kernel
def write_order_cancel(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, order: int, shares: int
) -> int:
    start = write_head(buffer, at, _SIZE_X, m.ORDER_CANCEL, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_REDUCE_ORDER, order)
    store_be32(buffer, start + m.AT_REDUCE_SHARES, shares)
    return start + _SIZE_X


@kernel
def write_order_delete(buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, order: int) -> int:
    start = write_head(buffer, at, _SIZE_D, m.ORDER_DELETE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_REDUCE_ORDER, order)
    return start + _SIZE_D


@kernel
def write_order_replace(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    order: int,
    new_order: int,
    shares: int,
    price: int,
) -> int:
    start = write_head(buffer, at, _SIZE_U, m.ORDER_REPLACE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_REPLACE_ORDER, order)
    store_be64(buffer, start + m.AT_REPLACE_NEW_ORDER, new_order)
    store_be32(buffer, start + m.AT_REPLACE_SHARES, shares)
    store_be32(buffer, start + m.AT_REPLACE_PRICE, price)
    return start + _SIZE_U


@kernel
def write_trade(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    order: int,
    side: int,
    shares: int,
    stock: int,
    price: int,
    match: int,
) -> int:
    start = write_head(buffer, at, _SIZE_P, m.TRADE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_ADD_ORDER, order)
    store_byte(buffer, start + m.AT_ADD_SIDE, side)
    store_be32(buffer, start + m.AT_ADD_SHARES, shares)
    store_le64(buffer, start + m.AT_ADD_STOCK, stock)
    store_be32(buffer, start + m.AT_ADD_PRICE, price)
    store_be64(buffer, start + m.AT_TRADE_MATCH, match)
    return start + _SIZE_P


@kernel
def write_cross_trade(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    shares: int,
    stock: int,
    price: int,
    match: int,
    cross_type: int,
) -> int:
    start = write_head(buffer, at, _SIZE_Q, m.CROSS_TRADE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_CROSS_SHARES, shares)
    store_le64(buffer, start + m.AT_CROSS_STOCK, stock)
    store_be32(buffer, start + m.AT_CROSS_PRICE, price)
    store_be64(buffer, start + m.AT_CROSS_MATCH, match)
    store_byte(buffer, start + m.AT_CROSS_TYPE, cross_type)
    return start + _SIZE_Q


@kernel
def write_broken_trade(buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, match: int) -> int:
    start = write_head(buffer, at, _SIZE_B, m.BROKEN_TRADE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_BROKEN_MATCH, match)
    return start + _SIZE_B


@kernel
def write_net_order_imbalance(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    paired: int,
    imbalance: int,
    direction: int,
    stock: int,
    far: int,
    near: int,
    reference: int,
    cross_type: int,
    variation: int,
) -> int:
    start = write_head(buffer, at, _SIZE_I, m.NET_ORDER_IMBALANCE, locate, tracking, time_ns)
    store_be64(buffer, start + m.AT_IMBALANCE_PAIRED, paired)
    store_be64(buffer, start + m.AT_IMBALANCE_SHARES, imbalance)
    store_byte(buffer, start + m.AT_IMBALANCE_DIRECTION, direction)
    store_le64(buffer, start + m.AT_IMBALANCE_STOCK, stock)
    store_be32(buffer, start + m.AT_IMBALANCE_FAR, far)
    store_be32(buffer, start + m.AT_IMBALANCE_NEAR, near)
    store_be32(buffer, start + m.AT_IMBALANCE_REFERENCE, reference)
    store_byte(buffer, start + m.AT_IMBALANCE_CROSS_TYPE, cross_type)
    store_byte(buffer, start + m.AT_IMBALANCE_VARIATION, variation)
    return start + _SIZE_I


@kernel
def write_retail_interest(
    buffer: Buffer, at: int, locate: int, tracking: int, time_ns: int, stock: int, interest: int
) -> int:
    start = write_head(buffer, at, _SIZE_N, m.RETAIL_INTEREST, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_STATE_STOCK, stock)
    store_byte(buffer, start + m.AT_STATE, interest)
    return start + _SIZE_N


@kernel
def write_direct_listing(
    buffer: Buffer,
    at: int,
    locate: int,
    tracking: int,
    time_ns: int,
    stock: int,
    eligible: int,
    minimum: int,
    maximum: int,
    near: int,
    near_time: int,
    lower: int,
    upper: int,
) -> int:
    start = write_head(buffer, at, _SIZE_O, m.DIRECT_LISTING, locate, tracking, time_ns)
    store_le64(buffer, start + m.AT_LISTING_STOCK, stock)
    store_byte(buffer, start + m.AT_LISTING_ELIGIBLE, eligible)
    store_be32(buffer, start + m.AT_LISTING_MIN, minimum)
    store_be32(buffer, start + m.AT_LISTING_MAX, maximum)
    store_be32(buffer, start + m.AT_LISTING_NEAR, near)
    store_be64(buffer, start + m.AT_LISTING_NEAR_TIME, near_time)
    store_be32(buffer, start + m.AT_LISTING_LOWER, lower)
    store_be32(buffer, start + m.AT_LISTING_UPPER, upper)
    return start + _SIZE_O


# Text for the warm-up, which doubles as a sample of every type: it must be valid ITCH.
_SAMPLE_STOCK = padded_word(b"TWIN", 8)
_SAMPLE_MPID = padded_word(b"MMKR", 4)
_SAMPLE_REASON = padded_word(b"T1", 4)
_SAMPLE_SUBTYPE = padded_word(b"Z", 2)


@kernel
def exercise_kernel(buffer: Buffer, at: int) -> int:
    """Write one block of every type and return where they end, so that the warm-up compiles them all."""
    stock = _SAMPLE_STOCK
    at = write_system_event(buffer, at, 0, 0, 1, 79)
    at = write_stock_directory(
        buffer, at, 1, 0, 1, stock, 81, 78, 100, 78, 67, _SAMPLE_SUBTYPE, 80, 78, 78, 49, 78, 0, 78
    )
    at = write_trading_action(buffer, at, 1, 0, 1, stock, 84, 32, _SAMPLE_REASON)
    at = write_reg_sho(buffer, at, 1, 0, 1, stock, 48)
    at = write_participant_position(buffer, at, 1, 0, 1, _SAMPLE_MPID, stock, 89, 78, 65)
    at = write_breaker_levels(buffer, at, 0, 0, 1, 3, 2, 1)
    at = write_breaker_status(buffer, at, 0, 0, 1, 49)
    at = write_ipo_quoting(buffer, at, 0, 0, 1, stock, 34_200, 65, 1)
    at = write_auction_collar(buffer, at, 1, 0, 1, stock, 2, 3, 1, 0)
    at = write_operational_halt(buffer, at, 1, 0, 1, stock, 81, 72)
    at = write_add_order(buffer, at, 1, 0, 1, 1, 66, 100, stock, 1)
    at = write_add_order_attributed(buffer, at, 1, 0, 1, 2, 83, 100, stock, 1, _SAMPLE_MPID)
    at = write_order_executed(buffer, at, 1, 0, 1, 1, 10, 1)
    at = write_order_executed_priced(buffer, at, 1, 0, 1, 1, 10, 2, 89, 1)
    at = write_order_cancel(buffer, at, 1, 0, 1, 1, 10)
    at = write_order_replace(buffer, at, 1, 0, 1, 1, 3, 10, 1)
    at = write_order_delete(buffer, at, 1, 0, 1, 2)
    at = write_trade(buffer, at, 1, 0, 1, 0, 66, 10, stock, 1, 3)
    at = write_cross_trade(buffer, at, 1, 0, 1, 10, stock, 1, 4, 79)
    at = write_broken_trade(buffer, at, 1, 0, 1, 4)
    at = write_net_order_imbalance(buffer, at, 1, 0, 1, 10, 5, 66, stock, 1, 1, 1, 79, 76)
    at = write_retail_interest(buffer, at, 1, 0, 1, stock, 65)
    return write_direct_listing(buffer, at, 1, 0, 1, stock, 89, 1, 3, 2, 1, 1, 3)


def warm_up() -> None:
    buffer = np.zeros(len(m.MESSAGE_TYPES) * m.BLOCK_BYTES_MAX, dtype=np.uint8)
    exercise_kernel(buffer, 0)
