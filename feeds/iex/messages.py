"""IEX DEEP 1.0 and TOPS 1.6: the message types, and where each field is. The only place that knows.

Integers are little-endian; sizes are unsigned, prices (1e-4 dollars) and times (ns since 1970 UTC) signed 64
bits; text is ASCII padded with spaces on the right. Offsets count from the type letter; the two-byte length
before each message is not part of it. All messages but the system event name a symbol:

     0      1               2                          10           18
     | type | code or flags | time, ns since 1970 (64) | symbol (8) | body ...

DEEP and TOPS share one table: TOPS has no 8, 5 and E, and DEEP has no Q, but no letter means two things. The
exchange may let a known message grow at its end, so a longer one is read and a shorter one is not.
"""

from __future__ import annotations

from feeds.formats import MessageType

PREFIX_BYTES = 2  # the length before each message
SYMBOL_BYTES = 8
REASON_BYTES = 4
PRICE_FACTOR = 100_000  # from 1e-4 dollars to our 1e-9
PRICE_MAX = (2**63 - 1) // PRICE_FACTOR  # the largest that our int64 holds
LULD_TIER_MAX = 9  # 0, 1 and 2 exist; any single digit is passed on

SYSTEM_EVENT = ord("S")
DIRECTORY = ord("D")
TRADING_STATUS = ord("H")
RETAIL_INTEREST = ord("I")
OPERATIONAL_HALT = ord("O")
SHORT_SALE = ord("P")
SECURITY_EVENT = ord("E")
LEVEL_BUY = ord("8")
LEVEL_SELL = ord("5")
TRADE = ord("T")
OFFICIAL_PRICE = ord("X")
TRADE_BREAK = ord("B")
AUCTION = ord("A")
QUOTE = ord("Q")

MESSAGE_TYPES = (
    MessageType(b"S", 10, "system event"),
    MessageType(b"D", 31, "security directory"),
    MessageType(b"H", 22, "trading status"),
    MessageType(b"I", 18, "retail liquidity indicator"),
    MessageType(b"O", 18, "operational halt status"),
    MessageType(b"P", 19, "short sale price test status"),
    MessageType(b"E", 18, "security event"),
    MessageType(b"8", 30, "price level update, buy side"),
    MessageType(b"5", 30, "price level update, sell side"),
    MessageType(b"T", 38, "trade report"),
    MessageType(b"X", 26, "official price"),
    MessageType(b"B", 38, "trade break"),
    MessageType(b"A", 80, "auction information"),
    MessageType(b"Q", 42, "quote update"),
)
SIZE_OF_TYPE = {message.letter[0]: message.size for message in MESSAGE_TYPES}
MESSAGE_BYTES_MAX = max(SIZE_OF_TYPE.values())
BLOCK_BYTES_MAX = PREFIX_BYTES + MESSAGE_BYTES_MAX
FRAMES_PER_MESSAGE_MAX = 3  # an auction: imbalance, prices, collar

# The head: what the one-byte code means depends on the type (event, status, flags, auction type).
AT_CODE = 1
AT_TIME = 2
AT_SYMBOL = 10

# D
AT_DIRECTORY_ROUND_LOT = 18
AT_DIRECTORY_CLOSE = 22
AT_DIRECTORY_LULD_TIER = 30

# H, P
AT_STATUS_REASON = 18
AT_SHORT_SALE_DETAIL = 18

# 8, 5, T, B
AT_SIZE = 18
AT_PRICE = 22
AT_TRADE_ID = 30
EVENT_COMPLETE = 0x01  # the only defined bit in the flags of 8 and 5

# X
AT_OFFICIAL_PRICE = 18
PRICE_TYPE_OPEN = ord("Q")
PRICE_TYPE_CLOSE = ord("M")

# A
AT_AUCTION_PAIRED = 18
AT_AUCTION_REFERENCE = 22
AT_AUCTION_INDICATIVE = 30
AT_AUCTION_IMBALANCE = 38
AT_AUCTION_SIDE = 42
AT_AUCTION_EXTENSIONS = 43
AT_AUCTION_SCHEDULED = 44
AT_AUCTION_CLEARING = 48
AT_AUCTION_COLLAR_REFERENCE = 56
AT_AUCTION_COLLAR_LOWER = 64
AT_AUCTION_COLLAR_UPPER = 72

# Q: the price comes before the size on the ask side
AT_QUOTE_BID_SIZE = 18
AT_QUOTE_BID_PRICE = 22
AT_QUOTE_ASK_PRICE = 30
AT_QUOTE_ASK_SIZE = 38
