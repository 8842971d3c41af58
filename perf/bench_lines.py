"""From the loopback socket to frames, beside a bare recvmmsg loop in C that throws the bytes away.

Two situations. *Live*: a sender on another core sends as fast as it can, but never further ahead than the
socket holds, so nothing is dropped and the rate is what sender and receiver reach together. *Drain*: the
socket is filled beforehand and only the reading is timed, which is the receiver's cost and nothing else.
Everything that was sent must arrive and be decoded; a datagram dropped by the system fails the run.
"""

import ctypes
import mmap
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from feeds import formats, wire
from feeds.decoder import Decoder, new_runs
from feeds.lines.events import Line
from feeds.lines.handler import LineConfig
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.lines.sockets import Endpoint, dropped_datagrams, open_line_socket, receive_buffer, steady_clock
from feeds.order_flow.flow import FlowConfig, OrderFlow
from perf.harness import Case, Sample, compile_c, interleave, pinned
from perf.report import Bar, BenchError, Options, Report, value_of

DESCRIPTION = "loopback datagrams to frames, beside a bare recvmmsg loop in C"

US = "twintape"
LIMIT = "bare recvmmsg"
PER_PACKET = (1, 40)
BAR_PER_PACKET = 40
BAR_SHARE = 0.5

SESSION = b"000010059B"
STREAM_ID = 1
SEED = 8_841
DAY_MESSAGES = 1_000_000
SETTLED_MESSAGES = 300_000  # before those we send: directory, opening cross; then trading as usual
FLOW_BLOCK_MESSAGES = 4_096
ANYWHERE = Endpoint("127.0.0.1", 0)
BUFFER_BYTES = 32 << 20
DATAGRAM_COST_BYTES = 4_096  # of a socket's buffer, for a packet of 40 messages: what Linux accounts, at most
POOL_PACKETS_MAX = 2_000
SECONDS_MAX = 120.0
IDLE_POLLS_CHECK = 4_096

_HERE = Path(__file__).parent
_HEADER = struct.Struct(">10sQH")
_DELIVERED, _STOP, _CONTROL_WORDS = 0, 1, 8


@dataclass(frozen=True, slots=True)
class Pool:
    """Ready packets of a realistic mixture, in the file that the sender maps, and what they decode to."""

    path: Path
    per_packet: int
    packet_count: int
    byte_count: int
    frames: wire.FrameArray
    type_counts: dict[str, int]

    @property
    def message_count(self) -> int:
        return self.packet_count * self.per_packet


class Control:
    """The shared file by which the receiver tells the sender how far it is."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "control"
        self.path.write_bytes(bytes(8 * _CONTROL_WORDS))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.words = np.frombuffer(self._map, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Track:
    """What all cases share: packets, the sender's core, and the word between sender and receiver."""

    control: Control
    sender: Path
    sender_core: int
    bare: ctypes.CDLL

    @contextmanager
    def sending(self, pool: Pool, port: int, first_seq: int, packet_count: int) -> Iterator[None]:
        """Send while the body receives. The sender never has more on the way than the pool holds."""
        self.control.words[:] = 0
        words = [port, pool.path, packet_count, first_seq, pool.per_packet, pool.message_count]
        words += [self.sender_core, self.control.path, SECONDS_MAX]
        process = subprocess.Popen([str(self.sender), *map(str, words)], stderr=subprocess.PIPE)
        with process:
            try:
                yield
                _, errors = process.communicate(timeout=SECONDS_MAX)
            except BaseException:
                self.control.words[_STOP] = 1
                process.kill()
                raise
        if process.returncode != 0:
            raise BenchError(f"the sender ended with status {process.returncode}: {errors.decode().strip()}")

    def fill(self, pool: Pool, port: int, first_seq: int) -> None:
        """Put the whole pool into the receiver's socket, which nobody reads meanwhile."""
        with self.sending(pool, port, first_seq, pool.packet_count):
            pass


def make_pool(directory: Path, per_packet: int, packet_count: int) -> Pool:
    """Cut a stretch of a simulated trading day into packets of `per_packet` messages."""
    message_count = per_packet * packet_count
    flow = OrderFlow(FlowConfig(seed=SEED, message_count=DAY_MESSAGES))
    while flow.next_sequence <= SETTLED_MESSAGES:
        flow.next_block(FLOW_BLOCK_MESSAGES)
    blocks: list[bytes] = []
    while len(blocks) < message_count:
        block = flow.next_block(FLOW_BLOCK_MESSAGES)
        content, offsets = block.data.tobytes(), block.offsets.tolist()
        blocks += [content[begin:end] for begin, end in pairwise(offsets)]
    packets = [
        _HEADER.pack(SESSION, 0, per_packet) + b"".join(blocks[first : first + per_packet])
        for first in range(0, message_count, per_packet)
    ]
    path = directory / f"pool-{per_packet}"
    path.write_bytes(b"".join(struct.pack("=I", len(packet)) + packet for packet in packets))

    decoder = Decoder(formats.load("itch50"), STREAM_ID)
    content = b"".join(blocks[:message_count])
    runs = new_runs(1)
    runs[0, formats.RUN_BYTES] = len(content)
    runs[0, formats.RUN_SEQ] = 1
    runs[0, formats.RUN_COUNT] = message_count
    frames = np.concatenate([batch.copy() for batch in decoder.decode(content, runs)])
    if decoder.problem_count:
        raise BenchError(f"{decoder.problem_count} of the messages to be sent cannot be decoded")
    byte_count = sum(len(packet) for packet in packets)
    return Pool(path, per_packet, packet_count, byte_count, frames, decoder.counts_by_type)


