"""The slab, killed after every store and interrupted at every access: nothing leaks, nothing is done twice.

Each test is swept over all the points there are. Its scenario is built anew for each, one participant is
stopped there for good or another has its turn, then a successor takes over and everything is accounted for.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from middleware.shm import atomics
from middleware.shm.inspection.slabs import inspect_slab
from middleware.shm.runtime import Runtime
from middleware.shm.slab import Abandoned, Recovery, SizeClass, Slab, SlabConfig, StaleHandle, Verdict
from tests.fault.crash_points import (
    Crash,
    at_access,
    count_accesses,
    count_stores,
    crash_after,
)

pytestmark = pytest.mark.interpreted

SLOTS = 3
CONFIG = SlabConfig((SizeClass(64, SLOTS),), participants=4)
TICKET = 7
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of files are made
T = TypeVar("T")


class Stage:
    """A slab of three slots, and the handles that were passed on: what a ring would remember."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="slab-crash-", dir=MEMORY))
        self.runtime = Runtime(self.directory / "node")
        self.present: dict[str, Slab] = {}
        self.committed: set[int] = set()

    def close(self) -> None:
        for slab in self.present.values():
            slab._seats.close()
        shutil.rmtree(self.directory)

    def join(self, name: str) -> Slab:
        self.present[name] = Slab.open(self.runtime, "bodies", who=name, config=CONFIG)
        return self.present[name]

    def kill(self, name: str) -> None:
        self.present.pop(name)._seats.close()

    def commit(self, maker: Slab, data: bytes = b"body", tag: int = 0) -> int:
        handle = maker.put(data, tag)
        assert handle is not None
        self.committed.add(handle)
        return handle

    def decide(self, body: Abandoned) -> Verdict:
        return Verdict.KEEP if body.handle in self.committed else Verdict.DISCARD

    def replace(self, name: str) -> Slab:
        """Start the successor of the killed, which puts things in order first."""
        self.kill(name)
        successor = self.join(name)
        successor.recover(self.decide)
        return successor

    def check_empty(self) -> None:
        """Insist that every slot is free, by its word, and can be had."""
        report = inspect_slab(self.runtime.place("slabs", "bodies")).classes[0]
        assert (report.free, report.owned, report.shared) == (SLOTS, 0, 0)
        slab = next(iter(self.present.values()))
        handles = [slab.allocate(1) for _ in range(SLOTS)]
        assert None not in handles
        assert len(set(handles)) == SLOTS
        assert slab.allocate(1) is None


@contextmanager
def staged() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


@contextmanager
def interrupted(access_number: int, turn: Callable[[], object], store_number: int) -> Iterator[None]:
    """Give another its turn at one access of the block, and end the block after one of its stores."""
    accesses = stores = 0

    def observe(what: str) -> None:
        nonlocal accesses, stores
        accesses += 1
        stores += what == "store"
        if accesses == access_number:
            atomics.observer = None
            turn()
            atomics.observer = observe
        if what == "store" and stores == store_number:
            atomics.observer = None
            raise Crash

    assert atomics.observer is None
    atomics.observer = observe
    try:
        yield
    except Crash:
        pass
    finally:
        atomics.observer = None


def every(count: int) -> range:
    """Return the numbers of all points; a test that has none shows nothing."""
    assert count > 0
    return range(1, count + 1)


def noting(results: list[T], operation: Callable[[], T]) -> Callable[[], None]:
    """Return a turn that keeps its result."""
    return lambda: results.append(operation())


def discard(_body: Abandoned) -> Verdict:
    return Verdict.DISCARD


# --- killed after every store ----------------------------------------------------------------------------


def test_killed_anywhere_in_allocating_and_sharing_leaves_nothing_behind() -> None:
    with staged() as stage:
        store_count = count_stores(partial(stage.join("maker").put, b"x" * 20, 1))
    for store_number in every(store_count):
        with staged() as stage:
            slab = stage.join("maker")
            with crash_after(store_number) as point:
                slab.put(b"x" * 20, 1)  # its handle is passed to nobody
            assert point.has_happened
            stage.replace("maker")
            stage.check_empty()


