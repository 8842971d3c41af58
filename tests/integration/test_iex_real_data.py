"""A real IEX DEEP capture, byte by byte: every figure of expected.json that packets and frames can tell."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeds import formats as f
from feeds.decoder import Decoder
from feeds.iex import FORMAT
from feeds.iex import transport as t
from feeds.iex.continuity import Continuity, Step
from feeds.iex.encode import encode_frames
from feeds.pcap.reader import ANY_PORT, PcapReader, open_datagrams
from feeds.validation import validate
from tests.iex_capture import (
    CAPTURE,
    DecodedCapture,
    decode_capture,
    decode_reader,
    messages_of,
    runs_of,
)


@pytest.fixture(scope="module")
def capture(market_data: Path) -> DecodedCapture:
    return decode_capture(market_data / CAPTURE)


@pytest.fixture(scope="module")
def expected(market_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((market_data / "iex" / "expected.json").read_text())["expected"]
    return found


@pytest.fixture(scope="module")
def told(capture: DecodedCapture) -> list[Mapping[str, Any]]:
    return list(messages_of(capture))


def test_the_file_is_the_one_that_was_measured(market_data: Path, expected: dict[str, Any]) -> None:
    content = gzip.decompress((market_data / CAPTURE).read_bytes())
    digests = {hashlib.sha256(data).hexdigest() for data in (content, (market_data / CAPTURE).read_bytes())}
    assert expected["sha256"] in digests


def test_packets_are_as_many_and_as_placed_as_expected(
    capture: DecodedCapture, expected: dict[str, Any]
) -> None:
    packets = capture.packets
    kinds = Counter(packets[:, f.PACKET_KIND].tolist())
    assert kinds == {f.KIND_DATA: expected["data_segments"], f.KIND_HEARTBEAT: expected["heartbeats"]}
    assert capture.counts.records == capture.counts.datagrams == expected["segments"]
    assert set(packets[:, f.PACKET_SESSION]) == {expected["iextp"]["session_id"]}
    assert packets[0, f.PACKET_SEQ] == expected["iextp"]["first_sequence"]
    following = packets[:, f.PACKET_SEQ] + packets[:, f.PACKET_COUNT]
    assert (packets[1:, f.PACKET_SEQ] == following[:-1]).all()
    assert following[-1] == expected["iextp"]["next_sequence"]
    assert packets[:, f.PACKET_BYTES].max() == expected["iextp"]["max_payload"]
    assert packets[:, f.PACKET_COUNT].max() == expected["iextp"]["max_messages_in_segment"]
    assert packets[0, f.PACKET_TIME_NS] == expected["capture"]["first_ns"]
    assert packets[-1, f.PACKET_TIME_NS] == expected["capture"]["last_ns"]
    identity = t.StreamIdentity.from_words(
        *packets[0, f.PACKET_IDENTITY_0 : f.PACKET_IDENTITY_1 + 1].tolist()
    )
    assert f"{identity.protocol_id:#06x}" == expected["iextp"]["message_protocol_id"]
    assert identity.channel_id == expected["iextp"]["channel_id"]


def test_the_plain_parser_finds_the_same_unbroken_stream(market_data: Path, expected: dict[str, Any]) -> None:
    follow, steps, send_times = Continuity(), Counter[Step](), []
    with open_datagrams(market_data / CAPTURE) as capture:
        for batch in capture:
            data = batch.arena.tobytes()
            for offset, length, _, _ in batch.datagrams.tolist():
                segment = t.decode_segment(data[offset : offset + length])
                steps[follow.on_segment(segment)] += 1
                send_times.append(segment.send_time_ns)
    assert steps == {Step.NEXT: expected["segments"]}
    assert follow.restart_count == expected["iextp"]["restarts_to_1_and_0"]
    assert follow.next_stream_offset == expected["iextp"]["next_stream_offset"]
    assert send_times[0] == expected["iextp"]["first_send_time"]
    assert send_times[-1] == expected["iextp"]["last_send_time"]


def test_only_the_wanted_destination_is_read(market_data: Path, expected: dict[str, Any]) -> None:
    udp = expected["udp"]
    wanted = {(udp["dst"], udp["dport"]): f.LINE_B}
    with open_datagrams(market_data / CAPTURE, lines=wanted, verify_checksums=True) as capture:
        lines = Counter(line for batch in capture for line in batch.datagrams[:, f.DATAGRAM_LINE].tolist())
    assert lines == {f.LINE_B: expected["segments"]}
    with open_datagrams(market_data / CAPTURE, lines={("233.215.21.132", ANY_PORT): f.LINE_B}) as capture:
        assert capture.read_batch() is None
        assert capture.counts.unwanted == expected["segments"]


def test_every_message_is_decoded_and_counted(capture: DecodedCapture, expected: dict[str, Any]) -> None:
    decoder = capture.decoder
    assert decoder.message_count == expected["messages"]
    assert decoder.counts_by_type == expected["counts"]
    assert decoder.problem_count == decoder.symbol_changes == 0
    assert len(capture.frames) == expected["messages"] + expected["counts"]["D"]
    validate(capture.frames)


def test_frames_are_numbered_without_a_hole(capture: DecodedCapture, expected: dict[str, Any]) -> None:
    frames = capture.frames
    first_parts = frames[frames["part"] == 0]
    assert (first_parts["source_seq"] == np.arange(1, expected["messages"] + 1)).all()
    assert (frames["message_seq"] == np.arange(1, len(frames) + 1)).all()
    assert set(frames["source_session"]) == {expected["iextp"]["session_id"]}


def test_times_are_those_of_the_messages(told: list[Mapping[str, Any]], expected: dict[str, Any]) -> None:
    times = [message["time"] for message in told]
    assert (times[0], times[-1]) == (expected["first_message_ts"], expected["last_message_ts"])
    assert (min(times), max(times)) == (expected["min_ts"], expected["max_ts"])
    assert (
        sum(left > right for left, right in itertools.pairwise(times))
        == (expected["ts_decreases_in_feed_order"])
    )
    for letter, figures in expected["ts_per_type"].items():
        of_type = [message["time"] for message in told if message["type"] == letter]
        assert (of_type[0], of_type[-1]) == (figures["first"], figures["last"])
        assert (min(of_type), max(of_type)) == (figures["min"], figures["max"])


def test_times_never_fall_for_one_type_and_symbol(
    told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    latest: dict[tuple[str, str | None], int] = {}
    falls = 0
    for message in told:
        key = (message["type"], message.get("symbol"))
        falls += message["time"] < latest.get(key, 0)
        latest[key] = message["time"]
    assert falls == expected["ts_decreases_within_type_and_symbol"]


def test_symbols_are_as_many_as_expected_and_each_has_an_id_of_its_own(
    capture: DecodedCapture, told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    symbols = {message["symbol"] for message in told if "symbol" in message}
    assert len(symbols) == expected["distinct_symbols"]
    assert len({capture.decoder.instrument_of(symbol) for symbol in symbols}) == len(symbols)
    for letter, count in expected["distinct_symbols_per_type"].items():
        assert len({message["symbol"] for message in told if message["type"] == letter}) == count


def test_field_values_are_distributed_as_expected(
    told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    # "T.flags" in the expectations is "flags" as we tell it; a code that has its own name there is our state.
    names = {"luld": "tier", "rli": "state", "status": "state", "event": "state"}
    for name, figures in expected["field_values"].items():
        letter, _, field = name.partition(".")
        values = Counter(message[names.get(field, field)] for message in told if message["type"] == letter)
        if field == "flags":
            assert {f"{value:#04x}": count for value, count in values.items()} == figures
        else:
            assert {str(value): count for value, count in values.items()} == {
                text.rstrip() if field == "reason" else text: count for text, count in figures.items()
            }


def test_trades_are_those_expected_one_by_one(
    told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    trades = [message for message in told if message["type"] == "T"]
    figures = expected["trade_reports"]
    assert [
        {
            "symbol": trade["symbol"],
            "size": trade["size"],
            "price_1e4": trade["price"],
            "flags": f"{trade['flags']:#04x}",
            "trade_id": trade["trade_id"],
            "ts": trade["time"],
        }
        for trade in trades
    ] == figures["list"]
    assert len(trades) == figures["count"]
    assert sum(trade["size"] for trade in trades) == figures["sum_size"]
    assert sum(trade["price"] * trade["size"] for trade in trades) == figures["sum_price_x_size_1e4"]
    assert sum(trade["trade_id"] for trade in trades) == figures["sum_trade_id"]


@pytest.mark.parametrize("letter,key", [("8", "price_level_buy"), ("5", "price_level_sell")])
def test_level_updates_sum_up_as_expected(
    told: list[Mapping[str, Any]], expected: dict[str, Any], letter: str, key: str
) -> None:
    levels = [message for message in told if message["type"] == letter]
    figures = expected[key]
    assert len(levels) == figures["count"]
    assert sum(level["size"] for level in levels) == figures["sum_size"]
    assert sum(level["price"] for level in levels) == figures["sum_price_1e4"]
    assert sum(level["price"] * level["size"] for level in levels) == figures["sum_price_x_size_1e4"]
    assert sum(level["size"] == 0 for level in levels) == figures["removals_size_0"]
    assert sum(level["flags"] for level in levels) == figures["flag_1"]
    assert min(level["price"] for level in levels) == figures["min_price"]
    assert max(level["price"] for level in levels) == figures["max_price"]


def test_directory_entries_are_those_expected(
    told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    assert [
        {
            "symbol": entry["symbol"],
            "flags": f"{entry['flags']:#04x}",
            "round_lot": entry["lot"],
            "adjusted_poc_price_1e4": entry["close"],
            "luld_tier": entry["tier"],
            "ts": entry["time"],
        }
        for entry in told
        if entry["type"] == "D"
    ] == expected["security_directory"]


def test_final_books_are_those_expected(told: list[Mapping[str, Any]], expected: dict[str, Any]) -> None:
    figures = expected["book"]
    books: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {"B": {}, "S": {}})
    updates: Counter[str] = Counter()
    stray = repeated = 0
    for message in told:
        if message["type"] not in "85":
            continue
        levels = books[message["symbol"]]["B" if message["type"] == "8" else "S"]
        updates[message["symbol"]] += 1
        if message["size"] == 0:
            stray += levels.pop(message["price"], None) is None
        else:
            repeated += levels.get(message["price"]) == message["size"]
            levels[message["price"]] = message["size"]
    assert stray == figures["invariants"]["stray_removals"]
    assert repeated == figures["invariants"]["updates_repeating_same_size"]
    assert len(books) == figures["symbols_with_updates"]
    assert sum(bool(book["B"] or book["S"]) for book in books.values()) == figures["symbols_non_empty"]
    assert sum(bool(book["B"] and book["S"]) for book in books.values()) == figures["symbols_two_sided"]
    assert sum(sum(book["B"].values()) for book in books.values()) == figures["bid_shares"]
    assert sum(sum(book["S"].values()) for book in books.values()) == figures["ask_shares"]
    lines = [
        f"{symbol}|{side}|{price}|{size}\n"
        for symbol in sorted(books)
        for side in "BS"
        for price, size in sorted(books[symbol][side].items())
    ]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest == figures["sha256_of_canonical_final_books"]
    busiest = sorted(updates.items(), key=lambda item: (-item[1], item[0]))
    assert [list(item) for item in busiest[:12]] == figures["ranking_top12"]


def test_all_fields_of_all_messages_have_the_expected_digest(
    told: list[Mapping[str, Any]], expected: dict[str, Any]
) -> None:
    digest = hashlib.sha256("".join(map(_as_text, told)).encode()).hexdigest()
    assert digest == expected["sha256_of_all_messages_as_text"]["value"]


def _as_text(message: Mapping[str, Any]) -> str:
    """Return a message's fields in wire order, text with its padding, codes that are flags as integers."""
    letter = message["type"]
    values: list[Any] = [letter]
    if letter == "S":
        values += [ord(message["state"]), message["time"]]
    elif letter in "85TD":
        values += [message["flags"], message["time"]]
    elif letter == "P":
        values += [int(message["state"]), message["time"]]
    else:
        values += [message["state"] or " ", message["time"]]
    if letter != "S":
        values.append(message["symbol"].ljust(8))
    numbers = ("lot", "close", "tier", "size", "price", "trade_id")  # the order in which every type has them
    values += [message[name] for name in numbers if name in message]
    if letter == "H":
        values.append(message["reason"].ljust(4))
    elif letter == "P":
        values.append(message["detail"] or " ")
    return "|".join(map(str, values)) + "\n"


