"""The log, instruction by instruction: what a kill at any of them leaves, what a reader sees at any of them.

A kill is not tried at random here. A writer is stepped through a publication, and every distinct content of
the log on the way is what *some* kill would leave: a reader and a new writer must get on with each. Then
a reader is stepped, and at a chosen instruction the writer comes around.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from middleware.shm.log import LogReader, LogWriter, Start
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.log_layout import LOG_FILE, READERS_DIRECTORY
from middleware.shm.runtime import Runtime
from tests.fault import stepping
from tests.fault.killing import is_long, seeded
from tests.fault.log_ends import LOG_NAME
from tests.fault.stamped_frame_kernels import generation_runs, insist_right, stamped
from tests.fault.stepped_log import BATCH_FRAMES, READER_NAME, SLOT_COUNT
from tests.fault.stepping import Snapshot, Stepped, directory_states, memory_states

pytestmark = pytest.mark.skipif(not stepping.IS_SUPPORTED, reason=stepping.WHY_NOT)

MODULE = "tests.fault.stepped_log"
LOG_PATH = f"logs/{LOG_NAME}/{LOG_FILE}"
MARGIN = SLOT_COUNT // MARGIN_SHARE
LONG_S = 7_200.0
DUELS = 60  # in the normal form; in the long form one for each instruction
AFTERWARDS = 4  # frames that the next writer publishes

FRESH, LAPPED_MANY_TIMES = 10, 5 * SLOT_COUNT - 2


@pytest.fixture(scope="module")
def children() -> Iterator[list[Stepped]]:
    """At most one child, which test after test goes on with: starting it takes longer than most of them."""
    kept: list[Stepped] = []
    yield kept
    for child in kept:
        child.close()


@pytest.fixture
def child(children: list[Stepped], request: pytest.FixtureRequest) -> Iterator[Stepped]:
    if not children:
        children.append(Stepped(MODULE, life_s_max=LONG_S if is_long() else 250.0))
    failures = request.session.testsfailed
    yield children[0]
    if request.session.testsfailed != failures:
        children.pop().close()  # who knows where it is


def begin(child: Stepped, *command: object) -> None:
    """Tell the child what to do, and bring it to where it does it."""
    child.tell(" ".join(map(str, command)))
    child.run_to_pause()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def leave_log(node: Path, frame_count: int) -> int:
    """Have generation 1 publish and go; return the next number."""
    with LogWriter.open(Runtime(node), LOG_NAME, who="first", slot_count=SLOT_COUNT) as writer:
        for first in range(1, frame_count + 1, SLOT_COUNT):
            writer.publish(stamped(first, min(SLOT_COUNT, frame_count + 1 - first)))
        return writer.next_seq


class Aftermath:
    """Restores what a kill would leave, each in a directory of its own, and goes on from there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()

    def restored(self, state: Snapshot) -> Runtime:
        place = self._directory / f"aftermath-{next(self._numbers)}"
        state.restore(place)
        return Runtime(place)


def read_all(runtime: Runtime, generations: dict[int, int]) -> tuple[int, int]:
    """Return the oldest and the next number, after reading everything between as `generations` says.

    `generations` maps the first number of each writer to its generation.
    """
    with LogReader.open(runtime, LOG_NAME, who="survivor", start=Start.OLDEST) as reader:
        oldest, tail = reader.next_seq, reader.tail_seq
        while len(frames := reader.read(7)):
            first = reader.next_seq - len(frames)
            insist_right(frames, first)
            for run_first, last, generation in generation_runs(frames, first):
                begun = max(number for number in generations if number <= run_first)
                assert generation == generations[begun]
                assert all(number <= begun or number > last for number in generations)
        assert reader.next_seq == tail
        assert reader.take_missed() == []
    return oldest, tail


def continue_log(runtime: Runtime, generation: int) -> tuple[int, int]:
    """Have a new writer publish; return its first number, and the one after its last."""
    with LogWriter.open(runtime, LOG_NAME, who="successor") as writer:
        first = writer.next_seq
        writer.publish(stamped(first, AFTERWARDS, generation))
        return first, writer.next_seq


