"""The exchange's side of gap fill: who may ask for what, and the segments that answer (sans-IO).

Over UDP a request that breaks a rule is ignored; over TCP it ends the connection. Both answer with ordinary
segments. `GapFillServer` holds the current session; feed it what goes out on the lines.

One UDP request may ask for many datagrams and its sender can be forged, so each datagram counts against the
limits of its client and of all. An answer that reaches them is cut short: what is missing is asked for again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from feeds.errors import ConfigError, SourceError
from feeds.iex.continuity import Continuity, Step
from feeds.iex.transport import (
    BLOCK_LENGTH_BYTES,
    DATAGRAM_PAYLOAD_BYTES,
    FIRST_SEQUENCE,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    REQUEST_HEADER_BYTES,
    REQUEST_MESSAGES_MAX,
    REQUEST_RANGE_BYTES,
    REQUEST_RANGES_MAX,
    GapRequest,
    RequestType,
    Segment,
    SegmentError,
    StreamIdentity,
    cut_segments,
    decode_request,
    encode_segment,
    find_range_fault,
    request_bytes,
)
from feeds.message_store import MemoryStore, MessageBlock
from feeds.request_limits import RateLimits, RequestGate, Verdict

_INDEX_STRIDE = 256  # messages between two stream offsets that are remembered
_ASK_WITHIN_NS = 1_000_000_000
_READ_MESSAGES = 2_048  # at once, for one segment over TCP
_REQUEST_BYTES_MAX = REQUEST_HEADER_BYTES + REQUEST_RANGES_MAX * REQUEST_RANGE_BYTES


@dataclass(slots=True)
class GapFillCounters:
    requests: int = 0
    tests: int = 0
    ignored: int = 0  # requests that broke a rule
    client_limited: int = 0  # UDP requests not answered, or not to their end: too much for this client
    all_limited: int = 0  # the same: too much for all clients together
    datagrams: int = 0  # sent over UDP
    messages: int = 0  # sent again
    last_fault: str = ""


class GapFillServer:
    """Answers gap fill requests for one stream's current session, from the position at which it was begun."""

    def __init__(
        self,
        identity: StreamIdentity,
        *,
        first_sequence: int = FIRST_SEQUENCE,
        first_stream_offset: int = 0,
        retain_bytes: int = 256 << 20,
        limits: RateLimits | None = None,
        now_ns: int = 0,
    ) -> None:
        self.counters = GapFillCounters()
        self._gate = RequestGate(limits or RateLimits(), now_ns)
        self._retain_bytes = retain_bytes
        self._begin(identity, first_sequence, first_stream_offset)

    @property
    def next_sequence(self) -> int:
        return self._continuity.next_sequence

    @property
    def next_stream_offset(self) -> int:
        return self._continuity.next_stream_offset

    def append(self, messages: Iterable[bytes]) -> None:
        """Add messages that were just published."""
        items = tuple(messages)
        for message in items:
            if len(message) > MESSAGE_BYTES_MAX:
                raise ConfigError(f"a message must be at most {MESSAGE_BYTES_MAX} bytes, was {len(message)}")
        self.append_segment(Segment(self.identity, self.next_sequence, self.next_stream_offset, 0, items))

    def append_segment(self, segment: Segment) -> None:
        """Add what one segment of the line carries; what was added before is left as it is.

        A stream that begins anew, with a new session id or without, is the current session from then on.
        Raises SourceError when messages are missing before the segment.
        """
        if segment.identity != self.identity:
            self._begin(segment.identity, segment.sequence, segment.stream_offset)
        step = self._continuity.on_segment(segment)
        if step is Step.BEHIND:
            return
        if step is Step.AHEAD:
            raise SourceError(f"segment at sequence {segment.sequence}: messages before it are missing")
        if step is Step.RESTART:
            self._begin(segment.identity, segment.sequence, segment.stream_offset)
            self._continuity.on_segment(segment)
        offset = segment.stream_offset
        for number, message in enumerate(segment.messages, segment.sequence + 1):
            offset += BLOCK_LENGTH_BYTES + len(message)
            if (number - self._first_sequence) % _INDEX_STRIDE == 0:
                self._offsets.append(offset)
        if segment.messages:
            self._store.append_block(MessageBlock.of(segment.messages))

    def on_datagram(self, data: bytes, now_ns: int, client: Hashable = None) -> list[bytes]:
        """Return the datagrams that answer a UDP request, none if it breaks a rule.

        Clients that the caller does not tell apart share the limits of one.
        """
        self.counters.requests += 1
        # Limits come first: a flood of nonsense must not be cheaper for its sender than for us.
        if not self._may_send(client, now_ns):
            return []
        try:
            request = decode_request(data)
        except SegmentError as error:
            return self._ignore(str(error))
        fault = self.find_fault(request)
        if fault is None:
            asked = sum(last - first + 1 for first, last in request.ranges)
            if asked > REQUEST_MESSAGES_MAX:
                fault = f"a UDP request must be for at most {REQUEST_MESSAGES_MAX} messages, was for {asked}"
        if fault is not None:
            return self._ignore(fault)
        if request.is_test:
            self.counters.tests += 1
            self.counters.datagrams += 1
            empty = Segment(self.identity, self.next_sequence, self.next_stream_offset, now_ns)
            return [encode_segment(empty)]
        answer: list[bytes] = []
        for first, last in request.ranges:
            for segment in self.read(first, last, now_ns, DATAGRAM_PAYLOAD_BYTES):
                if answer and not self._may_send(client, now_ns):  # the first was paid for by the request
                    return answer
                answer.append(encode_segment(segment))
                self.counters.datagrams += 1
                self.counters.messages += len(segment.messages)
        return answer

    def find_fault(self, request: GapRequest) -> str | None:
        """Return which rule of both UDP and TCP a request breaks, or None."""
        if request.identity != self.identity:
            return f"identity must be {self.identity}, was {request.identity}"
        if request.request_type is not RequestType.MESSAGES:
            return "request type must be 1: this stream is served by message number only"
        return None

    def read(self, first: int, last: int, now_ns: int, payload_bytes_max: int) -> Iterator[Segment]:
        """Yield segments with those of the messages `first` to `last` that are held."""
        sequence = max(first, self._store.first_sequence)
        while sequence <= last and sequence < self._store.next_sequence:
            block = self._store.read(sequence, min(last - sequence + 1, _READ_MESSAGES))
            offset = self._offset_of(sequence)
            yield from cut_segments(self.identity, sequence, offset, now_ns, block, payload_bytes_max)
            sequence += len(block)

    def connect(self, now_ns: int) -> GapFillConnection:
        """Return the state of a TCP connection that was just accepted."""
        return GapFillConnection(self, now_ns + _ASK_WITHIN_NS)

    def _begin(self, identity: StreamIdentity, first_sequence: int, first_stream_offset: int) -> None:
        self.identity = identity
        self._first_sequence = first_sequence
        self._continuity = Continuity(first_sequence, first_stream_offset, is_begun=True)
        self._store = MemoryStore(f"{identity.session_id:#010x}", retain_bytes=self._retain_bytes)
        self._store.next_sequence = first_sequence
        self._offsets = [first_stream_offset]  # of every message that is a stride from the first

    def _offset_of(self, sequence: int) -> int:
        """Return the stream offset of a held message."""
        stretch = (sequence - self._first_sequence) // _INDEX_STRIDE
        begin = self._first_sequence + stretch * _INDEX_STRIDE
        if begin >= self._store.first_sequence:
            return self._offsets[stretch] + self._block_bytes(begin, sequence)
        # The stretch's beginning is no longer held: count back from its end.
        if stretch + 1 < len(self._offsets):
            end, end_offset = begin + _INDEX_STRIDE, self._offsets[stretch + 1]
        else:
            end, end_offset = self.next_sequence, self.next_stream_offset
        return end_offset - self._block_bytes(sequence, end)

    def _block_bytes(self, begin: int, end: int) -> int:
        total = 0
        while begin < end:
            block = self._store.read(begin, end - begin)
            total += block.message_bytes + BLOCK_LENGTH_BYTES * len(block)
            begin += len(block)
        return total

    def _may_send(self, client: Hashable, now_ns: int) -> bool:
        verdict = self._gate.take(client, now_ns)
        self.counters.client_limited += verdict is Verdict.CLIENT_LIMITED
        self.counters.all_limited += verdict is Verdict.ALL_LIMITED
        return verdict is Verdict.GRANTED

    def _ignore(self, fault: str) -> list[bytes]:
        self.counters.ignored += 1
        self.counters.last_fault = fault
        return []


