"""Frames that prove themselves: every word follows from the frame's number and from the writer that made it.

A frame with one word of another frame, older or newer or of the same number by another writer, is found.
The writer is named by its *generation*: the first is 1, the one that replaces it 2, and so on. So a frame
that a killed writer did not finish is told from the one that its successor published under the same number.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from feeds import wire
from feeds.compiled import i64, inlined_kernel, kernel
from feeds.wire import FRAME_WORDS, FrameArray, Kind, Schema, WordArray, place

_HEAD = wire.new_frame(Schema.TRADE)
HEAD_WORD = int(wire.words(_HEAD)[0, 0])  # length, version, kind: as any frame has them
SEQ_WORD = place("message_seq").word
GENERATION_WORD = place("source_seq").word
CHECKSUM_WORD = FRAME_WORDS - 1
SEQ_MAX = 1 << 40
GENERATION_MAX = 1 << 11
ALL_RIGHT = -1

_PER_SEQ = 2_654_437  # below 2**22, so that nothing here passes 2**63 (nor warns when it is interpreted)
_PER_GENERATION = 1 << 50
_PER_WORD = 1_000_003
assert HEAD_WORD >> 40 & 0xFF == Kind.DATA


@kernel
def stamp_kernel(frames: WordArray, first_seq: int, generation: int) -> None:
    """Fill rows with the frames `first_seq`, `first_seq` + 1, ... of a writer."""
    for row in range(frames.shape[0]):
        checksum = 0
        for word in range(CHECKSUM_WORD):
            value = _word_of(first_seq + row, generation, word)
            frames[row, word] = value
            checksum ^= value
        frames[row, CHECKSUM_WORD] = checksum


@kernel
def check_kernel(frames: WordArray, first_seq: int) -> int:
    """Return the first row that is not the frame it should be, whoever wrote it; or ALL_RIGHT."""
    for row in range(frames.shape[0]):
        generation = frames[row, GENERATION_WORD]
        if not 0 < generation < GENERATION_MAX:
            return row
        checksum = 0
        for word in range(CHECKSUM_WORD):
            value = frames[row, word]
            if value != _word_of(first_seq + row, generation, word):
                return row
            checksum ^= value
        if frames[row, CHECKSUM_WORD] != checksum:
            return row
    return ALL_RIGHT


@kernel
def copy_kernel(target: WordArray, source: WordArray) -> None:
    """Copy frames word by word, so that a test can come between any two."""
    for row in range(source.shape[0]):
        for word in range(FRAME_WORDS):
            target[row, word] = source[row, word]


@inlined_kernel
def _word_of(sequence: int, generation: int, word: int) -> int:
    if word == SEQ_WORD:
        return sequence
    if word == GENERATION_WORD:
        return generation
    if word == 0:
        return HEAD_WORD
    return (sequence * _PER_SEQ + generation * _PER_GENERATION) ^ (word * _PER_WORD)


def stamped(first_seq: int, count: int, generation: int = 1) -> FrameArray:
    """Return `count` new frames."""
    assert 0 <= first_seq <= first_seq + count <= SEQ_MAX
    assert 0 < generation < GENERATION_MAX
    frames = wire.empty(count)
    stamp_kernel(wire.words(frames), i64(first_seq), i64(generation))
    return frames


def insist_right(frames: FrameArray, first_seq: int) -> None:
    """Raise an AssertionError that shows the first frame which is not what was published."""
    rows = wire.words(frames)
    wrong = check_kernel(rows, i64(first_seq))
    if wrong != ALL_RIGHT:
        found = rows[wrong]
        generation = min(max(int(found[GENERATION_WORD]), 1), GENERATION_MAX - 1)
        expected = wire.words(stamped(first_seq + wrong, 1, generation))[0]
        raise AssertionError(
            f"frame {first_seq + wrong} (row {wrong} of {len(rows)}) is not what was published:\n"
            f"  found    {found.tolist()}\n  expected {expected.tolist()} (of generation {generation})"
        )


def generation_runs(frames: FrameArray, first_seq: int) -> list[tuple[int, int, int]]:
    """Return (first, last, generation) for each run of frames by one writer."""
    generations = wire.words(frames)[:, GENERATION_WORD]
    breaks = [0, *(np.flatnonzero(np.diff(generations)) + 1).tolist(), len(generations)]
    return [
        (first_seq + begin, first_seq + end - 1, int(generations[begin])) for begin, end in pairwise(breaks)
    ]


def warm_up() -> None:
    frames = stamped(1, 2)
    insist_right(frames, 1)
    frames.flags.writeable = False  # what a reader shows in place is another type for the compiler
    insist_right(frames, 1)
    copy_kernel(wire.words(wire.empty(2)), wire.words(frames))
