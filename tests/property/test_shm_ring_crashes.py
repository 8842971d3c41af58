"""The ring with either end stopped after any store, and with the other taking its turn at any access.

Bodies are numbers that say which record they are, so what a replacement finds is compared with what every
process before it was asked to commit: a prefix, nothing torn, nothing twice, nothing left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.shm.ring import Record, RingConsumer, RingProducer, make_ring
from middleware.shm.ring_file import open_ring
from middleware.shm.ring_kernels import MARKS_BYTES
from middleware.shm.runtime import Runtime
from tests.fault.crash_points import (
    at_access,
    at_every_access,
    count_accesses,
    crash_after,
    every_crash_point,
)

pytestmark = pytest.mark.interpreted

CAPACITY = 4_096
EXTRA_BYTES = (0, 24, 7, 40, 13)  # of what follows the number in a body
GAPS = (0, 8, 16, 24, 32, 48, 64, 104)  # bytes before the end of the ring: some records fit there, others not
FIRST = 4  # the number of the first record after a ring was wound


class Place:
    """Rings in a directory of their own, whose contents can be put back as they were at a chosen moment."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.runtime = Runtime(directory / "node")
        for name in names:
            make_ring(self.runtime, name, CAPACITY)
        self._files = [open_ring(self.runtime, name, is_writable=True).words for name in names]
        self._saved = [words.copy() for words in self._files]
        self._ends: list[RingProducer | RingConsumer] = []

    def producer(self, name: str = "a") -> RingProducer:
        end = RingProducer.open(self.runtime, name, who="p")
        self._ends.append(end)
        return end

    def consumer(self, name: str = "a") -> RingConsumer:
        end = RingConsumer.open(self.runtime, name, who="c")
        self._ends.append(end)
        return end

    def everybody_dies(self) -> None:
        """What the kernel does for the dead: their seats are free. Closing stores nothing in the ring."""
        for end in self._ends:
            end.close()
        self._ends.clear()

    def save(self) -> None:
        self.everybody_dies()
        self._saved = [words.copy() for words in self._files]

    def restore(self) -> None:
        self.everybody_dies()
        for words, saved in zip(self._files, self._saved, strict=True):
            words[:] = saved


@contextmanager
def fresh_place(*names: str) -> Iterator[Place]:
    with TemporaryDirectory() as directory:
        place = Place(Path(directory), *(names or ("a",)))
        try:
            yield place
        finally:
            place.everybody_dies()


@contextmanager
def wound_place(gap: int) -> Iterator[Place]:
    """A ring whose records 0 to 3 are consumed, and whose next one begins `gap` bytes before its end."""
    with fresh_place() as place:
        producer, consumer = place.producer(), place.consumer()
        for number in range(FIRST):
            span = CAPACITY // 4 - (gap if number == FIRST - 1 else 0)
            room = producer.reserve(span - MARKS_BYTES)
            assert room is not None
            room[:] = sized_body(number, len(room))
            producer.commit()
            assert numbers_in(consumer) == [number]
        assert producer.tail == CAPACITY - gap
        place.save()
        yield place


def sized_body(number: int, size: int) -> bytes:
    return number.to_bytes(8, "little") + bytes((number + step) % 251 for step in range(size - 8))


def body_of(number: int) -> bytes:
    return sized_body(number, 8 + EXTRA_BYTES[number % len(EXTRA_BYTES)])


def number_of(body: memoryview) -> int:
    """Return which record this is, having checked every byte of it."""
    number = int.from_bytes(body[:8], "little")
    assert bytes(body) == sized_body(number, len(body)), f"record {number} is not as it was committed"
    return number


def numbers_in(consumer: RingConsumer) -> list[int]:
    """Consume everything there is."""
    numbers: list[int] = []
    while consumer.consume(lambda record: numbers.append(number_of(record.body))):
        pass
    return numbers


def last_number(producer: RingProducer) -> int:
    last = producer.last_committed()
    return -1 if last is None else number_of(last.body)


# ---- the producer stops after any store


def append_one(producer: RingProducer, first: int) -> None:
    producer.append(body_of(first))


def append_some(producer: RingProducer, first: int) -> None:
    for number in range(first, first + 4):
        producer.append(body_of(number))


def append_batch(producer: RingProducer, first: int) -> None:
    producer.append_many([body_of(number) for number in range(first, first + 4)])


def append_in_place(producer: RingProducer, first: int) -> None:
    for number in range(first, first + 3):
        body = body_of(number)
        room = producer.reserve(100)
        assert room is not None
        room[:] = b"\xee" * len(room)
        room[: len(body)] = body
        producer.commit(len(body))


