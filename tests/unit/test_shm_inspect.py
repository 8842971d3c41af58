"""The inspector's look at logs, rings and slabs: what it says is so, and it disturbs nobody."""

import fcntl
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeds import wire
from feeds.errors import ConfigError
from middleware.shm.atomics import Words
from middleware.shm.bell import BELL_WORD, Bell
from middleware.shm.inspection import files, slabs
from middleware.shm.inspection.bells import BellReport
from middleware.shm.inspection.files import Condition, Life
from middleware.shm.inspection.logs import GateState, LogReport, newest_frames
from middleware.shm.inspection.look import inspect_all, inspect_one
from middleware.shm.inspection.report import BrokenReport, row_of
from middleware.shm.inspection.rings import RingReport
from middleware.shm.inspection.slabs import SlabReport
from middleware.shm.inspection.table import plain
from middleware.shm.inspection.text import frame_lines, frame_records, listing
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.log_layout import LOG_LAYOUT, READERS_DIRECTORY
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Identity
from middleware.shm.slab import Slab
from middleware.shm.slab_layout import (
    CLASS_MASK,
    GENERATION_SHIFT,
    PLAN_ROWS,
    ROW_SLOTS_AT,
    SHARED,
    SLOT_BITS,
    SLOT_RECORD_WORDS,
    STATE,
)
from tests.unit.shm_scene import (
    BELL,
    NOBODY,
    RING,
    SLAB,
    SLOTS,
    SMALL,
    die,
    log_report,
    open_files,
    publish,
    ring_report,
    rows,
    slab_report,
    text_of,
    tree,
)


def _class_of(handle: int) -> int:
    return handle >> SLOT_BITS & CLASS_MASK


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS) as writer:
        yield writer


