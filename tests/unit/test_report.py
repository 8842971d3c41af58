"""Benchmark reports: figures are checked, told to people and programs, and judged by their bars."""

import argparse
import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import perf
from perf import commands, harness, picture
from perf.report import (
    Bar,
    BenchError,
    Curve,
    Options,
    Report,
    Result,
    Stamp,
    as_json,
    as_table,
    checkout_state,
    percentile_order,
    readable,
    stamp,
    value_of,
    write_atomically,
)

FAST = Result("twintape", "decode", "messages_per_s", 30e6, 0.02)
SLOW = Result("itchfeed", "decode", "messages_per_s", 0.7e6, 0.05)
P50 = Result("twintape", "compiled handler", "latency_ns_p50", 190.0, 0.06)
P999 = Result("twintape", "compiled handler", "latency_ns_p999", 2_000.0, 0.1)


def some_stamp() -> Stamp:
    return stamp("probe", datetime(2026, 1, 1, tzinfo=UTC), 41.25)


def test_json_has_the_documented_shape() -> None:
    report = Report([FAST, SLOW], [Bar("vs_python", 42.8, at_least=30.0), Bar("p50", 5.0, at_most=4.0)])
    told = json.loads(as_json(report, some_stamp()))
    assert list(told) == ["bench", "commit", "dirty", "machine", "started_at", "seconds", "results", "bars"]
    assert told["bench"] == "probe"
    assert told["started_at"] == "2026-01-01T00:00:00Z"
    assert told["seconds"] == 41.25
    assert told["machine"].keys() >= {"cpu", "cores", "kernel", "python", "numba"}
    assert told["results"][0] == {
        "system": "twintape", "case": "decode", "metric": "messages_per_s", "value": 30e6, "spread": 0.02
    }  # fmt: skip
    assert told["bars"] == [
        {"name": "vs_python", "value": 42.8, "at_least": 30.0, "holds": True},
        {"name": "p50", "value": 5.0, "at_most": 4.0, "holds": False},
    ]


def test_table_tells_every_figure_and_every_bar() -> None:
    report = Report([FAST, SLOW, P50], [Bar("p50", 5.0, at_most=4.0)])
    table = as_table(report, some_stamp())
    for word in ("messages_per_s", "30 M", "700 k", "latency_ns", "p50", "190", "MISSED by 25.0%"):
        assert word in table
    assert table.count("messages_per_s") == 1


def test_table_has_a_row_for_each_case_and_a_column_for_each_percentile() -> None:
    peer = Result("pipe", "send_bytes", "latency_ns_p50", 23_000.0, 0.1)
    lines = as_table(Report([P50, P999, peer]), some_stamp()).splitlines()
    assert lines[0].split() == ["latency_ns", "p50", "p999", "spread", "of", "p50"]
    assert lines[1].split() == ["twintape", "compiled", "handler", "190", "2", "k", "6.0%"]
    assert lines[2].split() == ["pipe", "send_bytes", "23", "k", "-", "10.0%"]


def test_notes_are_told_to_people_and_programs() -> None:
    report = Report([FAST], notes=["readers: the limit is their one core"])
    assert "readers: the limit is their one core" in as_table(report, some_stamp()).splitlines()
    assert json.loads(as_json(report, some_stamp()))["notes"] == ["readers: the limit is their one core"]
    assert "notes" not in json.loads(as_json(Report([FAST]), some_stamp()))


@pytest.mark.parametrize(
    ("value", "text"), [(12_345_678, "12.35 M"), (61, "61"), (0.01234, "0.01234"), (0, "0")]
)
def test_figures_are_shown_with_the_digits_that_matter(value: float, text: str) -> None:
    assert readable(value) == text


