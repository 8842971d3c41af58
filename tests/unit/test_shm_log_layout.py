"""Joining a log while its writer is at work: what is read of it in between never looks like damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from middleware.shm.log import LogWriter
from middleware.shm.log_kernels import MARGIN_SHARE
from middleware.shm.log_layout import SLOT_COUNT_MIN, check_cursors
from middleware.shm.mapping import ReadableWords
from middleware.shm.runtime import Runtime
from tests.fault.stamped_frame_kernels import stamped

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
MARGIN = SLOTS // MARGIN_SHARE
LOOKS_MAX = 100


class Words:
    """A log's words, of which the writer takes a turn before one certain look."""

    def __init__(self, words: Any, turn_at: int, turn: Callable[[], None]) -> None:
        self._words = words
        self._turn_at = turn_at
        self._turn = turn
        self.looks = 0

    def __getitem__(self, index: int) -> int:
        self.looks += 1
        if self.looks == self._turn_at:
            self._turn()
        return int(self._words[index])


@pytest.mark.parametrize("frames_before", [0, 3, 2 * SLOTS + 5])
@pytest.mark.parametrize("batch", [1, MARGIN, SLOTS, 3 * SLOTS])
def test_publishing_while_a_log_is_checked_is_not_taken_for_damage(
    tmp_path: Path, frames_before: int, batch: int
) -> None:
    insist_sound(tmp_path, frames_before, lambda writer: writer.publish(stamped(writer.next_seq, batch)))


@pytest.mark.parametrize("frames_before", [0, 3, 2 * SLOTS + 5])
@pytest.mark.parametrize("distance", [1, MARGIN + 1, 10 * SLOTS])
def test_a_skip_while_a_log_is_checked_is_not_taken_for_damage(
    tmp_path: Path, frames_before: int, distance: int
) -> None:
    insist_sound(tmp_path, frames_before, lambda writer: writer.skip_to(writer.next_seq + distance))


@pytest.mark.parametrize("distance", [1, MARGIN + 1, 10 * SLOTS])
def test_a_skip_and_frames_while_a_log_is_checked_are_not_taken_for_damage(
    tmp_path: Path, distance: int
) -> None:
    def skip_and_publish(writer: LogWriter) -> None:
        writer.skip_to(writer.next_seq + distance)
        writer.publish(stamped(writer.next_seq, SLOTS))

    insist_sound(tmp_path, SLOTS, skip_and_publish)


def insist_sound(tmp_path: Path, frames_before: int, act: Callable[[LogWriter], None]) -> None:
    """Check a log as who opens it does, with the writer acting before each look in turn."""
    for turn_at in range(1, LOOKS_MAX):
        runtime = Runtime(tmp_path / f"node-{turn_at}")
        with LogWriter.open(runtime, NAME, who="writer", slot_count=SLOTS) as writer:
            if frames_before:
                writer.publish(stamped(1, frames_before))
            words = Words(writer.words, turn_at, lambda: act(writer))
            check_cursors(tmp_path, cast("ReadableWords", words), SLOTS)
            if words.looks < turn_at:
                break
    assert 5 < turn_at < LOOKS_MAX - 1
