"""What the administration server remembers, as an interface: the server asks for nothing of SQLite but this.

Every change names its cause, and is written in one piece with its entry in the audit log. When a method that
changes something returns, the change is durable; above all an epoch, which is granted only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from stream_admin.database import StoreError
from stream_admin.entitlements import Entitlement
from stream_admin.protocol.filters import StreamFilter
from stream_admin.protocol.forms import Integer, Record
from stream_admin.protocol.messages import (
    AdapterRegistration,
    AdminMessage,
    AdminMessageState,
    AuditEntry,
    Decision,
    DesiredSubscription,
    Outcome,
    RoleGrant,
    SubscriptionRequest,
)
from stream_admin.protocol.names import PrincipalName, Sentence, SourceStreamId, StreamName, TimeNs
from stream_admin.tokens import Token, TokenRecord, TokenRefused

PRINCIPALS_MAX = 10_000
TOKENS_MAX = 64  # good ones, of one principal
STREAMS_MAX = 4_096
SUBSCRIPTIONS_MAX = 1_024  # of one principal
PAGE_ENTRIES_MAX = 1_000  # of the audit log, or of any history, at once


class Unknown(StoreError):
    """There is no such principal, token, stream, adapter, entitlement or message. Correct the name."""

    def __init__(self, kind: str, name: object) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"there is no {kind} {name!r}")


class Conflict(StoreError):
    """What is on record already contradicts what was to be recorded. Nothing was changed."""


class StaleEpoch(Conflict):
    """Somebody acts in an epoch that is not the newest. It must stop, never retry."""

    def __init__(self, stream: str, epoch: int, newest: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.newest = newest
        super().__init__(f"{stream}: epoch {epoch} is stale, {newest} was granted")


@dataclass(frozen=True, slots=True)
class Cause(Record):
    """Who changes something, when, and why."""

    actor: PrincipalName
    reason: Sentence
    at_ns: TimeNs

    def decision(self, action: str, subject: str, detail: str = "") -> Decision:
        return Decision(self.at_ns, self.actor, action, subject, Outcome.DONE, self.reason, detail)


@dataclass(frozen=True, slots=True)
class StreamEntry(Record):
    """A stream on record."""

    stream: StreamName
    source_stream_id: SourceStreamId


@dataclass(frozen=True, slots=True)
class EntitlementEntry(Record):
    """An entitlement on record; the number is what ends it."""

    number: Annotated[int, Integer(1, 2**63 - 1)]
    entitlement: Entitlement


@dataclass(frozen=True, slots=True)
class Principal(Record):
    name: PrincipalName
    is_enabled: bool


class AdminStore(Protocol):
    """What a store can do. When a method raises, nothing was changed."""

    # Who there is.
    def add_principal(self, name: str, cause: Cause) -> None: ...
    def set_principal_enabled(self, name: str, is_enabled: bool, cause: Cause) -> None: ...
    def principal(self, name: str) -> Principal: ...
    def principals(self) -> list[Principal]: ...

    # How they prove it.
    def add_token(self, record: TokenRecord, cause: Cause) -> None: ...
    def token_by_digest(self, digest: bytes) -> TokenRecord | None: ...
    def tokens(self, principal: str) -> list[TokenRecord]: ...
    def revoke_token(self, token_id: str, cause: Cause) -> None: ...

    # What they may do. `effective_from` gives the position of the change for every stream that is meant.
    def grant(self, entitlement: Entitlement, effective_from: Mapping[str, int], cause: Cause) -> int: ...
    def end_entitlement(self, number: int, effective_from: Mapping[str, int], cause: Cause) -> None: ...
    def entitlements(self, principal: str) -> list[EntitlementEntry]: ...
    def reading_filter(self, principal: str, stream: str, from_seq: int) -> StreamFilter: ...

    # Streams, and who publishes them.
    def add_stream(self, entry: StreamEntry, cause: Cause) -> None: ...
    def streams(self) -> list[StreamEntry]: ...
    def register_adapter(self, registration: AdapterRegistration, cause: Cause) -> None: ...
    def adapters(self, stream: str) -> list[AdapterRegistration]: ...
    def persist_epoch(self, grant: RoleGrant, cause: Cause) -> None: ...
    def last_epoch(self, stream: str) -> RoleGrant | None: ...
    def epochs(self, stream: str, after: int, limit: int) -> list[RoleGrant]: ...

    # Administrative messages.
    def register_admin_message(self, message: AdminMessage, cause: Cause) -> None: ...
    def settle_admin_message(
        self, stream: str, number: int, state: AdminMessageState, cause: Cause
    ) -> None: ...
    def admin_messages(self, stream: str, after: int, limit: int) -> list[AdminMessage]: ...

    # Subscriptions that are to be there.
    def keep_subscription(
        self, principal: str, name: str, request: SubscriptionRequest, cause: Cause
    ) -> None: ...
    def drop_subscription(self, principal: str, name: str, cause: Cause) -> None: ...
    def subscriptions(self, principal: str) -> list[DesiredSubscription]: ...

    # What was decided.
    def record(self, decision: Decision) -> int: ...
    def audit(self, after: int, limit: int) -> list[AuditEntry]: ...

    def close(self) -> None: ...


def authenticate(store: AdminStore, token: Token, now_ns: int) -> str:
    """Return the principal that a token belongs to, or raise TokenRefused with why, for the audit log."""
    found = store.token_by_digest(token.digest())
    if found is None:
        raise TokenRefused("it is not known")
    found.check(token, now_ns)
    if not store.principal(found.principal).is_enabled:
        raise TokenRefused("its principal is disabled", found.token_id)
    return found.principal
