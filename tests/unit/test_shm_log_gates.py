"""Gates: the writer waits for those who ask, for so long and no longer, and for nobody who only pretends."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from middleware.shm.log import GateChange, GateEvent, LogReader, LogWriter, Missed, Start
from middleware.shm.log_gates import CAUGHT_UP_SHARE, DEAD_FOR_NS, FORGIVEN_SHARE, LOOK_FILES, Gates
from middleware.shm.log_kernels import GATE_COUNT, IS_GATING, POSITION, READER_KEY
from middleware.shm.log_layout import (
    READER_BODY_BYTES,
    READER_SEAT_BYTE,
    READERS_DIRECTORY,
    SEQUENCE_MAX,
    SLOT_COUNT_MIN,
)
from middleware.shm.log_writer import PATIENCE_NS_MAX
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from tests.fault.killing import wait_until
from tests.fault.stamped_frame_kernels import insist_right, stamped

pytestmark = pytest.mark.kernels

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
PATIENCE_NS = 3_000_000
MS = 1_000_000


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, NAME, who="adapter", slot_count=SLOTS, patience_ns=PATIENCE_NS) as opened:
        yield opened


@pytest.fixture
def readers(runtime: Runtime, writer: LogWriter) -> Path:
    return runtime.place("logs", NAME) / READERS_DIRECTORY


def publish(writer: LogWriter, count: int) -> None:
    writer.publish(stamped(writer.next_seq, count))


def gating(runtime: Runtime, who: str = "recorder", start: Start | int = Start.NEXT) -> LogReader:
    return LogReader.open(runtime, NAME, who=who, start=start, is_gating=True)


def serve_until(writer: LogWriter, condition: Callable[[list[GateEvent]], bool]) -> list[GateEvent]:
    """Let the writer look after its gates until its events are as wanted; return them."""
    events: list[GateEvent] = []

    def is_so() -> bool:
        events.extend(writer.service())
        return condition(events)

    wait_until(is_so, "the writer looks after its gates", limit_s=20)
    return events


def changes(events: list[GateEvent]) -> list[GateChange]:
    return [event.change for event in events]


def await_gate(writer: LogWriter, reader: LogReader) -> None:
    serve_until(writer, lambda _events: reader.is_gated)


# --- with a real writer ---


def test_a_reader_that_asks_gets_a_gate_and_the_writer_says_so(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, 3)
    with gating(runtime) as reader:
        assert reader.is_gating
        events = serve_until(writer, bool)
        assert events == [GateEvent("recorder", GateChange.OPENED, 4)]
        assert reader.is_gated
        assert reader.await_gate(timeout_ns=0)


def test_a_reader_that_does_not_ask_gets_none(runtime: Runtime, writer: LogWriter) -> None:
    with LogReader.open(runtime, NAME, who="app") as reader, gating(runtime) as asking:
        await_gate(writer, asking)
        assert not reader.is_gating
        assert not reader.is_gated
        assert not reader.await_gate(timeout_ns=0)


def test_a_gated_reader_that_keeps_up_misses_nothing(runtime: Runtime) -> None:
    frame_count = 10 * SLOTS
    with (
        LogWriter.open(runtime, NAME, who="a", slot_count=SLOTS, patience_ns=PATIENCE_NS_MAX) as writer,
        gating(runtime) as reader,
    ):
        await_gate(writer, reader)

        def write() -> None:
            for first in range(1, frame_count, SLOTS // 2):
                writer.publish(stamped(first, SLOTS // 2))

        thread = threading.Thread(target=write)
        thread.start()
        while reader.next_seq <= frame_count:
            assert reader.wait(timeout_ns=20_000_000_000)
            frames = reader.read(7)
            insist_right(frames, reader.next_seq - len(frames))
        thread.join()
        assert reader.take_missed() == []
        assert writer.service() == []
        assert reader.is_gated


def test_the_wait_for_a_gate_is_bounded_and_its_end_is_an_event(runtime: Runtime, writer: LogWriter) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        publish(writer, 3 * SLOTS)  # comes back, although nobody reads
        (event,) = writer.service()
        assert (event.reader, event.change, event.position) == ("recorder", GateChange.OVERRUN, 1)
        assert event.waited_ns >= PATIENCE_NS
        assert "reader 'recorder' at message 1: overrun after" in str(event)
        assert not reader.is_gated
        frames = reader.read()
        assert reader.take_missed() == [Missed(1, reader.next_seq - len(frames) - 1)]


def test_nothing_is_overwritten_that_a_gate_needs(runtime: Runtime) -> None:
    with (
        LogWriter.open(runtime, NAME, who="a", slot_count=SLOTS, patience_ns=PATIENCE_NS_MAX) as writer,
        gating(runtime) as reader,
    ):
        await_gate(writer, reader)
        publish(writer, SLOTS)  # to the last slot, without waiting
        frames = reader.read()
        assert len(frames) == SLOTS
        insist_right(frames, 1)
        publish(writer, SLOTS)
        with reader.view() as shown:
            insist_right(shown, SLOTS + 1)
        assert reader.take_missed() == []


def test_a_gate_ends_with_its_reader(runtime: Runtime, writer: LogWriter) -> None:
    reader = gating(runtime)
    await_gate(writer, reader)
    reader.close()
    publish(writer, 3 * SLOTS)
    events = serve_until(writer, bool)
    assert changes(events) == [GateChange.LEFT]


def test_a_new_writer_waits_for_readers_that_are_there_already(runtime: Runtime, writer: LogWriter) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        writer.close()
        assert not reader.is_gated
        with LogWriter.open(runtime, NAME, who="b") as second:
            assert reader.is_gated
            assert changes(second.service()) == [GateChange.OPENED]


def test_a_new_writer_waits_for_a_reader_that_was_far_behind_when_the_first_ended(
    runtime: Runtime, writer: LogWriter
) -> None:
    with gating(runtime, start=1) as reader:
        await_gate(writer, reader)
        publish(writer, SLOTS)
        writer.close()
        with LogWriter.open(runtime, NAME, who="b", patience_ns=PATIENCE_NS_MAX):
            assert reader.is_gated
            assert len(reader.read()) == SLOTS
        assert reader.take_missed() == []


def test_a_reader_far_behind_gets_its_gate_when_it_has_caught_up(runtime: Runtime, writer: LogWriter) -> None:
    publish(writer, SLOTS)
    with (
        gating(runtime, start=SLOTS - SLOTS // CAUGHT_UP_SHARE - 10) as behind,
        gating(runtime, "other") as near,
    ):
        await_gate(writer, near)
        assert not behind.is_gated
        behind.read()
        await_gate(writer, behind)


def test_there_are_only_so_many_gates_and_who_gets_none_is_named_once(
    runtime: Runtime, writer: LogWriter
) -> None:
    opened = [gating(runtime, f"reader-{index}") for index in range(GATE_COUNT + 1)]
    events = serve_until(writer, lambda events: len(events) > GATE_COUNT)
    assert sorted(changes(events)) == sorted([GateChange.OPENED] * GATE_COUNT + [GateChange.REFUSED])
    waiting = next(reader for reader in opened if not reader.is_gated)
    leaving = next(reader for reader in opened if reader.is_gated)
    leaving.close()
    later = serve_until(writer, lambda _events: waiting.is_gated)
    assert sorted(changes(later)) == [GateChange.LEFT, GateChange.OPENED]
    for reader in opened:
        reader.close()


# --- with the time passed in ---


@pytest.fixture
def gates(runtime: Runtime, writer: LogWriter, readers: Path) -> Gates:
    return Gates(writer.words, SLOTS, readers, patience_ns=50 * MS)


def test_many_gates_cost_no_more_patience_than_one(runtime: Runtime, gates: Gates) -> None:
    opened = [gating(runtime, f"stopped-{index}", start=1 + index) for index in range(20)]
    now_ns = waited_ns = 0
    for _ in range(3):
        gates.look(now_ns)
    assert len(gates.open_gates) == 20
    for sequence in range(SLOTS + 1, SLOTS + 21):  # each in turn stands in the way
        while any(gate.position + SLOTS <= sequence for gate in gates.open_gates):
            now_ns += MS
            waited_ns += MS
            gates.on_waited(sequence, MS, now_ns)
    assert 50 * MS <= waited_ns < 75 * MS
    for reader in opened:
        reader.close()


def test_a_new_name_does_not_bring_new_patience(runtime: Runtime, gates: Gates) -> None:
    with gating(runtime, "first"):
        gates.look(0)
        gates.on_waited(SLOTS + 1, 50 * MS, 50 * MS)
    with gating(runtime, "second"):
        gates.look(51 * MS)
        assert not gates.open_gates


def test_a_reader_that_waits_for_its_gate_far_behind_is_told_of_once(
    runtime: Runtime, writer: LogWriter, gates: Gates
) -> None:
    publish(writer, SLOTS)
    with gating(runtime, start=20):
        for _ in range(3):
            gates.look(0)
        assert gates.take_events() == [GateEvent("recorder", GateChange.BEHIND, 20)]


def test_small_waits_add_up(runtime: Runtime, gates: Gates) -> None:
    with gating(runtime):
        now_ns = 1_000 * MS
        gates.look(now_ns)
        waits = 0
        while gates.open_gates:
            now_ns += 2 * MS  # half of the time is spent waiting for it
            gates.on_waited(SLOTS + 1, MS, now_ns)
            waits += 1
        assert changes(gates.take_events()) == [GateChange.OPENED, GateChange.OVERRUN]
        assert 50 <= waits < 60  # the other half forgives a tenth of itself


def test_waiting_a_tenth_of_the_time_is_forgiven(runtime: Runtime, gates: Gates) -> None:
    with gating(runtime):
        now_ns = 1_000 * MS
        gates.look(now_ns)
        for _ in range(1_000):
            now_ns += (FORGIVEN_SHARE + 2) * MS
            gates.on_waited(SLOTS + 1, MS, now_ns)
        assert changes(gates.take_events()) == [GateChange.OPENED]
        gates.close()


def test_only_who_stands_in_the_way_is_overrun(runtime: Runtime, writer: LogWriter, gates: Gates) -> None:
    with gating(runtime, "slow", start=1), gating(runtime, "quick", start=5):
        gates.look(0)
        gates.on_waited(SLOTS + 1, 60 * MS, 60 * MS)
        assert [gate.reader for gate in gates.open_gates] == ["quick"]
        assert gates.take_events()[-1] == GateEvent("slow", GateChange.OVERRUN, 1, 60 * MS)
        gates.close()


def test_who_was_overrun_rests_before_it_is_waited_for_again(runtime: Runtime, gates: Gates) -> None:
    with gating(runtime):
        gates.look(0)
        gates.on_waited(SLOTS + 1, 50 * MS, 50 * MS)
        assert not gates.open_gates
        half_forgiven_ns = 50 * MS + FORGIVEN_SHARE * 25 * MS
        gates.look(half_forgiven_ns - FORGIVEN_SHARE)
        assert not gates.open_gates
        gates.look(half_forgiven_ns)
        assert [gate.reader for gate in gates.open_gates] == ["recorder"]
        gates.close()


# --- those who only pretend ---

WHOLE_BYTES = HEADER_BYTES + READER_BODY_BYTES
HONEST = {POSITION: 1, IS_GATING: 1, READER_KEY: 77}


def content_of(words: dict[int, int], file_bytes: int = WHOLE_BYTES) -> bytes:
    content = bytearray(WHOLE_BYTES)
    for word, value in words.items():
        struct.pack_into("<q", content, 8 * word, value)
    return bytes(content[:file_bytes])


PRETENDERS = {
    "empty": b"",
    "one byte": b"\xff",
    "cut short": content_of(HONEST, 8 * READER_KEY),
    "only ones": b"\xff" * WHOLE_BYTES,
    "before the beginning": content_of(HONEST | {POSITION: -1}),
    "beyond all numbers": content_of(HONEST | {POSITION: SEQUENCE_MAX + 1}),
    "neither yes nor no": content_of(HONEST | {IS_GATING: 7}),
    "no key": content_of(HONEST | {READER_KEY: 0}),
    "far behind": content_of(HONEST | {POSITION: 0}),
}


@pytest.mark.parametrize("content", PRETENDERS.values(), ids=PRETENDERS.keys())
def test_a_file_that_is_no_readers_does_not_hold_the_writer_up(
    writer: LogWriter, readers: Path, content: bytes
) -> None:
    publish(writer, SLOTS)
    path = readers / "pretender"
    path.write_bytes(content)
    seats = Seats(path, first_byte=READER_SEAT_BYTE)
    try:
        seats.take(0, "pretender", "reader")  # somebody alive holds it
        path.write_bytes(content)
        gates = Gates(writer.words, SLOTS, readers, PATIENCE_NS)
        gates.look(0)
        assert gates.open_gates == []
        publish(writer, 3 * SLOTS)
        assert not set(changes(gates.take_events() + writer.service())) - {GateChange.BEHIND}
    finally:
        seats.forget()


def test_things_that_are_no_files_do_not_hold_the_writer_up(writer: LogWriter, readers: Path) -> None:
    os.mkfifo(readers / "pipe")
    (readers / "directory").mkdir()
    (readers / "zeros").symlink_to("/dev/zero")
    (readers / "loop").symlink_to("loop")
    gates = Gates(writer.words, SLOTS, readers, PATIENCE_NS)
    gates.look(0)
    assert gates.open_gates == []
    publish(writer, 3 * SLOTS)
    assert writer.service() == []


def test_a_directory_full_of_nonsense_is_not_read_for_ever(writer: LogWriter, readers: Path) -> None:
    names = {f"junk-{index}" for index in range(5 * LOOK_FILES)}
    for name in names:
        (readers / name).touch()
    looks: list[list[str]] = []

    class Counting(Gates):
        def look(self, now_ns: int) -> None:
            looks.append([])
            super().look(now_ns)

        def _look_at(self, path: Path, now_ns: int, room: int, dead_for_ns: int = DEAD_FOR_NS) -> None:
            looks[-1].append(path.name)
            super()._look_at(path, now_ns, room, dead_for_ns)

    gates = Counting(writer.words, SLOTS, readers, PATIENCE_NS)
    for _ in range(6):
        gates.look(time.monotonic_ns())
    assert max(map(len, looks)) == LOOK_FILES
    assert {name for look in looks for name in look} == names  # all have their turn


def test_the_next_look_is_the_later_the_longer_a_look_took(writer: LogWriter, readers: Path) -> None:
    class Slow(Gates):
        def _look_at(self, path: Path, now_ns: int, room: int, dead_for_ns: int = 0) -> None:
            while time.monotonic_ns() < now_ns + MS:
                pass

    (readers / "anybody").touch()
    gates = Slow(writer.words, SLOTS, readers, PATIENCE_NS)
    now_ns = time.monotonic_ns()
    gates.look(now_ns)
    assert not gates.is_due(now_ns + 99 * MS)


def test_files_of_the_dead_are_removed_while_the_writer_runs(
    writer: LogWriter, runtime: Runtime, readers: Path
) -> None:
    with LogReader.open(runtime, NAME, who="alive"):
        for name, age_ns in (("long-dead", 2 * DEAD_FOR_NS), ("just-made", 0)):
            (readers / name).write_bytes(content_of(HONEST))
            made_ns = time.time_ns() - age_ns
            os.utime(readers / name, ns=(made_ns, made_ns))
        Gates(writer.words, SLOTS, readers, PATIENCE_NS).look(0)
        assert sorted(path.name for path in readers.iterdir()) == ["alive", "just-made"]


def test_a_dead_reader_that_asks_is_not_waited_for(writer: LogWriter, readers: Path) -> None:
    (readers / "dead").write_bytes(content_of(HONEST))
    gates = Gates(writer.words, SLOTS, readers, PATIENCE_NS)
    gates.look(0)
    assert gates.open_gates == []


@pytest.mark.parametrize("found", [-1, SEQUENCE_MAX + 1])
def test_a_gate_whose_file_becomes_nonsense_is_taken_away(
    runtime: Runtime, writer: LogWriter, found: int
) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        reader.own[POSITION] = found
        publish(writer, 3 * SLOTS)
        assert changes(serve_until(writer, bool)) == [GateChange.BROKEN]


def test_a_gate_whose_file_is_cut_short_is_taken_away(
    runtime: Runtime, writer: LogWriter, readers: Path
) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        os.truncate(readers / "recorder", HEADER_BYTES)
        publish(writer, 3 * SLOTS)
        events = serve_until(writer, bool)
        os.truncate(readers / "recorder", WHOLE_BYTES)  # or the reader itself would fall over it
        assert changes(events) == [GateChange.BROKEN]


def test_a_gate_cannot_go_back_and_a_lie_costs_no_more_than_patience(
    runtime: Runtime, writer: LogWriter
) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        publish(writer, SLOTS)
        assert len(reader.read()) == SLOTS
        publish(writer, SLOTS // 2)
        reader.own[POSITION] = 1
        publish(writer, SLOTS // 2)  # it had been seen at SLOTS + 1, so that there is room without waiting
        assert writer.service() == []
        publish(writer, 2 * SLOTS)
        assert changes(serve_until(writer, bool)) == [GateChange.OVERRUN]


def test_a_reader_that_claims_to_be_ahead_is_simply_not_waited_for(
    runtime: Runtime, writer: LogWriter
) -> None:
    with gating(runtime) as reader:
        await_gate(writer, reader)
        reader.own[POSITION] = SEQUENCE_MAX
        publish(writer, 5 * SLOTS)
        assert writer.service() == []
