"""The frame: the one message format that all parts of Twintape speak. The only file that knows an offset.

Little-endian, 8-byte aligned. A header of 64 bytes, then a payload of 32 whose meaning `schema_id` gives:

     0        4         5      6       8                  12               16
     | length | version | kind | flags | source_stream_id | source_session | source_seq
     24            32              40                48              52          54     56      60
     | message_seq | event_time_ns | publish_time_ns | instrument_id | schema_id | part | epoch | crc32c
     64                                                                                              96
     | payload, one dtype per schema below ...                                                        |

Every schema of version 1 fits 32 bytes; what does not (an auction's prices, an order book) becomes several
frames, numbered by `part` and closed by LAST_PART. So a batch of frames of any mixture is one array with one
stride: `view(batch)` is a structured array over the memory that the frames arrived in, `view(batch, TRADE)`
the same memory with that schema's columns, and a kernel finds frame i at word 12 * i without an index.

Prices are int64 in 1e-9 of the currency; times are ns since 1970 UTC. Text is padded with NULs, so that
`batch["symbol"] == b"AAPL"` holds. Bytes that a schema does not name are zero, and validation insists on it.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np

VERSION = 1
HEADER_BYTES = 64
PAYLOAD_BYTES = 32
FRAME_BYTES = HEADER_BYTES + PAYLOAD_BYTES
FRAME_WORDS = FRAME_BYTES // 8
PAYLOAD_WORD = HEADER_BYTES // 8  # index of the first payload word

PRICE_SCALE = 1_000_000_000  # a price of 1.0
TEXT_BYTES = 24  # of an administrative message in one frame
ADMIN_STREAM = 1 << 31  # set in source_stream_id of what is numbered by us, not by the exchange

FrameArray = np.ndarray[Any, np.dtype[np.void]]
WordArray = np.ndarray[Any, np.dtype[np.int64]]


class Kind(IntEnum):
    DATA = 1
    ADMIN = 2
    HEARTBEAT = 3
    SNAPSHOT = 4
    END = 5


class Flag(IntFlag):
    LAST_PART = 1  # the last frame that its source message became
    RETRANSMIT = 2  # sent again out of history
    REPLAY = 4  # the past: not to be traded on
    UNSYNCED = 8  # published out of step with the group: the key is right, message_seq means nothing


class Schema(IntEnum):
    TRADE = 1
    CROSS = 2
    TRADE_BREAK = 3
    QUOTE = 4
    ORDER_ADD = 5
    ORDER_EXECUTE = 6
    ORDER_CANCEL = 7
    ORDER_DELETE = 8
    ORDER_REPLACE = 9
    LEVEL = 10
    STATUS = 11
    INSTRUMENT = 12
    AUCTION = 13
    AUCTION_PRICES = 14
    COLLAR = 15
    OFFICIAL_PRICE = 16
    BREAKER_LEVELS = 17
    PARTICIPANT = 18
    IPO = 19
    DIRECT_LISTING = 20
    UNPARSED = 21
    ADMIN = 22
    BOOK_BEGIN = 23
    BOOK_LEVEL = 24
    BOOK_ORDER = 25
    HEARTBEAT = 26
    END_OF_SESSION = 27


class StatusType(IntEnum):
    """What a STATUS frame is about; `state` holds the exchange's letter for it."""

    SYSTEM = 1  # the market's day: start of messages ... end of messages
    TRADING = 2  # halted, paused, quoting, trading; `reason` says why
    SHORT_SALE = 3  # '0' unrestricted, '1' and '2' restricted
    OPERATIONAL = 4  # halted on one market only
    RETAIL_INTEREST = 5
    SECURITY_EVENT = 6  # opening or closing process done
    BREAKER = 7  # a market-wide circuit breaker level was passed


class TradeCondition(IntFlag):
    INTERMARKET_SWEEP = 0x80
    EXTENDED_HOURS = 0x40
    ODD_LOT = 0x20
    TRADE_THROUGH_EXEMPT = 0x10
    SINGLE_PRICE_CROSS = 0x08


