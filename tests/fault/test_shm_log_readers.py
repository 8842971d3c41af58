"""Sixteen readers, slowed down, frozen, killed and started again at random, below a writer at full speed.

Every frame that any of them was given is the one that was published; and what it was given and what it was
told it had missed are, together and over all its lives, every number there was. Seconds normally; minutes
with TWINTAPE_LONG=1.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from middleware.shm.log import LogReader, Start
from middleware.shm.runtime import Runtime
from tests.fault.killing import Child, Nursery, is_long, seeded, wait_until
from tests.fault.log_ends import LOG_NAME, end_reading, read_starts
from tests.fault.log_journal import DELIVERED, MISSED, insist_complete, insist_writers, read_journal

READER_COUNT = 16
DISTURBANCES = 8_000 if is_long() else 300  # four minutes, some seconds
STEP_S_MAX = 0.02
LAPS = 20  # that the writer must have made, however slow the machine
SLOT_COUNT = 1 << 13
PACES_US = (0, 0, 500, 5_000)  # how long a reader dawdles at most after some of its reads


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.log_ends") as process:
        yield process


@dataclass(slots=True)
class Subject:
    """One reader through all its lives."""

    name: str
    pace_us: int
    journal: Path
    child: Child | None = None
    lives: int = 0

    def start(self, nursery: Nursery, path: Path, end: Path, seed: int) -> None:
        arguments = (self.name, str(self.journal), str(end), str(seed), str(self.pace_us))
        self.child = nursery.start("reader", str(path), *arguments)
        self.lives += 1


def disturb(subject: Subject, randomness: random.Random, nursery: Nursery, path: Path, end: Path) -> None:
    """Do to one reader what a machine, an operator or a bug may do to it."""
    assert subject.child is not None
    if subject.child.is_stopped:
        subject.child.go_on()
    elif randomness.random() < 0.5:
        subject.child.stop()
    else:
        assert subject.child.kill() == -signal.SIGKILL, nursery.errors()
        subject.start(nursery, path, end, randomness.randrange(1 << 30))


@pytest.mark.timeout(300 + DISTURBANCES // 5)
def test_no_reader_gets_a_wrong_frame_or_misses_one_silently(nursery: Nursery, tmp_path: Path) -> None:
    path, starts, end = (tmp_path / name for name in ("node", "starts", "end"))
    writer = nursery.start("writer", str(path), str(starts), "1", "1", str(SLOT_COUNT))
    wait_until(lambda: len(read_starts(starts)) == 1, "the writer is at work")
    subjects = [
        Subject(f"reader-{index}", PACES_US[index % len(PACES_US)], tmp_path / f"journal-{index}")
        for index in range(READER_COUNT)
    ]
    with seeded() as randomness:
        for subject in subjects:
            subject.start(nursery, path, end, randomness.randrange(1 << 30))
        with LogReader.open(Runtime(path), LOG_NAME, who="inspector", start=Start.NEXT) as inspector:
            disturbances = 0
            while disturbances < DISTURBANCES or inspector.tail_seq < LAPS * SLOT_COUNT:
                disturb(randomness.choice(subjects), randomness, nursery, path, end)
                disturbances += 1
                time.sleep(randomness.uniform(0, STEP_S_MAX))  # the next one comes at a random moment
            writer.ask_to_end()
            writer.insist_on_success()
            tail = inspector.tail_seq
        end_reading(end, tail)
        for subject in subjects:
            assert subject.child is not None
            if subject.child.is_stopped:
                subject.child.go_on()
            subject.child.insist_on_success()
            entries = read_journal(subject.journal)
            insist_complete(entries, tail - 1)
            insist_writers(entries, read_starts(starts))
    accounts = [read_journal(subject.journal) for subject in subjects]
    # All of it must have happened, or nothing was shown: laps, deaths, and frames that got through.
    assert sum(subject.lives for subject in subjects) > 2 * READER_COUNT
    assert sum(any(entry.what == MISSED for entry in account) for account in accounts) > READER_COUNT // 4
    assert all(any(entry.what == DELIVERED for entry in account) for account in accounts)
