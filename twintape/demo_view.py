"""How the demonstration looks: a live page on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from feeds.wire import price_text
from twintape.demo_scenario import DemoState, Outcome


def render(state: DemoState) -> RenderableType:
    """Return the page for one moment."""
    return Group(_headline(state), _lines_table(state), _books_table(state))


def plain_line(state: DemoState) -> str:
    """Return one moment as one line of text."""
    missing = ", ".join(f"{line.name} lacked {line.missing:,}" for line in state.lines)
    return (
        f"{state.seconds:5.1f} s  {state.messages_per_second:>8,.0f}/s  delivered {state.delivered:>10,}  "
        f"{missing}  re-requested {state.asked_again:,}  holes open {state.holes_open}  lost {state.lost}"
    )


def summary_lines(outcome: Outcome) -> list[str]:
    """Return what happened, as text: sent, lost, recovered, delivered, proved."""
    state = outcome.state
    exchange = outcome.exchange
    sent = exchange["message_count"]
    lines = [f"The exchange sent {sent:,} messages in one session, the same on two lines."]
    for name, counts in exchange["lines"].items():
        share = counts["dropped_messages"] / max(sent, 1)
        lines.append(
            f"  line {name.upper()} lost {counts['dropped_packets']:,} packets with "
            f"{counts['dropped_messages']:,} messages ({share:.1%}), "
            f"sent {counts['duplicated_packets']:,} twice and {counts['reordered_packets']:,} out of order"
        )
    dropped = sum(counts["dropped_messages"] for counts in exchange["lines"].values())
    on_both = exchange["sessions"][0]["lost_everywhere"]
    lines += [
        "Recovered",
        f"  {dropped - 2 * on_both:,} messages that one line lost were on the other",
        f"  {on_both:,} were lost on both; {state.asked_again:,} came from the re-request server",
        f"Delivered {state.delivered:,} messages in order, each once; {state.lost:,} lost.",
        "Proof",
    ]
    lines += [f"  {'yes' if check.holds else 'NO '}  {check.name}: {check.found}" for check in outcome.checks]
    return lines


def _headline(state: DemoState) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    for _ in range(6):
        table.add_column(justify="right")
    table.add_row(*(Text(word, style="dim") for word in _HEADLINE_WORDS))
    table.add_row(
        Text(f"{state.messages_per_second:,.0f}", style="bold"),
        f"{state.delivered:,}",
        f"{state.holes_open:,}",
        f"{state.holes_filled:,}",
        f"{state.asked_again:,}",
        Text(f"{state.lost:,}", style="bold red" if state.lost else "bold green"),
    )
    done = min(state.seconds / state.seconds_planned, 1.0)
    bar = ProgressBar(total=1.0, completed=done, width=72)
    return Panel(
        Group(table, bar), title=f"twintape demo  {state.seconds:.0f} of {state.seconds_planned:.0f} s"
    )


_HEADLINE_WORDS = ("messages/s", "delivered", "holes open", "holes filled", "asked again", "lost")


def _lines_table(state: DemoState) -> RenderableType:
    table = Table(title="two lines, neither whole", title_justify="left", expand=False)
    for word in ("line", "received", "missing", "was first", "duplicates", "out of order"):
        table.add_column(word, justify="left" if word == "line" else "right")
    first = max(sum(line.first for line in state.lines), 1)
    for line in state.lines:
        share = line.missing / max(line.messages + line.missing, 1)
        table.add_row(
            line.name,
            f"{line.messages:,}",
            f"{line.missing:,} ({share:.1%})",
            f"{line.first / first:.0%}",
            f"{line.duplicates:,}",
            f"{line.reordered_packets:,}",
        )
    return table


def _books_table(state: DemoState) -> RenderableType:
    table = Table(title=f"one stream, {state.open_orders:,} open orders", title_justify="left", expand=False)
    for word in ("symbol", "orders", "size", "bid", "ask", "size", "orders"):
        table.add_column(word, justify="left" if word == "symbol" else "right")
    for symbol, top in state.tops.items():
        bid = price_text(top.bid_price) if top.bid_size else "-"
        ask = price_text(top.ask_price) if top.ask_size else "-"
        table.add_row(
            symbol,
            f"{top.bid_orders:,}",
            f"{top.bid_size:,}",
            Text(bid, style="green"),
            Text(ask, style="red"),
            f"{top.ask_size:,}",
            f"{top.ask_orders:,}",
        )
    return table
