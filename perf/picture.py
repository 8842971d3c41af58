"""Draws a report: bars for each metric, latency by percentile on two log axes, curves, the bars to clear.

Percentiles stand at 1 / (1 - p), so p99 to p99.9 is as wide as p90 to p99: what matters is the tail.
"""

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perf.report import (
    Bar,
    BenchError,
    Curve,
    Report,
    Result,
    Stamp,
    percentile_of,
    percentile_order,
    readable,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")

_WIDTH_INCHES = 12.0
_ROW_INCHES = 0.36
_NOTE_COLUMNS = 150
_OURS, _LIMIT, _PEERS = (
    "#1f6feb",
    "#8c8c8c",
    ("#e3872d", "#3c9d6b", "#a45ac6", "#c7506b", "#7a6a4f", "#4aa3b5"),
)
_MARKERS = "osD^vPX*"
_STYLES = {"twintape": "-", "limit": ":"}
_BAR_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100)
_HOLDS, _MISSED = "#3c9d6b", "#c7382f"


class Panel(NamedTuple):
    """Figures drawn on one pair of axes: percentiles as lines, a curve of its own, else bars."""

    title: str
    results: list[Result]
    is_latency: bool
    curve: Curve | None = None


def panels_of(results: Sequence[Result], curves: Sequence[Curve] = ()) -> list[Panel]:
    """Group figures into panels: one for each latency family, curve and other metric, in report order."""
    grouped: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        percentile = percentile_of(result.metric)
        on_curve = next((i for i, curve in enumerate(curves) if _is_on(result, curve)), None)
        if on_curve is not None:
            key: tuple[str, int] = (f"{result.metric} by {curves[on_curve].x_label}", -1 - on_curve)
        else:
            key = (percentile[0], 1) if percentile else (result.metric, 0)
        grouped.setdefault(key, []).append(result)
    return [
        Panel(title, members, kind == 1, curves[-1 - kind] if kind < 0 else None)
        for (title, kind), members in grouped.items()
    ]


def _is_on(result: Result, curve: Curve) -> bool:
    return result.metric == curve.metric and result.case in curve.points


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

    panels = panels_of(report.results, report.curves)
    colours = colours_of(report.results)
    rows = [_row_count(panel) for panel in panels]
    if report.bars:
        rows.append(len(report.bars) + 2)
    notes = [line for note in report.notes for line in textwrap.wrap(note, _NOTE_COLUMNS)]
    if notes:
        rows.append(max(len(notes) // 2, 1))
    figure = Figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * sum(rows) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for panel, axis in zip(panels, axes, strict=False):
        if panel.is_latency:
            _draw_latency(axis, panel, colours)
        elif panel.curve is not None:
            _draw_curve(axis, panel, panel.curve, colours)
        else:
            _draw_metric(axis, panel, colours)
    if report.bars:
        _draw_bars(axes[len(panels)], report.bars)
    if notes:
        axes[-1].axis("off")
        axes[-1].text(0, 1, "\n".join(notes), va="top", fontsize=8, transform=axes[-1].transAxes)
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


def _row_count(panel: Panel) -> int:
    """Return how high a panel is, in rows."""
    if panel.is_latency:
        return 10
    return 7 if panel.curve is not None else len(panel.results) + 2


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
    top = (
        max((abs(result.value) + quartile for result, quartile in zip(results, quartiles, strict=True))) or 1
    )
    for row, (result, quartile) in enumerate(zip(results, quartiles, strict=True)):
        axis.text(result.value + quartile + top * 0.01, row, readable(result.value), va="center", fontsize=8)
    axis.set_xlim(0, top * 1.15)
    axis.xaxis.set_major_formatter(lambda value, _position: readable(value))
    _finish(axis, panel.title)


def _draw_latency(axis: "Axes", panel: Panel, colours: dict[str, str]) -> None:
    points = sorted({_point_of(result) for result in panel.results}, key=percentile_order)
    places = {point: _tail_place(point, index) for index, point in enumerate(points)}
    lines = list(dict.fromkeys((result.system, result.case) for result in panel.results))
    for line_index, (system, case) in enumerate(lines):
        values = {
            _point_of(result): max(result.value, 1.0)  # a log axis has no zero
            for result in panel.results
            if (result.system, result.case) == (system, case)
        }
        drawn = [point for point in points if point in values]
        axis.plot(
            [places[point] for point in drawn],
            [values[point] for point in drawn],
            marker=_MARKERS[line_index % len(_MARKERS)],
            markersize=5,
            linestyle=_STYLES.get(system, "--"),
            color=colours[system],
            alpha=max(1.0 - 0.22 * [name for name, _ in lines[:line_index]].count(system), 0.3),
            label=f"{system}: {case}",
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([places[point] for point in points], [_point_label(point) for point in points])
    axis.set_xticks([], minor=True)
    axis.set_ylabel("ns")
    axis.grid(visible=True, which="major", axis="both", alpha=0.25)
    _draw_legend(axis)
    _finish(axis, panel.title)


def _point_of(result: Result) -> str:
    percentile = percentile_of(result.metric)
    assert percentile is not None, result.metric
    return percentile[1]


def _tail_place(point: str, index: int) -> float:
    """Return 1 / (1 - p); the maximum stands one step behind the last percentile."""
    return 10.0**index if point == "max" else 100.0 / (100.0 - percentile_order(point))


def _point_label(point: str) -> str:
    return point if point == "max" else f"p{percentile_order(point):g}"


def _draw_curve(axis: "Axes", panel: Panel, curve: Curve, colours: dict[str, str]) -> None:
    for system in dict.fromkeys(result.system for result in panel.results):
        members = sorted(
            (result for result in panel.results if result.system == system),
            key=lambda result: curve.points[result.case],
        )
        axis.errorbar(
            [curve.points[result.case] for result in members],
            [result.value for result in members],
            yerr=[result.value * result.spread / 2 for result in members],
            marker="o",
            markersize=4,
            capsize=2,
            linestyle=_STYLES.get(system, "--"),
            color=colours[system],
            label=system,
        )
    places = sorted(curve.points.values())
    axis.set_xscale("log", base=2)
    axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.set_xticks([], minor=True)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(curve.x_label, fontsize=8)
    axis.yaxis.set_major_formatter(lambda value, _position: readable(value))
    axis.grid(visible=True, which="major", axis="both", alpha=0.25)
    _draw_legend(axis)
    _finish(axis, panel.title)


def _draw_legend(axis: "Axes") -> None:
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))


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
