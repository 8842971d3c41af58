"""Our SoupBinTCP client and server with each other, over real sockets: volume, back-pressure, shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from feeds.errors import ConfigError, IllegalTransition
from feeds.message_store import MemoryStore, MessageBlock
from feeds.soupbintcp import (
    Accounts,
    ClientConnection,
    Closed,
    CloseReason,
    Event,
    LoginRefused,
    LoginRejected,
    LoginRequest,
    PacketError,
    RejectReason,
    SequencedData,
    ServerPeer,
    Settings,
    SoupClient,
    SoupError,
    SoupServer,
    StoredSessions,
    UnsequencedData,
    shell,
)
from feeds.soupbintcp.protocol import encode_login_request
from feeds.soupbintcp.shell import Clock

PHRASE = "hush-hush"
LOGIN = LoginRequest("trader", PHRASE)
ACCOUNTS = Accounts({"trader": PHRASE})
MILLISECOND = 1_000_000
QUICK_NO = Settings(rejection_delay_ns=MILLISECOND)
# With heartbeats this rare, nothing goes on that is not brought on by the data itself.
QUIET = Settings(heartbeat_ns=60_000 * MILLISECOND, peer_silence_ns=180_000 * MILLISECOND)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main

    asyncio.run(bounded())


def random_block(count: int) -> MessageBlock:
    """Messages of 0 to 99 bytes of noise, one after the other."""
    generator = np.random.default_rng(8841)
    lengths = generator.integers(0, 100, count)
    return MessageBlock(
        generator.integers(0, 256, int(lengths.sum()), np.uint8), np.cumsum(lengths) - lengths, lengths
    )


class Reading:
    """What a client read: how many messages, and all their bytes."""

    def __init__(self) -> None:
        self.count = 0
        self.pieces: list[bytes] = []
        self.closed: Closed | None = None

    def note(self, event: Event) -> None:
        if isinstance(event, SequencedData):
            assert event.first_sequence == self.count + 1
            self.count += len(event.block)
            self.pieces.extend(event.block)
        elif isinstance(event, Closed):
            self.closed = event


@pytest.mark.parametrize("turn_bytes", [1, shell.TURN_BYTES])
def test_a_long_session_arrives_whole_at_several_clients_at_once(
    turn_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "TURN_BYTES", turn_bytes)

    async def read(server: SoupServer) -> Reading:
        reading = Reading()
        async with await SoupClient.connect(server.host, server.port, LOGIN, settings=QUIET) as client:
            async for event in client:
                reading.note(event)
        return reading

    async def main() -> None:
        block = random_block(50_000)
        store = MemoryStore("DAY1")
        store.append_block(block)
        store.end()
        async with SoupServer(ACCOUNTS, StoredSessions(store), settings=QUIET) as server:
            await server.start("127.0.0.1")
            readings = await asyncio.gather(*(read(server) for _ in range(3)))
        for reading in readings:
            assert reading.count == 50_000
            assert b"".join(reading.pieces) == block.buffer.tobytes()
            assert reading.closed is not None
            assert reading.closed.reason is CloseReason.END_OF_SESSION

    run(main())


def test_messages_added_while_clients_are_connected_reach_them() -> None:
    async def main() -> None:
        store = MemoryStore("DAY1")
        async with SoupServer(ACCOUNTS, StoredSessions(store)) as server:
            await server.start("127.0.0.1")
            async with await SoupClient.connect(server.host, server.port, LOGIN) as client:
                reading = Reading()
                for number in range(1, 101):
                    store.append(b"%d" % number)
                    server.notify()
                    while reading.count < number:
                        event = await client.receive()
                        assert event is not None
                        reading.note(event)
                assert reading.pieces == [b"%d" % number for number in range(1, 101)]

    run(main())


class WatchedClient(SoupClient):
    """Tells when it has stopped reading."""

    def __init__(self, machine: ClientConnection, queue_bytes_max: int, clock: Clock) -> None:
        super().__init__(machine, queue_bytes_max, clock)
        self.stopped_reading = asyncio.Event()

    def deliver(self, events: list[Event]) -> None:
        super().deliver(events)
        if not self._is_reading:
            self.stopped_reading.set()


def test_a_client_whose_application_is_behind_stops_reading_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        stopped_writing = asyncio.Event()
        pause_writing = ServerPeer.pause_writing

        def at_pause(self: ServerPeer) -> None:
            stopped_writing.set()
            pause_writing(self)

        monkeypatch.setattr(ServerPeer, "pause_writing", at_pause)
        block = random_block(400_000)  # 20 MB: more than both sockets and both queues hold
        store = MemoryStore("DAY1")
        store.append_block(block)
        store.end()
        async with SoupServer(ACCOUNTS, StoredSessions(store), settings=QUIET) as server:
            await server.start("127.0.0.1")
            client = await WatchedClient.connect(
                server.host, server.port, LOGIN, settings=QUIET, queue_bytes_max=100_000
            )
            await client.stopped_reading.wait()
            assert client._queue_bytes < 4 << 20
            await stopped_writing.wait()
            (peer,) = server.peers
            assert peer.lag_count > 50_000
            reading = Reading()
            async for event in client:
                reading.note(event)
            await client.close()
        assert reading.count == 400_000
        assert b"".join(reading.pieces) == block.buffer.tobytes()

    run(main())


def test_a_client_that_reads_nothing_is_cut_off_and_the_server_says_so() -> None:
    async def main() -> None:
        store = MemoryStore("DAY1")
        store.append_block(random_block(400_000))
        closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()

        def on_event(peer: ServerPeer, event: Event) -> None:
            if isinstance(event, Closed):
                closed.set_result(event)

        settings = Settings(stall_ns=50 * MILLISECOND, linger_ns=20 * MILLISECOND, courtesy_ns=MILLISECOND)
        async with SoupServer(
            ACCOUNTS, StoredSessions(store), settings=settings, on_event=on_event
        ) as server:
            await server.start("127.0.0.1")
            client = await SoupClient.connect(server.host, server.port, LOGIN, queue_bytes_max=1)
            event = await closed
            client.abort()
        assert event.reason is CloseReason.SLOW_CONSUMER
        assert not server.peers

    run(main())


def test_a_client_waits_while_the_server_takes_nothing() -> None:
    async def main() -> None:
        heard: list[bytes] = []

        def on_event(peer: ServerPeer, event: Event) -> None:
            if isinstance(event, UnsequencedData):
                heard.append(event.payload)
                peer.send_unsequenced(event.payload[:1])

        async with SoupServer(ACCOUNTS, StoredSessions(MemoryStore("DAY1")), on_event=on_event) as server:
            await server.start("127.0.0.1")
            async with await SoupClient.connect(server.host, server.port, LOGIN) as client:
                for number in range(200):
                    await client.send_unsequenced(bytes((number,)) * 60_000)
                for number in range(200):
                    assert await client.receive() == UnsequencedData(bytes((number,)))
        assert [len(payload) for payload in heard] == [60_000] * 200

    run(main())


def test_clients_beyond_the_limit_are_rejected_and_those_within_it_stay() -> None:
    async def main() -> None:
        sessions = StoredSessions(MemoryStore("DAY1"))
        async with SoupServer(ACCOUNTS, sessions, settings=QUICK_NO, connection_count_max=1) as server:
            await server.start("127.0.0.1")
            async with await SoupClient.connect(server.host, server.port, LOGIN) as client:
                with pytest.raises(LoginRefused) as caught:
                    await SoupClient.connect(server.host, server.port, LOGIN)
                assert caught.value.reason is RejectReason.SESSION_NOT_AVAILABLE
                assert server.logged_in_count == 1
                assert client.closed is None

    run(main())


@asynccontextmanager
async def idle(server: SoupServer, host: str, count: int) -> AsyncIterator[list[socket.socket]]:
    """Hold connections that say nothing, all of which the server has seen."""
    with ExitStack() as stack:
        target = (server.host, server.port)
        held = [
            stack.enter_context(socket.create_connection(target, source_address=(host, 0)))
            for _ in range(count)
        ]
        # The server accepts in the order of connecting: when this one is in, it has seen the others.
        async with await SoupClient.connect(*target, LOGIN):
            yield held


def test_connections_that_do_not_log_in_keep_nobody_out() -> None:
    async def main() -> None:
        sessions = StoredSessions(MemoryStore("DAY1"))
        async with SoupServer(ACCOUNTS, sessions, connection_count_max=64) as server:
            await server.start("127.0.0.1")
            async with idle(server, "127.0.0.1", 64) as held:
                # The oldest had to make room, for each other and for the client that logged in.
                assert (server.logged_in_count, len(server.peers), server.refused_count) == (1, 8, 57)
                for connection in held[:57]:
                    connection.setblocking(False)
                    assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""

    run(main())


def test_many_addresses_that_do_not_log_in_keep_nobody_out() -> None:
    async def main() -> None:
        sessions = StoredSessions(MemoryStore("DAY1"))
        async with (
            SoupServer(ACCOUNTS, sessions, connection_count_max=4) as server,
            AsyncExitStack() as stack,
        ):
            await server.start("127.0.0.1")
            for number in range(2, 6):
                await stack.enter_async_context(idle(server, f"127.0.0.{number}", 3))
            assert server.logged_in_count == 4
            assert len(server.peers) == 4 + 3

    run(main())


def test_logins_that_wait_for_their_rejection_take_up_the_room_of_their_address() -> None:
    async def main() -> None:
        sessions = StoredSessions(MemoryStore("DAY1"))
        rejected = asyncio.Event()

        def on_event(_: ServerPeer, event: Event) -> None:
            if isinstance(event, LoginRejected):
                rejected.set()

        settings = Settings(rejection_delay_ns=60_000 * MILLISECOND, unknown_per_address_max=1)
        async with SoupServer(ACCOUNTS, sessions, settings=settings, on_event=on_event) as server:
            await server.start("127.0.0.1")
            guess = encode_login_request(LoginRequest("trader", "guess"))
            _, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(guess)
            await rejected.wait()
            with pytest.raises((SoupError, ConnectionError)):
                await SoupClient.connect(server.host, server.port, LOGIN)
            assert server.refused_count == 1
            reader, elsewhere = await asyncio.open_connection(
                server.host, server.port, local_addr=("127.0.0.2", 0)
            )
            elsewhere.write(encode_login_request(LOGIN))
            assert (await reader.readexactly(3))[2:] == b"A"
            writer.close()
            elsewhere.close()

    run(main())


def test_a_server_that_closes_ends_its_connections_and_frees_its_port() -> None:
    async def main() -> None:
        sessions = StoredSessions(MemoryStore("DAY1"))
        server = SoupServer(ACCOUNTS, sessions)
        await server.start("127.0.0.1")
        client = await SoupClient.connect(server.host, server.port, LOGIN)
        await server.close()
        event = await client.receive()
        assert isinstance(event, Closed)
        assert event.reason is CloseReason.PEER_CLOSED
        assert await client.receive() is None
        with pytest.raises(IllegalTransition):
            await client.send_unsequenced(b"too late")
        await client.close()
        again = SoupServer(ACCOUNTS, sessions)
        await again.start("127.0.0.1", server.port)
        await again.close()
        with pytest.raises(ConfigError, match="started once"):
            await again.start("127.0.0.1")

    run(main())


def test_hostile_bytes_close_the_connection_and_the_server_serves_on() -> None:
    async def main() -> None:
        closes: list[Closed] = []

        def on_event(peer: ServerPeer, event: Event) -> None:
            if isinstance(event, Closed):
                closes.append(event)

        async with SoupServer(ACCOUNTS, StoredSessions(MemoryStore("DAY1")), on_event=on_event) as server:
            await server.start("127.0.0.1")
            for junk in (b"\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000):
                reader, writer = await asyncio.open_connection(server.host, server.port)
                writer.write(junk)
                assert await reader.read() == b""
                writer.close()
                # Bytes that nobody read any more may turn the server's close into a reset.
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)
            async with await SoupClient.connect(server.host, server.port, LOGIN) as client:
                assert client.session == "DAY1"
        assert [event.reason for event in closes[:3]] == [CloseReason.PROTOCOL_ERROR] * 3

    run(main())


def test_a_client_reports_a_server_that_does_not_speak_the_protocol() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with listener:
            with pytest.raises(PacketError, match="packet length must be 1 to 4096, was 12850"):
                await SoupClient.connect("127.0.0.1", listener.sockets[0].getsockname()[1], LOGIN)

    run(main())


def test_a_client_gives_up_on_a_server_that_never_answers() -> None:
    async def main() -> None:
        settings = Settings(login_ns=50 * MILLISECOND)
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(SoupError, match=r"within 0\.05 s"),
        ):
            await SoupClient.connect("127.0.0.1", silent.getsockname()[1], LOGIN, settings=settings)

    run(main())


def test_a_client_says_when_nobody_listens() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await SoupClient.connect("127.0.0.1", port, LOGIN)

    run(main())
