"""`twintape exchange`: the simulated exchange as a process, or a recorded file played as if it were live."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeds.exchange.config import ExchangeConfig, LineTarget, Rate
    from feeds.exchange.exchange import Exchange, Progress, Summary
    from feeds.order_flow.flow import FlowConfig

RATE_DEFAULT = "50000"
PASSWORD_VARIABLE = "TWINTAPE_SNAPSHOT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
PASSWORD_DEFAULT = "reader"  # noqa: S105 - of a simulated market on this machine, and said in the help
SESSIONS_WITHOUT_END = 999_999

EXAMPLES = f"""
What it sends
  ITCH 5.0 messages over MoldUDP64 on one or two UDP lines, the same messages on both, each line cut into
  packets in its own way. A simulated day is written from a seed: thousands of symbols, orders that are added,
  executed, cancelled and replaced, crosses and halts. A packet that a line loses can be asked for again at
  --rerequest; a snapshot of all open orders is given at --snapshot over SoupBinTCP.

Examples
  twintape exchange                                       until Ctrl-C, 50,000 messages/s, two perfect lines
  twintape exchange --loss 0.05 --reorder 0.02 --seed 7   both lines lose one packet in twenty
  twintape exchange --loss-a 0.3 --delay-b 2              line A is bad, line B is 2 ms behind
  twintape exchange --rate max --messages 10000000        as fast as it goes
  twintape exchange --rate 20000 --burst 8                bursts of eight times the mean in every second
  twintape exchange --line-a 239.1.1.1:26400 --line-b 239.1.1.2:26400 --interface eth0
  twintape exchange --play 12302019.NASDAQ_ITCH50 --speed 10
  twintape exchange --play deep.pcap.gz --format iex --speed max

The snapshot service's password is taken from {PASSWORD_VARIABLE} ({PASSWORD_DEFAULT!r} without it).
With --json every line of the output is one JSON object: "ready", "progress" each second, "summary".
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    addresses = parser.add_argument_group("where")
    addresses.add_argument("--line-a", default="127.0.0.1:26400", metavar="ADDR", help="default %(default)s")
    addresses.add_argument(
        "--line-b", default="127.0.0.1:26401", metavar="ADDR", help="or 'none'; default %(default)s"
    )
    addresses.add_argument("--interface", metavar="NAME", help="for multicast lines: name or address")
    addresses.add_argument(
        "--rerequest", default="127.0.0.1:26402", metavar="ADDR", help="or 'none'; default %(default)s"
    )
    addresses.add_argument(
        "--snapshot", default="127.0.0.1:26403", metavar="ADDR", help="or 'none'; default %(default)s"
    )
    addresses.add_argument("--snapshot-user", default="reader", metavar="NAME", help="default %(default)s")

    amount = parser.add_argument_group("how much, how fast")
    amount.add_argument(
        "--rate", default=None, metavar="N", help=f"messages per second, or 'max'; default {RATE_DEFAULT}"
    )
    amount.add_argument("--burst", type=float, default=1.0, metavar="X", help="rate in bursts over the mean")
    amount.add_argument("--burst-ms", type=float, default=100.0, metavar="MS", help="default %(default)g")
    amount.add_argument(
        "--burst-every-ms", type=float, default=1_000.0, metavar="MS", help="default %(default)g"
    )
    amount.add_argument("--messages", type=int, metavar="N", help="of one session; then it ends")
    amount.add_argument("--seconds", type=float, metavar="S", help="of sending; then the session ends")
    amount.add_argument(
        "--sessions", type=int, metavar="N", help="one after the other; default: no end, or 1"
    )
    amount.add_argument("--symbols", type=int, metavar="N", help="default 8000, fewer for short sessions")
    amount.add_argument(
        "--end-seconds", type=float, default=3.0, metavar="S", help="announcing a session's end"
    )
    amount.add_argument(
        "--seed", type=int, default=1, help="of the day and of the lines; default %(default)s"
    )
    amount.add_argument(
        "--wall-clock", action="store_true", help="messages carry the time of sending, not the simulated one"
    )

    play = parser.add_argument_group("playing a recorded file instead")
    play.add_argument("--play", metavar="FILE", help="an ITCH day file, or a capture (.pcap, .pcapng, .gz)")
    play.add_argument("--speed", default=None, metavar="X", help="of the recording, or 'max'; default 1")
    play.add_argument("--format", default="itch50", help="of a capture: itch50 or iex; default %(default)s")

    _configure_lines(parser)

    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON object per line")
    output.add_argument("--quiet", action="store_true", help="no progress")
    output.add_argument(
        "--wait", action="store_true", help="begin only when a line comes in on standard input, or its end"
    )


