"""The gap policy, with the time passed in: which step follows which, and that none is skipped or repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.errors import ConfigError, IllegalTransition
from middleware.arbiter import Hole
from middleware.gap_policy import (
    TRANSITIONS,
    AllowFillers,
    AskHistory,
    AskRecorder,
    GapFilled,
    GapGivenUp,
    GapOpened,
    GapPolicy,
    GapPolicyConfig,
    GapStep,
    GapStuck,
    GiveUp,
    Move,
    Step,
)

CONFIG = GapPolicyConfig(
    sibling_ns=10, fillers_ns=20, history_ns=30, recorder_ns=40, adapters=("a", "b"), has_recorder=True
)
HOLE = Hole(5, 8, ())


def test_every_step_comes_in_its_turn_and_the_last_is_giving_up() -> None:
    policy = GapPolicy(CONFIG)
    assert policy.on_hole(HOLE, 100) == []
    assert policy.next_due_ns == 110
    assert policy.on_hole(HOLE, 109) == []
    assert policy.on_hole(HOLE, 110) == [AllowFillers(is_allowed=True)]
    assert policy.on_hole(HOLE, 130) == [AskHistory("a", 5, 8)]
    assert policy.on_hole(HOLE, 160) == [AskHistory("b", 5, 8)]
    assert policy.on_hole(HOLE, 190) == [AskRecorder(5, 8)]
    assert policy.on_hole(HOLE, 230) == [AllowFillers(is_allowed=False), GiveUp(5, 8)]
    assert policy.step is Step.WHOLE
    assert policy.next_due_ns is None
    assert policy.take_events() == [
        GapOpened(5, 8),
        GapStep(5, Step.FILLERS),
        GapStep(5, Step.HISTORY, "a"),
        GapStep(5, Step.HISTORY, "b"),
        GapStep(5, Step.RECORDER),
        GapGivenUp(5, 8, 130),
    ]


def test_an_empty_answer_saves_the_wait() -> None:
    policy = GapPolicy(CONFIG)
    for now_ns in (0, 10, 30):
        policy.on_hole(HOLE, now_ns)
    assert policy.step is Step.HISTORY
    assert policy.on_empty_answer(31) == [AskHistory("b", 5, 8)]
    assert policy.on_empty_answer(32) == [AskRecorder(5, 8)]
    assert policy.on_empty_answer(33) == [AllowFillers(is_allowed=False), GiveUp(5, 8)]


def test_a_hole_that_the_sibling_fills_costs_nothing_but_two_events() -> None:
    policy = GapPolicy(CONFIG)
    assert policy.on_hole(HOLE, 0) == []
    assert policy.on_hole(None, 9) == []
    assert policy.take_events() == [GapOpened(5, 8), GapFilled(5, Step.SIBLING, 9)]


def test_fillers_are_no_longer_allowed_once_the_hole_is_gone() -> None:
    policy = GapPolicy(CONFIG)
    policy.on_hole(HOLE, 0)
    policy.on_hole(HOLE, 10)
    assert policy.on_hole(None, 15) == [AllowFillers(is_allowed=False)]


def test_a_hole_that_grows_is_the_same_hole_and_one_further_on_is_another() -> None:
    policy = GapPolicy(CONFIG)
    policy.on_hole(HOLE, 0)
    assert policy.on_hole(Hole(5, 20, ()), 10) == [AllowFillers(is_allowed=True)]
    assert policy.on_hole(Hole(7, 20, ()), 11) == [AllowFillers(is_allowed=False)]
    assert policy.step is Step.SIBLING
    assert policy.next_due_ns == 21
    assert policy.take_events()[-2:] == [GapFilled(5, Step.FILLERS, 11), GapOpened(7, 20)]


def test_who_cannot_be_asked_is_left_out() -> None:
    policy = GapPolicy(GapPolicyConfig(sibling_ns=10, fillers_ns=20))
    policy.on_hole(HOLE, 0)
    policy.on_hole(HOLE, 10)
    assert policy.on_hole(HOLE, 30) == [AllowFillers(is_allowed=False), GiveUp(5, 8)]


def test_a_hole_without_a_known_end_is_stuck_until_somebody_knows_it() -> None:
    policy = GapPolicy(GapPolicyConfig(sibling_ns=10, fillers_ns=20))
    endless = Hole(5, None, ())
    for now_ns in (0, 10, 30, 31):
        policy.on_hole(endless, now_ns)
    assert policy.on_hole(endless, 99) == []
    assert policy.next_due_ns is None
    assert policy.take_events()[-1] == GapStuck(5, 30)
    assert policy.on_hole(HOLE, 100) == [AllowFillers(is_allowed=False), GiveUp(5, 8)]


@pytest.mark.parametrize("step", [step for step in Step if Move.ANSWERED_EMPTY not in TRANSITIONS[step]])
def test_an_answer_that_nobody_asked_for_is_an_error_and_changes_nothing(step: Step) -> None:
    policy = GapPolicy(CONFIG)
    now_ns = 0
    while policy.step is not step:
        policy.on_hole(HOLE, now_ns)
        now_ns += 10
    with pytest.raises(IllegalTransition, match=f"at step '{step}' cannot have 'answered empty'"):
        policy.on_empty_answer(now_ns)
    assert policy.step is step


@pytest.mark.parametrize(
    "wrong", [{"sibling_ns": -1}, {"recorder_ns": 1 << 60}, {"adapters": ("a", "a")}], ids=str
)
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GapPolicyConfig(**wrong)  # type: ignore[arg-type]


holes = st.none() | st.builds(
    lambda first, size, is_endless: Hole(first, None if is_endless else first + size, ()),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
)


@given(st.lists(st.tuples(holes, st.integers(0, 60)), max_size=40))
def test_every_gap_that_opens_is_filled_or_given_up_or_still_open(
    steps: list[tuple[Hole | None, int]],
) -> None:
    policy = GapPolicy(CONFIG)
    now_ns, is_filling, open_at = 0, False, None
    for hole, later_ns in steps:
        now_ns += later_ns
        for action in policy.on_hole(hole, now_ns):
            if isinstance(action, AllowFillers):
                is_filling = action.is_allowed
        for event in policy.take_events():
            if isinstance(event, GapOpened):
                assert open_at is None
                open_at = event.first
            else:
                assert event.first == open_at
                if isinstance(event, GapFilled | GapGivenUp):
                    open_at = None
        assert (open_at is None) == (policy.step is Step.WHOLE)
        assert is_filling == (policy.step not in (Step.WHOLE, Step.SIBLING))