# --- ours -------------------------------------------------------------------------------------------


def open_receiver() -> LineReceiver:
    config = ReceiverConfig(
        line_a=ANYWHERE, lines=LineConfig(start=1, batch_packets=64), buffer_bytes=BUFFER_BYTES
    )
    return LineReceiver(formats.load("itch50"), STREAM_ID, config)


def receive_frames(receiver: LineReceiver, control: Control, message_total: int) -> tuple[int, int]:
    """Poll until `message_total` messages are there; return ns from the first to the last, and frames."""
    poll, clock, timer = receiver.poll, steady_clock(), time.perf_counter_ns
    decoder_state, delivered = receiver.decoder.state, control.words
    already = receiver.decoder.message_count
    began_ns = first_ns = timer()
    message_count = frame_count = idle_polls = 0
    while message_count < message_total:
        before_ns = timer() if message_count == 0 else 0
        frames = poll(clock())
        if not frames.size:
            idle_polls += 1
            if idle_polls % IDLE_POLLS_CHECK == 0 and timer() - began_ns > SECONDS_MAX * 1e9:
                raise BenchError(
                    f"only {message_count} of {message_total} messages came in {SECONDS_MAX:g} s"
                )
            continue
        if message_count == 0:
            first_ns = before_ns
        frame_count += frames.size
        message_count = int(decoder_state[formats.STATE_MESSAGE_COUNT]) - already
        delivered[_DELIVERED] = message_count
    return timer() - first_ns, frame_count


def check_receiver(receiver: LineReceiver, pool: Pool, cycles: int, frame_count: int) -> str:
    """Insist that everything sent was decoded, once and in order; return the checksum of what came."""
    source = receiver.source_counts()[0]
    line = receiver.counts(Line.A)
    expected_counts = {letter: cycles * count for letter, count in pool.type_counts.items()}
    found = (receiver.handler.expected - 1, frame_count, line.first, line.lost, source.dropped)
    wanted = (cycles * pool.message_count, cycles * pool.frames.size, cycles * pool.message_count, 0, 0)
    if found != wanted or receiver.decoder.counts_by_type != expected_counts:
        raise BenchError(
            f"(last number, frames, messages, lost, dropped) must be {wanted}, were {found}; "
            f"messages by type must be {expected_counts}, were {receiver.decoder.counts_by_type}"
        )
    return f"{frame_count} frames of {line.first} messages in {source.bytes} bytes"


def verify_frames(track: Track, pool: Pool) -> None:
    """Send the pool once and compare every frame with what decoding its bytes gives."""
    with open_receiver() as receiver:
        track.fill(pool, receiver.local_address(Line.A)[1], 1)
        batches: list[wire.FrameArray] = []
        while sum(batch.size for batch in batches) < pool.frames.size:
            batch = receiver.poll(1).copy()
            if not batch.size:
                raise BenchError(f"the socket holds less than the {pool.packet_count} packets of the pool")
            batches.append(batch)
    frames = np.concatenate(batches)
    ours_only = (
        "source_session",
        "event_time_ns",
        "publish_time_ns",
    )  # the pool was decoded without a session
    for name in frames.dtype.names or ():
        if name not in ours_only and not np.array_equal(frames[name], pool.frames[name]):
            raise BenchError(f"frames from the socket differ from frames from the bytes in {name}")


def ours_live(track: Track, pool: Pool, cycles: int) -> Sample:
    with open_receiver() as receiver:
        port = receiver.local_address(Line.A)[1]
        with track.sending(pool, port, 1, cycles * pool.packet_count):
            spent_ns, frame_count = receive_frames(receiver, track.control, cycles * pool.message_count)
        checksum = check_receiver(receiver, pool, cycles, frame_count)
    return rates(pool, cycles, spent_ns, checksum)


def ours_drain(track: Track, pool: Pool, cycles: int) -> Sample:
    with open_receiver() as receiver:
        port = receiver.local_address(Line.A)[1]
        spent_ns = frame_count = 0
        for cycle in range(cycles):
            track.fill(pool, port, 1 + cycle * pool.message_count)
            burst_ns, burst_frames = receive_frames(receiver, track.control, pool.message_count)
            spent_ns += burst_ns
            frame_count += burst_frames
        checksum = check_receiver(receiver, pool, cycles, frame_count)
    return rates(pool, cycles, spent_ns, checksum)


# --- the limit ----------------------------------------------------------------------------------------


