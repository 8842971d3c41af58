"""The snapshot service: state over SoupBinTCP, ended by the number where real time goes on."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from nasdaq_protocols import soup

from feeds.errors import ConfigError, LimitError, SnapshotError
from feeds.message_store import MemoryStore, MessageBlock, MessageNotHeld
from feeds.snapshot_service import (
    Snapshot,
    SnapshotCollector,
    _SnapshotStore,
    decode_end_of_snapshot,
    encode_end_of_snapshot,
    fetch_snapshot,
    snapshot_server,
)
from feeds.soupbintcp import (
    Accounts,
    Event,
    LoginRefused,
    PacketError,
    RejectReason,
    ServerPeer,
    Settings,
    SoupServer,
    StoredSessions,
)

PHRASE = "hush-hush"
ACCOUNTS = Accounts({"trader": PHRASE})
QUICK_REJECTIONS = Settings(rejection_delay_ns=1_000_000)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main

    asyncio.run(bounded())


def directory_message(locate: int) -> bytes:
    return struct.pack(
        ">cHH6s8sccIcc2scccccIc",
        *(b"R", locate, 0, bytes(6), b"STOCK%03d" % locate, b"Q", b"N", 100, b"N", b"C", b"Z "),
        *(b"P", b"N", b"N", b"1", b"N", 0, b"N"),
    )


def order_message(reference: int) -> bytes:
    head = struct.pack(">cHH6s", b"A", 1 + reference % 5, 0, bytes(6))
    return head + struct.pack(">QcI8sI", reference, b"B", 100, b"STOCK001", 10_000)


def make_snapshot(order_count: int = 10, next_sequence: int = 4_711) -> Snapshot:
    stocks = MessageBlock.of(directory_message(locate) for locate in range(1, 6))
    orders = MessageBlock.of(order_message(reference) for reference in range(order_count))
    return Snapshot("DAY1", next_sequence, (stocks, MessageBlock.of(()), orders))


def messages_of(snapshot: Snapshot) -> list[bytes]:
    return [message for block in snapshot.blocks for message in block]


# The end of snapshot.


def test_the_end_of_snapshot_has_the_bytes_of_the_specification() -> None:
    assert encode_end_of_snapshot(4_711) == b"G4711                "
    assert len(encode_end_of_snapshot(2**64 - 1)) == 21


@pytest.mark.parametrize(
    "raw", [b"G4711                ", b"G                4711", b"G00000000000000004711"]
)
def test_the_end_of_snapshot_is_read_with_either_padding(raw: bytes) -> None:
    assert decode_end_of_snapshot(raw) == 4_711


@pytest.mark.parametrize(
    "raw", [b"", b"G", b"G1", b"X4711                ", b"G4711                 ", b"G0".ljust(21)]
)
def test_a_wrong_end_of_snapshot_is_refused(raw: bytes) -> None:
    with pytest.raises(SnapshotError, match="end of snapshot must be"):
        decode_end_of_snapshot(raw)


def test_an_end_of_snapshot_without_a_number_is_refused() -> None:
    with pytest.raises(PacketError, match="sequence of an end of snapshot must be ASCII digits"):
        decode_end_of_snapshot(b"Gsoon".ljust(21))


# Putting it together.


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
def test_a_snapshot_is_collected_from_pieces_of_any_size(piece: int) -> None:
    messages = [order_message(reference) for reference in range(20)] + [b""] + [encode_end_of_snapshot(9)]
    collector = SnapshotCollector(100, 10_000)
    for begin in range(0, len(messages), piece):
        collector.on_data(MessageBlock.of(messages[begin : begin + piece]))
    snapshot = collector.finish("DAY1", None)
    assert messages_of(snapshot) == messages[:-1]
    assert (snapshot.next_sequence, snapshot.message_count) == (9, 21)


def test_what_follows_the_end_of_snapshot_is_not_part_of_it() -> None:
    collector = SnapshotCollector(100, 10_000)
    collector.on_data(MessageBlock.of([b"A", encode_end_of_snapshot(9), b"B"]))
    collector.on_data(MessageBlock.of([b"C", encode_end_of_snapshot(10)]))
    snapshot = collector.finish("DAY1", None)
    assert (messages_of(snapshot), snapshot.next_sequence) == ([b"A"], 9)


def test_a_snapshot_of_nothing_is_one() -> None:
    collector = SnapshotCollector(0, 0)
    collector.on_data(MessageBlock.of([encode_end_of_snapshot(1)]))
    assert collector.finish("DAY1", None) == Snapshot("DAY1", 1, ())


def test_a_snapshot_beyond_the_limits_is_refused() -> None:
    with pytest.raises(LimitError, match="at most 2 messages \\(message_count_max\\)"):
        SnapshotCollector(2, 100).on_data(MessageBlock.of([b"A"] * 3))
    with pytest.raises(LimitError, match="at most 4 bytes \\(message_bytes_max\\)"):
        SnapshotCollector(9, 4).on_data(MessageBlock.of([b"AAA"] * 2))


def test_a_snapshot_keeps_nothing_of_what_came_between_its_messages() -> None:
    collector = SnapshotCollector(1_000, 1_000)
    received = []
    for number in range(100, 200):
        buffer = np.zeros(60_000, np.uint8)
        buffer[7] = number
        received.append(weakref.ref(buffer))
        collector.on_data(MessageBlock(buffer, np.array([7]), np.array([1])))
        del buffer
    assert not any(each() is not None for each in received)
    collector.on_data(MessageBlock.of([encode_end_of_snapshot(9)]))
    snapshot = collector.finish("DAY1", None)
    assert messages_of(snapshot) == [bytes([number]) for number in range(100, 200)]


def test_a_snapshot_without_its_end_is_refused() -> None:
    collector = SnapshotCollector(9, 100)
    collector.on_data(MessageBlock.of([b"A", b"B"]))
    with pytest.raises(SnapshotError, match="after 2 messages the connection is gone"):
        collector.finish("DAY1", None)


def test_a_snapshot_read_as_a_session_is_its_blocks_and_the_end() -> None:
    snapshot = make_snapshot(order_count=4)
    store = _SnapshotStore(snapshot)
    expected = [*messages_of(snapshot), encode_end_of_snapshot(4_711)]
    assert (store.first_sequence, store.next_sequence, store.is_ended) == (1, 11, True)
    for sequence in range(1, 11):
        found = list(store.read(sequence, 3))
        assert 1 <= len(found) <= 3
        assert found == expected[sequence - 1 : sequence - 1 + len(found)]
    for sequence in (0, 11):
        with pytest.raises(MessageNotHeld):
            store.read(sequence, 1)


@pytest.mark.parametrize("next_sequence", [0, 2**64])
def test_a_snapshot_that_continues_nowhere_is_refused(next_sequence: int) -> None:
    with pytest.raises(ConfigError, match="next_sequence must be 1 to"):
        make_snapshot(next_sequence=next_sequence)


# Over sockets.


def test_a_client_fetches_the_state_of_the_moment() -> None:
    async def main() -> None:
        snapshots = [make_snapshot(10, 11), make_snapshot(30_000, 30_001)]
        waiting = iter(snapshots)
        async with snapshot_server(lambda: next(waiting), ACCOUNTS) as server:
            await server.start("127.0.0.1")
            for expected in snapshots:
                found = await fetch_snapshot(server.host, server.port, "trader", PHRASE)
                assert (found.session, found.next_sequence) == ("DAY1", expected.next_sequence)
                assert messages_of(found) == messages_of(expected)

    run(main())


def test_nasdaqs_own_client_can_read_our_snapshot() -> None:
    async def main() -> None:
        async with snapshot_server(make_snapshot, ACCOUNTS) as server:
            await server.start("127.0.0.1")
            client = await soup.connect_async((server.host, server.port), "trader", PHRASE)
            received: list[bytes] = []
            while not received or received[-1][:1] != b"G":
                received.append(bytes((await client.receive_msg()).data))
            await client.close()
        assert received == [*messages_of(make_snapshot()), encode_end_of_snapshot(4_711)]

    run(main())


def test_a_snapshot_is_given_only_to_those_who_may_have_it() -> None:
    async def main() -> None:
        asked: list[None] = []

        def source() -> Snapshot:
            asked.append(None)
            return make_snapshot()

        async with snapshot_server(source, ACCOUNTS, settings=QUICK_REJECTIONS) as server:
            await server.start("127.0.0.1")
            with pytest.raises(LoginRefused) as caught:
                await fetch_snapshot(server.host, server.port, "trader", "wrong")
            assert caught.value.reason is RejectReason.NOT_AUTHORISED
            assert asked == []  # no work for strangers
            with pytest.raises(LoginRefused) as caught:
                await fetch_snapshot(server.host, server.port, "trader", PHRASE, session="DAY9")
            assert caught.value.reason is RejectReason.SESSION_NOT_AVAILABLE

    run(main())


def test_a_snapshot_cannot_be_resumed_in_the_middle() -> None:
    async def main() -> None:
        async with snapshot_server(make_snapshot, ACCOUNTS, settings=QUICK_REJECTIONS) as server:
            await server.start("127.0.0.1")
            with pytest.raises(ConnectionRefusedError, match="SESSION_NOT_AVAILABLE"):
                await soup.connect_async((server.host, server.port), "trader", PHRASE, sequence=5)

    run(main())


def test_a_session_that_ends_without_an_end_of_snapshot_is_no_snapshot() -> None:
    async def main() -> None:
        store = MemoryStore("DAY1")
        store.append(order_message(1))
        store.end()
        async with SoupServer(ACCOUNTS, StoredSessions(store)) as server:
            await server.start("127.0.0.1")
            with pytest.raises(SnapshotError, match="after 1 messages session 'DAY1' ended before #2"):
                await fetch_snapshot(server.host, server.port, "trader", PHRASE)

    run(main())


def test_a_server_that_breaks_off_or_stays_silent_is_reported() -> None:
    async def main() -> None:
        arrived: asyncio.Queue[ServerPeer] = asyncio.Queue()

        def on_event(peer: ServerPeer, event: Event) -> None:
            arrived.put_nowait(peer)

        store = MemoryStore("DAY1")
        store.append(order_message(1))
        async with SoupServer(ACCOUNTS, StoredSessions(store), on_event=on_event) as server:
            await server.start("127.0.0.1")
            fetching = asyncio.create_task(fetch_snapshot(server.host, server.port, "trader", PHRASE))
            (await arrived.get()).stop()
            with pytest.raises(SnapshotError, match="the snapshot broke off: the peer closed"):
                await fetching
            with pytest.raises(SnapshotError, match=r"within 0\.05 s \(timeout_ns\)"):
                await fetch_snapshot(server.host, server.port, "trader", PHRASE, timeout_ns=50_000_000)

    run(main())


def test_limits_hold_on_both_sides_of_the_wire() -> None:
    async def main() -> None:
        async with snapshot_server(make_snapshot, ACCOUNTS, settings=Settings()) as server:
            await server.start("127.0.0.1")
            with pytest.raises(LimitError, match="at most 14 messages"):
                await fetch_snapshot(server.host, server.port, "trader", PHRASE, message_count_max=14)
            found = await fetch_snapshot(server.host, server.port, "trader", PHRASE, message_count_max=15)
            assert found.message_count == 15
            with pytest.raises(ConfigError, match="timeout_ns must be more than 0"):
                await fetch_snapshot(server.host, server.port, "trader", PHRASE, timeout_ns=0)
        async with snapshot_server(
            make_snapshot, ACCOUNTS, settings=QUICK_REJECTIONS, message_count_max=14
        ) as server:
            await server.start("127.0.0.1")
            with pytest.raises(LoginRefused) as caught:
                await fetch_snapshot(server.host, server.port, "trader", PHRASE)
            assert caught.value.reason is RejectReason.SESSION_NOT_AVAILABLE

    run(main())
