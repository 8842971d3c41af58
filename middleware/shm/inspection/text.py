"""What the inspector found, in words: a line for each item, or a page about one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from time import time_ns
from typing import Any

from feeds.frame_text import FrameText
from feeds.wire import FrameArray
from middleware.shm.inspection.bells import BellReport
from middleware.shm.inspection.files import Condition, FileFacts, Holder, Life
from middleware.shm.inspection.logs import LogReport, ReaderReport
from middleware.shm.inspection.report import BrokenReport, Report, Row
from middleware.shm.inspection.rings import RingReport
from middleware.shm.inspection.slabs import ParticipantReport, SlabReport
from middleware.shm.inspection.table import (
    Column,
    Line,
    Piece,
    age_text,
    bytes_text,
    moment_text,
    shown,
    table,
)

STYLES = {
    Condition.LIVE: "green",
    Condition.ENDED: "dim",
    Condition.UNUSED: "dim",
    Condition.PRESENT: "dim",
    Condition.NO_WRITER: "yellow",
    Condition.NO_PRODUCER: "yellow",
    Condition.NO_CONSUMER: "yellow",
    Condition.UNSEEN: "yellow",
    Condition.UNFINISHED: "yellow",
    Condition.UNREADABLE: "bold red",
    Condition.DAMAGED: "bold red",
}
LIFE_STYLES = {Life.ALIVE: "", Life.STOPPED: "yellow", Life.DEAD: "red"}

LAG_SHARE_HIGH = 0.5  # half of the log is gone before anything is lost: time to look
LAG_SHARE_FULL = 0.875  # from here on the writer may be overwriting what the reader needs

_NOTHING = Piece("-", "dim")
_LABEL_WIDTH = 12

ROW_COLUMNS = (
    Column("KIND"),
    Column("NAME"),
    Column("STATE"),
    Column("WRITER", rank=1),
    Column("HOLDS", rank=3),
    Column("RATE", rank=4, is_right=True),
    Column("READERS", rank=2),
    Column("WORST LAG"),
    Column("PUBLISHED", rank=5, is_right=True),
    Column("SIZE", rank=6, is_right=True),
)
_READER_COLUMNS = (
    Column("READER"),
    Column("PROCESS", rank=2, is_right=True),
    Column("STATE"),
    Column("READS NEXT", rank=3, is_right=True),
    Column("BEHIND", is_right=True),
    Column("OF LOG", rank=1, is_right=True),
    Column("GATE", rank=4),
    Column(""),
)
_CLASS_COLUMNS = (
    Column("BODIES TO", is_right=True),
    Column("SLOTS", rank=1, is_right=True),
    Column("USED", is_right=True),
    Column("FREE", is_right=True),
    Column("OWNED", rank=3, is_right=True),
    Column("SHARED", rank=2, is_right=True),
    Column("MOST USED", rank=4, is_right=True),
    Column("OVERFLOWED", rank=5, is_right=True),
    Column("REFUSED", rank=1, is_right=True),
)
_PARTICIPANT_COLUMNS = (
    Column("PARTICIPANT"),
    Column("PROCESS", rank=2, is_right=True),
    Column("STATE"),
    Column("OWNS", is_right=True),
    Column("SHARED", is_right=True),
    Column("LEFT BY DEAD", rank=1, is_right=True),
    Column("CLAIMED", rank=3, is_right=True),
    Column("FREED", rank=4, is_right=True),
    Column("LAST TICKET", rank=5, is_right=True),
)


def listing(rows: Sequence[Row], width: int | None, rates: Mapping[tuple[str, str], float]) -> list[Line]:
    """Return the table of all items, then what is to be said about some of them."""
    if not rows:
        return [(Piece("nothing is in shared memory on this node"),)]
    lines = table(ROW_COLUMNS, [_row_pieces(row, rates.get((row.kind, row.name))) for row in rows], width)
    noted = [row for row in rows if row.reason]
    for row in noted:
        what = f"{row.kind} {shown(row.name)}: {row.condition}: {shown(row.reason)}"
        lines.append((Piece(what, _note_style(row.condition)),))
    return lines


def page(report: Report, width: int | None) -> list[Line]:
    """Return everything about one item."""
    heading = (
        Piece(f"{report.kind} {shown(report.name)}", "bold"),
        Piece(": "),
        Piece(str(report.condition), STYLES[report.condition]),
    )
    lines: list[Line] = [heading]
    if report.reason:
        lines.append(_labelled("because", Piece(shown(report.reason), _note_style(report.condition))))
    if isinstance(report, LogReport):
        lines += _log_page(report, width)
    elif isinstance(report, RingReport):
        lines += _ring_page(report)
    elif isinstance(report, SlabReport):
        lines += _slab_page(report, width)
    elif isinstance(report, BellReport):
        lines += _bell_page(report)
    else:
        lines += _broken_page(report)
    return lines


def _note_style(condition: Condition) -> str:
    """Return the style of a remark: never a quieter one than somebody should look at."""
    return STYLES[condition] if condition in (Condition.DAMAGED, Condition.UNREADABLE) else "yellow"


# --- the listing ---


def _row_pieces(row: Row, rate: float | None) -> list[Piece]:
    return [
        Piece(row.kind),
        Piece(shown(row.name)),
        Piece(str(row.condition), STYLES[row.condition]),
        _who(row.writers) if row.kind != "slab" else _how_many(row.writers, "participant"),
        _holds(row),
        Piece(_rate_text(row, rate)),
        _who(row.readers) if row.kind == "ring" else _how_many(row.readers),
        _lag(row),
        Piece(age_text(row.published_age_ns) if row.published_age_ns is not None else ""),
        Piece(bytes_text(row.file_bytes) if row.file_bytes is not None else ""),
    ]


def _who(holders: Sequence[Holder]) -> Piece:
    """Return one by name; a damaged log, of which nobody knows who of several does what, by number."""
    if len(holders) != 1:
        return _how_many(holders)
    holder = holders[0]
    told = f"{shown(holder.name) or '?'} ({holder.pid})"
    return Piece(told if holder.life is Life.ALIVE else f"{told} {holder.life}", LIFE_STYLES[holder.life])


def _how_many(holders: Sequence[Holder], noun: str = "") -> Piece:
    """Return how many live, and how many of them are stopped; and how many died."""
    if not holders:
        return _NOTHING
    counts = {life: sum(holder.life is life for holder in holders) for life in Life}
    living = len(holders) - counts[Life.DEAD]
    words = [f"{living} {noun}{'' if living == 1 else 's'}" if noun else str(living)]
    words += [f"{counts[life]} {life}" for life in (Life.STOPPED, Life.DEAD) if counts[life]]
    worst = Life.DEAD if counts[Life.DEAD] else Life.STOPPED if counts[Life.STOPPED] else Life.ALIVE
    return Piece(", ".join(words), LIFE_STYLES[worst])


def _holds(row: Row) -> Piece:
    if row.kind == "bell" and row.progress is not None:
        return Piece(_rung_text(row.progress))
    if row.used is None or row.capacity is None:
        return _NOTHING
    if row.first_seq is not None and row.next_seq is not None:
        return Piece(f"{row.first_seq:,} to {row.next_seq - 1:,}") if row.used else Piece("empty", "dim")
    if row.kind == "ring":
        return Piece(f"{bytes_text(row.used)} of {bytes_text(row.capacity)}")
    return Piece(f"{row.used:,} of {row.capacity:,} slots")


def _rung_text(ring_count: int) -> str:
    return f"rung {ring_count:,} time{'' if ring_count == 1 else 's'}"


def _rate_text(row: Row, rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{bytes_text(round(rate))}/s" if row.kind == "ring" else f"{rate:,.0f}/s"


def _lag(row: Row) -> Piece:
    if row.lag is None or row.lag_share is None:
        return Piece("")
    amount = bytes_text(row.lag) if row.kind == "ring" else f"{row.lag:,}"
    who = f" {shown(row.lag_reader)}" if row.lag_reader and row.lag else ""
    return Piece(f"{amount} ({row.lag_share:.1%}){who}", _lag_style(row.lag_share))


def _lag_style(share: float) -> str:
    return "bold red" if share >= LAG_SHARE_FULL else "yellow" if share >= LAG_SHARE_HIGH else ""


# --- the pages ---


def _labelled(label: str, *pieces: Piece) -> Line:
    return (Piece(f"  {label:<{_LABEL_WIDTH}}", "dim"), *pieces)


def _file_lines(facts: FileFacts) -> Iterator[Line]:
    yield _labelled("file", Piece(facts.path))
    yield _labelled("", Piece(f"{facts.mode} {facts.owner} {facts.group}, {bytes_text(facts.file_bytes)}"))
    age = _since_text(facts.created_ns)
    yield _labelled("made", Piece(f"{moment_text(facts.created_ns)}{age}"))
    yield _labelled("", Piece(f"layout version {facts.version}, incarnation {facts.incarnation:016x}"))


def _since_text(moment_ns: int) -> str:
    age_ns = time_ns() - moment_ns
    return f", {age_text(age_ns)} ago" if age_ns >= 0 and moment_ns > 0 else ""


def _holder_line(label: str, holder: Holder | None, *, is_seen: bool) -> Line:
    if holder is None:
        return _labelled(label, Piece("nobody" if is_seen else "not to be seen from here", "yellow"))
    told = f"'{shown(holder.name)}' (process {holder.pid})" if holder.name else "an unknown process"
    since = f", there since {moment_text(holder.since_ns)}" if holder.since_ns > 0 else ""
    state = Piece(f", {holder.life}", LIFE_STYLES[holder.life])
    if holder.life is Life.DEAD:
        state = Piece(", died without leaving", LIFE_STYLES[holder.life])
    return _labelled(label, Piece(told), state, Piece(since))


def _log_page(report: LogReport, width: int | None) -> Iterator[Line]:
    yield _holder_line("writer", report.writer, is_seen=report.is_writer_seen)
    age = f"{age_text(report.published_age_ns)} ago" if report.published_age_ns is not None else "never"
    yield _labelled("published", Piece(age))
    held = f"{report.oldest_seq:,} to {report.next_seq - 1:,}" if report.message_count else "none"
    room = f", {report.message_count:,} of {report.slot_count:,} slots"
    yield _labelled("messages", Piece(held + room))
    yield _labelled("", Piece(f"next {report.next_seq:,}, slots claimed up to {report.claim_seq:,}"))
    yield _labelled("", Piece(f"numbers begin at {report.begin_seq:,}"))
    yield _labelled("gates", Piece(f"{report.gates_taken} of {report.gates_max} taken"))
    yield from _file_lines(report.facts)
    yield ()
    if report.readers_problem:
        yield (Piece(shown(report.readers_problem), "yellow"),)
    elif not report.readers:
        yield (Piece("nobody reads it", "dim"),)
    else:
        yield from table(_READER_COLUMNS, [_reader_pieces(reader) for reader in report.readers], width)


def _reader_pieces(reader: ReaderReport) -> list[Piece]:
    if reader.problem:
        problem = Piece(shown(reader.problem), "red")
        return [Piece(shown(reader.name)), Piece(""), Piece("damaged", "red"), *([Piece("")] * 4), problem]
    holder = reader.holder
    life = holder.life if holder is not None else Life.DEAD
    note = Piece("")
    if reader.is_lapped:
        note = Piece(f"lapped: misses {reader.missed:,} that are overwritten", "bold red")
    return [
        Piece(shown(reader.name)),
        Piece(str(holder.pid) if holder is not None and holder.pid else "?"),
        Piece(str(life), LIFE_STYLES[life]),
        Piece(f"{reader.position:,}"),
        Piece(f"{reader.lag:,}"),
        Piece(f"{reader.lag_share:.1%}", _lag_style(reader.lag_share)),
        Piece(str(reader.gate)),
        note,
    ]


def _ring_page(report: RingReport) -> Iterator[Line]:
    is_seen = report.condition is not Condition.UNSEEN
    yield _holder_line("producer", report.producer, is_seen=is_seen)
    yield _holder_line("consumer", report.consumer, is_seen=is_seen)
    fill = f"{bytes_text(report.fill_bytes)} of {bytes_text(report.capacity_bytes)}"
    yield _labelled("waiting", Piece(f"{fill} ({report.fill_share:.1%})", _lag_style(report.fill_share)))
    yield _labelled("", Piece(f"consumed up to {report.head:,}, committed up to {report.tail:,}"))
    last = report.last
    if last is None:
        told = "none yet" if report.tail == 0 else "another one at every look"
    else:
        told = f"at {last.position:,}, {last.byte_count:,} bytes: {last.first_bytes or '(empty)'}"
    yield _labelled("last record", Piece(told))
    yield from _file_lines(report.facts)


def _slab_page(report: SlabReport, width: int | None) -> Iterator[Line]:
    yield _labelled("used", Piece(f"{report.used:,} of {report.slot_count:,} slots"))
    if report.left:
        yield _labelled("", Piece(f"{report.left:,} of them are held by the dead: recover them", "red"))
    if report.registrar is not None:
        yield _labelled("registering", Piece(str(report.registrar)))
    yield from _file_lines(report.facts)
    yield ()
    rows = [
        [
            Piece(bytes_text(each.slot_bytes)),
            *(
                Piece(f"{figure:,}")
                for figure in (each.slot_count, each.used, each.free, each.owned, each.shared, each.used_max)
            ),
            Piece(f"{each.overflowed:,}", "yellow" if each.overflowed else ""),
            Piece(f"{each.refused:,}", "red" if each.refused else ""),
        ]
        for each in report.classes
    ]
    yield from table(_CLASS_COLUMNS, rows, width)
    yield ()
    if not report.participants:
        yield (Piece("nobody takes part", "dim"),)
    else:
        people = [_participant_pieces(each) for each in report.participants]
        yield from table(_PARTICIPANT_COLUMNS, people, width)
    taken = sum(1 for each in report.participants if each.name)
    yield (Piece(f"{taken} of {report.participants_max} seats belong to somebody", "dim"),)


def _participant_pieces(each: ParticipantReport) -> list[Piece]:
    life = each.holder.life if each.holder is not None else None
    return [
        Piece(shown(each.name) or "?"),
        Piece(str(each.pid)),
        Piece(str(life), LIFE_STYLES[life]) if life is not None else Piece("unseen", "yellow"),
        Piece(f"{each.owned:,}"),
        Piece(f"{each.shared:,}"),
        Piece(f"{each.left:,}", "red" if each.left else ""),
        Piece(f"{each.claimed:,}"),
        Piece(f"{each.freed:,}"),
        Piece(f"{each.last_ticket:,}"),
    ]


def _bell_page(report: BellReport) -> Iterator[Line]:
    yield _labelled("count", Piece(_rung_text(report.ring_count)))
    yield from _file_lines(report.facts)


def _broken_page(report: BrokenReport) -> Iterator[Line]:
    yield _labelled("file", Piece(shown(report.path)))
    if report.file_bytes is not None:
        facts = f"{report.mode} {report.owner} {report.group}, {bytes_text(report.file_bytes)}"
        yield _labelled("", Piece(facts))
    for user in report.users:
        yield _labelled("in use by", Piece(f"its {user.role} {shown(str(user.holder))}"))


# --- frames ---


def frame_lines(frames: FrameArray) -> Iterator[str]:
    """Yield a line for each frame: its message number, then what `twintape decode` would say of it.

    The log knows numbers and no symbols. A frame that breaks its own layout is told so, byte by byte.
    """
    text = FrameText(lambda instrument_id: f"#{instrument_id}", "UTC")
    for row, sequence in enumerate(frames["message_seq"].tolist()):
        frame = frames[row : row + 1]
        try:
            told = next(text.lines(frame))
        except ValueError as error:  # an unknown schema, or a value that its schema does not have
            told = f"not a frame of ours, {error}: {frame.tobytes().hex()}"
        yield f"{sequence:>12}  {told}"


def frame_records(frames: FrameArray) -> Iterator[dict[str, Any]]:
    """Yield each frame as what JSON can say; a frame that breaks its own layout as its bytes."""
    text = FrameText(lambda _: None, "UTC")
    for row in range(len(frames)):
        frame = frames[row : row + 1]
        try:
            yield json.loads(next(text.json_lines(frame)))
        except ValueError as error:
            yield {
                "message_seq": int(frame["message_seq"][0]),
                "problem": str(error),
                "bytes": frame.tobytes().hex(),
            }
