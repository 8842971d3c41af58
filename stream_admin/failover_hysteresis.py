"""How often roles may change by themselves: a minimum time between changes, and so many in a window.

When the window is full it latches: no more automatic changes away from an active that lives, until an
operator has given a command. A dead active is replaced by a stable backup all the same; see failover.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stream_admin.failover_settings import FailoverSettings


@dataclass(slots=True)
class Hysteresis:
    settings: FailoverSettings
    is_latched: bool = False
    _failovers_ns: deque[int] = field(default_factory=deque)
    _last_ns: int | None = None

    def on_change(self, now_ns: int, *, is_automatic: bool) -> None:
        self._last_ns = now_ns
        if is_automatic:
            self._failovers_ns.append(now_ns)

    def on_operator(self) -> None:
        """An operator has looked: count anew."""
        self.is_latched = False
        self._failovers_ns.clear()

    def refusal_of_count(self, now_ns: int) -> str | None:
        """Return why another automatic failover is one too many, or None. Latches."""
        while self._failovers_ns and self._failovers_ns[0] <= now_ns - self.settings.failover_window_ns:
            self._failovers_ns.popleft()
        if len(self._failovers_ns) >= self.settings.failovers_max:
            self.is_latched = True
        if not self.is_latched:
            return None
        return (
            f"{self.settings.failovers_max} automatic failovers in {self.settings.failover_window_ns} ns, "
            "an operator must act"
        )

    def refusal(self, now_ns: int) -> str | None:
        """Return why an active that lives may not be replaced now, or None."""
        if self._last_ns is not None and now_ns - self._last_ns < self.settings.failover_interval_ns:
            return (
                f"the last change was {now_ns - self._last_ns} ns ago, "
                f"failover_interval_ns is {self.settings.failover_interval_ns}"
            )
        return self.refusal_of_count(now_ns)