def _configure_lines(parser: argparse.ArgumentParser) -> None:
    lines = parser.add_argument_group(
        "what the lines do to packets",
        "Each option is for both lines; with -a or -b behind its name, for one.",
    )
    options: list[tuple[str, type, str, str]] = [
        ("loss", float, "P", "probability that a packet is lost"),
        ("burst-loss", float, "P", "probability that a run of losses begins"),
        ("burst-packets", int, "N", "mean length of such a run"),
        ("duplicate", float, "P", "probability that a packet comes twice"),
        ("reorder", float, "P", "probability that a packet is overtaken"),
        ("reorder-span", int, "N", "by how many packets at most"),
        ("delay", float, "MS", "delay of every packet"),
        ("jitter", float, "MS", "further delay, at most"),
        ("cut", str, "MIN-MAX", "messages per packet, such as 1-40"),
        ("packet-bytes", int, "N", "bytes per packet at most"),
    ]
    for name, kind, metavar, text in options:
        lines.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
        for line in "ab":
            lines.add_argument(f"--{name}-{line}", type=kind, metavar=metavar, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from feeds.exchange.exchange import Exchange

    config = build_config(args)
    with Exchange(config) as exchange:
        _stop_on_signals(exchange)
        reporter = JsonReporter() if args.json else TextReporter()
        reporter.ready(exchange)
        if args.wait:
            sys.stdin.readline()
        is_told = args.json or sys.stderr.isatty()
        summary = exchange.run(reporter.progress if is_told and not args.quiet else None)
        reporter.summary(summary)
    return 0


def build_config(args: argparse.Namespace) -> ExchangeConfig:
    """Return the exchange that the arguments describe. Raises ConfigError."""
    from pathlib import Path

    from feeds.exchange.config import NS_PER_S, ExchangeConfig, Play, SnapshotService
    from feeds.exchange.lines import parse_endpoint

    rate = _rate(args)
    seconds = args.seconds
    source: FlowConfig | Play
    if args.play is not None:
        speed = (
            None if args.speed == "max" or args.rate is not None else _number("--speed", args.speed or "1")
        )
        source = Play(Path(args.play), speed, args.format)
    else:
        source = _flow(args, rate)
        if args.messages is None and rate.per_second is not None:
            seconds = None  # the day is made as long as that, so that it ends with its closing messages
    has_snapshots = args.play is None and args.snapshot != "none"
    is_bounded = args.play is not None or args.messages is not None or args.seconds is not None
    password = os.environ.get(PASSWORD_VARIABLE, PASSWORD_DEFAULT)
    return ExchangeConfig(
        lines=tuple(_line(args, name) for name in "ab" if getattr(args, f"line_{name}") != "none"),
        source=source,
        rate=rate,
        session_count=args.sessions or (1 if is_bounded else SESSIONS_WITHOUT_END),
        uses_wall_clock=args.wall_clock,
        rerequest=None if args.rerequest == "none" else parse_endpoint(args.rerequest),
        snapshot=SnapshotService(parse_endpoint(args.snapshot), args.snapshot_user, password)
        if has_snapshots
        else None,
        end_ns=int(args.end_seconds * NS_PER_S),
        seconds_max=seconds,
        seed=args.seed,
    )


def _rate(args: argparse.Namespace) -> Rate:
    from feeds.exchange.config import Rate

    text = args.rate or ("max" if args.play is not None else RATE_DEFAULT)
    return Rate(
        None if text == "max" else _number("--rate", text),
        args.burst,
        int(args.burst_ms * 1e6),
        int(args.burst_every_ms * 1e6),
    )


def _flow(args: argparse.Namespace, rate: Rate) -> FlowConfig:
    from feeds.order_flow.flow import FlowConfig

    count = args.messages
    if count is None and args.seconds is not None and rate.per_second is not None:
        count = int(args.seconds * rate.per_second)
    if count is None:
        count = FlowConfig().message_count
    fitting = FlowConfig.for_messages(count, args.seed)
    return fitting if args.symbols is None else FlowConfig(args.seed, count, args.symbols)


def _line(args: argparse.Namespace, name: str) -> LineTarget:
    from feeds.exchange.config import LineTarget
    from feeds.exchange.lines import Cut, Impairment, parse_endpoint

    def option(word: str, default: Any) -> Any:
        """Return what was said for this line, else for both, else the default."""
        for key in (f"{word}_{name}", word):
            if getattr(args, key) is not None:
                return getattr(args, key)
        return default

    plain, perfect = Cut(), Impairment()
    # Without a wish the two lines are cut differently, as lines of different equipment are.
    least, most = _range(option("cut", "1-40" if name == "a" else "1-25"))
    endpoint = parse_endpoint(getattr(args, f"line_{name}"))
    if endpoint.is_multicast:
        endpoint = parse_endpoint(getattr(args, f"line_{name}"), args.interface)
    return LineTarget(
        endpoint,
        Cut(least, most, option("packet_bytes", plain.packet_bytes)),
        Impairment(
            loss=option("loss", perfect.loss),
            burst_loss=option("burst_loss", perfect.burst_loss),
            burst_packets=option("burst_packets", perfect.burst_packets),
            duplication=option("duplicate", perfect.duplication),
            reordering=option("reorder", perfect.reordering),
            reorder_span=option("reorder_span", perfect.reorder_span),
            delay_ns=int(option("delay", 0.0) * 1e6),
            jitter_ns=int(option("jitter", 0.0) * 1e6),
        ),
    )


def _range(text: str) -> tuple[int, int]:
    from feeds.errors import ConfigError

    least, dash, most = text.partition("-")
    if not (least.isdigit() and (not dash or most.isdigit())):
        raise ConfigError(f"--cut must be two numbers such as 1-40, or one, was {text!r}")
    return int(least), int(most if dash else least)


def _number(name: str, text: str) -> float:
    from feeds.errors import ConfigError

    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number or 'max', was {text!r}") from None


def _stop_on_signals(exchange: Exchange) -> None:
    """End the session at the first SIGTERM or SIGINT; at the second, the usual way."""

    def on_signal(number: int, _frame: object) -> None:
        exchange.stop()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


class JsonReporter:
    """Says everything as JSON lines on standard output, for programs."""

    def ready(self, exchange: Exchange) -> None:
        self._say("ready", {"addresses": exchange.addresses, "pid": os.getpid()})

    def progress(self, progress: Progress) -> None:
        from dataclasses import asdict

        self._say("progress", asdict(progress))

    def summary(self, summary: Summary) -> None:
        self._say("summary", summary.as_json())

    def _say(self, event: str, facts: dict[str, Any]) -> None:
        print(json.dumps({"event": event, **facts}), flush=True)


class TextReporter:
    """Says it in words: readiness and summary on standard output, progress on standard error."""

    def ready(self, exchange: Exchange) -> None:
        where = ", ".join(
            f"{name.replace('_', ' ')} {address}" for name, address in exchange.addresses.items()
        )
        print(f"ready: {where}", flush=True)

    def progress(self, progress: Progress) -> None:
        dropped = ", ".join(
            f"{name} lost {counts.dropped_packets:,}" for name, counts in progress.lines.items()
        )
        sys.stderr.write(
            f"{progress.seconds:7.1f} s  {progress.message_count:>13,} messages  "
            f"{progress.messages_per_second:>11,.0f}/s  {dropped}\n"
        )

    def summary(self, summary: Summary) -> None:
        print(f"sent {summary.message_count:,} messages in {summary.seconds:.1f} s")
        for session in summary.sessions:
            print(f"  session {session.session}: {session.message_count:,} messages, digest {session.digest}")
        for name, counts in summary.lines.items():
            print(
                f"  line {name}: {counts.sent_packets:,} packets sent, {counts.dropped_packets:,} lost "
                f"({counts.dropped_messages:,} messages), {counts.duplicated_packets:,} doubled, "
                f"{counts.reordered_packets:,} overtaken"
            )
        answered = summary.requests.get("answered", summary.requests.get("requests", 0))
        print(f"  re-requests answered {answered:,}, snapshots given {summary.snapshots_given:,}")
        for warning in summary.warnings:
            print(f"  warning: {warning}")
