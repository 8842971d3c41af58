"""Run a process one machine instruction at a time, and look at its shared memory after each.

A process that is killed at an instruction leaves exactly the memory that it has at this instruction. So to
know what every possible kill leaves, it need not be killed at all: `memory_states` steps a child with ptrace
from one pause to the next and yields each distinct content of the files that it writes, as `Snapshot`s which
are restored in another directory and opened there as the next process would. `directory_states` does the same
by system call, for files that are made, named and removed.

The other way round, `run_to_kernel` and `step` bring a child to a chosen instruction, and the test does
something to the memory that the child is reading.

The child's side is three lines:

    become_steppable(publish_kernel)
    pause()                   # the parent takes over here
    writer.publish(frames)    # stepped through
    pause()                   # and lets go here

Ten thousands of instructions of the interpreter surround a kernel. A child that names the kernels in which it
touches shared memory is stepped inside them alone; that nothing changed outside of them is checked.

x86-64 and Linux only: it reads registers and sets breakpoints. An instruction takes some 20 microseconds when
both processes share a core, as they do here, and three times that across two.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from feeds.compiled import IS_INTERPRETED

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64" and not IS_INTERPRETED
WHY_NOT = "stepping needs compiled kernels, and x86-64 registers through Linux's ptrace"

LIFE_S_MAX = 120.0  # of a stepped child, by default

_TRACEME, _PEEK_TEXT, _PEEK_USER, _POKE_TEXT, _POKE_USER = 0, 1, 3, 4, 6
_CONTINUE, _SINGLE_STEP, _SYSTEM_CALL, _SET_OPTIONS = 7, 9, 24, 0x4200
_KILL_WITH_PARENT, _MARK_SYSTEM_CALLS = 0x10_0000, 1
_AT_SYSTEM_CALL = signal.SIGTRAP | 0x80  # with _MARK_SYSTEM_CALLS, a stop that no breakpoint can be taken for
_INSTRUCTION_POINTER, _STACK_POINTER = 16 * 8, 19 * 8  # of `rip` and `rsp` in struct user
_BREAKPOINT = 0xCC  # the one-byte instruction int3
_BYTE = 0xFF
_ADDRESS = 0xFFFF_FFFF_FFFF_FFFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def become_steppable(*kernels: Callable[..., Any]) -> None:
    """In the child: let the parent step this thread; others that the process may have run on as they like.

    `kernels`, which must be warm, are those in which it will touch shared memory; none means anywhere.
    """
    sys.stdout.write(" ".join(str(address) for kernel in kernels for address in _entries(kernel)) + "\n")
    sys.stdout.flush()
    _ptrace(_TRACEME, 0)


def _entries(kernel: Any) -> list[int]:
    """Return the addresses at which Python enters a compiled function, one for each of its signatures."""
    entries = [
        compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cpython_wrapper_name)
        for compiled in kernel.overloads.values()
    ]
    assert entries, f"{kernel.__name__} is not warm"
    return entries


def pause() -> None:
    """In the child: stop here until the parent goes on."""
    signal.raise_signal(signal.SIGSTOP)


class ChildEnded(Exception):
    """The child was to be stepped and ended instead; its error output says why."""


class Stepped:
    """A child process that moves only when it is told to. Use it in a `with`; it never outlives it."""

    def __init__(self, module: str, *arguments: str, life_s_max: float = LIFE_S_MAX) -> None:
        """Start `python -m module arguments...`; it runs freely up to its first pause."""
        if not IS_SUPPORTED:
            kernels = "interpreted" if IS_INTERPRETED else "compiled"
            raise RuntimeError(f"{WHY_NOT}: this is {platform.machine()} on {sys.platform}, {kernels}")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid
        self.steps_taken = 0
        self._signal_due = 0
        self._has_ended = False
        self._own_cores = os.sched_getaffinity(0)
        # A child that hangs is killed, and the wait for its next stop ends with that.
        self._watchdog = threading.Timer(life_s_max, os.kill, (self.pid, signal.SIGKILL))
        self._watchdog.daemon = True
        self._watchdog.start()
        self._life_s_max = life_s_max
        try:
            stopped_by = self._wait()
            if stopped_by != signal.SIGSTOP:
                raise RuntimeError(f"{module} must pause first, was stopped by signal {stopped_by}")
            _ptrace(_SET_OPTIONS, self.pid, 0, _KILL_WITH_PARENT | _MARK_SYSTEM_CALLS)
            shared_core = {sorted(self._own_cores)[self.pid % len(self._own_cores)]}
            for thread in (0, self.pid):
                os.sched_setaffinity(thread, shared_core)
            self.kernels = [int(address) for address in self.told_line().split()]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_to_pause(self) -> None:
        """Let the child run freely until it pauses."""
        while self._resume(_CONTINUE) != signal.SIGSTOP:
            pass

    def step(self) -> bool:
        """Execute one instruction; False if the child pauses there."""
        self.steps_taken += 1
        return self._resume(_SINGLE_STEP) != signal.SIGSTOP

    def step_system_call(self) -> bool:
        """Run to the beginning or the end of the next system call; False if the child pauses before."""
        while (stopped_by := self._resume(_SYSTEM_CALL)) != signal.SIGSTOP:
            if stopped_by == _AT_SYSTEM_CALL:
                return True
        return False

    def run_to_kernel(self) -> bool:
        """Run freely to the first instruction of the next kernel; False if the child pauses before."""
        if self.instruction_pointer in self.kernels and not self.step():
            return False
        code = {address: _ptrace(_PEEK_TEXT, self.pid, address) for address in self.kernels}
        for address, bytes_there in code.items():
            _ptrace(_POKE_TEXT, self.pid, address, (bytes_there & ~_BYTE | _BREAKPOINT) & _ADDRESS)
        try:
            while (stopped_by := self._resume(_CONTINUE)) != signal.SIGSTOP:
                address = self.instruction_pointer - 1
                if stopped_by == signal.SIGTRAP and address in code:
                    _ptrace(_POKE_USER, self.pid, _INSTRUCTION_POINTER, address)
                    return True
            return False
        finally:
            if not self._has_ended:
                for address, bytes_there in code.items():
                    _ptrace(_POKE_TEXT, self.pid, address, bytes_there & _ADDRESS)

    def steps_of_kernel(self) -> Iterator[int]:
        """Step through the kernel at whose beginning the child is; yield the number of each step, from 1."""
        stack = self._register(_STACK_POINTER)
        returns_to = _ptrace(_PEEK_TEXT, self.pid, stack) & _ADDRESS
        number = 0
        while self.instruction_pointer != returns_to or self._register(_STACK_POINTER) <= stack:
            if not self.step():
                raise RuntimeError("a kernel paused")
            number += 1
            yield number

    @property
    def instruction_pointer(self) -> int:
        return self._register(_INSTRUCTION_POINTER)

    def _register(self, offset: int) -> int:
        return _ptrace(_PEEK_USER, self.pid, offset) & _ADDRESS

    def tell(self, line: str) -> None:
        """Write a line to the child's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def told(self, byte_count: int) -> bytes:
        """Return what the child wrote to its standard output, which must be there already."""
        assert self._process.stdout is not None
        answer = b""
        while len(answer) < byte_count:
            piece = os.read(self._process.stdout.fileno(), byte_count - len(answer))
            if not piece:
                raise self._ended(f"said {len(answer)} of {byte_count} bytes")
            answer += piece
        return answer

    def told_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            line += self.told(1)
        return line.decode().rstrip("\n")

    def close(self) -> None:
        """Kill the child wherever it is."""
        self._watchdog.cancel()
        os.sched_setaffinity(0, self._own_cores)
        if not self._has_ended:
            os.kill(self.pid, signal.SIGKILL)
            while not self._has_ended:
                self._note(os.waitpid(self.pid, 0)[1])
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _resume(self, request: int) -> int:
        due, self._signal_due = self._signal_due, 0
        _ptrace(request, self.pid, 0, due)
        stopped_by = self._wait()
        # A pause is ours and goes no further; what others sent is passed on when the child moves again.
        if stopped_by not in (signal.SIGSTOP, signal.SIGTRAP, _AT_SYSTEM_CALL):
            self._signal_due = stopped_by
        return stopped_by

    def _wait(self) -> int:
        """Return the signal that stopped the child."""
        _, status = os.waitpid(self.pid, 0)
        self._note(status)
        if self._has_ended:
            raise self._ended(f"ended with {self._process.returncode}")
        return os.WSTOPSIG(status)

    def _note(self, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._has_ended = True
            self._process.returncode = os.waitstatus_to_exitcode(status)

    def _ended(self, what: str) -> ChildEnded:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return ChildEnded(
            f"process {self.pid} {what} after {self.steps_taken} steps (it is killed after "
            f"{self._life_s_max:g} s): {said or 'it said nothing'}"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What files held at one moment, by their path below a directory: permissions and bytes."""

    when: int  # how many instructions, or stops at system calls, had passed
    files: dict[str, tuple[int, bytes]]
    directories: dict[str, int]

    def restore(self, directory: Path) -> None:
        """Make the files again below `directory`, which must be new. Nobody holds locks on them there."""
        directory.mkdir(mode=0o700)
        for name, mode in sorted(self.directories.items()):
            (directory / name).mkdir()
            (directory / name).chmod(mode)
        for name, (mode, content) in self.files.items():
            (directory / name).write_bytes(content)
            (directory / name).chmod(mode)


def take_snapshot(directory: Path, when: int = 0) -> Snapshot:
    """Return what all files below `directory` hold now."""
    files, directories = {}, {}
    for path in sorted(directory.rglob("*")):
        name, mode = str(path.relative_to(directory)), path.lstat().st_mode
        if stat.S_ISDIR(mode):
            directories[name] = stat.S_IMODE(mode)
        else:
            files[name] = (stat.S_IMODE(mode), path.read_bytes())
    return Snapshot(when, files, directories)


def memory_states(child: Stepped, directory: Path, names: Sequence[str]) -> Iterator[Snapshot]:
    """Step the child to its next pause; yield what is below `directory`, and again whenever it has changed.

    Looked at after every instruction are the files with these names, which the child must have mapped.
    A state that has been there before is not yielded again.
    """
    base = take_snapshot(directory)
    first_step = child.steps_taken
    with ExitStack() as stack:
        views = [stack.enter_context(_mapped(directory / name)) for name in names]
        last = [view[:] for view in views]
        seen = {tuple(last)}
        yield base
        for is_watched in _every_instruction(child):
            now = [view[:] for view in views]
            if now == last:
                continue
            assert is_watched, f"shared memory was changed outside of the kernels that {child.pid} has named"
            last = now
            if tuple(now) not in seen:
                seen.add(tuple(now))
                changed = {
                    name: (base.files[name][0], content) for name, content in zip(names, now, strict=True)
                }
                yield Snapshot(child.steps_taken - first_step, base.files | changed, base.directories)


def _every_instruction(child: Stepped) -> Iterator[bool]:
    """Move the child to its next pause; yield after every instruction, or after a stretch outside of kernels.

    True for an instruction, False for a stretch.
    """
    if not child.kernels:
        while child.step():
            yield True
        yield True
        return
    while child.run_to_kernel():
        yield False
        for _ in child.steps_of_kernel():
            yield True
    yield False


def directory_states(child: Stepped, directory: Path) -> Iterator[Snapshot]:
    """Run the child to its next pause; yield what is below `directory` whenever a system call changed it."""
    last: Snapshot | None = None
    stop_count = 0
    is_moving = True
    while is_moving:
        now = take_snapshot(directory, stop_count)
        if last is None or (now.files, now.directories) != (last.files, last.directories):
            last = now
            yield now
        is_moving = child.step_system_call()
        stop_count += 1


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)  # reading a word may answer -1 and mean it
    answer = int(_libc.ptrace(request, pid, address, data))
    if answer == -1 and ctypes.get_errno():
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request} for process {pid}: {os.strerror(number)}")
    return answer
