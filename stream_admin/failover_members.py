"""The adapters of a group as the server knows them, and who of them is the best to promote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stream_admin.failover_messages import Heartbeat, Sync
from stream_admin.failover_settings import FailoverSettings
from stream_admin.failover_states import ADAPTER_TRANSITIONS, AdapterMove, AdapterState, moved

_SYNC_MOVES = {
    Sync.JOINING: AdapterMove.REALIGN,
    Sync.SYNCHRONISED: AdapterMove.SYNCHRONISE,
    Sync.UNSYNCHRONISED: AdapterMove.LOSE_STEP,
}
_BACKUP_STATES = {
    Sync.JOINING: AdapterState.JOINING,
    Sync.SYNCHRONISED: AdapterState.ALIGNED,
    Sync.UNSYNCHRONISED: AdapterState.UNSYNCHRONISED,
}
BACKUPS = frozenset(_BACKUP_STATES.values())


@dataclass(slots=True)
class Member:
    name: str
    order: int  # in the configuration; the first is preferred
    state: AdapterState = AdapterState.DEAD
    incarnation: int = -1
    last: Heartbeat | None = None  # of this incarnation
    heard_ns: int = 0
    stable_from_ns: int = 0
    is_drained: bool = False
    told_ns: int | None = None  # when a grant or a fence was sent last

    @property
    def is_alive(self) -> bool:
        return self.state is not AdapterState.DEAD

    @property
    def position(self) -> int:
        return 0 if self.last is None else self.last.position

    def move(self, move: AdapterMove) -> None:
        self.state = moved(ADAPTER_TRANSITIONS, self.state, move, f"adapter {self.name}")

    def follow_sync(self, sync: Sync) -> bool:
        """Take over what a backup says of its synchronisation; return whether that is new."""
        if self.state not in BACKUPS or self.state is _BACKUP_STATES[sync]:
            return False
        self.move(_SYNC_MOVES[sync])
        return True

    def is_due(self, now_ns: int, retry_ns: int) -> bool:
        """Whether it may be told its role (again)."""
        return self.told_ns is None or now_ns - self.told_ns >= retry_ns


def best_backup(members: Iterable[Member], now_ns: int, *, must_be_stable: bool) -> Member | None:
    """Return the synchronised backup that lost least: with a source line, far along, preferred; or None."""
    able = [
        member
        for member in members
        if member.state is AdapterState.ALIGNED
        and not member.is_drained
        and (not must_be_stable or now_ns >= member.stable_from_ns)
    ]
    return max(able, key=_rank, default=None)


def _rank(member: Member) -> tuple[bool, int, int]:
    has_line = member.last is not None and member.last.lines_up > 0
    return has_line, member.position, -member.order


def least_bad(members: Iterable[Member]) -> Member | None:
    """Return who would be promoted if it need not be synchronised: who saw most of the source; or None."""
    able = [m for m in members if m.state in BACKUPS and m.last is not None and not m.is_drained]
    return max(able, key=lambda m: (m.state is AdapterState.ALIGNED, _source(m), -m.order), default=None)


def _source(member: Member) -> tuple[int, int]:
    assert member.last is not None, "only adapters that were heard are compared"
    return member.last.source_time_ns, member.last.position


def founder(members: list[Member], settings: FailoverSettings, waited_ns: int) -> Member | None:
    """Return who begins a stream that has no epoch yet, or None while others may still appear.

    Who claims to be active already comes first: then it is the store that is new, not the stream.
    """
    able = [m for m in members if m.state in BACKUPS and m.last is not None and not m.is_drained]
    if not able or (len(able) < len(members) and waited_ns < settings.founding_ns):
        return None
    return max(able, key=_founder_rank)


def _founder_rank(member: Member) -> tuple[int, int, int]:
    assert member.last is not None, "only adapters that were heard are compared"
    return (member.last.epoch if member.last.is_active else 0), member.position, -member.order
