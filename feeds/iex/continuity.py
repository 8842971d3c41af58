"""Whether segments of one source follow each other without a break, in numbers and in bytes (plain, sans-IO).

The compiled receive path judges the same things for two lines at once (transport_kernels); this is for one
source that should not have breaks at all: a capture to be played, the answer to a gap fill over TCP.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from feeds.errors import LimitError
from feeds.iex.transport import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Segment,
    SegmentError,
    decode_segment,
    segment_bytes,
)

_SEGMENT_BYTES_MAX = HEADER_BYTES + PAYLOAD_BYTES_MAX


class Step(enum.Enum):
    """How a segment stands to those before it."""

    NEXT = "goes on where the last one ended"
    AHEAD = "messages are missing before it"
    BEHIND = "begins with messages already seen"
    RESTART = "the stream begins anew at sequence 1, offset 0"


@dataclass(slots=True)
class Continuity:
    """Follows the position of a stream, from anywhere: the first segment is taken as it comes."""

    next_sequence: int = FIRST_SEQUENCE
    next_stream_offset: int = 0
    restart_count: int = 0
    is_begun: bool = False

    def on_segment(self, segment: Segment) -> Step:
        """Return how `segment` stands to those before it, and move on unless it lies behind.

        Raises SegmentError when its number is the next one and its stream offset is not, or the other way
        round: one of them was damaged, and nothing behind it can be trusted.
        """
        if not self.is_begun:
            self._move_behind(segment)
            self.is_begun = True
            return Step.NEXT
        is_start = segment.sequence == FIRST_SEQUENCE and segment.stream_offset == 0
        if is_start and self.next_sequence > FIRST_SEQUENCE:
            self.restart_count += 1
            self._move_behind(segment)
            return Step.RESTART
        number_step = segment.sequence - self.next_sequence
        offset_step = segment.stream_offset - self.next_stream_offset
        if (number_step > 0) != (offset_step > 0) or (number_step < 0) != (offset_step < 0):
            allowed = f"{self.next_stream_offset} when the sequence number is {self.next_sequence}"
            found = f"{segment.stream_offset} with sequence number {segment.sequence}"
            raise SegmentError("stream offset", found, allowed, 16)
        if number_step < 0:
            return Step.BEHIND
        self._move_behind(segment)
        return Step.NEXT if number_step == 0 else Step.AHEAD

    def _move_behind(self, segment: Segment) -> None:
        self.next_sequence = segment.next_sequence
        self.next_stream_offset = segment.next_stream_offset


@dataclass(slots=True)
class SegmentStream:
    """Segments out of the bytes of a TCP connection, however they arrive."""

    _held: bytearray = field(default_factory=bytearray)

    @property
    def held_bytes(self) -> int:
        """Bytes of a segment that is not complete yet. When the connection ends they should be none."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Segment]:
        """Return the segments that `data` completes. Raises SegmentError for the first that is not one."""
        if len(self._held) > _SEGMENT_BYTES_MAX:
            raise LimitError(f"an incomplete segment must be at most {_SEGMENT_BYTES_MAX} bytes long")
        self._held += data
        segments = []
        begin = 0
        length = segment_bytes(self._held, begin)
        while length is not None and len(self._held) - begin >= length:
            segments.append(decode_segment(bytes(self._held[begin : begin + length])))
            begin += length
            length = segment_bytes(self._held, begin)
        del self._held[:begin]
        return segments
