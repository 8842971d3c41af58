"""What a played capture remembers of itself, so that re-requests are answered in its own protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

from feeds.errors import ConfigError, SourceError
from feeds.exchange_config import ExchangeConfig
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.transport import SegmentError, decode_segment
from feeds.message_store import MemoryStore, MessageBlock
from feeds.moldudp64 import MoldError, PacketKind, RequestServer, decode_downstream


class CaptureHistory(Protocol):
    """Packets that went out, and answers about them."""

    def keep(self, packet: bytes) -> None: ...

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]: ...

    def report(self) -> dict[str, Any]: ...

    def warnings(self) -> list[str]: ...


class MoldHistory:
    """Sessions of a MoldUDP64 capture. What a capture lacks cannot be asked for, and what follows a hole is
    kept as a stretch of its own in place of the one before."""

    def __init__(self, config: ExchangeConfig, now_ns: int) -> None:
        self._server = RequestServer(config.rerequest_limits, now_ns)
        self._retain_bytes = config.store_bytes
        self._stores: dict[str, MemoryStore] = {}
        self._hole_count = 0

    def keep(self, packet: bytes) -> None:
        try:
            decoded = decode_downstream(packet)
        except MoldError:
            return  # sent as it is, and counted by whoever parses it
        if decoded.kind is not PacketKind.DATA:
            return
        session = decoded.session.decode("latin-1").rstrip()
        store = self._stores.get(session)
        if store is None or decoded.sequence > store.next_sequence:
            self._hole_count += store is not None
            store = self._begin(session, decoded.sequence)
        skipped = store.next_sequence - decoded.sequence
        if skipped < len(decoded.messages):
            store.append_block(MessageBlock.of(decoded.messages[skipped:]))

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]:
        packet = self._server.on_request(request, client, now_ns)
        return [] if packet is None else [packet]

    def report(self) -> dict[str, Any]:
        return asdict(self._server.counters)

    def warnings(self) -> list[str]:
        return [f"the capture itself has {self._hole_count} holes"] if self._hole_count else []

    def _begin(self, session: str, sequence: int) -> MemoryStore:
        self._server.remove_session(session)
        store = MemoryStore(session, retain_bytes=self._retain_bytes)
        store.next_sequence = sequence
        self._stores[session] = store
        self._server.add_session(store)
        return store


class IexHistory:
    """The present session of an IEX-TP capture."""

    def __init__(self, config: ExchangeConfig) -> None:
        self._retain_bytes = config.store_bytes
        self._server: GapFillServer | None = None
        self._fault = ""

    def keep(self, packet: bytes) -> None:
        try:
            segment = decode_segment(packet)
        except SegmentError:
            return  # sent as it is, and counted by whoever parses it
        if self._server is None:
            self._server = GapFillServer(
                segment.identity,
                first_sequence=segment.sequence,
                first_stream_offset=segment.stream_offset,
                retain_bytes=self._retain_bytes,
            )
        try:
            self._server.append_segment(segment)
        except SourceError as error:
            self._fault = self._fault or str(error)

    def answer(self, request: bytes, client: object, now_ns: int) -> list[bytes]:  # noqa: ARG002 - IEX serves all alike
        return [] if self._server is None else self._server.on_datagram(request, now_ns)

    def report(self) -> dict[str, Any]:
        return {} if self._server is None else asdict(self._server.counters)

    def warnings(self) -> list[str]:
        return [f"re-requests are answered up to a hole in the capture: {self._fault}"] if self._fault else []


def history_of(format_name: str, config: ExchangeConfig, now_ns: int) -> CaptureHistory:
    """Return the history in the protocol of a format."""
    if format_name == "itch50":
        return MoldHistory(config, now_ns)
    if format_name == "iex":
        return IexHistory(config)
    raise ConfigError(f"captures can be played in the formats itch50 and iex, was {format_name!r}")
