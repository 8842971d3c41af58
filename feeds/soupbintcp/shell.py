"""One socket around one SoupBinTCP machine: receive, call, send, and keep the clock.

Nothing is decided here that the machine could decide. No more is framed than the socket takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from feeds.soupbintcp.connection import Connection, State
from feeds.soupbintcp.events import Event
from feeds.soupbintcp.settings import SECOND_NS

Clock = Callable[[], int]

WRITE_BUFFER_BYTES = 1 << 18
# One connection writes this much before the others have their turn.
TURN_BYTES = 1 << 20


class Endpoint(asyncio.Protocol):
    """One socket and one machine."""

    def __init__(self, machine: Connection, clock: Clock) -> None:
        self.machine = machine
        self.address = "(not connected)"
        self.host = ""
        self.done = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self._is_shut = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    # For subclasses.

    def deliver(self, events: list[Event]) -> None:
        raise NotImplementedError

    def frame_more(self) -> list[Event]:
        return []

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0] if isinstance(peer, tuple) else peer)
        self.address = f"{self.host}:{peer[1]}" if isinstance(peer, tuple) else self.host

    def data_received(self, data: bytes) -> None:
        self.settle(self.machine.on_bytes(data, self._clock()))

    def eof_received(self) -> bool:
        self.settle(self.machine.on_peer_closed(self._clock()))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f"the connection broke: {exc}" if exc else ""
        self.settle(self.machine.on_peer_closed(self._clock(), detail))
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_result(None)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.settle([])

    # The step after everything that happens.

    def settle(self, events: list[Event]) -> None:
        """Pass events on, send what is to be sent, and set the clock for what is due next."""
        if events:
            self.deliver(events)
        transport = self._transport
        if transport is None:
            return
        self._write(transport)
        if self.machine.state is State.CLOSED:
            transport.abort()
        elif self.machine.is_drained and not self._is_shut:
            self._is_shut = True
            if transport.can_write_eof() and not transport.is_closing():
                transport.write_eof()
        self._set_timer()

    def _write(self, transport: asyncio.Transport) -> None:
        turn_bytes = 0
        while self._is_writable and not transport.is_closing():
            if turn_bytes >= TURN_BYTES:
                asyncio.get_running_loop().call_soon(self.settle, [])
                return
            events = self.frame_more()
            if events:
                self.deliver(events)
            data = self.machine.take_output(self._clock())
            if not data:
                return
            transport.write(data)
            turn_bytes += len(data)

    def _set_timer(self) -> None:
        deadline_ns = self.machine.next_deadline_ns
        if deadline_ns is None or (self._timer is not None and self._timer_ns <= deadline_ns):
            return  # a timer that fires early finds nothing to do and sets the next one
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ns - self._clock(), 0) / SECOND_NS
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)
        self._timer_ns = deadline_ns

    def _on_timer(self) -> None:
        self._timer = None
        self.settle(self.machine.on_timer(self._clock()))
