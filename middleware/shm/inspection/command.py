"""`twintape shm`: what is in a node's shared memory, who uses it and how; removing what nobody uses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from middleware.shm.inspection.report import Report, Row
    from middleware.shm.inspection.table import Line
    from middleware.shm.runtime import Runtime

WATCH_SECONDS = 1.0
KIND_NAMES = ("log", "ring", "slab", "bell")
REMOVABLE_NAMES = ("log", "ring", "slab")  # who uses a bell, nobody can know

EXAMPLES = """\
examples:
  twintape shm ls                                  everything, in a line each
  twintape shm ls --watch                          the same, each second, with rates, until Ctrl-C
  twintape shm inspect XNAS.ITCH                   one log: its writer, each reader, how far behind it is
  twintape shm inspect XNAS.ITCH --frames 5        and its newest five frames
  twintape shm inspect rings/manager-1.in          a ring, where a log has the same name
  twintape shm rm XNAS.ITCH --dry-run              may it go, and what would be removed

Looking takes no seat, leaves nothing behind and slows nobody down. The directory is --runtime, else
TWINTAPE_RUNTIME_DIR, else /dev/shm/twintape-UID.
"""
LS_EXAMPLES = """\
states:
  live          somebody writes (a ring: both ends are there; a slab: somebody takes part)
  ended         the writer has said that nothing more will come
  no writer     nobody writes; a name with 'dead' is who died, the next writer continues there
  no producer, no consumer, unused     of rings and slabs: who is missing
  present       a bell: how often it was rung is all that can be known
  unseen        you may read it, but not see who uses it: ask its owner
  unfinished, unreadable, damaged      the reason is below the table

examples:
  twintape shm ls
  twintape shm ls --watch
  twintape shm ls --json | jq '.items[] | select(.lag_share > 0.5)'
"""
INSPECT_EXAMPLES = """\
A reader's lag is how many published messages it has not read; at the size of the log it is lapped, and
misses what was overwritten. The writer waits, for a bounded time, for readers whose gate says 'waited for'.

The exit status is 1 if it is damaged or cannot be read.

examples:
  twintape shm inspect XNAS.ITCH
  twintape shm inspect logs/XNAS.ITCH --frames 20
  twintape shm inspect XNAS.ITCH --kind log --json
  twintape shm inspect bodies --watch
"""
RM_EXAMPLES = """\
What somebody uses is not removed: the refusal names who. A log's readers count. Bells are not removed.

