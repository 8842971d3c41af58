"""`Arbiter`: two imperfect streams, and what recovery brings, become one; all once, in order (A5, A6).

    arbiter = Arbiter(Cursor(position=1))
    batch = arbiter.arbitrate(from_active, from_backup)   # frames as adapters published them
    if arbiter.hole is not None: ...                      # nothing goes on before it is filled or skipped

The rules are in `arbiter_kernels.py`. What to do about a hole, and how long to wait, is the gap policy's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from feeds import wire
from feeds.errors import ConfigError
from feeds.wire import FRAME_WORDS, FrameArray, WordArray
from middleware.arbiter_kernels import (
    ACTIVE,
    BACKUP,
    COUNT_FIELDS,
    DELIVERED,
    DUPLICATES,
    EPOCH,
    FILLED,
    FILLERS,
    FINISHED_COUNT,
    FINISHED_FIELDS,
    FINISHED_MAX,
    GAP_COUNT,
    GAP_FIELDS,
    HOLE_END,
    IS_FILLING,
    LATE,
    NEXT_ADMIN,
    NEXT_ADMIN_PART,
    NEXT_PART,
    NEXT_SEQ,
    NO_SESSION,
    POSITION,
    RECOVERY,
    REFUSED,
    SESSION,
    STATE_WORDS,
    UNWANTED,
    WINDOW_COUNT,
    arbitrate_kernel,
)
from middleware.shm.atomics import Words

BATCH_FRAMES_DEFAULT = 4_096
BATCH_FRAMES_MAX = 1 << 20
SOURCE_GAPS_PER_CALL = 64
INSTRUMENTS_MAX = 1 << 20
POSITION_MAX = 1 << 61

_NOTHING: WordArray = np.zeros((0, FRAME_WORDS), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Hole:
    """Why nothing can be delivered although frames wait: positions from `first` on are missing.

    `last` is None where only fillers wait, who do not know positions; `fillers` are the windows that have
    the very next message out of step.
    """

    first: int
    last: int | None
    fillers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceGap:
    """Numbers of the exchange that no adapter has; the stream goes on behind them at `position`."""

    session: int
    first: int
    last: int
    position: int


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """What became of one stream's frames. Frames before a gap that come late count as duplicates."""

    delivered: int  # of these: `filled` out of step, `unwanted` not copied out
    filled: int
    unwanted: int
    duplicates: int
    late: int  # of a session that was over
    refused: int  # administrative messages that were not to be believed


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a subscriber is: enough to go on there in another process."""

    position: int
    session: int | None = None
    next_seq: int = 0
    next_part: int = 0
    next_admin: int = 0
    next_admin_part: int = 0
    epoch: int = 0
    finished_sessions: tuple[tuple[int, int], ...] = ()  # (session, the number that would have come next)

    def __post_init__(self) -> None:
        if not 0 <= self.position <= POSITION_MAX:
            raise ConfigError(f"a position must be 0 to {POSITION_MAX}, was {self.position}")
        if len(self.finished_sessions) > FINISHED_MAX:
            raise ConfigError(
                f"at most {FINISHED_MAX} finished sessions are kept, were {len(self.finished_sessions)}"
            )


class Arbiter:
    """Not for use by several threads at once. Its batches hold until the next call."""

    def __init__(
        self,
        start: Cursor,
        *,
        instruments: Iterable[int] | None = None,
        batch_frames: int = BATCH_FRAMES_DEFAULT,
    ) -> None:
        """Begin at a cursor; deliver the given instruments alone, and what belongs to none, or everything."""
        if not 1 <= batch_frames <= BATCH_FRAMES_MAX:
            raise ConfigError(f"batch_frames must be 1 to {BATCH_FRAMES_MAX}, was {batch_frames}")
        self._state = _state_at(start)
        self._finished = np.zeros((FINISHED_MAX, FINISHED_FIELDS), dtype=np.int64)
        self._finished[: len(start.finished_sessions)] = np.array(start.finished_sessions).reshape(-1, 2)
        self._gaps = np.zeros((SOURCE_GAPS_PER_CALL, GAP_FIELDS), dtype=np.int64)
        self._counts = np.zeros((WINDOW_COUNT, COUNT_FIELDS), dtype=np.int64)
        self._wanted = _table_of(instruments)
        self._begins = np.zeros(WINDOW_COUNT, dtype=np.int64)
        self._ends = np.zeros(WINDOW_COUNT, dtype=np.int64)
        self._out = wire.words(wire.empty(batch_frames))
        self._source_gaps: list[SourceGap] = []

    def arbitrate(
        self, active: WordArray = _NOTHING, backup: WordArray = _NOTHING, recovery: WordArray = _NOTHING
    ) -> FrameArray:
        """Return what can be delivered now; `consumed` says how much of each window is done with.

        What is not consumed must be given again, in front of what came after it.
        """
        self._begins[:] = 0
        self._ends[:] = len(active), len(backup), len(recovery)
        written = arbitrate_kernel(
            self._state,
            self._finished,
            self._gaps,
            self._counts,
            self._wanted,
            (active, backup, recovery),
            self._begins,
            self._ends,
            self._out,
        )
        self._collect_gaps()
        return wire.view(self._out[:written])

    @property
    def consumed(self) -> tuple[int, int, int]:
        """How many frames of each window the last call was done with."""
        active, backup, recovery = self._begins.tolist()
        return active, backup, recovery

    @property
    def hole(self) -> Hole | None:
        """What was in the way when the last call ended, if frames were left that wait for others."""
        end, fillers = int(self._state[HOLE_END]), int(self._state[FILLERS])
        if not end and not fillers:
            return None
        windows = tuple(window for window in (ACTIVE, BACKUP, RECOVERY) if fillers >> window & 1)
        return Hole(self.position, end - 1 if end else None, windows)

    @property
    def position(self) -> int:
        """The position that is delivered next."""
        return int(self._state[POSITION])

    @property
    def cursor(self) -> Cursor:
        state = self._state.tolist()
        count = state[FINISHED_COUNT]
        finished = self._finished[:count]
        if count > FINISHED_MAX:  # the table has gone round: the oldest first
            finished = np.roll(finished, -(count % FINISHED_MAX), axis=0)
        return Cursor(
            position=state[POSITION],
            session=None if state[SESSION] == NO_SESSION else state[SESSION],
            next_seq=state[NEXT_SEQ],
            next_part=state[NEXT_PART],
            next_admin=state[NEXT_ADMIN],
            next_admin_part=state[NEXT_ADMIN_PART],
            epoch=state[EPOCH],
            finished_sessions=tuple((int(session), int(seq)) for session, seq in finished),
        )

    def counts(self, window: int) -> WindowCounts:
        row = self._counts[window].tolist()
        return WindowCounts(
            delivered=row[DELIVERED],
            filled=row[FILLED],
            unwanted=row[UNWANTED],
            duplicates=row[DUPLICATES],
            late=row[LATE],
            refused=row[REFUSED],
        )

    def take_source_gaps(self) -> list[SourceGap]:
        """Return the gaps in the exchange's numbers since the last call."""
        gaps, self._source_gaps = self._source_gaps, []
        return gaps

    def on_epoch(self, epoch: int) -> None:
        """Hear of a new epoch: frames of older ones are no longer believed about positions."""
        self._state[EPOCH] = max(int(self._state[EPOCH]), epoch)

    def allow_fillers(self, *, is_allowed: bool) -> None:
        """Let messages of a stream that is out of step be delivered where nobody else has them."""
        self._state[IS_FILLING] = int(is_allowed)

    def skip_to(self, position: int) -> None:
        """Give up what is missing before `position`."""
        if not self.position < position <= POSITION_MAX:
            raise ConfigError(f"can only skip ahead of position {self.position}, was told {position}")
        self._state[POSITION] = position
        self._state[HOLE_END] = self._state[FILLERS] = 0

    def _collect_gaps(self) -> None:
        for row in self._gaps[: int(self._state[GAP_COUNT])].tolist():
            self._source_gaps.append(SourceGap(*row))
        self._state[GAP_COUNT] = 0


