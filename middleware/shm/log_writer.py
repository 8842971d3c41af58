"""The stream log's writer: one at a time, by name; whatever killed the one before, it continues there."""

from __future__ import annotations

import logging
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

import numpy as np

from feeds import wire
from feeds.errors import ConfigError, FrameError
from feeds.wire import FRAME_BYTES, FrameArray, WordArray, place
from middleware.shm import mapping
from middleware.shm.arguments import whole
from middleware.shm.errors import LayoutError, NotFound, ShmError
from middleware.shm.log_gates import GateChange, GateEvent, Gates
from middleware.shm.log_kernels import (
    BEGIN,
    CLAIM,
    CLAIM_LIMIT,
    ENDED,
    LIVE,
    STATE,
    TAIL,
    WRITER_WORDS,
    publish_kernel,
    resume_kernel,
    skip_kernel,
)
from middleware.shm.log_layout import (
    LOG_FILE,
    LOG_LAYOUT,
    READERS_DIRECTORY,
    SEQUENCE_MAX,
    SLOT_COUNT_DEFAULT,
    WRITER_SEAT_FILE,
    body_bytes,
    check_sequence,
    check_slot_count,
    open_log,
)
from middleware.shm.mapping import MappedFile
from middleware.shm.places import remove_place
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from middleware.shm.system_kernels import wake_all_kernel
from middleware.shm.word_access_kernels import load_word, store_word

log = logging.getLogger(__name__)

PATIENCE_NS_DEFAULT = 50_000_000
PATIENCE_NS_MAX = 10_000_000_000
GATE_NAP_S = 20e-6
EVENTS_MAX = 1_000  # the newest are kept for a writer that does not ask for them
FIRST_SEQ_DEFAULT = 1

_SEQ = place("message_seq").word
_LOUD = (GateChange.OVERRUN, GateChange.DIED, GateChange.BROKEN, GateChange.BEHIND, GateChange.REFUSED)