class QuoteCondition(IntFlag):
    NOT_AVAILABLE = 0x80
    OUT_OF_HOURS = 0x40


class InstrumentFlag(IntFlag):
    TEST = 0x80
    WHEN_ISSUED = 0x40
    ETP = 0x20


class UnparsedReason(IntEnum):
    UNKNOWN_TYPE = 1
    WRONG_LENGTH = 2
    BAD_VALUE = 3  # a side that is neither buy nor sell, a price that does not fit


class Place(NamedTuple):
    """Where a field is: byte offset in the frame, its word, and its shift inside the word in bits."""

    offset: int
    word: int
    shift: int
    byte_count: int


def _layout(total_bytes: int, **fields: tuple[str, int]) -> np.dtype[np.void]:
    """Return a packed dtype from name=(format, offset), refusing overlaps and overruns."""
    used = np.zeros(total_bytes, dtype=bool)
    for name, (form, offset) in fields.items():
        size = np.dtype(form).itemsize
        assert 0 <= offset <= total_bytes - size, f"{name} leaves the layout"
        assert not used[offset : offset + size].any(), f"{name} overlaps another field"
        assert offset // 8 == (offset + size - 1) // 8 or offset % 8 == 0, f"{name} straddles words"
        used[offset : offset + size] = True
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": total_bytes,
        }
    )


HEADER = _layout(
    HEADER_BYTES,
    length=("<u4", 0),
    version=("<u1", 4),
    kind=("<u1", 5),
    flags=("<u2", 6),
    source_stream_id=("<u4", 8),
    source_session=("<u4", 12),
    source_seq=("<u8", 16),
    message_seq=("<u8", 24),
    event_time_ns=("<i8", 32),
    publish_time_ns=("<i8", 40),
    instrument_id=("<u4", 48),
    schema_id=("<u2", 52),
    part=("<u2", 54),
    epoch=("<u4", 56),
    crc32c=("<u4", 60),
)
assert sum(HEADER[name].itemsize for name in HEADER.names or ()) == HEADER_BYTES  # no hidden padding

# `tracking` is the exchange's own tag of a message (ITCH: tracking number), 0 where it has none.
_TRADE = _layout(
    PAYLOAD_BYTES,
    price=("<i8", 0),
    order_id=("<u8", 8),
    trade_id=("<u8", 16),
    size=("<u4", 24),
    side=("S1", 28),
    conditions=("<u1", 29),
    tracking=("<u2", 30),
)

