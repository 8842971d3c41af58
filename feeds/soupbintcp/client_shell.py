"""A SoupBinTCP client on asyncio. While its application is behind, it leaves bytes in the socket."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self

from feeds.errors import ConfigError
from feeds.soupbintcp.client import ClientConnection
from feeds.soupbintcp.events import (
    Closed,
    DebugText,
    Event,
    LoginAccepted,
    LoginRejected,
    SequencedData,
    UnsequencedData,
)
from feeds.soupbintcp.protocol import LoginRequest, RejectReason, SoupError
from feeds.soupbintcp.settings import SECOND_NS, Settings
from feeds.soupbintcp.shell import Clock, Endpoint

EVENT_BYTES = 64  # what an event without data counts for, so that no flood of them is free


class LoginRefused(SoupError):
    """The server turned the login down. The same login will be turned down again."""

    def __init__(self, username: str, reason: RejectReason, detail: str) -> None:
        self.username = username
        self.reason = reason
        super().__init__(f"login of {username!r} was rejected ({reason.value}): {detail}")


class SoupClient(Endpoint):
    """One logged-in connection. `async for event in client` ends after `Closed`.

    Made by `SoupClient.connect`. As a context manager it logs out at the end.
    """

    machine: ClientConnection

    def __init__(self, machine: ClientConnection, queue_bytes_max: int, clock: Clock) -> None:
        super().__init__(machine, clock)
        self._answer: asyncio.Future[LoginAccepted] = asyncio.get_running_loop().create_future()
        self._queue: deque[Event] = deque()
        self._queue_bytes = 0
        self._queue_bytes_max = queue_bytes_max
        self._is_reading = True
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        request: LoginRequest,
        *,
        settings: Settings | None = None,
        queue_bytes_max: int = 4 << 20,
        clock: Clock = time.monotonic_ns,
    ) -> Self:
        """Connect and log in, both within `login_ns`. Raises LoginRefused, another SoupError, or OSError."""
        if queue_bytes_max < 1:
            raise ConfigError(f"queue_bytes_max must be 1 or more, was {queue_bytes_max}")
        settings = settings or Settings()
        client = cls(ClientConnection(request, clock(), settings), queue_bytes_max, clock)
        try:
            async with asyncio.timeout(settings.login_ns / SECOND_NS):
                await asyncio.get_running_loop().create_connection(lambda: client, host, port)
                await client._answer
        except TimeoutError as error:
            client.abort()
            raise SoupError(
                f"{host}:{port} must accept a login within {settings.login_ns / SECOND_NS:g} s (login_ns)"
            ) from error
        except BaseException:
            client.abort()
            raise
        return client

    @property
    def accepted(self) -> LoginAccepted:
        """What the server answered to the login."""
        return self._answer.result()

    @property
    def session(self) -> str:
        return self.machine.session

    @property
    def closed(self) -> Closed | None:
        """Why the connection is over, once it is."""
        return self.machine.close_event

    async def receive(self) -> Event | None:
        """Return the next event, `Closed` as the last, and None after that."""
        while not self._queue:
            if self.machine.close_event is not None:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._queue.popleft()
        self._queue_bytes -= _cost_bytes(event)
        if not self._is_reading and self._queue_bytes * 2 <= self._queue_bytes_max:
            self._resume_reading()
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.receive()
        if event is None:
            raise StopAsyncIteration
        return event

    async def send_unsequenced(self, payload: bytes) -> None:
        """Send a message, waiting while the server takes none. Raises IllegalTransition after the end."""
        await self._writable.wait()
        self.settle(self.machine.send_unsequenced(payload, self._clock()))

    async def send_debug(self, text: str) -> None:
        """Send a line for the people at the other end."""
        await self._writable.wait()
        self.settle(self.machine.send_debug(text, self._clock()))

    async def close(self) -> None:
        """Log out if that was not done, and wait until the connection is gone, `linger_ns` at the most."""
        if self.machine.is_open:
            self.settle(self.machine.logout(self._clock()))
        self._resume_reading()  # what still comes must not stand in the way of the peer's end
        await self.done

    def abort(self) -> None:
        """Drop the connection at once."""
        self.settle(self.machine.stop(self._clock()))
        self.settle(self.machine.on_peer_closed(self._clock()))
        # Nobody will ask for an answer that failed together with what is being raised.
        if not self._answer.cancel() and not self._answer.cancelled():
            self._answer.exception()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.settle(self.machine.login(self._clock()))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writable.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._writable.set()  # who waits to send now learns that it is over

    def deliver(self, events: list[Event]) -> None:
        for event in events:
            if not self._answer.done() and self._take_answer(event):
                continue
            self._queue.append(event)
            self._queue_bytes += _cost_bytes(event)
        self._arrived.set()
        if self._is_reading and self._queue_bytes > self._queue_bytes_max and self._transport is not None:
            self._is_reading = False
            self.machine.pause_reading()
            self._transport.pause_reading()

    def _take_answer(self, event: Event) -> bool:
        """Return whether `event` was the answer to the login, and was passed on as such."""
        if isinstance(event, LoginAccepted):
            self._answer.set_result(event)
        elif isinstance(event, LoginRejected):
            self._answer.set_exception(LoginRefused(event.username, event.reason, event.detail))
        elif isinstance(event, Closed):
            self._answer.set_exception(event.error or SoupError(f"no login: {event.detail}"))
        else:
            return False
        return True

    def _resume_reading(self) -> None:
        if self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = True
        self.machine.resume_reading(self._clock())
        self._transport.resume_reading()
        self.settle([])


def _cost_bytes(event: Event) -> int:
    if isinstance(event, SequencedData):
        # A block keeps the whole buffer that it arrived in, and 16 bytes for the place of each message.
        return EVENT_BYTES + event.block.buffer.size + 16 * len(event.block)
    if isinstance(event, UnsequencedData):
        return EVENT_BYTES + len(event.payload)
    if isinstance(event, DebugText):
        return EVENT_BYTES + len(event.text)
    return EVENT_BYTES
