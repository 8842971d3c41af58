"""Damaged log files: refused with the reason, or read as far as they make sense; no crash and no loop."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feeds import wire
from feeds.wire import FRAME_BYTES
from middleware.shm.errors import LayoutError, ShmError
from middleware.shm.log import LogReader, LogWriter, Start
from middleware.shm.log_kernels import BEGIN, CLAIM, MARGIN_SHARE, STATE, TAIL
from middleware.shm.log_kernels import SLOTS as SLOTS_WORD
from middleware.shm.log_layout import LOG_FILE, READERS_DIRECTORY, SEQUENCE_MAX, SLOT_COUNT_MIN
from middleware.shm.mapping import HEADER_BYTES
from middleware.shm.runtime import Runtime
from tests.fault.stamped_frame_kernels import SEQ_MAX, insist_right, stamped

pytestmark = pytest.mark.kernels

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
MARGIN = SLOTS // MARGIN_SHARE
FRAME_COUNT = 2 * SLOTS + 5
SEQ_OFFSET = 24  # of message_seq in a frame
CRC_OFFSET = 56  # of the header's checksum
READS_MAX = 2 * SLOTS  # of one frame each, in a log of SLOTS frames

int64s = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, FRAME_COUNT + 2 * SLOTS),
    st.sampled_from([SEQUENCE_MAX, SEQUENCE_MAX + 1, (1 << 63) - 1, -(1 << 63)]),
)


class Specimen:
    """A healthy log's bytes, which tests damage and put back."""

    def __init__(self, directory: Path) -> None:
        self.runtime = Runtime(directory / "node")
        with LogWriter.open(self.runtime, NAME, who="first", slot_count=SLOTS) as writer:
            writer.publish(stamped(1, FRAME_COUNT))
        self.path = self.runtime.place("logs", NAME) / LOG_FILE
        self.healthy = self.path.read_bytes()

    def put(self, content: bytes) -> None:
        self.path.unlink(missing_ok=True)  # a new file: nobody has this one mapped
        self.path.write_bytes(content)

    def with_words(self, words: dict[int, int]) -> bytes:
        content = bytearray(self.healthy)
        for word, value in words.items():
            struct.pack_into("<q", content, 8 * word, value)
        return bytes(content)

    def with_header(self, offset: int, field: bytes) -> bytes:
        """Return the log with another header field and the checksum that goes with it."""
        content = bytearray(self.healthy)
        content[offset : offset + len(field)] = field
        content[CRC_OFFSET : CRC_OFFSET + 4] = bytes(4)
        struct.pack_into("<I", content, CRC_OFFSET, zlib.crc32(content[:HEADER_BYTES]))
        return bytes(content)

    def open_reader(self) -> LogReader:
        return LogReader.open(self.runtime, NAME, who="reader", start=Start.OLDEST)

    def open_writer(self) -> LogWriter:
        return LogWriter.open(self.runtime, NAME, who="second")


@pytest.fixture(scope="module")
def specimen() -> Iterator[Specimen]:
    with tempfile.TemporaryDirectory() as place:
        yield Specimen(Path(place))


def insist_refused(specimen: Specimen, content: bytes, field: str | None = None) -> None:
    """Insist that nobody opens this log, and that both ends say why in the same words."""
    specimen.put(content)
    said = []
    for attempt in (specimen.open_reader, specimen.open_writer):
        with pytest.raises(LayoutError) as caught:
            attempt()
        assert caught.value.path == specimen.path
        if field is not None:
            assert caught.value.field == field
        assert f"must be {caught.value.expected}, was {caught.value.found}" in str(caught.value)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert list((specimen.path.parent / READERS_DIRECTORY).iterdir()) == []  # who was refused left no file
    specimen.put(specimen.healthy)
    specimen.open_writer().close()  # nor did it keep the writer's seat