PAYLOADS: dict[Schema, np.dtype[np.void]] = {
    Schema.TRADE: _TRADE,
    Schema.CROSS: _layout(
        PAYLOAD_BYTES,
        price=("<i8", 0),
        size=("<u8", 8),
        trade_id=("<u8", 16),
        cross_type=("S1", 24),
        tracking=("<u2", 30),
    ),
    Schema.TRADE_BREAK: _TRADE,
    Schema.QUOTE: _layout(
        PAYLOAD_BYTES,
        bid_price=("<i8", 0),
        ask_price=("<i8", 8),
        bid_size=("<u4", 16),
        ask_size=("<u4", 20),
        conditions=("<u1", 24),
        tracking=("<u2", 30),
    ),
    Schema.ORDER_ADD: _layout(
        PAYLOAD_BYTES,
        order_id=("<u8", 0),
        price=("<i8", 8),
        size=("<u4", 16),
        attribution=("S4", 20),
        side=("S1", 24),
        is_attributed=("<u1", 25),
        tracking=("<u2", 30),
    ),
    Schema.ORDER_EXECUTE: _layout(
        PAYLOAD_BYTES,
        order_id=("<u8", 0),
        trade_id=("<u8", 8),
        price=("<i8", 16),  # 0 unless is_priced: then the order's own price holds
        size=("<u4", 24),
        is_printable=("<u1", 28),
        is_priced=("<u1", 29),
        tracking=("<u2", 30),
    ),
    Schema.ORDER_CANCEL: _layout(PAYLOAD_BYTES, order_id=("<u8", 0), size=("<u4", 24), tracking=("<u2", 30)),
    Schema.ORDER_DELETE: _layout(PAYLOAD_BYTES, order_id=("<u8", 0), tracking=("<u2", 30)),
    Schema.ORDER_REPLACE: _layout(
        PAYLOAD_BYTES,
        order_id=("<u8", 0),
        new_order_id=("<u8", 8),
        price=("<i8", 16),
        size=("<u4", 24),
        tracking=("<u2", 30),
    ),
    Schema.LEVEL: _layout(  # one price level as it now is; size 0 removes it
        PAYLOAD_BYTES,
        price=("<i8", 0),
        size=("<u4", 24),
        side=("S1", 28),
        is_event_complete=("<u1", 29),
        tracking=("<u2", 30),
    ),
    Schema.STATUS: _layout(
        PAYLOAD_BYTES,
        status_type=("<u1", 0),
        state=("S1", 1),
        market=("S1", 2),
        detail=("S1", 3),
        reason=("S4", 4),
        tracking=("<u2", 30),
    ),
    Schema.INSTRUMENT: _layout(
        PAYLOAD_BYTES,
        symbol=("S8", 0),
        round_lot=("<u4", 8),
        leverage=("<u4", 12),
        market_category=("S1", 16),
        financial_status=("S1", 17),
        round_lots_only=("S1", 18),
        issue_class=("S1", 19),
        issue_subtype=("S2", 20),
        authenticity=("S1", 22),
        short_sale_threshold=("S1", 23),
        ipo=("S1", 24),
        luld_tier=("S1", 25),
        etp=("S1", 26),
        inverse=("S1", 27),
        instrument_flags=("<u1", 28),
        tracking=("<u2", 30),
    ),
    Schema.AUCTION: _layout(
        PAYLOAD_BYTES,
        paired=("<u8", 0),
        imbalance=("<u8", 8),
        reference_price=("<i8", 16),
        side=("S1", 24),
        auction_type=("S1", 25),
        variation=("S1", 26),
        extensions=("<u1", 27),
        tracking=("<u2", 30),
    ),
    Schema.AUCTION_PRICES: _layout(  # the part after AUCTION
        PAYLOAD_BYTES,
        near_price=("<i8", 0),  # indicative match price, on-close orders and the book
        far_price=("<i8", 8),  # clearing price of auction orders alone
        scheduled_s=("<u4", 16),  # s since 1970; 0 where the exchange does not say
        tracking=("<u2", 30),
    ),
    Schema.COLLAR: _layout(
        PAYLOAD_BYTES,
        reference_price=("<i8", 0),
        lower_price=("<i8", 8),
        upper_price=("<i8", 16),
        extension=("<u4", 24),
        collar_type=("S1", 28),  # L limit up/down auction, A auction, D direct listing's allowed range
        tracking=("<u2", 30),
    ),
    Schema.OFFICIAL_PRICE: _layout(
        PAYLOAD_BYTES,
        price=("<i8", 0),
        price_type=("S1", 8),  # Q opening, M closing, P adjusted previous close
        tracking=("<u2", 30),
    ),
    Schema.BREAKER_LEVELS: _layout(
        PAYLOAD_BYTES,
        level1_price=("<i8", 0),
        level2_price=("<i8", 8),
        level3_price=("<i8", 16),
        tracking=("<u2", 30),
    ),
    Schema.PARTICIPANT: _layout(
        PAYLOAD_BYTES,
        mpid=("S4", 0),
        primary=("S1", 4),
        mode=("S1", 5),
        state=("S1", 6),
        tracking=("<u2", 30),
    ),
    Schema.IPO: _layout(
        PAYLOAD_BYTES,
        price=("<i8", 0),
        release_s=("<u4", 8),  # s since midnight at the exchange
        qualifier=("S1", 12),
        symbol=("S8", 16),  # ITCH sends these under locate 0, so the header's instrument does not say it
        tracking=("<u2", 30),
    ),
    Schema.DIRECT_LISTING: _layout(  # two COLLAR parts follow: the allowed range, then the auction's
        PAYLOAD_BYTES,
        near_price=("<i8", 0),
        near_time=("<u8", 8),  # as the exchange sent it
        is_eligible=("S1", 16),
        tracking=("<u2", 30),
    ),
    Schema.UNPARSED: _layout(  # a source message that could not be read, so that source_seq has no hole
        PAYLOAD_BYTES,
        reason=("<u1", 0),
        message_type=("S1", 1),
        message_bytes=("<u2", 2),
        head=("V24", 8),  # the message's first bytes, zero behind its end
    ),
    Schema.ADMIN: _layout(
        PAYLOAD_BYTES,
        admin_code=("<u2", 0),
        severity=("<u1", 2),
        text_bytes=("<u1", 3),  # used in this part
        admin_id=("<u4", 4),
        text=(f"S{TEXT_BYTES}", 8),
    ),
    Schema.BOOK_BEGIN: _layout(  # what the parts of one instrument's snapshot amount to
        PAYLOAD_BYTES,
        next_source_seq=("<u8", 0),
        order_count=("<u4", 8),
        level_count=("<u4", 12),
        state=("S1", 16),  # trading state, NUL when not known
    ),
    Schema.BOOK_LEVEL: _layout(  # best first
        PAYLOAD_BYTES,
        price=("<i8", 0),
        size=("<u8", 8),
        order_count=("<u4", 16),
        index=("<u4", 20),
        side=("S1", 24),
    ),
    Schema.BOOK_ORDER: _layout(  # best price first, then oldest first
        PAYLOAD_BYTES,
        order_id=("<u8", 0),
        price=("<i8", 8),
        size=("<u4", 16),
        index=("<u4", 20),
        side=("S1", 24),
    ),
    Schema.HEARTBEAT: _layout(PAYLOAD_BYTES, next_source_seq=("<u8", 0), source_time_ns=("<i8", 8)),
    Schema.END_OF_SESSION: _layout(PAYLOAD_BYTES, last_source_seq=("<u8", 0)),
}
assert set(PAYLOADS) == set(Schema)

