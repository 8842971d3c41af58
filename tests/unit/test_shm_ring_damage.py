"""Damaged rings: refused on opening and reported while running, with what was found; never believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from middleware.shm.errors import LayoutError, ShmError
from middleware.shm.mapping import create
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.ring_file import LAYOUT, open_ring
from middleware.shm.ring_kernels import HEAD, RECORDS, TAIL, advance_kernel, append_kernel
from middleware.shm.runtime import Runtime

pytestmark = pytest.mark.kernels

NAME = "manager-1.in"
CAPACITY = 4_096
SECOND_NS = 1_000_000_000

Act = Callable[[], object]


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    runtime = Runtime(tmp_path / "node")
    make_ring(runtime, NAME, CAPACITY)
    return runtime


def poke(runtime: Runtime, word: int, value: int) -> None:
    open_ring(runtime, NAME, is_writable=True).words[word] = value


FILLED_TAIL = 3 * 32


@pytest.fixture
def filled(runtime: Runtime) -> Runtime:
    """A ring whose first record is consumed and whose next two, of 16 bytes each, are not."""
    with (
        RingProducer.open(runtime, NAME, who="p") as producer,
        RingConsumer.open(runtime, NAME, who="c") as consumer,
    ):
        producer.append_many([b"0123456789abcdef"] * 3)
        consumer.peek()
        consumer.advance()
    return runtime


MARK_AT_32 = (32 // 8) << 32 | 16

DAMAGES = {
    "tail below zero": (TAIL, -8, "tail"),
    "tail not of whole words": (TAIL, FILLED_TAIL + 1, "tail"),
    "tail a round ahead": (TAIL, FILLED_TAIL + CAPACITY, "head"),
    "tail behind head": (TAIL, 8, "head"),
    "tail in the middle of a record": (TAIL, FILLED_TAIL - 8, "mark of the record at position 64"),
    "head below zero": (HEAD, -32, "head"),
    "head beyond tail": (HEAD, FILLED_TAIL + 8, "head"),
    "head in the middle of a record": (HEAD, 40, "mark of the record at position 40"),
    "a size beyond tail": (RECORDS + 4, MARK_AT_32 + 64, "mark of the record at position 32"),
    "a size beyond any record": (RECORDS + 4, MARK_AT_32 | 0x7FFF_FFF0, "mark of the record at position 32"),
    "a negative mark": (RECORDS + 4, -1, "mark of the record at position 32"),
    "a mark of another round": (
        RECORDS + 4,
        MARK_AT_32 + (CAPACITY // 8 << 32),
        "mark of the record at position 32",
    ),
    "padding where a record is": (RECORDS + 4, MARK_AT_32 | 1 << 31, "mark of the record at position 32"),
    "zeros": (RECORDS + 4, 0, "mark of the record at position 32"),
    "a second mark that disagrees": (RECORDS + 7, MARK_AT_32 - 1, "second mark of the record at position 32"),
}


@pytest.mark.parametrize("word, value, field", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("end", [RingProducer, RingConsumer])
def test_a_damaged_ring_is_refused_with_what_was_found(
    filled: Runtime, end: type[RingProducer] | type[RingConsumer], word: int, value: int, field: str
) -> None:
    poke(filled, word, value)
    for _ in range(2):  # and the seat is free again
        with pytest.raises(LayoutError, match=r"must be .*, was") as caught:
            end.open(filled, NAME, who="p")
        assert field in caught.value.field


def test_a_producer_insists_on_a_readable_last_record(filled: Runtime) -> None:
    with RingConsumer.open(filled, NAME, who="c") as consumer:
        consumer.consume(lambda _: None)
        poke(filled, RECORDS + FILLED_TAIL // 8 - 1, 7)
        with pytest.raises(LayoutError, match="the last record, which ends at position 96"):
            RingProducer.open(filled, NAME, who="p")
        poke(filled, RECORDS + FILLED_TAIL // 8 - 1, (64 // 8) << 32 | 16)
        with RingProducer.open(filled, NAME, who="p") as producer:
            poke(filled, RECORDS + FILLED_TAIL // 8 - 1, (80 // 8) << 32)
            poke(filled, RECORDS + 80 // 8, (80 // 8) << 32)  # whole, but not the last
            with pytest.raises(LayoutError, match="the last record"):
                producer.last_committed()


def test_damage_that_comes_later_is_an_error_and_not_a_record(filled: Runtime) -> None:
    with RingConsumer.open(filled, NAME, who="c") as consumer:
        poke(filled, RECORDS + 8, 0)
        assert len(consumer.read_batch()) == 1, "what is whole before the damage is still shown"
        consumer.advance()
        for _ in range(2):
            with pytest.raises(LayoutError, match="mark of the record at position 64"):
                consumer.peek()
        with pytest.raises(LayoutError, match="mark of the record at position 64"):
            consumer.consume(lambda _: None)


@pytest.mark.parametrize("tail", [0, FILLED_TAIL - 32, FILLED_TAIL + 4, 1 << 40, -8])
def test_a_tail_that_cannot_be_is_an_error_for_the_consumer(filled: Runtime, tail: int) -> None:
    with RingConsumer.open(filled, NAME, who="c") as consumer:
        consumer.consume(lambda _: None)
        poke(filled, TAIL, tail)
        acts: list[Act] = [consumer.peek, lambda: consumer.fill_bytes, lambda: consumer.wait(SECOND_NS)]
        for act in acts:
            with pytest.raises(LayoutError, match=f"tail must be .*was {tail}"):
                act()


@pytest.mark.parametrize("head", [0, 24, 36, 2 * CAPACITY, 1 << 40, -8])
def test_a_head_that_cannot_be_is_an_error_for_the_producer(filled: Runtime, head: int) -> None:
    with RingProducer.open(filled, NAME, who="p") as producer:
        while producer.append(bytes(1_000)) is not None:
            pass
        poke(filled, HEAD, head)
        acts: list[Act] = [lambda: producer.append(bytes(1_000), SECOND_NS), lambda: producer.fill_bytes]
        for act in acts:
            with pytest.raises(LayoutError, match=f"head must be .*was {head}"):
                act()


def test_a_file_whose_size_is_not_that_of_its_capacity_is_refused(runtime: Runtime) -> None:
    place = runtime.make_place("rings", "odd")
    create(place / "ring", LAYOUT, "odd", {"capacity_bytes": CAPACITY}, CAPACITY, 0o600)
    with pytest.raises(LayoutError, match="file size must be 12288 bytes, was 8192 bytes"):
        open_ring(runtime, "odd", is_writable=False)
    place = runtime.make_place("rings", "uneven")
    create(place / "ring", LAYOUT, "uneven", {"capacity_bytes": 5_000}, CAPACITY, 0o600)
    with pytest.raises(LayoutError, match=r"capacity_bytes must be .*was 5000"):
        open_ring(runtime, "uneven", is_writable=False)


def test_a_record_larger_than_any_is_refused_even_if_it_agrees_with_itself(runtime: Runtime) -> None:
    with RingProducer.open(runtime, NAME, who="p") as producer:
        assert producer.append_many([bytes(1_000)] * 3) == 3
        size = producer.record_bytes_max + 8
    for word in (RECORDS, RECORDS + 1 + size // 8):
        poke(runtime, word, size)
    with pytest.raises(LayoutError, match=f"the record at position 0 must be .* {size - 8} bytes"):
        RingConsumer.open(runtime, NAME, who="c")


def test_a_record_across_the_end_of_the_ring_is_refused_even_if_it_agrees_with_itself(
    runtime: Runtime,
) -> None:
    with (
        RingProducer.open(runtime, NAME, who="p") as producer,
        RingConsumer.open(runtime, NAME, who="c") as consumer,
    ):
        for _ in range(4):  # up to 32 bytes before the end
            producer.append(bytes(1_000))
            consumer.consume(lambda _: None)
        begin = producer.tail
        assert begin == CAPACITY - 4 * 8
        producer.append(bytes(40))
        mark = begin // 8 << 32 | (producer.tail - begin - 16)
        poke(runtime, RECORDS + begin // 8, mark)
        poke(runtime, RECORDS + (producer.tail - CAPACITY) // 8 - 1, mark)
        with pytest.raises(LayoutError, match=f"the record at position {begin} must be .*within the ring"):
            consumer.peek()


def test_a_last_record_that_ends_before_tail_is_refused(filled: Runtime) -> None:
    with RingConsumer.open(filled, NAME, who="c") as consumer:
        consumer.consume(lambda _: None)
    for word in (RECORDS + 8, RECORDS + 9):  # whole, empty, and 16 bytes too short
        poke(filled, word, (64 // 8) << 32)
    with pytest.raises(LayoutError, match="the last record, which ends at position 96"):
        RingProducer.open(filled, NAME, who="p")


def test_an_end_that_a_kernel_has_moved_on_does_not_go_back(runtime: Runtime) -> None:
    with (
        RingProducer.open(runtime, NAME, who="p") as producer,
        RingConsumer.open(runtime, NAME, who="c") as consumer,
    ):
        producer.reserve(8)
        source = np.arange(1, dtype=np.int64)
        for _ in range(2):
            assert append_kernel(producer.words, producer.state, source, 8) >= 0
        with pytest.raises(ShmError, match="a kernel has appended"):
            producer.commit()
        assert producer.append(b"third") == 48
        consumer.peek()
        assert advance_kernel(consumer.words, consumer.state, 48) == 48
        with pytest.raises(ShmError, match="a kernel has advanced to 48"):
            consumer.advance()
        record = consumer.peek()
        assert record is not None
        assert (record.position, bytes(record.body)) == (48, b"third")
