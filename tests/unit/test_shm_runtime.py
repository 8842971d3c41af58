"""The runtime directory: whose it is, who may look into it, and what a crash left there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from feeds.errors import ConfigError
from middleware.shm import mapping
from middleware.shm.errors import NotFound, PermissionsError
from middleware.shm.runtime import ENVIRONMENT_NAME, KINDS, Runtime, default_path

LAYOUT = mapping.Layout("test", 1, ())
SCRATCH = f"{mapping.SCRATCH_PREFIX}0123456789abcdef"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "below" / "node"


class TestModes:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
    def test_everything_is_its_owner_alone(self, path: Path, umask: int) -> None:
        path.parent.mkdir()
        runtime = Runtime(path)
        before = os.umask(umask)
        try:
            place = runtime.make_place("logs", "spy")
            runtime.make_guest_directory(place / "readers")
            mapping.create(place / "log", LAYOUT, "spy", {}, 4_096, runtime.file_mode)
        finally:
            os.umask(before)

        assert [mode_of(step) for step in (path, path / "logs", place, place / "readers")] == [0o700] * 4
        assert mode_of(place / "log") == 0o600

    def test_group_may_look_when_the_configuration_lets_it(self, path: Path) -> None:
        runtime = Runtime(path, is_group_readable=True)
        place = runtime.make_place("logs", "spy")
        runtime.make_guest_directory(place / "readers")
        mapping.create(place / "log", LAYOUT, "spy", {}, 4_096, runtime.file_mode)

        assert [mode_of(step) for step in (path, path / "logs", place)] == [0o2750] * 3
        assert mode_of(place / "readers") == 0o3770
        assert mode_of(place / "log") == 0o640

    def test_changed_configuration_takes_effect_at_the_next_start(self, path: Path) -> None:
        Runtime(path, is_group_readable=True).make_place("rings", "up")
        Runtime(path).make_place("rings", "up")
        assert [mode_of(step) for step in (path, path / "rings", path / "rings" / "up")] == [0o700] * 3


class TestRefusing:
    def test_link_in_its_place_is_refused(self, path: Path, tmp_path: Path) -> None:
        path.parent.mkdir()
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o755)
        for target in (elsewhere, tmp_path / "nowhere"):
            path.symlink_to(target)
            with pytest.raises(PermissionsError, match="must be a directory, was l"):
                Runtime(path).prepare()
            with pytest.raises(PermissionsError, match="must be a directory, was l"):
                Runtime(path).check()
            path.unlink()
        assert mode_of(elsewhere) == 0o755
        assert not list(elsewhere.iterdir())

    def test_file_in_its_place_is_refused(self, path: Path) -> None:
        path.parent.mkdir()
        path.touch()
        with pytest.raises(PermissionsError, match="must be a directory, was -"):
            Runtime(path).prepare()

    def test_file_on_the_way_is_refused(self, path: Path) -> None:
        path.parent.touch()
        with pytest.raises(PermissionsError, match=r"cannot make the directory .*: Not a directory"):
            Runtime(path).prepare()

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702, 0o770])
    def test_directory_that_others_may_write_to_is_refused(self, path: Path, mode: int) -> None:
        path.mkdir(parents=True)
        path.chmod(mode)
        for step in (Runtime(path).prepare, Runtime(path).check):
            with pytest.raises(PermissionsError, match="must not be writable by others") as raised:
                step()
            assert stat.filemode(stat.S_IFDIR | mode) in str(raised.value)
        assert mode_of(path) == mode, "what is wrong is for its owner to judge, not for us to hide"

    @needs_root
    def test_directory_of_another_user_is_refused(self, path: Path) -> None:
        path.mkdir(parents=True, mode=0o700)
        os.chown(path, 12_345, 12_345)
        for step in (Runtime(path).prepare, Runtime(path).check):
            with pytest.raises(PermissionsError, match="must belong to this user, belongs to user 12345"):
                step()

    @needs_root
    def test_kind_or_place_of_another_user_is_refused(self, path: Path) -> None:
        place = Runtime(path).make_place("logs", "spy")
        os.chown(place, 12_345, 12_345)
        with pytest.raises(PermissionsError, match="belongs to user 12345"):
            Runtime(path).make_place("logs", "spy")

    def test_directory_that_cannot_be_made_is_a_clear_error(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_arguments: object, **_options: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(PermissionsError, match=r"cannot make the directory .*: Read-only file system"):
            Runtime(path).prepare()

    def test_node_that_was_never_started_is_not_found(self, path: Path) -> None:
        with pytest.raises(NotFound, match="nothing has been started on this node"):
            Runtime(path).check()

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "-rf", "a b", "a\0b", "a\n", "é", "x" * 65]
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_name_that_is_no_name_is_refused(self, path: Path, kind: str, name: str) -> None:
        with pytest.raises(ConfigError, match="a name must be 1 to 64 letters"):
            Runtime(path).make_place(kind, name)
        with pytest.raises(ConfigError, match="a name must be 1 to 64 letters"):
            Runtime(path).place(kind, name)

    def test_longest_name_is_allowed(self, path: Path) -> None:
        assert Runtime(path).make_place("slabs", "x" * 64).is_dir()


class TestNames:
    def test_names_are_listed_by_kind_in_order(self, path: Path) -> None:
        runtime = Runtime(path)
        for name in ("b", "a", "c.1"):
            runtime.make_place("logs", name)
        runtime.make_place("rings", "r")
        (path / "logs" / "stray").touch()
        (path / "logs" / "link").symlink_to(path / "rings")

        assert runtime.names("logs") == ["a", "b", "c.1"]
        assert runtime.names("rings") == ["r"]
        assert runtime.names("slabs") == []

    def test_node_that_was_never_started_has_no_names(self, path: Path) -> None:
        assert Runtime(path).names("logs") == []


class TestCleaning:
    def test_next_start_removes_what_dead_makers_left(self, path: Path) -> None:
        runtime = Runtime(path)
        places = [runtime.make_place(kind, "spy") for kind in KINDS]
        readers = places[0] / "readers"
        runtime.make_guest_directory(readers)
        for directory in (*places, readers):
            (directory / SCRATCH).write_bytes(b"half made")
            (directory / "whole").write_bytes(b"made")

        Runtime(path).prepare()

        for directory in (*places, readers):
            assert not (directory / SCRATCH).exists()
            assert (directory / "whole").read_bytes() == b"made"

    def test_start_twice_changes_nothing(self, path: Path) -> None:
        runtime = Runtime(path)
        place = runtime.make_place("logs", "spy")
        mapping.create(place / "log", LAYOUT, "spy", {}, 4_096, runtime.file_mode)
        before = (place / "log").read_bytes()
        runtime.prepare()
        assert runtime.make_place("logs", "spy") == place
        assert (place / "log").read_bytes() == before


class TestDefaultPath:
    def test_environment_names_it(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        monkeypatch.setenv(ENVIRONMENT_NAME, str(path))
        assert default_path() == path

    def test_otherwise_it_is_in_memory_and_this_user_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(ENVIRONMENT_NAME, raising=False)
        assert default_path().name == f"twintape-{os.geteuid()}"
        assert default_path().parent in (Path("/dev/shm"), Path("/run"))
