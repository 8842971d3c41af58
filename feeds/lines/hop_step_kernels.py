"""What the hop kernels of all exchanges share: their memory, and when a new batch may begin.

An exchange's `hop_kernel` differs only in the two kernels that it calls by name, so that the compiler sees
through the whole step and its code can be cached; everything else is here and in the kernels it calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    PACKET_FIELDS,
    PROBLEM_FIELDS,
    PROBLEM_SLOTS,
    STATE_BYTE_INDEX,
    STATE_FIELDS,
    STATE_MESSAGE_INDEX,
    STATE_RUN_INDEX,
    TYPE_COUNT,
    ByteArray,
    ExchangeFormat,
    IntArray,
)
from feeds.lines.receive_kernels import ReceiveTables, new_receive_tables
from feeds.lines.tables import ARBITER_RUN_COUNT, LineTables, new_tables
from feeds.wire import FRAME_WORDS, WordArray

# The same arrays as one plain tuple: entering compiled code with it takes 1.6 us, with nested named ones 4.3.
FlatTables = tuple[IntArray, ...]


class HopTables(NamedTuple):
    """All memory of a receive path except the arena."""

    receive: ReceiveTables
    transport_state: IntArray
    packets: IntArray
    lines: LineTables
    decoder_state: IntArray
    type_counts: IntArray
    problems: IntArray
    directory: IntArray
    words: WordArray


def flatten(tables: HopTables) -> FlatTables:
    """Return what `gather` makes tables of again, inside compiled code."""
    flat: list[Any] = []
    for part in tables:
        flat += part if isinstance(part, tuple) else [part]
    return tuple(flat)


@kernel
def gather(flat: FlatTables) -> HopTables:
    return HopTables(
        ReceiveTables(flat[0], flat[1], flat[2], flat[3], flat[4]),
        flat[5],
        flat[6],
        LineTables(flat[7], flat[8], flat[9], flat[10], flat[11], flat[12], flat[13], flat[14], flat[15]),
        flat[16],
        flat[17],
        flat[18],
        flat[19],
        flat[20],
    )


@kernel
def has_runs(tables: HopTables) -> bool:
    """Return whether runs are still to be decoded: the output was full, or more came free since."""
    return bool(tables.decoder_state[STATE_RUN_INDEX] < tables.lines.state[ARBITER_RUN_COUNT])


@kernel
def begin_runs(tables: HopTables) -> None:
    """Set the decoder before the first of new runs."""
    tables.decoder_state[STATE_RUN_INDEX] = 0
    tables.decoder_state[STATE_BYTE_INDEX] = 0
    tables.decoder_state[STATE_MESSAGE_INDEX] = 0


def small_tables(exchange: ExchangeFormat) -> tuple[ByteArray, HopTables]:
    """Return an arena and tables without sockets, of the types that a receiver uses: to compile with."""
    arena = np.zeros(8 * 64, dtype=np.uint8)
    tables = HopTables(
        receive=new_receive_tables(arena, 2, 64, []),
        transport_state=np.zeros(exchange.transport_state_size, dtype=np.int64),
        packets=np.zeros((2, PACKET_FIELDS), dtype=np.int64),
        lines=new_tables(
            is_prefix_big_endian=exchange.is_prefix_big_endian,
            batch_packets=2,
            hold_slots=2,
            hold_offset=128,
            hold_slot_bytes=64,
            jump_limit=1_000,
        ),
        decoder_state=np.zeros(STATE_FIELDS, dtype=np.int64),
        type_counts=np.zeros(TYPE_COUNT, dtype=np.int64),
        problems=np.zeros((PROBLEM_SLOTS, PROBLEM_FIELDS), dtype=np.int64),
        directory=exchange.new_directory(),
        words=np.zeros((4, FRAME_WORDS), dtype=np.int64),
    )
    return arena, tables
