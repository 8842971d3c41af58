"""Our SoupBinTCP against Nasdaq's own Python package, over real sockets, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nasdaq_protocols import soup

from feeds.message_store import MemoryStore
from feeds.soupbintcp import (
    Accounts,
    Closed,
    CloseReason,
    DebugText,
    Event,
    LoginRefused,
    LoginRequest,
    RejectReason,
    SequencedData,
    ServerPeer,
    Settings,
    SoupClient,
    SoupServer,
    StoredSessions,
    UnsequencedData,
)

PHRASE = "hush-hush"
TEST_SECONDS = 20
# Heartbeats quick enough to be waited for; silence long enough for a busy machine.
QUICK_HEARTBEATS = Settings(heartbeat_ns=20_000_000)
QUICK_REJECTIONS = Settings(rejection_delay_ns=20_000_000)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await main

    asyncio.run(bounded())


# Their client, our server.


@asynccontextmanager
async def our_server(
    store: MemoryStore,
    settings: Settings | None = None,
    on_event: Callable[[ServerPeer, Event], None] | None = None,
) -> AsyncIterator[SoupServer]:
    server = SoupServer(
        Accounts({"trader": PHRASE}), StoredSessions(store), settings=settings, on_event=on_event
    )
    await server.start("127.0.0.1")
    async with server:
        yield server


def make_store(count: int) -> MemoryStore:
    store = MemoryStore("DAY1")
    for number in range(1, count + 1):
        store.append(b"message %d" % number)
    return store


async def their_client(server: SoupServer, **options: Any) -> soup.SoupClientSession:
    options = {"user": "trader", "passwd": PHRASE} | options
    return await soup.connect_async((server.host, server.port), **options)


def test_their_client_logs_in_and_reads_our_session() -> None:
    async def main() -> None:
        store = make_store(3)
        async with our_server(store) as server:
            client = await their_client(server)
            assert client.session_id.session == "DAY1"
            received = [bytes((await client.receive_msg()).data) for _ in range(3)]
            store.append(b"a later one")
            server.notify()
            received.append(bytes((await client.receive_msg()).data))
            assert received == [b"message 1", b"message 2", b"message 3", b"a later one"]
            await client.close()

    run(main())


def test_their_client_resumes_where_it_asks_to() -> None:
    async def main() -> None:
        async with our_server(make_store(1_000)) as server:
            client = await their_client(server, session_id="DAY1", sequence=998)
            received = [bytes((await client.receive_msg()).data) for _ in range(3)]
            assert received == [b"message 998", b"message 999", b"message 1000"]
            await client.close()

    run(main())


def test_their_client_at_sequence_zero_gets_what_comes_next() -> None:
    async def main() -> None:
        store = make_store(5)
        async with our_server(store) as server:
            client = await their_client(server, sequence=0)
            store.append(b"new")
            server.notify()
            assert bytes((await client.receive_msg()).data) == b"new"
            await client.close()

    run(main())


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"passwd": "wrong"}, "NOT_AUTHORIZED"),
        ({"user": "nobody"}, "NOT_AUTHORIZED"),
        ({"session_id": "DAY9"}, "SESSION_NOT_AVAILABLE"),
        ({"sequence": 77}, "SESSION_NOT_AVAILABLE"),
    ],
)
def test_their_client_understands_our_rejections(options: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        async with our_server(make_store(1), QUICK_REJECTIONS) as server:
            with pytest.raises(ConnectionRefusedError, match=reason):
                await their_client(server, **options)

    run(main())


def test_their_client_is_closed_by_our_end_of_session() -> None:
    async def main() -> None:
        store = make_store(2)
        store.end()
        ended = asyncio.Event()
        received: list[bytes] = []

        async def on_message(message: Any) -> None:
            received.append(bytes(message.data))

        async def on_close() -> None:
            ended.set()

        closes: list[Closed] = []

        def on_event(peer: ServerPeer, event: Event) -> None:
            if isinstance(event, Closed):
                closes.append(event)

        async with our_server(store, on_event=on_event) as server:
            await their_client(server, on_msg_coro=on_message, on_close_coro=on_close)
            await ended.wait()
        assert [event.reason for event in closes] == [CloseReason.END_OF_SESSION]
        # Theirs may drop what it has queued when it sees the end, but must not have seen anything else.
        assert received == [b"message 1", b"message 2"][: len(received)]

    run(main())


def test_their_client_sends_and_logs_out_and_we_hear_both() -> None:
    async def main() -> None:
        heard: list[Event] = []
        closed = asyncio.Event()

        def on_event(peer: ServerPeer, event: Event) -> None:
            heard.append(event)
            if isinstance(event, Closed):
                closed.set()

        async with our_server(make_store(0), on_event=on_event) as server:
            client = await their_client(server)
            client.send_unseq_data(b"an order")
            client.send_debug("some text")
            client.logout()
            await closed.wait()
        assert heard[1:3] == [UnsequencedData(b"an order"), DebugText("some text")]
        assert isinstance(heard[3], Closed)
        assert heard[3].reason is CloseReason.LOGGED_OUT

    run(main())


def test_heartbeats_pass_between_their_client_and_our_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        to_server, to_client = bytearray(), bytearray()
        is_enough = asyncio.Event()

        def note(kept: bytearray, data: bytes) -> None:
            kept.extend(data)
            if to_server.count(b"\x00\x01R") >= 3 and to_client.count(b"\x00\x01H") >= 3:
                is_enough.set()

        ours = ServerPeer.data_received
        theirs = soup.SoupClientSession.data_received

        def at_server(self: ServerPeer, data: bytes) -> None:
            note(to_server, data)
            ours(self, data)

        def at_client(self: Any, data: bytes) -> None:
            note(to_client, data)
            theirs(self, data)

        monkeypatch.setattr(ServerPeer, "data_received", at_server)
        monkeypatch.setattr(soup.SoupClientSession, "data_received", at_client)
        store = make_store(0)
        async with our_server(store, QUICK_HEARTBEATS) as server:
            client = await their_client(server, client_heartbeat_interval=0.02, server_heartbeat_interval=5)
            await is_enough.wait()
            store.append(b"still there")
            server.notify()
            assert bytes((await client.receive_msg()).data) == b"still there"
            await client.close()

    run(main())


# Our client, their server.


class TheirServer(soup.SoupServerSession):  # type: ignore[misc]  # an untyped library's class
    """Sends what it is told to by unsequenced messages, from where the client resumed."""

    def __attrs_post_init__(self) -> None:
        self.gone = asyncio.Event()
        super().__attrs_post_init__()

    async def close(self, drain: bool = False) -> None:
        await super().close(drain)
        self.gone.set()

    async def on_login(self, msg: Any) -> Any:
        if (msg.user, msg.password) != ("trader", PHRASE):
            return soup.LoginRejected(soup.LoginRejectReason.NOT_AUTHORIZED)
        if msg.session not in ("", "DAY1"):
            return soup.LoginRejected(soup.LoginRejectReason.SESSION_NOT_AVAILABLE)
        self.sequence = int(msg.sequence)
        return soup.LoginAccepted("DAY1", self.sequence)

    async def on_unsequenced(self, msg: Any) -> None:
        order = bytes(msg.data)
        if order == b"end":
            self.end_session()
        elif order == b"debug":
            self.send_debug("as you wish")
        else:
            for _ in range(int(order)):
                self.send_seq_msg(b"message %d" % self.sequence)


@asynccontextmanager
async def their_server(**options: Any) -> AsyncIterator[tuple[int, list[TheirServer]]]:
    sessions: list[TheirServer] = []

    def make() -> TheirServer:
        session = TheirServer(**options)
        sessions.append(session)
        return session

    listener = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], sessions
    finally:
        listener.close()
        await listener.wait_closed()
        for session in sessions:
            await session.close()


async def our_client(port: int, request: LoginRequest, settings: Settings | None = None) -> SoupClient:
    return await SoupClient.connect("127.0.0.1", port, request, settings=settings)


async def take_sequenced(client: SoupClient, count: int) -> dict[int, bytes]:
    taken: dict[int, bytes] = {}
    while len(taken) < count:
        event = await client.receive()
        assert isinstance(event, SequencedData), event
        taken.update(enumerate(event.block, start=event.first_sequence))
    return taken


def test_our_client_logs_in_to_their_server_and_reads() -> None:
    async def main() -> None:
        async with (
            their_server() as (port, _),
            await our_client(port, LoginRequest("trader", PHRASE)) as client,
        ):
            assert client.session == "DAY1"
            await client.send_unsequenced(b"3")
            assert await take_sequenced(client, 3) == {n: b"message %d" % n for n in (1, 2, 3)}

    run(main())


def test_our_client_resumes_at_their_server_after_a_broken_connection() -> None:
    async def main() -> None:
        async with their_server() as (port, _):
            first = await our_client(port, LoginRequest("trader", PHRASE))
            await first.send_unsequenced(b"250")
            before = await take_sequenced(first, 250)
            first.abort()
            again = LoginRequest("trader", PHRASE, first.session, first.machine.next_sequence)
            async with await our_client(port, again) as second:
                await second.send_unsequenced(b"250")
                after = await take_sequenced(second, 250)
            assert before | after == {n: b"message %d" % n for n in range(1, 501)}
            assert not before.keys() & after.keys()

    run(main())


@pytest.mark.parametrize(
    "request_, reason",
    [
        (LoginRequest("trader", "wrong"), RejectReason.NOT_AUTHORISED),
        (LoginRequest("trader", PHRASE, "DAY9"), RejectReason.SESSION_NOT_AVAILABLE),
    ],
)
def test_our_client_understands_their_rejections(request_: LoginRequest, reason: RejectReason) -> None:
    async def main() -> None:
        async with their_server() as (port, _):
            with pytest.raises(LoginRefused) as caught:
                await our_client(port, request_)
            assert caught.value.reason is reason

    run(main())


def test_our_client_understands_their_debug_text_and_end_of_session() -> None:
    async def main() -> None:
        async with (
            their_server() as (port, _),
            await our_client(port, LoginRequest("trader", PHRASE)) as client,
        ):
            for order in (b"debug", b"2", b"end"):
                await client.send_unsequenced(order)
            events = [event async for event in client]
            assert events[0] == DebugText("as you wish")
            closed = events[-1]
            assert isinstance(closed, Closed)
            assert (closed.reason, closed.next_sequence) == (CloseReason.END_OF_SESSION, 3)

    run(main())


def test_heartbeats_pass_between_our_client_and_their_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        to_server, to_client = bytearray(), bytearray()
        is_enough = asyncio.Event()

        def note(kept: bytearray, data: bytes) -> None:
            kept.extend(data)
            if to_server.count(b"\x00\x01R") >= 3 and to_client.count(b"\x00\x01H") >= 3:
                is_enough.set()

        ours = SoupClient.data_received
        theirs = TheirServer.data_received

        def at_server(self: Any, data: bytes) -> None:
            note(to_server, data)
            theirs(self, data)

        def at_client(self: SoupClient, data: bytes) -> None:
            note(to_client, data)
            ours(self, data)

        monkeypatch.setattr(TheirServer, "data_received", at_server)
        monkeypatch.setattr(SoupClient, "data_received", at_client)
        # Theirs starts its own beat with the client's interval, and takes the server's for the other's.
        options = {"client_heartbeat_interval": 0.02, "server_heartbeat_interval": 5}
        async with (
            their_server(**options) as (port, _),
            await our_client(port, LoginRequest("trader", PHRASE), QUICK_HEARTBEATS) as client,
        ):
            await is_enough.wait()
            await client.send_unsequenced(b"1")
            assert await take_sequenced(client, 1) == {1: b"message 1"}

    run(main())


def test_their_server_hears_our_logout() -> None:
    async def main() -> None:
        async with their_server() as (port, sessions):
            client = await our_client(port, LoginRequest("trader", PHRASE))
            await client.close()
            assert client.closed is not None
            assert client.closed.reason is CloseReason.LOGGED_OUT
            await sessions[0].gone.wait()

    run(main())
