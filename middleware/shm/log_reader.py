"""The stream log's readers: each at its own pace, in any process, never shown a frame that is not whole.

A reader's name is first come, first served, among all who may read the log: whether its reader lives is told
by a lock on its file, and anybody who can open that file can hold one. Who does keeps the name from a
successor for as long as it lives; it cannot make the writer wait for a reader that is gone beyond the bound
that all gates have.
"""

from __future__ import annotations

import operator
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np

from feeds import wire
from feeds.compiled import IS_INTERPRETED
from feeds.errors import ConfigError, LimitError
from feeds.wire import FRAME_WORDS, FrameArray, place
from middleware.shm import mapping
from middleware.shm.arguments import whole
from middleware.shm.errors import AlreadyThere, InUse, LayoutError, NotFound, ShmError
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
    RAISED,
    READER_KEY,
    READER_WORDS,
    SLOTS,
    STATE,
    TAIL,
    fetch_kernel,
    pass_kernel,
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
from middleware.shm.word_access_kernels import load_word, store_word

if not IS_INTERPRETED:
    from middleware.shm.log_kernels import poll_kernel

BATCH_FRAMES_DEFAULT = 4_096
BATCH_FRAMES_MAX = 1 << 20
CHUNK_FRAMES = 128  # a compiled handler gets 12 kB at a time, which stay in the first-level cache
MISSED_RANGES_MAX = 10_000
LAPS_PER_READ = 8
OPEN_TRIES = 20
LIMIT_MAX = 1 << 62  # a limit above it is the same as this: kernels count in 64 bits

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
        self._batch_frames = batch_frames
        self._frames = wire.words(wire.empty(batch_frames))
        self._batch = wire.view(self._frames)
        self._chunk = self._frames[:CHUNK_FRAMES]
        self._missed: list[Missed] = []
        self._busy_with = ""  # what must end before anything else is read, told to who tries

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        name: str,
        *,
        who: str,
        start: Start | SupportsIndex = Start.OLDEST,
        is_gating: bool = False,
        waiting: Waiting | None = None,
        batch_frames: SupportsIndex = BATCH_FRAMES_DEFAULT,
    ) -> Self:
        """Join log `name` as reader `who`: at its oldest or newest frame, the next to come, or a number.

        A number that is no longer there counts as missed; one that is still to come is waited for. A gating
        reader asks the writer to wait for it: see `is_gated` and `await_gate`.
        """
        checked_name(who)
        frame_count = _integer(batch_frames, f"batch_frames must be 1 to {BATCH_FRAMES_MAX}")
        if not 1 <= frame_count <= BATCH_FRAMES_MAX:
            raise ConfigError(f"batch_frames must be 1 to {BATCH_FRAMES_MAX}, was {frame_count}")
        if not isinstance(start, Start):
            start = _integer(start, f"start must be a message number or one of {', '.join(map(str, Start))}")
            check_sequence(start)
        strategy = waiting or Waiting()
        directory = runtime.place("logs", name)
        runtime.check()
        try:
            mapped = open_log(directory, is_writable=False)
        except NotFound:
            known = ", ".join(runtime.names("logs")) or "none"
            raise NotFound(f"there is no log {name} in {runtime.path}; there are: {known}") from None
        seats, own = _take_own_file(directory / READERS_DIRECTORY / who, who, runtime.file_mode)
        try:
            reader = cls(name, mapped, seats, own, strategy, frame_count)
            reader._join(start, is_gating=is_gating)
        except BaseException:
            own.path.unlink(missing_ok=True)  # while its seat is ours
            seats.close()
            raise
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
        store_word(self.own, POSITION, next_seq)
        store_word(self.own, READER_KEY, secrets.randbits(62) | 1)
        store_word(self.own, IS_GATING, int(bool(is_gating)))  # last: the other two are what it asks for

    # --- where it is ---

    @property
    def next_seq(self) -> int:
        """The number of the frame that is read next."""
        return int(self.state[NEXT])

    @property
    def tail_seq(self) -> int:
        """The first number that has not been published."""
        return load_word(self.words, TAIL)

    @property
    def oldest_seq(self) -> int:
        """The lowest number that can still be read."""
        return max(load_word(self.words, BEGIN), load_word(self.words, CLAIM) - self.slot_count)

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
        return load_word(self.words, STATE) == ENDED and self.lag == 0

    def take_missed(self) -> list[Missed]:
        """Return the ranges that were missed since the last call, in order. None is ever left out."""
        if self.state[MISSED_END]:
            self._note_missed()  # of a call that was interrupted before it could
        missed, self._missed = self._missed, []
        return missed

    # --- reading ---

    def read(self, limit: SupportsIndex | None = None) -> FrameArray:
        """Return the next frames, copied out and known to be whole; empty if there are none.

        They are consecutive, and follow what was read before or what `take_missed` tells. The memory is the
        reader's own and is used again by the next call.
        """
        wanted = self._begin(limit)
        if wanted > self._batch_frames:
            wanted = self._batch_frames
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = read_kernel(self.words, self.own, self.state, self._frames, wanted)
            if count != LAPPED:
                break
            self._note_missed()
        if count == DAMAGED:
            raise self._damage()
        return self._batch[:count] if count > 0 else self._batch[:0]

    @contextmanager
    def view(self, limit: SupportsIndex | None = None) -> Iterator[FrameArray]:
        """Show the next frames where they lie, without a copy, and go on behind them at the end of the block.

        The writer does not wait for who looks at them, unless this reader has a gate. If it came around,
        `Lapped` is raised at the end of the block: what was seen may have been overwritten and must not be
        used. Where that cannot be undone, use `read`. Nothing else is read until the block has ended; if it
        ends in an exception, the same frames come again.
        """
        wanted = self._begin(limit)
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = peek_kernel(self.words, self.state, wanted)
            if count != LAPPED:
                break
            self._note_missed()
        if count == DAMAGED:
            raise self._damage()
        count = max(count, 0)
        slot = self.next_seq & (self.slot_count - 1)
        begin = SLOTS + slot * FRAME_WORDS
        self._busy_with = "a view is open"
        try:
            yield wire.view(self.words[begin : begin + count * FRAME_WORDS])
        finally:
            self._busy_with = ""
        if count and release_kernel(self.words, self.own, self.state, count) == LAPPED:
            raise Lapped(self.name, self._note_missed())

    def poll(self, handler: CompiledHandler | BatchHandler, limit: SupportsIndex | None = None) -> int:
        """Give up to `limit` frames to a handler; return how many.

        A compiled handler is called from compiled code, with some frames at a time; any other is called with
        one batch, as `read` returns it, if there is one. The reader goes on behind frames, for its gate too,
        when their handler has returned: what a handler raised at is given again by the next poll. Nothing
        else is read while a handler runs.
        """
        wanted = self._begin(limit)
        if not isinstance(handler, CompiledHandler):
            return self._poll_batch(handler, wanted)
        if IS_INTERPRETED:
            return self._poll_interpreted(handler, wanted)
        return self._poll_compiled(handler, wanted)

    def _poll_batch(self, handler: BatchHandler, limit: int) -> int:
        wanted = min(limit, self._batch_frames)
        count = LAPPED
        for _ in range(LAPS_PER_READ):
            count = fetch_kernel(self.words, self.own, self.state, self._frames, wanted)
            if count != LAPPED:
                break
            self._note_missed()
        if count == DAMAGED:
            raise self._damage()
        if count <= 0:
            return 0
        self._busy_with = "a handler runs"
        try:
            handler(self._batch[:count])
        finally:
            self._busy_with = ""
        pass_kernel(self.own, self.state, count)
        return count

    def _poll_compiled(self, handler: CompiledHandler, limit: int) -> int:
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
        if count == RAISED:
            raise self._raised()
        if count == DAMAGED:
            raise self._damage()
        return max(count, 0)

    def _poll_interpreted(self, handler: CompiledHandler, limit: int) -> int:
        """Do without a compiler what `poll_kernel` does: a chunk at a time, until there is no more."""

        def on_chunk(chunk: FrameArray) -> None:
            try:
                handler.function(wire.words(chunk), handler.memory)
            except Exception as error:
                raise self._raised() from error

        handled = 0
        while handled < limit:
            count = self._poll_batch(on_chunk, min(limit - handled, CHUNK_FRAMES))
            if count == 0:
                break
            handled += count
        return handled

    def wait(self, timeout_ns: SupportsIndex | float) -> bool:
        """Wait until there is something to read; return whether there is. An ended log is not waited for."""
        deadline_ns = time.monotonic_ns() + whole("timeout_ns", timeout_ns)
        while True:
            tail = self.tail_seq
            left_ns = deadline_ns - time.monotonic_ns()
            if tail > self.next_seq or left_ns <= 0 or self._has_end():
                return self.tail_seq > self.next_seq
            wait(self.words, TAIL, tail, self._plan, left_ns, self._has_end)

    def _has_end(self) -> bool:
        return load_word(self.words, STATE) == ENDED

    # --- gating ---

    @property
    def is_gating(self) -> bool:
        """Whether this reader asks to be waited for."""
        return bool(load_word(self.own, IS_GATING))

    @property
    def is_gated(self) -> bool:
        """Whether the writer waits for this reader now."""
        return is_waited_for(self.words, load_word(self.own, READER_KEY))

    def await_gate(self, timeout_ns: SupportsIndex | float) -> bool:
        """Wait until the writer waits for this reader; return whether it does."""
        deadline_ns = time.monotonic_ns() + whole("timeout_ns", timeout_ns)
        while not self.is_gated and time.monotonic_ns() < deadline_ns:
            time.sleep(0.001)
        return self.is_gated

    # --- the end ---

    def close(self) -> None:
        """Leave the log. Arrays that `read` and `view` gave stay readable as long as somebody holds them."""
        if self._seats.is_open:
            store_word(self.own, IS_GATING, 0)
            self._own_path.unlink(missing_ok=True)
            self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---

    def _begin(self, limit: SupportsIndex | None) -> int:
        """Return how many frames may be read now, at most; or say why none may."""
        if not self._seats.is_open:  # closed, or left behind in the parent by a fork
            raise ShmError(f"log {self.name} is not open for reading in this process")
        if self._busy_with:
            raise ShmError(
                f"log {self.name}: {self._busy_with}, and nothing else is read until that has ended: read "
                "afterwards, or with another reader"
            )
        if self.state[MISSED_END]:
            self._note_missed()  # of a call that was interrupted before it could
        if len(self._missed) >= MISSED_RANGES_MAX:  # before reading on, so that no range is lost
            raise LimitError(
                f"{self.name}: {len(self._missed)} missed ranges wait for take_missed(), the last up to "
                f"{self._missed[-1].last}: take them, and read faster or ask for a gate"
            )
        if limit is None:
            return self._batch_frames
        # Kernels are compiled for plain integers. What is one already is not asked twice: reading a single
        # frame takes about a microsecond, and a call is a tenth of that.
        wanted = limit if type(limit) is int else _integer(limit, "limit must be a number of frames")
        if wanted < 1:
            raise ConfigError(f"limit must be at least 1, was {wanted}")
        return wanted if wanted < LIMIT_MAX else LIMIT_MAX

    def _damage(self) -> LayoutError:
        sequence = int(self.state[DAMAGED_AT])
        slot = sequence & (self.slot_count - 1)
        found = load_word(self.words, SLOTS + slot * FRAME_WORDS + _SEQ)
        return LayoutError(self._path, f"number of the frame in slot {slot}", found, sequence)

    def _raised(self) -> ShmError:
        return ShmError(
            f"log {self.name}: the handler raised, in the frames from message {self.next_seq} on: what it "
            "raised is printed above, and the next poll gives them to it again"
        )

    def _note_missed(self) -> Missed:
        """Keep what a kernel says was missed. An interrupt may come between any two lines of this."""
        missed = Missed(int(self.state[MISSED_FIRST]), int(self.state[MISSED_END]) - 1)
        last = self._missed[-1] if self._missed else None
        if last is None or last.last + 1 < missed.first:
            self._missed.append(missed)
        elif last.last < missed.last:  # else it was kept, and then an interrupt came
            self._missed[-1] = Missed(last.first, missed.last)
        self.state[MISSED_FIRST] = self.state[MISSED_END] = 0
        return missed


