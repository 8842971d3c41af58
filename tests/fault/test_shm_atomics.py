"""The atomics between two processes, which is what they are for: both run a kernel on one file at once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds.compiled import i64, kernel
from middleware.shm import atomics, mapping
from middleware.shm.atomics import Words
from middleware.shm.system_kernels import give_way
from tests.fault.shm_partner import Partner

TIMES = 10 if os.environ.get("TWINTAPE_LONG") == "1" else 1
LAYOUT = mapping.Layout("test", 1, ())

FIRST_WORD = mapping.HEADER_BYTES // 8
READY, TARGET, LOCK, ENOUGH, PAYLOAD = (FIRST_WORD + line * mapping.LINE_WORDS for line in range(5))
PAYLOAD_WORDS = 12
TURNS = FIRST_WORD + 8 * mapping.LINE_WORDS  # one line for each of the two
LITMUS = FIRST_WORD + 16 * mapping.LINE_WORDS
LITMUS_ROUNDS = 50_000
BODY_BYTES = (64 + LITMUS_ROUNDS * 8 * 2 // mmap.PAGESIZE) * mmap.PAGESIZE

# Two patterns whose halves and bytes all differ: anything else that is read was torn.
PATTERN_A, PATTERN_B = 0x0123_4567_89AB_CDEF, -0x0123_4567_89AB_CDF0


@kernel
def meet(words: Words) -> None:
    """Return when both processes have come here, so that what follows happens at the same time."""
    atomics.fetch_add(words, READY, 1)
    while atomics.load_acquire(words, READY) < 2:
        give_way()


@kernel
def add_kernel(words: Words, count: int) -> int:
    """Add 1 many times; return the sum of the values found before each, which no other addition may share."""
    meet(words)
    total = i64(0)
    for _ in range(count):
        total += atomics.fetch_add(words, TARGET, 1)
    return total


@kernel
def lock_kernel(words: Words, count: int) -> int:
    """Count under a lock with a plain load and a plain store; return how often the lock was found taken."""
    meet(words)
    refusals = i64(0)
    for _ in range(count):
        while atomics.compare_exchange(words, LOCK, 0, 1) != 0:
            refusals += 1
            give_way()
        atomics.store_relaxed(words, TARGET, atomics.load_relaxed(words, TARGET) + 1)
        atomics.store_release(words, LOCK, 0)
    return refusals


@kernel
def flip_bit_kernel(words: Words, bit: int, count: int) -> int:
    """Set and clear one bit many times; return how often it was not as this process had left it."""
    meet(words)
    wrong = i64(0)
    for _ in range(count):
        if atomics.fetch_or(words, TARGET, bit) & bit:
            wrong += 1
        if atomics.fetch_and(words, TARGET, ~bit) & bit == 0:
            wrong += 1
    return wrong


@kernel
def pass_messages_kernel(words: Words, scratch: Words) -> int:
    """Write payloads of equal words, each before its number, until the reader has enough; return how many.

    Odd ones are stored word by word, even ones by one copy.
    """
    meet(words)
    number = i64(0)
    while atomics.load_relaxed(words, ENOUGH) == 0:
        number += 1
        if number & 1:
            for offset in range(PAYLOAD_WORDS):
                atomics.store_relaxed(words, PAYLOAD + offset, number)
        else:
            for offset in range(PAYLOAD_WORDS):
                scratch[offset] = number
            atomics.copy_words(words, PAYLOAD, scratch, 0, PAYLOAD_WORDS)
        atomics.store_release(words, TARGET, number)  # SYNC test-message: pairs with read_messages_kernel
    return number


@kernel
def read_messages_kernel(words: Words, enough: int) -> int:
    """Read that many different messages; return how many words of them were older than their number."""
    meet(words)
    stale, read, looks = i64(0), i64(0), i64(0)
    previous = i64(0)
    while read < enough:
        number = atomics.load_acquire(words, TARGET)  # SYNC test-message: pairs with pass_messages_kernel
        for offset in range(PAYLOAD_WORDS):
            if atomics.load_relaxed(words, PAYLOAD + offset) < number:
                stale += 1
        if number != previous:
            read += 1
            previous = number
        looks += 1
        if looks & 1023 == 0:
            give_way()  # the writer may be waiting for this core
    atomics.store_relaxed(words, ENOUGH, 1)
    return stale


@kernel
def alternate_kernel(words: Words) -> None:
    meet(words)
    while atomics.load_relaxed(words, ENOUGH) == 0:
        atomics.store_relaxed(words, TARGET, PATTERN_A)
        atomics.store_relaxed(words, TARGET, PATTERN_B)


@kernel
def watch_kernel(words: Words, enough: int) -> int:
    """Read an alternating word until it was seen to change that often; return how often it was torn."""
    meet(words)
    torn, changes, looks = i64(0), i64(0), i64(0)
    previous = i64(0)
    while changes < enough:
        value = atomics.load_relaxed(words, TARGET)
        if value != previous:
            changes += 1
            previous = value
        if value != PATTERN_A and value != PATTERN_B and value != 0:
            torn += 1
        looks += 1
        if looks & 1023 == 0:
            give_way()
    atomics.store_relaxed(words, ENOUGH, 1)
    return torn


@kernel
def announce_and_look_kernel(words: Words, me: int, looks: Words) -> None:
    """Each round: announce ourselves, then look for the other's announcement, with a full fence between."""
    other = 1 - me
    meet(words)
    for turn in range(LITMUS_ROUNDS):
        atomics.store_release(words, TURNS + me * mapping.LINE_WORDS, turn + 1)
        spins = 0
        while atomics.load_acquire(words, TURNS + other * mapping.LINE_WORDS) <= turn:
            spins += 1
            if spins & 255 == 0:
                give_way()
        atomics.store_relaxed(words, LITMUS + me * LITMUS_ROUNDS + turn, 1)
        atomics.fence_full()  # SYNC test-announce: pairs with itself in the other process
        looks[turn] = atomics.load_relaxed(words, LITMUS + other * LITMUS_ROUNDS + turn)


