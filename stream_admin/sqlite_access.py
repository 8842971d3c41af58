"""Principals, tokens and entitlements in SQLite, and the audit log that every change is written to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from feeds.errors import LimitError
from stream_admin.database import Database
from stream_admin.entitlements import ENTITLEMENTS_MAX, Entitlement, Right, Span, points_for, stream_filter
from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.filters import StreamFilter
from stream_admin.protocol.messages import AuditEntry, Decision, Outcome
from stream_admin.protocol.names import INT64_MAX, PRINCIPAL_NAME
from stream_admin.store import (
    PAGE_ENTRIES_MAX,
    PRINCIPALS_MAX,
    TOKENS_MAX,
    Cause,
    Conflict,
    EntitlementEntry,
    Principal,
    Unknown,
)
from stream_admin.tokens import TokenRecord

# Queries are whole texts: nothing is ever put together from pieces, so nothing from outside can get in.
_ENTITLEMENTS_IN_FORCE = """
    SELECT id, principal, streams, instruments, rights, is_ended FROM entitlements
    WHERE principal = ? AND is_ended = 0 ORDER BY id"""
_ENTITLEMENTS_TO_READ = """
    SELECT id, principal, streams, instruments, rights, is_ended FROM entitlements
    WHERE principal = ? AND (is_ended = 0 OR id IN
        (SELECT entitlement_id FROM spans WHERE stream = ? AND end_seq > ?)) ORDER BY id"""
_ENTITLEMENT_BY_NUMBER = """
    SELECT id, principal, streams, instruments, rights, is_ended FROM entitlements WHERE id = ?"""


class AuditedTables:
    """What all parts of the store share: one database, one audit log, and changes that name their cause."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def _changing(self, cause: Cause, action: str, subject: str, detail: str = "") -> Iterator[None]:
        """Make a change and its audit entry one transaction; what the schema forbids is a Conflict."""
        decision = cause.decision(action, subject, detail)
        try:
            with self._database.writing():
                yield
                self._write_decision(decision)
        except sqlite3.IntegrityError as error:
            raise Conflict(f"{subject}: {error}") from error

    def record(self, decision: Decision) -> int:
        """Add a decision that changed nothing here (a refusal, a failover's reason) to the audit log."""
        with self._database.writing():
            return self._write_decision(decision)

    def _write_decision(self, decision: Decision) -> int:
        number = self._count("SELECT coalesce(max(number), 0) + 1 FROM audit")
        self._database.change(
            "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                decision.at_ns,
                decision.actor,
                decision.action,
                decision.subject,
                decision.outcome.value,
                decision.reason,
                decision.detail,
            ),
        )
        return number

    def audit(self, after: int, limit: int) -> list[AuditEntry]:
        """Return the entries that follow number `after`, oldest first."""
        rows: list[Any] = self._database.rows(
            "SELECT number, at_ns, actor, action, subject, outcome, reason, detail FROM audit "
            "WHERE number > ? ORDER BY number LIMIT ?",
            (after, page_size(limit)),
        )
        return [
            AuditEntry(number, Decision(at_ns, actor, action, subject, Outcome(outcome), reason, detail))
            for number, at_ns, actor, action, subject, outcome, reason, detail in rows
        ]

    def _count(self, query: str, parameters: tuple[object, ...] = ()) -> int:
        return int(str(self._database.rows(query, parameters)[0][0]))

    def _insist_room(self, what: str, most: int, query: str, parameters: tuple[object, ...] = ()) -> None:
        if self._count(query, parameters) >= most:
            raise LimitError(f"there are {most} {what} already, the most there may be")

    def _insist_principal(self, name: str) -> None:
        if not self._database.rows("SELECT 1 FROM principals WHERE name = ?", (name,)):
            raise Unknown("principal", name)


