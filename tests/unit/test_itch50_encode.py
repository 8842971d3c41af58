"""Writers give the bytes of the specification; frames that ITCH cannot express are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feeds import wire
from feeds.errors import FrameError
from feeds.itch50 import FORMAT, encode_kernels
from feeds.itch50.encode import encode_frames
from feeds.itch50.messages import BLOCK_BYTES_MAX, MESSAGE_TYPES
from feeds.wire import Schema, StatusType, UnparsedReason
from tests import itch50_reference as reference

pytestmark = pytest.mark.kernels

MIDNIGHT_NS = 1_577_682_000_000_000_000
LOCATE = 5


def known_directory() -> Any:
    directory = FORMAT.new_directory()
    directory[LOCATE] = encode_kernels.padded_word(b"AAPL", 8)
    return directory


def frame(schema: Schema, **fields: Any) -> wire.FrameArray:
    header = {"event_time_ns": MIDNIGHT_NS + 1, "instrument_id": LOCATE}
    return wire.new_frame(schema, **(header | fields))


def test_an_add_order_has_these_bytes() -> None:
    buffer = np.zeros(64, dtype=np.uint8)
    stock = encode_kernels.padded_word(b"AAPL", 8)
    head = (0x0102, 0x0304, 0x05060708090A)
    end = encode_kernels.write_add_order(
        buffer, 0, *head, 0x1112131415161718, ord("B"), 0x21222324, stock, 0x31323334
    )
    expected = (
        "0024"  # length
        "41 0102 0304 05060708090a"  # head
        "1112131415161718 42 21222324"  # order, side, shares
        "4141504c20202020 31323334"  # stock, price
    )
    assert buffer[:end].tobytes() == bytes.fromhex(expected)
    assert not buffer[end:].any()


def test_the_sample_of_every_type_is_what_struct_reads() -> None:
    buffer = np.zeros(len(MESSAGE_TYPES) * BLOCK_BYTES_MAX, dtype=np.uint8)
    data = buffer[: encode_kernels.exercise_kernel(buffer, 0)].tobytes()
    seen = []
    while data:
        length = int.from_bytes(data[:2], "big")
        message, data = data[2 : 2 + length], data[2 + length :]
        locate, tracking, time_ns, fields = reference.unpack(message)
        assert (tracking, time_ns) == (0, 1)
        if "stock" in fields:
            assert fields["stock"] == b"TWIN    "
        assert reference.pack(message[:1], locate, tracking, time_ns, **fields) == message
        seen.append(message[:1])
    assert sorted(seen) == sorted(message.letter for message in MESSAGE_TYPES)


@pytest.mark.parametrize(
    "batch, field",
    [
        (frame(Schema.LEVEL, side=b"B"), "schema_id"),
        (frame(Schema.STATUS, status_type=StatusType.SECURITY_EVENT), "schema_id"),
        (frame(Schema.ORDER_EXECUTE, is_printable=0, is_priced=0), "schema_id"),
        (frame(Schema.COLLAR, collar_type=b"A"), "schema_id"),
        (frame(Schema.ORDER_ADD, side=b"B", price=1), "price"),
        (frame(Schema.ORDER_ADD, side=b"B", price=-100_000), "price"),
        (frame(Schema.ORDER_ADD, side=b"B", price=2**32 * 100_000), "price"),
        (frame(Schema.ORDER_REPLACE, price=99_999), "price"),
        (frame(Schema.ORDER_EXECUTE, is_priced=1, price=5), "price"),
        (frame(Schema.TRADE, side=b"B", price=5), "price"),
        (frame(Schema.CROSS, price=5), "price"),
        (frame(Schema.IPO, price=5), "price"),
        (frame(Schema.BREAKER_LEVELS, level3_price=5), "price"),
        (frame(Schema.COLLAR, collar_type=b"L", lower_price=5), "price"),
        (frame(Schema.ORDER_DELETE, event_time_ns=MIDNIGHT_NS - 1), "event_time_ns"),
        (frame(Schema.ORDER_DELETE, event_time_ns=MIDNIGHT_NS + 2**48), "event_time_ns"),
        (frame(Schema.ORDER_DELETE, instrument_id=65_536), "instrument_id"),
        (frame(Schema.ORDER_ADD, side=b"B", instrument_id=6), "instrument_id"),
        (frame(Schema.STATUS, status_type=StatusType.TRADING, instrument_id=6), "instrument_id"),
        (frame(Schema.AUCTION), "part"),
        (frame(Schema.DIRECT_LISTING), "part"),
        (frame(Schema.UNPARSED, reason=UnparsedReason.UNKNOWN_TYPE, message_bytes=25), "message_bytes"),
    ],
)
def test_what_itch_cannot_say_is_refused_by_field_and_row(batch: wire.FrameArray, field: str) -> None:
    good = frame(Schema.ORDER_DELETE, order_id=1)
    with pytest.raises(FrameError) as caught:
        encode_frames(np.concatenate([good, batch]), known_directory(), MIDNIGHT_NS)
    assert caught.value.field == field
    assert caught.value.frame_index == 1


def test_parts_of_another_message_do_not_complete_an_auction() -> None:
    parts = np.concatenate(
        [frame(Schema.AUCTION, source_seq=1), frame(Schema.AUCTION_PRICES, source_seq=2, part=1)]
    )
    with pytest.raises(FrameError, match="followed by the other parts"):
        encode_frames(parts, known_directory(), MIDNIGHT_NS)


@pytest.mark.parametrize("message", [b"", b"z", b"zabcdefghijklmnopqrstuvw"])
def test_an_unparsed_message_that_the_frame_holds_whole_comes_back(message: bytes) -> None:
    frames = reference.decode([message], reference.Context())
    assert encode_frames(frames, known_directory(), MIDNIGHT_NS) == reference.blocks_of([message])


def test_a_directory_of_another_shape_is_refused() -> None:
    with pytest.raises(FrameError, match="directory"):
        encode_frames(wire.empty(0), np.zeros(5, dtype=np.int64), MIDNIGHT_NS)