ACTS = (append_one, append_some, append_batch, append_in_place)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("act", ACTS)
def test_a_producer_stopped_after_any_store_loses_and_tears_nothing(
    act: Callable[[RingProducer, int], None], gap: int
) -> None:
    outcomes = set()
    with wound_place(gap) as place:
        for store_number in every_crash_point(lambda: act(place.producer(), FIRST)):
            place.restore()
            producer = place.producer()
            with crash_after(store_number) as point:
                act(producer, FIRST)
            assert point.has_happened
            place.everybody_dies()

            successor, consumer = place.producer(), place.consumer()
            last = last_number(successor)
            assert numbers_in(consumer) == list(range(FIRST, last + 1))
            outcomes.add(last - FIRST + 1)
            for number in range(last + 1, last + 4):
                assert successor.append(body_of(number)) is not None
                assert numbers_in(consumer) == [number]
    if act is append_batch:
        assert outcomes == {0, 4}, "a batch is visible as a whole or not at all"
    else:
        assert outcomes == set(range(max(outcomes) + 1)), "some died before each commit, some after it"
        assert len(outcomes) >= 2


@pytest.mark.parametrize("gap", GAPS)
def test_a_flood_that_is_never_committed_spares_the_last_committed_record(gap: int) -> None:
    """A batch as large as the ring, everything before it consumed: the last record is the only thing kept."""
    flood = [body_of(number) for number in range(FIRST, FIRST + 200)]
    with wound_place(gap) as place:
        successor = place.producer()
        last = successor.last_committed()
        stores = list(every_crash_point(lambda: successor.append_many(flood)))
        for store_number in (*stores[::97], *stores[-8:]):
            place.restore()
            producer = place.producer()
            with crash_after(store_number) as point:
                producer.append_many(flood)
            assert point.has_happened
            place.everybody_dies()
            found = place.producer().last_committed()
            numbers = numbers_in(place.consumer())
            assert found is not None
            if not numbers:
                assert found == last
            else:
                assert numbers == list(range(FIRST, number_of(found.body) + 1))


@pytest.mark.parametrize("gap", GAPS)
def test_what_is_unread_survives_its_producers(gap: int) -> None:
    """Nothing is consumed meanwhile: the ring is filled up by producers of which most die at it."""
    with wound_place(gap) as place:
        following = FIRST
        attempts = deaths = 0
        is_full = False
        while not is_full:
            producer = place.producer()
            assert following == last_number(producer) + 1
            attempts += 1
            with crash_after(attempts % 12 + 1) as point:
                is_full = producer.append(body_of(following)) is None
            deaths += point.has_happened
            place.everybody_dies()
            following = last_number(place.producer()) + 1
            place.everybody_dies()
            assert attempts < 5_000, "an append makes fewer than 12 stores, so one in 12 succeeds"
        assert deaths > following - FIRST > 60
        assert numbers_in(place.consumer()) == list(range(FIRST, following))


# ---- the consumer stops after any store


def consume_each(consumer: RingConsumer, done: list[int], limit: int = 100) -> None:
    consumer.consume(lambda record: done.append(number_of(record.body)), limit)


def consume_by_peeking(consumer: RingConsumer, done: list[int]) -> None:
    while (record := consumer.peek()) is not None:
        done.append(number_of(record.body))
        consumer.advance()


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("act", [consume_each, consume_by_peeking])
def test_a_consumer_stopped_after_any_store_repeats_nothing_that_it_consumed(
    act: Callable[[RingConsumer, list[int]], None], gap: int
) -> None:
    numbers = list(range(FIRST, FIRST + 12))
    with wound_place(gap) as place:
        assert place.producer().append_many([body_of(number) for number in numbers]) == len(numbers)
        place.save()
        for store_number in every_crash_point(lambda: act(place.consumer(), [])):
            place.restore()
            consumer, done = place.consumer(), list[int]()
            with crash_after(store_number) as point:
                act(consumer, done)
            assert point.has_happened
            place.everybody_dies()
            # The store that it died after moved HEAD, so what it had done is exactly what is consumed.
            assert done + numbers_in(place.consumer()) == numbers
            assert last_number(place.producer()) == numbers[-1]


# ---- one ring's consumer is another's producer, as in the router


def relay_some(inward: RingConsumer, outward: RingProducer) -> None:
    """Pass records on exactly once: the outward record names the inward one that it came from."""
    last = outward.last_committed()
    passed_on = -1 if last is None else int.from_bytes(bytes(last.body[:8]), "little")

    def pass_on(record: Record) -> None:
        if record.position > passed_on:  # else our predecessor committed it and died before it advanced
            assert outward.append(record.position.to_bytes(8, "little") + bytes(record.body)) is not None

    inward.consume(pass_on)