examples:
  twintape shm rm XNAS.ITCH --dry-run
  twintape shm rm XNAS.ITCH
  twintape shm rm rings/manager-1.in rings/manager-1.out
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--runtime",
        metavar="DIR",
        type=_directory,
        help="the node's runtime directory; else TWINTAPE_RUNTIME_DIR",
    )
    verbs = parser.add_subparsers(dest="shm_verb", metavar="ls|inspect|rm", required=True)

    def add(name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
        return verbs.add_parser(
            name,
            parents=[common],
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    ls = add("ls", "list logs, rings, slabs and bells, a line each", LS_EXAMPLES)
    _add_views(ls)
    one = add("inspect", "tell everything about one log, ring, slab or bell", INSPECT_EXAMPLES)
    one.add_argument("name", metavar="NAME", help="its name, or logs/NAME, rings/NAME, and so on")
    _add_kind(one, KIND_NAMES)
    _add_views(one)
    one.add_argument(
        "--frames", metavar="N", type=int, default=0, help="of a log: show its newest N frames too"
    )
    rm = add("rm", "remove logs, rings and slabs that nobody uses", RM_EXAMPLES)
    rm.add_argument("names", metavar="NAME", nargs="+", help="a name, or logs/NAME, rings/NAME, slabs/NAME")
    _add_kind(rm, REMOVABLE_NAMES)
    rm.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def _directory(word: str) -> Path:
    if not word:  # which would be the current directory, and is more likely a variable that is not set
        raise argparse.ArgumentTypeError("must name a directory, was empty")
    return Path(word)


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--watch", action="store_true", help="again each second until Ctrl-C; with --json, an object per line"
    )


def _add_kind(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    parser.add_argument("--kind", choices=names, help="where a name is that of several kinds")


def run(args: argparse.Namespace) -> int:
    from middleware.shm.inspection.look import insist_runtime
    from middleware.shm.runtime import Runtime, default_path

    runtime = Runtime(args.runtime if args.runtime is not None else default_path())
    # A directory that was named is a mistake if it is not there; the usual one is there once a node is.
    insist_runtime(runtime, is_named=args.runtime is not None)
    if args.shm_verb == "ls":
        return _list(args, runtime)
    return _inspect(args, runtime) if args.shm_verb == "inspect" else _remove(args, runtime)


# --- ls ---


def _list(args: argparse.Namespace, runtime: Runtime) -> int:
    listing = _Listing(runtime, is_watched=args.watch)
    _show(args, listing.as_json if args.json else listing.as_lines)
    return 0


class _Listing:
    """The listing, again and again; how fast things move is the difference of two looks."""

    def __init__(self, runtime: Runtime, *, is_watched: bool) -> None:
        self._runtime = runtime
        self._is_watched = is_watched
        self._progress: dict[tuple[str, str], int] = {}
        self._looked_at_ns = 0

    def _rows(self) -> tuple[list[Row], str]:
        """Return a row for each item, or why there are none."""
        from middleware.shm.errors import NotFound
        from middleware.shm.inspection.look import inspect_all
        from middleware.shm.inspection.report import row_of

        try:
            return [row_of(report) for report in inspect_all(self._runtime)], ""
        except NotFound as error:
            return [], str(error)

    def as_json(self) -> dict[str, Any]:
        from time import time_ns

        rows, _ = self._rows()
        return {"runtime": str(self._runtime.path), "time_ns": time_ns(), "items": rows}

    def as_lines(self, width: int | None) -> list[Line]:
        from middleware.shm.inspection.table import Piece
        from middleware.shm.inspection.text import listing

        rows, problem = self._rows()
        if problem:
            return [(Piece(problem),)]
        return listing(rows, width, self._rates(rows) if self._is_watched else {})

    def _rates(self, rows: list[Row]) -> dict[tuple[str, str], float]:
        from time import monotonic_ns

        now_ns = monotonic_ns()
        progress = {(row.kind, row.name): row.progress for row in rows if row.progress is not None}
        seconds = max((now_ns - self._looked_at_ns) / 1e9, 1e-3)
        # What was made anew meanwhile begins again: its rate is known at the next look.
        rates = {
            key: (number - self._progress[key]) / seconds
            for key, number in progress.items()
            if key in self._progress and number >= self._progress[key]
        }
        self._progress, self._looked_at_ns = progress, now_ns
        return rates


# --- inspect ---


def _inspect(args: argparse.Namespace, runtime: Runtime) -> int:
    from feeds.errors import ConfigError
    from middleware.shm.inspection.logs import newest_frames
    from middleware.shm.inspection.look import find, inspect_one, kind_named
    from middleware.shm.inspection.report import BrokenReport
    from middleware.shm.inspection.table import Piece
    from middleware.shm.inspection.text import frame_lines, frame_records, page

    kind, name = find(runtime, args.name, kind_named(args.kind) if args.kind else None)
    if args.frames and kind.name != "log":
        raise ConfigError(f"--frames is for logs: {name} is a {kind.name}")
    place = runtime.place(kind.directory, name)
    is_broken = False

    def look() -> Report:
        nonlocal is_broken
        report = inspect_one(runtime, kind, name)
        is_broken = isinstance(report, BrokenReport)
        return report

    def as_json() -> dict[str, Any]:
        content: dict[str, Any] = _plain(look())
        if args.frames and not is_broken:
            content["frames"] = list(frame_records(newest_frames(place, args.frames)))
        return content

    def as_lines(width: int | None) -> list[Line]:
        lines = page(look(), width)
        if args.frames and not is_broken:
            frames = newest_frames(place, args.frames)
            lines += [(), *((Piece(line),) for line in frame_lines(frames))]
            lines += [] if len(frames) else [(Piece("no frames"),)]
        return lines

    _show(args, as_json if args.json else as_lines)
    return 1 if is_broken else 0


# --- rm ---


def _remove(args: argparse.Namespace, runtime: Runtime) -> int:
    from middleware.shm.inspection.look import find, kind_named
    from middleware.shm.inspection.removal import REMOVABLE, remove
    from middleware.shm.inspection.table import bytes_text

    wanted = kind_named(args.kind) if args.kind else None
    found = [find(runtime, word, wanted, REMOVABLE) for word in args.names]  # all, before one is removed
    for kind, name in dict.fromkeys(found):  # who names one twice wants it gone once
        removal = remove(runtime, kind, name, is_dry_run=args.dry_run)
        told = "would remove" if args.dry_run else "removed"
        print(f"{told} {removal.kind} {removal.name}: {bytes_text(removal.file_bytes)} in {removal.path}")
    return 0


# --- showing ---


def _show(args: argparse.Namespace, view: Callable[..., Any]) -> None:
    """Print a view once, or each second until Ctrl-C, which is the usual end of watching."""
    if args.watch:
        try:
            _watch(args, view)
        except KeyboardInterrupt:
            return
    elif args.json:
        _print_json(view(), indent=2)
    else:
        _print_lines(view(_terminal_width()))


def _watch(args: argparse.Namespace, view: Callable[..., Any]) -> None:
    import time

    if args.json or not sys.stdout.isatty():
        while True:
            if args.json:
                _print_json(view(), indent=None)
            else:
                _print_lines(view(None))
                print()
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_rich_text(view(live.console.width)), refresh=True)
            time.sleep(WATCH_SECONDS)


def _terminal_width() -> int | None:
    """Return how wide the terminal is; a pipe is as wide as the longest line."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def _print_json(content: Any, indent: int | None) -> None:
    import json

    print(json.dumps(_plain(content), indent=indent))


def _plain(content: Any) -> Any:
    """Return dataclasses and what is in them as what JSON knows."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(content) and not isinstance(content, type):
        return {each.name: _plain(getattr(content, each.name)) for each in fields(content)}
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return content


def _print_lines(lines: list[Line]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_rich_text(lines), soft_wrap=True)
    else:
        from middleware.shm.inspection.table import plain

        print("\n".join(plain(line) for line in lines))


def _rich_text(lines: list[Line]) -> Any:
    from rich.text import Text

    return Text("\n").join(Text.assemble(*((piece.text, piece.style) for piece in line)) for line in lines)