def insist_bounded(specimen: Specimen, content: bytes) -> None:
    """Insist that a log which may be damaged is refused, or read and continued without a crash or a loop."""
    specimen.put(content)
    with suppress(LayoutError), specimen.open_reader() as reader:
        for _ in range(READS_MAX):
            if not len(reader.read(1)):
                break
        else:
            pytest.fail(f"{READS_MAX} frames were read from a log of {SLOTS}")
    with suppress(LayoutError), specimen.open_writer() as writer:
        first = writer.next_seq
        count = 3 if first < SEQ_MAX - 3 else 0
        writer.publish(stamped(first, count) if count else wire.empty(0))
        assert writer.next_seq == first + count


def test_the_specimen_is_healthy(specimen: Specimen) -> None:
    specimen.put(specimen.healthy)
    with specimen.open_reader() as reader:
        frames = reader.read()
        assert reader.next_seq == FRAME_COUNT + 1
        insist_right(frames, reader.next_seq - len(frames))


# --- the file ---


@pytest.mark.parametrize("size", [0, 1, 191, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4_096])
def test_a_file_that_is_cut_short_is_refused(specimen: Specimen, size: int) -> None:
    insist_refused(specimen, specimen.healthy[:size], "file size")


@pytest.mark.parametrize("change", [-1, 1, -FRAME_BYTES, 4_096])
def test_a_file_of_another_size_is_refused(specimen: Specimen, change: int) -> None:
    content = (specimen.healthy + bytes(4_096))[: len(specimen.healthy) + change]
    insist_refused(specimen, content, "file size")


def test_zeros_and_noise_are_refused(specimen: Specimen) -> None:
    insist_refused(specimen, bytes(len(specimen.healthy)), "magic")
    insist_refused(specimen, os.urandom(len(specimen.healthy)), "magic")


def test_the_other_byte_order_is_refused(specimen: Specimen) -> None:
    insist_refused(specimen, specimen.with_header(8, specimen.healthy[8:16][::-1]), "byte order mark")
    swapped = b"".join(
        specimen.healthy[at : at + 8] if at == 0 else specimen.healthy[at : at + 8][::-1]
        for at in range(0, len(specimen.healthy), 8)
    )
    insist_refused(specimen, swapped, "byte order mark")


def test_another_version_and_another_kind_are_refused(specimen: Specimen) -> None:
    insist_refused(specimen, specimen.with_header(24, struct.pack("<I", 2)), "version")
    insist_refused(specimen, specimen.with_header(16, b"ring\0\0\0\0"), "kind")


@pytest.mark.parametrize("slot_count", [0, -1, 1, SLOTS - 1, 2 * SLOTS, 1 << 40, (1 << 63) - 1])
def test_a_number_of_slots_that_cannot_be_is_refused(specimen: Specimen, slot_count: int) -> None:
    insist_refused(specimen, specimen.with_header(64, struct.pack("<q", slot_count)))


def test_another_frame_size_is_refused(specimen: Specimen) -> None:
    insist_refused(specimen, specimen.with_header(72, struct.pack("<q", 128)), "frame_bytes")


@given(offset=st.integers(0, HEADER_BYTES - 1), flip=st.integers(1, 255))
def test_any_damaged_byte_of_the_header_is_noticed(specimen: Specimen, offset: int, flip: int) -> None:
    content = bytearray(specimen.healthy)
    content[offset] ^= flip
    insist_refused(specimen, bytes(content))


def test_things_that_are_no_files_are_refused(specimen: Specimen) -> None:
    makers: list[Callable[[], None]] = [
        lambda: os.mkfifo(specimen.path),
        lambda: specimen.path.symlink_to("/dev/zero"),
        lambda: specimen.path.symlink_to(specimen.path),
        specimen.path.mkdir,
    ]
    for make in makers:
        specimen.path.unlink()
        make()
        for attempt in (specimen.open_reader, specimen.open_writer):
            with pytest.raises(LayoutError, match="must be a regular file") as caught:
                attempt()
            assert caught.value.field == "file"
        if specimen.path.is_dir():
            specimen.path.rmdir()
            specimen.path.touch()
    specimen.put(specimen.healthy)


# --- the control words ---


