"""The end of a ring that consumes records: it looks at them first, then advances past them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from feeds.errors import LimitError
from middleware.shm.arguments import whole
from middleware.shm.atomics import Words
from middleware.shm.errors import ShmError
from middleware.shm.ring_end import BATCH_RECORDS_MAX, Record, RingEnd, deadline_of
from middleware.shm.ring_file import CONSUMER_SEAT
from middleware.shm.ring_kernels import (
    BATCH_BODY_WORD,
    BATCH_BYTES,
    BATCH_END,
    BATCH_POSITION,
    BATCH_ROWS,
    CONSUMED,
    CONSUMER_SLEEPS,
    NONE,
    TAIL,
    advance_kernel,
    attach_consumer_kernel,
    read_batch_kernel,
    see_tail_kernel,
)


class Batch:
    """Some records in place, as arrays for kernels: body `i` begins at `words[body_words[i]]`.

    The arrays and bodies are good until the consumer reads or advances again.
    """

    __slots__ = ("_record", "body_words", "byte_counts", "positions")

    def __init__(
        self, record: Callable[[int], Record], positions: Words, body_words: Words, byte_counts: Words
    ) -> None:
        self._record = record
        self.positions = positions
        self.body_words = body_words
        self.byte_counts = byte_counts

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Record:
        which = whole("a record's index", index)
        if not 0 <= which < len(self):
            raise IndexError(f"a batch of {len(self)} records has no record {which}")
        return self._record(which)

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, range(len(self)))


class RingConsumer(RingEnd):
    """The end that consumes records: look at them first, then advance past them."""

    seat = CONSUMER_SEAT

    def attach(self) -> None:
        self.sound(attach_consumer_kernel(self.words, self.state))
        self.bytes = self.bytes.toreadonly()
        self._batch = np.zeros((BATCH_ROWS, BATCH_RECORDS_MAX), dtype=np.int64)
        self._shown_count = 0
        self._reading = 0  # counts the reads and advances, each of which ends the batch before it
        self._is_consuming = False

    @property
    def head(self) -> int:
        """The position of the first record that is not consumed."""
        return int(self.state[CONSUMED])

    @property
    def fill_bytes(self) -> int:
        """How much is committed and not consumed."""
        self.insist_open()
        return self.sound(see_tail_kernel(self.words, self.state)) - self.head

    def peek(self) -> Record | None:
        """Return the first record that is not consumed, in place, the same until `advance`; or None."""
        return self._record(0) if self._show(1) else None

    def read_batch(self, limit: int = BATCH_RECORDS_MAX) -> Batch:
        """Return the first records that are not consumed, at most `limit` and BATCH_RECORDS_MAX of them."""
        shown = self._batch[:, : self._show(limit)]
        record = partial(self._record_of, self._reading)
        return Batch(record, shown[BATCH_POSITION], shown[BATCH_BODY_WORD], shown[BATCH_BYTES])

    def advance(self, record_count: int | None = None) -> None:
        """Consume what was last shown, or the first `record_count` of it."""
        self._insist_idle()
        count = self._shown_count if record_count is None else whole("record_count", record_count)
        if not 1 <= count <= self._shown_count:
            raise ShmError(
                f"{self.path}: advance must be past 1 to {self._shown_count} shown records, was {count}"
            )
        self._shown_count = 0
        self._advance_to(int(self._batch[BATCH_END, count - 1]))

    def consume(self, handler: Callable[[Record], object], limit: int = BATCH_RECORDS_MAX) -> int:
        """Call `handler` with up to `limit` records; return how many.

        Each is consumed when the handler has returned. If it raises, its record and those after it stay, and
        are shown again; the error goes to the caller.
        """
        count = self._show(limit)
        positions, body_words, byte_counts, ends = self._batch[:, :count].tolist()
        self._shown_count = 0
        self._is_consuming = True
        try:
            for position, body_word, byte_count, end in zip(
                positions, body_words, byte_counts, ends, strict=True
            ):
                handler(Record(position, self.lend(body_word, byte_count)))
                self._advance_to(end)
        finally:
            self._is_consuming = False
        return count

    def wait(self, timeout_ns: int) -> bool:
        """Return whether there is a record that is not consumed, or came to be in time."""
        self.insist_open()
        deadline_ns = deadline_of(timeout_ns)
        tail = self.sound(see_tail_kernel(self.words, self.state))
        if tail > self.head:
            return True
        return deadline_ns != 0 and self.wait_cursor(TAIL, CONSUMER_SLEEPS, tail, deadline_ns)

    def _show(self, limit: int) -> int:
        self._insist_idle()
        record_count_max = min(whole("limit", limit), BATCH_RECORDS_MAX)
        if record_count_max < 1:
            raise LimitError(f"{self.path}: limit must be at least 1 record, was {limit}")
        self.revoke_lent()
        self._reading += 1
        self._shown_count = 0
        count = read_batch_kernel(self.words, self.state, self._batch, record_count_max)
        self._shown_count = self.sound(count)
        return self._shown_count

    def _record_of(self, reading: int, index: int) -> Record:
        if reading != self._reading:
            raise ShmError(f"{self.path}: a batch is over when its consumer reads or advances again")
        return self._record(index)

    def _record(self, index: int) -> Record:
        self.insist_open()
        shown = self._batch[:, index].tolist()
        return Record(shown[BATCH_POSITION], self.lend(shown[BATCH_BODY_WORD], shown[BATCH_BYTES]))

    def _advance_to(self, position: int) -> None:
        self.insist_open()  # a handler may have closed us
        self.revoke_lent()
        self._reading += 1
        if advance_kernel(self.words, self.state, position) == NONE:
            raise ShmError(f"{self.path}: a kernel has advanced to {self.head}, past what was shown before")
        self.ring_bell()

    def _insist_idle(self) -> None:
        self.insist_open()
        if self._is_consuming:
            raise ShmError(f"{self.path}: a handler must not read or advance: its record is consumed for it")
