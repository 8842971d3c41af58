"""What each IEX message becomes, which are refused and why, and how instruments are numbered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feeds import formats as f
from feeds import wire
from feeds.errors import ConfigError, FrameError
from feeds.iex import FORMAT, directory
from feeds.iex import messages as m
from feeds.iex import symbol_kernels as kernels
from feeds.iex.encode import encode_frames
from feeds.wire import Schema, StatusType, UnparsedReason
from tests import iex_reference as reference
from tests.iex_reference import Context, Decoding, blocks_of, pack

pytestmark = pytest.mark.kernels

TIME_NS = 1_696_248_001_047_749_383
SYMBOL = b"BRK.A   "


def decode_one(message: bytes) -> list[dict[str, Any]]:
    """Return the frames of one message as dictionaries of all their fields."""
    found = []
    frames = Decoding(Context()).decode([message])
    for row in range(len(frames)):
        schema = Schema(int(frames[row]["schema_id"]))
        typed = frames[row : row + 1].view(wire.FRAMES[schema])
        names = typed.dtype.names or ()
        found.append({"schema": schema} | {name: typed[name][0] for name in names})
    return found


def is_part_of(frame: dict[str, Any], **expected: Any) -> bool:
    return all(frame[name] == value for name, value in expected.items())


def test_the_message_table_agrees_with_the_layouts_of_the_reference() -> None:
    sizes = {letter: form.size for letter, form in reference.STRUCTS.items()}
    assert {message.letter: message.size for message in m.MESSAGE_TYPES} == sizes
    assert FORMAT.message_types is m.MESSAGE_TYPES


@pytest.mark.parametrize(
    "message,expected",
    [
        (pack(b"S", ord("O"), TIME_NS), {"status_type": StatusType.SYSTEM, "state": b"O"}),
        (
            pack(b"H", ord("H"), TIME_NS, symbol=SYMBOL, reason=b"T1  "),
            {"status_type": StatusType.TRADING, "state": b"H", "reason": b"T1"},
        ),
        (
            pack(b"I", ord("C"), TIME_NS, symbol=SYMBOL),
            {"status_type": StatusType.RETAIL_INTEREST, "state": b"C"},
        ),
        (
            pack(b"O", ord("N"), TIME_NS, symbol=SYMBOL),
            {"status_type": StatusType.OPERATIONAL, "state": b"N"},
        ),
        (
            pack(b"P", 1, TIME_NS, symbol=SYMBOL, detail=b"A"),
            {"status_type": StatusType.SHORT_SALE, "state": b"1", "detail": b"A"},
        ),
        (
            pack(b"E", ord("O"), TIME_NS, symbol=SYMBOL),
            {"status_type": StatusType.SECURITY_EVENT, "state": b"O"},
        ),
    ],
)
def test_a_status_message_becomes_a_status_frame(message: bytes, expected: dict[str, Any]) -> None:
    (frame,) = decode_one(message)
    assert is_part_of(frame, schema=Schema.STATUS, event_time_ns=TIME_NS, **expected)
    is_about_all = message[:1] == b"S"
    assert frame["instrument_id"] == (0 if is_about_all else directory.id_of("BRK.A"))


def test_a_directory_message_becomes_an_instrument_and_its_previous_close() -> None:
    message = pack(b"D", 0xA0, TIME_NS, symbol=SYMBOL, lot=100, close=5_312_345, tier=1)
    instrument, close = decode_one(message)
    assert is_part_of(
        instrument,
        schema=Schema.INSTRUMENT,
        part=0,
        flags=0,
        symbol=b"BRK.A",
        round_lot=100,
        luld_tier=b"1",
        instrument_flags=wire.InstrumentFlag.TEST | wire.InstrumentFlag.ETP,
    )
    assert is_part_of(
        close,
        schema=Schema.OFFICIAL_PRICE,
        part=1,
        flags=wire.Flag.LAST_PART,
        price=531_234_500_000,
        price_type=b"P",
        instrument_id=instrument["instrument_id"],
        source_seq=instrument["source_seq"],
        message_seq=instrument["message_seq"] + 1,
    )


@pytest.mark.parametrize("letter,side", [(b"8", b"B"), (b"5", b"S")])
@pytest.mark.parametrize("code,complete", [(0, 0), (1, 1), (0xFF, 1), (0xFE, 0)])
def test_a_level_update_keeps_only_the_defined_flag(
    letter: bytes, side: bytes, code: int, complete: int
) -> None:
    (frame,) = decode_one(pack(letter, code, TIME_NS, symbol=SYMBOL, size=0, price=123_400))
    assert is_part_of(
        frame, schema=Schema.LEVEL, side=side, size=0, price=12_340_000_000, is_event_complete=complete
    )


@pytest.mark.parametrize("letter,schema", [(b"T", Schema.TRADE), (b"B", Schema.TRADE_BREAK)])
def test_a_trade_keeps_all_its_flags_and_has_no_side(letter: bytes, schema: Schema) -> None:
    message = pack(letter, 0xFF, TIME_NS, symbol=SYMBOL, size=7, price=-1, trade_id=-2)
    (frame,) = decode_one(message)
    assert is_part_of(
        frame,
        schema=schema,
        conditions=0xFF,
        size=7,
        price=-100_000,
        trade_id=2**64 - 2,
        side=b"",
        order_id=0,
    )


def test_an_auction_becomes_three_parts_of_one_message() -> None:
    message = pack(
        b"A",
        ord("C"),
        TIME_NS,
        symbol=SYMBOL,
        paired=100_000,
        reference=1,
        indicative=2,
        imbalance=10_000,
        side=b"B",
        extensions=3,
        scheduled=1_696_276_800,
        clearing=4,
        collar=5,
        lower=6,
        upper=7,
    )
    auction, prices, collar = decode_one(message)
    unit = 100_000
    assert is_part_of(
        auction, schema=Schema.AUCTION, paired=100_000, imbalance=10_000, reference_price=unit, side=b"B"
    )
    assert is_part_of(auction, auction_type=b"C", extensions=3, variation=b"", part=0, flags=0)
    assert is_part_of(prices, schema=Schema.AUCTION_PRICES, near_price=2 * unit, far_price=4 * unit, part=1)
    assert is_part_of(prices, scheduled_s=1_696_276_800, flags=0)
    assert is_part_of(
        collar, schema=Schema.COLLAR, reference_price=5 * unit, lower_price=6 * unit, upper_price=7 * unit
    )
    assert is_part_of(collar, collar_type=b"A", part=2, flags=wire.Flag.LAST_PART)


def test_a_quote_has_the_ask_price_before_the_ask_size() -> None:
    message = pack(b"Q", 0x40, TIME_NS, symbol=SYMBOL, bid_size=1, bid=2, ask=3, ask_size=4)
    (frame,) = decode_one(message)
    assert is_part_of(frame, schema=Schema.QUOTE, bid_size=1, ask_size=4, conditions=0x40)
    assert is_part_of(frame, bid_price=200_000, ask_price=300_000)


VALID = {
    b"S": pack(b"S", ord("O"), TIME_NS),
    b"D": pack(b"D", 0, TIME_NS, symbol=SYMBOL, lot=100, close=1, tier=1),
    b"H": pack(b"H", ord("T"), TIME_NS, symbol=SYMBOL, reason=b"    "),
    b"I": pack(b"I", 32, TIME_NS, symbol=SYMBOL),
    b"O": pack(b"O", ord("O"), TIME_NS, symbol=SYMBOL),
    b"P": pack(b"P", 0, TIME_NS, symbol=SYMBOL, detail=b" "),
    b"E": pack(b"E", ord("C"), TIME_NS, symbol=SYMBOL),
    b"8": pack(b"8", 1, TIME_NS, symbol=SYMBOL, size=1, price=1),
    b"5": pack(b"5", 1, TIME_NS, symbol=SYMBOL, size=1, price=1),
    b"T": pack(b"T", 0, TIME_NS, symbol=SYMBOL, size=1, price=1, trade_id=1),
    b"X": pack(b"X", ord("M"), TIME_NS, symbol=SYMBOL, price=1),
    b"B": pack(b"B", 0, TIME_NS, symbol=SYMBOL, size=1, price=1, trade_id=1),
    b"A": pack(
        b"A",
        ord("O"),
        TIME_NS,
        symbol=SYMBOL,
        paired=1,
        reference=1,
        indicative=1,
        imbalance=1,
        side=b"N",
        extensions=0,
        scheduled=1,
        clearing=1,
        collar=1,
        lower=1,
        upper=1,
    ),
    b"Q": pack(b"Q", 0, TIME_NS, symbol=SYMBOL, bid_size=1, bid=1, ask=1, ask_size=1),
}


def reason_of(message: bytes) -> UnparsedReason | None:
    """Return why a message became an UNPARSED frame, None if it did not."""
    frame = decode_one(message)[0]
    return UnparsedReason(int(frame["reason"])) if frame["schema"] is Schema.UNPARSED else None


@pytest.mark.parametrize("letter", sorted(VALID))
def test_a_known_message_may_grow_at_its_end_but_not_shrink(letter: bytes) -> None:
    message = VALID[letter]
    assert reason_of(message) is None
    assert decode_one(message + b"later fields") == decode_one(message)
    for length in range(1, len(message)):
        assert reason_of(message[:length]) is UnparsedReason.WRONG_LENGTH


def test_an_unknown_type_becomes_an_unparsed_frame() -> None:
    unknown = sorted(set(range(256)) - set(m.SIZE_OF_TYPE))
    messages = [bytes([letter]) + bytes(range(1, 40)) for letter in unknown]
    frames = Decoding(Context()).decode(messages).view(wire.FRAMES[Schema.UNPARSED])
    assert len(frames) == len(unknown) == 242
    assert set(frames["schema_id"]) == {Schema.UNPARSED}
    assert set(frames["reason"]) == {UnparsedReason.UNKNOWN_TYPE}
    assert set(frames["message_bytes"]) == {40}
    assert set(frames["flags"]) == {wire.Flag.LAST_PART}
    assert [bytes(head) for head in frames["head"]] == [message[:24] for message in messages]


@pytest.mark.parametrize(
    "message",
    [
        pack(b"T", 0, TIME_NS, symbol=SYMBOL, size=1, price=reference.PRICE_MAX + 1, trade_id=1),
        pack(b"8", 1, TIME_NS, symbol=SYMBOL, size=1, price=-reference.PRICE_MAX - 1),
        pack(b"Q", 0, TIME_NS, symbol=SYMBOL, bid_size=1, bid=1, ask=2**63 - 1, ask_size=1),
        pack(b"D", 0, TIME_NS, symbol=SYMBOL, lot=100, close=-(2**63), tier=1),
        pack(b"D", 0, TIME_NS, symbol=SYMBOL, lot=100, close=1, tier=10),
        pack(b"X", ord("P"), TIME_NS, symbol=SYMBOL, price=1),
        pack(b"P", 2, TIME_NS, symbol=SYMBOL, detail=b" "),
        pack(b"H", ord("H"), TIME_NS, symbol=SYMBOL, reason=b"T1\0\0"),
        pack(b"O", ord("O"), TIME_NS, symbol=b" " * 8),
        pack(b"O", ord("O"), TIME_NS, symbol=b"\0" * 8),
        pack(b"O", ord("O"), TIME_NS, symbol=b"AB\0     "),
        pack(b"O", ord("O"), TIME_NS, symbol=b"\xc4BC     "),
        pack(b"S", ord("O"), -1),
        pack(b"O", ord("O"), -(2**63), symbol=b"ABC     "),
    ],
)
def test_a_value_that_no_frame_can_hold_is_reported_and_not_bent(message: bytes) -> None:
    assert reason_of(message) is UnparsedReason.BAD_VALUE


def test_a_time_before_1970_is_reported_by_a_frame_without_a_time() -> None:
    (frame,) = Decoding(Context()).decode([pack(b"I", ord("B"), -1, symbol=b"ABC     ")])
    assert frame["schema_id"] == Schema.UNPARSED
    assert frame["event_time_ns"] == 0
    assert frame["instrument_id"] == reference.instrument_id(b"ABC     ")


def test_problems_name_the_message_and_its_place() -> None:
    decoding = Decoding(Context(first_seq=100))
    decoding.decode([VALID[b"S"], b"?what", VALID[b"T"][:-1], b"", VALID[b"S"]])
    assert decoding.state[f.STATE_PROBLEM_COUNT] == 3
    assert decoding.problems[:3].tolist() == [
        [101, 12, UnparsedReason.UNKNOWN_TYPE, ord("?"), 5],
        [102, 19, UnparsedReason.WRONG_LENGTH, ord("T"), 37],
        [103, 58, UnparsedReason.WRONG_LENGTH, 0, 0],
    ]
    assert decoding.counts[[ord("S"), ord("?"), ord("T"), 0]].tolist() == [2, 1, 1, 1]


def test_every_valid_message_can_be_encoded_back() -> None:
    decoding = Decoding(Context())
    frames = decoding.decode(list(VALID.values()))
    assert encode_frames(frames, decoding.directory) == blocks_of(VALID.values())


def test_short_unparsed_messages_are_encoded_back_and_long_ones_refused() -> None:
    decoding = Decoding(Context())
    short = [b"", b"?", b"?" * 24, VALID[b"T"][:20]]
    assert encode_frames(decoding.decode(short), decoding.directory) == blocks_of(short)
    with pytest.raises(FrameError, match="message_bytes must be at most 24") as caught:
        encode_frames(decoding.decode([VALID[b"S"], b"?" * 25]), decoding.directory)
    assert caught.value.frame_index == 1


@pytest.mark.parametrize(
    "frame,text",
    [
        (wire.new_frame(Schema.ORDER_ADD, instrument_id=1), "instrument_id must be one whose symbol"),
        (wire.new_frame(Schema.HEARTBEAT), "instrument_id must be one whose symbol"),
        (wire.new_frame(Schema.INSTRUMENT, symbol=b"A", luld_tier=b"1"), "part must be followed"),
        (wire.new_frame(Schema.STATUS, status_type=StatusType.BREAKER), "instrument_id"),
    ],
)
def test_a_frame_that_no_iex_message_can_say_is_refused(frame: wire.FrameArray, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        encode_frames(frame, FORMAT.new_directory())


def test_a_price_finer_than_the_exchanges_is_refused() -> None:
    decoding = Decoding(Context())
    frames = decoding.decode([VALID[b"T"]])
    frames.view(wire.FRAMES[Schema.TRADE])["price"] += 1
    with pytest.raises(FrameError, match="multiple of 1e-4"):
        encode_frames(frames, decoding.directory)


# ---------------------------------------------------------------------------------------------- symbols


def learn(symbols: list[str], book: f.IntArray, state: f.IntArray) -> list[int]:
    return [int(kernels.learn_symbol(book, state, directory.symbol_word(symbol))) for symbol in symbols]


def test_ids_are_frozen_because_journals_hold_them() -> None:
    frozen = {"A": 114_555_507, "TSLA": 1_101_212_825, "BRK.A": 295_904_890, "NTEST.A": 4_031_649_730}
    assert {symbol: directory.id_of(symbol) for symbol in frozen} == frozen


def test_the_directory_knows_what_it_has_seen_and_nothing_else() -> None:
    book, state = FORMAT.new_directory(), np.zeros(f.STATE_FIELDS, dtype=np.int64)
    ids = learn(["TSLA", "NTEST.A", "TSLA"], book, state)
    assert ids[0] == ids[2] == FORMAT.instrument_of(book, "TSLA")
    assert [FORMAT.symbol_of(book, number) for number in ids] == ["TSLA", "NTEST.A", "TSLA"]
    assert FORMAT.instrument_of(book, "AAPL") is None
    assert FORMAT.symbol_of(book, directory.id_of("AAPL")) is None
    assert FORMAT.symbol_of(book, 0) is None
    assert [FORMAT.instrument_of(book, text) for text in ("", " TSLA", "ÄÖÜ", "TOO LONG!")] == [None] * 4
    assert book[kernels.DIRECTORY_COUNT] == 2


@pytest.mark.parametrize("symbol", ["", " A", "A ", "NINECHARS", "Ä", "A\n"])
def test_what_is_not_a_symbol_has_no_word(symbol: str) -> None:
    with pytest.raises(ConfigError, match="symbol must be 1 to 8"):
        directory.symbol_word(symbol)


def test_two_symbols_of_one_id_are_counted_and_the_first_keeps_the_name() -> None:
    first, second = "AAACFCFE", "AAAECABB"  # found by search: longer than six characters, so hashed
    book, state = FORMAT.new_directory(), np.zeros(f.STATE_FIELDS, dtype=np.int64)
    ids = learn([first, second, first, second], book, state)
    assert len(set(ids)) == 1
    assert state[f.STATE_SYMBOL_CHANGES] == 1
    assert FORMAT.symbol_of(book, ids[0]) == first
    assert FORMAT.instrument_of(book, second) == ids[0]


def test_a_full_directory_still_gives_the_right_ids() -> None:
    book, state = FORMAT.new_directory(), np.zeros(f.STATE_FIELDS, dtype=np.int64)
    learn(["SEEN"], book, state)
    book[kernels.DIRECTORY_COUNT] = kernels.SYMBOLS_MAX
    assert learn(["NEW", "SEEN", "NEW"], book, state) == [
        directory.id_of("NEW"),
        directory.id_of("SEEN"),
        directory.id_of("NEW"),
    ]
    assert FORMAT.instrument_of(book, "NEW") is None
    assert book[kernels.DIRECTORY_REFUSED] == 2
