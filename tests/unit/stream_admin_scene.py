"""Examples that the tests of stream_admin share: a record of each kind, and a store with a stream in it."""

from __future__ import annotations

from pathlib import Path

from stream_admin.entitlements import Entitlement, Right, Span
from stream_admin.protocol.filters import FilterStep, StreamFilter
from stream_admin.protocol.forms import Record
from stream_admin.protocol.messages import (
    AdapterHeartbeat,
    AdapterRegistration,
    AdapterRole,
    AdminMessage,
    AdminMessageState,
    AuditEntry,
    Decision,
    DesiredSubscription,
    DirectoryChange,
    Fence,
    LineState,
    LogEndpoint,
    Outcome,
    RoleGrant,
    Standby,
    StreamOffer,
    SubscriberReport,
    SubscriptionAnswer,
    SubscriptionRequest,
    Symptom,
    SyncState,
    TcpEndpoint,
)
from stream_admin.protocol.tickets import SECOND_NS, PublicKey, PublicKeys, TicketClaims, key_id_of
from stream_admin.sqlite_store import SqliteStore
from stream_admin.store import Cause, StreamEntry

STREAM = "XNAS.ITCH"
NOW_NS = 1_790_000_000 * SECOND_NS
WHY = Cause("tester", "a test wants it", NOW_NS)

LOG = LogEndpoint("/run/twintape", "XNAS.ITCH.a")
TCP = TcpEndpoint("feed-1.example.org", 7_001, True)
FILTER = StreamFilter("desk-7", STREAM, 3, (FilterStep(0, ("AAPL", "MS*")), FilterStep(5_000, ())))
REQUEST = SubscriptionRequest(STREAM, ("AAPL", "MS*"), Standby.HOT, None)
DECISION = Decision(NOW_NS, "failover", "grant-epoch", STREAM, Outcome.DONE, "the active died", "")
OFFER = StreamOffer("a", AdapterRole.ACTIVE, SyncState.SYNCHRONISED, (TCP,), "ttk1.not.really.one")
CLAIMS = TicketClaims(
    principal="desk-7",
    stream=STREAM,
    adapters=("a", "b"),
    filter=FILTER,
    instruments=("AAPL",),
    standby=Standby.WARM,
    issued_at_ns=NOW_NS,
    expires_at_ns=NOW_NS + 30 * SECOND_NS,
    epoch=4,
    nonce="0123456789abcdef" * 2,
    key_id="0123456789abcdef",
)

EXAMPLES: list[Record] = [
    LOG,
    TCP,
    AdapterRegistration(STREAM, "a", 17, 9, (LOG, TCP)),
    LineState("A", True, 12),
    AdapterHeartbeat(
        stream=STREAM,
        adapter="a",
        incarnation=17,
        epoch=4,
        is_active=True,
        next_seq=5_001,
        oldest_seq=1,
        session=20_260_918,
        source_seq=4_990,
        source_time_ns=NOW_NS,
        sync=SyncState.SYNCHRONISED,
        lag_ns=1_500,
        sent_at_ns=NOW_NS,
        lines=(LineState("A", True, 12), LineState("B", False, 9_000_000_000)),
    ),
    RoleGrant(STREAM, "b", 5, 5_001),
    Fence(STREAM, "a", 5),
    AdminMessage(STREAM, 1, 100, 4, "halt ahead, émigré ☂", AdminMessageState.REGISTERED),
    REQUEST,
    OFFER,
    SubscriptionAnswer(STREAM, 9, 4, ("AAPL",), Standby.HOT, NOW_NS, (OFFER,)),
    DirectoryChange(STREAM, 5, None, 5_001, "both adapters died"),
    SubscriberReport(STREAM, "a", 4, Symptom.BEHIND, 10, 400, 0, True, ""),
    DECISION,
    AuditEntry(1, DECISION),
    DesiredSubscription("desk-7", "main", REQUEST, NOW_NS),
    FILTER,
    CLAIMS,
    PublicKeys((PublicKey(key_id_of(bytes(32)), bytes(32).hex()),)),
    Entitlement("desk-7", "XNAS.*", ("*",), (Right.READ, Right.OPERATE), (Span(STREAM, 4, 9),), True),
    WHY,
    StreamEntry(STREAM, 9),
]


def registration(adapter: str, incarnation: int = 1, stream: str = STREAM) -> AdapterRegistration:
    return AdapterRegistration(stream, adapter, incarnation, 9, (TCP,))


def store_with_stream(path: Path) -> SqliteStore:
    """Return a new store with one stream, its two adapters, and one principal."""
    store = SqliteStore(path)
    store.add_stream(StreamEntry(STREAM, 9), WHY)
    for adapter in ("a", "b"):
        store.register_adapter(registration(adapter), WHY)
    store.add_principal("desk-7", WHY)
    return store
