"""What `twintape demo` runs: an exchange as a process of its own, and one subscriber that keeps account.

A scenario starts its parts, is stepped, and can be asked at any time for a `DemoState`, the one thing that a
view needs. When the exchange has ended its session, `finish` holds its word against what was delivered.
"""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from feeds import itch50
from feeds.book.books import Books, Top
from feeds.errors import ConfigError, FeedError
from feeds.formats import STATE_MIDNIGHT_NS
from feeds.itch50.encode import encode_frames
from feeds.lines.events import HoleFilled, HoleOpened, Line, Lost
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.lines.sockets import Endpoint, steady_clock
from feeds.order_flow.flow import DIGEST_BYTES
from feeds.order_flow.plan import BUSY_SYMBOLS

SHOWN_SYMBOLS = BUSY_SYMBOLS[:8]
STREAM_ID = 1
NS_PER_S = 1_000_000_000
_READY_SECONDS = 60.0  # a first start may have kernels to compile
_SUMMARY_SECONDS = 30.0
_SILENCE_NS = 10 * NS_PER_S  # without a single message: something is broken ...
_SILENCE_DEAD_NS = 2 * NS_PER_S  # ... and sooner when nobody is left to send one
_RATE_OVER_NS = NS_PER_S
_WAIT_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the demonstration may be asked for."""

    seconds: float = 15.0
    rate: float = 50_000.0
    loss: float = 0.05
    seed: int = 7

    def __post_init__(self) -> None:
        if not 1.0 <= self.seconds <= 3_600.0:
            raise ConfigError(f"seconds must be in 1 to 3600, was {self.seconds:g}")
        if not 1_000.0 <= self.rate <= 500_000.0:
            raise ConfigError(f"rate must be in 1000 to 500000 messages per second, was {self.rate:g}")
        if not 0.0 <= self.loss <= 0.5:
            raise ConfigError(f"loss must be in 0 to 0.5, was {self.loss:g}")

    def exchange_words(self, line_a: Endpoint, line_b: Endpoint) -> list[str]:
        """Return the arguments with which the exchange is started."""
        return [
            *("--json", "--wait", "--snapshot", "none", "--rerequest", "127.0.0.1:0"),
            *("--line-a", str(line_a), "--line-b", str(line_b), "--cut-a", "1-40", "--cut-b", "1-25"),
            *("--rate", str(self.rate), "--seconds", str(self.seconds), "--seed", str(self.seed)),
            *("--loss", str(self.loss), "--burst-loss", str(self.loss / 50), "--burst", "4"),
            *("--duplicate", "0.01", "--reorder", "0.02", "--delay-b", "0.2", "--jitter", "0.3"),
            *("--end-seconds", "3"),
        ]


@dataclass(frozen=True, slots=True)
class LineState:
    """One line as the subscriber sees it. Counts are of messages."""

    name: str
    messages: int
    missing: int
    first: int  # that this line brought before any other
    duplicates: int
    reordered_packets: int


@dataclass(frozen=True, slots=True)
class DemoState:
    """Everything that a view shows, at one moment."""

    seconds: float
    seconds_planned: float
    sent: int  # as far as the exchange has told
    delivered: int
    messages_per_second: float
    lines: list[LineState]
    holes_open: int
    holes_opened: int
    holes_filled: int
    asked_again: int  # messages that came from the re-request server
    lost: int
    open_orders: int
    tops: dict[str, Top]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of what the exchange says with what was delivered."""

    name: str
    holds: bool
    found: str


@dataclass(slots=True)
class Outcome:
    """How the demonstration ended: the last state, the exchange's own account, and the proof."""

    state: DemoState
    exchange: dict[str, Any]
    checks: list[Check] = field(default_factory=list)

    @property
    def is_proved(self) -> bool:
        return bool(self.checks) and all(check.holds for check in self.checks)


