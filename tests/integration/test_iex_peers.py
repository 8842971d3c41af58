"""Field by field, every message of the real capture, against parsers that others wrote.

`meatpy` reads the capture by itself; it does not know type I and drops it. `iex-parser` reads the capture
through scapy; its time conversion keeps microseconds only, so that one step is replaced by identity and all
64 bits are compared. Message types that the capture does not have are compared on generated messages.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from feeds import wire
from feeds.iex import FORMAT
from feeds.wire import Schema
from tests.iex_capture import CAPTURE, DecodedCapture, decode_capture, messages_of
from tests.iex_reference import Context, Decoding, pack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scapy and its cryptography speak of their own deprecations
    import iex_parser
    import iex_parser.messages
    from meatpy.iex_deep import iex_deep_market_message as meatpy_messages
    from meatpy.iex_deep.iex_deep_message_reader import IEXDEEPMessageReader


@pytest.fixture(scope="module")
def capture(market_data: Path) -> DecodedCapture:
    return decode_capture(market_data / CAPTURE)


def text(value: bytes) -> str:
    return value.decode("ascii").strip()


def tell_meatpy(message: Any) -> dict[str, Any]:
    """Return a message of meatpy in the words of messages_of."""
    told: dict[str, Any] = {"time": message.timestamp}
    match message:
        case meatpy_messages.SystemEventMessage():
            return told | {"type": "S", "state": message.system_event.decode()}
        case meatpy_messages.SecurityDirectoryMessage():
            told |= {"type": "D", "flags": message.flags, "lot": message.round_lot_size}
            told |= {"close": message.adjusted_poc_price, "tier": message.luld_tier}
        case meatpy_messages.TradingStatusMessage():
            told |= {"type": "H", "state": message.trading_status.decode(), "reason": text(message.reason)}
        case meatpy_messages.OperationalHaltStatusMessage():
            told |= {"type": "O", "state": message.operational_halt_status.decode()}
        case meatpy_messages.ShortSalePriceTestStatusMessage():
            told |= {"type": "P", "state": str(message.short_sale_price_test_status)}
            told |= {"detail": message.detail.decode()}
        case meatpy_messages.PriceLevelUpdateMessage():
            is_buy = isinstance(message, meatpy_messages.PriceLevelUpdateBuySideMessage)
            told |= {"type": "8" if is_buy else "5", "flags": message.event_flags}
            told |= {"size": message.size, "price": message.price}
        case meatpy_messages.TradeReportMessage():
            told |= {"type": "T", "flags": message.sale_condition_flags, "trade_id": message.trade_id}
            told |= {"size": message.size, "price": message.price}
        case _:
            raise AssertionError(f"the capture has no {type(message).__name__}")
    return told | {"symbol": text(message.symbol)}


def test_every_message_equals_that_of_meatpy(market_data: Path, capture: DecodedCapture) -> None:
    theirs = [tell_meatpy(message) for message in IEXDEEPMessageReader().read_file(market_data / CAPTURE)]
    ours = [message for message in messages_of(capture) if message["type"] != "I"]
    assert len(theirs) == len(ours) == 37_016
    for left, right in zip(theirs, ours, strict=True):
        assert left == {name: right[name] for name in left}, right["seq"]


def tell_iex_parser(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of iex-parser in the words of messages_of."""
    told: dict[str, Any] = {"time": message["timestamp"]}
    if "symbol" in message:
        told["symbol"] = text(message["symbol"])
    match message["type"]:
        case "system_event":
            told |= {"type": "S", "state": text(message["event"])}
        case "security_directive":
            told |= {"type": "D", "flags": message["flags"], "lot": message["round_lot_size"]}
            told |= {"close": message["adjusted_poc_close"], "tier": message["luld_tier"]}
        case "trading_status":
            told |= {"type": "H", "state": text(message["status"]), "reason": text(message["reason"])}
        case "retail_liquidity_indicator":
            told |= {"type": "I", "state": text(message["indicator"])}
        case "operational_halt":
            told |= {"type": "O", "state": text(message["halt_status"])}
        case "short_sale_price_test_status":
            told |= {"type": "P", "state": str(message["status"]), "detail": text(message["detail"])}
        case "price_level_update":
            told |= {"type": "8" if message["side"] == b"B" else "5", "flags": message["flags"]}
            told |= {"size": message["size"], "price": price_e4(message["price"])}
        case "trade_report":
            told |= {"type": "T", "flags": message["flags"], "trade_id": message["trade_id"]}
            told |= {"size": message["size"], "price": price_e4(message["price"])}
        case other:
            raise AssertionError(f"the capture has no {other}")
    return told


def price_e4(price: Decimal) -> int:
    scaled = price * 10_000
    assert scaled == int(scaled)
    return int(scaled)