RELAYED = list(range(5))


def test_a_relay_stopped_after_any_store_and_again_passes_everything_on_once() -> None:
    with fresh_place("in", "out") as place:
        place.producer("in").append_many([body_of(number) for number in RELAYED])
        place.save()
        stores = list(every_crash_point(lambda: relay_some(place.consumer("in"), place.producer("out"))))
        assert len(stores) > 6 * len(RELAYED)
        for first_store in stores:
            for second_store in stores[first_store % 3 :: 3]:
                place.restore()
                for store_number in (first_store, second_store):
                    inward, outward = place.consumer("in"), place.producer("out")
                    with crash_after(store_number):
                        relay_some(inward, outward)
                    place.everybody_dies()
                relay_some(place.consumer("in"), place.producer("out"))
                arrived = place.consumer("out").read_batch()
                assert [number_of(record.body[8:]) for record in arrived] == RELAYED


# ---- the other end's turn between any two accesses


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("act", ACTS)
def test_a_consumer_that_looks_at_every_access_sees_whole_records_in_order(
    act: Callable[[RingProducer, int], None], gap: int
) -> None:
    with wound_place(gap) as place:
        producer, consumer = place.producer(), place.consumer()
        seen: list[int] = []
        for step in range(3):
            with at_every_access(lambda: seen.extend(numbers_in(consumer))):
                act(producer, FIRST + len(seen))
            seen.extend(numbers_in(consumer))
            assert seen == list(range(FIRST, FIRST + len(seen)))
            assert len(seen) > step
        assert last_number(producer) == seen[-1]


@pytest.mark.parametrize("gap", GAPS)
def test_a_producer_that_fills_the_ring_at_every_access_overwrites_nothing_unread(gap: int) -> None:
    with wound_place(gap) as place:
        producer, consumer = place.producer(), place.consumer()
        following = FIRST

        def fill() -> None:
            nonlocal following
            while producer.append(body_of(following)) is not None:
                following += 1

        seen: list[int] = []
        fill()
        with at_every_access(fill):
            for _ in range(20):
                consumer.consume(lambda record: seen.append(number_of(record.body)), limit=3)
                seen.extend(number_of(record.body) for record in consumer.read_batch(4))
                consumer.advance()
        assert seen == list(range(FIRST, FIRST + 7 * 20))
        assert numbers_in(consumer) == list(range(FIRST + 7 * 20, following))


@pytest.mark.parametrize("act", ACTS)
def test_a_consumer_may_be_replaced_at_any_access_of_the_producer(
    act: Callable[[RingProducer, int], None],
) -> None:
    with wound_place(gap=24) as place:
        counted = place.producer()
        for access_number in range(1, count_accesses(lambda: act(counted, FIRST)) + 1):
            place.restore()
            producer = place.producer()
            dying = place.consumer()
            seen: list[int] = []

            def replace(dying: RingConsumer = dying, seen: list[int] = seen) -> None:
                dying.peek()
                dying.close()
                with RingConsumer.open(place.runtime, "a", who="next") as consumer:
                    seen.extend(numbers_in(consumer))

            with at_access(access_number, replace):
                act(producer, FIRST)
            seen.extend(numbers_in(place.consumer()))
            assert seen == list(range(FIRST, last_number(producer) + 1))


# ---- anything, in any order


@given(
    st.sampled_from(GAPS),
    st.lists(
        st.tuples(st.sampled_from("pPrcC"), st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=40
    ),
)
def test_ends_that_die_at_random_lose_and_repeat_nothing(gap: int, steps: list[tuple[str, int, int]]) -> None:
    """Capital letters die: P and C crash after the given store, if they make so many."""
    consumed: list[int] = []
    with wound_place(gap) as place:
        producer, consumer = place.producer(), place.consumer()
        for what, store_number, amount in steps:
            following = last_number(producer) + 1
            batch = [body_of(number) for number in range(following, following + amount)]
            if what == "p":
                producer.append_many(batch)
            elif what == "P":
                with crash_after(store_number):
                    producer.append_many(batch)
                producer.close()
                producer = place.producer()
            elif what == "r":
                room = producer.reserve(25 * store_number)
                if room is not None:
                    room[:] = b"\xee" * len(room)
                producer.close()
                producer = place.producer()
            elif what == "c":
                consume_each(consumer, consumed, amount)
            else:
                with crash_after(store_number):
                    consume_each(consumer, consumed)
                consumer.close()
                consumer = place.consumer()
        rest = numbers_in(consumer)
        assert consumed + rest == list(range(FIRST, last_number(producer) + 1))