@pytest.mark.parametrize(
    ("bar", "holds"),
    [
        (Bar("b", 4.0, at_most=4.0), True),
        (Bar("b", 4.1, at_most=4.0), False),
        (Bar("b", 30.0, at_least=30.0), True),
        (Bar("b", 29.9, at_least=30.0), False),
    ],
)
def test_a_bar_holds_up_to_and_including_its_limit(bar: Bar, holds: bool) -> None:
    assert bar.holds is holds


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Result("twintape", "decode", "messages_per_s", math.nan, 0.0),
        lambda: Result("twintape", "decode", "messages_per_s", math.inf, 0.0),
        lambda: Result("twintape", "decode", "messages_per_s", 1.0, -0.1),
        lambda: Result("twintape", "decode", "Messages per s", 1.0, 0.0),
        lambda: Result("", "decode", "messages_per_s", 1.0, 0.0),
        lambda: Bar("b", 1.0),
        lambda: Bar("b", 1.0, at_most=1.0, at_least=1.0),
        lambda: Bar("b", math.nan, at_most=1.0),
        lambda: Report([]),
        lambda: Report([FAST, FAST]),
        lambda: Report([FAST], [Bar("b", 1.0, at_most=1.0), Bar("b", 2.0, at_most=1.0)]),
        lambda: Curve("messages_per_s", "readers", {"decode": 1.0}),
        lambda: Report([FAST], curves=[Curve("messages_per_s", "readers", {"1 reader": 1, "2 readers": 2})]),
    ],
)
def test_figures_that_say_nothing_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(BenchError):
        wrong()


def test_unknown_figure_is_told_which_there_are() -> None:
    assert value_of([FAST], "twintape", "decode", "messages_per_s") == 30e6
    with pytest.raises(BenchError, match="there are twintape / decode / messages_per_s"):
        value_of([FAST], "twintape", "decoding", "messages_per_s")


def test_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    write_atomically(target, b"old")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    with pytest.raises(BenchError, match="cannot write"):
        write_atomically(tmp_path / "no" / "figures.json", b"x")
    (tmp_path / "directory").mkdir()
    with pytest.raises(BenchError, match="cannot write"):
        write_atomically(tmp_path / "directory", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "figures.json"]


def test_commit_and_changes_come_from_the_checkout(tmp_path: Path) -> None:
    assert checkout_state(tmp_path) == ("unknown", None)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit, dirty = checkout_state(tmp_path)
    assert len(commit) == 12
    assert dirty is False
    (tmp_path / "new").touch()
    assert checkout_state(tmp_path) == (commit, True)


# --- the harness -----------------------------------------------------------------------------------


def test_cases_take_turns_and_give_median_and_spread() -> None:
    ran: list[str] = []

    def case(name: str, figures: list[float]) -> harness.Case:
        def run() -> harness.Sample:
            ran.append(name)
            return harness.Sample({"messages_per_s": figures.pop(0)}, checksum=1)

        return harness.Case(name, "decode", run)

    results = harness.interleave([case("a", [99, 1, 2, 3, 4, 5]), case("b", [99, 7, 7, 7, 7, 7])], rounds=5)
    assert "".join(ran) == "abbaabbaabba"
    assert results == [
        Result("a", "decode", "messages_per_s", 3.0, 2 / 3),
        Result("b", "decode", "messages_per_s", 7.0, 0.0),
    ]


def test_case_that_does_other_work_in_another_round_is_refused() -> None:
    checksums = iter([1, 2])
    case = harness.Case("a", "decode", lambda: harness.Sample({"x_per_s": 1.0}, checksum=next(checksums)))
    with pytest.raises(BenchError, match="checksum was 1 first and 2 now"):
        harness.interleave([case], rounds=1)


def test_latencies_of_all_rounds_are_one_histogram_and_the_spread_is_that_of_the_rounds() -> None:
    rounds = iter([np.full(100, 999), np.full(100, 100), np.full(100, 200), np.full(98, 300)])

    def run() -> harness.Sample:
        return harness.Sample({}, 1, latency_ns=next(rounds), lateness_ns=np.zeros(100, np.int64))

    results = harness.interleave([harness.Case("a", "send", run)], rounds=3)
    found = {result.metric: result for result in results}
    assert found["latency_ns_p50"].value == 200
    assert found["latency_ns_p50"].spread == 0.5  # 100, 200, 300: quartiles 150 and 250
    assert (found["latency_ns_p90"].value, found["latency_ns_max"].value) == (300, 300)
    assert found["lateness_ns_max"].value == 1  # below which the histogram cannot tell
    assert len(found) == 12


