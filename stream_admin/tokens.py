"""Tokens: what a principal shows to prove who it is. Shown once, when made, and kept only as a digest.

    tt_ + 56 characters of a-z and 2-7: 32 random bytes, and 3 of checksum

The checksum tells a mistyped token from an unknown one before anything is looked up. It proves nothing.

Stored is the SHA-256 of a token. Slow hashes (scrypt, Argon2) exist because people choose passwords that can
be guessed; 256 random bits cannot, at any speed, and a slow hash would only let strangers keep the server
busy. For the same reason a look-up by digest gives nothing away by its timing: what is compared there is not
the secret, and who could find a token from a piece of its digest could find it without. The comparison
itself takes the same time wherever two digests differ.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import NoReturn, Self

from stream_admin.protocol.errors import AdminError
from stream_admin.protocol.names import LABEL, PRINCIPAL_NAME

PREFIX = "tt_"
SECRET_BYTES = 32
CHECKSUM_BYTES = 3  # one typing error in 16.7 million goes unnoticed here, and fails as unknown
DIGEST_BYTES = 32
TOKEN_LENGTH = len(PREFIX) + (SECRET_BYTES + CHECKSUM_BYTES) * 8 // 5
assert (SECRET_BYTES + CHECKSUM_BYTES) * 8 % 5 == 0  # no spare bits, so one token has one spelling


class TokenRefused(AdminError):
    """A token opens nothing. `why` is for the audit log; strangers are told no more than `refused`."""

    def __init__(self, why: str, token_id: str | None = None) -> None:
        self.why = why
        self.token_id = token_id  # None where no such token is known
        super().__init__(f"token refused: {why}")


class Token:
    """A token in the clear. Nothing prints it but `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Take a token as it was shown to its owner; TokenRefused says what is wrong with its form."""
        if len(text) != TOKEN_LENGTH or not text.startswith(PREFIX):
            raise TokenRefused(f"a token is {PREFIX!r} and {TOKEN_LENGTH - len(PREFIX)} characters more")
        body = text.removeprefix(PREFIX)
        try:
            data = base64.b32decode(body.upper()) if body == body.lower() else b""
        except (binascii.Error, ValueError):
            data = b""
        if len(data) != SECRET_BYTES + CHECKSUM_BYTES:
            raise TokenRefused("a token has no characters but a-z and 2-7 after its prefix")
        if not hmac.compare_digest(_checksum(data[:SECRET_BYTES]), data[SECRET_BYTES:]):
            raise TokenRefused("its checksum does not fit: it was mistyped")
        self._text = text

    @classmethod
    def generate(cls) -> Self:
        """Return a new token."""
        secret = secrets.token_bytes(SECRET_BYTES)
        return cls(PREFIX + base64.b32encode(secret + _checksum(secret)).decode("ascii").lower())

    def reveal(self) -> str:
        """Return the token itself: to show it to its owner, once, or to send it to the server."""
        return self._text

    def digest(self) -> bytes:
        """Return what the store keeps."""
        return hashlib.sha256(self._text.encode("ascii")).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and hmac.compare_digest(self.digest(), other.digest())

    def __hash__(self) -> int:
        raise TypeError("a token is no key of a dictionary: use its digest")

    def __repr__(self) -> str:
        return "Token(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token is not pickled: it would be written somewhere in the clear")


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is known of a token: all but the token."""

    token_id: str  # names it to operators; a piece of the digest, of no use to anybody else
    principal: str
    label: str
    digest: bytes = field(repr=False)
    created_at_ns: int
    expires_at_ns: int
    revoked_at_ns: int | None = None

    def __post_init__(self) -> None:
        PRINCIPAL_NAME.check(self.principal, "principal")
        LABEL.check(self.label, "label")
        assert len(self.digest) == DIGEST_BYTES
        assert self.token_id == token_id_of(self.digest)

    @classmethod
    def of(cls, token: Token, principal: str, label: str, *, now_ns: int, expires_at_ns: int) -> Self:
        """Return the record of a new token."""
        if expires_at_ns <= now_ns:
            raise TokenRefused("it would have expired when it is made")
        digest = token.digest()
        return cls(token_id_of(digest), principal, label, digest, now_ns, expires_at_ns)

    def check(self, token: Token, now_ns: int) -> None:
        """Return if this is the token's record and it is good now; else raise TokenRefused."""
        if not hmac.compare_digest(self.digest, token.digest()):
            raise TokenRefused("it is not known")
        if self.revoked_at_ns is not None and self.revoked_at_ns <= now_ns:
            raise TokenRefused("it was revoked", self.token_id)
        if self.expires_at_ns <= now_ns:
            raise TokenRefused("it has expired", self.token_id)


def token_id_of(digest: bytes) -> str:
    return digest[:6].hex()


def _checksum(secret: bytes) -> bytes:
    return hashlib.sha256(b"twintape token checksum\n" + secret).digest()[:CHECKSUM_BYTES]
