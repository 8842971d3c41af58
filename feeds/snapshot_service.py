"""A snapshot of the market over SoupBinTCP, in the manner of Nasdaq's GLIMPSE: where a late joiner starts.

A client logs in and receives the state of the market as ordinary exchange messages: the stock directory,
trading states, then every open order as an add. The last message is

    | type "G" | sequence (20): ASCII digits, padded with spaces |

with the number of the first real-time message that the snapshot does not contain. The client continues
from there on the real-time lines. Then the session ends. Each login gets a snapshot of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feeds.errors import ConfigError, LimitError, SnapshotError
from feeds.message_store import SEQUENCE_FIRST, SEQUENCE_MAX, MemoryStore, MessageBlock, MessageNotHeld
from feeds.soupbintcp.client_shell import SoupClient
from feeds.soupbintcp.events import Closed, CloseReason, Event, SequencedData
from feeds.soupbintcp.protocol import SEQUENCE_BYTES, LoginRequest, decode_number
from feeds.soupbintcp.server import Authenticator, Opening
from feeds.soupbintcp.server_shell import ServerPeer, SoupServer
from feeds.soupbintcp.settings import SECOND_NS, Settings
from feeds.soupbintcp.shell import Clock

END_OF_SNAPSHOT_TYPE = ord("G")
END_OF_SNAPSHOT_BYTES = 1 + SEQUENCE_BYTES
_RETAIN_ALL = 1 << 62  # the collector's own limits say when it is too much


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a session just before real-time message `next_sequence`."""

    session: str
    next_sequence: int
    blocks: Sequence[MessageBlock]

    def __post_init__(self) -> None:
        if not SEQUENCE_FIRST <= self.next_sequence <= SEQUENCE_MAX:
            raise ConfigError(
                f"next_sequence must be {SEQUENCE_FIRST} to {SEQUENCE_MAX}, was {self.next_sequence}"
            )

    @property
    def message_count(self) -> int:
        return sum(len(block) for block in self.blocks)


# Called at each login, in the event loop: it must return a state that does not change any more, at once.
SnapshotSource = Callable[[], Snapshot]


def encode_end_of_snapshot(next_sequence: int) -> bytes:
    """Return the message that ends a snapshot."""
    return bytes((END_OF_SNAPSHOT_TYPE,)) + str(next_sequence).encode("ascii").ljust(SEQUENCE_BYTES)


def decode_end_of_snapshot(message: bytes) -> int:
    """Return the number of the next real-time message. Raises SnapshotError."""
    if len(message) != END_OF_SNAPSHOT_BYTES or message[0] != END_OF_SNAPSHOT_TYPE:
        raise SnapshotError(
            f"an end of snapshot must be {chr(END_OF_SNAPSHOT_TYPE)!r} and {SEQUENCE_BYTES} bytes of digits, "
            f"was {message!r}"
        )
    next_sequence = decode_number("sequence of an end of snapshot", message[1:])
    if next_sequence < SEQUENCE_FIRST:
        raise SnapshotError(f"the sequence in an end of snapshot must be 1 or more, was {next_sequence}")
    return next_sequence