@pytest.mark.parametrize(
    ("word", "value", "field"),
    [
        (TAIL, -1, "next message number"),
        (TAIL, SEQUENCE_MAX + 1, "next message number"),
        (TAIL, FRAME_COUNT + 2, "number of the newest frame"),
        (TAIL, FRAME_COUNT, None),
        (TAIL, 0, "claimed message number"),
        (TAIL, FRAME_COUNT + SLOTS, "claimed message number"),
        (CLAIM, -1, "claimed message number"),
        (CLAIM, FRAME_COUNT, "claimed message number"),
        (CLAIM, FRAME_COUNT + MARGIN + 2, "claimed message number"),
        (CLAIM, (1 << 63) - 1, "claimed message number"),
        (BEGIN, -1, "first message number"),
        (BEGIN, SEQUENCE_MAX + 1, "first message number"),
        (STATE, 2, "state"),
        (STATE, -1, "state"),
    ],
)
def test_cursors_that_cannot_be_are_refused_by_name(
    specimen: Specimen, word: int, value: int, field: str | None
) -> None:
    if field is None:  # one frame less than there was, which a writer may have left just so
        insist_bounded(specimen, specimen.with_words({word: value}))
    else:
        insist_refused(specimen, specimen.with_words({word: value}), field)


def test_the_wrong_frame_in_a_slot_is_refused_by_its_number(specimen: Specimen) -> None:
    slot = (FRAME_COUNT - 10) % SLOTS
    word = SLOTS_WORD + slot * FRAME_BYTES // 8 + SEQ_OFFSET // 8
    specimen.put(specimen.with_words({word: 7}))
    with specimen.open_reader() as reader:
        frames_before = FRAME_COUNT - 10 - reader.next_seq
        insist_right(reader.read(frames_before), FRAME_COUNT - 10 - frames_before)
        with pytest.raises(LayoutError, match=f"frame in slot {slot} must be {FRAME_COUNT - 10}, was 7"):
            reader.read()
        assert reader.next_seq == FRAME_COUNT - 10


@given(words=st.dictionaries(st.sampled_from([TAIL, CLAIM, BEGIN, STATE]), int64s, min_size=1))
@example(words={TAIL: FRAME_COUNT + 1 + (1 << 32)})
@example(words={BEGIN: SEQUENCE_MAX})
@example(words={BEGIN: 0, TAIL: 0, CLAIM: 0})
@example(words={TAIL: SEQUENCE_MAX, CLAIM: SEQUENCE_MAX, BEGIN: SEQUENCE_MAX})
def test_any_cursors_at_all_neither_crash_nor_loop(specimen: Specimen, words: dict[int, int]) -> None:
    insist_bounded(specimen, specimen.with_words(words))


places_and_noise = st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=200))


@given(damage=st.lists(places_and_noise, min_size=1, max_size=8))
def test_any_damage_anywhere_behind_the_header_neither_crashes_nor_loops(
    specimen: Specimen, damage: list[tuple[int, bytes]]
) -> None:
    content = bytearray(specimen.healthy)
    body_bytes = len(content) - HEADER_BYTES
    for where, noise in damage:
        offset = HEADER_BYTES + where % body_bytes
        content[offset : offset + len(noise)] = noise[: len(content) - offset]
    assert len(content) == len(specimen.healthy)
    insist_bounded(specimen, bytes(content))


@given(damage=st.lists(st.tuples(st.sampled_from([TAIL, CLAIM, BEGIN]), int64s), min_size=1, max_size=5))
@example(damage=[(TAIL, FRAME_COUNT + 2 * SLOTS)])  # more than there can be, and a reader with room for it
def test_a_reader_whose_log_goes_mad_under_it_neither_crashes_nor_loops(
    specimen: Specimen, damage: list[tuple[int, int]]
) -> None:
    specimen.put(specimen.healthy)
    with specimen.open_writer() as writer, specimen.open_reader() as reader:
        for word, value in damage:
            writer.words[word] = value
            with suppress(ShmError):
                reader.read()
                reader.poll(len)
                with reader.view():
                    pass
            reader.take_missed()
        specimen.put(specimen.healthy)
