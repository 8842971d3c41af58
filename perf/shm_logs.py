"""Many logs, one process at each end: an adapter with many streams, an application that follows them all.

Every turn the sender publishes one batch on each log, and the receiver polls each log once; the calls come
from Python, one for each log and turn, and all that happens in them is compiled.
"""

from __future__ import annotations

import time

import numpy as np

from feeds import wire
from feeds.compiled import IS_INTERPRETED, i64
from middleware.shm.log import LogReader, LogWriter, compiled_handler, remove_log
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.log_reader import CHUNK_FRAMES
from middleware.shm.mapping import LINE_WORDS
from perf.pairs import Outcome, Team, start_pair
from perf.python_ends import Task
from perf.report import BenchError
from perf.shm_frames import POOL_FRAMES, frame_pool, insist_all_arrived
from perf.shm_kernels import (
    STAMPS,
    fold,
    number_kernel,
    publish_within_kernel,
    say_kernel,
    warm_up,
)
from perf.shm_log import US, Link, checksum_in

if not IS_INTERPRETED:
    from perf.shm_kernels import poll_once_kernel

IDLE_TURNS = 200
IDLE_TURNS_CHECK = 1_024


def name_of(task: Task, index: int) -> str:
    return f"bench-{task.round_index}-{index}"


class LogsSender:
    """Writes `task.log_count` logs, a batch on each in turn."""

    def __init__(self, link: Link) -> None:
        warm_up()
        self._link = link
        self._progress = link.progress()
        self._pool = wire.words(frame_pool())
        self._task = Task(0)
        self._writers: list[LogWriter] = []

    def prepare(self, task: Task) -> None:
        self.close()
        self._task = task
        assert POOL_FRAMES % task.batch_frames == 0
        assert task.frame_count % task.batch_frames == 0
        for index in range(task.log_count):
            say_kernel(self._progress, i64(index * LINE_WORDS), i64(0))
            self._writers.append(
                LogWriter.open(
                    self._link.runtime,
                    name_of(task, index),
                    who="bench-sender",
                    slot_count=task.slot_count,
                    first_seq=1,
                )
            )

    def run(self, first_ns: int) -> Outcome:
        task, pool, progress, clock = self._task, self._pool, self._progress, time.monotonic_ns
        deadline = i64(self._link.deadline(task, first_ns))
        batch, reach = i64(task.batch_frames), task.slot_count - task.slot_count // MARGIN_SHARE
        ends = [
            (i64(index * LINE_WORDS), writer.words, writer.state)
            for index, writer in enumerate(self._writers)
        ]
        row = i64(0)
        while clock() < first_ns:
            pass
        for sent in range(0, task.frame_count, task.batch_frames):
            row, wanted = i64(sent % POOL_FRAMES), i64(sent + batch - reach)
            number_kernel(pool, row, i64(sent + 1), batch)
            for place, words, state in ends:
                count = publish_within_kernel(
                    words, state, pool, row, batch, progress, place, wanted, deadline
                )
                if count != batch:
                    raise BenchError(f"frames from {sent + 1} on could not be published in time: {count}")
        idle_since_ns = clock()
        nothing, wanted = i64(0), i64(0)
        for _ in range(IDLE_TURNS):
            for place, words, state in ends:
                publish_within_kernel(words, state, pool, row, nothing, progress, place, wanted, deadline)
        return {"idle_publish_ns": (clock() - idle_since_ns) / (IDLE_TURNS * task.log_count)}

    def close(self) -> None:
        for index, writer in enumerate(self._writers):
            writer.close()
            remove_log(self._link.runtime, name_of(self._task, index))
        self._writers.clear()


class LogsReceiver:
    """Polls `task.log_count` logs in turn, each with a compiled handler."""

    def __init__(self, link: Link) -> None:
        warm_up()
        self._link = link
        self._progress = link.progress()
        self._handler = compiled_handler(fold)
        self._chunk = wire.words(wire.empty(CHUNK_FRAMES))
        self._task = Task(0)
        self._readers: list[LogReader] = []

    def prepare(self, task: Task) -> None:
        self.close()
        self._task = task
        runtime = self._link.runtime
        self._readers = [
            LogReader.open(runtime, name_of(task, index), who="bench-receiver", start=1)
            for index in range(task.log_count)
        ]

    def run(self, first_ns: int) -> Outcome:
        task, clock = self._task, time.monotonic_ns
        deadline_ns = first_ns + int(task.seconds_max * 1e9)
        memories = [np.zeros(STAMPS, dtype=np.int64) for _ in self._readers]
        ends = [
            (i64(index * LINE_WORDS), reader.words, reader.own, reader.state, memory)
            for index, (reader, memory) in enumerate(zip(self._readers, memories, strict=True))
        ]
        chunk, progress, address = self._chunk, self._progress, i64(self._handler.address)
        wanted, taken, turns = task.frame_count * task.log_count, 0, 0
        while taken < wanted:
            for place, words, own, state, memory in ends:
                count = poll_once_kernel(words, own, state, chunk, address, memory, progress, place)
                if count < 0:
                    raise BenchError(f"a log gave status {count} after {taken} frames")
                taken += count
            turns += 1
            if turns % IDLE_TURNS_CHECK == 0 and clock() > deadline_ns:
                raise BenchError(f"only {taken} of {wanted} frames came in {task.seconds_max:g} s")
        elapsed_ns = clock() - first_ns
        idle_since_ns = clock()
        for _ in range(IDLE_TURNS):
            for place, words, own, state, memory in ends:
                poll_once_kernel(words, own, state, chunk, address, memory, progress, place)
        idle_ns = (clock() - idle_since_ns) / (IDLE_TURNS * task.log_count)
        for reader, memory in zip(self._readers, memories, strict=True):
            insist_all_arrived(reader.name, checksum_in(memory), task.frame_count)
        return {"elapsed_ns": elapsed_ns, "idle_poll_ns": idle_ns}

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()


def start_logs(link: Link) -> Team:
    return start_pair(f"{US} of many logs", LogsSender, LogsReceiver, link, is_sender_first=True)
