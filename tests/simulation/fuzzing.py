"""Millions of damaged packets through the path from datagram to frame, and what must hold for all of them.

- no crash and no hang: every call returns, every loop here is bounded;
- no frame violates its schema (the strict validation of feeds/validation.py);
- nothing is skipped in silence: a datagram is a packet or a counted bad one, and every message of a packet
  is at least one frame, so that messages, frames and sequence numbers add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feeds import formats as f
from feeds import wire
from feeds.validation import validate
from tests.simulation.mutation_kernels import mutate_kernel

BATCH_PACKETS = 512
SLOT_BYTES = 2048
FRAME_ROWS = 4096


@dataclass(frozen=True)
class FuzzReport:
    """What the packets of one seed came to."""

    packets: int
    bad_packets: int
    messages: int
    frames: int
    unparsed: int


class PacketFuzzer:
    """Feeds mutated packets of one exchange format through its kernels and checks every batch."""

    def __init__(self, exchange: f.ExchangeFormat, pool: Sequence[bytes], seed: int) -> None:
        self.exchange = exchange
        self.pool = np.frombuffer(b"".join(pool), dtype=np.uint8)
        self.pool_begin = np.cumsum([0, *map(len, pool)], dtype=np.int64)
        self.random = np.array([seed * 2_654_435_761 + 88_172_645_463_325_252], dtype=np.int64)
        self.arena = np.zeros(BATCH_PACKETS * SLOT_BYTES, dtype=np.uint8)
        self.datagrams = np.zeros((BATCH_PACKETS, f.DATAGRAM_FIELDS), dtype=np.int64)
        self.packets = np.zeros((BATCH_PACKETS, f.PACKET_FIELDS), dtype=np.int64)
        self.transport = np.zeros(exchange.transport_state_size, dtype=np.int64)
        self.runs = np.zeros((BATCH_PACKETS, f.RUN_FIELDS), dtype=np.int64)
        self.state = np.zeros(f.STATE_FIELDS, dtype=np.int64)
        self.counts = np.zeros(f.TYPE_COUNT, dtype=np.int64)
        self.problems = np.zeros((f.PROBLEM_SLOTS, f.PROBLEM_FIELDS), dtype=np.int64)
        self.directory = exchange.new_directory()
        self.frames = wire.empty(FRAME_ROWS)

    def run(self, packet_count: int, check: Callable[[wire.FrameArray], object] = validate) -> FuzzReport:
        bad = messages = frames = 0
        for _ in range(-(-packet_count // BATCH_PACKETS)):
            mutate_kernel(
                self.pool,
                self.pool_begin,
                self.arena,
                SLOT_BYTES,
                self.datagrams,
                BATCH_PACKETS,
                self.random,
            )
            self.transport[:] = 0  # what a damaged packet made it believe must not hide the other packets
            bad += self._parse()
            run_count = self._take_runs()
            messages += int(self.runs[:run_count, f.RUN_COUNT].sum())
            frames += self._decode(run_count, check)
        assert self.state[f.STATE_MESSAGE_COUNT] == messages, "a message was skipped or counted twice"
        assert self.counts.sum() == messages, "the counts per type do not add up"
        assert self.state[f.STATE_FRAME_COUNT] == frames
        packets = -(-packet_count // BATCH_PACKETS) * BATCH_PACKETS
        return FuzzReport(packets, bad, messages, frames, int(self.state[f.STATE_PROBLEM_COUNT]))

    def _parse(self) -> int:
        self.packets[:] = -1
        bad = self.exchange.parse_packets_kernel(
            self.arena, self.datagrams, BATCH_PACKETS, self.transport, self.packets
        )
        kinds = self.packets[:, f.PACKET_KIND]
        assert np.isin(kinds, [f.KIND_DATA, f.KIND_HEARTBEAT, f.KIND_END, f.KIND_BAD]).all()
        assert int((kinds == f.KIND_BAD).sum()) == bad
        reasons = self.packets[kinds == f.KIND_BAD, f.PACKET_COUNT]
        assert np.isin(reasons, list(f.BAD_REASON_TEXT)).all(), "a bad packet without a reason"
        return int(bad)

    def _take_runs(self) -> int:
        """Turn every data packet into a run, whatever its number, after checking that it lies inside."""
        data = self.packets[self.packets[:, f.PACKET_KIND] == f.KIND_DATA]
        datagrams = self.datagrams[self.packets[:, f.PACKET_KIND] == f.KIND_DATA]
        begin, end = data[:, f.PACKET_OFFSET], data[:, f.PACKET_OFFSET] + data[:, f.PACKET_BYTES]
        slot_begin = datagrams[:, f.DATAGRAM_OFFSET]
        assert (begin >= slot_begin).all()
        assert (end <= slot_begin + datagrams[:, f.DATAGRAM_BYTES]).all(), "a packet leaves its datagram"
        assert (data[:, f.PACKET_SEQ] >= 0).all()
        assert (data[:, f.PACKET_SEQ] < f.SEQUENCE_LIMIT).all()
        runs = self.runs[: len(data)]
        runs[:, f.RUN_OFFSET] = begin
        runs[:, f.RUN_BYTES] = data[:, f.PACKET_BYTES]
        runs[:, f.RUN_SEQ] = data[:, f.PACKET_SEQ]
        runs[:, f.RUN_COUNT] = data[:, f.PACKET_COUNT]
        runs[:, f.RUN_SESSION] = data[:, f.PACKET_SESSION]
        return len(data)

    def _decode(self, run_count: int, check: Callable[[wire.FrameArray], object]) -> int:
        self.state[[f.STATE_RUN_INDEX, f.STATE_BYTE_INDEX, f.STATE_MESSAGE_INDEX]] = 0
        total = 0
        words = wire.words(self.frames)
        message_max = int(self.runs[:run_count, f.RUN_COUNT].sum())
        for _ in range(message_max + 2):  # at least one message a step: a kernel that stalls is found here
            count = self.exchange.decode_kernel(
                self.arena,
                self.runs,
                run_count,
                self.state,
                self.counts,
                self.problems,
                self.directory,
                words,
            )
            check(self.frames[:count])
            total += int(count)
            if self.state[f.STATE_RUN_INDEX] >= run_count:
                return total
        raise AssertionError(f"decode_kernel did not finish {run_count} runs of {message_max} messages")
