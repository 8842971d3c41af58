"""The ring against a plain model: any sequence of moves, and either end replaced between any two."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from middleware.shm.errors import LayoutError
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.ring_file import open_ring, record_bytes_max
from middleware.shm.ring_kernels import HEAD, RECORDS, TAIL
from middleware.shm.runtime import Runtime

CAPACITY = 4_096
BODY_BYTES_MAX = record_bytes_max(CAPACITY)
NAME = "r"

bodies = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda size, byte: bytes([byte]) * size,
        st.one_of(st.integers(0, BODY_BYTES_MAX), st.sampled_from((BODY_BYTES_MAX, BODY_BYTES_MAX - 8, 496))),
        st.integers(0, 255),
    ),
)


@dataclass
class Model:
    """What a ring should do, in the plainest words: a queue, three numbers and one rule about room."""

    tail: int = 0
    head: int = 0
    last: tuple[int, bytes] | None = None
    waiting: deque[tuple[int, bytes, int]] = field(default_factory=deque)  # position, body, end

    def place_of(self, size: int, begin: int) -> tuple[int, int]:
        """Return where a record of this size would begin and end, after `begin`."""
        span = 16 + -(-size // 8) * 8
        left = CAPACITY - begin % CAPACITY
        start = begin if span <= left else begin + left
        return start, start + span

    def has_room_to(self, end: int) -> bool:
        kept = self.head if self.last is None else min(self.head, self.last[0])
        return end - kept <= CAPACITY

    def append_many(self, batch: list[bytes]) -> int:
        """Commit what fits; the rule about room looks at what was committed before the whole batch."""
        staged = []
        end = self.tail
        for body in batch:
            start, next_end = self.place_of(len(body), end)
            if not self.has_room_to(next_end):
                break
            staged.append((start, body, next_end))
            end = next_end
        if staged:
            self.waiting.extend(staged)
            self.tail = end
            self.last = staged[-1][:2]
        return len(staged)

    def consume(self, count: int) -> None:
        for _ in range(count):
            self.head = self.waiting.popleft()[2]


class RingMachine(RuleBasedStateMachine):
    """Drives a real ring and the model alike."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runtime = Runtime(self.directory / "node")
        self.model = Model()
        self.reserved: int | None = None

    @initialize()
    def make(self) -> None:
        make_ring(self.runtime, NAME, CAPACITY)
        self.producer = RingProducer.open(self.runtime, NAME, who="p")
        self.consumer = RingConsumer.open(self.runtime, NAME, who="c")

    @precondition(lambda self: self.reserved is None)
    @rule(body=bodies)
    def append(self, body: bytes) -> None:
        position = self.producer.append(body)
        if self.model.append_many([body]):
            assert self.model.last is not None
            assert position == self.model.last[0]
        else:
            assert position is None

    @precondition(lambda self: self.reserved is None)
    @rule(batch=st.lists(bodies, max_size=12))
    def append_many(self, batch: list[bytes]) -> None:
        committed = self.producer.append_many(batch)
        # The Python side offers what is left again when the ring was full, so the model does too.
        expected = self.model.append_many(batch)
        while expected < len(batch) and (more := self.model.append_many(batch[expected:])):
            expected += more
        assert committed == expected

    @precondition(lambda self: self.reserved is None)
    @rule(size=st.integers(0, BODY_BYTES_MAX))
    def reserve(self, size: int) -> None:
        room = self.producer.reserve(size)
        _, end = self.model.place_of(size, self.model.tail)
        assert (room is not None) == self.model.has_room_to(end)
        if room is not None:
            room[:] = b"\xaa" * size
            self.reserved = size

    @precondition(lambda self: self.reserved is not None)
    @rule(share=st.floats(0, 1), is_dropped=st.booleans())
    def commit(self, share: float, is_dropped: bool) -> None:
        assert self.reserved is not None
        if is_dropped:
            self.producer.abandon()
        else:
            used = int(share * self.reserved)
            start, _ = self.model.place_of(self.reserved, self.model.tail)
            assert self.producer.commit(used) == start
            _, end = self.model.place_of(used, start)
            body = b"\xaa" * used
            self.model.waiting.append((start, body, end))
            self.model.tail, self.model.last = end, (start, body)
        self.reserved = None

    @rule()
    def peek(self) -> None:
        record = self.consumer.peek()
        if not self.model.waiting:
            assert record is None
        else:
            assert record is not None
            assert (record.position, bytes(record.body)) == self.model.waiting[0][:2]

    @rule(limit=st.integers(1, 20), share=st.floats(0, 1))
    def read_and_advance(self, limit: int, share: float) -> None:
        batch = self.consumer.read_batch(limit)
        expected = list(self.model.waiting)[:limit]
        assert [(record.position, bytes(record.body)) for record in batch] == [row[:2] for row in expected]
        count = int(share * len(expected))
        if count:
            self.consumer.advance(count)
            self.model.consume(count)

    @rule(limit=st.integers(1, 20), fails_at=st.integers(0, 20))
    def consume(self, limit: int, fails_at: int) -> None:
        handled: list[tuple[int, bytes]] = []

        class Failure(Exception):
            pass

        def handle(record: tuple[int, memoryview]) -> None:
            if len(handled) == fails_at:
                raise Failure
            handled.append((record[0], bytes(record[1])))

        expected = [row[:2] for row in self.model.waiting][:limit]
        if fails_at < len(expected):
            with pytest.raises(Failure):
                self.consumer.consume(handle, limit)
            expected = expected[:fails_at]
        else:
            assert self.consumer.consume(handle, limit) == len(expected)
        assert handled == expected
        self.model.consume(len(expected))

    @rule()
    def producer_is_replaced(self) -> None:
        self.producer.close()
        self.producer = RingProducer.open(self.runtime, NAME, who="next-p")
        self.reserved = None

    @rule()
    def consumer_is_replaced(self) -> None:
        self.consumer.close()
        self.consumer = RingConsumer.open(self.runtime, NAME, who="next-c")

    @rule()
    def both_are_replaced(self) -> None:
        self.producer.close()
        self.consumer_is_replaced()
        self.producer_is_replaced()

    @invariant()
    def numbers_agree(self) -> None:
        if not hasattr(self, "producer"):
            return
        assert (self.producer.tail, self.consumer.head) == (self.model.tail, self.model.head)
        assert self.producer.fill_bytes == self.consumer.fill_bytes == self.model.tail - self.model.head
        last = self.producer.last_committed()
        assert (None if last is None else (last.position, bytes(last.body))) == self.model.last

    def teardown(self) -> None:
        if hasattr(self, "producer"):
            self.producer.close()
            self.consumer.close()
        shutil.rmtree(self.directory)