@dataclass(slots=True)
class GapFillConnection:
    """One TCP client: takes requests, gives segments, and says when the connection is to be closed."""

    server: GapFillServer
    ask_until_ns: int
    close_reason: str = ""
    _held: bytearray = field(default_factory=bytearray)
    _ranges: deque[tuple[int, int]] = field(default_factory=deque)
    _lowest: int = FIRST_SEQUENCE  # ranges ascend across all requests of a connection
    _has_asked: bool = False

    @property
    def is_closed(self) -> bool:
        return bool(self.close_reason)

    def on_bytes(self, data: bytes) -> None:
        """Take what the client sent. A request that breaks a rule closes the connection."""
        if self.is_closed:
            return
        self._held += data
        while not self.is_closed:
            length = request_bytes(self._held)
            if length is not None and length > _REQUEST_BYTES_MAX:
                self._refuse(f"a request must be at most {_REQUEST_BYTES_MAX} bytes, was {length}")
                return
            if length is None or len(self._held) < length:
                return
            piece = bytes(self._held[:length])
            del self._held[:length]
            self._on_request(piece)

    def on_timer(self, now_ns: int) -> None:
        """Close the connection of a client that connected and has asked for nothing."""
        if not self._has_asked and now_ns >= self.ask_until_ns and not self.is_closed:
            self.close_reason = "no request came at once after connecting"

    def take(self, now_ns: int) -> bytes:
        """Return the next piece of the answer; empty when there is none, or the connection is closed."""
        while self._ranges and not self.is_closed:
            first, last = self._ranges[0]
            segment = next(self.server.read(first, last, now_ns, PAYLOAD_BYTES_MAX), None)
            if segment is None:
                is_ahead = last >= self.server.next_sequence
                self.close_reason = "caught up with the live stream" if is_ahead else "no longer held"
                break
            if segment.next_sequence > last:
                self._ranges.popleft()
            else:
                self._ranges[0] = (segment.next_sequence, last)
            self.server.counters.messages += len(segment.messages)
            return encode_segment(segment)
        if self._has_asked and not self._ranges and not self.is_closed:
            self.close_reason = "all ranges were sent"
        return b""

    def _on_request(self, piece: bytes) -> None:
        self.server.counters.requests += 1
        try:
            request = decode_request(piece)
        except SegmentError as error:
            self._refuse(str(error))
            return
        fault = self.server.find_fault(request)
        if fault is None and request.is_test:
            fault = "a request over TCP must have at least one range"
        if fault is None:
            fault = find_range_fault(request.ranges, request.request_type, self._lowest)
        if fault is None and len(self._ranges) + len(request.ranges) > REQUEST_RANGES_MAX:
            fault = f"at most {REQUEST_RANGES_MAX} ranges may wait to be sent"
        if fault is not None:
            self._refuse(fault)
            return
        self._has_asked = True
        self._ranges.extend(request.ranges)
        self._lowest = request.ranges[-1][1] + 1

    def _refuse(self, fault: str) -> None:
        self.server.counters.ignored += 1
        self.server.counters.last_fault = fault
        self.close_reason = f"invalid request: {fault}"
