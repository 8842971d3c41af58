"""The systems that bench_decode compares: us, three packages, and plain copies of memory.

Each function does its work once over a file and returns what was measured. Peers run by the fastest way that
their documentation or their own tools use, on the same core as we do.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import numpy as np

from feeds.book.books import Books
from feeds.dayfile import DayFile
from feeds.decoder import FRAME_CAPACITY_DEFAULT
from feeds.itch50.encode import encode_frames
from feeds.session_time import midnight_ns
from feeds.wire import FRAME_BYTES
from perf.decode_day import SESSION_DATE, Day
from perf.harness import Sample
from perf.report import BenchError

ITCH_BOOK_CHUNK_BYTES = 8 << 20  # what its own Feed reads at a time
COPY_BYTES = 256 << 20  # more than any cache holds


def open_day(path: Path, day: Day) -> DayFile:
    return DayFile(path, day.exchange, session_date=SESSION_DATE)


def decode(day: Day) -> Sample:
    """ITCH to frames: every message of the day into a batch that is used again and again."""
    frame_count = 0
    started = time.perf_counter()
    with open_day(day.whole, day) as file:
        for frames in file.frames():
            frame_count += len(frames)
        seconds = time.perf_counter() - started
        decoder = file.decoder
    if decoder.message_count != day.message_count or decoder.problem_count:
        raise BenchError(
            f"the day must decode to {day.message_count} messages without a problem, "
            f"was {decoder.message_count} with {decoder.problem_count}"
        )
    metrics = {
        "messages_per_s": day.message_count / seconds,
        "frame_bytes_per_s": frame_count * FRAME_BYTES / seconds,
    }
    return Sample(metrics, f"{frame_count} frames, {sorted(decoder.counts_by_type.items())}")


def decode_with_books(day: Day) -> Sample:
    """The same, and the order book of every stock kept up to date."""
    books = Books(day.exchange.has_orders)
    started = time.perf_counter()
    with open_day(day.whole, day) as file:
        for frames in file.frames():
            books.apply(frames)
        seconds = time.perf_counter() - started
    counters = books.counters
    if counters.unknown_orders or counters.duplicate_orders:
        raise BenchError(f"the simulated day must be consistent, but the books counted {counters}")
    checksum = books_checksum(counters.adds, counters.deletes, books.order_count)
    return Sample({"messages_per_s": day.message_count / seconds}, checksum)


def books_checksum(adds: int, deletes: int, live_orders: int) -> str:
    return f"{adds} adds, {deletes} deletes, {live_orders} orders left"


def itch_book(day: Day) -> Sample:
    """itch-book's parser and books in C++, fed from a map: without the tables that its Python side makes."""
    from itch_book._core import Session

    session = Session(tables=[], depth=0, symbols=[])
    started = time.perf_counter()
    with day.whole.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, dtype=np.uint8)
        for begin in range(0, data.size, ITCH_BOOK_CHUNK_BYTES):
            session.feed(data[begin : begin + ITCH_BOOK_CHUNK_BYTES])
        del data  # or the map could not be closed
        seconds = time.perf_counter() - started
    stats = session.stats()
    if stats["messages"] != day.message_count or stats["missing_ref"] or stats["unknown"]:
        raise BenchError(f"itch-book must read {day.message_count} messages, told {stats}")
    checksum = books_checksum(stats["adds"], stats["deletes"], stats["live_orders"])
    return Sample({"messages_per_s": stats["messages"] / seconds}, checksum)


def itchfeed(day: Day) -> Sample:
    from itch.parser import MessageParser

    count = 0
    started = time.perf_counter()
    with day.middle.open("rb") as file:
        for _ in MessageParser().parse_file(file):
            count += 1
    return _peer_sample("itchfeed", count, day, time.perf_counter() - started)


def meatpy(day: Day) -> Sample:
    from meatpy.itch50 import ITCH50MessageReader

    count = 0
    started = time.perf_counter()
    for _ in ITCH50MessageReader().read_file(day.middle):
        count += 1
    return _peer_sample("meatpy", count, day, time.perf_counter() - started)


def _peer_sample(name: str, count: int, day: Day, seconds: float) -> Sample:
    if count != day.middle_count:
        raise BenchError(f"{name} must read {day.middle_count} messages, read {count}")
    return Sample({"messages_per_s": count / seconds}, count)


class Copies:
    """Plain copies of as many bytes as the frames of the day have."""

    def __init__(self, byte_count: int) -> None:
        self._byte_count = byte_count
        self._batch_bytes = FRAME_CAPACITY_DEFAULT * FRAME_BYTES
        size = min(COPY_BYTES, max(byte_count, self._batch_bytes))
        self._source = np.ones(size - size % self._batch_bytes, dtype=np.uint8)
        self._target = np.zeros_like(self._source)
        self._batch = np.zeros(self._batch_bytes, dtype=np.uint8)

    def memory_to_memory(self) -> Sample:
        """From a large array to another."""
        return self._measure(self._target)

    def memory_to_batch(self) -> Sample:
        """From a large array into one batch that stays in the cache: where decoding puts its frames."""
        return self._measure(self._batch)

    def _measure(self, target: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Sample:
        left = self._byte_count
        started = time.perf_counter()
        while left > 0:
            for begin in range(0, self._source.size, target.size):
                piece = min(target.size, left)
                target[:piece] = self._source[begin : begin + piece]
                left -= piece
                if left == 0:
                    break
        seconds = time.perf_counter() - started
        return Sample({"frame_bytes_per_s": self._byte_count / seconds}, self._byte_count)


def prove_lossless(day: Day) -> int:
    """Turn the day's frames into ITCH again and compare every byte; return how many frames there are."""
    midnight = midnight_ns(SESSION_DATE, day.exchange.time_zone)
    with day.whole.open("rb") as original, open_day(day.whole, day) as file:
        for frames in file.frames():
            encoded = encode_frames(frames, file.decoder.directory, midnight)
            if original.read(len(encoded)) != encoded:
                raise BenchError(
                    f"frames up to message {file.decoder.message_count} lost something on the way"
                )
        if original.read() not in (b"", b"\0\0"):
            raise BenchError("the day has messages that became no frames")
        return file.decoder.frame_count
