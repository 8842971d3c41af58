"""What a stream log's writer, readers and inspectors agree on: its files, its sizes, and what can happen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from feeds.errors import ConfigError
from feeds.wire import FRAME_BYTES, FRAME_WORDS, place
from middleware.shm.errors import LayoutError, ShmError
from middleware.shm.log_kernels import BEGIN, CLAIM, CONTROL_BYTES, MARGIN_SHARE, SLOTS, STATE, TAIL
from middleware.shm.mapping import HEADER_BYTES, Header, Layout, MappedFile, ReadableWords, open_file

LOG_FILE = "log"
WRITER_SEAT_FILE = "writer"
READERS_DIRECTORY = "readers"

LOG_LAYOUT = Layout("log", 1, ("slot_count", "frame_bytes"))
READER_LAYOUT = Layout("reader", 1, ())
READER_BODY_BYTES = 4_096
READER_SEAT_BYTE = HEADER_BYTES + 2_048  # where a reader's file says who reads

SLOT_COUNT_DEFAULT = 1 << 18  # 25 MB: 50 ms of 5 million messages a second
SLOT_COUNT_MIN = 1 << 7  # the least whose slots fill whole pages
SLOT_COUNT_MAX = 1 << 28
SEQUENCE_MAX = 1 << 61

_SEQ = place("message_seq").word
assert SLOT_COUNT_MIN * FRAME_BYTES % 4_096 == 0


class Start(Enum):
    """Where a reader begins: with the oldest frame there is, the newest there is, or the next to come."""

    OLDEST = "oldest"
    NEWEST = "newest"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Missed:
    """Message numbers that a reader did not get, both included: the writer had come around."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Lapped(ShmError):
    """The writer came around while frames were looked at in place. What was seen of them may be wrong."""

    def __init__(self, log: str, missed: Missed) -> None:
        self.log = log
        self.missed = missed
        super().__init__(
            f"{log}: messages {missed.first} to {missed.last} were overwritten while they were looked at"
        )


def check_slot_count(slot_count: int) -> None:
    if not SLOT_COUNT_MIN <= slot_count <= SLOT_COUNT_MAX or slot_count & (slot_count - 1):
        raise ConfigError(
            f"slot_count must be a power of two from {SLOT_COUNT_MIN} to {SLOT_COUNT_MAX}, was {slot_count}"
        )


def check_sequence(sequence: int) -> None:
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ConfigError(f"a message number must be 0 to {SEQUENCE_MAX}, was {sequence}")


def body_bytes(slot_count: int) -> int:
    return CONTROL_BYTES + slot_count * FRAME_BYTES


def open_log(place_of_log: Path, *, is_writable: bool) -> MappedFile:
    """Map a log and insist that all of it makes sense: sizes, cursors, and the newest frame's number."""
    log = open_file(place_of_log / LOG_FILE, LOG_LAYOUT, is_writable=is_writable)
    check_cursors(log.path, log.words, check_sizes(log.path, log.header))
    return log


def check_sizes(path: Path, header: Header) -> int:
    """Return a log's number of slots, which its header and its size must agree on."""
    geometry = header.geometry
    slot_count = geometry["slot_count"]
    if geometry["frame_bytes"] != FRAME_BYTES:
        raise LayoutError(path, "frame_bytes", geometry["frame_bytes"], FRAME_BYTES)
    try:
        check_slot_count(slot_count)
    except ConfigError as error:
        raise LayoutError(path, "slot_count", slot_count, str(error)) from None
    expected_bytes = HEADER_BYTES + body_bytes(slot_count)
    if header.file_bytes != expected_bytes:
        raise LayoutError(path, "file size", header.file_bytes, f"{expected_bytes} for its slots")
    return slot_count


def check_cursors(path: Path, words: ReadableWords, slot_count: int) -> None:
    """Insist that a log's cursors can be those of a log that a writer left at any moment, or is writing."""
    # In this order: a writer that is at work moves TAIL between two looks, and never backwards.
    begin, tail, claim = int(words[BEGIN]), int(words[TAIL]), int(words[CLAIM])
    margin = slot_count // MARGIN_SHARE
    if not 0 <= begin <= SEQUENCE_MAX:
        raise LayoutError(path, "first message number", begin, f"0 to {SEQUENCE_MAX}")
    if not 0 <= tail <= SEQUENCE_MAX:
        raise LayoutError(path, "next message number", tail, f"0 to {SEQUENCE_MAX}")
    if not 0 <= claim <= SEQUENCE_MAX:
        raise LayoutError(path, "claimed message number", claim, f"0 to {SEQUENCE_MAX}")
    if claim < tail:
        raise LayoutError(path, "claimed message number", claim, f"{tail} or above")
    if int(words[STATE]) not in (0, 1):
        raise LayoutError(path, "state", int(words[STATE]), "0 (live) or 1 (ended)")
    highest = max(int(words[TAIL]), int(words[BEGIN])) + margin  # again: the writer may have moved them
    if claim > highest:
        raise LayoutError(path, "claimed message number", claim, f"at most {highest}")
    newest = tail - 1
    if newest >= max(int(words[BEGIN]), int(words[CLAIM]) - slot_count):  # again, after TAIL: it moves first
        found = int(words[SLOTS + (newest & (slot_count - 1)) * FRAME_WORDS + _SEQ])
        # Unless the writer has come around since we looked at TAIL.
        if found != newest and newest >= int(words[CLAIM]) - slot_count:
            raise LayoutError(path, "number of the newest frame", found, newest)
