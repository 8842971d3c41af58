"""The rules of a bell: it counts, whoever makes it first, and a ring calls the system only for a sleeper."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from feeds.errors import ConfigError
from middleware.shm.bell import BELL_WORD, LAYOUT, SLEEPER_WORD, Bell
from middleware.shm.bell_kernels import ring_bell_kernel, wait_bell_kernel
from middleware.shm.errors import LayoutError, NotFound
from middleware.shm.mapping import LINE_WORDS, create
from middleware.shm.runtime import Runtime
from middleware.shm.waiting import Strategy, Waiting, late_count, sleep_count
from middleware.shm.waiting_kernels import LINGER_NS

pytestmark = pytest.mark.kernels


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


def test_two_openings_share_one_count(runtime: Runtime) -> None:
    ours, theirs = Bell.make(runtime, "router"), Bell.open(runtime, "router")
    for _ in range(3):
        theirs.ring()
    ours.ring()

    assert (ours.count, theirs.count) == (4, 4)
    assert ours.name == "router"


def test_making_it_again_keeps_its_count(runtime: Runtime) -> None:
    Bell.make(runtime, "router").ring()
    assert Bell.make(runtime, "router").count == 1


def test_is_its_owner_alone(runtime: Runtime) -> None:
    assert stat.S_IMODE(Bell.make(runtime, "router").path.stat().st_mode) == 0o600


def test_missing_bell_is_not_found(runtime: Runtime) -> None:
    with pytest.raises(NotFound, match=r"there is no .*/bells/router/bell"):
        Bell.open(runtime, "router")


def test_name_that_is_a_path_is_refused(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match=r"was '\.\./router'"):
        Bell.make(runtime, "../router")


def test_damaged_bell_is_refused_and_not_made_anew(runtime: Runtime) -> None:
    path = Bell.make(runtime, "router").path
    path.write_bytes(b"not a bell")
    with pytest.raises(LayoutError, match="file size must be at least 4096 bytes, was 10 bytes"):
        Bell.make(runtime, "router")
    assert path.read_bytes() == b"not a bell"


def test_a_bell_without_room_for_its_words_is_refused(runtime: Runtime) -> None:
    """Its header is whole and tells the truth, so nothing else stops a kernel from writing behind its end."""
    create(runtime.make_place("bells", "router") / "bell", LAYOUT, "router", {}, 0, 0o600)
    for way in (Bell.make, Bell.open):
        with pytest.raises(LayoutError, match="file size must be 8192 bytes, was 4096 bytes"):
            way(runtime, "router")


def test_ringers_and_sleepers_write_to_different_lines() -> None:
    assert abs(BELL_WORD - SLEEPER_WORD) >= LINE_WORDS


def test_ring_without_sleeper_leaves_the_sleepers_word_alone(runtime: Runtime) -> None:
    bell = Bell.make(runtime, "router")
    assert bell.ring() == 0
    assert bell.words[SLEEPER_WORD] == 0


@pytest.mark.parametrize("strategy", list(Strategy))
def test_wait_returns_what_was_seen_after_its_time(strategy: Strategy, runtime: Runtime) -> None:
    bell = Bell.make(runtime, "router")
    bell.ring()
    timeout_ns = 4 * LINGER_NS
    start_ns = time.monotonic_ns()

    assert bell.wait(1, Waiting(strategy).plan, timeout_ns) == 1
    assert time.monotonic_ns() - start_ns >= timeout_ns
    assert bell.wait(0, Waiting(strategy).plan, 0) == 1


def test_only_who_sleeps_announces_it() -> None:
    words = np.zeros(64, dtype=np.int64)
    for strategy in (Strategy.SPIN, Strategy.YIELD):
        wait_bell_kernel(words, 0, 32, 0, Waiting(strategy).plan, 3 * LINGER_NS)
        assert words[32] == 0
    wait_bell_kernel(words, 0, 32, 0, Waiting(Strategy.BLOCK).plan, 300_000_000)
    assert words[32] == 1

    assert ring_bell_kernel(words, 0, 32) == 0  # it has gone, and its announcement with it
    assert words[32] == 2


@pytest.mark.parametrize("strategy", list(Strategy))
def test_rings_of_several_threads_reach_several_waiters(strategy: Strategy, runtime: Runtime) -> None:
    bell = Bell.make(runtime, "router")
    rings, ringers = 50, 2
    plans = [Waiting(strategy).plan for _ in range(2)]

    def ring() -> None:
        for _ in range(rings):
            bell.ring()

    def follow(plan: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        seen = 0
        while seen < rings * ringers:
            seen = bell.wait(seen, plan, 20_000_000_000)

    threads = [threading.Thread(target=follow, args=(plan,)) for plan in plans]
    threads += [threading.Thread(target=ring) for _ in range(ringers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert bell.count == rings * ringers
    if strategy is Strategy.BLOCK:
        assert [late_count(plan) for plan in plans] == [0, 0]


def test_sleeper_is_woken_by_the_ring(runtime: Runtime) -> None:
    bell = Bell.make(runtime, "router")
    plan = Waiting(Strategy.BLOCK).plan
    answers: list[int] = []
    waiter = threading.Thread(target=lambda: answers.append(bell.wait(0, plan, 20_000_000_000)))
    waiter.start()
    while sleep_count(plan) == 0:
        time.sleep(0.001)
    bell.ring()
    waiter.join()

    assert answers == [1]
    assert late_count(plan) == 0
