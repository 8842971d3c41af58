"""ITCH to frames on one core, beside packages that parse ITCH and beside copying the bytes that we write.

A simulated day is the input: for us and itch-book the whole of it, for the parsers in Python a slice from its
middle, because they would take minutes. What is compared is messages per second. Before anything is timed,
the frames of the whole day are turned back into ITCH and must be the file again, byte for byte.

The copy that the bar refers to reads each byte of the frames from memory and writes it into one batch that
is used again and again, as decoding does; that is faster than copying from memory to memory.
"""

from __future__ import annotations

import sys

from feeds.wire import FRAME_BYTES
from perf import decode_systems as systems
from perf.decode_day import SESSION_DATE, Day, simulated_day
from perf.harness import Case, interleave, pinned, run_child
from perf.report import Bar, BenchError, Options, Report, Result, value_of

DESCRIPTION = "ITCH to frames and books, beside itchfeed, meatpy, itch-book and a memory copy"

US = "twintape"
DECODE = "decode"
BOOKS = "decode and books"
PARSE = "parse to objects, slice of the day"
COPY = "copy, memory to batch"

PEER_FACTOR = 30.0  # of the faster parser in Python
COPY_SHARE = 0.15
BOOKS_SHARE = 1.0  # of itch-book
MEMORY_GROWTH = 1.1  # of the peak, for a file eight times as long

CHILD_SECONDS_MAX = 120.0


def run(options: Options) -> Report:
    message_count = options.size(quick=60_000, full=20_000_000)
    middle_count = options.size(quick=5_000, full=400_000)
    rounds = options.size(quick=1, full=5)
    with simulated_day(message_count, middle_count, is_kept=not options.quick) as day, pinned(0):
        frame_count = systems.prove_lossless(day)
        _check_books_agree(day)
        results = interleave(_cases(day, frame_count), rounds, options.size(quick=0, full=1))
        results += _peak_memory(day)
    return Report(results, _bars(results))


def _cases(day: Day, frame_count: int) -> list[Case]:
    copies = systems.Copies(frame_count * FRAME_BYTES)
    return [
        Case(US, DECODE, lambda: systems.decode(day)),
        Case("itchfeed", PARSE, lambda: systems.itchfeed(day)),
        Case("meatpy", PARSE, lambda: systems.meatpy(day)),
        Case("limit", COPY, copies.memory_to_batch),
        Case("limit", "copy, memory to memory", copies.memory_to_memory),
        Case(US, BOOKS, lambda: systems.decode_with_books(day)),
        Case("itch-book", BOOKS, lambda: systems.itch_book(day)),
    ]


def _check_books_agree(day: Day) -> None:
    """Both sides of the books' bar must have done the same work."""
    ours, theirs = systems.decode_with_books(day).checksum, systems.itch_book(day).checksum
    if ours != theirs:
        raise BenchError(f"our books say {ours}, itch-book's {theirs}")


def _peak_memory(day: Day) -> list[Result]:
    """Measure what `twintape decode` holds at most, for an eighth of the day and for all of it."""
    results = []
    for path, count in ((day.small, day.small_count), (day.whole, day.message_count)):
        words = [sys.executable, "-m", "twintape", "decode", str(path), "--summary"]
        child = run_child([*words, "--date", SESSION_DATE.isoformat()], seconds_max=CHILD_SECONDS_MAX)
        if f"{count:,} messages".encode() not in child.output:
            raise BenchError(f"twintape decode must find {count:,} messages, said {child.output[:200]!r}")
        name = f"decode {count:,} messages"
        results.append(Result(US, name, "peak_rss_bytes", float(child.peak_rss_bytes), 0.0))
    return results


def _bars(results: list[Result]) -> list[Bar]:
    rate = "messages_per_s"
    peer = max(value_of(results, name, PARSE, rate) for name in ("itchfeed", "meatpy"))
    copied = value_of(results, "limit", COPY, "frame_bytes_per_s")
    small, large = (result.value for result in results if result.metric == "peak_rss_bytes")
    return [
        Bar("decode_vs_python", value_of(results, US, DECODE, rate) / peer, at_least=PEER_FACTOR),
        Bar(
            "decode_vs_copy",
            value_of(results, US, DECODE, "frame_bytes_per_s") / copied,
            at_least=COPY_SHARE,
        ),
        Bar(
            "books_vs_itch_book",
            value_of(results, US, BOOKS, rate) / value_of(results, "itch-book", BOOKS, rate),
            at_least=BOOKS_SHARE,
        ),
        Bar("memory_growth", large / small, at_most=MEMORY_GROWTH),
    ]
