"""Day files: whole, marked, cut, hostile, packed, piped; and never more in memory than a window."""

from __future__ import annotations

import gzip
import os
import threading
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeds.dayfile import Blocks, DayFile, DayFileError, EndingKind, Lengths
from feeds.errors import ConfigError
from feeds.file_windows import WINDOW_BYTES_MIN, open_windows
from feeds.itch50 import FORMAT
from tests import itch50_reference as reference

pytestmark = pytest.mark.kernels

DAY = date(2019, 12, 30)
END_MARKER = b"\0\0"


def delete(order: int) -> bytes:
    return reference.pack(b"D", 1, 0, order, order=order)


def many(count: int) -> bytes:
    """More bytes than one window holds, of messages of different sizes."""
    fields = {"side": b"S", "shares": 5, "stock": b"TWIN    ", "price": 10}
    adds = (reference.pack(b"A", 1, 0, order, order=order, **fields) for order in range(0, count, 2))
    deletes = (delete(order) for order in range(1, count, 2))
    pairs = zip(adds, deletes, strict=True)
    return reference.blocks_of(message for pair in pairs for message in pair)


def write(tmp_path: Path, data: bytes, name: str = "12302019.NASDAQ_ITCH50") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def source_seqs(day: DayFile) -> list[int]:
    return [int(seq) for frames in day.frames() for seq in frames["source_seq"]]


def drain(day: DayFile, seen: list[int]) -> None:
    """Read all frames, noting each message's number before the ending can raise."""
    for frames in day.frames():
        seen += frames["source_seq"].tolist()


