"""What can happen to orders: each function does one thing to a stock's book and writes the message about it.

They return where the next block begins, which is where this one began when the thing cannot be done now:
nothing to execute, nothing to cancel a part of. What they write is always consistent with everything that was
written before: sizes that are left, references that are alive, prices that do not cross.
"""

from __future__ import annotations

from feeds.chance_kernels import draw, draw_below
from feeds.compiled import i64, kernel
from feeds.itch50.encode_kernels import (
    write_add_order,
    write_add_order_attributed,
    write_order_cancel,
    write_order_delete,
    write_order_executed,
    write_order_executed_priced,
    write_order_replace,
    write_trade,
)
from feeds.memory_kernels import Buffer
from feeds.order_flow.book_kernels import (
    allowed_tick,
    level_of,
    next_level,
    oldest_order,
    place_order,
    remove_order,
)
from feeds.order_flow.draw_kernels import draw_from
from feeds.order_flow.layout import (
    ATTRIBUTION,
    BEST_ASK,
    BEST_BID,
    BUY,
    DEPTH_WHOLE,
    DEPTHS_AT,
    FAIR,
    FAIR_BITS,
    FAIR_MAX,
    FAIR_MIN,
    HALF_SPREAD,
    IS_HALTED_HERE,
    LIVE_ASKS,
    LIVE_BIDS,
    LOCATE,
    LOT,
    MATCH_COUNT,
    MATCH_LOCATE,
    MATCH_NUMBER,
    MATCH_SLOTS,
    MATCH_WORDS,
    MATCHES_AT,
    NEXT_MATCH,
    NEXT_REF,
    NO_ASK,
    NO_BID,
    NO_SIDE,
    NONE,
    OWNER,
    PARTICIPANT_COUNT,
    PARTICIPANTS_AT,
    REF,
    SELL,
    SHARES,
    SIGMA,
    SIZE_WHOLE,
    SIZES_AT,
    SYMBOL,
    TARGET,
    TICK,
    TICK_PRICE,
    TIME_NS,
    TRADING_STATE,
    Market,
)

_BUY_LETTER = ord("B")
_SELL_LETTER = ord("S")
_TRADING = ord("T")
_YES = ord("Y")
_NO = ord("N")
_ATTRIBUTED_OUT_OF_256 = 9  # 3.5 % of the adds name their market maker
_WALK_MAX = 24  # levels that a search for an order may walk; deeper orders wait for the price to move


@kernel
def draw_tracking(market: Market) -> int:
    """Return a tracking number: small, even and mostly 0."""
    bits = draw(market) >> i64(20)
    return (bits >> i64(2)) & 14 if bits & 3 == 0 else i64(0)


@kernel
def draw_shares(market: Market, stock: int) -> int:
    """Return an order size, never 0."""
    wanted = market[stock + LOT] * draw_from(market, SIZES_AT) // SIZE_WHOLE
    return i64(max(wanted, 1))


@kernel
def take_ref(market: Market, bits: int) -> int:
    """Return a new order reference: growing, with the odd gap that orders nobody sees leave."""
    ref = market[NEXT_REF]
    market[NEXT_REF] += 1 + (bits & 3)
    return i64(ref)


@kernel
def take_match(market: Market, stock: int) -> int:
    """Return a new match number and remember it, so that the trade can be broken later."""
    match = market[NEXT_MATCH]
    market[NEXT_MATCH] += 1
    slot = MATCHES_AT + (market[MATCH_COUNT] & (MATCH_SLOTS - 1)) * MATCH_WORDS
    market[slot + MATCH_NUMBER] = match
    market[slot + MATCH_LOCATE] = market[stock + LOCATE]
    market[MATCH_COUNT] += 1
    return i64(match)


@kernel
def is_trading(market: Market, stock: int) -> bool:
    return bool(market[stock + TRADING_STATE] == _TRADING and market[stock + IS_HALTED_HERE] == 0)


@kernel
def move_fair_price(market: Market, stock: int) -> int:
    """Let the believed price take a step and return it as a tick."""
    step = market[stock + SIGMA]
    # The sum of two dice is near enough to a bell: its deviation is 418. Rounding down would be a trend.
    bits = draw(market)
    first = (bits >> i64(10)) & 1023
    second = (bits >> i64(20)) & 1023
    fair = market[stock + FAIR] + ((first + second - 1023) * step + 209) // 418
    fair = min(max(fair, market[stock + FAIR_MIN]), market[stock + FAIR_MAX])
    market[stock + FAIR] = fair
    return i64(fair >> i64(FAIR_BITS))


