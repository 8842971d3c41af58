"""Setting up a simulated market: its stocks, what chance is made of, and the timetable of its day.

Everything is drawn from one seeded `random.Random`, whose `random()` and `getrandbits` Python keeps the same
from version to version, and rounded to integers before it meets the kernels.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from feeds.chance_kernels import RNG
from feeds.errors import ConfigError
from feeds.itch50.encode_kernels import padded_word
from feeds.order_flow import layout
from feeds.order_flow.layout import Market

SYMBOL_COUNT_MAX = 60_000  # stock locates have 16 bits
MESSAGES_PER_SYMBOL_MIN = 40  # directory, crosses and halts of every stock, and as much again of trading
MESSAGES_MIN = 1_000
_DIRECTORY_MESSAGES = 6  # at most, for each stock
_CROSS_MESSAGES = 3

# The busiest stocks of every simulated day, so that people and examples know where to look.
_BUSY_TEXT = """
QQQ SPY AAPL TSLA AMD NVDA MSFT AMZN INTC TQQQ IWM META GOOGL GOOG NFLX MU CSCO BAC SQQQ XLF EEM GDX F T GE
PFE AAL UBER CCL SNAP VXX UVXY QCOM AMAT ADBE PYPL CMCSA SBUX GILD KO DIS JPM WFC C XOM CVX BA CAT HD WMT MRK
JNJ VZ ORCL CRM IBM TXN AVGO COST PEP
"""
BUSY_SYMBOLS = tuple(_BUSY_TEXT.split())

# Letters as often as a symbol should have them, so that Q and X are rare.
_FIRST_LETTERS = "AAAABBBBCCCCDDDEEEFFFGGGHHHIIJKKLLLMMMNNNOOPPPPRRRSSSSTTTTUUVVWWXYZ"
_NEXT_LETTERS = "AAABBCCCDDEEEFGGHHIIIJKKLLLMMNNNOOPPQRRRSSSTTTUUVVWXXYZ"
_LENGTH_ODDS = (1, 2, 18, 60, 12)  # of symbols of one to five letters, in percent; the rest have a suffix
_SUFFIXES = (".A", ".B", "-A", "-B", "+", "=")

_NS_PER_MINUTE = 60_000_000_000


def _at(hour: int, minute: int, second: int = 0) -> int:
    return ((hour * 60 + minute) * 60 + second) * 1_000_000_000


# Weights of what happens, in parts of a million; TURNOVER has what is left. A little more trading is asked
# for than a real day shows, because nothing trades in a stock that is halted or has no orders.
_TRADING = {
    layout.REPLACE: 80_000,
    layout.EXECUTE: 50_000,
    layout.EXECUTE_PRICED: 2_500,
    layout.CANCEL: 12_000,
    layout.TRADE: 10_000,
    layout.IMBALANCE: 200,
    layout.BREAK: 4,
    layout.RETAIL: 120,
    layout.PAUSE: 2,
    layout.NEWS_HALT: 2,
    layout.OPERATIONAL: 1,
    layout.SHORT_SALE_CHANGE: 12,
    layout.MAKER_CHANGE: 40,
    layout.IPO: 1,
    layout.LISTING: 1,
}
_QUIET = {layout.REPLACE: 40_000, layout.EXECUTE: 10_000, layout.CANCEL: 8_000, layout.TRADE: 2_000}
_OPENING = _QUIET | {layout.IMBALANCE: 60_000}
_CLOSING = _TRADING | {layout.IMBALANCE: 60_000}
_STOPPED = {layout.REPLACE: 60_000, layout.CANCEL: 10_000, layout.IMBALANCE: 20_000}

# name -> weights, depth out of DEPTH_WHOLE, type of the imbalance messages
_MIXES: dict[str, tuple[dict[int, int], int, str]] = {
    "before": (_QUIET, 80, "O"),
    "opening": (_OPENING, 120, "O"),
    "trading": (_TRADING, 256, "H"),
    "stopped": (_STOPPED, 200, "H"),
    "closing": (_CLOSING, 256, "C"),
    "after": (_QUIET, 40, "C"),
}
_MIX_NAMES = tuple(_MIXES)


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """What a simulated day is made from: equal configurations give equal bytes."""

    seed: int = 1
    message_count: int = 5_000_000  # of the whole day, exactly
    symbol_count: int = 8_000
    open_orders: int | None = None  # in full trading; None: as many as fit so long a day
    has_breaker: bool = True  # a market-wide halt in the early afternoon

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed must be in 0 to 2**63 - 1, was {self.seed}")
        if not 1 <= self.symbol_count <= SYMBOL_COUNT_MAX:
            raise ConfigError(f"symbol_count must be in 1 to {SYMBOL_COUNT_MAX}, was {self.symbol_count}")
        least = MESSAGES_MIN + MESSAGES_PER_SYMBOL_MIN * self.symbol_count
        if not least <= self.message_count < 1 << 40:
            raise ConfigError(
                f"message_count must be {least} or more for {self.symbol_count} symbols "
                f"({MESSAGES_PER_SYMBOL_MIN} for each), was {self.message_count}"
            )
        if self.open_orders is not None and not 1 <= self.open_orders <= 50_000_000:
            raise ConfigError(f"open_orders must be in 1 to 50000000, was {self.open_orders}")

    @classmethod
    def for_messages(cls, message_count: int, seed: int) -> FlowConfig:
        """Return a day of `message_count` messages with as many symbols as it can carry, 8,000 at most."""
        fitting = (message_count - MESSAGES_MIN) // (MESSAGES_PER_SYMBOL_MIN * 3)
        return cls(seed, message_count, min(max(fitting, 1), 8_000))

    @property
    def open_order_target(self) -> int:
        """Open orders in full trading: a sixteenth of the day's messages, up to a million and more."""
        if self.open_orders is not None:
            return self.open_orders
        return min(max(self.message_count // 16, 2 * self.symbol_count), 1_200_000)


def build_market(config: FlowConfig) -> Market:
    """Return a market on the eve of its day."""
    chance = random.Random(config.seed)
    count = config.symbol_count
    symbols = make_symbols(count, chance)
    ranks = _activity_ranks(symbols, chance)
    activity = [1.0 / (rank + 20) for rank in ranks]
    whole_activity = sum(activity)
    depth_weights = [math.pow(weight, 0.6) for weight in activity]
    whole_depth = sum(depth_weights)
    stocks = np.zeros((count, layout.STOCK_WORDS), np.int64)
    for number, symbol in enumerate(symbols):
        touches = max(config.message_count * activity[number] / whole_activity, 1.0)
        depth = config.open_order_target * depth_weights[number] / whole_depth
        _fill_stock(stocks[number], number, symbol, ranks[number], touches, depth, chance)
    # turn_over adds no order to a stock above one and a half times its depth, and needs room for one more.
    order_slots = int((np.maximum(stocks[:, layout.TARGET], 2) * 3 // 2 + 2).sum())
    alias_at = layout.STOCKS_AT + stocks.size
    orders_at = -(-(alias_at + count * layout.ALIAS_WORDS) // layout.ORDER_WORDS) * layout.ORDER_WORDS
    market = np.zeros(orders_at + order_slots * layout.ORDER_WORDS, np.int64)
    market[layout.STOCKS_AT : alias_at] = stocks.ravel()
    _put(market, alias_at, alias_table(activity))
    phases = make_phases(config)
    _put(market, layout.PHASES_AT, phases)
    _put(market, layout.MIXES_AT, _make_mixes())
    _put(market, layout.PARTICIPANTS_AT, _make_participants(chance))
    _put(market, layout.EXPONENTIAL_AT, _exponential_table())
    _put(market, layout.DEPTHS_AT, _depth_table())
    _put(market, layout.SIZES_AT, _size_table())
    orders = market[orders_at:].reshape(order_slots, layout.ORDER_WORDS)
    orders[:-1, layout.NEXT] = orders_at + np.arange(1, order_slots) * layout.ORDER_WORDS
    market[layout.STOCK_COUNT] = count
    market[layout.PHASE_COUNT] = len(phases)
    market[layout.ALIAS_AT] = alias_at
    market[layout.ORDERS_AT] = market[layout.FREE_HEAD] = orders_at
    market[layout.ORDER_SLOTS] = order_slots
    _fill_state(market, config, chance)
    return market


def _put(market: Market, begin: int, table: Market) -> None:
    market[begin : begin + table.size] = table.ravel()


def make_symbols(count: int, chance: random.Random) -> list[str]:
    """Return so many different ticker symbols in alphabetical order, the busy ones among them."""
    names = set(BUSY_SYMBOLS[:count])
    while len(names) < count:
        dice = chance.randrange(100)
        length = 1
        for odds in _LENGTH_ODDS:
            if dice < odds:
                break
            dice -= odds
            length += 1
        has_suffix = length > len(_LENGTH_ODDS)
        letters = [_FIRST_LETTERS[chance.randrange(len(_FIRST_LETTERS))]]
        wanted = 3 if has_suffix else length
        letters += [_NEXT_LETTERS[chance.randrange(len(_NEXT_LETTERS))] for _ in range(wanted - 1)]
        suffix = _SUFFIXES[chance.randrange(len(_SUFFIXES))] if has_suffix else ""
        names.add("".join(letters) + suffix)
    return sorted(names)


def alias_table(weights: list[float]) -> Market:
    """Return Walker's alias table: drawing from it takes one comparison, however many stocks there are."""
    count = len(weights)
    whole = sum(weights)
    shares = [round(weight / whole * count * layout.ALIAS_WHOLE) for weight in weights]
    table = np.zeros((count, layout.ALIAS_WORDS), np.int64)
    table[:, layout.ALIAS_LIMIT] = layout.ALIAS_WHOLE
    small = [index for index, share in enumerate(shares) if share < layout.ALIAS_WHOLE]
    large = [index for index, share in enumerate(shares) if share >= layout.ALIAS_WHOLE]
    while small and large:
        poor, rich = small.pop(), large[-1]
        table[poor, layout.ALIAS_LIMIT] = shares[poor]
        table[poor, layout.ALIAS_OTHER] = rich
        shares[rich] -= layout.ALIAS_WHOLE - shares[poor]
        if shares[rich] < layout.ALIAS_WHOLE:
            small.append(large.pop())
    return table


def make_phases(config: FlowConfig) -> Market:
    """Return the timetable of the day: what, from when to when, how many messages."""
    count = config.symbol_count
    fixed = count * (_DIRECTORY_MESSAGES + 2 * _CROSS_MESSAGES) + 16
    fixed += 2 * count if config.has_breaker else 0
    flow = config.message_count - fixed
    rows: list[tuple[int, int, int, int, int]] = []

    def system(letter: str, begin_ns: int) -> None:
        rows.append((layout.SYSTEM, ord(letter), begin_ns, begin_ns, 1))

    def everywhere(kind: int, argument: int, begin_ns: int, end_ns: int, per_stock: int) -> None:
        rows.append((kind, argument, begin_ns, end_ns, per_stock * count))

    def trade(mix: str, begin_ns: int, end_ns: int, permille: int) -> None:
        rows.append((layout.FLOW, _MIX_NAMES.index(mix), begin_ns, end_ns, flow * permille // 1_000))

    system("O", _at(3, 5))
    everywhere(layout.DIRECTORY, 0, _at(3, 5, 1), _at(3, 7), _DIRECTORY_MESSAGES - 1)
    rows.append((layout.LEVELS, 0, _at(3, 8), _at(3, 8), 1))
    system("S", _at(4, 0))
    trade("before", _at(4, 0), _at(9, 28), 60)
    trade("opening", _at(9, 28), _at(9, 30), 30)
    system("Q", _at(9, 30))
    everywhere(layout.CROSS, ord("O"), _at(9, 30), _at(9, 30, 2), _CROSS_MESSAGES - 1)
    trade("trading", _at(9, 30, 2), _at(10, 0), 210)
    trade("trading", _at(10, 0), _at(13, 0), 230)
    if config.has_breaker:
        rows.append((layout.BREAKER, ord("1"), _at(13, 0), _at(13, 0), 1))
        everywhere(layout.HALT_ALL, 0, _at(13, 0), _at(13, 0, 1), 1)
        trade("stopped", _at(13, 0, 1), _at(13, 15), 10)
        everywhere(layout.RESUME_ALL, 0, _at(13, 15), _at(13, 15, 1), 1)
    trade("trading", _at(13, 15, 1), _at(15, 50), 280)
    trade("closing", _at(15, 50), _at(16, 0), 130)
    system("M", _at(16, 0))
    everywhere(layout.CROSS, ord("C"), _at(16, 0), _at(16, 0, 3), _CROSS_MESSAGES - 1)
    rows.append((layout.FLOW, _MIX_NAMES.index("after"), _at(16, 0, 3), _at(20, 0), layout.REST))
    system("E", _at(20, 0))
    system("C", _at(20, 5))
    return np.array(rows, np.int64)


def _fill_state(market: Market, config: FlowConfig, chance: random.Random) -> None:
    market[RNG] = chance.getrandbits(62) | 1
    market[layout.TIME_NS] = _at(3, 5)
    market[layout.NEXT_REF] = 1 + chance.randrange(64)
    market[layout.NEXT_MATCH] = 15_000 + chance.randrange(1_000)
    market[layout.HALT_DUE] = 1 << 62
    market[layout.RARE_CURSOR] = layout.EXECUTE
    market[layout.RECENT_STOCK] = layout.STOCKS_AT
    market[layout.DAY_MESSAGES] = config.message_count


def _activity_ranks(symbols: list[str], chance: random.Random) -> list[int]:
    """Return each symbol's place among the busiest, from 0."""
    rank_of = {symbol: rank for rank, symbol in enumerate(BUSY_SYMBOLS)}
    rest = [symbol for symbol in symbols if symbol not in rank_of]
    chance.shuffle(rest)
    rank_of |= {symbol: rank for rank, symbol in enumerate(rest, len(BUSY_SYMBOLS))}
    return [rank_of[symbol] for symbol in symbols]


def _fill_stock(
    row: Market, number: int, symbol: str, rank: int, touches: float, depth: float, chance: random.Random
) -> None:
    is_busy = rank < len(BUSY_SYMBOLS)  # large companies and funds, not penny stocks
    dollars = (90.0 if is_busy else 25.0) * math.exp(chance.gauss(0.0, 0.5 if is_busy else 1.1))
    dollars = min(max(dollars, 0.3), 3_000.0)
    tick_price = 1 if dollars < 1.0 else 100 if dollars < 500.0 else 500
    ticks = max(round(dollars * 10_000 / tick_price), 40)
    fair = ticks << layout.FAIR_BITS
    daily_range = ticks * (0.008 + 0.02 * chance.random())
    sigma = daily_range / math.sqrt(touches) * (1 << layout.FAIR_BITS)
    is_fund = chance.random() < 0.25
    is_levered = is_fund and chance.random() < 0.1
    row[layout.SYMBOL] = padded_word(symbol.encode("ascii"), 8)
    row[layout.LOCATE] = number + 1
    row[layout.TICK_PRICE] = tick_price
    row[layout.BASE] = max(ticks - layout.LADDER_TICKS // 2, 1)
    row[layout.BEST_BID] = layout.NO_BID
    row[layout.BEST_ASK] = layout.NO_ASK
    row[layout.FAIR] = fair
    row[layout.SIGMA] = min(max(round(sigma), 4), 2 << layout.FAIR_BITS)
    row[layout.HALF_SPREAD] = min(int(ticks * (0.00005 + 0.0000002 * rank)), layout.LADDER_TICKS // 8)
    row[layout.TARGET] = max(round(depth), 2)
    row[layout.LOT] = 100 if dollars < 200.0 else 40
    row[layout.FAIR_MIN] = max(fair // 4, 20 << layout.FAIR_BITS)
    row[layout.FAIR_MAX] = fair * 4
    row[layout.MARKET_MAKERS] = chance.randrange(_DIRECTORY_MESSAGES - 2)
    row[layout.SHORT_SALE] = ord("0")
    row[layout.TRAITS] = (
        ord("QQQGSNNAPZ"[chance.randrange(10)]) << layout.TRAIT_CATEGORY
        | ord("NNNNNNNNND"[chance.randrange(10)]) << layout.TRAIT_FINANCIAL
        | ord("Q" if is_fund else "CCCCOARW"[chance.randrange(8)]) << layout.TRAIT_CLASS
        | ord("N" if chance.random() < 0.98 else "Y") << layout.TRAIT_THRESHOLD
        | ord("1" if rank < 1_000 else "2") << layout.TRAIT_TIER
        | ord("Y" if is_fund else "N") << layout.TRAIT_ETP
        | ord("Y" if is_levered and chance.random() < 0.5 else "N") << layout.TRAIT_INVERSE
    )
    row[layout.SUBTYPE] = padded_word(b"E" if is_fund else b"Z", 2)
    row[layout.LEVERAGE] = (2 + chance.randrange(2)) if is_levered else int(is_fund)


def _make_mixes() -> Market:
    mixes = np.zeros((len(_MIXES), layout.MIX_WORDS), np.int64)
    for row, (weights, depth, cross_type) in zip(mixes, _MIXES.values(), strict=True):
        scaled = {action: weight * layout.MIX_WHOLE // 1_000_000 for action, weight in weights.items()}
        scaled[layout.TURNOVER] = layout.MIX_WHOLE - sum(scaled.values())
        row[: layout.ACTION_COUNT] = np.cumsum(
            [scaled.get(action, 0) for action in range(layout.ACTION_COUNT)]
        )
        row[layout.MIX_DEPTH] = depth
        row[layout.MIX_CROSS_TYPE] = ord(cross_type)
    return mixes


def _make_participants(chance: random.Random) -> Market:
    names: set[str] = set()
    while len(names) < layout.PARTICIPANT_COUNT:
        names.add("".join(_NEXT_LETTERS[chance.randrange(len(_NEXT_LETTERS))] for _ in range(4)))
    return np.array([padded_word(name.encode("ascii"), 4) for name in sorted(names)], np.int64)


def _quantiles() -> list[float]:
    return [(index + 0.5) / layout.TABLE_SIZE for index in range(layout.TABLE_SIZE)]


def _exponential_table() -> Market:
    scale = 1 << layout.EXPONENTIAL_BITS
    return np.array([round(-math.log1p(-u) * scale) for u in _quantiles()], np.int64)


def _depth_table() -> Market:
    """Return distances from the best price: half of the orders join it, the rest thin out by a power law."""
    farthest = layout.LADDER_TICKS // 2 - 20
    return np.array([min(int(math.pow(1.0 - u, -1.1)) - 1, farthest) for u in _quantiles()], np.int64)


def _size_table() -> Market:
    """Return order sizes in percent of the lot: two thirds one lot, odd lots, several lots, a few blocks."""
    sizes = []
    for u in _quantiles():
        if u < 0.16:
            sizes.append(1 + int(u / 0.16 * 98))
        elif u < 0.80:
            sizes.append(100)
        else:
            lots = min(int(math.pow((1.0 - u) / 0.20, -0.8)) + 1, 200)
            sizes.append(100 * lots)
    return np.array(sizes, np.int64)
