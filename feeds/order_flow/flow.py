"""A day at a simulated exchange as the bytes of TotalView-ITCH 5.0: seeded, consistent, of any length.

    flow = OrderFlow(FlowConfig(seed=7, message_count=1_000_000))
    block = flow.next_block(4_096)           # real ITCH blocks, valid until the next call
    snapshot = flow.snapshot()               # the market at exactly this point
    write_day_file(Path("day.itch"), 20_000_000, seed=7)

Orders are added, executed in part, cancelled, replaced and deleted as in real books: no execution beyond what
is left, no reference to an order that is gone, no crossed book. Activity is concentrated in few stocks and
comes in bursts; the day opens and closes with crosses and has halts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeds.errors import ConfigError
from feeds.itch50.messages import BLOCK_BYTES_MAX, PREFIX_BYTES, SIZE_OF_TYPE
from feeds.message_store import MessageBlock
from feeds.order_flow import layout
from feeds.order_flow.book_kernels import level_totals_kernel
from feeds.order_flow.flow_kernels import generate_kernel, snapshot_kernel
from feeds.order_flow.plan import FlowConfig, build_market

__all__ = ["FlowBlock", "FlowConfig", "OrderFlow", "Snapshot", "Top", "write_day_file"]

BLOCK_MESSAGES_MAX = 1 << 16
DIGEST_BYTES = 16
_PRICE4_TO_NANO = 100_000
_SNAPSHOT_STOCK_TYPES = "RHYh" + "L" * layout.MAKERS_MAX
_SNAPSHOT_STOCK_BYTES = sum(PREFIX_BYTES + SIZE_OF_TYPE[ord(letter)] for letter in _SNAPSHOT_STOCK_TYPES)
_SNAPSHOT_ORDER_BYTES = PREFIX_BYTES + SIZE_OF_TYPE[ord("F")]
_SNAPSHOT_HEAD_BYTES = PREFIX_BYTES + SIZE_OF_TYPE[ord("S")]


@dataclass(frozen=True, slots=True, eq=False)
class FlowBlock:
    """Consecutive messages, each behind its two-byte length: a stretch of a day file, or of packets."""

    first_sequence: int
    data: NDArray[np.uint8]  # all blocks, end to end
    offsets: NDArray[np.int64]  # where each block begins, and behind them where the last one ends

    def __len__(self) -> int:
        return int(self.offsets.size) - 1

    @property
    def messages(self) -> MessageBlock:
        """The same messages without their lengths, for a message store."""
        starts = self.offsets[:-1] + PREFIX_BYTES
        return MessageBlock(self.data, starts, self.offsets[1:] - starts)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The market between two messages: everything before `next_sequence` is in it, nothing after."""

    next_sequence: int
    data: NDArray[np.uint8]  # blocks: system event, directory and states of each stock, open orders
    open_orders: int


class Top(NamedTuple):
    """The best prices of one stock in 1e-9 dollars; all zero on a side without orders."""

    bid_price: int
    bid_size: int
    bid_orders: int
    ask_price: int
    ask_size: int
    ask_orders: int


