"""ITCH 5.0 to frames the slow and obvious way, and ITCH messages for hypothesis to choose from.

Written from the message table and nothing else: `struct` takes a message apart, `wire.new_frame` makes the
frames. The compiled kernel must give the same bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from feeds import wire
from feeds.wire import Flag, Schema, StatusType, UnparsedReason

# Body of each type behind the common head of 11 bytes: struct codes and names.
BODIES: dict[bytes, tuple[str, str]] = {
    b"S": ("c", "event"),
    b"R": (
        "8sccIcc2scccccIc",
        (
            "stock category financial lot lots_only klass subtype authentic threshold ipo tier etp leverage"
            " inverse"
        ),
    ),
    b"H": ("8scc4s", "stock state reserved reason"),
    b"Y": ("8sc", "stock state"),
    b"L": ("4s8sccc", "mpid stock primary mode state"),
    b"V": ("QQQ", "level1 level2 level3"),
    b"W": ("c", "event"),
    b"K": ("8sIcI", "stock release qualifier price"),
    b"J": ("8sIIII", "stock reference upper lower extension"),
    b"h": ("8scc", "stock market state"),
    b"A": ("QcI8sI", "order side shares stock price"),
    b"F": ("QcI8sI4s", "order side shares stock price attribution"),
    b"E": ("QIQ", "order shares match"),
    b"C": ("QIQcI", "order shares match printable price"),
    b"X": ("QI", "order shares"),
    b"D": ("Q", "order"),
    b"U": ("QQII", "order new_order shares price"),
    b"P": ("QcI8sIQ", "order side shares stock price match"),
    b"Q": ("Q8sIQc", "shares stock price match cross"),
    b"B": ("Q", "match"),
    b"I": ("QQc8sIIIcc", "paired imbalance direction stock far near reference cross variation"),
    b"N": ("8sc", "stock state"),
    b"O": ("8scIIIQII", "stock eligible minimum maximum near near_time lower upper"),
}
STRUCTS = {letter: struct.Struct("!cHH6s" + codes) for letter, (codes, _) in BODIES.items()}
TYPES_WITH_STOCK = frozenset(letter for letter, (_, names) in BODIES.items() if "stock" in names.split())
PRICE8_MAX = (2**63 - 1) // 10


@dataclass(frozen=True)
class Context:
    """What a decoder is told besides the messages."""

    stream_id: int = 7
    session: int = 0x9ABCDEF0
    epoch: int = 3
    publish_ns: int = 1_700_000_000_000_000_000
    midnight_ns: int = 1_577_682_000_000_000_000
    first_seq: int = 1
    first_message_seq: int = 1


def pack(letter: bytes, locate: int, tracking: int, time_ns: int, **fields: Any) -> bytes:
    """Return one message."""
    _, names = BODIES[letter]
    values = [fields.pop(name) for name in names.split()]
    assert not fields, f"{letter!r} has no {sorted(fields)}"
    return STRUCTS[letter].pack(letter, locate, tracking, time_ns.to_bytes(6, "big"), *values)


def unpack(message: bytes) -> tuple[int, int, int, dict[str, Any]]:
    """Return locate, tracking number, time and body of a message of the right length."""
    letter, locate, tracking, time, *values = STRUCTS[message[:1]].unpack(message)
    return (
        locate,
        tracking,
        int.from_bytes(time, "big"),
        dict(zip(BODIES[letter][1].split(), values, strict=True)),
    )


def blocks_of(messages: Iterable[bytes]) -> bytes:
    """Return messages as files and packets hold them, each behind its length."""
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def parts_of(message: bytes) -> list[tuple[Schema, dict[str, Any]]] | UnparsedReason:
    """Return schema and payload of each frame that a message becomes, or why it cannot be read."""
    letter = message[:1]
    if len(message) == 0:
        return UnparsedReason.WRONG_LENGTH
    if letter not in STRUCTS:
        return UnparsedReason.UNKNOWN_TYPE
    if len(message) != STRUCTS[letter].size:
        return UnparsedReason.WRONG_LENGTH
    _, tracking, _, b = unpack(message)

    def price(name: str) -> int:
        return int(b[name]) * 100_000

    def text(name: str) -> bytes:
        return bytes(b[name]).rstrip(b" ")

    def status(kind: StatusType, **fields: Any) -> list[tuple[Schema, dict[str, Any]]]:
        return [(Schema.STATUS, dict(status_type=kind, tracking=tracking, **fields))]

    match letter:
        case b"S":
            return status(StatusType.SYSTEM, state=b["event"])
        case b"W":
            return status(StatusType.BREAKER, state=b["event"])
        case b"H":
            return status(StatusType.TRADING, state=b["state"], detail=b["reserved"], reason=text("reason"))
        case b"Y":
            return status(StatusType.SHORT_SALE, state=b["state"])
        case b"N":
            return status(StatusType.RETAIL_INTEREST, state=b["state"])
        case b"h":
            return status(StatusType.OPERATIONAL, state=b["state"], market=b["market"])
        case b"R":
            fields = {
                "symbol": text("stock"),
                "round_lot": b["lot"],
                "leverage": b["leverage"],
                "market_category": b["category"],
                "financial_status": b["financial"],
                "round_lots_only": b["lots_only"],
                "issue_class": b["klass"],
                "issue_subtype": text("subtype"),
                "authenticity": b["authentic"],
                "short_sale_threshold": b["threshold"],
                "ipo": b["ipo"],
                "luld_tier": b["tier"],
                "etp": b["etp"],
                "inverse": b["inverse"],
                "tracking": tracking,
            }
            return [(Schema.INSTRUMENT, fields)]
        case b"L":
            fields = {"mpid": text("mpid"), "primary": b["primary"], "mode": b["mode"], "state": b["state"]}
            return [(Schema.PARTICIPANT, fields | {"tracking": tracking})]
        case b"V":
            levels = {f"level{n}_price": b[f"level{n}"] * 10 for n in (1, 2, 3)}
            if max(b["level1"], b["level2"], b["level3"]) > PRICE8_MAX:
                return UnparsedReason.BAD_VALUE
            return [(Schema.BREAKER_LEVELS, levels | {"tracking": tracking})]
        case b"K":
            fields = {"price": price("price"), "release_s": b["release"], "qualifier": b["qualifier"]}
            return [(Schema.IPO, fields | {"symbol": text("stock"), "tracking": tracking})]
        case b"J":
            fields = {
                "reference_price": price("reference"),
                "lower_price": price("lower"),
                "upper_price": price("upper"),
                "extension": b["extension"],
                "collar_type": b"L",
                "tracking": tracking,
            }
            return [(Schema.COLLAR, fields)]
        case b"A" | b"F":
            if b["side"] not in (b"B", b"S"):
                return UnparsedReason.BAD_VALUE
            fields = {"order_id": b["order"], "price": price("price"), "size": b["shares"], "side": b["side"]}
            if letter == b"F":
                fields |= {"attribution": text("attribution"), "is_attributed": 1}
            return [(Schema.ORDER_ADD, fields | {"tracking": tracking})]
        case b"E":
            fields = {"order_id": b["order"], "trade_id": b["match"], "size": b["shares"], "is_printable": 1}
            return [(Schema.ORDER_EXECUTE, fields | {"tracking": tracking})]
        case b"C":
            if b["printable"] not in (b"Y", b"N"):
                return UnparsedReason.BAD_VALUE
            fields = {
                "order_id": b["order"],
                "trade_id": b["match"],
                "size": b["shares"],
                "price": price("price"),
                "is_printable": b["printable"] == b"Y",
                "is_priced": 1,
                "tracking": tracking,
            }
            return [(Schema.ORDER_EXECUTE, fields)]
        case b"X":
            return [
                (Schema.ORDER_CANCEL, {"order_id": b["order"], "size": b["shares"], "tracking": tracking})
            ]
        case b"D":
            return [(Schema.ORDER_DELETE, {"order_id": b["order"], "tracking": tracking})]
        case b"U":
            fields = {
                "order_id": b["order"],
                "new_order_id": b["new_order"],
                "price": price("price"),
                "size": b["shares"],
                "tracking": tracking,
            }
            return [(Schema.ORDER_REPLACE, fields)]
        case b"P":
            if b["side"] not in (b"B", b"S"):
                return UnparsedReason.BAD_VALUE
            fields = {
                "price": price("price"),
                "order_id": b["order"],
                "trade_id": b["match"],
                "size": b["shares"],
                "side": b["side"],
                "tracking": tracking,
            }
            return [(Schema.TRADE, fields)]
        case b"Q":
            fields = {
                "price": price("price"),
                "size": b["shares"],
                "trade_id": b["match"],
                "cross_type": b["cross"],
            }
            return [(Schema.CROSS, fields | {"tracking": tracking})]
        case b"B":
            return [(Schema.TRADE_BREAK, {"trade_id": b["match"], "tracking": tracking})]
        case b"I":
            auction = {
                "paired": b["paired"],
                "imbalance": b["imbalance"],
                "reference_price": price("reference"),
                "side": b["direction"],
                "auction_type": b["cross"],
                "variation": b["variation"],
                "tracking": tracking,
            }
            prices = {"near_price": price("near"), "far_price": price("far"), "tracking": tracking}
            return [(Schema.AUCTION, auction), (Schema.AUCTION_PRICES, prices)]
        case b"O":
            listing = {"near_price": price("near"), "near_time": b["near_time"], "is_eligible": b["eligible"]}
            allowed = {"lower_price": price("minimum"), "upper_price": price("maximum"), "collar_type": b"D"}
            collar = {"lower_price": price("lower"), "upper_price": price("upper"), "collar_type": b"A"}
            return [
                (Schema.DIRECT_LISTING, listing | {"tracking": tracking}),
                (Schema.COLLAR, allowed | {"tracking": tracking}),
                (Schema.COLLAR, collar | {"tracking": tracking}),
            ]
    raise AssertionError(letter)


def decode(messages: Iterable[bytes], context: Context) -> wire.FrameArray:
    """Return the frames of consecutive messages."""
    frames: list[wire.FrameArray] = []
    for index, message in enumerate(messages):
        parts = parts_of(message)
        locate, event_ns = 0, 0
        if parts is UnparsedReason.BAD_VALUE or isinstance(parts, list):
            locate, _, time_ns, _ = unpack(message)
            event_ns = context.midnight_ns + time_ns
        if isinstance(parts, UnparsedReason):
            head = np.void(message[:24].ljust(24, b"\0"))
            fields = {
                "reason": parts,
                "message_type": message[:1],
                "message_bytes": len(message),
                "head": head,
            }
            parts = [(Schema.UNPARSED, fields)]
        for part, (schema, fields) in enumerate(parts):
            frame = wire.new_frame(
                schema,
                source_stream_id=context.stream_id,
                source_session=context.session,
                source_seq=context.first_seq + index,
                message_seq=context.first_message_seq + len(frames),
                event_time_ns=event_ns,
                publish_time_ns=context.publish_ns,
                instrument_id=locate,
                part=part,
                epoch=context.epoch,
                flags=Flag.LAST_PART if part == len(parts) - 1 else 0,
                **fields,
            )
            frames.append(frame)
    return np.concatenate(frames) if frames else wire.empty(0)


# --- messages for hypothesis ---------------------------------------------------------------------------

_TEXT = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-=+^#$*~", max_size=8)


def _values_of(code: str, name: str) -> st.SearchStrategy[Any]:
    if name == "side":
        return st.sampled_from([b"B", b"S"])
    if name == "printable":
        return st.sampled_from([b"Y", b"N"])
    if name.startswith("level"):
        return st.integers(0, PRICE8_MAX)
    if code == "Q":
        return st.integers(0, 2**64 - 1)
    if code == "I":
        return st.integers(0, 2**32 - 1)
    if code == "c":
        return st.integers(0, 255).map(lambda value: bytes([value]))
    width = int(code[:-1])
    return _TEXT.map(lambda text: text[:width].ljust(width).encode())


def field_codes(codes: str) -> list[str]:
    """Return the struct codes of a body one by one: "8sIc" is 8s, I, c."""
    return re.findall(r"\d*\w", codes)


def stock_of_locate(locate: int) -> bytes:
    """A locate's symbol, always the same: so that the directory knows every stock it has seen."""
    return f"L{locate}".ljust(8).encode()