class _SnapshotStore:
    """One snapshot as a complete session of its own: its messages, then the end of snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.session = snapshot.session
        self.first_sequence = SEQUENCE_FIRST
        self.is_ended = True
        end = MessageBlock.of((encode_end_of_snapshot(snapshot.next_sequence),))
        self._blocks = [block for block in snapshot.blocks if len(block)] + [end]
        counts = np.fromiter((len(block) for block in self._blocks), np.int64, len(self._blocks))
        self._ends = np.cumsum(counts)
        self.next_sequence = SEQUENCE_FIRST + int(self._ends[-1])

    def read(self, sequence: int, count_limit: int) -> MessageBlock:
        index = sequence - SEQUENCE_FIRST
        if not 0 <= index < self._ends[-1]:
            raise MessageNotHeld(self.session, sequence, self.first_sequence, self.next_sequence)
        found = int(np.searchsorted(self._ends, index, side="right"))
        block = self._blocks[found]
        begin = index - (int(self._ends[found]) - len(block))
        return block.part(begin, min(begin + count_limit, len(block)))


class _SnapshotDirectory:
    def __init__(self, source: SnapshotSource, message_count_max: int) -> None:
        self._source = source
        self._message_count_max = message_count_max

    def open(self, request: LoginRequest) -> Opening | str:
        # The numbers inside a snapshot mean nothing outside it, so there is nothing to resume.
        if request.sequence not in (0, SEQUENCE_FIRST):
            return f"requested sequence of a snapshot must be 0 or 1, was {request.sequence}"
        snapshot = self._source()
        if request.session not in ("", snapshot.session):
            return f"session must be blank or {snapshot.session!r}, was {request.session!r}"
        if snapshot.message_count > self._message_count_max:
            return (
                f"a snapshot must have at most {self._message_count_max} messages (message_count_max), "
                f"was {snapshot.message_count}"
            )
        return Opening(_SnapshotStore(snapshot), SEQUENCE_FIRST)


def snapshot_server(
    source: SnapshotSource,
    authenticator: Authenticator,
    *,
    settings: Settings | None = None,
    connection_count_max: int = 16,
    message_count_max: int = 50_000_000,
    on_event: Callable[[ServerPeer, Event], None] | None = None,
    clock: Clock = time.monotonic_ns,
) -> SoupServer:
    """Return a server, to be started, that gives each client that logs in the snapshot of that moment."""
    return SoupServer(
        authenticator,
        _SnapshotDirectory(source, message_count_max),
        settings=settings,
        connection_count_max=connection_count_max,
        on_event=on_event,
        clock=clock,
    )


class SnapshotCollector:
    """Puts the events of one connection together to a snapshot, within limits.

    Messages are copied: a block that was received keeps all that was received with it, and behind a server
    that sends other things between its messages that would be far more than the limits count.
    """

    def __init__(self, message_count_max: int, message_bytes_max: int) -> None:
        self.next_sequence: int | None = None
        self._kept = MemoryStore("snapshot", retain_bytes=_RETAIN_ALL)
        self._message_count = 0
        self._message_bytes = 0
        self._message_count_max = message_count_max
        self._message_bytes_max = message_bytes_max

    def on_data(self, block: MessageBlock) -> None:
        """Take the next messages; those behind an end of snapshot belong to nothing and are not looked at.

        Raises SnapshotError or LimitError.
        """
        if not len(block) or self.next_sequence is not None:
            return
        # An empty message at the end of a buffer has no first byte to look at.
        is_empty = block.lengths == 0
        first_bytes = block.buffer[np.where(is_empty, 0, block.offsets)] if block.buffer.size else is_empty
        ends = np.flatnonzero((first_bytes == END_OF_SNAPSHOT_TYPE) & ~is_empty)
        state_count = int(ends[0]) if ends.size else len(block)
        self._keep(block.part(0, state_count))
        if ends.size:
            self.next_sequence = decode_end_of_snapshot(block[state_count])

    def finish(self, session: str, closed: Closed | None) -> Snapshot:
        """Return the snapshot. Raises SnapshotError if it is not whole."""
        if self.next_sequence is None:
            why = closed.detail if closed is not None else "the connection is gone"
            raise SnapshotError(
                f"a snapshot must come to its end of snapshot, but after {self._message_count} messages {why}"
            )
        blocks: list[MessageBlock] = []
        sequence = SEQUENCE_FIRST
        while sequence < self._kept.next_sequence:
            blocks.append(self._kept.read(sequence, self._message_count))
            sequence += len(blocks[-1])
        return Snapshot(session, self.next_sequence, tuple(blocks))

    def _keep(self, block: MessageBlock) -> None:
        self._message_count += len(block)
        self._message_bytes += block.message_bytes
        if self._message_count > self._message_count_max:
            raise LimitError(
                f"a snapshot must have at most {self._message_count_max} messages (message_count_max)"
            )
        if self._message_bytes > self._message_bytes_max:
            raise LimitError(
                f"a snapshot must have at most {self._message_bytes_max} bytes (message_bytes_max)"
            )
        self._kept.append_block(block)


async def fetch_snapshot(
    host: str,
    port: int,
    username: str,
    password: str,
    *,
    session: str = "",
    timeout_ns: int = 60 * SECOND_NS,
    message_count_max: int = 50_000_000,
    message_bytes_max: int = 4 << 30,
    settings: Settings | None = None,
    clock: Clock = time.monotonic_ns,
) -> Snapshot:
    """Return the snapshot that a server gives now.

    Raises LoginRefused, SnapshotError, LimitError for more than was bargained for, SoupError, or OSError.
    """
    if timeout_ns <= 0:
        raise ConfigError(f"timeout_ns must be more than 0, was {timeout_ns}")
    request = LoginRequest(username, password, session, SEQUENCE_FIRST)
    collector = SnapshotCollector(message_count_max, message_bytes_max)
    try:
        async with asyncio.timeout(timeout_ns / SECOND_NS):
            client = await SoupClient.connect(host, port, request, settings=settings, clock=clock)
            try:
                if client.accepted.skipped_count:
                    raise SnapshotError(
                        f"a snapshot must begin with #1, was #{client.accepted.next_sequence}"
                    )
                await _collect(client, collector)
                await client.close()
            finally:
                client.abort()  # nothing left to do after a close
    except TimeoutError as error:
        raise SnapshotError(
            f"{host}:{port} must give a snapshot within {timeout_ns / SECOND_NS:g} s (timeout_ns)"
        ) from error
    return collector.finish(client.session, client.closed)


async def _collect(client: SoupClient, collector: SnapshotCollector) -> None:
    """Read to the end of the session, or only to the end of the snapshot where the server stays on."""
    while collector.next_sequence is None:
        event = await client.receive()
        if event is None:
            return
        if isinstance(event, SequencedData):
            collector.on_data(event.block)
        elif isinstance(event, Closed) and event.reason is not CloseReason.END_OF_SESSION:
            raise event.error or SnapshotError(f"the snapshot broke off: {event.detail}")
