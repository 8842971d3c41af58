"""A log's reader in unkind hands: odd arguments, two readings at once, handlers that raise, odd files."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds.errors import ConfigError
from feeds.wire import FrameArray, WordArray
from middleware.shm import mapping
from middleware.shm.atomics import Words
from middleware.shm.errors import AlreadyThere, InUse, NotFound, PermissionsError, ShmError
from middleware.shm.handlers import CompiledHandler
from middleware.shm.log import Lapped, LogReader, LogWriter, Missed, compiled_handler
from middleware.shm.log_kernels import MISSED_END, MISSED_FIRST, POSITION
from middleware.shm.log_reader import CHUNK_FRAMES
from middleware.shm.mapping import HEADER_BYTES, SCRATCH_PREFIX
from middleware.shm.runtime import Runtime
from tests.fault.stamped_frame_kernels import stamped

pytestmark = pytest.mark.kernels

NAME = "XNAS.ITCH"
SLOTS = 1_024


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, NAME, who="adapter-a", slot_count=SLOTS) as opened:
        yield opened


@pytest.fixture
def reader(runtime: Runtime, writer: LogWriter) -> Iterator[LogReader]:
    with LogReader.open(runtime, NAME, who="reader") as opened:
        yield opened


def publish(writer: LogWriter, count: int) -> None:
    writer.publish(stamped(writer.next_seq, count))


def numbers(frames: FrameArray) -> list[int]:
    return [int(number) for number in frames["message_seq"]]


def readers_directory(runtime: Runtime) -> Path:
    return runtime.place("logs", NAME) / "readers"


# --- arguments ---


class Countable:
    """Counts as 7 wherever an integer is asked for, without being one."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("start", [np.int64(7), np.uint64(7), np.int8(7), Countable()])
def test_any_kind_of_integer_is_a_place_to_join_at(
    runtime: Runtime, writer: LogWriter, start: np.int64
) -> None:
    publish(writer, 9)
    with LogReader.open(runtime, NAME, who="reader", start=start) as reader:
        assert numbers(reader.read()) == [7, 8, 9]


@pytest.mark.parametrize("start", [7.0, np.float64(7), "newest", None, b"7", [7]])
def test_what_is_no_place_to_join_at_is_refused(runtime: Runtime, writer: LogWriter, start: object) -> None:
    allowed = r"start must be a message number or one of Start.OLDEST, Start.NEWEST, Start.NEXT, was "
    with pytest.raises(ConfigError, match=allowed):
        LogReader.open(runtime, NAME, who="reader", start=start)  # type: ignore[arg-type]
    assert list(readers_directory(runtime).iterdir()) == []


@pytest.mark.parametrize("batch_frames", [1.5, "4", None, 0, -1, 1 << 40])
def test_a_batch_that_cannot_be_made_is_refused(
    runtime: Runtime, writer: LogWriter, batch_frames: object
) -> None:
    with pytest.raises(ConfigError, match=f"batch_frames must be 1 to [0-9]+, was {batch_frames!r}"):
        LogReader.open(runtime, NAME, who="reader", batch_frames=batch_frames)  # type: ignore[arg-type]


def look(reader: LogReader, limit: int) -> list[int]:
    with reader.view(limit) as frames:
        return numbers(frames)


def take_in(frames: WordArray, memory: Words) -> None:
    for row in range(frames.shape[0]):
        memory[1 + memory[0]] = frames[row, 3]
        memory[0] += 1


TAKER = compiled_handler(take_in, np.zeros(SLOTS, dtype=np.int64))


def poll_compiled(reader: LogReader, limit: int) -> list[int]:
    TAKER.memory[0] = 0
    count = reader.poll(TAKER, limit)
    assert TAKER.memory[0] == count
    return [int(number) for number in TAKER.memory[1 : 1 + count]]


def poll_python(reader: LogReader, limit: int) -> list[int]:
    found: list[int] = []
    reader.poll(lambda frames: found.extend(numbers(frames)), limit)
    return found


Reading = Callable[[LogReader, int], list[int]]
READINGS: dict[str, Reading] = {
    "read": lambda reader, limit: numbers(reader.read(limit)),
    "view": look,
    "poll": poll_python,
    "poll_compiled": poll_compiled,
}
EVERY_WAY = pytest.mark.parametrize("way", READINGS)