def _state_at(start: Cursor) -> Words:
    state = np.zeros(STATE_WORDS, dtype=np.int64)
    state[POSITION] = start.position
    state[SESSION] = NO_SESSION if start.session is None else start.session
    state[NEXT_SEQ], state[NEXT_PART] = start.next_seq, start.next_part
    state[NEXT_ADMIN], state[NEXT_ADMIN_PART] = start.next_admin, start.next_admin_part
    state[EPOCH] = start.epoch
    state[FINISHED_COUNT] = len(start.finished_sessions)
    return state


def _table_of(instruments: Iterable[int] | None) -> Words:
    """Return the set of wanted instruments as the table that kernels probe; of size 0 for all."""
    if instruments is None:
        return np.zeros(0, dtype=np.int64)
    numbers = sorted(set(instruments))
    if len(numbers) > INSTRUMENTS_MAX:
        raise ConfigError(f"at most {INSTRUMENTS_MAX} instruments can be asked for, were {len(numbers)}")
    size = 1 << (2 * len(numbers) + 1).bit_length()  # at most half full, so that every search ends soon
    table = np.zeros(size, dtype=np.int64)
    for number in numbers:
        if not 0 < number <= 0xFFFFFFFF:
            raise ConfigError(f"an instrument number must be 1 to {0xFFFFFFFF}, was {number}")
        place = number & (size - 1)
        while table[place]:
            place = (place + 1) & (size - 1)
        table[place] = number + 1
    return table