def test_ratio_is_the_median_of_what_rounds_say_and_not_that_of_medians() -> None:
    # The machine became twice as slow in the middle of round three, after a and before b.
    figures = {"a": [10.0, 10.0, 10.0, 20.0, 20.0], "b": [20.0, 20.0, 40.0, 40.0, 40.0]}
    assert np.median(figures["b"]) / np.median(figures["a"]) == 4.0
    latencies = {"a": iter([100, 100, 200]), "b": iter([300, 300, 600])}

    def steady(name: str) -> harness.Case:
        values = iter(figures[name])
        return harness.Case(name, "send", lambda: harness.Sample({"x_ns": next(values)}))

    rounds = harness.measure_rounds([steady("a"), steady("b")], rounds=5, warm_up_rounds=0)
    assert rounds.ratio(("b", "send", "x_ns"), ("a", "send", "x_ns")) == 2.0
    assert rounds.by_round("a", "send", "x_ns") == figures["a"]
    with pytest.raises(BenchError, match="no round measured a / send / y_ns"):
        rounds.by_round("a", "send", "y_ns")

    def timed(name: str) -> harness.Case:
        def run() -> harness.Sample:
            return harness.Sample({}, latency_ns=np.full(10, next(latencies[name])))

        return harness.Case(name, "send", run)

    rounds = harness.measure_rounds([timed("a"), timed("b")], rounds=2, warm_up_rounds=1)
    assert rounds.ratio(("b", "send", "latency_ns_p50"), ("a", "send", "latency_ns_p50")) == 3.0
    assert rounds.by_round("a", "send", "latency_ns_max") == [100, 200]


def test_case_that_measures_latency_only_sometimes_is_refused() -> None:
    rounds = iter([np.ones(1, np.int64), None])
    case = harness.Case("a", "send", lambda: harness.Sample({"x_per_s": 1.0}, latency_ns=next(rounds)))
    with pytest.raises(BenchError, match="measured latency_ns in one round and not in another"):
        harness.interleave([case], rounds=1)
    with pytest.raises(BenchError, match="measured nothing"):
        harness.interleave([harness.Case("a", "send", lambda: harness.Sample({}))], rounds=1)


def test_pinning_ends_with_the_block() -> None:
    before = os.sched_getaffinity(0)
    with harness.pinned(0) as core:
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(BenchError, match="core index must be 0 to"), harness.pinned(10_000):
        pass


def test_c_program_is_compiled_once_and_runs() -> None:
    source = '#include <stdio.h>\nint main(void) { puts("limit"); return 0; }\n'
    program = harness.compile_c(source)
    assert harness.compile_c(source) == program
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"limit\n"
    assert program.parent.stat().st_mode & 0o077 == 0
    with pytest.raises(BenchError, match="refuses"):
        harness.compile_c("int main(void) { return nothing; }\n")


def test_missing_compiler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness, "find_c_compiler", lambda: None)
    with pytest.raises(BenchError, match="no C compiler: install gcc"):
        harness.compile_c("int main(void) { return 0; }")


def test_memory_of_a_child_is_its_own_and_not_ours() -> None:
    ballast = bytearray(200 << 20)  # pages of ours, which must not count
    ballast[::4096] = b"\1" * len(ballast[::4096])
    small = harness.run_child([sys.executable, "-I", "-c", "print('done')"], seconds_max=30)
    large = harness.run_child([sys.executable, "-I", "-c", "print(len(b'1' * (100 << 20)))"], seconds_max=30)
    assert small.output == b"done\n"
    assert small.peak_rss_bytes < 60 << 20
    assert large.peak_rss_bytes - small.peak_rss_bytes >= 90 << 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([sys.executable, "-c", "raise SystemExit('peer broke')"], "ended with status 1: peer broke"),
        (["/no/such/peer"], "could not be run"),
        ([sys.executable, "-c", "while True: pass"], "did not end within 0.2 s"),
    ],
)
def test_peer_that_cannot_run_is_an_error(words: list[str], told: str) -> None:
    with pytest.raises(BenchError, match=told):
        harness.run_child(words, seconds_max=30 if "within" not in told else 0.2)


# --- the picture -----------------------------------------------------------------------------------


def test_latencies_share_a_panel_and_other_metrics_have_their_own() -> None:
    panels = picture.panels_of([FAST, P50, SLOW, P999])
    assert [(panel.title, panel.is_latency, len(panel.results)) for panel in panels] == [
        ("messages_per_s", False, 2),
        ("latency_ns", True, 2),
    ]
    assert [percentile_order(point) for point in ("p50", "p999", "p9999", "max")] == [50, 99.9, 99.99, 100]


