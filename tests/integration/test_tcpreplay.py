"""The real capture on a real wire: Debian's tcpreplay sends it through a veth pair into our sockets.

Multicast as the exchange sends it, received by the compiled hop. Everything lives in private network
namespaces; where those cannot be made, the tests say why they skip.
"""

from __future__ import annotations

import gzip
import hashlib
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dpkt
import numpy as np
import pytest

from feeds import wire
from feeds.iex import FORMAT
from feeds.iex.gap_fill import GapFillServer
from feeds.iex.transport import decode_segment
from feeds.lines.events import HoleFilled, Line, Lost
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.lines.sockets import Endpoint, steady_clock
from feeds.pcap.writer import PcapWriter, wrap_ethernet
from tests.iex_capture import CAPTURE, decode_capture
from tests.network_namespaces import VethPair, inside, missing_needs, veth_pair

pytestmark = pytest.mark.serial

GROUP_A = ("233.215.21.4", 10_378)
GROUP_B = ("233.215.21.132", 10_378)
SOURCE = ("23.226.155.132", 10_378)
PACKETS_PER_S = 20_000  # 5,000 packets in a quarter of a second: far below what the receiver takes
DEADLINE_NS = 30_000_000_000
STREAM_ID = 9


@pytest.fixture(scope="module")
def pair() -> Iterator[VethPair]:
    lacking = missing_needs("tcpreplay")
    if lacking is not None:
        pytest.skip(lacking)
    with veth_pair() as made:
        yield made


@pytest.fixture(scope="module")
def datagrams(market_data: Path) -> list[tuple[int, bytes]]:
    """Return (time, payload) of all packets of the capture, as dpkt reads them."""
    with gzip.open(market_data / CAPTURE) as stream:
        return [
            (int(when * 1_000_000) * 1_000, bytes(dpkt.ethernet.Ethernet(packet).data.data.data))
            for when, packet in dpkt.pcap.Reader(stream)
        ]


