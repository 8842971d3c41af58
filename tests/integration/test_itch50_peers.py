"""Two independent parsers read the same bytes; every field of every message must agree with our frames.

The peers make one object of a message, we make one to three frames and know its stock from the directory. So
each field of ours stands in a table beside the attribute it must equal, and the table must name every
attribute that a peer has. meatpy 0.5.0 declares four bytes too many for type O and therefore cannot read it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from itch.messages import messages as itchfeed_types
from itch.parser import MessageParser
from meatpy.itch50 import ITCH50MessageReader
from meatpy.itch50.itch50_market_message import ITCH50MarketMessage

from feeds import wire
from feeds.dayfile import DayFile, Lengths
from feeds.decoder import Decoder
from feeds.itch50 import FORMAT
from feeds.session_time import midnight_ns
from feeds.wire import Schema, StatusType
from tests import itch50_reference as reference

HEAD_ATTRIBUTES = {"stock_locate", "tracking_number", "timestamp", "stock"}

# type -> our field, as part.name, and the peer's attribute: itchfeed's, then meatpy's where it differs.
FIELDS: dict[bytes, dict[str, str]] = {
    b"S": {"0.state": "event_code code"},
    b"R": {
        "0.market_category": "market_category category",
        "0.financial_status": "financial_status_indicator status",
        "0.round_lot": "round_lot_size lotsize",
        "0.round_lots_only": "round_lots_only lotsonly",
        "0.issue_class": "issue_classification issue_class",
        "0.issue_subtype": "issue_sub_type issue_sub",
        "0.authenticity": "authenticity",
        "0.short_sale_threshold": "short_sale_threshold_indicator shortsale_thresh",
        "0.ipo": "ipo_flag",
        "0.luld_tier": "luld_ref",
        "0.etp": "etp_flag",
        "0.leverage": "etp_leverage_factor etp_leverage",
        "0.inverse": "inverse_indicator inverse_ind",
    },
    b"H": {"0.state": "trading_state state", "0.detail": "reserved", "0.reason": "reason"},
    b"Y": {"0.state": "reg_sho_action action"},
    b"L": {
        "0.mpid": "mpid",
        "0.primary": "primary_market_maker",
        "0.mode": "market_maker_mode",
        "0.state": "market_participant_state state",
    },
    b"V": {
        "0.level1_price": "level1_price level1",
        "0.level2_price": "level2_price level2",
        "0.level3_price": "level3_price level3",
    },
    b"W": {"0.state": "breached_level"},
    b"K": {
        "0.release_s": "ipo_release_time ipo_quotation_release_time",
        "0.qualifier": "ipo_release_qualifier ipo_quotation_release_qualifier",
        "0.price": "ipo_price",
    },
    b"J": {
        "0.reference_price": "auction_collar_reference_price auction_collar_ref_price",
        "0.upper_price": "upper_auction_collar_price",
        "0.lower_price": "lower_auction_collar_price",
        "0.extension": "auction_collar_extention auction_collar_extension",
    },
    b"h": {"0.market": "market_code halt_status", "0.state": "operational_halt_action halt_reason"},
    b"A": {
        "0.order_id": "order_reference_number order_ref",
        "0.side": "buy_sell_indicator bsindicator",
        "0.size": "shares",
        "0.price": "price",
    },
    b"F": {
        "0.order_id": "order_reference_number order_ref",
        "0.side": "buy_sell_indicator bsindicator",
        "0.size": "shares",
        "0.price": "price",
        "0.attribution": "attribution",
    },
    b"E": {
        "0.order_id": "order_reference_number order_ref",
        "0.size": "executed_shares shares",
        "0.trade_id": "match_number match",
    },
    b"C": {
        "0.order_id": "order_reference_number order_ref",
        "0.size": "executed_shares shares",
        "0.trade_id": "match_number match",
        "0.is_printable": "printable",
        "0.price": "execution_price",
    },
    b"X": {
        "0.order_id": "order_reference_number order_ref",
        "0.size": "cancelled_shares canceled_shares",
    },
    b"D": {"0.order_id": "order_reference_number order_ref"},
    b"U": {
        "0.order_id": "order_reference_number original_ref",
        "0.new_order_id": "new_order_reference_number new_ref",
        "0.size": "shares",
        "0.price": "price",
    },
    b"P": {
        "0.order_id": "order_reference_number order_ref",
        "0.side": "buy_sell_indicator bsindicator",
        "0.size": "shares",
        "0.price": "price",
        "0.trade_id": "match_number match",
    },
    b"Q": {
        "0.size": "shares",
        "0.price": "cross_price",
        "0.trade_id": "match_number match",
        "0.cross_type": "cross_type",
    },
    b"B": {"0.trade_id": "match_number match"},
    b"I": {
        "0.paired": "paired_shares",
        "0.imbalance": "imbalance_shares",
        "0.side": "imbalance_direction",
        "0.reference_price": "current_reference_price current_ref_price",
        "0.auction_type": "cross_type",
        "0.variation": "variation_indicator price_variation_indicator",
        "1.far_price": "far_price",
        "1.near_price": "near_price",
    },
    b"N": {"0.state": "interest_flag interest"},
    b"O": {
        "0.is_eligible": "open_eligibility_status",
        "1.lower_price": "minimum_allowable_price",
        "1.upper_price": "maximum_allowable_price",
        "0.near_price": "near_execution_price",
        "0.near_time": "near_execution_time",
        "2.lower_price": "lower_price_range_collar",
        "2.upper_price": "upper_price_range_collar",
    },
}
SCHEMAS: dict[bytes, list[Schema]] = {
    b"S": [Schema.STATUS],
    b"R": [Schema.INSTRUMENT],
    b"H": [Schema.STATUS],
    b"Y": [Schema.STATUS],
    b"L": [Schema.PARTICIPANT],
    b"V": [Schema.BREAKER_LEVELS],
    b"W": [Schema.STATUS],
    b"K": [Schema.IPO],
    b"J": [Schema.COLLAR],
    b"h": [Schema.STATUS],
    b"A": [Schema.ORDER_ADD],
    b"F": [Schema.ORDER_ADD],
    b"E": [Schema.ORDER_EXECUTE],
    b"C": [Schema.ORDER_EXECUTE],
    b"X": [Schema.ORDER_CANCEL],
    b"D": [Schema.ORDER_DELETE],
    b"U": [Schema.ORDER_REPLACE],
    b"P": [Schema.TRADE],
    b"Q": [Schema.CROSS],
    b"B": [Schema.TRADE_BREAK],
    b"I": [Schema.AUCTION, Schema.AUCTION_PRICES],
    b"N": [Schema.STATUS],
    b"O": [Schema.DIRECT_LISTING, Schema.COLLAR, Schema.COLLAR],
}
STATUS_TYPES = {
    b"S": StatusType.SYSTEM,
    b"H": StatusType.TRADING,
    b"Y": StatusType.SHORT_SALE,
    b"W": StatusType.BREAKER,
    b"h": StatusType.OPERATIONAL,
    b"N": StatusType.RETAIL_INTEREST,
}
# What the type letter itself says, and no attribute does.
IMPLIED: dict[bytes, dict[str, object]] = {
    b"A": {"is_attributed": 0, "attribution": b""},
    b"F": {"is_attributed": 1},
    b"E": {"is_printable": 1, "is_priced": 0, "price": 0},
    b"C": {"is_priced": 1},
    b"J": {"collar_type": b"L"},
}


@dataclass(frozen=True)
class Peer:
    """A parser that is not ours."""

    name: str
    column: int  # of the attribute names in FIELDS
    read_file: Callable[[Path], list[Any]]
    type_of: Callable[[Any], bytes]
    unreadable: frozenset[bytes] = frozenset()

    def attribute(self, names: str) -> str:
        parts = names.split()
        return parts[min(self.column, len(parts) - 1)]


def read_with_itchfeed(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(MessageParser().parse_file(file))


def read_with_meatpy(path: Path) -> list[Any]:
    return list(ITCH50MessageReader().read_file(path))


PEERS = {
    "itchfeed": Peer("itchfeed", 0, read_with_itchfeed, lambda message: bytes(message.message_type)),
    "meatpy": Peer("meatpy", 1, read_with_meatpy, lambda message: bytes(message.type), frozenset({b"O"})),
}


@pytest.fixture(params=list(PEERS))
def peer(request: pytest.FixtureRequest) -> Peer:
    return PEERS[request.param]


def comparable(value: Any, name: str, letter: bytes) -> Any:
    """Return a peer's value as our field `name` of a message of type `letter` must show it."""
    if name == "is_printable":
        return int(value == b"Y")
    if name.endswith("price"):
        return value * (10 if letter == b"V" else 100_000)
    if isinstance(value, bytes) and len(value) > 1:
        return value.rstrip(b" ")
    return value.rstrip(b"\0") if isinstance(value, bytes) else value


