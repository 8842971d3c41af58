"""Nothing damaged stops the inspector; what nobody uses can be removed, and nothing else."""

import errno
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feeds.errors import ConfigError
from middleware.shm import slab_members
from middleware.shm.bell import Bell
from middleware.shm.errors import InUse, LayoutError, NotFound, ShmError
from middleware.shm.inspection.files import Condition, FileSight, settled
from middleware.shm.inspection.look import KINDS, Kind, find, inspect_all, inspect_one
from middleware.shm.inspection.removal import REMOVABLE, remove
from middleware.shm.inspection.report import BrokenReport, row_of
from middleware.shm.inspection.table import plain
from middleware.shm.inspection.text import listing, page
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.log_kernels import CLAIM, TAIL
from middleware.shm.log_layout import LOG_LAYOUT
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Identity, Seats
from middleware.shm.slab import Slab
from tests.unit.shm_scene import BELL, DAMAGES, LOG, RING, SLAB, SLOTS, SMALL, die, publish, rows, tree


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

    @pytest.mark.parametrize("kind", [RING, SLAB], ids=lambda kind: kind.name)
    def test_what_was_made_anew_while_a_removal_began_is_not_removed(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, kind: Kind
    ) -> None:
        """Another remover is quicker, and a new user is there before the slower one takes the seats."""
        take = Seats.take

        def take_too_late(seats: Seats, index: int, who: str, role: str) -> Identity:
            monkeypatch.undo()
            remove(runtime, kind, "x")
            users.append(_use(runtime, kind))
            return take(seats, index, who, role)

        users: list[RingProducer | Slab] = []
        _use(runtime, kind).close()
        monkeypatch.setattr(Seats, "take", take_too_late)
        with pytest.raises(NotFound, match="removed while"):
            remove(runtime, kind, "x")
        with users[0]:
            assert inspect_one(runtime, kind, "x").condition in (Condition.LIVE, Condition.NO_CONSUMER)
            with pytest.raises(ShmError, match="in use by its"):
                remove(runtime, kind, "x")

    @pytest.mark.parametrize("kind", [RING, SLAB], ids=lambda kind: kind.name)
    def test_the_seats_are_there_until_nothing_else_is(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, kind: Kind
    ) -> None:
        _use(runtime, kind).close()
        place = runtime.place(kind.directory, "x")
        (place / "zzz").mkdir()  # what somebody left there, and what sorts behind the seats
        (place / "zzz" / "note").touch()
        gone: list[str] = []
        unlink = Path.unlink

        def watched_unlink(path: Path, missing_ok: bool = False) -> None:
            if not gone:
                assert path.name == kind.file, "what holds data goes first"
            if path.name == "seats":
                assert list(place.iterdir()) == [path]
                with pytest.raises(InUse):
                    _sit(runtime, kind)
            gone.append(path.name)
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", watched_unlink)
        monkeypatch.setattr(slab_members, "REGISTRAR_PATIENCE_S", 0.01)
        remove(runtime, kind, "x")
        assert gone[-1] == "seats"
        assert not place.exists()

    @pytest.mark.parametrize("kind", [RING, SLAB], ids=lambda kind: kind.name)
    def test_a_removal_that_the_system_refuses_says_so(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, kind: Kind
    ) -> None:
        _use(runtime, kind).close()

        def refuse(path: Path, missing_ok: bool = False) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(ShmError, match=rf"cannot remove .*/x/{kind.file}: Read-only file system"):
            remove(runtime, kind, "x")

    def test_a_slab_that_is_removed_while_it_is_opened_is_not_half_open(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take = Seats.take

        def take_too_late(seats: Seats, index: int, who: str, role: str) -> Identity:
            monkeypatch.undo()
            remove(runtime, SLAB, "x")
            return take(seats, index, who, role)

        _use(runtime, SLAB).close()
        monkeypatch.setattr(Seats, "take", take_too_late)
        with pytest.raises(NotFound, match="removed while"):
            _use(runtime, SLAB)
        _use(runtime, SLAB).close()

    @pytest.mark.parametrize("name", [".hidden", "a b", "-rf", "x" * 65])
    def test_a_place_with_an_impossible_name_says_how_to_remove_it(self, runtime: Runtime, name: str) -> None:
        runtime.prepare()
        place = runtime.path / "rings" / name
        place.mkdir()
        (report,) = inspect_all(runtime)
        advice = f"remove {shlex.quote(str(place))} by hand"
        assert report.condition is Condition.DAMAGED
        assert advice in report.reason
        with pytest.raises(ConfigError, match=re.escape(advice)):
            find(runtime, f"rings/{name}")
        with pytest.raises(ConfigError, match="a name must be"):
            find(runtime, f"rings/{name}~")


def _use(runtime: Runtime, kind: Kind) -> RingProducer | Slab:
    """Make a ring or a slab named `x` where it is missing, and take a place at it."""
    if kind is RING:
        make_ring(runtime, "x", capacity_bytes=4_096)
    return _sit(runtime, kind)


def _sit(runtime: Runtime, kind: Kind) -> RingProducer | Slab:
    if kind is RING:
        return RingProducer.open(runtime, "x", who="manager-1")
    return Slab.open(runtime, "x", who="manager-1", config=SMALL)
