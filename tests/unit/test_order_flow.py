"""The simulated day, checked by a plain market that believes nothing and replays every byte."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from feeds.errors import ConfigError
from feeds.itch50.messages import MESSAGE_TYPES, SIZE_OF_TYPE
from feeds.order_flow.flow import FlowConfig, OrderFlow, Top, write_day_file

pytestmark = pytest.mark.kernels

DAY = FlowConfig(seed=7, message_count=12_000, symbol_count=60)
NS = 1_000_000_000


def blocks_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("!H", data, at)
        assert size > 0
        yield data[at + 2 : at + 2 + size]
        at += 2 + size
    assert at == len(data)


def generate(flow: OrderFlow, block_messages: int = 4_096) -> bytes:
    parts = []
    while not flow.is_over:
        parts.append(flow.next_block(block_messages).data.tobytes())
    return b"".join(parts)


@pytest.fixture(scope="module")
def day() -> bytes:
    return generate(OrderFlow(DAY))


@dataclass
class Order:
    locate: int
    side: bytes
    price: int
    shares: int
    attribution: bytes


@dataclass
class PlainMarket:
    """Follows a stream of messages and refuses whatever no exchange could have sent."""

    orders: dict[int, Order] = field(default_factory=dict)
    queues: dict[tuple[int, bytes, int], list[int]] = field(default_factory=dict)
    symbols: dict[int, bytes] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    reasons: dict[int, bytes] = field(default_factory=dict)
    short_sales: dict[int, bytes] = field(default_factory=dict)
    makers: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    halted_here: set[int] = field(default_factory=set)
    refs_seen: set[int] = field(default_factory=set)
    matches_seen: set[int] = field(default_factory=set)
    time_ns: int = 0
    types: Counter[str] = field(default_factory=Counter)
    are_matches_unique: bool = True

    def on_message(self, message: bytes) -> None:
        letter = chr(message[0])
        self.types[letter] += 1
        assert len(message) == SIZE_OF_TYPE[message[0]]
        locate, _, high, low = struct.unpack_from("!HHHI", message, 1)
        time_ns = high << 32 | low
        assert time_ns >= self.time_ns, f"time went back at {letter}"
        self.time_ns = time_ns
        if letter in "AF":
            self.add(locate, message)
        elif letter in "EC":
            ref, shares, match = struct.unpack_from("!QIQ", message, 11)
            self.execute(locate, ref, shares)
            if letter == "C":
                assert message[31:32] in b"YN"
                assert struct.unpack_from("!I", message, 32)[0] > 0
            self.matches_seen.add(match)
        elif letter == "X":
            ref, shares = struct.unpack_from("!QI", message, 11)
            order = self.find(locate, ref)
            assert 0 < shares < order.shares, "a cancel leaves something"
            order.shares -= shares
        elif letter == "D":
            (ref,) = struct.unpack_from("!Q", message, 11)
            self.find(locate, ref)
            self.remove(ref)
        elif letter == "U":
            old_ref, ref, shares, price = struct.unpack_from("!QQII", message, 11)
            old = self.find(locate, old_ref)
            self.remove(old_ref)
            self.put(ref, replace(old, shares=shares, price=price))
        elif letter == "P":
            order_ref, side, shares, stock, price, match = struct.unpack_from("!QcI8sIQ", message, 11)
            self.check_trading(locate)
            assert (order_ref, side) == (0, b"B")
            assert shares > 0
            assert self.symbols[locate] == stock
            bid, ask = self.best(locate)
            assert bid is not None
            assert ask is not None
            assert bid <= price <= ask
            self.see_match(match)
        elif letter == "Q":
            shares, stock, price, match, _ = struct.unpack_from("!Q8sIQc", message, 11)
            assert self.symbols[locate] == stock
            assert price > 0 or shares == 0
            self.matches_seen.add(match)
        elif letter == "B":
            assert struct.unpack_from("!Q", message, 11)[0] in self.matches_seen
        elif letter == "R":
            assert locate not in self.symbols
            self.symbols[locate] = message[11:19]
        elif letter == "H":
            assert self.symbols[locate] == message[11:19]
            assert message[19:20] in b"HPQT"
            self.states[locate] = message[19:20]
            self.reasons[locate] = message[21:25]
        elif letter == "Y":
            self.short_sales[locate] = message[19:20]
        elif letter == "L":
            mpid, stock, flags = struct.unpack_from("!4s8s3s", message, 11)
            assert self.symbols[locate] == stock
            self.makers[locate, mpid] = flags
        elif letter == "h":
            (self.halted_here.add if message[20:21] == b"H" else self.halted_here.remove)(locate)

    def add(self, locate: int, message: bytes) -> None:
        ref, side, shares, stock, price = struct.unpack_from("!QcI8sI", message, 11)
        assert self.symbols[locate] == stock
        assert side in b"BS"
        self.put(ref, Order(locate, side, price, shares, message[36:40]))

    def put(self, ref: int, order: Order) -> None:
        assert ref not in self.refs_seen, "a reference is used once"
        assert order.shares > 0
        assert 0 < order.price <= 2_000_000_000
        self.refs_seen.add(ref)
        self.orders[ref] = order
        self.queues.setdefault((order.locate, order.side, order.price), []).append(ref)
        bid, ask = self.best(order.locate)
        assert bid is None or ask is None or bid < ask, "the book is crossed"

    def find(self, locate: int, ref: int) -> Order:
        order = self.orders[ref]
        assert order.locate == locate
        return order

    def remove(self, ref: int) -> None:
        order = self.orders.pop(ref)
        queue = self.queues[order.locate, order.side, order.price]
        queue.remove(ref)
        if not queue:
            del self.queues[order.locate, order.side, order.price]

    def execute(self, locate: int, ref: int, shares: int) -> None:
        order = self.find(locate, ref)
        self.check_trading(locate)
        bid, ask = self.best(locate)
        assert order.price == (bid if order.side == b"B" else ask), "only the best price trades"
        assert self.queues[locate, order.side, order.price][0] == ref, "the oldest order trades first"
        assert 0 < shares <= order.shares
        order.shares -= shares
        if order.shares == 0:
            self.remove(ref)

    def see_match(self, match: int) -> None:
        assert match not in self.matches_seen
        self.matches_seen.add(match)

    def check_trading(self, locate: int) -> None:
        assert self.states[locate] == b"T"
        assert locate not in self.halted_here

    def best(self, locate: int) -> tuple[int | None, int | None]:
        sides: dict[bytes, list[int]] = {b"B": [], b"S": []}
        for stock, side, price in self.queues:
            if stock == locate:
                sides[side].append(price)
        return max(sides[b"B"], default=None), min(sides[b"S"], default=None)

    def top(self, locate: int) -> Top:
        figures: list[int] = []
        for side, price in zip((b"B", b"S"), self.best(locate), strict=True):
            if price is None:
                figures += [0, 0, 0]
            else:
                queue = self.queues[locate, side, price]
                figures += [price * 100_000, sum(self.orders[ref].shares for ref in queue), len(queue)]
        return Top(*figures)

    def on_all(self, messages: Iterator[bytes]) -> PlainMarket:
        for message in messages:
            self.on_message(message)
        return self


def test_a_day_never_contradicts_itself(day: bytes) -> None:
    market = PlainMarket().on_all(blocks_of(day))
    assert sum(market.types.values()) == DAY.message_count
    assert len(market.symbols) == DAY.symbol_count


@pytest.mark.parametrize("seed", range(1, 4))
def test_small_crowded_markets_stay_consistent(seed: int) -> None:
    """Few stocks and many orders press on the ladders' edges and on the limits of depth."""
    flow = OrderFlow(FlowConfig(seed, message_count=4_000, symbol_count=2, open_orders=900))
    PlainMarket().on_all(blocks_of(generate(flow)))