def assert_agree(
    messages: list[Any], peer: Peer, frames: wire.FrameArray, decoder: Decoder, midnight: int
) -> None:
    begins = np.flatnonzero(frames["part"] == 0)
    assert len(begins) == len(messages)
    views = {schema: wire.view(frames, schema) for schema in Schema}
    for begin, message in zip(begins, messages, strict=True):
        letter = peer.type_of(message)
        schemas = SCHEMAS[letter]
        parts = [views[schema][begin + part] for part, schema in enumerate(schemas)]
        for part, (frame, schema) in enumerate(zip(parts, schemas, strict=True)):
            assert frame["schema_id"] == schema
            assert frame["part"] == part
            assert frame["instrument_id"] == message.stock_locate
            assert frame["tracking"] == message.tracking_number
            assert frame["event_time_ns"] - midnight == message.timestamp
        for name, attribute in FIELDS[letter].items():
            part_text, field = name.split(".")
            found = parts[int(part_text)][field]
            wanted = comparable(getattr(message, peer.attribute(attribute)), field, letter)
            assert found == wanted, f"{letter!r} {name}: ours {found!r}, {peer.name} {wanted!r}"
        for field, value in IMPLIED.get(letter, {}).items():
            assert parts[0][field] == value
        if letter in STATUS_TYPES:
            assert parts[0]["status_type"] == STATUS_TYPES[letter]
        if letter in reference.TYPES_WITH_STOCK:
            stock = message.stock.rstrip(b" ")
            if letter in (b"R", b"K"):
                assert parts[0]["symbol"] == stock
            if message.stock_locate != 0:
                assert decoder.symbol_of(message.stock_locate) == stock.decode()


