"""What each line lost by itself: numbers it skipped and did not bring later, whatever the other line did.

A line that skips numbers has lost them until its own late packet proves otherwise. The last GAP_SLOTS
skipped stretches of each line are remembered for that; older ones stay lost, even if they come after all.
"""

from __future__ import annotations

from feeds.compiled import kernel
from feeds.formats import LINE_RECOVERY
from feeds.lines.tables import (
    COUNT_LOST,
    COUNT_REORDERED,
    COUNT_REPEATED,
    GAP_SLOTS,
    LINE_GAP_COUNT,
    LINE_NEXT,
    LINE_SESSION,
    NEXT_SESSION,
    NO_SESSION,
    LineTables,
)


@kernel
def remove_gap(tables: LineTables, line: int, index: int) -> None:
    gaps = tables.gaps
    tables.counts[line, LINE_GAP_COUNT] -= 1
    for later in range(index, tables.counts[line, LINE_GAP_COUNT]):
        gaps[line, later, 0] = gaps[line, later + 1, 0]
        gaps[line, later, 1] = gaps[line, later + 1, 1]


@kernel
def insert_gap(tables: LineTables, line: int, index: int, first: int, end: int) -> int:
    """Put a gap before the one at `index`; return where it is: the oldest may have had to make room.

    Returns -1 if it would have been the oldest itself and was not kept.
    """
    gaps = tables.gaps
    counts = tables.counts
    if counts[line, LINE_GAP_COUNT] == GAP_SLOTS:
        if index == 0:
            return -1
        remove_gap(tables, line, 0)
        index -= 1
    for later in range(counts[line, LINE_GAP_COUNT], index, -1):
        gaps[line, later, 0] = gaps[line, later - 1, 0]
        gaps[line, later, 1] = gaps[line, later - 1, 1]
    gaps[line, index, 0] = first
    gaps[line, index, 1] = end
    counts[line, LINE_GAP_COUNT] += 1
    return index


@kernel
def repair_gaps(tables: LineTables, line: int, seq: int, end: int) -> int:
    """Take [seq, end) out of the line's gaps; return how many numbers that were."""
    gaps = tables.gaps
    repaired = 0
    index = 0
    while index < tables.counts[line, LINE_GAP_COUNT] and gaps[line, index, 0] < end:
        gap_first = gaps[line, index, 0]
        gap_end = gaps[line, index, 1]
        first = max(gap_first, seq)
        last_end = min(gap_end, end)
        if first < last_end:
            repaired += last_end - first
            if gap_first < first and last_end < gap_end:
                gaps[line, index, 0] = last_end
                index = insert_gap(tables, line, index, gap_first, first)
            elif gap_first < first:
                gaps[line, index, 1] = first
            elif last_end < gap_end:
                gaps[line, index, 0] = last_end
            else:
                remove_gap(tables, line, index)
                index -= 1
        index += 1
    return repaired


@kernel
def cut_line(tables: LineTables, line: int, end: int) -> None:
    """Take back that `line` skipped numbers from `end` on: they do not exist yet."""
    counts = tables.counts
    gaps = tables.gaps
    counts[line, LINE_NEXT] = min(counts[line, LINE_NEXT], end)
    while counts[line, LINE_GAP_COUNT] > 0:
        last = counts[line, LINE_GAP_COUNT] - 1
        if gaps[line, last, 1] <= end:
            break
        counts[line, COUNT_LOST] -= gaps[line, last, 1] - max(gaps[line, last, 0], end)
        gaps[line, last, 1] = end
        if gaps[line, last, 0] >= end:
            counts[line, LINE_GAP_COUNT] -= 1


@kernel
def follow_line(tables: LineTables, line: int, session: int, seq: int, end: int) -> None:
    """Note that `line` brought [seq, end) of `session`; seq == end for a heartbeat."""
    if line == LINE_RECOVERY:
        return  # answers come in no order of their own
    counts = tables.counts
    if session != counts[line, LINE_SESSION]:
        if counts[line, LINE_SESSION] == NO_SESSION:
            counts[line, LINE_NEXT] = seq  # what came before it was there is no loss of the line
        elif counts[line, LINE_SESSION] == tables.state[NEXT_SESSION]:
            return  # a late packet of the session that this line has left
        else:
            counts[line, LINE_NEXT] = 1
        counts[line, LINE_SESSION] = session
        counts[line, LINE_GAP_COUNT] = 0
    own_next = counts[line, LINE_NEXT]
    if seq > own_next:
        counts[line, COUNT_LOST] += seq - own_next
        insert_gap(tables, line, counts[line, LINE_GAP_COUNT], own_next, seq)
    elif seq < own_next and seq < end:
        again = min(end, own_next) - seq
        repaired = repair_gaps(tables, line, seq, min(end, own_next))
        counts[line, COUNT_LOST] -= repaired
        counts[line, COUNT_REPEATED] += again - repaired
        if repaired > 0:
            counts[line, COUNT_REORDERED] += 1
    counts[line, LINE_NEXT] = max(own_next, end)
