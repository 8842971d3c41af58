"""`twintape demo`: an exchange with two lossy lines as a real process, and one perfect stream out of them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twintape.demo_scenario import Scenario

_FRAMES_PER_SECOND = 8
_NS_PER_S = 1_000_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A simulated exchange is started as a process of its own and sends ITCH over MoldUDP64 on two UDP\n"
        "lines of this machine. Both lose, double and reorder packets, and cut the same messages into\n"
        "different packets. A line handler makes one stream of them, asks again for what both lost, and\n"
        "builds the books. At the end the exchange's own account is held against what was delivered:\n"
        "the exit status is 1 if they differ."
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of sending; default %(default)g")
    parser.add_argument(
        "--rate", type=float, default=50_000.0, help="messages per second; default %(default)g"
    )
    parser.add_argument(
        "--loss", type=float, default=0.05, help="of packets on each line; default %(default)g"
    )
    parser.add_argument(
        "--seed", type=int, default=7, help="another seed is another day; default %(default)s"
    )
    parser.add_argument("--plain", action="store_true", help="lines of text instead of the live page")


def run(args: argparse.Namespace) -> int:
    from twintape.demo_scenario import DemoOptions, Scenario
    from twintape.demo_view import summary_lines

    options = DemoOptions(args.seconds, args.rate, args.loss, args.seed)
    is_live = sys.stdout.isatty() and not args.plain
    print("starting the exchange ...", flush=True)
    with Scenario(options) as scenario:
        (_watch_live if is_live else _watch_plainly)(scenario)
        outcome = scenario.finish()
    print("\n".join(summary_lines(outcome)), flush=True)
    return 0 if outcome.is_proved else 1


def _watch_live(scenario: Scenario) -> None:
    """Show the page until the session is over."""
    from time import monotonic_ns

    from rich.live import Live

    from twintape.demo_view import render

    # Drawn by this loop and not by a thread of its own, so that a state is never half new.
    with Live(render(scenario.state()), auto_refresh=False) as live:
        drawn_ns = monotonic_ns()
        while not scenario.is_over:
            scenario.step()
            if monotonic_ns() - drawn_ns >= _NS_PER_S // _FRAMES_PER_SECOND:
                live.update(render(scenario.state()), refresh=True)
                drawn_ns = monotonic_ns()
        live.update(render(scenario.state()), refresh=True)


def _watch_plainly(scenario: Scenario) -> None:
    """Print a line each second until the session is over."""
    from time import monotonic_ns

    from twintape.demo_view import plain_line

    told_ns = monotonic_ns()
    while not scenario.is_over:
        scenario.step()
        if monotonic_ns() - told_ns >= _NS_PER_S:
            print(plain_line(scenario.state()), flush=True)
            told_ns = monotonic_ns()
