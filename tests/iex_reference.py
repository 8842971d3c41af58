"""IEX messages to frames the slow and obvious way, and IEX messages for hypothesis to choose from.

Written from the message table and nothing else: `struct` takes a message apart, `wire.new_frame` makes the
frames. The compiled kernel must give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from feeds import formats as f
from feeds import wire
from feeds.iex import FORMAT
from feeds.wire import Flag, Schema, StatusType, UnparsedReason

# Body of each type behind type, code and time: struct codes and names.
BODIES: dict[bytes, tuple[str, str]] = {
    b"S": ("", ""),
    b"D": ("8sIqB", "symbol lot close tier"),
    b"H": ("8s4s", "symbol reason"),
    b"I": ("8s", "symbol"),
    b"O": ("8s", "symbol"),
    b"P": ("8sc", "symbol detail"),
    b"E": ("8s", "symbol"),
    b"8": ("8sIq", "symbol size price"),
    b"5": ("8sIq", "symbol size price"),
    b"T": ("8sIqq", "symbol size price trade_id"),
    b"X": ("8sq", "symbol price"),
    b"B": ("8sIqq", "symbol size price trade_id"),
    b"A": (
        "8sIqqIcBIqqqq",
        "symbol paired reference indicative imbalance side extensions scheduled clearing collar lower upper",
    ),
    b"Q": ("8sIqqI", "symbol bid_size bid ask ask_size"),
}
STRUCTS = {letter: struct.Struct("<cBq" + codes) for letter, (codes, _) in BODIES.items()}
PRICE_NAMES = frozenset(
    ("close", "price", "reference", "indicative", "clearing", "collar", "lower", "upper", "bid", "ask")
)
PRICE_MAX = (2**63 - 1) // 100_000

PLAIN_STATUS = {
    b"I": StatusType.RETAIL_INTEREST,
    b"O": StatusType.OPERATIONAL,
    b"E": StatusType.SECURITY_EVENT,
}


@dataclass(frozen=True)
class Context:
    """What a decoder is told besides the messages."""

    stream_id: int = 9
    session: int = 0x4CB00002
    epoch: int = 5
    publish_ns: int = 1_700_000_000_000_000_000
    first_seq: int = 1
    first_message_seq: int = 1


def pack(letter: bytes, code: int, time_ns: int, **fields: Any) -> bytes:
    """Return one message."""
    values = [fields.pop(name) for name in BODIES[letter][1].split()]
    assert not fields, f"{letter!r} has no {sorted(fields)}"
    return STRUCTS[letter].pack(letter, code, time_ns, *values)


def unpack(message: bytes) -> tuple[int, int, dict[str, Any]]:
    """Return code, time and body of a message that has at least its type's size."""
    form = STRUCTS[message[:1]]
    letter, code, time_ns, *values = form.unpack(message[: form.size])
    return code, time_ns, dict(zip(BODIES[letter][1].split(), values, strict=True))


def blocks_of(messages: Iterable[bytes]) -> bytes:
    """Return the messages as a segment carries them."""
    return b"".join(struct.pack("<H", len(message)) + message for message in messages)


# ---------------------------------------------------------------------------------------- instrument ids

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ#$*+-.=@^~"


def mix32(value: int) -> int:
    value ^= value >> 16
    value = value * 0x21F0AAAD % 2**32
    value ^= value >> 15
    value = value * 0xD35A2D97 % 2**32
    return value ^ value >> 15


