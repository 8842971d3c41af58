"""Frames back to IEX blocks: what decode_kernels did, undone byte for byte.

That a message survives the way there and back is the proof that its frames lost nothing; and it is how a
stream of frames becomes an IEX feed again. Symbols come from the directory, as most frames carry only an
instrument id. What no IEX message can say (a price finer than 1e-4, an order) stops with a reason.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import IntArray
from feeds.iex import messages as m
from feeds.iex.encode_kernels import (
    write_auction,
    write_directory,
    write_level,
    write_official_price,
    write_operational_halt,
    write_quote,
    write_retail_interest,
    write_security_event,
    write_short_sale,
    write_system_event,
    write_trade,
    write_trading_status,
)
from feeds.iex.symbol_kernels import DIRECTORY_WORDS, find_id
from feeds.memory_kernels import Buffer, pad_spaces, store_byte, store_le16
from feeds.wire import FRAME_WORDS, PAYLOAD_WORD, StatusType, WordArray
from feeds.wire_kernels import (
    AUCTION,
    AUCTION_PRICES,
    COLLAR,
    INSTRUMENT,
    LEVEL,
    OFFICIAL_PRICE,
    QUOTE,
    STATUS,
    TRADE,
    TRADE_BREAK,
    UNPARSED,
    schema_of,
)

# Why encoding stopped, in status[STATUS_REASON].
ENCODED = 0
OUTPUT_FULL = 1  # go on with the next frame and an empty output
NOT_IEX = 2
BAD_PRICE = 3
NO_SYMBOL = 4
PARTS_MISSING = 5
HEAD_ONLY = 6  # an unparsed message whose end the frame does not hold

STATUS_ROW = 0  # the first frame not encoded
STATUS_REASON = 1
STATUS_MESSAGES = 2
STATUS_FIELDS = 3

_UNPARSED_HEAD_BYTES = 24
_U32 = 0xFFFFFFFF
_BUY = ord("B")
_DIGIT_0 = ord("0")
_STATUS_SYSTEM = int(StatusType.SYSTEM)
_STATUS_TRADING = int(StatusType.TRADING)
_STATUS_SHORT_SALE = int(StatusType.SHORT_SALE)
_STATUS_OPERATIONAL = int(StatusType.OPERATIONAL)
_STATUS_RETAIL = int(StatusType.RETAIL_INTEREST)
_STATUS_SECURITY_EVENT = int(StatusType.SECURITY_EVENT)


@kernel
def is_price_e4(price: int) -> bool:
    """Return whether IEX can express our price."""
    return price % m.PRICE_FACTOR == 0


@kernel
def is_part(words: WordArray, row: int, part: int, schema: int) -> bool:
    """Return whether the frame `part` rows behind `row` is that part of the same message."""
    if row + part >= words.shape[0]:
        return False
    return bool(
        words[row + part, 6] >> 48 == part
        and schema_of(words, row + part) == schema
        and words[row + part, 2] == words[row, 2]
    )


@kernel
def symbol_of_id(directory: IntArray, instrument_id: int) -> int:
    """Return the symbol's eight bytes as a word, 0 if the directory does not know the id."""
    slot = find_id(directory, instrument_id)
    return int(directory[2 * slot]) if slot >= 0 else 0


