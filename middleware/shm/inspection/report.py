"""What the inspector says of an item: everything, or a row. What is wrong with an item is part of it."""

from __future__ import annotations

from dataclasses import dataclass

from middleware.shm.inspection.bells import BellReport
from middleware.shm.inspection.files import Condition, Holder, User
from middleware.shm.inspection.logs import LogReport
from middleware.shm.inspection.rings import RingReport
from middleware.shm.inspection.slabs import SlabReport


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


Report = LogReport | RingReport | SlabReport | BellReport | BrokenReport


@dataclass(frozen=True, slots=True)
class Row:
    """An item in one line. What its kind does not have, or nobody can know, is None or empty."""

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
    progress: int | None  # a number that grows as messages come: message number, position, bodies, rings
    lag: int | None  # of the slowest living reader: messages; bytes, in a ring
    lag_share: float | None
    lag_reader: str
    published_age_ns: int | None


def row_of(report: Report) -> Row:
    """Return a report in one line."""
    if isinstance(report, LogReport):
        return _log_row(report)
    if isinstance(report, RingReport):
        return _ring_row(report)
    if isinstance(report, SlabReport):
        return _slab_row(report)
    if isinstance(report, BellReport):
        return _plain_row(report, report.facts.file_bytes, progress=report.ring_count)
    return _plain_row(report, report.file_bytes, writers=tuple(user.holder for user in report.users))


def _plain_row(
    report: BellReport | BrokenReport,
    file_bytes: int | None,
    *,
    writers: tuple[Holder, ...] = (),
    progress: int | None = None,
) -> Row:
    """Return the row of what neither holds messages nor has readers, as far as can be told."""
    return Row(
        kind=report.kind,
        name=report.name,
        condition=report.condition,
        reason=report.reason,
        file_bytes=file_bytes,
        writers=writers,
        readers=(),
        used=None,
        capacity=None,
        first_seq=None,
        next_seq=None,
        progress=progress,
        lag=None,
        lag_share=None,
        lag_reader="",
        published_age_ns=None,
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