def test_encoding_all_frames_gives_back_the_bytes_of_the_stream(
    market_data: Path, capture: DecodedCapture, expected: dict[str, Any]
) -> None:
    payloads = []
    with open_datagrams(market_data / CAPTURE) as reader:
        for batch in reader:
            data = batch.arena.tobytes()
            payloads += [
                data[offset + t.HEADER_BYTES : offset + length]
                for offset, length, _, _ in batch.datagrams.tolist()
            ]
    stream = encode_frames(capture.frames, capture.decoder.directory)
    assert len(stream) == expected["iextp"]["next_stream_offset"]
    assert stream == b"".join(payloads)


def test_small_batches_and_small_outputs_give_the_same_frames(
    market_data: Path, capture: DecodedCapture
) -> None:
    decoder = Decoder(FORMAT, stream_id=9, frame_capacity=97)
    transport = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    digest, total = hashlib.sha256(), 0
    with open_datagrams(market_data / CAPTURE, buffer_bytes=512 << 10, batch_datagrams=61) as reader:
        for batch in reader:
            packets = np.zeros((len(batch.datagrams), f.PACKET_FIELDS), dtype=np.int64)
            FORMAT.parse_packets_kernel(
                batch.arena, batch.datagrams, len(batch.datagrams), transport, packets
            )
            for frames in decoder.decode(batch.arena, runs_of(packets)):
                digest.update(frames.tobytes())
                total += len(frames)
    assert total == len(capture.frames)
    assert digest.hexdigest() == hashlib.sha256(capture.frames.tobytes()).hexdigest()