class AccessTables(AuditedTables):
    """Who may read what: the tables, and the rules that need more than one of them."""

    def add_principal(self, name: str, cause: Cause) -> None:
        PRINCIPAL_NAME.check(name, "principal")
        with self._changing(cause, "add-principal", name):
            self._insist_room("principals", PRINCIPALS_MAX, "SELECT count(*) FROM principals")
            if self._database.rows("SELECT 1 FROM principals WHERE name = ?", (name,)):
                raise Conflict(f"principal {name} exists already")
            self._database.change(
                "INSERT INTO principals (name, created_at_ns) VALUES (?, ?)", (name, cause.at_ns)
            )

    def set_principal_enabled(self, name: str, is_enabled: bool, cause: Cause) -> None:
        """Let a principal in again, or keep it out with all its tokens."""
        with self._changing(cause, "enable-principal" if is_enabled else "disable-principal", name):
            self._insist_principal(name)
            self._database.change(
                "UPDATE principals SET is_enabled = ? WHERE name = ?", (int(is_enabled), name)
            )

    def principal(self, name: str) -> Principal:
        rows = self._database.rows("SELECT is_enabled FROM principals WHERE name = ?", (name,))
        if not rows:
            raise Unknown("principal", name)
        return Principal(name, rows[0][0] == 1)

    def principals(self) -> list[Principal]:
        rows: list[Any] = self._database.rows("SELECT name, is_enabled FROM principals ORDER BY name")
        return [Principal(name, is_enabled == 1) for name, is_enabled in rows]

    # --- tokens -----------------------------------------------------------------------------------------

    def add_token(self, record: TokenRecord, cause: Cause) -> None:
        """Keep a new token's digest. Its principal may have so many good ones, whatever it had before."""
        with self._changing(
            cause, "add-token", record.principal, f"token {record.token_id} ({record.label})"
        ):
            self._insist_principal(record.principal)
            self._insist_room(
                f"good tokens of {record.principal}",
                TOKENS_MAX,
                "SELECT count(*) FROM tokens "
                "WHERE principal = ? AND revoked_at_ns IS NULL AND expires_at_ns > ?",
                (record.principal, cause.at_ns),
            )
            self._database.change(
                "INSERT INTO tokens (token_id, principal, label, digest, created_at_ns, expires_at_ns, "
                "revoked_at_ns) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    record.token_id,
                    record.principal,
                    record.label,
                    record.digest,
                    record.created_at_ns,
                    record.expires_at_ns,
                    record.revoked_at_ns,
                ),
            )

    def token_by_digest(self, digest: bytes) -> TokenRecord | None:
        rows: list[Any] = self._database.rows(
            "SELECT token_id, principal, label, digest, created_at_ns, expires_at_ns, revoked_at_ns "
            "FROM tokens WHERE digest = ?",
            (digest,),
        )
        return TokenRecord(*rows[0]) if rows else None

    def tokens(self, principal: str) -> list[TokenRecord]:
        """Return the newest tokens of a principal, good or not."""
        rows: list[Any] = self._database.rows(
            "SELECT token_id, principal, label, digest, created_at_ns, expires_at_ns, revoked_at_ns "
            "FROM tokens WHERE principal = ? ORDER BY created_at_ns DESC, token_id LIMIT ?",
            (principal, PAGE_ENTRIES_MAX),
        )
        return [TokenRecord(*row) for row in rows]

    def revoke_token(self, token_id: str, cause: Cause) -> None:
        """Make a token useless from now on. Revoking it again changes nothing and is no error."""
        with self._changing(cause, "revoke-token", token_id):
            rows = self._database.rows("SELECT revoked_at_ns FROM tokens WHERE token_id = ?", (token_id,))
            if not rows:
                raise Unknown("token", token_id)
            if rows[0][0] is None:
                self._database.change(
                    "UPDATE tokens SET revoked_at_ns = ? WHERE token_id = ?", (cause.at_ns, token_id)
                )

    # --- entitlements -----------------------------------------------------------------------------------

    def grant(self, entitlement: Entitlement, effective_from: Mapping[str, int], cause: Cause) -> int:
        """Record an entitlement that begins at the position given for each stream; return its number."""
        if entitlement.spans or entitlement.is_ended:
            raise ProtocolError("spans", f"{len(entitlement.spans)} spans", "left to the store in a grant")
        detail = f"{[right.value for right in entitlement.rights]} on {entitlement.streams}"
        with self._changing(cause, "grant", entitlement.principal, detail):
            self._insist_principal(entitlement.principal)
            self._insist_room(
                f"entitlements of {entitlement.principal}",
                ENTITLEMENTS_MAX,
                "SELECT count(*) FROM entitlements WHERE principal = ? AND is_ended = 0",
                (entitlement.principal,),
            )
            points = points_for(entitlement.streams, self._stream_names(), effective_from)
            number = self._database.change(
                "INSERT INTO entitlements (principal, streams, instruments, rights) VALUES (?, ?, ?, ?)",
                (
                    entitlement.principal,
                    entitlement.streams,
                    json.dumps(entitlement.instruments),
                    json.dumps([right.value for right in entitlement.rights]),
                ),
            ).lastrowid
            assert number is not None
            for span in (Span(stream, begin_seq, None) for stream, begin_seq in points.items()):
                self._database.change(
                    "INSERT INTO spans VALUES (?, ?, ?, NULL)", (number, span.stream, span.begin_seq)
                )
            self._bump_revision(entitlement.principal)
            for stream, begin_seq in points.items():  # refuses what would make the union too large, now
                self.reading_filter(entitlement.principal, stream, begin_seq)
            return number

    def end_entitlement(self, number: int, effective_from: Mapping[str, int], cause: Cause) -> None:
        """End an entitlement: on each stream at the position given, its rights of operation at once."""
        entry = self._entitlement(number)
        entitlement = entry.entitlement
        with self._changing(cause, "end-entitlement", entitlement.principal, f"entitlement {number}"):
            if entitlement.is_ended:
                raise Conflict(f"entitlement {number} of {entitlement.principal} has ended already")
            points = points_for(entitlement.streams, self._stream_names(), effective_from)
            for stream, end_seq in points.items():
                span = entitlement.span_on(stream)
                assert span is not None
                # Ended before it began: it never is in force there.
                ended = Span(stream, min(span.begin_seq, end_seq), end_seq)
                self._database.change(
                    "INSERT INTO spans VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "begin_seq = excluded.begin_seq, end_seq = excluded.end_seq",
                    (number, ended.stream, ended.begin_seq, ended.end_seq),
                )
            self._database.change("UPDATE entitlements SET is_ended = 1 WHERE id = ?", (number,))
            self._bump_revision(entitlement.principal)

    def entitlements(self, principal: str) -> list[EntitlementEntry]:
        """Return the entitlements of a principal that have not been ended."""
        return self._found(_ENTITLEMENTS_IN_FORCE, (principal,))

    def reading_filter(self, principal: str, stream: str, from_seq: int) -> StreamFilter:
        """Return what a principal may read of a stream from a position on, with changes that lie ahead."""
        with self._database.reading():
            rows = self._database.rows("SELECT revision FROM principals WHERE name = ?", (principal,))
            if not rows:
                raise Unknown("principal", principal)
            if stream not in self._stream_names():
                raise Unknown("stream", stream)
            entries = self._found(_ENTITLEMENTS_TO_READ, (principal, stream, from_seq))
        found = [entry.entitlement for entry in entries]
        revision = int(str(rows[0][0]))
        return stream_filter(found, principal, stream, revision=revision, from_seq=from_seq)

    def _entitlement(self, number: int) -> EntitlementEntry:
        entries = self._found(_ENTITLEMENT_BY_NUMBER, (number,)) if 0 < number <= INT64_MAX else []
        if not entries:
            raise Unknown("entitlement", number)
        return entries[0]

    def _found(self, query: str, parameters: tuple[object, ...]) -> list[EntitlementEntry]:
        """Return the entitlements that one of the queries above finds, each with its spans."""
        with self._database.reading():
            rows: list[Any] = self._database.rows(query, parameters)
            return [
                EntitlementEntry(
                    number,
                    Entitlement(
                        principal,
                        streams,
                        tuple(json.loads(instruments)),
                        tuple(Right(right) for right in json.loads(rights)),
                        self._spans(number),
                        is_ended == 1,
                    ),
                )
                for number, principal, streams, instruments, rights, is_ended in rows
            ]

    def _spans(self, number: int) -> tuple[Span, ...]:
        rows: list[Any] = self._database.rows(
            "SELECT stream, begin_seq, end_seq FROM spans WHERE entitlement_id = ? ORDER BY stream", (number,)
        )
        return tuple(Span(*row) for row in rows)

    def _stream_names(self) -> list[str]:
        return [str(row[0]) for row in self._database.rows("SELECT name FROM streams")]

    def _bump_revision(self, principal: str) -> None:
        self._database.change("UPDATE principals SET revision = revision + 1 WHERE name = ?", (principal,))


def page_size(limit: int) -> int:
    """Return a limit on rows if it is one."""
    if not 1 <= limit <= PAGE_ENTRIES_MAX:
        raise ProtocolError("limit", limit, f"an integer from 1 to {PAGE_ENTRIES_MAX}")
    return limit
