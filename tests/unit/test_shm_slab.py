"""The slab's rules, one by one. Participants live in one process here; `die` is what SIGKILL leaves."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from feeds.errors import ConfigError, LimitError
from middleware.shm.errors import InUse, NotFound, ShmError
from middleware.shm.inspection.slabs import ParticipantReport
from middleware.shm.runtime import Runtime
from middleware.shm.slab import (
    Abandoned,
    CompletionError,
    NotOwner,
    SizeClass,
    SlabConfig,
    StaleHandle,
    Verdict,
    forget,
    handle_text,
)
from middleware.shm.slab_completion_kernels import relinquish_many_kernel
from middleware.shm.slab_kernels import allocate_many_kernel, share_many_kernel
from middleware.shm.slab_layout import (
    CLASSES_MAX,
    COUNT,
    COUNT_MAX,
    GENERATION_MASK,
    GENERATION_SHIFT,
    LIMIT,
    PLAN_ROW_WORDS,
    PLAN_ROWS,
    ROW_HINTS,
    ROW_HINTS_AT,
    SLOTS_MAX,
    STATE,
)
from middleware.shm.slab_slot_kernels import COMPLETED, DONE, STALE, slot_at
from tests.slab_members import Join, class_report, die, look, owned, shared

pytestmark = pytest.mark.kernels


def participant(runtime: Runtime, name: str) -> ParticipantReport:
    return next(each for each in look(runtime).participants if each.name == name)


# --- bodies and handles --------------------------------------------------------------------------------


def test_a_shared_body_is_read_where_it_is_by_everybody(join: Join) -> None:
    maker, user = join("maker"), join("user")
    handle = owned(maker, 5)
    maker.body(handle)[:] = np.frombuffer(b"hello", dtype=np.uint8)
    maker.share(handle)
    assert user.view(handle).tobytes() == user.read(handle) == b"hello"
    assert not user.view(handle).flags.writeable


def test_a_body_that_is_not_shared_yet_is_seen_by_nobody(join: Join) -> None:
    maker, user = join("maker"), join("user")
    handle = owned(maker)
    for use in (user.view, user.read, maker.view, maker.read):
        with pytest.raises(StaleHandle):
            use(handle)


def test_an_empty_body_is_a_body(join: Join) -> None:
    slab = join("a")
    handle = shared(slab, b"")
    assert slab.read(handle) == b""
    assert slab.view(handle).size == 0


def test_a_stale_handle_is_refused_and_never_shows_another_message(join: Join) -> None:
    slab = join("a", SlabConfig((SizeClass(64, 1),), participants=2))
    old = shared(slab, b"first")
    assert slab.relinquish(old, limit=1)
    new = shared(slab, b"second")
    assert new != old
    operations = (slab.view, slab.read, slab.body, slab.share, slab.free, slab.relinquish)
    for operation in operations:
        with pytest.raises(StaleHandle) as refusal:
            operation(old)
        assert refusal.value.handle == old
        assert handle_text(old) in str(refusal.value)
    assert slab.read(new) == b"second"
    assert slab.relinquish(new, limit=1)


@pytest.mark.parametrize("handle", [0, -1, 1, 1 << 62, (1 << 63) - 1, 7 << 20, (1 << 23) + 4])
def test_a_number_that_is_no_handle_is_refused(join: Join, handle: int) -> None:
    slab = join("a")
    for operation in (slab.view, slab.read, slab.body, slab.share, slab.free, slab.relinquish):
        with pytest.raises(StaleHandle):
            operation(handle)


def test_a_handle_is_positive_and_readable_by_people(join: Join) -> None:
    slab = join("a")
    first, large = owned(slab), owned(slab, 200)
    assert first > 0
    assert handle_text(first) == "0:0#1"
    assert handle_text(large) == "1:0#1"


def test_the_generation_begins_again_at_one_so_that_no_handle_is_zero(join: Join) -> None:
    slab = join("a", SlabConfig((SizeClass(64, 1),), participants=1))
    slab.words[slot_at(slab.plan, owned(slab)) + STATE] = GENERATION_MASK << GENERATION_SHIFT
    handle = owned(slab)
    assert handle_text(handle) == "0:0#1"


def test_only_its_owner_writes_shares_and_gives_back_a_body_and_only_before_sharing(join: Join) -> None:
    maker, other = join("maker"), join("other")
    handle = owned(maker)
    for operation in (other.body, other.share, other.free):
        with pytest.raises(NotOwner, match="must be ours"):
            operation(handle)
    maker.share(handle)
    for slab in (maker, other):
        with pytest.raises(NotOwner):
            slab.body(handle)
        with pytest.raises(NotOwner):
            slab.free(handle)
        with pytest.raises(StaleHandle):
            slab.share(handle)


def test_what_was_given_back_can_be_allocated_again(join: Join, runtime: Runtime) -> None:
    slab = join("a")
    for _ in range(100):
        slab.free(owned(slab))
    assert class_report(runtime).free == 4
    assert class_report(runtime).claimed == class_report(runtime).freed == 100


# --- sizes and limits ----------------------------------------------------------------------------------


def test_a_body_takes_the_smallest_class_that_fits(join: Join) -> None:
    slab = join("a")
    assert [handle_text(owned(slab, size))[0] for size in (0, 64, 65, 256)] == ["0", "0", "1", "1"]


@pytest.mark.parametrize("byte_count", [-1, 257, 1 << 40])
def test_a_body_too_large_is_an_error_that_names_the_limit(join: Join, byte_count: int) -> None:
    with pytest.raises(LimitError, match=rf"0 to 256 bytes .*size classes\), was {byte_count}"):
        join("a").allocate(byte_count)


def test_a_full_class_is_helped_out_by_the_next_and_a_full_slab_says_none(
    join: Join, runtime: Runtime
) -> None:
    slab = join("a")
    handles = [owned(slab) for _ in range(6)]
    assert [handle_text(each)[0] for each in handles] == ["0"] * 4 + ["1"] * 2
    assert slab.allocate(1) is None
    assert slab.allocate(200) is None
    small, large = look(runtime).classes
    assert (small.overflowed, small.refused, large.refused) == (2, 1, 1)
    assert (small.used_max, large.used_max) == (4, 2)
    slab.free(handles[2])
    assert handle_text(owned(slab)) == "0:2#2"


def test_what_others_freed_is_found_at_once_in_a_full_slab(join: Join) -> None:
    maker, user = join("maker"), join("user")
    handles = [shared(maker) for _ in range(6)]
    for _ in range(10):
        assert maker.allocate(1) is None
    assert user.relinquish(handles[5], limit=1)
    assert maker.allocate(1) is not None


def test_slots_free_without_a_hint_are_found_by_sweeping(join: Join) -> None:
    config = SlabConfig((SizeClass(64, 3_000),), participants=2)
    one, two = join("one", config), join("two", config)
    # Both begin at a file without hints; each must find what the other left, in parts it has not swept yet.
    handles = {owned(slab) for _ in range(1_500) for slab in (one, two)}
    assert len(handles) == 3_000
    assert one.allocate(1) is None
    assert two.allocate(1) is None


def test_hints_are_never_believed(join: Join) -> None:
    slab = join("a")
    handles = [owned(slab) for _ in range(6)]
    for row in (PLAN_ROWS, PLAN_ROWS + PLAN_ROW_WORDS):
        at, count = (int(slab.plan[row + field]) for field in (ROW_HINTS_AT, ROW_HINTS))
        slab.words[at : at + count] = -1  # all slots free, and some that do not exist
    assert slab.allocate(1) is None
    for row in (PLAN_ROWS, PLAN_ROWS + PLAN_ROW_WORDS):
        at, count = (int(slab.plan[row + field]) for field in (ROW_HINTS_AT, ROW_HINTS))
        slab.words[at : at + count] = 0
    slab.free(handles[0])
    slab.words[slab.plan[PLAN_ROWS + ROW_HINTS_AT]] = 0  # as if killed before the hint was set
    found = [slab.allocate(1) for _ in range(200)]
    assert len([each for each in found if each is not None]) == 1


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SizeClass(0, 1), "slot_bytes"),
        (lambda: SizeClass(100, 1), "multiple of 64"),
        (lambda: SizeClass(1 << 31, 1), "slot_bytes"),
        (lambda: SizeClass(64, 0), "slot_count"),
        (lambda: SizeClass(64, SLOTS_MAX + 1), "slot_count"),
        (lambda: SlabConfig(()), "size classes"),
        (lambda: SlabConfig(tuple(SizeClass(64 * n, 1) for n in range(1, CLASSES_MAX + 2))), "1 to 7"),
        (lambda: SlabConfig((SizeClass(128, 1), SizeClass(64, 1))), "must grow"),
        (lambda: SlabConfig((SizeClass(64, 1), SizeClass(64, 1))), "must grow"),
        (lambda: SlabConfig(participants=0), "participants"),
        (lambda: SlabConfig(participants=1_001), "participants"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


# --- completion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit_at", [0, 1, 2])
def test_who_makes_the_count_reach_the_limit_frees_the_body(join: Join, limit_at: int) -> None:
    maker, *users = (join(name) for name in ("maker", "u1", "u2", "u3"))
    handle = shared(maker)
    gone = [user.relinquish(handle, limit=3 if n == limit_at else None) for n, user in enumerate(users)]
    assert gone == [False, False, True]
    with pytest.raises(StaleHandle):
        maker.read(handle)


def test_a_body_stays_until_its_limit_is_known(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    for _ in range(50):
        assert not slab.relinquish(handle)
    assert slab.read(handle) == b"body"
    assert slab.relinquish(handle, limit=51)


def test_relinquishing_beyond_the_limit_is_refused_and_changes_nothing(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    slab.relinquish(handle)
    slab.relinquish(handle)
    with pytest.raises(CompletionError, match="more often than its limit"):
        slab.relinquish(handle, limit=1)
    with pytest.raises(CompletionError, match="more often than its limit"):
        slab.relinquish(handle, limit=2)
    assert slab.relinquish(handle, limit=3)


def test_a_limit_is_set_once(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    slab.relinquish(handle, limit=3)
    with pytest.raises(CompletionError, match="set already"):
        slab.relinquish(handle, limit=4)
    slab.relinquish(handle, limit=3)
    assert slab.relinquish(handle)


@pytest.mark.parametrize("limit", [0, -1, COUNT_MAX + 1])
def test_a_limit_out_of_range_is_refused(join: Join, limit: int) -> None:
    slab = join("a")
    with pytest.raises(LimitError, match=rf"1 to {COUNT_MAX} users, was {limit}"):
        slab.relinquish(shared(slab), limit=limit)


def test_the_count_does_not_run_into_its_neighbours(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    at = slot_at(slab.plan, handle)
    slab.words[at + COUNT] += (COUNT_MAX - 1) << 10
    assert not slab.relinquish(handle, ticket=1)
    with pytest.raises(CompletionError):
        slab.relinquish(handle, ticket=2)
    assert slab.read(handle) == b"body"


def test_a_ticket_counts_once_however_often_it_is_repeated(join: Join) -> None:
    slab = join("a")
    handle, other = shared(slab), shared(slab)
    for _ in range(3):
        assert not slab.relinquish(handle, limit=2, ticket=5)
    assert slab.last_ticket == 5
    assert not slab.relinquish(other, ticket=4)  # from before: done already
    assert slab.relinquish(handle, ticket=6)
    assert not slab.relinquish(handle, ticket=6)  # the body is gone, and the repetition still harmless
    assert slab.read(other) == b"body"


def test_tickets_begin_again_when_told_to(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    slab.relinquish(handle, limit=2, ticket=9)
    slab.restart_tickets()
    assert slab.last_ticket == 0
    die(slab)
    successor = join("a")
    assert successor.last_ticket == 0
    assert successor.relinquish(handle, ticket=1)


@pytest.mark.parametrize("ticket", [-1, (1 << 63) - 1, 1 << 63])
def test_a_ticket_out_of_range_is_refused(join: Join, ticket: int) -> None:
    slab = join("a")
    with pytest.raises(ConfigError, match="ticket"):
        slab.relinquish(shared(slab), ticket=ticket)


def test_a_tag_out_of_range_is_refused(join: Join) -> None:
    with pytest.raises(ConfigError, match="tag must be a signed 64-bit integer"):
        join("a").allocate(1, tag=1 << 63)


def test_batches_do_what_single_calls_do(join: Join) -> None:
    slab = join("a")
    sizes = np.array([8, 8, 200, 8], dtype=np.int64)
    tags = np.arange(4, dtype=np.int64)
    handles, answers = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    assert allocate_many_kernel(slab.words, slab.plan, slab.private, sizes, tags, handles) == 4
    assert share_many_kernel(slab.words, slab.plan, slab.private, handles, answers) == 4
    assert [len(slab.read(int(handle))) for handle in handles] == [8, 8, 200, 8]
    limits = np.array([1, 2, 1, 1], dtype=np.int64)
    tickets = np.arange(1, 5, dtype=np.int64)
    handles[3] = 77
    arguments = (slab.words, slab.plan, slab.private, handles, limits, tickets, answers)
    assert relinquish_many_kernel(*arguments) == 3
    assert answers.tolist() == [COMPLETED, DONE, COMPLETED, STALE]
    assert slab.last_ticket == 3


def test_a_batch_stops_where_the_slab_is_full(join: Join) -> None:
    slab = join("a")
    sizes = np.full(10, 8, dtype=np.int64)
    handles = np.zeros(10, dtype=np.int64)
    assert allocate_many_kernel(slab.words, slab.plan, slab.private, sizes, sizes, handles) == 6
    assert np.count_nonzero(handles) == 6


# --- seats, death and recovery ---------------------------------------------------------------------------


def test_a_second_participant_of_a_name_is_refused_by_the_name_of_the_first(join: Join) -> None:
    join("manager-1")
    with pytest.raises(InUse, match=rf"'manager-1' \(process {os.getpid()}\)"):
        join("manager-1")


def test_a_successor_gets_the_seat_and_the_last_ticket_of_its_name(join: Join, runtime: Runtime) -> None:
    first = join("manager-1")
    handle = shared(join("maker"))
    first.relinquish(handle, ticket=12)
    die(first)
    join("manager-2").relinquish(handle, ticket=3)
    successor = join("manager-1")
    assert successor.last_ticket == 12
    assert not successor.relinquish(handle, limit=2, ticket=12)
    assert successor.relinquish(handle, limit=3, ticket=13)
    assert len(look(runtime).participants) == 3


def test_who_leaves_in_order_gives_up_seat_tickets_and_bodies(join: Join, runtime: Runtime) -> None:
    user = join("user")
    leaver = join("leaver")
    owned(leaver)
    handle = shared(leaver)
    leaver.relinquish(handle, ticket=9)
    leaver.close()
    leaver.close()
    assert [each.name for each in look(runtime).participants] == ["user"]
    assert user.recover(lambda _body: Verdict.DISCARD).undecided == ()
    assert user.read(handle) == b"body"
    assert class_report(runtime).free == 3
    assert join("newcomer").last_ticket == 0
    with pytest.raises(ShmError, match="closed by 'leaver'"):
        leaver.read(handle)


def test_a_newcomer_on_a_left_seat_does_not_inherit_tickets_even_when_killed_at_once(join: Join) -> None:
    config = SlabConfig((SizeClass(64, 4),), participants=2)
    maker, first = join("maker", config), join("first", config)
    handle = shared(maker)
    first.relinquish(handle, ticket=9)
    first.close()
    die(join("second", config))
    assert join("second", config).last_ticket == 0


def test_what_the_dead_owned_alone_is_freed(join: Join, runtime: Runtime) -> None:
    dead, living = join("dead"), join("living")
    owned(dead)
    kept = owned(living)
    die(dead)
    recovery = living.recover()
    assert (recovery.owned_freed, recovery.undecided) == (1, ())
    assert class_report(runtime).owned == 1
    living.body(kept)[:] = 1


def test_what_the_dead_shared_is_for_its_successor_to_decide(join: Join, runtime: Runtime) -> None:
    first, other = join("manager-1"), join("manager-2")
    handles = [shared(first, b"x" * n, tag=n) for n in (1, 2, 3)]
    mine = shared(other, tag=1)
    die(first)
    undecided = other.recover().undecided
    assert undecided == tuple(
        Abandoned(handle, n, n, 0, "manager-1") for n, handle in zip((1, 2, 3), handles, strict=True)
    )
    successor = join("manager-1")
    own = shared(successor, tag=3)
    member = participant(runtime, "manager-1")
    assert (member.left_owned, member.left_shared, member.shared) == (0, 3, 1)
    committed_tag = 2
    recovery = successor.recover(lambda body: Verdict.KEEP if body.tag <= committed_tag else Verdict.DISCARD)
    assert (recovery.kept, recovery.shared_freed, recovery.undecided) == (2, 1, ())
    assert other.read(handles[1]) == b"xx"
    with pytest.raises(StaleHandle):
        other.read(handles[2])
    assert successor.read(own) == other.read(mine) == b"body"
    assert successor.recover(lambda _body: Verdict.DISCARD).shared_freed == 0  # what is kept is nobody's


def test_a_body_that_somebody_relinquished_is_never_discarded(
    join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    dead, living = join("dead"), join("living")
    handle = shared(dead)
    living.relinquish(handle)
    die(dead)
    recovery = living.recover(lambda _body: Verdict.DISCARD)
    assert (recovery.kept, recovery.shared_freed) == (1, 0)
    assert "was relinquished 1 times: keeping it" in caplog.text
    assert living.relinquish(handle, limit=2)


def test_the_living_are_never_recovered_from(join: Join) -> None:
    living, other = join("living"), join("other")
    handle, body = owned(living), shared(living)
    recovery = other.recover(lambda _body: Verdict.DISCARD)
    assert (recovery.owned_freed, recovery.shared_freed) == (0, 0)
    living.free(handle)
    assert other.read(body) == b"body"


def test_the_seat_of_the_dead_is_kept_for_its_name_until_it_is_forgotten(
    join: Join, runtime: Runtime
) -> None:
    config = SlabConfig((SizeClass(64, 4),), participants=2)
    living, dead = join("living", config), join("dead", config)
    handle = shared(dead)
    die(dead)
    with pytest.raises(LimitError, match=r"all 2 seats .* have none: dead$"):
        join("newcomer", config)
    with pytest.raises(ShmError, match="'dead' left 1 bodies"):
        forget(runtime, "bodies", "dead")
    with pytest.raises(InUse, match="'living'"):
        forget(runtime, "bodies", "living")
    with pytest.raises(NotFound, match="'stranger'"):
        forget(runtime, "bodies", "stranger")
    living.recover(lambda _body: Verdict.KEEP)
    forget(runtime, "bodies", "dead")
    assert join("newcomer", config).read(handle) == b"body"


def test_incarnations_that_still_own_slots_are_not_used_again(join: Join) -> None:
    config = SlabConfig((SizeClass(64, 8),), participants=1)
    handles = []
    for n in range(8):
        slab = join("a", config)
        handles.append(shared(slab, bytes([n])))
        die(slab)
    slab = join("a", config)
    assert slab.recover(lambda _body: Verdict.KEEP).kept == 8
    assert [slab.read(handle) for handle in handles] == [bytes([n]) for n in range(8)]


def test_a_body_left_complete_but_not_freed_is_freed_by_recovery_and_by_need(
    join: Join, runtime: Runtime
) -> None:
    slab = join("a")
    for is_recovered in (True, False):
        handle = shared(slab)
        at = slot_at(slab.plan, handle)
        slab.words[at + LIMIT] |= 1
        slab.words[at + COUNT] += 1 << 10  # the last user counted, and was killed before it freed the slot
        if is_recovered:
            assert slab.recover().completed == 1
        else:
            others = [owned(slab) for _ in range(5)]
            found = [slab.allocate(1) for _ in range(64)]
            assert len([each for each in found if each is not None]) == 1
            assert len(others) == 5
        with pytest.raises(StaleHandle):
            slab.read(handle)


def test_a_forked_child_does_not_take_part(join: Join) -> None:
    slab = join("a")
    handle = shared(slab)
    child = os.fork()
    if child == 0:
        try:
            slab.read(handle)
        except ShmError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert slab.read(handle) == b"body"
