"""The node's runtime directory: where logs, rings and slabs live, who may open them, what a crash left.

    <runtime>/logs/NAME/log  writer  readers/READER
              rings/NAME/ring  seats
              slabs/NAME/slab  seats

Everything is its owner's alone, unless the node's configuration lets its group read: then the group may map
logs read-only and say where it stands in a file of its own, and nothing else.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from middleware.shm.errors import NotFound, PermissionsError
from middleware.shm.mapping import remove_scratch
from middleware.shm.names import checked_name

KINDS = ("logs", "rings", "slabs")
ENVIRONMENT_NAME = "TWINTAPE_RUNTIME_DIR"


def default_path() -> Path:
    """Return where a node's files go unless told otherwise: memory, not a disk, and this user's."""
    named = os.environ.get(ENVIRONMENT_NAME)
    if named:
        return Path(named)
    memory = Path("/dev/shm")  # noqa: S108 - the directory below is ours alone, checked before use
    return (memory if memory.is_dir() else Path("/run")) / f"twintape-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """One node's directory. `prepare` before making anything in it."""

    path: Path
    is_group_readable: bool = False

    @property
    def file_mode(self) -> int:
        return 0o640 if self.is_group_readable else 0o600

    @property
    def directory_mode(self) -> int:
        return 0o750 if self.is_group_readable else 0o700

    @property
    def guest_directory_mode(self) -> int:
        """For directories in which readers make files of their own: nobody may remove another's."""
        return 0o1770 if self.is_group_readable else 0o700

    def prepare(self) -> None:
        """Make the directory where it is missing, and remove what a crash left half made."""
        self._make(self.path, self.directory_mode)
        for kind in KINDS:
            self._make(self.path / kind, self.directory_mode)
            for place in self._places(kind):
                remove_scratch(place)

    def place(self, kind: str, name: str) -> Path:
        """Return the directory of one log, ring or slab."""
        assert kind in KINDS
        return self.path / kind / checked_name(name)

    def make_place(self, kind: str, name: str) -> Path:
        self.prepare()
        place = self.place(kind, name)
        self._make(place, self.directory_mode)
        return place

    def make_guest_directory(self, path: Path) -> None:
        self._make(path, self.guest_directory_mode)

    def names(self, kind: str) -> list[str]:
        """Return the names of all logs, rings or slabs of this node."""
        return sorted(place.name for place in self._places(kind))

    def _places(self, kind: str) -> list[Path]:
        try:
            return [place for place in (self.path / kind).iterdir() if place.is_dir()]
        except FileNotFoundError:
            return []

    def check(self) -> None:
        """Insist that the directory is there, is ours or root's, and that no stranger can write to it."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            raise NotFound(f"there is no {self.path}: nothing has been started on this node") from None
        _insist_closed(self.path, status)

    def _make(self, path: Path, mode: int) -> None:
        with suppress(FileExistsError):
            path.mkdir(parents=path == self.path, mode=0o700)
            path.chmod(mode)  # as wanted, whatever the umask
        status = path.lstat()
        _insist_closed(path, status)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
            path.chmod(mode)


def _insist_closed(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionsError(f"{path} must be a directory, was {stat.filemode(status.st_mode)}")
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionsError(f"{path} must belong to this user, belongs to user {status.st_uid}")
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_ISVTX):
        raise PermissionsError(
            f"{path} must not be writable by others, was {stat.filemode(status.st_mode)}: chmod go-w it"
        )