class ExchangeProcess:
    """The simulated exchange as a child process; what it says is read by a thread."""

    def __init__(self, words: list[str]) -> None:
        self.addresses: dict[str, str] = {}
        self.sent = 0
        self.summary: dict[str, Any] | None = None
        self._is_ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twintape", "exchange", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> None:
        """Return when its sockets are open. Raises FeedError, with its own words, if they will not be."""
        if not self._is_ready.wait(_READY_SECONDS) or not self.addresses:
            self.close()
            raise FeedError(f"the exchange must be ready within {_READY_SECONDS:g} s: {self.last_words()}")

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return " ".join(self._errors[-3:]) or "it said nothing"

    def end(self) -> None:
        """Let it go: its session is over and we have all of it."""
        if self.is_running():
            self._process.terminate()

    def wait_summary(self) -> dict[str, Any]:
        """Return its account of what it sent. Raises FeedError if it died without one."""
        self._readers[0].join(_SUMMARY_SECONDS)
        if self.summary is None:
            raise FeedError(f"the exchange must end with a summary: {self.last_words()}")
        return self.summary

    def close(self) -> None:
        """End it, gently first."""
        if self.is_running():
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        for reader in self._readers:
            reader.join(5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["event"] == "ready":
                self.addresses = said["addresses"]
                self._is_ready.set()
            elif said["event"] == "progress":
                self.sent = said["message_count"]
            elif said["event"] == "summary":
                self.sent = said["message_count"]
                self.summary = said
        self._is_ready.set()  # it ended: nobody need wait any longer

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.strip())
            del self._errors[:-50]