def scaling() -> Report:
    results = [
        Result(system, f"{count} readers", "frames_per_s", 1e6 * count, 0.1)
        for system in ("twintape", "limit")
        for count in (2, 4)
    ]
    curve = Curve("frames_per_s", "readers", {"2 readers": 2, "4 readers": 4})
    other = Result("limit", "copy", "frames_per_s", 5e6, 0.0)
    return Report([*results, other, P50], curves=[curve], notes=["readers: what limits them"])


def test_cases_of_a_curve_are_drawn_as_one_and_others_as_bars() -> None:
    report = scaling()
    panels = picture.panels_of(report.results, report.curves)
    assert [(panel.title, panel.curve is not None, len(panel.results)) for panel in panels] == [
        ("frames_per_s by readers", True, 4),
        ("frames_per_s", False, 1),
        ("latency_ns", False, 1),
    ]
    assert picture.draw(report, some_stamp(), ".png").startswith(b"\x89PNG")
    assert b"what limits them" in picture.draw(report, some_stamp(), ".svg")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture_is_drawn_in_the_format_of_its_name(suffix: str, magic: bytes) -> None:
    bars = [Bar("p50_vs_limit", 3.1, at_most=4.0), Bar("decode_vs_copy", 0.1, at_least=0.15)]
    content = picture.draw(Report([FAST, SLOW, P50, P999], bars), some_stamp(), suffix)
    assert content.startswith(magic)


# --- the command -----------------------------------------------------------------------------------


@pytest.fixture
def probe_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark `probe` in a directory of its own; its one bar is missed by half."""
    (tmp_path / "bench_probe.py").write_text(
        "from perf.report import Bar, Options, Report, Result\n"
        "DESCRIPTION = 'a probe'\n"
        "def run(options: Options) -> Report:\n"
        "    size = options.size(quick=1, full=1_000)\n"
        "    figure = Result('twintape', 'probe', 'messages_per_s', size, 0.0)\n"
        "    return Report([figure], [Bar('fast', 0.5, at_least=1.0)])\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(perf, "__path__", [*perf.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "perf.bench_probe", raising=False)
    return perf


def bench(*words: str) -> int:
    parser = argparse.ArgumentParser()
    commands.configure(parser)
    return commands.run(parser.parse_args(words))


def test_check_fails_and_says_by_how_much(
    probe_bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("probe") == 0
    assert bench("probe", "--check") == 1
    assert "fast: 0.5 (at least 1), MISSED by 50.0%" in capsys.readouterr().err


def test_quick_never_judges(probe_bench: ModuleType, tmp_path: Path) -> None:
    assert bench("probe", "--quick", "--check", "--json", str(tmp_path / "f.json")) == 0
    assert json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["results"][0]["value"] == 1


def test_picture_and_figures_are_written(probe_bench: ModuleType, tmp_path: Path) -> None:
    assert bench("probe", "--json", str(tmp_path / "f.json"), "--picture", str(tmp_path / "f.png")) == 0
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["bench"] == "probe"


def test_unknown_bench_suggests_the_nearest(probe_bench: ModuleType) -> None:
    with pytest.raises(BenchError, match="did you mean 'probe'"):
        bench("prob")


@pytest.mark.parametrize(
    ("words", "told"),
    [(("--json", "/no/such/dir/f.json"), "does not exist"), (("--picture", "f.bmp"), "must end in .png")],
)
def test_output_that_cannot_be_written_is_refused_before_measuring(
    words: tuple[str, ...], told: str, probe_bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BenchError, match=told):
        bench("probe", *words)
    assert capsys.readouterr().out == ""


def test_bench_of_two_words_is_written_with_a_dash() -> None:
    assert "shm-scale" in commands.bench_names()
    assert "readers" in commands.load_bench("shm-scale").DESCRIPTION


def test_list_names_every_bench_with_its_description(
    probe_bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--list") == 0
    told = capsys.readouterr().out
    assert "probe" in told
    assert "a probe" in told
    assert all(name in told for name in commands.bench_names())


def test_full_size_is_the_default() -> None:
    assert Options().size(quick=1, full=2) == 2
    assert Options(quick=True).size(quick=1, full=2) == 1