class TestLog:
    def test_a_writer_and_its_messages_are_told(self, runtime: Runtime, writer: LogWriter) -> None:
        publish(writer, 100)
        report = log_report(runtime)
        assert report.condition is Condition.LIVE
        assert report.writer is not None
        assert (report.writer.name, report.writer.pid) == ("adapter-a", os.getpid())
        assert report.writer.life is Life.ALIVE
        assert (report.begin_seq, report.oldest_seq, report.next_seq) == (1, 1, 101)
        assert report.message_count == 100
        assert report.slot_count == SLOTS
        assert report.facts.incarnation == writer.incarnation
        assert (report.facts.mode, report.facts.version) == ("-rw-------", LOG_LAYOUT.version)
        assert report.published_age_ns is not None
        assert 0 <= report.published_age_ns < 60_000_000_000

    def test_nothing_published_has_no_age(self, runtime: Runtime, writer: LogWriter) -> None:
        report = log_report(runtime)
        assert report.published_age_ns is None
        assert report.message_count == 0
        assert "never" in text_of(report)

    def test_lag_is_what_was_published_and_not_read(self, runtime: Runtime, writer: LogWriter) -> None:
        publish(writer, 100)
        with (
            LogReader.open(runtime, "XNAS.ITCH", who="slow") as slow,
            LogReader.open(runtime, "XNAS.ITCH", who="quick") as quick,
            LogReader.open(runtime, "XNAS.ITCH", who="early", start=1_000),
        ):
            slow.read(36)
            quick.read(100)
            readers = {reader.name: reader for reader in log_report(runtime).readers}
            assert (readers["slow"].position, readers["slow"].lag) == (37, 64)
            assert readers["slow"].lag_share == 64 / SLOTS
            assert readers["quick"].lag == 0
            assert (readers["early"].position, readers["early"].lag) == (1_000, 0)
            assert not any(reader.is_lapped for reader in readers.values())
            row = rows(runtime)["log/XNAS.ITCH"]
            assert (row.lag, row.lag_share, row.lag_reader) == (64, 0.25, "slow")
            assert len(row.readers) == 3

    def test_a_lapped_reader_is_told_what_it_will_miss(self, runtime: Runtime, writer: LogWriter) -> None:
        with LogReader.open(runtime, "XNAS.ITCH", who="app") as reader:
            publish(writer, 100)
            reader.read(10)
            publish(writer, SLOTS)
            report = log_report(runtime)
            (seen,) = report.readers
            assert seen.is_lapped
            assert seen.missed == report.oldest_seq - 11
            assert seen.lag == 101 + SLOTS - 11
            reader.read()
            assert reader.take_missed()[0].first == 11
            assert not log_report(runtime).readers[0].is_lapped

    def test_who_is_waited_for_and_who_asks_in_vain(self, runtime: Runtime, writer: LogWriter) -> None:
        with (
            LogReader.open(runtime, "XNAS.ITCH", who="recorder", is_gating=True) as recorder,
            LogReader.open(runtime, "XNAS.ITCH", who="app"),
        ):
            states = {reader.name: reader.gate for reader in log_report(runtime).readers}
            assert states == {"recorder": GateState.PASSED_OVER, "app": GateState.NONE}
            while not recorder.is_gated:
                writer.service()
            report = log_report(runtime)
            states = {reader.name: reader.gate for reader in report.readers}
            assert states == {"recorder": GateState.WAITED_FOR, "app": GateState.NONE}
            assert report.gates_taken == 1
            die(writer)
            states = {reader.name: reader.gate for reader in log_report(runtime).readers}
            assert states["recorder"] is GateState.PASSED_OVER  # there is nobody who could wait

    def test_a_writer_that_left_is_no_longer_named_and_one_that_died_is(self, runtime: Runtime) -> None:
        LogWriter.open(runtime, "left", who="adapter-a", slot_count=SLOTS).close()
        die(LogWriter.open(runtime, "died", who="adapter-b", slot_count=SLOTS))
        left, died = log_report(runtime, "left"), log_report(runtime, "died")
        assert (left.condition, left.writer) == (Condition.NO_WRITER, None)
        assert died.condition is Condition.NO_WRITER
        assert died.writer is not None
        assert (died.writer.name, died.writer.life) == ("adapter-b", Life.DEAD)
        assert "died without leaving" in text_of(died)

    def test_a_log_whose_writer_said_so_has_ended(self, runtime: Runtime, writer: LogWriter) -> None:
        writer.end()
        assert log_report(runtime).condition is Condition.ENDED

    def test_a_dead_reader_does_not_count_as_lag(self, runtime: Runtime, writer: LogWriter) -> None:
        publish(writer, 50)
        die(LogReader.open(runtime, "XNAS.ITCH", who="gone"))
        row = rows(runtime)["log/XNAS.ITCH"]
        assert row.lag is None
        assert [holder.life for holder in row.readers] == [Life.DEAD]

    @pytest.mark.parametrize("content", [b"", b"not a reader's file", bytes(8_192)])
    def test_a_reader_file_that_is_none_is_told_and_hides_no_other(
        self, runtime: Runtime, writer: LogWriter, content: bytes
    ) -> None:
        with LogReader.open(runtime, "XNAS.ITCH", who="app"):
            (runtime.place("logs", "XNAS.ITCH") / READERS_DIRECTORY / "junk").write_bytes(content)
            report = log_report(runtime)
            assert [reader.name for reader in report.readers] == ["app", "junk"]
            assert not report.readers[0].problem
            assert "junk" in report.readers[1].problem
            assert "damaged" in text_of(report)
            assert "junk" in rows(runtime)["log/XNAS.ITCH"].reason

    def test_a_reader_that_has_not_said_where_it_is_yet_is_told_so(
        self, runtime: Runtime, writer: LogWriter
    ) -> None:
        with LogReader.open(runtime, "XNAS.ITCH", who="app") as reader:
            reader.own[512:515] = 0  # as its file is between its making and its joining
            assert "does not say yet" in log_report(runtime).readers[0].problem

    def test_newest_frames_are_whole_and_leave_no_reader_behind(
        self, runtime: Runtime, writer: LogWriter
    ) -> None:
        place = runtime.place("logs", "XNAS.ITCH")
        assert len(newest_frames(place, 5)) == 0
        publish(writer, 3)
        assert newest_frames(place, 5)["message_seq"].tolist() == [1, 2, 3]
        for _ in range(4):
            publish(writer, 100)
        assert newest_frames(place, 5)["message_seq"].tolist() == [399, 400, 401, 402, 403]
        assert len(newest_frames(place, 10_000)) == log_report(runtime).message_count
        assert list((place / READERS_DIRECTORY).iterdir()) == []

    @pytest.mark.parametrize("count", [-1, 0, 10_001])
    def test_frames_have_a_limit(self, runtime: Runtime, writer: LogWriter, count: int) -> None:
        with pytest.raises(ConfigError, match="1 to 10000"):
            newest_frames(runtime.place("logs", "XNAS.ITCH"), count)

    def test_a_frame_that_is_none_of_ours_is_shown_as_bytes(self) -> None:
        frames = wire.empty(2)
        frames["message_seq"] = [7, 8]
        frames["schema_id"] = [wire.Schema.ORDER_DELETE, 250]
        good, bad = frame_lines(frames)
        assert good.split()[0] == "7"
        assert "order_delete" in good
        assert bad.split()[0] == "8"
        assert "250" in bad
        records = list(frame_records(frames))
        assert [record["message_seq"] for record in records] == [7, 8]
        assert records[0]["schema"] == "ORDER_DELETE"
        assert bytes.fromhex(records[1]["bytes"]) == frames[1:].tobytes()


