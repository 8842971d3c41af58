"""What a ring's two ends share: the seat, the mapped file, views that are taken back, and waiting."""

from __future__ import annotations

import time
from typing import NamedTuple, Self

import numpy as np

from middleware.shm.arguments import whole
from middleware.shm.atomics import Words
from middleware.shm.bell import Bell, wait_for_bell
from middleware.shm.errors import ShmError
from middleware.shm.ring_file import (
    KIND,
    SEAT_ROLES,
    SEATS_FILE,
    damage,
    open_ring,
    record_bytes_max,
)
from middleware.shm.ring_kernels import DAMAGED, STATE_WORDS, WORD_BYTES
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Identity, Seats
from middleware.shm.waiting import Waiting

BATCH_RECORDS_MAX = 1_024  # what one call of a kernel takes or shows at most
TIMEOUT_NS_MAX = 1 << 60

_NO_WORDS = np.zeros(0, dtype=np.int64)


class Record(NamedTuple):
    """A record in place. The body is readable until the consumer advances; copy what is needed for longer."""

    position: int
    body: memoryview


class RingEnd:
    """What producer and consumer share: the seat, the mapped file, and waiting for the other's cursor."""

    seat: int

    def __init__(self, runtime: Runtime, name: str, who: str, waiting: Waiting, bell: Bell | None) -> None:
        self.name = name
        self._seats = Seats(runtime.place(KIND, name) / SEATS_FILE)
        try:
            self.identity: Identity = self._seats.take(self.seat, who, SEAT_ROLES[self.seat])
            self._seats.insist_current()
            file = open_ring(runtime, name, is_writable=True)
            self.path = file.path
            self.capacity_bytes = file.header.geometry["capacity_bytes"]
            self.record_bytes_max = record_bytes_max(self.capacity_bytes)
            self.words: Words = file.words
            self.state: Words = np.zeros(STATE_WORDS, dtype=np.int64)
            self.bytes = file.words.view(np.uint8).data
            self._lent: list[memoryview] = []
            self.plan = waiting.plan  # and how its waits ended: see waiting.late_count
            self._bell = bell
            self.attach()
        except BaseException:
            self._seats.close()
            raise
        self.ring_bell()  # the one before us may have died between its last move and the bell

    def attach(self) -> None:
        raise NotImplementedError

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        name: str,
        *,
        who: str,
        waiting: Waiting | None = None,
        bell: Bell | None = None,
    ) -> Self:
        """Take this end of an existing ring, or raise InUse with the name of who holds it.

        LayoutError if the file is damaged anywhere that matters: its cursors, or a record between them.
        """
        return cls(runtime, name, who, waiting or Waiting(), bell)

    def close(self) -> None:
        """Leave the ring to a successor. What was committed or consumed stays so; a reservation is lost."""
        if self._seats.is_open:
            self.revoke_lent()
            self.bytes.release()
            self.words = _NO_WORDS
            self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def fill_share(self) -> float:
        """How much of the ring is committed and not consumed, from 0 to 1."""
        return self.fill_bytes / self.capacity_bytes

    @property
    def fill_bytes(self) -> int:
        raise NotImplementedError

    def insist_open(self) -> None:
        # Also says no after a fork: the seat stays with the parent, and two producers would ruin the ring.
        if not self._seats.is_open:
            raise ShmError(f"{self.path}: this {SEAT_ROLES[self.seat]} is closed, or its process was forked")

    def sound(self, answer: int) -> int:
        """Return a kernel's answer, unless it is that the file is damaged."""
        if answer == DAMAGED:
            raise damage(self.path, self.state, self.capacity_bytes)
        return answer

    def lend(self, body_word: int, byte_count: int) -> memoryview:
        begin = body_word * WORD_BYTES
        view = self.bytes[begin : begin + byte_count]
        self._lent.append(view)
        return view

    def revoke_lent(self) -> None:
        """Make the views that callers were given unusable: the bytes behind them are about to be others."""
        for view in self._lent:
            _revoke(view)
        self._lent.clear()

    def ring_bell(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def wait_cursor(self, cursor: int, sleeper: int, seen: int, deadline_ns: int) -> bool:
        """Return whether the other's cursor moved on from `seen` in time; signals are handled meanwhile."""
        left_ns = deadline_ns - time.monotonic_ns()
        return wait_for_bell(self.words, cursor, sleeper, seen, self.plan, left_ns) != seen


def _revoke(view: memoryview) -> None:
    try:
        view.release()
    except BufferError:  # an array was made of it, which nobody can take back
        return


def deadline_of(timeout_ns: int) -> int:
    """Return the moment at which to give up; 0 for who does not wait."""
    wait_ns = whole("timeout_ns", timeout_ns)
    return time.monotonic_ns() + min(wait_ns, TIMEOUT_NS_MAX) if wait_ns > 0 else 0