@EVERY_WAY
@pytest.mark.parametrize("limit", [1 << 62, 1 << 63, 1 << 70, np.uint64((1 << 64) - 1), np.int64(7)])
def test_a_limit_may_be_any_integer_however_large(
    writer: LogWriter, reader: LogReader, way: str, limit: int
) -> None:
    publish(writer, 7)
    assert READINGS[way](reader, limit) == [1, 2, 3, 4, 5, 6, 7]


@EVERY_WAY
@pytest.mark.parametrize("limit", [1.0, 1.5, float("nan"), "1", [1]])
def test_a_limit_that_is_no_integer_is_refused(
    writer: LogWriter, reader: LogReader, way: str, limit: int
) -> None:
    publish(writer, 2)
    with pytest.raises(ConfigError, match="limit must be a number of frames, was"):
        READINGS[way](reader, limit)
    assert reader.next_seq == 1


def test_a_time_is_a_whole_number_of_nanoseconds(writer: LogWriter, reader: LogReader) -> None:
    for waiting in (reader.wait, reader.await_gate):
        assert not waiting(1e3)
        assert not waiting(np.int64(1))
        with pytest.raises(ConfigError, match=r"timeout_ns must be a whole number, was 1.5"):
            waiting(1.5)


def test_a_reader_that_could_not_be_made_leaves_its_name_free(runtime: Runtime, writer: LogWriter) -> None:
    with pytest.raises(AttributeError):
        LogReader.open(runtime, NAME, who="reader", waiting="spin")  # type: ignore[arg-type]
    assert list(readers_directory(runtime).iterdir()) == []
    LogReader.open(runtime, NAME, who="reader").close()


# --- one thing at a time ---


@EVERY_WAY
def test_nothing_is_read_while_a_view_is_open(writer: LogWriter, reader: LogReader, way: str) -> None:
    publish(writer, 6)
    with reader.view(3) as frames:
        with pytest.raises(ShmError, match="a view is open, and nothing else is read until that has ended"):
            READINGS[way](reader, 2)
        assert numbers(frames) == [1, 2, 3]
    assert READINGS[way](reader, 9) == [4, 5, 6]
    assert reader.take_missed() == []


@EVERY_WAY
def test_nothing_is_read_while_a_handler_runs(writer: LogWriter, reader: LogReader, way: str) -> None:
    publish(writer, 6)
    handled: list[int] = []

    def on_batch(frames: FrameArray) -> None:
        with pytest.raises(ShmError, match="a handler runs, and nothing else is read until that has ended"):
            READINGS[way](reader, 2)
        handled.extend(numbers(frames))

    assert reader.poll(on_batch, 3) == 3
    assert handled == [1, 2, 3]
    assert READINGS[way](reader, 9) == [4, 5, 6]


@EVERY_WAY
def test_a_view_that_failed_or_was_lapped_is_over(writer: LogWriter, reader: LogReader, way: str) -> None:
    publish(writer, 3)
    with pytest.raises(ZeroDivisionError), reader.view():
        raise ZeroDivisionError
    assert READINGS[way](reader, 1) == [1]
    with pytest.raises(Lapped), reader.view():
        publish(writer, 2 * SLOTS)
    (missed,) = reader.take_missed()
    assert READINGS[way](reader, 1) == [missed.last + 1]


# --- handlers that raise ---


def test_what_a_handler_raised_at_is_given_again(writer: LogWriter, reader: LogReader) -> None:
    publish(writer, 5)
    given: list[list[int]] = []

    def on_batch(frames: FrameArray) -> None:
        given.append(numbers(frames))
        if len(given) == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reader.poll(on_batch, 3)
    assert reader.next_seq == 1
    assert reader.lag == 5
    assert reader.poll(on_batch, 4) == 4
    assert reader.poll(on_batch) == 1
    assert given == [[1, 2, 3], [1, 2, 3, 4], [5]]


def test_a_gate_holds_what_a_handler_has_not_returned_from(writer: LogWriter, reader: LogReader) -> None:
    """The writer may overwrite what lies before POSITION; a handler that fails needs its frames again."""
    publish(writer, 5)
    assert len(reader.read(2)) == 2
    positions: list[int] = []

    def on_batch(frames: FrameArray) -> None:
        positions.append(int(reader.own[POSITION]))
        if len(positions) == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reader.poll(on_batch)
    positions.append(int(reader.own[POSITION]))
    reader.poll(on_batch)
    positions.append(int(reader.own[POSITION]))
    assert positions == [3, 3, 3, 6]


