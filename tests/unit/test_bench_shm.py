"""The parts of the shared-memory benchmarks: frames and checksums, compiled ends, limits in words."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import wire
from feeds.compiled import IS_INTERPRETED, i64
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.mapping import LINE_WORDS
from middleware.shm.runtime import Runtime
from perf import shm_kernels
from perf.clock_kernels import HAS_STEADY_COUNTER, Calibration, calibrate, read_ticks_kernel
from perf.report import BenchError, Report, Result
from perf.shm_frames import (
    POOL_FRAMES,
    Checksum,
    Receipt,
    checksum_of,
    expected_checksum,
    frame_pool,
    frames_from,
    insist_all_arrived,
)
from perf.shm_limits import COPY, LIMIT
from perf.shm_log import US
from perf.shm_scale_limits import cache_bytes, what_limits_logs, what_limits_readers

SLOTS = 1 << 10


# --- frames and checksums ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, POOL_FRAMES - 1, POOL_FRAMES, 2 * POOL_FRAMES + 7])
def test_checksum_told_in_advance_is_that_of_the_frames(count: int) -> None:
    assert expected_checksum(count) == checksum_of(wire.words(frames_from(1, count)))


def test_frames_are_valid_and_numbered() -> None:
    frames = frames_from(POOL_FRAMES, 3)
    assert frames["message_seq"].tolist() == [POOL_FRAMES, POOL_FRAMES + 1, POOL_FRAMES + 2]
    assert (frames["length"] == wire.FRAME_BYTES).all()
    assert len(np.unique(frame_pool()["instrument_id"])) > 100


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda words: np.delete(words, 3, axis=0), "message 4 was expected, 5 came"),
        (lambda words: words[[0, 1, 1, 2]], "message 3 was expected, 2 came"),
        (lambda words: words[[1, 0, 2]], "message 1 was expected, 2 came"),
    ],
)
def test_receipt_notices_what_is_lost_repeated_or_out_of_order(damage: object, told: str) -> None:
    assert callable(damage)
    with pytest.raises(BenchError, match=told):
        Receipt().take(np.ascontiguousarray(damage(wire.words(frames_from(1, 8)))).tobytes())


def test_receipt_notices_a_changed_byte_and_a_missing_end() -> None:
    receipt = Receipt()
    receipt.take(frames_from(1, 5).tobytes())
    receipt.take(frames_from(6, 5).tobytes())
    insist_all_arrived("probe", receipt.checksum, 10)
    with pytest.raises(BenchError, match="probe: what arrived must be 11 frames"):
        insist_all_arrived("probe", receipt.checksum, 11)
    content = bytearray(frames_from(1, 10).tobytes())
    content[77] ^= 1
    changed = Receipt()
    changed.take(bytes(content))
    with pytest.raises(BenchError, match="probe: what arrived must be"):
        insist_all_arrived("probe", changed.checksum, 10)


# --- compiled ends -----------------------------------------------------------------------------------

small_words = st.integers(-(1 << 50), 1 << 50)  # so that the plain twin, too, adds them up without wrapping


@pytest.mark.kernels
@given(st.lists(st.lists(small_words, min_size=12, max_size=12), max_size=8))
def test_handler_sums_up_as_the_plain_checksum_does(rows: list[list[int]]) -> None:
    frames = np.array(rows, dtype=np.int64).reshape(-1, wire.FRAME_WORDS)
    frames[:, wire.place("message_seq").word] = range(1, len(rows) + 1)
    memory = np.zeros(shm_kernels.STAMPS, dtype=np.int64)
    half = len(rows) // 2
    shm_kernels.fold(frames[:half], memory)
    shm_kernels.fold(frames[half:], memory)
    found = Checksum(
        int(memory[shm_kernels.TAKEN]),
        int(memory[shm_kernels.SUM]) % 2**64,
        int(memory[shm_kernels.XOR]) % 2**64,
    )
    assert found == checksum_of(frames)
    assert memory[shm_kernels.WRONG_AT] == 0


@pytest.mark.kernels
def test_handler_remembers_the_first_wrong_number() -> None:
    frames = np.zeros((6, wire.FRAME_WORDS), dtype=np.int64)
    frames[:, wire.place("message_seq").word] = range(1, 7)
    memory = np.zeros(shm_kernels.STAMPS, dtype=np.int64)
    shm_kernels.fold(frames[[0, 1, 3, 4]], memory)
    assert memory[shm_kernels.WRONG_AT] == 3


@pytest.fixture
def log_ends(tmp_path: Path) -> tuple[LogWriter, LogReader]:
    runtime = Runtime(tmp_path / "runtime")
    writer = LogWriter.open(runtime, "probe", who="writer", slot_count=SLOTS, first_seq=1)
    return writer, LogReader.open(runtime, "probe", who="reader", start=1)


@pytest.mark.kernels
def test_scheduled_sender_publishes_every_frame_and_none_early(log_ends: tuple[LogWriter, LogReader]) -> None:
    writer, reader = log_ends
    due = read_ticks_kernel() + np.arange(20, dtype=np.int64) * 20_000
    begun = np.zeros(20, dtype=np.int64)
    pool = wire.words(frame_pool())
    assert shm_kernels.send_scheduled_kernel(writer.words, writer.state, pool, due, begun) == 20
    assert (begun >= due).all()
    assert (np.diff(begun) > 0).all()
    assert reader.read().tobytes() == frames_from(1, 20).tobytes()


@pytest.mark.kernels
def test_flat_out_sender_stops_before_it_laps_the_slowest_reader(
    log_ends: tuple[LogWriter, LogReader],
) -> None:
    writer, reader = log_ends
    progress = np.zeros(2 * LINE_WORDS, dtype=np.int64)
    progress[0] = 10 * SLOTS  # one reader is far ahead, the other has not begun
    tally = np.zeros(shm_kernels.TALLY_WORDS, dtype=np.int64)
    status = shm_kernels.send_all_kernel(
        writer.words,
        writer.state,
        wire.words(frame_pool()),
        i64(2 * SLOTS),
        i64(64),
        progress,
        i64(2),
        tally,
        i64(0),
        i64(0),  # the deadline has passed: it gives up as soon as it would have to wait
    )
    assert status == shm_kernels.TIMED_OUT
    assert writer.next_seq - 1 == SLOTS * 7 // 8
    assert len(reader.read()) == SLOTS * 7 // 8
    assert reader.take_missed() == []


@pytest.mark.skipif(IS_INTERPRETED, reason="handlers have no address without jit")
def test_receiver_gives_up_at_its_deadline(log_ends: tuple[LogWriter, LogReader]) -> None:
    _, reader = log_ends
    chunk, memory = np.zeros((4, wire.FRAME_WORDS), np.int64), np.zeros(shm_kernels.STAMPS, np.int64)
    progress = np.zeros(LINE_WORDS, np.int64)
    numbers = (i64(1), i64(0), memory, progress, i64(0), i64(0), i64(0))
    status = shm_kernels.receive_kernel(reader.words, reader.own, reader.state, chunk, *numbers)
    assert status == shm_kernels.TIMED_OUT


# --- the clock ---------------------------------------------------------------------------------------


@pytest.mark.kernels
def test_ticks_are_calibrated_against_the_monotonic_clock() -> None:
    calibration = calibrate(window_ns=5_000_000)
    first, second = read_ticks_kernel(), read_ticks_kernel()
    assert second >= first >= calibration.moment_ticks
    if IS_INTERPRETED or not HAS_STEADY_COUNTER:
        assert calibration.ticks_per_ns == pytest.approx(1.0, rel=1e-2)


def test_a_moment_of_the_clock_becomes_a_count_of_ticks() -> None:
    calibration = Calibration(moment_ns=1_000, moment_ticks=500, ticks_per_ns=2.5)
    assert calibration.ticks_at(1_000) == 500
    assert calibration.ticks_at(1_100) == 750
    assert calibration.ticks_at(900) == 250


# --- limits in words ---------------------------------------------------------------------------------


def scale_report(held_share: float, many_logs_rate: float, call_ns: float) -> Report:
    def readers(count: int) -> list[Result]:
        figures = {
            "aggregate_frames_per_s": 80e6,
            "writer_held_share": held_share,
            "writer_frames_per_s": 100e6 / count,
            "missed_share": 0.25,
        }
        ours = [Result(US, f"{count} r", name, value, 0.0) for name, value in figures.items()]
        return [*ours, Result(LIMIT, f"{count} r", "aggregate_frames_per_s", 160e6, 0.0)]

    def logs(count: int, rate: float) -> list[Result]:
        figures = {"logs_frames_per_s": rate, "idle_poll_ns": call_ns, "idle_publish_ns": call_ns / 2}
        return [Result(US, f"{count} l", name, value, 0.0) for name, value in figures.items()]

    copy = Result(LIMIT, COPY, "bytes_per_s", 9.6e9, 0.0)
    return Report([*readers(1), *readers(2), *logs(1, 40e6), *logs(64, many_logs_rate), copy])


def test_readers_limit_is_said_from_who_waited_for_whom() -> None:
    cases = {1: "1 r", 2: "2 r"}
    taking, beside, writing = what_limits_readers(scale_report(0.9, 40e6, 100), cases, core_count=1)
    assert "the readers' 1 core, for which the writer waits 90% of the time" in taking
    assert "the log 50% of that" in beside
    assert "80% of what one core copies" in beside
    assert "100 M frames/s with 1 reader and 50 M with 2 (50%), who then miss 25%" in writing
    taking, *_ = what_limits_readers(scale_report(0.1, 40e6, 100), cases, core_count=3)
    assert "the writer, which waits for the readers only 10% of the time" in taking


@pytest.mark.parametrize(
    ("rate", "call_ns", "caches", "told"),
    [
        (40e6, 1_200.0, {}, "the limit is the calls from Python"),
        (40e6, 100.0, {}, "up to 64 the rate stays above 80% of the best"),
        (20e6, 100.0, {"L2": 1 << 20, "L3": 32 << 20}, "the limit is L3 with its 33.55 M bytes"),
        (20e6, 100.0, {"L2": 1 << 20, "L3": 1 << 30}, "no cache ends between the two"),
    ],
)
def test_logs_limit_is_said_from_calls_and_caches(
    rate: float, call_ns: float, caches: dict[str, int], told: str
) -> None:
    notes = what_limits_logs(scale_report(0.9, rate, call_ns), {1: "1 l", 64: "64 l"}, 1 << 14, 64, caches)
    assert told in notes[-1]


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    for index, (kind, level, size) in enumerate(
        [
            ("Data", "1", "32K"),
            ("Instruction", "1", "64K"),
            ("Unified", "2", "1024K"),
            ("Unified", "3", "32M"),
        ]
    ):
        directory = tmp_path / f"index{index}"
        directory.mkdir()
        for name, content in (("type", kind), ("level", level), ("size", size)):
            (directory / name).write_text(f"{content}\n", encoding="ascii")
    assert cache_bytes(tmp_path) == {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
    assert cache_bytes(tmp_path / "none") == {}
