"""Stepping itself: it misses no store, comes to the instruction it was sent to, leaves nobody behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fault import stepping
from tests.fault.stepping import ChildEnded, Stepped, directory_states, memory_states, take_snapshot

pytestmark = pytest.mark.skipif(not stepping.IS_SUPPORTED, reason=stepping.WHY_NOT)

WORD_COUNT = 16


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "files"
    place.mkdir(mode=0o700)
    (place / "words").write_bytes(bytes(8 * WORD_COUNT))
    return place


@pytest.fixture(params=["kernel", "anywhere"])
def child(request: pytest.FixtureRequest, directory: Path) -> Iterator[Stepped]:
    with Stepped("tests.fault.stepped_words", request.param, str(directory / "words")) as process:
        yield process


def words_in(content: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(content, dtype=np.int64)]


def test_every_state_between_two_pauses_is_seen_once_and_in_order(directory: Path, child: Stepped) -> None:
    states = [words_in(state.files["words"][1]) for state in memory_states(child, directory, ["words"])]
    written = [1, 2, 3, 4]
    assert states[0] == [0] * WORD_COUNT
    assert states[-1] == [1, *[0] * 7, *written, *[0] * 4]
    # The copy may take several instructions, but the count moves last and alone.
    assert states[-2] == [0, *[0] * 7, *written, *[0] * 4]
    for state in states[:-1]:
        assert state[0] == 0
    assert child.told_line() == "1"


def test_a_child_runs_freely_between_pauses(directory: Path, child: Stepped) -> None:
    for count in (1, 2, 3):
        child.run_to_pause()
        assert child.told_line() == str(count)
    assert child.steps_taken == 0


def test_a_child_is_brought_to_its_kernel_and_through_it(directory: Path) -> None:
    def count() -> int:
        return words_in((directory / "words").read_bytes())[0]

    with Stepped("tests.fault.stepped_words", "kernel", str(directory / "words")) as child:
        lengths = []
        for calls in range(3):
            assert child.run_to_kernel()
            assert child.instruction_pointer in child.kernels
            assert count() == calls
            lengths.append(max(child.steps_of_kernel()))
            assert count() == calls + 1
            assert not child.run_to_kernel()  # it pauses; the breakpoint is gone and the code is whole
    # The same way every time, and not the ten thousands of instructions around it.
    assert len(set(lengths)) == 1
    assert 10 < lengths[0] < 5_000


def test_a_change_outside_of_the_named_kernels_is_noticed(directory: Path) -> None:
    with (
        Stepped("tests.fault.stepped_words", "outside", str(directory / "words")) as child,
        pytest.raises(AssertionError, match="outside of the kernels"),
    ):
        list(memory_states(child, directory, ["words"]))


def test_files_are_seen_at_every_system_call(tmp_path: Path) -> None:
    place = tmp_path / "made"
    place.mkdir()
    with Stepped("tests.fault.stepped_words", "make", str(place)) as child:
        states = list(directory_states(child, place))
    assert [sorted(state.files) for state in states] == [[], ["new"], ["new"], ["named", "new"], ["named"]]
    assert states[2].files["new"][1] == b"whole"
    assert states[-1].directories == {}


def test_a_snapshot_is_restored_with_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b").chmod(0o750)
    (tmp_path / "a" / "b" / "file").write_bytes(b"content")
    (tmp_path / "a" / "b" / "file").chmod(0o640)
    snapshot = take_snapshot(tmp_path / "a")
    snapshot.restore(tmp_path / "copy")
    again = take_snapshot(tmp_path / "copy")
    assert again == snapshot
    assert again.files == {"b/file": (0o640, b"content")}
    assert again.directories == {"b": 0o750}


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ChildEnded, match="No such file"):
        Stepped("tests.fault.stepped_words", "kernel", str(tmp_path / "missing"))


def test_a_child_that_hangs_is_killed(directory: Path) -> None:
    with (
        pytest.raises(ChildEnded, match=r"ended with -9 .* killed after 1 s"),
        Stepped("tests.fault.stepped_words", "hang", str(directory), life_s_max=1.0) as child,
    ):
        child.run_to_pause()


def test_no_child_outlives_its_block_and_the_cores_are_given_back(directory: Path) -> None:
    cores = os.sched_getaffinity(0)
    with Stepped("tests.fault.stepped_words", "anywhere", str(directory / "words")) as child:
        assert len(os.sched_getaffinity(0)) == 1
        child.step()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert os.sched_getaffinity(0) == cores
