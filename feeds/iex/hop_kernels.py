"""From the socket to the frame as one compiled step, for IEX DEEP and TOPS over IEX-TP."""

from __future__ import annotations

from feeds.compiled import kernel
from feeds.formats import STATE_PUBLISH_NS, ByteArray
from feeds.iex import FORMAT
from feeds.iex.decode_kernels import decode_kernel
from feeds.iex.transport_kernels import parse_packets_kernel
from feeds.lines.arbitrate_kernels import arbitrate_kernel
from feeds.lines.hop_step_kernels import FlatTables, begin_runs, flatten, gather, has_runs, small_tables
from feeds.lines.receive_kernels import receive_kernel
from feeds.lines.tables import ARBITER_RUN_COUNT


@kernel
def hop_kernel(arena: ByteArray, flat: FlatTables, time_ns: int) -> int:
    """Receive, parse, arbitrate and decode; return the count of frames in the words.

    Runs that are left from the last call are decoded first, and nothing is received meanwhile.
    """
    tables = gather(flat)
    if not has_runs(tables):
        datagrams = tables.receive.datagrams
        datagram_count = receive_kernel(tables.receive, time_ns)
        parse_packets_kernel(arena, datagrams, datagram_count, tables.transport_state, tables.packets)
        arbitrate_kernel(arena, tables.packets, datagram_count, tables.lines)
        begin_runs(tables)
    tables.decoder_state[STATE_PUBLISH_NS] = time_ns
    return decode_kernel(
        arena,
        tables.lines.runs,
        tables.lines.state[ARBITER_RUN_COUNT],
        tables.decoder_state,
        tables.type_counts,
        tables.problems,
        tables.directory,
        tables.words,
    )


def warm_up() -> None:
    arena, tables = small_tables(FORMAT)
    hop_kernel(arena, flatten(tables), 0)
