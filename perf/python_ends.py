"""The loops of senders and receivers that are Python: one message, one call, whatever carries them.

Peers are driven by these, each with its own `send` and `receive`, so that all of them do the same work around
their calls. Messages are bytes made beforehand; arrived ones are kept, and summed up a thousand at a time
(throughput, inside the measured time) or at the end (latency).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from feeds.wire import FRAME_BYTES
from perf.open_loop import Schedule, send_on_schedule
from perf.pairs import Outcome
from perf.report import BenchError
from perf.shm_frames import Receipt, frames_from

FOLD_MESSAGES = 1_024
IDLE_POLLS_CHECK = 4_096
_clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Task:
    """One round: all frames as fast as they go, or, with a schedule, each when it is due."""

    frame_count: int
    schedule: Schedule | None = None
    batch_frames: int = 1  # in one message or one publication
    seconds_max: float = 60.0
    round_index: int = 0
    way: str = ""  # for ends that know several
    slot_count: int = 0  # of a log
    held_by: int = 1  # how many readers a flat-out sender waits for; 0: they may miss what they are late for
    log_count: int = 1

    @property
    def load_seconds(self) -> float:
        return self.schedule.duration_ns / 1e9 if self.schedule is not None else 0.0


class PythonSender:
    """A sender with one call of `send` for each message."""

    def __init__(self, send: Callable[[bytes], object], close: Callable[[], object]) -> None:
        self._send = send
        self._close = close
        self._messages: list[bytes] = []
        self._task = Task(0)

    def prepare(self, task: Task) -> None:
        assert task.schedule is None or task.batch_frames == 1
        content = frames_from(1, task.frame_count).tobytes()
        step = FRAME_BYTES * task.batch_frames
        self._messages = [content[begin : begin + step] for begin in range(0, len(content), step)]
        self._task = task

    def run(self, first_ns: int) -> Outcome:
        send, schedule = self._send, self._task.schedule
        if schedule is not None:
            begun_ns = send_on_schedule(schedule, first_ns, self._messages, send, _clock)
            return {"lateness_ns": schedule.since_due(begun_ns, first_ns)}
        while _clock() < first_ns:
            pass
        for message in self._messages:
            send(message)
        return {}

    def close(self) -> None:
        self._close()


class PythonReceiver:
    """A receiver with one call of `receive` for each message, which returns None when it polls in vain."""

    def __init__(self, receive: Callable[[], bytes | None], close: Callable[[], object]) -> None:
        self._receive = receive
        self._close = close
        self._task = Task(0)

    def close(self) -> None:
        self._close()

    def prepare(self, task: Task) -> None:
        self._task = task

    def run(self, first_ns: int) -> Outcome:
        if self._task.schedule is not None:
            return self._run_scheduled(self._task.schedule, first_ns)
        return self._run_flat_out(first_ns)

    def _run_scheduled(self, schedule: Schedule, first_ns: int) -> Outcome:
        receive, patience = self._receive, _Patience(self._task, first_ns)
        messages: list[bytes] = []
        arrived_ns: list[int] = []
        while len(messages) < schedule.message_count:
            message = receive()
            if message is None:
                patience.on_idle(len(messages))
                continue
            arrived_ns.append(_clock())
            messages.append(message)
        receipt = Receipt()
        receipt.take(b"".join(messages))
        latency_ns = schedule.since_due(np.array(arrived_ns, dtype=np.int64), first_ns)
        return {"latency_ns": latency_ns, "checksum": receipt.checksum}

    def _run_flat_out(self, first_ns: int) -> Outcome:
        receive, patience, receipt = self._receive, _Patience(self._task, first_ns), Receipt()
        message_count = -(-self._task.frame_count // self._task.batch_frames)
        received = 0
        batch: list[bytes] = []
        while received < message_count:
            message = receive()
            if message is None:
                patience.on_idle(received)
                continue
            batch.append(message)
            received += 1
            if len(batch) == FOLD_MESSAGES:
                receipt.take(b"".join(batch))
                batch.clear()
        receipt.take(b"".join(batch))
        return {"elapsed_ns": _clock() - first_ns, "checksum": receipt.checksum}


class _Patience:
    """Bounds the time that a polling receiver spends finding nothing."""

    def __init__(self, task: Task, first_ns: int) -> None:
        self._wanted = task.frame_count
        self._seconds_max = task.seconds_max + task.load_seconds
        self._deadline_ns = first_ns + int(self._seconds_max * 1e9)
        self._idle_polls = 0

    def on_idle(self, received: int) -> None:
        self._idle_polls += 1
        if self._idle_polls % IDLE_POLLS_CHECK == 0 and _clock() > self._deadline_ns:
            raise BenchError(f"only {received} of {self._wanted} messages came in {self._seconds_max:g} s")
