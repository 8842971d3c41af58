"""The decisions about one stream's adapter group: who is active, when that changes, and why (A9).

Sans-IO: `on_event(event, now_ns)` returns actions; the clock is the server's monotonic one. After every event
the whole situation is reviewed from what is known, so it does not matter in which order things went wrong.
The legal moves are the tables of failover_states.py, how a change is carried out is failover_roles.py.

Rules: an active that lives and keeps up is never replaced without a cause; a dead one is replaced by a
synchronised backup as soon as it is known to be dead; nobody is demoted because this server was away or stood
still; what is not synchronised is promoted only by force or by configuration, with an alarm.
"""

from __future__ import annotations

from feeds.errors import ConfigError
from stream_admin.failover_commands import carry_out
from stream_admin.failover_freshness import Freshness, Verdict
from stream_admin.failover_hysteresis import Hysteresis
from stream_admin.failover_members import BACKUPS, Member, best_backup, founder, least_bad
from stream_admin.failover_messages import (
    Action,
    AdapterJoined,
    AdapterLeft,
    AlarmKind,
    Cause,
    Command,
    EpochNotPersisted,
    EpochPersisted,
    EpochRecord,
    Event,
    Evidence,
    Heartbeat,
    StoredGroup,
    SubscriberReport,
    SubscribersCounted,
    Sync,
)
from stream_admin.failover_reports import Reports
from stream_admin.failover_roles import LastKnown, Roles
from stream_admin.failover_settings import FailoverSettings
from stream_admin.failover_states import AdapterMove, AdapterState, GroupMove, GroupPhase

EPOCH_CLAIM_MAX = (
    1_000_000  # an adapter's claim so far above ours is nonsense, not a store restored from a copy
)
_HELD = (GroupPhase.GRANTING, GroupPhase.STEADY, GroupPhase.OFFERED, GroupPhase.ARMED)
_HANDING_OVER = (GroupPhase.OFFERED, GroupPhase.ARMED)
_AUTOMATIC = frozenset(Cause) - {
    Cause.COMMAND,
    Cause.HAND_OVER,
    Cause.HAND_OVER_ABORTED,
    Cause.RENEWED,
    Cause.FOUNDING,
}


