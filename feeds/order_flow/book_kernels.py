"""The simulated market's own books: orders on sliding price ladders, linked in time priority.

These kernels keep four promises that the order flow relies on: an order is on exactly one level of its
stock's ladder, the best ticks are those of the outermost occupied levels, bids stay below asks because
`allowed_tick` lets no price through that would meet the other side, and every unused order is on the free
list.
"""

from __future__ import annotations

from feeds.compiled import i64, kernel
from feeds.order_flow.layout import (
    ADDED_NS,
    ATTRIBUTION,
    BASE,
    BEST_ASK,
    BEST_BID,
    BUY,
    FREE_HEAD,
    LADDER,
    LADDER_TICKS,
    LIVE_ASKS,
    LIVE_BIDS,
    LIVE_COUNT,
    NEXT,
    NO_ASK,
    NO_BID,
    NONE,
    OWNER,
    PREVIOUS,
    REF,
    SELL,
    SHARES,
    TICK,
    TIME_NS,
    Market,
)


@kernel
def level_of(stock: int, tick: int) -> int:
    """Return which word of the market holds the youngest order at a price."""
    return stock + LADDER + (tick & (LADDER_TICKS - 1))


@kernel
def oldest_order(market: Market, stock: int, tick: int) -> int:
    """Return the order that is first in line at a price, NONE on an empty level."""
    youngest = i64(market[level_of(stock, tick)])
    return i64(market[youngest + NEXT]) if youngest != NONE else youngest


@kernel
def allowed_tick(market: Market, stock: int, side: int, wanted: int) -> int:
    """Return the tick nearest to `wanted` where an order may rest, NONE if the other side leaves no room."""
    lowest = market[stock + BASE]
    highest = lowest + LADDER_TICKS - 1
    if side == BUY:
        if market[stock + BEST_ASK] != NO_ASK:
            highest = market[stock + BEST_ASK] - 1
    elif market[stock + BEST_BID] != NO_BID:
        lowest = market[stock + BEST_BID] + 1
    if lowest > highest:
        return i64(NONE)
    return i64(min(max(wanted, lowest), highest))


@kernel
def place_order(
    market: Market, stock: int, side: int, tick: int, shares: int, ref: int, attribution: int
) -> None:
    """Queue a new order behind its level. There must be an unused one."""
    order = market[FREE_HEAD]
    market[FREE_HEAD] = market[order + NEXT]
    market[LIVE_COUNT] += 1
    market[order + REF] = ref
    market[order + TICK] = tick
    market[order + SHARES] = shares
    market[order + OWNER] = stock * 2 + side
    market[order + ATTRIBUTION] = attribution
    market[order + ADDED_NS] = market[TIME_NS]
    level = level_of(stock, tick)
    youngest = market[level]
    if youngest == NONE:
        market[order + NEXT] = order
        market[order + PREVIOUS] = order
    else:
        oldest = market[youngest + NEXT]
        market[order + NEXT] = oldest
        market[order + PREVIOUS] = youngest
        market[youngest + NEXT] = order
        market[oldest + PREVIOUS] = order
    market[level] = order
    if side == BUY:
        market[stock + LIVE_BIDS] += 1
        market[stock + BEST_BID] = max(market[stock + BEST_BID], tick)
    else:
        market[stock + LIVE_ASKS] += 1
        market[stock + BEST_ASK] = min(market[stock + BEST_ASK], tick)


@kernel
def remove_order(market: Market, order: int) -> None:
    """Take an order off its ladder and put it on the free list."""
    stock = market[order + OWNER] >> 1
    side = market[order + OWNER] & 1
    tick = market[order + TICK]
    level = level_of(stock, tick)
    next_order = market[order + NEXT]
    previous = market[order + PREVIOUS]
    market[stock + (LIVE_BIDS if side == BUY else LIVE_ASKS)] -= 1
    if next_order == order:
        market[level] = NONE
        if side == BUY:
            if tick == market[stock + BEST_BID]:
                market[stock + BEST_BID] = next_level(market, stock, side, tick)
        elif tick == market[stock + BEST_ASK]:
            worse = next_level(market, stock, side, tick)
            market[stock + BEST_ASK] = worse if worse != NONE else NO_ASK
    else:
        market[next_order + PREVIOUS] = previous
        market[previous + NEXT] = next_order
        if market[level] == order:
            market[level] = previous
    market[order + REF] = 0
    market[order + NEXT] = market[FREE_HEAD]
    market[FREE_HEAD] = order
    market[LIVE_COUNT] -= 1


@kernel
def next_level(market: Market, stock: int, side: int, tick: int) -> int:
    """Return the nearest occupied tick that is worse than `tick` on its side, NONE if there is none."""
    base = market[stock + BASE]
    if side == SELL:
        for ask in range(tick + 1, base + LADDER_TICKS):
            if market[level_of(stock, ask)] != NONE:
                return i64(ask)
    else:
        for bid in range(tick - 1, base - 1, -1):
            if market[level_of(stock, bid)] != NONE:
                return i64(bid)
    return i64(NONE)


@kernel
def order_in_the_way(market: Market, stock: int, centre: int) -> int:
    """Slide the ladder towards `centre`; return an order that must go first, NONE if none stands in the way.

    Nothing happens while the centre is within the middle half, so that the ladder does not tremble.
    """
    while centre >= market[stock + BASE] + LADDER_TICKS * 3 // 4:
        order = oldest_order(market, stock, market[stock + BASE])
        if order != NONE:
            return order
        market[stock + BASE] += 1
    while centre < market[stock + BASE] + LADDER_TICKS // 4 and market[stock + BASE] > 1:
        order = oldest_order(market, stock, market[stock + BASE] + LADDER_TICKS - 1)
        if order != NONE:
            return order
        market[stock + BASE] -= 1
    return i64(NONE)


@kernel
def level_totals_kernel(market: Market, stock: int, tick: int) -> tuple[int, int]:
    """Return the shares and the number of orders on one level."""
    shares = i64(0)
    count = i64(0)
    youngest = i64(market[level_of(stock, tick)])
    order = youngest
    while order != NONE:
        shares += market[order + SHARES]
        count += 1
        order = i64(market[order + NEXT])
        if order == youngest:
            break
    return shares, count


def warm_up() -> None:
    from feeds.order_flow.flow import warm_up_flow

    warm_up_flow()