def test_frames_that_were_overwritten_before_a_handler_saw_them_again_are_missed(
    writer: LogWriter, reader: LogReader
) -> None:
    def fail(_frames: FrameArray) -> None:
        raise ZeroDivisionError

    publish(writer, 5)
    with pytest.raises(ZeroDivisionError):
        reader.poll(fail)
    publish(writer, 2 * SLOTS)
    (first,) = poll_python(reader, 1)
    assert reader.take_missed() == [Missed(1, first - 1)]


BAD_NUMBER = 63  # the word of a handler's memory that says at which message it raises; 0: at none


def add_up_or_raise(frames: WordArray, memory: Words) -> None:
    for row in range(frames.shape[0]):
        if frames[row, 3] == memory[BAD_NUMBER]:
            raise ValueError("a frame that the handler does not like")
    for row in range(frames.shape[0]):
        memory[0] += frames[row, 3]
        memory[1] += 1


RAISER = compiled_handler(add_up_or_raise)


def raising_handler(at: int) -> CompiledHandler:
    RAISER.memory[:] = 0
    RAISER.memory[BAD_NUMBER] = at
    return RAISER


# What compiled code raises cannot be passed on: the interpreter prints it, and pytest warns of it.
PRINTS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@PRINTS
@pytest.mark.parametrize("bad", [1, 7, CHUNK_FRAMES, CHUNK_FRAMES + 1, 2 * CHUNK_FRAMES + 44])
def test_a_compiled_handler_that_raises_stops_the_poll_before_its_chunk(
    writer: LogWriter, reader: LogReader, bad: int
) -> None:
    count = 2 * CHUNK_FRAMES + 44
    publish(writer, count)
    handler = raising_handler(bad)
    chunk_first = (bad - 1) // CHUNK_FRAMES * CHUNK_FRAMES + 1
    for _ in range(2):  # and does so as often as it is tried
        with pytest.raises(ShmError, match=f"the handler raised, in the frames from message {chunk_first} "):
            reader.poll(handler, count)
        assert reader.next_seq == int(reader.own[POSITION]) == chunk_first
        assert int(handler.memory[1]) == chunk_first - 1
    handler.memory[BAD_NUMBER] = 0
    assert reader.poll(handler, count) == count - chunk_first + 1
    assert handler.memory[:2].tolist() == [count * (count + 1) // 2, count]  # every frame, once
    assert reader.next_seq == int(reader.own[POSITION]) == count + 1


@PRINTS
def test_after_a_compiled_handler_raised_others_can_read_on(writer: LogWriter, reader: LogReader) -> None:
    publish(writer, 5)
    with pytest.raises(ShmError, match="the handler raised"):
        reader.poll(raising_handler(2))
    assert poll_compiled(reader, 3) == [1, 2, 3]
    assert numbers(reader.read()) == [4, 5]


def test_memory_that_a_handler_may_not_write_to_is_refused() -> None:
    memory = np.zeros(8, dtype=np.int64)
    memory.flags.writeable = False
    with pytest.raises(ConfigError, match="must be writable and aligned to its words, was read-only"):
        compiled_handler(take_in, memory)
    unaligned = np.zeros(65, dtype=np.uint8)[1:].view(np.int64)
    with pytest.raises(ConfigError, match="must be writable and aligned to its words, was unaligned"):
        compiled_handler(take_in, unaligned)
    with pytest.raises(ConfigError, match="must be an array of int64, was list"):
        compiled_handler(take_in, [0, 0])  # type: ignore[arg-type]


# --- interrupts ---


class Interrupted:
    """Stands in for `_note_missed` and is interrupted, before or after it did its work, the first time."""

    def __init__(self, reader: LogReader, *, is_before: bool) -> None:
        self._note = reader._note_missed
        self._is_before = is_before
        self.was_interrupted = False

    def __call__(self) -> Missed:
        if self._is_before and not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        missed = self._note()
        if not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        return missed


@EVERY_WAY
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("is_lapped_again", [True, False])
def test_an_interrupt_after_a_lap_loses_no_range(
    writer: LogWriter,
    reader: LogReader,
    way: str,
    is_before: bool,
    is_lapped_again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert READINGS[way](reader, 1) == []
    publish(writer, 2 * SLOTS)
    interrupted = Interrupted(reader, is_before=is_before)
    monkeypatch.setattr(reader, "_note_missed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        READINGS[way](reader, 1)
    assert interrupted.was_interrupted
    if is_lapped_again:
        publish(writer, 2 * SLOTS)
    (first,) = READINGS[way](reader, 1)
    assert reader.take_missed() == [Missed(1, first - 1)]
    assert reader.missed_count == first - 1


def test_a_range_is_told_even_if_nothing_is_read_after_the_interrupt(
    writer: LogWriter, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(writer, 2 * SLOTS)
    monkeypatch.setattr(reader, "_note_missed", Interrupted(reader, is_before=True))
    with pytest.raises(KeyboardInterrupt):
        reader.read()
    assert reader.take_missed() == [Missed(1, reader.next_seq - 1)]
    assert reader.take_missed() == []


def test_a_range_that_was_kept_but_not_cleared_is_told_once(writer: LogWriter, reader: LogReader) -> None:
    """The interrupt came in the last line of keeping it: the kernel's words still say what was missed."""
    publish(writer, 2 * SLOTS)
    (first,) = numbers(reader.read(1))
    assert reader.missed_count == first - 1
    reader.state[MISSED_FIRST], reader.state[MISSED_END] = 1, first
    assert numbers(reader.read(1)) == [first + 1]
    assert reader.take_missed() == [Missed(1, first - 1)]


# --- places that cannot be used ---


def test_a_full_file_system_is_told_as_such(runtime: Runtime, writer: LogWriter) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES, hard))
    try:
        with pytest.raises(ShmError, match=r"cannot make .*/readers/reader of 8192 bytes: File too large"):
            LogReader.open(runtime, NAME, who="reader")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(readers_directory(runtime).iterdir()) == []


def test_a_directory_that_cannot_be_written_to_is_told_as_such(
    runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse(path: Path, flags: int, *mode: int) -> int:
        if Path(path).name.startswith(SCRATCH_PREFIX):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionsError, match=r"cannot make .*/readers/reader: Permission denied"):
        LogReader.open(runtime, NAME, who="reader")


def test_a_log_without_a_place_for_readers_is_told_as_such(runtime: Runtime, writer: LogWriter) -> None:
    readers_directory(runtime).rmdir()
    with pytest.raises(NotFound, match=r"there is no .*/readers: the log was removed, or was never whole"):
        LogReader.open(runtime, NAME, who="reader")


def test_a_directory_in_the_place_of_a_readers_file_is_told_as_such(
    runtime: Runtime, writer: LogWriter
) -> None:
    (readers_directory(runtime) / "reader").mkdir()
    with pytest.raises(ShmError, match=r"must be a regular file, was Is a directory; and it cannot be remov"):
        LogReader.open(runtime, NAME, who="reader")
    LogReader.open(runtime, NAME, who="other").close()


def test_nonsense_in_the_place_of_a_readers_file_is_replaced(runtime: Runtime, writer: LogWriter) -> None:
    place = readers_directory(runtime) / "reader"
    place.write_bytes(b"nonsense")
    LogReader.open(runtime, NAME, who="reader").close()
    place.symlink_to("/dev/zero")
    LogReader.open(runtime, NAME, who="reader").close()
    assert not place.is_symlink()


def test_who_makes_the_file_second_takes_the_one_that_is_there(
    runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of one name start at once: the slower finds the file that was not there a moment before."""
    make = mapping.create
    rivals: list[LogReader] = []

    def make_too_late(*arguments: object) -> mapping.MappedFile:
        monkeypatch.setattr(mapping, "create", make)
        rivals.append(LogReader.open(runtime, NAME, who="reader"))
        with pytest.raises(AlreadyThere, match="exists already"):
            make(*arguments)  # type: ignore[arg-type]
        return make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mapping, "create", make_too_late)
    with pytest.raises(InUse, match=r"'reader' \(process [0-9]+\) is its reader already"):
        LogReader.open(runtime, NAME, who="reader")
    rivals.pop().close()
    LogReader.open(runtime, NAME, who="reader").close()


def test_a_file_that_is_removed_before_the_reader_sits_down_is_made_again(
    runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's writer removes the files of the dead; one whose maker holds no lock yet looks like them."""
    make = mapping.create
    removed: list[Path] = []

    def make_in_vain(*arguments: object) -> mapping.MappedFile:
        made = make(*arguments)  # type: ignore[arg-type]
        if len(removed) < 3:
            made.path.unlink()
            removed.append(made.path)
        return made

    monkeypatch.setattr(mapping, "create", make_in_vain)
    with LogReader.open(runtime, NAME, who="reader") as reader:
        publish(writer, 1)
        assert numbers(reader.read()) == [1]
    assert len(removed) == 3