def test_a_decoder_that_joins_in_mid_session_makes_the_same_frames(capture: DecodedCapture) -> None:
    stream = encode_frames(capture.frames, capture.decoder.directory)
    data = np.frombuffer(stream, dtype=np.uint8).copy()
    joined_at = 30_000
    earlier = capture.frames[capture.frames["source_seq"] < joined_at]
    begin = len(encode_frames(earlier, capture.decoder.directory))
    late = Decoder(FORMAT, stream_id=9, first_message_seq=len(earlier) + 1, frame_capacity=1 << 16)
    session = int(capture.frames["source_session"][0])
    runs = np.array([[begin, data.size - begin, joined_at, -1, session]], dtype=np.int64)
    made = np.concatenate([frames.copy() for frames in late.decode(data, runs)])
    assert made.tobytes() == capture.frames[len(earlier) :].tobytes()


def records_of(content: bytes) -> list[tuple[int, int]]:
    """Return begin and end of every record of a pcap file."""
    found, position = [], 24
    while position < len(content):
        (captured_bytes,) = struct.unpack_from("<I", content, position + 8)
        found.append((position, position + 16 + captured_bytes))
        position += 16 + captured_bytes
    return found


def test_the_capture_cut_at_every_byte_of_its_last_packet_gives_all_before_it(market_data: Path) -> None:
    content = gzip.decompress((market_data / CAPTURE).read_bytes())
    records = records_of(content)
    few = content[:24] + content[records[-20][0] :]
    begin = records_of(few)[-1][0]
    whole = decode_reader(PcapReader(io.BytesIO(few)))
    before = decode_reader(PcapReader(io.BytesIO(few[:begin])))
    assert before.packets.shape[0] == 19
    assert 0 < len(before.frames) < len(whole.frames)
    for end in range(begin + 1, len(few)):
        reader = PcapReader(io.BytesIO(few[:end]))
        cut = decode_reader(reader)
        assert cut.frames.tobytes() == before.frames.tobytes()
        assert reader.cut is not None
        assert reader.cut.position == begin


