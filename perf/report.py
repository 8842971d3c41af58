"""What a benchmark reports: figures, the bars they must clear, and where and when they were measured.

A benchmark returns a `Report`; the command stamps it with the machine, the commit and the time, prints it
for people and writes it as JSON for programs. Figures are checked when they are made: a benchmark that
measured nothing, or measured "not a number", fails here and not in the reader's hands.
"""

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from feeds.errors import TwintapeError

ROOT = Path(__file__).resolve().parent.parent

_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PERCENTILE_NAME = re.compile(r"(?P<family>\w+_ns)_(?P<point>p\d+|max)")
_GIT_SECONDS_MAX = 10


class BenchError(TwintapeError):
    """A benchmark, or a peer it compares us with, could not do its work."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure. `quick` is the tiny size that the tests run so that no benchmark rots."""

    quick: bool = False

    def size(self, *, quick: int, full: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: `system` ("twintape", a peer, "limit") doing `case`.

    The metric's name ends in its unit or says it (`messages_per_s`, `latency_ns_p99`, `peak_rss_bytes`).
    `spread` says how far the figure scattered between rounds, as a share of it; see `perf.harness`.
    """

    system: str
    case: str
    metric: str
    value: float
    spread: float

    def __post_init__(self) -> None:
        where = f"{self.system} / {self.case} / {self.metric}"
        if not self.system or not self.case:
            raise BenchError(f"a result must name its system and its case, was {where!r}")
        if not _METRIC_NAME.fullmatch(self.metric):
            raise BenchError(f"{where}: a metric is lower case words joined by '_'")
        if not math.isfinite(self.value):
            raise BenchError(f"{where}: the value must be a finite number, was {self.value}")
        if not (math.isfinite(self.spread) and self.spread >= 0):
            raise BenchError(f"{where}: the spread must be a finite share >= 0, was {self.spread}")


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach: at most, or at least, a limit."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise BenchError(f"bar {self.name}: give one of at_most and at_least")
        if not math.isfinite(self.value) or not math.isfinite(self.limit):
            raise BenchError(
                f"bar {self.name}: value and limit must be finite, were {self.value}, {self.limit}"
            )
        if self.limit <= 0:
            raise BenchError(f"bar {self.name}: the limit must be above 0, was {self.limit}")

    @property
    def limit(self) -> float:
        if self.at_most is not None:
            return self.at_most
        assert self.at_least is not None
        return self.at_least

    @property
    def holds(self) -> bool:
        return self.value <= self.limit if self.at_most is not None else self.value >= self.limit

    def describe(self) -> str:
        """Say what was asked and found, and by how much it was missed: `p50_vs_limit: 5 (at most 4), ...`."""
        direction = "at most" if self.at_most is not None else "at least"
        told = f"{self.name}: {self.value:.4g} ({direction} {self.limit:.4g})"
        if self.holds:
            return f"{told}, holds"
        return f"{told}, MISSED by {abs(self.value - self.limit) / self.limit:.1%}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Figures of one metric as a line: which cases are its points, and where each stands on the x axis."""

    metric: str
    x_label: str
    points: Mapping[str, float]  # by case

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise BenchError(f"curve {self.metric}: a line has two points or more, had {len(self.points)}")


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run of a benchmark found. `notes` are sentences made of the figures, for people."""

    results: Sequence[Result]
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.results:
            raise BenchError("a benchmark must report at least one figure, reported none")
        seen: set[tuple[str, str, str]] = set()
        for result in self.results:
            key = (result.system, result.case, result.metric)
            if key in seen:
                raise BenchError(f"{' / '.join(key)} is reported twice")
            seen.add(key)
        names = [bar.name for bar in self.bars]
        if len(set(names)) != len(names):
            raise BenchError(f"bars must have different names, were {', '.join(names)}")
        for curve in self.curves:
            if not any(
                result.metric == curve.metric and result.case in curve.points for result in self.results
            ):
                raise BenchError(f"curve {curve.metric}: none of its cases was reported")

    def value_of(self, system: str, case: str, metric: str) -> float:
        return value_of(self.results, system, case, metric)

    def missed_bars(self) -> list[Bar]:
        return [bar for bar in self.bars if not bar.holds]


def value_of(results: Sequence[Result], system: str, case: str, metric: str) -> float:
    """Return one figure, for a bar that compares two of them."""
    for result in results:
        if (result.system, result.case, result.metric) == (system, case, metric):
            return result.value
    known = ", ".join(sorted({f"{result.system} / {result.case} / {result.metric}" for result in results}))
    raise BenchError(f"no figure {system} / {case} / {metric}; there are {known}")


# --- where and when --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where, when and of which code a report is. Outside a checkout commit is "unknown", dirty None."""

    bench: str
    commit: str
    dirty: bool | None
    machine: dict[str, str | int]
    started_at: str
    seconds: float


def stamp(bench: str, started_at: datetime, seconds: float) -> Stamp:
    commit, dirty = checkout_state(ROOT)
    moment = started_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Stamp(bench, commit, dirty, machine_facts(), moment, round(seconds, 3))


def checkout_state(directory: Path) -> tuple[str, bool | None]:
    """Return (short commit, whether anything differs from it), or ("unknown", None) outside a checkout."""
    try:
        commit = _git(directory, "rev-parse", "--short=12", "HEAD").strip()
        return commit, bool(_git(directory, "status", "--porcelain").strip())
    except (OSError, subprocess.SubprocessError):
        return "unknown", None


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_SECONDS_MAX,
    )
    return done.stdout


