"""Process pairs: both ends begin together; what goes wrong in one is said by name and leaves nothing."""

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest

from perf import pairs
from perf.pairs import Outcome, Team, Worker, some_cores, start_pair
from perf.report import BenchError


class ProbeEnd:
    """An end that tells about itself, or misbehaves as its task says."""

    def __init__(self, link: str) -> None:
        self._link = link
        self._task: Any = None

    def prepare(self, task: Any) -> None:
        self._task = task
        if task == "refuse":
            raise ValueError(f"{self._link} cannot be prepared")

    def run(self, first_ns: int) -> Outcome:
        if self._task == "raise":
            raise ValueError(f"the {self._link} end broke")
        if self._task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._task == "hang":
            signal.pause()
        return {
            "first_ns": first_ns,
            "asked_ns": time.monotonic_ns(),
            "cores": os.sched_getaffinity(0),
            "pid": os.getpid(),
        }

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _nobody_is_left_behind() -> Any:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def _two_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a pair needs two cores")


def open_probe(link: str) -> ProbeEnd:
    return ProbeEnd(link)


def probe_pair(**options: Any) -> Team:
    return start_pair("probe", open_probe, open_probe, "probe", **options)


@pytest.mark.usefixtures("_two_cores")
def test_both_ends_are_told_one_moment_to_begin_and_have_a_core_each() -> None:
    cores = some_cores(2)
    with probe_pair() as team:
        for _ in range(2):
            receiver, sender = team.run_each(["work", "work"], load_seconds=0)
            assert receiver["first_ns"] == sender["first_ns"]
            assert (sender["cores"], receiver["cores"]) == ({cores[0]}, {cores[-1]})
            assert len({sender["pid"], receiver["pid"], os.getpid()}) == 3


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("raise", "probe receiver: ValueError: the probe end broke"),
        ("refuse", "probe receiver: ValueError: probe cannot be prepared"),
        ("die", "probe receiver died with status -9"),
    ],
)
@pytest.mark.usefixtures("_two_cores")
def test_what_goes_wrong_in_an_end_is_said_with_its_words(task: str, told: str) -> None:
    with pytest.raises(BenchError, match=told), probe_pair() as team:
        team.run_each([task, "work"], load_seconds=0)


@pytest.mark.usefixtures("_two_cores")
def test_an_end_that_never_answers_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    team = probe_pair()
    team.run_each(["work", "work"], load_seconds=0)
    monkeypatch.setattr(pairs, "ROUND_SECONDS_SPARE", 0.2)
    with pytest.raises(BenchError, match="probe sender gave no answer in time"), team:
        team.run_each(["work", "hang"], load_seconds=0)


@pytest.mark.usefixtures("_two_cores")
def test_an_end_can_share_cores_and_the_sender_can_be_ready_first() -> None:
    with probe_pair(is_pinned=False, is_sender_first=True) as team:
        assert [worker.name for worker in team.workers] == ["probe sender", "probe receiver"]
        sender, receiver = team.run_each(["work", "work"], load_seconds=0)
        assert sender["cores"] == receiver["cores"] == set(some_cores(2))


def test_a_worker_that_is_gone_is_noticed_when_it_is_asked() -> None:
    worker = Worker("probe", open_probe, "probe", os.sched_getaffinity(0))
    team = Team([worker])
    (outcome,) = team.run_each(["work"], load_seconds=0)
    os.kill(outcome["pid"], signal.SIGKILL)
    with pytest.raises(BenchError, match="probe died with status -9"), team:
        team.run_each(["work"], load_seconds=0)


def test_too_few_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="need 10000 cores, we may use"):
        some_cores(10_000)
