"""Packets for line tests, written into an arbiter's receive slots, and messages read from its runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feeds import formats
from feeds.formats import ExchangeFormat, IntArray
from feeds.lines.handler import LineArbiter
from tests.line_reference import Packet, message_of

LEAD_BYTES = 20  # stands for a packet header


def _no_requests(identity_0: int, identity_1: int, first: int, count: int) -> list[bytes]:
    return [f"{identity_0} {identity_1} {first} {count}".encode()]


def plain_format(*, is_prefix_big_endian: bool = True) -> ExchangeFormat:
    """Return a format whose requests can be read by eye, and which has no kernels."""
    return ExchangeFormat(
        name="plain",
        title="for tests",
        message_types=(),
        is_prefix_big_endian=is_prefix_big_endian,
        frames_per_message_max=1,
        time_zone="UTC",
        has_orders=False,
        transport_state_size=1,
        new_directory=lambda: np.zeros(1, dtype=np.int64),
        symbol_of=lambda _directory, _instrument: None,
        instrument_of=lambda _directory, _symbol: None,
        gap_requests=_no_requests,
    )


def put_packet(arbiter: LineArbiter, index: int, packet: Packet, order: str = "big") -> None:
    """Write one packet into receive slot `index` and describe it in row `index`."""
    assert order in ("big", "little")
    blocks = b"".join(
        len(message).to_bytes(2, "big" if order == "big" else "little") + message
        for message in (message_of(packet.session, seq) for seq in range(packet.seq, packet.end))
        if packet.kind == formats.KIND_DATA
    )
    offset = index * arbiter.config.slot_bytes + LEAD_BYTES
    assert LEAD_BYTES + len(blocks) <= arbiter.config.slot_bytes
    # What the slot held before must not shine through: a run that points here too late reads rubbish.
    arbiter.arena[offset - LEAD_BYTES : offset - LEAD_BYTES + arbiter.config.slot_bytes] = 0xEE
    arbiter.arena[offset : offset + len(blocks)] = np.frombuffer(blocks, dtype=np.uint8)
    row = arbiter.packets[index]
    row[formats.PACKET_KIND] = packet.kind
    row[formats.PACKET_OFFSET] = offset
    row[formats.PACKET_BYTES] = len(blocks)
    row[formats.PACKET_SEQ] = packet.seq
    row[formats.PACKET_COUNT] = packet.count
    row[formats.PACKET_SESSION] = packet.session
    row[formats.PACKET_IDENTITY_0] = packet.session * 1_000
    row[formats.PACKET_IDENTITY_1] = packet.session * 1_000 + 1
    row[formats.PACKET_LINE] = packet.line
    row[formats.PACKET_TIME_NS] = packet.time_ns


def read_runs(arbiter: LineArbiter, runs: IntArray, order: str = "big") -> list[tuple[int, int, bytes]]:
    """Return (session, number, bytes) of every message in the runs, whose blocks must fill them exactly."""
    messages = []
    for offset, byte_count, seq, count, session in runs.tolist():
        position = offset
        for index in range(count):
            prefix = arbiter.arena[position : position + 2].tobytes()
            length = int.from_bytes(prefix, "big" if order == "big" else "little")
            messages.append(
                (session, seq + index, arbiter.arena[position + 2 : position + 2 + length].tobytes())
            )
            position += 2 + length
        assert position == offset + byte_count
    return messages


def arbitrate(
    arbiter: LineArbiter, packets: Sequence[Packet], order: str = "big"
) -> list[tuple[int, int, bytes]]:
    """Run one batch and return its messages."""
    for index, packet in enumerate(packets):
        put_packet(arbiter, index, packet, order)
    return read_runs(arbiter, arbiter.on_packets(len(packets)), order)
