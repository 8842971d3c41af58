"""The log between any two accesses to shared memory, in the interpreted twin of its kernels.

A writer is stopped after every single store; readers take a turn at every access of the writer, and the
writer takes one at every access of a reader. What compiled kernels do at every instruction is in tests/fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import wire
from feeds.wire import FrameArray
from middleware.shm.atomics import copy_words
from middleware.shm.log import Lapped, LogReader, LogWriter, Start
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.log_layout import SLOT_COUNT_MIN
from middleware.shm.runtime import Runtime
from tests.fault.crash_points import (
    at_access,
    at_every_access,
    count_accesses,
    crash_after,
    every_crash_point,
)
from tests.fault.stamped_frame_kernels import generation_runs, insist_right, stamped

pytestmark = pytest.mark.interpreted

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
MARGIN = SLOTS // MARGIN_SHARE
FRESH, LAPPED_MANY_TIMES = 3, 2 * SLOTS - 2


class Logs:
    """Makes one log after another, each in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()

    def new(self, frame_count: int) -> LogWriter:
        """Return the writer of a new log, in which generation 1 has published this many frames."""
        template = self._directory / f"template-{frame_count}"
        if not template.exists():  # publishing takes its time here, copying a file does not
            with LogWriter.open(Runtime(template), NAME, who="first", slot_count=SLOTS) as first:
                first.publish(stamped(1, frame_count))
        self.runtime = Runtime(self._directory / f"node-{next(self._numbers)}")
        shutil.copytree(template, self.runtime.path)
        writer = LogWriter.open(self.runtime, NAME, who="first")
        # Nobody gates here, and what is counted must not depend on the time.
        writer._gates._look_at_ns = 1 << 62
        return writer

    def successor(self) -> LogWriter:
        return LogWriter.open(self.runtime, NAME, who="second")

    def reader(self, start: Start | int = Start.OLDEST, who: str = "reader") -> LogReader:
        return LogReader.open(self.runtime, NAME, who=who, start=start)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def die(writer: LogWriter) -> None:
    writer._seats.forget()  # what the kernel does for the dead: the lock goes, everything else stays


def read_all(reader: LogReader, generations: dict[int, int]) -> Iterator[int]:
    """Yield the numbers of all frames there are, each checked to be whole and of the right writer."""
    while len(frames := reader.read()):
        first = reader.next_seq - len(frames)
        insist_right(frames, first)
        for begin, last, generation in generation_runs(frames, first):
            begun = max(number for number in generations if number <= begin)
            assert generation == generations[begun]
            assert not any(begun < number <= last for number in generations)
        yield from range(first, reader.next_seq)


# --- a writer stopped after any store ---


@pytest.mark.parametrize("before", [FRESH, LAPPED_MANY_TIMES], ids=["fresh", "lapped"])
@pytest.mark.parametrize("batch", [1, 5, MARGIN + 1], ids=["single", "batch", "two-claims"])
def test_a_crash_after_any_store_of_publish_leaves_whole_frames_and_a_log_that_goes_on(
    logs: Logs, before: int, batch: int
) -> None:
    frames = stamped(before + 1, batch, generation=2)
    tails = []
    probe = logs.new(before)
    for store_number in every_crash_point(lambda: probe.publish(frames)):
        writer = logs.new(before)
        with crash_after(store_number) as point:
            writer.publish(frames)
        assert point.has_happened
        die(writer)
        with logs.reader() as follower:
            tail = follower.tail_seq
            seen = list(read_all(follower, {1: 1, before + 1: 2}))
            assert seen == list(range(seen[0], tail))
            with logs.successor() as successor:
                assert successor.next_seq == tail
                successor.publish(stamped(tail, 3, generation=3))
            later = {1: 1, before + 1: 2, tail: 3}
            assert list(read_all(follower, later)) == [tail, tail + 1, tail + 2]
            assert follower.take_missed() == []
        with logs.reader() as newcomer:
            everything = list(read_all(newcomer, later))
            assert everything == list(range(everything[0], tail + 3))
            assert newcomer.take_missed() == []
        tails.append(tail)
    assert len(tails) > batch * wire.FRAME_WORDS  # every word of every frame was a point to crash at
    assert tails == sorted(tails)
    assert tails[0] == before + 1
    assert tails[-1] == before + 1 + batch


@pytest.mark.parametrize("distance", [1, MARGIN + 1, 3 * SLOTS])
def test_a_crash_after_any_store_of_a_skip_leaves_a_log_that_goes_on(logs: Logs, distance: int) -> None:
    target = LAPPED_MANY_TIMES + 1 + distance
    crash_points = 0
    probe = logs.new(LAPPED_MANY_TIMES)
    for store_number in every_crash_point(lambda: probe.skip_to(target)):
        writer = logs.new(LAPPED_MANY_TIMES)
        with logs.reader(start=LAPPED_MANY_TIMES - 2) as follower:
            with crash_after(store_number):
                writer.skip_to(target)
            die(writer)
            seen = list(read_all(follower, {1: 1}))
            with logs.successor() as successor:
                assert successor.next_seq == target  # the first store says where to, and any one completes it
                successor.publish(stamped(target, 3, generation=2))
            seen += list(read_all(follower, {1: 1, target: 2}))
            missed = [n for gone in follower.take_missed() for n in range(gone.first, gone.last + 1)]
            assert sorted(seen + missed) == list(range(LAPPED_MANY_TIMES - 2, target + 3))
            assert seen[-3:] == [target, target + 1, target + 2]
        crash_points += 1
    assert crash_points >= 2


