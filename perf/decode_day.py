"""The simulated day that decoding is measured on: made once, kept, and cut for those who are slower."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

import feeds
from feeds.compiled import cache_root
from feeds.dayfile import DayFile
from feeds.formats import ExchangeFormat
from feeds.itch50 import FORMAT
from feeds.itch50.messages import PREFIX_BYTES
from feeds.order_flow.flow import write_day_file
from perf.report import BenchError

SESSION_DATE = date(2026, 1, 2)
SEED = 8_841

# meatpy has a wrong size for type O and stops at it, so the slice for the Python peers has none.
UNREADABLE_FOR_PEERS = b"O"
SPARE_COUNT = 64


@dataclass(frozen=True)
class Day:
    """A day file, a small one of the same day for measuring memory, and a slice from its middle."""

    exchange: ExchangeFormat
    whole: Path
    small: Path
    middle: Path
    message_count: int
    small_count: int
    middle_count: int


@contextmanager
def simulated_day(message_count: int, middle_count: int, *, is_kept: bool) -> Iterator[Day]:
    """Yield a day of `message_count` messages; kept for the next run where making it takes long."""
    with tempfile.TemporaryDirectory(prefix="twintape-bench-") as scratch:
        directory = _kept_directory() if is_kept else Path(scratch)
        whole = directory / f"day-{message_count}-{_recipe()}.itch"
        if not whole.exists():
            for older in directory.glob("day-*"):
                older.unlink()  # another recipe's day, or one that was never finished
            write_day_file(whole, message_count, SEED)
        small = Path(scratch) / "small.itch"
        middle = Path(scratch) / "middle.itch"
        small_count = message_count // 8
        _cut(whole, small, 0, small_count)
        _cut(whole, middle, message_count // 2, middle_count + SPARE_COUNT)
        _leave_out(middle, UNREADABLE_FOR_PEERS, middle_count)
        yield Day(FORMAT, whole, small, middle, message_count, small_count, middle_count)


def _kept_directory() -> Path:
    directory = cache_root() / "days"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _recipe() -> str:
    """Return a digest of the code that makes the day: another recipe needs another day."""
    digest = hashlib.blake2b(str(SEED).encode(), digest_size=8)
    folder = Path(feeds.__path__[0])
    for path in sorted([*(folder / "order_flow").glob("*.py"), folder / "itch50" / "encode_kernels.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _cut(source: Path, target: Path, skipped_count: int, message_count: int) -> None:
    """Write `message_count` messages of a day file, behind the first `skipped_count`, into another."""
    end = skipped_count + message_count
    with DayFile(source, FORMAT, session_date=SESSION_DATE) as day, target.open("wb") as file:
        limit = 1 << 12
        seen = 0
        blocks = day.blocks(limit)
        for piece in blocks:
            if seen >= end:
                break
            first = max(skipped_count - seen, 0)
            last = min(end - seen, piece.message_count)
            seen += piece.message_count
            if first < last:
                offsets = _offsets(piece.data[piece.begin : piece.end].tobytes())
                data = piece.data[piece.begin + offsets[first] : piece.begin + offsets[last]]
                file.write(data.tobytes())


def _leave_out(path: Path, letters: bytes, message_count: int) -> None:
    """Keep the first `message_count` messages of a day file that are of none of these types."""
    data = path.read_bytes()
    bounds = pairwise(_offsets(data))
    kept = [data[begin:end] for begin, end in bounds if data[begin + PREFIX_BYTES] not in letters]
    if len(kept) < message_count:
        raise BenchError(f"{message_count} messages are wanted of the day's middle, {len(kept)} can be had")
    path.write_bytes(b"".join(kept[:message_count]))


def _offsets(data: bytes) -> list[int]:
    """Return where each block begins, and where the last one ends."""
    offsets = [0]
    while offsets[-1] < len(data):
        at = offsets[-1]
        offsets.append(at + 2 + int.from_bytes(data[at : at + 2], "big"))
    return offsets
