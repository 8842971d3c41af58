"""The `twintape` command: quick to answer, clear when asked wrongly, quiet when interrupted."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

import twintape
from feeds.errors import SourceError
from twintape import cli

HEAVY = ("numpy", "numba", "rich", "asyncio", "pyspark", "matplotlib")


@contextmanager
def verb_that(run: Callable[[argparse.Namespace], int]) -> Iterator[None]:
    """Add a verb `probe` whose work is `run`, for as long as the block lasts."""
    module = ModuleType("tests.probe_verb")
    vars(module).update(configure=lambda parser: parser.add_argument("--loud", action="store_true"), run=run)
    sys.modules[module.__name__] = module
    cli.VERBS["Probe"] = (cli.Verb("probe", module.__name__, "does what the test says", "twintape probe"),)
    try:
        yield
    finally:
        del cli.VERBS["Probe"], sys.modules[module.__name__]


def fail_with(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("verb", cli.verbs_by_name().values(), ids=lambda verb: verb.name)
def test_every_verb_explains_itself(verb: cli.Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb.name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: twintape {verb.name}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", cli.verbs_by_name().values(), ids=lambda verb: verb.name)
def test_every_example_is_a_line_that_its_verb_understands(verb: cli.Verb) -> None:
    command, name, *words = verb.example.split()
    assert (command, name) == ("twintape", verb.name)
    parser = cli.build_parser(verb, cli.load(verb))
    if "--help" not in words:
        parser.parse_args(words)


def test_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from twintape.cli import main; status = main(['--help']); "
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules]); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    for name in cli.verbs_by_name():
        assert f"\n  {name} " in done.stdout


def test_module_and_command_are_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twintape", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"twintape {twintape.__version__}\n"


@pytest.mark.parametrize(
    ("word", "advice"), [("demoo", "did you mean 'demo'?"), ("zzz", "the verbs are demo")]
)
def test_unknown_verb_is_told_what_there_is(
    word: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == cli.EXIT_USAGE
    told = capsys.readouterr().err
    assert f"no verb '{word}'" in told
    assert advice in told


def test_option_before_the_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--verbose", "demo"]) == cli.EXIT_USAGE
    assert "'--verbose'" in capsys.readouterr().err


def test_help_verb_is_the_same_as_the_verbs_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["help", "kernels"])
    assert stopped.value.code == 0
    assert "usage: twintape kernels" in capsys.readouterr().out


def test_wrong_argument_of_a_verb_exits_with_usage_status() -> None:
    with verb_that(lambda args: 0), pytest.raises(SystemExit) as stopped:
        cli.main(["probe", "--no-such-thing"])
    assert stopped.value.code == cli.EXIT_USAGE


def test_status_of_the_verb_is_the_status_of_the_command() -> None:
    with verb_that(lambda args: 7 if args.loud else 0):
        assert cli.main(["probe", "--loud"]) == 7
        assert cli.main(["probe"]) == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SourceError("message 17 at byte 4711:\n unknown type"), "message 17 at byte 4711: unknown type"),
        (
            FileNotFoundError(2, "No such file or directory", "day.itch"),
            "day.itch: No such file or directory",
        ),
        (OSError(98, "Address already in use"), "Address already in use"),
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe"),  # of a peer: our own reader is still there
    ],
)
def test_what_a_person_can_mend_is_one_line(
    error: Exception, told: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWINTAPE_DEBUG", raising=False)
    with verb_that(fail_with(error)):
        assert cli.main(["probe"]) == cli.EXIT_FAILED
    assert capfd.readouterr().err == f"twintape probe: {told}\n"


def test_debug_shows_where_an_error_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINTAPE_DEBUG", "1")
    with verb_that(fail_with(SourceError("bad"))), pytest.raises(SourceError):
        cli.main(["probe"])


def test_our_own_bug_is_never_dressed_up_as_a_users_mistake() -> None:
    with verb_that(fail_with(ZeroDivisionError())), pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with verb_that(fail_with(KeyboardInterrupt())):
        assert cli.main(["probe"]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does when it has seen enough
    try:
        done = subprocess.run(
            [sys.executable, "-m", "twintape", "doctor", "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (cli.EXIT_BROKEN_PIPE, "")
