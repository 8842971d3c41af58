"""How we measure: rounds, pinned cores, peers in C, and the memory of a child.

Figures of one machine drift (heat, neighbours, clocks), so systems that are compared take turns within
one run: round by round, in alternating order. A figure is the median of its rounds; its spread is the
distance between the quartiles as a share of the median, so 0.06 means that the middle half of the rounds
lay within 6 %.
"""

import atexit
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf.histogram import Histogram, merged
from perf.report import BenchError, Result
from twintape.machine import find_c_compiler

COMPILE_SECONDS_MAX = 120
TIMES = ("latency_ns", "lateness_ns")  # what a sample may tell of every single message


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round of one case measured.

    `checksum` is over what was received or produced: nobody gets faster by doing less. It must be the
    same in every round. Times of single messages are given whole: their percentiles are those of all rounds
    together, and the spread tells how far the rounds' own percentiles lay apart.
    """

    metrics: Mapping[str, float]
    checksum: int | str = 0
    latency_ns: NDArray[np.int64] | None = None
    lateness_ns: NDArray[np.int64] | None = None  # of an open-loop sender behind its schedule


@dataclass(frozen=True, slots=True)
class Case:
    """One system doing one thing; `run` does it once and says what it measured."""

    system: str
    name: str
    run: Callable[[], Sample]


class Rounds:
    """What all rounds of all cases measured, after the warm-up."""

    def __init__(self, cases: Sequence[Case], samples: Sequence[Sequence[Sample]]) -> None:
        self._cases = cases
        self._samples = samples
        # By case and family of times: the histogram of each round.
        self._histograms = [
            {
                family: [
                    Histogram(times) for sample in taken if (times := getattr(sample, family)) is not None
                ]
                for family in TIMES
            }
            for taken in samples
        ]

    def results(self) -> list[Result]:
        """Return the median of every metric, and the percentiles of all rounds' times together."""
        return [
            Result(case.system, case.name, metric, value, median_and_spread(by_round)[1])
            for index, case in enumerate(self._cases)
            for metric, (value, by_round) in self._figures(index).items()
        ]

    def by_round(self, system: str, name: str, metric: str) -> list[float]:
        """Return one figure as each round found it."""
        for index, case in enumerate(self._cases):
            if (case.system, case.name) == (system, name) and metric in (figures := self._figures(index)):
                return figures[metric][1]
        raise BenchError(f"no round measured {system} / {name} / {metric}")

    def ratio(self, upper: tuple[str, str, str], lower: tuple[str, str, str]) -> float:
        """Return how many times `lower` is in `upper`: the median of what the rounds say.

        A machine's speed may change within a run (a host moves its guests' cores, and with them the way
        between two of them). What was measured in one round was measured within seconds.
        """
        pairs = zip(self.by_round(*upper), self.by_round(*lower), strict=True)
        return float(np.median([above / below for above, below in pairs]))

    def _figures(self, index: int) -> dict[str, tuple[float, list[float]]]:
        """Return each metric of a case: its value, and what each round found."""
        taken = self._samples[index]
        figures: dict[str, tuple[float, list[float]]] = {}
        for metric in taken[0].metrics:
            by_round = [sample.metrics[metric] for sample in taken]
            figures[metric] = (median_and_spread(by_round)[0], by_round)
        for family, rounds in self._histograms[index].items():
            if rounds:
                each = [one.metrics(family) for one in rounds]
                for metric, value in merged(rounds).metrics(family).items():
                    figures[metric] = (value, [one[metric] for one in each])
        return figures


def interleave(cases: Sequence[Case], rounds: int, warm_up_rounds: int = 1) -> list[Result]:
    """Run all cases in turn, `rounds` times after the warm-up; return median and spread of each metric."""
    return measure_rounds(cases, rounds, warm_up_rounds).results()


def measure_rounds(cases: Sequence[Case], rounds: int, warm_up_rounds: int = 1) -> Rounds:
    """Run all cases in turn, `rounds` times after the warm-up."""
    if rounds < 1 or warm_up_rounds < 0:
        raise BenchError(f"rounds must be >= 1 and warm-up rounds >= 0, were {rounds} and {warm_up_rounds}")
    samples: list[list[Sample]] = [[] for _ in cases]
    for round_index in range(warm_up_rounds + rounds):
        order = range(len(cases))
        for case_index in order if round_index % 2 == 0 else reversed(order):
            sample = cases[case_index].run()
            _check_alike(cases[case_index], samples[case_index], sample)
            samples[case_index].append(sample)
    return Rounds(cases, [taken[warm_up_rounds:] for taken in samples])