@kernel
def draw_tick(market: Market, stock: int, side: int) -> int:
    """Return where a new order of this side wants to rest, NONE if there is no room."""
    distance = market[stock + HALF_SPREAD] + draw_from(market, DEPTHS_AT)
    fair = market[stock + FAIR] >> i64(FAIR_BITS)
    return allowed_tick(market, stock, side, fair - distance if side == BUY else fair + 1 + distance)


@kernel
def choose_side(market: Market, stock: int) -> int:
    """Return the side whose orders are under pressure: the stale one, else either; NO_SIDE without orders."""
    bids = market[stock + LIVE_BIDS]
    asks = market[stock + LIVE_ASKS]
    if bids == 0:
        return i64(SELL if asks > 0 else NO_SIDE)
    if asks == 0:
        return i64(BUY)
    fair = market[stock + FAIR] >> i64(FAIR_BITS)
    if fair >= market[stock + BEST_ASK]:
        return i64(SELL)
    if fair < market[stock + BEST_BID]:
        return i64(BUY)
    return i64((draw(market) >> i64(40)) & 1)


@kernel
def choose_order(market: Market, stock: int) -> int:
    """Return an open order to change or withdraw, mostly near the best price and young; NONE without any."""
    side = choose_side(market, stock)
    if side == NO_SIDE:
        return i64(NONE)
    tick = i64(market[stock + (BEST_BID if side == BUY else BEST_ASK)])
    hops = min(draw_from(market, DEPTHS_AT), i64(_WALK_MAX))
    while hops > 0:
        worse = next_level(market, stock, side, tick)
        if worse == NONE:
            break
        tick = worse
        hops -= 1
    if draw(market) >> i64(60) == 0:
        return oldest_order(market, stock, tick)
    return i64(market[level_of(stock, tick)])