def _integer(number: object, allowed: str) -> int:
    """Return a plain integer for any kind of integer. Unlike a time, a count or a place is never a float."""
    try:
        return operator.index(number)  # type: ignore[arg-type]  # whether it can is the question
    except TypeError:
        raise ConfigError(f"{allowed}, was {number!r}") from None


def _take_own_file(path: Path, who: str, mode: int) -> tuple[Seats, MappedFile]:
    """Make the reader's own file, or take over the one that it left when it died."""
    obstacle: ShmError = InUse(path, "reader", "another process")
    for _ in range(OPEN_TRIES):
        own = _open_own_file(path, who, mode)
        if own is None:
            continue
        try:
            seats = Seats(path, first_byte=READER_SEAT_BYTE)
        except NotFound:
            continue  # removed as a dead reader's, between our making it and our sitting down
        try:
            seats.take(0, who, "reader of that name")
            if seats.is_at(path):
                for word in (IS_GATING, READER_KEY, POSITION):  # first of all, nothing is asked any more
                    store_word(own.words, word, 0)
                return seats, own
        except InUse as error:
            # Perhaps only by the log's writer, which is removing the file of a reader that died.
            seats.close()
            obstacle = InUse(path, "reader", error.holder)
            time.sleep(0.001)
            continue
        except BaseException:
            seats.close()
            raise
        seats.close()  # the log's writer removed the file as a dead reader's just now
    raise obstacle


def _open_own_file(path: Path, who: str, mode: int) -> MappedFile | None:
    """Open the reader's own file, made if need be; None if somebody else made or removed it just now."""
    try:
        return mapping.open_file(path, READER_LAYOUT, is_writable=True)
    except NotFound:
        pass
    except LayoutError as error:
        try:
            path.unlink(missing_ok=True)  # not what a reader left; nobody else's either, by its name
        except OSError as refusal:
            raise ShmError(f"{error}; and it cannot be removed: {refusal.strerror}") from error
    try:
        return mapping.create(path, READER_LAYOUT, who, {}, READER_BODY_BYTES, mode)
    except AlreadyThere:
        return None  # somebody of the same name was faster: see who it is
    except NotFound:
        if path.parent.is_dir():
            return None  # the log's writer took it for a dead reader's, before we sat down
        raise NotFound(f"there is no {path.parent}: the log was removed, or was never whole") from None