class OrderFlow:
    """The messages of one simulated day, in order, and the state of the market behind them."""

    def __init__(self, config: FlowConfig | None = None) -> None:
        self.config = config if config is not None else FlowConfig()
        self._market = build_market(self.config)
        end = layout.STOCKS_AT + self.config.symbol_count * layout.STOCK_WORDS
        self._stocks = self._market[layout.STOCKS_AT : end].reshape(-1, layout.STOCK_WORDS)
        self._number_of = {self._symbol(number): number for number in range(self.config.symbol_count)}
        self._buffer = np.zeros(0, np.uint8)
        self._offsets = np.zeros(1, np.int64)

    @property
    def next_sequence(self) -> int:
        """The number of the message that comes next; the first of a day has number 1."""
        return int(self._market[layout.SEQUENCE]) + 1

    @property
    def time_ns(self) -> int:
        """The exchange's clock at the newest message: ns since midnight."""
        return int(self._market[layout.TIME_NS])

    @property
    def open_orders(self) -> int:
        return int(self._market[layout.LIVE_COUNT])

    @property
    def is_over(self) -> bool:
        """Whether the day has no more messages."""
        return bool(self._market[layout.PHASE] >= self._market[layout.PHASE_COUNT])

    @property
    def symbols(self) -> list[str]:
        """All symbols in alphabetical order; the stock locate of each is its place, counted from 1."""
        return list(self._number_of)

    def busiest_symbols(self, count: int) -> list[str]:
        """Return the symbols with the deepest books, which are those that trade most."""
        order = np.argsort(-self._stocks[:, layout.TARGET], kind="stable")
        return [self._symbol(int(number)) for number in order[:count]]

    def set_clock(self, now_ns: int, gap_ns: int) -> None:
        """Let the caller own the clock: the next message is at `now_ns`, each further one a gap later.

        Without this the day keeps the timetable of a real one. Time never goes back: a `now_ns` before the
        newest message is moved up to it.
        """
        if not 0 <= now_ns < 1 << 47 or not 1 <= gap_ns < 1 << 40:
            raise ConfigError(
                f"now_ns must be in 0 to 2**47 - 1 and gap_ns in 1 to 2**40 - 1, were {now_ns} and {gap_ns}"
            )
        self._market[layout.TIME_NS] = max(now_ns - gap_ns, self.time_ns)
        self._market[layout.GAP_NS] = gap_ns

    def next_block(self, message_count: int) -> FlowBlock:
        """Return the next messages of the day, fewer than asked for only at its end, over reused memory."""
        if not 1 <= message_count <= BLOCK_MESSAGES_MAX:
            raise ConfigError(f"message_count must be in 1 to {BLOCK_MESSAGES_MAX}, was {message_count}")
        if self._offsets.size <= message_count:
            self._buffer = np.zeros(message_count * BLOCK_BYTES_MAX, np.uint8)
            self._offsets = np.zeros(message_count + 1, np.int64)
        first_sequence = self.next_sequence
        count = generate_kernel(self._market, self._buffer, self._offsets, message_count)
        end = int(self._offsets[count])
        return FlowBlock(first_sequence, self._buffer[:end], self._offsets[: count + 1])

    def snapshot(self) -> Snapshot:
        """Return the market as it is after the newest message, as ITCH blocks in memory of their own."""
        room = _SNAPSHOT_HEAD_BYTES + self.config.symbol_count * _SNAPSHOT_STOCK_BYTES
        room += self.open_orders * _SNAPSHOT_ORDER_BYTES
        buffer = np.zeros(room + BLOCK_BYTES_MAX, np.uint8)
        end = snapshot_kernel(self._market, buffer)
        return Snapshot(self.next_sequence, buffer[:end], self.open_orders)

    def top(self, symbol: str) -> Top:
        """Return the best prices of a symbol; an unknown one is a ConfigError."""
        number = self._number_of.get(symbol)
        if number is None:
            raise ConfigError(f"symbol must be one of the {len(self._number_of)} listed here, was {symbol!r}")
        row = self._stocks[number]
        stock = layout.STOCKS_AT + number * layout.STOCK_WORDS
        unit = int(row[layout.TICK_PRICE]) * _PRICE4_TO_NANO
        sides: list[int] = []
        for best, nothing in ((layout.BEST_BID, layout.NO_BID), (layout.BEST_ASK, layout.NO_ASK)):
            tick = int(row[best])
            if tick == nothing:
                sides += [0, 0, 0]
            else:
                shares, orders = level_totals_kernel(self._market, stock, tick)
                sides += [tick * unit, int(shares), int(orders)]
        return Top(*sides)

    def _symbol(self, number: int) -> str:
        word = int(self._stocks[number, layout.SYMBOL])
        return word.to_bytes(8, "little", signed=True).decode("ascii").rstrip()


def write_day_file(
    path: Path,
    message_count: int,
    seed: int,
    *,
    symbol_count: int | None = None,
    open_orders: int | None = None,
) -> str:
    """Write a whole simulated day as a day file; memory does not grow with it.

    The file ends with the zero length that marks the end of a session. Equal arguments give equal bytes.
    Returns the blake2b digest of all its blocks, as the live exchange reports it for what it sent.
    """
    fitting = FlowConfig.for_messages(message_count, seed)
    config = FlowConfig(
        seed,
        message_count,
        fitting.symbol_count if symbol_count is None else symbol_count,
        open_orders,
    )
    flow = OrderFlow(config)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    unfinished = path.with_name(f"{path.name}.part")  # whoever finds `path` finds it whole
    with unfinished.open("wb") as file:
        while not flow.is_over:
            block = flow.next_block(BLOCK_MESSAGES_MAX // 4)
            file.write(block.data.data)
            digest.update(block.data.data)
        file.write(bytes(PREFIX_BYTES))
    unfinished.replace(path)
    return digest.hexdigest()


def warm_up_flow() -> None:
    """Compile every kernel of the order flow on a market of one stock."""
    flow = OrderFlow(FlowConfig(seed=1, message_count=1_100, symbol_count=1))
    flow.next_block(8)
    flow.snapshot()
    flow.top(flow.symbols[0])