class Scenario:
    """One demonstration: `with Scenario(options) as scenario`, then `step` until `is_over`, then `finish`."""

    def __init__(self, options: DemoOptions, clock: Callable[[], int] | None = None) -> None:
        self.options = options
        self._clock = clock if clock is not None else steady_clock()
        self._books = Books(has_orders=True)
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._holes_opened = self._holes_filled = 0
        self._lost_ranges = 0
        self._rate_ns = self._rate_count = 0
        self._began_ns = self._heard_ns = 0
        self._rate = 0.0
        # The exchange must know the lines' ports and we its re-request port, so ports are found first. They
        # are let go only when the exchange is up, and it sends nothing before `go`.
        with _hold_port() as holder_a, _hold_port() as holder_b:
            line_a, line_b = Endpoint(*holder_a.getsockname()), Endpoint(*holder_b.getsockname())
            self._exchange = ExchangeProcess(options.exchange_words(line_a, line_b))
            self._exchange.wait_ready()
        try:
            self._receiver = self._open_receiver(line_a, line_b)
        except BaseException:
            self._exchange.close()
            raise
        self._warm_up()
        self._began_ns = self._heard_ns = self._rate_ns = self._clock()
        self._exchange.go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.close()
        self._receiver.close()

    @property
    def is_over(self) -> bool:
        """Whether the exchange has ended its session and everything of it was delivered or given up."""
        return self._receiver.handler.is_ended and not self._receiver.has_pending

    def step(self) -> None:
        """Receive and book what is there, or wait a little for it. Raises FeedError after a long silence."""
        now_ns = self._clock()
        frames = self._receiver.poll(now_ns)
        if frames.size:
            decoder = self._receiver.decoder
            self._books.apply(frames)
            # Back to the exchange's own bytes: only a stream that lost nothing has the exchange's digest.
            midnight_ns = int(decoder.state[STATE_MIDNIGHT_NS])
            self._digest.update(encode_frames(frames, decoder.directory, midnight_ns))
            self._heard_ns = now_ns
        else:
            self._check_silence(now_ns)
            self._receiver.wait(now_ns, _WAIT_NS)
        for event in self._receiver.take_events():
            self._holes_opened += isinstance(event, HoleOpened)
            self._holes_filled += isinstance(event, HoleFilled)
            self._lost_ranges += isinstance(event, Lost)

    def state(self) -> DemoState:
        """Return what there is to see now."""
        handler = self._receiver.handler
        now_ns = self._clock()
        if now_ns - self._rate_ns >= _RATE_OVER_NS:
            self._rate = (handler.delivered_count - self._rate_count) * NS_PER_S / (now_ns - self._rate_ns)
            self._rate_ns, self._rate_count = now_ns, handler.delivered_count
        return DemoState(
            seconds=(now_ns - self._began_ns) / NS_PER_S,
            seconds_planned=self.options.seconds,
            sent=max(self._exchange.sent, handler.delivered_count),
            delivered=handler.delivered_count,
            messages_per_second=self._rate,
            lines=[self._line_state(line) for line in (Line.A, Line.B)],
            holes_open=len(handler.arbiter.holes()),
            holes_opened=self._holes_opened,
            holes_filled=self._holes_filled,
            asked_again=self._receiver.counts(Line.RECOVERY).first,
            lost=handler.lost_count,
            open_orders=self._books.order_count,
            tops={symbol: top for symbol in SHOWN_SYMBOLS if (top := self._top(symbol)) is not None},
        )

    def finish(self) -> Outcome:
        """Hold the exchange's account against ours."""
        self._exchange.end()
        summary = self._exchange.wait_summary()
        state = self.state()
        outcome = Outcome(state, summary)
        session = summary["sessions"][0]
        checks = outcome.checks
        checks.append(
            Check(
                "every message delivered",
                state.delivered == session["message_count"] and state.lost == 0,
                f"{state.delivered:,} of {session['message_count']:,}, {state.lost:,} lost",
            )
        )
        ours = self._digest.hexdigest()
        checks.append(
            Check("every byte as sent, in order, once", ours == session["digest"], f"blake2b {ours}")
        )
        tops = {symbol: Top(**top) for symbol, top in summary["tops"].items()}
        wrong = [symbol for symbol, top in tops.items() if self._top(symbol) != top]
        checks.append(
            Check(
                "best prices as in the exchange's own books",
                bool(tops) and not wrong,
                f"{len(tops) - len(wrong)} of {len(tops)} symbols"
                + (f", not {', '.join(wrong)}" if wrong else ""),
            )
        )
        counters = self._books.counters
        checks.append(
            Check(
                "books never contradicted",
                counters.unknown_orders == 0,
                f"{self._books.order_count:,} open orders, {counters.unknown_orders:,} unknown references",
            )
        )
        return outcome

    def _warm_up(self) -> None:
        """Load all compiled code now: a second later the first messages would pile up meanwhile."""
        frames = self._receiver.poll(self._clock())
        self._books.apply(frames)
        encode_frames(frames, self._receiver.decoder.directory, 0)
        self.state()

    def _check_silence(self, now_ns: int) -> None:
        is_running = self._exchange.is_running()
        patience_ns = _SILENCE_NS if is_running else _SILENCE_DEAD_NS
        if now_ns - self._heard_ns > patience_ns:
            raise FeedError(
                f"no message for {patience_ns // NS_PER_S} s, and the session has not ended; "
                f"the exchange {'runs' if is_running else 'is dead'}: {self._exchange.last_words()}"
            )

    def _open_receiver(self, line_a: Endpoint, line_b: Endpoint) -> LineReceiver:
        host, port = self._exchange.addresses["rerequest"].split(":")
        servers = (Endpoint(host, int(port)),)
        config = ReceiverConfig(line_a=line_a, line_b=line_b, servers=servers, lines=LineConfig(start=1))
        return LineReceiver(itch50.FORMAT, STREAM_ID, config)

    def _line_state(self, line: Line) -> LineState:
        counts = self._receiver.counts(line)
        return LineState(
            name=line.name,
            messages=counts.messages,
            missing=counts.lost,
            first=counts.first,
            duplicates=counts.duplicate,
            reordered_packets=counts.reordered_packets,
        )

    def _top(self, symbol: str) -> Top | None:
        instrument_id = self._receiver.decoder.instrument_of(symbol)
        return None if instrument_id is None else self._books.top(instrument_id)


def _hold_port() -> socket.socket:
    """Return a socket that keeps a free port of this machine."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    holder.bind(("127.0.0.1", 0))
    return holder
