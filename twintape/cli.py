"""The `twintape` command: a table of verbs, and the few rules that all of them share.

`twintape --help` must answer at once, so this module imports nothing heavy and no verb's module is
imported before that verb is used. A verb's module has

    configure(parser: argparse.ArgumentParser) -> None     adds its arguments
    run(args: argparse.Namespace) -> int                   does the work, returns the exit status

and keeps its own heavy imports inside `run`.
"""

import argparse
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from twintape import __version__

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a command stopped with Ctrl-C
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for `... | head`


class Verb(NamedTuple):
    """One row of the command: what it is called, where it lives, and how to say what it does."""

    name: str
    module: str
    summary: str
    example: str


VERBS: dict[str, tuple[Verb, ...]] = {
    "See it work": (
        Verb("demo", "twintape.demo", "an exchange, two lossy lines, one perfect stream", "twintape demo"),
    ),
    "Feeds": (
        Verb(
            "exchange",
            "feeds.exchange.command",
            "run the simulated exchange, or play a recorded file as if it were live",
            "twintape exchange --loss 0.05 --reorder 0.02 --seed 7",
        ),
        Verb(
            "decode",
            "feeds.decode_command",
            "turn an exchange's file or capture into frames and counts",
            "twintape decode 12302019.NASDAQ_ITCH50 --summary",
        ),
    ),
    "This node": (
        Verb(
            "shm",
            "middleware.shm.inspection.command",
            "show what is in shared memory: who writes, who reads, how far behind",
            "twintape shm ls",
        ),
    ),
    "This machine": (
        Verb(
            "doctor",
            "twintape.doctor",
            "say what this machine has and lacks, and what to do about it",
            "twintape doctor",
        ),
        Verb(
            "kernels",
            "twintape.kernels",
            "compile the hot path ahead of time, so that processes start at once",
            "twintape kernels",
        ),
        Verb(
            "bench",
            "perf.commands",
            "measure us beside our peers and the physical limit",
            "twintape bench decode --quick",
        ),
    ),
}


class VerbModule(Protocol):
    """What every verb's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def verbs_by_name() -> dict[str, Verb]:
    return {verb.name: verb for group in VERBS.values() for verb in group}


def load(verb: Verb) -> VerbModule:
    """Import the module that does a verb's work."""
    return cast("VerbModule", import_module(verb.module))


def help_text() -> str:
    """The page of `twintape --help`: verbs by group, then lines to copy."""
    width = max(len(name) for name in verbs_by_name())
    lines = [
        "usage: twintape VERB [options]",
        "",
        "A market-data feed that does not stop: two adapters, one stream, every message once and in order.",
    ]
    for group, verbs in VERBS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {verb.name:<{width}}  {verb.summary}" for verb in verbs]
    lines += ["", "Try:"]
    lines += [f"  {verb.example}" for verb in verbs_by_name().values()]
    lines += [
        "",
        "`twintape VERB --help` explains a verb, `twintape --version` says which release this is.",
        "TWINTAPE_DEBUG=1 shows where an error came from.",
    ]
    return "\n".join(lines)


def build_parser(verb: Verb, module: VerbModule) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"twintape {verb.name}",
        description=verb.summary[0].upper() + verb.summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    return parser


def _complain(who: str, text: str) -> None:
    sys.stderr.write(f"{who}: {text}\n")


def _unknown(word: str) -> int:
    from difflib import get_close_matches

    names = verbs_by_name()
    nearest = get_close_matches(word, names, n=1, cutoff=0.5)
    advice = f"did you mean '{nearest[0]}'?" if nearest else f"the verbs are {', '.join(names)}."
    _complain("twintape", f"there is no verb '{word}': {advice}")
    return EXIT_USAGE


def _one_line(error: BaseException) -> str | None:
    """Return what to tell a person about an error that is not our bug, else None."""
    from feeds.errors import TwintapeError

    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    if isinstance(error, TwintapeError):
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _run_verb(verb: Verb, words: Sequence[str]) -> int:
    module = load(verb)
    args = build_parser(verb, module).parse_args(words)
    status = module.run(args)
    sys.stdout.flush()  # here, where a closed pipe is still ours to handle, not at interpreter exit
    return status


def _is_reader_gone() -> bool:
    """Return whether nobody reads our output any more (and not some other pipe or socket that broke)."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _run_guarded(verb: Verb, words: Sequence[str]) -> int:
    """Run a verb; turn what a person can mend into one line and an exit status."""
    try:
        return _run_verb(verb, words)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():
            # Python flushes stdout once more at exit, so give what is left a place to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_BROKEN_PIPE
        text = _one_line(error)
        if text is None or os.environ.get("TWINTAPE_DEBUG", "") not in ("", "0"):
            raise
        _complain(f"twintape {verb.name}", text)
        return EXIT_FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0 done, 1 failed, 2 asked wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(help_text())
        return EXIT_OK
    first = words[0]
    if first == "--version":
        print(f"twintape {__version__}")
        return EXIT_OK
    if first.startswith("-"):
        _complain("twintape", f"unknown option '{first}': the verb comes first, see twintape --help")
        return EXIT_USAGE
    verb = verbs_by_name().get(first)
    return _unknown(first) if verb is None else _run_guarded(verb, words[1:])
