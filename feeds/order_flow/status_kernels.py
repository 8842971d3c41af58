"""Everything in the flow that is not about one order: halts and pauses, crosses, imbalances, broken trades.

A halt is a short script of messages about one stock, one step every so many messages of the market. Every
function writes at most one message, so that a day is the same whatever the size of the blocks in which it is
asked for.
"""

from __future__ import annotations

from feeds.chance_kernels import draw, draw_below
from feeds.compiled import i64, kernel
from feeds.itch50.encode_kernels import (
    padded_word,
    write_auction_collar,
    write_broken_trade,
    write_cross_trade,
    write_direct_listing,
    write_ipo_quoting,
    write_net_order_imbalance,
    write_operational_halt,
    write_order_executed_priced,
    write_participant_position,
    write_reg_sho,
    write_retail_interest,
    write_trading_action,
)
from feeds.memory_kernels import Buffer
from feeds.order_flow.book_kernels import oldest_order
from feeds.order_flow.draw_kernels import stock_at
from feeds.order_flow.layout import (
    BEST_ASK,
    BEST_BID,
    BUY,
    CROSS_MATCH,
    CROSS_PRICE,
    CROSS_SHARES,
    CROSS_TICK,
    CURSOR,
    DAY_MESSAGES,
    FAIR,
    FAIR_BITS,
    HALT_AT,
    HALT_COUNT,
    HALT_DUE,
    HALT_KIND,
    HALT_SLOTS,
    HALT_STEP,
    HALT_STOCK,
    HALT_WORDS,
    HALTS_AT,
    IS_BREAKER_ON,
    IS_HALTED_HERE,
    LOCATE,
    LOT,
    MAKER_STATES,
    MATCH_COUNT,
    MATCH_LOCATE,
    MATCH_NUMBER,
    MATCH_SLOTS,
    MATCH_WORDS,
    MATCHES_AT,
    NO_ASK,
    NO_BID,
    NO_SIDE,
    NONE,
    OPERATIONAL,
    PARTICIPANT_COUNT,
    PARTICIPANTS_AT,
    PAUSE,
    REF,
    SEQUENCE,
    SHORT_SALE,
    STATE_REASON,
    STEP,
    SYMBOL,
    TICK_PRICE,
    TIME_NS,
    TRADING_STATE,
    Market,
)
from feeds.order_flow.order_kernels import (
    choose_side,
    draw_part,
    draw_tracking,
    is_trading,
    reduce_order,
    take_match,
)

_SPACE = ord(" ")
_HALTED = ord("H")
_PAUSED = ord("P")
_QUOTING = ord("Q")
_TRADING = ord("T")
_CROSS_OF_HALT = ord("H")
_NOT_PRINTABLE = ord("N")
_NEVER = 1 << 62
_REASON_NONE = padded_word(b"", 4)
_REASON_PAUSE = padded_word(b"LUDP", 4)
_REASON_NEWS = padded_word(b"T1", 4)
_REASON_RELEASED = padded_word(b"T3", 4)
_CROSSED_ORDERS = 2  # a cross executes at most so many displayed orders, against orders that only it sees
_QUOTES_PER_HALT = 2  # imbalance messages between a halt and its cross
_LETTERS_DIRECTION = padded_word(b"BSNO", 4)
_LETTERS_VARIATION = padded_word(b"L12345AB", 8)
_LETTERS_RETAIL = padded_word(b"BSAN", 4)
_LETTERS_MAKER_STATE = padded_word(b"AEWSD", 5)


@kernel
def middle_price(market: Market, stock: int) -> int:
    """Return the price between the best quotes, or the believed one without them; on the tick grid."""
    bid = market[stock + BEST_BID]
    ask = market[stock + BEST_ASK]
    tick = market[stock + FAIR] >> i64(FAIR_BITS)
    if bid != NO_BID and ask != NO_ASK:
        tick = (bid + ask) // 2
    return i64(tick * market[stock + TICK_PRICE])


