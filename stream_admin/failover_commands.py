"""Operators' commands to a group: checked, carried out or refused with a reason, and always answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream_admin.failover_members import BACKUPS, Member, best_backup, least_bad
from stream_admin.failover_messages import (
    AlarmKind,
    Answer,
    Cause,
    Command,
    Drain,
    FailBack,
    FailOver,
    HandOver,
    PersistDrained,
    Undrain,
)
from stream_admin.failover_states import AdapterState, GroupPhase

if TYPE_CHECKING:
    from stream_admin.failover import FailoverGroup

_INTERRUPTIBLE = (
    GroupPhase.VACANT,
    GroupPhase.STEADY,
    GroupPhase.GRANTING,
    GroupPhase.OFFERED,
    GroupPhase.ARMED,
)


def carry_out(group: FailoverGroup, command: Command) -> None:
    """Do what the operator asks, or say why not."""
    match command:
        case FailOver(at_seq=None):
            refusal = _fail_over(group, command)
        case FailOver(to=None):
            other = best_backup(group.members.values(), group.now_ns, must_be_stable=False)
            refusal = _hand_over(group, command, None if other is None else other.name, command.at_seq)
        case FailOver() | HandOver():
            refusal = _hand_over(group, command, command.to, command.at_seq)
        case FailBack():
            refusal = _hand_over(group, command, group.settings.preferred, command.at_seq)
        case Drain():
            refusal = _drain(group, command)
        case Undrain():
            refusal = _undrain(group, command)
        case _:
            raise TypeError(f"no such command: {type(command).__name__}")
    if refusal is None:
        group.hysteresis.on_operator()
        group.clear(AlarmKind.TOO_MANY_FAILOVERS)
    else:
        group.audit(f"refuse {type(command).__name__}", refusal, (("operator", command.operator),))
    group.answer(Answer(command.command_id, refusal is None, refusal or "accepted"))


def _member(group: FailoverGroup, name: str | None) -> Member | str:
    """Return the adapter, or why there is none."""
    if name is None:
        return "no other adapter is synchronised"
    return group.members.get(name) or f"the group has no adapter {name!r}, it has {', '.join(group.members)}"


def _fail_over(group: FailoverGroup, command: FailOver) -> str | None:
    if group.phase is GroupPhase.PERSISTING:
        return "a change of role is being stored"
    if group.phase not in _INTERRUPTIBLE and not command.is_forced:
        return "the server has just started and has not heard the active yet: wait, or force it"
    name = command.to
    if name is None:
        chosen = best_backup(group.members.values(), group.now_ns, must_be_stable=False)
        if chosen is None and command.is_forced:
            chosen = least_bad(group.members.values())
        name = None if chosen is None else chosen.name
    to = _member(group, name)
    if isinstance(to, str):
        return to
    if to is group.active and group.phase not in (GroupPhase.OFFERED, GroupPhase.ARMED):
        return f"{to.name} is active already"
    if not to.is_alive or to.last is None:
        return f"{to.name} is not heard"
    if to.state is not AdapterState.ALIGNED and to is not group.active:
        if not command.is_forced or to.state not in BACKUPS:
            return f"{to.name} is {to.state.value}, not aligned: wait, or force a backup"
        group.alarm(
            AlarmKind.UNSYNCHRONISED_PROMOTED, f"{to.name} is {to.state.value}, {command.operator} forced it"
        )
    if to.is_drained and not command.is_forced:
        return f"{to.name} is drained: undrain it, or force it"
    group.begin(
        to,
        Cause.COMMAND,
        f"{command.operator} asked for {to.name}",
        (("operator", command.operator), ("is_forced", int(command.is_forced))),
        is_bold=command.is_forced,
    )
    return None


def _hand_over(group: FailoverGroup, command: Command, name: str | None, at_seq: int | None) -> str | None:
    to = _member(group, name)
    if isinstance(to, str):
        return to
    if group.phase is not GroupPhase.STEADY:
        return f"the group must be steady for a hand-over, is {group.phase.value}"
    lead = group.settings.hand_over_lead_messages
    if at_seq is None:  # twice the lead: the storing of the epoch takes time, and both move on
        at_seq = max(to.position, 0 if group.active is None else group.active.position) + 2 * lead + 1
    refusal = group.hand_over_refusal(to, at_seq, lead)
    if refusal is None:
        group.begin(
            to,
            Cause.HAND_OVER,
            f"{command.operator} asked for {to.name} from position {at_seq} on",
            (("operator", command.operator),),
            at_seq=at_seq,
        )
    return refusal


def _drain(group: FailoverGroup, command: Drain) -> str | None:
    member = _member(group, command.adapter)
    if isinstance(member, str):
        return member
    if member is group.active:
        others = [other for other in group.members.values() if other is not member]
        other = best_backup(others, group.now_ns, must_be_stable=True)
        refusal = _hand_over(group, command, None if other is None else other.name, None)
        if refusal is not None:
            return f"{member.name} is active and cannot hand over: {refusal}"
    _set_drained(group, member, command, is_drained=True)
    return None


def _undrain(group: FailoverGroup, command: Undrain) -> str | None:
    member = _member(group, command.adapter)
    if isinstance(member, str):
        return member
    _set_drained(group, member, command, is_drained=False)
    return None


def _set_drained(group: FailoverGroup, member: Member, command: Command, *, is_drained: bool) -> None:
    member.is_drained = is_drained
    what = "drain" if is_drained else "undrain"
    group.audit(
        f"{what} {member.name}", f"{command.operator} asked for it", (("operator", command.operator),)
    )
    group.answer(PersistDrained(tuple(m.name for m in group.members.values() if m.is_drained)))
