"""The two ends of a stream log as processes of their own, for tests that stop and kill them."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from feeds import wire
from feeds.compiled import i64
from middleware.shm import log_kernels, system_kernels, waiting_kernels
from middleware.shm.log import LogReader, LogWriter, Start
from middleware.shm.runtime import Runtime
from tests.fault import stamped_frame_kernels
from tests.fault.log_journal import DELIVERED, MISSED, Entry, Journal, resume_at
from tests.fault.stamped_frame_kernels import generation_runs, insist_right, stamp_kernel

LOG_NAME = "XNAS.ITCH"
BATCH_FRAMES_MAX = 64
READ_FRAMES_MAX = 512
IDLE_NS = 5_000_000  # how long a reader waits before it asks whether the writing is over
GATE_NS_MAX = 60_000_000_000
FLUSH_EVERY = 64  # reads; what a killed reader has not written down yet it simply gets again


def write_frames(path: str, starts: str, generation: str, seed: str, slot_count: str) -> None:
    """Publish as fast as it goes, batches of random sizes, until SIGTERM.

    Says in `starts`, before the first frame, at which number this generation begins.
    """
    randomness = random.Random(int(seed))
    is_over = False

    def on_end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, on_end)
    writer = LogWriter.open(
        Runtime(Path(path)), LOG_NAME, who=f"generation-{generation}", slot_count=int(slot_count)
    )
    with Path(starts).open("ab", buffering=0) as file:
        file.write(f"{writer.next_seq} {generation}\n".encode())
    frames = wire.empty(BATCH_FRAMES_MAX)
    rows = wire.words(frames)
    while not is_over:
        for count in randomness.choices((1, 2, 7, BATCH_FRAMES_MAX), k=64):
            stamp_kernel(rows[:count], i64(writer.next_seq), i64(int(generation)))
            writer.publish(frames[:count])
    writer.close()


def end_reading(path: Path, next_seq: int) -> None:
    """Tell all readers that `next_seq` will not come."""
    scratch = path.with_suffix(".new")
    scratch.write_text(str(next_seq))
    scratch.rename(path)


def read_starts(path: Path) -> list[tuple[int, int]]:
    """Return (first number, generation) of each writer that came to publish."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [
        (int(first), int(generation))
        for first, generation in (line.split() for line in lines if line.endswith("\n"))
    ]


def read_frames(path: str, name: str, journal_path: str, end_path: str, seed: str, pace: str) -> None:
    """Read into a journal what the journal does not have yet, up to the number that `end_path` will name.

    `pace` is how many microseconds this reader dawdles at most after a read; 0 is as fast as it goes.
    """
    _read(path, name, journal_path, end_path, random.Random(int(seed)), int(pace), is_gating=False)


def read_gated(path: str, name: str, journal_path: str, end_path: str, seed: str, pace: str) -> None:
    """Do the same as a reader that the writer waits for; the journal is there when it does."""
    _read(path, name, journal_path, end_path, random.Random(int(seed)), int(pace), is_gating=True)


def _read(
    path: str,
    name: str,
    journal_path: str,
    end_path: str,
    randomness: random.Random,
    pace_us: int,
    *,
    is_gating: bool,
) -> None:
    continued_at = resume_at(Path(journal_path))
    start = Start.OLDEST if continued_at is None else continued_at
    reader = LogReader.open(Runtime(Path(path)), LOG_NAME, who=name, start=start, is_gating=is_gating)
    if is_gating and not reader.await_gate(GATE_NS_MAX):
        raise TimeoutError(f"the writer does not wait for {name}")
    journal = Journal(Path(journal_path))
    end: int | None = None
    reads = 0
    while end is None or reader.next_seq < end:
        frames = reader.read(randomness.randint(1, READ_FRAMES_MAX))
        for missed in reader.take_missed():
            journal.note(Entry(MISSED, missed.first, missed.last))
        if len(frames):
            first = reader.next_seq - len(frames)
            insist_right(frames, first)
            for begin, last, generation in generation_runs(frames, first):
                journal.note(Entry(DELIVERED, begin, last, generation))
        else:
            journal.flush()
            if Path(end_path).exists():
                end = int(Path(end_path).read_text())
            reader.wait(IDLE_NS)
        reads += 1
        if reads % FLUSH_EVERY == 0:
            journal.flush()
        if pace_us and randomness.random() < 0.1:
            time.sleep(randomness.randint(0, pace_us) / 1e6)
    journal.close()
    reader.close()


ROLES = {"writer": write_frames, "reader": read_frames, "gated": read_gated}


def warm_up() -> None:
    stamped_frame_kernels.warm_up()
    system_kernels.warm_up()
    waiting_kernels.warm_up()
    log_kernels.warm_up()
