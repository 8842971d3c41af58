"""Arbitration, compiled: packets of line A, line B and the re-request server in, one ordered stream out.

The unit is the message, not the packet: the lines may cut the same messages into packets differently, so a
packet that starts before the expected number and ends behind it gives its tail. In order and without a hole
a packet costs a handful of comparisons and becomes one run, where it lies. The kernels never judge time and
never leave a session: `handler` decides, and calls `give_up_kernel`, `roll_kernel` and `dismiss_kernel`.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    KIND_BAD,
    KIND_DATA,
    LINE_RECOVERY,
    PACKET_BYTES,
    PACKET_COUNT,
    PACKET_FIELDS,
    PACKET_IDENTITY_0,
    PACKET_IDENTITY_1,
    PACKET_KIND,
    PACKET_LINE,
    PACKET_OFFSET,
    PACKET_SEQ,
    PACKET_SESSION,
    PACKET_TIME_NS,
    RUN_BYTES,
    RUN_COUNT,
    RUN_OFFSET,
    RUN_SEQ,
    RUN_SESSION,
    ByteArray,
    IntArray,
)
from feeds.lines.doubt_kernels import (
    forget_join,
    is_agreed,
    is_too_far,
    join,
    note_claim,
    settle_join,
    take_heartbeat,
)
from feeds.lines.hold_kernels import (
    abandon_rows,
    add_run,
    copy_held,
    count_uncovered,
    hold,
    reclaim_released,
    release,
)
from feeds.lines.loss_kernels import cut_line, follow_line
from feeds.lines.tables import (
    ARBITER_CLAIM_COUNT,
    ARBITER_DELIVERED,
    ARBITER_EXPECTED,
    ARBITER_FAR_SEQ,
    ARBITER_FILL_COUNT,
    ARBITER_HIGH,
    ARBITER_HIGH_NS,
    ARBITER_IDENTITY_0,
    ARBITER_IDENTITY_1,
    ARBITER_IS_ENDED,
    ARBITER_IS_PROVISIONAL,
    ARBITER_LOST,
    ARBITER_LOST_COUNT,
    ARBITER_PAST_COUNT,
    ARBITER_PATIENCE_NS,
    ARBITER_ROW_BEGIN,
    ARBITER_ROW_END,
    ARBITER_RUN_COUNT,
    ARBITER_SEEN_HIGH,
    ARBITER_SESSION,
    ARBITER_SESSION_NS,
    ARBITER_START,
    BAD_REASON_MAX,
    COUNT_BAD,
    COUNT_DUPLICATE,
    COUNT_EARLY,
    COUNT_FAR,
    COUNT_FILLED,
    COUNT_FIRST,
    COUNT_FOREIGN,
    COUNT_HEARTBEATS,
    COUNT_LATE,
    COUNT_MESSAGES,
    COUNT_PACKETS,
    COUNT_STALE,
    CURRENT,
    FILL_FIRST,
    FILL_LAST,
    FILL_LINE,
    FILL_SLOTS,
    FOLLOWING,
    HELD_END,
    HELD_FIELDS,
    HELD_SEQ,
    LINE_CLAIM,
    LINE_CLAIM_NS,
    LINE_NEXT,
    LINE_SESSION,
    LINE_TIME_NS,
    LOST_SLOTS,
    NEXT_BEGIN_NS,
    NEXT_DATA,
    NEXT_FIRST,
    NEXT_HIGH,
    NEXT_IDENTITY_0,
    NEXT_IDENTITY_1,
    NEXT_IS_ENDED,
    NEXT_PACKETS,
    NEXT_SEEN_HIGH,
    NEXT_SESSION,
    NEXT_SESSION_NS,
    NO_SESSION,
    PAST_SLOTS,
    LineTables,
    new_tables,
)

_NEITHER = -1  # a packet of a session that is not followed


@kernel
def choose_side(data: ByteArray, tables: LineTables, packets: IntArray, index: int) -> int:
    """Return which session a packet belongs to: CURRENT, FOLLOWING, or neither (and count it so)."""
    state = tables.state
    session = packets[index, PACKET_SESSION]
    line = packets[index, PACKET_LINE]
    if state[ARBITER_IS_PROVISIONAL]:
        if is_agreed(tables, packets, index):
            settle_join(data, tables)
        else:
            forget_join(tables)
    if state[ARBITER_SESSION] == NO_SESSION:
        join(tables, packets, index)
    if session == state[ARBITER_SESSION]:
        state[ARBITER_IDENTITY_0] = packets[index, PACKET_IDENTITY_0]
        state[ARBITER_IDENTITY_1] = packets[index, PACKET_IDENTITY_1]
        return CURRENT
    if session == state[NEXT_SESSION]:
        return FOLLOWING
    message_count = packets[index, PACKET_COUNT] if packets[index, PACKET_KIND] == KIND_DATA else 0
    for past_index in range(PAST_SLOTS):
        if tables.past[past_index] == session:
            tables.counts[line, COUNT_STALE] += message_count
            return _NEITHER
    # Nobody can ask for a session that is not known yet: an answer cannot start one.
    if state[NEXT_SESSION] != NO_SESSION or line == LINE_RECOVERY:
        tables.counts[line, COUNT_FOREIGN] += message_count
        return _NEITHER
    state[NEXT_SESSION] = session
    state[NEXT_IDENTITY_0] = packets[index, PACKET_IDENTITY_0]
    state[NEXT_IDENTITY_1] = packets[index, PACKET_IDENTITY_1]
    state[NEXT_FIRST] = packets[index, PACKET_SEQ]
    state[NEXT_HIGH] = 1
    state[NEXT_SEEN_HIGH] = 1
    state[NEXT_IS_ENDED] = 0
    state[NEXT_PACKETS] = 0
    state[NEXT_DATA] = 0
    return FOLLOWING


@kernel
def count_passed(tables: LineTables, line: int, first: int, end: int) -> None:
    """Count messages of [first, end), all before the expected number: early, late or duplicate."""
    counts = tables.counts
    start = tables.state[ARBITER_START]
    if first < start:
        counts[line, COUNT_EARLY] += min(end, start) - first
        first = min(end, start)
    late = 0
    for index in range(min(tables.state[ARBITER_LOST_COUNT], LOST_SLOTS)):
        late += max(min(end, tables.lost[index, 1]) - max(first, tables.lost[index, 0]), 0)
    counts[line, COUNT_LATE] += late
    counts[line, COUNT_DUPLICATE] += end - first - late


@kernel
def log_fill(tables: LineTables, line: int, first: int, last: int) -> None:
    slot = tables.state[ARBITER_FILL_COUNT] % FILL_SLOTS
    tables.fills[slot, FILL_FIRST] = first
    tables.fills[slot, FILL_LAST] = last
    tables.fills[slot, FILL_LINE] = line
    tables.state[ARBITER_FILL_COUNT] += 1


@kernel
def accept(
    data: ByteArray,
    tables: LineTables,
    side: int,
    seq: int,
    end: int,
    offset: int,
    byte_count: int,
    line: int,
) -> None:
    """Deliver, hold or drop the messages [seq, end) of one packet."""
    state = tables.state
    counts = tables.counts
    high_field = ARBITER_HIGH if side == CURRENT else NEXT_HIGH
    expected = state[ARBITER_EXPECTED] if side == CURRENT else 1
    first = max(seq, expected)
    if seq < expected:
        if side == CURRENT:
            count_passed(tables, line, seq, min(end, expected))
        else:
            counts[line, COUNT_EARLY] += min(end, expected) - seq  # sessions start at 1
        if end <= expected:
            return
    uncovered = count_uncovered(tables, side, first, end)
    counts[line, COUNT_FIRST] += uncovered
    counts[line, COUNT_DUPLICATE] += end - first - uncovered
    if uncovered == 0:
        return
    high = state[high_field]
    if first < high:
        filled = count_uncovered(tables, side, first, min(end, high))
        counts[line, COUNT_FILLED] += filled
        if filled > 0 and side == CURRENT:
            log_fill(tables, line, first, min(end, high) - 1)
    if end > high:
        state[high_field] = end
        state[ARBITER_IS_ENDED if side == CURRENT else NEXT_IS_ENDED] = 0  # it was not the end
    seen_field = ARBITER_SEEN_HIGH if side == CURRENT else NEXT_SEEN_HIGH
    state[seen_field] = max(state[seen_field], end)
    if side == CURRENT and first == expected and not state[ARBITER_IS_PROVISIONAL]:
        add_run(data, tables, seq, first, end, offset, byte_count)
        release(data, tables)
    else:
        hold(tables, side, seq, end, offset, byte_count, line)


@kernel
def note_time(tables: LineTables, side: int, line: int, kind: int, time_ns: int) -> None:
    """Note that a line speaks of a session: answers are no sign of life."""
    state = tables.state
    if line == LINE_RECOVERY:
        return
    if side == CURRENT:
        state[ARBITER_SESSION_NS] = max(state[ARBITER_SESSION_NS], time_ns)
        return
    if state[NEXT_PACKETS] == 0:
        state[NEXT_BEGIN_NS] = time_ns
    state[NEXT_PACKETS] += 1
    state[NEXT_DATA] += 1 if kind == KIND_DATA else 0
    state[NEXT_SESSION_NS] = max(state[NEXT_SESSION_NS], time_ns)


@kernel
def take_packet(data: ByteArray, tables: LineTables, packets: IntArray, index: int) -> None:
    """Judge one good packet, whatever it is."""
    state = tables.state
    counts = tables.counts
    line = packets[index, PACKET_LINE]
    kind = packets[index, PACKET_KIND]
    seq = packets[index, PACKET_SEQ]
    message_count = packets[index, PACKET_COUNT] if kind == KIND_DATA else 0
    end = seq + message_count
    time_ns = packets[index, PACKET_TIME_NS]
    side = choose_side(data, tables, packets, index)
    if side == _NEITHER:
        return
    note_time(tables, side, line, kind, time_ns)
    high_field = ARBITER_HIGH if side == CURRENT else NEXT_HIGH
    if is_too_far(tables, state[high_field], seq, line, time_ns):
        counts[line, COUNT_FAR] += message_count
        return
    follow_line(tables, line, packets[index, PACKET_SESSION], seq, end)
    if side == FOLLOWING:
        state[NEXT_FIRST] = min(state[NEXT_FIRST], seq)
    if kind == KIND_DATA:
        offset = packets[index, PACKET_OFFSET]
        accept(data, tables, side, seq, end, offset, packets[index, PACKET_BYTES], line)
    else:
        take_heartbeat(tables, side, kind, seq, time_ns)
    if side == CURRENT:
        note_claim(tables, line, end, time_ns)


@kernel
def arbitrate_kernel(data: ByteArray, packets: IntArray, packet_count: int, tables: LineTables) -> int:
    """Turn a batch of packets into runs; return their count. The runs of the last batch are decoded."""
    reclaim_released(tables)
    state = tables.state
    counts = tables.counts
    runs = tables.runs
    for index in range(packet_count):
        line = packets[index, PACKET_LINE]
        kind = packets[index, PACKET_KIND]
        message_count = packets[index, PACKET_COUNT]
        counts[line, COUNT_PACKETS] += 1
        if kind == KIND_BAD:
            counts[line, COUNT_BAD + min(message_count, BAD_REASON_MAX)] += 1
            continue
        time_ns = packets[index, PACKET_TIME_NS]
        counts[line, LINE_TIME_NS] = time_ns
        if kind == KIND_DATA:
            counts[line, COUNT_MESSAGES] += message_count
        else:
            counts[line, COUNT_HEARTBEATS] += 1

        # What take_packet does with the packets that make up nearly all of a day: the next one of a stream
        # without a hole, and the same one again on the other line. Written out, because a call that takes
        # the tables counts references to each of them, which costs more than all the rest.
        session = packets[index, PACKET_SESSION]
        seq = packets[index, PACKET_SEQ]
        end = seq + message_count
        expected = state[ARBITER_EXPECTED]
        is_plain = (
            kind == KIND_DATA
            and session == state[ARBITER_SESSION]
            and expected == state[ARBITER_HIGH]
            and state[ARBITER_IS_PROVISIONAL] == 0
            and line != LINE_RECOVERY
            and session == counts[line, LINE_SESSION]
            and seq == counts[line, LINE_NEXT]
        )
        if is_plain and seq == expected:
            run_index = state[ARBITER_RUN_COUNT]
            runs[run_index, RUN_OFFSET] = packets[index, PACKET_OFFSET]
            runs[run_index, RUN_BYTES] = packets[index, PACKET_BYTES]
            runs[run_index, RUN_SEQ] = seq
            runs[run_index, RUN_COUNT] = message_count
            runs[run_index, RUN_SESSION] = session
            state[ARBITER_RUN_COUNT] = run_index + 1
            state[ARBITER_DELIVERED] += message_count
            state[ARBITER_EXPECTED] = end
            state[ARBITER_HIGH] = end
            state[ARBITER_IS_ENDED] = 0
            counts[line, COUNT_FIRST] += message_count
        elif is_plain and end <= expected and seq >= state[ARBITER_START] and state[ARBITER_LOST_COUNT] == 0:
            counts[line, COUNT_DUPLICATE] += message_count
        else:
            take_packet(data, tables, packets, index)
            continue
        counts[line, LINE_NEXT] = end
        state[ARBITER_SESSION_NS] = max(state[ARBITER_SESSION_NS], time_ns)
    copy_held(data, tables)
    return int(state[ARBITER_RUN_COUNT])


@kernel
def holes_kernel(tables: LineTables, holes: IntArray) -> int:
    """Write the holes of the current session as (first, last), lowest first; return their count."""
    state = tables.state
    expected = state[ARBITER_EXPECTED]
    index = state[ARBITER_ROW_BEGIN + CURRENT]
    count = 0
    while count < holes.shape[0] and expected < state[ARBITER_HIGH]:
        at_end = index == state[ARBITER_ROW_END + CURRENT]
        end = state[ARBITER_HIGH] if at_end else tables.rows[CURRENT, index, HELD_SEQ]
        if end > expected:
            holes[count, 0] = expected
            holes[count, 1] = end - 1
            count += 1
        if at_end:
            break
        expected = tables.rows[CURRENT, index, HELD_END]
        index += 1
    return count


@kernel
def give_up_kernel(data: ByteArray, tables: LineTables, last: int) -> int:
    """Count [expected, last] as lost and go on behind it; return the count of runs, new ones included."""
    state = tables.state
    slot = state[ARBITER_LOST_COUNT] % LOST_SLOTS
    tables.lost[slot, 0] = state[ARBITER_EXPECTED]
    tables.lost[slot, 1] = last + 1
    state[ARBITER_LOST_COUNT] += 1
    state[ARBITER_LOST] += last + 1 - state[ARBITER_EXPECTED]
    state[ARBITER_EXPECTED] = last + 1
    state[ARBITER_HIGH] = max(state[ARBITER_HIGH], last + 1)
    release(data, tables)
    return int(state[ARBITER_RUN_COUNT])


@kernel
def roll_kernel(data: ByteArray, tables: LineTables) -> int:
    """Leave the current session for the one that follows, from number 1; return the count of runs."""
    state = tables.state
    tables.past[state[ARBITER_PAST_COUNT] % PAST_SLOTS] = state[ARBITER_SESSION]
    state[ARBITER_PAST_COUNT] += 1
    abandon_rows(tables, CURRENT)
    begin = state[ARBITER_ROW_BEGIN + FOLLOWING]
    row_count = state[ARBITER_ROW_END + FOLLOWING] - begin
    for index in range(row_count):
        for field in range(HELD_FIELDS):
            tables.rows[CURRENT, index, field] = tables.rows[FOLLOWING, begin + index, field]
    state[ARBITER_ROW_END + CURRENT] = row_count
    state[ARBITER_ROW_BEGIN + FOLLOWING] = 0
    state[ARBITER_ROW_END + FOLLOWING] = 0
    state[ARBITER_SESSION] = state[NEXT_SESSION]
    state[ARBITER_IDENTITY_0] = state[NEXT_IDENTITY_0]
    state[ARBITER_IDENTITY_1] = state[NEXT_IDENTITY_1]
    state[ARBITER_START] = 1
    state[ARBITER_EXPECTED] = 1
    state[ARBITER_HIGH] = state[NEXT_HIGH]
    state[ARBITER_SEEN_HIGH] = state[NEXT_SEEN_HIGH]
    state[ARBITER_CLAIM_COUNT] = 1
    state[ARBITER_HIGH_NS] = state[NEXT_SESSION_NS]
    state[ARBITER_IS_PROVISIONAL] = 0
    for line in range(LINE_RECOVERY):
        tables.counts[line, LINE_CLAIM_NS] = 0
    state[ARBITER_IS_ENDED] = state[NEXT_IS_ENDED]
    state[ARBITER_SESSION_NS] = state[NEXT_SESSION_NS]
    state[ARBITER_LOST_COUNT] = 0
    state[ARBITER_FAR_SEQ] = -1
    state[NEXT_SESSION] = NO_SESSION
    state[NEXT_SESSION_NS] = 0
    release(data, tables)
    return int(state[ARBITER_RUN_COUNT])


@kernel
def settle_kernel(data: ByteArray, tables: LineTables) -> int:
    """Believe the joining point without a second packet; return the count of runs."""
    settle_join(data, tables)
    return int(tables.state[ARBITER_RUN_COUNT])


@kernel
def withdraw_kernel(tables: LineTables) -> int:
    """Lower HIGH to what the lines now name as next; return it.

    Only what a single heartbeat has claimed is taken back: never the number of data that was seen, nor one
    that was named twice, nor the end of the session.
    """
    state = tables.state
    counts = tables.counts
    high = state[ARBITER_HIGH]
    claimed = max(state[ARBITER_EXPECTED], state[ARBITER_SEEN_HIGH])
    if high <= claimed or state[ARBITER_CLAIM_COUNT] > 1 or state[ARBITER_IS_ENDED]:
        return int(high)
    is_denied = False
    for line in range(LINE_RECOVERY):
        # A little later, because the lines are not equally quick.
        if counts[line, LINE_CLAIM_NS] - state[ARBITER_HIGH_NS] >= state[ARBITER_PATIENCE_NS]:
            is_denied = True
            claimed = max(claimed, counts[line, LINE_CLAIM])
    if not is_denied or claimed >= high:
        return int(high)
    state[ARBITER_HIGH] = claimed
    for line in range(LINE_RECOVERY):
        if counts[line, LINE_SESSION] == state[ARBITER_SESSION]:
            cut_line(tables, line, claimed)
    return int(claimed)


@kernel
def dismiss_kernel(tables: LineTables) -> None:
    """Forget the session that seemed to follow: it was a stray."""
    abandon_rows(tables, FOLLOWING)
    tables.state[NEXT_SESSION] = NO_SESSION
    tables.state[NEXT_SESSION_NS] = 0


def warm_up() -> None:
    data = np.zeros(256, dtype=np.uint8)
    packets = np.zeros((2, PACKET_FIELDS), dtype=np.int64)
    packets[:, PACKET_KIND] = KIND_BAD
    packets[:, PACKET_COUNT] = 1
    tables = new_tables(
        is_prefix_big_endian=True,
        batch_packets=2,
        hold_slots=2,
        hold_offset=128,
        hold_slot_bytes=64,
        jump_limit=1_000,
    )
    arbitrate_kernel(data, packets, 2, tables)
    holes_kernel(tables, np.zeros((4, 2), dtype=np.int64))
    give_up_kernel(data, tables, 0)
    settle_kernel(data, tables)
    withdraw_kernel(tables)
    dismiss_kernel(tables)
    roll_kernel(data, tables)
