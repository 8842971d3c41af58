"""The compiled check of a batch of frames; validation.py makes its tables and words its complaints."""

from __future__ import annotations

from typing import Any

import numpy as np

from feeds.compiled import kernel
from feeds.wire import FRAME_BYTES, FRAME_WORDS, PAYLOAD_WORD, VERSION, WordArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

# What find_violation_kernel says of the first bad frame. From RULE_BASE on: the rule of that index.
GOOD = -1
BAD_LENGTH = 0
BAD_VERSION = 1
BAD_SCHEMA = 2
BAD_KIND = 3
BAD_FLAGS = 4
BAD_UNNAMED_BYTES = 5  # payload bytes that the schema does not name are not zero
RULE_BASE = 16

RULE_WORD = 0
RULE_SHIFT = 1
RULE_FIELDS = 2
SCHEMA_SLOTS = 64


@kernel
def find_violation_kernel(
    words: WordArray,
    first_row: int,
    kinds: IntArray,  # [schema] the kind that carries it, 0 for no such schema
    known_flags: int,
    unnamed_bits: IntArray,  # [schema, payload word] bits that must be zero
    rule_begin: IntArray,  # [schema + 1] its rules are rules[begin[s]:begin[s + 1]]
    rules: IntArray,  # [rule, RULE_FIELDS] where the byte is
    allowed: BoolArray,  # [rule, byte value]
    found: IntArray,  # out: [row]
) -> int:
    """Return what is wrong with the first bad frame from `first_row` on, its row in `found`, or GOOD."""
    for row in range(first_row, words.shape[0]):
        found[0] = row
        word0 = words[row, 0]
        if word0 & 0xFFFFFFFF != FRAME_BYTES:
            return BAD_LENGTH
        if (word0 >> 32) & 0xFF != VERSION:
            return BAD_VERSION
        schema = (words[row, 6] >> 32) & 0xFFFF
        if schema >= SCHEMA_SLOTS or kinds[schema] == 0:
            return BAD_SCHEMA
        if (word0 >> 40) & 0xFF != kinds[schema]:
            return BAD_KIND
        if ((word0 >> 48) & 0xFFFF) & ~known_flags != 0:
            return BAD_FLAGS
        for word in range(FRAME_WORDS - PAYLOAD_WORD):
            if words[row, PAYLOAD_WORD + word] & unnamed_bits[schema, word] != 0:
                return BAD_UNNAMED_BYTES
        for rule in range(rule_begin[schema], rule_begin[schema + 1]):
            value = (words[row, rules[rule, RULE_WORD]] >> rules[rule, RULE_SHIFT]) & 0xFF
            if not allowed[rule, value]:
                return RULE_BASE + rule
    return GOOD


def warm_up() -> None:
    find_violation_kernel(
        np.zeros((1, FRAME_WORDS), dtype=np.int64),
        0,
        np.zeros(SCHEMA_SLOTS, dtype=np.int64),
        0,
        np.zeros((SCHEMA_SLOTS, FRAME_WORDS - PAYLOAD_WORD), dtype=np.int64),
        np.zeros(SCHEMA_SLOTS + 1, dtype=np.int64),
        np.zeros((1, RULE_FIELDS), dtype=np.int64),
        np.zeros((1, 256), dtype=np.bool_),
        np.zeros(1, dtype=np.int64),
    )