class FailoverGroup(Roles):
    """One stream's group. Made at the start of the server from what the store holds."""

    def __init__(self, settings: FailoverSettings, stored: StoredGroup, now_ns: int) -> None:
        super().__init__(settings, stored, now_ns)
        self.started_ns = now_ns
        self.vacated_ns = now_ns
        self.hysteresis = Hysteresis(settings)
        self.hysteresis.on_change(now_ns, is_automatic=False)  # the changes before this start are not known
        self.reports = Reports(settings)
        self.stale_heartbeats = 0  # of older incarnations, or overtaken
        self._freshness = Freshness(settings.freshness_messages, settings.freshness_ns)
        self._verdict: Verdict | None = None
        self._withheld: Cause | None = None  # the cause that hysteresis held back, told once

    def on_event(self, event: Event, now_ns: int) -> list[Action]:
        """Return what is to be done, in order. Raises ConfigError for an adapter of another group."""
        adapter = getattr(event, "adapter", None)
        if adapter is not None and not isinstance(event, Command) and adapter not in self.members:
            raise ConfigError(
                f"{self.settings.stream}: {type(event).__name__} names {adapter!r}, "
                f"the group has {', '.join(self.members)}"
            )
        self._pass_time(now_ns)
        match event:
            case Heartbeat():
                self._on_heartbeat(self.members[event.adapter], event)
            case AdapterJoined():
                self._on_joined(self.members[event.adapter], event.incarnation)
            case AdapterLeft():
                self._on_left(self.members[event.adapter], event)
            case SubscribersCounted():
                self.reports.principal_count = event.principal_count
            case SubscriberReport():
                self._on_report(event)
            case EpochPersisted():
                self._on_persisted(event.epoch)
            case EpochNotPersisted():
                self._on_not_persisted(event)
            case Command():
                carry_out(self, event)
        self._review()
        return self._taken_actions()

    def _pass_time(self, now_ns: int) -> None:
        """Move the clock. Time in which this server stood still is nobody's silence and nobody's lag."""
        pause_ns = now_ns - self.now_ns
        self.now_ns = max(now_ns, self.now_ns)
        if pause_ns <= self.settings.stall_ns:
            self.clear(AlarmKind.SERVER_STALLED)
            return
        for member in self.members.values():
            member.heard_ns += pause_ns
        if self.unconfirmed_ns is not None:
            self.unconfirmed_ns += pause_ns
        self.step_began_ns += pause_ns
        self.started_ns += pause_ns
        self._forget_lag()
        self.alarm(
            AlarmKind.SERVER_STALLED, f"no event and no tick for {pause_ns} ns: silence is counted anew"
        )

    def _forget_lag(self) -> None:
        self._freshness = Freshness(self.settings.freshness_messages, self.settings.freshness_ns)
        self._verdict = None
        self._withheld = None

    # ---- what adapters and subscribers say

    def _on_joined(self, member: Member, incarnation: int) -> bool:
        """Return whether that incarnation is the one to listen to."""
        if incarnation < member.incarnation:
            self.stale_heartbeats += 1
            return False
        if incarnation > member.incarnation:
            if member.is_alive:
                self._vanish(member, f"it was started again, as incarnation {incarnation}")
            member.incarnation, member.last = incarnation, None
        if not member.is_alive:
            member.move(AdapterMove.JOIN)
            member.told_ns = None
            # Who is heard in the first moments of this server was there before it: no probation.
            is_known = self.now_ns - self.started_ns <= self.settings.grace_ns
            member.stable_from_ns = self.now_ns + (0 if is_known else self.settings.stable_ns)
            self.audit(f"{member.name} joined", f"incarnation {incarnation}")
        member.heard_ns = self.now_ns
        return True

    def _on_left(self, member: Member, event: AdapterLeft) -> None:
        if member.is_alive and event.incarnation == member.incarnation:
            self._vanish(member, f"it left: {event.reason}")

    def _vanish(self, member: Member, reason: str) -> None:
        member.move(AdapterMove.VANISH)
        self.audit(f"{member.name} is dead", reason, (("position", member.position),))
        if member is not self.active:
            return
        self.active = None
        self.vacated_ns = self.now_ns
        if self.phase in _HANDING_OVER:
            self.audit("abort the hand-over", f"{member.name} died before its position was reached")
        if self.phase in _HELD:
            self._move(GroupMove.LOSE)

    def _on_heartbeat(self, member: Member, heartbeat: Heartbeat) -> None:
        if (
            heartbeat.incarnation == member.incarnation
            and member.last is not None
            and heartbeat.number <= member.last.number
        ):
            self.stale_heartbeats += 1
            return
        if not self._on_joined(member, heartbeat.incarnation):
            return
        member.last = heartbeat
        self._check_epoch(heartbeat)
        self._check_role(member, heartbeat)
        if member.follow_sync(heartbeat.sync):
            self.audit(f"{member.name} is {member.state.value}", "it says so in its heartbeat")
        is_in_step = member.state in (AdapterState.ACTIVE, AdapterState.ALIGNED)
        if is_in_step and heartbeat.position > self.last_known.position:
            self.last_known = LastKnown(heartbeat.position, heartbeat.session, heartbeat.source_seq)
        if member is self.active:
            siblings = [
                (other.last, other.heard_ns)
                for other in sorted(self.members.values(), key=lambda other: other.position)
                if other.state is AdapterState.ALIGNED and not other.is_drained and other.last is not None
            ]
            self._verdict = self._freshness.on_active_heartbeat(heartbeat, siblings, self.now_ns)

    def _check_epoch(self, heartbeat: Heartbeat) -> None:
        """Never grant a number that an adapter has seen already, even if our store has forgotten it."""
        if heartbeat.epoch <= self.epoch_reserved:
            return
        self.alarm(
            AlarmKind.STORE_BEHIND,
            f"{heartbeat.adapter} knows epoch {heartbeat.epoch}, the store had {self.epoch_reserved}: "
            "was an old copy of it restored?",
        )
        if heartbeat.epoch <= self.epoch_reserved + EPOCH_CLAIM_MAX:
            self.epoch_reserved = heartbeat.epoch

    def _check_role(self, member: Member, heartbeat: Heartbeat) -> None:
        """Compare the role that an adapter shows with the one it has."""
        record = self.record
        if record is None:
            return
        shows_epoch = heartbeat.is_active and heartbeat.epoch == record.epoch
        is_holder = member.name == record.adapter and member.incarnation == record.incarnation
        if member.state is AdapterState.FENCED and not heartbeat.is_active:
            member.move(AdapterMove.STAND_DOWN)
        if is_holder and self.phase in _HELD:
            self._check_holder(member, heartbeat, shows_epoch)
        elif is_holder and self.phase is GroupPhase.VACANT and shows_epoch and not member.is_drained:
            if member.state in BACKUPS:
                self._set_back(member)
                self.adopt(member, "it is heard again, and nobody could take its place")
        elif member is not self.active and heartbeat.is_active and self.phase in _HELD:
            if shows_epoch:
                self.alarm(
                    AlarmKind.IMPOSTOR, f"{member.name} claims epoch {record.epoch}, {record.adapter}'s"
                )
            if member.state is not AdapterState.FENCED or member.is_due(self.now_ns, self.settings.retry_ns):
                self.fence(
                    member, f"it shows itself active in epoch {heartbeat.epoch}, {record.epoch} is in force"
                )

    def _check_holder(self, member: Member, heartbeat: Heartbeat, shows_epoch: bool) -> None:
        record = self.record
        assert record is not None, "the holder is named by a record"
        if shows_epoch:
            if self.phase is GroupPhase.OFFERED:
                self._arm(record.from_seq)
            if self.phase is not GroupPhase.STEADY:
                self._complete(member)
            self.unconfirmed_ns = None
            return
        if self.phase is GroupPhase.OFFERED and heartbeat.epoch >= record.epoch:
            self._arm(record.from_seq)
        is_waiting = self.phase in _HANDING_OVER and heartbeat.position + 1 < record.from_seq
        if not is_waiting and self.unconfirmed_ns is None:
            self.unconfirmed_ns = self.now_ns
        knows_it = self.phase is GroupPhase.ARMED and is_waiting
        if not knows_it and member.is_due(self.now_ns, self.settings.retry_ns):
            self.send_grant(member)

    def _arm(self, from_seq: int) -> None:
        assert self.active is not None, "a hand-over has somebody to hand over"
        self._move(GroupMove.ARM)
        self.audit(f"fence {self.active.name} from {from_seq} on", "the next active knows its epoch")
        self.send_fence(self.active, from_seq)

    def _complete(self, member: Member) -> None:
        record = self.record
        assert record is not None, "what is confirmed is durable"
        self.confirm(member)
        if record.hand_over_from is not None:
            self._on_changed(record.cause)
        if member.last is not None and member.last.sync is Sync.SYNCHRONISED:
            self.clear(AlarmKind.UNSYNCHRONISED_PROMOTED)

    def _on_changed(self, cause: Cause) -> None:
        """Another is active, or is told to be: what was held against the one before does not count."""
        self.hysteresis.on_change(self.now_ns, is_automatic=cause in _AUTOMATIC)
        self.reports.clear()
        self._forget_lag()
        self.clear(AlarmKind.NO_CANDIDATE, AlarmKind.IMPOSTOR)

    def _on_report(self, report: SubscriberReport) -> None:
        record = self.record
        evidence: Evidence = (
            ("principal", report.principal),
            ("complaint", report.complaint.value),
            ("position", report.position),
            ("evidence", report.evidence),
        )
        is_current = self.active is not None and record is not None and report.adapter == self.active.name
        if not is_current or record is None or report.epoch < record.epoch:
            self.audit(
                "record a report",
                f"it is about {report.adapter} in epoch {report.epoch}, not in force",
                evidence,
            )
            return
        self.reports.on_report(report, self.now_ns)
        self.audit("record a report", f"{report.principal} reports {report.adapter}", evidence)

    # ---- what the store says

    def _on_persisted(self, epoch: int) -> None:
        pending = self.pending
        if pending is None or pending.record.epoch != epoch:
            return  # of a number that was given up: nothing hangs on it
        member = self.members[pending.record.adapter]
        unfit = self.unfit_for(pending.record.incarnation, member, is_bold=pending.is_bold)
        if unfit is None and pending.record.hand_over_from is not None:
            unfit = self.hand_over_refusal(member, pending.record.from_seq, lead_messages=0)
        if unfit is None:
            is_renewed = member is self.active
            self.grant(member, pending.record)
            if pending.record.hand_over_from is None and not is_renewed:
                self._on_changed(pending.record.cause)
        else:
            self.record = pending.record  # it is durable, and stays ungranted
            self._choose_again(pending.record, f"epoch {epoch} lapses ungranted: {unfit}")

    def _on_not_persisted(self, event: EpochNotPersisted) -> None:
        if self.pending is not None and self.pending.record.epoch == event.epoch:
            self.pending.failed_ns = self.now_ns
            self.alarm(AlarmKind.STORE_SLOW, f"epoch {event.epoch} could not be stored: {event.error}")

    def unfit_for(self, incarnation: int, member: Member, *, is_bold: bool) -> str | None:
        """Return why `member` cannot be granted the role now, or None."""
        if not member.is_alive or member.incarnation != incarnation:
            return f"{member.name} died"
        if member is self.active or is_bold:
            return None
        if member.state is not AdapterState.ALIGNED:
            return f"{member.name} is {member.state.value}"
        return f"{member.name} is drained" if member.is_drained else None

    def hand_over_refusal(self, to: Member, at_seq: int, lead_messages: int) -> str | None:
        """Return why the role cannot be handed to `to` at position `at_seq`, or None."""
        if self.active is None or self.active.state is not AdapterState.ACTIVE:
            return "there is no confirmed active to hand over"
        if to is self.active:
            return f"{to.name} is active already"
        if to.state is not AdapterState.ALIGNED:
            return f"{to.name} must be aligned, is {to.state.value}"
        if to.is_drained:
            return f"{to.name} is drained"
        reached = max(self.active.position, to.position)
        if at_seq <= reached + lead_messages:
            return f"position {at_seq} must be above {reached + lead_messages}: {reached} is reached already"
        return None

    def _choose_again(self, lapsed: EpochRecord, reason: str) -> None:
        """Replace a change that came to nothing. The store may hold it, so something newer must follow."""
        pending, self.pending = self.pending, None
        self.audit("choose again", reason)
        if self.active is None:
            self._move(GroupMove.LOSE)  # the review of the vacancy goes on from here
            return
        target = self.members[lapsed.adapter]
        is_bold = pending is not None and pending.is_bold
        if (
            lapsed.cause is Cause.COMMAND
            and self.unfit_for(lapsed.incarnation, target, is_bold=is_bold) is None
        ):
            self.begin(target, Cause.COMMAND, reason, is_bold=is_bold)
            return
        cause = self._cause_to_replace()  # it may have recovered while the store was slow
        other = None if cause is None else self._replacement(cause[0])
        if lapsed.hand_over_from is not None:
            self.begin(self.active, Cause.HAND_OVER_ABORTED, reason)
        elif cause is None or other is None:
            self.begin(self.active, Cause.RENEWED, reason)
        else:
            self.begin(other, *cause)

    # ---- the review

    def _review(self) -> None:
        for member in self.members.values():
            if member.is_alive and self.now_ns - member.heard_ns > self.settings.detection_ns:
                self._vanish(member, f"no heartbeat for {self.now_ns - member.heard_ns} ns")
        if self.phase is GroupPhase.RECOVERING:
            self._review_recovery()
        elif self.phase in _HANDING_OVER:
            self._review_hand_over()
        elif self.phase is GroupPhase.PERSISTING:
            self._review_store()
        elif self.phase in (GroupPhase.STEADY, GroupPhase.GRANTING):
            self._review_active()
        if self.phase is GroupPhase.VACANT:
            self._review_vacancy()
        if self.phase is not GroupPhase.VACANT and not self.hysteresis.is_latched:
            self.clear(AlarmKind.TOO_MANY_FAILOVERS)

    def _review_recovery(self) -> None:
        """After a start: the durable epoch is the truth; its holder gets a grace time to be heard."""
        record = self.record
        assert record is not None, "without a record there is nothing to recover"
        is_over = self.now_ns - self.started_ns >= self.settings.grace_ns
        holder = self.members.get(record.adapter)  # None: it was taken out of the configuration
        old = self.members.get(record.hand_over_from) if record.hand_over_from is not None else None
        heard = None if holder is None or not holder.is_alive else holder.last
        is_same = heard is not None and heard.incarnation == record.incarnation
        if holder is None:
            self._give_up_recovery(f"{record.adapter} is not of the group any more")
        elif heard is not None and is_same and heard.is_active and heard.epoch == record.epoch:
            self._set_back(holder)
            self.adopt(holder, f"the server was away; it shows epoch {record.epoch}")
        elif old is not None and self._is_still_active(old) and (is_over or heard is not None):
            self._resume_hand_over(old, record.from_seq)
        elif is_same and (old is None or is_over):
            self.resume_grant(holder, record)
            self._on_changed(record.cause)
        elif is_over:
            self._give_up_recovery(f"{record.adapter} was not heard within {self.settings.grace_ns} ns")
        elif heard is not None and old is None:
            self._give_up_recovery(f"{record.adapter} was started again while the server was away")

    def _give_up_recovery(self, reason: str) -> None:
        self.vacated_ns = self.now_ns
        self.audit("look for another active", reason)
        self._move(GroupMove.LOSE)

    def _is_still_active(self, member: Member) -> bool:
        return member.is_alive and member.last is not None and member.last.is_active

    def _set_back(self, member: Member) -> None:
        """Before it is adopted: what it says of its synchronisation was that of a backup."""
        if member.state is not AdapterState.JOINING:
            member.move(AdapterMove.REALIGN)

    def _resume_hand_over(self, old: Member, at_seq: int) -> None:
        self._set_back(old)
        old.move(AdapterMove.ADOPT)
        self.active = old
        self._move(GroupMove.OFFER)
        self.audit(
            "go on with the hand-over", f"the server was away; {old.name} is active up to {at_seq - 1}"
        )

    def _review_hand_over(self) -> None:
        record, active = self.record, self.active
        assert record is not None, "a hand-over is durable"
        assert active is not None, "a hand-over has somebody to hand over"
        to = self.members[record.adapter]
        if not to.is_alive or to.incarnation != record.incarnation:
            reason = f"{to.name} died"
        elif to.state is not AdapterState.ALIGNED:
            reason = f"{to.name} is {to.state.value}"
        elif self.phase is GroupPhase.OFFERED and max(active.position, to.position) >= record.from_seq:
            reason = f"position {record.from_seq} was passed before {to.name} knew of it"
        elif self.now_ns - self.step_began_ns > self.settings.hand_over_ns:
            reason = f"position {record.from_seq} was not reached within {self.settings.hand_over_ns} ns"
        elif self._is_unconfirmed():
            reason = f"{to.name} reached {record.from_seq} and does not show epoch {record.epoch}"
        else:
            is_past = self._is_still_active(active) and active.position >= record.from_seq
            if is_past and active.is_due(self.now_ns, self.settings.retry_ns):
                self.send_fence(active, record.from_seq)  # it has not heard
            return
        self.audit("abort the hand-over", reason)
        self.begin(active, Cause.HAND_OVER_ABORTED, reason)

    def _is_unconfirmed(self) -> bool:
        since_ns = self.unconfirmed_ns
        return since_ns is not None and self.now_ns - since_ns > self.settings.confirmation_ns

    def _review_store(self) -> None:
        pending = self.pending
        assert pending is not None, "what is being stored is pending"
        if pending.failed_ns is not None:
            if self.now_ns - pending.failed_ns >= self.settings.persist_ns:
                self._choose_again(pending.record, f"epoch {pending.record.epoch} could not be stored")
        elif self.now_ns - pending.asked_ns > self.settings.persist_ns:
            self.alarm(
                AlarmKind.STORE_SLOW,
                f"epoch {pending.record.epoch} for {pending.record.adapter} is not durable after "
                f"{self.settings.persist_ns} ns: nothing is granted before it is",
            )

    def _review_active(self) -> None:
        cause = self._cause_to_replace()
        if cause is None:
            self._withheld = None
            return
        why, reason, evidence = cause
        is_urgent = why is Cause.UNCONFIRMED  # nobody may be transmitting: the interval does not apply
        refusal = (
            self.hysteresis.refusal_of_count(self.now_ns)
            if is_urgent
            else self.hysteresis.refusal(self.now_ns)
        )
        other = self._replacement(why)
        if refusal is None and other is None:
            refusal = "no other adapter is synchronised and stable"
        if refusal is None and other is not None:
            self.begin(other, why, reason, evidence)
        elif self._withheld is not why:
            self._withheld = why
            self.audit("hold", f"{why.value}, {reason}; but {refusal}", evidence)
        if self.hysteresis.is_latched and refusal is not None:
            self.alarm(AlarmKind.TOO_MANY_FAILOVERS, refusal)

    def _replacement(self, cause: Cause) -> Member | None:
        """Return who takes the place of an active that lives: of a slow one, who was seen ahead of it."""
        members = list(self.members.values())
        if cause in (Cause.STALE, Cause.LINES_DOWN) and self._verdict is not None:
            members = [self.members[self._verdict.sibling]]
        return best_backup(members, self.now_ns, must_be_stable=True)

    def _cause_to_replace(self) -> tuple[Cause, str, Evidence] | None:
        """Return why an active that lives should be replaced, or None: the usual case."""
        active = self.active
        assert active is not None, "somebody is active in this phase"
        if self._is_unconfirmed():
            return Cause.UNCONFIRMED, f"{active.name} does not show its epoch", ()
        if self.phase is GroupPhase.GRANTING:
            return None
        if active.last is not None and active.last.sync is Sync.UNSYNCHRONISED:
            return Cause.OUT_OF_STEP, f"{active.name} says that it lost source messages", ()
        if self._verdict is not None:
            cause = Cause.LINES_DOWN if self._verdict.is_lines_down else Cause.STALE
            return cause, self._verdict.reason, self._verdict.evidence
        is_suspect = self.now_ns - active.heard_ns > self.settings.detection_ns // 2
        followed = self.reports.quorum(self.now_ns, is_suspect)
        return None if followed is None else (Cause.REPORTED, *followed)

    def _review_vacancy(self) -> None:
        members = list(self.members.values())
        if self.record is None:
            first = founder(members, self.settings, self.now_ns - self.started_ns)
            if first is not None:
                self.begin(first, Cause.FOUNDING, "nobody was active before", is_bold=True)
            return
        stable = best_backup(members, self.now_ns, must_be_stable=True)
        if stable is not None:
            self.begin(stable, Cause.DEAD, f"{stable.name} is the best of the synchronised backups")
            return
        fresh = best_backup(members, self.now_ns, must_be_stable=False)
        if fresh is not None:
            refusal = self.hysteresis.refusal_of_count(self.now_ns)
            if refusal is None:
                self.begin(fresh, Cause.DEAD, f"{fresh.name} came only now, but there is no other")
            else:
                self.alarm(AlarmKind.TOO_MANY_FAILOVERS, refusal)
            return
        self.alarm(
            AlarmKind.NO_CANDIDATE, "nobody is active and no adapter is synchronised: use force, or wait"
        )
        patience_ns = self.settings.unsynchronised_after_ns
        worst = least_bad(members)
        if patience_ns is None or worst is None or self.now_ns - self.vacated_ns < patience_ns:
            return
        self.alarm(
            AlarmKind.UNSYNCHRONISED_PROMOTED,
            f"{worst.name} is {worst.state.value}: positions may repeat or jump",
        )
        self.begin(worst, Cause.LEAST_BAD, f"nobody else within {patience_ns} ns", is_bold=True)
