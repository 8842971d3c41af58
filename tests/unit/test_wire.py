"""The frame's bytes are frozen, its views copy nothing, and its compiled writers agree with its dtypes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest

from feeds import wire, wire_kernels
from feeds.compiled import i64
from feeds.errors import FrameError
from feeds.validation import crc32c, stamp_crc, validate
from feeds.wire import FRAME_BYTES, Flag, Kind, Schema, StatusType

# Every field of the header and of an ORDER_ADD with a value of its own. These bytes are on disks and on
# networks: if this test fails, the version number must change, not the test.
GOLDEN_ORDER_ADD = bytes.fromhex(
    "60000000 01 01 0100 04030201 08070605"
    "1817161514131211 2827262524232221 3837363534333231 4847464544434241"
    "54535251 0500 0200 64636261 00000000"
    "7877767574737271 8877665544332211 94939291 4e534451 42 01 00000000 b2b1"
)


def golden_order_add() -> wire.FrameArray:
    return wire.new_frame(
        Schema.ORDER_ADD,
        source_stream_id=0x01020304,
        source_session=0x05060708,
        source_seq=0x1112131415161718,
        message_seq=0x2122232425262728,
        event_time_ns=0x3132333435363738,
        publish_time_ns=0x4142434445464748,
        instrument_id=0x51525354,
        part=2,
        epoch=0x61626364,
        order_id=0x7172737475767778,
        price=0x1122334455667788,
        size=0x91929394,
        attribution=b"NSDQ",
        side=b"B",
        is_attributed=1,
        tracking=0xB1B2,
    )


def test_golden_bytes_of_an_order_are_frozen() -> None:
    assert golden_order_add().tobytes() == GOLDEN_ORDER_ADD


# Schema numbers, field names, formats and offsets as one line each: what a reader of old files relies on.
FROZEN_PAYLOADS = {
    "TRADE": (
        "1 price<i8@0 order_id<u8@8 trade_id<u8@16 size<u4@24 side|S1@28 conditions|u1@29 tracking<u2@30"
    ),
    "CROSS": "2 price<i8@0 size<u8@8 trade_id<u8@16 cross_type|S1@24 tracking<u2@30",
    "TRADE_BREAK": (
        "3 price<i8@0 order_id<u8@8 trade_id<u8@16 size<u4@24 side|S1@28 conditions|u1@29 tracking<u2@30"
    ),
    "QUOTE": (
        "4 bid_price<i8@0 ask_price<i8@8 bid_size<u4@16 ask_size<u4@20 conditions|u1@24 tracking<u2@30"
    ),
    "ORDER_ADD": (
        "5 order_id<u8@0 price<i8@8 size<u4@16 attribution|S4@20 side|S1@24 is_attributed|u1@25 "
        "tracking<u2@30"
    ),
    "ORDER_EXECUTE": (
        "6 order_id<u8@0 trade_id<u8@8 price<i8@16 size<u4@24 is_printable|u1@28 is_priced|u1@29 "
        "tracking<u2@30"
    ),
    "ORDER_CANCEL": "7 order_id<u8@0 size<u4@24 tracking<u2@30",
    "ORDER_DELETE": "8 order_id<u8@0 tracking<u2@30",
    "ORDER_REPLACE": "9 order_id<u8@0 new_order_id<u8@8 price<i8@16 size<u4@24 tracking<u2@30",
    "LEVEL": "10 price<i8@0 size<u4@24 side|S1@28 is_event_complete|u1@29 tracking<u2@30",
    "STATUS": "11 status_type|u1@0 state|S1@1 market|S1@2 detail|S1@3 reason|S4@4 tracking<u2@30",
    "INSTRUMENT": (
        "12 symbol|S8@0 round_lot<u4@8 leverage<u4@12 market_category|S1@16 financial_status|S1@17 "
        "round_lots_only|S1@18 issue_class|S1@19 issue_subtype|S2@20 authenticity|S1@22 "
        "short_sale_threshold|S1@23 ipo|S1@24 luld_tier|S1@25 etp|S1@26 inverse|S1@27 "
        "instrument_flags|u1@28 tracking<u2@30"
    ),
    "AUCTION": (
        "13 paired<u8@0 imbalance<u8@8 reference_price<i8@16 side|S1@24 auction_type|S1@25 "
        "variation|S1@26 extensions|u1@27 tracking<u2@30"
    ),
    "AUCTION_PRICES": "14 near_price<i8@0 far_price<i8@8 scheduled_s<u4@16 tracking<u2@30",
    "COLLAR": (
        "15 reference_price<i8@0 lower_price<i8@8 upper_price<i8@16 extension<u4@24 collar_type|S1@28 "
        "tracking<u2@30"
    ),
    "OFFICIAL_PRICE": "16 price<i8@0 price_type|S1@8 tracking<u2@30",
    "BREAKER_LEVELS": "17 level1_price<i8@0 level2_price<i8@8 level3_price<i8@16 tracking<u2@30",
    "PARTICIPANT": "18 mpid|S4@0 primary|S1@4 mode|S1@5 state|S1@6 tracking<u2@30",
    "IPO": "19 price<i8@0 release_s<u4@8 qualifier|S1@12 symbol|S8@16 tracking<u2@30",
    "DIRECT_LISTING": "20 near_price<i8@0 near_time<u8@8 is_eligible|S1@16 tracking<u2@30",
    "UNPARSED": "21 reason|u1@0 message_type|S1@1 message_bytes<u2@2 head|V24@8",
    "ADMIN": "22 admin_code<u2@0 severity|u1@2 text_bytes|u1@3 admin_id<u4@4 text|S24@8",
    "BOOK_BEGIN": "23 next_source_seq<u8@0 order_count<u4@8 level_count<u4@12 state|S1@16",
    "BOOK_LEVEL": "24 price<i8@0 size<u8@8 order_count<u4@16 index<u4@20 side|S1@24",
    "BOOK_ORDER": "25 order_id<u8@0 price<i8@8 size<u4@16 index<u4@20 side|S1@24",
    "HEARTBEAT": "26 next_source_seq<u8@0 source_time_ns<i8@8",
    "END_OF_SESSION": "27 last_source_seq<u8@0",
}


def test_every_payload_layout_is_frozen() -> None:
    seen = {}
    for schema in Schema:
        payload = wire.PAYLOADS[schema]
        text = " ".join(
            f"{name}{payload[name].str}@{wire.place(name, schema).offset - wire.HEADER_BYTES}"
            for name in payload.names or ()
        )
        seen[schema.name] = f"{int(schema)} {text}"
    assert seen == FROZEN_PAYLOADS


@pytest.mark.parametrize("schema", list(Schema))
def test_a_new_frame_of_every_schema_is_96_bytes_and_valid(schema: Schema) -> None:
    required = {
        field: values[0] if wire.FRAMES[schema][field].kind == "u" else values[:1]
        for (owner, field), values in wire.ALLOWED.items()
        if owner == schema
    }
    frame = wire.new_frame(schema, **required)
    assert frame.nbytes == FRAME_BYTES
    validate(frame)


def test_view_shares_the_memory_it_was_given() -> None:
    memory = bytearray(golden_order_add().tobytes() * 3)
    adds = wire.view(memory, Schema.ORDER_ADD)
    adds["size"][1] = 7
    assert wire.view(memory, Schema.ORDER_ADD)["size"].tolist() == [0x91929394, 7, 0x91929394]
    assert np.shares_memory(wire.words(adds), adds)


def test_a_batch_of_a_broken_size_is_refused_with_the_size() -> None:
    with pytest.raises(FrameError, match="97 bytes") as caught:
        wire.view(bytes(97))
    assert caught.value.field == "batch"


def test_strided_frames_are_refused_rather_than_copied() -> None:
    with pytest.raises(FrameError, match="contiguous"):
        wire.view(wire.empty(4)[::2])


WRITERS: dict[Schema, Callable[..., None]] = {
    Schema.TRADE: wire_kernels.put_trade,
    Schema.CROSS: wire_kernels.put_cross,
    Schema.TRADE_BREAK: wire_kernels.put_trade,
    Schema.QUOTE: wire_kernels.put_quote,
    Schema.ORDER_ADD: wire_kernels.put_order_add,
    Schema.ORDER_EXECUTE: wire_kernels.put_order_execute,
    Schema.ORDER_CANCEL: wire_kernels.put_order_reduce,
    Schema.ORDER_REPLACE: wire_kernels.put_order_replace,
    Schema.LEVEL: wire_kernels.put_level,
    Schema.STATUS: wire_kernels.put_status,
    Schema.INSTRUMENT: wire_kernels.put_instrument,
    Schema.AUCTION: wire_kernels.put_auction,
    Schema.AUCTION_PRICES: wire_kernels.put_auction_prices,
    Schema.COLLAR: wire_kernels.put_collar,
    Schema.OFFICIAL_PRICE: wire_kernels.put_official_price,
    Schema.BREAKER_LEVELS: wire_kernels.put_breaker_levels,
    Schema.PARTICIPANT: wire_kernels.put_participant,
    Schema.IPO: wire_kernels.put_ipo,
    Schema.DIRECT_LISTING: wire_kernels.put_direct_listing,
    Schema.BOOK_BEGIN: wire_kernels.put_book_begin,
    Schema.BOOK_LEVEL: wire_kernels.put_book_level,
    Schema.BOOK_ORDER: wire_kernels.put_book_order,
}


def as_integer(frame: wire.FrameArray, schema: Schema | None, field: str) -> int:
    where = wire.place(field, schema)
    raw = frame.tobytes()[where.offset : where.offset + where.byte_count]
    return int.from_bytes(raw, "little", signed=where.byte_count == 8)


def argument_names(writer: Callable[..., None]) -> list[str]:
    function = getattr(writer, "py_func", writer)
    return list(inspect.signature(function).parameters)[2:]


@pytest.mark.kernels
@pytest.mark.parametrize("schema", list(WRITERS), ids=lambda schema: schema.name)
def test_compiled_writers_put_every_field_where_the_dtype_has_it(schema: Schema) -> None:
    writer = WRITERS[schema]
    names = argument_names(writer)
    assert set(names) == set(wire.PAYLOADS[schema].names or ())
    for top in (1, 0x7F):  # low and high bits of every field, so that neighbours would be hit
        frame = wire.empty(1)
        frame.view(np.uint8)[wire.HEADER_BYTES :] = 0x55  # a writer leaves nothing of what was there
        values = []
        for position, name in enumerate(names):
            width = wire.place(name, schema).byte_count
            pattern = bytes([(top + position) & 0x7F] * width)
            values.append(int.from_bytes(pattern, "little"))
        writer(wire.words(frame), 0, *values)
        for name, value in zip(names, values, strict=True):
            assert as_integer(frame, schema, name) == value, name
        unnamed = frame.copy()
        for name in names:
            where = wire.place(name, schema)
            unnamed.view(np.uint8)[where.offset : where.offset + where.byte_count] = 0
        assert not unnamed.view(np.uint8)[wire.HEADER_BYTES :].any()


@pytest.mark.kernels
def test_compiled_header_and_unparsed_writers_agree_with_the_dtype() -> None:
    frame = wire.empty(1)
    words = wire.words(frame)
    wire_kernels.put_header(words, 0, 1, 5, 7 | (8 << 32), 9, 10, 11, 12, 13, 21, 3, 14)
    wire_kernels.put_unparsed(words, 0, 2, ord("z"), 4711, 1, 2, 3)
    seen = wire.view(frame, Schema.UNPARSED)[0]
    header = {name: int(seen[name]) for name in wire.HEADER.names or ()}
    assert header == {
        "length": 96, "version": 1, "kind": 1, "flags": 5, "source_stream_id": 7, "source_session": 8,
        "source_seq": 9, "message_seq": 10, "event_time_ns": 11, "publish_time_ns": 12, "instrument_id": 13,
        "schema_id": 21, "part": 3, "epoch": 14, "crc32c": 0,
    }  # fmt: skip
    assert (int(seen["reason"]), bytes(seen["message_type"]), int(seen["message_bytes"])) == (2, b"z", 4711)
    assert bytes(seen["head"]) == b"".join(value.to_bytes(8, "little") for value in (1, 2, 3))


VIOLATIONS = [
    ("length", 95, "length", 96),
    ("version", 2, "version", 1),
    ("schema_id", 0, "schema_id", "one of 1..27"),
    ("schema_id", 999, "schema_id", "one of 1..27"),
    ("kind", Kind.END, "kind", "1 (DATA) for ORDER_ADD"),
    ("flags", 0x8001, "flags", "within 0x000f"),
    ("side", b"X", "ORDER_ADD.side", "one of b'B', b'S'"),
    ("is_attributed", 2, "ORDER_ADD.is_attributed", "one of 0, 1"),
]


@pytest.mark.kernels
@pytest.mark.parametrize("field, value, complaint, allowed", VIOLATIONS)
def test_validation_names_the_field_what_it_found_and_what_is_allowed(
    field: str, value: object, complaint: str, allowed: object
) -> None:
    batch = np.concatenate([golden_order_add()] * 5)
    wire.view(batch, Schema.ORDER_ADD)[field][3] = value
    with pytest.raises(FrameError) as caught:
        validate(batch)
    assert (caught.value.field, caught.value.allowed, caught.value.frame_index) == (complaint, allowed, 3)
    assert str(caught.value.found) in str(caught.value) or repr(caught.value.found) in str(caught.value)


@pytest.mark.kernels
def test_bytes_that_a_schema_does_not_name_must_be_zero() -> None:
    frame = wire.new_frame(Schema.STATUS, status_type=StatusType.TRADING)
    frame.view(np.uint8)[80] = 9
    with pytest.raises(FrameError, match="STATUS byte 80 must be 0"):
        validate(frame)


@pytest.mark.kernels
@pytest.mark.parametrize("byte_count", [0, 1, 7, 8, 9, 63, 64, 1000])
def test_crc32c_equals_an_independent_implementation(byte_count: int) -> None:
    data = np.random.default_rng(byte_count).integers(0, 256, byte_count, dtype=np.uint8).tobytes()
    assert crc32c(data) == google_crc32c.value(data)


@pytest.mark.kernels
def test_the_table_and_the_instruction_give_one_checksum() -> None:
    from feeds import checksum_kernels

    for word in (0, 1, -1, 0x0123456789ABCDEF, -(2**63)):
        by_table = checksum_kernels.crc_word_by_table(i64(0xFFFFFFFF), i64(word)) ^ 0xFFFFFFFF
        assert by_table == google_crc32c.value(int(word).to_bytes(8, "little", signed=True))


@pytest.mark.kernels
def test_any_flipped_bit_of_a_stamped_frame_is_found() -> None:
    frame = golden_order_add()
    stamp_crc(frame)
    validate(frame, check_crc=True)
    for bit in range(FRAME_BYTES * 8):
        damaged = frame.copy()
        damaged.view(np.uint8)[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(FrameError):
            validate(damaged, check_crc=True)


@pytest.mark.kernels
def test_an_unstamped_frame_does_not_pass_a_checksum_check() -> None:
    with pytest.raises(FrameError, match="crc32c"):
        validate(golden_order_add(), check_crc=True)


def test_stamping_is_over_the_frame_with_a_zero_checksum_field() -> None:
    frame = golden_order_add()
    expected = google_crc32c.value(frame.tobytes())
    stamp_crc(frame)
    assert int(frame["crc32c"][0]) == expected


@pytest.mark.parametrize(
    "price, text",
    [
        (12_340_000_000, "12.34"),
        (-5_000_000, "-0.005"),
        (0, "0.00"),
        (1, "0.000000001"),
        (10**18, "1000000000.00"),
    ],
)
def test_prices_read_as_people_write_them(price: int, text: str) -> None:
    assert wire.price_text(price) == text


def test_flags_and_kinds_keep_their_numbers() -> None:
    assert [int(kind) for kind in Kind] == [1, 2, 3, 4, 5]
    assert (int(Flag.LAST_PART), int(Flag.RETRANSMIT), int(Flag.REPLAY)) == (1, 2, 4)
