"""A line's chance and order, without sockets: what goes in, what comes out, and that the counts add up."""

from __future__ import annotations

import itertools
import socket
from dataclasses import replace

import numpy as np
import pytest

from feeds.errors import ConfigError
from feeds.exchange.lines import (
    Cut,
    ExchangeLine,
    ExchangeLineCounts,
    ExchangeLineSocket,
    Impairment,
    find_blocks,
    parse_endpoint,
)
from feeds.lines.sockets import Endpoint
from feeds.moldudp64 import PacketKind, decode_downstream, session_bytes

pytestmark = pytest.mark.kernels

SESSION = session_bytes("TWIN000001")
PERFECT = Impairment()


def messages(count: int) -> list[bytes]:
    """Return different messages of different lengths, 3 to 50 bytes."""
    return [index.to_bytes(3, "big") * (1 + index % 16) + b"!" * (index % 3) for index in range(count)]


def offer(line: ExchangeLine, items: list[bytes], first_sequence: int = 1, now_ns: int = 0) -> list[bytes]:
    """Push all messages through a line and return the packets that came out, in the order of the wire."""
    data = np.frombuffer(b"".join(len(item).to_bytes(2, "big") + item for item in items), np.uint8)
    offsets = find_blocks(data)
    done = 0
    packets = []
    while done < len(items):
        done += line.offer_blocks(SESSION, first_sequence, data, offsets, done, now_ns)
        packets += line.take(now_ns)
    return packets + line.take(now_ns, is_flushing=True)


def sequences(packets: list[bytes]) -> list[int]:
    return [decode_downstream(packet).sequence for packet in packets]


