"""What becomes of a source message that cannot be read, the same for every exchange.

It still takes its place in the stream, as an UNPARSED frame that shows its first bytes, so that source_seq
has no hole; and it leaves a row in `problems`, so that someone can be told which message it was, and where.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    PROBLEM_BYTES,
    PROBLEM_FIELDS,
    PROBLEM_POSITION,
    PROBLEM_REASON,
    PROBLEM_SEQ,
    PROBLEM_SLOTS,
    PROBLEM_TYPE,
    STATE_FIELDS,
    STATE_PROBLEM_COUNT,
    IntArray,
)
from feeds.memory_kernels import Buffer, load_byte
from feeds.wire import FRAME_WORDS, UnparsedReason, WordArray
from feeds.wire_kernels import put_unparsed

UNKNOWN_TYPE = int(UnparsedReason.UNKNOWN_TYPE)
WRONG_LENGTH = int(UnparsedReason.WRONG_LENGTH)
BAD_VALUE = int(UnparsedReason.BAD_VALUE)


@kernel
def load_head_word(data: Buffer, start: int, length: int, index: int) -> int:
    """Return bytes [8 * index, 8 * index + 8) of a message as a little-endian word, zero behind its end."""
    word = 0
    for byte in range(8 * index, min(8 * index + 8, length)):
        word |= load_byte(data, start + byte) << 8 * (byte - 8 * index)
    return word


@kernel
def report_unparsed(
    data: Buffer,
    start: int,
    length: int,
    position: int,
    source_seq: int,
    reason: int,
    message_type: int,
    state: IntArray,
    problems: IntArray,
    words: WordArray,
    row: int,
) -> None:
    """Put the UNPARSED payload of the message at [start, start + length) and note the problem.

    The header is the caller's, who knows whether the message's own time and instrument can be trusted.
    """
    put_unparsed(
        words,
        row,
        reason,
        message_type,
        length,
        load_head_word(data, start, length, 0),
        load_head_word(data, start, length, 1),
        load_head_word(data, start, length, 2),
    )
    slot = state[STATE_PROBLEM_COUNT] % PROBLEM_SLOTS
    problems[slot, PROBLEM_SEQ] = source_seq
    problems[slot, PROBLEM_POSITION] = position
    problems[slot, PROBLEM_REASON] = reason
    problems[slot, PROBLEM_TYPE] = message_type
    problems[slot, PROBLEM_BYTES] = length
    state[STATE_PROBLEM_COUNT] += 1


def warm_up() -> None:
    report_unparsed(
        np.zeros(32, dtype=np.uint8),
        0,
        12,
        0,
        1,
        UNKNOWN_TYPE,
        0,
        np.zeros(STATE_FIELDS, dtype=np.int64),
        np.zeros((PROBLEM_SLOTS, PROBLEM_FIELDS), dtype=np.int64),
        np.zeros((1, FRAME_WORDS), dtype=np.int64),
        0,
    )
