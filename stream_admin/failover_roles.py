"""Carrying out a change of role, step by step: number, store, grant, fence, confirmation. Never who, or why.

    begin -> PersistEpoch ... EpochPersisted -> Grant (and Fence) ... heartbeat -> confirmed

An epoch number is used once: one that was asked of the store and lapsed is never given to another adapter,
and an unfinished change can only be replaced by one with a higher number. So whatever the store and the
adapters remember, the highest number is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_admin.failover_members import Member
from stream_admin.failover_messages import (
    EPOCH_MAX,
    Action,
    Alarm,
    AlarmCleared,
    AlarmKind,
    Answer,
    Audit,
    Cause,
    Directory,
    EpochRecord,
    Evidence,
    Fence,
    Grant,
    PersistDrained,
    PersistEpoch,
    PushToSubscribers,
    StoredGroup,
)
from stream_admin.failover_settings import FailoverSettings
from stream_admin.failover_states import (
    GROUP_TRANSITIONS,
    AdapterMove,
    AdapterState,
    GroupMove,
    GroupPhase,
    moved,
)


@dataclass(slots=True)
class Pending:
    """A change whose epoch is not durable yet."""

    record: EpochRecord
    is_bold: bool  # the adapter need not be synchronised: founder, force, least bad
    asked_ns: int
    failed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class LastKnown:
    """How far the stream was known to be: what an adapter continues from if nobody is active."""

    position: int = 0
    session: int = 0
    source_seq: int = 0


class Roles:
    """The members of one group, who is active, and the change that is under way."""

    def __init__(self, settings: FailoverSettings, stored: StoredGroup, now_ns: int) -> None:
        self.settings = settings
        self.now_ns = now_ns
        self.members = {name: Member(name, order) for order, name in enumerate(settings.adapters)}
        for name in stored.drained:
            if name in self.members:  # else: it was taken out of the configuration
                self.members[name].is_drained = True
        self.record = stored.record
        self.phase = GroupPhase.VACANT if stored.record is None else GroupPhase.RECOVERING
        self.epoch_reserved = 0 if stored.record is None else stored.record.epoch
        self.active: Member | None = None
        self.pending: Pending | None = None
        self.step_began_ns = now_ns  # of the phase
        self.unconfirmed_ns: int | None = None  # since when the holder of the epoch does not show it
        self.last_known = LastKnown(0 if stored.record is None else stored.record.last_position)
        self._actions: list[Action] = []
        self._alarms: set[AlarmKind] = set()
        self._pushed: Directory | None = None

    # ---- what is told to the outside

    def audit(self, decision: str, reason: str, evidence: Evidence = ()) -> None:
        self._actions.append(Audit(self.now_ns, self.phase, decision, reason, evidence))

    def answer(self, action: Answer | PersistDrained) -> None:
        self._actions.append(action)

    def alarm(self, kind: AlarmKind, text: str) -> None:
        """Raise it once, until it is cleared."""
        if kind not in self._alarms:
            self._alarms.add(kind)
            self._actions.append(Alarm(kind, text))
            self.audit(f"alarm: {kind.value}", text)

    def clear(self, *kinds: AlarmKind) -> None:
        for kind in kinds:
            if kind in self._alarms:
                self._alarms.remove(kind)
                self._actions.append(AlarmCleared(kind))

    @property
    def alarms(self) -> frozenset[AlarmKind]:
        return frozenset(self._alarms)

    @property
    def directory(self) -> Directory:
        record = self.record
        is_handing_over = self.phase in (GroupPhase.OFFERED, GroupPhase.ARMED)
        return Directory(
            stream=self.settings.stream,
            epoch=0 if record is None else record.epoch,
            active=None if self.active is None else self.active.name,
            from_seq=0 if record is None else record.from_seq,
            next_active=record.adapter if record is not None and is_handing_over else None,
            adapters=tuple((member.name, member.state) for member in self.members.values()),
        )

    def _taken_actions(self) -> list[Action]:
        directory = self.directory
        if directory != self._pushed:
            self._pushed = directory
            self._actions.append(PushToSubscribers(directory))
        taken, self._actions = self._actions, []
        return taken

    # ---- the steps of a change

    def _move(self, move: GroupMove) -> None:
        self.phase = moved(GROUP_TRANSITIONS, self.phase, move, f"stream {self.settings.stream}")
        self.step_began_ns = self.now_ns

    def _next_epoch(self) -> int:
        assert self.epoch_reserved < EPOCH_MAX, f"{self.settings.stream}: epochs are used up at {EPOCH_MAX}"
        return self.epoch_reserved + 1

    def begin(
        self,
        member: Member,
        cause: Cause,
        reason: str,
        evidence: Evidence = (),
        *,
        at_seq: int | None = None,
        is_bold: bool = False,
    ) -> None:
        """Ask the store for the epoch in which `member` is active: at once, or from position `at_seq` on."""
        self._move(GroupMove.PERSIST)
        self.epoch_reserved = self._next_epoch()
        hand_over_from = self.active.name if at_seq is not None and self.active is not None else None
        record = EpochRecord(
            epoch=self.epoch_reserved,
            adapter=member.name,
            incarnation=member.incarnation,
            from_seq=member.position + 1 if at_seq is None else at_seq,
            cause=cause,
            hand_over_from=hand_over_from,
            last_position=self.last_known.position,
        )
        self.pending = Pending(record, is_bold, self.now_ns)
        self.unconfirmed_ns = None
        self.audit(
            f"promote {member.name}",
            f"{cause.value}: {reason}",
            (("epoch", record.epoch), ("from_seq", record.from_seq), *evidence),
        )
        self._ask_store(record)

    def _ask_store(self, record: EpochRecord) -> None:
        self._actions.append(PersistEpoch(record))

    def grant(self, member: Member, record: EpochRecord) -> None:
        """The epoch is durable: tell its holder, and fence whoever held one before."""
        before = self.record
        self.record, self.pending = record, None
        self.clear(AlarmKind.STORE_SLOW, AlarmKind.STORE_BEHIND)
        if record.hand_over_from is not None:
            self._move(GroupMove.OFFER)
            self.send_grant(member)
            return
        held = {None if self.active is None else self.active.name, None if before is None else before.adapter}
        for other in self.members.values():
            if other is not member and other.name in held and other.is_alive:
                self.fence(other, f"epoch {record.epoch} is {member.name}'s")
        self._move(GroupMove.GRANT)
        member.move(AdapterMove.PROMOTE)
        self.active = member
        self.unconfirmed_ns = self.now_ns
        self.send_grant(member)

    def resume_grant(self, member: Member, record: EpochRecord) -> None:
        """After a start of the server: the epoch is durable, its holder does not know it yet."""
        self._move(GroupMove.RESUME)
        member.move(AdapterMove.PROMOTE)
        self.active = member
        self.unconfirmed_ns = self.now_ns
        self.audit(f"grant {member.name} again", f"epoch {record.epoch} is in the store, its holder lacks it")
        self.send_grant(member)

    def send_grant(self, member: Member) -> None:
        record = self.record
        assert record is not None, "only a durable epoch is granted"
        assert record.adapter == member.name, (
            f"epoch {record.epoch} is {record.adapter}'s, not {member.name}'s"
        )
        member.told_ns = self.now_ns
        self._actions.append(Grant(member.name, member.incarnation, record.epoch, record.from_seq))

    def fence(self, member: Member, reason: str) -> None:
        if member.state is not AdapterState.FENCED:
            member.move(AdapterMove.FENCE)
            self.audit(f"fence {member.name}", reason)
        self.send_fence(member)

    def send_fence(self, member: Member, from_seq: int = 0) -> None:
        assert self.record is not None, "a fence names the epoch that owns the stream"
        member.told_ns = self.now_ns
        self._actions.append(Fence(member.name, member.incarnation, self.record.epoch, from_seq))

    def confirm(self, member: Member) -> None:
        """The holder shows its epoch in a heartbeat."""
        assert self.record is not None, "what is confirmed is durable"
        old = self.active
        self._move(GroupMove.CONFIRM)
        if old is not member:  # a hand-over has reached its position
            member.move(AdapterMove.PROMOTE)
            self.active = member
            if old is not None and old.is_alive:
                self.fence(old, f"handed over to {member.name} at {self.record.from_seq}")
        member.move(AdapterMove.CONFIRM)
        self.unconfirmed_ns = None
        self.audit(f"{member.name} is active", f"it shows epoch {self.record.epoch}")

    def adopt(self, member: Member, reason: str) -> None:
        """The holder of the durable epoch is heard (again), active: nothing changes for anybody."""
        self._move(GroupMove.ADOPT)
        member.move(AdapterMove.ADOPT)
        self.active = member
        self.unconfirmed_ns = None
        self.audit(f"{member.name} stays active", reason)