def bare_receive(track: Track, line: socket.socket, pool: Pool, packet_count: int) -> tuple[int, int]:
    """Read and throw away; return ns from the first to the last datagram, and their bytes."""
    result = (ctypes.c_int64 * 2)()
    delivered = ctypes.c_void_p(track.control.words.ctypes.data)
    seconds_max = ctypes.c_double(SECONDS_MAX)
    count, per_packet = ctypes.c_int64(packet_count), ctypes.c_int64(pool.per_packet)
    failure = track.bare.bare_receive(line.fileno(), count, per_packet, delivered, seconds_max, result)
    if failure:
        raise BenchError(f"the bare loop failed: {os.strerror(failure)}")
    return result[0], result[1]


def bare_sample(pool: Pool, cycles: int, receive: Callable[[socket.socket, int], tuple[int, int]]) -> Sample:
    with closing(open_line_socket(ANYWHERE, BUFFER_BYTES)) as line:
        spent_ns, byte_count = receive(line, line.getsockname()[1])
        dropped = dropped_datagrams(line)
    if byte_count != cycles * pool.byte_count or dropped:
        wanted = cycles * pool.byte_count
        raise BenchError(f"the bare loop read {byte_count} of {wanted} bytes, {dropped} datagrams dropped")
    return rates(pool, cycles, spent_ns, f"{byte_count} bytes")


def bare_live(track: Track, pool: Pool, cycles: int) -> Sample:
    packet_count = cycles * pool.packet_count

    def receive(line: socket.socket, port: int) -> tuple[int, int]:
        with track.sending(pool, port, 1, packet_count):
            return bare_receive(track, line, pool, packet_count)

    return bare_sample(pool, cycles, receive)


def bare_drain(track: Track, pool: Pool, cycles: int) -> Sample:
    def receive(line: socket.socket, port: int) -> tuple[int, int]:
        spent_ns = byte_count = 0
        for _ in range(cycles):
            track.fill(pool, port, 1)
            burst_ns, burst_bytes = bare_receive(track, line, pool, pool.packet_count)
            spent_ns += burst_ns
            byte_count += burst_bytes
        return spent_ns, byte_count

    return bare_sample(pool, cycles, receive)


def rates(pool: Pool, cycles: int, spent_ns: int, checksum: str) -> Sample:
    per_s = 1e9 / max(spent_ns, 1)
    metrics = {
        "messages_per_s": cycles * pool.message_count * per_s,
        "packets_per_s": cycles * pool.packet_count * per_s,
    }
    return Sample(metrics, checksum)


# --- the run --------------------------------------------------------------------------------------------


def pool_packets(options: Options) -> int:
    """Return how many packets to have on the way: as many as this machine's sockets hold."""
    with closing(open_line_socket(ANYWHERE, BUFFER_BYTES)) as line:
        accounted_bytes = 2 * receive_buffer(line)
    return min(options.size(quick=50, full=POOL_PACKETS_MAX), accounted_bytes // DATAGRAM_COST_BYTES)


def case_name(situation: str, per_packet: int) -> str:
    return f"{situation}, {per_packet} per packet"


def run(options: Options) -> Report:
    cores = sorted(os.sched_getaffinity(0))
    packet_count = pool_packets(options)
    with tempfile.TemporaryDirectory(prefix="twintape-lines-") as name, pinned(len(cores) - 1):
        directory = Path(name)
        sender = compile_c(_HERE / "lines_sender.c")
        bare = ctypes.CDLL(str(compile_c(_HERE / "lines_bare.c", shared=True)))
        track = Track(Control(directory), sender, cores[0], bare)
        cases: list[Case] = []
        live_cycles = options.size(quick=2, full=max(200_000 // packet_count, 1))
        drain_cycles = options.size(quick=2, full=20)
        for per_packet in PER_PACKET:
            pool = make_pool(directory, per_packet, packet_count)
            verify_frames(track, pool)
            for situation, cycles, ours, limit in (
                ("live", live_cycles, ours_live, bare_live),
                ("drain", drain_cycles, ours_drain, bare_drain),
            ):
                label = case_name(situation, per_packet)
                cases.append(Case(US, label, _bound(ours, track, pool, cycles)))
                cases.append(Case(LIMIT, label, _bound(limit, track, pool, cycles)))
        results = interleave(cases, rounds=options.size(quick=1, full=7), warm_up_rounds=1)
    # The bar is for the live case, which is what a feed handler lives in. Draining shows the receiver's own
    # cost undiluted by the sender's: a figure to improve, not one that a feed ever runs at.
    label = case_name("live", BAR_PER_PACKET)
    ours_rate = value_of(results, US, label, "messages_per_s")
    share = ours_rate / value_of(results, LIMIT, label, "messages_per_s")
    bars = [Bar(f"live_{BAR_PER_PACKET}_per_packet_vs_bare", share, at_least=BAR_SHARE)]
    return Report(results, bars)


def _bound(
    measure: Callable[[Track, Pool, int], Sample], track: Track, pool: Pool, cycles: int
) -> Callable[[], Sample]:
    return lambda: measure(track, pool, cycles)
