"""What administration server, adapters and subscribers say to each other: checked, in one JSON form each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, ClassVar

from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.filters import PatternTexts
from stream_admin.protocol.forms import Count, Integer, Record, Text
from stream_admin.protocol.names import (
    AbsolutePath,
    AdapterName,
    AdminNumber,
    AdminText,
    DurationNs,
    EpochKnown,
    EpochNumber,
    HostName,
    Incarnation,
    Label,
    LogName,
    MessageSeq,
    Port,
    PrincipalName,
    Remark,
    Sentence,
    SourceSeq,
    SourceSession,
    SourceStreamId,
    StreamName,
    TimeNs,
)

ADAPTERS_MAX = 8  # of one stream
ENDPOINTS_MAX = 8  # of one adapter
LINES_MAX = 8
TICKET_LENGTH_MAX = 24 * 1024

TicketText = Annotated[str, Text(TICKET_LENGTH_MAX, 1, "a ticket", is_secret=True)]


# --- where a stream is ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEndpoint(Record):
    """A stream log in the shared memory of the subscriber's own host."""

    KIND: ClassVar[str] = "log"
    runtime: AbsolutePath
    name: LogName


@dataclass(frozen=True, slots=True)
class TcpEndpoint(Record):
    """An adapter's TCP server; it wants a ticket first."""

    KIND: ClassVar[str] = "tcp"
    host: HostName
    port: Port
    tls: bool


Endpoint = LogEndpoint | TcpEndpoint
Endpoints = Annotated[tuple[Endpoint, ...], Count(ENDPOINTS_MAX, least=1)]


# --- adapters ---------------------------------------------------------------------------------------------


class SyncState(Enum):
    """How an adapter stands to its group."""

    JOINING = "joining"  # it has not found its place yet, and publishes nothing
    SYNCHRONISED = "synchronised"  # its positions are the group's
    UNSYNCHRONISED = "unsynchronised"  # its data is right, its positions are its own


@dataclass(frozen=True, slots=True)
class AdapterRegistration(Record):
    """An adapter that starts says who it is and where it can be reached."""

    stream: StreamName
    adapter: AdapterName
    incarnation: Incarnation  # differs between two starts of one adapter
    source_stream_id: SourceStreamId
    endpoints: Endpoints


@dataclass(frozen=True, slots=True)
class LineState(Record):
    """One line of an adapter's source."""

    line: Label
    is_up: bool
    silent_ns: DurationNs  # since its last packet


@dataclass(frozen=True, slots=True)
class AdapterHeartbeat(Record):
    """Where an adapter is. Sent a few times per detection time, and the base of every decision on it."""

    stream: StreamName
    adapter: AdapterName
    incarnation: Incarnation
    epoch: EpochKnown  # the highest it knows of
    is_active: bool  # whether it believes to be
    next_seq: MessageSeq
    oldest_seq: MessageSeq  # the first that its history still has; next_seq while it has none
    session: SourceSession
    source_seq: SourceSeq  # the last it converted
    source_time_ns: TimeNs  # the exchange's clock in it
    sync: SyncState
    lag_ns: DurationNs  # behind its own source
    sent_at_ns: TimeNs
    lines: Annotated[tuple[LineState, ...], Count(LINES_MAX)]

    def check_relations(self) -> None:
        if self.oldest_seq > self.next_seq:
            raise ProtocolError("oldest_seq", self.oldest_seq, f"at most next_seq, which is {self.next_seq}")
        if self.is_active and self.epoch == 0:
            raise ProtocolError("is_active", self.is_active, "false while epoch is 0")


@dataclass(frozen=True, slots=True)
class RoleGrant(Record):
    """This adapter is the stream's active one, in this epoch, from this position on."""

    stream: StreamName
    adapter: AdapterName
    epoch: EpochNumber
    from_seq: MessageSeq


@dataclass(frozen=True, slots=True)
class Fence(Record):
    """This adapter is not active any more: a newer epoch exists."""

    stream: StreamName
    adapter: AdapterName
    epoch: EpochNumber  # the newer one


class AdminMessageState(Enum):
    REGISTERED = "registered"  # it has a position; adapters may be about to insert it there
    INSERTED = "inserted"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class AdminMessage(Record):
    """An administrative message as the server has it on record, for whoever becomes active next."""

    stream: StreamName
    number: AdminNumber
    at_seq: MessageSeq
    epoch: EpochNumber  # in which it got that position
    text: AdminText
    state: AdminMessageState


