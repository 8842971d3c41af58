"""How much re-request servers send, to one client and to all: token buckets, and a bounded table of clients.

The senders of UDP requests can be forged, so whoever answers them must not send a third party more than these
limits allow, however little it costs to ask.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from feeds.errors import ConfigError


@dataclass(slots=True)
class TokenBucket:
    """Lets `burst` things through at once and `per_second` in the long run."""

    per_second: float
    burst: float
    tokens: float
    refilled_ns: int

    def take(self, now_ns: int) -> bool:
        """Return whether one more may pass now."""
        # A clock that goes back takes no tokens away and gives none twice.
        now_ns = max(now_ns, self.refilled_ns)
        gained = (now_ns - self.refilled_ns) * self.per_second / 1e9
        self.tokens = min(self.burst, self.tokens + gained)
        self.refilled_ns = now_ns
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class RateLimits:
    """How often. What is counted is requests, and every datagram of an answer behind its first."""

    client_requests_per_second: float = field(default=100.0, kw_only=True)
    client_requests_burst: float = field(default=100.0, kw_only=True)
    all_requests_per_second: float = field(default=10_000.0, kw_only=True)
    all_requests_burst: float = field(default=10_000.0, kw_only=True)
    client_count_max: int = field(default=1_024, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("client_requests_per_second", "all_requests_per_second"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0, was {getattr(self, name)}")
        for name in ("client_requests_burst", "all_requests_burst", "client_count_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, was {getattr(self, name)}")


class Verdict(enum.Enum):
    """Whether one more may pass."""

    GRANTED = "granted"
    CLIENT_LIMITED = "client limited"
    ALL_LIMITED = "all limited"


class RequestGate:
    """Keeps the limits. Clients are in a bounded table: the one longest unheard of makes room."""

    def __init__(self, limits: RateLimits, now_ns: int) -> None:
        self._limits = limits
        burst = limits.all_requests_burst
        self._all = TokenBucket(limits.all_requests_per_second, burst, burst, now_ns)
        self._clients: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    @property
    def clients(self) -> list[Hashable]:
        """Who is remembered, the longest unheard of first."""
        return list(self._clients)

    def take(self, client: Hashable, now_ns: int) -> Verdict:
        """Return whether one more request of `client`, or datagram to it, may pass now, and count it."""
        if not self._bucket(client, now_ns).take(now_ns):
            return Verdict.CLIENT_LIMITED
        return Verdict.GRANTED if self._all.take(now_ns) else Verdict.ALL_LIMITED

    def _bucket(self, client: Hashable, now_ns: int) -> TokenBucket:
        bucket = self._clients.get(client)
        if bucket is None:
            burst = self._limits.client_requests_burst
            bucket = TokenBucket(self._limits.client_requests_per_second, burst, burst, now_ns)
            self._clients[client] = bucket
            if len(self._clients) > self._limits.client_count_max:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(client)
        return bucket