# Which kinds may carry which schema. Anything not named is DATA.
KIND_OF_SCHEMA: dict[Schema, Kind] = {
    schema: {
        Schema.ADMIN: Kind.ADMIN,
        Schema.BOOK_BEGIN: Kind.SNAPSHOT,
        Schema.BOOK_LEVEL: Kind.SNAPSHOT,
        Schema.BOOK_ORDER: Kind.SNAPSHOT,
        Schema.HEARTBEAT: Kind.HEARTBEAT,
        Schema.END_OF_SESSION: Kind.END,
    }.get(schema, Kind.DATA)
    for schema in Schema
}

_BOOLEAN = bytes([0, 1])

# One-byte fields that may hold only these values. Letters of the exchange that carry no logic of ours
# (halt reasons, market categories) are passed on as they came and are not listed.
ALLOWED: dict[tuple[Schema, str], bytes] = {
    (Schema.TRADE, "side"): b"BS\0",
    (Schema.TRADE_BREAK, "side"): b"BS\0",
    (Schema.ORDER_ADD, "side"): b"BS",
    (Schema.ORDER_ADD, "is_attributed"): _BOOLEAN,
    (Schema.ORDER_EXECUTE, "is_printable"): _BOOLEAN,
    (Schema.ORDER_EXECUTE, "is_priced"): _BOOLEAN,
    (Schema.LEVEL, "side"): b"BS",
    (Schema.LEVEL, "is_event_complete"): _BOOLEAN,
    (Schema.STATUS, "status_type"): bytes(StatusType),
    (Schema.COLLAR, "collar_type"): b"LAD",
    (Schema.OFFICIAL_PRICE, "price_type"): b"QMP",
    (Schema.UNPARSED, "reason"): bytes(UnparsedReason),
    (Schema.ADMIN, "text_bytes"): bytes(range(TEXT_BYTES + 1)),
    (Schema.BOOK_LEVEL, "side"): b"BS",
    (Schema.BOOK_ORDER, "side"): b"BS",
}


