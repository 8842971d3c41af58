"""Rings whose ends are killed for real: nothing committed is lost, repeated, torn or out of order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from middleware.shm.errors import InUse
from middleware.shm.inspection.files import held_by
from middleware.shm.inspection.rings import RingReport, inspect_ring
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from tests.fault import stepping
from tests.fault.killing import Child, Nursery, is_long, seeded, wait_until
from tests.fault.ring_ends import FIRST_RING, SECOND_RING, last_number, passed_on_before
from tests.fault.ring_relay_kernels import (
    NUMBER_MAX,
    SCRATCH_WORDS,
    check_kernel,
    produce_kernel,
    relay_kernel,
    warm_up,
)
from tests.fault.stepping import Stepped, memory_states

Progress = np.ndarray[Any, np.dtype[np.int64]]  # as check_kernel has it

CAPACITY = 1 << 13  # some hundred records: full, empty and wrapped around all the time
KILLS = 1_000 if is_long() else 30
LIFE_S_MAX = 0.02
END_S_MAX = 60.0


@dataclass
class Reader:
    """The consumer of the second ring, which nobody kills: it checks every bit of what arrives."""

    consumer: RingConsumer
    progress: Progress = field(default_factory=lambda: np.array([0, -1]))

    @property
    def count(self) -> int:
        """How many records have arrived; their numbers are 0, 1, 2, ... without exception."""
        return int(self.progress[0])

    def read_for(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.read()
            self.consumer.wait(1_000_000)

    def read(self) -> int:
        count = check_kernel(self.consumer.words, self.consumer.state, self.progress, 256)
        if count < 0:
            record = self.consumer.peek()
            raise AssertionError(f"record {self.count} is not what was committed ({count}): {record}")
        return count


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    runtime = Runtime(tmp_path / "node")
    for name in (FIRST_RING, SECOND_RING):
        make_ring(runtime, name, CAPACITY)
    return runtime


def look(runtime: Runtime, ring: str) -> RingReport:
    """Look at a ring from outside."""
    return inspect_ring(runtime.place("rings", ring))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.ring_ends") as nursery:
        yield nursery


def test_everything_committed_arrives_once_and_in_order_through_any_number_of_kills(
    runtime: Runtime, nursery: Nursery
) -> None:
    warm_up()
    with seeded() as randomness, RingConsumer.open(runtime, SECOND_RING, who="reader") as consumer:
        reader = Reader(consumer)
        ends: dict[str, Child] = {}
        working_kills = 0
        for kill in range(KILLS):
            for role in ("producer", "relay"):
                if role not in ends:
                    name = f"{role}-{kill}"
                    ends[role] = nursery.start(role, str(runtime.path), name, str(randomness.getrandbits(32)))
            count_before = reader.count
            reader.read_for(randomness.uniform(0, LIFE_S_MAX))
            working_kills += reader.count > count_before
            for role in randomness.choice((("producer",), ("relay",), ("producer", "relay"))):
                assert ends.pop(role).kill() == -9, nursery.errors()
        for child in ends.values():
            child.kill()
        assert working_kills > KILLS // 10, "most were killed before they did anything, which shows little"

        with RingProducer.open(runtime, FIRST_RING, who="looks") as producer:
            committed_count = last_number(producer) + 1
        last_relay = nursery.start("relay", str(runtime.path), "relay-last", "0")
        deadline_s = time.monotonic() + END_S_MAX
        while reader.count < committed_count and time.monotonic() < deadline_s:
            reader.read_for(0.001)
        assert last_relay.kill() == -9, nursery.errors()
        assert reader.read() == 0
        assert reader.count == committed_count < NUMBER_MAX
        assert look(runtime, FIRST_RING).fill_bytes == 0


def test_a_second_producer_is_refused_until_the_first_was_killed(runtime: Runtime, nursery: Nursery) -> None:
    first = nursery.start("producer", str(runtime.path), "the-first", "1")

    def has_sat_down() -> bool:
        producer = look(runtime, FIRST_RING).producer
        return producer is not None and producer.name == "the-first"

    wait_until(has_sat_down, "the first producer takes its seat")
    with pytest.raises(InUse, match=rf"'the-first' \(process {first.pid}\) is its producer already"):
        RingProducer.open(runtime, FIRST_RING, who="the-second")
    first.kill()
    with RingProducer.open(runtime, FIRST_RING, who="the-second") as producer:
        assert look(runtime, FIRST_RING).producer == held_by(producer.identity, is_alive=True)


def test_a_stopped_consumer_stops_its_producer_and_nothing_is_lost(
    runtime: Runtime, nursery: Nursery
) -> None:
    warm_up()
    with RingConsumer.open(runtime, SECOND_RING, who="reader") as consumer:
        reader = Reader(consumer)
        producer = nursery.start("producer", str(runtime.path), "producer", "1")
        relay = nursery.start("relay", str(runtime.path), "relay", "2")
        wait_until(lambda: reader.read() > 0, "the first records arrive")
        relay.stop()

        def is_full() -> bool:
            return look(runtime, FIRST_RING).fill_bytes > CAPACITY - 512

        wait_until(is_full, "the producer has filled the ring")
        tail = look(runtime, FIRST_RING).tail
        relay.go_on()
        wait_until(
            lambda: bool(reader.read() and look(runtime, FIRST_RING).tail > tail + CAPACITY),
            "a round more was produced",
        )
        for child in (producer, relay):
            assert child.kill() == -9, nursery.errors()


# ---- every instruction

needs_stepping = pytest.mark.skipif(not stepping.IS_SUPPORTED, reason=stepping.WHY_NOT)
RING_FILES = {name: f"rings/{name}/ring" for name in (FIRST_RING, SECOND_RING)}


def produce_some(runtime: Runtime, count: int) -> int:
    """Commit the next `count` records on the first ring; return the number of the last."""
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    with RingProducer.open(runtime, FIRST_RING, who="p") as producer:
        number = last_number(producer) + 1
        assert produce_kernel(producer.words, producer.state, scratch, number, count, 1) == count
    return number + count - 1


def relay_and_read(runtime: Runtime, progress: Progress) -> None:
    """Pass on and read whatever there is on both rings, as new ends that know only the files."""
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    with (
        RingConsumer.open(runtime, FIRST_RING, who="next") as inward,
        RingProducer.open(runtime, SECOND_RING, who="next") as outward,
        RingConsumer.open(runtime, SECOND_RING, who="reader") as consumer,
    ):
        reader = Reader(consumer, progress)
        passed_on = passed_on_before(outward)
        while relay_kernel(inward.words, inward.state, outward.words, outward.state, scratch, passed_on, 64):
            reader.read()
        reader.read()


def wind(runtime: Runtime, ring: str) -> Progress:
    """Bring a ring, all consumed, to where not all of the next few records fit before its end."""
    progress = np.array([0, -1])
    while CAPACITY - look(runtime, ring).tail % CAPACITY > 100:
        produce_some(runtime, 1)
        relay_and_read(runtime, progress)
    return progress


@needs_stepping
def test_a_producer_killed_at_any_instruction_leaves_whole_records(runtime: Runtime, tmp_path: Path) -> None:
    warm_up()
    progress = wind(runtime, FIRST_RING)
    first = int(progress[0])
    outcomes = []
    with Stepped("tests.fault.ring_ends", "append", str(runtime.path)) as child:
        states = memory_states(child, runtime.path, [RING_FILES[FIRST_RING]])
        for index, state in enumerate(states):
            copy = Runtime(tmp_path / f"state-{index}")
            state.restore(copy.path)
            with RingProducer.open(copy, FIRST_RING, who="successor") as successor:
                last = last_number(successor)
            outcomes.append(last - first + 1)
            expected = produce_some(copy, 2)
            arriving = progress.copy()
            relay_and_read(copy, arriving)
            assert arriving[0] == expected + 1 == last + 3
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 2, 3}, "two were committed together, then one"
    assert len(outcomes) > 15, "many stores were seen between the commits"


@needs_stepping
def test_a_relay_killed_at_any_instruction_passes_everything_on_once(
    runtime: Runtime, tmp_path: Path
) -> None:
    warm_up()
    progress = wind(runtime, SECOND_RING)
    last = produce_some(runtime, 2)
    moments = set()
    with Stepped("tests.fault.ring_ends", "relay", str(runtime.path)) as child:
        states = memory_states(child, runtime.path, list(RING_FILES.values()))
        for index, state in enumerate(states):
            copy = Runtime(tmp_path / f"state-{index}")
            state.restore(copy.path)
            moments.add(
                (
                    look(copy, FIRST_RING).fill_bytes > 0,
                    look(copy, SECOND_RING).fill_bytes > 0,
                )
            )
            arriving = progress.copy()
            relay_and_read(copy, arriving)
            assert arriving[0] == last + 1
    assert moments == {(True, False), (True, True), (False, True)}, "before, between and after its two moves"
