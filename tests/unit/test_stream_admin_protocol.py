"""The protocol's records: valid or not there, strict about JSON, and precise about what is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from stream_admin.protocol import filters, messages, tickets
from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.filters import FilterStep, StreamFilter
from stream_admin.protocol.forms import DOCUMENT_BYTES_MAX, Record
from stream_admin.protocol.messages import (
    AdapterHeartbeat,
    AdapterRegistration,
    Fence,
    LogEndpoint,
    RoleGrant,
    SubscriptionRequest,
    TcpEndpoint,
)
from stream_admin.protocol.names import LOG_NAME_LENGTH_MAX, log_name
from tests.unit.stream_admin_scene import EXAMPLES, LOG, OFFER, STREAM

IDS = [type(example).__name__ for example in EXAMPLES]


def example_of(kind: type[Record]) -> dict[str, Any]:
    return next(example for example in EXAMPLES if type(example) is kind).to_json()


def test_every_record_of_the_protocol_has_an_example_here() -> None:
    kinds = {
        value
        for module in (messages, filters, tickets)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Record) and value.__module__ == module.__name__
    }
    assert kinds - {FilterStep, tickets.PublicKey} <= {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_record_comes_back_from_its_json(example: Record) -> None:
    assert type(example).decode(example.encode()) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_every_field_must_be_there_and_no_other(example: Record) -> None:
    document = example.to_json()
    for name in document:
        without = {key: value for key, value in document.items() if key != name}
        with pytest.raises(ProtocolError) as caught:
            type(example).from_json(without)
        assert caught.value.field == name
    with pytest.raises(ProtocolError, match="without unknown fields, was 'surprise'"):
        type(example).from_json({**document, "surprise": 1})


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_no_field_takes_a_value_of_another_type(example: Record) -> None:
    document = example.to_json()
    never_right: tuple[Any, ...] = (1.5, [[]], {"a": 1}, "\n", -1, "x" * 100_000, 2**64)
    for name in document:
        for wrong in never_right:
            with pytest.raises(ProtocolError) as caught:
                type(example).from_json({**document, name: wrong})
            assert caught.value.field.startswith(name) or caught.value.field == type(example).__name__
            assert len(str(caught.value)) < 1_000


WRONG = [
    (RoleGrant, "stream", "", "stream"),
    (RoleGrant, "stream", ".hidden", "stream"),
    (RoleGrant, "stream", "a/b", "stream"),
    (RoleGrant, "stream", "A" * 41, "stream"),
    (RoleGrant, "stream", "naïve", "stream"),
    (RoleGrant, "adapter", "a.b", "adapter"),
    (RoleGrant, "epoch", 0, "epoch"),
    (RoleGrant, "epoch", True, "epoch"),
    (RoleGrant, "epoch", 1.0, "epoch"),
    (RoleGrant, "epoch", "1", "epoch"),
    (RoleGrant, "epoch", 2**32, "epoch"),
    (RoleGrant, "from_seq", 2**63, "from_seq"),
    (TcpEndpoint, "port", 65_536, "port"),
    (TcpEndpoint, "tls", 1, "tls"),
    (TcpEndpoint, "kind", "log", "kind"),
    (TcpEndpoint, "host", "10.0.0.256", "host"),
    (TcpEndpoint, "host", "-a.example", "host"),
    (TcpEndpoint, "host", "fe80::1%eth0", "host"),
    (TcpEndpoint, "host", "a..b", "host"),
    (LogEndpoint, "runtime", "relative/path", "runtime"),
    (LogEndpoint, "runtime", "/run/../etc", "runtime"),
    (LogEndpoint, "runtime", "/run//x", "runtime"),
    (SubscriptionRequest, "instruments", [], "instruments"),
    (SubscriptionRequest, "instruments", ["B", "A"], "instruments[1]"),
    (SubscriptionRequest, "instruments", ["A", "A"], "instruments[1]"),
    (SubscriptionRequest, "instruments", ["A**"], "instruments[0]"),
    (SubscriptionRequest, "standby", "lukewarm", "standby"),
    (SubscriptionRequest, "from_seq", 0, "from_seq"),
    (AdapterRegistration, "endpoints", [], "endpoints"),
    (AdapterRegistration, "endpoints", [{"kind": "carrier pigeon"}], "endpoints[0].kind"),
    (AdapterRegistration, "endpoints", [LOG.to_json()] * 9, "endpoints"),
    (AdapterHeartbeat, "oldest_seq", 5_002, "oldest_seq"),
    (AdapterHeartbeat, "epoch", 0, "is_active"),
]


@pytest.mark.parametrize(("kind", "name", "value", "field"), WRONG)
def test_wrong_value_is_refused_by_the_name_of_its_field(
    kind: type[Record], name: str, value: object, field: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        kind.from_json({**example_of(kind), name: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} must be ")


RIGHT = [
    (TcpEndpoint, "host", "::1"),
    (TcpEndpoint, "host", "10.0.0.255"),
    (TcpEndpoint, "host", "host.example."),
    (LogEndpoint, "runtime", "/dev/shm/twintape-0"),
    (RoleGrant, "stream", "A" * 40),
    (RoleGrant, "epoch", 2**32 - 1),
    (SubscriptionRequest, "from_seq", 2**63 - 1),
]


@pytest.mark.parametrize(("kind", "name", "value"), RIGHT)
def test_value_at_the_edge_is_taken(kind: type[Record], name: str, value: object) -> None:
    assert getattr(kind.from_json({**example_of(kind), name: value}), name) == value


DOCUMENTS = [
    (b'{"stream":"S","stream":"S","adapter":"a","epoch":1}', "each field once"),
    (b'{"stream":"S","adapter":"a","epoch":NaN}', "without NaN"),
    (b'{"stream":"S"', "well-formed JSON"),
    (b"\xff", "well-formed JSON"),
    (b"[" * 100_000, "well-formed JSON"),
    (b'{"epoch":' + b"9" * 5_000 + b"}", "well-formed JSON"),
    (b"[]", "a JSON object"),
    (b" " * (DOCUMENT_BYTES_MAX + 1), f"at most {DOCUMENT_BYTES_MAX} bytes"),
]


@pytest.mark.parametrize(("document", "allowed"), DOCUMENTS)
def test_document_that_is_not_plain_json_is_refused(document: bytes, allowed: str) -> None:
    with pytest.raises(ProtocolError, match=allowed):
        Fence.decode(document)


def test_error_inside_a_nested_record_names_the_whole_path() -> None:
    claims = example_of(tickets.TicketClaims)
    claims["filter"]["steps"][1]["effective_from"] = 0
    with pytest.raises(ProtocolError) as caught:
        tickets.TicketClaims.from_json(claims)
    assert caught.value.field == "filter.steps[1].effective_from"
    assert str(caught.value).startswith("filter.steps[1].effective_from must be greater than 0")


def test_records_made_in_python_are_checked_too() -> None:
    with pytest.raises(ProtocolError, match="epoch must be an integer from 1"):
        RoleGrant(STREAM, "a", 0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        OFFER.adapter = "b"  # type: ignore[misc]


def test_field_without_a_limit_is_our_own_bug() -> None:
    @dataclasses.dataclass(frozen=True)
    class Unbounded(Record):
        text: str

    with pytest.raises(AssertionError, match="sets no limit"):
        Unbounded("x")


def test_ticket_shows_neither_in_an_offer_nor_in_an_error() -> None:
    text = "ttk1.very.secret.words"
    offer = dataclasses.replace(OFFER, ticket=text)
    assert text not in repr(offer)
    with pytest.raises(ProtocolError) as caught:
        type(offer).from_json({**offer.to_json(), "ticket": text + "\n"})
    assert "very" not in str(caught.value)


def test_names_of_logs_are_unambiguous_and_short_enough() -> None:
    assert log_name("XNAS.ITCH", "a") == "XNAS.ITCH.a"
    assert len(log_name("S" * 40, "a" * 20)) <= LOG_NAME_LENGTH_MAX
    with pytest.raises(ProtocolError):
        log_name("XNAS", "ITCH.a")


def test_encoding_does_not_depend_on_the_order_of_fields() -> None:
    document = example_of(StreamFilter)
    turned = json.dumps(dict(reversed(document.items()))).encode()
    assert StreamFilter.decode(turned).encode() == StreamFilter.from_json(document).encode()


def test_filter_is_whole_only_if_it_stays_so() -> None:
    def made(*steps: tuple[int, tuple[str, ...]]) -> StreamFilter:
        return StreamFilter("p", STREAM, 1, tuple(FilterStep(*step) for step in steps))

    whole = made((0, ("A",)), (10, ("*",)))
    assert not whole.is_whole_from(9)
    assert whole.is_whole_from(10)
    assert not made((0, ("*",)), (10, ("A",))).is_whole_from(1)
    assert not made((0, ("?*",))).is_whole_from(1)
    assert made((0, ("A",)), (10, ())).is_nothing_from(10)
    assert not made((0, ("A",)), (10, ())).is_nothing_from(9)
    assert made((0, ("A",)), (10, ())).next_change_after(9) == 10
    assert made((0, ("A",)), (10, ())).next_change_after(10) is None
