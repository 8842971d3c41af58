"""The stream log against a plain model: any order of publishing, reading, lapping, dying and coming back."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from feeds import wire
from feeds.compiled import IS_INTERPRETED
from feeds.wire import FrameArray, WordArray
from middleware.shm.atomics import Words
from middleware.shm.log import GateChange, Lapped, LogReader, LogWriter, Missed, Start, compiled_handler
from middleware.shm.log_kernels import MARGIN_SHARE, RESUME_SHARE
from middleware.shm.log_layout import SLOT_COUNT_MIN
from middleware.shm.runtime import Runtime
from tests.fault.crash_points import crash_after
from tests.fault.stamped_frame_kernels import GENERATION_WORD, insist_right, stamped

NAME = "XNAS.ITCH"
SLOTS = SLOT_COUNT_MIN
MARGIN = SLOTS // MARGIN_SHARE
READERS_MAX = 4
KEPT_FRAMES_MAX = 2 * SLOTS


def keep_frames(frames: WordArray, memory: Words) -> None:
    """A handler that appends frames to its memory, whose first word counts them."""
    for row in range(frames.shape[0]):
        for word in range(frames.shape[1]):
            memory[1 + memory[0] * frames.shape[1] + word] = frames[row, word]
        memory[0] += 1


KEEPER = compiled_handler(keep_frames, np.zeros(1 + KEPT_FRAMES_MAX * wire.FRAME_WORDS, dtype=np.int64))


class HandlerFailed(Exception):
    """What a handler of ours raises, and nothing else does."""


@dataclass(slots=True)
class Follower:
    """A reader, and what the model knows of it."""

    name: str
    reader: LogReader
    next_seq: int


class LogMachine(RuleBasedStateMachine):
    """The model is the number of each writer's first frame, and where each reader is."""

    followers = Bundle("followers")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runtime = Runtime(self.directory / "node")
        self.starts: dict[int, int] = {}  # first number -> generation
        self.generation = 0
        self.tail = 0
        self.begin = 0
        self.open_count = 0
        self.name_count = 0

    @initialize(first_seq=st.sampled_from([None, 0, 1, 1_000_003]))
    def first_writer(self, first_seq: int | None) -> None:
        self.writer = self.open_writer(slot_count=SLOTS, first_seq=first_seq)
        self.begin = self.tail = 1 if first_seq is None else first_seq
        self.starts = {self.tail: 1}

    def open_writer(self, *, slot_count: int | None = None, first_seq: int | None = None) -> LogWriter:
        self.generation += 1
        return LogWriter.open(
            self.runtime,
            NAME,
            who=f"generation-{self.generation}",
            slot_count=slot_count,
            first_seq=first_seq,
            patience_ns=0,  # a gate in the way is taken away at once
        )

    # --- the writer ---

    @rule(count=st.one_of(st.integers(1, 40), st.sampled_from([SLOTS - MARGIN, SLOTS, 2 * SLOTS + 3])))
    def publish(self, count: int) -> None:
        self.writer.publish(stamped(self.tail, count, self.generation))
        self.tail += count

    @rule()
    def publish_one(self) -> None:
        self.writer.publish_one(stamped(self.tail, 1, self.generation))
        self.tail += 1

    @rule(distance=st.sampled_from([1, 5, SLOTS, 10 * SLOTS + 1]))
    def skip(self, distance: int) -> None:
        self.tail += distance
        self.writer.skip_to(self.tail)
        self.begin = self.tail
        self.starts[self.tail] = self.generation

    @rule(is_tidy=st.booleans())
    def replace_writer(self, is_tidy: bool) -> None:
        """A writer goes, tidily or as a kill would have it, and another continues."""
        if is_tidy:
            self.writer.close()
        else:
            self.writer._seats.forget()  # what the kernel does for the dead: the lock goes, the rest stays
        self.writer = self.open_writer()
        assert self.writer.next_seq == self.tail
        self.starts[self.tail] = self.generation

    @precondition(lambda _self: IS_INTERPRETED)
    @rule(count=st.integers(1, 2 * MARGIN), store_number=st.integers(1, 400))
    def crash_in_publish(self, count: int, store_number: int) -> None:
        """A writer dies after some store of a publication; what it finished is there, and nothing else."""
        first = self.tail
        with crash_after(store_number) as point:
            self.writer.publish(stamped(first, count, self.generation))
        self.writer._seats.forget()
        self.writer = self.open_writer()
        self.tail = self.writer.next_seq
        assert first <= self.tail <= first + count
        assert point.has_happened or self.tail == first + count
        self.starts[self.tail] = self.generation

    @rule()
    def serve(self) -> None:
        """The writer looks after its gates now, and not some milliseconds later."""
        self.writer._gates._look_at_ns = 0
        for event in self.writer.service():
            assert event.change not in (GateChange.BROKEN, GateChange.REFUSED)

    # --- the readers ---

    @precondition(lambda self: self.open_count < READERS_MAX)
    @rule(
        target=followers,
        start=st.one_of(st.sampled_from(Start), st.integers(-2 * SLOTS, 10)),
        is_gating=st.booleans(),
    )
    def join(self, start: Start | int, is_gating: bool) -> Follower:
        self.name_count += 1
        name = f"reader-{self.name_count}"
        where = max(self.tail + start, 0) if isinstance(start, int) else start
        reader = LogReader.open(self.runtime, NAME, who=name, start=where, is_gating=is_gating)
        self.open_count += 1
        if isinstance(where, int):
            assert reader.next_seq == where
        elif where is Start.NEXT:
            assert reader.next_seq == self.tail
        elif where is Start.NEWEST:
            assert reader.next_seq == max(self.tail - 1, self.begin)
        else:
            assert self.begin <= reader.next_seq <= max(self.begin, self.tail - SLOTS + MARGIN)
        return Follower(name, reader, reader.next_seq)

    @rule(follower=followers, limit=st.one_of(st.integers(1, 10), st.just(KEPT_FRAMES_MAX)))
    def read(self, follower: Follower, limit: int) -> None:
        frames = follower.reader.read(limit)
        self.account(follower, frames, limit)

    @rule(follower=followers, limit=st.one_of(st.integers(1, 10), st.just(KEPT_FRAMES_MAX)))
    def poll(self, follower: Follower, limit: int) -> None:
        KEEPER.memory[0] = 0
        count = follower.reader.poll(KEEPER, limit)
        assert int(KEEPER.memory[0]) == count
        frames = wire.view(KEEPER.memory[1 : 1 + count * wire.FRAME_WORDS])
        self.account(follower, frames, limit)

    @rule(
        follower=followers,
        limit=st.one_of(st.integers(1, 10), st.just(KEPT_FRAMES_MAX)),
        failures=st.integers(0, 2),
    )
    def poll_python(self, follower: Follower, limit: int, failures: int) -> None:
        """A handler fails some times and then does not: it gets the same frames each time."""
        given: list[FrameArray] = []

        def on_batch(frames: FrameArray) -> None:
            given.append(frames.copy())
            assert follower.reader.next_seq == frames["message_seq"][0]
            if len(given) <= failures:
                raise HandlerFailed

        for _ in range(failures):
            with suppress(HandlerFailed):
                follower.reader.poll(on_batch, limit)
        count = follower.reader.poll(on_batch, limit)
        assert all(frames.tobytes() == given[0].tobytes() for frames in given)
        assert len(given) in (0, failures + 1)
        assert count == (len(given[0]) if given else 0)
        self.account(follower, given[0] if given else wire.empty(0), limit)

    @rule(follower=followers, limit=st.integers(1, SLOTS))
    def look(self, follower: Follower, limit: int) -> None:
        with follower.reader.view(limit) as frames:
            copied = frames.copy()
            before_end = SLOTS - (follower.reader.next_seq & (SLOTS - 1))
        self.account(follower, copied, min(limit, before_end))

    @rule(follower=followers, limit=st.integers(1, SLOTS), count=st.sampled_from([1, SLOTS, 3 * SLOTS]))
    def look_while_published(self, follower: Follower, limit: int, count: int) -> None:
        """Frames are looked at in place while the writer goes on, and perhaps comes around."""
        wanted = follower.next_seq
        try:
            with follower.reader.view(limit) as frames:
                self.publish(count)
                copied = frames.copy()
        except Lapped as error:
            lapped = error.missed
        else:
            self.insist_contiguous(follower, copied)
            return
        missed = self.insist_contiguous(follower, wire.empty(0))
        assert missed[0].first == wanted
        assert missed[-1].last == lapped.last
        assert lapped.first < self.tail - SLOTS + MARGIN, "nobody came around"

    @rule(follower=followers)
    def revive(self, follower: Follower) -> None:
        """A reader dies and comes back under its name where it was."""
        follower.reader._seats.forget()
        follower.reader = LogReader.open(self.runtime, NAME, who=follower.name, start=follower.next_seq)
        assert follower.reader.next_seq == follower.next_seq

    @rule(follower=consumes(followers))
    def leave(self, follower: Follower) -> None:
        follower.reader.close()
        self.open_count -= 1

    # --- what must hold ---

    def account(self, follower: Follower, frames: FrameArray, limit: int) -> None:
        """Compare what a reader was given and told with what the model says there was."""
        wanted = follower.next_seq
        missed = self.insist_contiguous(follower, frames)
        if wanted >= self.tail:
            assert len(frames) == 0
            assert missed == []
            return
        kept_from = max(self.begin, self.tail - SLOTS)  # at best
        safe_from = max(self.begin, self.tail - SLOTS + MARGIN)  # at worst
        if wanted >= safe_from:
            assert missed == []
            assert len(frames) == min(limit, self.tail - wanted)
        if wanted < kept_from:
            assert missed
        if missed:
            # No more was given up than the rule says: a share of the log above what is overwritten next.
            resumed_at = missed[-1].last + 1
            assert resumed_at <= max(self.begin, self.tail - SLOTS + MARGIN + SLOTS // RESUME_SHARE)
            assert len(frames) > 0 or resumed_at == self.tail

    def insist_contiguous(self, follower: Follower, frames: FrameArray) -> list[Missed]:
        missed = follower.reader.take_missed()
        for gone in missed:
            assert gone.first == follower.next_seq
            assert gone.last >= gone.first
            follower.next_seq = gone.last + 1
        if len(frames):
            insist_right(frames, follower.next_seq)
            self.insist_generations(frames, follower.next_seq)
        follower.next_seq += len(frames)
        assert follower.reader.next_seq == follower.next_seq
        return missed

    def insist_generations(self, frames: FrameArray, first: int) -> None:
        for row, generation in enumerate(wire.words(frames)[:, GENERATION_WORD].tolist()):
            begun = max(start for start in self.starts if start <= first + row)
            assert generation == self.starts[begun]

    @invariant()
    def numbers_agree(self) -> None:
        if self.generation:
            assert self.writer.next_seq == self.tail

    def teardown(self) -> None:
        if self.generation:
            self.writer.close()
        shutil.rmtree(self.directory)


TestLog = LogMachine.TestCase
TestLog.settings = settings(stateful_step_count=40)
TestLog.pytestmark = [pytest.mark.kernels]  # type: ignore[attr-defined]