@st.composite
def valid_messages(draw: st.DrawFn, letters: tuple[bytes, ...] = tuple(BODIES)) -> bytes:
    """A message that the exchange could send; its symbol follows from its locate."""
    letter = draw(st.sampled_from(letters))
    has_stock = letter in TYPES_WITH_STOCK and letter != b"K"
    locate = draw(st.integers(1 if has_stock else 0, 65_535))
    names = BODIES[letter][1].split()
    fields = {
        name: draw(_values_of(code, name))
        for code, name in zip(field_codes(BODIES[letter][0]), names, strict=True)
    }
    if letter in TYPES_WITH_STOCK and locate != 0:
        fields["stock"] = stock_of_locate(locate)
    return pack(letter, locate, draw(st.integers(0, 65_535)), draw(st.integers(0, 2**48 - 1)), **fields)


@st.composite
def damaged_messages(draw: st.DrawFn) -> bytes:
    """Something near a message: bytes changed, cut or added, a letter that is no type, or nothing."""
    message = bytearray(draw(valid_messages()))
    for _ in range(draw(st.integers(0, 3))):
        message[draw(st.integers(0, len(message) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.one_of(st.none(), st.integers(0, len(message))))
    return bytes(message[:cut]) + draw(st.one_of(st.just(b""), st.binary(max_size=20)))


any_messages = st.one_of(valid_messages(), damaged_messages(), st.binary(max_size=60))