@pytest.mark.parametrize("before", [FRESH, LAPPED_MANY_TIMES], ids=["fresh", "lapped"])
@pytest.mark.parametrize("batch", [1, BATCH_FRAMES, MARGIN + 1], ids=["single", "batch", "two-claims"])
def test_a_kill_at_any_instruction_of_publish_leaves_whole_frames_and_a_log_that_goes_on(
    child: Stepped, node: Path, tmp_path: Path, before: int, batch: int
) -> None:
    next_seq = leave_log(node, before)
    aftermath = Aftermath(tmp_path)
    tails = []
    begin(child, "publish", node, batch)
    for state in memory_states(child, node, [LOG_PATH]):
        runtime = aftermath.restored(state)
        oldest, tail = read_all(runtime, {1: 1, next_seq: 2})
        assert oldest <= max(1, next_seq - SLOT_COUNT + MARGIN + batch)
        assert continue_log(runtime, generation=3) == (tail, tail + AFTERWARDS)
        assert read_all(runtime, {1: 1, next_seq: 2, tail: 3})[1] == tail + AFTERWARDS
        tails.append(tail)
    # In between, frames were half there; and they became visible in order, and all of them.
    assert len(tails) > batch + 2
    assert tails == sorted(tails)
    assert tails[0] == next_seq
    assert tails[-1] == next_seq + batch


@pytest.mark.parametrize("distance", [1, 3 * SLOT_COUNT + 5])
def test_a_kill_at_any_instruction_of_a_skip_leaves_a_log_that_goes_on(
    child: Stepped, node: Path, tmp_path: Path, distance: int
) -> None:
    next_seq = leave_log(node, LAPPED_MANY_TIMES)
    target = next_seq + distance
    aftermath = Aftermath(tmp_path)
    continued_at = []
    begin(child, "skip", node, target)
    for state in memory_states(child, node, [LOG_PATH]):
        runtime = aftermath.restored(state)
        with LogReader.open(runtime, LOG_NAME, who="behind", start=next_seq - 3) as behind:
            first, end = continue_log(runtime, generation=2)
            continued_at.append(first)
            given: list[int] = []
            missed: list[int] = []
            while len(frames := behind.read()):
                at = behind.next_seq - len(frames)
                insist_right(frames, at)
                given.extend(range(at, behind.next_seq))
            for gone in behind.take_missed():
                missed.extend(range(gone.first, gone.last + 1))
            assert sorted(given + missed) == list(range(next_seq - 3, end))
            # What the successor published was never in danger, so nothing of it may be missed.
            assert given[-AFTERWARDS:] == list(range(first, end))
    assert continued_at == sorted(continued_at)
    assert set(continued_at) == {next_seq, target}


def test_a_kill_at_any_system_call_of_making_a_log_leaves_one_that_can_be_made(
    child: Stepped, node: Path, tmp_path: Path
) -> None:
    node.mkdir(mode=0o700)
    aftermath = Aftermath(tmp_path)
    has_log = []
    begin(child, "open_writer", node)
    for state in directory_states(child, node):
        runtime = aftermath.restored(state)
        assert continue_log(runtime, generation=1) == (1, 1 + AFTERWARDS)
        assert read_all(runtime, {1: 1}) == (1, 1 + AFTERWARDS)
        assert not list(runtime.path.rglob(".new-*")), "half-made files are left"
        has_log.append(LOG_PATH in state.files)
    assert set(has_log) == {False, True}


def test_a_kill_at_any_system_call_of_taking_a_log_over_leaves_one_that_can_be_taken_over(
    child: Stepped, node: Path, tmp_path: Path
) -> None:
    next_seq = leave_log(node, LAPPED_MANY_TIMES)
    aftermath = Aftermath(tmp_path)
    begin(child, "open_writer", node)
    for state in directory_states(child, node):
        runtime = aftermath.restored(state)
        assert read_all(runtime, {1: 1})[1] == next_seq
        assert continue_log(runtime, generation=2) == (next_seq, next_seq + AFTERWARDS)


def test_a_kill_at_any_system_call_of_a_reader_leaves_its_name_free_and_the_writer_at_work(
    child: Stepped, node: Path, tmp_path: Path
) -> None:
    next_seq = leave_log(node, FRESH)
    aftermath = Aftermath(tmp_path)
    has_file = []
    begin(child, "open_reader", node)
    for state in directory_states(child, node):
        runtime = aftermath.restored(state)
        with LogReader.open(runtime, LOG_NAME, who=READER_NAME) as reader:
            assert continue_log(runtime, generation=2) == (next_seq, next_seq + AFTERWARDS)
            assert len(reader.read()) == FRESH + AFTERWARDS
        has_file.append(f"logs/{LOG_NAME}/{READERS_DIRECTORY}/{READER_NAME}" in state.files)
    assert set(has_file) == {False, True}


