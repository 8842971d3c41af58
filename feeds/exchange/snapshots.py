"""The exchange's snapshot service: SoupBinTCP in an event loop of its own, beside the thread that sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from feeds.errors import FeedError
from feeds.exchange.config import SnapshotService
from feeds.exchange.lines import find_blocks
from feeds.itch50.messages import PREFIX_BYTES
from feeds.lines.sockets import Endpoint
from feeds.message_store import MessageBlock
from feeds.order_flow.flow import Snapshot as FlowSnapshot
from feeds.snapshot_service import Snapshot, snapshot_server
from feeds.soupbintcp.server import Accounts

_START_SECONDS = 10.0
_STOP_SECONDS = 10.0

# Returns the session's name and its market at this moment; called from the service's thread.
TakeSnapshot = Callable[[], tuple[str, FlowSnapshot]]


class SnapshotThread:
    """Serves snapshots until it is closed. `given_count` and `address` may be read from any thread."""

    def __init__(self, service: SnapshotService, take: TakeSnapshot) -> None:
        self.given_count = 0
        self.address = service.listen
        self._service = service
        self._take = take
        self._error: BaseException | None = None
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(_START_SECONDS):
            raise FeedError(
                f"the snapshot service on {service.listen} must be up within {_START_SECONDS:g} s"
            )
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop listening and close all connections."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise FeedError(f"the snapshot service must stop within {_STOP_SECONDS:g} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that owns us, which raises it
            self._error = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        accounts = Accounts({self._service.username: self._service.password})
        async with snapshot_server(self._give, accounts) as server:
            await server.start(self._service.listen.host, self._service.listen.port)
            self.address = Endpoint(server.host, server.port)
            self._is_ready.set()
            await self._closing.wait()

    def _give(self) -> Snapshot:
        session, market = self._take()
        self.given_count += 1
        offsets = find_blocks(market.data)
        starts = offsets[:-1] + PREFIX_BYTES
        block = MessageBlock(market.data, starts, offsets[1:] - starts)
        return Snapshot(session, market.next_sequence, (block,))
