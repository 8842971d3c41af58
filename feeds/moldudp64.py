"""MoldUDP64 1.00: messages in UDP packets, numbered, and how to ask for lost ones again.

    downstream   | session (10) | sequence u64 | count u16 | count x ( length u16 | message ) |
    request      | session (10) | sequence u64 | count u16 |

Big-endian. `sequence` is the number of the first message in the packet; message i has `sequence + i`. A
packet with count 0 is a heartbeat, with count 0xFFFF the end of the session; both name the next number.
The answer to a request is a downstream packet that may carry fewer messages than were asked for.

This module is plain and strict on purpose: it is what the compiled receive path is tested against.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from feeds.errors import ConfigError, SourceError
from feeds.message_store import SEQUENCE_FIRST, SEQUENCE_MAX, MessageStore
from feeds.request_limits import RateLimits, RequestGate, Verdict

SESSION_BYTES = 10
HEADER = struct.Struct(">10sQH")
HEADER_BYTES = 20
BLOCK_LENGTH = struct.Struct(">H")
BLOCK_LENGTH_BYTES = 2
COUNT_HEARTBEAT = 0
COUNT_END_OF_SESSION = 0xFFFF
MESSAGE_COUNT_MAX = 0xFFFE
assert HEADER.size == HEADER_BYTES
assert BLOCK_LENGTH.size == BLOCK_LENGTH_BYTES

# What one UDP packet over IPv4 can carry, and what fits an Ethernet frame with room for tunnels.
UDP_PAYLOAD_BYTES_MAX = 65_507
PACKET_BYTES_DEFAULT = 1_400


class MoldError(SourceError):
    """A packet breaks the framing; none of it is used."""

    def __init__(self, what: str, found: object, allowed: object, offset: int) -> None:
        self.field = what
        self.found = found
        self.allowed = allowed
        self.offset = offset
        super().__init__(f"MoldUDP64 {what} at byte {offset} must be {allowed}, was {found}")


class PacketKind(enum.Enum):
    """What the count says."""

    DATA = "data"
    HEARTBEAT = "heartbeat"
    END_OF_SESSION = "end of session"


@dataclass(frozen=True, slots=True)
class DownstreamPacket:
    """A packet from the exchange. `session` is the ten bytes as they are on the wire."""

    session: bytes
    sequence: int
    kind: PacketKind
    messages: tuple[bytes, ...] = ()

    @property
    def next_sequence(self) -> int:
        """The number of the first message after this packet."""
        return self.sequence + len(self.messages)


@dataclass(frozen=True, slots=True)
class RequestPacket:
    """A client's wish for messages `sequence` to `sequence + count - 1`."""

    session: bytes
    sequence: int
    count: int


def session_bytes(name: str) -> bytes:
    """Return a session's name as it stands on the wire: ten bytes, padded with spaces on the right."""
    if len(name) > SESSION_BYTES or not all(" " <= letter <= "~" for letter in name):
        raise ConfigError(f"session must be at most {SESSION_BYTES} printable ASCII characters, was {name!r}")
    return name.encode("ascii").ljust(SESSION_BYTES)


def decode_downstream(data: bytes) -> DownstreamPacket:
    """Return the packet in `data`. Raises MoldError unless every byte of it is accounted for."""
    session, sequence, count = _decode_header(data)
    if count in (COUNT_HEARTBEAT, COUNT_END_OF_SESSION):
        kind = PacketKind.HEARTBEAT if count == COUNT_HEARTBEAT else PacketKind.END_OF_SESSION
        _check_end(data, HEADER_BYTES)
        return DownstreamPacket(session, sequence, kind)
    if not SEQUENCE_FIRST <= sequence <= SEQUENCE_MAX - count:
        raise MoldError("sequence", sequence, f"{SEQUENCE_FIRST} to {SEQUENCE_MAX - count}", SESSION_BYTES)
    messages = []
    position = HEADER_BYTES
    for index in range(count):
        begin = position + BLOCK_LENGTH_BYTES
        if begin > len(data):
            raise MoldError("message count", count, f"{index}, the number of blocks in the packet", 18)
        (length,) = BLOCK_LENGTH.unpack_from(data, position)
        if begin + length > len(data):
            allowed = f"at most the {len(data) - begin} bytes that are left"
            raise MoldError(f"length of block {index}", length, allowed, position)
        messages.append(bytes(data[begin : begin + length]))
        position = begin + length
    _check_end(data, position)
    return DownstreamPacket(session, sequence, PacketKind.DATA, tuple(messages))


