"""What a played IEX-TP capture remembers of itself, so that gap-fill requests are answered."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

from feeds.errors import SourceError
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.transport import SegmentError, decode_segment
from feeds.request_limits import RateLimits


class IexHistory:
    """The present session of an IEX-TP capture."""

    def __init__(self, limits: RateLimits, retain_bytes: int, now_ns: int) -> None:
        self._limits = limits
        self._retain_bytes = retain_bytes
        self._began_ns = now_ns
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
                limits=self._limits,
                now_ns=self._began_ns,
            )
        try:
            self._server.append_segment(segment)
        except SourceError as error:
            self._fault = self._fault or str(error)

    def answer(self, request: bytes, client: Hashable, now_ns: int) -> list[bytes]:
        return [] if self._server is None else self._server.on_datagram(request, now_ns, client)

    def report(self) -> dict[str, Any]:
        return {} if self._server is None else asdict(self._server.counters)

    def warnings(self) -> list[str]:
        return [f"re-requests are answered up to a hole in the capture: {self._fault}"] if self._fault else []


def new_history(limits: RateLimits, retain_bytes: int, now_ns: int) -> IexHistory:
    return IexHistory(limits, retain_bytes, now_ns)
