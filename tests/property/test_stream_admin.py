"""Patterns, filters and tickets against references that are too plain to be wrong."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_admin.entitlements import Entitlement, Right, Span, stream_filter
from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.filters import StreamFilter
from stream_admin.protocol.forms import Record
from stream_admin.protocol.messages import AdminMessage, AdminMessageState, RoleGrant, TcpEndpoint
from stream_admin.protocol.patterns import PATTERN_LENGTH_MAX, Pattern, PatternSet, literal_pattern
from stream_admin.protocol.tickets import packed, unpacked
from stream_admin.tokens import Token, TokenRefused

STREAM = "XNAS.ITCH"
PRINCIPAL = "desk-7"

# Few letters, so that patterns and names meet often.
names = st.text("AB.*?\\", min_size=1, max_size=8)
pattern_texts = st.lists(
    st.sampled_from(["A", "B", ".", "?", "*", r"\*", r"\?", "\\\\"]), min_size=1, max_size=8
).map("".join)
valid_patterns = pattern_texts.filter(lambda text: "**" not in text.replace("\\\\", "").replace(r"\*", "x"))


def meant_by(pattern: str, name: str) -> bool:
    """The language by its definition, one character at a time."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(meant_by(pattern[1:], name[taken:]) for taken in range(len(name) + 1))
    if pattern[0] == "?":
        return bool(name) and meant_by(pattern[1:], name[1:])
    if pattern[0] == "\\":
        return bool(name) and name[0] == pattern[1] and meant_by(pattern[2:], name[1:])
    return bool(name) and name[0] == pattern[0] and meant_by(pattern[1:], name[1:])


@given(valid_patterns, names)
def test_pattern_means_what_its_definition_says(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == meant_by(pattern, name)


@given(st.lists(valid_patterns, max_size=5), names)
def test_set_of_patterns_means_what_one_of_them_means(patterns: list[str], name: str) -> None:
    assert PatternSet(patterns).matches(name) == any(meant_by(pattern, name) for pattern in patterns)


@given(st.text(string.printable, max_size=PATTERN_LENGTH_MAX + 2))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        pattern = Pattern(text)
    except ProtocolError:
        return
    assert pattern.matches("AAPL") == meant_by(text, "AAPL")


@given(names)
def test_name_made_a_pattern_means_itself_alone(name: str) -> None:
    pattern = Pattern(literal_pattern(name))
    assert pattern.is_literal
    assert pattern.literal == name
    assert pattern.matches(name)
    assert not pattern.matches(name + "A")


@pytest.mark.parametrize("text", ["", "**", "A**", "A B", "A\\", r"\A", "é", "A\n", "A" * 49, "A*" * 9])
def test_text_that_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="a pattern"):
        Pattern(text)


def test_worst_pattern_is_matched_in_bounded_steps() -> None:
    assert not Pattern("A*" * 7 + "A*B").matches("A" * 10_000)


seqs = st.integers(0, 12)
spans = st.none() | st.tuples(seqs, st.none() | seqs).filter(
    lambda span: span[1] is None or span[1] >= span[0]
)
entitlements = st.lists(
    st.builds(
        lambda streams, patterns, span, is_ended, rights: Entitlement(
            PRINCIPAL,
            streams,
            PatternSet(patterns).texts if Right.READ in rights else (),
            rights,
            (Span(STREAM, *span),) if span is not None and Pattern(streams).matches(STREAM) else (),
            is_ended,
        ),
        st.sampled_from([STREAM, "XNAS.*", "*", "XNYS.*"]),
        st.lists(st.sampled_from(["AAPL", "MS*", "*", "?"]), min_size=1),
        spans,
        st.booleans(),
        st.sampled_from([(Right.READ,), (Right.ADMIN,), (Right.READ, Right.OPERATE)]),
    ),
    max_size=6,
)


def may_read(held: list[Entitlement], seq: int, name: str) -> bool:
    """The rule by its words: one entitlement in force at the position covers the instrument."""
    for entitlement in held:
        if Right.READ not in entitlement.rights or not meant_by(entitlement.streams, STREAM):
            continue
        ends = [(span.begin_seq, span.end_seq) for span in entitlement.spans]
        begin, end = ends[0] if ends else (0, 0 if entitlement.is_ended else None)
        in_force = seq >= begin and (end is None or seq < end)
        if in_force and any(meant_by(pattern, name) for pattern in entitlement.instruments):
            return True
    return False


@given(entitlements, seqs)
def test_filter_lets_through_exactly_what_is_entitled_at_each_position(
    held: list[Entitlement], from_seq: int
) -> None:
    made = stream_filter(held, PRINCIPAL, STREAM, revision=1, from_seq=from_seq)
    assert StreamFilter.decode(made.encode()) == made
    for seq in range(from_seq, 14):
        for name in ("AAPL", "MSFT", "X", "GOOG"):
            assert made.matcher_at(seq).matches(name) == may_read(held, seq, name)
        if made.is_whole_from(seq):
            assert all(may_read(held, later, "ANY.NAME") for later in range(seq, 20))


records = st.one_of(
    st.builds(
        RoleGrant,
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True),
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}", fullmatch=True),
        st.integers(1, 2**32 - 1),
        st.integers(1, 2**63 - 1),
    ),
    st.builds(TcpEndpoint, st.ip_addresses().map(str), st.integers(1, 65_535), st.booleans()),
    st.builds(
        AdminMessage,
        st.just(STREAM),
        st.integers(1, 2**63 - 1),
        st.integers(1, 2**63 - 1),
        st.integers(1, 2**32 - 1),
        st.text(min_size=1, max_size=1_000).filter(str.isprintable),
        st.sampled_from(AdminMessageState),
    ),
)


@given(records)
def test_record_has_one_encoding_and_comes_back_from_it(record: Record) -> None:
    document = record.encode()
    again = type(record).decode(document)
    assert again == record
    assert again.encode() == document


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_protocol_error(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        RoleGrant.decode(document)


@given(st.binary(max_size=100))
def test_packed_bytes_come_back(data: bytes) -> None:
    assert unpacked(packed(data)) == data


@given(st.text(st.characters(codec="ascii"), max_size=12))
def test_text_unpacks_only_if_it_is_the_packed_form_of_something(text: str) -> None:
    try:
        data = unpacked(text)
    except ValueError:
        return
    assert packed(data) == text


@given(st.text(max_size=80))
def test_no_text_that_was_not_issued_is_a_token(text: str) -> None:
    with pytest.raises(TokenRefused):
        Token(text)
    with pytest.raises(TokenRefused):
        Token(f"tt_{text}")
