"""The inspector's look at a stream log: who writes, who reads, where they are, how far behind."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path

import numpy as np

from feeds import wire
from feeds.compiled import i64
from feeds.errors import ConfigError
from feeds.wire import FrameArray
from middleware.shm.errors import LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.inspection.files import (
    Condition,
    FileFacts,
    FileSight,
    Holder,
    Life,
    User,
    held_by,
    look_at_seats,
    settled,
)
from middleware.shm.log_gates import READERS_MAX, ReaderSight, see_readers
from middleware.shm.log_kernels import (
    BEGIN,
    CLAIM,
    CONTROL_WORD,
    DAMAGED,
    DAMAGED_AT,
    ENDED,
    GATE_COUNT,
    GATES,
    LAPPED,
    NEXT,
    PUBLISHED_AT,
    READER_WORDS,
    STATE,
    TAIL,
    read_kernel,
)
from middleware.shm.log_layout import (
    LOG_FILE,
    LOG_LAYOUT,
    READER_LAYOUT,
    READERS_DIRECTORY,
    WRITER_SEAT_FILE,
    check_cursors,
    check_sizes,
    open_log,
)
from middleware.shm.mapping import LINE_WORDS, SCRATCH_PREFIX, read_header

FRAMES_MAX = 10_000
LAPS_MAX = 8


class GateState(StrEnum):
    """How a reader and the writer stand to each other."""

    NONE = ""  # it does not ask to be waited for
    WAITED_FOR = "waited for"
    PASSED_OVER = "not waited for"  # it asks, but was overrun, is too far behind, or all gates are taken


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """One reader of a log. `problem` says why the rest cannot be told, if so."""

    name: str
    holder: Holder | None
    position: int  # the number of the message that it reads next
    lag: int  # messages that were published and that it has not read
    lag_share: float  # of the whole log: at 1 it is lapped
    missed: int  # messages that it has not read and that are overwritten already
    gate: GateState
    problem: str = ""

    @property
    def is_alive(self) -> bool:
        return self.holder is not None and self.holder.is_alive

    @property
    def is_lapped(self) -> bool:
        return self.missed > 0


@dataclass(frozen=True, slots=True)
class LogReport:
    """A stream log as an onlooker sees it."""

    kind: str
    name: str
    condition: Condition
    reason: str
    facts: FileFacts
    writer: Holder | None
    is_writer_seen: bool  # if not, that there is none to be seen says nothing
    slot_count: int
    begin_seq: int  # the lowest number since the log was made, or since its numbers last jumped
    oldest_seq: int  # the lowest that can still be read
    next_seq: int  # the first that was not published
    claim_seq: int  # the first whose slot the writer does not prepare
    published_age_ns: int | None
    readers: tuple[ReaderReport, ...]
    readers_problem: str
    gates_taken: int
    gates_max: int

    @property
    def message_count(self) -> int:
        return max(self.next_seq - self.oldest_seq, 0)

    @property
    def slowest(self) -> ReaderReport | None:
        """The living reader that is furthest behind."""
        return max(
            (reader for reader in self.readers if reader.is_alive), key=lambda each: each.lag, default=None
        )


@dataclass(frozen=True, slots=True)
class _Cursors:
    begin: int
    tail: int
    claim: int
    state: int
    published_at_ns: int
    gate_keys: frozenset[int]


def inspect_log(place: Path) -> LogReport:
    """Look at the log in directory `place`; ShmError says why that cannot be."""
    with FileSight(place / LOG_FILE, LOG_LAYOUT) as log:
        slot_count = check_sizes(log.path, log.header)
        cursors = settled(lambda: _look(log, slot_count))
        oldest = max(cursors.begin, cursors.claim - slot_count)
        seats = look_at_seats(place / WRITER_SEAT_FILE, 1)
        writer = seats.holder(0)
        is_written = bool(seats.problem) or (writer is not None and writer.is_alive)
        readers, readers_problem = _look_at_readers(place / READERS_DIRECTORY, log, slot_count)
        if not is_written:  # the gates of a dead writer say for whom it waited, and nobody does now
            readers = tuple(replace(reader, gate=_without_writer(reader.gate)) for reader in readers)
        condition, reason = Condition.NO_WRITER, ""
        if cursors.state == ENDED:
            condition = Condition.ENDED
        elif seats.problem:
            condition, reason = Condition.UNSEEN, seats.problem
        elif writer is not None and writer.is_alive:
            condition = Condition.LIVE
        return LogReport(
            kind="log",
            name=place.name,
            condition=condition,
            reason=reason,
            facts=log.facts,
            writer=writer,
            is_writer_seen=not seats.problem,
            slot_count=slot_count,
            begin_seq=cursors.begin,
            oldest_seq=oldest,
            next_seq=cursors.tail,
            claim_seq=cursors.claim,
            published_age_ns=_age_ns(cursors.published_at_ns),
            readers=readers,
            readers_problem=readers_problem,
            gates_taken=len(cursors.gate_keys),
            gates_max=GATE_COUNT,
        )


def log_users(place: Path) -> list[User]:
    """Return who writes or reads the log now."""
    writer = look_at_seats(place / WRITER_SEAT_FILE, 1).holder(0)
    users = [User("writer", writer)] if writer is not None else []
    with suppress(NotADirectoryError):  # nobody can read a log without this directory
        users += [User("reader", _holder(sight)) for sight in see_readers(place / READERS_DIRECTORY)]
    return [user for user in users if user.holder.is_alive]


def newest_frames(place: Path, limit: int) -> FrameArray:
    """Return the newest frames of a log, up to `limit`, whole and in order, as any reader would get them.

    Nothing is left behind: what a reader says of itself in a file of its own is said to private memory here.
    """
    if not 1 <= limit <= FRAMES_MAX:
        raise ConfigError(f"frames must be 1 to {FRAMES_MAX}, was {limit}")
    log = open_log(place, is_writable=False)
    slot_count = log.header.geometry["slot_count"]
    count = min(limit, slot_count)
    frames = wire.words(wire.empty(count))
    own = np.zeros(CONTROL_WORD + LINE_WORDS, dtype=np.int64)
    state = np.zeros(READER_WORDS, dtype=np.int64)
    oldest = max(int(log.words[BEGIN]), int(log.words[CLAIM]) - slot_count)
    state[NEXT] = max(int(log.words[TAIL]) - count, oldest)
    found = LAPPED
    for _ in range(LAPS_MAX):  # lapped, it goes on above the oldest frame: fewer frames, but whole ones
        found = read_kernel(log.words, own, state, frames, i64(count))
        if found != LAPPED:
            break
    if found == DAMAGED:
        sequence = int(state[DAMAGED_AT])
        slot = sequence & (slot_count - 1)
        raise LayoutError(log.path, f"number of the frame in slot {slot}", "another", sequence)
    return wire.view(frames[: max(found, 0)])


def _look(log: FileSight, slot_count: int) -> _Cursors:
    check_cursors(log.path, log, slot_count)
    # TAIL before CLAIM: a writer that is at work moves both, and what is below TAIL was claimed before.
    begin, tail, claim, state = log[BEGIN], log[TAIL], log[CLAIM], log[STATE]
    keys = frozenset(int(key) for key in log.read(GATES, GATE_COUNT) if key != 0)
    return _Cursors(begin, tail, claim, state, log[PUBLISHED_AT], keys)


def _age_ns(published_at_ns: int) -> int | None:
    """Return how long ago that was by the clock of this host; None for never, or before it was started."""
    age_ns = time.monotonic_ns() - published_at_ns
    return age_ns if published_at_ns > 0 and age_ns >= 0 else None


def _look_at_readers(
    directory: Path, log: FileSight, slot_count: int
) -> tuple[tuple[ReaderReport, ...], str]:
    """Return all readers, also those whose file is none, and why they cannot be seen, if so."""
    try:
        names = [path.name for path in islice(directory.iterdir(), READERS_MAX)]
        reports = {}
        for sight in see_readers(directory):
            if sight.key != 0:  # else it is joining, or no reader's: `_reader_problem` tells which
                reports[sight.name] = _reader_report(sight, log, slot_count)
    except FileNotFoundError:
        return (), ""
    except OSError as error:
        return (), f"cannot list {directory}: {error.strerror}"
    for name in names:
        if name not in reports and not name.startswith(SCRATCH_PREFIX):
            problem = _reader_problem(directory / name)
            if problem is not None:
                reports[name] = ReaderReport(name, None, 0, 0, 0.0, 0, GateState.NONE, problem)
    seen = [reports[name] for name in sorted(reports) if not name.startswith(SCRATCH_PREFIX)]
    return tuple(seen), ""


def _reader_report(sight: ReaderSight, log: FileSight, slot_count: int) -> ReaderReport:
    # Right after the position was seen: what is published between the two looks counts as lag, which is some
    # microseconds' worth, and a reader is never seen ahead of a writer that it follows.
    tail, claim, begin = log[TAIL], log[CLAIM], log[BEGIN]
    lag = max(tail - sight.position, 0)
    gate = GateState.NONE
    if sight.is_gating:
        is_waited_for = sight.is_alive and sight.key in log.read(GATES, GATE_COUNT).tolist()
        gate = GateState.WAITED_FOR if is_waited_for else GateState.PASSED_OVER
    missed = max(min(max(begin, claim - slot_count), tail) - sight.position, 0)
    return ReaderReport(sight.name, _holder(sight), sight.position, lag, lag / slot_count, missed, gate)


def _without_writer(gate: GateState) -> GateState:
    return GateState.PASSED_OVER if gate is GateState.WAITED_FOR else gate


def _holder(sight: ReaderSight) -> Holder:
    if sight.identity is None:
        return Holder("", 0, 0, Life.ALIVE if sight.is_alive else Life.DEAD)
    return held_by(sight.identity, is_alive=sight.is_alive)


def _reader_problem(path: Path) -> str | None:
    """Return why a file says nothing of a reader; None if it is gone."""
    try:
        read_header(path, READER_LAYOUT)
    except NotFound:
        return None
    except PermissionsError:
        return f"no right to read {path}"
    except ShmError as error:
        return str(error)
    return f"{path} does not say yet where its reader is"
