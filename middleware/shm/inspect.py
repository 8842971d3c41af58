"""What is in a node's shared memory, for people and programs: a row for each item, or all about one.

Plain functions that return frozen dataclasses; `inspect_text.py` words them. Whatever is wrong with an item
is part of what is said of it, so that one damaged file never hides the others.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from feeds.errors import ConfigError
from middleware.shm.errors import LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.inspect_files import Condition, Holder, User, group_name, user_name
from middleware.shm.inspect_logs import LogReport, inspect_log, log_users
from middleware.shm.inspect_rings import RingReport, inspect_ring_at, ring_users
from middleware.shm.inspect_slabs import SlabReport, inspect_slab, slab_users
from middleware.shm.log_layout import LOG_FILE
from middleware.shm.names import checked_name
from middleware.shm.ring_file import RING_FILE
from middleware.shm.runtime import Runtime
from middleware.shm.slab_members import SLAB_FILE

NAMES_TOLD = 12


@dataclass(frozen=True, slots=True)
class BrokenReport:
    """Something of which nothing can be told but why, and what the file system knows of it."""

    kind: str
    name: str
    condition: Condition
    reason: str
    path: str
    file_bytes: int | None
    mode: str
    owner: str
    group: str
    users: tuple[User, ...]  # who has it open nevertheless


Report = LogReport | RingReport | SlabReport | BrokenReport


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
    Kind("ring", "rings", RING_FILE, inspect_ring_at, ring_users),
    Kind("slab", "slabs", SLAB_FILE, inspect_slab, slab_users),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A log, ring or slab in one line. What a kind does not have is None, or empty."""

    kind: str
    name: str
    condition: Condition
    reason: str
    file_bytes: int | None
    writers: tuple[Holder, ...]  # a log's writer, a ring's producer, a slab's participants, alive or dead
    readers: tuple[Holder, ...]  # a log's readers, a ring's consumer
    used: int | None  # messages, bytes, slots
    capacity: int | None
    first_seq: int | None  # the oldest message that can be read
    next_seq: int | None  # the first that was not published
    progress: int | None  # a number that grows as messages come: message number, position, bodies
    lag: int | None  # of the slowest living reader: messages; bytes, in a ring
    lag_share: float | None
    lag_reader: str
    published_age_ns: int | None


def kind_named(word: str) -> Kind:
    """Return the kind that a person means by `log`, `logs` and so on."""
    for kind in KINDS:
        if word in (kind.name, kind.directory):
            return kind
    raise ConfigError(f"the kind must be one of {', '.join(kind.name for kind in KINDS)}, was '{word}'")


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
        raise NotFound(f"there is no {kind.name} {name} in {runtime.path}")
    return report


def find(runtime: Runtime, word: str, kind: Kind | None = None) -> tuple[Kind, str]:
    """Return what `NAME` or `logs/NAME` means; an error tells the nearest that there is, or all that fit."""
    prefix, slash, name = word.rpartition("/")
    if slash:
        named = kind_named(prefix)
        if kind is not None and kind is not named:
            raise ConfigError(f"'{word}' is a {named.name}, and not a {kind.name}")
        kind = named
    checked_name(name)
    kinds = KINDS if kind is None else (kind,)
    there = {each.name: runtime.names(each.directory) for each in kinds}
    found = [each for each in kinds if name in there[each.name]]
    if len(found) == 1:
        return found[0], name
    if found:
        forms = " or ".join(f"{each.directory}/{name}" for each in found)
        raise ConfigError(
            f"'{name}' is a {' and a '.join(each.name for each in found)}: say which, as {forms}"
        )
    raise NotFound(f"there is no {_kinds_text(kind)} '{name}' in {runtime.path}: {_advice(name, there)}")


def row_of(report: Report) -> Row:
    """Return a report in one line."""
    if isinstance(report, LogReport):
        return _log_row(report)
    if isinstance(report, RingReport):
        return _ring_row(report)
    if isinstance(report, SlabReport):
        return _slab_row(report)
    return Row(
        kind=report.kind,
        name=report.name,
        condition=report.condition,
        reason=report.reason,
        file_bytes=report.file_bytes,
        writers=tuple(user.holder for user in report.users),
        readers=(),
        used=None,
        capacity=None,
        first_seq=None,
        next_seq=None,
        progress=None,
        lag=None,
        lag_share=None,
        lag_reader="",
        published_age_ns=None,
    )


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


def _log_row(report: LogReport) -> Row:
    slowest = report.slowest
    problems = [report.reason, report.readers_problem, *(reader.problem for reader in report.readers)]
    return Row(
        kind=report.kind,
        name=report.name,
        condition=report.condition,
        reason=next(filter(None, problems), ""),
        file_bytes=report.facts.file_bytes,
        writers=(report.writer,) if report.writer is not None else (),
        readers=tuple(reader.holder for reader in report.readers if reader.holder is not None),
        used=report.message_count,
        capacity=report.slot_count,
        first_seq=report.oldest_seq,
        next_seq=report.next_seq,
        progress=report.next_seq,
        lag=slowest.lag if slowest is not None else None,
        lag_share=slowest.lag_share if slowest is not None else None,
        lag_reader=slowest.name if slowest is not None else "",
        published_age_ns=report.published_age_ns,
    )


def _ring_row(report: RingReport) -> Row:
    consumer = report.consumer
    return Row(
        kind=report.kind,
        name=report.name,
        condition=report.condition,
        reason=report.reason,
        file_bytes=report.facts.file_bytes,
        writers=(report.producer,) if report.producer is not None else (),
        readers=(consumer,) if consumer is not None else (),
        used=report.fill_bytes,
        capacity=report.capacity_bytes,
        first_seq=None,
        next_seq=None,
        progress=report.tail,
        lag=report.fill_bytes,
        lag_share=report.fill_share,
        lag_reader=consumer.name if consumer is not None and consumer.is_alive else "",
        published_age_ns=None,
    )


def _slab_row(report: SlabReport) -> Row:
    reason = report.reason
    if report.left and not reason:
        reason = f"{report.left:,} slots are held by participants that died: their successors recover them"
    return Row(
        kind=report.kind,
        name=report.name,
        condition=report.condition,
        reason=reason,
        file_bytes=report.facts.file_bytes,
        writers=tuple(each.holder for each in report.participants if each.holder is not None),
        readers=(),
        used=report.used,
        capacity=report.slot_count,
        first_seq=None,
        next_seq=None,
        progress=sum(each.claimed for each in report.classes),
        lag=None,
        lag_share=None,
        lag_reader="",
        published_age_ns=None,
    )


def _kinds_text(kind: Kind | None) -> str:
    return kind.name if kind is not None else "log, ring or slab"


def _advice(name: str, there: dict[str, list[str]]) -> str:
    names = sorted({each for of_kind in there.values() for each in of_kind})
    if not names:
        return "there is none at all"
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    if nearest:
        return f"did you mean '{nearest[0]}'?"
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"there are {', '.join(names[:NAMES_TOLD])}{more}"
