"""The physical limits of shared memory between two cores: shm_pingpong.c and shm_copy.c."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feeds import wire
from perf.clock_kernels import HAS_STEADY_COUNTER, Calibration
from perf.harness import Sample, compile_c
from perf.pairs import some_cores
from perf.report import BenchError
from perf.shm_frames import Checksum, frame_pool, insist_all_arrived

LIMIT = "limit"
PING_PONG = "ping-pong in C"
COPY = "copy, memory to memory"
SECONDS_MAX = 60.0

_HERE = Path(__file__).parent


def _run(source: str, *figures: int, cores: Sequence[int], given: bytes = b"") -> NDArray[np.int64]:
    """Compile and run one of the programs; return the numbers that it writes."""
    flags = [f"-I{_HERE}", *(["-DUSE_COUNTER"] if HAS_STEADY_COUNTER else [])]
    words = [str(compile_c(_HERE / source, flags=flags))]
    words += map(str, (*figures, SECONDS_MAX, *cores))
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=2 * SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{source} did not end within {2 * SECONDS_MAX:g} s") from None
    if done.returncode != 0:
        raise BenchError(f"{source} ended with status {done.returncode}: {done.stderr.decode().strip()}")
    return np.frombuffer(done.stdout, dtype=np.int64)


def ping_pong(round_trips: int, calibration: Calibration) -> Sample:
    """Return the one-way times of a bare word between two cores: half of each round trip."""
    cores = some_cores(2)
    ticks = _run("shm_pingpong.c", round_trips, cores=(cores[0], cores[-1]))
    if ticks.shape != (round_trips,):
        raise BenchError(f"shm_pingpong.c must tell {round_trips} times, told {ticks.size}")
    one_way_ns = np.rint(ticks / (2 * calibration.ticks_per_ns)).astype(np.int64)
    return Sample({}, f"{round_trips} round trips", latency_ns=one_way_ns)


def copy_through(frame_count: int, batch_frames: int, slot_count: int, reader_count: int = 1) -> Sample:
    """Return the frames per second that one core copies into a ring while every reader sums up all."""
    cores = some_cores(2)
    pool = wire.words(frame_pool()).tobytes()
    figures = (frame_count, batch_frames, slot_count, reader_count)
    told = _run("shm_copy.c", *figures, cores=(cores[0], *reversed(cores[1:])), given=pool)
    sums = told[1:].reshape(reader_count, 2).view(np.uint64)
    for word_sum, word_xor in sums.tolist():
        insist_all_arrived("shm_copy.c", Checksum(frame_count, word_sum, word_xor), frame_count)
    checksum = f"{reader_count} readers of {frame_count} frames"
    return Sample({"frames_per_s": frame_count * 1e9 / max(int(told[0]), 1)}, checksum)


class MemoryCopy:
    """What one core can copy from memory to memory, larger than any cache."""

    def __init__(self, byte_count: int) -> None:
        self._source = np.ones(byte_count, dtype=np.uint8)
        self._target = np.zeros_like(self._source)

    def measure(self) -> Sample:
        started = time.perf_counter()
        np.copyto(self._target, self._source)
        return Sample({"bytes_per_s": self._source.size / (time.perf_counter() - started)}, self._source.size)
