"""The node's runtime directory: where logs, rings and slabs live, who may open them, what a crash left.

    <runtime>/logs/NAME/log  writer  readers/READER
              rings/NAME/ring  seats
              slabs/NAME/slab  seats
              bells/NAME/bell

Everything is its owner's alone, unless the node's configuration lets a group read: the group of the runtime
directory, which all that is made in it inherits. The group may map logs read-only and say where it stands in
a file of its own, and nothing else.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from middleware.shm.errors import NotFound, PermissionsError
from middleware.shm.mapping import remove_scratch
from middleware.shm.names import checked_name

KINDS = ("logs", "rings", "slabs", "bells")
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
        """With a group, what is made in a directory belongs to the directory's group (setgid)."""
        return 0o2750 if self.is_group_readable else 0o700

    @property
    def guest_directory_mode(self) -> int:
        """For directories in which readers make files of their own: nobody may remove another's (sticky)."""
        return 0o3770 if self.is_group_readable else 0o700

    def prepare(self) -> None:
        """Make the directory where it is missing, and remove what a crash left half made."""
        self._make(self.path, self.directory_mode)
        for kind in KINDS:
            self._make(self.path / kind, self.directory_mode)
            for place in self._places(kind):
                remove_scratch(place)
                for guests in _directories(place):
                    remove_scratch(guests)

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
        return _directories(self.path / kind)

    def check(self) -> None:
        """Insist that the directory is there, and that no stranger can write to it.

        It must be ours or root's; or, where groups may read, it may be another user's who shares it with a
        group of ours.
        """
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            raise NotFound(f"there is no {self.path}: nothing has been started on this node") from None
        is_shared_with_us = self.is_group_readable and status.st_gid in (os.getegid(), *os.getgroups())
        _insist_closed(self.path, status, is_guest=is_shared_with_us)

    def _make(self, path: Path, mode: int) -> None:
        try:
            path.mkdir(parents=path == self.path, mode=0o700)
            path.chmod(mode)  # as wanted, whatever the umask
        except FileExistsError:
            pass
        except OSError as error:
            raise PermissionsError(f"cannot make the directory {path}: {error.strerror}") from error
        status = path.lstat()
        _insist_closed(path, status)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
            path.chmod(mode)


def _directories(path: Path) -> list[Path]:
    """Return the directories in a directory that may not be there; links to elsewhere are not among them."""
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise PermissionsError(f"cannot list {path}: {error.strerror}") from error


def _insist_closed(path: Path, status: os.stat_result, *, is_guest: bool = False) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionsError(f"{path} must be a directory, was {stat.filemode(status.st_mode)}")
    if not is_guest and status.st_uid not in (0, os.geteuid()):
        raise PermissionsError(f"{path} must belong to this user, belongs to user {status.st_uid}")
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_ISVTX):
        raise PermissionsError(
            f"{path} must not be writable by others, was {stat.filemode(status.st_mode)}: chmod go-w it"
        )
