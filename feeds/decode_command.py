"""`twintape decode FILE`: an exchange's file or capture as frames, JSON or a summary."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from feeds.decode_sources import FrameSource
    from feeds.formats import ExchangeFormat
    from feeds.frame_text import FrameText
    from feeds.wire import FrameArray

DAY_FILE_FORMAT = "itch50"  # captures tell their protocol, day files do not
PROBLEMS_TOLD = 10
PROGRESS_SECONDS = 0.5

EXAMPLES = """\
examples:
  twintape decode 12302019.NASDAQ_ITCH50.gz --summary
  twintape decode 12302019.NASDAQ_ITCH50 --symbol AAPL --type order_add --limit 20
  twintape decode day.itch --date 2019-12-30 --json | jq 'select(.schema == "TRADE")'
  twintape decode 12302019.NASDAQ_ITCH50 --book AAPL
  twintape decode deep.pcap.gz --summary
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a day file (two-byte lengths), or a capture (pcap, pcapng); plain or gzip",
    )
    parser.add_argument(
        "--format", metavar="NAME", help="itch50 or iex; captures are recognised, day files are itch50"
    )
    parser.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        help="the session's date, where the file's name does not begin with it",
    )
    parser.add_argument(
        "--symbol", metavar="S", action="append", default=[], help="only this instrument; may be repeated"
    )
    parser.add_argument(
        "--type",
        metavar="T",
        action="append",
        default=[],
        help="only frames of this schema (trade, order_add, status, ...); may be repeated",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="stop after N frames were shown")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--summary", action="store_true", help="counts, times and problems instead of frames")
    parser.add_argument(
        "--book",
        metavar="S",
        action="append",
        default=[],
        help="the order book of this symbol at the end instead of frames; may be repeated",
    )
    parser.add_argument(
        "--lengths",
        choices=("prefixed", "by-type"),
        default="prefixed",
        help="of a day file's messages: from the two bytes before each, or, in files that have zeros there, "
        "from its type",
    )


def run(args: argparse.Namespace) -> int:
    from feeds.errors import ConfigError
    from feeds.frame_text import FrameText
    from feeds.session_time import parse_date

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit must be 1 or more, was {args.limit}")
    session_date = parse_date(args.date) if args.date is not None else None
    schemas = [_schema_id(name) for name in args.type]
    source, exchange = _open(args, session_date)
    try:
        text = FrameText(source.decoder.symbol_of, exchange.time_zone)
        if args.book:
            _show_books(source, exchange, args.book)
        elif args.summary:
            _summarise(source, exchange, text, args.json)
        else:
            _show(source, text, schemas, args)
        _tell_problems(source)
        _raise_fault(source)
    finally:
        source.close()
    return 0


def _open(args: argparse.Namespace, session_date: "date | None") -> "tuple[FrameSource, ExchangeFormat]":
    from feeds import formats
    from feeds.dayfile import Lengths
    from feeds.decode_sources import CaptureSource, DayFileSource, is_capture
    from feeds.errors import ConfigError

    exchange = formats.load(args.format) if args.format is not None else None
    if is_capture(args.file):
        capture = CaptureSource(args.file, exchange, session_date)
        return capture, capture.exchange
    exchange = exchange if exchange is not None else formats.load(DAY_FILE_FORMAT)
    if exchange.name != DAY_FILE_FORMAT:
        raise ConfigError(
            f"{args.file.name} is no capture (pcap or pcapng), and day files are of {DAY_FILE_FORMAT} only"
        )
    return DayFileSource(args.file, exchange, session_date, Lengths(args.lengths)), exchange


def _schema_id(name: str) -> int:
    from feeds.errors import ConfigError
    from feeds.wire import Schema

    found = Schema.__members__.get(name.upper())
    if found is None:
        known = ", ".join(schema.name.lower() for schema in Schema)
        raise ConfigError(f"--type must be one of {known}, was {name!r}")
    return int(found)


