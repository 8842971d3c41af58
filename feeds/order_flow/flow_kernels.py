"""The day of the simulated market, message by message: which phase it is in and what happens next.

`generate_kernel` is the only way in: it writes so many blocks and stops. Every step of every phase writes one
message or moves the day on by one phase, so the same seed gives the same bytes in blocks of any size.
"""

from __future__ import annotations

from feeds.chance_kernels import draw_below
from feeds.compiled import i64, kernel
from feeds.itch50.encode_kernels import (
    padded_word,
    write_add_order,
    write_add_order_attributed,
    write_breaker_levels,
    write_breaker_status,
    write_stock_directory,
    write_system_event,
)
from feeds.memory_kernels import Buffer
from feeds.order_flow.book_kernels import level_of, next_level, order_in_the_way
from feeds.order_flow.draw_kernels import advance_time, draw_stock, stock_at
from feeds.order_flow.layout import (
    ACTION_COUNT,
    ADDED_NS,
    ATTRIBUTION,
    BEST_ASK,
    BEST_BID,
    BREAK,
    BREAKER,
    BUY,
    CANCEL,
    CROSS,
    CURSOR,
    DAY_MESSAGES,
    DIRECTORY,
    EXECUTE,
    EXECUTE_PRICED,
    FLOW,
    GAP_NS,
    HALT_ALL,
    HALT_DUE,
    IMBALANCE,
    IPO,
    IS_BREAKER_ON,
    IS_HALTED_HERE,
    LEVELS,
    LEVERAGE,
    LISTING,
    LOCATE,
    MAKER_CHANGE,
    MAKER_STATES,
    MAKERS_MAX,
    MARKET_MAKERS,
    MIX_CROSS_TYPE,
    MIX_DEPTH,
    MIX_WHOLE,
    MIX_WORDS,
    MIXES_AT,
    NEWS_HALT,
    NEXT,
    NO_ASK,
    NO_BID,
    NONE,
    OPERATIONAL,
    PARTICIPANTS_AT,
    PAUSE,
    PHASE,
    PHASE_ARGUMENT,
    PHASE_BEGIN_NS,
    PHASE_COUNT,
    PHASE_DONE,
    PHASE_KIND,
    PHASE_MESSAGES,
    PHASE_WORDS,
    PHASES_AT,
    RARE_CURSOR,
    REF,
    REPLACE,
    REST,
    REST_RESERVE,
    RESUME_ALL,
    RETAIL,
    SELL,
    SEQUENCE,
    SHARES,
    SHORT_SALE_CHANGE,
    STEP,
    STOCK_COUNT,
    SUBTYPE,
    SYMBOL,
    SYSTEM_EVENT,
    TICK_PRICE,
    TIME_NS,
    TRADE,
    TRADING_STATE,
    TRAIT_CATEGORY,
    TRAIT_CLASS,
    TRAIT_ETP,
    TRAIT_FINANCIAL,
    TRAIT_INVERSE,
    TRAIT_THRESHOLD,
    TRAIT_TIER,
    TRAITS,
    TURNOVER,
    Market,
)
from feeds.order_flow.order_kernels import (
    cancel_order,
    delete_order,
    execute_order,
    execute_order_priced,
    move_fair_price,
    replace_order,
    trade_hidden,
    turn_over,
)
from feeds.order_flow.status_kernels import (
    begin_halt,
    break_trade,
    change_maker,
    change_short_sale,
    continue_halt,
    cross_stock,
    find_halt,
    set_maker,
    write_action,
    write_halted_here,
    write_imbalance,
    write_ipo,
    write_listing,
    write_maker,
    write_retail,
    write_short_sale,
    write_state,
)

