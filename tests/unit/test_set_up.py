"""The set-up does what is not done yet, and repairs what was stopped half-way."""

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import set_up
from scripts.set_up import Step, waiting_steps

DONE = {"environment": "e1", "build tools": "b1", "packages": "p1", "kernels": "k1"}


def nothing() -> None:
    """A step's work that leaves no trace."""


def steps_with(work: Callable[[], None] = nothing, **keys: str) -> list[Step]:
    wanted = {**DONE, **{name.replace("_", " "): key for name, key in keys.items()}}
    return [Step(name, key, work, leaves_half_packages=name != "kernels") for name, key in wanted.items()]


def names(steps: list[Step]) -> list[str]:
    return [step.name for step in steps]


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment directory of the test's own."""
    directory = tmp_path / ".venv"
    directory.mkdir()
    monkeypatch.setattr(set_up, "VENV", directory)
    monkeypatch.setattr(set_up, "STATE_FILE", directory / "setup-state.json")
    monkeypatch.setattr(set_up, "LOG_FILE", directory / "setup.log")
    return directory


def test_second_run_has_nothing_to_do() -> None:
    assert waiting_steps(steps_with(), dict(DONE)) == []


def test_first_run_does_everything() -> None:
    assert names(waiting_steps(steps_with(), {})) == list(DONE)


def test_only_steps_whose_inputs_changed_are_done_again() -> None:
    assert names(waiting_steps(steps_with(packages="p2", kernels="k2"), dict(DONE))) == [
        "packages",
        "kernels",
    ]


def test_moved_tree_gets_a_new_environment() -> None:
    assert names(waiting_steps(steps_with(environment="elsewhere"), dict(DONE))) == list(DONE)


@pytest.mark.parametrize("begun", ["environment", "build tools", "packages"])
def test_install_that_was_stopped_half_way_starts_from_nothing(begun: str) -> None:
    state = {**{name: key for name, key in DONE.items() if name != begun}, "begun": begun}
    assert names(waiting_steps(steps_with(), state)) == list(DONE)


def test_compilation_that_was_stopped_half_way_is_only_done_again() -> None:
    state = {**{name: key for name, key in DONE.items() if name != "kernels"}, "begun": "kernels"}
    assert names(waiting_steps(steps_with(), state)) == ["kernels"]


def test_failing_step_is_remembered_as_begun_and_not_as_done(venv: Path) -> None:
    set_up.write_state(dict(DONE))

    def fail() -> None:
        raise set_up.SetUpError("no network")

    steps = steps_with(fail, packages="p2")
    with pytest.raises(set_up.SetUpError, match="no network"):
        set_up.run_steps(waiting_steps(steps, set_up.read_state()))
    state = set_up.read_state()
    assert state["begun"] == "packages"
    assert "packages" not in state
    set_up.run_steps(waiting_steps(steps_with(packages="p2"), state))
    assert set_up.read_state() == {**DONE, "packages": "p2"}


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_unreadable_state_means_that_nothing_is_done(content: str, venv: Path) -> None:
    set_up.STATE_FILE.write_text(content, encoding="utf-8")
    assert set_up.read_state() == {}


def test_output_of_a_step_is_kept_in_the_log(venv: Path) -> None:
    assert set_up.run_logged(["sh", "-c", "echo out; echo err >&2; exit 3"]) == 3
    assert set_up.LOG_FILE.read_text(encoding="utf-8").splitlines()[-2:] == ["out", "err"]
    with pytest.raises(set_up.SetUpError, match="ended with status 3"):
        set_up.run_or_fail(["sh", "-c", "exit 3"])


def test_program_that_outlives_a_killed_set_up_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv: Path
) -> None:
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    with set_up.only_one_at_a_time():
        survivor = set_up.start(["sh", "-c", "kill -STOP $$"], subprocess.PIPE)
    with survivor, (tmp_path / "pyproject.toml").open("rb") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        survivor.kill()
        survivor.wait(timeout=30)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_python_that_is_too_old_is_told_in_one_sentence(tmp_path: Path, project_root: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(project_root / "scripts" / "setup", tmp_path / "scripts")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "echo"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    old = programs / "python3"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n', encoding="utf-8"
    )
    old.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Twintape needs Python 3.11 or newer, found Python 3.9.2: install it")
    assert done.stderr.count("\n") == 1
