"""Packets that came too early: rows sorted by number, hold slots for their bytes, and their release.

Both the starts and the ends of the rows rise: a packet that others cover already is never held, and one
that covers others takes their place. So binary search works on both, and the last row is the furthest.
"""

from __future__ import annotations

from feeds.compiled import kernel
from feeds.formats import RUN_BYTES, RUN_COUNT, RUN_OFFSET, RUN_SEQ, RUN_SESSION, ByteArray
from feeds.lines.tables import (
    ARBITER_ABANDONED,
    ARBITER_DELIVERED,
    ARBITER_EXPECTED,
    ARBITER_FREE_COUNT,
    ARBITER_HOLD_BYTES,
    ARBITER_HOLD_OFFSET,
    ARBITER_IS_BIG_ENDIAN,
    ARBITER_RELEASED_COUNT,
    ARBITER_ROW_BEGIN,
    ARBITER_ROW_END,
    ARBITER_RUN_COUNT,
    ARBITER_SESSION,
    ARBITER_UNCOPIED_COUNT,
    COUNT_OVERFLOW,
    CURRENT,
    FOLLOWING,
    HELD_BYTES,
    HELD_END,
    HELD_FIELDS,
    HELD_LINE,
    HELD_OFFSET,
    HELD_SEQ,
    HELD_SLOT,
    NOT_COPIED,
    SLOTS_FREE,
    SLOTS_RELEASED,
    LineTables,
)
from feeds.memory_kernels import load_be16, load_byte, load_le16, load_le64, store_byte, store_le64


@kernel
def skip_blocks(data: ByteArray, offset: int, message_count: int, is_big_endian: int) -> int:
    """Return the offset behind `message_count` length-prefixed messages; the packet holds that many."""
    for _ in range(message_count):
        if is_big_endian:
            offset += 2 + load_be16(data, offset)
        else:
            offset += 2 + load_le16(data, offset)
    return offset


@kernel
def copy_bytes(data: ByteArray, source: int, target: int, byte_count: int) -> None:
    word_end = byte_count & ~7
    for index in range(0, word_end, 8):
        store_le64(data, target + index, load_le64(data, source + index))
    for index in range(word_end, byte_count):
        store_byte(data, target + index, load_byte(data, source + index))


@kernel
def add_run(
    data: ByteArray, tables: LineTables, seq: int, first: int, end: int, offset: int, byte_count: int
) -> None:
    """Deliver [first, end) of a packet whose first message is `seq`, and expect `end` next."""
    state = tables.state
    if first > seq:
        begin = skip_blocks(data, offset, first - seq, state[ARBITER_IS_BIG_ENDIAN])
        byte_count -= begin - offset
        offset = begin
    index = state[ARBITER_RUN_COUNT]
    tables.runs[index, RUN_OFFSET] = offset
    tables.runs[index, RUN_BYTES] = byte_count
    tables.runs[index, RUN_SEQ] = first
    tables.runs[index, RUN_COUNT] = end - first
    tables.runs[index, RUN_SESSION] = state[ARBITER_SESSION]
    state[ARBITER_RUN_COUNT] = index + 1
    state[ARBITER_DELIVERED] += end - first
    state[ARBITER_EXPECTED] = end


@kernel
def find_row(tables: LineTables, side: int, field: int, value: int) -> int:
    """Return the index of the first row whose `field` is at least `value`, or the end of the rows."""
    low = tables.state[ARBITER_ROW_BEGIN + side]
    high = tables.state[ARBITER_ROW_END + side]
    while low < high:
        middle = (low + high) >> 1
        if tables.rows[side, middle, field] < value:
            low = middle + 1
        else:
            high = middle
    return int(low)


@kernel
def count_uncovered(tables: LineTables, side: int, first: int, end: int) -> int:
    """Return how many numbers of [first, end) no held packet has."""
    row_end = tables.state[ARBITER_ROW_END + side]
    if tables.state[ARBITER_ROW_BEGIN + side] == row_end:
        return end - first
    index = find_row(tables, side, HELD_END, first + 1)
    uncovered = 0
    while index < row_end and tables.rows[side, index, HELD_SEQ] < end:
        uncovered += max(tables.rows[side, index, HELD_SEQ] - first, 0)
        first = tables.rows[side, index, HELD_END]
        index += 1
    return int(uncovered + max(end - first, 0))


@kernel
def free_row_bytes(tables: LineTables, side: int, index: int) -> None:
    """Give back the bytes of a row that no run points to."""
    state = tables.state
    slot = tables.rows[side, index, HELD_SLOT]
    if slot == NOT_COPIED:
        state[ARBITER_UNCOPIED_COUNT] -= 1
    else:
        tables.slots[SLOTS_FREE, state[ARBITER_FREE_COUNT]] = slot
        state[ARBITER_FREE_COUNT] += 1


@kernel
def move_rows(tables: LineTables, side: int, begin: int, end: int, target: int) -> None:
    """Move rows [begin, end) so that they start at `target`; the two stretches may overlap."""
    rows = tables.rows
    if target < begin:
        for index in range(begin, end):
            for field in range(HELD_FIELDS):
                rows[side, index - begin + target, field] = rows[side, index, field]
    elif target > begin:
        for index in range(end - 1, begin - 1, -1):
            for field in range(HELD_FIELDS):
                rows[side, index - begin + target, field] = rows[side, index, field]