_YES = ord("Y")
_NO = ord("N")
_TRADING = ord("T")
_HALTED = ord("H")
_ACTIVE = ord("A")
_PRODUCTION = ord("P")
_SPACE = ord(" ")
_BUY_LETTER = ord("B")
_SELL_LETTER = ord("S")
_ROUND_LOT = 100
_REASON_NONE = padded_word(b"", 4)
_REASON_BREAKER = padded_word(b"MWC1", 4)
_INDEX_E8 = 300_000_000_000  # the order that the circuit breaker watches stood at 3,000
_DIRECTORY_STEPS = 3  # R, H and Y; L behind them
_RARE_SHARE = 32  # a rare action is tried after each such part of the phase


@kernel
def write_directory(market: Market, buffer: Buffer, at: int, stock: int, time_ns: int) -> int:
    traits = market[stock + TRAITS]
    return write_stock_directory(
        buffer,
        at,
        market[stock + LOCATE],
        0,
        time_ns,
        market[stock + SYMBOL],
        (traits >> i64(TRAIT_CATEGORY)) & 0xFF,
        (traits >> i64(TRAIT_FINANCIAL)) & 0xFF,
        _ROUND_LOT,
        _NO,
        (traits >> i64(TRAIT_CLASS)) & 0xFF,
        market[stock + SUBTYPE],
        _PRODUCTION,
        (traits >> i64(TRAIT_THRESHOLD)) & 0xFF,
        _NO,
        (traits >> i64(TRAIT_TIER)) & 0xFF,
        (traits >> i64(TRAIT_ETP)) & 0xFF,
        market[stock + LEVERAGE],
        (traits >> i64(TRAIT_INVERSE)) & 0xFF,
    )


@kernel
def directory_step(market: Market, buffer: Buffer, at: int) -> int:
    """Write the next message about the stock at CURSOR: what it is, its states, its market makers."""
    stock = stock_at(market[CURSOR])
    step = i64(market[STEP])
    if step + 1 == _DIRECTORY_STEPS + market[stock + MARKET_MAKERS]:
        market[CURSOR] += 1
        market[STEP] = 0
    else:
        market[STEP] += 1
    if step == 0:
        return write_directory(market, buffer, at, stock, market[TIME_NS])
    if step == 1:
        return write_action(market, buffer, at, stock, _TRADING, _REASON_NONE)
    if step == 2:
        return write_short_sale(market, buffer, at, stock)
    return set_maker(market, buffer, at, stock, step - _DIRECTORY_STEPS, _ACTIVE)


@kernel
def breaker_step(market: Market, buffer: Buffer, at: int, letter: int, reason: int) -> int:
    """Stop or resume the stock at CURSOR with the whole market; one that has a halt of its own keeps it."""
    stock = stock_at(market[CURSOR])
    market[CURSOR] += 1
    if find_halt(market, stock) != NONE:
        return at
    return write_action(market, buffer, at, stock, letter, reason)


@kernel
def draw_action(market: Market, mix: int) -> int:
    """Return what happens next, by the weights of this part of the day."""
    weight = draw_below(market, MIX_WHOLE)
    action = 0
    while weight >= market[mix + action]:
        action += 1
    return i64(action)


@kernel
def act(market: Market, buffer: Buffer, at: int, stock: int, action: int, mix: int) -> int:
    """Do one thing if it can be done; return where the next block begins."""
    if action == REPLACE:
        return replace_order(market, buffer, at, stock)
    if action == EXECUTE:
        return execute_order(market, buffer, at, stock)
    if action == EXECUTE_PRICED:
        return execute_order_priced(market, buffer, at, stock)
    if action == CANCEL:
        return cancel_order(market, buffer, at, stock)
    if action == TRADE:
        return trade_hidden(market, buffer, at, stock)
    if action == IMBALANCE:
        return write_imbalance(market, buffer, at, stock, market[mix + MIX_CROSS_TYPE])
    if action == BREAK:
        return break_trade(market, buffer, at)
    if action == RETAIL:
        return write_retail(market, buffer, at, stock)
    if action in (PAUSE, NEWS_HALT, OPERATIONAL):
        return begin_halt(market, buffer, at, stock, action)
    if action == SHORT_SALE_CHANGE:
        return change_short_sale(market, buffer, at, stock)
    if action == MAKER_CHANGE:
        return change_maker(market, buffer, at, stock)
    if action == IPO:
        return write_ipo(market, buffer, at, stock)
    if action == LISTING:
        return write_listing(market, buffer, at, stock)
    return at


