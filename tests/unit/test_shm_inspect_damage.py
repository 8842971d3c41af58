"""Nothing damaged stops the inspector; what nobody uses can be removed, and nothing else."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from middleware.shm.bell import Bell
from middleware.shm.errors import LayoutError, NotFound, ShmError
from middleware.shm.inspection.files import Condition, FileSight, settled
from middleware.shm.inspection.look import KINDS, inspect_all, inspect_one
from middleware.shm.inspection.removal import REMOVABLE, remove
from middleware.shm.inspection.report import BrokenReport, row_of
from middleware.shm.inspection.table import plain
from middleware.shm.inspection.text import listing, page
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.log_kernels import CLAIM, TAIL
from middleware.shm.log_layout import LOG_LAYOUT
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.slab import Slab
from tests.unit.shm_scene import BELL, DAMAGES, LOG, RING, SLAB, SLOTS, SMALL, die, publish, rows, tree


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS) as writer:
        yield writer


class TestDamage:
    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
    def test_damaged_items_are_rows_and_hide_no_other(
        self, runtime: Runtime, damage: Callable[[Path], None]
    ) -> None:
        for name in ("good", "bad"):
            LogWriter.open(runtime, name, who="adapter-a", slot_count=SLOTS).close()
            make_ring(runtime, name, capacity_bytes=4_096)
            Slab.open(runtime, name, who="manager-1", config=SMALL).close()
            Bell.make(runtime, name)
        for kind in KINDS:
            damage(runtime.place(kind.directory, "bad") / kind.file)
        found = rows(runtime)
        assert sorted(found) == sorted(f"{kind.name}/{name}" for kind in KINDS for name in ("good", "bad"))
        for kind in KINDS:
            bad = found[f"{kind.name}/bad"]
            assert bad.condition is Condition.DAMAGED
            assert str(runtime.place(kind.directory, "bad")) in bad.reason
            assert not found[f"{kind.name}/good"].reason
        told = "\n".join(map(plain, listing(list(found.values()), None, {})))
        assert told.count(": damaged: ") == len(KINDS)

    def test_cursors_that_contradict_each_other_are_damage(self, runtime: Runtime, writer: LogWriter) -> None:
        publish(writer, 10)
        writer.words[CLAIM] = 3
        report = inspect_one(runtime, LOG, "XNAS.ITCH")
        assert report.condition is Condition.DAMAGED
        assert "claimed message number" in report.reason
        assert isinstance(report, BrokenReport)
        assert [str(user.holder) for user in report.users] == [f"'adapter-a' (process {os.getpid()})"]

    def test_a_contradiction_that_passes_is_not_damage(self, runtime: Runtime, writer: LogWriter) -> None:
        publish(writer, 10)
        sound, looks = int(writer.words[TAIL]), []

        def look() -> int:
            looks.append(1)
            if len(looks) < 3:
                raise LayoutError(Path("log"), "tail", 0, sound)
            return sound

        assert settled(look) == sound
        assert len(looks) == 3

    def test_a_file_that_is_cut_while_looked_at_is_an_error_and_no_signal(
        self, runtime: Runtime, writer: LogWriter
    ) -> None:
        path = runtime.place("logs", "XNAS.ITCH") / "log"
        with FileSight(path, LOG_LAYOUT) as sight:
            os.truncate(path, 4_096)
            with pytest.raises(LayoutError, match="file size must be"):
                sight[TAIL]

    def test_a_place_without_its_file_is_unfinished(self, runtime: Runtime) -> None:
        runtime.make_place("rings", "half")
        assert rows(runtime)["ring/half"].condition is Condition.UNFINISHED

    def test_a_name_that_cannot_be_is_a_row_that_cannot_move_the_cursor(self, runtime: Runtime) -> None:
        runtime.prepare()
        (runtime.path / "logs" / "a\x1b[2Jb").mkdir()
        (report,) = inspect_all(runtime)
        assert report.condition is Condition.DAMAGED
        shown_text = "\n".join(map(plain, [*listing([row_of(report)], None, {}), *page(report, None)]))
        assert "\x1b" not in shown_text
        assert r"a\x1b[2Jb" in shown_text

    def test_no_node_is_not_an_empty_one(self, runtime: Runtime) -> None:
        with pytest.raises(NotFound, match="nothing has been started"):
            inspect_all(runtime)
        runtime.prepare()
        assert inspect_all(runtime) == []


class TestRemoval:
    def test_what_is_used_is_not_removed_and_the_refusal_says_by_whom(
        self, runtime: Runtime, writer: LogWriter
    ) -> None:
        make_ring(runtime, "in", capacity_bytes=4_096)
        with (
            RingConsumer.open(runtime, "in", who="router"),
            Slab.open(runtime, "bodies", who="manager-1", config=SMALL),
        ):
            for kind, name, user in (
                (LOG, "XNAS.ITCH", "writer 'adapter-a'"),
                (RING, "in", "consumer 'router'"),
                (SLAB, "bodies", "participant 'manager-1'"),
            ):
                for is_dry_run in (True, False):
                    with pytest.raises(ShmError, match=user):
                        remove(runtime, kind, name, is_dry_run=is_dry_run)
                assert inspect_one(runtime, kind, name).condition is not Condition.UNFINISHED

    def test_a_log_that_is_read_is_in_use_too(self, runtime: Runtime, writer: LogWriter) -> None:
        with LogReader.open(runtime, "XNAS.ITCH", who="app"):
            writer.close()
            with pytest.raises(ShmError, match="reader 'app'"):
                remove(runtime, LOG, "XNAS.ITCH")
        remove(runtime, LOG, "XNAS.ITCH")
        assert inspect_all(runtime) == []

    def test_what_nobody_uses_is_removed_and_can_be_made_again(self, runtime: Runtime) -> None:
        for _ in range(2):
            die(LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS))
            make_ring(runtime, "in", capacity_bytes=4_096)
            die(RingProducer.open(runtime, "in", who="manager-1"))
            die(Slab.open(runtime, "bodies", who="manager-1", config=SMALL))
            for kind, name in ((LOG, "XNAS.ITCH"), (RING, "in"), (SLAB, "bodies")):
                before = tree(runtime.path)
                planned = remove(runtime, kind, name, is_dry_run=True)
                assert tree(runtime.path) == before
                assert remove(runtime, kind, name) == planned
                assert planned.file_bytes > 4_096
            assert inspect_all(runtime) == []

    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
    def test_what_is_damaged_can_be_removed(self, runtime: Runtime, damage: Callable[[Path], None]) -> None:
        LogWriter.open(runtime, "bad", who="adapter-a", slot_count=SLOTS).close()
        make_ring(runtime, "bad", capacity_bytes=4_096)
        Slab.open(runtime, "bad", who="manager-1", config=SMALL).close()
        for kind in REMOVABLE:
            damage(runtime.place(kind.directory, "bad") / kind.file)
            remove(runtime, kind, "bad")
        assert inspect_all(runtime) == []

    def test_what_was_never_finished_can_be_removed(self, runtime: Runtime) -> None:
        for kind in REMOVABLE:
            runtime.make_place(kind.directory, "half")
            remove(runtime, kind, "half")
            with pytest.raises(NotFound):
                remove(runtime, kind, "half")

    def test_a_bell_stays_because_nobody_can_know_who_waits_for_it(self, runtime: Runtime) -> None:
        bell = Bell.make(runtime, "router")
        refusal = f"nobody can know who uses it: remove {re.escape(str(bell.path.parent))} by hand"
        for is_dry_run in (True, False):
            with pytest.raises(ShmError, match=refusal):
                remove(runtime, BELL, "router", is_dry_run=is_dry_run)
        assert bell.path.exists()
        with pytest.raises(NotFound, match="no bell 'other'"):
            remove(runtime, BELL, "other")
