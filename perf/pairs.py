"""Process pairs: a sender and a receiver, each a process of its own on a core of its own, working in turns.

A pair lives for the whole run, asleep while others are measured, so that every round finds it warm. For each
round both ends prepare (open, make the messages, join), say that they are ready, and begin at one moment that
both were told. What an end raises is raised here, as a BenchError with its words; an end that does not answer
in time, or dies, is an error too, and neither outlives the pair.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from perf.report import BenchError

START_SECONDS_MAX = 120.0  # of an end: imports, and kernels that may have to be compiled
LEAD_NS = 20_000_000  # between the word to begin and the beginning: both must have it by then
ROUND_SECONDS_SPARE = 30.0  # for a round, on top of what its load takes
STOP_SECONDS_MAX = 10.0
PRIORITY = -20
PR_SET_PDEATHSIG = 1
AUTOGROUP = Path("/proc/self/autogroup")

Outcome = Mapping[str, Any]


class End(Protocol):
    """One end of a link, in its own process."""

    def prepare(self, task: Any) -> None:
        """Do all that need not be measured; afterwards the other end may begin."""

    def run(self, first_ns: int) -> Outcome:
        """Do the task, beginning at `first_ns` of the monotonic clock; say what was found."""

    def close(self) -> None: ...


OpenEnd = Callable[[Any], End]  # called in the child with what both ends were given


def take_priority() -> None:
    """Ask that other work on this machine stays out of the way; who may not ask measures without.

    Linux shares a core first between sessions (autogroup) and only then between a session's processes, so
    this one becomes a session and asks for both. The programs in C do the same (shm_limit.h).
    """
    os.setsid()
    with suppress(PermissionError, FileNotFoundError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        AUTOGROUP.write_text(str(PRIORITY), encoding="ascii")


def some_cores(least: int) -> list[int]:
    """Return the cores that we may use, of which there must be a few."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < least:
        raise BenchError(f"{least} processes at work need {least} cores, we may use {len(cores)}")
    return cores


class Worker:
    """One end's process, as its parent sees it."""

    def __init__(self, name: str, open_end: OpenEnd, link: Any, cores: set[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._told, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, open_end, link, cores), name=name, daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, word: str, argument: Any = None) -> None:
        try:
            self._told.send((word, argument))
        except (BrokenPipeError, ConnectionResetError):
            raise BenchError(f"{self.name} died {self._epitaph()}") from None

    def answer(self, deadline: float) -> Any:
        """Return what the child says by `deadline` (of time.monotonic), or raise what it raised."""
        if not self._told.poll(max(deadline - time.monotonic(), 0)):
            raise BenchError(f"{self.name} gave no answer in time")
        try:
            is_well, content = self._told.recv()
        except (EOFError, ConnectionResetError):
            raise BenchError(f"{self.name} died {self._epitaph()}") from None
        if not is_well:
            raise BenchError(f"{self.name}: {content}")
        return content

    def _epitaph(self) -> str:
        self._process.join(STOP_SECONDS_MAX)
        return f"with status {self._process.exitcode}"

    def stop(self) -> None:
        """End the process: kindly if it is idle, else not."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone already: just as well
            self._told.send(("stop", None))
        self._told.close()
        self._process.join(STOP_SECONDS_MAX)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._told.close()
        self._process.close()


class Team:
    """Ends that do one task together, in the order in which they must be ready."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._is_started = False

    def run(self, task: Any, load_seconds: float) -> dict[str, Any]:
        """Let all do one task, which by itself takes `load_seconds`; return what they found, in one."""
        whole: dict[str, Any] = {}
        for outcome in self.run_each([task] * len(self.workers), load_seconds):
            assert not whole.keys() & outcome.keys()
            whole.update(outcome)
        return whole

    def run_each(self, tasks: Sequence[Any], load_seconds: float) -> list[Outcome]:
        """Let each do its own task; return what each found."""
        patience = ROUND_SECONDS_SPARE if self._is_started else START_SECONDS_MAX
        for worker, task in zip(self.workers, tasks, strict=True):
            worker.ask("prepare", task)
            worker.answer(time.monotonic() + patience)
        self._is_started = True
        first_ns = time.monotonic_ns() + LEAD_NS
        for worker in self.workers:
            worker.ask("run", first_ns)
        deadline = time.monotonic() + load_seconds + ROUND_SECONDS_SPARE
        return [worker.answer(deadline) for worker in self.workers]

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self.workers:
            if kind is None:
                worker.stop()
            else:
                worker.kill()  # it may be in the middle of a round that will never end


def start_pair(
    name: str,
    open_sender: OpenEnd,
    open_receiver: OpenEnd,
    link: Any,
    *,
    is_pinned: bool = True,
    is_sender_first: bool = False,
) -> Team:
    """Start a sender on the first core that we may use and a receiver on the last.

    The receiver is made ready first, unless what it opens is made by the sender.
    """
    cores = some_cores(2)
    sender_cores, receiver_cores = ({cores[0]}, {cores[-1]}) if is_pinned else (set(cores), set(cores))
    sender = Worker(f"{name} sender", open_sender, link, sender_cores)
    receiver = Worker(f"{name} receiver", open_receiver, link, receiver_cores)
    return Team([sender, receiver] if is_sender_first else [receiver, sender])


def _work(told: Connection, open_end: OpenEnd, link: Any, cores: set[int]) -> None:
    """Serve the parent until it says stop or goes away."""
    end: End | None = None
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a parent that is killed leaves none of us
        os.sched_setaffinity(0, cores)
        take_priority()
        while True:
            word, argument = told.recv()
            if word == "stop":
                return
            if end is None:
                end = open_end(link)
                # What was imported stays; collecting garbage in a round would be charged to its messages.
                gc.collect()
                gc.freeze()
            if word == "prepare":
                end.prepare(argument)
                answer: Any = None
            else:
                gc.disable()
                answer = end.run(argument)
                gc.enable()
            told.send((True, answer))
    except (EOFError, KeyboardInterrupt):
        return  # the parent is gone, or everybody was interrupted and the parent says so
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
        where = traceback.extract_tb(error.__traceback__)[-1]
        told.send((False, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"))
    finally:
        if end is not None:
            end.close()