@kernel
def write_action(market: Market, buffer: Buffer, at: int, stock: int, letter: int, reason: int) -> int:
    """Set a stock's trading state and say so."""
    market[stock + TRADING_STATE] = letter
    market[stock + STATE_REASON] = reason
    return write_state(market, buffer, at, stock)


@kernel
def write_state(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    symbol = market[stock + SYMBOL]
    letter = market[stock + TRADING_STATE]
    reason = market[stock + STATE_REASON]
    return write_trading_action(
        buffer, at, market[stock + LOCATE], 0, market[TIME_NS], symbol, letter, _SPACE, reason
    )


@kernel
def write_halted_here(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    """Say whether a stock is halted on this exchange alone."""
    letter = _HALTED if market[stock + IS_HALTED_HERE] != 0 else _TRADING
    symbol = market[stock + SYMBOL]
    return write_operational_halt(
        buffer, at, market[stock + LOCATE], 0, market[TIME_NS], symbol, _QUOTING, letter
    )


@kernel
def write_imbalance(market: Market, buffer: Buffer, at: int, stock: int, cross_type: int) -> int:
    lot = market[stock + LOT]
    paired = lot * draw_below(market, 4_000)
    bits = draw(market) >> i64(20)
    direction = (_LETTERS_DIRECTION >> i64(8 * (bits & 3))) & 0xFF
    has_imbalance = bits & 3 < 2  # N: none, O: too few orders to say
    imbalance = lot * (1 + draw_below(market, 2_000)) if has_imbalance else i64(0)
    variation = (_LETTERS_VARIATION >> i64(8 * ((bits >> i64(2)) & 7))) & 0xFF
    reference = middle_price(market, stock)
    tick_price = market[stock + TICK_PRICE]
    near = max(reference + tick_price * (((bits >> i64(5)) & 7) - 3), tick_price)
    far = max(reference + tick_price * (((bits >> i64(8)) & 15) - 7), tick_price)
    return write_net_order_imbalance(
        buffer,
        at,
        market[stock + LOCATE],
        draw_tracking(market),
        market[TIME_NS],
        paired,
        imbalance,
        direction,
        market[stock + SYMBOL],
        far,
        near,
        reference,
        cross_type,
        variation,
    )


@kernel
def find_halt(market: Market, stock: int) -> int:
    """Return the halt in which a stock is, NONE if it is in none."""
    for row in range(market[HALT_COUNT]):
        halt = HALTS_AT + row * HALT_WORDS
        if market[halt + HALT_STOCK] == stock:
            return i64(halt)
    return i64(NONE)


@kernel
def begin_halt(market: Market, buffer: Buffer, at: int, stock: int, kind: int) -> int:
    """Stop trading in one stock and enter its way back into `halts`."""
    count = market[HALT_COUNT]
    if count == HALT_SLOTS or market[IS_BREAKER_ON] != 0 or not is_trading(market, stock):
        return at
    halt = i64(HALTS_AT + count * HALT_WORDS)
    market[halt + HALT_STOCK] = stock
    market[halt + HALT_KIND] = kind
    market[halt + HALT_STEP] = 0
    market[HALT_COUNT] += 1
    schedule_halt(market, halt)
    if kind == OPERATIONAL:
        market[stock + IS_HALTED_HERE] = 1
        return write_halted_here(market, buffer, at, stock)
    if kind == PAUSE:
        return write_action(market, buffer, at, stock, _PAUSED, _REASON_PAUSE)
    return write_action(market, buffer, at, stock, _HALTED, _REASON_NEWS)


@kernel
def schedule_halt(market: Market, halt: int) -> None:
    """Let a halt's next step come after about half a percent of the day."""
    wait = 8 + draw_below(market, max(market[DAY_MESSAGES] // 200, 1))
    market[halt + HALT_AT] = market[SEQUENCE] + wait
    find_halt_due(market)


@kernel
def find_halt_due(market: Market) -> None:
    due = i64(_NEVER)
    for row in range(market[HALT_COUNT]):
        due = min(due, market[HALTS_AT + row * HALT_WORDS + HALT_AT])
    market[HALT_DUE] = due


@kernel
def end_halt(market: Market, halt: int) -> None:
    market[HALT_COUNT] -= 1
    last = HALTS_AT + market[HALT_COUNT] * HALT_WORDS
    for field in range(HALT_WORDS):
        market[halt + field] = market[last + field]
    find_halt_due(market)


@kernel
def continue_halt(market: Market, buffer: Buffer, at: int) -> int:
    """Write the next message of the halt that is due: collar, imbalances, quoting, cross, trading again."""
    halt = i64(HALTS_AT)
    while market[halt + HALT_AT] != market[HALT_DUE]:
        halt += HALT_WORDS
    stock = i64(market[halt + HALT_STOCK])
    kind = market[halt + HALT_KIND]
    step = market[halt + HALT_STEP]
    symbol = market[stock + SYMBOL]
    time_ns = market[TIME_NS]
    if kind == OPERATIONAL:
        end_halt(market, halt)
        market[stock + IS_HALTED_HERE] = 0
        return write_halted_here(market, buffer, at, stock)
    market[halt + HALT_STEP] += 1
    if step == 0 and kind == PAUSE:
        schedule_halt(market, halt)
        return write_collar(market, buffer, at, stock)
    if step <= _QUOTES_PER_HALT:
        schedule_halt(market, halt)
        return write_imbalance(market, buffer, at, stock, _CROSS_OF_HALT)
    if step == _QUOTES_PER_HALT + 1:
        schedule_halt(market, halt)
        reason = _REASON_PAUSE if kind == PAUSE else _REASON_RELEASED
        return write_action(market, buffer, at, stock, _QUOTING, reason)
    if step == _QUOTES_PER_HALT + 2:
        schedule_halt(market, halt)
        shares = market[stock + LOT] * draw_below(market, 50)
        price = middle_price(market, stock)
        match = take_match(market, stock)
        return write_cross_trade(
            buffer, at, market[stock + LOCATE], 0, time_ns, shares, symbol, price, match, _CROSS_OF_HALT
        )
    end_halt(market, halt)
    return write_action(market, buffer, at, stock, _TRADING, _REASON_NONE)


@kernel
def write_collar(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    reference = middle_price(market, stock)
    width = reference // 20 + market[stock + TICK_PRICE]
    lower = max(reference - width, 1)
    return write_auction_collar(
        buffer,
        at,
        market[stock + LOCATE],
        0,
        market[TIME_NS],
        market[stock + SYMBOL],
        reference,
        reference + width,
        lower,
        0,
    )


@kernel
def begin_cross(market: Market, stock: int) -> None:
    """Choose the price of a cross: one of the best quotes, so that no order trades beyond its limit."""
    market[CROSS_MATCH] = take_match(market, stock)
    market[CROSS_SHARES] = 0
    market[CROSS_PRICE] = 0
    market[CROSS_TICK] = NONE
    side = choose_side(market, stock)
    if side != NO_SIDE and is_trading(market, stock):
        market[CROSS_TICK] = market[stock + (BEST_BID if side == BUY else BEST_ASK)]
        market[CROSS_PRICE] = market[CROSS_TICK] * market[stock + TICK_PRICE]


@kernel
def cross_stock(market: Market, buffer: Buffer, at: int, cross_type: int) -> int:
    """Write the next message of the cross of the stock at CURSOR: displayed orders in it, then the cross."""
    stock = stock_at(market[CURSOR])
    if market[STEP] == 0:
        begin_cross(market, stock)
    if market[CROSS_TICK] != NONE and market[STEP] < _CROSSED_ORDERS:
        order = oldest_order(market, stock, market[CROSS_TICK])
        if order != NONE:
            market[STEP] += 1
            shares = draw_part(market, order)
            ref = market[order + REF]
            reduce_order(market, order, shares)
            market[CROSS_SHARES] += shares
            return write_order_executed_priced(
                buffer,
                at,
                market[stock + LOCATE],
                0,
                market[TIME_NS],
                ref,
                shares,
                market[CROSS_MATCH],
                _NOT_PRINTABLE,
                market[CROSS_PRICE],
            )
    market[CURSOR] += 1
    market[STEP] = 0
    # A cross without orders is printed as well, with no shares and no price.
    return write_cross_trade(
        buffer,
        at,
        market[stock + LOCATE],
        0,
        market[TIME_NS],
        market[CROSS_SHARES],
        market[stock + SYMBOL],
        market[CROSS_PRICE],
        market[CROSS_MATCH],
        cross_type,
    )


@kernel
def break_trade(market: Market, buffer: Buffer, at: int) -> int:
    """Declare one of the latest trades void."""
    known = min(market[MATCH_COUNT], MATCH_SLOTS)
    if known == 0:
        return at
    slot = MATCHES_AT + draw_below(market, known) * MATCH_WORDS
    match = market[slot + MATCH_NUMBER]
    locate = market[slot + MATCH_LOCATE]
    return write_broken_trade(buffer, at, locate, 0, market[TIME_NS], match)


@kernel
def write_retail(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    interest = (_LETTERS_RETAIL >> i64(8 * draw_below(market, 4))) & 0xFF
    symbol = market[stock + SYMBOL]
    return write_retail_interest(buffer, at, market[stock + LOCATE], 0, market[TIME_NS], symbol, interest)


@kernel
def change_short_sale(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    market[stock + SHORT_SALE] = ord("1") if market[stock + SHORT_SALE] == ord("0") else ord("2")
    return write_short_sale(market, buffer, at, stock)


@kernel
def write_short_sale(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    symbol = market[stock + SYMBOL]
    digit = market[stock + SHORT_SALE]
    return write_reg_sho(buffer, at, market[stock + LOCATE], 0, market[TIME_NS], symbol, digit)


@kernel
def set_maker(market: Market, buffer: Buffer, at: int, stock: int, maker: int, state: int) -> int:
    """Set a market maker's state and say so."""
    shift = i64(8 * maker)
    others = market[stock + MAKER_STATES] & ~(i64(0xFF) << shift)
    market[stock + MAKER_STATES] = others | (i64(state) << shift)
    return write_maker(market, buffer, at, stock, maker)


@kernel
def write_maker(market: Market, buffer: Buffer, at: int, stock: int, maker: int) -> int:
    """Write a market maker's position; the first of a stock is its primary one."""
    state = (market[stock + MAKER_STATES] >> i64(8 * maker)) & 0xFF
    mpid = market[PARTICIPANTS_AT + (market[stock + LOCATE] * 7 + maker) % PARTICIPANT_COUNT]
    primary = ord("Y") if maker == 0 else ord("N")
    symbol = market[stock + SYMBOL]
    return write_participant_position(
        buffer, at, market[stock + LOCATE], 0, market[TIME_NS], mpid, symbol, primary, ord("N"), state
    )


@kernel
def change_maker(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    state = (_LETTERS_MAKER_STATE >> i64(8 * draw_below(market, 5))) & 0xFF
    return set_maker(market, buffer, at, stock, draw_below(market, 3), state)


@kernel
def write_ipo(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    """Announce when an IPO will be released for quotation. The format gives such messages no stock locate."""
    symbol = market[stock + SYMBOL]
    time_ns = market[TIME_NS]
    release_s = time_ns // 1_000_000_000 + 900
    price = middle_price(market, stock)
    return write_ipo_quoting(buffer, at, 0, 0, time_ns, symbol, release_s, ord("A"), price)


@kernel
def write_listing(market: Market, buffer: Buffer, at: int, stock: int) -> int:
    time_ns = market[TIME_NS]
    price = middle_price(market, stock)
    return write_direct_listing(
        buffer,
        at,
        market[stock + LOCATE],
        0,
        time_ns,
        market[stock + SYMBOL],
        ord("Y"),
        price - price // 5,
        price + price * 4 // 5,
        price,
        time_ns,
        price - price // 10,
        price + price // 10,
    )


def warm_up() -> None:
    from feeds.order_flow.flow import warm_up_flow

    warm_up_flow()
