"""IEX-TP 1.25: segments of numbered messages, heartbeats, and how to ask for lost messages again.

Little-endian. `offset` is the position of the payload's first byte in the session's stream of message blocks;
message i of a segment has number `sequence + i`. A segment without messages is a heartbeat: its sequence and
offset are those of the next data. A session begins at sequence 1, offset 0.

     0         1          2          4         8         12              14      16       24         32
     | version | reserved | protocol | channel | session | payload bytes | count | offset | sequence | send ns
     40
     | count x ( length u16 | message ) |

A gap fill request goes to the exchange's server; the answer is ordinary segments. Both ends of a range are
inclusive; ranges ascend and do not overlap. No range at all (UDP) is a test: one heartbeat comes back.

     0         1              2          4         8         12            16
     | version | request type | protocol | channel | session | range count | count x ( first q | last q ) |

This module is plain and strict on purpose: it is what the compiled receive path is tested against.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from feeds.errors import ConfigError, SourceError
from feeds.formats import SEQUENCE_LIMIT

VERSION = 1
PROTOCOL_TOPS_1_6 = 0x8003
PROTOCOL_DEEP_1_0 = 0x8004
PROTOCOLS = {PROTOCOL_TOPS_1_6: "TOPS 1.6", PROTOCOL_DEEP_1_0: "DEEP 1.0"}
FIRST_SEQUENCE = 1

HEADER = struct.Struct("<BBHIIHHqqq")
HEADER_BYTES = 40
AT_VERSION = 0
AT_PROTOCOL = 2
AT_CHANNEL = 4
AT_SESSION = 8
AT_PAYLOAD_BYTES = 12
AT_COUNT = 14
AT_STREAM_OFFSET = 16
AT_SEQUENCE = 24
AT_SEND_TIME = 32
assert HEADER.size == HEADER_BYTES

BLOCK_LENGTH = struct.Struct("<H")
BLOCK_LENGTH_BYTES = 2
PAYLOAD_BYTES_MAX = 0xFFFF  # over TCP; the field has 16 bits
MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX - BLOCK_LENGTH_BYTES
DATAGRAM_PAYLOAD_BYTES = 1_432  # what an Ethernet frame of 1,500 leaves behind IPv4, UDP and the header

REQUEST_HEADER = struct.Struct("<BBHIII")
REQUEST_HEADER_BYTES = 16
REQUEST_RANGE = struct.Struct("<qq")
REQUEST_RANGE_BYTES = 16
assert REQUEST_HEADER.size == REQUEST_HEADER_BYTES
assert REQUEST_RANGE.size == REQUEST_RANGE_BYTES

REQUEST_MESSAGES_MAX = 1_000  # per UDP request; the exchange ignores a request for more
REQUEST_RANGES_MAX = REQUEST_MESSAGES_MAX  # so many ranges of one message each are the most that make sense
REQUESTS_AT_ONCE_MAX = 64  # further messages are asked for when these have come

IDENTITY_CHANNEL_SHIFT = 16  # identity_1 is the protocol id in 16 bits, the channel id above it
TRANSPORT_STATE_SIZE = 48  # int64 words of transport_kernels' memory
_U16_MAX = 0xFFFF
_U32_MAX = 0xFFFFFFFF


class SegmentError(SourceError):
    """A segment or a request breaks the framing; none of it is used."""

    def __init__(self, what: str, found: object, allowed: object, offset: int) -> None:
        self.field = what
        self.found = found
        self.allowed = allowed
        self.offset = offset
        super().__init__(f"IEX-TP {what} at byte {offset} must be {allowed}, was {found}")


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Which stream of the exchange, on which day. With a sequence number it names one message."""

    protocol_id: int
    channel_id: int
    session_id: int

    def __post_init__(self) -> None:
        for name, limit in (("protocol_id", _U16_MAX), ("channel_id", _U32_MAX), ("session_id", _U32_MAX)):
            if not 0 <= getattr(self, name) <= limit:
                raise ConfigError(f"{name} must be 0 to {limit}, was {getattr(self, name)}")

    @classmethod
    def from_words(cls, identity_0: int, identity_1: int) -> StreamIdentity:
        """Return the identity that a packet descriptor carries as two integers."""
        channel_id = identity_1 >> IDENTITY_CHANNEL_SHIFT
        return cls(identity_1 & _U16_MAX, channel_id, identity_0)

    @property
    def words(self) -> tuple[int, int]:
        return self.session_id, self.protocol_id | (self.channel_id << IDENTITY_CHANNEL_SHIFT)