@kernel
def write_unparsed(words: WordArray, row: int, out: Buffer, at: int) -> int:
    """Put back a message that was not understood, if the frame holds all of it; else return -HEAD_ONLY."""
    length = (words[row, PAYLOAD_WORD] >> 16) & 0xFFFF
    if length > _UNPARSED_HEAD_BYTES:
        return -HEAD_ONLY
    store_le16(out, at, length)
    for index in range(length):
        word = words[row, PAYLOAD_WORD + 1 + index // 8]
        store_byte(out, at + m.PREFIX_BYTES + index, (word >> (8 * (index % 8))) & 0xFF)
    return int(at + m.PREFIX_BYTES + length)


@kernel
def write_status(words: WordArray, row: int, time_ns: int, symbol: int, out: Buffer, at: int) -> int:
    word = words[row, PAYLOAD_WORD]
    status_type = word & 0xFF
    state = (word >> 8) & 0xFF
    if status_type == _STATUS_SYSTEM:
        return write_system_event(out, at, state, time_ns)
    if symbol == 0:
        return -NO_SYMBOL
    if status_type == _STATUS_TRADING:
        reason = pad_spaces((word >> 32) & _U32, m.REASON_BYTES)
        return write_trading_status(out, at, state, time_ns, symbol, reason)
    if status_type == _STATUS_SHORT_SALE and _DIGIT_0 <= state <= _DIGIT_0 + 1:
        return write_short_sale(out, at, state - _DIGIT_0, time_ns, symbol, (word >> 24) & 0xFF)
    if status_type == _STATUS_OPERATIONAL:
        return write_operational_halt(out, at, state, time_ns, symbol)
    if status_type == _STATUS_RETAIL:
        return write_retail_interest(out, at, state, time_ns, symbol)
    if status_type == _STATUS_SECURITY_EVENT:
        return write_security_event(out, at, state, time_ns, symbol)
    return -NOT_IEX


@kernel
def write_instrument(words: WordArray, row: int, time_ns: int, out: Buffer, at: int) -> int:
    """Put the directory message whose adjusted previous close is in the row behind `row`."""
    close = words[row + 1, PAYLOAD_WORD]
    if not is_price_e4(close):
        return -BAD_PRICE
    letters = words[row, PAYLOAD_WORD + 3]
    luld_tier = ((letters >> 8) & 0xFF) - _DIGIT_0
    if not 0 <= luld_tier <= m.LULD_TIER_MAX:
        return -NOT_IEX
    return write_directory(
        out,
        at,
        (letters >> 32) & 0xFF,
        time_ns,
        pad_spaces(words[row, PAYLOAD_WORD], m.SYMBOL_BYTES),
        words[row, PAYLOAD_WORD + 1] & _U32,
        close // m.PRICE_FACTOR,
        luld_tier,
    )


@kernel
def write_auction_parts(words: WordArray, row: int, time_ns: int, symbol: int, out: Buffer, at: int) -> int:
    """Put the auction whose prices and collar are in the two rows behind `row`."""
    reference = words[row, PAYLOAD_WORD + 2]
    indicative = words[row + 1, PAYLOAD_WORD]
    clearing = words[row + 1, PAYLOAD_WORD + 1]
    collar = words[row + 2, PAYLOAD_WORD]
    lower = words[row + 2, PAYLOAD_WORD + 1]
    upper = words[row + 2, PAYLOAD_WORD + 2]
    are_prices = is_price_e4(reference) and is_price_e4(indicative) and is_price_e4(clearing)
    if not are_prices or not is_price_e4(collar) or not is_price_e4(lower) or not is_price_e4(upper):
        return -BAD_PRICE
    letters = words[row, PAYLOAD_WORD + 3]
    return write_auction(
        out,
        at,
        (letters >> 8) & 0xFF,
        time_ns,
        symbol,
        words[row, PAYLOAD_WORD] & _U32,
        reference // m.PRICE_FACTOR,
        indicative // m.PRICE_FACTOR,
        words[row, PAYLOAD_WORD + 1] & _U32,
        letters & 0xFF,
        (letters >> 24) & 0xFF,
        words[row + 1, PAYLOAD_WORD + 2] & _U32,
        clearing // m.PRICE_FACTOR,
        collar // m.PRICE_FACTOR,
        lower // m.PRICE_FACTOR,
        upper // m.PRICE_FACTOR,
    )


@kernel
def encode_message(words: WordArray, row: int, directory: IntArray, out: Buffer, at: int) -> int:
    """Put the message that begins with frame `row` at `at`; return its end, or minus a reason."""
    schema = schema_of(words, row)
    if schema == UNPARSED:
        return write_unparsed(words, row, out, at)
    p0 = words[row, PAYLOAD_WORD]
    p1 = words[row, PAYLOAD_WORD + 1]
    p2 = words[row, PAYLOAD_WORD + 2]
    p3 = words[row, PAYLOAD_WORD + 3]
    time_ns = words[row, 4]
    if schema == INSTRUMENT:
        if not is_part(words, row, 1, OFFICIAL_PRICE):
            return -PARTS_MISSING
        return write_instrument(words, row, time_ns, out, at)
    symbol = symbol_of_id(directory, words[row, 6] & _U32)
    if schema == STATUS:
        return write_status(words, row, time_ns, symbol, out, at)
    if symbol == 0:
        return -NO_SYMBOL
    if schema == LEVEL:
        if not is_price_e4(p0):
            return -BAD_PRICE
        letter = m.LEVEL_BUY if (p3 >> 32) & 0xFF == _BUY else m.LEVEL_SELL
        flags = (p3 >> 40) & 0xFF
        return write_level(out, at, letter, flags, time_ns, symbol, p3 & _U32, p0 // m.PRICE_FACTOR)
    if schema in (TRADE, TRADE_BREAK):
        if not is_price_e4(p0):
            return -BAD_PRICE
        letter = m.TRADE if schema == TRADE else m.TRADE_BREAK
        flags = (p3 >> 40) & 0xFF
        return write_trade(out, at, letter, flags, time_ns, symbol, p3 & _U32, p0 // m.PRICE_FACTOR, p2)
    if schema == QUOTE:
        if not is_price_e4(p0) or not is_price_e4(p1):
            return -BAD_PRICE
        bid = p0 // m.PRICE_FACTOR
        ask = p1 // m.PRICE_FACTOR
        return write_quote(out, at, p3 & 0xFF, time_ns, symbol, p2 & _U32, bid, ask, (p2 >> 32) & _U32)
    if schema == OFFICIAL_PRICE:
        if not is_price_e4(p0):
            return -BAD_PRICE
        if p1 & 0xFF not in (m.PRICE_TYPE_OPEN, m.PRICE_TYPE_CLOSE):
            return -NOT_IEX
        return write_official_price(out, at, p1 & 0xFF, time_ns, symbol, p0 // m.PRICE_FACTOR)
    if schema == AUCTION:
        if not is_part(words, row, 1, AUCTION_PRICES) or not is_part(words, row, 2, COLLAR):
            return -PARTS_MISSING
        return write_auction_parts(words, row, time_ns, symbol, out, at)
    return -NOT_IEX


@kernel
def frames_of_schema(schema: int) -> int:
    """Return how many frames a message has whose first frame is of `schema`."""
    if schema == INSTRUMENT:
        return 2
    return m.FRAMES_PER_MESSAGE_MAX if schema == AUCTION else 1


@kernel
def encode_frames_kernel(
    words: WordArray, first_row: int, directory: IntArray, out: Buffer, status: IntArray
) -> int:
    """Write the blocks of the frames from `first_row` on into `out`; return the bytes written.

    It stops before the first frame that it cannot write, with the row and the reason in `status`.
    """
    row = first_row
    at = 0
    messages = 0
    reason = ENCODED
    while row < words.shape[0]:
        if at + m.BLOCK_BYTES_MAX > out.size:
            reason = OUTPUT_FULL
            break
        end = encode_message(words, row, directory, out, at)
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
        np.zeros(DIRECTORY_WORDS, dtype=np.int64),
        np.zeros(m.BLOCK_BYTES_MAX, dtype=np.uint8),
        np.zeros(STATUS_FIELDS, dtype=np.int64),
    )
