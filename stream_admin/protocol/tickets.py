"""Tickets, as an adapter sees them: who may read what here, for a little while, signed by the server.

    ttk1.<key id>.<claims>.<signature>          claims and signature in URL-safe base64 without padding

Signed is everything before the last dot. Nothing of a ticket is parsed before its signature holds, and the
claims must then be spelled in the one canonical way, so that one ticket has one text. Verifying takes public
keys only: adapters need neither the server nor a secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from feeds.errors import ConfigError
from stream_admin.protocol.errors import ProtocolError, TicketRefused
from stream_admin.protocol.filters import PatternTexts, StreamFilter
from stream_admin.protocol.forms import Count, Record
from stream_admin.protocol.messages import ADAPTERS_MAX, TICKET_LENGTH_MAX, Standby
from stream_admin.protocol.names import (
    AdapterName,
    EpochKnown,
    KeyId,
    Nonce,
    PrincipalName,
    PublicKeyHex,
    StreamName,
    TimeNs,
)

PREFIX = "ttk1"
# What is signed begins with words of its own: no other document under the same key can pass for a ticket.
DOMAIN = b"twintape ticket\n"
SECOND_NS = 1_000_000_000
LIFETIME_NS_MIN = SECOND_NS
LIFETIME_NS_MAX = 600 * SECOND_NS
SKEW_NS_MAX = 60 * SECOND_NS
KEYS_MAX = 16


@dataclass(frozen=True, slots=True)
class TicketClaims(Record):
    """What a ticket says. `filter` is what may be read, `instruments` what was asked for: both must match."""

    principal: PrincipalName
    stream: StreamName
    adapters: Annotated[tuple[AdapterName, ...], Count(ADAPTERS_MAX, least=1, is_sorted_set=True)]
    filter: StreamFilter
    instruments: PatternTexts
    standby: Standby
    issued_at_ns: TimeNs
    expires_at_ns: TimeNs
    epoch: EpochKnown  # the stream's, when the ticket was issued
    nonce: Nonce
    key_id: KeyId

    def check_relations(self) -> None:
        lifetime_ns = self.expires_at_ns - self.issued_at_ns
        if not LIFETIME_NS_MIN <= lifetime_ns <= LIFETIME_NS_MAX:
            allowed = f"{LIFETIME_NS_MIN} to {LIFETIME_NS_MAX} after issued_at_ns"
            raise ProtocolError("expires_at_ns", f"{lifetime_ns} after it", allowed)
        if (self.filter.principal, self.filter.stream) != (self.principal, self.stream):
            raise ProtocolError("filter", "another's", "for the ticket's own principal and stream")


@dataclass(frozen=True, slots=True)
class PublicKey(Record):
    """A key that tickets may be signed with; its id is a digest of it, so it cannot be swapped unnoticed."""

    key_id: KeyId
    public: PublicKeyHex


@dataclass(frozen=True, slots=True)
class PublicKeys(Record):
    """All keys whose tickets are good at present: the server hands it to adapters, ahead of each rotation."""

    keys: Annotated[tuple[PublicKey, ...], Count(KEYS_MAX, least=1)]


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def unpacked(text: str) -> bytes:
    """Return what `packed` packed; ValueError for anything that it cannot have made."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if packed(data) != text:  # spare bits set, or padding of its own
        raise ValueError("not in the canonical form")
    return data


def signed_part(text: str) -> bytes:
    """Return the bytes that the signature of `ttk1.<key id>.<claims>` is over."""
    return DOMAIN + text.encode("ascii")