def test_every_type_occurs_even_in_a_short_day(day: bytes) -> None:
    assert {chr(block[0]) for block in blocks_of(day)} == {item.letter.decode() for item in MESSAGE_TYPES}


def test_blocks_of_any_size_give_the_same_bytes(day: bytes) -> None:
    assert generate(OrderFlow(DAY), block_messages=17) == day


def test_another_seed_is_another_day(day: bytes) -> None:
    assert generate(OrderFlow(replace(DAY, seed=8))) != day


def test_the_bytes_of_a_day_are_frozen(tmp_path: Path) -> None:
    """Recorded days, benchmarks and reports name a seed; it must mean the same day next year."""
    digest = write_day_file(tmp_path / "day", 5_000, seed=20, symbol_count=40)
    assert digest == "4057b39df223c0a527a40d072c3c243e"


def test_a_day_file_is_the_blocks_and_an_end_mark(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day_file(path, 5_000, seed=3)
    data = path.read_bytes()
    assert data[-2:] == b"\0\0"
    assert data[:-2] == generate(OrderFlow(FlowConfig.for_messages(5_000, seed=3)))
    assert sum(1 for _ in blocks_of(data[:-2])) == 5_000
    assert list(tmp_path.iterdir()) == [path]


def test_system_events_frame_the_day_at_their_hours(day: bytes) -> None:
    events = []
    for block in blocks_of(day):
        if block[:1] == b"S":
            high, low = struct.unpack_from("!HI", block, 5)
            events.append((chr(block[11]), (high << 32 | low) // (60 * NS)))
    minutes = dict(events)
    assert "".join(letter for letter, _ in events) == "OSQMEC"
    assert minutes["Q"] == 9 * 60 + 30
    assert minutes["M"] == 16 * 60
    first, *_, last = blocks_of(day)
    assert (first[:1], first[11:12], last[11:12]) == (b"S", b"O", b"C")


def test_snapshot_and_what_follows_give_the_same_market_as_everything() -> None:
    flow = OrderFlow(DAY)
    whole = PlainMarket()
    for _ in range(7):
        whole.on_all(blocks_of(flow.next_block(1_000).data.tobytes()))
    snapshot = flow.snapshot()
    assert snapshot.next_sequence == 7_001
    assert snapshot.open_orders == len(whole.orders) > 0
    joined = PlainMarket()
    for message in blocks_of(snapshot.data.tobytes()):
        joined.time_ns = 0  # an open order keeps the time at which it was added
        joined.on_message(message)
    assert joined.orders.keys() == whole.orders.keys()
    assert joined.queues == whole.queues, "prices and time priority"
    assert joined.symbols == whole.symbols
    assert joined.states == whole.states
    joined.matches_seen = set(whole.matches_seen)
    rest = generate(flow)
    assert {ref: order.shares for ref, order in joined.on_all(blocks_of(rest)).orders.items()} == {
        ref: order.shares for ref, order in whole.on_all(blocks_of(rest)).orders.items()
    }


def test_a_snapshot_has_every_state_that_the_messages_before_it_told() -> None:
    flow = OrderFlow(DAY)
    whole = PlainMarket()
    reasons: set[bytes] = set()
    maker_states: set[bytes] = set()
    halted_count = 0
    while not flow.is_over:
        before = (dict(whole.reasons), set(whole.halted_here))
        whole.on_all(blocks_of(flow.next_block(5).data.tobytes()))
        is_halt = len(whole.symbols) == DAY.symbol_count and before != (whole.reasons, whole.halted_here)
        if not is_halt and flow.next_sequence % 500 != 1:
            continue
        joined = PlainMarket()
        for message in blocks_of(flow.snapshot().data.tobytes()):
            joined.time_ns = 0
            joined.on_message(message)
        assert joined.states == whole.states
        assert joined.reasons == whole.reasons
        assert joined.halted_here == whole.halted_here
        assert joined.makers == whole.makers
        assert joined.short_sales.items() >= whole.short_sales.items()
        reasons.update(joined.reasons.values())
        maker_states.update(flags[2:] for flags in joined.makers.values())
        halted_count += len(joined.halted_here)
    assert reasons >= {b"    ", b"LUDP", b"T1  "}
    assert len(maker_states) > 1
    assert halted_count > 0


def test_top_of_book_is_what_the_messages_say() -> None:
    flow = OrderFlow(DAY)
    market = PlainMarket()
    tops: list[Top] = []
    for _ in range(6):
        market.on_all(blocks_of(flow.next_block(1_500).data.tobytes()))
        tops = [flow.top(symbol) for symbol in flow.symbols]
        assert tops == [market.top(locate) for locate in range(1, DAY.symbol_count + 1)]
    assert sum(top.bid_orders for top in tops) > DAY.symbol_count


def test_the_callers_clock_is_used_and_never_goes_back() -> None:
    flow = OrderFlow(DAY)
    flow.set_clock(36_000 * NS, 500)
    times = [int.from_bytes(block[5:11], "big") for block in blocks_of(flow.next_block(100).data.tobytes())]
    assert times == [36_000 * NS + 500 * index for index in range(100)]
    flow.set_clock(1, 500)
    assert flow.next_block(1).data[7:13].tobytes() == (times[-1] + 500).to_bytes(6, "big")


def test_orders_dominate_and_activity_is_concentrated_and_comes_in_bursts() -> None:
    flow = OrderFlow(FlowConfig(seed=1, message_count=60_000, symbol_count=300))
    types: Counter[str] = Counter()
    locates: Counter[int] = Counter()
    gaps: list[int] = []
    newest_ns = 0
    for block in blocks_of(generate(flow)):
        types[chr(block[0])] += 1
        locates[int.from_bytes(block[1:3], "big")] += 1
        time_ns = int.from_bytes(block[5:11], "big")
        gaps.append(time_ns - newest_ns)
        newest_ns = time_ns
    share = {letter: count / types.total() for letter, count in types.items()}
    for letter, least, most in (
        ("A", 0.35, 0.50),
        ("D", 0.30, 0.45),
        ("U", 0.04, 0.10),
        ("E", 0.02, 0.06),
        ("F", 0.005, 0.03),
        ("X", 0.005, 0.02),
        ("P", 0.004, 0.02),
    ):
        assert least <= share[letter] <= most, letter
    busiest = sum(count for _, count in locates.most_common(30))
    assert busiest > 0.3 * types.total(), "a tenth of the stocks has more than a third of the messages"
    trading = np.array(gaps[len(gaps) // 3 : len(gaps) * 2 // 3])
    assert trading.std() > 1.3 * trading.mean(), "bursts: exponential gaps would have a ratio of one"


def test_symbols_are_unique_sorted_and_printable() -> None:
    flow = OrderFlow(FlowConfig(seed=5, message_count=400_000, symbol_count=8_000))
    assert len(set(flow.symbols)) == 8_000
    assert flow.symbols == sorted(flow.symbols)
    assert all(1 <= len(symbol) <= 8 and symbol[0].isupper() for symbol in flow.symbols)
    assert {"AAPL", "MSFT", "QQQ"} <= set(flow.symbols)
    assert flow.busiest_symbols(3) == ["QQQ", "SPY", "AAPL"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"symbol_count": 0}, "symbol_count must be in 1 to 60000, was 0"),
        ({"message_count": 3_399}, "message_count must be 3400 or more for 60 symbols"),
        ({"seed": -1}, "seed must be in 0 to"),
        ({"open_orders": 0}, "open_orders must be in 1 to 50000000, was 0"),
    ],
)
def test_a_day_that_cannot_be_is_refused_with_the_reason(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(DAY, **changes)  # type: ignore[arg-type]  # no change here is of a flag


def test_questions_that_make_no_sense_are_refused() -> None:
    flow = OrderFlow(DAY)
    with pytest.raises(ConfigError, match="was 'NOSUCH'"):
        flow.top("NOSUCH")
    with pytest.raises(ConfigError, match="message_count must be in 1 to 65536, was 0"):
        flow.next_block(0)
    with pytest.raises(ConfigError, match="gap_ns"):
        flow.set_clock(0, 0)