def small(path: Path, **options: Any) -> DayFile:
    return DayFile(path, FORMAT, window_bytes=WINDOW_BYTES_MIN, **options)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_file_of_many_windows_gives_every_message_once_and_in_order(
    tmp_path: Path, is_packed: bool
) -> None:
    count = 20_000
    data = many(count)
    assert len(data) > 4 * WINDOW_BYTES_MIN
    path = write(tmp_path, gzip.compress(data, 1) if is_packed else data)
    with small(path) as day:
        assert source_seqs(day) == list(range(1, count + 1))
        assert day.ending is not None
        assert day.ending.kind is EndingKind.WHOLE
        assert (day.ending.position, day.ending.trailing_bytes) == (len(data), 0)
        assert day.decoder.counts_by_type == {"A": count // 2, "D": count // 2}
        assert day.progress() == 1.0


def test_frames_carry_the_date_s_midnight_and_session(tmp_path: Path) -> None:
    with DayFile(write(tmp_path, reference.blocks_of([delete(1_000)])), FORMAT, stream_id=44) as day:
        frame = next(day.frames())
    assert frame["event_time_ns"] == 1_577_682_000_000_000_000 + 1_000
    assert frame["source_session"] == 20_191_230
    assert frame["source_stream_id"] == 44


def test_a_zero_length_at_the_end_is_a_clean_ending(tmp_path: Path) -> None:
    with DayFile(write(tmp_path, reference.blocks_of([delete(1)]) + END_MARKER), FORMAT) as day:
        assert source_seqs(day) == [1]
        assert day.ending is not None
        assert day.ending.kind is EndingKind.MARKED
        assert (day.ending.position, day.ending.trailing_bytes) == (21, 0)


def test_bytes_behind_the_end_of_the_session_are_reported_and_never_read(tmp_path: Path) -> None:
    path = write(tmp_path, reference.blocks_of([delete(1)]) + END_MARKER + reference.blocks_of([delete(2)]))
    seen: list[int] = []
    with DayFile(path, FORMAT) as day, pytest.raises(DayFileError) as caught:
        drain(day, seen)
    assert seen == [1]
    assert caught.value.ending.kind is EndingKind.TRAILING
    assert caught.value.ending.position == 21
    assert caught.value.ending.trailing_bytes == 21
    assert caught.value.ending.message_count == 1
    assert "at byte 21, after 1 messages, with 21 bytes left" in str(caught.value)


def test_bytes_behind_the_end_are_counted_to_the_end_of_the_file(tmp_path: Path) -> None:
    rest = many(20_000)
    assert len(rest) > 4 * WINDOW_BYTES_MIN
    path = write(tmp_path, reference.blocks_of([delete(1)]) + END_MARKER + rest)
    with small(path, is_strict=False) as day:
        assert source_seqs(day) == [1]
        assert day.ending is not None
        assert (day.ending.position, day.ending.trailing_bytes) == (21, len(rest))


@pytest.mark.parametrize("rest", [b"", b"x"])
def test_an_end_marker_that_fills_a_stream_s_window_is_still_the_end(tmp_path: Path, rest: bytes) -> None:
    blocks = reference.blocks_of([delete(order) for order in range(6_000)])
    filler = reference.blocks_of([b"z" * (WINDOW_BYTES_MIN - len(blocks) - 4)])
    data = blocks + filler + END_MARKER
    assert len(data) == WINDOW_BYTES_MIN
    with small(write(tmp_path, gzip.compress(data + rest, 1)), is_strict=False) as day:
        assert len(source_seqs(day)) == 6_001
        assert day.ending is not None
        assert day.ending.kind is (EndingKind.TRAILING if rest else EndingKind.MARKED)
        assert day.ending.trailing_bytes == len(rest)


@pytest.mark.parametrize("cut_bytes", [1, 2, 19, 20])
def test_a_cut_last_message_is_told_after_everything_before_it(tmp_path: Path, cut_bytes: int) -> None:
    data = reference.blocks_of([delete(1), delete(2)])
    seen: list[int] = []
    with (
        DayFile(write(tmp_path, data[:-cut_bytes]), FORMAT) as day,
        pytest.raises(DayFileError, match="cut short: at byte 21") as caught,
    ):
        drain(day, seen)
    assert seen == [1]
    assert caught.value.ending.trailing_bytes == 21 - cut_bytes


def test_without_strictness_the_ending_only_tells(tmp_path: Path) -> None:
    path = write(tmp_path, reference.blocks_of([delete(1), delete(2)])[:-1])
    with DayFile(path, FORMAT, is_strict=False) as day:
        assert source_seqs(day) == [1]
        assert day.ending is not None
        assert day.ending.kind is EndingKind.CUT_SHORT
        assert not day.ending.is_clean


def test_an_empty_file_is_whole(tmp_path: Path) -> None:
    with DayFile(write(tmp_path, b""), FORMAT) as day:
        assert source_seqs(day) == []
        assert day.ending is not None
        assert day.ending.kind is EndingKind.WHOLE


def without_lengths(data: bytes) -> bytes:
    out = bytearray(data)
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 2], "big")
        out[position : position + 2] = END_MARKER
        position += 2 + length
    return bytes(out)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_file_without_lengths_is_refused_unless_they_are_taken_from_the_types(
    tmp_path: Path, is_packed: bool
) -> None:
    count = 10_000
    data = without_lengths(many(count))
    path = write(tmp_path, gzip.compress(data, 1) if is_packed else data)
    with small(path) as day, pytest.raises(DayFileError, match="zero length") as caught:
        list(day.frames())
    assert (caught.value.ending.position, caught.value.ending.message_count) == (0, 0)
    with small(path, lengths=Lengths.BY_TYPE) as day:
        assert source_seqs(day) == list(range(1, count + 1))


def test_reading_by_type_never_writes_to_the_file(tmp_path: Path) -> None:
    data = without_lengths(many(100))
    path = write(tmp_path, data)
    with small(path, lengths=Lengths.BY_TYPE) as day:
        assert len(source_seqs(day)) == 100
    assert path.read_bytes() == data


def test_by_type_an_unknown_letter_ends_the_reading_with_its_position(tmp_path: Path) -> None:
    data = without_lengths(reference.blocks_of([delete(1)])) + b"\0\0zzzzzzzz"
    with (
        DayFile(write(tmp_path, data), FORMAT, lengths=Lengths.BY_TYPE) as day,
        pytest.raises(DayFileError, match="no length") as caught,
    ):
        list(day.frames())
    assert caught.value.ending.kind is EndingKind.UNKNOWN_TYPE
    assert caught.value.ending.position == 21
    assert caught.value.ending.message_count == 1
    assert "0x7a" in str(caught.value)


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0D", b"\0"])
def test_by_type_a_cut_tail_is_told(tmp_path: Path, tail: bytes) -> None:
    data = without_lengths(reference.blocks_of([delete(1)])) + tail
    with (
        DayFile(write(tmp_path, data), FORMAT, lengths=Lengths.BY_TYPE) as day,
        pytest.raises(DayFileError, match="cut short") as caught,
    ):
        list(day.frames())
    assert (caught.value.ending.position, caught.value.ending.trailing_bytes) == (21, len(tail))