def contents(packets: list[bytes]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for packet in packets:
        decoded = decode_downstream(packet)
        assert decoded.session == SESSION
        assert decoded.kind is PacketKind.DATA
        for index, message in enumerate(decoded.messages):
            assert found.setdefault(decoded.sequence + index, message) == message
    return found


def assert_counts_add_up(counts: ExchangeLineCounts) -> None:
    assert counts.waiting_packets == 0
    assert counts.sent_packets == counts.offered_packets - counts.dropped_packets + counts.duplicated_packets


def test_a_perfect_line_carries_everything_once_and_in_order() -> None:
    items = messages(500)
    line = ExchangeLine(PERFECT, Cut(), seed=1)
    packets = offer(line, items, first_sequence=77)
    assert contents(packets) == dict(enumerate(items, 77))
    assert sequences(packets) == sorted(set(sequences(packets)))
    assert_counts_add_up(line.counts)
    assert line.counts.sent_messages == 500
    assert line.counts.sent_bytes == sum(map(len, packets))


def test_packets_keep_both_limits_of_their_cut() -> None:
    cut = Cut(messages_min=3, messages_max=9, packet_bytes=300)
    packets = [
        decode_downstream(packet) for packet in offer(ExchangeLine(PERFECT, cut, seed=1), messages(1_000))
    ]
    sizes = {len(packet.messages) for packet in packets[:-1]}
    assert sizes == set(range(3, 10))
    assert all(20 + sum(2 + len(message) for message in packet.messages) <= 300 for packet in packets)


def test_two_lines_cut_the_same_messages_differently() -> None:
    items = messages(1_000)
    first = offer(ExchangeLine(PERFECT, Cut(1, 40), seed=1), items)
    second = offer(ExchangeLine(PERFECT, Cut(1, 7), seed=2), items)
    assert contents(first) == contents(second)
    assert set(sequences(first)) != set(sequences(second))


def test_the_same_seed_loses_the_same_packets_at_any_speed() -> None:
    bad = Impairment(loss=0.1, duplication=0.1, reordering=0.2, burst_loss=0.01)
    items = messages(2_000)
    at_once = offer(ExchangeLine(bad, Cut(2, 2), seed=9), items)
    line = ExchangeLine(bad, Cut(2, 2), seed=9)
    slowly = []
    for begin in range(0, len(items), 2):
        data = np.frombuffer(
            b"".join(len(item).to_bytes(2, "big") + item for item in items[begin : begin + 2]), np.uint8
        )
        line.offer_blocks(SESSION, 1 + begin, data, find_blocks(data), 0, begin)
        slowly += line.take(begin)
    slowly += line.take(len(items), is_flushing=True)
    assert slowly == at_once
    assert offer(ExchangeLine(bad, Cut(2, 2), seed=10), items) != at_once


@pytest.mark.parametrize("loss", [0.05, 0.5])
def test_losses_are_as_frequent_as_configured_and_counted_exactly(loss: float) -> None:
    items = messages(20_000)
    line = ExchangeLine(Impairment(loss=loss), Cut(1, 1), seed=3)
    arrived = contents(offer(line, items))
    assert line.counts.dropped_messages == len(items) - len(arrived)
    assert line.counts.dropped_packets / line.counts.offered_packets == pytest.approx(loss, rel=0.1)
    assert_counts_add_up(line.counts)


def test_burst_losses_come_in_runs() -> None:
    line = ExchangeLine(Impairment(burst_loss=0.005, burst_packets=20), Cut(1, 1), seed=3)
    arrived = contents(offer(line, messages(20_000)))
    lost = [number for number in range(1, 20_001) if number not in arrived]
    runs = 1 + sum(1 for before, after in itertools.pairwise(lost) if after != before + 1)
    assert len(lost) / runs == pytest.approx(20, rel=0.4)


def test_duplicates_are_equal_copies_and_counted() -> None:
    line = ExchangeLine(Impairment(duplication=0.2), Cut(1, 3), seed=5)
    packets = offer(line, messages(3_000))
    assert len(packets) - len(set(sequences(packets))) == line.counts.duplicated_packets > 0
    assert contents(packets) == dict(enumerate(messages(3_000), 1))
    assert_counts_add_up(line.counts)


def test_reordered_packets_are_overtaken_by_no_more_than_the_span() -> None:
    line = ExchangeLine(Impairment(reordering=0.3, reorder_span=3), Cut(1, 1), seed=5)
    arrived = sequences(offer(line, messages(3_000)))
    assert sorted(arrived) == list(range(1, 3_001))
    late = [sum(1 for other in arrived[:place] if other > number) for place, number in enumerate(arrived)]
    assert max(late) == 3
    assert sum(1 for count in late if count) == pytest.approx(0.3 * 3_000, rel=0.15)


def test_delay_holds_packets_back_and_flushing_does_not_shorten_it() -> None:
    line = ExchangeLine(Impairment(delay_ns=1_000, jitter_ns=500), Cut(1, 1), seed=1)
    assert offer(line, messages(1), now_ns=0) == []
    assert line.next_due_ns is not None
    assert 1_000 <= line.next_due_ns < 1_500
    assert line.take(line.next_due_ns - 1, is_flushing=True) == []
    assert sequences(line.take(line.next_due_ns)) == [1]
    assert line.next_due_ns is None


def test_an_overtaken_packet_waits_for_its_overtaker_or_for_a_flush() -> None:
    line = ExchangeLine(Impairment(reordering=1.0, reorder_span=1), Cut(1, 1), seed=1)
    data = np.frombuffer(b"\0\1x", np.uint8)
    line.offer_blocks(SESSION, 1, data, find_blocks(data), 0, 0)
    assert line.take(0) == []
    assert sequences(line.take(0, is_flushing=True)) == [1]


def test_a_full_line_takes_no_more_than_it_has_room_for() -> None:
    items = messages(100)
    line = ExchangeLine(Impairment(delay_ns=10), Cut(1, 1), seed=1, slot_count=16)
    data = np.frombuffer(b"".join(len(item).to_bytes(2, "big") + item for item in items), np.uint8)
    offsets = find_blocks(data)
    taken = line.offer_blocks(SESSION, 1, data, offsets, 0, 0)
    assert 0 < taken < 100
    assert line.offer_blocks(SESSION, 1, data, offsets, taken, 0) == 0
    packets = line.take(10)
    while taken < 100:
        taken += line.offer_blocks(SESSION, 1, data, offsets, taken, 0)
        packets += line.take(10)
    assert contents(packets) == dict(enumerate(items, 1))


def test_a_packet_without_messages_goes_through_the_same_chances() -> None:
    line = ExchangeLine(Impairment(loss=1.0), Cut(), seed=1)
    assert line.offer_packet(b"heartbeat", 0)
    assert line.take(0) == []
    assert line.counts.dropped_packets == 1
    assert line.counts.dropped_messages == 0


def test_a_socket_sends_what_take_would_give() -> None:
    bad = Impairment(loss=0.1, duplication=0.1, reordering=0.2)
    items = messages(600)
    expected = offer(ExchangeLine(bad, Cut(1, 5), seed=4), items)
    line = ExchangeLine(bad, Cut(1, 5), seed=4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        shell = ExchangeLineSocket(line, Endpoint(*receiver.getsockname()))
        data = np.frombuffer(b"".join(len(item).to_bytes(2, "big") + item for item in items), np.uint8)
        assert line.offer_blocks(SESSION, 1, data, find_blocks(data), 0, 0) == len(items)
        shell.send(0)
        shell.send(0, is_flushing=True)
        assert [receiver.recv(2_000) for _ in expected] == expected
        shell.close()
    assert_counts_add_up(line.counts)
    assert line.counts.failed_packets == 0


def test_a_packet_that_the_system_refuses_is_counted_and_does_not_block_the_line() -> None:
    line = ExchangeLine(PERFECT, Cut(1, 1), seed=1)
    # A broadcast address without permission to broadcast is refused by every kernel.
    shell = ExchangeLineSocket(line, Endpoint("255.255.255.255", 9))
    data = np.frombuffer(b"\0\1x\0\1y", np.uint8)
    line.offer_blocks(SESSION, 1, data, find_blocks(data), 0, 0)
    assert shell.send(0) == 2
    shell.close()
    assert line.counts.failed_packets == 2
    assert line.counts.sent_packets == 0
    assert line.waiting_count == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 1.5}, "loss must be a probability from 0 to 1, was 1.5"),
        ({"reorder_span": 0}, "reorder_span must be in 1 to 256, was 0"),
        ({"delay_ns": -1}, "delay_ns must be in 0 to"),
    ],
)
def test_impossible_impairments_are_refused(changes: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(PERFECT, **changes)  # type: ignore[arg-type]  # wrong values are the point


def test_impossible_cuts_are_refused() -> None:
    with pytest.raises(ConfigError, match="in order, were 5 and 4"):
        Cut(messages_min=5, messages_max=4)
    with pytest.raises(ConfigError, match="packet_bytes must be in 128 to 65507, was 10"):
        Cut(packet_bytes=10)


def test_addresses_are_read_or_refused() -> None:
    assert parse_endpoint("239.1.2.3:26400") == Endpoint("239.1.2.3", 26400)
    for text in ("127.0.0.1", "localhost:1", "127.0.0.1:65536", "127.0.0.1:-1", ":5", "127.0.0.1:"):
        with pytest.raises(ConfigError, match="must be"):
            parse_endpoint(text)


def test_a_multicast_line_names_its_interface_or_is_refused() -> None:
    line = ExchangeLine(PERFECT, Cut(), seed=1)
    for interface in ("127.0.0.1", "lo"):
        ExchangeLineSocket(line, Endpoint("239.1.2.3", 26400, interface)).close()
    with pytest.raises(
        ConfigError, match="interface must be an address or a name of this machine, was 'nosuch0'"
    ):
        ExchangeLineSocket(line, Endpoint("239.1.2.3", 26400, "nosuch0"))