class LogWriter:
    """Publishes frames whose message numbers follow one another. Not for use by several threads at once."""

    def __init__(self, name: str, seats: Seats, mapped: MappedFile, *, patience_ns: int) -> None:
        """Take over an open log; use `LogWriter.open`."""
        self.name = name
        self.slot_count = mapped.header.geometry["slot_count"]
        self.incarnation = mapped.header.incarnation
        self.words = mapped.words
        self.state = np.zeros(WRITER_WORDS, dtype=np.int64)
        self.state[CLAIM_LIMIT] = SEQUENCE_MAX
        self._path = mapped.path
        self._seats = seats
        readers = mapped.path.parent / READERS_DIRECTORY
        self._gates = Gates(mapped.words, self.slot_count, readers, patience_ns)
        self._is_ended = False
        self._events: deque[GateEvent] = deque(maxlen=EVENTS_MAX)
        resume_kernel(self.words)
        store_word(self.words, STATE, LIVE)
        self._gates.start(time.monotonic_ns())
        self._look_after_gates(time.monotonic_ns())

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        name: str,
        *,
        who: str,
        slot_count: int | None = None,
        first_seq: int | None = None,
        patience_ns: int = PATIENCE_NS_DEFAULT,
    ) -> Self:
        """Become the writer of log `name`, made if need be; InUse names the writer that it has already.

        A log that exists is continued: `slot_count` must be its own if it is given, and `first_seq` its next
        number or a later one, to which it then skips.
        """
        if slot_count is not None:
            slot_count = whole("slot_count", slot_count)
            check_slot_count(slot_count)
        if first_seq is not None:
            first_seq = whole("first_seq", first_seq)
            check_sequence(first_seq)
        patience_ns = whole("patience_ns", patience_ns)
        if not 0 <= patience_ns <= PATIENCE_NS_MAX:
            raise ConfigError(f"patience_ns must be 0 to {PATIENCE_NS_MAX}, was {patience_ns}")
        directory = runtime.make_place("logs", name)
        runtime.make_guest_directory(directory / READERS_DIRECTORY)
        seats = Seats(directory / WRITER_SEAT_FILE, is_creator=True)
        try:
            seats.take(0, who, "writer")
            seats.insist_current()
            try:
                mapped = open_log(directory, is_writable=True)
            except NotFound:
                mapped = _create(runtime, name, slot_count or SLOT_COUNT_DEFAULT, first_seq)
            found = mapped.header.geometry["slot_count"]
            if slot_count is not None and slot_count != found:
                raise ConfigError(
                    f"log {name} has {found} slots, not {slot_count}: leave the number out, or remove the log"
                )
            next_seq = load_word(mapped.words, TAIL)
            if first_seq is not None and first_seq < next_seq:
                raise ConfigError(_cannot_go_back(name, next_seq, first_seq))
            writer = cls(name, seats, mapped, patience_ns=patience_ns)
        except BaseException:
            seats.close()
            raise
        if first_seq is not None:
            writer.skip_to(first_seq)
        return writer

    @property
    def next_seq(self) -> int:
        """The number that the next frame must have."""
        return load_word(self.words, TAIL)

    def publish(self, frames: FrameArray | WordArray | Any) -> None:
        """Make a batch visible to all readers. Its message numbers must follow `next_seq`, or none is."""
        self._insist_open()
        rows = wire.words(frames)
        now_ns = time.monotonic_ns()
        if self._gates.is_due(now_ns):
            self._look_after_gates(now_ns)
        count = len(rows)
        done = publish_kernel(self.words, self.state, rows, 0, count)
        if done < 0:
            row = -1 - done
            raise FrameError("message_seq", int(rows[row, _SEQ]), self.next_seq + row, row)
        while done < count:
            self._wait_for_gates()
            done += publish_kernel(self.words, self.state, rows, done, count)

    def publish_one(self, frame: FrameArray | WordArray | Any) -> None:
        """Make a single frame visible: a batch of one."""
        rows = wire.words(frame)
        if len(rows) != 1:
            raise ConfigError(f"publish_one takes one frame, was given {len(rows)}")
        self.publish(rows)

    def skip_to(self, next_seq: int) -> None:
        """Go on with `next_seq`, giving up all numbers before it: readers are told that they missed them."""
        self._insist_open()
        next_seq = whole("next_seq", next_seq)
        check_sequence(next_seq)
        if next_seq < self.next_seq:
            raise ConfigError(_cannot_go_back(self.name, self.next_seq, next_seq))
        if next_seq > self.next_seq:
            skip_kernel(self.words, next_seq)
            wake_all_kernel(self.words, TAIL)

    def service(self) -> list[GateEvent]:
        """Look after the readers that want to be waited for; return what happened to gates since last time.

        `publish` does the looking by itself, every few milliseconds; a writer that calls kernels should call
        this as often.
        """
        self._insist_open()
        now_ns = time.monotonic_ns()
        if self._gates.is_due(now_ns):
            self._look_after_gates(now_ns)
        events = list(self._events)
        self._events.clear()
        return events

    def end(self) -> None:
        """Say that nothing more will come; publishing is refused from now on.

        A writer that opens the log again takes that back.
        """
        self._insist_open()
        self._is_ended = True
        store_word(self.words, STATE, ENDED)
        wake_all_kernel(self.words, TAIL)

    def close(self) -> None:
        """Give up the writer's seat. The log and what is in it stay."""
        if self._seats.is_open:
            self._gates.close()
            self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _insist_open(self) -> None:
        if not self._seats.is_open:  # closed, or left behind in the parent by a fork
            raise ShmError(f"log {self.name} is not open for writing in this process")
        if self._is_ended:
            raise ShmError(f"log {self.name} was ended by this writer: open it again to go on")

    def _look_after_gates(self, now_ns: int) -> None:
        self._gates.look(now_ns)
        self.state[CLAIM_LIMIT] = min(self._gates.claim_limit(), SEQUENCE_MAX)
        self._note_events()

    def _note_events(self) -> None:
        for event in self._gates.take_events():
            log.log(logging.WARNING if event.change in _LOUD else logging.INFO, "%s: %s", self.name, event)
            self._events.append(event)

    def _wait_for_gates(self) -> None:
        """Wait until the slowest gate lets the next frame through, or has used up our patience."""
        next_seq = self.next_seq
        since_ns = time.monotonic_ns()
        while True:
            limit = min(self._gates.claim_limit(), SEQUENCE_MAX)
            self.state[CLAIM_LIMIT] = limit
            self._note_events()
            if limit > next_seq:
                return
            if not self._gates.open_gates:
                raise LayoutError(self._path, "next message number", next_seq, f"below {SEQUENCE_MAX}")
            time.sleep(GATE_NAP_S)
            now_ns = time.monotonic_ns()
            self._gates.on_waited(next_seq, now_ns - since_ns, now_ns)
            since_ns = now_ns


def remove_log(runtime: Runtime, name: str) -> None:
    """Remove a log that nobody writes. Readers that still have it open see that it has ended."""
    directory = runtime.place("logs", name)
    if not directory.is_dir():
        raise NotFound(f"there is no log {name} in {runtime.path}")
    seats = Seats(directory / WRITER_SEAT_FILE, is_creator=True)
    try:
        seats.take(0, "remover", "writer")
        seats.insist_current()
        try:
            words = open_log(directory, is_writable=True).words
            store_word(words, STATE, ENDED)
            wake_all_kernel(words, TAIL)
        except (NotFound, LayoutError) as error:
            log.info("%s: no log whose readers could be told: %s", name, error)
        remove_place(seats, LOG_FILE)
    finally:
        seats.close()


def _cannot_go_back(name: str, next_seq: int, wanted: int) -> str:
    return f"log {name} is at message {next_seq} and cannot go back to {wanted}: remove it to start over"


def _create(runtime: Runtime, name: str, slot_count: int, first_seq: int | None) -> MappedFile:
    """Make an empty log that begins at `first_seq`."""
    path = runtime.place("logs", name) / LOG_FILE
    geometry = {"slot_count": slot_count, "frame_bytes": FRAME_BYTES}
    first = FIRST_SEQ_DEFAULT if first_seq is None else first_seq
    cursors = {BEGIN: first, CLAIM: first, TAIL: first}
    return mapping.create(
        path, LOG_LAYOUT, name, geometry, body_bytes(slot_count), runtime.file_mode, words=cursors
    )
