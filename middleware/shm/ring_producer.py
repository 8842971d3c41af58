"""The end of a ring that commits records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feeds.errors import LimitError
from middleware.shm.arguments import whole
from middleware.shm.errors import ShmError
from middleware.shm.ring_end import BATCH_RECORDS_MAX, Record, RingEnd, deadline_of
from middleware.shm.ring_file import PRODUCER_SEAT
from middleware.shm.ring_kernels import (
    COMMITTED,
    HEAD,
    HEAD_SEEN,
    LAST,
    LAST_WORD,
    NONE,
    PRODUCER_SLEEPS,
    WORD_BYTES,
    append_batch_kernel,
    append_kernel,
    attach_producer_kernel,
    claim_kernel,
    commit_kernel,
    read_last_kernel,
    see_head_kernel,
)

Body = bytes | bytearray | memoryview | np.ndarray[Any, Any]

BATCH_BYTES_LIKED = 1 << 18  # what is put in order before each call of a kernel, if there is so much


class RingProducer(RingEnd):
    """The end that commits records. `append` and its kin answer None, 0 or False when the ring is full."""

    seat = PRODUCER_SEAT

    def attach(self) -> None:
        self.sound(attach_producer_kernel(self.words, self.state))
        self._is_reserved = False
        self._reserved_bytes = 0
        # Bodies are put in order here, each from a whole word on, so that one kernel call takes many.
        room_bytes = max(self.record_bytes_max, min(self.capacity_bytes, BATCH_BYTES_LIKED))
        self._bodies = np.zeros(room_bytes // WORD_BYTES, dtype=np.int64)
        self._body_bytes = self._bodies.view(np.uint8).data
        self._byte_counts = np.zeros(BATCH_RECORDS_MAX, dtype=np.int64)

    @property
    def tail(self) -> int:
        """The position behind the last committed record."""
        return int(self.state[COMMITTED])

    @property
    def fill_bytes(self) -> int:
        """How much is committed and not consumed: what high and low marks are compared with."""
        self.insist_open()
        return self.tail - self.sound(see_head_kernel(self.words, self.state))

    def last_committed(self) -> Record | None:
        """Return a copy of the last committed record, ours or a predecessor's; None if there was none yet."""
        self.insist_open()
        if self.tail == 0:
            return None
        byte_count = self.sound(read_last_kernel(self.words, self.state))
        begin = int(self.state[LAST_WORD]) * WORD_BYTES
        return Record(int(self.state[LAST]), memoryview(bytes(self.bytes[begin : begin + byte_count])))

    def append(self, body: Body, timeout_ns: int = 0) -> int | None:
        """Commit one record; return its position, or None if there was no room for it in time."""
        self._insist_free()
        deadline_ns = deadline_of(timeout_ns)
        view = _flat(body)
        byte_count = len(view)
        self._check_size(byte_count)
        self._body_bytes[:byte_count] = view
        position = append_kernel(self.words, self.state, self._bodies, byte_count)
        if position < 0:
            self.sound(position)
            if self._claim(byte_count, deadline_ns) == NONE:
                return None
            position = append_kernel(self.words, self.state, self._bodies, byte_count)
            assert position >= 0, "what was free for the claim stays free: nobody else writes"
        self.ring_bell()
        return position

    def append_many(self, bodies: Sequence[Body], timeout_ns: int = 0) -> int:
        """Commit records in order; return how many, from the first on, there was room for in time.

        As many as fit become visible together. A body that is too large for any room is a LimitError before
        the first is committed.
        """
        self._insist_free()
        deadline_ns = deadline_of(timeout_ns)
        views = [_flat(body) for body in bodies]
        for view in views:
            self._check_size(len(view))
        done = 0
        while done < len(views):
            count = self._line_up(views, done)
            appended = self.sound(
                append_batch_kernel(self.words, self.state, self._bodies, self._byte_counts, count)
            )
            if appended:
                self.ring_bell()
            done += appended
            if appended < count and self._claim(len(views[done]), deadline_ns) == NONE:
                break
        return done

    def reserve(self, byte_count: int, timeout_ns: int = 0) -> memoryview | None:
        """Return room for a body of up to `byte_count` bytes, to be written and then committed; None if full.

        Nothing is visible before `commit`. The room holds old bytes, not zeros.
        """
        self._insist_free()
        room_bytes = self._check_size(whole("byte_count", byte_count))
        body_word = self._claim(room_bytes, deadline_of(timeout_ns))
        if body_word == NONE:
            return None
        self._is_reserved, self._reserved_bytes = True, room_bytes
        return self.lend(body_word, room_bytes)

    def commit(self, byte_count: int | None = None) -> int:
        """Commit what was reserved, or its first `byte_count` bytes; return the record's position."""
        self.insist_open()
        if not self._is_reserved:
            raise ShmError(f"{self.path}: nothing is reserved that could be committed")
        used = self._reserved_bytes if byte_count is None else whole("byte_count", byte_count)
        if not 0 <= used <= self._reserved_bytes:
            raise LimitError(
                f"{self.path}: a commit must be of 0 to {self._reserved_bytes} bytes, was {used}"
            )
        self.abandon()
        position = commit_kernel(self.words, self.state, used)
        if position == NONE:
            raise ShmError(f"{self.path}: a kernel has appended since this was reserved, to the same room")
        self.ring_bell()
        return position

    def abandon(self) -> None:
        """Give a reservation back; what was written to it was never there."""
        self._is_reserved = False
        self.revoke_lent()

    def wait_room(self, byte_count: int, timeout_ns: int) -> bool:
        """Return whether there is room for a body of `byte_count` bytes, or came to be in time."""
        self._insist_free()
        room_bytes = self._check_size(whole("byte_count", byte_count))
        return self._claim(room_bytes, deadline_of(timeout_ns)) != NONE

    def _claim(self, byte_count: int, deadline_ns: int) -> int:
        """Return the word at which a body of this size may be written, or NONE if no room came in time."""
        while True:
            body_word = self.sound(claim_kernel(self.words, self.state, byte_count))
            if body_word != NONE or deadline_ns == 0:
                return body_word
            seen = int(self.state[HEAD_SEEN])  # where the claim found the consumer
            if not self.wait_cursor(HEAD, PRODUCER_SLEEPS, seen, deadline_ns):
                return NONE

    def _line_up(self, views: Sequence[memoryview], first: int) -> int:
        """Copy bodies to where the kernel takes them from; return how many of them fit."""
        begin = 0
        count = 0
        for view in views[first : first + BATCH_RECORDS_MAX]:
            end = begin + len(view)
            if end > len(self._body_bytes):
                break
            self._body_bytes[begin:end] = view
            self._byte_counts[count] = len(view)
            count += 1
            begin = (end + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES
        return count

    def _insist_free(self) -> None:
        self.insist_open()
        if self._is_reserved:
            raise ShmError(f"{self.path}: a record is reserved: commit or abandon it first")

    def _check_size(self, byte_count: int) -> int:
        if not 0 <= byte_count <= self.record_bytes_max:
            raise LimitError(
                f"{self.path}: a record must be of 0 to {self.record_bytes_max} bytes, was {byte_count}; "
                "capacity_bytes sets the limit"
            )
        return byte_count


def _flat(body: Body) -> memoryview:
    """Return any contiguous buffer as its bytes."""
    if isinstance(body, np.ndarray):  # of structures too, which memoryview cannot cast
        return np.frombuffer(body, dtype=np.uint8).data if body.size else memoryview(b"")
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
