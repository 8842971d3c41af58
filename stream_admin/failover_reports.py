"""Subscribers' complaints about the active, weighed: one voice per principal, however often it subscribes."""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_admin.failover_messages import Evidence, SubscriberReport
from stream_admin.failover_settings import FailoverSettings

PRINCIPALS_MAX = 4096  # voices kept at a time; the oldest makes room


@dataclass(slots=True)
class Reports:
    settings: FailoverSettings
    principal_count: int = 0
    _heard: dict[str, tuple[int, SubscriberReport]] = field(default_factory=dict)

    def on_report(self, report: SubscriberReport, now_ns: int) -> None:
        self._heard.pop(report.principal, None)  # the newest comes last, so the oldest is first
        if len(self._heard) >= PRINCIPALS_MAX:
            del self._heard[next(iter(self._heard))]
        self._heard[report.principal] = (now_ns, report)

    def clear(self) -> None:
        """Forget all: they spoke of an active that is not active any more."""
        self._heard.clear()

    def quorum(self, now_ns: int, is_suspect: bool) -> tuple[str, Evidence] | None:
        """Return why the reports are to be followed, or None.

        Where our own figures support them (`is_suspect`) one voice is enough; else it takes the quorum, by
        count and by share: what one subscriber sees may be that subscriber's own line.
        """
        oldest_ns = now_ns - self.settings.report_window_ns
        while self._heard:
            principal, (heard_ns, _) = next(iter(self._heard.items()))
            if heard_ns >= oldest_ns:
                break
            del self._heard[principal]
        voices = len(self._heard)
        if voices == 0:
            return None
        subscribed = max(self.principal_count, voices)
        evidence: Evidence = (
            ("principals_reporting", voices),
            ("principals_subscribed", subscribed),
            *(
                (
                    f"report of {principal}",
                    f"{report.complaint.value} at {report.position}: {report.evidence}",
                )
                for principal, (_, report) in list(self._heard.items())[:8]
            ),
        )
        if is_suspect:
            return (
                f"{voices} of {subscribed} principals report it, and our own figures support them",
                evidence,
            )
        has_count = voices >= self.settings.report_quorum_count
        if has_count and voices * 100 >= self.settings.report_quorum_percent * subscribed:
            return f"{voices} of {subscribed} principals report it", evidence
        return None