def test_killed_anywhere_in_a_batch_what_was_passed_on_is_kept_and_the_rest_is_freed() -> None:
    with staged() as stage:
        slab = stage.join("maker")
        store_count = count_stores(lambda: [stage.commit(slab, bytes([n])) for n in range(SLOTS)])
    for store_number in every(store_count):
        with staged() as stage:
            slab, user = stage.join("maker"), stage.join("user")
            with crash_after(store_number):
                for n in range(SLOTS):
                    stage.commit(slab, bytes([n]), tag=n)
            stage.replace("maker")
            assert sorted(user.read(handle)[0] for handle in stage.committed) == list(
                range(len(stage.committed))
            )
            for handle in stage.committed:
                assert user.relinquish(handle, limit=1)
            stage.check_empty()


def test_killed_anywhere_in_giving_back_loses_no_slot() -> None:
    with staged() as stage:
        slab = stage.join("maker")
        handle = slab.allocate(1)
        assert handle is not None
        store_count = count_stores(partial(slab.free, handle))
    for store_number in every(store_count):
        with staged() as stage:
            slab = stage.join("maker")
            handle = slab.allocate(1)
            assert handle is not None
            with crash_after(store_number):
                slab.free(handle)
            stage.replace("maker")
            stage.check_empty()


def _relinquish_stage(stage: Stage, before: int) -> tuple[int, list[Slab]]:
    """Set up a body with three users, of which `before` others have relinquished it already."""
    users = [stage.join(name) for name in ("u0", "u1", "u2")]
    handle = stage.commit(stage.join("maker"))
    for user in users[1 : 1 + before]:
        assert not user.relinquish(handle, ticket=1)
    return handle, users


def _relinquish_counts(before: int) -> tuple[int, int]:
    """Return how many stores, and how many accesses, the relinquishing makes that the tests stop."""

    def rehearsed(count: Callable[[Callable[[], object]], int]) -> int:
        with staged() as stage:
            handle, users = _relinquish_stage(stage, before)
            return count(lambda: users[0].relinquish(handle, limit=3, ticket=TICKET))

    return rehearsed(count_stores), rehearsed(count_accesses)


def _finish_relinquishing(stage: Stage, handle: int, others: list[Slab], is_recycled: bool) -> None:
    """Let the others finish, before or after the successor of u0 repeats what u0 was about to do."""
    done = sum(int(other.relinquish(handle, ticket=1)) for other in others)
    maker = stage.present["maker"]
    if is_recycled and (maker.recover(stage.decide).completed or done):
        # The slot is another message's by the time the successor comes, with a count of its own.
        maker.relinquish(stage.commit(maker, b"another"))
    successor = stage.replace("u0")
    was_done = successor.last_ticket == TICKET
    if not was_done:
        assert successor.read(handle) == b"body"  # nobody may free it before we had it
    done += successor.relinquish(handle, limit=3, ticket=TICKET)
    assert not successor.relinquish(handle, limit=3, ticket=TICKET)
    if not others and was_done:
        done = 1  # u0 was the last; freed by itself or by recovery
    assert done == 1
    with pytest.raises(StaleHandle):
        successor.read(handle)
    if is_recycled and len(stage.committed) > 1:
        (recycled,) = stage.committed - {handle}
        assert successor.read(recycled) == b"another"
        assert successor.relinquish(recycled, limit=2)
    stage.check_empty()


