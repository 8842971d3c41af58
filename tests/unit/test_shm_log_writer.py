"""The stream log's writer: what it refuses, and what it leaves to who comes after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds import wire
from feeds.errors import ConfigError
from middleware.shm.errors import LayoutError, NotFound, ShmError
from middleware.shm.log import LogReader, LogWriter, Start, remove_log
from middleware.shm.log_kernels import TAIL
from middleware.shm.log_layout import SEQUENCE_MAX, SLOT_COUNT_MIN
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Identity, Seats
from tests.fault.stamped_frame_kernels import stamped

pytestmark = pytest.mark.kernels

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, NAME, who="adapter-a", slot_count=SLOTS) as opened:
        yield opened


DEEDS: dict[str, Callable[[LogWriter], object]] = {
    "publish": lambda writer: writer.publish(stamped(writer.next_seq, 1)),
    "skip": lambda writer: writer.skip_to(5_000),
    "end": lambda writer: writer.end(),
    "service": lambda writer: writer.service(),
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS.keys())
def test_a_closed_writer_cannot_touch_the_log_of_its_successor(
    runtime: Runtime, writer: LogWriter, deed: Callable[[LogWriter], object]
) -> None:
    writer.close()
    with LogWriter.open(runtime, NAME, who="adapter-b") as second:
        with pytest.raises(ShmError, match="not open for writing in this process"):
            deed(writer)
        second.publish(stamped(1, 1))
        with LogReader.open(runtime, NAME, who="reader", start=Start.NEXT) as reader:
            assert not reader.is_ended


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS.keys())
def test_an_ended_log_is_not_written_until_it_is_opened_again(
    runtime: Runtime, writer: LogWriter, deed: Callable[[LogWriter], object]
) -> None:
    writer.end()
    with pytest.raises(ShmError, match="was ended by this writer"):
        deed(writer)
    writer.close()
    with LogWriter.open(runtime, NAME, who="adapter-b") as second:
        second.publish(stamped(1, 1))


@pytest.mark.parametrize("argument", ["slot_count", "first_seq", "patience_ns"])
def test_numbers_must_be_whole(runtime: Runtime, argument: str) -> None:
    with pytest.raises(ConfigError, match=f"{argument} must be a whole number, was 128.5"):
        LogWriter.open(runtime, NAME, who="a", **{argument: 128.5})  # type: ignore[arg-type]
    numpy_number = {argument: np.uint32(256)}
    LogWriter.open(runtime, NAME, who="a", **numpy_number).close()  # type: ignore[arg-type]


def test_opening_that_fails_leaves_no_gate_and_no_open_file(runtime: Runtime, writer: LogWriter) -> None:
    writer.publish(stamped(1, 10))
    with LogReader.open(runtime, NAME, who="recorder", is_gating=True) as reader:
        writer.close()
        open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted
        for _ in range(5):
            with pytest.raises(ConfigError, match="cannot go back to 3"):
                LogWriter.open(runtime, NAME, who="adapter-b", first_seq=3)
        assert not reader.is_gated
        assert len(os.listdir("/proc/self/fd")) == open_files  # noqa: PTH208 - only counted


@pytest.mark.parametrize("tail", [SEQUENCE_MAX, 1 << 62])
def test_a_log_at_the_end_of_all_numbers_says_so_and_does_not_hang(writer: LogWriter, tail: int) -> None:
    writer.words[TAIL] = tail
    frame = wire.empty(1)
    frame["message_seq"] = tail
    with pytest.raises(LayoutError, match="next message number must be below"):
        writer.publish(frame)
    assert writer.next_seq == tail


def test_a_remover_that_comes_late_does_not_remove_the_log_of_a_living_writer(
    runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its opening the seats and its taking one, another removes the log and a writer starts."""
    writer.close()
    take = Seats.take
    started: list[LogWriter] = []

    def take_late(seats: Seats, index: int, who: str, role: str) -> Identity:
        if who == "remover" and not started:
            monkeypatch.setattr(Seats, "take", take)
            remove_log(runtime, NAME)
            started.append(LogWriter.open(runtime, NAME, who="adapter-b", slot_count=SLOTS))
        return take(seats, index, who, role)

    monkeypatch.setattr(Seats, "take", take_late)
    with pytest.raises(NotFound, match="was removed while it was being opened"):
        remove_log(runtime, NAME)
    (second,) = started
    second.publish(stamped(1, 1))
    with LogReader.open(runtime, NAME, who="reader") as reader:
        assert len(reader.read()) == 1
        assert not reader.is_ended
    second.close()