# --- subscribers ------------------------------------------------------------------------------------------


class Standby(Enum):
    HOT = "hot"  # active and backup both transmit
    WARM = "warm"  # the backup is connected and silent
    COLD = "cold"  # the backup is known


@dataclass(frozen=True, slots=True)
class SubscriptionRequest(Record):
    """What a subscriber wants. `instruments` are patterns; `*` alone is the whole stream."""

    stream: StreamName
    instruments: PatternTexts
    standby: Standby
    from_seq: MessageSeq | None  # None: from now on

    def check_relations(self) -> None:
        if not self.instruments:
            raise ProtocolError("instruments", "no patterns", "at least one pattern; '*' is the whole stream")


class AdapterRole(Enum):
    ACTIVE = "active"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class StreamOffer(Record):
    """One adapter that a subscriber may reach, where, and the ticket that opens it."""

    adapter: AdapterName
    role: AdapterRole
    sync: SyncState
    endpoints: Endpoints
    ticket: TicketText = field(repr=False)


@dataclass(frozen=True, slots=True)
class SubscriptionAnswer(Record):
    """What a subscriber gets: the active stream first, then the backups."""

    stream: StreamName
    source_stream_id: SourceStreamId
    epoch: EpochKnown
    instruments: PatternTexts  # of the request; what may be read of them, the adapters know from the ticket
    standby: Standby
    renew_at_ns: TimeNs  # when to ask for new tickets
    offers: Annotated[tuple[StreamOffer, ...], Count(ADAPTERS_MAX)]

    def check_relations(self) -> None:
        adapters = [offer.adapter for offer in self.offers]
        if len(set(adapters)) != len(adapters):
            raise ProtocolError("offers", "an adapter twice", "one offer for each adapter")
        roles = [offer.role for offer in self.offers]
        if AdapterRole.ACTIVE in roles[1:]:
            raise ProtocolError(
                "offers", "an active one after others", "the active one, if there is one, then backups"
            )


@dataclass(frozen=True, slots=True)
class DirectoryChange(Record):
    """Pushed to subscribers: who is active now, and why."""

    stream: StreamName
    epoch: EpochNumber
    active: AdapterName | None  # None: nobody is
    from_seq: MessageSeq
    reason: Sentence


class Symptom(Enum):
    SILENT = "silent"  # nothing came, not even a sign of life
    BROKEN = "broken"  # the stream ended or broke its own rules
    BEHIND = "behind"  # its sibling is ahead, and stays so


@dataclass(frozen=True, slots=True)
class SubscriberReport(Record):
    """A subscriber's evidence against an adapter. The server weighs it; alone it proves nothing."""

    stream: StreamName
    adapter: AdapterName
    epoch: EpochKnown
    symptom: Symptom
    next_seq: MessageSeq  # that it waits for from this adapter
    sibling_next_seq: MessageSeq | None  # the same of the other stream, if it has one
    silent_ns: DurationNs
    has_switched: bool  # whether it has taken the backup already
    detail: Remark

    def check_relations(self) -> None:
        if self.symptom is Symptom.BEHIND and (self.sibling_next_seq or 0) <= self.next_seq:
            allowed = f"greater than next_seq ({self.next_seq}), for a report of one that is behind"
            raise ProtocolError("sibling_next_seq", self.sibling_next_seq, allowed)


# --- the record of decisions ------------------------------------------------------------------------------


class Outcome(Enum):
    DONE = "done"
    ALLOWED = "allowed"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """Something that was decided: by whom, on what, how it ended, and above all why."""

    at_ns: TimeNs
    actor: PrincipalName  # a principal, or the server's own part that decided, such as `failover`
    action: Label
    subject: Annotated[str, Text(200, 1, "what it was about, as text")]
    outcome: Outcome
    reason: Sentence
    detail: Remark = ""


@dataclass(frozen=True, slots=True)
class AuditEntry(Record):
    """A decision with its place in the log. Numbers have no holes: a missing one was taken away."""

    number: Annotated[int, Integer(1, 2**63 - 1)]
    decision: Decision


@dataclass(frozen=True, slots=True)
class DesiredSubscription(Record):
    """A subscription that its principal wants to have, kept through any outage, and reconciled after it."""

    principal: PrincipalName
    name: Label
    request: SubscriptionRequest
    updated_at_ns: TimeNs
