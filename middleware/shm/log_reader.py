"""The stream log's readers: each at its own pace, in any process, never shown a frame that is not whole."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from feeds import wire
from feeds.compiled import IS_INTERPRETED
from feeds.errors import ConfigError, LimitError
from feeds.wire import FRAME_WORDS, FrameArray, place
from middleware.shm import mapping
from middleware.shm.errors import InUse, LayoutError, NotFound, ShmError
from middleware.shm.handlers import CompiledHandler
from middleware.shm.log_gates import is_waited_for
from middleware.shm.log_kernels import (
    BEGIN,
    CLAIM,
    DAMAGED,
    DAMAGED_AT,
    ENDED,
    IS_GATING,
    LAPPED,
    MISSED_COUNT,
    MISSED_END,
    MISSED_FIRST,
    NEXT,
    POSITION,
    READER_KEY,
    READER_WORDS,
    SLOTS,
    STATE,
    TAIL,
    peek_kernel,
    read_kernel,
    release_kernel,
)
from middleware.shm.log_layout import (
    READER_BODY_BYTES,
    READER_LAYOUT,
    READER_SEAT_BYTE,
    READERS_DIRECTORY,
    Lapped,
    Missed,
    Start,
    check_sequence,
    open_log,
)
from middleware.shm.mapping import MappedFile
from middleware.shm.names import checked_name
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from middleware.shm.waiting import Waiting, wait

if not IS_INTERPRETED:
    from middleware.shm.log_kernels import poll_kernel

BATCH_FRAMES_DEFAULT = 4_096
BATCH_FRAMES_MAX = 1 << 20
CHUNK_FRAMES = 128  # a compiled handler gets 12 kB at a time, which stay in the first-level cache
MISSED_RANGES_MAX = 10_000
LAPS_PER_READ = 8
WAIT_SLICE_NS = 100_000_000
OPEN_TRIES = 20

_SEQ = place("message_seq").word

BatchHandler = Callable[[FrameArray], Any]


class LogReader:
    """Follows one log. Not for use by several threads at once; open another reader instead."""

    def __init__(
        self,
        name: str,
        mapped: MappedFile,
        seats: Seats,
        own: MappedFile,
        waiting: Waiting,
        batch_frames: int,
    ) -> None:
        """Read an open log; use `LogReader.open`."""
        self.name = name
        self.words = mapped.words
        self.slot_count = mapped.header.geometry["slot_count"]
        self.incarnation = mapped.header.incarnation
        self.state = np.zeros(READER_WORDS, dtype=np.int64)
        self.own = own.words
        self._path = mapped.path
        self._own_path = own.path
        self._seats = seats
        self._plan = waiting.plan
        self._frames = wire.words(wire.empty(batch_frames))
        self._batch = wire.view(self._frames)
        self._chunk = self._frames[:CHUNK_FRAMES]
        self._missed: list[Missed] = []

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        name: str,
        *,
        who: str,
        start: Start | int = Start.OLDEST,
        is_gating: bool = False,
        waiting: Waiting | None = None,
        batch_frames: int = BATCH_FRAMES_DEFAULT,
    ) -> Self:
        """Join log `name` as reader `who`: at its oldest or newest frame, the next to come, or a number.

        A number that is no longer there counts as missed; one that is still to come is waited for. A gating
        reader asks the writer to wait for it: see `is_gated` and `await_gate`.
        """
        checked_name(who)
        if not 1 <= batch_frames <= BATCH_FRAMES_MAX:
            raise ConfigError(f"batch_frames must be 1 to {BATCH_FRAMES_MAX}, was {batch_frames}")
        if isinstance(start, int):
            check_sequence(start)
        directory = runtime.place("logs", name)
        runtime.check()
        try:
            mapped = open_log(directory, is_writable=False)
        except NotFound:
            known = ", ".join(runtime.names("logs")) or "none"
            raise NotFound(f"there is no log {name} in {runtime.path}; there are: {known}") from None
        seats, own = _take_own_file(directory / READERS_DIRECTORY / who, who, runtime.file_mode)
        reader = cls(name, mapped, seats, own, waiting or Waiting(), batch_frames)
        reader._join(start, is_gating=is_gating)
        return reader

    def _join(self, start: Start | int, *, is_gating: bool) -> None:
        if isinstance(start, int):
            next_seq = start
        elif start is Start.NEXT:
            next_seq = self.tail_seq
        elif start is Start.NEWEST:
            next_seq = max(self.tail_seq - 1, self.oldest_seq)
        else:
            next_seq = self.oldest_seq
        self.state[NEXT] = next_seq
        self.own[POSITION] = next_seq
        self.own[READER_KEY] = secrets.randbits(62) | 1
        self.own[IS_GATING] = int(is_gating)

    # --- where it is ---

    @property
    def next_seq(self) -> int:
        """The number of the frame that is read next."""
        return int(self.state[NEXT])

    @property
    def tail_seq(self) -> int:
        """The first number that has not been published."""
        return int(self.words[TAIL])

    @property
    def oldest_seq(self) -> int:
        """The lowest number that can still be read."""
        return max(int(self.words[BEGIN]), int(self.words[CLAIM]) - self.slot_count)

    @property
    def lag(self) -> int:
        """How many published frames have not been read yet."""
        return max(self.tail_seq - self.next_seq, 0)

    @property
    def missed_count(self) -> int:
        """How many frames were missed since the reader was opened."""
        return int(self.state[MISSED_COUNT])

    @property
    def is_ended(self) -> bool:
        """Whether everything was read and the writer has said that nothing more will come."""
        return int(self.words[STATE]) == ENDED and self.lag == 0

    def take_missed(self) -> list[Missed]:
        """Return the ranges that were missed since the last call, in order. None is ever left out."""
        missed, self._missed = self._missed, []
        return missed

    # --- reading ---

    def read(self, limit: int | None = None) -> FrameArray:
        """Return the next frames, copied out and known to be whole; empty if there are none.

        They are consecutive, and follow what was read before or what `take_missed` tells. The memory is the
        reader's own and is used again by the next call.
        """
        wanted = min(self._limit(limit), len(self._frames))
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = read_kernel(self.words, self.own, self.state, self._frames, wanted)
            if count != LAPPED:
                break
            self._note_missed()
        if count == DAMAGED:
            raise self._damage()
        return self._batch[: max(count, 0)]

    @contextmanager
    def view(self, limit: int | None = None) -> Iterator[FrameArray]:
        """Show the next frames where they lie, without a copy, and go on behind them at the end of the block.

        The writer does not wait for who looks at them, unless this reader has a gate. If it came around,
        `Lapped` is raised at the end of the block: what was seen may have been overwritten and must not be
        used. Where that cannot be undone, use `read`.
        """
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = peek_kernel(self.words, self.state, self._limit(limit))
            if count != LAPPED:
                break
            self._note_missed()
        if count == DAMAGED:
            raise self._damage()
        count = max(count, 0)
        slot = self.next_seq & (self.slot_count - 1)
        begin = SLOTS + slot * FRAME_WORDS
        yield wire.view(self.words[begin : begin + count * FRAME_WORDS])
        if count and release_kernel(self.words, self.own, self.state, count) == LAPPED:
            raise Lapped(self.name, self._note_missed())

    def poll(self, handler: CompiledHandler | BatchHandler, limit: int | None = None) -> int:
        """Give up to `limit` frames to a handler; return how many.

        A compiled handler is called from compiled code, with some frames at a time; any other is called with
        one batch, as `read` returns it, if there is one.
        """
        if isinstance(handler, CompiledHandler):
            return self._poll_compiled(handler, self._limit(limit))
        batch = self.read(limit)
        if len(batch):
            handler(batch)
        return len(batch)

    def _poll_compiled(self, handler: CompiledHandler, limit: int) -> int:
        if IS_INTERPRETED:
            return self._poll_interpreted(handler, limit)
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = poll_kernel(
                self.words,
                self.own,
                self.state,
                self._chunk,
                limit,
                handler.address,
                handler.memory,
            )
            if self.state[MISSED_END]:
                self._note_missed()
            if count != LAPPED:
                break
        if count == DAMAGED:
            raise self._damage()
        return max(count, 0)

    def _poll_interpreted(self, handler: CompiledHandler, limit: int) -> int:
        handled = 0
        while handled < limit:
            batch = wire.words(self.read(min(limit - handled, CHUNK_FRAMES)))
            if len(batch) == 0:
                break
            handler.function(batch, handler.memory)
            handled += len(batch)
        return handled

    def wait(self, timeout_ns: int) -> bool:
        """Wait until there is something to read; return whether there is. An ended log is not waited for."""
        deadline_ns = time.monotonic_ns() + timeout_ns
        while True:
            tail = self.tail_seq
            if tail > self.next_seq:
                return True
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0 or int(self.words[STATE]) == ENDED:
                return self.tail_seq > self.next_seq
            wait(self.words, TAIL, tail, self._plan, min(left_ns, WAIT_SLICE_NS))

    # --- gating ---

    @property
    def is_gating(self) -> bool:
        """Whether this reader asks to be waited for."""
        return bool(self.own[IS_GATING])

    @property
    def is_gated(self) -> bool:
        """Whether the writer waits for this reader now."""
        return is_waited_for(self.words, int(self.own[READER_KEY]))

    def await_gate(self, timeout_ns: int) -> bool:
        """Wait until the writer waits for this reader; return whether it does."""
        deadline_ns = time.monotonic_ns() + timeout_ns
        while not self.is_gated and time.monotonic_ns() < deadline_ns:
            time.sleep(0.001)
        return self.is_gated

    # --- the end ---

    def close(self) -> None:
        """Leave the log. Arrays that `read` and `view` gave stay readable as long as somebody holds them."""
        if self._seats.is_open:
            self.own[IS_GATING] = 0
            self._own_path.unlink(missing_ok=True)
            self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---

    def _limit(self, limit: int | None) -> int:
        if not self._seats.is_open:  # closed, or left behind in the parent by a fork
            raise ShmError(f"log {self.name} is not open for reading in this process")
        if len(self._missed) >= MISSED_RANGES_MAX:  # before reading on, so that no range is lost
            raise LimitError(
                f"{self.name}: {len(self._missed)} missed ranges wait for take_missed(), the last up to "
                f"{self._missed[-1].last}: take them, and read faster or ask for a gate"
            )
        if limit is None:
            return len(self._frames)
        if limit < 1:
            raise ConfigError(f"limit must be at least 1, was {limit}")
        return int(limit)  # kernels are compiled for plain integers, not for every type that counts

    def _damage(self) -> LayoutError:
        sequence = int(self.state[DAMAGED_AT])
        slot = sequence & (self.slot_count - 1)
        found = int(self.words[SLOTS + slot * FRAME_WORDS + _SEQ])
        return LayoutError(self._path, f"number of the frame in slot {slot}", found, sequence)

    def _note_missed(self) -> Missed:
        missed = Missed(int(self.state[MISSED_FIRST]), int(self.state[MISSED_END]) - 1)
        self.state[MISSED_FIRST] = self.state[MISSED_END] = 0
        if self._missed and self._missed[-1].last + 1 == missed.first:
            self._missed[-1] = Missed(self._missed[-1].first, missed.last)
        else:
            self._missed.append(missed)
        return missed


def _take_own_file(path: Path, who: str, mode: int) -> tuple[Seats, MappedFile]:
    """Make the reader's own file, or take over the one that it left when it died."""
    holder = "another process"
    for _ in range(OPEN_TRIES):
        try:
            own = mapping.open_file(path, READER_LAYOUT, is_writable=True)
        except NotFound:
            try:
                own = mapping.create(path, READER_LAYOUT, who, {}, READER_BODY_BYTES, mode)
            except FileNotFoundError:
                raise NotFound(f"there is no {path.parent}: the log was removed") from None
            except ShmError:
                continue  # somebody of the same name was faster: see who it is
        except LayoutError:
            path.unlink(missing_ok=True)  # not what a reader left; nobody else's either, by its name
            continue
        seats = Seats(path, first_byte=READER_SEAT_BYTE)
        try:
            seats.take(0, who, "reader of that name")
            if seats.is_at(path):
                own.words[POSITION : READER_KEY + 1] = 0
                return seats, own
        except InUse as error:
            # Perhaps only by the log's writer, which is removing the file of a reader that died.
            seats.close()
            holder = error.holder
            time.sleep(0.001)
            continue
        except BaseException:
            seats.close()
            raise
        seats.close()  # the log's writer removed the file as a dead reader's just now
    raise InUse(path, "reader", holder)