def test_a_gzip_file_cut_in_the_middle_delivers_what_it_still_holds(tmp_path: Path) -> None:
    packed = gzip.compress(many(20_000), 6)
    seen: list[int] = []
    with small(write(tmp_path, packed[: len(packed) // 2])) as day, pytest.raises(DayFileError) as caught:
        drain(day, seen)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 5_000
    assert caught.value.ending.kind is EndingKind.DAMAGED
    assert "the compressed stream ends before its end mark" in str(caught.value)


def test_a_gzip_file_with_damage_delivers_what_comes_before_it(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(many(20_000), 6))
    packed[-8] ^= 0xFF  # the checksum
    with (
        small(write(tmp_path, bytes(packed))) as day,
        pytest.raises(DayFileError, match="breaks off") as caught,
    ):
        list(day.frames())
    assert caught.value.ending.message_count == 20_000
    assert caught.value.ending.kind is EndingKind.DAMAGED


def test_gzip_members_in_a_row_and_padding_behind_them_are_one_file(tmp_path: Path) -> None:
    data = many(2_000)
    packed = gzip.compress(data[:1_001]) + gzip.compress(b"") + gzip.compress(data[1_001:]) + bytes(700)
    with small(write(tmp_path, packed)) as day:
        assert source_seqs(day) == list(range(1, 2_001))


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    data = many(10_000)
    path = tmp_path / "12302019.pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    with small(path) as day:
        assert len(source_seqs(day)) == 10_000
        assert day.progress() is None
    writer.join()


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_blocks_are_the_file_s_own_bytes(tmp_path: Path, is_packed: bool) -> None:
    data = many(10_000)
    path = write(tmp_path, gzip.compress(data, 1) if is_packed else data)
    joined = b""
    expected_seq = 1
    with small(path) as day:
        for piece in day.blocks(message_limit=999):
            assert isinstance(piece, Blocks)
            assert piece.first_seq == expected_seq
            assert 1 <= piece.message_count <= 999
            expected_seq += piece.message_count
            joined += piece.data[piece.begin : piece.end].tobytes()
    assert joined == data
    assert expected_seq == 10_001


def test_blocks_end_as_frames_do(tmp_path: Path) -> None:
    path = write(tmp_path, reference.blocks_of([delete(1), delete(2)])[:-1])
    with DayFile(path, FORMAT) as day, pytest.raises(DayFileError, match="at byte 21, after 1 messages"):
        list(day.blocks())


def test_a_missing_date_is_told_before_anything_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"", "today.bin")
    with DayFile(path, FORMAT) as day, pytest.raises(ConfigError, match=r"today\.bin: the session's date"):
        day.frames()
    with DayFile(path, FORMAT, session_date=DAY) as day:
        assert source_seqs(day) == []


def test_a_day_file_is_read_once(tmp_path: Path) -> None:
    with DayFile(write(tmp_path, b""), FORMAT) as day:
        list(day.frames())
        with pytest.raises(ConfigError, match="open it again"):
            day.blocks()


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b"")
    with pytest.raises(ConfigError, match="window_bytes"):
        DayFile(path, FORMAT, window_bytes=100)
    with pytest.raises(ConfigError, match="lengths must be prefixed or by-type, was 'guess'"):
        DayFile(path, FORMAT, lengths="guess")
    with DayFile(path, FORMAT) as day, pytest.raises(ConfigError, match="message_limit"):
        day.blocks(0)
    with pytest.raises(FileNotFoundError):
        DayFile(tmp_path / "none", FORMAT)


def resident_file_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssFile")).split()[1])


def test_pages_behind_the_window_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "12302019.large"
    with path.open("wb") as file:
        block = reference.blocks_of([delete(1)]) * 50_000  # 1 MiB
        for _ in range(32):
            file.write(block)
    windows = open_windows(path, WINDOW_BYTES_MIN)
    total = 0
    position = 0
    before_kib = resident_file_kib()
    highest_kib = before_kib
    while True:
        window = windows.window(position)
        total += int(np.count_nonzero(window.data[window.begin : window.end] == ord("D")))
        highest_kib = max(highest_kib, resident_file_kib())
        position = window.end
        if window.is_last:
            break
    assert total == 32 * 50_000
    assert highest_kib - before_kib < 4 * 1024  # of 32 MiB; the kernel maps some pages around each fault
    windows.close()
