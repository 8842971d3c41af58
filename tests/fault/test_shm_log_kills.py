"""A log's writer is killed at random moments in real processes, and replaced: no frame is lost or half seen.

Normally some dozens of kills; TWINTAPE_LONG=1 makes it more than a thousand.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from middleware.shm.errors import InUse, NotFound
from middleware.shm.log import LogReader, LogWriter, Start
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.runtime import Runtime
from tests.fault.killing import Child, Nursery, is_long, seeded, wait_until
from tests.fault.log_ends import LOG_NAME, end_reading, read_starts
from tests.fault.log_journal import insist_complete, insist_writers, read_journal
from tests.fault.stamped_frame_kernels import generation_runs, insist_right, stamped

KILLS = 2_000 if is_long() else 60
SLOT_COUNT = 1 << 12
BIRTH_S_MAX = 0.012  # about what a child needs to open the log: it dies somewhere on the way
WORK_S_MAX = 0.004  # ten thousands of frames


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.log_ends") as process:
        yield process


def start_writer(nursery: Nursery, path: Path, starts: Path, generation: int, seed: int) -> Child:
    return nursery.start("writer", str(path), str(starts), str(generation), str(seed), str(SLOT_COUNT))


def insist_readable(runtime: Runtime, starts: list[tuple[int, int]]) -> None:
    """Read all that a dead writer left, as who joins now would; it must be whole and without a gap."""
    try:
        reader = LogReader.open(runtime, LOG_NAME, who="inspector", start=Start.OLDEST)
    except NotFound:
        assert not starts, "a writer published, and there is no log"
        return
    with reader:
        oldest, tail = reader.next_seq, reader.tail_seq
        if tail > SLOT_COUNT:
            assert tail - oldest >= SLOT_COUNT - SLOT_COUNT // MARGIN_SHARE
        while len(frames := reader.read()):
            first = reader.next_seq - len(frames)
            insist_right(frames, first)
            for begin, last, generation in generation_runs(frames, first):
                begun = [turn for turn in starts if turn[0] <= begin]
                assert begun, f"frame {begin} is there before any writer began"
                assert generation == begun[-1][1]
                assert all(turn[0] > last for turn in starts if turn[1] > generation)
        assert reader.next_seq == tail
        assert reader.take_missed() == []


@pytest.mark.timeout(120 + KILLS)
def test_a_killed_writer_loses_nothing_and_leaves_nothing_unfinished(
    nursery: Nursery, tmp_path: Path
) -> None:
    path, starts, journal, end = (tmp_path / name for name in ("node", "starts", "journal", "end"))
    runtime = Runtime(path)
    follower: Child | None = None
    with seeded() as randomness:
        for generation in range(1, KILLS + 1):
            writer = start_writer(nursery, path, starts, generation, randomness.randrange(1 << 30))
            # A sleep is how long this writer lives, not what we wait for.
            if generation % 2:
                wait_until(lambda: last_generation(starts) == generation, "the writer is at work")  # noqa: B023
                time.sleep(randomness.uniform(0, WORK_S_MAX))
            else:
                time.sleep(randomness.uniform(0, BIRTH_S_MAX))
            assert writer.kill() == -signal.SIGKILL, nursery.errors()
            insist_readable(runtime, read_starts(starts))
            if follower is None:
                arguments = ("follower", str(journal), str(end), str(generation), "0")
                follower = nursery.start("reader", str(path), *arguments)
        assert follower is not None
        with LogWriter.open(runtime, LOG_NAME, who="last") as last:
            tail = last.next_seq
        end_reading(end, tail)
        follower.insist_on_success()
        turns, entries = read_starts(starts), read_journal(journal)
        insist_complete(entries, tail - 1)
        insist_writers(entries, turns)
    # The kills must have hit writers at work, or nothing was shown.
    published = sum(first < next_first for (first, _), (next_first, _) in pairwise([*turns, (tail, 0)]))
    assert published > KILLS // 4
    assert tail > SLOT_COUNT


def last_generation(starts: Path) -> int:
    turns = read_starts(starts)
    return turns[-1][1] if turns else 0


def test_a_second_writer_is_refused_by_the_name_of_the_first_and_let_in_when_that_is_dead(
    nursery: Nursery, tmp_path: Path
) -> None:
    path, starts = tmp_path / "node", tmp_path / "starts"
    first = start_writer(nursery, path, starts, 1, 1)
    wait_until(starts.exists, "the first writer is at work")
    with pytest.raises(InUse, match=rf"'generation-1' \(process {first.pid}\) is its writer already"):
        LogWriter.open(Runtime(path), LOG_NAME, who="second")
    first.stop()  # a frozen writer is still one
    with pytest.raises(InUse, match="generation-1"):
        LogWriter.open(Runtime(path), LOG_NAME, who="second")
    first.kill()
    with LogWriter.open(Runtime(path), LOG_NAME, who="second") as second:
        first_seq = second.next_seq
        second.publish(stamped(first_seq, 3, generation=2))
        with LogReader.open(Runtime(path), LOG_NAME, who="reader", start=first_seq) as reader:
            insist_right(reader.read(), first_seq)
            assert reader.next_seq == first_seq + 3