def read_ours(path: Path, session_date: date | None = None) -> tuple[wire.FrameArray, Decoder, int]:
    with DayFile(path, FORMAT, session_date=session_date) as day:
        frames = np.concatenate([batch.copy() for batch in day.frames()])
        return frames, day.decoder, midnight_ns(day.session_date, FORMAT.time_zone)


def test_the_table_names_every_attribute_that_the_peers_have() -> None:
    generator = random.Random(1)
    for letter in reference.BODIES:
        raw = random_message(generator, letter)
        message = itchfeed_types[letter](raw)
        stated = {attribute.split()[0] for attribute in FIELDS[letter].values()}
        assert set(vars(message)) - HEAD_ATTRIBUTES - {"price_precision"} == stated, letter
        if letter not in PEERS["meatpy"].unreadable:
            stated = {attribute.split()[-1] for attribute in FIELDS[letter].values()}
            assert set(vars(ITCH50MarketMessage.from_bytes(raw))) - HEAD_ATTRIBUTES == stated, letter


def test_the_real_file_reads_alike(market_data: Path, peer: Peer) -> None:
    path = market_data / "itch50" / "12302019_SNIPPET.NASDAQ_ITCH50"
    messages = peer.read_file(path)
    assert len(messages) == 1_000
    assert_agree(messages, peer, *read_ours(path))


def test_the_file_without_lengths_reads_alike_once_they_are_restored(
    market_data: Path, peer: Peer, tmp_path: Path
) -> None:
    hostile = market_data / "itch50" / "RITCH_ex20101224.TEST_ITCH_50"
    path = tmp_path / "12242010.restored"
    with DayFile(hostile, FORMAT, lengths=Lengths.BY_TYPE) as day, path.open("wb") as file:
        for blocks in day.blocks():
            file.write(blocks.data[blocks.begin : blocks.end].tobytes())
    messages = peer.read_file(path)
    if peer.name == "itchfeed":
        assert len(messages) == 12_012
    assert_agree(messages, peer, *read_ours(path))


def random_message(generator: random.Random, letter: bytes) -> bytes:
    """Return a valid message with every field drawn from its whole range."""
    codes, names = reference.BODIES[letter]
    values: dict[str, Any] = {}
    for code, name in zip(reference.field_codes(codes), names.split(), strict=True):
        if code in "QI":
            values[name] = generator.getrandbits(struct.calcsize(f"!{code}") * 8)
        elif code == "c":
            values[name] = bytes([generator.randrange(0x20, 0x7F)])
        else:
            width = int(code[:-1])
            letters = generator.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=generator.randint(0, width))
            values[name] = bytes(letters).ljust(width)
    locate = generator.randint(1, 65_535)
    for name in values:
        if name == "stock":
            values[name] = reference.stock_of_locate(locate)
        elif name == "side":
            values[name] = generator.choice([b"B", b"S"])
        elif name == "printable":
            values[name] = generator.choice([b"Y", b"N"])
        elif name.startswith("level"):
            values[name] = generator.randrange(reference.PRICE8_MAX)
        elif name == "event" and letter == b"S":
            values[name] = generator.choice([b"O", b"S", b"Q", b"M", b"E"])  # itchfeed stops after C
    return reference.pack(letter, locate, generator.getrandbits(16), generator.getrandbits(48), **values)


def test_every_type_with_values_from_their_whole_range_reads_alike(peer: Peer, tmp_path: Path) -> None:
    generator = random.Random(8_841)
    letters = [letter for letter in reference.BODIES if letter not in peer.unreadable] * 60
    generator.shuffle(letters)
    path = tmp_path / "12302019.every_type"
    path.write_bytes(reference.blocks_of(random_message(generator, letter) for letter in letters))
    messages = peer.read_file(path)
    assert [peer.type_of(message) for message in messages] == letters
    assert_agree(messages, peer, *read_ours(path))


def test_meatpy_cannot_read_type_o_and_so_proves_nothing_about_it() -> None:
    with pytest.raises(struct.error, match="requires a buffer of 51 bytes"):
        ITCH50MarketMessage.from_bytes(random_message(random.Random(1), b"O"))