def _check_alike(case: Case, earlier: Sequence[Sample], sample: Sample) -> None:
    where = f"{case.system} / {case.name}"
    if not sample.metrics and all(getattr(sample, family) is None for family in TIMES):
        raise BenchError(f"{where} measured nothing")
    if not earlier:
        return
    first = earlier[0]
    if sample.checksum != first.checksum:
        raise BenchError(f"{where}: the checksum was {first.checksum} first and {sample.checksum} now")
    for family in TIMES:
        if (getattr(sample, family) is None) != (getattr(first, family) is None):
            raise BenchError(f"{where}: measured {family} in one round and not in another")
    if sample.metrics.keys() != first.metrics.keys():
        raise BenchError(f"{where}: measured {sorted(first.metrics)} first and {sorted(sample.metrics)} now")


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and (p75 - p25) / |median|: 0 for a single value or a median of 0."""
    low, middle, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
    return middle, (high - low) / abs(middle) if middle else 0.0


# --- cores -----------------------------------------------------------------------------------------


@contextmanager
def pinned(core_index: int) -> Iterator[int]:
    """Keep this thread on one core: the `core_index`-th of those we may use. Yields its number."""
    allowed = os.sched_getaffinity(0)
    if not 0 <= core_index < len(allowed):
        raise BenchError(
            f"core index must be 0 to {len(allowed) - 1}, the cores we may use, was {core_index}"
        )
    core = sorted(allowed)[core_index]
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, allowed)


# --- peers and limits written in C -----------------------------------------------------------------

_compiled: dict[str, Path] = {}


@functools.cache
def _private_directory() -> Path:
    """Return this process's directory for programs it compiled; nobody else may write there."""
    directory = Path(tempfile.mkdtemp(prefix="twintape-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def compile_c(source: str | Path, *, flags: Sequence[str] = (), shared: bool = False) -> Path:
    """Compile one C file (a path, or the text itself) with -O2; return the program or shared library.

    The same source and flags are compiled once in a process.
    """
    compiler = find_c_compiler()
    if compiler is None:
        raise BenchError(
            "no C compiler: install gcc (Debian: apt-get install gcc libc6-dev), or name one with CC"
        )
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    words = [compiler, "-O2", "-Wall", *(["-shared", "-fPIC"] if shared else []), *flags]
    key = hashlib.blake2b("\0".join([*words, text]).encode(), digest_size=10).hexdigest()
    if key not in _compiled:
        output = _private_directory() / (f"{key}.so" if shared else key)
        source_file = _private_directory() / f"{key}.c"
        source_file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*words, "-o", str(output), str(source_file)],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            name = source if isinstance(source, Path) else "C source"
            raise BenchError(f"{compiler} refuses {name}: {done.stderr.strip()[:2_000]}")
        _compiled[key] = output
    return _compiled[key]


# --- children --------------------------------------------------------------------------------------

# A process's peak memory counts from before its exec, when it was still a copy of its parent, and we may be
# large. So a small interpreter starts the program and asks for the peak of *its* children.
_LAUNCHER = """
import json, os, resource, subprocess, sys
status = subprocess.run(sys.argv[2:]).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
os.write(int(sys.argv[1]), json.dumps([status, peak]).encode())
"""


class ChildRun(NamedTuple):
    """A finished child: what it printed, how long it took, and the most memory it held.

    The peak cannot be told below that of the small interpreter which starts it, about 10 MB.
    """

    output: bytes
    seconds: float
    peak_rss_bytes: int


def run_child(
    words: Sequence[str], *, seconds_max: float, environment: Mapping[str, str] | None = None
) -> ChildRun:
    """Run a program to its end and measure its memory; a failing or overlong one is an error."""
    reader, writer = os.pipe()
    started = time.perf_counter()
    with os.fdopen(reader, "rb") as told:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writer), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if environment is None else {**os.environ, **environment},
                pass_fds=(writer,),
                start_new_session=True,  # so that the launcher and the program can be ended together
            )
        finally:
            os.close(writer)
        with process:
            try:
                output, errors = process.communicate(timeout=seconds_max)
            except BaseException as reason:
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(reason, subprocess.TimeoutExpired):
                    raise BenchError(f"{words[0]} did not end within {seconds_max:g} s") from None
                raise
        seconds = time.perf_counter() - started
        answer = told.read()
    if process.returncode != 0 or not answer:
        raise BenchError(f"{words[0]} could not be run: {_last_line(errors)}")
    status, peak_rss_bytes = json.loads(answer)
    if status != 0:
        raise BenchError(f"{words[0]} ended with status {status}: {_last_line(errors)}")
    return ChildRun(output, seconds, peak_rss_bytes)


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