@kernel
def hold(tables: LineTables, side: int, seq: int, end: int, offset: int, byte_count: int, line: int) -> None:
    """Keep a packet of which at least one message is not held yet."""
    state = tables.state
    rows = tables.rows
    if state[ARBITER_ROW_END + side] == rows.shape[1]:
        begin = state[ARBITER_ROW_BEGIN + side]
        move_rows(tables, side, begin, state[ARBITER_ROW_END + side], 0)
        state[ARBITER_ROW_END + side] -= begin
        state[ARBITER_ROW_BEGIN + side] = 0
    row_end = state[ARBITER_ROW_END + side]
    place = find_row(tables, side, HELD_SEQ, seq)
    behind = place
    while behind < row_end and rows[side, behind, HELD_END] <= end:  # covered by this packet
        free_row_bytes(tables, side, behind)
        behind += 1
    move_rows(tables, side, behind, row_end, place + 1)
    state[ARBITER_ROW_END + side] = row_end + place + 1 - behind
    rows[side, place, HELD_SEQ] = seq
    rows[side, place, HELD_END] = end
    rows[side, place, HELD_OFFSET] = offset
    rows[side, place, HELD_BYTES] = byte_count
    rows[side, place, HELD_SLOT] = NOT_COPIED
    rows[side, place, HELD_LINE] = line
    state[ARBITER_UNCOPIED_COUNT] += 1


@kernel
def release(data: ByteArray, tables: LineTables) -> None:
    """Deliver the held packets whose turn has come."""
    state = tables.state
    rows = tables.rows
    index = state[ARBITER_ROW_BEGIN + CURRENT]
    row_end = state[ARBITER_ROW_END + CURRENT]
    while index < row_end and rows[CURRENT, index, HELD_SEQ] <= state[ARBITER_EXPECTED]:
        seq = rows[CURRENT, index, HELD_SEQ]
        end = rows[CURRENT, index, HELD_END]
        slot = rows[CURRENT, index, HELD_SLOT]
        if end > state[ARBITER_EXPECTED]:
            offset = rows[CURRENT, index, HELD_OFFSET]
            add_run(data, tables, seq, state[ARBITER_EXPECTED], end, offset, rows[CURRENT, index, HELD_BYTES])
        if slot == NOT_COPIED:
            state[ARBITER_UNCOPIED_COUNT] -= 1
        else:
            tables.slots[SLOTS_RELEASED, state[ARBITER_RELEASED_COUNT]] = slot
            state[ARBITER_RELEASED_COUNT] += 1
        index += 1
    state[ARBITER_ROW_BEGIN + CURRENT] = index


@kernel
def reclaim_released(tables: LineTables) -> None:
    """Free the hold slots of the last batch's runs, which have been decoded, and forget those runs."""
    state = tables.state
    free = state[ARBITER_FREE_COUNT]
    for index in range(state[ARBITER_RELEASED_COUNT]):
        tables.slots[SLOTS_FREE, free + index] = tables.slots[SLOTS_RELEASED, index]
    state[ARBITER_FREE_COUNT] += state[ARBITER_RELEASED_COUNT]
    state[ARBITER_RELEASED_COUNT] = 0
    state[ARBITER_RUN_COUNT] = 0


@kernel
def unique_count(tables: LineTables, side: int, index: int) -> int:
    """Return how many messages of a row the row before it does not have."""
    first = tables.rows[side, index, HELD_SEQ]
    if index > tables.state[ARBITER_ROW_BEGIN + side]:
        first = max(first, tables.rows[side, index - 1, HELD_END])
    return int(tables.rows[side, index, HELD_END] - first)


@kernel
def drop_furthest(tables: LineTables) -> None:
    """Make room: let go of the held packet that would be delivered last."""
    state = tables.state
    side = CURRENT
    if state[ARBITER_ROW_BEGIN + FOLLOWING] < state[ARBITER_ROW_END + FOLLOWING]:
        side = FOLLOWING
    last = state[ARBITER_ROW_END + side] - 1
    line = tables.rows[side, last, HELD_LINE]
    tables.counts[line, COUNT_OVERFLOW] += unique_count(tables, side, last)
    free_row_bytes(tables, side, last)
    state[ARBITER_ROW_END + side] = last


@kernel
def copy_held(data: ByteArray, tables: LineTables) -> None:
    """Bring what is still held out of the receive slots, which the next batch will overwrite."""
    state = tables.state
    if state[ARBITER_UNCOPIED_COUNT] == 0:
        return
    rows = tables.rows
    for side in range(2):
        index = state[ARBITER_ROW_BEGIN + side]
        while index < state[ARBITER_ROW_END + side]:
            if rows[side, index, HELD_SLOT] == NOT_COPIED:
                while state[ARBITER_FREE_COUNT] == 0 and index < state[ARBITER_ROW_END + side]:
                    drop_furthest(tables)
                if index >= state[ARBITER_ROW_END + side]:
                    break  # this very packet was the furthest
                state[ARBITER_FREE_COUNT] -= 1
                slot = tables.slots[SLOTS_FREE, state[ARBITER_FREE_COUNT]]
                target = state[ARBITER_HOLD_OFFSET] + slot * state[ARBITER_HOLD_BYTES]
                copy_bytes(data, rows[side, index, HELD_OFFSET], target, rows[side, index, HELD_BYTES])
                rows[side, index, HELD_OFFSET] = target
                rows[side, index, HELD_SLOT] = slot
                state[ARBITER_UNCOPIED_COUNT] -= 1
            index += 1


@kernel
def abandon_rows(tables: LineTables, side: int) -> None:
    """Let go of everything held on one side, counting its messages."""
    state = tables.state
    while state[ARBITER_ROW_BEGIN + side] < state[ARBITER_ROW_END + side]:
        last = state[ARBITER_ROW_END + side] - 1
        state[ARBITER_ABANDONED] += unique_count(tables, side, last)
        free_row_bytes(tables, side, last)
        state[ARBITER_ROW_END + side] = last
    state[ARBITER_ROW_BEGIN + side] = 0
    state[ARBITER_ROW_END + side] = 0
