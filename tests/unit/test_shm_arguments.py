"""Numbers that ring, slab and bell are given: what is whole is taken, the rest refused before it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from feeds.compiled import IS_INTERPRETED
from feeds.errors import ConfigError, LimitError
from middleware.shm import (
    bell_kernels,
    ring_kernels,
    slab_completion_kernels,
    slab_kernels,
    waiting_kernels,
)
from middleware.shm.arguments import whole, whole_word
from middleware.shm.bell import Bell
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.slab import SizeClass, Slab, SlabConfig, StaleHandle
from middleware.shm.waiting import Waiting, wait
from tests.slab_members import Join, shared

pytestmark = pytest.mark.kernels

NOT_WHOLE = [1.5, float("nan"), float("inf"), 1e300, np.float32(0.5), "1", b"1", None, [1], 1 + 0j]
WHOLE = [1, True, 1.0, np.int64(1), np.uint8(1), np.float32(1), np.float64(1)]
TIMEOUTS_NS: list[Any] = [100_000.0, np.float64(1e5), np.int32(100_000), np.uint64(100_000), True]


@pytest.fixture
def producer(runtime: Runtime) -> Iterator[RingProducer]:
    make_ring(runtime, "in", 4_096)
    with RingProducer.open(runtime, "in", who="manager-1") as end:
        yield end


@pytest.fixture
def consumer(producer: RingProducer, runtime: Runtime) -> Iterator[RingConsumer]:
    with RingConsumer.open(runtime, "in", who="router") as end:
        yield end


def compiled_count() -> int:
    """Return for how many combinations of types kernels were compiled that had been for others before."""
    if IS_INTERPRETED:
        return 0
    modules = (waiting_kernels, bell_kernels, ring_kernels, slab_kernels, slab_completion_kernels)
    kernels = {
        id(each): each
        for module in modules
        for name, each in vars(module).items()
        if name.endswith("_kernel") and hasattr(each, "signatures")
    }
    assert kernels
    return sum(max(len(each.signatures) - 1, 0) for each in kernels.values())


@pytest.mark.parametrize("number", NOT_WHOLE, ids=repr)
def test_what_is_not_whole_is_refused_by_name(number: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        whole("timeout_ns", number)
    assert str(refusal.value) == f"timeout_ns must be a whole number, was {number!r}"


@pytest.mark.parametrize("number", WHOLE, ids=repr)
def test_what_is_whole_becomes_a_plain_integer(number: object) -> None:
    found = whole("timeout_ns", number)
    assert found == 1
    assert type(found) is int or found is True


def test_a_float_that_stands_for_several_integers_is_refused() -> None:
    assert whole("a limit", 2.0**53) == 2**53
    with pytest.raises(ConfigError, match="a limit must be a whole number"):
        whole("a limit", 2.0**54)


def test_a_word_has_64_bits() -> None:
    assert whole_word("a tag", -(1 << 63)) == -(1 << 63)
    for number in (1 << 63, -(1 << 63) - 1, np.uint64(1 << 63)):
        with pytest.raises(ConfigError, match="a tag must be a signed 64-bit integer"):
            whole_word("a tag", number)


@pytest.mark.parametrize("timeout_ns", TIMEOUTS_NS, ids=repr)
def test_no_type_of_timeout_compiles_a_kernel_anew(
    timeout_ns: Any, producer: RingProducer, consumer: RingConsumer, runtime: Runtime
) -> None:
    bell = Bell.make(runtime, "router")
    plan, words = Waiting().plan, np.zeros(8, dtype=np.int64)

    def use(patience_ns: Any, one: Any, size: Any) -> None:
        assert not consumer.wait(patience_ns)
        assert bell.wait(one - one, plan, patience_ns) == 0
        assert wait(words, one, one - one, plan, patience_ns) == 0
        while producer.append(bytes(1_000), patience_ns) is not None:
            pass
        assert producer.append_many([bytes(1_000)], patience_ns) == 0
        assert producer.reserve(size, patience_ns) is None
        assert not producer.wait_room(size, patience_ns)
        assert len(consumer.read_batch(one)) == 1
        while consumer.peek() is not None:
            consumer.advance(one)
        assert producer.reserve(size, patience_ns) is not None
        producer.commit(one)
        assert consumer.consume(lambda _: None, one) == 1

    use(1_000, 1, 1_000)
    before = compiled_count()
    use(timeout_ns, np.uint64(1), np.float64(1_000))
    assert compiled_count() == before


@pytest.mark.parametrize("number", NOT_WHOLE, ids=repr)
def test_a_ring_refuses_what_is_not_whole_and_is_as_it_was(
    number: Any, producer: RingProducer, consumer: RingConsumer
) -> None:
    acts: list[Callable[[], object]] = [
        lambda: producer.append(b"x", number),
        lambda: producer.append_many([b"x"], number),
        lambda: producer.reserve(number),
        lambda: producer.reserve(8, number),
        lambda: producer.wait_room(number, 0),
        lambda: producer.wait_room(8, number),
        lambda: consumer.wait(number),
        lambda: consumer.read_batch(number),
        lambda: consumer.consume(print, number),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match="must be a whole number"):
            act()
    assert (producer.tail, producer.fill_bytes) == (0, 0)
    room = producer.reserve(8)  # nothing was left reserved
    assert room is not None
    if number is not None:  # which means all of it
        with pytest.raises(ConfigError, match="byte_count must be a whole number"):
            producer.commit(number)
    producer.commit(8)
    batch = consumer.read_batch()
    if number is not None:
        with pytest.raises(ConfigError, match="record_count must be a whole number"):
            consumer.advance(number)
    with pytest.raises(ConfigError, match="index must be a whole number"):
        batch[number]
    consumer.advance()
    assert consumer.peek() is None


@pytest.mark.parametrize("number", NOT_WHOLE, ids=repr)
def test_nothing_is_made_with_a_size_that_is_not_whole(number: Any, runtime: Runtime) -> None:
    acts: list[Callable[[], object]] = [
        lambda: make_ring(runtime, "in", number),
        lambda: SizeClass(number, 4),
        lambda: SizeClass(64, number),
        lambda: SlabConfig(participants=number),
        lambda: Waiting(spin_ns=number),
        lambda: Waiting(sleep_ns_max=number),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match="must be a whole number"):
            act()
    assert not runtime.path.exists()


HANDLED = pytest.mark.parametrize(
    "use", [Slab.view, Slab.read, Slab.body, Slab.share, Slab.free, Slab.relinquish]
)


@HANDLED
@pytest.mark.parametrize(
    "handle",
    [0, -1, -(1 << 63), -(1 << 70), (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, np.uint64(1 << 63)],
    ids=repr,
)
def test_a_handle_that_nobody_was_given_is_stale(use: Callable[..., object], handle: Any, join: Join) -> None:
    slab = join("a")
    kept = shared(slab, b"kept")
    before = compiled_count()
    with pytest.raises(StaleHandle) as refusal:
        use(slab, handle)
    assert refusal.value.handle == handle
    assert compiled_count() == before
    assert slab.read(kept) == b"kept"


@HANDLED
@pytest.mark.parametrize("handle", NOT_WHOLE, ids=repr)
def test_a_handle_that_is_no_integer_is_refused(use: Callable[..., object], handle: Any, join: Join) -> None:
    slab = join("a")
    for each in (handle, float(shared(slab))):
        with pytest.raises(ConfigError, match="a handle must be an integer, was "):
            use(slab, each)


@pytest.mark.parametrize("number", NOT_WHOLE, ids=repr)
def test_a_slab_refuses_what_is_not_whole_and_is_as_it_was(number: Any, join: Join) -> None:
    slab = join("a")
    handle = shared(slab, b"body")
    acts: list[Callable[[], object]] = [
        lambda: slab.allocate(number),
        lambda: slab.allocate(8, number),
        lambda: slab.put(b"x", number),
        lambda: slab.relinquish(handle, ticket=number),
    ]
    for act in acts:
        with pytest.raises(ConfigError, match="must be a whole number"):
            act()
    if number is not None:  # which means that somebody else gives it
        with pytest.raises(ConfigError, match="a limit must be a whole number"):
            slab.relinquish(handle, limit=number)
    assert slab.read(handle) == b"body"
    assert slab.last_ticket == 0
    assert slab.relinquish(handle, limit=1)


@pytest.mark.parametrize("number", [1 << 63, 1 << 64, -(1 << 63) - 1])
def test_a_number_beyond_64_bits_is_refused_wherever_it_is_given(number: int, join: Join) -> None:
    slab = join("a")
    handle = shared(slab, b"body")
    with pytest.raises(LimitError, match=f"was {number}"):
        slab.allocate(number)
    with pytest.raises(ConfigError, match=f"was {number}"):
        slab.allocate(8, tag=number)
    with pytest.raises(LimitError, match=f"was {number}"):
        slab.relinquish(handle, limit=number)
    with pytest.raises(ConfigError, match=f"was {number}"):
        slab.relinquish(handle, ticket=number)
    with pytest.raises(ConfigError, match=f"the value seen must be a signed 64-bit integer, was {number}"):
        wait(np.zeros(1, dtype=np.int64), 0, number, Waiting().plan, 0)
