"""The arbiter's kernel beside a plain reference, on any streams; what sensible ones become (A5, A6)."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.arbiter import Arbiter, Cursor, Hole, SourceGap
from middleware.arbiter_kernels import FINISHED_MAX, WINDOW_COUNT
from tests.arbiter_frames import Message, messages_of, words_of

pytestmark = pytest.mark.kernels


@dataclass
class Reference:
    """The rules of `arbiter_kernels`, one message at a time, with everything remembered."""

    position: int
    epoch: int = 0
    session: int | None = None
    next_key: tuple[int, int] = (0, 0)
    next_admin: tuple[int, int] = (0, 0)
    over: deque[int] = field(default_factory=lambda: deque(maxlen=FINISHED_MAX))
    is_filling: bool = False
    gaps: list[SourceGap] = field(default_factory=list)
    hole: Hole | None = None
    delivered: list[Message] = field(default_factory=list)

    def verdict(self, head: Message) -> str:
        number = (head.seq, head.part)
        in_step = not head.is_unsynced and head.epoch >= self.epoch and head.position >= self.position
        if head.is_admin:
            if number < self.next_admin:
                return "drop"
            if not in_step:
                return "drop"
        elif head.session == self.session:
            if number < self.next_key:
                return "drop"
        elif head.session in self.over:
            return "drop"
        if in_step:
            return "take" if head.position == self.position else "ahead"
        return "filler" if (head.session, number) == (self.session, self.next_key) else "wait"

    def deliver(self, message: Message) -> None:
        after = (message.seq + 1, 0) if message.is_last else (message.seq, message.part + 1)
        if message.is_admin:
            self.next_admin = after
        else:
            if message.session != self.session:
                if self.session is not None:
                    self.over.append(self.session)
                self.session = message.session
            elif message.seq > self.next_key[0]:
                self.gaps.append(SourceGap(message.session, self.next_key[0], message.seq - 1, self.position))
            self.next_key = after
        self.epoch = max(self.epoch, message.epoch)
        self.delivered.append(message.at(self.position))
        self.position += 1

    def arbitrate(self, windows: list[deque[Message]]) -> None:
        self.hole = None
        is_moving = True
        while is_moving:
            is_moving = False
            ahead: list[int] = []
            fillers: list[int] = []
            for index, window in enumerate(windows):
                while window and (verdict := self.verdict(window[0])) in ("take", "drop"):
                    message = window.popleft()
                    if verdict == "take":
                        self.deliver(message)
                    is_moving = True
                if window:
                    verdict = self.verdict(window[0])
                    ahead += [window[0].position] if verdict == "ahead" else []
                    fillers += [index] if verdict == "filler" else []
            if not is_moving and fillers and self.is_filling:
                self.deliver(windows[fillers[0]].popleft())
                is_moving = True
            elif not is_moving and (ahead or fillers):
                self.hole = Hole(self.position, min(ahead) - 1 if ahead else None, tuple(fillers))


messages = st.builds(
    Message,
    position=st.integers(1, 9),
    seq=st.integers(1, 6),
    session=st.integers(1, 3),
    part=st.integers(0, 1),
    is_last=st.booleans(),
    is_admin=st.booleans(),
    epoch=st.integers(1, 3),
    is_unsynced=st.booleans(),
).map(lambda message: replace(message, session=0) if message.is_admin else message)
windows_of_anything = st.lists(st.lists(messages, max_size=8), min_size=WINDOW_COUNT, max_size=WINDOW_COUNT)


@given(
    rounds=st.lists(windows_of_anything, min_size=1, max_size=4),
    fill=st.lists(st.booleans(), min_size=4, max_size=4),
    epochs=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_the_kernel_does_what_the_reference_does_on_any_streams(
    rounds: list[list[list[Message]]], fill: list[bool], epochs: list[int]
) -> None:
    arbiter, reference = Arbiter(Cursor(1)), Reference(1)
    windows: list[deque[Message]] = [deque() for _ in range(WINDOW_COUNT)]
    for arriving, is_filling, epoch in zip(rounds, fill, epochs, strict=False):
        for window, more in zip(windows, arriving, strict=True):
            window.extend(more)
        arbiter.allow_fillers(is_allowed=is_filling)
        arbiter.on_epoch(epoch)
        reference.is_filling, reference.epoch = is_filling, max(reference.epoch, epoch)
        given_windows = [list(window) for window in windows]
        already = len(reference.delivered)
        reference.arbitrate(windows)
        batch = arbiter.arbitrate(*map(words_of, given_windows))
        assert messages_of(batch) == reference.delivered[already:]
        assert arbiter.consumed == tuple(
            len(before) - len(after) for before, after in zip(given_windows, windows, strict=True)
        )
        assert arbiter.hole == reference.hole
        assert arbiter.take_source_gaps() == reference.gaps
        reference.gaps = []


# --- streams that make sense ---


@st.composite
def truths(draw: st.DrawFn) -> list[Message]:
    """What a group of adapters publishes when all is well: sessions, parts, administrative messages."""
    stream: list[Message] = []
    admin = 0
    for session in draw(st.lists(st.integers(1, 1_000), min_size=1, max_size=3, unique=True)):
        for seq in range(1, draw(st.integers(1, 8)) + 1):
            if draw(st.integers(0, 4)) == 0:
                admin += 1
                stream.append(Message(len(stream) + 1, admin, session=0, is_admin=True))
            part_count = draw(st.integers(1, 3))
            for part in range(part_count):
                stream.append(Message(len(stream) + 1, seq, session, part, is_last=part == part_count - 1))
    return stream


@given(seed=st.integers(0, 1 << 32), truth=truths())
def test_two_streams_with_different_holes_give_all_messages_once_and_in_order(
    seed: int, truth: list[Message]
) -> None:
    """Each stream lost what it likes, as long as no message is lost by both; they arrive in any pieces."""
    chance = random.Random(seed)
    lost_by = [chance.choice(["", "active", "backup"]) for _ in truth]
    streams = [
        [message for message, loser in zip(truth, lost_by, strict=True) if loser != name]
        for name in ("active", "backup")
    ]
    arbiter = Arbiter(Cursor(1))
    waiting: list[list[Message]] = [[], []]
    got: list[Message] = []
    while any(streams):
        which, count = chance.randrange(2), chance.randrange(1, 6)
        waiting[which] += streams[which][:count]
        del streams[which][:count]
        got += messages_of(arbiter.arbitrate(*map(words_of, waiting)))
        for window, consumed in zip(waiting, arbiter.consumed, strict=False):
            del window[:consumed]
    assert got == truth
    assert arbiter.hole is None
    assert arbiter.take_source_gaps() == []


@given(data=st.data(), truth=truths())
def test_a_backup_out_of_step_fills_but_never_moves_an_administrative_message(
    data: st.DataObject, truth: list[Message]
) -> None:
    """The backup knows no administrative messages, says that it is out of step, and is ahead."""
    dies_at = data.draw(st.integers(0, len(truth)))
    active = truth[:dies_at]
    backup = [replace(message, position=99, is_unsynced=True) for message in truth if not message.is_admin]
    arbiter = Arbiter(Cursor(1))
    first = messages_of(arbiter.arbitrate(backup=words_of(backup)))
    assert first == []  # nothing that the active has not got to
    got = messages_of(arbiter.arbitrate(words_of(active), words_of(backup)))
    assert got == active
    left = backup[arbiter.consumed[1] :]
    if active and any(message.session for message in active):
        arbiter.allow_fillers(is_allowed=True)
        more = messages_of(arbiter.arbitrate(backup=words_of(left)))
        current = [message.session for message in active if not message.is_admin][-1]
        expected = [
            message.key for message in truth[dies_at:] if not message.is_admin and message.session == current
        ]
        assert [message.key for message in more] == expected
        assert [message.position for message in more] == list(range(dies_at + 1, dies_at + 1 + len(expected)))


@given(truth=truths(), data=st.data())
def test_an_arbiter_goes_on_in_another_process(truth: list[Message], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(truth)))
    first = Arbiter(Cursor(1))
    got = messages_of(first.arbitrate(words_of(truth[:cut])))
    second = Arbiter(first.cursor)
    assert second.cursor == first.cursor
    got += messages_of(second.arbitrate(words_of(truth)))
    assert got == truth
