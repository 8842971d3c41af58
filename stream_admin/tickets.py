"""Tickets, as the server makes them, and the keys that it signs them with.

    <directory>/<key id>.pem     one private key each (PKCS #8), its owner's alone
    <directory>/current          the id of the one that signs

Keys are changed in three steps, so that no good ticket is ever refused: `add_key` makes a new one and its
public half is handed to the adapters; `use` signs with it; and when the last ticket of the old one has
expired, `retire` removes that. Files appear whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stream_admin.private_files import (
    make_private_directory,
    read_private_file,
    remove_scratch,
    sync_directory,
    write_private_file,
)
from stream_admin.protocol.errors import AdminError, ProtocolError
from stream_admin.protocol.filters import StreamFilter
from stream_admin.protocol.messages import TICKET_LENGTH_MAX, Standby
from stream_admin.protocol.tickets import (
    KEYS_MAX,
    PREFIX,
    PublicKeys,
    TicketClaims,
    key_id_of,
    packed,
    public_keys,
    signed_part,
)

_SUFFIX = ".pem"
_CURRENT = "current"


class SigningKeyError(AdminError):
    """A signing key is missing, unusable, or must not be removed. The message names the file."""


class KeyRing:
    """The signing keys of a server, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Open the directory; make it, and a first key, where there is none."""
        self.directory = directory
        make_private_directory(directory)
        remove_scratch(directory)
        self._keys = {path.stem: self._load(path) for path in sorted(directory.glob(f"*{_SUFFIX}"))}
        if not self._keys or not (directory / _CURRENT).exists():
            # Killed between the first key and the choice of it, or new: either way nothing was signed yet.
            self.use(next(iter(self._keys), None) or self.add_key())
        self.current = self._read_current()

    def add_key(self) -> str:
        """Make a key, store it, and return its id. It verifies from now on, and signs after `use`."""
        if len(self._keys) >= KEYS_MAX:
            raise SigningKeyError(f"{self.directory} has {KEYS_MAX} keys, the most there may be: retire one")
        key = Ed25519PrivateKey.generate()
        key_id = key_id_of(_public(key))
        document = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private_file(self.directory / f"{key_id}{_SUFFIX}", document)
        self._keys[key_id] = key
        return key_id

    def use(self, key_id: str) -> None:
        """Sign with this key from now on."""
        self._insist_known(key_id)
        write_private_file(self.directory / _CURRENT, key_id.encode("ascii"))
        self.current = key_id

    def retire(self, key_id: str) -> None:
        """Remove a key. Tickets that it signed are refused by every adapter that has heard of it."""
        self._insist_known(key_id)
        if key_id == self.current:
            raise SigningKeyError(f"key {key_id} signs at present: use another before it is retired")
        (self.directory / f"{key_id}{_SUFFIX}").unlink()
        sync_directory(self.directory)
        del self._keys[key_id]

    @property
    def key_ids(self) -> list[str]:
        return sorted(self._keys)

    def public_keys(self) -> PublicKeys:
        """Return what adapters verify with."""
        return public_keys(_public(self._keys[key_id]) for key_id in self.key_ids)

    def issue(
        self,
        stream_filter: StreamFilter,
        *,
        adapters: tuple[str, ...],
        instruments: tuple[str, ...],
        standby: Standby,
        epoch: int,
        now_ns: int,
        lifetime_ns: int,
    ) -> str:
        """Return a signed ticket for what the filter's principal may read of the filter's stream."""
        claims = TicketClaims(
            principal=stream_filter.principal,
            stream=stream_filter.stream,
            adapters=adapters,
            filter=stream_filter,
            instruments=instruments,
            standby=standby,
            issued_at_ns=now_ns,
            expires_at_ns=now_ns + lifetime_ns,
            epoch=epoch,
            nonce=secrets.token_hex(16),
            key_id=self.current,
        )
        return self.sign(claims)

    def sign(self, claims: TicketClaims) -> str:
        """Return the ticket with these claims, signed by the key that they name."""
        self._insist_known(claims.key_id)
        body = f"{PREFIX}.{claims.key_id}.{packed(claims.encode())}"
        ticket = f"{body}.{packed(self._keys[claims.key_id].sign(signed_part(body)))}"
        if len(ticket) > TICKET_LENGTH_MAX:
            allowed = f"at most {TICKET_LENGTH_MAX} characters: say it with fewer patterns"
            raise ProtocolError("ticket", f"{len(ticket)} characters", allowed)
        return ticket

    def __repr__(self) -> str:
        return f"KeyRing({self.directory}, {len(self._keys)} keys)"

    def _insist_known(self, key_id: str) -> None:
        if key_id not in self._keys:
            raise SigningKeyError(f"{self.directory} has no key {key_id!r}, only {', '.join(self.key_ids)}")

    def _read_current(self) -> str:
        path = self.directory / _CURRENT
        key_id = read_private_file(path).decode("ascii", errors="replace").strip()
        if key_id not in self._keys:
            raise SigningKeyError(f"{path} must name one of {', '.join(self.key_ids)}, was {key_id[:40]!r}")
        return key_id

    def _load(self, path: Path) -> Ed25519PrivateKey:
        try:
            key = serialization.load_pem_private_key(read_private_file(path), password=None)
        except (ValueError, TypeError):  # the library's words may quote the file: they are left out
            raise SigningKeyError(f"{path} is not a private key in PEM form") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningKeyError(f"{path} must be an Ed25519 key, was another kind")
        if key_id_of(_public(key)) != path.stem:
            raise SigningKeyError(f"{path} is named for another key: its own id is {key_id_of(_public(key))}")
        return key


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
