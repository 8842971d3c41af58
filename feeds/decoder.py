"""`Decoder`: an exchange's bytes in, batches of frames out. The owner of all memory that a decoding needs.

The kernels of a format do the work; here their arguments are checked once per batch, their state is kept
from call to call, and their counters are turned into words. It works alike for packets, for files and for
every ExchangeFormat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeds import formats as f
from feeds import wire
from feeds.errors import ConfigError, SourceError
from feeds.wire import UnparsedReason

FRAME_CAPACITY_DEFAULT = 4096  # 384 KiB: a batch stays in the second-level cache for whoever reads it next
FRAME_CAPACITY_MAX = 1 << 24
_U32_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Problem:
    """One source message that became an UNPARSED frame."""

    source_seq: int
    position: int  # of the message's length prefix
    reason: UnparsedReason
    message_type: int
    message_bytes: int
    expected_bytes: int | None  # what the type should have, if it is a known one

    def __str__(self) -> str:
        where = f"message {self.source_seq} at byte {self.position}"
        letter = (
            repr(chr(self.message_type)) if 0x20 < self.message_type < 0x7F else f"{self.message_type:#04x}"
        )
        if self.message_bytes == 0:
            return f"{where}: no bytes at all"
        if self.reason is UnparsedReason.UNKNOWN_TYPE:
            return f"{where}: unknown type {letter} ({self.message_bytes} bytes)"
        if self.reason is UnparsedReason.WRONG_LENGTH:
            return f"{where}: type {letter} must be {self.expected_bytes} bytes, was {self.message_bytes}"
        return f"{where}: type {letter} ({self.message_bytes} bytes) holds a value that is not allowed"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run of unknown count ended before its bytes did."""

    reason: int  # one of formats.STOP_*
    position: int  # of the length prefix that could not be followed


class Decoder:
    """Decodes one source stream. Frames are views of its own memory, valid until the next step."""

    def __init__(
        self,
        exchange_format: f.ExchangeFormat,
        stream_id: int,
        *,
        midnight_ns: int = 0,
        epoch: int = 0,
        first_message_seq: int = 1,
        frame_capacity: int = FRAME_CAPACITY_DEFAULT,
    ) -> None:
        _check_range("stream_id", stream_id, 0, _U32_MAX)
        _check_range("epoch", epoch, 0, _U32_MAX)
        _check_range("first_message_seq", first_message_seq, 0, f.SEQUENCE_LIMIT)
        _check_range(
            "frame_capacity", frame_capacity, exchange_format.frames_per_message_max, FRAME_CAPACITY_MAX
        )
        self.format = exchange_format
        self.directory = exchange_format.new_directory()
        self.state = np.zeros(f.STATE_FIELDS, dtype=np.int64)
        self.state[f.STATE_STREAM_ID] = stream_id
        self.state[f.STATE_EPOCH] = epoch
        self.state[f.STATE_MIDNIGHT_NS] = midnight_ns
        self.state[f.STATE_NEXT_MESSAGE_SEQ] = first_message_seq
        self.counts = np.zeros(f.TYPE_COUNT, dtype=np.int64)
        self._problem_rows = np.zeros((f.PROBLEM_SLOTS, f.PROBLEM_FIELDS), dtype=np.int64)
        self._problems: deque[Problem] = deque(maxlen=f.PROBLEM_SLOTS)
        self._problems_seen = 0
        self._frames = wire.empty(frame_capacity)
        self._words = wire.words(self._frames)
        self._sizes = {message.letter[0]: message.size for message in exchange_format.message_types}
        self._pass_number = 0
        self._stop: Stop | None = None

    @property
    def message_count(self) -> int:
        """All source messages so far, read or not."""
        return int(self.state[f.STATE_MESSAGE_COUNT])

    @property
    def frame_count(self) -> int:
        return int(self.state[f.STATE_FRAME_COUNT])

    @property
    def problem_count(self) -> int:
        """Source messages so far that became UNPARSED frames."""
        return int(self.state[f.STATE_PROBLEM_COUNT])

    @property
    def symbol_changes(self) -> int:
        """How often an instrument came with another symbol than before."""
        return int(self.state[f.STATE_SYMBOL_CHANGES])

    @property
    def problems(self) -> list[Problem]:
        """The latest problems, oldest first; at most formats.PROBLEM_SLOTS are kept."""
        return list(self._problems)

    @property
    def stop(self) -> Stop | None:
        """Why the last pass ended early, or None if it reached the end of its runs."""
        return self._stop

    @property
    def counts_by_type(self) -> dict[str, int]:
        """Source messages per type letter, most frequent first."""
        order = sorted(np.flatnonzero(self.counts), key=lambda letter: (-self.counts[letter], letter))
        return {chr(letter): int(self.counts[letter]) for letter in order}

    def symbol_of(self, instrument_id: int) -> str | None:
        """Return the symbol of an instrument, or None if no message has named it yet."""
        return self.format.symbol_of(self.directory, instrument_id)

    def instrument_of(self, symbol: str) -> int | None:
        """Return the instrument of a symbol, or None if no message has named it yet."""
        return self.format.instrument_of(self.directory, symbol)

    def decode(
        self, data: Any, runs: f.IntArray, *, publish_time_ns: int = 0, position_base: int = 0
    ) -> Iterator[wire.FrameArray]:
        """Return an iterator over the frames of `runs` in `data`, one batch per step.

        A batch is overwritten by the next step. Positions in problems and in `stop` count from
        `position_base` at the start of `data`. Starting another pass ends this one.
        """
        data = as_data(data)
        check_runs(runs, data.size)
        self._pass_number += 1
        self._stop = None
        for field in (f.STATE_RUN_INDEX, f.STATE_BYTE_INDEX, f.STATE_MESSAGE_INDEX, f.STATE_STOPPED):
            self.state[field] = 0
        self.state[f.STATE_PUBLISH_NS] = publish_time_ns
        return self._steps(data, runs, position_base, self._pass_number)

    def _steps(
        self, data: f.ByteArray, runs: f.IntArray, position_base: int, pass_number: int
    ) -> Iterator[wire.FrameArray]:
        decode_kernel = self.format.decode_kernel
        state = self.state
        run_count = runs.shape[0]
        while state[f.STATE_RUN_INDEX] < run_count and self._stop is None:
            if pass_number != self._pass_number:
                raise ConfigError(
                    "this pass was ended by a later call of decode(); finish one pass at a time"
                )
            frame_count = decode_kernel(
                data, runs, run_count, state, self.counts, self._problem_rows, self.directory, self._words
            )
            self._collect_problems(position_base)
            if state[f.STATE_STOPPED] != f.STOP_NONE:
                run = runs[state[f.STATE_RUN_INDEX]]
                position = position_base + int(run[f.RUN_OFFSET] + state[f.STATE_BYTE_INDEX])
                self._stop = Stop(int(state[f.STATE_STOPPED]), position)
            if frame_count:
                yield self._frames[:frame_count]

    def _collect_problems(self, position_base: int) -> None:
        """Take the rows that the last step added; of more than the slots hold, the latest are there."""
        total = self.problem_count
        first = max(self._problems_seen, total - f.PROBLEM_SLOTS)
        for index in range(first, total):
            row = self._problem_rows[index % f.PROBLEM_SLOTS]
            message_type = int(row[f.PROBLEM_TYPE])
            self._problems.append(
                Problem(
                    source_seq=int(row[f.PROBLEM_SEQ]),
                    position=position_base + int(row[f.PROBLEM_POSITION]),
                    reason=UnparsedReason(int(row[f.PROBLEM_REASON])),
                    message_type=message_type,
                    message_bytes=int(row[f.PROBLEM_BYTES]),
                    expected_bytes=self._sizes.get(message_type),
                )
            )
        self._problems_seen = total


