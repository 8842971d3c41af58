"""Removing the directory of a log, ring or slab, in an order that nobody can step in between."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from middleware.shm.errors import ShmError
from middleware.shm.seats import Seats


def remove_place(seats: Seats, data_file: str) -> None:
    """Remove the directory that a file of seats is in; the caller holds every seat, and the file is current.

    What holds data goes first, so that none outlives half a removal. The seats go last: while their file has
    its name, whoever comes finds them taken; and who opened it before that finds it gone by `insist_current`.
    """
    place = seats.path.parent
    try:
        _remove(place / data_file)
        for path in sorted(place.iterdir()):
            if path != seats.path:
                _remove(path)
        seats.path.unlink(missing_ok=True)
    except OSError as error:
        raise ShmError(f"cannot remove {error.filename or place}: {error.strerror}") from error
    try:
        place.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # else a new one of that name is being made there already
            raise ShmError(f"cannot remove {place}: {error.strerror}") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
