"""TotalView-ITCH 5.0: its message types, and where each field of a message is. The only place that knows.

Integers are unsigned and big-endian, text is ASCII padded with spaces on the right. Offsets count from the
type letter; the two-byte length before each message, in files and in packets, is not part of it.

     0      1              3                 5                        11
     | type | stock locate | tracking number | ns since midnight (48) | body ...
"""

from __future__ import annotations

from feeds.formats import MessageType

PREFIX_BYTES = 2  # the length before each message
HEAD_BYTES = 11
LOCATE_COUNT = 1 << 16  # stock locates are 16 bits; 0 stands for "not about one stock"

PRICE4_SCALE = 10_000  # Price(4): 1e-4 dollars in 32 bits
PRICE8_SCALE = 100_000_000  # Price(8): 1e-8 dollars in 64 bits

SYSTEM_EVENT = ord("S")
STOCK_DIRECTORY = ord("R")
TRADING_ACTION = ord("H")
REG_SHO = ord("Y")
PARTICIPANT_POSITION = ord("L")
BREAKER_LEVELS = ord("V")
BREAKER_STATUS = ord("W")
IPO_QUOTING = ord("K")
AUCTION_COLLAR = ord("J")
OPERATIONAL_HALT = ord("h")
ADD_ORDER = ord("A")
ADD_ORDER_ATTRIBUTED = ord("F")
ORDER_EXECUTED = ord("E")
ORDER_EXECUTED_PRICED = ord("C")
ORDER_CANCEL = ord("X")
ORDER_DELETE = ord("D")
ORDER_REPLACE = ord("U")
TRADE = ord("P")
CROSS_TRADE = ord("Q")
BROKEN_TRADE = ord("B")
NET_ORDER_IMBALANCE = ord("I")
RETAIL_INTEREST = ord("N")
DIRECT_LISTING = ord("O")

MESSAGE_TYPES = (
    MessageType(b"S", 12, "system event"),
    MessageType(b"R", 39, "stock directory"),
    MessageType(b"H", 25, "stock trading action"),
    MessageType(b"Y", 20, "Reg SHO restriction"),
    MessageType(b"L", 26, "market participant position"),
    MessageType(b"V", 35, "market-wide circuit breaker levels"),
    MessageType(b"W", 12, "market-wide circuit breaker status"),
    MessageType(b"K", 28, "IPO quoting period update"),
    MessageType(b"J", 35, "limit up/down auction collar"),
    MessageType(b"h", 21, "operational halt"),
    MessageType(b"A", 36, "add order"),
    MessageType(b"F", 40, "add order with attribution"),
    MessageType(b"E", 31, "order executed"),
    MessageType(b"C", 36, "order executed with price"),
    MessageType(b"X", 23, "order cancel"),
    MessageType(b"D", 19, "order delete"),
    MessageType(b"U", 35, "order replace"),
    MessageType(b"P", 44, "trade"),
    MessageType(b"Q", 40, "cross trade"),
    MessageType(b"B", 19, "broken trade"),
    MessageType(b"I", 50, "net order imbalance"),
    MessageType(b"N", 20, "retail price improvement"),
    MessageType(b"O", 48, "direct listing with capital raise"),
)
SIZE_OF_TYPE = {message.letter[0]: message.size for message in MESSAGE_TYPES}
MESSAGE_BYTES_MAX = max(SIZE_OF_TYPE.values())
BLOCK_BYTES_MAX = PREFIX_BYTES + MESSAGE_BYTES_MAX
FRAMES_PER_MESSAGE_MAX = 3  # a direct listing: its prices, its allowed range, the auction's collar

# The head. Tracking number and time are one big-endian word of 16 and 48 bits.
AT_LOCATE = 1
AT_TRACKING = 3
AT_TIME = 5
TIME_MASK = (1 << 48) - 1

# S, W
AT_EVENT = 11

# R
AT_DIRECTORY_STOCK = 11
AT_DIRECTORY_MARKET_CATEGORY = 19
AT_DIRECTORY_FINANCIAL_STATUS = 20
AT_DIRECTORY_ROUND_LOT = 21
AT_DIRECTORY_ROUND_LOTS_ONLY = 25
AT_DIRECTORY_ISSUE_CLASS = 26
AT_DIRECTORY_ISSUE_SUBTYPE = 27
AT_DIRECTORY_AUTHENTICITY = 29
AT_DIRECTORY_SHORT_SALE_THRESHOLD = 30
AT_DIRECTORY_IPO = 31
AT_DIRECTORY_LULD_TIER = 32
AT_DIRECTORY_ETP = 33
AT_DIRECTORY_LEVERAGE = 34
AT_DIRECTORY_INVERSE = 38

# H, Y, N and h begin alike
AT_STATE_STOCK = 11
AT_STATE = 19  # of h: the market, with the action behind it
AT_ACTION_RESERVED = 20
AT_ACTION_REASON = 21
AT_HALT_MARKET = 19
AT_HALT_ACTION = 20

# L
AT_POSITION_MPID = 11
AT_POSITION_STOCK = 15
AT_POSITION_PRIMARY = 23
AT_POSITION_MODE = 24
AT_POSITION_STATE = 25

# V
AT_LEVEL_1 = 11
AT_LEVEL_2 = 19
AT_LEVEL_3 = 27

# K
AT_IPO_STOCK = 11
AT_IPO_RELEASE = 19
AT_IPO_QUALIFIER = 23
AT_IPO_PRICE = 24

# J
AT_COLLAR_STOCK = 11
AT_COLLAR_REFERENCE = 19
AT_COLLAR_UPPER = 23
AT_COLLAR_LOWER = 27
AT_COLLAR_EXTENSION = 31

# A, F, and P up to its price
AT_ADD_ORDER = 11
AT_ADD_SIDE = 19
AT_ADD_SHARES = 20
AT_ADD_STOCK = 24
AT_ADD_PRICE = 32
AT_ADD_ATTRIBUTION = 36
AT_TRADE_MATCH = 36

# E, C
AT_EXECUTE_ORDER = 11
AT_EXECUTE_SHARES = 19
AT_EXECUTE_MATCH = 23
AT_EXECUTE_PRINTABLE = 31
AT_EXECUTE_PRICE = 32

# X, D
AT_REDUCE_ORDER = 11
AT_REDUCE_SHARES = 19

# U
AT_REPLACE_ORDER = 11
AT_REPLACE_NEW_ORDER = 19
AT_REPLACE_SHARES = 27
AT_REPLACE_PRICE = 31

# Q
AT_CROSS_SHARES = 11
AT_CROSS_STOCK = 19
AT_CROSS_PRICE = 27
AT_CROSS_MATCH = 31
AT_CROSS_TYPE = 39

# B
AT_BROKEN_MATCH = 11

# I
AT_IMBALANCE_PAIRED = 11
AT_IMBALANCE_SHARES = 19
AT_IMBALANCE_DIRECTION = 27
AT_IMBALANCE_STOCK = 28
AT_IMBALANCE_FAR = 36
AT_IMBALANCE_NEAR = 40
AT_IMBALANCE_REFERENCE = 44
AT_IMBALANCE_CROSS_TYPE = 48
AT_IMBALANCE_VARIATION = 49

# O
AT_LISTING_STOCK = 11
AT_LISTING_ELIGIBLE = 19
AT_LISTING_MIN = 20
AT_LISTING_MAX = 24
AT_LISTING_NEAR = 28
AT_LISTING_NEAR_TIME = 32
AT_LISTING_LOWER = 40
AT_LISTING_UPPER = 44
