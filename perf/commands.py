"""`twintape bench NAME`: runs one benchmark, tells people and programs, and judges its bars.

A benchmark is a module `perf/bench_<name>.py`, where `_` stands for `-`, with

    DESCRIPTION: str                          one line: what is measured beside what
    run(options: Options) -> Report           does it
"""

import argparse
import pkgutil
import sys
import time
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import perf
from perf.picture import check_suffix, draw
from perf.report import BenchError, Options, Report, Stamp, as_json, as_table, stamp, write_atomically

PREFIX = "bench_"


class Bench(Protocol):
    """What every benchmark's module offers."""

    DESCRIPTION: str

    def run(self, options: Options) -> Report: ...


def bench_names() -> list[str]:
    """Return the names of all benchmarks."""
    modules = (found.name for found in pkgutil.iter_modules(perf.__path__))
    return sorted(name.removeprefix(PREFIX).replace("_", "-") for name in modules if name.startswith(PREFIX))


def load_bench(name: str) -> Bench:
    """Import one benchmark; an unknown name is told the nearest that exists."""
    names = bench_names()
    if name not in names:
        nearest = get_close_matches(name, names, n=1, cutoff=0.5)
        advice = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(names) or 'none'}"
        raise BenchError(f"there is no benchmark '{name}': {advice}")
    return cast("Bench", import_module(f"perf.{PREFIX}{name.replace('-', '_')}"))


def measure(name: str, options: Options) -> tuple[Report, Stamp]:
    """Run one benchmark and say where and when."""
    bench = load_bench(name)
    started_at, started = datetime.now(UTC), time.perf_counter()
    report = bench.run(options)
    return report, stamp(name, started_at, time.perf_counter() - started)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s NAME [--json FILE] [--picture FILE] [--check] [--quick]\n       %(prog)s --list"
    parser.add_argument("name", metavar="NAME", nargs="?", help="which benchmark; see --list")
    parser.add_argument("--list", action="store_true", help="say which benchmarks there are")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to FILE, for programs")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="draw them into FILE (.png, .svg, .pdf)")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a bar does not hold, say by how much"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that figures appear, never judges them"
    )
    parser.set_defaults(refuse=parser.error)


def run(args: argparse.Namespace) -> int:
    if args.list:
        return _list()
    if args.name is None:
        args.refuse(f"name a benchmark: {', '.join(bench_names())}")
    for path in (args.json, args.picture):
        # Now, not after the minutes that a benchmark takes.
        if path is not None and not path.parent.is_dir():
            raise BenchError(f"cannot write {path}: the directory {path.parent} does not exist")
    if args.picture is not None:
        check_suffix(args.picture.suffix)
    report, stamped = measure(args.name, Options(quick=args.quick))
    print(as_table(report, stamped), flush=True)
    if args.quick:
        print("Tiny sizes: this shows that figures appear, and says nothing about how good they are.")
    if args.json is not None:
        write_atomically(args.json, as_json(report, stamped).encode())
    if args.picture is not None:
        write_atomically(args.picture, draw(report, stamped, args.picture.suffix))
    return _judge(args.name, report) if args.check and not args.quick else 0


def _list() -> int:
    names = bench_names()
    width = max((len(name) for name in names), default=0)
    for name in names:
        print(f"{name:<{width}}  {load_bench(name).DESCRIPTION}")
    return 0


def _judge(name: str, report: Report) -> int:
    missed = report.missed_bars()
    for bar in missed:
        sys.stderr.write(f"twintape bench {name}: {bar.describe()}\n")
    return 1 if missed else 0
