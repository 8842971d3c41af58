"""Files and directories that are their owner's alone: made so, and refused when they are not."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from stream_admin.protocol.errors import AdminError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
PRIVATE_FILE_BYTES_MAX = 64 * 1024
_SCRATCH_PREFIX = ".new-"


class ExposedError(AdminError):
    """A file or directory with secrets is open to others, or belongs to somebody else. Close it first."""


def make_private_directory(path: Path) -> None:
    """Make a directory where it is missing; refuse one that others may enter."""
    try:
        path.mkdir(parents=True, mode=DIRECTORY_MODE, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise ExposedError(f"cannot make the directory {path}: {error.strerror}") from error
    _insist(path, status, is_directory=True)


def insist_private_file(path: Path) -> None:
    """Refuse a file that others may open, or that is not a plain file of this user's."""
    _insist(path, path.lstat(), is_directory=False)


def make_private_file(path: Path) -> None:
    """Make an empty file where there is none; refuse one that others may open."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(path, flags, FILE_MODE))
        sync_directory(path.parent)
    except FileExistsError:
        insist_private_file(path)


def read_private_file(path: Path) -> bytes:
    """Return the contents of a small file, after looking at who else could have read or written it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        _insist(path, os.fstat(fd), is_directory=False)  # the file that we have open, not one of its name
        content = file.read(PRIVATE_FILE_BYTES_MAX + 1)
    if len(content) > PRIVATE_FILE_BYTES_MAX:
        raise ExposedError(f"{path} must have at most {PRIVATE_FILE_BYTES_MAX} bytes, had more")
    return content


def write_private_file(path: Path, content: bytes) -> None:
    """Put a file in place, whole, or not at all, on the disk when this returns."""
    scratch = path.parent / f"{_SCRATCH_PREFIX}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(scratch, flags, FILE_MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_scratch(directory: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for scratch in directory.glob(f"{_SCRATCH_PREFIX}*"):
        scratch.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _insist(path: Path, status: os.stat_result, *, is_directory: bool) -> None:
    kind, is_kind = ("directory", stat.S_ISDIR) if is_directory else ("plain file", stat.S_ISREG)
    if not is_kind(status.st_mode):
        raise ExposedError(f"{path} must be a {kind}, was {stat.filemode(status.st_mode)}")
    if status.st_uid != os.geteuid():
        raise ExposedError(f"{path} must belong to this user, belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        raise ExposedError(
            f"{path} must be closed to others, was {stat.filemode(status.st_mode)}: chmod go-rwx it"
        )
