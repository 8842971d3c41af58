"""The nursery itself: its children are real processes, die when told to, and are never left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.killing import Nursery, seeded, wait_until


def count_up(path: str) -> None:
    """Write ever higher numbers to a file until killed."""
    count = 0
    while True:
        count += 1
        Path(path).with_suffix(".new").write_text(str(count))
        Path(path).with_suffix(".new").rename(path)


def succeed() -> None:
    pass


def fail() -> None:
    raise ValueError("a reason that a person can read")


def wait_for_end() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    while True:
        time.sleep(60)


ROLES = {"count": count_up, "succeed": succeed, "fail": fail, "wait": wait_for_end}


def warm_up() -> None:
    pass


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.test_killing") as process:
        yield process


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_is_killed_stopped_and_continued(nursery: Nursery, tmp_path: Path) -> None:
    path = tmp_path / "count"
    child = nursery.start("count", str(path))
    wait_until(path.exists, "the child counts")
    child.stop()
    wait_until(lambda: state_of(child.pid) == "T", "the child is stopped")
    seen = int(path.read_text())
    child.go_on()
    wait_until(lambda: int(path.read_text()) > seen, "the child goes on")
    assert child.kill() == -signal.SIGKILL
    assert not is_there(child.pid)
    assert child.kill() == -signal.SIGKILL  # once more does no harm


def test_children_end_by_themselves_and_say_how(nursery: Nursery) -> None:
    nursery.start("succeed").insist_on_success()
    with pytest.raises(AssertionError, match="a reason that a person can read"):
        nursery.start("fail").insist_on_success()


def test_a_child_can_be_asked_to_end(nursery: Nursery) -> None:
    child = nursery.start("wait")
    # It may be asked before it listens, and is then ended by the signal itself.
    child.ask_to_end()
    assert child.wait() in (7, -signal.SIGTERM)


def test_nobody_outlives_the_nursery(tmp_path: Path) -> None:
    with Nursery("tests.fault.test_killing") as nursery:
        children = [nursery.start("count", str(tmp_path / str(index))) for index in range(3)]
    assert not any(is_there(child.pid) for child in children)


def test_a_nursery_that_cannot_start_says_why() -> None:
    with pytest.raises(AssertionError, match="No module named"):
        Nursery("tests.fault.no_such_module")


def test_a_failure_names_its_seed() -> None:
    def decide_and_fail() -> None:
        with seeded(8841) as randomness:
            assert randomness.randrange(10) < 0

    with pytest.raises(AssertionError) as caught:
        decide_and_fail()
    assert any("TWINTAPE_SEED=8841" in note for note in caught.value.__notes__)