def opened(path: str) -> Words:
    return mapping.open_file(Path(path), LAYOUT, is_writable=True).words


# What the partner is asked to do.


def add_many(path: str, count: int) -> int:
    return add_kernel(opened(path), count)


def lock_many(path: str, count: int) -> int:
    return lock_kernel(opened(path), count)


def flip_bit(path: str, bit: int, count: int) -> int:
    return flip_bit_kernel(opened(path), bit, count)


def pass_messages(path: str) -> int:
    return pass_messages_kernel(opened(path), np.zeros(PAYLOAD_WORDS, dtype=np.int64))


def alternate(path: str) -> None:
    alternate_kernel(opened(path))


def announce_and_look(path: str) -> list[int]:
    looks = np.zeros(LITMUS_ROUNDS, dtype=np.int64)
    announce_and_look_kernel(opened(path), 1, looks)
    return [int(look) for look in looks]


@pytest.fixture(scope="module")
def partner() -> Iterator[Partner]:
    with Partner(__name__) as other:
        yield other


@pytest.fixture
def file(tmp_path: Path) -> mapping.MappedFile:
    return mapping.create(tmp_path / "words", LAYOUT, "words", {}, BODY_BYTES, 0o600)


def test_additions_of_two_processes_all_count(partner: Partner, file: mapping.MappedFile) -> None:
    count = 1_000_000 * TIMES
    partner.start("add_many", str(file.path), count)
    found = add_many(str(file.path), count) + partner.answer()

    assert file.words[TARGET] == 2 * count
    assert found == count * (2 * count - 1)  # 0 + 1 + ... : every value was found by exactly one of them


def test_lock_made_of_compare_exchange_excludes_the_other_process(
    partner: Partner, file: mapping.MappedFile
) -> None:
    count = 500_000 * TIMES
    partner.start("lock_many", str(file.path), count)
    lock_many(str(file.path), count)
    partner.answer()

    assert file.words[TARGET] == 2 * count


def test_bits_of_one_word_are_each_process_own(partner: Partner, file: mapping.MappedFile) -> None:
    count = 1_000_000 * TIMES
    partner.start("flip_bit", str(file.path), 1 << 40, count)
    assert flip_bit(str(file.path), 1, count) == 0
    assert partner.answer() == 0
    assert file.words[TARGET] == 0


def test_payload_is_never_older_than_its_number(partner: Partner, file: mapping.MappedFile) -> None:
    enough = 20_000 * TIMES
    partner.start("pass_messages", str(file.path))

    assert read_messages_kernel(file.words, enough) == 0
    assert partner.answer() >= enough


def test_word_is_never_read_in_halves(partner: Partner, file: mapping.MappedFile) -> None:
    partner.start("alternate", str(file.path))

    assert watch_kernel(file.words, 20_000 * TIMES) == 0
    partner.answer()


def test_of_two_who_announce_and_look_at_least_one_sees_the_other(
    partner: Partner, file: mapping.MappedFile
) -> None:
    """What a core may do without the full fence: look before its announcement has left it."""
    partner.start("announce_and_look", str(file.path))
    ours = np.zeros(LITMUS_ROUNDS, dtype=np.int64)
    announce_and_look_kernel(file.words, 0, ours)
    theirs = np.array(partner.answer())

    assert int(((ours == 0) & (theirs == 0)).sum()) == 0
