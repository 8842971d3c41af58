"""Real processes, stopped, continued, killed and replaced at random moments, quickly and without litter.

A Python process with its kernels takes half a second to start, which is too long to kill a thousand of them.
So a *nursery* process imports what they need and warms the kernels up once, and forks a child for each start:
some milliseconds. Children are told apart by role; `module.ROLES` names the functions that they run:

    with Nursery("tests.fault.log_ends") as nursery:
        writer = nursery.start("writer", str(path), "7")
        writer.kill()
        writer = nursery.start("writer", str(path), "8")

Nobody outlives the nursery, and the nursery does not outlive its parent: the kernel kills them.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

ANSWER_S_MAX = 60.0  # of the nursery: far more than it ever needs, on a machine that is busy elsewhere
_SET_DEATH_SIGNAL = 1  # of prctl


def is_long() -> bool:
    """Return whether the long form of the tests was asked for."""
    return os.environ.get("TWINTAPE_LONG") == "1"


@contextmanager
def seeded(seed: int | None = None) -> Iterator[random.Random]:
    """Give randomness that a failure names the seed of. TWINTAPE_SEED chooses it."""
    if seed is None:
        named = os.environ.get("TWINTAPE_SEED")
        seed = int(named) if named else secrets.randbits(32)
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"the seed was {seed}; to take the same decisions again: TWINTAPE_SEED={seed}")
        raise


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = ANSWER_S_MAX) -> None:
    """Wait for something that other processes bring about, and fail by its name when they do not."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(0.001)


class Child:
    """One process of a nursery. Its number stays its own until it has been reaped."""

    def __init__(self, nursery: Nursery, pid: int, role: str) -> None:
        self._nursery = nursery
        self.pid = pid
        self.role = role
        self.exit_code: int | None = None
        self.is_stopped = False

    def stop(self) -> None:
        """Freeze it wherever it is (SIGSTOP)."""
        self._signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_stopped = False

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it wherever it is (SIGKILL), and return when it is gone; say how it ended."""
        if self.exit_code is None:
            self._signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; return its exit code, negative for the signal that ended it."""
        if self.exit_code is None:
            self.exit_code = int(self._nursery.ask({"wait": self.pid}))
        return self.exit_code

    def insist_on_success(self) -> None:
        if self.wait() != 0:
            raise AssertionError(f"{self.role} ended with {self.exit_code}: {self._nursery.errors()}")

    def _signal(self, number: int) -> None:
        assert self.exit_code is None, f"{self.role} has ended with {self.exit_code} already"
        os.kill(self.pid, number)


class Nursery:
    """A warm process that forks children by role, and reaps them. Use it in a `with`."""

    def __init__(self, module: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nursery
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.killing", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        self.children: list[Child] = []
        try:
            self._answer()  # it is warm
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, role: str, *arguments: str) -> Child:
        child = Child(self, int(self.ask({"start": role, "arguments": arguments})), role)
        self.children.append(child)
        return child

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        return self._answer()

    def errors(self) -> str:
        """Return what nursery and children wrote to their error output."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip() or "nothing was said"

    def close(self) -> None:
        """Kill and reap every child, then the nursery."""
        try:
            if self._process.poll() is None:
                for child in self.children:
                    child.kill()
        finally:
            self._process.kill()  # and with it, by the kernel, whoever is left
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream is not None:
                    stream.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = b""
        deadline_s = time.monotonic() + ANSWER_S_MAX
        while not line.endswith(b"\n"):
            patience_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._process.stdout], [], [], patience_s)[0]:
                raise TimeoutError(f"no answer from the nursery within {ANSWER_S_MAX:g} s: {self.errors()}")
            piece = os.read(self._process.stdout.fileno(), 4_096)
            if not piece:
                raise AssertionError(f"the nursery ended: {self.errors()}")
            line += piece
        return json.loads(line)


# --- inside the nursery --------------------------------------------------------------------------------


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent goes."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl: the kernel would let this process outlive its parent")
    if os.getppid() != parent:
        raise SystemExit("the parent is gone already")


def _run_child(function: Callable[..., None], arguments: list[str], parent: int) -> NoReturn:
    """Run one role in a forked process and end it without returning to the nursery's loop."""
    exit_code = 1
    try:
        _die_with(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)  # the nursery's own conversation is not the child's
        function(*arguments)
        exit_code = 0
    except BaseException:  # noqa: BLE001 - reported, and the process ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(exit_code)


def _serve(module_name: str) -> None:
    module = importlib.import_module(module_name)
    roles: dict[str, Callable[..., None]] = module.ROLES
    module.warm_up()
    pid = os.getpid()
    _say(pid)
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            child = os.fork()
            if child == 0:
                _run_child(roles[question["start"]], question["arguments"], pid)
            _say(child)
        else:
            _, status = os.waitpid(question["wait"], 0)
            _say(os.waitstatus_to_exitcode(status))


def _say(answer: int) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _die_with(int(sys.argv[2]))
    _serve(sys.argv[1])