class TestRing:
    def test_ends_positions_and_fill(self, runtime: Runtime) -> None:
        make_ring(runtime, "in", capacity_bytes=4_096)
        assert ring_report(runtime).condition is Condition.UNUSED
        with RingProducer.open(runtime, "in", who="manager-1") as producer:
            assert ring_report(runtime).condition is Condition.NO_CONSUMER
            for _ in range(3):
                producer.append(b"x" * 100)
            with RingConsumer.open(runtime, "in", who="router") as consumer:
                assert consumer.peek() is not None
                consumer.advance()
                report = ring_report(runtime)
                assert report.condition is Condition.LIVE
                assert (report.head, report.tail) == (consumer.head, producer.tail)
                assert report.fill_bytes == producer.fill_bytes
                assert report.fill_share == producer.fill_bytes / 4_096
                assert report.producer is not None
                assert report.consumer is not None
                assert (report.producer.name, report.consumer.name) == ("manager-1", "router")
                die(producer)
                report = ring_report(runtime)
                assert report.condition is Condition.NO_PRODUCER
                assert report.producer is not None
                assert report.producer.life is Life.DEAD

    def test_last_record_is_the_last_committed_wherever_it_lies(self, runtime: Runtime) -> None:
        make_ring(runtime, "in", capacity_bytes=4_096)
        assert ring_report(runtime).last is None
        randomness = random.Random(8_841)
        with (
            RingProducer.open(runtime, "in", who="manager-1") as producer,
            RingConsumer.open(runtime, "in", who="router") as consumer,
        ):
            for _ in range(200):  # some rounds, with gaps at the end of each
                body = randomness.randbytes(randomness.choice((0, 1, 8, 33, 500, producer.record_bytes_max)))
                assert producer.append(body) is not None
                while consumer.peek() is not None:
                    consumer.advance()
                last, committed = ring_report(runtime).last, producer.last_committed()
                assert last is not None
                assert committed is not None
                assert (last.position, last.byte_count) == (committed.position, len(body))
                assert last.first_bytes == body[:32].hex()

    @pytest.mark.parametrize(
        ("word", "value", "field"),
        [(512, 3, "tail"), (512, -8, "tail"), (528, 1 << 40, "head|tail"), (1_025, 1 << 33, "mark")],
    )
    def test_damage_is_named(self, runtime: Runtime, word: int, value: int, field: str) -> None:
        make_ring(runtime, "in", capacity_bytes=4_096)
        with RingProducer.open(runtime, "in", who="manager-1") as producer:
            producer.append(b"")
            producer.words[word] = value
            report = inspect_one(runtime, RING, "in")
        assert isinstance(report, BrokenReport)
        assert report.condition is Condition.DAMAGED
        assert any(name in report.reason for name in field.split("|"))
        assert [user.role for user in report.users] == ["producer"]