def _with_header(payload: np.dtype[np.void] | None) -> np.dtype[np.void]:
    names = list(HEADER.names or ())
    formats: list[Any] = [HEADER[name] for name in names]
    offsets = [HEADER.fields[name][1] for name in names] if HEADER.fields else []
    if payload is None:
        names.append("payload")
        formats.append(np.dtype(f"V{PAYLOAD_BYTES}"))
        offsets.append(HEADER_BYTES)
    else:
        for name in payload.names or ():
            assert name not in names, f"{name} is a header field"
            assert payload.fields is not None
            names.append(name)
            formats.append(payload[name])
            offsets.append(HEADER_BYTES + payload.fields[name][1])
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": FRAME_BYTES})


FRAME = _with_header(None)
FRAMES: dict[Schema, np.dtype[np.void]] = {schema: _with_header(PAYLOADS[schema]) for schema in Schema}


def place(field: str, schema: Schema | None = None) -> Place:
    """Return where `field` of the header, or of a schema's payload, is in a frame."""
    dtype = FRAME if schema is None else FRAMES[schema]
    assert dtype.fields is not None
    offset = dtype.fields[field][1]
    return Place(offset, offset // 8, (offset % 8) * 8, dtype[field].itemsize)


def view(batch: Any, schema: Schema | None = None) -> FrameArray:
    """Return the frames in `batch` (bytes, a buffer or an array) as a structured array, without a copy.

    With a `schema`, its payload's columns are there too; rows of another schema must be masked by
    `schema_id`, as in `trades = v[v["schema_id"] == Schema.TRADE]`.
    """
    from feeds.errors import FrameError

    dtype = FRAME if schema is None else FRAMES[schema]
    if isinstance(batch, np.ndarray):
        if not batch.flags.c_contiguous:
            raise FrameError("batch", "strided memory", "contiguous memory")
        flat = batch.reshape(-1)
    else:
        flat = np.frombuffer(batch, dtype=np.uint8)
    if flat.nbytes % FRAME_BYTES:
        raise FrameError("batch", f"{flat.nbytes} bytes", f"a multiple of {FRAME_BYTES} bytes")
    return flat.view(dtype)


def words(batch: Any) -> WordArray:
    """Return the frames in `batch` as int64[n, 12], the form that kernels take, without a copy."""
    if isinstance(batch, np.ndarray) and batch.flags.c_contiguous:
        # What it usually is already: a publisher of single frames calls this for each.
        if batch.dtype == np.int64 and batch.ndim == 2 and batch.shape[1] == FRAME_WORDS:
            return batch
        if batch.dtype is FRAME and batch.ndim == 1:  # comparing its 16 fields would cost more than the rest
            return batch.view(np.int64).reshape(-1, FRAME_WORDS)
    return view(batch).view(np.int64).reshape(-1, FRAME_WORDS)


def empty(frame_count: int) -> FrameArray:
    """Return `frame_count` zeroed frames that start on a cache line."""
    raw = np.zeros(frame_count * FRAME_BYTES + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + frame_count * FRAME_BYTES].view(FRAME)


def new_frame(schema: Schema, **fields: Any) -> FrameArray:
    """Return one frame (an array of length 1) of `schema` with the given fields; the slow, clear way."""
    frame = empty(1)
    typed = frame.view(FRAMES[schema])
    typed["length"] = FRAME_BYTES
    typed["version"] = VERSION
    typed["kind"] = KIND_OF_SCHEMA[schema]
    typed["schema_id"] = schema
    typed["flags"] = Flag.LAST_PART
    for name, value in fields.items():
        typed[name] = value
    return frame


def price_text(price: int) -> str:
    """Return a price for people: `price_text(12_340_000_000) == "12.34"`."""
    sign = "-" if price < 0 else ""
    whole, rest = divmod(abs(int(price)), PRICE_SCALE)
    digits = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"
