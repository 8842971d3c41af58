"""`twintape demo` as a person runs it, and what it says when something is wrong."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from feeds.book.books import Top
from feeds.errors import ConfigError, FeedError
from twintape.demo_scenario import Check, DemoOptions, DemoState, LineState, Outcome, Scenario
from twintape.demo_view import plain_line, render, summary_lines

SHORT = DemoOptions(seconds=1.5, rate=20_000)
STATE = DemoState(
    seconds=3.0,
    seconds_planned=15.0,
    sent=150_000,
    delivered=149_000,
    messages_per_second=50_123.0,
    lines=[
        LineState("A", 140_000, 9_000, 80_000, 60_000, 12),
        LineState("B", 141_000, 8_000, 68_500, 72_500, 13),
    ],
    holes_open=2,
    holes_opened=40,
    holes_filled=38,
    asked_again=500,
    lost=0,
    open_orders=7_777,
    tops={"QQQ": Top(52_640_000_000, 300, 2, 0, 0, 0)},
)


def run_demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "twintape", "demo", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_demo_delivers_everything_and_proves_it() -> None:
    done = run_demo("--seconds", "2", "--rate", "20000", "--loss", "0.1", "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "The exchange sent 40,000 messages" in done.stdout
    assert "Delivered 40,000 messages in order, each once; 0 lost." in done.stdout
    assert done.stdout.count("  yes  ") == 4
    assert "NO" not in done.stdout


def test_on_a_terminal_the_demo_shows_a_live_page() -> None:
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "twintape", "demo", "--seconds", "1.5", "--rate", "20000"],
        stdout=side,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(side)
    shown = b""
    try:
        while chunk := _read(terminal):
            shown += chunk
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)
    page = shown.decode()
    assert "two lines, neither whole" in page
    assert "AAPL" in page
    assert page.count("  yes  ") == 4


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""  # Linux says so when the other side is closed


def run_to_the_end(scenario: Scenario) -> None:
    while not scenario.is_over:
        scenario.step()


def test_a_byte_too_much_is_no_proof() -> None:
    with Scenario(SHORT) as scenario:
        run_to_the_end(scenario)
        scenario._digest.update(b"!")
        outcome = scenario.finish()
    assert not outcome.is_proved
    assert [check.name for check in outcome.checks if not check.holds] == [
        "every byte as sent, in order, once"
    ]


def test_an_exchange_that_dies_is_reported_and_not_waited_for() -> None:
    with Scenario(replace(SHORT, seconds=60.0)) as scenario:
        while scenario.state().delivered < 1_000:
            scenario.step()
        scenario._exchange._process.kill()
        with pytest.raises(FeedError, match="the session has not ended; the exchange is dead"):
            run_to_the_end(scenario)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": 0.0}, "seconds must be in 1 to 3600, was 0"),
        ({"rate": 1.0}, "rate must be in 1000 to 500000 messages per second, was 1"),
        ({"loss": 0.9}, "loss must be in 0 to 0.5, was 0.9"),
    ],
)
def test_a_demo_that_cannot_be_is_refused(changes: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(SHORT, **changes)  # type: ignore[arg-type]  # no change here is of the seed


def test_the_page_and_the_line_show_the_state() -> None:
    page = io.StringIO()
    Console(file=page, width=100).print(render(STATE))
    for word in ("50,123", "149,000", "9,000 (6.0%)", "54%", "7,777 open orders", "52.64", "QQQ"):
        assert word in page.getvalue()
    assert "delivered    149,000" in plain_line(STATE)


def test_the_summary_tells_both_sides_and_what_failed() -> None:
    counts = {"dropped_packets": 10, "dropped_messages": 90, "duplicated_packets": 3, "reordered_packets": 4}
    exchange = {
        "message_count": 150_000,
        "sessions": [{"lost_everywhere": 7}],
        "lines": {"a": counts, "b": counts},
    }
    checks = [Check("all there", True, "yes"), Check("all equal", False, "one differs")]
    text = "\n".join(summary_lines(Outcome(STATE, exchange, checks)))
    assert "166 messages that one line lost were on the other" in text
    assert "7 were lost on both" in text
    assert "NO   all equal: one differs" in text
