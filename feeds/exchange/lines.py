"""A line of the simulated exchange: packets cut in its own way, lost, delayed, doubled, overtaken, and sent.

`ExchangeLine` decides and remembers, without a socket: blocks or packets go in, `take` gives what is on the
wire. `ExchangeLineSocket` is the thin shell that sends the same to a UDP address, many packets per call.
What happened to every packet is counted: the truth against which a receiver's account can be held.
"""

from __future__ import annotations

import random
import socket
import struct
from dataclasses import dataclass

import numpy as np

from feeds.chance_kernels import RNG
from feeds.errors import ConfigError
from feeds.exchange import lines_kernels as k
from feeds.formats import DATAGRAM_BYTES, DATAGRAM_FIELDS, ByteArray, IntArray
from feeds.lines.sockets import Endpoint
from feeds.moldudp64 import (
    HEADER_BYTES,
    MESSAGE_COUNT_MAX,
    PACKET_BYTES_DEFAULT,
    UDP_PAYLOAD_BYTES_MAX,
    session_bytes,
)

_DELAY_NS_MAX = 10_000_000_000
_DROPS_MAX = 1 << 16
_SEND_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Impairment:
    """What a line does to packets: probabilities are per packet, 0 is a perfect line."""

    loss: float = 0.0
    burst_loss: float = 0.0  # that a run of losses begins at a packet
    burst_packets: int = 8  # how many it swallows on average
    duplication: float = 0.0
    reordering: float = 0.0
    reorder_span: int = 4  # how many later packets may overtake one
    delay_ns: int = 0
    jitter_ns: int = 0  # added to the delay, evenly spread; packets still keep their order

    def __post_init__(self) -> None:
        for name in ("loss", "burst_loss", "duplication", "reordering"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be a probability from 0 to 1, was {getattr(self, name)}")
        for name, most in (("burst_packets", 10_000), ("reorder_span", 256)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be in 1 to {most}, was {getattr(self, name)}")
        for name in ("delay_ns", "jitter_ns"):
            if not 0 <= getattr(self, name) <= _DELAY_NS_MAX:
                raise ConfigError(f"{name} must be in 0 to {_DELAY_NS_MAX}, was {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Cut:
    """How messages are cut into packets: each takes as many as it draws between two limits, if they fit."""

    messages_min: int = 1
    messages_max: int = 40
    packet_bytes: int = PACKET_BYTES_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.messages_min <= self.messages_max <= MESSAGE_COUNT_MAX:
            raise ConfigError(
                f"messages_min and messages_max must be in 1 to {MESSAGE_COUNT_MAX} and in order, "
                f"were {self.messages_min} and {self.messages_max}"
            )
        if not 128 <= self.packet_bytes <= UDP_PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"packet_bytes must be in 128 to {UDP_PAYLOAD_BYTES_MAX}, was {self.packet_bytes}"
            )


@dataclass(frozen=True, slots=True)
class ExchangeLineCounts:
    """What became of a line's packets: offered = dropped + (sent - duplicated) + failed + still waiting."""

    offered_packets: int
    offered_messages: int
    dropped_packets: int
    dropped_messages: int
    duplicated_packets: int
    reordered_packets: int
    sent_packets: int
    sent_messages: int
    sent_bytes: int
    failed_packets: int
    waiting_packets: int
    full_socket_waits: int


class ExchangeLine:
    """The packets of one line on their way: seeded, and the same for the same packets at any speed."""

    def __init__(
        self,
        impairment: Impairment,
        cut: Cut,
        seed: int,
        *,
        slot_count: int = 4_096,
        slot_bytes: int | None = None,
    ) -> None:
        if slot_count < 16 or slot_count & (slot_count - 1):
            raise ConfigError(f"slot_count must be a power of two from 16 on, was {slot_count}")
        self.impairment = impairment
        self.cut = cut
        # Copies are made in whole words, so a slot ends on one.
        self.slot_bytes = -(-max(slot_bytes or 0, cut.packet_bytes) // 8) * 8
        self._state = np.zeros(k.LINE_FIELDS, np.int64)
        self._slots = np.zeros(slot_count * self.slot_bytes, np.uint8)
        self._free_slots = np.arange(slot_count - 1, -1, -1, dtype=np.int64)
        self._queue = np.zeros((slot_count, k.QUEUE_FIELDS), np.int64)
        self._drops = np.zeros((_DROPS_MAX, k.DROP_FIELDS), np.int64)
        state = self._state
        state[RNG] = random.Random(seed).getrandbits(62) | 1
        state[k.LOSS] = round(impairment.loss * k.CHANCE_WHOLE)
        state[k.BURST_LOSS] = round(impairment.burst_loss * k.CHANCE_WHOLE)
        state[k.BURST_PACKETS] = impairment.burst_packets
        state[k.DUPLICATION] = round(impairment.duplication * k.CHANCE_WHOLE)
        state[k.REORDERING] = round(impairment.reordering * k.CHANCE_WHOLE)
        state[k.REORDER_SPAN] = impairment.reorder_span
        state[k.DELAY_NS] = impairment.delay_ns
        state[k.JITTER_NS] = impairment.jitter_ns
        state[k.MESSAGES_MIN] = cut.messages_min
        state[k.MESSAGES_MAX] = cut.messages_max
        state[k.PACKET_BYTES] = cut.packet_bytes
        state[k.FREE_COUNT] = slot_count

    @property
    def counts(self) -> ExchangeLineCounts:
        state = self._state
        return ExchangeLineCounts(
            *(
                int(state[field])
                for field in (
                    k.PACKET_INDEX,
                    k.OFFERED_MESSAGES,
                    k.DROPPED_PACKETS,
                    k.DROPPED_MESSAGES,
                    k.DUPLICATED_PACKETS,
                    k.REORDERED_PACKETS,
                    k.SENT_PACKETS,
                    k.SENT_MESSAGES,
                    k.SENT_BYTES,
                    k.FAILED_PACKETS,
                    k.QUEUE_COUNT,
                    k.WAIT_COUNT,
                )
            )
        )

    @property
    def waiting_count(self) -> int:
        return int(self._state[k.QUEUE_COUNT])

    @property
    def next_due_ns(self) -> int | None:
        """When the head of the queue may go, as far as its delay is concerned; None when nothing waits."""
        if self.waiting_count == 0:
            return None
        row = int(self._state[k.QUEUE_HEAD]) & (len(self._queue) - 1)
        return int(self._queue[row, k.QUEUE_DUE_NS])

    def offer_blocks(
        self, session: bytes, first_sequence: int, data: ByteArray, offsets: IntArray, first: int, now_ns: int
    ) -> int:
        """Cut blocks from index `first` on into MoldUDP64 packets; return how many blocks found room."""
        return k.cut_kernel(
            data,
            offsets,
            first,
            first_sequence,
            np.frombuffer(session, np.uint8),
            self._state,
            self._slots,
            self.slot_bytes,
            self._free_slots,
            self._queue,
            self._drops,
            now_ns,
        )

    def take_drops(self) -> list[tuple[int, int]]:
        """Return which messages were in lost packets since the last call: ascending, half-open ranges.

        A caller that lets more than 65,536 packets get lost in between is told of the first ones only.
        """
        count = int(self._state[k.DROP_COUNT])
        self._state[k.DROP_COUNT] = 0
        return [(begin, end) for begin, end in self._drops[:count].tolist()]

    def offer_datagrams(
        self, data: ByteArray, datagrams: IntArray, message_counts: IntArray, first: int, now_ns: int
    ) -> int:
        """Offer ready packets from row `first` on; return how many found room in the queue."""
        return k.offer_datagrams_kernel(
            data,
            datagrams,
            first,
            message_counts,
            self._state,
            self._slots,
            self.slot_bytes,
            self._free_slots,
            self._queue,
            now_ns,
        )

    def offer_packet(self, packet: bytes, now_ns: int) -> bool:
        """Offer one packet without messages, such as a heartbeat; return whether there was room for it."""
        if not 1 <= len(packet) <= self.slot_bytes:
            raise ConfigError(
                f"a packet must be 1 to {self.slot_bytes} bytes (slot_bytes), was {len(packet)}"
            )
        row = np.zeros((1, DATAGRAM_FIELDS), np.int64)
        row[0, DATAGRAM_BYTES] = len(packet)
        data = np.frombuffer(packet, np.uint8)
        return self.offer_datagrams(data, row, np.zeros(1, np.int64), 0, now_ns) == 1

    def take(self, now_ns: int, *, is_flushing: bool = False) -> list[bytes]:
        """Return the packets that are on the wire now, for tests and simulations that have no socket."""
        due = k.find_due_kernel(self._state, self._queue, now_ns, is_flushing)
        packets = []
        for place in range(due):
            row = (int(self._state[k.QUEUE_HEAD]) + place) & (len(self._queue) - 1)
            begin = int(self._queue[row, k.QUEUE_SLOT]) * self.slot_bytes
            packets.append(self._slots[begin : begin + int(self._queue[row, k.QUEUE_BYTES])].tobytes())
        k.forget_kernel(self._state, self._free_slots, self._queue, due)
        return packets


def parse_endpoint(text: str, interface: str | None = None) -> Endpoint:
    """Return the endpoint "127.0.0.1:26400"; anything else is a ConfigError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise ConfigError(f"an address must be IPv4 with a port, such as 127.0.0.1:26400, was {text!r}")
    return Endpoint(host, int(port), interface)


class ExchangeLineSocket:
    """Sends a line's packets to one UDP address, unicast or multicast. Owns the socket."""

    def __init__(self, line: ExchangeLine, target: Endpoint, *, ttl: int = 1) -> None:
        if target.port == 0:
            raise ConfigError(f"a line must be sent to a port, was {target}")
        self.line = line
        self.target = target
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            if target.is_multicast:
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                if target.interface is not None:
                    self._socket.setsockopt(
                        socket.IPPROTO_IP, socket.IP_MULTICAST_IF, multicast_interface(target.interface)
                    )
        except BaseException:
            self._socket.close()
            raise
        # struct sockaddr_in: family in host order, port and address in network order, eight bytes of padding.
        name = struct.pack("=H", socket.AF_INET) + struct.pack(
            "!H4s8x", target.port, socket.inet_aton(target.host)
        )
        self._name = np.frombuffer(name, np.uint8).copy()
        slot_count = len(line._queue)
        self._vectors = np.zeros((slot_count, k.VECTOR_WORDS), np.int64)
        self._vectors[:, 0] = line._slots.ctypes.data + np.arange(slot_count) * line.slot_bytes
        self._headers = np.zeros((k.SEND_MAX, k.HEADER_WORDS), np.int64)
        self._headers[:, k.HEADER_NAME] = self._name.ctypes.data
        self._headers[:, k.HEADER_NAME_BYTES] = self._name.size
        self._headers[:, k.HEADER_VECTOR_COUNT] = 1
        self._vectors_address = self._vectors.ctypes.data

    def send(self, now_ns: int, *, is_flushing: bool = False) -> int:
        """Send what may go now, as far as the socket takes it; return how many packets left the queue."""
        line = self.line
        due = k.find_due_kernel(line._state, line._queue, now_ns, is_flushing)
        if due == 0:
            return 0
        return k.send_kernel(
            self._socket.fileno(),
            line._state,
            line._free_slots,
            line._queue,
            self._headers,
            self._vectors,
            self._vectors_address,
            due,
        )

    def close(self) -> None:
        self._socket.close()


def multicast_interface(name: str) -> bytes:
    """Return struct ip_mreqn for an interface given by its name or by its address."""
    try:
        return struct.pack("4s4si", bytes(4), socket.inet_aton(name), 0)
    except OSError:
        pass  # not an address
    try:
        return struct.pack("4s4si", bytes(4), bytes(4), socket.if_nametoindex(name))
    except OSError:
        raise ConfigError(f"interface must be an address or a name of this machine, was {name!r}") from None


def find_blocks(data: ByteArray) -> IntArray:
    """Return where the length-prefixed blocks in `data` begin, and behind them where the last one ends."""
    offsets = np.zeros(data.size // (k.PREFIX_BYTES + 1) + 2, np.int64)
    count = k.find_blocks_kernel(data, data.size, offsets)
    return offsets[: count + 1]


def warm_up_line() -> None:
    """Compile a line's kernels by sending two packets to a socket of our own."""
    line = ExchangeLine(Impairment(), Cut(), 1, slot_count=16)
    data = np.zeros(16, np.uint8)
    data[1] = 6
    line.offer_blocks(session_bytes("WARM"), 1, data, find_blocks(data[:8]), 0, 0)
    line.offer_packet(bytes(HEADER_BYTES), 0)
    line.take(-1)
    k.count_until_kernel(data, np.zeros(1, np.int64), 0, 0, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        shell = ExchangeLineSocket(line, Endpoint(*receiver.getsockname()))
        shell.send(0)
        shell.close()