def unmix32(value: int) -> int:
    """Undo mix32: each of its steps is one-to-one."""

    def unshift(mixed: int, bits: int) -> int:
        found = mixed
        for _ in range(32 // bits + 1):
            found = mixed ^ found >> bits
        return found

    value = unshift(value, 15) * pow(0xD35A2D97, -1, 2**32) % 2**32
    value = unshift(value, 15) * pow(0x21F0AAAD, -1, 2**32) % 2**32
    return unshift(value, 16)


def is_printable(text: bytes) -> bool:
    return all(0x20 <= letter <= 0x7E for letter in text)


def instrument_id(symbol: bytes) -> int:
    """Return the id of eight bytes, 0 if they are no symbol."""
    if not is_printable(symbol) or symbol[:1] == b" ":
        return 0
    text = symbol.rstrip(b" ").decode("ascii")
    if len(text) <= 6 and all(letter in ALPHABET for letter in text):
        return mix32(sum((1 + ALPHABET.index(letter)) * 37**place for place, letter in enumerate(text)))
    low, high = struct.unpack("<II", symbol)
    return mix32(37**6 + mix32(low ^ mix32(high ^ 0x5BD1E995)) % (2**32 - 37**6))


# ------------------------------------------------------------------------------------------------ frames


def payloads_of(message: bytes) -> list[tuple[Schema, dict[str, Any]]] | None:
    """Return schema and fields of each part of a message of sufficient length, None for a bad value."""
    letter = message[:1]
    code, time_ns, body = unpack(message)
    if time_ns < 0:
        return None
    if any(name in PRICE_NAMES and abs(value) > PRICE_MAX for name, value in body.items()):
        return None
    body = {name: value * 100_000 if name in PRICE_NAMES else value for name, value in body.items()}
    state = bytes([code])
    if letter == b"S":
        return [(Schema.STATUS, {"status_type": StatusType.SYSTEM, "state": state})]
    if instrument_id(body["symbol"]) == 0:
        return None
    if letter in PLAIN_STATUS:
        return [(Schema.STATUS, {"status_type": PLAIN_STATUS[letter], "state": state})]
    if letter == b"P":
        if code > 1:
            return None
        fields = {"status_type": StatusType.SHORT_SALE, "state": b"%d" % code, "detail": body["detail"]}
        return [(Schema.STATUS, fields)]
    if letter == b"H":
        if not is_printable(body["reason"]):
            return None
        reason = body["reason"].rstrip(b" ")
        return [(Schema.STATUS, {"status_type": StatusType.TRADING, "state": state, "reason": reason})]
    if letter == b"D":
        if body["tier"] > 9:
            return None
        instrument = {
            "symbol": body["symbol"].rstrip(b" "),
            "round_lot": body["lot"],
            "luld_tier": b"%d" % body["tier"],
            "instrument_flags": code,
        }
        close = {"price": body["close"], "price_type": b"P"}
        return [(Schema.INSTRUMENT, instrument), (Schema.OFFICIAL_PRICE, close)]
    if letter in (b"8", b"5"):
        side = b"B" if letter == b"8" else b"S"
        fields = {"price": body["price"], "size": body["size"], "side": side, "is_event_complete": code & 1}
        return [(Schema.LEVEL, fields)]
    if letter in (b"T", b"B"):
        fields = {
            "price": body["price"],
            "size": body["size"],
            "trade_id": body["trade_id"] % 2**64,
            "conditions": code,
        }
        return [(Schema.TRADE if letter == b"T" else Schema.TRADE_BREAK, fields)]
    if letter == b"X":
        return (
            [(Schema.OFFICIAL_PRICE, {"price": body["price"], "price_type": state})]
            if state in b"QM"
            else None
        )
    if letter == b"Q":
        fields = {
            "bid_price": body["bid"],
            "ask_price": body["ask"],
            "bid_size": body["bid_size"],
            "ask_size": body["ask_size"],
            "conditions": code,
        }
        return [(Schema.QUOTE, fields)]
    auction = {
        "paired": body["paired"],
        "imbalance": body["imbalance"],
        "reference_price": body["reference"],
        "side": body["side"],
        "auction_type": state,
        "extensions": body["extensions"],
    }
    prices = {
        "near_price": body["indicative"],
        "far_price": body["clearing"],
        "scheduled_s": body["scheduled"],
    }
    collar = {
        "reference_price": body["collar"],
        "lower_price": body["lower"],
        "upper_price": body["upper"],
        "collar_type": b"A",
    }
    return [(Schema.AUCTION, auction), (Schema.AUCTION_PRICES, prices), (Schema.COLLAR, collar)]


def frames_of(messages: Sequence[bytes], context: Context) -> wire.FrameArray:
    """Return the frames of `messages`, as the kernel should make them."""
    frames: list[wire.FrameArray] = []
    for index, message in enumerate(messages):
        letter = message[:1]
        time_ns, instrument = 0, 0
        payloads = None
        if not message:
            reason = UnparsedReason.WRONG_LENGTH
        elif letter not in STRUCTS:
            reason = UnparsedReason.UNKNOWN_TYPE
        elif len(message) < STRUCTS[letter].size:
            reason = UnparsedReason.WRONG_LENGTH
        else:
            reason = UnparsedReason.BAD_VALUE
            _, time_ns, body = unpack(message)
            instrument = instrument_id(body["symbol"]) if body else 0
            payloads = payloads_of(message)
            time_ns = max(0, time_ns)
        if payloads is None:
            fields = {
                "reason": reason,
                "message_type": letter or b"\0",
                "message_bytes": len(message),
                "head": np.void(message[:24].ljust(24, b"\0")),
            }
            payloads = [(Schema.UNPARSED, fields)]
        for part, (schema, fields) in enumerate(payloads):
            is_last = part == len(payloads) - 1
            frames.append(
                wire.new_frame(
                    schema,
                    flags=Flag.LAST_PART if is_last else 0,
                    source_stream_id=context.stream_id,
                    source_session=context.session,
                    source_seq=context.first_seq + index,
                    message_seq=context.first_message_seq + len(frames),
                    event_time_ns=time_ns,
                    publish_time_ns=context.publish_ns,
                    instrument_id=instrument,
                    part=part,
                    epoch=context.epoch,
                    **fields,
                )
            )
    return np.concatenate(frames) if frames else wire.empty(0)


# ------------------------------------------------------------------------------------- the kernel, called


@dataclass
class Decoding:
    """One decoder's memory, for tests that look at all of it."""

    context: Context
    frame_rows: int = 4096

    def __post_init__(self) -> None:
        self.state = np.zeros(f.STATE_FIELDS, dtype=np.int64)
        self.state[f.STATE_STREAM_ID] = self.context.stream_id
        self.state[f.STATE_EPOCH] = self.context.epoch
        self.state[f.STATE_PUBLISH_NS] = self.context.publish_ns
        self.state[f.STATE_NEXT_MESSAGE_SEQ] = self.context.first_message_seq
        self.counts = np.zeros(f.TYPE_COUNT, dtype=np.int64)
        self.problems = np.zeros((f.PROBLEM_SLOTS, f.PROBLEM_FIELDS), dtype=np.int64)
        self.directory = FORMAT.new_directory()
        self.frames = wire.empty(self.frame_rows)

    def step(self, data: f.ByteArray, runs: f.IntArray) -> wire.FrameArray:
        """Call the kernel once; return a copy of the frames it made."""
        row_count = FORMAT.decode_kernel(
            data,
            runs,
            runs.shape[0],
            self.state,
            self.counts,
            self.problems,
            self.directory,
            wire.words(self.frames),
        )
        return self.frames[:row_count].copy()

    def decode(self, messages: Sequence[bytes]) -> wire.FrameArray:
        """Return the frames of `messages` as one packet, in as many steps as the output needs."""
        data = np.frombuffer(blocks_of(messages), dtype=np.uint8).copy()
        runs = np.zeros((1, f.RUN_FIELDS), dtype=np.int64)
        runs[0] = (0, data.size, self.context.first_seq, len(messages), self.context.session)
        self.state[[f.STATE_RUN_INDEX, f.STATE_BYTE_INDEX, f.STATE_MESSAGE_INDEX]] = 0
        parts = [wire.empty(0)]
        for _ in range(len(messages) + 1):
            if self.state[f.STATE_RUN_INDEX] == 1:
                break
            parts.append(self.step(data, runs))
        assert self.state[f.STATE_RUN_INDEX] == 1, "the kernel made no progress"
        return np.concatenate(parts)


# -------------------------------------------------------------------------------------------- strategies

symbols = st.one_of(
    st.sampled_from(["A", "BRK.A", "TSLA", "ZVZZT", "NTEST.A", "PSEC-A", "ABCDEFGH", "a b", "AA+1"]),
    st.text(ALPHABET, min_size=1, max_size=8),
).map(lambda text: text.encode("ascii").ljust(8))
prices = st.one_of(st.integers(-PRICE_MAX, PRICE_MAX), st.integers(0, 10_000_000))
sizes = st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 10_000))
longs = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**63 - 1)
letters = st.integers(0, 255).map(lambda value: bytes([value]))
reasons = st.sampled_from([b"    ", b"T1  ", b"IPO1", b"NA  ", b"MCB3", b"  X "])