class TicketVerifier:
    """Decides whether a ticket opens a stream at an adapter. Give it the server's keys as they change."""

    def __init__(self, keys: PublicKeys, skew_ns: int) -> None:
        """Allow clocks to differ by `skew_ns`: the server's from ours, one way or the other."""
        if not 0 <= skew_ns <= SKEW_NS_MAX:
            raise ConfigError(f"skew_ns must be 0 to {SKEW_NS_MAX}, was {skew_ns}")
        self._skew_ns = skew_ns
        self.replace_keys(keys)

    def replace_keys(self, keys: PublicKeys) -> None:
        """Believe these keys from now on, and no others."""
        self._keys = {key.key_id: _loaded(key) for key in keys.keys}

    def verify(self, text: str, *, stream: str, adapter: str, now_ns: int) -> TicketClaims:
        """Return the claims of a ticket that is good for this stream here and now, or raise TicketRefused."""
        claims = self._authentic(text)
        if claims.issued_at_ns > now_ns + self._skew_ns:
            raise TicketRefused("issued_at_ns", "is in the future, by more than the clocks may differ")
        if claims.expires_at_ns + self._skew_ns <= now_ns:
            raise TicketRefused("expires_at_ns", "has passed")
        if claims.stream != stream:
            raise TicketRefused("stream", f"is not {stream}")
        if adapter not in claims.adapters:
            raise TicketRefused("adapters", f"do not include {adapter}")
        return claims

    def _authentic(self, text: str) -> TicketClaims:
        if len(text) > TICKET_LENGTH_MAX:
            raise TicketRefused("form", f"is longer than {TICKET_LENGTH_MAX} characters")
        parts = text.split(".")
        if len(parts) != 4 or parts[0] != PREFIX or not text.isascii():
            raise TicketRefused("form", f"is not that of a ticket ({PREFIX}.<key id>.<claims>.<signature>)")
        _, key_id, claims_text, signature_text = parts
        try:
            document, signature = unpacked(claims_text), unpacked(signature_text)
        except (ValueError, binascii.Error):
            raise TicketRefused("form", "is not canonical base64") from None
        key = self._keys.get(key_id)
        if key is None:
            raise TicketRefused("key_id", "names no key that is in use")
        try:
            key.verify(signature, signed_part(text.rpartition(".")[0]))
        except InvalidSignature:
            raise TicketRefused("signature", "does not fit") from None
        try:
            claims = TicketClaims.decode(document, TICKET_LENGTH_MAX)
        except ProtocolError as error:  # signed, and yet not ours to understand: perhaps of a newer server
            raise TicketRefused(error.field, f"must be {error.allowed}") from None
        if claims.encode() != document:
            raise TicketRefused("form", "is not the canonical one of its claims")
        if claims.key_id != key_id:
            raise TicketRefused("key_id", "is not that of the key it was signed with")
        return claims


class UsedTickets:
    """Remembers the nonces of tickets that were taken until they expire: one ticket opens one connection.

    Its size is bounded. When it is full of tickets that are still good, new ones are refused rather than old
    ones forgotten.
    """

    def __init__(self, capacity: int, skew_ns: int) -> None:
        if not 1 <= capacity <= 1_000_000:
            raise ConfigError(f"capacity must be 1 to 1000000 tickets, was {capacity}")
        self._capacity = capacity
        self._skew_ns = skew_ns
        self._nonces: set[str] = set()
        self._expiries: list[tuple[int, str]] = []

    def take(self, claims: TicketClaims, now_ns: int) -> None:
        """Take a verified ticket, or raise TicketRefused if it was taken before."""
        while self._expiries and self._expiries[0][0] + self._skew_ns <= now_ns:
            self._nonces.discard(heapq.heappop(self._expiries)[1])
        if claims.nonce in self._nonces:
            raise TicketRefused("nonce", "was used already")
        if len(self._nonces) >= self._capacity:
            raise TicketRefused(
                "nonce", f"cannot be remembered: {self._capacity} tickets in use are the limit"
            )
        self._nonces.add(claims.nonce)
        heapq.heappush(self._expiries, (claims.expires_at_ns, claims.nonce))

    def __len__(self) -> int:
        return len(self._nonces)


def key_id_of(public: bytes) -> str:
    """Return the id of a public key."""
    return hashlib.sha256(b"twintape ticket key\n" + public).hexdigest()[:16]


def public_keys(raw_keys: Iterable[bytes]) -> PublicKeys:
    """Return raw public keys (32 bytes each) as the server hands them out."""
    return PublicKeys(tuple(PublicKey(key_id_of(raw), raw.hex()) for raw in raw_keys))


def _loaded(key: PublicKey) -> Ed25519PublicKey:
    raw = bytes.fromhex(key.public)
    if key_id_of(raw) != key.key_id:
        raise ProtocolError("key_id", key.key_id, f"{key_id_of(raw)}, the digest of its public key")
    return Ed25519PublicKey.from_public_bytes(raw)
