"""The frames that every system carries in the shared-memory benchmarks, and the checksum of what arrived.

Frame `i` is number `i` modulo the pool, with `message_seq` i + 1, so a receiver's checksum can be told in
advance for any count, and loss, repetition and damage change it. Order is checked by `message_seq` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeds import wire
from perf.report import BenchError

POOL_FRAMES = 4_096
SEQ_WORD = wire.place("message_seq").word

_SEED = 8_841
_WRAP = 1 << 64


@dataclass(frozen=True, slots=True)
class Checksum:
    """Sum (modulo 2**64) and exclusive or of all words of all frames, and how many frames they were."""

    frame_count: int
    word_sum: int
    word_xor: int

    def __str__(self) -> str:
        return f"{self.frame_count} frames {self.word_sum:016x} {self.word_xor:016x}"

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(
            self.frame_count + other.frame_count,
            (self.word_sum + other.word_sum) % _WRAP,
            self.word_xor ^ other.word_xor,
        )


NOTHING = Checksum(0, 0, 0)


def frame_pool() -> wire.FrameArray:
    """Return the frames that are sent again and again: orders with random fields, always the same ones."""
    random = np.random.default_rng(_SEED)
    frames = wire.empty(POOL_FRAMES)
    orders = wire.view(frames, wire.Schema.ORDER_ADD)
    orders["length"] = wire.FRAME_BYTES
    orders["version"] = wire.VERSION
    orders["kind"] = wire.Kind.DATA
    orders["flags"] = wire.Flag.LAST_PART
    orders["schema_id"] = wire.Schema.ORDER_ADD
    orders["source_stream_id"] = 1
    orders["source_session"] = 1
    orders["event_time_ns"] = 1_700_000_000 * 10**9 + np.cumsum(random.integers(1, 10**6, POOL_FRAMES))
    orders["publish_time_ns"] = orders["event_time_ns"] + 1_000
    orders["instrument_id"] = random.integers(1, 10_000, POOL_FRAMES)
    orders["order_id"] = random.integers(1, 1 << 40, POOL_FRAMES)
    orders["price"] = random.integers(1, 1_000 * wire.PRICE_SCALE, POOL_FRAMES)
    orders["size"] = random.integers(1, 10_000, POOL_FRAMES)
    orders["side"] = random.choice(np.array([b"B", b"S"]), POOL_FRAMES)
    return frames


def frames_from(first_seq: int, frame_count: int) -> wire.FrameArray:
    """Return frames `first_seq` to `first_seq + frame_count - 1`."""
    sequences = np.arange(first_seq, first_seq + frame_count, dtype=np.int64)
    frames = frame_pool()[(sequences - 1) % POOL_FRAMES]
    frames["message_seq"] = sequences
    return frames


def checksum_of(words: NDArray[np.int64]) -> Checksum:
    """Return the checksum of frames given as int64[n, 12]."""
    word_sum = int(words.sum(dtype=np.int64)) % _WRAP
    word_xor = int(np.bitwise_xor.reduce(words, axis=None)) % _WRAP if words.size else 0
    return Checksum(words.shape[0], word_sum, word_xor)


def expected_checksum(frame_count: int) -> Checksum:
    """Return the checksum of frames 1 to `frame_count` without making them."""
    cycles, rest = divmod(frame_count, POOL_FRAMES)
    pool = wire.words(frame_pool())
    pool[:, SEQ_WORD] = 0
    cycle, tail = checksum_of(pool), checksum_of(pool[:rest])
    sequence_sum = frame_count * (frame_count + 1) // 2
    # The exclusive or of 1 to n repeats with a period of four.
    sequence_xor = (frame_count, 1, frame_count + 1, 0)[frame_count % 4]
    return Checksum(
        frame_count,
        (cycles * cycle.word_sum + tail.word_sum + sequence_sum) % _WRAP,
        (cycle.word_xor if cycles % 2 else 0) ^ tail.word_xor ^ sequence_xor,
    )


class Receipt:
    """What has arrived so far: checked for order, summed up batch by batch."""

    def __init__(self) -> None:
        self.checksum = NOTHING

    def take(self, batch: bytes | wire.FrameArray) -> None:
        words = wire.words(batch)
        first_seq = self.checksum.frame_count + 1
        wanted = np.arange(first_seq, first_seq + words.shape[0], dtype=np.int64)
        found = words[:, SEQ_WORD]
        if not np.array_equal(found, wanted):
            wrong = int(np.flatnonzero(found != wanted)[0])
            raise BenchError(f"message {wanted[wrong]} was expected, {found[wrong]} came")
        self.checksum += checksum_of(words)


def insist_all_arrived(where: str, found: Checksum, frame_count: int) -> None:
    wanted = expected_checksum(frame_count)
    if found != wanted:
        raise BenchError(f"{where}: what arrived must be {wanted}, was {found}")