FIELD_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "symbol": symbols,
    "lot": sizes,
    "tier": st.integers(0, 9),
    "reason": reasons,
    "detail": letters,
    "size": sizes,
    "trade_id": longs,
    "paired": sizes,
    "imbalance": sizes,
    "side": letters,
    "extensions": st.integers(0, 255),
    "scheduled": sizes,
    "bid_size": sizes,
    "ask_size": sizes,
    **dict.fromkeys(PRICE_NAMES, prices),
}
CODE_STRATEGIES: dict[bytes, st.SearchStrategy[int]] = {
    b"P": st.integers(0, 1),
    b"8": st.integers(0, 1),
    b"5": st.integers(0, 1),
    b"X": st.sampled_from(list(b"QM")),
}


@st.composite
def valid_messages(draw: st.DrawFn) -> bytes:
    """A message that loses nothing on its way through frames."""
    letter = draw(st.sampled_from(sorted(BODIES)))
    code = draw(CODE_STRATEGIES.get(letter, st.integers(0, 255)))
    fields = {name: draw(FIELD_STRATEGIES[name]) for name in BODIES[letter][1].split()}
    return pack(letter, code, draw(times), **fields)


@st.composite
def any_messages(draw: st.DrawFn) -> bytes:
    """A valid message, a damaged one, or no message at all."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.binary(max_size=100))
    message = bytearray(draw(valid_messages()))
    if kind == 1:
        return bytes(message) + draw(st.binary(min_size=1, max_size=8))
    if kind == 2:
        return bytes(message[: draw(st.integers(0, len(message) - 1))])
    if kind == 5:
        message[2:10] = struct.pack("<q", draw(longs))
    if kind == 3:
        message[draw(st.integers(0, len(message) - 1))] = draw(st.integers(0, 255))
    return bytes(message)