def read_iex_parser(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    monkeypatch.setattr(iex_parser.messages, "_from_timestamp", lambda value: value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with iex_parser.Parser(str(path), iex_parser.DEEP_1_0) as reader:
            yield from reader


def test_every_message_equals_that_of_iex_parser(
    market_data: Path, capture: DecodedCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = [tell_iex_parser(message) for message in read_iex_parser(market_data / CAPTURE, monkeypatch)]
    ours = list(messages_of(capture))
    assert len(theirs) == len(ours) == 48_325
    for left, right in zip(theirs, ours, strict=True):
        assert left == {name: _stripped(right[name]) for name in left}, right["seq"]


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value  # iex-parser strips one-letter codes as well


def random_message(letter: bytes, rng: random.Random) -> bytes:
    """Return a message of a type that the capture lacks, with every field different from the others."""
    symbol = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randrange(1, 8))).encode().ljust(8)
    time_ns = rng.randrange(2**60)

    def price() -> int:
        return rng.randrange(-(2**40), 2**40)

    def size() -> int:
        return rng.randrange(2**32)

    match letter:
        case b"E":
            return pack(b"E", rng.choice(b"OC"), time_ns, symbol=symbol)
        case b"X":
            return pack(b"X", rng.choice(b"QM"), time_ns, symbol=symbol, price=price())
        case b"B":
            fields = {"size": size(), "price": price(), "trade_id": rng.randrange(2**62)}
            return pack(b"B", rng.randrange(256), time_ns, symbol=symbol, **fields)
        case b"Q":
            fields = {"bid_size": size(), "bid": price(), "ask": price(), "ask_size": size()}
            return pack(b"Q", rng.randrange(256), time_ns, symbol=symbol, **fields)
        case _:
            return pack(
                b"A",
                rng.choice(b"OCIHV"),
                time_ns,
                symbol=symbol,
                paired=size(),
                reference=price(),
                indicative=price(),
                imbalance=size(),
                side=bytes([rng.choice(b"BSN")]),
                extensions=rng.randrange(256),
                scheduled=rng.randrange(2**31),
                clearing=price(),
                collar=price(),
                lower=price(),
                upper=price(),
            )


def columns(frames: wire.FrameArray, row: int) -> dict[str, Any]:
    schema = Schema(int(frames[row]["schema_id"]))
    typed = frames[row : row + 1].view(wire.FRAMES[schema])
    return {name: typed[name][0] for name in typed.dtype.names or ()}


def in_our_units(price: int) -> int:
    return price * 100_000


@pytest.mark.parametrize("letter", [b"E", b"X", b"B", b"A", b"Q"])
def test_types_that_the_capture_lacks_equal_those_of_the_peers(
    letter: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iex_parser.messages, "_from_timestamp", lambda value: value)
    monkeypatch.setattr(iex_parser.messages, "_from_event_time", lambda value: value)
    rng = random.Random(20231002)
    for _ in range(200):
        message = random_message(letter, rng)
        decoding = Decoding(Context(), frame_rows=8)
        frames = decoding.decode([message])
        ours = [columns(frames, row) for row in range(len(frames))]
        protocol = iex_parser.TOPS_1_6 if letter == b"Q" else iex_parser.DEEP_1_0
        peer = iex_parser.messages.decode_message(protocol, message[0], message[1:])
        theirs: dict[str, Any] = {
            name: price_e4(value) if isinstance(value, Decimal) else value for name, value in peer.items()
        }
        assert theirs["timestamp"] == ours[0]["event_time_ns"]
        name = symbol_of(decoding, ours[0])
        assert text(theirs["symbol"]) == name
        second: Any = None
        if letter != b"Q":  # meatpy reads DEEP only
            second = meatpy_messages.IEXDEEPMarketMessage.from_bytes(message)
            assert (second.timestamp, text(second.symbol)) == (theirs["timestamp"], name)
        match letter:
            case b"E":
                assert theirs["security_event"] == ours[0]["state"] == second.security_event
            case b"X":
                assert theirs["price_type"] == ours[0]["price_type"] == second.price_type
                assert (
                    in_our_units(theirs["price"]) == ours[0]["price"] == in_our_units(second.official_price)
                )
            case b"B":
                assert ours[0]["schema_id"] == Schema.TRADE_BREAK
                assert ord(theirs["flags"]) == ours[0]["conditions"] == second.sale_condition_flags
                assert theirs["size"] == ours[0]["size"] == second.size
                assert in_our_units(theirs["price"]) == ours[0]["price"] == in_our_units(second.price)
                assert theirs["trade_id"] == ours[0]["trade_id"] == second.trade_id
            case b"Q":
                assert theirs["flags"] == ours[0]["conditions"]
                assert (theirs["bid_size"], theirs["ask_size"]) == (ours[0]["bid_size"], ours[0]["ask_size"])
                assert in_our_units(theirs["bid_price"]) == ours[0]["bid_price"]
                assert in_our_units(theirs["ask_price"]) == ours[0]["ask_price"]
            case _:
                check_auction(ours, theirs, second)


def symbol_of(decoding: Decoding, frame: dict[str, Any]) -> str | None:
    return FORMAT.symbol_of(decoding.directory, int(frame["instrument_id"]))


def check_auction(ours: list[dict[str, Any]], theirs: Mapping[str, Any], second: Any) -> None:
    auction, prices, collar = ours
    assert theirs["auction_type"] == auction["auction_type"] == second.auction_type
    assert theirs["paired_shares"] == auction["paired"] == second.paired_shares
    assert theirs["imbalance_shares"] == auction["imbalance"] == second.imbalance_shares
    assert theirs["imbalance_side"] == auction["side"] == second.imbalance_side
    assert theirs["extension_number"] == auction["extensions"] == second.extension_number
    assert theirs["scheduled_auction_time"] == prices["scheduled_s"] == second.scheduled_auction_time
    for name, value, other in (
        ("reference_price", auction["reference_price"], second.reference_price),
        ("indicative_clearing_price", prices["near_price"], second.indicative_clearing_price),
        ("auction_book_clearing_price", prices["far_price"], second.auction_book_clearing_price),
        ("collar_reference_price", collar["reference_price"], second.collar_reference_price),
        ("lower_auction_collar_price", collar["lower_price"], second.lower_auction_collar),
        ("upper_auction_collar_price", collar["upper_price"], second.upper_auction_collar),
    ):
        assert in_our_units(theirs[name]) == value == in_our_units(other), name
