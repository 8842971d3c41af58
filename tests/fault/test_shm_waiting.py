"""Waiting between real processes: no wake-up is lost at the moment of falling asleep; idleness is free."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds.compiled import i64, kernel
from middleware.shm import mapping
from middleware.shm.atomics import Words, load_acquire, store_release
from middleware.shm.bell import BELL_WORD, SLEEPER_WORD, Bell
from middleware.shm.bell_kernels import ring_bell, wait_bell
from middleware.shm.runtime import Runtime
from middleware.shm.system_kernels import give_way, now_ns
from middleware.shm.waiting import Strategy, Waiting, late_count, sleep_count, wait
from middleware.shm.waiting_kernels import (
    LINGER_NS,
    PLAN_LATE,
    SLICE_NS,
    wait_for_change,
    wait_kernel,
    wake_if_silent,
)
from tests.fault.shm_partner import Partner

TIMES = 20 if os.environ.get("TWINTAPE_LONG") == "1" else 1
ROUNDS = 10_000 * TIMES
LAYOUT = mapping.Layout("test", 1, ())
BODY_BYTES = 16 * mmap.PAGESIZE

FIRST_WORD = mapping.HEADER_BYTES // 8
WORD, SLEEPER, HEARD = (FIRST_WORD + line * mapping.LINE_WORDS for line in range(3))

# A stall of the whole writer between its store and its call is not a lost wake-up: the slice runs out first.
STALL_NS = SLICE_NS // 4
LISTED_MAX = 64  # rounds that are listed as late or as stalled; there should be none

BY_SILENCE, BY_BELL = 0, 1


@kernel
def publish_kernel(words: Words, how: int, delays_ns: Words, haste_ns: int, stalled: Words) -> int:
    """Publish once per delay, each after the reader has heard the one before; return how often we stalled.

    `haste_ns` is a lie about the time of the previous store: with 0 the contract is kept.
    """
    previous_before_ns = i64(0)
    stall_count = i64(0)
    for round_index in range(delays_ns.size):
        while load_acquire(words, HEARD) < round_index:
            give_way()
        while now_ns() - previous_before_ns < delays_ns[round_index]:
            continue  # the very moment matters, so no yielding
        before_ns = now_ns()
        if how == BY_BELL:
            ring_bell(words, WORD, SLEEPER)
        else:
            store_release(words, WORD, round_index + 1)
            wake_if_silent(words, WORD, previous_before_ns + haste_ns, now_ns())
        if now_ns() - before_ns > STALL_NS and stall_count < stalled.size:
            stalled[stall_count] = round_index + 1
            stall_count += 1
        previous_before_ns = before_ns
    return stall_count


@kernel
def store_and_wake_kernel(words: Words, value: int) -> None:
    store_release(words, WORD, value)
    wake_if_silent(words, WORD, 0, now_ns())


@kernel
def hear_kernel(words: Words, how: int, rounds: int, plan: Words, late: Words) -> int:
    """Wait for every publish and say so; list those that were heard only when a sleep ran out."""
    late_count = i64(0)
    for number in range(1, rounds + 1):
        late_before = plan[PLAN_LATE]
        if how == BY_BELL:
            value = wait_bell(words, WORD, SLEEPER, number - 1, plan, 30 * 1_000_000_000)
        else:
            value = wait_for_change(words, WORD, number - 1, plan, 30 * 1_000_000_000)
        if value != number:
            return -1
        if plan[PLAN_LATE] != late_before and late_count < late.size:
            late[late_count] = number
            late_count += 1
        store_release(words, HEARD, number)
    return late_count


def opened(path: str) -> Words:
    return mapping.open_file(Path(path), LAYOUT, is_writable=True).words


def delays_around_linger(rounds: int, seed: int) -> Words:
    """Mostly within 20 us of the moment at which a waiter falls asleep, some far from it."""
    chance = np.random.default_rng(seed)
    near = chance.integers(LINGER_NS - 20_000, LINGER_NS + 20_000, rounds)
    far = chance.integers(0, 3 * LINGER_NS, rounds)
    return np.where(chance.random(rounds) < 0.8, near, far).astype(np.int64)


# What the partner is asked to do.


def publish(path: str, how: int, rounds: int, haste_ns: int) -> list[int]:
    return publish_after(path, how, delays_around_linger(rounds, seed=how), haste_ns)


def publish_slowly(path: str, rounds: int, haste_ns: int) -> list[int]:
    """Publish to a waiter that has fallen asleep each time."""
    return publish_after(path, BY_SILENCE, np.full(rounds, 200 * LINGER_NS, dtype=np.int64), haste_ns)


def publish_after(path: str, how: int, delays_ns: Words, haste_ns: int) -> list[int]:
    stalled = np.zeros(LISTED_MAX, dtype=np.int64)
    count = publish_kernel(opened(path), how, delays_ns, i64(haste_ns), stalled)
    return [int(number) for number in stalled[:count]]


def wait_and_tell(path: str, index: int, timeout_ns: int) -> dict[str, int]:
    """Wait for one change of a word, blocking; return what it cost."""
    words = opened(path)
    plan = Waiting(Strategy.BLOCK).plan
    wait_kernel(words, i64(index), i64(-1), plan, i64(1))  # loads the kernel
    cpu_ns, wall_ns = time.process_time_ns(), time.monotonic_ns()
    value = wait(words, index, 0, plan, timeout_ns)
    return {
        "value": value,
        "cpu_ns": time.process_time_ns() - cpu_ns,
        "wall_ns": time.monotonic_ns() - wall_ns,
        "sleeps": sleep_count(plan),
        "late": late_count(plan),
    }


def wait_for_bell(runtime: str, name: str, timeout_ns: int) -> list[int]:
    bell = Bell.open(Runtime(Path(runtime)), name)
    plan = Waiting(Strategy.BLOCK).plan
    return [bell.wait(0, plan, timeout_ns), sleep_count(plan), late_count(plan)]


@pytest.fixture(scope="module")
def partner() -> Iterator[Partner]:
    with Partner(__name__) as other:
        yield other


@pytest.fixture
def file(tmp_path: Path) -> mapping.MappedFile:
    return mapping.create(tmp_path / "words", LAYOUT, "words", {}, BODY_BYTES, 0o600)


def hear(words: Words, how: int, rounds: int) -> tuple[list[int], Words]:
    """Return which publishes were heard late, and the plan with its counts."""
    # It spins for as long as it stays awake: on a busy machine a yield would outlast the delay, and then
    # nobody would fall asleep near the moment of a store.
    plan = Waiting(Strategy.BLOCK, spin_ns=LINGER_NS).plan
    late = np.zeros(LISTED_MAX, dtype=np.int64)
    count = hear_kernel(words, how, rounds, plan, late)
    assert count >= 0, "a publish was not heard at all"
    return late[:count].tolist(), plan


def wait_until_asleep(pid: int) -> None:
    """Return when the process sleeps in a futex call."""
    for _ in range(10_000):
        number = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()[0]
        if number in ("202", "98"):  # x86-64, aarch64
            return
        time.sleep(0.001)
    pytest.fail(f"process {pid} did not go to sleep")


@pytest.mark.serial
@pytest.mark.parametrize("how", [BY_SILENCE, BY_BELL], ids=["silence", "bell"])
def test_no_wake_up_is_lost_at_the_moment_of_falling_asleep(
    how: int, partner: Partner, file: mapping.MappedFile
) -> None:
    partner.start("publish", str(file.path), how, ROUNDS, 0)
    late, plan = hear(file.words, how, ROUNDS)
    stalled = partner.answer()

    assert set(late) - set(stalled) == set()
    assert sleep_count(plan) > 0, "the waiter never slept, so nothing could be lost"


def test_writer_that_breaks_the_contract_is_noticed(partner: Partner, file: mapping.MappedFile) -> None:
    """What the test above looks for does happen when the writer believes that nobody can be asleep yet."""
    rounds = 3  # of which it wakes nobody after the first; each then takes a whole slice
    partner.start("publish_slowly", str(file.path), rounds, SLICE_NS)
    late, _plan = hear(file.words, BY_SILENCE, rounds)
    partner.answer()

    assert late


def test_idle_waiter_uses_no_cpu(partner: Partner, file: mapping.MappedFile) -> None:
    told = partner.call("wait_and_tell", str(file.path), WORD, 2_000_000_000)

    assert told["value"] == 0
    assert told["wall_ns"] >= 2_000_000_000
    assert told["sleeps"] >= 2_000_000_000 // SLICE_NS
    assert told["cpu_ns"] < 0.005 * told["wall_ns"], told


def test_sleeper_wakes_for_the_first_store_after_silence(partner: Partner, file: mapping.MappedFile) -> None:
    partner.start("wait_and_tell", str(file.path), WORD, 30_000_000_000)
    wait_until_asleep(partner.pid)

    store_and_wake_kernel(file.words, 7)
    told = partner.answer()

    assert told["value"] == 7
    assert told["sleeps"] >= 1
    assert told["late"] == 0


def test_sleeper_wakes_when_its_bell_is_rung(partner: Partner, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "node")
    bell = Bell.make(runtime, "router")
    partner.start("wait_for_bell", str(runtime.path), "router", 30_000_000_000)
    wait_until_asleep(partner.pid)

    bell.ring()

    count, sleeps, late = partner.answer()
    assert count == 1
    assert sleeps >= 1
    assert late == 0


def test_bell_works_again_after_its_sleeper_was_killed(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "node")
    bell = Bell.make(runtime, "router")
    with Partner(__name__) as doomed:
        doomed.start("wait_for_bell", str(runtime.path), "router", 30_000_000_000)
        wait_until_asleep(doomed.pid)
        doomed.kill()
    assert bell.words[SLEEPER_WORD] % 2 == 1, "it died asleep"

    assert bell.ring() == 0  # nobody was there
    assert bell.words[SLEEPER_WORD] % 2 == 0  # and nobody is called for in vain again
    assert bell.words[BELL_WORD] == 1
    assert bell.wait(0, Waiting().plan, 1_000_000_000) == 1