def test_flipped_bits_are_found_by_the_checksum_and_touch_nothing_else(market_data: Path) -> None:
    content = gzip.decompress((market_data / CAPTURE).read_bytes())
    records = records_of(content)[:200]
    content = content[: records[-1][1]]
    clean = decode_reader(PcapReader(io.BytesIO(content)))
    rng = random.Random(20231002)
    for _ in range(150):
        index = rng.randrange(len(records))
        begin, end = records[index]
        at = rng.randrange(begin + 16 + 14 + 20 + 8, end)  # behind Ethernet, IPv4 and UDP headers
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        strict = PcapReader(io.BytesIO(bytes(damaged)), verify_checksums=True)
        packets = decode_reader(strict).packets
        assert strict.counts.bad_checksum == 1
        kept = np.delete(clean.packets, index, axis=0)
        assert (packets[:, f.PACKET_SEQ] == kept[:, f.PACKET_SEQ]).all()
        assert (packets[:, f.PACKET_KIND] == kept[:, f.PACKET_KIND]).all()
        # Without the checksum the damage may pass, but what comes of it keeps to the rules.
        lenient = decode_reader(PcapReader(io.BytesIO(bytes(damaged))))
        assert lenient.packets.shape[0] == len(records)
        validate(lenient.frames)
        is_other = np.flatnonzero(lenient.packets[:, f.PACKET_KIND] == f.KIND_BAD)
        assert set(is_other) <= {index}
