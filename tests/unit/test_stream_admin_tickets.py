"""Tickets: good here, now, for this stream and adapter, under a key in use; in every other case refused."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feeds.errors import ConfigError
from stream_admin.private_files import ExposedError
from stream_admin.protocol.errors import ProtocolError, TicketRefused
from stream_admin.protocol.filters import FilterStep, StreamFilter
from stream_admin.protocol.messages import TICKET_LENGTH_MAX, Standby
from stream_admin.protocol.tickets import (
    KEYS_MAX,
    LIFETIME_NS_MAX,
    SECOND_NS,
    PublicKey,
    PublicKeys,
    TicketClaims,
    TicketVerifier,
    UsedTickets,
    packed,
    signed_part,
    unpacked,
)
from stream_admin.tickets import KeyRing, SigningKeyError
from tests.unit.stream_admin_scene import CLAIMS, FILTER, NOW_NS, STREAM

SKEW_NS = 2 * SECOND_NS
LIFETIME_NS = 30 * SECOND_NS


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def verifier(ring: KeyRing) -> TicketVerifier:
    return TicketVerifier(ring.public_keys(), SKEW_NS)


def issue(ring: KeyRing, stream_filter: StreamFilter = FILTER) -> str:
    return ring.issue(
        stream_filter,
        adapters=("a", "b"),
        instruments=("AAPL",),
        standby=Standby.WARM,
        epoch=4,
        now_ns=NOW_NS,
        lifetime_ns=LIFETIME_NS,
    )


def verify(verifier: TicketVerifier, text: str, now_ns: int = NOW_NS) -> TicketClaims:
    return verifier.verify(text, stream=STREAM, adapter="a", now_ns=now_ns)


def test_good_ticket_says_what_was_granted(ring: KeyRing, verifier: TicketVerifier) -> None:
    claims = verify(verifier, issue(ring))
    assert claims == dataclasses.replace(CLAIMS, nonce=claims.nonce, key_id=ring.current)
    assert claims.filter.matcher_at(4_999).matches("MSFT")
    assert not claims.filter.matcher_at(5_000).matches("MSFT")


@pytest.mark.parametrize(
    ("now_ns", "claim"),
    [
        (NOW_NS - SKEW_NS, None),
        (NOW_NS - SKEW_NS - 1, "issued_at_ns"),
        (NOW_NS + LIFETIME_NS + SKEW_NS - 1, None),
        (NOW_NS + LIFETIME_NS + SKEW_NS, "expires_at_ns"),
    ],
)
def test_ticket_is_good_for_its_time_and_the_skew(
    now_ns: int, claim: str | None, ring: KeyRing, verifier: TicketVerifier
) -> None:
    if claim is None:
        verify(verifier, issue(ring), now_ns)
    else:
        with pytest.raises(TicketRefused) as caught:
            verify(verifier, issue(ring), now_ns)
        assert caught.value.claim == claim


def test_ticket_opens_no_other_stream_and_no_other_adapter(ring: KeyRing, verifier: TicketVerifier) -> None:
    for stream, adapter, claim in (("XNYS.PILLAR", "a", "stream"), (STREAM, "c", "adapters")):
        with pytest.raises(TicketRefused) as caught:
            verifier.verify(issue(ring), stream=stream, adapter=adapter, now_ns=NOW_NS)
        assert caught.value.claim == claim
        for word in ("desk-7", "AAPL", "MS*", ring.current, *(() if claim != "stream" else (STREAM,))):
            assert word not in str(caught.value)


def resigned(ring: KeyRing, document: bytes, key_id: str | None = None) -> str:
    """A ticket of any content, truly signed: what a faulty or newer server could send."""
    body = f"ttk1.{key_id or ring.current}.{packed(document)}"
    return f"{body}.{packed(ring._keys[key_id or ring.current].sign(signed_part(body)))}"


FORGERIES: list[tuple[str, Callable[[KeyRing, str], str], str]] = [
    ("empty", lambda ring, text: "", "form"),
    ("too long", lambda ring, text: text + "A" * TICKET_LENGTH_MAX, "form"),
    ("other prefix", lambda ring, text: "ttk2" + text[4:], "form"),
    ("one part more", lambda ring, text: text + ".", "form"),
    ("not ascii", lambda ring, text: text[:-1] + "é", "form"),
    ("padding", lambda ring, text: text + "==", "form"),
    ("a space in it", lambda ring, text: text[:-3] + " " + text[-3:], "form"),
    ("unknown key", lambda ring, text: text.replace(ring.current, "f" * 16), "key_id"),
    ("no signature", lambda ring, text: text.rpartition(".")[0] + ".", "signature"),
    (
        "signature of another",
        lambda ring, text: f"{text.rpartition('.')[0]}.{packed(bytes(64))}",
        "signature",
    ),
    (
        "claims changed",
        lambda ring, text: ".".join(
            [
                *text.split(".")[:2],
                packed(unpacked(text.split(".")[2]).replace(b"desk-7", b"desk-8")),
                text.split(".")[3],
            ]
        ),
        "signature",
    ),
    ("signed nonsense", lambda ring, text: resigned(ring, b"nonsense"), "TicketClaims"),
    (
        "not canonical",
        lambda ring, text: resigned(ring, b" " + unpacked(text.split(".")[2])),
        "form",
    ),
    (
        "key of another id",
        lambda ring, text: resigned(ring, unpacked(text.split(".")[2]), ring.add_key()),
        "key_id",
    ),
    (
        "lives too long",
        lambda ring, text: resigned(
            ring,
            json.dumps(
                {
                    **json.loads(unpacked(text.split(".")[2])),
                    "expires_at_ns": NOW_NS + LIFETIME_NS_MAX + 1,
                }
            ).encode(),
        ),
        "expires_at_ns",
    ),
]


@pytest.mark.parametrize(
    ("forge", "claim"), [row[1:] for row in FORGERIES], ids=[row[0] for row in FORGERIES]
)
def test_forged_ticket_is_refused_by_what_is_wrong_with_it(
    forge: Callable[[KeyRing, str], str], claim: str, ring: KeyRing
) -> None:
    forged = forge(ring, issue(ring))
    with pytest.raises(TicketRefused) as caught:
        verify(TicketVerifier(ring.public_keys(), SKEW_NS), forged)
    assert caught.value.claim == claim
    assert "desk" not in str(caught.value)


def test_no_changed_character_goes_unnoticed(ring: KeyRing, verifier: TicketVerifier) -> None:
    text = issue(ring)
    for index in range(len(text)):
        changed = text[:index] + ("B" if text[index] != "B" else "C") + text[index + 1 :]
        with pytest.raises(TicketRefused):
            verify(verifier, changed)


def test_keys_are_changed_without_refusing_a_good_ticket(ring: KeyRing, verifier: TicketVerifier) -> None:
    old_ticket, old_key = issue(ring), ring.current
    new_key = ring.add_key()
    assert ring.current == old_key
    verifier.replace_keys(ring.public_keys())
    ring.use(new_key)
    new_ticket = issue(ring)
    verify(verifier, old_ticket)
    verify(verifier, new_ticket)
    again = KeyRing(ring.directory)
    assert (again.current, again.key_ids) == (new_key, sorted([old_key, new_key]))
    with pytest.raises(SigningKeyError, match="signs at present"):
        ring.retire(new_key)
    ring.retire(old_key)
    verifier.replace_keys(ring.public_keys())
    verify(verifier, new_ticket)
    with pytest.raises(TicketRefused, match="names no key"):
        verify(verifier, old_ticket)
    with pytest.raises(SigningKeyError, match="has no key"):
        ring.use(old_key)


def test_number_of_keys_is_bounded(ring: KeyRing) -> None:
    for _ in range(KEYS_MAX - 1):
        ring.add_key()
    with pytest.raises(SigningKeyError, match="retire one"):
        ring.add_key()


def test_key_files_are_closed_to_others_and_refused_when_open(ring: KeyRing) -> None:
    path = ring.directory / f"{ring.current}.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ring.directory.stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    with pytest.raises(ExposedError, match="closed to others"):
        KeyRing(ring.directory)
    path.chmod(0o600)
    ring.directory.chmod(0o711)
    with pytest.raises(ExposedError, match="closed to others"):
        KeyRing(ring.directory)


def test_damaged_key_is_refused_by_its_file_and_never_quoted(ring: KeyRing) -> None:
    path = ring.directory / f"{ring.current}.pem"
    good = path.read_bytes()
    for damaged in (b"", good[:-40], good.replace(b"MC4", b"XXX")):
        path.write_bytes(damaged)
        with pytest.raises(SigningKeyError) as caught:
            KeyRing(ring.directory)
        assert str(path) in str(caught.value)
        assert good.splitlines()[1].decode() not in str(caught.value)
    path.write_bytes(good)
    path.rename(ring.directory / "0123456789abcdef.pem")
    with pytest.raises(SigningKeyError, match="named for another key"):
        KeyRing(ring.directory)


def test_what_a_killed_writer_left_is_removed_and_a_first_key_is_chosen(ring: KeyRing) -> None:
    (ring.directory / ".new-0011").write_bytes(b"half a key")
    (ring.directory / "current").unlink()
    again = KeyRing(ring.directory)
    assert again.current == ring.current
    assert sorted(os.listdir(ring.directory)) == sorted([f"{ring.current}.pem", "current"])  # noqa: PTH208


def test_public_key_under_the_id_of_another_is_refused(ring: KeyRing) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    with pytest.raises(ProtocolError, match="digest of its public key"):
        TicketVerifier(PublicKeys((PublicKey(ring.current, other),)), SKEW_NS)


def test_ticket_that_would_be_too_large_is_not_issued(ring: KeyRing) -> None:
    patterns = tuple(sorted(f"{index:03}{'X' * 44}*" for index in range(256)))
    large = StreamFilter("desk-7", STREAM, 1, (FilterStep(0, patterns), FilterStep(1, patterns[1:])))
    with pytest.raises(ProtocolError, match="fewer patterns"):
        issue(ring, large)


def test_ticket_is_taken_once_and_forgotten_when_it_has_expired() -> None:
    used = UsedTickets(2, SKEW_NS)
    second, third = (dataclasses.replace(CLAIMS, nonce=digit * 32) for digit in "23")
    used.take(CLAIMS, NOW_NS)
    with pytest.raises(TicketRefused, match="used already"):
        used.take(CLAIMS, NOW_NS + 1)
    used.take(second, NOW_NS)
    with pytest.raises(TicketRefused, match="2 tickets in use are the limit"):
        used.take(third, CLAIMS.expires_at_ns + SKEW_NS - 1)
    used.take(third, CLAIMS.expires_at_ns + SKEW_NS)
    assert len(used) == 1


def test_skew_and_capacity_have_limits(ring: KeyRing) -> None:
    for skew_ns in (-1, 61 * SECOND_NS):
        with pytest.raises(ConfigError, match="skew_ns must be"):
            TicketVerifier(ring.public_keys(), skew_ns)
    with pytest.raises(ConfigError, match="capacity must be"):
        UsedTickets(0, 0)
