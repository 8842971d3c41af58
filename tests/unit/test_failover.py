"""Failover decisions, one rule each (A9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feeds.errors import ConfigError, IllegalTransition
from stream_admin.failover import FailoverGroup
from stream_admin.failover_members import Member
from stream_admin.failover_messages import (
    AdapterJoined,
    AdapterLeft,
    Alarm,
    AlarmKind,
    Answer,
    Audit,
    Cause,
    Complaint,
    Drain,
    EpochNotPersisted,
    EpochPersisted,
    EpochRecord,
    FailBack,
    FailOver,
    Fence,
    Grant,
    HandOver,
    PersistDrained,
    PersistEpoch,
    PushToSubscribers,
    StoredGroup,
    SubscriberReport,
    SubscribersCounted,
    Sync,
    Tick,
)
from stream_admin.failover_settings import MILLISECOND_NS, SECOND_NS
from stream_admin.failover_states import (
    ADAPTER_TRANSITIONS,
    GROUP_TRANSITIONS,
    AdapterMove,
    AdapterState,
    GroupMove,
    GroupPhase,
    as_mermaid,
)
from tests.unit.failover_scene import SETTINGS, Scene


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.found()
    scene.forget()
    assert scene.group.phase is GroupPhase.STEADY
    return scene


def promoted(scene: Scene) -> list[tuple[str, Cause]]:
    return [(action.record.adapter, action.record.cause) for action in scene.all(PersistEpoch)]


# ---- the tables


@pytest.mark.parametrize("state", AdapterState)
@pytest.mark.parametrize("move", AdapterMove)
def test_an_adapter_moves_as_listed_or_not_at_all(state: AdapterState, move: AdapterMove) -> None:
    member = Member("a", 0, state)
    if move in ADAPTER_TRANSITIONS[state]:
        member.move(move)
        assert member.state is ADAPTER_TRANSITIONS[state][move]
    else:
        with pytest.raises(IllegalTransition, match=f"adapter a: '{move.value}' .* '{state.value}'"):
            member.move(move)
        assert member.state is state


@pytest.mark.parametrize("phase", GroupPhase)
@pytest.mark.parametrize("move", GroupMove)
def test_a_group_moves_as_listed_or_not_at_all(phase: GroupPhase, move: GroupMove) -> None:
    group = FailoverGroup(SETTINGS, StoredGroup(), 0)
    group.phase = phase
    if move in GROUP_TRANSITIONS[phase]:
        group._move(move)
        assert group.phase is GROUP_TRANSITIONS[phase][move]
    else:
        with pytest.raises(IllegalTransition, match="stream XNAS"):
            group._move(move)
        assert group.phase is phase


def test_the_pictures_show_every_listed_move() -> None:
    picture = as_mermaid(GROUP_TRANSITIONS)
    assert picture.count("-->") == sum(len(moves) for moves in GROUP_TRANSITIONS.values())
    assert "    STEADY --> PERSISTING: persist\n" in picture


# ---- founding, persisting, granting


def test_a_new_stream_waits_for_all_adapters_or_a_bound() -> None:
    scene = Scene()
    scene.run(900, silent=("b",))
    assert promoted(scene) == []
    scene.run(200, silent=("b",))
    assert promoted(scene) == [("a", Cause.FOUNDING)]


def test_nothing_is_granted_or_pushed_before_the_epoch_is_durable(scene: Scene) -> None:
    scene.run(5_000, silent=("a",))
    assert promoted(scene) == [("b", Cause.DEAD)]
    assert scene.all(Grant) == []
    assert all(push.directory.epoch == 1 for push in scene.all(PushToSubscribers))
    assert AlarmKind.STORE_SLOW in scene.group.alarms
    scene.persist()
    assert [(grant.adapter, grant.epoch) for grant in scene.all(Grant)] == [("b", 2)]
    assert scene.all(PushToSubscribers)[-1].directory.active == "b"


def test_an_epoch_that_could_not_be_stored_is_never_used_for_another(scene: Scene) -> None:
    scene.run(200, silent=("a",))
    scene.tell(EpochNotPersisted(2, "disk full"))
    scene.run(1_500, silent=("a",))
    assert [action.record.epoch for action in scene.all(PersistEpoch)] == [2, 3]
    assert scene.tell(EpochPersisted(2)) == []  # late: it was given up
    scene.persist()
    assert scene.all(Grant)[-1].epoch == 3


def test_an_active_that_recovered_while_the_store_failed_stays_active(scene: Scene) -> None:
    scene.run(600, a=0)
    assert promoted(scene) == [("b", Cause.STALE)]
    scene.tell(EpochNotPersisted(2, "disk full"))
    scene.adapters["a"]["position"] = scene.adapters["b"]["position"]
    scene.run(1_500)
    assert promoted(scene)[1:] == [("a", Cause.RENEWED)]


def test_a_grant_is_repeated_until_it_shows_and_then_goes_to_another() -> None:
    scene = Scene(replace(SETTINGS, adapters=("a", "b", "c")))
    for name in "abc":
        scene.beat(name)
    scene.persist()
    scene.obey()
    scene.run(200, silent=("a",))
    scene.persist()
    first = scene.all(Grant)[-1]
    scene.run(300, silent=("a",))
    assert scene.all(Grant).count(first) > 3
    scene.run(400, silent=("a",))
    assert promoted(scene)[-1] == ("c" if first.adapter == "b" else "b", Cause.UNCONFIRMED)


# ---- detection


def test_a_silent_active_is_replaced_after_detection_and_not_before(scene: Scene) -> None:
    scene.run(100, silent=("a",))
    assert promoted(scene) == []
    scene.run(20, silent=("a",))
    assert promoted(scene) == [("b", Cause.DEAD)]


def test_an_active_that_leaves_or_restarts_is_replaced_at_once(scene: Scene) -> None:
    scene.tell(AdapterLeft("a", 1, "upgrade"))
    assert promoted(scene) == [("b", Cause.DEAD)]
    other = Scene()
    other.found()
    other.forget()
    other.tell(AdapterJoined("a", 2))
    assert promoted(other) == [("b", Cause.DEAD)]


def test_a_dead_active_that_comes_back_is_fenced_until_it_stands_down(scene: Scene) -> None:
    scene.run(200, silent=("a",))
    scene.persist()
    scene.obey()
    scene.forget()
    scene.beat("a", is_active=True, epoch=1)
    assert scene.all(Fence) == [Fence("a", 1, 2)]
    scene.run(60)
    assert len(scene.all(Fence)) == 2
    scene.beat("a", is_active=False, epoch=2)
    assert scene.group.members["a"].state is AdapterState.ALIGNED


def test_a_stall_of_the_server_is_nobodys_death(scene: Scene) -> None:
    scene.now_ns += 60 * SECOND_NS
    scene.tell(Tick())
    assert promoted(scene) == []
    assert AlarmKind.SERVER_STALLED in scene.group.alarms
    scene.run(100)
    assert promoted(scene) == []
    assert scene.group.alarms == frozenset()


def test_without_a_synchronised_backup_nobody_is_promoted_and_an_alarm_says_so(scene: Scene) -> None:
    scene.beat("b", sync=Sync.UNSYNCHRONISED)
    scene.run(60_000, silent=("a",))
    assert promoted(scene) == []
    assert AlarmKind.NO_CANDIDATE in scene.group.alarms
    scene.beat("a", is_active=True, epoch=1)  # it was only cut off, and nobody took its place
    assert scene.group.phase is GroupPhase.STEADY


def test_the_least_bad_is_taken_after_the_configured_time_with_an_alarm() -> None:
    scene = Scene(replace(SETTINGS, unsynchronised_after_ns=SECOND_NS))
    scene.found()
    scene.forget()
    scene.beat("b", sync=Sync.UNSYNCHRONISED)
    scene.run(1_000, silent=("a",))
    assert promoted(scene) == []
    scene.run(300, silent=("a",))
    assert promoted(scene) == [("b", Cause.LEAST_BAD)]
    assert AlarmKind.UNSYNCHRONISED_PROMOTED in {alarm.kind for alarm in scene.all(Alarm)}


# ---- freshness


def test_an_active_at_four_fifths_of_the_rate_is_replaced_within_the_bound() -> None:
    scene = Scene(replace(SETTINGS, freshness_messages=100))
    scene.found()
    scene.forget()
    scene.run(1_500, a=80, b=100)  # 100 messages behind after 50 ms, for 250 ms: well within
    assert promoted(scene) == [("b", Cause.STALE)]
    assert scene.all(PersistEpoch)[0].record.epoch == 2


def test_an_active_with_cut_lines_is_replaced_although_it_sends_heartbeats(scene: Scene) -> None:
    scene.run(350, a=0, b=1)
    assert promoted(scene) == [("b", Cause.STALE)]


def test_lost_lines_are_seen_on_a_quiet_exchange(scene: Scene) -> None:
    scene.adapters["a"]["lines_up"] = 0
    scene.run(350, a=0, b=0)
    assert promoted(scene) == [("b", Cause.LINES_DOWN)]


def test_a_quiet_exchange_is_no_reason(scene: Scene) -> None:
    scene.run(60_000, a=0, b=0)
    assert promoted(scene) == []


def test_a_message_a_minute_that_the_active_gets_one_heartbeat_later_is_no_lag(scene: Scene) -> None:
    for _ in range(5):
        scene.run(10, a=0, b=1)
        scene.run(10, a=1, b=0)
        scene.run(60_000, a=0, b=0)
    assert promoted(scene) == []


def test_a_drained_or_unsynchronised_sibling_does_not_make_the_active_stale(scene: Scene) -> None:
    scene.tell(Drain("1", "ann", "b"))
    scene.run(2_000, a=0)
    scene.adapters["b"]["sync"] = Sync.UNSYNCHRONISED
    scene.run(2_000, a=0)
    assert promoted(scene) == []


# ---- hysteresis


def test_slow_actives_do_not_flap_and_an_operator_must_act() -> None:
    scene = Scene(replace(SETTINGS, failovers_max=2))
    scene.found()
    scene.forget()
    times: list[int] = []
    for _ in range(6):
        active = scene.group.active
        assert active is not None
        before = len(promoted(scene))
        scene.run(6_000, a=0 if active.name == "a" else 5, b=0 if active.name == "b" else 5)
        if len(promoted(scene)) > before:
            times.append(scene.now_ns)
            scene.persist()
            scene.obey()
        level = max(state["position"] for state in scene.adapters.values())
        for state in scene.adapters.values():
            state["position"] = level
        scene.run(100)
    assert len(times) == 2
    assert AlarmKind.TOO_MANY_FAILOVERS in scene.group.alarms
    to = next(name for name, state in scene.adapters.items() if not state["is_active"])
    scene.tell(FailOver("1", "ann", to))
    assert scene.all(Answer)[-1].is_accepted
    assert AlarmKind.TOO_MANY_FAILOVERS not in scene.group.alarms


def test_a_dead_active_is_replaced_however_recent_the_last_change(scene: Scene) -> None:
    scene.tell(FailOver("1", "ann", "b"))
    scene.persist()
    scene.obey()
    scene.run(100)
    scene.run(200, silent=("b",))
    assert promoted(scene) == [("b", Cause.COMMAND), ("a", Cause.DEAD)]


# ---- subscribers' reports


def report(scene: Scene, principal: str, epoch: int = 1) -> None:
    scene.tell(SubscriberReport(principal, "a", epoch, Complaint.SILENT, 90, "nothing for 100 ms"))


def test_one_principal_alone_is_recorded_and_not_followed(scene: Scene) -> None:
    scene.tell(SubscribersCounted(3))
    for _ in range(50):
        report(scene, "desk-1")
    assert promoted(scene) == []
    assert len([audit for audit in scene.all(Audit) if audit.decision == "record a report"]) == 50


def test_a_quorum_of_principals_is_followed(scene: Scene) -> None:
    scene.tell(SubscribersCounted(4))
    report(scene, "desk-1")
    assert promoted(scene) == []
    report(scene, "desk-2")
    assert promoted(scene) == [("b", Cause.REPORTED)]


def test_a_quorum_needs_its_share_and_its_time(scene: Scene) -> None:
    scene.tell(SubscribersCounted(5))
    report(scene, "desk-1")
    report(scene, "desk-2")
    scene.run(1_100)
    report(scene, "desk-3")
    assert promoted(scene) == []


def test_one_report_is_enough_when_heartbeats_are_missing_too(scene: Scene) -> None:
    scene.run(70, silent=("a",))
    report(scene, "desk-1")
    assert promoted(scene) == [("b", Cause.REPORTED)]


def test_reports_about_an_older_epoch_are_not_followed(scene: Scene) -> None:
    for principal in ("desk-1", "desk-2", "desk-3"):
        report(scene, principal, epoch=0)
    assert promoted(scene) == []


# ---- operators


def last_answer(scene: Scene) -> Answer:
    return scene.all(Answer)[-1]


def test_an_unsynchronised_adapter_is_promoted_only_by_force(scene: Scene) -> None:
    scene.beat("b", sync=Sync.UNSYNCHRONISED)
    scene.tell(FailOver("1", "ann", "b"))
    assert not last_answer(scene).is_accepted
    assert "unsynchronised" in last_answer(scene).reason
    scene.tell(FailOver("2", "ann", "b", is_forced=True))
    assert last_answer(scene).is_accepted
    assert AlarmKind.UNSYNCHRONISED_PROMOTED in scene.group.alarms


@pytest.mark.parametrize(("to", "reason"), [("a", "active already"), ("z", "no adapter 'z'")])
def test_impossible_commands_are_answered_with_the_reason(scene: Scene, to: str, reason: str) -> None:
    scene.tell(FailOver("1", "ann", to))
    assert last_answer(scene).command_id == "1"
    assert reason in last_answer(scene).reason


def hand_over(scene: Scene, at_seq: int) -> None:
    scene.tell(HandOver("1", "ann", "b", at_seq))
    assert last_answer(scene).is_accepted, last_answer(scene).reason
    scene.persist()


def test_a_hand_over_tells_the_next_first_and_changes_roles_at_the_position(scene: Scene) -> None:
    at_seq = scene.group.members["a"].position + 100
    hand_over(scene, at_seq)
    assert scene.all(Grant) == [Grant("b", 1, 2, at_seq)]
    assert scene.all(Fence) == []
    scene.beat("b", epoch=2)
    assert scene.all(Fence) == [Fence("a", 1, 2, at_seq)]
    assert scene.group.active is scene.group.members["a"]
    scene.beat("b", position=at_seq, is_active=True)
    assert scene.group.active is scene.group.members["b"]
    assert scene.group.phase is GroupPhase.STEADY
    scene.beat("a", position=at_seq, is_active=False, epoch=2)
    assert scene.group.members["a"].state is AdapterState.ALIGNED


def test_a_hand_over_needs_a_position_ahead_of_both(scene: Scene) -> None:
    reached = max(member.position for member in scene.group.members.values())
    scene.tell(HandOver("1", "ann", "b", reached + 10))
    assert not last_answer(scene).is_accepted
    assert str(reached) in last_answer(scene).reason


def test_a_hand_over_whose_position_was_passed_is_aborted(scene: Scene) -> None:
    at_seq = scene.group.members["a"].position + 20
    hand_over(scene, at_seq)
    scene.run(50)  # `b` has not heard of it
    assert promoted(scene)[-1] == ("a", Cause.HAND_OVER_ABORTED)
    scene.persist()
    scene.obey()
    assert scene.group.active is scene.group.members["a"]
    assert scene.all(Grant)[-1].epoch == 3


def test_a_hand_over_to_an_adapter_that_dies_leaves_the_active_in_a_newer_epoch(scene: Scene) -> None:
    hand_over(scene, scene.group.members["a"].position + 10_000)
    scene.beat("b", epoch=2)
    scene.tell(AdapterLeft("b", 1, "crash"))
    assert promoted(scene)[-1] == ("a", Cause.HAND_OVER_ABORTED)


def test_a_hand_over_from_an_adapter_that_dies_becomes_a_failover(scene: Scene) -> None:
    hand_over(scene, scene.group.members["a"].position + 10_000)
    scene.beat("b", epoch=2)
    scene.tell(AdapterLeft("a", 1, "crash"))
    assert promoted(scene)[-1] == ("b", Cause.DEAD)
    scene.persist()
    assert scene.all(Grant)[-1].from_seq == scene.group.members["b"].position + 1


def test_fail_back_goes_to_the_preferred_adapter(scene: Scene) -> None:
    scene.tell(FailOver("1", "ann", "b"))
    scene.persist()
    scene.obey()
    scene.run(100)
    scene.tell(FailBack("2", "ann"))
    assert promoted(scene)[-1] == ("a", Cause.HAND_OVER)


def test_draining_the_active_hands_over_and_is_remembered(scene: Scene) -> None:
    scene.tell(Drain("1", "ann", "a"))
    assert promoted(scene) == [("b", Cause.HAND_OVER)]
    assert scene.all(PersistDrained) == [PersistDrained(("a",))]
    assert FailoverGroup(SETTINGS, StoredGroup(None, ("a",)), 0).members["a"].is_drained


# ---- restart of the server

RECORD = EpochRecord(7, "a", 1, 50, Cause.DEAD, last_position=90)


def restarted(record: EpochRecord = RECORD) -> Scene:
    return Scene(stored=StoredGroup(record))


def test_a_restart_keeps_the_active_that_shows_the_stored_epoch() -> None:
    scene = restarted()
    scene.run(1_000, silent=("a",))  # its heartbeat comes late, within the grace
    scene.beat("a", is_active=True, epoch=7, position=scene.adapters["b"]["position"])
    scene.run(5_000)
    assert promoted(scene) == []
    assert scene.group.phase is GroupPhase.STEADY


def test_a_restart_grants_again_what_is_stored_and_did_not_arrive() -> None:
    scene = restarted()
    scene.beat("a", epoch=6)
    assert scene.all(Grant) == [Grant("a", 1, 7, 50)]
    assert promoted(scene) == []


def test_an_active_not_heard_in_the_grace_is_replaced_with_a_newer_epoch() -> None:
    scene = restarted()
    scene.run(1_900, silent=("a",))
    assert promoted(scene) == []
    scene.run(200, silent=("a",))
    assert [action.record.epoch for action in scene.all(PersistEpoch)] == [8]


def test_a_restart_goes_on_with_a_hand_over() -> None:
    scene = restarted(replace(RECORD, adapter="b", from_seq=500, hand_over_from="a"))
    scene.beat("a", is_active=True, epoch=6)
    scene.beat("b", epoch=6)
    assert scene.group.phase is GroupPhase.OFFERED
    scene.beat("b", epoch=7)
    assert scene.all(Fence) == [Fence("a", 1, 7, 500)]


def test_an_epoch_that_adapters_know_is_not_granted_again_by_a_store_that_forgot() -> None:
    scene = Scene()
    scene.beat("a", epoch=41, is_active=True)
    scene.beat("b", epoch=41)
    assert [action.record.epoch for action in scene.all(PersistEpoch)] == [42]
    assert AlarmKind.STORE_BEHIND in {alarm.kind for alarm in scene.all(Alarm)}


# ---- what is refused


def test_an_adapter_of_another_group_is_refused_and_changes_nothing(scene: Scene) -> None:
    before = scene.group.directory
    with pytest.raises(ConfigError, match="'z', the group has a, b"):
        scene.tell(AdapterJoined("z", 1))
    assert scene.group.directory == before


def test_overtaken_heartbeats_are_not_believed(scene: Scene) -> None:
    position = scene.group.members["a"].position
    scene.adapters["a"]["number"] -= 5
    scene.beat("a", position=1)
    assert scene.group.members["a"].position == position
    assert scene.group.stale_heartbeats == 1


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"detection_ns": 20 * MILLISECOND_NS}, "three heartbeats"),
        ({"adapters": ()}, "1 to 16"),
        ({"adapters": ("a", "a")}, "different names"),
        ({"adapters": ("../a",)}, "letters"),
        ({"failovers_max": 0}, "failovers_max must be above 0"),
        ({"report_quorum_percent": 101}, "0 to 100"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changed: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        replace(SETTINGS, **changed)  # type: ignore[arg-type]
