"""The errors of shared memory, split by what the caller should do; each carries its facts as attributes."""

from __future__ import annotations

from pathlib import Path

from feeds.errors import TwintapeError


class ShmError(TwintapeError):
    """Something about a file in shared memory is not as it must be."""


class LayoutError(ShmError):
    """A file is not what its name promises: another kind, version, size or byte order, or damaged."""

    def __init__(self, path: Path, field: str, found: object, expected: object) -> None:
        self.path = path
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{path}: {field} must be {expected}, was {found}")


class NotFound(ShmError):
    """No such log, ring or slab: start what makes it, or correct the name."""


class AlreadyThere(ShmError):
    """A file that was to be made exists. Open it, or remove it first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} exists already: open it, or remove it first")


class InUse(ShmError):
    """Somebody else holds a place that only one may hold. Wait for it to end, or stop it."""

    def __init__(self, path: Path, role: str, holder: str) -> None:
        self.path = path
        self.role = role
        self.holder = holder
        super().__init__(f"{path}: {holder} is its {role} already, and there can be only one")


class PermissionsError(ShmError):
    """A directory or file is open to people it should be closed to, or belongs to somebody else."""