@dataclass(frozen=True, slots=True)
class Segment:
    """What one datagram, or one piece of a TCP answer, carries."""

    identity: StreamIdentity
    sequence: int
    stream_offset: int
    send_time_ns: int
    messages: tuple[bytes, ...] = ()

    @property
    def is_heartbeat(self) -> bool:
        return not self.messages

    @property
    def payload_bytes(self) -> int:
        return sum(BLOCK_LENGTH_BYTES + len(message) for message in self.messages)

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.messages)

    @property
    def next_stream_offset(self) -> int:
        return self.stream_offset + self.payload_bytes


class RequestType(enum.IntEnum):
    MESSAGES = 1  # ranges of sequence numbers: what DEEP and TOPS serve
    BYTES = 2  # ranges of stream offsets


@dataclass(frozen=True, slots=True)
class GapRequest:
    """A client's wish for messages (or bytes) again; without ranges a test of the way to the server."""

    identity: StreamIdentity
    ranges: tuple[tuple[int, int], ...] = ()
    request_type: RequestType = RequestType.MESSAGES

    @property
    def is_test(self) -> bool:
        return not self.ranges


def encode_segment(segment: Segment) -> bytes:
    """Return the segment's bytes. Raises ConfigError if it would not be a legal one."""
    if not FIRST_SEQUENCE <= segment.sequence <= SEQUENCE_LIMIT - len(segment.messages):
        allowed = f"{FIRST_SEQUENCE} to {SEQUENCE_LIMIT - len(segment.messages)}"
        raise ConfigError(f"sequence must be {allowed}, was {segment.sequence}")
    payload_bytes = segment.payload_bytes
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise ConfigError(f"payload must be at most {PAYLOAD_BYTES_MAX} bytes, was {payload_bytes}")
    if not 0 <= segment.stream_offset <= SEQUENCE_LIMIT - payload_bytes:
        allowed = f"0 to {SEQUENCE_LIMIT - payload_bytes}"
        raise ConfigError(f"stream_offset must be {allowed}, was {segment.stream_offset}")
    pieces = [
        HEADER.pack(
            VERSION,
            0,
            segment.identity.protocol_id,
            segment.identity.channel_id,
            segment.identity.session_id,
            payload_bytes,
            len(segment.messages),
            segment.stream_offset,
            segment.sequence,
            segment.send_time_ns,
        )
    ]
    for message in segment.messages:
        pieces += (BLOCK_LENGTH.pack(len(message)), message)
    return b"".join(pieces)


def decode_segment(data: bytes) -> Segment:
    """Return the segment in `data`. Raises SegmentError unless every byte of it is accounted for."""
    segment, end = _decode_segment_at(data, 0)
    if end != len(data):
        allowed = f"{len(data) - HEADER_BYTES}, the bytes behind the header"
        raise SegmentError("payload length", end - HEADER_BYTES, allowed, AT_PAYLOAD_BYTES)
    return segment


def segment_bytes(data: bytes | bytearray, begin: int = 0) -> int | None:
    """Return how long the segment at `begin` will be, or None while its header is not complete (TCP)."""
    if len(data) - begin < HEADER_BYTES:
        return None
    (payload_bytes,) = BLOCK_LENGTH.unpack_from(data, begin + AT_PAYLOAD_BYTES)
    return HEADER_BYTES + int(payload_bytes)


