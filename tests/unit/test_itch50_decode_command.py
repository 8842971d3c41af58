"""`twintape decode` on day files and captures: lines, JSON, summaries, and what it says about bad files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from feeds.moldudp64 import PacketBuilder, encode_end_of_session
from feeds.pcap.writer import PcapWriter
from tests import itch50_reference as reference
from twintape.cli import main

NAME = "12302019.NASDAQ_ITCH50"
AT_NS = 34_200_000_000_230  # 09:30:00.000000230


def add(order: int, locate: int, stock: bytes, price: int = 123_400) -> bytes:
    fields = {"order": order, "side": b"B", "shares": 100, "stock": stock, "price": price}
    return reference.pack(b"A", locate, 0, AT_NS + order, **fields)


MESSAGES = [
    reference.pack(b"S", 0, 0, AT_NS, event=b"Q"),
    add(1, 7, b"AAPL    "),
    add(2, 8, b"MSFT    ", 99_9900),
    reference.pack(b"E", 7, 5, AT_NS + 3, order=1, shares=40, match=900),
    reference.pack(b"D", 8, 0, AT_NS + 4, order=2),
]


@pytest.fixture
def day_file(tmp_path: Path) -> Callable[..., str]:
    def write(data: bytes | None = None, name: str = NAME) -> str:
        path = tmp_path / name
        path.write_bytes(reference.blocks_of(MESSAGES) if data is None else data)
        return str(path)

    return write


def test_a_day_file_becomes_readable_lines(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file()]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["1", "09:30:00.000000230", "-", "status", "status_type=SYSTEM", "state=Q"],
        ["2", "09:30:00.000000231", "AAPL", "order_add", "order_id=1", "price=12.34", "size=100", "side=B"],
        ["3", "09:30:00.000000232", "MSFT", "order_add", "order_id=2", "price=99.99", "size=100", "side=B"],
        [
            "4",
            "09:30:00.000000233",
            "AAPL",
            "order_execute",
            "order_id=1",
            "trade_id=900",
            "size=40",
            "is_printable=1",
            "tracking=5",
        ],
        ["5", "09:30:00.000000234", "MSFT", "order_delete", "order_id=2"],
    ]


def test_symbols_types_and_a_limit_choose_frames(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = day_file()
    assert main(["decode", path, "--symbol", "MSFT"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["3", "5"]
    assert main(["decode", path, "--type", "order_add", "--type", "Status"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2", "3"]
    assert main(["decode", path, "--limit", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["decode", path, "--symbol", "NONE"]) == 1  # a misspelt name is no empty answer
    assert capsys.readouterr().out == ""


def test_json_has_every_field_and_exact_prices(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file(), "--json", "--symbol", "AAPL", "--limit", "1"]) == 0
    frame = json.loads(capsys.readouterr().out)
    assert frame["schema"] == "ORDER_ADD"
    assert frame["symbol"] == "AAPL"
    assert frame["price"] == "12.34"
    assert frame["event_time_ns"] == 1_577_682_000_000_000_000 + AT_NS + 1
    assert (frame["source_seq"], frame["source_session"], frame["instrument_id"]) == (2, 20_191_230, 7)


def test_a_summary_counts_types_schemas_and_problems(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = day_file(reference.blocks_of([*MESSAGES, b"zzz"]))
    assert main(["decode", path, "--summary", "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["messages"], summary["frames"], summary["problems"]) == (6, 6, 1)
    assert summary["messages_by_type"] == {"A": 2, "D": 1, "E": 1, "S": 1, "z": 1}
    assert summary["frames_by_schema"]["unparsed"] == 1
    assert summary["last_event_time_ns"] - summary["first_event_time_ns"] == 4
    assert "message 6 at byte 144: unknown type 'z' (3 bytes)" in captured.err
    assert main(["decode", path, "--summary"]) == 0
    out = capsys.readouterr().out
    assert "from 2019-12-30 09:30:00.000000230" in out
    assert "2  A  add order" in out
    assert "1  z  not a type of this format" in out


def test_a_book_at_the_end_shows_what_is_left_of_the_orders(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file(), "--book", "AAPL", "--book", "MSFT", "--book", "NONE"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "AAPL:"
    assert lines[2].split() == ["1", "60", "12.34"]
    assert lines[3:] == ["MSFT: its book is empty", "NONE: no message names it"]


def test_packed_files_are_unpacked_on_the_way(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = day_file(gzip.compress(reference.blocks_of(MESSAGES)), NAME + ".gz")
    assert main(["decode", path]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_cut_file_is_shown_to_its_cut_and_fails(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file(reference.blocks_of(MESSAGES)[:-3])]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 4
    assert "the last message is cut short: at byte 123, after 4 messages, with 18 bytes left" in captured.err


def test_a_file_without_lengths_is_refused_and_the_way_to_read_it_is_told(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = day_file(b"".join(b"\0\0" + message for message in MESSAGES))
    assert main(["decode", path]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "at byte 0, after 0 messages" in captured.err
    assert "--lengths by-type" in captured.err
    assert main(["decode", path, "--lengths", "by-type"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    "words, told",
    [
        (["--type", "ordr"], "--type must be one of trade, cross"),
        (["--limit", "0"], "--limit must be 1 or more, was 0"),
        (["--date", "30/12/2019"], "must be YYYY-MM-DD"),
        (["--format", "itch49"], "known: iex, itch50"),
    ],
)
def test_wrong_options_say_what_is_allowed(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["decode", day_file(), *words]) == 1
    assert told in capsys.readouterr().err


def test_a_name_without_a_date_asks_for_one(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = day_file(name="today.itch")
    assert main(["decode", path]) == 1
    assert "the session's date must be given" in capsys.readouterr().err
    assert main(["decode", path, "--date", "2019-12-30"]) == 0


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def write_capture(path: Path, packets: list[bytes]) -> str:
    start_ns = 1_577_682_000_000_000_000 + AT_NS
    with PcapWriter(path) as capture:
        for index, packet in enumerate(packets):
            capture.write(
                packet,
                start_ns + index * 1_000,
                source=("10.0.0.1", 26_400),
                destination=("233.54.12.111", 26_400),
            )
    return str(path)


def packets_of(messages: list[bytes]) -> list[bytes]:
    builder = PacketBuilder(b"000010059B", message_count_max=1)
    return [*builder.cut(messages), encode_end_of_session(b"000010059B", len(messages) + 1)]


def test_a_capture_is_recognised_with_its_protocol_and_its_lines_are_arbitrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packets = packets_of(MESSAGES)
    twice_and_mixed = [packets[0], packets[2], packets[1], packets[1], *packets[3:]]
    path = write_capture(tmp_path / "lines.pcap", twice_and_mixed)
    assert main(["decode", path, "--json"]) == 0
    frames = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [frame["source_seq"] for frame in frames] == [1, 2, 3, 4, 5]
    assert frames[1]["event_time_ns"] == 1_577_682_000_000_000_000 + AT_NS + 1
    assert main(["decode", path, "--summary"]) == 0
    out = capsys.readouterr().out
    assert "Nasdaq TotalView-ITCH 5.0: 5 messages, 5 frames" in out
    assert "1 messages came twice" in out


def test_what_a_capture_lacks_is_told_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packets = packets_of(MESSAGES)
    path = write_capture(tmp_path / "holes.pcap", [*packets[:1], *packets[3:]])
    assert main(["decode", path, "--summary"]) == 0
    out = capsys.readouterr().out
    assert "2 messages are missing from the capture" in out
    assert "messages 2 to 3 are missing" in out
    assert "3 messages, 3 frames" in out


def test_a_cut_capture_is_decoded_to_its_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.pcap"
    write_capture(path, packets_of(MESSAGES))
    path.write_bytes(path.read_bytes()[:-5])
    assert main(["decode", str(path), "--summary"]) == 0
    out = capsys.readouterr().out
    assert "5 messages, 5 frames" in out
    assert "the capture was cut at byte" in out


def test_a_damaged_capture_is_decoded_to_the_damage_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged.pcap"
    write_capture(path, packets_of(MESSAGES))
    path.write_bytes(path.read_bytes() + b"\xff" * 64)
    assert main(["decode", str(path)]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert "damaged.pcap" in captured.err


def test_packets_of_no_known_protocol_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_capture(tmp_path / "dns.pcap", [b"not a market data packet"] * 10)
    assert main(["decode", path]) == 1
    assert "none of the protocols we know (iex, itch50)" in capsys.readouterr().err
    empty = write_capture(tmp_path / "empty.pcap", [])
    assert main(["decode", empty]) == 1
    assert "no UDP datagrams" in capsys.readouterr().err


def test_a_symbol_that_no_message_names_is_told(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file(), "--symbol", "AAPL", "--symbol", "NOPE"]) == 1
    told = capsys.readouterr()
    assert "AAPL" in told.out
    assert told.err.splitlines() == ["twintape decode: no message names the symbol NOPE"]


def test_a_day_file_of_a_format_that_has_none_is_refused(
    day_file: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", day_file(), "--format", "iex"]) == 1
    assert "is no capture" in capsys.readouterr().err


def test_a_capture_read_as_another_protocol_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_capture(tmp_path / "lines.pcap", packets_of(MESSAGES))
    assert main(["decode", path, "--format", "iex", "--summary"]) == 1
    assert "none of its 6 packets is of IEX" in capsys.readouterr().err
