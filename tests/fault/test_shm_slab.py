"""A slab's users are killed at random moments in real processes: nothing leaks, nothing is freed twice.

Normally some dozens of kills; TWINTAPE_LONG=1 makes it more than a thousand of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from middleware.shm.inspection.rings import inspect_ring
from middleware.shm.inspection.slabs import ClassReport, inspect_slab
from middleware.shm.ring import RingProducer
from middleware.shm.runtime import Runtime
from middleware.shm.slab import Slab, StaleHandle, Verdict
from tests.fault import stepping
from tests.fault.killing import Child, Nursery, is_long, seeded, wait_until
from tests.fault.slab_users import (
    CONFIG,
    MANAGERS,
    SLAB,
    STEPPED_TICKET,
    STOP_FILE,
    last_serial,
    make_rings,
    ring_names,
    settle,
)
from tests.fault.stepping import Stepped, memory_states

KILLS = 1_200 if is_long() else 30
CHURNERS = 3
LIFE_S_MAX = 0.03  # a birth takes some 10 ms, and half as much again is some thousands of bodies
DRAIN_S_MAX = 60.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.slab_users") as process:
        yield process


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


def class_reports(runtime: Runtime) -> tuple[ClassReport, ...]:
    """Look at the slab from outside."""
    return inspect_slab(runtime.place("slabs", SLAB)).classes


def insist_empty(runtime: Runtime) -> None:
    """Every slot is free by its word, and every one can be had."""
    for report in class_reports(runtime):
        assert (report.free, report.owned, report.shared) == (report.slot_count, 0, 0)
    with Slab.open(runtime, SLAB, who="auditor") as auditor:
        slot_count = sum(each.slot_count for each in CONFIG.classes)
        handles = {auditor.allocate(1) for _ in range(slot_count)}
        assert None not in handles
        assert len(handles) == slot_count
        assert auditor.allocate(1) is None


def test_users_at_full_speed_killed_at_any_moment_leak_nothing_and_see_no_foreign_bytes(
    runtime: Runtime, nursery: Nursery
) -> None:
    Slab.open(runtime, SLAB, who="maker", config=CONFIG).close()
    with seeded() as randomness:
        users: dict[str, Child] = {}
        claimed_before = working_kills = 0
        for _ in range(KILLS):
            for number in range(CHURNERS):
                name = f"churner-{number}"
                if name not in users:
                    seed = str(randomness.getrandbits(32))
                    users[name] = nursery.start("churner", str(runtime.path), name, seed)
            time.sleep(randomness.uniform(0, LIFE_S_MAX))
            claimed = sum(report.claimed for report in class_reports(runtime))
            working_kills += claimed > claimed_before
            claimed_before = claimed
            victim = randomness.choice(sorted(users))
            assert users.pop(victim).kill() == -9, nursery.errors()
        for child in users.values():
            assert child.kill() == -9, nursery.errors()
        assert working_kills > KILLS // 4, "most were killed before they did anything, which shows little"
        with Slab.open(runtime, SLAB, who="auditor") as auditor:
            auditor.recover(lambda _body: Verdict.DISCARD)
        insist_empty(runtime)


def test_managers_and_router_killed_at_any_moment_deliver_every_body_to_every_manager(
    runtime: Runtime, nursery: Nursery
) -> None:
    """A count too many frees a body before its last reader has come; a count too few leaves it there."""
    Slab.open(runtime, SLAB, who="maker", config=CONFIG).close()
    make_rings(runtime)

    def start(role: str, seed: int) -> Child:
        kind, _, number = role.partition("-")
        arguments = (number, str(seed)) if kind == "manager" else ("router",)
        return nursery.start(kind, str(runtime.path), *arguments)

    roles = [*(f"manager-{number}" for number in range(MANAGERS)), "router"]
    with seeded() as randomness:
        running = {role: start(role, randomness.getrandbits(32)) for role in roles}
        for _ in range(KILLS):
            time.sleep(randomness.uniform(0, LIFE_S_MAX))
            victims = randomness.sample(roles, randomness.choice((1, 1, 1, 2, len(roles))))
            for victim in victims:
                assert running[victim].kill() == -9, nursery.errors()
            for victim in victims:
                running[victim] = start(victim, randomness.getrandbits(32))
        (runtime.path / STOP_FILE).touch()
        up_names, down_names = zip(*(ring_names(number) for number in range(MANAGERS)), strict=True)

        def is_drained() -> bool:
            return all(
                inspect_ring(runtime.place("rings", name)).fill_bytes == 0
                for name in (*up_names, *down_names)
            )

        def are_bodies_gone() -> bool:
            return is_drained() and all(
                report.owned + report.shared == 0 for report in class_reports(runtime)
            )

        wait_until(are_bodies_gone, "every body was relinquished by everybody", DRAIN_S_MAX)
        for child in running.values():
            assert child.kill() == -9, nursery.errors()
        serials = []
        for number in range(MANAGERS):
            with RingProducer.open(runtime, ring_names(number)[0], who="auditor") as up:
                serials.append(last_serial(up))
        assert min(serials) > KILLS, f"managers sent {serials} messages, which shows little"
        insist_empty(runtime)


# ---- every instruction

needs_stepping = pytest.mark.skipif(not stepping.IS_SUPPORTED, reason=stepping.WHY_NOT)
SLAB_PATH = f"slabs/{SLAB}/slab"


@needs_stepping
@pytest.mark.parametrize("others_before", [0, 1])
def test_relinquishing_killed_at_any_instruction_counts_exactly_once(
    runtime: Runtime, tmp_path: Path, others_before: int
) -> None:
    outcomes = set()
    with Slab.open(runtime, SLAB, who="maker", config=CONFIG) as maker:
        handle = maker.put(b"body", tag=1)
        assert handle is not None
        for _ in range(others_before):
            maker.relinquish(handle, ticket=1)
        arguments = ("relinquish", str(runtime.path), str(handle), "2")
        with Stepped("tests.fault.slab_users", *arguments) as child:
            for index, state in enumerate(memory_states(child, runtime.path, [SLAB_PATH])):
                copy = Runtime(tmp_path / f"state-{index}")
                state.restore(copy.path)
                with Slab.open(copy, SLAB, who="stepped") as successor:
                    successor.recover(lambda _body: Verdict.KEEP)
                    was_done = successor.last_ticket == STEPPED_TICKET
                    outcomes.add(was_done)
                    is_gone = successor.relinquish(handle, limit=2, ticket=STEPPED_TICKET)
                    if not others_before:
                        assert not is_gone
                        assert successor.read(handle) == b"body"
                        assert successor.relinquish(handle, limit=2)
                    else:
                        assert is_gone != was_done
                    with pytest.raises(StaleHandle):
                        successor.read(handle)
                insist_empty(copy)
    assert outcomes == {False, True}


@needs_stepping
def test_allocating_and_sharing_killed_at_any_instruction_leaves_nothing_behind(
    runtime: Runtime, tmp_path: Path
) -> None:
    Slab.open(runtime, SLAB, who="maker", config=CONFIG).close()
    state_count = 0
    with Stepped("tests.fault.slab_users", "put", str(runtime.path)) as child:
        for index, state in enumerate(memory_states(child, runtime.path, [SLAB_PATH])):
            state_count += 1
            copy = Runtime(tmp_path / f"state-{index}")
            state.restore(copy.path)
            with Slab.open(copy, SLAB, who="stepped") as successor:
                settle(successor, "stepped", committed_serial=0)
            insist_empty(copy)
    assert state_count > 5