def cut_segments(
    identity: StreamIdentity,
    sequence: int,
    stream_offset: int,
    send_time_ns: int,
    messages: Iterable[bytes],
    payload_bytes_max: int = DATAGRAM_PAYLOAD_BYTES,
) -> Iterator[Segment]:
    """Yield segments that carry `messages`, as many in each as fit; a message longer than that goes alone."""
    if not 1 <= payload_bytes_max <= PAYLOAD_BYTES_MAX:
        raise ConfigError(f"payload_bytes_max must be 1 to {PAYLOAD_BYTES_MAX}, was {payload_bytes_max}")
    held: list[bytes] = []
    held_bytes = 0
    for message in messages:
        block_bytes = BLOCK_LENGTH_BYTES + len(message)
        is_full = held_bytes + block_bytes > payload_bytes_max or len(held) == _U16_MAX
        if held and is_full:
            yield Segment(identity, sequence, stream_offset, send_time_ns, tuple(held))
            sequence += len(held)
            stream_offset += held_bytes
            held, held_bytes = [], 0
        held.append(message)
        held_bytes += block_bytes
    if held:
        yield Segment(identity, sequence, stream_offset, send_time_ns, tuple(held))


def encode_request(request: GapRequest) -> bytes:
    """Return the request's bytes. Raises ConfigError if its ranges are not ascending or overlap."""
    fault = find_range_fault(request.ranges, request.request_type)
    if fault is not None:
        raise ConfigError(fault)
    header = REQUEST_HEADER.pack(
        VERSION,
        request.request_type,
        request.identity.protocol_id,
        request.identity.channel_id,
        request.identity.session_id,
        len(request.ranges),
    )
    return header + b"".join(REQUEST_RANGE.pack(first, last) for first, last in request.ranges)


def decode_request(data: bytes) -> GapRequest:
    """Return the request in `data`. Raises SegmentError unless every byte of it is accounted for."""
    if len(data) < REQUEST_HEADER_BYTES:
        raise SegmentError("request", f"{len(data)} bytes", f"{REQUEST_HEADER_BYTES} bytes or more", 0)
    version, kind, protocol_id, channel_id, session_id, count = REQUEST_HEADER.unpack_from(data)
    if version != VERSION:
        raise SegmentError("version", version, VERSION, 0)
    if kind not in tuple(RequestType):
        raise SegmentError("request type", kind, "1 (messages) or 2 (bytes)", 1)
    if count > REQUEST_RANGES_MAX:
        raise SegmentError("range count", count, f"at most {REQUEST_RANGES_MAX}", 12)
    if len(data) != REQUEST_HEADER_BYTES + count * REQUEST_RANGE_BYTES:
        allowed = f"{REQUEST_HEADER_BYTES + count * REQUEST_RANGE_BYTES} bytes for {count} ranges"
        raise SegmentError("request", f"{len(data)} bytes", allowed, 0)
    ranges = tuple(
        (int(first), int(last)) for first, last in REQUEST_RANGE.iter_unpack(data[REQUEST_HEADER_BYTES:])
    )
    fault = find_range_fault(ranges, RequestType(kind))
    if fault is not None:
        raise SegmentError("ranges", ranges, f"ascending and apart ({fault})", REQUEST_HEADER_BYTES)
    identity = StreamIdentity(protocol_id, channel_id, session_id)
    return GapRequest(identity, ranges, RequestType(kind))


def request_bytes(data: bytes | bytearray, begin: int = 0) -> int | None:
    """Return how long the request at `begin` will be, or None while its header is not complete (TCP)."""
    if len(data) - begin < REQUEST_HEADER_BYTES:
        return None
    count = int(REQUEST_HEADER.unpack_from(data, begin)[5])
    return REQUEST_HEADER_BYTES + count * REQUEST_RANGE_BYTES


def find_range_fault(
    ranges: Sequence[tuple[int, int]], request_type: RequestType, lowest: int | None = None
) -> str | None:
    """Return what is wrong with the ranges of a request, or None. They must begin at `lowest` or later."""
    if lowest is None:
        lowest = FIRST_SEQUENCE if request_type is RequestType.MESSAGES else 0
    for index, (first, last) in enumerate(ranges):
        if first < lowest:
            return f"range {index} must begin at {lowest} or later, began at {first}"
        if not first <= last < SEQUENCE_LIMIT:
            return f"range {index} must end at {first} to {SEQUENCE_LIMIT - 1}, ended at {last}"
        lowest = last + 1
    return None


