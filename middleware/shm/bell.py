"""A bell: one file that many processes ring, so that one process can wait for all of them at once.

A process with many rings to read cannot sleep on all of them. Its producers ring its bell after they have
committed, and it waits for the bell:

    seen = bell.count
    while True:
        if not read_all_rings():
            seen = bell.wait(seen, plan, timeout_ns)

The count is taken before the rings are read, so a record that is committed while they are read has rung
already, and the wait returns at once. The bell outlives everybody and has no owner: who needs it first makes
it. It says only "look": a ring too many costs a look, and a waiter that was replaced misses nothing, because
it reads its rings before it waits.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Self

from feeds.compiled import i64
from middleware.shm.arguments import whole_word
from middleware.shm.atomics import Words
from middleware.shm.bell_kernels import ring_bell_kernel, sleep_for_bell_kernel
from middleware.shm.errors import LayoutError, NotFound, ShmError
from middleware.shm.mapping import HEADER_BYTES, LINE_WORDS, Header, Layout, MappedFile, create, open_file
from middleware.shm.runtime import Runtime
from middleware.shm.waiting import Waiting, wait_in_steps
from middleware.shm.waiting_kernels import linger_kernel

BELL_FILE = "bell"
LAYOUT = Layout("bell", 1, ())
_BODY_BYTES = mmap.PAGESIZE
BELL_WORD = HEADER_BYTES // 8  # written by who rings
SLEEPER_WORD = BELL_WORD + LINE_WORDS  # written by who is about to sleep, and by who wakes it
_LOOK = Waiting().plan  # a wait of no time at all needs a plan too


class Bell:
    """One bell, open for ringing and for waiting; both write to it."""

    __slots__ = ("_file", "words")

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self.words = file.words  # for kernels, with BELL_WORD and SLEEPER_WORD

    @classmethod
    def make(cls, runtime: Runtime, name: str) -> Self:
        """Open a bell, and make it first if it is not there."""
        path = runtime.make_place("bells", name) / BELL_FILE
        try:
            return cls(_open(path))
        except NotFound:
            pass
        try:
            return cls(create(path, LAYOUT, name, {}, _BODY_BYTES, 0o600))
        except ShmError:
            if not path.exists():
                raise
        return cls(_open(path))  # somebody else made it meanwhile

    @classmethod
    def open(cls, runtime: Runtime, name: str) -> Self:
        """Open a bell that is there; NotFound otherwise."""
        return cls(_open(runtime.place("bells", name) / BELL_FILE))

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def name(self) -> str:
        return self._file.header.name

    @property
    def count(self) -> int:
        """How often it was rung; whatever was stored before those rings is visible."""
        return linger_kernel(self.words, i64(BELL_WORD), i64(0), _LOOK, i64(0))

    def ring(self) -> int:
        """Ring, after whatever it is about was stored; return how many sleepers were woken."""
        return ring_bell_kernel(self.words, i64(BELL_WORD), i64(SLEEPER_WORD))

    def wait(self, seen: int, plan: Words, timeout_ns: int) -> int:
        """Return the count once it is not `seen`, or `seen` after `timeout_ns`; signals are handled.

        `plan` is that of the waiter's `Waiting`, which counts what became of its waits.
        """
        return wait_for_bell(self.words, BELL_WORD, SLEEPER_WORD, seen, plan, timeout_ns)


def wait_for_bell(
    words: Words, bell_index: int, sleeper_index: int, seen: int, plan: Words, timeout_ns: int
) -> int:
    """Return a word that is rung once it is not `seen`, or `seen` after `timeout_ns`; signals are handled."""
    bell, sleeper, value_seen = i64(bell_index), i64(sleeper_index), i64(whole_word("the count seen", seen))

    def linger(step_ns: int) -> int:
        return linger_kernel(words, bell, value_seen, plan, i64(step_ns))

    def sleep(step_ns: int) -> int:
        return sleep_for_bell_kernel(words, bell, sleeper, value_seen, plan, i64(step_ns))

    return wait_in_steps(linger, sleep, seen, plan, timeout_ns)


def check_size(path: Path, header: Header) -> None:
    """Insist that there is room for a bell's words: kernels do not look where the file ends."""
    expected_bytes = HEADER_BYTES + _BODY_BYTES
    if header.file_bytes != expected_bytes:
        raise LayoutError(path, "file size", f"{header.file_bytes} bytes", f"{expected_bytes} bytes")


def _open(path: Path) -> MappedFile:
    file = open_file(path, LAYOUT, is_writable=True)
    check_size(path, file.header)
    return file