@pytest.mark.parametrize("is_recycled", [False, True])
@pytest.mark.parametrize("others_first", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_killed_anywhere_in_relinquishing_each_user_counts_exactly_once(
    before: int, others_first: bool, is_recycled: bool
) -> None:
    store_count, _ = _relinquish_counts(before)
    outcomes = set()
    for store_number in every(store_count):
        with staged() as stage:
            handle, users = _relinquish_stage(stage, before)
            with crash_after(store_number) as point:
                users[0].relinquish(handle, limit=3, ticket=TICKET)
            assert point.has_happened
            others = users[1 + before :]
            if others_first:
                _finish_relinquishing(stage, handle, others, is_recycled)
            else:
                successor = stage.replace("u0")
                outcomes.add(successor.last_ticket)
                done = int(successor.relinquish(handle, limit=3, ticket=TICKET))
                done += sum(other.relinquish(handle, ticket=1) for other in others)
                assert done == 1 or (not others and successor.last_ticket == TICKET)
                stage.check_empty()
    assert others_first or outcomes == {0, TICKET}  # both kinds of death were met


@pytest.mark.parametrize("before", [0, 1])
def test_interrupted_by_another_user_and_then_killed_each_user_counts_exactly_once(before: int) -> None:
    store_count, access_count = _relinquish_counts(before)
    # A turn in the middle costs the interrupted another round, so there are more stores than rehearsed.
    for access_number, store_number in itertools.product(every(access_count), range(1, store_count + 8)):
        with staged() as stage:
            handle, users = _relinquish_stage(stage, before)
            others = users[1 + before :]
            turns: list[bool] = []

            def turn(handle: int = handle, others: list[Slab] = others, turns: list[bool] = turns) -> None:
                turns.append(others[0].relinquish(handle, ticket=1))

            with interrupted(access_number, turn, store_number):
                users[0].relinquish(handle, limit=3, ticket=TICKET)
            others = others[len(turns) :]
            if any(turns):
                others = []
            successor_must_count = not any(turns)
            turns += [other.relinquish(handle, ticket=1) for other in others]
            successor = stage.replace("u0")
            is_done = successor.last_ticket == TICKET
            assert is_done or successor_must_count
            if not is_done:
                assert successor.read(handle) == b"body"
                assert successor.relinquish(handle, limit=3, ticket=TICKET)
            with pytest.raises(StaleHandle):
                successor.read(handle)
            stage.check_empty()


def test_killed_anywhere_in_a_batch_of_relinquishing_a_successor_repeats_all_of_it() -> None:
    def instructions(user: Slab, handles: list[int]) -> int:
        done = 0
        for ticket, handle in enumerate([*handles, *handles], start=1):
            done += user.relinquish(handle, limit=2, ticket=ticket)
        return done

    with staged() as stage:
        maker, user = stage.join("maker"), stage.join("user")
        handles = [stage.commit(maker) for _ in range(SLOTS)]
        store_count = count_stores(lambda: instructions(user, handles))
    for store_number in every(store_count):
        with staged() as stage:
            maker, user = stage.join("maker"), stage.join("user")
            handles = [stage.commit(maker) for _ in range(SLOTS)]
            with crash_after(store_number):
                instructions(user, handles)
            instructions(stage.replace("user"), handles)
            stage.check_empty()


def _left_by_two_dead(stage: Stage) -> tuple[Slab, int]:
    """Leave one owned body, one shared and passed on, one shared and kept to itself."""
    dead = stage.join("dead")
    assert dead.allocate(1) is not None
    kept = stage.commit(dead, b"kept")
    assert dead.put(b"secret") is not None
    stage.kill("dead")
    return stage.join("first"), kept


def test_killed_anywhere_in_recovering_the_next_one_finishes_it() -> None:
    with staged() as stage:
        slab, _ = _left_by_two_dead(stage)
        store_count = count_stores(lambda: slab.recover(stage.decide))
    for store_number in every(store_count):
        with staged() as stage:
            slab, kept = _left_by_two_dead(stage)
            with crash_after(store_number) as point:
                slab.recover(stage.decide)
            assert point.has_happened
            second = stage.join("second")
            assert second.recover(stage.decide).undecided == ()
            assert second.read(kept) == b"kept"
            assert second.relinquish(kept, limit=1)
            stage.check_empty()


def test_killed_anywhere_in_taking_a_seat_the_next_one_takes_it() -> None:
    def scenario(stage: Stage) -> int:
        """Leave the seat of somebody who was killed after a relinquish with a ticket."""
        maker, user = stage.join("maker"), stage.join("user")
        handle = stage.commit(maker)
        user.relinquish(handle, ticket=TICKET)
        user.put(b"undecided")
        stage.kill("user")
        return handle

    for newcomer, last_ticket in (("user", TICKET), ("other", 0)):
        with staged() as stage:
            scenario(stage)
            store_count = count_stores(partial(stage.join, newcomer))
        for store_number in every(store_count):
            with staged() as stage:
                handle = scenario(stage)
                with crash_after(store_number) as point:
                    stage.join(newcomer)
                assert point.has_happened
                slab = stage.join(newcomer)
                assert slab.last_ticket == last_ticket
                successor = slab if newcomer == "user" else stage.join("user")
                assert successor.last_ticket == TICKET
                recovery = successor.recover(stage.decide)
                assert (recovery.shared_freed, recovery.owned_freed) == (1, 0)
                assert successor.relinquish(handle, limit=2, ticket=TICKET + 1)
                stage.check_empty()


def test_killed_anywhere_in_leaving_nothing_leaks_and_what_was_shared_stays() -> None:
    def scenario(stage: Stage) -> tuple[Slab, int]:
        leaver = stage.join("leaver")
        assert leaver.allocate(1) is not None
        return leaver, stage.commit(leaver)

    with staged() as stage:
        leaver, _ = scenario(stage)
        store_count = count_stores(leaver.close)
    for store_number in every(store_count):
        with staged() as stage:
            leaver, handle = scenario(stage)
            with crash_after(store_number) as point:
                leaver.close()
            assert point.has_happened
            successor = stage.replace("leaver")
            assert successor.read(handle) == b"body"
            assert successor.relinquish(handle, limit=1)
            stage.check_empty()


# --- interrupted at every access -------------------------------------------------------------------------


def _interruptions(scenario: Callable[[Stage], Callable[[], object]]) -> range:
    """Return the numbers of all accesses that a scenario's action makes by itself."""
    with staged() as stage:
        return every(count_accesses(scenario(stage)))


def test_two_who_allocate_at_once_get_different_slots() -> None:
    for access_number in _interruptions(lambda stage: partial(stage.join("a").allocate, 1)):
        with staged() as stage:
            one, two = stage.join("a"), stage.join("b")
            handles: list[int | None] = []
            with at_access(access_number, noting(handles, partial(two.allocate, 1))):
                handles.append(one.allocate(1))
            assert len(set(handles)) == 2
            assert None not in handles
            stage.kill("a")
            two.recover(stage.decide)
            stage.kill("b")
            stage.join("c").recover(stage.decide)
            stage.check_empty()


def test_two_who_allocate_the_last_slot_do_not_both_get_it() -> None:
    def scenario(stage: Stage) -> Callable[[], object]:
        slab = stage.join("a")
        for _ in range(SLOTS - 1):
            assert slab.allocate(1) is not None
        return lambda: slab.allocate(1)

    for access_number in _interruptions(scenario):
        with staged() as stage:
            action = scenario(stage)
            two = stage.join("b")
            handles: list[object] = []
            with at_access(access_number, noting(handles, partial(two.allocate, 1))):
                handles.append(action())
            assert sum(handle is not None for handle in handles) == 1


@pytest.mark.parametrize("before", [0, 1])
def test_two_who_relinquish_at_once_are_both_counted_and_one_of_them_frees(before: int) -> None:
    _, access_count = _relinquish_counts(before)
    for access_number in every(access_count):
        with staged() as stage:
            handle, users = _relinquish_stage(stage, before)
            gone: list[bool] = []
            other = users[1 + before]
            with at_access(access_number, noting(gone, partial(other.relinquish, handle, ticket=1))):
                gone.append(users[0].relinquish(handle, limit=3, ticket=TICKET))
            if before == 0:
                assert not any(gone)
                gone.append(users[2].relinquish(handle, ticket=1))
            assert sum(gone) == 1
            assert users[0].last_ticket == TICKET
            stage.check_empty()


def test_a_recovery_in_the_middle_of_the_last_relinquish_frees_once_and_harms_no_new_message() -> None:
    _, access_count = _relinquish_counts(2)
    for access_number in every(access_count):
        with staged() as stage:
            handle, users = _relinquish_stage(stage, 2)

            def turn(stage: Stage = stage, other: Slab = users[1]) -> None:
                if other.recover(stage.decide).completed:  # and at once the slot is another message's
                    stage.commit(stage.present["maker"], b"another")

            with at_access(access_number, turn):
                assert users[0].relinquish(handle, limit=3, ticket=TICKET)
            for other in stage.committed - {handle}:
                assert users[1].read(other) == b"another"
                assert users[1].relinquish(other, limit=1)
            stage.check_empty()


def test_a_recovery_in_the_middle_of_anything_leaves_the_living_alone() -> None:
    def scenario(stage: Stage) -> Callable[[], object]:
        slab = stage.join("a")

        def action() -> None:
            handle = slab.allocate(4)
            assert handle is not None
            slab.body(handle)[:] = 7
            slab.share(handle)
            stage.committed.add(handle)
            other = slab.allocate(4)
            assert other is not None
            slab.free(other)

        return action

    for access_number in _interruptions(scenario):
        with staged() as stage:
            action, other = scenario(stage), stage.join("b")
            recoveries: list[Recovery] = []
            with at_access(access_number, noting(recoveries, partial(other.recover, discard))):
                action()
            assert recoveries == [Recovery(0, 0, 0, 0, ())]
            (handle,) = stage.committed
            assert other.read(handle) == bytes([7] * 4)
            assert other.relinquish(handle, limit=1)
            stage.check_empty()


def test_a_reader_overtaken_anywhere_sees_the_whole_body_or_a_stale_handle() -> None:
    old, new = bytes(range(48)), bytes(range(100, 148))

    def scenario(stage: Stage) -> tuple[int, Slab, Slab]:
        maker, reader = stage.join("maker"), stage.join("reader")
        handle = stage.commit(maker, old)
        for _ in range(SLOTS - 1):
            assert maker.allocate(1) is not None
        return handle, maker, reader

    with staged() as stage:
        handle, _, reader = scenario(stage)
        access_count = count_accesses(lambda: reader.read(handle))
    outcomes = set()
    for access_number in every(access_count):
        with staged() as stage:
            handle, maker, reader = scenario(stage)

            def turn(stage: Stage = stage, maker: Slab = maker, handle: int = handle) -> None:
                assert maker.relinquish(handle, limit=1)
                assert stage.commit(maker, new) != handle  # the only slot that is free

            with at_access(access_number, turn):
                try:
                    outcomes.add(reader.read(handle))
                except StaleHandle:
                    outcomes.add(b"stale")
    assert outcomes <= {old, b"stale"}
    assert b"stale" in outcomes


def test_two_recoveries_at_once_do_everything_once() -> None:
    with staged() as stage:
        slab, _ = _left_by_two_dead(stage)
        access_count = count_accesses(lambda: slab.recover(stage.decide))
    for access_number in every(access_count):
        with staged() as stage:
            one, kept = _left_by_two_dead(stage)
            two = stage.join("second")
            recoveries: list[Recovery] = []
            with at_access(access_number, noting(recoveries, partial(two.recover, stage.decide))):
                recoveries.append(one.recover(stage.decide))
            assert sum(each.owned_freed for each in recoveries) == 1
            assert sum(each.shared_freed for each in recoveries) == 1
            assert sum(each.kept for each in recoveries) == 1
            assert two.relinquish(kept, limit=1)
            stage.check_empty()


def test_the_owner_leaves_in_the_middle_of_the_last_relinquish() -> None:
    _, access_count = _relinquish_counts(2)
    for access_number in every(access_count):
        with staged() as stage:
            handle, users = _relinquish_stage(stage, 2)
            with at_access(access_number, stage.present["maker"].close):
                assert users[0].relinquish(handle, limit=3, ticket=TICKET)
            stage.present.pop("maker")
            stage.check_empty()