class Duel:
    """A stepped reader that has one batch to read, and the writer that overtakes it, again and again."""

    def __init__(self, writer: LogWriter, child: Stepped, how: str, slot: int) -> None:
        self._writer = writer
        self._child = child
        self._how = how
        self._slot = slot  # of the first frame of the batch

    def prepare(self) -> int:
        """Bring the reader to where it is about to read; return the first number of its batch."""
        self.publish(1)  # which the reader reads first of all, to learn of laps that it has not noticed
        # From the memory's beginning in one go, so that what is claimed is always the same from here on.
        self.publish(SLOT_COUNT - self._writer.next_seq % SLOT_COUNT)
        self.publish(self._slot + BATCH_FRAMES)
        self._child.tell("catch_up")
        begin(self._child, "read", self._how)
        return self._writer.next_seq - BATCH_FRAMES

    def publish(self, frame_count: int) -> None:
        self._writer.publish(stamped(self._writer.next_seq, frame_count))

    def outcome(self, *, is_at_end: bool = False) -> tuple[int, int, list[tuple[int, int]]]:
        """Return what the reader says of its batch: first number, how many, and what it missed."""
        if not is_at_end:
            self._child.run_to_pause()
        begin(self._child, "pause")
        first, frame_count, *missed = self._child.told_line().split()
        bounds = [gone.split("-") for gone in missed]
        return int(first), int(frame_count), [(int(begin), int(last)) for begin, last in bounds]


def kernel_lengths(child: Stepped) -> list[int]:
    """Step through one read; return of each kernel that it calls how many instructions it takes."""
    lengths = []
    while child.run_to_kernel():
        lengths.append(max(child.steps_of_kernel()))
    assert lengths, "the read did not come to a kernel"
    return lengths


def overtaking(randomness: Random) -> int:
    """Return how many frames the writer publishes at once: most often just so many as overwrite the first."""
    just_one = SLOT_COUNT - BATCH_FRAMES + 1
    others = [1, just_one - MARGIN - 1, just_one - 1, just_one + 1, SLOT_COUNT, 3 * SLOT_COUNT]
    return randomness.choice([*[just_one] * len(others), *others])


# One before a multiple of the margin: then the writer has used up its claim just when it has overwritten the
# first frame and no more, which is the closest that a reader can come to not noticing.
@pytest.mark.timeout(LONG_S if is_long() else 300)
@pytest.mark.parametrize("slot", [3 * MARGIN - 1, SLOT_COUNT - 1], ids=["inside", "across-the-end"])
@pytest.mark.parametrize("how", ["copy", "in_place", "handler"])
def test_a_reader_overtaken_at_any_instruction_is_never_given_a_torn_frame(
    child: Stepped, node: Path, how: str, slot: int
) -> None:
    leave_log(node, LAPPED_MANY_TIMES)
    given_count, lapped_count = 0, 0
    with seeded() as randomness, LogWriter.open(Runtime(node), LOG_NAME, who="second") as writer:
        duel = Duel(writer, child, how, slot)
        child.tell(f"join {node}")
        duel.prepare()
        places = [
            (call, step)
            for call, length in enumerate(kernel_lengths(child))
            for step in range(length + 1)  # 0 is before the first instruction
        ]
        duel.outcome(is_at_end=True)
        for call, step in places if is_long() else randomness.sample(places, k=DUELS):
            wanted = duel.prepare()
            for _ in range(call + 1):
                assert child.run_to_kernel()
            for _ in range(step):
                assert child.step(), "the read ended before the instruction"
            frame_count = overtaking(randomness)
            duel.publish(frame_count)
            first, given, missed = duel.outcome()
            if missed:
                # From what it wanted, without a hole, to what it was given or is given next.
                assert [wanted] == [gone[0] for gone in missed]
                assert missed[0][1] + 1 == first
                assert frame_count > SLOT_COUNT - BATCH_FRAMES - MARGIN, "it was not overtaken"
                lapped_count += 1
            else:
                assert first == wanted
                assert given == BATCH_FRAMES or (how == "in_place" and given == SLOT_COUNT - slot)
                given_count += 1
    assert given_count > 0
    assert lapped_count > 0
