"""Draws a report: horizontal bars per metric, latency percentiles on a log axis, the bars to clear."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perf.report import Bar, BenchError, Report, Result, Stamp, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")

_PERCENTILE = re.compile(r"(?P<family>\w+_ns)_(?P<point>p\d+|max)")
_WIDTH_INCHES = 10.0
_ROW_INCHES = 0.36
_OURS, _LIMIT, _PEERS = (
    "#1f6feb",
    "#8c8c8c",
    ("#e3872d", "#3c9d6b", "#a45ac6", "#c7506b", "#7a6a4f", "#4aa3b5"),
)
_MARKERS = "osD^vPX*"
_BAR_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)
_HOLDS, _MISSED = "#3c9d6b", "#c7382f"


class Panel(NamedTuple):
    """Figures drawn on one pair of axes. `is_latency`: percentiles as lines, else bars."""

    title: str
    results: list[Result]
    is_latency: bool


def panels_of(results: Sequence[Result]) -> list[Panel]:
    """Group figures into panels: one for each latency family, one for each other metric, in report order."""
    grouped: dict[tuple[str, bool], list[Result]] = {}
    for result in results:
        match = _PERCENTILE.fullmatch(result.metric)
        key = (match["family"], True) if match else (result.metric, False)
        grouped.setdefault(key, []).append(result)
    return [Panel(title, members, is_latency) for (title, is_latency), members in grouped.items()]


def percentile_order(metric: str) -> float:
    """Return where a percentile stands: p50 is 50, p999 is 99.9, max is 100."""
    match = _PERCENTILE.fullmatch(metric)
    assert match is not None, metric
    if match["point"] == "max":
        return 100.0
    digits = match["point"][1:]
    return float(digits) if len(digits) <= 2 else float(f"{digits[:2]}.{digits[2:]}")


def colours_of(results: Sequence[Result]) -> dict[str, str]:
    """Give every system one colour throughout the picture: ours blue, the limit grey, peers in turn."""
    peers = [
        name
        for name in dict.fromkeys(result.system for result in results)
        if name not in ("twintape", "limit")
    ]
    colours = {name: _PEERS[index % len(_PEERS)] for index, name in enumerate(peers)}
    return {"twintape": _OURS, "limit": _LIMIT, **colours}


def check_suffix(suffix: str) -> None:
    if suffix not in SUFFIXES:
        raise BenchError(f"a picture's name must end in {', '.join(SUFFIXES)}, was {suffix!r}")


def draw(report: Report, stamped: Stamp, suffix: str) -> bytes:
    """Return the picture as a file's content, in the format that its suffix names."""
    check_suffix(suffix)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = panels_of(report.results)
    colours = colours_of(report.results)
    rows = [10 if panel.is_latency else len(panel.results) + 2 for panel in panels]
    if report.bars:
        rows.append(len(report.bars) + 2)
    figure = Figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * sum(rows) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for panel, axis in zip(panels, axes, strict=False):
        if panel.is_latency:
            _draw_latency(axis, panel, colours)
        else:
            _draw_metric(axis, panel, colours)
    if report.bars:
        _draw_bars(axes[-1], report.bars)
    facts = stamped.machine
    commit = stamped.commit + (" with changes" if stamped.dirty else "")
    figure.suptitle(
        f"twintape bench {stamped.bench}\n"
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, numba {facts['numba']}, "
        f"commit {commit}, {stamped.started_at}",
        fontsize=9,
    )
    content = io.BytesIO()
    figure.savefig(content, format=suffix[1:], dpi=130)
    return content.getvalue()


def _label(result: Result) -> str:
    return f"{result.system}: {result.case}"


def _draw_metric(axis: "Axes", panel: Panel, colours: dict[str, str]) -> None:
    results = panel.results[::-1]  # the first figure on top
    values = [result.value for result in results]
    quartiles = [result.value * result.spread / 2 for result in results]
    axis.barh(
        [_label(result) for result in results],
        values,
        xerr=quartiles,
        color=[colours[result.system] for result in results],
        error_kw={"elinewidth": 1, "capsize": 2},
        height=0.7,
    )
    top = max((abs(value) for value in values), default=1) or 1
    for row, (result, quartile) in enumerate(zip(results, quartiles, strict=True)):
        axis.text(result.value + quartile + top * 0.01, row, readable(result.value), va="center", fontsize=8)
    axis.set_xlim(0, top * 1.15)
    axis.xaxis.set_major_formatter(lambda value, _position: readable(value))
    _finish(axis, panel.title)


def _draw_latency(axis: "Axes", panel: Panel, colours: dict[str, str]) -> None:
    metrics = sorted({result.metric for result in panel.results}, key=percentile_order)
    labels = [metric.rpartition("_")[2] for metric in metrics]
    lines = list(dict.fromkeys((result.system, result.case) for result in panel.results))
    styles = {"twintape": "-", "limit": ":"}
    for index_of_line, (system, case) in enumerate(lines):
        values = {
            result.metric: result.value
            for result in panel.results
            if (result.system, result.case) == (system, case)
        }
        points = [index for index, metric in enumerate(metrics) if metric in values]
        axis.plot(
            points,
            [values[metrics[index]] for index in points],
            marker=_MARKERS[index_of_line % len(_MARKERS)],
            markersize=5,
            linestyle=styles.get(system, "--"),
            color=colours[system],
            label=f"{system}: {case}",
        )
    axis.set_yscale("log")
    axis.set_xticks(range(len(metrics)), labels)
    axis.set_ylabel("ns")
    axis.grid(visible=True, which="both", axis="y", alpha=0.25)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    _finish(axis, panel.title)


def _draw_bars(axis: "Axes", bars: Sequence[Bar]) -> None:
    """Draw each bar's value as a share of its limit, so that all limits are one line."""
    shown = bars[::-1]
    shares = [max(bar.value / bar.limit, 1e-3) for bar in shown]
    axis.barh(
        [bar.name for bar in shown],
        shares,
        color=[_HOLDS if bar.holds else _MISSED for bar in shown],
        height=0.6,
    )
    for row, (bar, share) in enumerate(zip(shown, shares, strict=True)):
        told = f"{bar.value:.3g}, {'at most' if bar.at_most is not None else 'at least'} {bar.limit:.3g}"
        axis.text(max(share, 1.0) * 1.04, row, told, va="center", fontsize=8)
    axis.axvline(1.0, color="black", linewidth=1.2)
    axis.set_xscale("log")
    axis.set_xticks(_BAR_TICKS, [f"{tick:g}" for tick in _BAR_TICKS])
    axis.set_xticks([], minor=True)
    axis.set_xlim(min(0.5, *shares) / 1.5, max(2.0, *shares) * 4)  # after the ticks, which widen it
    _finish(axis, "bars: value / limit (black line), green holds, red is missed")


def _finish(axis: "Axes", title: str) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
