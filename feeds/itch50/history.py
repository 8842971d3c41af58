"""What a played MoldUDP64 capture remembers of itself, so that re-requests are answered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from feeds.message_store import MemoryStore, MessageBlock
from feeds.moldudp64 import MoldError, PacketKind, RequestLimits, RequestServer, decode_downstream


class MoldHistory:
    """Sessions of a MoldUDP64 capture. What a capture lacks cannot be asked for, and what follows a hole is
    kept as a stretch of its own in place of the one before."""

    def __init__(self, limits: RequestLimits, retain_bytes: int, now_ns: int) -> None:
        self._server = RequestServer(limits, now_ns)
        self._retain_bytes = retain_bytes
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


def new_history(limits: RequestLimits, retain_bytes: int, now_ns: int) -> MoldHistory:
    return MoldHistory(limits, retain_bytes, now_ns)