@given(
    batches=st.lists(st.integers(1, 2 * MARGIN), min_size=1, max_size=6),
    crashes=st.lists(st.integers(1, 600), min_size=1, max_size=4),
)
def test_writers_that_crash_one_after_the_other_lose_nothing_that_was_visible(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], crashes: list[int]
) -> None:
    logs = Logs(tmp_path_factory.mktemp("crashes"))
    writer = logs.new(0)
    starts = {1: 1}
    seen: list[int] = []
    with logs.reader() as follower:
        for generation, store_number in enumerate(crashes, start=1):
            with crash_after(store_number):
                for batch in batches:
                    writer.publish(stamped(writer.next_seq, batch, generation))
            die(writer)
            seen += read_all(follower, starts)
            writer = logs.successor()
            starts[writer.next_seq] = generation + 1
            assert follower.next_seq == writer.next_seq
        missed = [n for gone in follower.take_missed() for n in range(gone.first, gone.last + 1)]
        assert sorted(seen + missed) == list(range(1, writer.next_seq))
    writer.close()


# --- readers at every access of the writer ---


@pytest.mark.parametrize("before", [FRESH, LAPPED_MANY_TIMES], ids=["fresh", "lapped"])
def test_readers_that_look_at_every_access_of_the_writer_see_whole_frames_only(
    logs: Logs, before: int
) -> None:
    writer = logs.new(before)
    starts = {1: 1, before + 1: 2}
    with (
        logs.reader(Start.NEXT, "caught-up") as caught_up,
        logs.reader(Start.OLDEST, "oldest") as oldest,
        logs.reader(Start.NEWEST, "slow") as slow,
    ):
        seen: dict[str, list[int]] = {"caught-up": [], "oldest": [], "slow": []}
        turns = 0

        def look() -> None:
            nonlocal turns
            turns += 1
            seen["caught-up"] += read_all(caught_up, starts)
            if turns % 7 == 0:  # one frame now and then, so that it is always about to be lapped
                frames = oldest.read(1)
                insist_right(frames, oldest.next_seq - len(frames))
                seen["oldest"] += range(oldest.next_seq - len(frames), oldest.next_seq)
            if turns % 400 == 0:
                frames = slow.read(3)
                insist_right(frames, slow.next_seq - len(frames))
                seen["slow"] += range(slow.next_seq - len(frames), slow.next_seq)
            if turns % 25 == 0:
                assert newest_of(logs) < writer.next_seq

        batch = SLOTS + MARGIN + 3
        oldest_first, slow_first = oldest.next_seq, slow.next_seq
        with at_every_access(look):
            writer.publish(stamped(before + 1, batch, generation=2))
        assert turns > 2 * batch * wire.FRAME_WORDS
        assert seen["caught-up"] == list(range(before + 1, before + 1 + batch))
        assert caught_up.take_missed() == []
        for reader, name, first in ((oldest, "oldest", oldest_first), (slow, "slow", slow_first)):
            missed = [n for gone in reader.take_missed() for n in range(gone.first, gone.last + 1)]
            assert sorted(seen[name] + missed) == list(range(first, reader.next_seq))


def newest_of(logs: Logs) -> int:
    """Join the log at its newest frame, as somebody may at any time, and return that frame's number."""
    with logs.reader(Start.NEWEST, "newcomer") as newcomer:
        frames = newcomer.read(1)
        assert len(frames) == 1
        insist_right(frames, newcomer.next_seq - 1)
        return newcomer.next_seq - 1


# --- the writer at every access of a reader ---

BATCH = 5
NEAR = SLOTS - BATCH
OVERTAKING = [1, NEAR - MARGIN, NEAR + 1, 2 * SLOTS + 1]


def by_copy(reader: LogReader) -> FrameArray:
    return reader.read(BATCH)


def in_place(reader: LogReader) -> FrameArray:
    try:
        with reader.view(BATCH) as frames:
            copied = wire.empty(len(frames))
            copy_words(wire.words(copied), 0, wire.words(frames), 0, len(frames) * wire.FRAME_WORDS)
    except Lapped:
        return wire.empty(0)
    return copied


@pytest.mark.parametrize("publish_count", OVERTAKING)
@pytest.mark.parametrize("way", [by_copy, in_place])
# One before a multiple of the margin: then the writer has used up its claim just when it has overwritten the
# first frame and no more, which is the closest that a reader can come to not noticing.
@pytest.mark.parametrize("slot", [3 * MARGIN - 1, SLOTS - 1], ids=["inside", "across-the-end"])
def test_a_reader_overtaken_at_any_access_is_never_given_a_torn_frame(
    logs: Logs, slot: int, way: Callable[[LogReader], FrameArray], publish_count: int
) -> None:
    frames_before = SLOTS + slot + BATCH - 1
    first = frames_before + 1 - BATCH
    logs.new(frames_before).close()
    with logs.reader(first) as reader:
        access_count = count_accesses(lambda: way(reader))
    outcomes = set()
    for access_number in range(1, access_count + 1):
        writer = logs.new(frames_before)
        with logs.reader(first) as reader:
            with at_access(
                access_number,
                lambda: writer.publish(stamped(frames_before + 1, publish_count)),  # noqa: B023
            ):
                frames = way(reader)
            given = len(frames)
            insist_right(frames, reader.next_seq - given)
            missed = reader.take_missed()
            if missed:
                assert [gone.first for gone in missed] == [first]
                assert missed[0].last + 1 == reader.next_seq - given
                assert publish_count > NEAR - MARGIN, "it was not overtaken"
            else:
                assert reader.next_seq - given == first
                assert given == (min(BATCH, SLOTS - slot) if way is in_place else BATCH)
            outcomes.add(bool(missed))
        writer.close()
    assert False in outcomes
    assert (True in outcomes) == (publish_count > NEAR - MARGIN)
