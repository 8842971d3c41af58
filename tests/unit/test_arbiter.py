"""The arbiter, one rule at a time."""

from __future__ import annotations

import pytest

from feeds.errors import ConfigError
from middleware.arbiter import Arbiter, Cursor, Hole, SourceGap, WindowCounts
from middleware.arbiter_kernels import ACTIVE, BACKUP, FINISHED_MAX
from tests.arbiter_frames import Message, messages_of, words_of

pytestmark = pytest.mark.kernels


def data(first: int, last: int) -> list[Message]:
    """Return messages whose position is their number."""
    return [Message(number, number) for number in range(first, last + 1)]


def run(arbiter: Arbiter, *windows: list[Message]) -> list[Message]:
    return messages_of(arbiter.arbitrate(*map(words_of, windows)))


def test_the_first_of_two_copies_is_delivered_and_the_other_is_a_duplicate() -> None:
    arbiter = Arbiter(Cursor(1))
    assert run(arbiter, data(1, 3), data(1, 5)) == data(1, 5)
    assert arbiter.counts(ACTIVE) == WindowCounts(3, 0, 0, 0, 0, 0)
    assert arbiter.counts(BACKUP) == WindowCounts(2, 0, 0, 3, 0, 0)


def test_a_hole_holds_delivery_up_until_it_is_filled_or_given_up() -> None:
    arbiter = Arbiter(Cursor(1))
    assert run(arbiter, [*data(1, 2), *data(5, 6)]) == data(1, 2)
    assert arbiter.hole == Hole(3, 4, ())
    assert run(arbiter, data(5, 6), data(3, 3)) == data(3, 3)
    assert arbiter.hole == Hole(4, 4, ())
    arbiter.skip_to(5)
    assert run(arbiter, data(5, 6)) == data(5, 6)
    assert arbiter.hole is None
    assert arbiter.take_source_gaps() == [SourceGap(1, 4, 4, 5)]  # nobody had it


def test_the_same_numbers_in_a_new_session_are_new_messages() -> None:
    arbiter = Arbiter(Cursor(1))
    second_day = [Message(3 + number, number, session=2) for number in range(1, 4)]
    assert run(arbiter, [*data(1, 3), *second_day], data(1, 3)) == [*data(1, 3), *second_day]
    assert arbiter.counts(BACKUP).late == 3  # of the first session, which was over when they were looked at


def test_a_new_session_waits_for_the_rest_of_the_old_one() -> None:
    arbiter = Arbiter(Cursor(1))
    next_day = Message(5, 1, session=2)
    assert run(arbiter, [*data(1, 2), next_day], []) == data(1, 2)
    assert arbiter.hole == Hole(3, 4, ())
    assert run(arbiter, [next_day], data(3, 4)) == [*data(3, 4), next_day]


def test_an_administrative_message_is_delivered_once_at_its_position() -> None:
    admin = Message(2, 1, session=0, is_admin=True)
    stream = [Message(1, 1), admin, Message(3, 2)]
    arbiter = Arbiter(Cursor(1))
    assert run(arbiter, stream, stream) == stream
    assert run(arbiter, [admin.at(4)]) == []
    assert arbiter.counts(ACTIVE).duplicates == 1


def test_a_stale_active_may_add_data_but_no_administrative_message() -> None:
    arbiter = Arbiter(Cursor(1))
    arbiter.on_epoch(2)
    stale = [Message(1, 1, session=0, is_admin=True, epoch=1), Message(2, 1, epoch=1)]
    assert run(arbiter, stale) == []
    assert arbiter.counts(ACTIVE).refused == 1
    assert run(arbiter, stale[1:], [Message(1, 1, epoch=2)]) == [Message(1, 1, epoch=2)]
    assert run(arbiter, [Message(9, 2, epoch=1)]) == []
    assert arbiter.hole == Hole(2, None, (ACTIVE,))
    arbiter.allow_fillers(is_allowed=True)
    assert run(arbiter, [Message(9, 2, epoch=1)]) == [Message(2, 2, epoch=1)]
    assert arbiter.counts(ACTIVE).filled == 1


def test_only_wanted_instruments_come_out_and_the_others_leave_no_hole() -> None:
    arbiter = Arbiter(Cursor(1), instruments=[5, 0xFFFFFFFF])
    stream = [Message(1, 1, instrument=5), Message(2, 2, instrument=6), Message(3, 3, instrument=0xFFFFFFFF)]
    assert run(arbiter, stream) == [stream[0], stream[2]]
    assert arbiter.position == 4
    assert arbiter.counts(ACTIVE).unwanted == 1
    assert run(arbiter, [Message(4, 1, session=0, is_admin=True, instrument=0)]) != []


def test_a_batch_that_is_full_goes_on_with_the_next_call() -> None:
    arbiter = Arbiter(Cursor(1), batch_frames=2)
    stream = data(1, 5)
    got = run(arbiter, stream)
    assert (got, arbiter.consumed) == (data(1, 2), (2, 0, 0))
    assert arbiter.hole is None
    assert run(arbiter, stream[2:]) == data(3, 4)


def test_numbers_that_jump_in_step_are_a_gap_of_the_source_and_all_of_them_are_told() -> None:
    arbiter = Arbiter(Cursor(1))
    stream = [Message(position, 10 * position) for position in range(1, 101)]
    got: list[Message] = []
    while len(got) < 100:
        got += run(arbiter, stream[len(got) :])
    assert got == stream
    gaps = arbiter.take_source_gaps()
    assert [(gap.first, gap.last) for gap in gaps] == [(10 * n + 1, 10 * n + 9) for n in range(1, 100)]


def test_the_last_finished_sessions_are_kept_oldest_first() -> None:
    stream = [Message(number, 1, session=number) for number in range(1, 2 * FINISHED_MAX)]
    arbiter = Arbiter(Cursor(1))
    run(arbiter, stream)
    over = [session for session, _ in arbiter.cursor.finished_sessions]
    assert over == list(range(FINISHED_MAX - 1, 2 * FINISHED_MAX - 1))  # the last goes on


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda: Arbiter(Cursor(-1)), "position must be"),
        (lambda: Arbiter(Cursor(1), batch_frames=0), "batch_frames must be"),
        (lambda: Arbiter(Cursor(1), instruments=[0]), "instrument number must be"),
        (lambda: Arbiter(Cursor(5)).skip_to(5), "can only skip ahead of position 5"),
    ],
)
def test_wrong_arguments_are_named(wrong: object, told: str) -> None:
    assert callable(wrong)
    with pytest.raises(ConfigError, match=told):
        wrong()
