"""The memory of the simulated market, and what each word of it means.

A market is one array of int64: kernels hand on a single pointer, and do not count references to a dozen of
arrays, which took more than half of the time. A stock is the index of its first word, and so is an order;
fields are distances from there: `market[stock + BEST_BID]`, `market[order + SHARES]`.

    | state | tables | stocks, each with its ladder | alias table | orders |

A stock's orders lie on a *ladder* of LADDER_TICKS price levels that slides with its price. Level
`tick % LADDER_TICKS` holds its youngest order, or NONE; the orders of a level are a ring in time priority, so
the youngest leads to the oldest. Bids are below asks, so one ladder serves both sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Market = NDArray[np.int64]

NONE = 0  # no order, no tick: word 0 belongs to the state, and ticks begin at 1

# ---- the market as a whole ---------------------------------------------------------------------------------
# Word 0 is chance_kernels.RNG.
TIME_NS = 1  # of the newest message, since midnight
GAP_NS = 2  # fixed time between messages when the caller owns the clock; 0: the day's timetable does
PHASE = 3  # row of the timetable that is under way
PHASE_DONE = 4  # messages that this phase has made
CURSOR = 5  # number of the stock at which a phase that visits every stock is
STEP = 6  # how far that phase is with this stock
NEXT_REF = 7
NEXT_MATCH = 8
FREE_HEAD = 9  # first unused order, linked through NEXT
LIVE_COUNT = 10
SEQUENCE = 11  # messages made so far
BURST_LEFT = 12  # messages until the rush on one stock is over
RECENT_STOCK = 13  # the stock of that rush; otherwise the stock last drawn
HALT_COUNT = 14  # rows of the halts in use
HALT_DUE = 15  # SEQUENCE at which the first of them moves on
RARE_CURSOR = 16  # next of the rare actions that every day has at least once
CROSS_MATCH = 17  # of the cross being printed: match number, shares, price ...
CROSS_SHARES = 18
CROSS_PRICE = 19
CROSS_TICK = 20  # ... and whose displayed orders take part; NONE when none do
IS_BREAKER_ON = 21  # the whole market is halted: no halts of single stocks begin
MATCH_COUNT = 22  # trades so far; the last MATCH_SLOTS of them may still be broken
SYSTEM_EVENT = 23  # letter of the newest message S; 0 before the first
DAY_MESSAGES = 24  # how many messages the whole day has
STOCK_COUNT = 25
PHASE_COUNT = 26
ALIAS_AT = 27  # where the alias table begins
ORDERS_AT = 28  # where the orders begin
ORDER_SLOTS = 29
STATE_WORDS = 32

# ---- one stock ---------------------------------------------------------------------------------------------
SYMBOL = 0  # eight characters, padded with spaces, as a little-endian word
LOCATE = 1
TICK_PRICE = 2  # Price(4) units between two levels of the ladder
BASE = 3  # lowest tick on the ladder
BEST_BID = 4  # tick, NO_BID when there is none
BEST_ASK = 5  # tick, NO_ASK when there is none
FAIR = 6  # what the market believes the price to be, in ticks << FAIR_BITS
SIGMA = 7  # how far FAIR moves at each message, in the same unit
HALF_SPREAD = 8  # ticks between FAIR and the best quotes at rest
LIVE_BIDS = 9
LIVE_ASKS = 10
TARGET = 11  # open orders in full trading
TRADING_STATE = 12  # the letter of message H: T, H, P or Q; 0 before the first
LOT = 13  # the commonest order size
FAIR_MIN = 14
FAIR_MAX = 15
MARKET_MAKERS = 16  # how many L messages its directory entry has
SHORT_SALE = 17  # the digit of message Y
TRAITS = 18  # market category, financial status, issue class, ... one letter for each byte
SUBTYPE = 19  # two letters, little-endian
LEVERAGE = 20
IS_HALTED_HERE = 21  # by message h
STATE_REASON = 22  # of the newest message H: four letters, little-endian
MAKER_STATES = 23  # the letter of each market maker's newest message L, one for each byte; 0 before the first
LADDER = 24  # LADDER_TICKS words
LADDER_TICKS = 256  # a power of two; far stale orders are deleted when the price leaves them behind
STOCK_WORDS = LADDER + LADDER_TICKS

# Letters in TRAITS, by the shift to each.
TRAIT_CATEGORY = 0
TRAIT_FINANCIAL = 8
TRAIT_CLASS = 16
TRAIT_THRESHOLD = 24
TRAIT_TIER = 32
TRAIT_ETP = 40
TRAIT_INVERSE = 48

MAKERS_MAX = 8  # that MAKER_STATES has room for

NO_BID = NONE
NO_ASK = 1 << 40
FAIR_BITS = 10

# ---- one order: a cache line -------------------------------------------------------------------------------
REF = 0  # 0 when unused
TICK = 1
SHARES = 2
OWNER = 3  # stock * 2 + side
NEXT = 4  # younger order of the level, from the youngest to the oldest; or the next unused order
PREVIOUS = 5
ATTRIBUTION = 6  # number of its market maker, from 1; 0: message A rather than F
ADDED_NS = 7
ORDER_WORDS = 8

BUY = 0
SELL = 1
NO_SIDE = -1

# ---- rows of the timetable ---------------------------------------------------------------------------------
PHASE_KIND = 0
PHASE_ARGUMENT = 1  # a letter for SYSTEM, CROSS and BREAKER, a row of the mixes for FLOW
PHASE_BEGIN_NS = 2
PHASE_END_NS = 3
PHASE_MESSAGES = 4  # exact for FLOW, an estimate for what visits every stock; REST: what the day has left
PHASE_WORDS = 5
PHASE_SLOTS = 32

REST = -1  # leaving REST_RESERVE for the messages that close the day
REST_RESERVE = 2

SYSTEM = 0  # one message S
LEVELS = 1  # one message V
DIRECTORY = 2  # R, H, Y and L of every stock
FLOW = 3  # PHASE_MESSAGES of trading
CROSS = 4  # executions in the cross and message Q of every stock
BREAKER = 5  # one message W
HALT_ALL = 6  # H of every stock: stopped
RESUME_ALL = 7  # H of every stock: trading again

# ---- rows of the mixes: cumulative weights, out of MIX_WHOLE, of what may happen next ----------------------
TURNOVER = 0  # an order comes or goes, whichever brings the book nearer to its usual depth
REPLACE = 1
EXECUTE = 2
EXECUTE_PRICED = 3
CANCEL = 4
TRADE = 5
IMBALANCE = 6
BREAK = 7
RETAIL = 8
PAUSE = 9  # limit up, limit down: a halt with a collar that ends in a cross
NEWS_HALT = 10
OPERATIONAL = 11
SHORT_SALE_CHANGE = 12
MAKER_CHANGE = 13
IPO = 14
LISTING = 15
ACTION_COUNT = 16
MIX_DEPTH = 16  # usual depth in this part of the day, out of DEPTH_WHOLE of TARGET
MIX_CROSS_TYPE = 17  # letter of message I
MIX_WORDS = 18
MIX_SLOTS = 8
MIX_WHOLE = 1 << 20
DEPTH_WHOLE = 256

# ---- rows of the halts: what comes next in each stock that is stopped, and when ----------------------------
HALT_STOCK = 0
HALT_KIND = 1  # PAUSE, NEWS_HALT or OPERATIONAL
HALT_STEP = 2
HALT_AT = 3  # SEQUENCE
HALT_WORDS = 4
HALT_SLOTS = 32

# ---- rows of the latest trades -----------------------------------------------------------------------------
MATCH_NUMBER = 0
MATCH_LOCATE = 1
MATCH_WORDS = 2
MATCH_SLOTS = 256  # a power of two

# ---- rows of the alias table (Walker): keep the stock drawn if a second draw is below the limit, else take
# the other one
ALIAS_LIMIT = 0  # out of ALIAS_WHOLE
ALIAS_OTHER = 1
ALIAS_WORDS = 2
ALIAS_WHOLE = 1 << 30

# ---- tables of quantiles -----------------------------------------------------------------------------------
TABLE_BITS = 10
TABLE_SIZE = 1 << TABLE_BITS
EXPONENTIAL_BITS = 10  # the exponential table has the mean 1 << EXPONENTIAL_BITS
SIZE_WHOLE = 100  # order sizes are in percent of a stock's lot
PARTICIPANT_COUNT = 64  # market makers, four letters each, little-endian

# ---- where everything is -----------------------------------------------------------------------------------
PHASES_AT = STATE_WORDS
MIXES_AT = PHASES_AT + PHASE_SLOTS * PHASE_WORDS
HALTS_AT = MIXES_AT + MIX_SLOTS * MIX_WORDS
MATCHES_AT = HALTS_AT + HALT_SLOTS * HALT_WORDS
PARTICIPANTS_AT = MATCHES_AT + MATCH_SLOTS * MATCH_WORDS
EXPONENTIAL_AT = PARTICIPANTS_AT + PARTICIPANT_COUNT
DEPTHS_AT = EXPONENTIAL_AT + TABLE_SIZE
SIZES_AT = DEPTHS_AT + TABLE_SIZE
STOCKS_AT = SIZES_AT + TABLE_SIZE
