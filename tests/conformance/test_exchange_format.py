"""Claims about every folder below feeds/ that says `FORMAT`: adding an exchange means passing these."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feeds
from feeds import formats as f
from feeds import wire
from feeds.errors import ConfigError
from feeds.validation import validate
from feeds.wire import Flag, Schema, UnparsedReason
from tests.conformance.conftest import SESSION, Exchange

pytestmark = pytest.mark.kernels

FILES = (
    "messages.py",
    "decode_kernels.py",
    "directory.py",
    "encode.py",
    "encode_kernels.py",
    "frame_kernels.py",
    "transport.py",
    "transport_kernels.py",
    "hop_kernels.py",
    "__init__.py",
)


def unknown_letter(exchange: Exchange) -> bytes:
    known = {message.letter for message in exchange.format.message_types}
    return next(bytes([code]) for code in b"z~|{}" if bytes([code]) not in known)


def unparsed(frames: wire.FrameArray) -> wire.FrameArray:
    found: wire.FrameArray = wire.view(frames, Schema.UNPARSED)[frames["schema_id"] == Schema.UNPARSED]
    return found


def test_more_than_one_exchange_is_there_and_an_unknown_name_lists_them() -> None:
    assert {"iex", "itch50"} <= set(f.names())
    with pytest.raises(ConfigError, match="itch50"):
        f.load("itch51")


def test_the_folder_has_the_files_that_every_exchange_has(exchange: Exchange) -> None:
    folder = Path(feeds.__path__[0]) / exchange.format.name
    assert [name for name in FILES if not (folder / name).is_file()] == []


def test_the_message_table_has_each_letter_once(exchange: Exchange) -> None:
    letters = [message.letter for message in exchange.format.message_types]
    assert len(set(letters)) == len(letters)
    assert all(len(letter) == 1 for letter in letters)
    assert all(message.size > 0 and message.name for message in exchange.format.message_types)


def test_the_writers_make_one_message_of_every_type(exchange: Exchange) -> None:
    sizes = {message.letter: message.size for message in exchange.format.message_types}
    assert {message[:1]: len(message) for message in exchange.messages} == sizes


def test_every_type_becomes_valid_frames_without_a_problem(exchange: Exchange) -> None:
    decoder = exchange.decoder()
    frames = exchange.decode(decoder, exchange.blocks(exchange.messages), len(exchange.messages))
    validate(frames)
    assert decoder.problem_count == 0
    assert unparsed(frames).size == 0
    counts = {message[:1].decode(): exchange.messages.count(message) for message in exchange.messages}
    assert decoder.counts_by_type == counts
    assert decoder.frame_count == len(frames)
    assert decoder.message_count == len(exchange.messages)


def test_frames_become_the_same_bytes_again(exchange: Exchange) -> None:
    decoder = exchange.decoder()
    data = exchange.blocks(exchange.messages)
    frames = exchange.decode(decoder, data, len(exchange.messages))
    assert exchange.encode(frames, decoder) == data


def test_frames_carry_what_identifies_them(exchange: Exchange) -> None:
    count = len(exchange.messages)
    frames = exchange.decode(
        exchange.decoder(first_message_seq=500), exchange.blocks(exchange.messages), count, first_seq=77
    )
    assert set(frames["source_stream_id"].tolist()) == {0xF0000001}
    assert set(frames["source_session"].tolist()) == {SESSION}
    assert set(frames["epoch"].tolist()) == {0xF0000002}
    assert set(frames["publish_time_ns"].tolist()) == {1_234}
    assert frames["message_seq"].tolist() == list(range(500, 500 + len(frames)))
    assert sorted(set(frames["source_seq"].tolist())) == list(range(77, 77 + count))


def test_parts_count_from_zero_and_only_the_last_says_so(exchange: Exchange) -> None:
    frames = exchange.decode(exchange.decoder(), exchange.blocks(exchange.messages), len(exchange.messages))
    most = 0
    for seq in np.unique(frames["source_seq"]):
        parts = frames[frames["source_seq"] == seq]
        most = max(most, len(parts))
        assert parts["part"].tolist() == list(range(len(parts)))
        flags = [bool(flag & Flag.LAST_PART) for flag in parts["flags"]]
        assert flags == [False] * (len(parts) - 1) + [True]
    assert most == exchange.format.frames_per_message_max


def test_an_unknown_type_becomes_an_unparsed_frame_that_shows_its_first_bytes(exchange: Exchange) -> None:
    strange = unknown_letter(exchange) + bytes(range(1, 40))
    messages = [exchange.messages[0], strange, exchange.messages[0]]
    decoder = exchange.decoder()
    frames = exchange.decode(decoder, exchange.blocks(messages), 3)
    validate(frames)
    (found,) = unparsed(frames)
    assert found["source_seq"] == 2
    assert found["reason"] == UnparsedReason.UNKNOWN_TYPE
    assert found["message_type"] == strange[:1]
    assert found["message_bytes"] == len(strange)
    assert bytes(found["head"]) == strange[:24]
    (problem,) = decoder.problems
    assert problem.position == 2 + len(messages[0])
    assert f"unknown type {strange[:1].decode()!r} (40 bytes)" in str(problem)


def test_every_type_cut_by_a_byte_is_unparsed_for_its_length(exchange: Exchange) -> None:
    for message in exchange.messages:
        for length in {1, len(message) - 1}:
            decoder = exchange.decoder()
            frames = exchange.decode(decoder, exchange.blocks([message[:length]]), 1)
            validate(frames)
            (found,) = unparsed(frames)
            assert found["reason"] == UnparsedReason.WRONG_LENGTH
            assert found["message_bytes"] == length
            assert bytes(found["head"]) == message[:length][:24].ljust(24, b"\0")


def test_an_empty_message_takes_a_number_in_a_packet_and_ends_a_file(exchange: Exchange) -> None:
    messages = [exchange.messages[0], b"", exchange.messages[0]]
    data = exchange.blocks(messages)
    packet = exchange.decoder()
    frames = exchange.decode(packet, data, 3)
    validate(frames)
    assert unparsed(frames)["source_seq"].tolist() == [2]
    assert unparsed(frames)["message_type"].tolist() == [b""]
    assert int(frames["source_seq"].max()) == 3

    file = exchange.decoder()
    frames = exchange.decode(file, data, -1)
    assert int(frames["source_seq"].max()) == 1
    assert file.stop is not None
    assert (file.stop.reason, file.stop.position) == (f.STOP_ZERO_LENGTH, 2 + len(messages[0]))


def test_a_file_cut_at_any_byte_gives_its_whole_messages_and_says_where_it_ends(exchange: Exchange) -> None:
    data = exchange.blocks(exchange.messages)
    ends = np.cumsum([0] + [2 + len(message) for message in exchange.messages]).tolist()
    for length in range(len(data)):
        decoder = exchange.decoder()
        exchange.decode(decoder, data[:length], -1)
        whole = max(end for end in ends if end <= length)
        assert decoder.message_count == ends.index(whole)
        if whole == length:
            assert decoder.stop is None
        else:
            assert decoder.stop is not None
            assert (decoder.stop.reason, decoder.stop.position) == (f.STOP_CUT_SHORT, whole)


def test_a_small_output_filled_again_and_again_gives_the_same_frames(exchange: Exchange) -> None:
    generator = random.Random(3)
    messages = [generator.choice(exchange.messages) for _ in range(200)]
    data = exchange.blocks(messages)
    whole = exchange.decode(exchange.decoder(1_024), data, len(messages))
    for capacity in range(exchange.format.frames_per_message_max, 12):
        pieces = exchange.decode(exchange.decoder(capacity), data, len(messages))
        assert pieces.tobytes() == whole.tobytes()


def test_a_decoder_that_joins_late_makes_the_same_frames_from_there_on(exchange: Exchange) -> None:
    messages = exchange.messages
    whole = exchange.decode(exchange.decoder(), exchange.blocks(messages), len(messages))
    for skipped in range(len(messages)):
        expected = whole[whole["source_seq"] > skipped]
        late = exchange.decoder(first_message_seq=int(expected["message_seq"][0]))
        rest = messages[skipped:]
        found = exchange.decode(late, exchange.blocks(rest), len(rest), first_seq=skipped + 1)
        assert found.tobytes() == expected.tobytes()


def test_symbols_lead_to_instruments_and_back(exchange: Exchange) -> None:
    decoder = exchange.decoder()
    frames = exchange.decode(decoder, exchange.blocks(exchange.messages), len(exchange.messages))
    instruments = wire.view(frames, Schema.INSTRUMENT)[frames["schema_id"] == Schema.INSTRUMENT]
    assert instruments.size == 1
    symbol = instruments["symbol"][0].decode()
    instrument_id = int(instruments["instrument_id"][0])
    assert instrument_id != 0
    assert decoder.symbol_of(instrument_id) == symbol
    assert decoder.instrument_of(symbol) == instrument_id
    assert decoder.instrument_of("NOSUCH") is None
    assert decoder.symbol_changes == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_messages_never_break_a_schema_and_are_never_skipped(
    exchange: Exchange, data: st.DataObject
) -> None:
    messages = []
    for _ in range(data.draw(st.integers(1, 10))):
        message = bytearray(data.draw(st.sampled_from(exchange.messages)))
        for _ in range(data.draw(st.integers(0, 4))):
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(message) + 3))
        messages.append(bytes(message[:cut]).ljust(cut, b"\xff"))
    decoder = exchange.decoder()
    frames = exchange.decode(decoder, exchange.blocks(messages), len(messages))
    validate(frames)
    last_parts = frames[frames["flags"] & Flag.LAST_PART != 0]
    assert last_parts["source_seq"].tolist() == list(range(1, len(messages) + 1))
    assert decoder.problem_count == unparsed(frames).size
    assert decoder.problem_count == len(decoder.problems)


def test_every_kernel_module_of_the_folder_can_be_warmed_up(exchange: Exchange) -> None:
    folder = Path(feeds.__path__[0]) / exchange.format.name
    for path in sorted(folder.glob("*_kernels.py")):
        importlib.import_module(f"feeds.{exchange.format.name}.{path.stem}").warm_up()


@pytest.mark.parametrize("byte_count", [0, 1, 19, 39])
def test_datagrams_too_short_for_a_header_are_bad_and_counted(exchange: Exchange, byte_count: int) -> None:
    datagrams = np.array([[0, byte_count, f.LINE_A, 5], [0, -byte_count, f.LINE_B, 6]], dtype=np.int64)
    packets = np.zeros((2, f.PACKET_FIELDS), dtype=np.int64)
    state = np.zeros(exchange.format.transport_state_size, dtype=np.int64)
    data = np.zeros(64, dtype=np.uint8)
    bad = exchange.format.parse_packets_kernel(data, datagrams, 2, state, packets)
    assert bad == 2
    assert packets[:, f.PACKET_KIND].tolist() == [f.KIND_BAD, f.KIND_BAD]
    assert set(packets[:, f.PACKET_COUNT].tolist()) <= set(f.BAD_REASON_TEXT)
    assert packets[:, f.PACKET_LINE].tolist() == [f.LINE_A, f.LINE_B]