def encode_downstream(session: bytes, sequence: int, messages: Iterable[bytes]) -> bytes:
    """Return a packet with `messages`, at least one. Raises ConfigError if it would not be a legal one."""
    items = list(messages)
    if not 1 <= len(items) <= MESSAGE_COUNT_MAX:
        raise ConfigError(f"a packet must carry 1 to {MESSAGE_COUNT_MAX} messages, was {len(items)}")
    if not SEQUENCE_FIRST <= sequence <= SEQUENCE_MAX - len(items):
        raise ConfigError(f"sequence must be {SEQUENCE_FIRST} to {SEQUENCE_MAX - len(items)}, was {sequence}")
    blocks = b"".join(BLOCK_LENGTH.pack(_checked_length(item)) + item for item in items)
    packet_bytes = HEADER_BYTES + len(blocks)
    if packet_bytes > UDP_PAYLOAD_BYTES_MAX:
        raise ConfigError(f"a packet must be at most {UDP_PAYLOAD_BYTES_MAX} bytes, was {packet_bytes}")
    return _encode_header(session, sequence, len(items)) + blocks


def encode_heartbeat(session: bytes, next_sequence: int) -> bytes:
    """Return the packet that says: nothing new, the next number is still this one."""
    return _encode_header(session, next_sequence, COUNT_HEARTBEAT)


def encode_end_of_session(session: bytes, next_sequence: int) -> bytes:
    """Return the packet that says: no number from this one on will ever be used."""
    return _encode_header(session, next_sequence, COUNT_END_OF_SESSION)


def decode_request(data: bytes) -> RequestPacket:
    """Return the request in `data`. Raises MoldError."""
    session, sequence, count = _decode_header(data)
    _check_end(data, HEADER_BYTES)
    if count == 0:
        raise MoldError("requested count", count, f"1 to {COUNT_END_OF_SESSION}", 18)
    return RequestPacket(session, sequence, count)


def encode_request(request: RequestPacket) -> bytes:
    """Return the packet that asks for `request`."""
    if not 1 <= request.count <= MESSAGE_COUNT_MAX:
        raise ConfigError(f"requested count must be 1 to {MESSAGE_COUNT_MAX}, was {request.count}")
    return _encode_header(request.session, request.sequence, request.count)


