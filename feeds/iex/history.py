"""What a played IEX-TP capture remembers of itself, so that gap-fill requests are answered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from feeds.errors import SourceError
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.transport import SegmentError, decode_segment
from feeds.moldudp64 import RequestLimits


class IexHistory:
    """The present session of an IEX-TP capture."""

    def __init__(self, retain_bytes: int) -> None:
        self._retain_bytes = retain_bytes
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


def new_history(limits: RequestLimits, retain_bytes: int, now_ns: int) -> IexHistory:  # noqa: ARG001 - limits are IEX-TP's own
    return IexHistory(retain_bytes)
