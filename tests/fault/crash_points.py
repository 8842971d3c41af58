"""Stop a process after any store to shared memory, or let another take its turn between any two accesses.

Kernels that are not compiled tell `atomics.observer` of every access. From there a test does what a kill
signal or the scheduler would do, at a point that it chooses and can visit again:

    probe = fresh_log()
    for store_number in every_crash_point(lambda: publish(probe)):
        log = fresh_log()
        with crash_after(store_number):
            publish(log)          # ends right after that store; nothing later happens
        check(log)                # as the next process would find it

Accesses are numbered from 1. A death before the first store leaves the state before it, and needs no crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from feeds.compiled import IS_INTERPRETED
from middleware.shm import atomics


class Crash(BaseException):
    """The process ends here. Not an Exception: nothing that handles errors may handle its own death."""


class CrashPoint:
    """Where a process is to die, and whether it got there."""

    __slots__ = ("has_happened", "store_number", "stores_afterwards", "stores_seen")

    def __init__(self, store_number: int) -> None:
        self.store_number = store_number
        self.stores_seen = 0
        self.has_happened = False
        self.stores_afterwards = 0

    def __call__(self, what: str) -> None:
        if what != "store":
            return
        if self.has_happened:  # cleaning up on the way out, which no killed process does
            self.stores_afterwards += 1
            return
        self.stores_seen += 1
        if self.stores_seen == self.store_number:
            self.has_happened = True
            raise Crash


@contextmanager
def crash_after(store_number: int) -> Iterator[CrashPoint]:
    """End the block right after its store with this number, quietly; a shorter block runs to its end.

    A block that goes on to write after its death (a `finally` that tidies up) shows another memory than a
    killed process would leave, so that is an error.
    """
    if store_number < 1:
        raise ValueError(f"store_number must be at least 1, was {store_number}")
    point = CrashPoint(store_number)
    with _observing(point):
        try:
            yield point
        except Crash:
            assert point.has_happened
    assert not point.stores_afterwards, (
        f"{point.stores_afterwards} stores were made after the crash at store {store_number}: "
        "what a killed process leaves was not tested"
    )


def count_stores(action: Callable[[], object]) -> int:
    """Return how many stores to shared memory `action` makes."""
    return _count(action, "store")


def count_accesses(action: Callable[[], object]) -> int:
    """Return how many accesses to shared memory, loads and stores, `action` makes."""
    return _count(action, None)


def every_crash_point(action: Callable[[], object]) -> Iterator[int]:
    """Yield the number of every store that `action` makes, for `crash_after`; it must make some."""
    store_count = count_stores(action)
    assert store_count > 0, "the action makes no store to shared memory, so there is no point to crash at"
    yield from range(1, store_count + 1)


@contextmanager
def at_every_access(turn: Callable[[], object]) -> Iterator[None]:
    """Let another party take its turn at every access of the block; its own accesses give no turns."""

    def observe(_what: str) -> None:
        with _unobserved():
            turn()

    with _observing(observe):
        yield


@contextmanager
def at_access(access_number: int, turn: Callable[[], object]) -> Iterator[None]:
    """Give another party one turn, at the block's access with this number: before a load or after a store."""
    accesses_seen = 0

    def observe(_what: str) -> None:
        nonlocal accesses_seen
        accesses_seen += 1
        if accesses_seen == access_number:
            with _unobserved():
                turn()

    with _observing(observe):
        yield


def _count(action: Callable[[], object], wanted: str | None) -> int:
    seen = 0

    def observe(what: str) -> None:
        nonlocal seen
        seen += wanted is None or what == wanted

    with _observing(observe):
        action()
    return seen


@contextmanager
def _observing(observer: atomics.Observer) -> Iterator[None]:
    if not IS_INTERPRETED:
        raise RuntimeError("compiled kernels tell nobody of their accesses: run with NUMBA_DISABLE_JIT=1")
    if atomics.observer is not None:
        raise RuntimeError("shared memory is observed already: crash points and turns cannot be nested")
    atomics.observer = observer
    try:
        yield
    finally:
        atomics.observer = None


@contextmanager
def _unobserved() -> Iterator[None]:
    observer, atomics.observer = atomics.observer, None
    try:
        yield
    finally:
        atomics.observer = observer