class TestSlab:
    def test_classes_and_holdings(self, runtime: Runtime) -> None:
        with (
            Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as one,
            Slab.open(runtime, "bodies", who="manager-2", config=SMALL) as two,
        ):
            for _ in range(3):
                assert one.put(b"x" * 64) is not None
            assert one.allocate(10) is not None
            assert two.allocate(200) is not None
            report = slab_report(runtime)
            assert report.condition is Condition.LIVE
            small, large = report.classes
            assert (small.slot_bytes, small.slot_count) == (64, 8)
            assert (small.owned, small.shared, small.used, small.free) == (1, 3, 4, 4)
            assert (large.owned, large.shared, large.free) == (1, 0, 3)
            assert (small.claimed, small.used_max) == (4, 4)
            assert report.used == 5
            holdings = {each.name: (each.owned, each.shared, each.left) for each in report.participants}
            assert holdings == {"manager-1": (1, 3, 0), "manager-2": (1, 0, 0)}
            assert report.left == 0

    def test_refusals_and_overflow_are_counted(self, runtime: Runtime) -> None:
        with Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as slab:
            while slab.allocate(64) is not None:
                pass
            small, large = slab_report(runtime).classes
            assert (small.free, large.free) == (0, 0)
            assert small.overflowed == 4
            assert small.refused == 1

    def test_what_the_dead_hold_is_told_until_it_is_recovered(self, runtime: Runtime) -> None:
        first = Slab.open(runtime, "bodies", who="manager-1", config=SMALL)
        assert first.allocate(10) is not None
        assert first.put(b"abc") is not None
        die(first)
        report = slab_report(runtime)
        assert report.condition is Condition.UNUSED
        assert report.left == 2
        assert "died" in row_of(report).reason
        with Slab.open(runtime, "bodies", who="manager-1") as successor:
            (member,) = slab_report(runtime).participants
            assert member.is_alive
            assert (member.owned, member.left_owned, member.left_shared) == (0, 1, 1)
            successor.recover()
            (member,) = slab_report(runtime).participants
            assert (member.left_owned, member.left_shared) == (0, 1)  # the shared one awaits a verdict

    @pytest.mark.parametrize("seed", range(4))
    def test_its_figures_are_those_of_a_plain_count(self, runtime: Runtime, seed: int) -> None:
        randomness = random.Random(seed)
        held: dict[int, tuple[str, str]] = {}  # handle: whose, and whether owned or shared
        claimed, freed, refused = Counter[int](), Counter[int](), 0
        with (
            Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as one,
            Slab.open(runtime, "bodies", who="manager-2") as two,
        ):
            slabs = {"manager-1": one, "manager-2": two}
            for _ in range(100):
                who = randomness.choice(sorted(slabs))
                mine = [handle for handle, (owner, _) in held.items() if owner == who]
                if mine and randomness.random() < 0.4:
                    handle = randomness.choice(mine)
                    if held[handle][1] == "owned" and randomness.random() < 0.5:
                        slabs[who].share(handle)
                        held[handle] = who, "shared"
                        continue
                    if held[handle][1] == "owned":
                        slabs[who].free(handle)
                    else:
                        slabs[who].relinquish(handle, limit=1)
                    freed[_class_of(handle)] += 1
                    del held[handle]
                else:
                    new = slabs[who].allocate(randomness.randint(1, 256))
                    if new is None:
                        refused += 1
                    else:
                        held[new] = who, "owned"
                        claimed[_class_of(new)] += 1
            report = slab_report(runtime)
        states = Counter((_class_of(handle), state) for handle, (_, state) in held.items())
        for which, each in enumerate(report.classes):
            size_class = SMALL.classes[which]
            assert (each.slot_bytes, each.slot_count) == (size_class.slot_bytes, size_class.slot_count)
            assert (each.owned, each.shared) == (states[which, "owned"], states[which, "shared"])
            assert each.free == size_class.slot_count - each.owned - each.shared
            assert (each.claimed, each.freed) == (claimed[which], freed[which])
            assert each.used_max >= each.used
        assert sum(each.refused for each in report.classes) == refused
        holdings = Counter(held.values())
        for member in report.participants:
            assert (member.pid, member.left) == (os.getpid(), 0)
            assert member.owned == holdings[member.name, "owned"]
            assert member.shared == holdings[member.name, "shared"]
        assert [member.name for member in report.participants] == ["manager-1", "manager-2"]
        assert claimed.total() > freed.total() > 0

    def test_an_illegal_slot_is_damage(self, runtime: Runtime) -> None:
        with Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as slab:
            place = int(slab.plan[PLAN_ROWS + ROW_SLOTS_AT]) + STATE  # of the first slot
            kept = int(slab.words[place])
            slab.words[place] = kept | 3
            report = inspect_one(runtime, SLAB, "bodies")
            slab.words[place] = kept
        assert isinstance(report, BrokenReport)
        assert "state of slot 0 must be" in report.reason

    @pytest.mark.parametrize("looks_wrong", [1, 2, 10_000])
    def test_a_slot_that_moves_while_it_is_read_is_not_damage(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, looks_wrong: int
    ) -> None:
        """Its first words are of one moment and the rest of another; its state is another at every look."""
        read, looks = files.FileSight.read, 0
        with Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as slab:
            assert slab.put(b"body") is not None
            place = int(slab.plan[PLAN_ROWS + ROW_SLOTS_AT])

            def torn_read(sight: files.FileSight, first: int, count: int) -> Words:
                nonlocal looks
                words = read(sight, first, count).copy()
                if first == place and looks < looks_wrong:
                    looks += 1
                    words[STATE] += looks << GENERATION_SHIFT  # reused since, which its limit does not say
                return words

            monkeypatch.setattr(files.FileSight, "read", torn_read)
            report = slab_report(runtime)
        assert looks == min(looks_wrong, 4), "all slots of the class, then this one: before, all of it, after"
        assert (report.condition, report.used) == (Condition.LIVE, 1)

    @pytest.mark.parametrize("slots_at_once", [1, 3, 4, 1_000])
    @pytest.mark.parametrize("damaged", range(1, 8))
    def test_damage_beside_a_slot_that_moves_is_found_wherever_the_reading_is_cut(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, slots_at_once: int, damaged: int
    ) -> None:
        monkeypatch.setattr(slabs, "SLOTS_AT_ONCE", slots_at_once)
        read = files.FileSight.read
        with Slab.open(runtime, "bodies", who="manager-1", config=SMALL) as slab:
            place = int(slab.plan[PLAN_ROWS + ROW_SLOTS_AT])
            looks = iter(range(1, 1_000))

            def read_of_a_moving_slot(sight: files.FileSight, first: int, count: int) -> Words:
                words = read(sight, first, count).copy()
                if first == place:
                    words[STATE] = next(looks) << GENERATION_SHIFT | SHARED
                return words

            monkeypatch.setattr(files.FileSight, "read", read_of_a_moving_slot)
            assert inspect_one(runtime, SLAB, "bodies").condition is Condition.LIVE
            wrong = place + damaged * SLOT_RECORD_WORDS + STATE
            slab.words[wrong] = 3
            reason = inspect_one(runtime, SLAB, "bodies").reason
            slab.words[wrong] = 0
        assert f"state of slot {damaged} must be a word that a slab can write, was {3:#018x}" in reason


