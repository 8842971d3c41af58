"""Children for the tests of stepping itself: they do one small thing to files between two pauses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from feeds.compiled import kernel
from middleware.shm.atomics import Words, copy_words, load_acquire, store_release
from tests.fault.stepping import become_steppable, pause


@kernel
def write_kernel(words: Words, source: Words) -> None:
    copy_words(words, 8, source, 0, source.size)
    store_release(words, 0, load_acquire(words, 0) + 1)


def write_words(path: Path, *, is_kernel_named: bool) -> None:
    words = np.memmap(path, dtype=np.int64, mode="r+")
    source = np.arange(1, 5, dtype=np.int64)
    write_kernel(np.zeros(16, dtype=np.int64), source)
    become_steppable(*([write_kernel] if is_kernel_named else []))
    while True:
        pause()
        write_kernel(words, source)
        sys.stdout.write(f"{words[0]}\n")
        sys.stdout.flush()


def write_by_kernel(path: Path) -> None:
    write_words(path, is_kernel_named=True)


def write_anywhere(path: Path) -> None:
    write_words(path, is_kernel_named=False)


def write_outside(path: Path) -> None:
    """Name a kernel, and then write without it."""
    words = np.memmap(path, dtype=np.int64, mode="r+")
    write_kernel(np.zeros(16, dtype=np.int64), np.arange(1, 5, dtype=np.int64))
    become_steppable(write_kernel)
    pause()
    words[3] = 1
    pause()


def make_file(directory: Path) -> None:
    become_steppable()
    pause()
    fd = os.open(directory / "new", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, b"whole")
    os.close(fd)
    os.link(directory / "new", directory / "named")
    (directory / "new").unlink()
    pause()


def hang(_path: Path) -> None:
    become_steppable()
    pause()
    while True:
        pass


ACTIONS = {
    "kernel": write_by_kernel,
    "anywhere": write_anywhere,
    "outside": write_outside,
    "make": make_file,
    "hang": hang,
}

if __name__ == "__main__":
    ACTIONS[sys.argv[1]](Path(sys.argv[2]))
