"""The slab against a plain model: participants allocate, share, relinquish, leave, die and are replaced."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from feeds.errors import LimitError
from middleware.shm.errors import InUse, LayoutError
from middleware.shm.inspection.slabs import inspect_slab
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.runtime import Runtime
from middleware.shm.slab import (
    Abandoned,
    CompletionError,
    NotOwner,
    SizeClass,
    Slab,
    SlabConfig,
    StaleHandle,
    Verdict,
    handle_text,
)
from middleware.shm.slab_layout import PLAN_ROW_WORDS, PLAN_ROWS, ROW_BODIES_AT, plan_of

CONFIG = SlabConfig((SizeClass(64, 3), SizeClass(128, 2)), participants=3)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of files are made
NAMES = ("anna", "ben", "cleo")
SLOTS = [each.slot_count for each in CONFIG.classes]


@dataclass
class Body:
    """What the model knows of one handle; `owner` is a name and how often it had been started."""

    owner: tuple[str, int] | None
    tag: int
    data: bytes
    size_class: int
    is_shared: bool = False
    is_committed: bool = False
    count: int = 0
    limit: int | None = None


@dataclass
class Member:
    starts: int = 0
    slab: Slab | None = None
    last_ticket: int = 0
    ticket_next: int = 1


@dataclass
class Model:
    bodies: dict[int, Body] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=lambda: {name: Member() for name in NAMES})

    def used(self, size_class: int) -> int:
        return sum(body.size_class == size_class for body in self.bodies.values())

    def class_for(self, byte_count: int) -> int | None:
        for which, each in enumerate(CONFIG.classes):
            if byte_count <= each.slot_bytes and self.used(which) < each.slot_count:
                return which
        return None

    def is_alive(self, owner: tuple[str, int]) -> bool:
        name, start = owner
        member = self.members[name]
        return member.slab is not None and member.starts == start


class SlabMachine(RuleBasedStateMachine):
    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="slab-", dir=MEMORY))
        self.runtime = Runtime(self.directory / "node")
        self.model = Model()

    def teardown(self) -> None:
        for member in self.model.members.values():
            if member.slab is not None:
                member.slab.close()
        shutil.rmtree(self.directory)

    def living(self, name: str) -> tuple[Slab, Member]:
        """Return a participant, started if it was not there."""
        member = self.model.members[name]
        if member.slab is None:
            member.slab = Slab.open(self.runtime, "bodies", who=name, config=CONFIG)
            member.starts += 1
            assert member.slab.last_ticket == member.last_ticket
            member.ticket_next = member.last_ticket + 1
        return member.slab, member

    @initialize()
    def start(self) -> None:
        self.living("anna")

    @rule(target=handles, name=st.sampled_from(NAMES), data=st.binary(max_size=128), tag=st.integers(0, 99))
    def allocate(self, name: str, data: bytes, tag: int) -> object:
        slab, member = self.living(name)
        expected_class = self.model.class_for(len(data))
        handle = slab.allocate(len(data), tag)
        if expected_class is None:
            assert handle is None
            return multiple()
        assert handle is not None
        assert handle not in self.model.bodies
        assert int(handle_text(handle)[0]) == expected_class
        slab.body(handle)[:] = list(data)
        self.model.bodies[handle] = Body((name, member.starts), tag, data, expected_class)
        return handle

    @rule(name=st.sampled_from(NAMES), handle=handles, is_committed=st.booleans())
    def share(self, name: str, handle: int, is_committed: bool) -> None:
        slab, member = self.living(name)
        body = self.model.bodies.get(handle)
        if body is None or body.is_shared:
            with pytest.raises(StaleHandle):
                slab.share(handle)
        elif body.owner != (name, member.starts):
            with pytest.raises(NotOwner):
                slab.share(handle)
        else:
            slab.share(handle)
            body.is_shared, body.is_committed = True, is_committed

    @rule(name=st.sampled_from(NAMES), handle=handles)
    def free(self, name: str, handle: int) -> None:
        slab, member = self.living(name)
        body = self.model.bodies.get(handle)
        if body is None:
            with pytest.raises(StaleHandle):
                slab.free(handle)
        elif body.is_shared or body.owner != (name, member.starts):
            with pytest.raises(NotOwner):
                slab.free(handle)
        else:
            slab.free(handle)
            del self.model.bodies[handle]

    @rule(
        name=st.sampled_from(NAMES),
        handle=handles,
        limit=st.none() | st.integers(1, 4),
        ticket_step=st.none() | st.integers(-1, 2),
    )
    def relinquish(self, name: str, handle: int, limit: int | None, ticket_step: int | None) -> None:
        slab, member = self.living(name)
        ticket = 0 if ticket_step is None else max(member.ticket_next + ticket_step, 1)
        body = self.model.bodies.get(handle)
        if 0 < ticket <= member.last_ticket:
            assert not slab.relinquish(handle, limit=limit, ticket=ticket)
            return
        if body is None or not body.is_shared:
            with pytest.raises(StaleHandle):
                slab.relinquish(handle, limit=limit, ticket=ticket)
            return
        wanted = limit or body.limit
        is_conflict = limit is not None and body.limit not in (None, limit)
        if is_conflict or (wanted is not None and body.count >= wanted):
            with pytest.raises(CompletionError):
                slab.relinquish(handle, limit=limit, ticket=ticket)
            return
        is_gone = slab.relinquish(handle, limit=limit, ticket=ticket)
        body.count, body.limit = body.count + 1, wanted
        body.is_committed = True  # somebody had it, so it was passed on
        if ticket:
            member.last_ticket, member.ticket_next = ticket, ticket + 1
        assert is_gone == (body.count == body.limit)
        if is_gone:
            del self.model.bodies[handle]

    @rule(name=st.sampled_from(NAMES), handle=consumes(handles))
    def forget_handle(self, name: str, handle: int) -> None:
        """A handle that nobody uses any more; its body stays where it is."""

    @rule(name=st.sampled_from(NAMES))
    def kill(self, name: str) -> None:
        slab, member = self.living(name)
        slab._seats.close()  # the kernel does no more for the dead
        member.slab = None

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        slab, member = self.living(name)
        slab.close()
        for handle, body in list(self.model.bodies.items()):
            if body.owner == (name, member.starts):
                if body.is_shared:
                    body.owner = None
                else:
                    del self.model.bodies[handle]
        member.slab = None
        member.last_ticket = 0  # tickets are for successors of the killed

    @precondition(lambda self: self.model.members["ben"].slab is not None)
    @rule()
    def open_twice(self) -> None:
        with pytest.raises(InUse, match="ben"):
            Slab.open(self.runtime, "bodies", who="ben")

    @rule(name=st.sampled_from(NAMES), decides=st.sets(st.sampled_from(NAMES)))
    def recover(self, name: str, decides: set[str]) -> None:
        slab, _ = self.living(name)
        asked: dict[int, Abandoned] = {}

        def decide(abandoned: Abandoned) -> Verdict:
            asked[abandoned.handle] = abandoned
            body = self.model.bodies[abandoned.handle]
            assert body.owner is not None
            if body.owner[0] not in decides:
                return Verdict.UNDECIDED
            return Verdict.KEEP if body.is_committed else Verdict.DISCARD

        recovery = slab.recover(decide)
        owned_freed = shared_freed = kept = 0
        for handle, body in list(self.model.bodies.items()):
            if body.owner is None or self.model.is_alive(body.owner):
                continue
            if not body.is_shared:
                del self.model.bodies[handle]
                owned_freed += 1
                continue
            abandoned = asked.pop(handle)
            assert (abandoned.tag, abandoned.byte_count) == (body.tag, len(body.data))
            assert (abandoned.relinquished, abandoned.owner) == (body.count, body.owner[0])
            if body.owner[0] not in decides:
                assert abandoned in recovery.undecided
            elif body.is_committed:
                body.owner = None
                kept += 1
            else:
                del self.model.bodies[handle]
                shared_freed += 1
        assert not asked
        assert recovery.completed == 0
        assert (recovery.owned_freed, recovery.shared_freed, recovery.kept) == (
            owned_freed,
            shared_freed,
            kept,
        )

    @invariant()
    def every_body_is_what_was_written(self) -> None:
        slab = next((member.slab for member in self.model.members.values() if member.slab), None)
        if slab is None:
            return
        for handle, body in self.model.bodies.items():
            if body.is_shared:
                assert slab.read(handle) == body.data

    @invariant()
    def the_report_agrees(self) -> None:
        if not any(member.starts for member in self.model.members.values()):
            return
        for which, report in enumerate(inspect_slab(self.runtime.place("slabs", "bodies")).classes):
            assert report.free == SLOTS[which] - self.model.used(which)


TestSlabMachine = pytest.mark.kernels(SlabMachine.TestCase)
TestSlabMachine.settings = settings(stateful_step_count=40)


# --- damage ----------------------------------------------------------------------------------------------


def _control_words() -> list[int]:
    """Return where everything is that is not header or body."""
    plan, body_bytes = plan_of(CONFIG)
    is_body = np.zeros((HEADER_BYTES + body_bytes) // 8, dtype=np.bool_)
    is_body[: HEADER_BYTES // 8] = True
    for which, each in enumerate(CONFIG.classes):
        begin = int(plan[PLAN_ROWS + which * PLAN_ROW_WORDS + ROW_BODIES_AT])
        is_body[begin : begin + each.slot_count * each.slot_bytes // 8] = True
    return np.flatnonzero(~is_body).tolist()


def _leave_some_work(runtime: Runtime) -> list[int]:
    """Leave bodies in every state, by somebody who was killed."""
    slab = Slab.open(runtime, "bodies", who="anna", config=CONFIG)
    handles = [slab.put(b"one"), slab.put(b"two"), slab.allocate(3)]
    assert handles[0] is not None
    slab.relinquish(handles[0], limit=3, ticket=4)
    slab._seats.close()
    return [handle for handle in handles if handle is not None]


@pytest.mark.kernels
@given(
    damage=st.lists(
        st.tuples(
            st.sampled_from(_control_words()),
            st.integers(0, 64) | st.integers(-(1 << 62), 1 << 62) | st.integers(0, 61).map(lambda n: 1 << n),
        ),
        min_size=1,
        max_size=12,
    ),
    is_running=st.booleans(),
)
def test_a_damaged_slab_is_refused_or_gets_on_but_never_crashes_or_hangs(
    damage: list[tuple[int, int]], is_running: bool
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="slab-", dir=MEMORY))
    runtime = Runtime(directory / "node")
    try:
        handles = _leave_some_work(runtime)
        opened = Slab.open(runtime, "bodies", who="ben") if is_running else None
        words = np.memmap(runtime.place("slabs", "bodies") / "slab", dtype=np.int64, mode="r+")
        for word, value in damage:
            words[word] = value
        for who in ("anna", "ben"):
            if who == "anna" or opened is None:
                try:
                    slab = Slab.open(runtime, "bodies", who=who)
                except (LayoutError, LimitError):
                    continue
            else:
                slab = opened
            _use_everything(slab, handles)
            with suppress(LayoutError):
                inspect_slab(runtime.place("slabs", "bodies"))
            slab.close()
    finally:
        shutil.rmtree(directory)


def _use_everything(slab: Slab, handles: list[int]) -> None:
    """Do all that can be done; what is refused is refused, and what is accepted must be right."""
    with suppress(LayoutError):
        slab.recover(lambda _body: Verdict.DISCARD)
    for handle in handles:
        for operation in (slab.read, slab.view, slab.free, slab.share, slab.relinquish):
            with suppress(StaleHandle, NotOwner, CompletionError, LayoutError):
                operation(handle)
    for number in range(2 * sum(SLOTS)):
        content = bytes([number]) * (1 + number)
        new = slab.put(content)
        if new is None:
            break
        assert slab.read(new) == content
        with suppress(CompletionError):
            slab.relinquish(new, limit=1, ticket=slab.last_ticket + 1)