def machine_facts() -> dict[str, str | int]:
    from importlib.metadata import version

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # some architectures name no model


# --- telling ---------------------------------------------------------------------------------------


def as_json(report: Report, stamped: Stamp) -> str:
    bars = [
        {
            "name": bar.name,
            "value": bar.value,
            "at_most" if bar.at_most is not None else "at_least": bar.limit,
            "holds": bar.holds,
        }
        for bar in report.bars
    ]
    whole = {**asdict(stamped), "results": [asdict(result) for result in report.results], "bars": bars}
    if report.notes:
        whole["notes"] = list(report.notes)
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def percentile_of(metric: str) -> tuple[str, str] | None:
    """Return family and point of a percentile, ("latency_ns", "p99") of `latency_ns_p99`; else None."""
    match = _PERCENTILE_NAME.fullmatch(metric)
    return (match["family"], match["point"]) if match else None


def percentile_order(point: str) -> float:
    """Return where a percentile stands: p50 is 50, p999 is 99.9, max is 100."""
    if point == "max":
        return 100.0
    digits = point[1:]
    return float(digits) if len(digits) <= 2 else float(f"{digits[:2]}.{digits[2:]}")


def as_table(report: Report, stamped: Stamp) -> str:
    """Lay the figures out for people, in the order of the report: percentiles of one kind as a block."""
    lines: list[str] = []
    told: set[str] = set()
    for result in report.results:
        percentile = percentile_of(result.metric)
        subject = percentile[0] if percentile else result.metric
        if subject not in told:
            told.add(subject)
            block = _percentile_rows if percentile else _metric_rows
            lines += [*_aligned(block(subject, report.results)), ""]
    facts = stamped.machine
    commit = stamped.commit + (" with changes" if stamped.dirty else "")
    lines += report.notes
    lines += [f"bar {bar.describe()}" for bar in report.bars]
    lines.append(
        f"{stamped.bench}: {stamped.seconds:.1f} s on {facts['cpu']}, {facts['cores']} cores, "
        f"Linux {facts['kernel']}, Python {facts['python']}, numba {facts['numba']}, commit {commit}"
    )
    return "\n".join(lines)


def _metric_rows(metric: str, results: Sequence[Result]) -> list[tuple[str, ...]]:
    members = [result for result in results if result.metric == metric]
    return [
        (metric, "", "value", "spread"),
        *((one.system, one.case, readable(one.value), f"{one.spread:.1%}") for one in members),
    ]


def _percentile_rows(family: str, results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row for each case, one column for each percentile; the spread is that of the first."""
    cells: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        percentile = percentile_of(result.metric)
        if percentile is not None and percentile[0] == family:
            cells.setdefault((result.system, result.case), {})[percentile[1]] = result
    points = sorted({point for found in cells.values() for point in found}, key=percentile_order)
    rows = [(family, "", *points, f"spread of {points[0]}")]
    for (system, case), found in cells.items():
        values = (readable(found[point].value) if point in found else "-" for point in points)
        spread = f"{found[points[0]].spread:.1%}" if points[0] in found else "-"
        rows.append((system, case, *values, spread))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, words to the left and figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def readable(value: float) -> str:
    """Return a figure with the four digits that matter: 12,345,678 as `12.35 M`, 0.01234 as `0.01234`."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {letter}"
    return f"{value:.4g}"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none: readers see the old one until the new one is complete on disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)