def _show(source: "FrameSource", text: "FrameText", schemas: list[int], args: argparse.Namespace) -> None:
    left = args.limit
    for frames in _with_progress(source):
        chosen = _choose(source, frames, schemas, args.symbol)
        if left is not None:
            chosen = chosen[:left]
            left -= len(chosen)
        for line in text.json_lines(chosen) if args.json else text.lines(chosen):
            print(line)
        if left == 0:
            return
    _check_known(source, args.symbol)


def _check_known(source: "FrameSource", symbols: list[str]) -> None:
    """Raise if the whole file has no message that names one of these: most likely it is misspelt."""
    from feeds.errors import SourceError

    unknown = [symbol for symbol in symbols if source.decoder.instrument_of(symbol) is None]
    if unknown and source.fault is None:
        raise SourceError(f"no message names the symbol {', '.join(unknown)}")


def _choose(
    source: "FrameSource", frames: "FrameArray", schemas: list[int], symbols: list[str]
) -> "FrameArray":
    """Return the frames of these schemas and symbols; no schemas or no symbols means all."""
    import numpy as np

    mask = np.ones(len(frames), dtype=np.bool_)
    if schemas:
        mask &= np.isin(frames["schema_id"], schemas)
    if symbols:
        # A symbol's instrument is known once a message has named it, so it is looked up for every batch.
        instruments = [source.decoder.instrument_of(symbol) for symbol in symbols]
        mask &= np.isin(frames["instrument_id"], [found for found in instruments if found is not None])
    return frames if mask.all() else frames[mask]


def _with_progress(source: "FrameSource") -> "Iterator[FrameArray]":
    """Yield the source's frames; tell how far it is where a person is looking at standard error."""
    import time

    stream = sys.stderr
    is_told = stream.isatty() and not sys.stdout.isatty()
    started = shown = time.monotonic()
    for frames in source.frames():
        yield frames
        now = time.monotonic()
        if is_told and now - shown >= PROGRESS_SECONDS:
            shown = now
            _show_progress(stream, source, now - started)
    if is_told and shown > started:
        stream.write("\r\x1b[K")


def _show_progress(stream: TextIO, source: "FrameSource", seconds: float) -> None:
    done = source.progress()
    share = f"{done:6.1%}  " if done is not None else ""
    count = source.decoder.message_count
    stream.write(f"\r\x1b[K{share}{count:,} messages  {count / seconds / 1e6:.1f} M/s")
    stream.flush()


def _summarise(source: "FrameSource", exchange: "ExchangeFormat", text: "FrameText", is_json: bool) -> None:
    from feeds.decode_summary import Summary

    summary = Summary(source, exchange, text)
    for frames in _with_progress(source):
        summary.on_frames(frames)
    print(summary.as_json() if is_json else "\n".join(summary.as_lines()))


def _show_books(source: "FrameSource", exchange: "ExchangeFormat", symbols: list[str]) -> None:
    from feeds.book.books import Books
    from feeds.decode_summary import book_lines

    books = Books(exchange.has_orders)
    for frames in _with_progress(source):
        books.apply(frames)
    for symbol in symbols:
        print("\n".join(book_lines(books, source, symbol)))


def _raise_fault(source: "FrameSource") -> None:
    from feeds.dayfile import DayFileError, EndingKind
    from feeds.errors import SourceError

    fault = source.fault
    if fault is None:
        return
    if (
        isinstance(fault, DayFileError)
        and fault.ending.kind is EndingKind.TRAILING
        and not fault.ending.position
    ):
        raise SourceError(
            f"{fault}; a file with zeros for all lengths is read with --lengths by-type"
        ) from fault
    raise fault


def _tell_problems(source: "FrameSource") -> None:
    """Say on standard error which messages could not be read: the latest few, and how many there were."""
    decoder = source.decoder
    for problem in decoder.problems[-PROBLEMS_TOLD:]:
        sys.stderr.write(f"{problem}\n")
    if decoder.problem_count > PROBLEMS_TOLD:
        sys.stderr.write(f"{decoder.problem_count:,} messages could not be read; the last are shown\n")
