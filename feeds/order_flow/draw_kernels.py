"""Chance and time in the simulated market: which stock is next, and when.

Floating point would make the flow depend on a machine's mathematical library; so distributions are tables of
quantiles, rounded once when the market is set up.
"""

from __future__ import annotations

from feeds.chance_kernels import draw, draw_below
from feeds.compiled import i64, kernel
from feeds.order_flow.layout import (
    ALIAS_AT,
    ALIAS_LIMIT,
    ALIAS_OTHER,
    ALIAS_WHOLE,
    ALIAS_WORDS,
    BURST_LEFT,
    EXPONENTIAL_AT,
    EXPONENTIAL_BITS,
    GAP_NS,
    PHASE,
    PHASE_END_NS,
    PHASE_WORDS,
    PHASES_AT,
    RECENT_STOCK,
    STOCK_COUNT,
    STOCK_WORDS,
    STOCKS_AT,
    TABLE_BITS,
    TIME_NS,
    Market,
)

_TABLE_SHIFT = 63 - TABLE_BITS
_BURST_ODDS = 512  # a rush on one stock begins once in about so many messages ...
_BURST_MEAN = 384  # ... and lasts for about so many ...
_BURST_SPEED_BITS = 5  # ... at 32 times the usual rate


@kernel
def draw_from(market: Market, table_at: int) -> int:
    """Return an entry of a table of TABLE_SIZE quantiles."""
    return i64(market[table_at + (draw(market) >> i64(_TABLE_SHIFT))])


@kernel
def stock_at(number: int) -> int:
    """Return the stock with this number, counted from 0."""
    return STOCKS_AT + number * STOCK_WORDS


@kernel
def draw_stock(market: Market) -> int:
    """Return the stock of the next message: mostly by activity, often the one that is busy just now."""
    bits = draw(market)
    is_rush = market[BURST_LEFT] > 0
    if is_rush:
        market[BURST_LEFT] -= 1
    if (bits & 3 != 0) == is_rush:
        return i64(market[RECENT_STOCK])
    number = draw_below(market, market[STOCK_COUNT])
    alias = market[ALIAS_AT] + number * ALIAS_WORDS
    if draw_below(market, ALIAS_WHOLE) >= market[alias + ALIAS_LIMIT]:
        number = i64(market[alias + ALIAS_OTHER])
    stock = stock_at(number)
    if not is_rush:
        market[RECENT_STOCK] = stock
        if (bits >> i64(2)) & (_BURST_ODDS - 1) == 0:
            market[BURST_LEFT] = (_BURST_MEAN * draw_from(market, EXPONENTIAL_AT)) >> i64(EXPONENTIAL_BITS)
    return stock


@kernel
def advance_time(market: Market, messages_left: int) -> int:
    """Move the clock to the next message and return it.

    The mean gap is what is left of the phase over the messages it has left, so that bursts and lulls are
    made good for by themselves and a phase ends on time.
    """
    if market[GAP_NS] > 0:
        market[TIME_NS] += market[GAP_NS]
        return i64(market[TIME_NS])
    left_ns = market[PHASES_AT + market[PHASE] * PHASE_WORDS + PHASE_END_NS] - market[TIME_NS]
    if left_ns > 0:
        mean_ns = left_ns // (max(messages_left, 0) + 1)
        if market[BURST_LEFT] > 0:
            mean_ns >>= i64(_BURST_SPEED_BITS)
        gap_ns = (mean_ns * draw_from(market, EXPONENTIAL_AT)) >> i64(EXPONENTIAL_BITS)
        market[TIME_NS] += min(gap_ns, left_ns)
    return i64(market[TIME_NS])


def warm_up() -> None:
    from feeds.order_flow.flow import warm_up_flow

    warm_up_flow()
