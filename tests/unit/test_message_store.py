"""Blocks of messages and the store of a session."""

from __future__ import annotations

import numpy as np
import pytest

from feeds.errors import ConfigError, FeedError
from feeds.message_store import MESSAGE_BYTES_MAX, MemoryStore, MessageBlock, MessageNotHeld


def read_all(store: MemoryStore, sequence: int) -> list[bytes]:
    messages: list[bytes] = []
    while sequence < store.next_sequence:
        block = store.read(sequence, 1_000)
        messages.extend(block)
        sequence += len(block)
    return messages


def test_a_block_gives_back_its_messages() -> None:
    block = MessageBlock.of([b"one", b"", b"three"])
    assert list(block) == [b"one", b"", b"three"]
    assert (len(block), block.message_bytes, block[2]) == (3, 8, b"three")
    assert list(block.part(1, 3)) == [b"", b"three"]


def test_a_block_cannot_be_changed_through_its_arrays() -> None:
    buffer = np.zeros(4, np.uint8)
    block = MessageBlock(buffer, np.zeros(1, np.int64), np.ones(1, np.int64))
    assert not any(array.flags.writeable for array in (block.buffer, block.offsets, block.lengths))
    assert buffer.flags.writeable


@pytest.mark.parametrize(
    "offset, length",
    [(0, 11), (10, 1), (-1, 1), (0, -1), (2**62, 2**62), (2**63 - 1, 1), (5, MESSAGE_BYTES_MAX + 1)],
)
def test_a_message_outside_its_buffer_is_refused(offset: int, length: int) -> None:
    with pytest.raises(
        ConfigError, match="message 1 must be at most 65534 bytes and lie within the buffer of 10"
    ):
        MessageBlock(np.zeros(10, np.uint8), np.array([0, offset]), np.array([10, length]))


def test_arrays_of_the_wrong_kind_are_refused_by_name() -> None:
    good = np.zeros(2, np.int64)
    with pytest.raises(ConfigError, match="buffer must be"):
        MessageBlock(good, good, good)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="offsets must be"):
        MessageBlock(np.zeros(4, np.uint8), np.zeros(4, np.int64)[::2], good)
    with pytest.raises(ConfigError, match="lengths must be as many as offsets, 2, were 3"):
        MessageBlock(np.zeros(4, np.uint8), good, np.zeros(3, np.int64))


def test_messages_are_numbered_from_one() -> None:
    store = MemoryStore("DAY1")
    assert (store.first_sequence, store.next_sequence) == (1, 1)
    assert store.append(b"one") == 1
    assert store.append_block(MessageBlock.of([b"two", b"three"])) == 2
    assert store.next_sequence == 4
    assert read_all(store, 2) == [b"two", b"three"]


def test_reading_stops_at_the_limit() -> None:
    store = MemoryStore("DAY1")
    store.append_block(MessageBlock.of([b"%d" % number for number in range(1, 11)]))
    assert list(store.read(3, 2)) == [b"3", b"4"]
    with pytest.raises(ConfigError, match="count_limit must be 1 or more, was 0"):
        store.read(3, 0)


def test_the_oldest_messages_go_when_there_are_too_many_and_what_was_read_stays() -> None:
    store = MemoryStore("DAY1", retain_bytes=140_000, chunk_bytes=70_000)
    store.append(b"early")
    early = store.read(1, 1)
    for number in range(2, 8):
        store.append(bytes((number,)) * 40_000)
    assert (store.first_sequence, store.next_sequence) == (6, 8)
    assert read_all(store, 6) == [b"\x06" * 40_000, b"\x07" * 40_000]
    assert list(early) == [b"early"]
    with pytest.raises(MessageNotHeld, match="one that is held \\(6 to 7\\), was 5"):
        store.read(5, 1)


def test_a_number_that_is_not_made_yet_is_not_held() -> None:
    store = MemoryStore("DAY1")
    with pytest.raises(MessageNotHeld, match="held \\(none\\), was 1"):
        store.read(1, 1)


def test_an_ended_session_takes_no_more() -> None:
    store = MemoryStore("DAY1")
    store.append(b"x")
    store.end()
    store.end()
    with pytest.raises(FeedError, match="it is ended"):
        store.append(b"y")
    assert store.next_sequence == 2


@pytest.mark.parametrize(
    "changes", [{"chunk_bytes": 60_000}, {"chunk_messages": 0}, {"retain_bytes": 1 << 20}]
)
def test_sizes_that_cannot_work_are_refused_by_name(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        MemoryStore("DAY1", **changes)
