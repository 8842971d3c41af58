"""The ring, one rule at a time: what is committed, shown, consumed and refused, and who may do it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds import wire
from feeds.errors import ConfigError, LimitError
from feeds.wire import Schema
from middleware.shm.bell import Bell
from middleware.shm.errors import InUse, LayoutError, NotFound, ShmError
from middleware.shm.inspection.files import held_by
from middleware.shm.inspection.rings import inspect_ring
from middleware.shm.ring import (
    Record,
    RingConsumer,
    RingProducer,
    make_ring,
    remove_ring,
)
from middleware.shm.ring_end import BATCH_RECORDS_MAX
from middleware.shm.ring_file import record_bytes_max
from middleware.shm.ring_kernels import MARKS_BYTES
from middleware.shm.ring_producer import Body
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Identity, Seats
from middleware.shm.waiting import late_count, sleep_count

pytestmark = pytest.mark.kernels

NAME = "manager-1.in"
CAPACITY = 4_096
SECOND_NS = 1_000_000_000
PATIENCE_NS = 60 * SECOND_NS  # for what other threads bring about; nothing passes by waiting that long


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    runtime = Runtime(tmp_path / "node")
    make_ring(runtime, NAME, CAPACITY)
    return runtime


@pytest.fixture
def producer(runtime: Runtime) -> Iterator[RingProducer]:
    with RingProducer.open(runtime, NAME, who="manager-1") as end:
        yield end


@pytest.fixture
def consumer(runtime: Runtime) -> Iterator[RingConsumer]:
    with RingConsumer.open(runtime, NAME, who="router") as end:
        yield end


def commit(producer: RingProducer, body: bytes) -> int:
    position = producer.append(body)
    assert position is not None
    return position


def seen(record: Record | None) -> tuple[int, bytes] | None:
    return None if record is None else (record.position, bytes(record.body))


def taken(consumer: RingConsumer) -> list[bytes]:
    """Consume everything there is."""
    bodies: list[bytes] = []
    while consumer.consume(lambda record: bodies.append(bytes(record.body))):
        pass
    return bodies


# ---- committing and consuming


def test_a_new_ring_shows_nothing(producer: RingProducer, consumer: RingConsumer) -> None:
    assert consumer.peek() is None
    assert len(consumer.read_batch()) == 0
    assert producer.last_committed() is None
    assert (producer.fill_bytes, consumer.fill_bytes, producer.fill_share) == (0, 0, 0.0)


def test_records_come_out_as_they_went_in(producer: RingProducer, consumer: RingConsumer) -> None:
    bodies = [bytes(range(size)) for size in (0, 1, 7, 8, 9, 64, 100)]
    for body in bodies:
        commit(producer, body)
    assert taken(consumer) == bodies


def test_a_position_counts_the_bytes_committed_before(producer: RingProducer, consumer: RingConsumer) -> None:
    assert commit(producer, b"") == 0
    assert commit(producer, b"12345678") == MARKS_BYTES
    assert commit(producer, b"123456789") == 2 * MARKS_BYTES + 8
    assert producer.tail == 3 * MARKS_BYTES + 8 + 16
    assert [record.position for record in consumer.read_batch()] == [0, MARKS_BYTES, 2 * MARKS_BYTES + 8]


def test_what_is_peeked_stays_until_it_is_advanced_past(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    first = commit(producer, b"first")
    second = commit(producer, b"second")
    assert seen(consumer.peek()) == seen(consumer.peek()) == (first, b"first")
    consumer.advance()
    assert seen(consumer.peek()) == (second, b"second")


def test_a_record_that_was_seen_but_not_consumed_is_shown_to_the_replacement(
    runtime: Runtime, producer: RingProducer
) -> None:
    position = commit(producer, b"work")
    with RingConsumer.open(runtime, NAME, who="router-1") as consumer:
        assert seen(consumer.peek()) == (position, b"work")
    with RingConsumer.open(runtime, NAME, who="router-2") as consumer:
        assert seen(consumer.peek()) == (position, b"work")
        consumer.advance()
    with RingConsumer.open(runtime, NAME, who="router-3") as consumer:
        assert consumer.peek() is None


def test_any_contiguous_buffer_can_be_a_body(producer: RingProducer, consumer: RingConsumer) -> None:
    frame = wire.new_frame(Schema.TRADE)
    numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    bodies: list[Body] = [
        bytearray(b"bytes"),
        memoryview(b"view"),
        numbers,
        frame,
        np.zeros(0, dtype=np.int64),
    ]
    assert producer.append_many(bodies) == len(bodies)
    assert taken(consumer) == [b"bytes", b"view", numbers.tobytes(), frame.tobytes(), b""]


def test_a_body_that_is_not_contiguous_is_refused(producer: RingProducer) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        producer.append(np.arange(10)[::2])
    assert producer.tail == 0


def test_a_batch_is_arrays_over_the_file(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"12345678", b"", b"abcdefgh12345678"])
    batch = consumer.read_batch()
    assert batch.byte_counts.tolist() == [8, 0, 16]
    assert consumer.words[batch.body_words[0]] == int.from_bytes(b"12345678", "little")
    assert consumer.words[batch.body_words[2] + 1] == int.from_bytes(b"12345678", "little")
    assert [bytes(record.body) for record in batch] == [b"12345678", b"", b"abcdefgh12345678"]
    with pytest.raises(IndexError, match="no record 3"):
        batch[3]


def test_part_of_a_batch_can_be_consumed(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"a", b"b", b"c"])
    assert len(consumer.read_batch(2)) == 2
    consumer.advance(1)
    assert taken(consumer) == [b"b", b"c"]


def test_a_batch_is_over_when_its_consumer_goes_on(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"a", b"b"])
    batch = consumer.read_batch()
    consumer.advance()
    with pytest.raises(ShmError, match="a batch is over"):
        batch[0]


def test_a_view_is_taken_back_when_its_record_is_consumed(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    commit(producer, b"mine")
    record = consumer.peek()
    assert record is not None
    with pytest.raises(TypeError, match="read-only"):
        record.body[0] = 0
    consumer.advance()
    with pytest.raises(ValueError, match="released"):
        bytes(record.body)


def test_advancing_past_what_was_not_shown_is_refused(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"a", b"b"])
    with pytest.raises(ShmError, match="1 to 0 shown records, was 0"):
        consumer.advance()
    consumer.peek()
    with pytest.raises(ShmError, match="1 to 1 shown records, was 2"):
        consumer.advance(2)
    consumer.advance()
    with pytest.raises(ShmError, match="shown"):
        consumer.advance()
    assert taken(consumer) == [b"b"]


def test_a_handler_that_fails_keeps_its_record(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"good", b"bad", b"later"])
    handled = []

    def handle(record: Record) -> None:
        if bytes(record.body) == b"bad":
            raise ArithmeticError("no")
        handled.append(bytes(record.body))

    with pytest.raises(ArithmeticError, match="no"):
        consumer.consume(handle)
    assert handled == [b"good"]
    assert taken(consumer) == [b"bad", b"later"]


@pytest.mark.parametrize("act", [RingConsumer.peek, RingConsumer.advance, RingConsumer.read_batch])
def test_a_handler_must_not_move_the_consumer(
    producer: RingProducer, consumer: RingConsumer, act: Callable[[RingConsumer], object]
) -> None:
    producer.append_many([b"a", b"b"])
    with pytest.raises(ShmError, match="a handler must not"):
        consumer.consume(lambda _: act(consumer))
    assert taken(consumer) == [b"a", b"b"]


def test_a_handler_may_close_its_consumer_and_keeps_the_record(
    runtime: Runtime, producer: RingProducer
) -> None:
    commit(producer, b"a")
    closing = RingConsumer.open(runtime, NAME, who="router")
    with pytest.raises(ShmError, match="closed"):
        closing.consume(lambda _: closing.close())
    with RingConsumer.open(runtime, NAME, who="router") as consumer:
        assert taken(consumer) == [b"a"]


def test_consuming_stops_at_its_limit(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"a", b"b", b"c"])
    assert consumer.consume(lambda _: None, limit=2) == 2
    assert taken(consumer) == [b"c"]
    with pytest.raises(LimitError, match="at least 1 record, was 0"):
        consumer.read_batch(0)


def test_more_records_than_one_batch_holds_go_through(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "node")
    make_ring(runtime, NAME, 1 << 17)
    bodies = [number.to_bytes(8, "little") for number in range(2 * BATCH_RECORDS_MAX + 3)]
    with (
        RingProducer.open(runtime, NAME, who="p") as producer,
        RingConsumer.open(runtime, NAME, who="c") as consumer,
    ):
        assert producer.append_many(bodies) == len(bodies)
        assert len(consumer.read_batch(len(bodies))) == BATCH_RECORDS_MAX
        assert taken(consumer) == bodies


# ---- reserving


def test_a_reservation_is_not_there_before_its_commit(producer: RingProducer, consumer: RingConsumer) -> None:
    room = producer.reserve(5)
    assert room is not None
    room[:] = b"12345"
    assert consumer.peek() is None
    assert producer.commit() == 0
    assert seen(consumer.peek()) == (0, b"12345")
    with pytest.raises(ValueError, match="released"):
        room[0] = 0


def test_less_than_reserved_can_be_committed(producer: RingProducer, consumer: RingConsumer) -> None:
    room = producer.reserve(100)
    assert room is not None
    room[:3] = b"abc"
    producer.commit(3)
    commit(producer, b"next")
    assert taken(consumer) == [b"abc", b"next"]


def test_what_the_ring_held_before_does_not_stick_to_a_body(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    for _ in range(CAPACITY // 1_000 + 1):
        commit(producer, b"\xff" * 900)
        taken(consumer)
    room = producer.reserve(16)
    assert room is not None
    room[:3] = b"abc"
    producer.commit(3)
    batch = consumer.read_batch()
    assert consumer.words[batch.body_words[0]] == int.from_bytes(b"abc", "little")
    commit(producer, b"xyz")
    batch = consumer.read_batch()
    assert consumer.words[batch.body_words[1]] == int.from_bytes(b"xyz", "little")


def test_an_abandoned_reservation_leaves_no_trace(producer: RingProducer, consumer: RingConsumer) -> None:
    commit(producer, b"before")
    room = producer.reserve(500)
    assert room is not None
    room[:] = b"x" * 500
    producer.abandon()
    commit(producer, b"after")
    assert taken(consumer) == [b"before", b"after"]


def test_reserving_is_one_at_a_time(producer: RingProducer) -> None:
    producer.reserve(8)
    for act in (lambda: producer.reserve(8), lambda: producer.append(b"x"), lambda: producer.wait_room(1, 0)):
        with pytest.raises(ShmError, match="commit or abandon it first"):
            act()
    with pytest.raises(LimitError, match="0 to 8 bytes, was 9"):
        producer.commit(9)
    producer.commit(8)
    with pytest.raises(ShmError, match="nothing is reserved"):
        producer.commit()


# ---- room


def test_a_full_ring_answers_none_and_takes_more_after_an_advance(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    body = bytes(112)
    committed = 0
    while producer.append(body) is not None:
        committed += 1
    assert committed == CAPACITY // 128
    assert (producer.fill_bytes, producer.fill_share) == (CAPACITY, 1.0)
    assert producer.append(b"") is None
    assert producer.reserve(0) is None
    assert not producer.wait_room(0, timeout_ns=1)
    consumer.peek()
    consumer.advance()
    assert producer.append(body) is not None
    assert producer.append(body) is None


def test_a_batch_is_committed_as_far_as_there_is_room(producer: RingProducer, consumer: RingConsumer) -> None:
    bodies = [bytes([number]) * 112 for number in range(40)]
    assert producer.append_many(bodies) == 32
    assert producer.append_many(bodies[32:], timeout_ns=1) == 0
    assert taken(consumer) == bodies[:32]


def test_the_largest_record_always_finds_room_once_the_consumer_has_caught_up(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    """Wherever in the ring it would begin, and with a last record as large as itself to be kept."""
    largest = record_bytes_max(CAPACITY)
    assert largest == producer.record_bytes_max == CAPACITY // 4 - MARKS_BYTES
    for size in (largest, largest - 8, largest - 120):
        for _ in range(CAPACITY // 8):
            for body in (bytes(size), bytes(largest)):
                assert producer.append(body) is not None
                taken(consumer)


def test_a_record_that_never_fits_is_refused_by_its_limit(producer: RingProducer) -> None:
    too_large = producer.record_bytes_max + 1
    for act in (
        lambda: producer.append(bytes(too_large)),
        lambda: producer.reserve(too_large),
        lambda: producer.append_many([b"small", bytes(too_large)]),
        lambda: producer.wait_room(too_large, 0),
    ):
        with pytest.raises(LimitError, match=f"0 to {producer.record_bytes_max} bytes, was {too_large}"):
            act()
    with pytest.raises(LimitError, match="was -1"):
        producer.reserve(-1)
    assert producer.tail == 0


def test_records_lie_in_one_piece_and_padding_is_not_seen(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    sizes = [500, 700, 900, 8, 300] * 40
    expected_position = 0
    for number, size in enumerate(sizes):
        body = bytes([number % 256]) * size
        position = commit(producer, body)
        span = MARKS_BYTES + -(-size // 8) * 8
        before_end = CAPACITY - expected_position % CAPACITY
        assert position == expected_position + (before_end if span > before_end else 0)
        assert position % CAPACITY + span <= CAPACITY
        assert seen(consumer.peek()) == (position, body)
        consumer.advance()
        expected_position = position + span


# ---- the last committed record


def test_the_last_committed_record_can_be_read_after_it_was_consumed(
    runtime: Runtime, consumer: RingConsumer
) -> None:
    with RingProducer.open(runtime, NAME, who="first") as producer:
        commit(producer, b"before")
        position = commit(producer, b"last")
    taken(consumer)
    with RingProducer.open(runtime, NAME, who="second") as producer:
        assert seen(producer.last_committed()) == (position, b"last")


def test_the_last_of_a_batch_is_the_last_committed(producer: RingProducer, consumer: RingConsumer) -> None:
    producer.append_many([b"a", b"b", b"c"])
    last = seen(producer.last_committed())
    assert last == seen(consumer.read_batch()[2])


def test_an_unfinished_record_never_overwrites_the_last_committed_one(
    runtime: Runtime, consumer: RingConsumer
) -> None:
    """The largest record there is, everything consumed, and a reservation that is scribbled all over."""
    for step in range(40):
        body = bytes([step]) * (1_000 + step % 9)
        with RingProducer.open(runtime, NAME, who="dies") as producer:
            position = commit(producer, body)
            taken(consumer)
            while (room := producer.reserve(producer.record_bytes_max)) is None:
                pytest.fail("there is always room for one record")
            room[:] = b"\xee" * len(room)
        with RingProducer.open(runtime, NAME, who="follows") as producer:
            assert seen(producer.last_committed()) == (position, body)
            assert consumer.peek() is None


# ---- the two ends


def test_a_second_producer_is_refused_by_the_name_of_the_first(
    runtime: Runtime, producer: RingProducer, consumer: RingConsumer
) -> None:
    with pytest.raises(InUse, match=rf"'manager-1' \(process {os.getpid()}\) is its producer already"):
        RingProducer.open(runtime, NAME, who="intruder")
    with pytest.raises(InUse, match=rf"'router' \(process {os.getpid()}\) is its consumer already"):
        RingConsumer.open(runtime, NAME, who="intruder")
    producer.close()
    with RingProducer.open(runtime, NAME, who="next") as follower:
        assert follower.identity.name == "next"


def test_a_closed_end_does_nothing_more(producer: RingProducer, consumer: RingConsumer) -> None:
    commit(producer, b"x")
    consumer.peek()
    producer.close()
    producer.close()
    consumer.close()
    for act in (
        lambda: producer.append(b"x"),
        lambda: producer.reserve(1),
        producer.commit,
        producer.last_committed,
        lambda: producer.fill_bytes,
        consumer.peek,
        consumer.advance,
        lambda: consumer.wait(0),
        lambda: consumer.fill_bytes,
    ):
        with pytest.raises(ShmError, match="closed"):
            act()


def test_a_forked_child_is_not_a_second_producer(producer: RingProducer, consumer: RingConsumer) -> None:
    child = os.fork()
    if child == 0:  # no assertion here: pytest must not go on twice
        try:
            producer.append(b"from the child")
            os._exit(1)
        except ShmError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    commit(producer, b"from the parent")
    assert taken(consumer) == [b"from the parent"]


def test_an_onlooker_sees_who_is_there_and_how_far(
    runtime: Runtime, producer: RingProducer, consumer: RingConsumer
) -> None:
    producer.append_many([b"12345678", b"12345678"])
    consumer.peek()
    consumer.advance()
    report = inspect_ring(runtime.place("rings", NAME))
    assert (report.name, report.capacity_bytes) == (NAME, CAPACITY)
    assert (report.head, report.tail, report.fill_bytes) == (24, 48, 24)
    assert report.producer == held_by(producer.identity, is_alive=True)
    assert report.consumer == held_by(consumer.identity, is_alive=True)
    consumer.close()
    assert inspect_ring(runtime.place("rings", NAME)).consumer is None


# ---- making and removing


def test_making_a_ring_again_keeps_its_records(runtime: Runtime, producer: RingProducer) -> None:
    commit(producer, b"kept")
    make_ring(runtime, NAME, CAPACITY)
    with RingConsumer.open(runtime, NAME, who="router") as consumer:
        assert taken(consumer) == [b"kept"]


def test_a_ring_of_another_capacity_is_not_taken_for_ours(runtime: Runtime) -> None:
    with pytest.raises(LayoutError, match="capacity_bytes must be 8192, was 4096"):
        make_ring(runtime, NAME, 2 * CAPACITY)


@pytest.mark.parametrize("capacity", [0, -4_096, 2_048, 5_000, 3 * 4_096, 1 << 31])
def test_an_impossible_capacity_is_refused(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ConfigError, match=f"power of two from 4096 to 1073741824 bytes, was {capacity}"):
        make_ring(Runtime(tmp_path / "node"), "r", capacity)


def test_a_ring_that_was_not_made_cannot_be_opened(runtime: Runtime) -> None:
    for end in (RingProducer, RingConsumer):
        with pytest.raises(NotFound, match="no-such"):
            end.open(runtime, "no-such", who="p")
    with pytest.raises(NotFound, match="no-such"):
        inspect_ring(runtime.place("rings", "no-such"))


def test_both_ends_may_make_the_ring_at_once(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "node")
    runtime.prepare()
    start = threading.Barrier(2)
    errors: list[BaseException] = []

    def make(names: list[str]) -> None:
        try:
            for name in names:
                start.wait()
                make_ring(runtime, name, CAPACITY)
        except BaseException as error:
            errors.append(error)
            start.abort()
            raise

    names = [f"r{number}" for number in range(20)]
    threads = [threading.Thread(target=make, args=(names,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert runtime.names("rings") == sorted(names)


def test_a_ring_is_removed_only_when_nobody_uses_it(runtime: Runtime, producer: RingProducer) -> None:
    commit(producer, b"old")
    with pytest.raises(InUse, match="'manager-1'"):
        remove_ring(runtime, NAME)
    producer.close()
    remove_ring(runtime, NAME)
    assert runtime.names("rings") == []
    make_ring(runtime, NAME, CAPACITY)
    with RingConsumer.open(runtime, NAME, who="router") as consumer:
        assert consumer.peek() is None


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("end", [RingProducer, RingConsumer])
def test_a_ring_that_is_removed_while_it_is_opened_is_not_half_open(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    end: type[RingProducer] | type[RingConsumer],
    is_made_again: bool,
) -> None:
    take = Seats.take

    def take_too_late(seats: Seats, index: int, who: str, role: str) -> Identity:
        monkeypatch.undo()
        remove_ring(runtime, NAME)
        if is_made_again:
            make_ring(runtime, NAME, CAPACITY)
        return take(seats, index, who, role)

    monkeypatch.setattr(Seats, "take", take_too_late)
    with pytest.raises(NotFound, match="seats"):
        end.open(runtime, NAME, who="late")
    make_ring(runtime, NAME, CAPACITY)
    with end.open(runtime, NAME, who="next") as opened:
        assert opened.identity.name == "next"


# ---- waiting


def test_waiting_for_nothing_ends_at_its_time(producer: RingProducer, consumer: RingConsumer) -> None:
    assert not consumer.wait(0)
    assert not consumer.wait(-1)
    assert not consumer.wait(2_000_000)
    commit(producer, b"x")
    assert consumer.wait(0)
    consumer.peek()
    assert consumer.wait(0), "what was only looked at is still to be consumed"
    consumer.advance()
    assert not consumer.wait(0)


def test_a_waiting_consumer_is_woken_by_a_record(producer: RingProducer, consumer: RingConsumer) -> None:
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(consumer.wait(PATIENCE_NS)))
    waiter.start()
    commit(producer, b"wake up")
    waiter.join()
    assert answers == [True]
    assert taken(consumer) == [b"wake up"]


def wait_asleep(end: RingProducer | RingConsumer, sleeps_before: int) -> None:
    """Wait until an end that another thread waits with has gone to sleep once more."""
    deadline_ns = time.monotonic_ns() + PATIENCE_NS
    while sleep_count(end.plan) == sleeps_before:
        assert time.monotonic_ns() < deadline_ns, "nobody went to sleep"
        time.sleep(0.0005)


def test_a_sleeping_consumer_is_woken_by_the_producer_and_not_by_its_alarm(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    rounds = 4
    for _ in range(rounds):
        waiter = threading.Thread(target=consumer.wait, args=(PATIENCE_NS,))
        sleeps_before = sleep_count(consumer.plan)
        waiter.start()
        wait_asleep(consumer, sleeps_before)
        commit(producer, b"wake up")
        waiter.join()
        assert taken(consumer) == [b"wake up"]
    # Once in a blue moon the producer is itself held up between its store and its call.
    assert late_count(consumer.plan) < rounds


def test_a_sleeping_producer_is_woken_by_the_consumer_and_not_by_its_alarm(
    producer: RingProducer, consumer: RingConsumer
) -> None:
    rounds = 4
    for _ in range(rounds):
        while producer.append(bytes(1_000)) is not None:
            pass
        waiter = threading.Thread(target=producer.wait_room, args=(1_000, PATIENCE_NS))
        sleeps_before = sleep_count(producer.plan)
        waiter.start()
        wait_asleep(producer, sleeps_before)
        assert len(taken(consumer)) > 2
        waiter.join()
    assert late_count(producer.plan) < rounds


@pytest.mark.parametrize("how", ["append", "append_many", "reserve", "wait_room"])
def test_a_waiting_producer_goes_on_when_there_is_room(
    producer: RingProducer, consumer: RingConsumer, how: str
) -> None:
    body = bytes(1_000)
    while producer.append(body) is not None:
        pass
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: producer.append(body, PATIENCE_NS),
        "append_many": lambda: producer.append_many([body] * 20, PATIENCE_NS),
        "reserve": lambda: producer.reserve(1_000, PATIENCE_NS),
        "wait_room": lambda: producer.wait_room(1_000, PATIENCE_NS),
    }
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(acts[how]()))
    waiter.start()
    while not answers:
        if consumer.wait(SECOND_NS // 100):
            consumer.consume(lambda _: None, limit=1)
    waiter.join()
    assert answers[0]
    if how == "append_many":
        assert answers == [20]


def test_each_move_rings_the_bell(runtime: Runtime) -> None:
    bell = Bell.make(runtime, "router")
    with (
        RingProducer.open(runtime, NAME, who="p", bell=bell) as producer,
        RingConsumer.open(runtime, NAME, who="c", bell=bell) as consumer,
    ):
        assert bell.count == 2, "an end that starts rings for the one before it, which may have died"
        commit(producer, b"a")
        producer.reserve(1)
        producer.commit()
        assert producer.append_many([b"b", b"c"]) == 2
        assert bell.count == 5
        consumer.consume(lambda _: None)
        assert bell.count == 9
