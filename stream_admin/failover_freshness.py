"""Whether a live active has become slow: measured against its siblings, never against another host's clock.

All comparisons are made when a heartbeat of the active arrives, with what its siblings had reported before
that moment. So neither the phase of two heartbeats nor a late heartbeat of the active looks like lag, and
when all are equally quiet nobody is behind anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_admin.failover_messages import Evidence, Heartbeat, Sync


@dataclass(slots=True)
class Chase:
    """How long the active has not reached a mark that a sibling had passed.

    The mark is set where the sibling is, and stays until the active reaches it: its age is the active's lag
    in time, also on a stream of one message a minute, where the newest source time alone would say a minute.
    """

    mark: int = 0
    since_ns: int | None = None

    def on_sample(self, active: int, sibling: int, sibling_heard_ns: int, now_ns: int) -> int:
        """Return the lag in ns, by the clock of this server."""
        if self.since_ns is None or active >= self.mark:
            self.mark = sibling
            self.since_ns = sibling_heard_ns if sibling > active else None
        return 0 if self.since_ns is None else now_ns - self.since_ns


@dataclass(frozen=True, slots=True)
class Verdict:
    is_lines_down: bool  # else: behind
    sibling: str
    reason: str
    evidence: Evidence


@dataclass(slots=True)
class _Pair:
    """The active against one sibling."""

    incarnation: int
    positions: Chase = field(default_factory=Chase)
    source_times: Chase = field(default_factory=Chase)
    behind_since_ns: int | None = None  # by more messages than allowed
    lineless_since_ns: int | None = None  # the active hears no source line, the sibling does


@dataclass(slots=True)
class Freshness:
    """The lag of one active behind each of its siblings; made anew when another becomes active."""

    freshness_messages: int
    freshness_ns: int
    _pairs: dict[str, _Pair] = field(default_factory=dict)

    def on_active_heartbeat(
        self, active: Heartbeat, siblings: Iterable[tuple[Heartbeat, int]], now_ns: int
    ) -> Verdict | None:
        """Return why the active is not fresh, or None: against the last sibling that says so.

        `siblings` are those that could take its place, the best last, and when each was heard.
        """
        verdict: Verdict | None = None
        pairs: dict[str, _Pair] = {}
        for sibling, heard_ns in siblings:
            pair = self._pairs.get(sibling.adapter)
            if pair is None or pair.incarnation != sibling.incarnation:
                pair = _Pair(sibling.incarnation)
            pairs[sibling.adapter] = pair
            if (
                sibling.sync is Sync.SYNCHRONISED
            ):  # others cannot be promoted, and their positions mean nothing
                verdict = self._judge(pair, active, sibling, heard_ns, now_ns) or verdict
        self._pairs = pairs
        return verdict

    def _judge(
        self, pair: _Pair, active: Heartbeat, sibling: Heartbeat, heard_ns: int, now_ns: int
    ) -> Verdict | None:
        lag_ns = pair.positions.on_sample(active.position, sibling.position, heard_ns, now_ns)
        source_lag_ns = pair.source_times.on_sample(
            active.source_time_ns, sibling.source_time_ns, heard_ns, now_ns
        )
        behind = sibling.position - active.position
        pair.behind_since_ns = _since(pair.behind_since_ns, behind > self.freshness_messages, now_ns)
        is_lineless = active.lines_up == 0 and sibling.lines_up > 0
        pair.lineless_since_ns = _since(pair.lineless_since_ns, is_lineless, now_ns)
        evidence: Evidence = (
            ("sibling", sibling.adapter),
            ("active_position", active.position),
            ("sibling_position", sibling.position),
            ("lag_ns", lag_ns),
            ("source_lag_ns", source_lag_ns),
            ("active_lines_up", active.lines_up),
            ("sibling_lines_up", sibling.lines_up),
        )
        limit_ns = self.freshness_ns
        if _lasts(pair.behind_since_ns, now_ns, limit_ns):
            allowed = self.freshness_messages
            reason = f"behind {sibling.adapter} by {behind} messages, more than {allowed} for {limit_ns} ns"
        elif lag_ns > limit_ns:
            reason = f"behind {sibling.adapter} by {lag_ns} ns, more than {limit_ns}"
        elif source_lag_ns > limit_ns:  # positions may hide it: admin messages also move a cut-off active on
            reason = (
                f"behind the source's clock at {sibling.adapter} by {source_lag_ns} ns, more than {limit_ns}"
            )
        elif _lasts(pair.lineless_since_ns, now_ns, limit_ns):
            return Verdict(
                True,
                sibling.adapter,
                f"no source line for {limit_ns} ns, {sibling.adapter} has one",
                evidence,
            )
        else:
            return None
        return Verdict(False, sibling.adapter, reason, evidence)


def _since(since_ns: int | None, is_true: bool, now_ns: int) -> int | None:
    if not is_true:
        return None
    return now_ns if since_ns is None else since_ns


def _lasts(since_ns: int | None, now_ns: int, limit_ns: int) -> bool:
    return since_ns is not None and now_ns - since_ns >= limit_ns
