"""Exchanges for the simulation: real packets and real answers of each line protocol, and numbered messages.

Every message carries a number that was never used before (an ITCH order reference, an IEX trade id), so that
what comes out can be compared with what went in, message by message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from feeds import moldudp64, wire
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.transport import Segment, StreamIdentity, encode_segment
from feeds.message_store import MemoryStore
from feeds.wire import Schema

DEEP_PROTOCOL = 0x8004


class Venue(Protocol):
    """One exchange's side of the line protocol, one session after another."""

    format_name: str
    is_restart: bool  # the session restarted at 1 under the name of the one before

    def begin_session(self, index: int) -> None:
        """Start session `index`; it may be a restart at 1 under the same name where the protocol has that."""

    def message(self, number: int) -> bytes: ...

    def publish(self, messages: Sequence[bytes]) -> None:
        """Make the messages known to the re-request server."""

    def data(self, first_seq: int, messages: Sequence[bytes], now_ns: int) -> bytes: ...

    def heartbeat(self, next_seq: int, now_ns: int) -> bytes: ...

    def end(self, next_seq: int) -> bytes | None:
        """Return the packet that ends the session, None where the protocol has none."""

    def answer(self, request: bytes, now_ns: int) -> list[bytes]: ...

    def numbers(self, frames: wire.FrameArray) -> list[int]:
        """Return the numbers that the frames' messages carry."""


class ItchVenue:
    """ITCH order deletes over MoldUDP64; each session has a name of its own."""

    format_name = "itch50"
    is_restart = False

    def __init__(self) -> None:
        limits = moldudp64.RequestLimits(client_requests_per_second=2_000, client_requests_burst=500)
        self._server = moldudp64.RequestServer(limits, now_ns=0)

    def begin_session(self, index: int) -> None:
        name = f"SIM{index:07d}"
        self._session = moldudp64.session_bytes(name)
        self._store = MemoryStore(name)
        self._server.add_session(self._store)

    def message(self, number: int) -> bytes:
        return struct.pack(">cHHHIQ", b"D", 1, 0, 0, number & 0xFFFFFFFF, number)

    def publish(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            self._store.append(message)

    def data(self, first_seq: int, messages: Sequence[bytes], now_ns: int) -> bytes:
        return moldudp64.encode_downstream(self._session, first_seq, messages)

    def heartbeat(self, next_seq: int, now_ns: int) -> bytes:
        return moldudp64.encode_heartbeat(self._session, next_seq)

    def end(self, next_seq: int) -> bytes | None:
        return moldudp64.encode_end_of_session(self._session, next_seq)

    def answer(self, request: bytes, now_ns: int) -> list[bytes]:
        answer = self._server.on_request(request, "client", now_ns)
        return [] if answer is None else [answer]

    def numbers(self, frames: wire.FrameArray) -> list[int]:
        deletes = wire.view(frames, Schema.ORDER_DELETE)
        assert (deletes["schema_id"] == Schema.ORDER_DELETE).all()
        return [int(number) for number in deletes["order_id"]]


class IexVenue:
    """DEEP trades over IEX-TP; every second session restarts at 1 under the id of the one before."""

    format_name = "iex"

    def __init__(self) -> None:
        self.is_restart = False
        self._sent_ns = 0
        self._server: GapFillServer | None = None

    def begin_session(self, index: int) -> None:
        self.is_restart = index % 2 == 1
        self._identity = StreamIdentity(DEEP_PROTOCOL, 1, (index // 2 + 100) << 16)
        self._server = GapFillServer(self._identity)
        self._offsets = [0]

    def message(self, number: int) -> bytes:
        return struct.pack(
            "<cBq8sIqq", b"T", 0, 1_700_000_000_000_000_000 + number, b"SIM     ", 1, 1, number
        )

    def publish(self, messages: Sequence[bytes]) -> None:
        assert self._server is not None
        self._server.append(messages)
        for message in messages:
            self._offsets.append(self._offsets[-1] + 2 + len(message))

    def data(self, first_seq: int, messages: Sequence[bytes], now_ns: int) -> bytes:
        offset = self._offsets[first_seq - 1]
        return encode_segment(
            Segment(self._identity, first_seq, offset, self._next_send_ns(now_ns), tuple(messages))
        )

    def heartbeat(self, next_seq: int, now_ns: int) -> bytes:
        offset = self._offsets[next_seq - 1]
        return encode_segment(Segment(self._identity, next_seq, offset, self._next_send_ns(now_ns)))

    def _next_send_ns(self, now_ns: int) -> int:
        """Return the publisher's clock, which never gives two packets the same time."""
        self._sent_ns = max(self._sent_ns + 1, now_ns)
        return self._sent_ns

    def end(self, next_seq: int) -> bytes | None:
        return None

    def answer(self, request: bytes, now_ns: int) -> list[bytes]:
        assert self._server is not None
        return self._server.on_datagram(request, now_ns)

    def numbers(self, frames: wire.FrameArray) -> list[int]:
        trades = wire.view(frames, Schema.TRADE)
        assert (trades["schema_id"] == Schema.TRADE).all()
        return [int(number) for number in trades["trade_id"]]


VENUES: dict[str, type[ItchVenue] | type[IexVenue]] = {
    ItchVenue.format_name: ItchVenue,
    IexVenue.format_name: IexVenue,
}
