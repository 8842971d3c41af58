"""A SoupBinTCP server on asyncio: any number of clients, each reading its session at its own pace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from feeds.errors import ConfigError
from feeds.soupbintcp.events import Closed, CloseReason, Event, LoginAccepted, LoginRejected
from feeds.soupbintcp.protocol import LoginRequest
from feeds.soupbintcp.server import Authenticator, Opening, ServerConnection, SessionDirectory
from feeds.soupbintcp.settings import Settings
from feeds.soupbintcp.shell import Clock, Endpoint

log = logging.getLogger(__name__)

_POLITE_ENDS = frozenset({CloseReason.END_OF_SESSION, CloseReason.LOGGED_OUT, CloseReason.STOPPED})


class ServerPeer(Endpoint):
    """A client, as the server sees it."""

    machine: ServerConnection

    def __init__(self, server: SoupServer, machine: ServerConnection, clock: Clock) -> None:
        super().__init__(machine, clock)
        self._server = server

    @property
    def username(self) -> str:
        return self.machine.username

    @property
    def lag_count(self) -> int:
        """Messages of its session that were not framed for it yet."""
        return self.machine.lag_count

    def send_unsequenced(self, payload: bytes) -> None:
        """Send outside the sequence. Raises IllegalTransition unless the client is logged in."""
        self.settle(self.machine.send_unsequenced(payload, self._clock()))

    def stop(self) -> None:
        """Close this connection."""
        self.settle(self.machine.stop(self._clock()))

    def deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, LoginAccepted):
                log.info(
                    "%s: %r logged in to session %r, from #%d",
                    self.address,
                    event.username,
                    event.session,
                    event.next_sequence,
                )
            elif isinstance(event, LoginRejected):
                log.warning("%s: login of %r rejected: %s", self.address, event.username, event.detail)
            elif isinstance(event, Closed) and event.reason is not CloseReason.LOGIN_REJECTED:
                level = logging.INFO if event.reason in _POLITE_ENDS else logging.WARNING
                log.log(level, "%s: closing, %s: %s", self.address, event.reason.value, event.detail)
            self._server.on_event(self, event)

    def frame_more(self) -> list[Event]:
        return self.machine.on_messages(self._clock())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._server.admit(self):
            self.settle([])
        else:
            self.drop("too many connections")

    def drop(self, detail: str) -> None:
        """Close this connection without waiting for the client."""
        self.settle(self.machine.stop(self._clock(), detail))
        self.settle(self.machine.on_peer_closed(self._clock()))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.release(self)


class SoupServer:
    """Serves stored sessions to clients over TCP.

    `on_event` is told everything that happens, client by client. Call `notify` when a store has grown.

    `connection_count_max` is for clients that are logged in. Connections that are not can be had by anyone,
    so they are counted apart: as many in all, and few from one address. Where there are too many, the oldest
    that has not asked to log in makes room, so that silence keeps nobody out.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        directory: SessionDirectory,
        *,
        settings: Settings | None = None,
        connection_count_max: int = 64,
        on_event: Callable[[ServerPeer, Event], None] | None = None,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        if connection_count_max < 1:
            raise ConfigError(f"connection_count_max must be 1 or more, was {connection_count_max}")
        self.peers: set[ServerPeer] = set()
        self.refused_count = 0  # connections closed for want of room before they asked to log in
        self._unknown: dict[ServerPeer, None] = {}  # those of `peers` that have not logged in, oldest first
        self.host = ""
        self.port = 0
        self._authenticator = authenticator
        self._directory = _RoomCheck(self, directory, connection_count_max)
        self._settings = settings or Settings()
        self._connection_count_max = connection_count_max
        self._on_event = on_event
        self._clock = clock
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int = 0) -> None:
        """Listen. Afterwards `port` is the one that was given, or the one that was free."""
        if self._listener is not None:
            raise ConfigError("a server must be started once")
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._make_peer, host, port)
        self.host, self.port = self._listener.sockets[0].getsockname()[:2]
        log.info("SoupBinTCP server listens on %s:%d", self.host, self.port)

    def notify(self) -> None:
        """Send on what was added to the stores."""
        for peer in tuple(self.peers):
            peer.settle([])

    async def close(self) -> None:
        """Stop listening, close all connections and wait until they are gone, `linger_ns` at the most."""
        if self._listener is not None:
            self._listener.close()
        waiting = [peer.done for peer in self.peers]
        for peer in tuple(self.peers):
            peer.stop()
        if waiting:
            await asyncio.wait(waiting)
        if self._listener is not None:
            await self._listener.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def logged_in_count(self) -> int:
        return len(self.peers) - len(self._unknown)

    def admit(self, peer: ServerPeer) -> bool:
        """Return whether there is room for one more connection, and count it."""
        neighbours = [other for other in self._unknown if other.host == peer.host]
        is_room = len(neighbours) < self._settings.unknown_per_address_max or self._make_room(neighbours)
        if is_room and len(self._unknown) >= self._connection_count_max:
            is_room = self._make_room(list(self._unknown))
        if is_room:
            self.peers.add(peer)
            self._unknown[peer] = None
        else:
            self.refused_count += 1
        return is_room

    def release(self, peer: ServerPeer) -> None:
        self.peers.discard(peer)
        self._unknown.pop(peer, None)

    def on_event(self, peer: ServerPeer, event: Event) -> None:
        if isinstance(event, LoginAccepted):
            self._unknown.pop(peer, None)
        if self._on_event is not None:
            self._on_event(peer, event)

    def _make_room(self, candidates: Sequence[ServerPeer]) -> bool:
        """Drop the oldest of `candidates` that has not asked to log in; return whether there was one."""
        # Those that wait for their rejection stay and take up room: it is what makes guessing slow.
        silent = next((peer for peer in candidates if not peer.machine.has_asked), None)
        if silent is None:
            return False
        self.refused_count += 1
        self.release(silent)
        silent.drop("too many connections that do not log in")
        return True

    def _make_peer(self) -> ServerPeer:
        machine = ServerConnection(self._authenticator, self._directory, self._clock(), self._settings)
        return ServerPeer(self, machine, self._clock)


class _RoomCheck:
    """The directory of a server, for as long as there is room for one client more."""

    def __init__(self, server: SoupServer, directory: SessionDirectory, count_max: int) -> None:
        self._server = server
        self._directory = directory
        self._count_max = count_max

    def open(self, request: LoginRequest) -> Opening | str:
        if self._server.logged_in_count >= self._count_max:
            return f"at most {self._count_max} clients may be logged in (connection_count_max)"
        return self._directory.open(request)
