"""What is in a node's shared memory, for people and programs: all there is, or one item by its name.

Plain functions that return frozen dataclasses (`report.py`); `text.py` words them. Whatever is wrong with an
item is part of what is said of it, so that one damaged file never hides the others.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from feeds.errors import ConfigError
from middleware.shm.bell import BELL_FILE
from middleware.shm.errors import LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.inspection.bells import bell_users, inspect_bell
from middleware.shm.inspection.files import Condition, User, group_name, user_name
from middleware.shm.inspection.logs import inspect_log, log_users
from middleware.shm.inspection.report import BrokenReport, Report
from middleware.shm.inspection.rings import inspect_ring, ring_users
from middleware.shm.inspection.slabs import inspect_slab, slab_users
from middleware.shm.log_layout import LOG_FILE
from middleware.shm.names import checked_name
from middleware.shm.ring_file import RING_FILE
from middleware.shm.runtime import Runtime
from middleware.shm.slab_members import SLAB_FILE

NAMES_TOLD = 12


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of item: where its places are, its file in each, and who looks at it."""

    name: str
    directory: str
    file: str
    inspect: Callable[[Path], Report]
    users: Callable[[Path], list[User]]


KINDS = (
    Kind("log", "logs", LOG_FILE, inspect_log, log_users),
    Kind("ring", "rings", RING_FILE, inspect_ring, ring_users),
    Kind("slab", "slabs", SLAB_FILE, inspect_slab, slab_users),
    Kind("bell", "bells", BELL_FILE, inspect_bell, bell_users),
)


def kind_named(word: str) -> Kind:
    """Return the kind that a person means by `log`, `logs` and so on."""
    for kind in KINDS:
        if word in (kind.name, kind.directory):
            return kind
    raise ConfigError(f"the kind must be one of {', '.join(kind.name for kind in KINDS)}, was '{word}'")


def insist_runtime(runtime: Runtime, *, is_named: bool) -> None:
    """Insist that a directory is that of a node; one that nobody named may also be missing or empty."""
    try:
        found = {path.name for path in runtime.path.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        if is_named:
            raise NotFound(
                f"there is no directory {runtime.path}: --runtime must name that of a node"
            ) from None
        return
    except PermissionError as error:
        raise PermissionsError(f"cannot list {runtime.path}: {error.strerror}") from error
    directories = [kind.directory for kind in KINDS]
    if not found.intersection(directories) and (found or is_named):
        told = f"it has none of {', '.join(directories)}"
        raise NotFound(f"{runtime.path.absolute()} is not the runtime directory of a node: {told}")


def inspect_all(runtime: Runtime) -> list[Report]:
    """Return what there is on this node, in order; NotFound if there is no node at all."""
    try:
        runtime.path.stat()
    except FileNotFoundError:
        raise NotFound(f"there is no {runtime.path}: nothing has been started on this node") from None
    return [report for kind in KINDS for report in _inspect_kind(runtime, kind)]


def inspect_one(runtime: Runtime, kind: Kind, name: str) -> Report:
    """Return all about one item; NotFound if there is none of that name."""
    report = _inspect(runtime, kind, name)
    if report is None:
        raise NotFound(f"there is no {kind.name} '{name}' in {runtime.path}")
    return report


def find(
    runtime: Runtime, word: str, kind: Kind | None = None, among: Sequence[Kind] = KINDS
) -> tuple[Kind, str]:
    """Return what `NAME` or `logs/NAME` means; an error tells the nearest that there is, or all that fit.

    `among` are the kinds that a name without one can mean.
    """
    prefix, slash, name = word.rpartition("/")
    if slash:
        named = kind_named(prefix)
        if kind is not None and kind is not named:
            raise ConfigError(f"'{word}' is a {named.name}, and not a {kind.name}")
        kind = named
    kinds = among if kind is None else (kind,)
    there = {each.name: runtime.names(each.directory) for each in kinds}
    try:
        checked_name(name)
    except ConfigError as error:
        for each in kinds:
            if name in there[each.name]:
                raise ConfigError(_stray(error, runtime.path / each.directory / name)) from None
        raise
    found = [each for each in kinds if name in there[each.name]]
    if len(found) == 1:
        return found[0], name
    if found:
        forms = " or ".join(f"{each.directory}/{name}" for each in found)
        raise ConfigError(
            f"'{name}' is a {' and a '.join(each.name for each in found)}: say which, as {forms}"
        )
    raise NotFound(f"there is no {_kinds_text(kinds)} '{name}' in {runtime.path}: {_advice(name, there)}")


def _inspect_kind(runtime: Runtime, kind: Kind) -> Iterator[Report]:
    try:
        names = runtime.names(kind.directory)
    except PermissionsError as error:
        yield _broken(runtime, kind, "*", Condition.UNREADABLE, str(error))
        return
    for name in names:
        report = _inspect(runtime, kind, name)
        if report is not None:  # else it was removed since it was listed
            yield report


def _inspect(runtime: Runtime, kind: Kind, name: str) -> Report | None:
    place = runtime.path / kind.directory / name
    try:
        checked_name(name)
    except ConfigError as error:
        return _broken(runtime, kind, name, Condition.DAMAGED, _stray(error, place))
    try:
        return kind.inspect(place)
    except NotFound:
        if not place.is_dir():
            return None
        return _broken(runtime, kind, name, Condition.UNFINISHED, f"there is no {place / kind.file} yet")
    except (LayoutError, ConfigError) as error:
        return _broken(runtime, kind, name, Condition.DAMAGED, str(error))
    except ShmError as error:
        return _broken(runtime, kind, name, Condition.UNREADABLE, str(error))
    except OSError as error:
        return _broken(runtime, kind, name, Condition.UNREADABLE, f"cannot look at {place}: {error.strerror}")


def _stray(error: ConfigError, place: Path) -> str:
    """Say what to do about a directory whose name no log, ring, slab or bell can have."""
    return f"{error}; nobody can use what has such a name: remove {shlex.quote(str(place))} by hand"


def _broken(runtime: Runtime, kind: Kind, name: str, condition: Condition, reason: str) -> BrokenReport:
    place = runtime.path / kind.directory / name
    path = place / kind.file
    try:
        users = tuple(kind.users(place))
    except OSError:
        users = ()  # who uses it cannot be seen either
    try:
        status = path.lstat()
    except OSError:
        return BrokenReport(kind.name, name, condition, reason, str(path), None, "", "", "", users)
    return BrokenReport(
        kind.name,
        name,
        condition,
        reason,
        str(path),
        status.st_size,
        stat.filemode(status.st_mode),
        user_name(status.st_uid),
        group_name(status.st_gid),
        users,
    )


def _kinds_text(kinds: Sequence[Kind]) -> str:
    *others, last = (kind.name for kind in kinds)
    return f"{', '.join(others)} or {last}" if others else last


def _advice(name: str, there: dict[str, list[str]]) -> str:
    names = sorted({each for of_kind in there.values() for each in of_kind})
    if not names:
        return "there is none at all"
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    if nearest:
        return f"did you mean '{nearest[0]}'?"
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"there are {', '.join(names[:NAMES_TOLD])}{more}"
