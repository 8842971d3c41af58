"""Removing a log, ring or slab that nobody uses: every seat is taken first, so that nobody can sit down."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from middleware.shm.errors import NotFound, PermissionsError, ShmError
from middleware.shm.inspection.look import KINDS, Kind
from middleware.shm.log_writer import remove_log
from middleware.shm.places import remove_place
from middleware.shm.ring_file import SEATS_FILE as RING_SEATS_FILE
from middleware.shm.ring_file import remove_ring
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from middleware.shm.slab_layout import PARTICIPANTS_MAX
from middleware.shm.slab_members import ROLE, SLAB_FILE, registrar
from middleware.shm.slab_members import SEATS_FILE as SLAB_SEATS_FILE

REMOVER = "remover"
USERS_TOLD = 5


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, or would be."""

    kind: str
    name: str
    path: str
    file_bytes: int


def remove(runtime: Runtime, kind: Kind, name: str, *, is_dry_run: bool = False) -> Removal:
    """Remove an item that nobody uses; ShmError names its users otherwise. A dry run only says what would be.

    A log's readers count as users here, though its writer could remove it under them: who asks for it by hand
    may not know of them.
    """
    place = runtime.place(kind.directory, name)
    if not place.is_dir():
        raise NotFound(f"there is no {kind.name} '{name}' in {runtime.path}")
    if kind not in REMOVABLE:
        raise ShmError(
            f"{kind.name} {name} is not removed, because nobody can know who uses it: remove {place} by hand "
            f"when nothing runs on this node any more"
        )
    users = kind.users(place)
    if users:
        told = ", ".join(str(user) for user in users[:USERS_TOLD])
        more = f" and {len(users) - USERS_TOLD} more" if len(users) > USERS_TOLD else ""
        raise ShmError(f"{kind.name} {name} is in use by its {told}{more}: stop them first")
    if not os.access(place, os.W_OK) or not os.access(place.parent, os.W_OK):
        raise PermissionsError(f"no right to remove {place}")
    removal = Removal(kind.name, name, str(place), _bytes_below(place))
    if not is_dry_run:
        path = place / kind.file
        if kind.name == "log" and path.is_dir() and not path.is_symlink():
            _remove_mistake(path)
        _REMOVERS[kind.name](runtime, name)
    return removal


def _remove_mistake(path: Path) -> None:
    """Remove a directory in the place of a file, which nobody can have open as one."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise ShmError(f"cannot remove {path}: {error.strerror}") from error


def _remove_ring(runtime: Runtime, name: str) -> None:
    # A ring whose maker died before its seats were made has none to take.
    Seats(runtime.place("rings", name) / RING_SEATS_FILE, is_creator=True).close()
    remove_ring(runtime, name)


def _remove_slab(runtime: Runtime, name: str) -> None:
    place = runtime.place("slabs", name)
    seats = Seats(place / SLAB_SEATS_FILE, is_creator=True)
    try:
        with registrar(seats, REMOVER):
            for seat in range(PARTICIPANTS_MAX):
                seats.take(seat, REMOVER, ROLE)
            seats.insist_current()
            remove_place(seats, SLAB_FILE)
    finally:
        seats.close()


_REMOVERS: dict[str, Callable[[Runtime, str], None]] = {
    "log": remove_log,
    "ring": _remove_ring,
    "slab": _remove_slab,
}
REMOVABLE = tuple(kind for kind in KINDS if kind.name in _REMOVERS)  # who uses a bell, nobody can know


def _bytes_below(place: Path) -> int:
    total_bytes = 0
    for path in place.rglob("*"):
        with suppress(FileNotFoundError):  # a reader's file, for one, goes with its reader
            status = path.lstat()
            total_bytes += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return total_bytes
