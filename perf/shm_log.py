"""Our side of the shared-memory benchmarks: the stream log between two processes, in three ways.

compiled      sender and receive loop are kernels, the handler is compiled
python        the same sender; the receiver calls `LogReader.poll` with a Python function, for each batch
python ends   `LogWriter.publish_one` for each frame, from Python, and the same receiver: as a peer's ends
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from feeds import wire
from feeds.compiled import IS_INTERPRETED, i64
from middleware.shm.atomics import Words
from middleware.shm.log import LogReader, LogWriter, compiled_handler, remove_log
from middleware.shm.log_reader import CHUNK_FRAMES
from middleware.shm.mapping import LINE_WORDS
from middleware.shm.runtime import Runtime
from perf.clock_kernels import Calibration
from perf.open_loop import Schedule, send_on_schedule
from perf.pairs import Outcome, Team, start_pair
from perf.python_ends import IDLE_POLLS_CHECK, Task
from perf.report import BenchError
from perf.shm_frames import Checksum, Receipt, frame_pool, frames_from
from perf.shm_kernels import (
    HELD,
    SPENT,
    STAMPS,
    SUM,
    TAKEN,
    TALLY_WORDS,
    WRONG_AT,
    XOR,
    fold,
    say_kernel,
    send_all_kernel,
    send_scheduled_kernel,
    stamp_and_fold,
    warm_up,
)

if not IS_INTERPRETED:
    from perf.shm_kernels import receive_kernel

US = "twintape"
COMPILED, PYTHON, PYTHON_ENDS = "compiled", "python", "python ends"
PROGRESS_FILE = "progress"
PROGRESS_LINES = 64  # readers, or logs, that can say how far they are
POLL_FRAMES = 4_096

_WRAP = 1 << 64


@dataclass(frozen=True, slots=True)
class Link:
    """What both ends know: where the logs are, and the clock that they share."""

    directory: Path
    calibration: Calibration
    reader_index: int = 0
    is_sharing: bool = False  # a core, with other readers

    @property
    def runtime(self) -> Runtime:
        return Runtime(self.directory / "runtime")

    def progress(self) -> Words:
        with (self.directory / PROGRESS_FILE).open("r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=np.int64)

    def due_ticks(self, schedule: Schedule, first_ns: int) -> Words:
        offsets: Words = np.rint(schedule.due_ns() * self.calibration.ticks_per_ns).astype(np.int64)
        return offsets + self.calibration.ticks_at(first_ns)

    def in_ns(self, tick_counts: Words) -> Words:
        whole_ns: Words = np.rint(tick_counts / self.calibration.ticks_per_ns).astype(np.int64)
        return whole_ns

    def deadline(self, task: Task, first_ns: int) -> int:
        """Return when to give up, by the counter."""
        return self.calibration.ticks_at(first_ns + int((task.seconds_max + task.load_seconds) * 1e9))


def log_name(task: Task) -> str:
    return f"bench-{task.round_index}"


class LogSender:
    """The writer's process. Each round has a log of its own, so that every round is like the first."""

    def __init__(self, link: Link) -> None:
        warm_up()  # compiling in the middle of a round would be charged to its messages
        self._link = link
        self._progress = link.progress()
        self._pool = wire.words(frame_pool())
        self._tally = np.zeros(TALLY_WORDS, dtype=np.int64)
        self._task = Task(0)
        self._writer: LogWriter | None = None
        self._singles: list[wire.WordArray] = []

    def prepare(self, task: Task) -> None:
        self._leave()
        self._task = task
        for reader in range(task.held_by):
            say_kernel(self._progress, i64(reader * LINE_WORDS), i64(0))
        self._writer = LogWriter.open(
            self._link.runtime, log_name(task), who="bench-sender", slot_count=task.slot_count, first_seq=1
        )
        self._singles = []
        if task.way == PYTHON_ENDS:
            rows = wire.words(frames_from(1, task.frame_count))
            self._singles = [rows[index : index + 1] for index in range(task.frame_count)]

    def run(self, first_ns: int) -> Outcome:
        assert self._writer is not None
        if self._task.way == PYTHON_ENDS:
            return self._run_python(self._writer, first_ns)
        link, writer, task = self._link, self._writer, self._task
        if task.way == PYTHON:  # the receiver reads the other clock
            link = replace(link, calibration=link.calibration.anchored())
        if task.schedule is not None:
            due = link.due_ticks(task.schedule, first_ns)
            begun = np.full(due.size, -1, dtype=np.int64)  # page faults now, not in the round
            sent = send_scheduled_kernel(writer.words, writer.state, self._pool, due, begun)
            outcome: Outcome = {"lateness_ns": link.in_ns(begun - due)}
        else:
            sent = send_all_kernel(
                writer.words,
                writer.state,
                self._pool,
                i64(task.frame_count),
                i64(task.batch_frames),
                self._progress,
                i64(task.held_by),
                self._tally,
                i64(link.calibration.ticks_at(first_ns)),
                i64(link.deadline(task, first_ns)),
            )
            outcome = {
                "held_share": float(self._tally[HELD] / self._tally[SPENT]),
                "sending_ns": float(self._tally[SPENT] / link.calibration.ticks_per_ns),
            }
        if sent != task.frame_count:
            raise BenchError(f"{sent} of {task.frame_count} frames could be published")
        return outcome

    def _run_python(self, writer: LogWriter, first_ns: int) -> Outcome:
        schedule, send, clock = self._task.schedule, writer.publish_one, time.monotonic_ns
        if schedule is not None:
            begun_ns = send_on_schedule(schedule, first_ns, self._singles, send, clock)
            return {"lateness_ns": schedule.since_due(begun_ns, first_ns)}
        while clock() < first_ns:
            pass
        for frame in self._singles:
            send(frame)
        return {}

    def _leave(self) -> None:
        if self._writer is not None:
            self._writer.close()
            remove_log(self._link.runtime, log_name(self._task))
            self._writer = None

    def close(self) -> None:
        self._leave()


