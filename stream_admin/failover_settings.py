"""The bounds of failover for one stream, checked as a whole: the relations matter more than the values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from feeds.errors import ConfigError

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000 * MILLISECOND_NS
ADAPTERS_MAX = 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """What counts as dead, slow, quiet or too often. The first adapter is the preferred one."""

    stream: str
    adapters: tuple[str, ...]
    heartbeat_ns: int = (
        10 * MILLISECOND_NS
    )  # how often each adapter tells its state, and at least how often ticks come
    detection_ns: int = 100 * MILLISECOND_NS  # silence of an adapter that means death
    grace_ns: int = 2 * SECOND_NS  # after a start of the server: time for adapters to be heard
    founding_ns: int = (
        SECOND_NS  # a new stream waits so long for all its adapters before the first is promoted
    )
    freshness_messages: int = 10_000
    freshness_ns: int = 250 * MILLISECOND_NS
    stable_ns: int = SECOND_NS  # an adapter that appears is trusted with the active role after that
    failover_interval_ns: int = 5 * SECOND_NS  # between failovers away from an active that lives
    failovers_max: int = 4  # automatic ones in a window; then an operator must act
    failover_window_ns: int = 300 * SECOND_NS
    unsynchronised_after_ns: int | None = (
        None  # None: an unsynchronised adapter is never promoted without force
    )
    retry_ns: int = 50 * MILLISECOND_NS  # a grant or a fence is sent again until it shows in a heartbeat
    confirmation_ns: int = 500 * MILLISECOND_NS  # a grant that does not show by then goes to somebody else
    persist_ns: int = (
        SECOND_NS  # a store slower than that raises an alarm; a failed write is tried again after it
    )
    hand_over_lead_messages: int = 1_000  # a named position is at least so far ahead of both adapters
    hand_over_ns: int = (
        60 * SECOND_NS
    )  # a position that is not reached by then (a quiet exchange) is given up
    report_window_ns: int = SECOND_NS
    report_quorum_count: int = 2  # different principals
    report_quorum_percent: int = 50  # of the principals that are subscribed

    def __post_init__(self) -> None:
        for name in (self.stream, *self.adapters):
            if not NAME.fullmatch(name):
                raise ConfigError(f"a name must be 1 to 64 letters, digits, '.', '_' or '-', was {name!r}")
        if not 1 <= len(self.adapters) <= ADAPTERS_MAX or len(set(self.adapters)) != len(self.adapters):
            raise ConfigError(
                f"{self.stream}: adapters must be 1 to {ADAPTERS_MAX} different names, were {self.adapters!r}"
            )
        for field in _POSITIVE:
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ConfigError(f"{self.stream}: {field} must be above 0, was {value}")
        if self.freshness_messages < 0 or self.hand_over_lead_messages < 0:
            raise ConfigError(
                f"{self.stream}: freshness_messages and hand_over_lead_messages must be 0 or above, were "
                f"{self.freshness_messages} and {self.hand_over_lead_messages}"
            )
        if not 0 <= self.report_quorum_percent <= 100:
            raise ConfigError(
                f"{self.stream}: report_quorum_percent must be 0 to 100, was {self.report_quorum_percent}"
            )
        self._check_relations()

    def _check_relations(self) -> None:
        rules = (
            (
                self.detection_ns >= 3 * self.heartbeat_ns,
                "detection_ns must cover three heartbeats, or one lost packet causes a failover",
            ),
            (
                self.grace_ns >= self.detection_ns,
                "grace_ns must be detection_ns at least, or a restart demotes",
            ),
            (
                self.freshness_ns >= 2 * self.heartbeat_ns,
                "freshness_ns must cover two heartbeats, or it measures when they are sent",
            ),
            (
                self.confirmation_ns >= 2 * self.retry_ns,
                "confirmation_ns must leave time for a second grant (2 x retry_ns)",
            ),
            (
                self.failover_window_ns >= self.failover_interval_ns,
                "failover_window_ns must be failover_interval_ns at least",
            ),
        )
        for is_kept, rule in rules:
            if not is_kept:
                raise ConfigError(f"{self.stream}: {rule}")

    @property
    def preferred(self) -> str:
        return self.adapters[0]

    @property
    def stall_ns(self) -> int:
        """Ticks come every heartbeat_ns, so a longer pause between two events is a stall of this server."""
        return self.detection_ns // 2


_POSITIVE = (
    "heartbeat_ns",
    "detection_ns",
    "grace_ns",
    "founding_ns",
    "freshness_ns",
    "stable_ns",
    "failover_interval_ns",
    "failovers_max",
    "failover_window_ns",
    "unsynchronised_after_ns",
    "retry_ns",
    "confirmation_ns",
    "persist_ns",
    "hand_over_ns",
    "report_window_ns",
    "report_quorum_count",
)
