"""The store against a plain list, and its kernels against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.message_store import MemoryStore, MessageBlock, MessageNotHeld
from feeds.message_store_kernels import find_misplaced_kernel, gather_kernel

blocks_lists = st.lists(st.lists(st.binary(max_size=50), max_size=12), max_size=12)
int64s = st.integers(-(2**63), 2**63 - 1)


@given(blocks_lists, st.integers(1, 9))
def test_a_store_holds_what_a_list_would(blocks: list[list[bytes]], chunk_messages: int) -> None:
    store = MemoryStore("DAY1", chunk_messages=chunk_messages)
    expected: list[bytes] = []
    for messages in blocks:
        assert store.append_block(MessageBlock.of(messages)) == len(expected) + 1
        expected.extend(messages)
    assert (store.first_sequence, store.next_sequence) == (1, len(expected) + 1)
    for sequence in range(1, len(expected) + 1):
        found = list(store.read(sequence, 5))
        assert 1 <= len(found) <= 5
        assert found == expected[sequence - 1 : sequence - 1 + len(found)]


@given(st.lists(st.integers(0, 60_000), max_size=40))
def test_a_store_that_lets_go_keeps_the_newest_and_its_limit(lengths: list[int]) -> None:
    store = MemoryStore("DAY1", retain_bytes=200_000, chunk_bytes=66_000)
    messages = [bytes((index,)) * length for index, length in enumerate(lengths)]
    for message in messages:
        store.append(message)
    held = [store.read(number, 1)[0] for number in range(store.first_sequence, store.next_sequence)]
    assert held == messages[store.first_sequence - 1 :]
    assert sum(map(len, held)) <= 200_000
    assert not messages or held
    with pytest.raises(MessageNotHeld):
        store.read(store.first_sequence - 1, 1)


@pytest.mark.kernels
@given(
    st.integers(0, 100),
    st.lists(
        st.tuples(st.one_of(st.integers(-3, 110), int64s), st.one_of(st.integers(-3, 110), int64s)),
        max_size=6,
    ),
)
def test_the_placement_check_equals_its_reference(buffer_bytes: int, places: list[tuple[int, int]]) -> None:
    expected = -1
    for index, (offset, length) in enumerate(places):
        if not (0 <= length <= 90 and offset >= 0 and offset + length <= buffer_bytes):
            expected = index
            break
    offsets = np.array([offset for offset, _ in places], np.int64)
    lengths = np.array([length for _, length in places], np.int64)
    assert find_misplaced_kernel(buffer_bytes, offsets, lengths, 90) == expected


@pytest.mark.kernels
@given(
    st.lists(st.binary(max_size=20), max_size=20), st.integers(0, 25), st.integers(0, 200), st.integers(0, 25)
)
def test_gathering_equals_its_reference(
    messages: list[bytes], begin: int, room_bytes: int, room_count: int
) -> None:
    expected: list[bytes] = []
    for message in messages[begin:]:
        if len(expected) == room_count or len(b"".join(expected)) + len(message) > room_bytes:
            break
        expected.append(message)
    block = MessageBlock.of(messages)
    target, ends = np.full(room_bytes, 0xEE, np.uint8), np.full(room_count, -1, np.int64)
    count = gather_kernel(block.buffer, block.offsets, block.lengths, begin, target, ends, 0)
    assert count == len(expected)
    assert target.tobytes() == b"".join(expected).ljust(room_bytes, b"\xee")
    assert ends[:count].tolist() == np.cumsum([len(message) for message in expected], dtype=int).tolist()
    assert (ends[count:] == -1).all()
