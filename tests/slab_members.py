"""Participants of one slab in one process, for tests; `die` is what SIGKILL leaves of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from middleware.shm.inspection.slabs import ClassReport, SlabReport, inspect_slab
from middleware.shm.runtime import Runtime
from middleware.shm.slab import SizeClass, Slab, SlabConfig

NAME = "bodies"
SMALL = SlabConfig((SizeClass(64, 4), SizeClass(256, 2)), participants=4)


class Join(Protocol):
    """Takes a seat at the slab under test, which is made by the first who does."""

    def __call__(self, who: str, config: SlabConfig = SMALL) -> Slab: ...


@contextmanager
def joining(runtime: Runtime) -> Iterator[Join]:
    """Give the way to join, and close in the end whoever did."""
    opened: list[Slab] = []

    def join(who: str, config: SlabConfig = SMALL) -> Slab:
        opened.append(Slab.open(runtime, NAME, who=who, config=config))
        return opened[-1]

    try:
        yield join
    finally:
        for slab in opened:
            slab.close()


def die(slab: Slab) -> None:
    """Let go of the seat as the kernel does for the dead, without a word."""
    slab._seats.close()


def owned(slab: Slab, byte_count: int = 8, tag: int = 0) -> int:
    handle = slab.allocate(byte_count, tag)
    assert handle is not None
    return handle


def shared(slab: Slab, data: bytes = b"body", tag: int = 0) -> int:
    handle = slab.put(data, tag)
    assert handle is not None
    return handle


def look(runtime: Runtime, name: str = NAME) -> SlabReport:
    """Look at the slab from outside; what is wrong with it is raised."""
    return inspect_slab(runtime.place("slabs", name))


def class_report(runtime: Runtime, which: int = 0) -> ClassReport:
    return look(runtime).classes[which]