@kernel
def flow_step(market: Market, buffer: Buffer, at: int, mix: int, phase_messages: int) -> int:
    """Write one message of trading."""
    if market[SEQUENCE] >= market[HALT_DUE]:
        return continue_halt(market, buffer, at)
    stock = draw_stock(market)
    centre = move_fair_price(market, stock)
    obstacle = order_in_the_way(market, stock, centre)
    if obstacle != NONE:
        return delete_order(market, buffer, at, obstacle)
    action = draw_action(market, mix)
    if action != TURNOVER:
        after = act(market, buffer, at, stock, action, mix)
        if after != at:
            return after
    elif market[RARE_CURSOR] < ACTION_COUNT and is_rare_due(market, mix, phase_messages):
        # Rare things happen to any stock, not mostly to the busiest.
        anyone = stock_at(draw_below(market, market[STOCK_COUNT]))
        after = act(market, buffer, at, anyone, i64(market[RARE_CURSOR]), mix)
        if after != at:
            market[RARE_CURSOR] += 1
            return after
    return turn_over(market, buffer, at, stock, market[mix + MIX_DEPTH])


@kernel
def is_rare_due(market: Market, mix: int, phase_messages: int) -> bool:
    """Return whether the next thing that chance may leave out of a short day should happen now."""
    if market[mix + EXECUTE] == market[mix + REPLACE]:
        return False  # no trading in this part of the day
    spacing = max(phase_messages // _RARE_SHARE, 1)
    return bool(market[PHASE_DONE] >= spacing * (market[RARE_CURSOR] - REPLACE))


@kernel
def phase_at(phase: int) -> int:
    return PHASES_AT + phase * PHASE_WORDS


@kernel
def enter_phase(market: Market, phase: int) -> None:
    market[PHASE] = phase
    market[PHASE_DONE] = 0
    market[CURSOR] = 0
    market[STEP] = 0
    is_timed = market[GAP_NS] == 0  # else the caller owns the clock
    if is_timed and phase < market[PHASE_COUNT]:
        market[TIME_NS] = max(market[TIME_NS], market[phase_at(phase) + PHASE_BEGIN_NS])


@kernel
def phase_size(market: Market) -> int:
    """Return how many messages the phase under way has in all."""
    planned = market[phase_at(market[PHASE]) + PHASE_MESSAGES]
    if planned == REST:
        planned = max(market[DAY_MESSAGES] - REST_RESERVE - market[SEQUENCE] + market[PHASE_DONE], 0)
    return i64(planned)


@kernel
def step_kernel(market: Market, buffer: Buffer, at: int) -> int:
    """Write one message, or move to the next phase and write none; return where the next block begins."""
    phase = i64(market[PHASE])
    kind = market[phase_at(phase) + PHASE_KIND]
    argument = i64(market[phase_at(phase) + PHASE_ARGUMENT])
    planned = phase_size(market)
    is_over = market[PHASE_DONE] >= planned
    if kind in (DIRECTORY, CROSS, HALT_ALL, RESUME_ALL):
        is_over = market[CURSOR] >= market[STOCK_COUNT]
    if is_over:
        enter_phase(market, phase + 1)
        return at
    time_ns = advance_time(market, planned - market[PHASE_DONE])
    if kind == FLOW:
        after = flow_step(market, buffer, at, MIXES_AT + argument * MIX_WORDS, planned)
    elif kind == DIRECTORY:
        after = directory_step(market, buffer, at)
    elif kind == CROSS:
        after = cross_stock(market, buffer, at, argument)
    elif kind == HALT_ALL:
        market[IS_BREAKER_ON] = 1
        after = breaker_step(market, buffer, at, _HALTED, _REASON_BREAKER)
    elif kind == RESUME_ALL:
        market[IS_BREAKER_ON] = 0
        after = breaker_step(market, buffer, at, _TRADING, _REASON_NONE)
    elif kind == LEVELS:
        after = write_breaker_levels(
            buffer, at, 0, 0, time_ns, _INDEX_E8 * 93 // 100, _INDEX_E8 * 87 // 100, _INDEX_E8 * 80 // 100
        )
    elif kind == BREAKER:
        after = write_breaker_status(buffer, at, 0, 0, time_ns, argument)
    else:
        market[SYSTEM_EVENT] = argument
        after = write_system_event(buffer, at, 0, 0, time_ns, argument)
    if after != at:
        market[PHASE_DONE] += 1
        market[SEQUENCE] += 1
    return after


@kernel
def generate_kernel(market: Market, buffer: Buffer, offsets: Market, message_limit: int) -> int:
    """Write up to `message_limit` blocks and return how many; fewer only at the end of the day.

    `offsets[i]` becomes where block i begins, and `offsets[count]` where the last one ends.
    """
    at = i64(0)
    count = i64(0)
    offsets[0] = 0
    while count < message_limit and market[PHASE] < market[PHASE_COUNT]:
        after = step_kernel(market, buffer, at)
        if after != at:
            count += 1
            offsets[count] = after
            at = after
    return count


@kernel
def write_level(market: Market, buffer: Buffer, at: int, stock: int, side: int, tick: int) -> int:
    """Write all open orders of one price level, oldest first, as they were added and as large as they are."""
    letter = _BUY_LETTER if side == BUY else _SELL_LETTER
    locate = market[stock + LOCATE]
    symbol = market[stock + SYMBOL]
    price = tick * market[stock + TICK_PRICE]
    youngest = i64(market[level_of(stock, tick)])
    order = youngest
    while True:
        order = i64(market[order + NEXT])
        added_ns = market[order + ADDED_NS]
        ref = market[order + REF]
        shares = market[order + SHARES]
        maker = market[order + ATTRIBUTION]
        if maker == 0:
            at = write_add_order(buffer, at, locate, 0, added_ns, ref, letter, shares, symbol, price)
        else:
            mpid = market[PARTICIPANTS_AT + maker - 1]
            at = write_add_order_attributed(
                buffer, at, locate, 0, added_ns, ref, letter, shares, symbol, price, mpid
            )
        if order == youngest:
            return at


@kernel
def snapshot_kernel(market: Market, buffer: Buffer) -> int:
    """Write the market as it is: the newest system event, each stock's directory and states, open orders."""
    at = i64(0)
    time_ns = market[TIME_NS]
    if market[SYSTEM_EVENT] != 0:
        at = write_system_event(buffer, at, 0, 0, time_ns, market[SYSTEM_EVENT])
    for number in range(market[STOCK_COUNT]):
        stock = stock_at(number)
        if market[stock + TRADING_STATE] == 0:
            continue  # its directory entry has not been sent yet
        at = write_directory(market, buffer, at, stock, time_ns)
        at = write_state(market, buffer, at, stock)
        at = write_short_sale(market, buffer, at, stock)
        if market[stock + IS_HALTED_HERE] != 0:
            at = write_halted_here(market, buffer, at, stock)
        for maker in range(MAKERS_MAX):
            if (market[stock + MAKER_STATES] >> i64(8 * maker)) & 0xFF != 0:
                at = write_maker(market, buffer, at, stock, maker)
        tick = i64(market[stock + BEST_BID])
        while tick != NO_BID and tick != NONE:
            at = write_level(market, buffer, at, stock, BUY, tick)
            tick = next_level(market, stock, BUY, tick)
        tick = i64(market[stock + BEST_ASK])
        while tick != NO_ASK and tick != NONE:
            at = write_level(market, buffer, at, stock, SELL, tick)
            tick = next_level(market, stock, SELL, tick)
    return at


def warm_up() -> None:
    from feeds.order_flow.flow import warm_up_flow

    warm_up_flow()
