"""Logs, rings and slabs for the tests of the inspector: made, used, abandoned and damaged in one process."""

import os
import secrets
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feeds import wire
from middleware.shm.inspection.logs import LogReport
from middleware.shm.inspection.look import KINDS, inspect_all, inspect_one
from middleware.shm.inspection.report import Report, Row, row_of
from middleware.shm.inspection.rings import RingReport
from middleware.shm.inspection.slabs import SlabReport
from middleware.shm.inspection.table import plain
from middleware.shm.inspection.text import page
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.ring import RingConsumer, RingProducer
from middleware.shm.runtime import Runtime
from middleware.shm.slab import SizeClass, Slab, SlabConfig

LOG, RING, SLAB, BELL = KINDS
SLOTS = 256
NOBODY = 65_534  # a user without rights, on any Linux
SMALL = SlabConfig((SizeClass(64, 8), SizeClass(256, 4)), participants=4)


def publish(writer: LogWriter, count: int) -> None:
    frames = wire.empty(count)
    frames["message_seq"] = np.arange(writer.next_seq, writer.next_seq + count)
    frames["schema_id"] = wire.Schema.ORDER_DELETE
    writer.publish(frames)


def die(end: LogWriter | LogReader | RingProducer | RingConsumer | Slab) -> None:
    """Leave an end's seat as the kernel leaves that of a killed process: free, with the name still on it."""
    end._seats.forget()


def log_report(runtime: Runtime, name: str = "XNAS.ITCH") -> LogReport:
    report = inspect_one(runtime, LOG, name)
    assert isinstance(report, LogReport)
    return report


def ring_report(runtime: Runtime, name: str = "in") -> RingReport:
    report = inspect_one(runtime, RING, name)
    assert isinstance(report, RingReport)
    return report


def slab_report(runtime: Runtime, name: str = "bodies") -> SlabReport:
    report = inspect_one(runtime, SLAB, name)
    assert isinstance(report, SlabReport)
    return report


def rows(runtime: Runtime) -> dict[str, Row]:
    return {f"{row.kind}/{row.name}": row for row in map(row_of, inspect_all(runtime))}


def text_of(report: Report, width: int | None = None) -> str:
    return "\n".join(map(plain, page(report, width)))


def _random_bytes(path: Path) -> None:
    path.write_bytes(secrets.token_bytes(path.stat().st_size))


def _cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _other_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(24)
        file.write(struct.pack("<I", 99))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    moved = path.rename(path.with_name("elsewhere"))
    path.symlink_to(moved)


DAMAGES: list[Callable[[Path], None]] = [
    _random_bytes,
    _cut_short,
    _empty,
    _other_version,
    _fifo,
    _directory,
    _link,
]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(path.rglob("*"))
    }