class LogReceiver:
    """The reader's process."""

    def __init__(self, link: Link) -> None:
        warm_up()  # compiling in the middle of a round would be charged to its messages
        self._link = link
        self._progress = link.progress()
        self._name = f"bench-receiver-{link.reader_index}"
        self._place = link.reader_index * LINE_WORDS
        self._task = Task(0)
        self._reader: LogReader | None = None
        self._chunk = wire.words(wire.empty(CHUNK_FRAMES))
        self._fold = compiled_handler(fold)
        self._stamp = compiled_handler(stamp_and_fold)
        self._memory = np.zeros(0, dtype=np.int64)  # the handlers', as long as a round needs it

    def prepare(self, task: Task) -> None:
        if self._reader is not None:
            self._reader.close()
        self._task = task
        self._reader = LogReader.open(
            self._link.runtime, log_name(task), who=self._name, start=1, batch_frames=POLL_FRAMES
        )
        stamp_count = task.frame_count if task.schedule is not None else 0
        self._memory = np.full(STAMPS + stamp_count, -1, dtype=np.int64)  # page faults now, not in the round
        self._memory[:STAMPS] = 0

    def run(self, first_ns: int) -> Outcome:
        assert self._reader is not None
        if self._task.way == COMPILED:
            return self._run_compiled(self._reader, first_ns)
        return self._run_python(self._reader, first_ns)

    def _run_compiled(self, reader: LogReader, first_ns: int) -> Outcome:
        task, link, memory = self._task, self._link, self._memory
        handler = self._stamp if task.schedule is not None else self._fold
        taken = receive_kernel(
            reader.words,
            reader.own,
            reader.state,
            self._chunk,
            i64(task.frame_count),
            i64(handler.address),
            memory,
            self._progress,
            i64(self._place),
            i64(link.is_sharing),
            i64(link.deadline(task, first_ns)),
        )
        elapsed_ns = time.monotonic_ns() - first_ns
        missed = reader.missed_count
        is_lossy = task.held_by == 0 and task.schedule is None
        if taken + missed != task.frame_count or (not is_lossy and (missed or memory[WRONG_AT])):
            raise BenchError(
                f"{task.frame_count} frames were expected, {memory[TAKEN]} came and {missed} were missed, "
                f"the first wrong number in place {memory[WRONG_AT]} (0: none); status {taken}"
            )
        outcome: dict[str, object] = {
            "checksum": checksum_in(memory),
            "elapsed_ns": elapsed_ns,
            "missed_count": missed,
        }
        if task.schedule is not None:
            outcome["latency_ns"] = link.in_ns(memory[STAMPS:] - link.due_ticks(task.schedule, first_ns))
        return outcome

    def _run_python(self, reader: LogReader, first_ns: int) -> Outcome:
        """Poll with a Python function: it takes the time, then sums the batch up."""
        task, poll, receipt, clock = self._task, reader.poll, Receipt(), time.monotonic_ns
        progress, counts, arrived_ns = self._progress, list[int](), list[int]()
        deadline_ns = first_ns + int((task.seconds_max + task.load_seconds) * 1e9)

        def on_batch(frames: wire.FrameArray) -> None:
            arrived_ns.append(clock())
            counts.append(len(frames))
            receipt.take(frames)

        taken = idle_polls = 0
        while taken < task.frame_count:
            count = poll(on_batch)
            if count:
                taken += count
                say_kernel(progress, self._place, taken)
            else:
                idle_polls += 1
                if idle_polls % IDLE_POLLS_CHECK == 0 and clock() > deadline_ns:
                    raise BenchError(f"only {taken} of {task.frame_count} frames came in time")
        elapsed_ns = clock() - first_ns
        if missed := reader.take_missed():
            raise BenchError(f"frames {missed[0].first} to {missed[0].last} were missed")
        outcome: dict[str, object] = {"checksum": receipt.checksum, "elapsed_ns": elapsed_ns}
        if task.schedule is not None:
            each_ns = np.repeat(np.array(arrived_ns, dtype=np.int64), counts)
            outcome["latency_ns"] = task.schedule.since_due(each_ns, first_ns)
        return outcome

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def checksum_in(memory: Words) -> Checksum:
    return Checksum(int(memory[TAKEN]), int(memory[SUM]) % _WRAP, int(memory[XOR]) % _WRAP)


def make_link(directory: Path, calibration: Calibration) -> Link:
    """Make what the ends of logs share. There is nothing to measure where nothing is compiled."""
    if IS_INTERPRETED:
        raise BenchError("this benchmark measures compiled code: run it without NUMBA_DISABLE_JIT")
    (directory / PROGRESS_FILE).write_bytes(bytes(PROGRESS_LINES * LINE_WORDS * 8))
    link = Link(directory, calibration)
    link.runtime.prepare()
    return link


def start_log(directory: Path, calibration: Calibration) -> Team:
    link = make_link(directory, calibration)
    return start_pair(US, LogSender, LogReceiver, link, is_sender_first=True)