def gap_requests(identity_0: int, identity_1: int, first_seq: int, message_count: int) -> list[bytes]:
    """Return the UDP requests for `message_count` messages from `first_seq` on, or for as many as may be
    asked for at once: the first REQUESTS_AT_ONCE_MAX * REQUEST_MESSAGES_MAX of them."""
    if first_seq < FIRST_SEQUENCE or message_count < 1 or first_seq + message_count > SEQUENCE_LIMIT:
        raise ConfigError(
            f"a request must be for 1 or more messages between {FIRST_SEQUENCE} and {SEQUENCE_LIMIT - 1}, "
            f"was for {message_count} from {first_seq}"
        )
    identity = StreamIdentity.from_words(identity_0, identity_1)
    end = first_seq + min(message_count, REQUESTS_AT_ONCE_MAX * REQUEST_MESSAGES_MAX)
    return [
        encode_request(GapRequest(identity, ((begin, min(begin + REQUEST_MESSAGES_MAX, end) - 1),)))
        for begin in range(first_seq, end, REQUEST_MESSAGES_MAX)
    ]


def probe_request(identity: StreamIdentity) -> bytes:
    """Return a request without ranges: the server answers it with one heartbeat."""
    return encode_request(GapRequest(identity))


def _decode_segment_at(data: bytes, begin: int) -> tuple[Segment, int]:
    """Return the segment at `begin` and where it ends."""
    if len(data) - begin < HEADER_BYTES:
        raise SegmentError("segment", f"{len(data) - begin} bytes", f"{HEADER_BYTES} bytes or more", begin)
    version, _, protocol_id, channel_id, session_id, payload_bytes, count, offset, sequence, send_time_ns = (
        HEADER.unpack_from(data, begin)
    )
    if version != VERSION:
        raise SegmentError("version", version, VERSION, begin + AT_VERSION)
    if protocol_id not in PROTOCOLS:
        allowed = " or ".join(f"{number:#06x} ({name})" for number, name in PROTOCOLS.items())
        raise SegmentError("message protocol id", f"{protocol_id:#06x}", allowed, begin + AT_PROTOCOL)
    end = begin + HEADER_BYTES + payload_bytes
    if end > len(data):
        allowed = f"at most the {len(data) - begin - HEADER_BYTES} bytes behind the header"
        raise SegmentError("payload length", payload_bytes, allowed, begin + AT_PAYLOAD_BYTES)
    if not FIRST_SEQUENCE <= sequence <= SEQUENCE_LIMIT - count:
        allowed = f"{FIRST_SEQUENCE} to {SEQUENCE_LIMIT - count}"
        raise SegmentError("first message sequence number", sequence, allowed, begin + AT_SEQUENCE)
    if not 0 <= offset <= SEQUENCE_LIMIT - payload_bytes:
        allowed = f"0 to {SEQUENCE_LIMIT - payload_bytes}"
        raise SegmentError("stream offset", offset, allowed, begin + AT_STREAM_OFFSET)
    messages = []
    position = begin + HEADER_BYTES
    for index in range(count):
        start = position + BLOCK_LENGTH_BYTES
        if start > end:
            allowed = f"{index}, the number of blocks in the payload"
            raise SegmentError("message count", count, allowed, begin + AT_COUNT)
        (length,) = BLOCK_LENGTH.unpack_from(data, position)
        if start + length > end:
            allowed = f"at most the {end - start} bytes that are left"
            raise SegmentError(f"length of block {index}", length, allowed, position)
        messages.append(bytes(data[start : start + length]))
        position = start + length
    if position != end:
        allowed = f"{position - begin - HEADER_BYTES}, the bytes of its {count} blocks"
        raise SegmentError("payload length", payload_bytes, allowed, begin + AT_PAYLOAD_BYTES)
    identity = StreamIdentity(protocol_id, channel_id, session_id)
    return Segment(identity, sequence, offset, send_time_ns, tuple(messages)), end
