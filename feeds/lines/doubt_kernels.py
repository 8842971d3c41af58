"""What is not believed of a single packet, compiled: a header can be damaged where no checksum sees it.

A joining point, a jump far ahead and an end of session need a second packet, or must fit what is known; what
a heartbeat says about the next number can be taken back (`arbitrate_kernels.withdraw_kernel`).
"""

from __future__ import annotations

from feeds.compiled import kernel
from feeds.formats import (
    KIND_END,
    LINE_RECOVERY,
    PACKET_SEQ,
    PACKET_SESSION,
    ByteArray,
    IntArray,
)
from feeds.lines.hold_kernels import (
    abandon_rows,
    release,
)
from feeds.lines.tables import (
    ARBITER_CLAIM_COUNT,
    ARBITER_EXPECTED,
    ARBITER_FAR_COUNT,
    ARBITER_FAR_LAST,
    ARBITER_FAR_LINE,
    ARBITER_FAR_NS,
    ARBITER_FAR_SEQ,
    ARBITER_FAR_TIMES,
    ARBITER_HIGH,
    ARBITER_HIGH_NS,
    ARBITER_IS_ENDED,
    ARBITER_IS_PROVISIONAL,
    ARBITER_JUMP_COUNT,
    ARBITER_JUMP_FROM,
    ARBITER_JUMP_LIMIT,
    ARBITER_JUMP_TO,
    ARBITER_PATIENCE_NS,
    ARBITER_SEEN_HIGH,
    ARBITER_SESSION,
    ARBITER_START,
    ARBITER_START_SETTING,
    CURRENT,
    LINE_CLAIM,
    LINE_CLAIM_NS,
    LINE_GAP_COUNT,
    LINE_SESSION,
    NEXT_HIGH,
    NEXT_IS_ENDED,
    NO_SESSION,
    START_FIRST_SEEN,
    LineTables,
)


@kernel
def join(tables: LineTables, packets: IntArray, index: int) -> None:
    """Take the first packet's session as ours, and where no start was set its number too.

    That number is provisional until a second packet agrees. Until then the first one's messages are held: if
    its header was damaged, they stand at numbers that are not theirs, and what follows would all be early.
    """
    state = tables.state
    state[ARBITER_SESSION] = packets[index, PACKET_SESSION]
    start = state[ARBITER_START_SETTING]
    if start == START_FIRST_SEEN:
        start = packets[index, PACKET_SEQ]
        state[ARBITER_IS_PROVISIONAL] = 1
    state[ARBITER_START] = start
    state[ARBITER_EXPECTED] = start
    state[ARBITER_HIGH] = start
    state[ARBITER_SEEN_HIGH] = start
    state[ARBITER_IS_ENDED] = 0


@kernel
def is_agreed(tables: LineTables, packets: IntArray, index: int) -> bool:
    """Return whether a packet speaks for the provisional joining point."""
    state = tables.state
    distance = abs(packets[index, PACKET_SEQ] - state[ARBITER_START])
    is_ours = packets[index, PACKET_SESSION] == state[ARBITER_SESSION]
    return bool(is_ours and distance <= state[ARBITER_JUMP_LIMIT])


@kernel
def forget_join(tables: LineTables) -> None:
    """Unlearn a joining point that the next packet contradicts, so that this one is the first."""
    abandon_rows(tables, CURRENT)
    for line in range(LINE_RECOVERY):
        tables.counts[line, LINE_SESSION] = NO_SESSION
        tables.counts[line, LINE_GAP_COUNT] = 0
        tables.counts[line, LINE_CLAIM_NS] = 0
    tables.state[ARBITER_SESSION] = NO_SESSION


@kernel
def settle_join(data: ByteArray, tables: LineTables) -> None:
    """Believe the joining point: deliver what its packet brought."""
    tables.state[ARBITER_IS_PROVISIONAL] = 0
    release(data, tables)


@kernel
def is_too_far(tables: LineTables, high: int, seq: int, line: int, time_ns: int) -> bool:
    """Return whether a number is further ahead than the jump limit and no second packet agrees.

    One damaged header must not make us wait for a billion messages that never were. A real jump (we were
    stopped for an hour) is followed by packets that go on from it, or, if nothing is published meanwhile, by
    heartbeats that repeat it: on the other line, or later, or a third time. The network's own copy of a
    packet is neither.
    """
    state = tables.state
    limit = state[ARBITER_JUMP_LIMIT]
    if seq - high <= limit:
        return False
    previous = state[ARBITER_FAR_SEQ]
    is_same = previous >= 0 and seq == previous
    is_repeated = is_same and (
        line != state[ARBITER_FAR_LINE]
        or time_ns - state[ARBITER_FAR_NS] >= state[ARBITER_PATIENCE_NS]
        or state[ARBITER_FAR_TIMES] >= 2
    )
    if is_repeated or (previous >= 0 and 0 < seq - previous <= limit):
        state[ARBITER_FAR_SEQ] = -1
        state[ARBITER_JUMP_COUNT] += 1
        state[ARBITER_JUMP_FROM] = high
        state[ARBITER_JUMP_TO] = seq
        return False
    if is_same:
        state[ARBITER_FAR_TIMES] += 1
    else:
        state[ARBITER_FAR_SEQ] = seq
        state[ARBITER_FAR_LINE] = line
        state[ARBITER_FAR_NS] = time_ns
        state[ARBITER_FAR_TIMES] = 1
    state[ARBITER_FAR_COUNT] += 1
    state[ARBITER_FAR_LAST] = seq
    return True


@kernel
def note_claim(tables: LineTables, line: int, end: int, time_ns: int) -> None:
    """Note which number a line names as its next; a packet from before the expected one is only old."""
    if line != LINE_RECOVERY and end >= tables.state[ARBITER_EXPECTED]:
        tables.counts[line, LINE_CLAIM] = end
        tables.counts[line, LINE_CLAIM_NS] = time_ns


@kernel
def take_heartbeat(tables: LineTables, side: int, kind: int, seq: int, time_ns: int) -> None:
    """Learn from a heartbeat or an end of session which number comes next."""
    state = tables.state
    high_field = ARBITER_HIGH if side == CURRENT else NEXT_HIGH
    ended_field = ARBITER_IS_ENDED if side == CURRENT else NEXT_IS_ENDED
    high = state[high_field]
    if side == CURRENT:
        if seq > high:
            state[ARBITER_CLAIM_COUNT] = 0
            state[ARBITER_HIGH_NS] = time_ns
        if seq >= high:
            state[ARBITER_CLAIM_COUNT] += 1
    state[high_field] = max(high, seq)
    if kind == KIND_END:
        if seq >= high:  # one that names a lower number is damaged: there is more
            state[ended_field] = 1
    elif seq > high or (side == CURRENT and state[ARBITER_EXPECTED] <= seq < high):
        state[ended_field] = 0  # the session goes on; if not, its end is repeated
