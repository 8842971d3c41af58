"""The stream log, one rule at a time: who joins where, what is missed, and who may do what."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from feeds import wire
from feeds.errors import ConfigError, FrameError, LimitError
from feeds.wire import FrameArray, WordArray
from middleware.shm import log_reader
from middleware.shm.atomics import Words
from middleware.shm.errors import InUse, NotFound, ShmError
from middleware.shm.log import Lapped, LogReader, LogWriter, Missed, Start, compiled_handler, remove_log
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.log_layout import SEQUENCE_MAX, SLOT_COUNT_MIN
from middleware.shm.runtime import Runtime
from tests.fault.stamped_frame_kernels import insist_right, stamped

pytestmark = pytest.mark.kernels

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
MARGIN = SLOTS // MARGIN_SHARE


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, NAME, who="adapter-a", slot_count=SLOTS) as opened:
        yield opened


def publish(writer: LogWriter, count: int) -> None:
    writer.publish(stamped(writer.next_seq, count))


def join(runtime: Runtime, start: Start | int = Start.OLDEST, who: str = "reader") -> LogReader:
    return LogReader.open(runtime, NAME, who=who, start=start)


def numbers(frames: FrameArray) -> list[int]:
    return [int(number) for number in frames["message_seq"]]


def read_all(reader: LogReader, limit: int | None = None) -> list[int]:
    """Return the numbers of all frames that are there, each of them checked."""
    found: list[int] = []
    while len(frames := reader.read(limit)):
        insist_right(frames, reader.next_seq - len(frames))
        found += numbers(frames)
    return found


# --- joining ---


def test_a_log_begins_at_one_unless_told_otherwise(runtime: Runtime) -> None:
    with LogWriter.open(runtime, NAME, who="a", slot_count=SLOTS) as writer:
        assert writer.next_seq == 1
    with LogWriter.open(runtime, "OTHER", who="a", slot_count=SLOTS, first_seq=500) as writer:
        assert writer.next_seq == 500
        publish(writer, 2)
        with LogReader.open(runtime, "OTHER", who="r") as reader:
            assert read_all(reader) == [500, 501]
            assert reader.take_missed() == []


def test_a_reader_joins_at_the_oldest_frame(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 5)
    assert read_all(join(runtime, Start.OLDEST)) == [1, 2, 3, 4, 5]


def test_a_reader_that_joins_at_the_oldest_of_a_full_log_misses_nothing(
    runtime: Runtime, writer: LogWriter
) -> None:
    publish(writer, 3 * SLOTS + 7)
    with join(runtime, Start.OLDEST) as reader:
        found = read_all(reader)
        assert found == list(range(found[0], writer.next_seq))
        assert len(found) >= SLOTS - MARGIN
        assert reader.take_missed() == []


def test_a_reader_joins_at_the_newest_frame(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 5)
    with join(runtime, Start.NEWEST) as reader:
        assert read_all(reader) == [5]


def test_a_reader_joins_at_the_next_frame(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 5)
    with join(runtime, Start.NEXT) as reader:
        assert read_all(reader) == []
        publish(writer, 2)
        assert read_all(reader) == [6, 7]


@pytest.mark.parametrize("start", [Start.OLDEST, Start.NEWEST, Start.NEXT])
def test_a_reader_may_join_before_the_first_frame(runtime: Runtime, writer: LogWriter, start: Start) -> None:
    with join(runtime, start) as reader:
        assert read_all(reader) == []
        publish(writer, 2)
        assert read_all(reader) == [1, 2]
        assert reader.take_missed() == []


def test_a_reader_joins_at_a_given_number(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 9)
    with join(runtime, 4) as reader:
        assert read_all(reader) == [4, 5, 6, 7, 8, 9]


def test_a_reader_that_asks_for_what_is_gone_is_told_so(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 2 * SLOTS)
    with join(runtime, 3) as reader:
        found = read_all(reader)
        assert reader.take_missed() == [Missed(3, found[0] - 1)]
        assert found == list(range(found[0], writer.next_seq))


def test_a_reader_that_asks_for_what_is_to_come_waits_for_it(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime, 4) as reader:
        publish(writer, 3)
        assert read_all(reader) == []
        assert reader.lag == 0
        publish(writer, 2)
        assert read_all(reader) == [4, 5]
        assert reader.take_missed() == []


def test_readers_go_at_their_own_pace(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime, who="fast") as fast, join(runtime, who="slow") as slow:
        publish(writer, 10)
        assert read_all(fast) == list(range(1, 11))
        assert numbers(slow.read(3)) == [1, 2, 3]
        assert (fast.lag, slow.lag) == (0, 7)
        assert (fast.next_seq, slow.next_seq) == (11, 4)


# --- publishing ---


def test_a_single_frame_and_a_batch_are_published_alike(runtime: Runtime, writer: LogWriter) -> None:
    writer.publish_one(stamped(1, 1))
    writer.publish(stamped(2, 3))
    writer.publish(wire.words(stamped(5, 2)))
    assert writer.next_seq == 7
    assert read_all(join(runtime)) == [1, 2, 3, 4, 5, 6]


def test_publish_one_takes_one(writer: LogWriter) -> None:
    with pytest.raises(ConfigError, match="publish_one takes one frame, was given 2"):
        writer.publish_one(stamped(1, 2))


def test_an_empty_batch_changes_nothing(runtime: Runtime, writer: LogWriter) -> None:
    writer.publish(wire.empty(0))
    assert writer.next_seq == 1


def test_a_batch_longer_than_the_log_passes_through_it(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 2 * SLOTS + 3)
    found = read_all(join(runtime))
    assert found[-1] == 2 * SLOTS + 3


@pytest.mark.parametrize("limit", [1, 3, SLOTS, None])
def test_frames_are_whole_and_in_order_across_the_end_of_the_memory(
    runtime: Runtime, writer: LogWriter, limit: int | None
) -> None:
    with join(runtime) as reader:
        for batch in (5, SLOTS - 20, 1, 30, SLOTS - MARGIN, 7, 40):
            first = writer.next_seq
            publish(writer, batch)
            assert read_all(reader, limit) == list(range(first, first + batch))
        assert reader.take_missed() == []


@pytest.mark.parametrize(("wrong_row", "wrong_seq"), [(0, 2), (0, 0), (2, 2), (2, 7)])
def test_a_batch_with_a_wrong_number_is_refused_whole(
    runtime: Runtime, writer: LogWriter, wrong_row: int, wrong_seq: int
) -> None:
    frames = stamped(1, 4)
    frames["message_seq"][wrong_row] = wrong_seq
    with pytest.raises(FrameError) as caught:
        writer.publish(frames)
    assert str(wrong_seq) in str(caught.value)
    assert str(wrong_row + 1) in str(caught.value)  # the number that it should have
    assert writer.next_seq == 1
    publish(writer, 4)
    assert read_all(join(runtime)) == [1, 2, 3, 4]


# --- being lapped ---


def test_a_reader_just_ahead_of_the_writer_loses_nothing(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime) as reader:
        publish(writer, SLOTS - MARGIN)
        assert read_all(reader) == list(range(1, SLOTS - MARGIN + 1))
        assert reader.take_missed() == []


def test_a_lapped_reader_learns_exactly_what_it_missed_and_goes_on(
    runtime: Runtime, writer: LogWriter
) -> None:
    with join(runtime) as reader:
        publish(writer, 10)
        assert numbers(reader.read(4)) == [1, 2, 3, 4]
        publish(writer, 2 * SLOTS)
        found = read_all(reader)
        assert reader.take_missed() == [Missed(5, found[0] - 1)]
        assert reader.missed_count == found[0] - 5
        assert found == list(range(found[0], writer.next_seq))
        assert len(found) > SLOTS // 2  # it does not give up more than it must
        assert reader.take_missed() == []
        publish(writer, 3)
        assert len(read_all(reader)) == 3


def test_ranges_missed_one_after_the_other_are_told_apart(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime) as reader:
        accounted: list[tuple[int, int]] = []
        for _ in range(3):
            publish(writer, 3 * SLOTS)
            frames = reader.read(2)
            accounted += [(missed.first, missed.last) for missed in reader.take_missed()]
            accounted.append((numbers(frames)[0], numbers(frames)[-1]))
        assert accounted[0][0] == 1
        assert all(after[0] == before[1] + 1 for before, after in pairwise(accounted))
        assert len(accounted) == 6


def test_a_reader_that_takes_no_missed_ranges_is_stopped_and_loses_none(
    runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MISSED_RANGES_MAX", 3)
    with join(runtime) as reader:
        last = 0
        for _ in range(3):
            publish(writer, 2 * SLOTS)
            (last,) = numbers(reader.read(1))
        publish(writer, 2 * SLOTS)
        with pytest.raises(LimitError, match=r"3 missed ranges wait for take_missed\(\)"):
            reader.read()
        assert len(reader.take_missed()) == 3
        reader.read()
        assert reader.take_missed()[0].first == last + 1


def test_a_range_says_how_many_it_is() -> None:
    assert Missed(5, 5).count == 1
    assert Missed(5, 9).count == 5


# --- gaps ---


def test_numbers_that_are_skipped_are_told_as_missed_and_nothing_else_is(
    runtime: Runtime, writer: LogWriter
) -> None:
    publish(writer, 3)
    with join(runtime) as reader:
        assert read_all(reader) == [1, 2, 3]
        writer.skip_to(1_000)
        assert writer.next_seq == 1_000
        assert read_all(reader) == []
        publish(writer, 2)
        assert read_all(reader) == [1_000, 1_001]
        assert reader.take_missed() == [Missed(4, 999)]


def test_what_was_not_read_before_a_skip_is_missed_too(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    with join(runtime) as reader:
        assert numbers(reader.read(1)) == [1]
        writer.skip_to(10)
        publish(writer, 1)
        assert read_all(reader) == [10]
        assert reader.take_missed() == [Missed(2, 9)]


def test_who_joins_after_a_skip_begins_behind_it(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    writer.skip_to(10)
    with join(runtime) as reader:
        publish(writer, 2)
        assert read_all(reader) == [10, 11]
        assert reader.take_missed() == []


def test_a_log_cannot_go_back(writer: LogWriter) -> None:
    publish(writer, 3)
    with pytest.raises(ConfigError, match="at message 4 and cannot go back to 3"):
        writer.skip_to(3)
    writer.skip_to(4)
    assert writer.next_seq == 4


def test_a_writer_that_continues_may_say_where(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    writer.close()
    with pytest.raises(ConfigError, match="cannot go back to 2"):
        LogWriter.open(runtime, NAME, who="b", first_seq=2)
    with LogWriter.open(runtime, NAME, who="b", first_seq=9) as second:
        assert second.next_seq == 9


# --- looking in place ---


def test_a_view_is_the_memory_of_the_log_itself(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 5)
    with join(runtime) as reader:
        with reader.view(3) as frames:
            assert np.shares_memory(frames, reader.words)
            assert not frames.flags.writeable
            assert numbers(frames) == [1, 2, 3]
            assert reader.next_seq == 1
        assert reader.next_seq == 4
        with reader.view() as frames:
            assert numbers(frames) == [4, 5]
        with reader.view() as frames:
            assert len(frames) == 0


def test_a_view_ends_at_the_end_of_the_memory(runtime: Runtime, writer: LogWriter) -> None:
    seen: list[int] = []
    with join(runtime) as reader:
        for _ in range(3):
            publish(writer, SLOTS - MARGIN)
            while reader.lag:
                with reader.view() as frames:
                    insist_right(frames, reader.next_seq)
                    seen += numbers(frames)
        assert seen == list(range(1, writer.next_seq))


def test_a_view_that_the_writer_overtook_raises_at_its_end_and_is_missed_whole(
    runtime: Runtime, writer: LogWriter
) -> None:
    publish(writer, 5)
    with join(runtime) as reader:
        with pytest.raises(Lapped, match=r"messages 1 to [0-9]+ were overwritten") as caught, reader.view(3):
            publish(writer, 2 * SLOTS)
        (missed,) = reader.take_missed()
        assert caught.value.missed == missed
        assert missed.first == 1
        assert missed.last >= 3
        found = read_all(reader)
        assert found == list(range(missed.last + 1, writer.next_seq))


def test_a_view_that_ended_in_an_error_is_shown_again(runtime: Runtime, writer: LogWriter) -> None:
    def look_and_fail(reader: LogReader) -> None:
        with reader.view() as frames:
            raise ValueError(len(frames))

    publish(writer, 5)
    with join(runtime) as reader:
        with pytest.raises(ValueError, match="5"):
            look_and_fail(reader)
        assert read_all(reader) == [1, 2, 3, 4, 5]


def test_what_was_read_stays_until_the_next_read(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    with join(runtime) as reader:
        frames = reader.read()
        publish(writer, 2 * SLOTS)  # overwrites the log, not the copy
        insist_right(frames, 1)


# --- handlers ---


def test_a_python_handler_gets_one_batch(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 5)
    batches: list[list[int]] = []
    with join(runtime) as reader:
        assert reader.poll(lambda frames: batches.append(numbers(frames)), limit=3) == 3
        assert reader.poll(lambda frames: batches.append(numbers(frames))) == 2
        assert reader.poll(lambda frames: batches.append(numbers(frames))) == 0
    assert batches == [[1, 2, 3], [4, 5]]


def sum_numbers(frames: WordArray, memory: Words) -> None:
    """Add up the numbers of the frames, and count frames and calls."""
    for row in range(frames.shape[0]):
        memory[0] += frames[row, 3]
        memory[1] += 1
    memory[2] += 1


def test_a_compiled_handler_gets_every_frame_once(runtime: Runtime, writer: LogWriter) -> None:
    handler = compiled_handler(sum_numbers)
    with join(runtime) as reader:
        assert reader.poll(handler) == 0
        publish(writer, SLOTS - MARGIN)
        assert reader.poll(handler, limit=10) == 10
        assert reader.poll(handler) == SLOTS - MARGIN - 10
        assert reader.poll(handler) == 0
    count = SLOTS - MARGIN
    assert handler.memory[:2].tolist() == [count * (count + 1) // 2, count]
    assert handler.memory[2] >= 2


def test_a_compiled_handler_is_not_given_what_was_missed(runtime: Runtime, writer: LogWriter) -> None:
    handler = compiled_handler(sum_numbers)
    with join(runtime) as reader:
        publish(writer, 3 * SLOTS)
        handled = reader.poll(handler)
        (missed,) = reader.take_missed()
        assert missed.first == 1
        assert missed.last + handled == 3 * SLOTS
        assert handler.memory[0] == sum(range(missed.last + 1, 3 * SLOTS + 1))


def test_a_handlers_memory_must_be_words() -> None:
    with pytest.raises(ConfigError, match="must be one row of int64, was float64"):
        compiled_handler(sum_numbers, np.zeros(3))  # type: ignore[arg-type]


# --- who may do what ---


def test_a_second_writer_is_refused_by_the_name_of_the_first(runtime: Runtime, writer: LogWriter) -> None:
    with pytest.raises(InUse, match=r"'adapter-a' \(process [0-9]+\) is its writer already"):
        LogWriter.open(runtime, NAME, who="adapter-b")
    writer.close()
    LogWriter.open(runtime, NAME, who="adapter-b").close()


def test_two_readers_cannot_have_one_name(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime, who="app"):
        with pytest.raises(InUse, match=r"'app' \(process [0-9]+\) is its reader already"):
            join(runtime, who="app")
        join(runtime, who="other").close()
    join(runtime, who="app").close()


def test_a_reader_maps_the_log_read_only(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 1)
    path = str(runtime.place("logs", NAME) / "log")
    with join(runtime) as reader:
        with pytest.raises(ValueError, match="read-only"):
            reader.words[600] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            reader.words.flags.writeable = True
        maps = Path("/proc/self/maps").read_text().splitlines()
        rights = sorted(line.split()[1] for line in maps if line.endswith(path))
        assert rights == ["r--s", "rw-s"]  # the reader's, and the writer's in this same process


def test_a_log_that_is_not_there_is_named_with_those_that_are(runtime: Runtime, writer: LogWriter) -> None:
    with pytest.raises(NotFound, match=f"no log XIEX in .* there are: {NAME}"):
        LogReader.open(runtime, "XIEX", who="reader")


def test_a_writer_continues_where_the_one_before_stopped(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    with join(runtime) as reader:
        assert read_all(reader) == [1, 2, 3]
        writer.close()
        with LogWriter.open(runtime, NAME, who="adapter-b") as second:
            publish(second, 2)
            assert read_all(reader) == [4, 5]
            assert read_all(join(runtime, who="late")) == [1, 2, 3, 4, 5]


def test_closed_ends_refuse(runtime: Runtime, writer: LogWriter) -> None:
    reader = join(runtime)
    reader.close()
    reader.close()
    with pytest.raises(ShmError, match="not open for reading"):
        reader.read()
    writer.close()
    writer.close()
    with pytest.raises(ShmError, match="not open for writing"):
        publish(writer, 1)


def test_a_closed_reader_leaves_no_file(runtime: Runtime, writer: LogWriter) -> None:
    readers = runtime.place("logs", NAME) / "readers"
    reader = join(runtime)
    assert [path.name for path in readers.iterdir()] == ["reader"]
    reader.close()
    assert list(readers.iterdir()) == []


@pytest.mark.parametrize("slot_count", [0, -128, 64, 100, 129, 1 << 29])
def test_a_number_of_slots_must_be_a_power_of_two_within_bounds(runtime: Runtime, slot_count: int) -> None:
    with pytest.raises(ConfigError, match=f"slot_count must be a power of two .* was {slot_count}"):
        LogWriter.open(runtime, NAME, who="a", slot_count=slot_count)


def test_the_size_of_a_log_that_exists_cannot_be_changed(runtime: Runtime, writer: LogWriter) -> None:
    writer.close()
    with pytest.raises(ConfigError, match=f"has {SLOTS} slots, not {2 * SLOTS}"):
        LogWriter.open(runtime, NAME, who="b", slot_count=2 * SLOTS)
    LogWriter.open(runtime, NAME, who="b", slot_count=SLOTS).close()


@pytest.mark.parametrize("number", [-1, SEQUENCE_MAX + 1])
def test_numbers_have_bounds(runtime: Runtime, writer: LogWriter, number: int) -> None:
    for attempt in (
        lambda: writer.skip_to(number),
        lambda: join(runtime, number),
        lambda: LogWriter.open(runtime, "X", who="a", first_seq=number),
    ):
        with pytest.raises(ConfigError, match=str(number)):
            attempt()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(runtime: Runtime, writer: LogWriter, limit: int) -> None:
    with join(runtime) as reader, pytest.raises(ConfigError, match=f"limit must be at least 1, was {limit}"):
        reader.read(limit)


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x" * 65])
def test_names_that_could_leave_the_directory_are_refused(runtime: Runtime, name: str) -> None:
    with pytest.raises(ConfigError):
        LogWriter.open(runtime, name, who="a")
    with pytest.raises(ConfigError):
        LogWriter.open(runtime, NAME, who=name)


# --- the end ---


def test_an_ended_log_is_read_to_its_end_and_not_waited_for(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 2)
    writer.end()
    with join(runtime) as reader:
        assert reader.wait(timeout_ns=0)
        assert not reader.is_ended
        assert read_all(reader) == [1, 2]
        assert reader.is_ended
        assert not reader.wait(timeout_ns=3_600_000_000_000)  # an hour, if it were waited for


def test_a_new_writer_takes_an_ended_log_back(runtime: Runtime, writer: LogWriter) -> None:
    writer.end()
    writer.close()
    with LogWriter.open(runtime, NAME, who="b") as second, join(runtime) as reader:
        assert not reader.is_ended
        publish(second, 1)
        assert reader.wait(timeout_ns=0)
        assert read_all(reader) == [1]


def test_waiting_ends_with_its_time(runtime: Runtime, writer: LogWriter) -> None:
    with join(runtime) as reader:
        assert not reader.wait(timeout_ns=0)
        assert not reader.wait(timeout_ns=2_000_000)
        publish(writer, 1)
        assert reader.wait(timeout_ns=0)


def test_a_log_that_is_removed_is_gone_and_its_readers_are_told(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 1)
    with join(runtime) as reader:
        with pytest.raises(InUse, match="adapter-a"):
            remove_log(runtime, NAME)
        writer.close()
        remove_log(runtime, NAME)
        assert read_all(reader) == [1]
        assert reader.is_ended
    assert runtime.names("logs") == []
    with pytest.raises(NotFound, match="no log"):
        remove_log(runtime, NAME)
    with LogWriter.open(runtime, NAME, who="b", slot_count=SLOTS) as second:
        assert second.next_seq == 1