@pytest.mark.kernels
def test_a_ring_does_what_its_model_does() -> None:
    run_state_machine_as_test(RingMachine)


damaged_words = st.one_of(
    st.sampled_from((TAIL, HEAD)), st.integers(RECORDS, RECORDS + 200), st.integers(TAIL, RECORDS + 511)
)
damaged_values = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-64, 8_192),
    st.builds(lambda position, size: (position << 32) | size, st.integers(0, 600), st.integers(0, 1 << 31)),
)


@pytest.mark.kernels
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=20),
    damages=st.lists(st.tuples(damaged_words, damaged_values), min_size=1, max_size=4),
    is_running=st.booleans(),
)
def test_damage_anywhere_is_an_error_or_harmless(
    sizes: list[int], damages: list[tuple[int, int]], is_running: bool
) -> None:
    """Never a crash, never an endless loop, never a record of impossible size; and the seats are free."""
    with tempfile.TemporaryDirectory() as directory:
        runtime = Runtime(Path(directory) / "node")
        make_ring(runtime, NAME, CAPACITY)
        with RingProducer.open(runtime, NAME, who="p") as producer:
            assert producer.append_many([bytes(size) for size in sizes]) == len(sizes)
        words = open_ring(runtime, NAME, is_writable=True).words

        def damage() -> None:
            for word, value in damages:
                words[word] = value

        def consume() -> None:
            with RingConsumer.open(runtime, NAME, who="c") as consumer:
                if is_running:
                    damage()
                for _ in range(CAPACITY // 16 + 1):
                    record = consumer.peek()
                    if record is None:
                        return
                    assert len(record.body) <= BODY_BYTES_MAX
                    consumer.advance()
                pytest.fail("a ring holds no more records than fit in it")

        def produce() -> None:
            with RingProducer.open(runtime, NAME, who="p") as producer:
                if is_running:
                    damage()
                # A wrong HEAD that could be a right one makes the ring once more as large, not endless.
                for _ in range(2 * CAPACITY // 16 + 1):
                    producer.last_committed()
                    if producer.append(b"more") is None:
                        return
                pytest.fail("a ring takes no more records than fit in it")

        if not is_running:
            damage()
        for act in (consume, produce, consume):
            with suppress(LayoutError):
                act()
