"""Columns of text that fit terminals of any width, and pipes, which have none; units that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_GAP = "  "
_NS_PER_S = 1_000_000_000
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text in one style, as rich names styles."""

    text: str
    style: str = ""


Line = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Where there is no room for all, the highest `rank` is left out first, 0 never."""

    title: str
    rank: int = 0
    is_right: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[Piece]], width: int | None) -> list[Line]:
    """Return a heading and a line for each row. Columns that nothing is said in are left out."""
    kept = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    heading = [Piece(column.title, "bold") for column in columns]
    widths = [max(len(piece.text) for piece in column) for column in zip(heading, *rows, strict=True)]
    while width is not None and _total(widths, kept) > width:
        least = max(kept, key=lambda index: columns[index].rank)
        if columns[least].rank == 0:
            break
        kept.remove(least)
    return [_line(columns, row, widths, kept) for row in (heading, *rows)]


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[index] for index in kept) + len(_GAP) * (len(kept) - 1)


def _line(
    columns: Sequence[Column], row: Sequence[Piece], widths: Sequence[int], kept: Sequence[int]
) -> Line:
    pieces: list[Piece] = []
    for place, index in enumerate(kept):
        text, width = row[index].text, widths[index]
        is_last = place == len(kept) - 1
        padded = text.rjust(width) if columns[index].is_right else text if is_last else text.ljust(width)
        pieces.append(Piece(padded, row[index].style))
        if not is_last:
            pieces.append(Piece(_GAP))
    return tuple(pieces)


def plain(line: Line) -> str:
    return "".join(piece.text for piece in line).rstrip()


def shown(name: str) -> str:
    """Return a name that cannot move the cursor of the terminal it is shown on."""
    is_harmless = name.isascii() and name.isprintable()
    return name if is_harmless else name.encode("unicode_escape").decode()


def bytes_text(byte_count: int) -> str:
    for size, unit in _BYTES:
        if byte_count >= size:
            return f"{byte_count // size if byte_count % size == 0 else f'{byte_count / size:.1f}'} {unit}"
    return f"{byte_count} B"


def age_text(age_ns: int) -> str:
    """Return a span of time in its largest fitting unit."""
    seconds = age_ns / _NS_PER_S
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{age_ns / 1e6:.1f} ms" if age_ns >= 100_000 else f"{age_ns / 1e3:.0f} us"


def moment_text(time_ns: int) -> str:
    """Return a moment in UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ns // _NS_PER_S, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"  # a file may say anything