@dataclass(slots=True)
class PacketBuilder:
    """Cuts a run of messages into packets, each as full as the two limits allow."""

    session: bytes
    next_sequence: int = SEQUENCE_FIRST
    packet_bytes_max: int = PACKET_BYTES_DEFAULT
    message_count_max: int = MESSAGE_COUNT_MAX
    _messages: list[bytes] = field(default_factory=list, init=False, repr=False)
    _packet_bytes: int = field(default=HEADER_BYTES, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_session(self.session)
        smallest = HEADER_BYTES + BLOCK_LENGTH_BYTES
        if not smallest <= self.packet_bytes_max <= UDP_PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"packet_bytes_max must be {smallest} to {UDP_PAYLOAD_BYTES_MAX}, was {self.packet_bytes_max}"
            )
        if not 1 <= self.message_count_max <= MESSAGE_COUNT_MAX:
            raise ConfigError(
                f"message_count_max must be 1 to {MESSAGE_COUNT_MAX}, was {self.message_count_max}"
            )

    @property
    def pending_count(self) -> int:
        """Messages that wait for the packet to be full or flushed; they are not in `next_sequence` yet."""
        return len(self._messages)

    def add(self, message: bytes) -> bytes | None:
        """Take one message; return the packet before it if that had no room for it."""
        block_bytes = BLOCK_LENGTH_BYTES + len(message)
        if HEADER_BYTES + block_bytes > self.packet_bytes_max:
            allowed = self.packet_bytes_max - HEADER_BYTES - BLOCK_LENGTH_BYTES
            raise ConfigError(
                f"a message must be at most {allowed} bytes to fit a packet, was {len(message)}"
            )
        is_full = (
            len(self._messages) >= self.message_count_max
            or self._packet_bytes + block_bytes > self.packet_bytes_max
        )
        finished = self.flush() if is_full else None
        self._messages.append(message)
        self._packet_bytes += block_bytes
        return finished

    def flush(self) -> bytes | None:
        """Return what waits as a packet, or None if nothing does."""
        if not self._messages:
            return None
        packet = encode_downstream(self.session, self.next_sequence, self._messages)
        self.next_sequence += len(self._messages)
        self._messages.clear()
        self._packet_bytes = HEADER_BYTES
        return packet

    def cut(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the packets for all of `messages`, the last one flushed."""
        for message in messages:
            if (packet := self.add(message)) is not None:
                yield packet
        if (packet := self.flush()) is not None:
            yield packet


@dataclass(frozen=True, slots=True)
class RequestLimits(RateLimits):
    """What a re-request server grants. Exchanges publish limits like these, and drop what exceeds them."""

    message_count_max: int = 1_000
    packet_bytes_max: int = PACKET_BYTES_DEFAULT

    def __post_init__(self) -> None:
        RateLimits.__post_init__(self)  # super() does not know a class that was made anew for its slots
        if not 1 <= self.message_count_max <= MESSAGE_COUNT_MAX:
            raise ConfigError(
                f"message_count_max must be 1 to {MESSAGE_COUNT_MAX}, was {self.message_count_max}"
            )
        if not HEADER_BYTES + BLOCK_LENGTH_BYTES <= self.packet_bytes_max <= UDP_PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"packet_bytes_max must be {HEADER_BYTES + BLOCK_LENGTH_BYTES} to {UDP_PAYLOAD_BYTES_MAX}, "
                f"was {self.packet_bytes_max}"
            )


@dataclass(slots=True)
class RequestCounters:
    """What became of the requests. Every request is in exactly one of the first seven."""

    answered: int = 0
    malformed: int = 0
    client_limited: int = 0
    all_limited: int = 0
    unknown_session: int = 0
    out_of_range: int = 0
    too_long: int = 0  # no UDP packet can carry the message
    messages_sent: int = 0
    bytes_sent: int = 0


class RequestServer:
    """Answers re-requests from the stores of sessions; what it cannot answer it ignores and counts.

    UDP senders can be forged, so an answer is one packet for one request.
    """

    def __init__(self, limits: RequestLimits, now_ns: int) -> None:
        self.limits = limits
        self.counters = RequestCounters()
        self._stores: dict[bytes, MessageStore] = {}
        self._gate = RequestGate(limits, now_ns)

    def add_session(self, store: MessageStore) -> None:
        """Answer requests for this session from now on."""
        session = session_bytes(store.session)
        known = self._stores.setdefault(session, store)
        if known is not store:
            raise ConfigError(f"session must have a name of its own, {store.session!r} is another one's")

    def remove_session(self, session: str) -> None:
        """Stop answering for this session."""
        self._stores.pop(session_bytes(session), None)

    def on_request(self, data: bytes, client: Hashable, now_ns: int) -> bytes | None:
        """Return the answer to one packet from `client`, or None where the answer is silence."""
        counters = self.counters
        # Limits come first: a flood of nonsense must not be cheaper for its sender than for us.
        verdict = self._gate.take(client, now_ns)
        if verdict is not Verdict.GRANTED:
            counters.client_limited += verdict is Verdict.CLIENT_LIMITED
            counters.all_limited += verdict is Verdict.ALL_LIMITED
            return None
        try:
            request = decode_request(data)
        except MoldError:
            counters.malformed += 1
            return None
        store = self._stores.get(request.session)
        if store is None:
            counters.unknown_session += 1
            return None
        if not store.first_sequence <= request.sequence < store.next_sequence:
            counters.out_of_range += 1
            return None
        messages = self._collect(store, request)
        if not messages:
            counters.too_long += 1
            return None
        answer = encode_downstream(request.session, request.sequence, messages)
        counters.answered += 1
        counters.messages_sent += len(messages)
        counters.bytes_sent += len(answer)
        return answer

    def _collect(self, store: MessageStore, request: RequestPacket) -> list[bytes]:
        """Return the requested messages that fit one packet; the first one if any packet can carry it."""
        wanted = min(request.count, self.limits.message_count_max, store.next_sequence - request.sequence)
        messages: list[bytes] = []
        packet_bytes = HEADER_BYTES
        while len(messages) < wanted:
            for message in store.read(request.sequence + len(messages), wanted - len(messages)):
                packet_bytes += BLOCK_LENGTH_BYTES + len(message)
                # The first may exceed our limit: who needs it could not get it otherwise.
                limit_bytes = self.limits.packet_bytes_max if messages else UDP_PAYLOAD_BYTES_MAX
                if packet_bytes > limit_bytes:
                    return messages
                messages.append(message)
        return messages


def _decode_header(data: bytes) -> tuple[bytes, int, int]:
    if len(data) < HEADER_BYTES:
        raise MoldError("packet", f"{len(data)} bytes", f"at least the {HEADER_BYTES} of a header", 0)
    session, sequence, count = HEADER.unpack_from(data)
    return session, sequence, count


def _check_end(data: bytes, end: int) -> None:
    if len(data) > end:
        raise MoldError("packet", f"{len(data)} bytes long", f"over after its {end} bytes", end)


def _encode_header(session: bytes, sequence: int, count: int) -> bytes:
    _check_session(session)
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ConfigError(f"sequence must be 0 to {SEQUENCE_MAX}, was {sequence}")
    return HEADER.pack(session, sequence, count)


def _check_session(session: bytes) -> None:
    if len(session) != SESSION_BYTES:
        raise ConfigError(f"session must be {SESSION_BYTES} bytes, was {session!r}")


def _checked_length(message: bytes) -> int:
    if len(message) > UDP_PAYLOAD_BYTES_MAX:
        raise ConfigError(f"a message must be at most {UDP_PAYLOAD_BYTES_MAX} bytes, was {len(message)}")
    return len(message)