def new_runs(run_count: int) -> f.IntArray:
    return np.zeros((run_count, f.RUN_FIELDS), dtype=np.int64)


def as_data(data: Any) -> f.ByteArray:
    """Return `data` as the array that kernels take: contiguous bytes.

    Read-only memory (bytes, a read-only map) is copied: to the compiler it is another type, and compiling
    every kernel twice would cost more than the copy of a packet or a small file.
    """
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ConfigError(
            f"data must be contiguous one-dimensional uint8, was {array.ndim}-dimensional {array.dtype}"
        )
    return array if array.flags.writeable else array.copy()


def check_runs(runs: f.IntArray, data_bytes: int) -> None:
    """Refuse runs that leave the data or carry numbers that no frame can hold; the kernels trust them."""
    shape = (f"n, {f.RUN_FIELDS}", f"{runs.dtype}{runs.shape}")
    if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != f.RUN_FIELDS:
        raise ConfigError(f"runs must be int64({shape[0]}), was {shape[1]}")
    if not runs.flags.c_contiguous or not runs.flags.writeable:
        raise ConfigError("runs must be a contiguous, writable array")
    checks = (
        ("offset", runs[:, f.RUN_OFFSET], 0, data_bytes),
        ("bytes", runs[:, f.RUN_BYTES], 0, data_bytes),
        ("end", runs[:, f.RUN_OFFSET] + runs[:, f.RUN_BYTES], 0, data_bytes),
        ("seq", runs[:, f.RUN_SEQ], 0, f.SEQUENCE_LIMIT),
        ("count", runs[:, f.RUN_COUNT], -1, data_bytes),
        ("session", runs[:, f.RUN_SESSION], 0, _U32_MAX),
    )
    for name, values, low, high in checks:
        wrong = np.flatnonzero((values < low) | (values > high))
        if wrong.size:
            index = int(wrong[0])
            raise SourceError(f"run {index}: {name} must be {low} to {high}, was {int(values[index])}")


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be {low} to {high}, was {value}")