@contextmanager
def tcpreplay(pair: VethPair, path: Path) -> Iterator[None]:
    """Send a capture while the body runs; it must have been sent whole."""
    command = ["ip", "netns", "exec", pair.sender_space, "tcpreplay", "--quiet"]
    command += [f"--pps={PACKETS_PER_S}", f"--intf1={pair.sender_device}", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sender:
        try:
            yield
        except BaseException:
            sender.kill()
            raise
        output, _ = sender.communicate(timeout=60)
        assert sender.returncode == 0, output


def open_receiver(
    pair: VethPair, *groups: tuple[str, int], server: tuple[str, int] | None = None
) -> LineReceiver:
    ends = [Endpoint(host, port, pair.receiver_device) for host, port in groups]
    config = ReceiverConfig(
        line_a=ends[0],
        line_b=ends[1] if len(ends) > 1 else None,
        servers=() if server is None else (Endpoint(*server),),
        lines=LineConfig(start=1, batch_packets=192),
        buffer_bytes=32 << 20,
    )
    with inside(pair.receiver_space):
        return LineReceiver(FORMAT, STREAM_ID, config)


def receive(
    receiver: LineReceiver, message_count: int, meanwhile: Callable[[int], None] = lambda now_ns: None
) -> wire.FrameArray:
    """Return the frames of `message_count` messages, or of as many as come before the deadline."""
    clock = steady_clock()
    end_ns = clock() + DEADLINE_NS
    parts = [wire.empty(0)]
    while receiver.decoder.message_count < message_count and clock() < end_ns:
        frames = receiver.poll(clock())
        meanwhile(clock())
        if frames.size:
            parts.append(frames.copy())
        else:
            receiver.wait(clock(), 1_000_000)
    return np.concatenate(parts)


def digest(frames: wire.FrameArray) -> str:
    """Return a digest of frames without the one field that tells when they were made."""
    copy = frames.copy()
    copy["publish_time_ns"] = 0
    return hashlib.sha256(copy.tobytes()).hexdigest()


def test_the_capture_arrives_whole_and_in_order_through_real_sockets(
    pair: VethPair, market_data: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "line-a.pcap"
    plain.write_bytes(gzip.decompress((market_data / CAPTURE).read_bytes()))
    expected = decode_capture(market_data / CAPTURE)
    with open_receiver(pair, GROUP_A) as receiver, tcpreplay(pair, plain):
        frames = receive(receiver, expected.decoder.message_count)
        (source,) = receiver.source_counts()
        assert source.dropped == source.truncated == source.errors == 0
        assert source.buffer_bytes == 32 << 20
        assert receiver.decoder.message_count == 48_325
        assert receiver.decoder.counts_by_type == expected.decoder.counts_by_type
        assert digest(frames) == digest(expected.frames)
        assert (np.diff(frames["source_seq"].astype(np.int64)) >= 0).all()
        counts = receiver.counts(Line.A)
        assert counts.first == 48_325
        assert counts.lost == counts.duplicate == 0
        assert counts.bad_packets == {}


def write_lines(
    path: Path, datagrams: list[tuple[int, bytes]], is_sent: Callable[[int, tuple[str, int]], bool]
) -> None:
    """Write the packets for line A and line B into one capture, leaving out what is not to be sent."""
    with PcapWriter(path) as capture:
        for index, (time_ns, payload) in enumerate(datagrams):
            for group in (GROUP_A, GROUP_B):
                if is_sent(index, group):
                    capture.write_packet(wrap_ethernet(payload, SOURCE, group), time_ns)


def test_two_lines_that_lose_different_packets_make_one_whole_stream(
    pair: VethPair, market_data: Path, datagrams: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    path = tmp_path / "both.pcap"
    write_lines(path, datagrams, lambda index, group: index % 7 != (2 if group == GROUP_A else 5))
    expected = decode_capture(market_data / CAPTURE)
    with open_receiver(pair, GROUP_A, GROUP_B) as receiver, tcpreplay(pair, path):
        frames = receive(receiver, 48_325)
        assert digest(frames) == digest(expected.frames)
        lines = [receiver.counts(line) for line in (Line.A, Line.B)]
        assert sum(counts.first for counts in lines) == 48_325
        assert all(counts.lost > 0 for counts in lines)
        assert [source.dropped for source in receiver.source_counts()] == [0, 0]
        assert not [event for event in receiver.take_events() if isinstance(event, Lost)]


def test_what_both_lines_lost_comes_from_the_gap_fill_server(
    pair: VethPair, market_data: Path, datagrams: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    path = tmp_path / "holes.pcap"
    write_lines(path, datagrams, lambda index, group: index % 50 != 9 and not 3_000 <= index < 3_020)
    expected = decode_capture(market_data / CAPTURE)
    segments = [decode_segment(payload) for _, payload in datagrams]
    server = GapFillServer(segments[0].identity)
    for segment in segments:
        server.append_segment(segment)
    with inside(pair.sender_space):
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        endpoint.bind((pair.sender_address, 0))
        endpoint.setblocking(False)

    def answer(now_ns: int) -> None:
        try:
            request, client = endpoint.recvfrom(65_536)
        except BlockingIOError:
            return
        for packet in server.on_datagram(request, now_ns):
            endpoint.sendto(packet, client)

    address = (pair.sender_address, endpoint.getsockname()[1])
    with (
        endpoint,
        open_receiver(pair, GROUP_A, GROUP_B, server=address) as receiver,
        tcpreplay(pair, path),
    ):
        frames = receive(receiver, 48_325, answer)
        assert digest(frames) == digest(expected.frames)
        events = receiver.take_events()
        assert not [event for event in events if isinstance(event, Lost)]
        filled = [event for event in events if isinstance(event, HoleFilled)]
        assert filled
        assert {event.by for event in filled} == {Line.RECOVERY}
    lost = sum(
        len(segment.messages)
        for index, segment in enumerate(segments)
        if index % 50 == 9 or 3_000 <= index < 3_020
    )
    assert server.counters.ignored == 0
    assert server.counters.messages >= lost > 0