class TestBell:
    def test_how_often_it_was_rung_is_all_that_is_told(self, runtime: Runtime) -> None:
        bell = Bell.make(runtime, "router")
        assert text_of(inspect_one(runtime, BELL, "router")).count("rung 0 times") == 1
        for _ in range(1_234):
            bell.ring()
        report = inspect_one(runtime, BELL, "router")
        assert isinstance(report, BellReport)
        assert (report.condition, report.ring_count) == (Condition.PRESENT, 1_234)
        row = rows(runtime)["bell/router"]
        assert (row.progress, row.file_bytes) == (1_234, bell.path.stat().st_size)
        assert (row.writers, row.readers, row.used, row.lag) == ((), (), None, None)
        (_, line) = listing([row], None, {("bell", "router"): 10.0})
        assert plain(line).split() == [
            *("bell", "router", "present", "-", "rung", "1,234", "times", "10/s", "-", "8", "KiB")
        ]

    def test_damage_is_named(self, runtime: Runtime) -> None:
        bell = Bell.make(runtime, "router")
        bell.words[BELL_WORD] = -1
        assert "count of rings must be 0 or more, was -1" in inspect_one(runtime, BELL, "router").reason


class TestLooking:
    def test_looking_writes_nothing_and_takes_no_seat(
        self, runtime: Runtime, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(writer, 10)
        make_ring(runtime, "in", capacity_bytes=4_096)
        with (
            LogReader.open(runtime, "XNAS.ITCH", who="app"),
            RingProducer.open(runtime, "in", who="manager-1"),
            Slab.open(runtime, "bodies", who="manager-1", config=SMALL),
        ):
            opened: list[int] = []
            locked: list[int] = []
            real_open, real_fcntl = os.open, fcntl.fcntl

            def watched_open(path: str, flags: int, mode: int = 0o777) -> int:
                opened.append(flags)
                return real_open(path, flags, mode)

            def watched_fcntl(fd: int, operation: int, argument: bytes) -> bytes:
                locked.append(operation)
                return real_fcntl(fd, operation, argument)

            before = tree(runtime.path)
            with monkeypatch.context() as patched:
                patched.setattr(os, "open", watched_open)
                patched.setattr(fcntl, "fcntl", watched_fcntl)
                reports = inspect_all(runtime)
                newest_frames(runtime.place("logs", "XNAS.ITCH"), 3)
            assert [report.condition for report in reports] == [
                Condition.LIVE,
                Condition.NO_CONSUMER,
                Condition.LIVE,
            ]
            assert tree(runtime.path) == before
            assert opened
            assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for flags in opened)
            assert set(locked) == {fcntl.F_OFD_GETLK}

    def test_looking_leaves_no_file_open(self, runtime: Runtime, writer: LogWriter) -> None:
        runtime.make_place("rings", "half")
        with LogReader.open(runtime, "XNAS.ITCH", who="app"):
            before = open_files()
            for _ in range(3):
                inspect_all(runtime)
            assert open_files() == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_a_group_reader_sees_all_but_who_writes(self) -> None:
        top = Path(tempfile.mkdtemp())
        try:
            top.chmod(0o755)
            runtime = Runtime(top / "node", is_group_readable=True)
            make_ring(runtime, "in", capacity_bytes=4_096)
            with (
                LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS) as writer,
                LogReader.open(runtime, "XNAS.ITCH", who="app"),
                Slab.open(runtime, "bodies", who="manager-1", config=SMALL),
            ):
                publish(writer, 10)
                newest_frames(runtime.place("logs", "XNAS.ITCH"), 1)  # root's compiled code is root's to load
                os.seteuid(NOBODY)  # still of root's group
                try:
                    reports = inspect_all(runtime)
                    frames = newest_frames(runtime.place("logs", "XNAS.ITCH"), 3)
                finally:
                    os.seteuid(0)
            log, ring, slab = reports
            assert [report.condition for report in reports] == [Condition.UNSEEN] * 3
            assert isinstance(log, LogReport)
            assert (log.next_seq, log.readers[0].name, log.readers[0].lag) == (11, "app", 10)
            assert "only its owner sees" in log.reason
            assert "not to be seen from here" in text_of(log)
            assert isinstance(slab, SlabReport)
            assert [(each.name, each.holder) for each in slab.participants] == [("manager-1", None)]
            assert frames["message_seq"].tolist() == [8, 9, 10]
            assert isinstance(ring, RingReport)
        finally:
            shutil.rmtree(top)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_a_stranger_is_told_that_it_may_not_look(self) -> None:
        top = Path(tempfile.mkdtemp())
        try:
            top.chmod(0o755)
            runtime = Runtime(top / "node")
            LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS).close()
            runtime.path.chmod(0o755)  # the directory is open, what is in it is not
            os.seteuid(NOBODY)
            try:
                reports = inspect_all(runtime)
            finally:
                os.seteuid(0)
            assert {report.condition for report in reports} == {Condition.UNREADABLE}
            assert all("Permission denied" in report.reason for report in reports)
        finally:
            shutil.rmtree(top)

    def test_a_number_that_another_process_has_by_now_is_not_taken_for_a_stopped_writer(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "77").mkdir()
        fields = ["T", *["0"] * 18, "500", "0"]
        (tmp_path / "77" / "stat").write_text(f"77 (a (b) c) {' '.join(fields)}")
        monkeypatch.setattr(files, "_PROC", tmp_path)
        before_boot = Identity("adapter-a", 77, 1)
        since_then = Identity("adapter-a", 77, 1 << 62)
        assert files.held_by(before_boot, is_alive=True).life is Life.ALIVE
        assert files.held_by(since_then, is_alive=True).life is Life.STOPPED
        assert files.held_by(since_then, is_alive=False).life is Life.DEAD
