"""What the simulated exchange is asked to do: validated as a whole before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from feeds.errors import ConfigError
from feeds.exchange.lines import Cut, Impairment
from feeds.lines.sockets import Endpoint
from feeds.moldudp64 import RequestLimits, session_bytes
from feeds.order_flow.flow import FlowConfig

NS_PER_S = 1_000_000_000
RATE_MAX = 1_000_000_000.0
CAPTURE_SUFFIXES = (".pcap", ".pcapng")


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages per second, evenly or in bursts; `None` is as fast as it goes.

    With bursts, the first `burst_ns` of every `period_ns` run at `burst_factor` times the mean, and the rest
    so much slower that the mean is kept.
    """

    per_second: float | None = None
    burst_factor: float = 1.0
    burst_ns: int = 100_000_000
    period_ns: int = NS_PER_S

    def __post_init__(self) -> None:
        if self.per_second is not None and not 0.0 < self.per_second <= RATE_MAX:
            raise ConfigError(
                f"per_second must be more than 0 and at most {RATE_MAX:g}, was {self.per_second}"
            )
        if not 0 < self.burst_ns < self.period_ns:
            raise ConfigError(
                f"burst_ns must be in 1 to period_ns - 1 = {self.period_ns - 1}, was {self.burst_ns}"
            )
        most = self.period_ns / self.burst_ns
        if not 1.0 <= self.burst_factor <= most:
            raise ConfigError(
                f"burst_factor must be in 1 to {most:g} (period_ns / burst_ns: all messages in the bursts), "
                f"was {self.burst_factor}"
            )

    def due(self, elapsed_ns: int) -> int:
        """Return how many messages should have been sent after so long. There must be a rate."""
        assert self.per_second is not None
        periods, into_ns = divmod(max(elapsed_ns, 0), self.period_ns)
        burst_share = self.burst_factor * self.burst_ns / self.period_ns
        if into_ns <= self.burst_ns:
            share = burst_share * into_ns / self.burst_ns
        else:
            share = burst_share + (1.0 - burst_share) * (into_ns - self.burst_ns) / (
                self.period_ns - self.burst_ns
            )
        return int((periods + share) * self.per_second * self.period_ns / NS_PER_S)

    @property
    def gap_ns(self) -> int:
        """The mean time between two messages, at least 1."""
        return 1 if self.per_second is None else max(int(NS_PER_S / self.per_second), 1)


@dataclass(frozen=True, slots=True)
class LineTarget:
    """One line: where its packets go, how they are cut, and what happens to them."""

    target: Endpoint
    cut: Cut = field(default_factory=Cut)
    impairment: Impairment = field(default_factory=Impairment)


@dataclass(frozen=True, slots=True)
class Play:
    """A recorded file to play instead of a simulated day.

    `speed` 1.0 keeps the recorded spacing, 10.0 is ten times as fast; None lets the exchange's rate decide.
    """

    path: Path
    speed: float | None = 1.0
    exchange_format: str = "itch50"

    def __post_init__(self) -> None:
        if self.speed is not None and not 0.0 < self.speed <= 1e9:
            raise ConfigError(f"speed must be more than 0 and at most 1e9, was {self.speed}")

    @property
    def is_capture(self) -> bool:
        """Whether the file has packets rather than messages, by its name."""
        name = self.path.name.lower().removesuffix(".gz")
        return name.endswith(CAPTURE_SUFFIXES)


@dataclass(frozen=True, slots=True)
class SnapshotService:
    """Where snapshots are given, and to whom."""

    listen: Endpoint
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """One run of the exchange."""

    lines: tuple[LineTarget, ...]
    source: FlowConfig | Play = field(default_factory=FlowConfig)
    rate: Rate = field(default_factory=Rate)
    session_prefix: str = "TWIN"
    session_count: int = 1  # one after the other, each a day with a seed of its own
    uses_wall_clock: bool = False  # messages carry the time of sending instead of the simulated time of day
    rerequest: Endpoint | None = None
    rerequest_limits: RequestLimits = field(default_factory=RequestLimits)
    rerequest_loss: float = 0.0  # requests that get no answer
    snapshot: SnapshotService | None = None
    store_bytes: int = 256 << 20  # how much of a session can be asked for again
    heartbeat_ns: int = NS_PER_S
    end_ns: int = 3 * NS_PER_S  # how long the end of a session is announced and re-requests are answered
    seconds_max: float | None = None
    seed: int = 1  # of the lines' chances

    def __post_init__(self) -> None:
        if not 1 <= len(self.lines) <= 2:
            raise ConfigError(f"an exchange must have one or two lines, was given {len(self.lines)}")
        session_bytes(self.session_prefix + "0" * 6)
        if not 1 <= self.session_count <= 999_999:
            raise ConfigError(f"session_count must be in 1 to 999999, was {self.session_count}")
        if not 0.0 <= self.rerequest_loss <= 1.0:
            raise ConfigError(f"rerequest_loss must be a probability from 0 to 1, was {self.rerequest_loss}")
        if not 1_000_000 <= self.heartbeat_ns <= 60 * NS_PER_S:
            raise ConfigError(f"heartbeat_ns must be in 1 ms to 60 s, was {self.heartbeat_ns}")
        if not 0 <= self.end_ns <= 3_600 * NS_PER_S:
            raise ConfigError(f"end_ns must be in 0 to an hour, was {self.end_ns}")
        if self.seconds_max is not None and self.seconds_max <= 0:
            raise ConfigError(f"seconds_max must be more than 0, was {self.seconds_max}")
        if isinstance(self.source, Play):
            if self.snapshot is not None:
                raise ConfigError("snapshots are of the simulated market: a played file has none")
            if self.session_count != 1 or self.uses_wall_clock:
                raise ConfigError("a played file is one session with the times that it has")
            if self.source.speed is not None and self.rate.per_second is not None:
                raise ConfigError("a played file goes by its speed or by a rate, not by both")
            if self.source.is_capture and self.rate.per_second is not None:
                raise ConfigError("a capture is played by its speed or as fast as it goes, not by a rate")
            if not self.source.is_capture and self.source.exchange_format != "itch50":
                raise ConfigError(
                    f"{self.source.path.name}: only captures are played in the format "
                    f"{self.source.exchange_format!r}; their names end in {' or '.join(CAPTURE_SUFFIXES)}"
                )

    def session_name(self, index: int) -> str:
        """Return the name of session `index`, counted from 0; no two are alike."""
        return f"{self.session_prefix}{index + 1:06d}"
