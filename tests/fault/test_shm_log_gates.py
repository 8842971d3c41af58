"""Gates between real processes: a reader that freezes is waited for, up to a bound; one that dies is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from middleware.shm.log import GateChange, GateEvent, LogWriter
from middleware.shm.log_layout import SLOT_COUNT_MIN
from middleware.shm.log_writer import PATIENCE_NS_MAX
from middleware.shm.runtime import Runtime
from tests.fault.killing import Child, Nursery, seeded, wait_until
from tests.fault.log_ends import LOG_NAME, end_reading
from tests.fault.log_journal import DELIVERED, MISSED, insist_complete, read_journal
from tests.fault.stamped_frame_kernels import stamped

SLOTS = 8 * SLOT_COUNT_MIN
PATIENCE_NS = 20_000_000
FREEZES = 10
FREEZE_S_MAX = 0.02


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.log_ends") as process:
        yield process


def open_writer(tmp_path: Path, patience_ns: int) -> LogWriter:
    return LogWriter.open(
        Runtime(tmp_path / "node"), LOG_NAME, who="writer", slot_count=SLOTS, patience_ns=patience_ns
    )


def publish(writer: LogWriter, count: int) -> None:
    writer.publish(stamped(writer.next_seq, count))


def start_gated(nursery: Nursery, writer: LogWriter, tmp_path: Path) -> Child:
    """Start a reader, and return when the writer waits for it."""
    journal, end = str(tmp_path / "journal"), str(tmp_path / "end")
    child = nursery.start("gated", str(tmp_path / "node"), "recorder", journal, end, "1", "0")
    events = serve_until(writer, lambda _events: (tmp_path / "journal").exists())
    assert [event.change for event in events] == [GateChange.OPENED]
    return child


def serve_until(writer: LogWriter, condition: Callable[[list[GateEvent]], bool]) -> list[GateEvent]:
    events: list[GateEvent] = []

    def is_so() -> bool:
        events.extend(writer.service())
        return condition(events)

    wait_until(is_so, "the writer looks after its gates")
    return events


def test_a_gated_reader_that_freezes_for_less_than_the_writers_patience_misses_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    with seeded() as randomness, open_writer(tmp_path, PATIENCE_NS_MAX) as writer:
        child = start_gated(nursery, writer, tmp_path)
        for _ in range(FREEZES):
            publish(writer, randomness.randint(1, SLOTS))
            child.stop()
            thaw = threading.Timer(randomness.uniform(0, FREEZE_S_MAX), child.go_on)
            thaw.start()
            publish(writer, 3 * SLOTS)  # more than fits, so that it has to wait for the thaw
            thaw.join()
        end_reading(tmp_path / "end", writer.next_seq)
        child.insist_on_success()
        entries = read_journal(tmp_path / "journal")
        insist_complete(entries, writer.next_seq - 1)
        assert {entry.what for entry in entries} == {DELIVERED}
        assert {event.change for event in writer.service()} <= {GateChange.LEFT}


def test_a_gated_reader_that_stays_frozen_is_left_behind_and_told_so(
    nursery: Nursery, tmp_path: Path
) -> None:
    with open_writer(tmp_path, PATIENCE_NS) as writer:
        child = start_gated(nursery, writer, tmp_path)
        child.stop()
        publish(writer, 4 * SLOTS)
        (event,) = writer.service()
        assert (event.reader, event.change) == ("recorder", GateChange.OVERRUN)
        assert event.waited_ns >= PATIENCE_NS
        child.go_on()
        end_reading(tmp_path / "end", writer.next_seq)
        child.insist_on_success()
        entries = read_journal(tmp_path / "journal")
        insist_complete(entries, writer.next_seq - 1)
        assert {entry.what for entry in entries} == {DELIVERED, MISSED}


def test_a_gated_reader_that_is_killed_holds_nobody_up(nursery: Nursery, tmp_path: Path) -> None:
    with open_writer(tmp_path, PATIENCE_NS_MAX) as writer:
        child = start_gated(nursery, writer, tmp_path)
        publish(writer, 10)
        child.stop()
        child.kill()
        publish(writer, 4 * SLOTS)  # ten seconds, if the dead were waited for
        (event,) = writer.service()
        assert (event.reader, event.change) == ("recorder", GateChange.DIED)
        readers = tmp_path / "node" / "logs" / LOG_NAME / "readers"
        assert [path.name for path in readers.iterdir()] == ["recorder"]
    with open_writer(tmp_path, PATIENCE_NS):
        assert list(readers.iterdir()) == []  # the next start removes what the dead left
