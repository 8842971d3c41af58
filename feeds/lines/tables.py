"""The memory of a line arbiter: what its kernels read and write, laid out once, described here alone.

An arbiter follows one session (`ARBITER_SESSION`) from `ARBITER_EXPECTED`, the next number to deliver, to
`ARBITER_HIGH`, the first number that nobody has spoken of yet. Packets that came too early are *held*, in
rows sorted by number; a hole is a stretch of [expected, high) that no row covers. While a session is being
finished, packets of the one that follows it are held in rows of their own.

    arena   | receive slots, refilled by every batch ... | hold slots, one for each packet held over ... |
    rows    current: | begin .. end |      following: | begin .. end |     sorted by number

A row first points into the receive slot its packet arrived in; only if it is still held when its batch is
done are its bytes copied to a hold slot. Most reordering ends within a batch and costs no copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from feeds.formats import LINE_COUNT, RUN_FIELDS, IntArray

# The arbiter's own state. Sessions are u32; NO_SESSION says that there is none.
NO_SESSION = -1
ARBITER_SESSION = 0
ARBITER_IDENTITY_0 = 1
ARBITER_IDENTITY_1 = 2
ARBITER_EXPECTED = 3
ARBITER_HIGH = 4
ARBITER_START = 5  # the first number that was wanted in this session
ARBITER_IS_ENDED = 6  # the exchange said that HIGH is the end, and nothing has come from beyond it since
ARBITER_SESSION_NS = 7  # when anything of this session last arrived on a line
NEXT_SESSION = 8  # the session that follows, while this one is being finished
NEXT_IDENTITY_0 = 9
NEXT_IDENTITY_1 = 10
NEXT_FIRST = 11  # the lowest number seen of it
NEXT_HIGH = 12
NEXT_IS_ENDED = 13
NEXT_SESSION_NS = 14
ARBITER_RUN_COUNT = 15
ARBITER_FREE_COUNT = 16  # hold slots on the free stack
ARBITER_RELEASED_COUNT = 17  # hold slots that runs still point to: free when the runs have been decoded
ARBITER_UNCOPIED_COUNT = 18  # rows that point into receive slots
ARBITER_FAR_SEQ = 19  # of the last packet that jumped too far; -1: none
ARBITER_FILL_COUNT = 20  # all so far; the last FILL_SLOTS of them are in `fills`
ARBITER_LOST_COUNT = 21  # lost ranges of this session so far; the last LOST_SLOTS are in `lost`
ARBITER_PAST_COUNT = 22  # sessions left so far; the last PAST_SLOTS are in `past`
ARBITER_DELIVERED = 23  # messages put into runs, all sessions
ARBITER_LOST = 24  # messages given up, all sessions
ARBITER_ABANDONED = 25  # messages that were held of a session when it was left or dismissed
# Settings, constant after set-up.
ARBITER_IS_BIG_ENDIAN = 26  # of the 2-byte length before each message
ARBITER_JUMP_LIMIT = 27
ARBITER_START_SETTING = 28  # START_FIRST_SEEN, or the number at which the first session starts
ARBITER_HOLD_OFFSET = 29  # of the first hold slot in the arena
ARBITER_HOLD_BYTES = 30  # of one hold slot
ARBITER_ROW_BEGIN = 31  # [CURRENT], then [FOLLOWING]
ARBITER_ROW_END = 33
ARBITER_PATIENCE_NS = 35  # a setting: how much later a packet must be to speak for itself
# Doubts. A header can be damaged, so one packet alone is not believed in what would cost us the stream.
ARBITER_IS_PROVISIONAL = 36  # joined at the first packet seen, and no second one has agreed yet
ARBITER_SEEN_HIGH = 37  # the number behind all data that was accepted; HIGH may be more, by heartbeats alone
ARBITER_CLAIM_COUNT = 38  # heartbeats that have named HIGH
ARBITER_HIGH_NS = 39  # when the first of them came
NEXT_SEEN_HIGH = 40
NEXT_PACKETS = 41  # of the session that follows, on a line
NEXT_DATA = 42  # of these: packets with messages
NEXT_BEGIN_NS = 43  # when the first of them arrived
ARBITER_FAR_LINE = 44  # of the packet of FAR_SEQ
ARBITER_FAR_NS = 45
ARBITER_FAR_TIMES = 46  # how often FAR_SEQ came from that line
ARBITER_FAR_COUNT = 47  # packets refused for their jump, all sessions
ARBITER_FAR_LAST = 48  # the number of the last of them
ARBITER_JUMP_COUNT = 49  # jumps believed, all sessions
ARBITER_JUMP_FROM = 50  # of the last of them: HIGH before it, and the number it led to
ARBITER_JUMP_TO = 51
ARBITER_FIELDS = 52

START_FIRST_SEEN = -1

# Which of the two sets of rows.
CURRENT = 0
FOLLOWING = 1

# A held packet.
HELD_SEQ = 0
HELD_END = 1  # the number after its last message
HELD_OFFSET = 2  # of its first block
HELD_BYTES = 3
HELD_SLOT = 4  # its hold slot; NOT_COPIED: still where it arrived
HELD_LINE = 5
HELD_FIELDS = 6
NOT_COPIED = -1

SLOTS_FREE = 0  # rows of `slots`
SLOTS_RELEASED = 1

# Counts of one line. Those of messages add up: MESSAGES = FIRST + DUPLICATE + EARLY + LATE + STALE + FOREIGN
# + FAR, and over all lines: FIRST = delivered + held + OVERFLOW + abandoned.
COUNT_PACKETS = 0  # all, good and bad
COUNT_MESSAGES = 1
COUNT_HEARTBEATS = 2  # heartbeats and ends of session
COUNT_FIRST = 3  # messages that this line brought before any other
COUNT_DUPLICATE = 4
COUNT_FILLED = 5  # of the FIRST: messages whose absence was known already
COUNT_EARLY = 6  # messages before the number at which we joined
COUNT_LATE = 7  # messages that had been given up
COUNT_STALE = 8  # messages of a session already left
COUNT_FOREIGN = 9  # messages of a third session while two were open
COUNT_FAR = 10  # messages behind an implausible jump
COUNT_OVERFLOW = 11  # messages dropped because all hold slots were taken; they are asked for again
COUNT_LOST = 12  # numbers that this line skipped and has not brought since
COUNT_REPEATED = 13  # messages that this line brought more than once
COUNT_REORDERED = 14  # packets of this line that came after a later one
COUNT_BAD = 15  # COUNT_BAD + reason: bad packets by BAD_* of feeds.formats, 1 to 7
LINE_TIME_NS = 23  # when its last good packet arrived; 0: never
LINE_SESSION = 24
LINE_NEXT = 25  # the number this line should bring next
LINE_GAP_COUNT = 26
LINE_CLAIM = 27  # the next number by its last packet that was not old, while that was looked at closely
LINE_CLAIM_NS = 28  # when that came
LINE_FIELDS = 30

BAD_REASON_MAX = 7
GAP_SLOTS = 64  # skipped stretches of one line that may still be repaired by its own late packets
FILL_SLOTS = 1_024
LOST_SLOTS = 256
PAST_SLOTS = 16

FILL_FIRST = 0
FILL_LAST = 1
FILL_LINE = 2
FILL_FIELDS = 3


class LineTables(NamedTuple):
    """Everything the arbitration kernels work on, in one argument."""

    state: IntArray  # [ARBITER_FIELDS]
    rows: IntArray  # [2, row capacity, HELD_FIELDS]
    slots: IntArray  # [2, hold slots]: slot numbers, free and released
    counts: IntArray  # [LINE_COUNT, LINE_FIELDS]
    gaps: IntArray  # [LINE_COUNT, GAP_SLOTS, 2]: first, end
    fills: IntArray  # [FILL_SLOTS, FILL_FIELDS]
    lost: IntArray  # [LOST_SLOTS, 2]: first, end
    past: IntArray  # [PAST_SLOTS]
    runs: IntArray  # [packets of a batch + hold slots, RUN_FIELDS]


def new_tables(
    *,
    is_prefix_big_endian: bool,
    batch_packets: int,
    hold_slots: int,
    hold_offset: int,
    hold_slot_bytes: int,
    jump_limit: int,
    patience_ns: int = 1,
    start_seq: int = START_FIRST_SEEN,
    start_session: int = NO_SESSION,
) -> LineTables:
    """Return the tables of an arbiter that has seen nothing yet; the caller has checked the sizes."""
    state = np.zeros(ARBITER_FIELDS, dtype=np.int64)
    state[ARBITER_SESSION] = start_session
    state[NEXT_SESSION] = NO_SESSION
    state[ARBITER_FREE_COUNT] = hold_slots
    state[ARBITER_FAR_SEQ] = -1
    state[ARBITER_IS_BIG_ENDIAN] = int(is_prefix_big_endian)
    state[ARBITER_JUMP_LIMIT] = jump_limit
    state[ARBITER_PATIENCE_NS] = patience_ns
    state[ARBITER_START_SETTING] = start_seq
    state[ARBITER_HOLD_OFFSET] = hold_offset
    state[ARBITER_HOLD_BYTES] = hold_slot_bytes
    if start_session != NO_SESSION:
        state[ARBITER_EXPECTED : ARBITER_START + 1] = max(start_seq, 1)
    counts = np.zeros((LINE_COUNT, LINE_FIELDS), dtype=np.int64)
    counts[:, LINE_SESSION] = NO_SESSION
    slots = np.zeros((2, hold_slots), dtype=np.int64)
    slots[SLOTS_FREE] = np.arange(hold_slots)[::-1]  # the lowest slot is taken first
    # Twice as many rows as there can be packets: rows leave at the front, so room behind the last one must
    # come back only every so often, when all are moved to the beginning again.
    row_capacity = 2 * (hold_slots + batch_packets)
    return LineTables(
        state=state,
        rows=np.zeros((2, row_capacity, HELD_FIELDS), dtype=np.int64),
        slots=slots,
        counts=counts,
        gaps=np.zeros((LINE_COUNT, GAP_SLOTS, 2), dtype=np.int64),
        fills=np.zeros((FILL_SLOTS, FILL_FIELDS), dtype=np.int64),
        lost=np.zeros((LOST_SLOTS, 2), dtype=np.int64),
        past=np.full(PAST_SLOTS, NO_SESSION, dtype=np.int64),
        runs=np.zeros((batch_packets + hold_slots, RUN_FIELDS), dtype=np.int64),
    )