@kernel
def add_order(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    bits = draw(market) >> i64(8)
    thin = BUY if market[stock + LIVE_BIDS] < market[stock + LIVE_ASKS] else SELL
    side = i64(thin if bits & 7 < 5 else 1 - thin)
    tick = draw_tick(market, stock, side)
    if tick == NONE:
        return at
    shares = draw_shares(market, stock)
    ref = take_ref(market, bits >> i64(3))
    attribution = i64(0)
    if (bits >> i64(8)) & 255 < _ATTRIBUTED_OUT_OF_256:
        attribution = 1 + draw_below(market, PARTICIPANT_COUNT)
    place_order(market, stock, side, tick, shares, ref, attribution)
    letter = _BUY_LETTER if side == BUY else _SELL_LETTER
    price = tick * market[stock + TICK_PRICE]
    tracking = draw_tracking(market)
    symbol = market[stock + SYMBOL]
    time_ns = market[TIME_NS]
    if attribution == 0:
        return write_add_order(
            buffer, at, market[stock + LOCATE], tracking, time_ns, ref, letter, shares, symbol, price
        )
    mpid = market[PARTICIPANTS_AT + attribution - 1]
    return write_add_order_attributed(
        buffer, at, market[stock + LOCATE], tracking, time_ns, ref, letter, shares, symbol, price, mpid
    )


@kernel
def delete_order(market: Market, buffer: Buffer, at: int, order: int) -> int:
    stock = market[order + OWNER] >> 1
    ref = market[order + REF]
    remove_order(market, order)
    tracking = draw_tracking(market)
    return write_order_delete(buffer, at, market[stock + LOCATE], tracking, market[TIME_NS], ref)


@kernel
def turn_over(market: Market, buffer: Buffer, at: int, stock: int, depth: int) -> int:
    """Add or delete an order, the likelier the nearer it brings the book to its usual depth. Never fails.

    Below half of that depth orders are only added, above one and a half only deleted: this is what bounds
    the number of open orders.
    """
    live = market[stock + LIVE_BIDS] + market[stock + LIVE_ASKS]
    usual = max(market[stock + TARGET] * depth // DEPTH_WHOLE, 2)
    if live == 0 or live * 256 < usual * (128 + ((draw(market) >> i64(30)) & 255)):
        after = add_order(market, buffer, at, stock)
        if after != at:
            return after
    return delete_order(market, buffer, at, choose_order(market, stock))


@kernel
def replace_order(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    order = choose_order(market, stock)
    if order == NONE:
        return at
    old_ref = market[order + REF]
    shares = i64(market[order + SHARES])
    attribution = market[order + ATTRIBUTION]
    side = i64(market[order + OWNER] & 1)
    bits = draw(market) >> i64(8)
    if bits & 3 == 0:
        shares = draw_shares(market, stock)
    remove_order(market, order)
    # Without this order its side has more room than before, so there is always a tick.
    tick = draw_tick(market, stock, side)
    ref = take_ref(market, bits >> i64(2))
    place_order(market, stock, side, tick, shares, ref, attribution)
    return write_order_replace(
        buffer,
        at,
        market[stock + LOCATE],
        draw_tracking(market),
        market[TIME_NS],
        old_ref,
        ref,
        shares,
        tick * market[stock + TICK_PRICE],
    )


@kernel
def reduce_order(market: Market, order: int, shares: int) -> None:
    """Take executed shares off an order; it is gone when none are left."""
    if shares == market[order + SHARES]:
        remove_order(market, order)
    else:
        market[order + SHARES] -= shares


@kernel
def draw_part(market: Market, order: int) -> int:
    """Return how much of an order trades: all of it as often as not, else some."""
    shares = i64(market[order + SHARES])
    if shares == 1 or draw(market) >> i64(62) == 0:
        return shares
    if shares > 100:
        return min(100 * (1 + draw_below(market, (shares + 99) // 100)), shares)
    return 1 + draw_below(market, shares)


@kernel
def best_order(market: Market, stock: int) -> int:
    """Return the order that the next incoming one would meet, NONE if nothing can trade."""
    if not is_trading(market, stock):
        return i64(NONE)
    side = choose_side(market, stock)
    if side == NO_SIDE:
        return i64(NONE)
    tick = market[stock + (BEST_BID if side == BUY else BEST_ASK)]
    return oldest_order(market, stock, tick)


@kernel
def execute_order(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    order = best_order(market, stock)
    if order == NONE:
        return at
    shares = draw_part(market, order)
    ref = market[order + REF]
    reduce_order(market, order, shares)
    match = take_match(market, stock)
    tracking = draw_tracking(market)
    return write_order_executed(
        buffer, at, market[stock + LOCATE], tracking, market[TIME_NS], ref, shares, match
    )


@kernel
def execute_order_priced(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    """Execute at a better price than the displayed one; now and then without printing it."""
    order = best_order(market, stock)
    if order == NONE:
        return at
    shares = draw_part(market, order)
    ref = market[order + REF]
    half_tick = market[stock + TICK_PRICE] // 2
    price = market[order + TICK] * market[stock + TICK_PRICE]
    price += -half_tick if market[order + OWNER] & 1 == BUY else half_tick
    reduce_order(market, order, shares)
    match = take_match(market, stock)
    printable = _NO if draw(market) >> i64(59) == 0 else _YES
    tracking = draw_tracking(market)
    return write_order_executed_priced(
        buffer, at, market[stock + LOCATE], tracking, market[TIME_NS], ref, shares, match, printable, price
    )


@kernel
def cancel_order(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    """Take a part off an order and leave at least one share."""
    order = choose_order(market, stock)
    if order == NONE or market[order + SHARES] < 2:
        return at
    shares = 1 + draw_below(market, market[order + SHARES] - 1)
    market[order + SHARES] -= shares
    ref = market[order + REF]
    tracking = draw_tracking(market)
    return write_order_cancel(buffer, at, market[stock + LOCATE], tracking, market[TIME_NS], ref, shares)


@kernel
def trade_hidden(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    """Trade against an order that was never displayed, between the best prices."""
    bid = market[stock + BEST_BID]
    ask = market[stock + BEST_ASK]
    if not is_trading(market, stock) or bid == NO_BID or ask == NO_ASK:
        return at
    tick_price = market[stock + TICK_PRICE]
    bits = draw(market) >> i64(50)
    if bits & 3 == 0:
        price = bid * tick_price
    elif bits & 3 == 1:
        price = ask * tick_price
    else:
        price = (bid + ask) * tick_price // 2
    shares = draw_shares(market, stock)
    match = take_match(market, stock)
    # Since 2010 such trades show no order, and since 2014 always the buying side.
    return write_trade(
        buffer,
        at,
        market[stock + LOCATE],
        draw_tracking(market),
        market[TIME_NS],
        0,
        _BUY_LETTER,
        shares,
        market[stock + SYMBOL],
        price,
        match,
    )


def warm_up() -> None:
    from feeds.order_flow.flow import warm_up_flow

    warm_up_flow()
