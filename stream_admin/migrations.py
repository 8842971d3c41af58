"""The store's schema, as the steps that lead to it. A released step is never changed, only followed.

What must hold whatever the code does is said here, in SQL: epochs only grow, the audit log is only added to,
an administrative message keeps its text. Each step is one transaction together with its number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    statements: tuple[str, ...]

    @property
    def digest(self) -> str:
        """What tells a database that went through another step of the same number."""
        return hashlib.sha256("\0".join(self.statements).encode()).hexdigest()


_AUDIT = (
    """CREATE TABLE audit (
        number INTEGER PRIMARY KEY CHECK (number > 0),
        at_ns INTEGER NOT NULL,
        actor TEXT NOT NULL,
        action TEXT NOT NULL,
        subject TEXT NOT NULL,
        outcome TEXT NOT NULL,
        reason TEXT NOT NULL CHECK (reason <> ''),
        detail TEXT NOT NULL
    ) STRICT""",
    """CREATE TRIGGER audit_has_no_holes BEFORE INSERT ON audit
       WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM audit)
       BEGIN SELECT RAISE(ABORT, 'audit entries are numbered without holes'); END""",
    """CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
       BEGIN SELECT RAISE(ABORT, 'audit entries are never changed'); END""",
    """CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit
       BEGIN SELECT RAISE(ABORT, 'audit entries are never removed'); END""",
)

_WHO_MAY_READ = (
    """CREATE TABLE principals (
        name TEXT PRIMARY KEY,
        created_at_ns INTEGER NOT NULL,
        is_enabled INTEGER NOT NULL DEFAULT 1 CHECK (is_enabled IN (0, 1)),
        revision INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER revisions_only_grow BEFORE UPDATE OF revision ON principals
       WHEN NEW.revision < OLD.revision
       BEGIN SELECT RAISE(ABORT, 'a revision of entitlements only grows'); END""",
    """CREATE TABLE tokens (
        digest BLOB PRIMARY KEY CHECK (length(digest) = 32),
        token_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL REFERENCES principals (name),
        label TEXT NOT NULL,
        created_at_ns INTEGER NOT NULL,
        expires_at_ns INTEGER NOT NULL CHECK (expires_at_ns > created_at_ns),
        revoked_at_ns INTEGER
    ) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER revoked_is_revoked BEFORE UPDATE OF revoked_at_ns ON tokens
       WHEN OLD.revoked_at_ns IS NOT NULL
       BEGIN SELECT RAISE(ABORT, 'a revoked token stays revoked'); END""",
    "CREATE INDEX tokens_by_principal ON tokens (principal)",
    """CREATE TABLE entitlements (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        principal TEXT NOT NULL REFERENCES principals (name),
        streams TEXT NOT NULL,
        instruments TEXT NOT NULL,
        rights TEXT NOT NULL,
        is_ended INTEGER NOT NULL DEFAULT 0 CHECK (is_ended IN (0, 1))
    ) STRICT""",
    "CREATE INDEX entitlements_by_principal ON entitlements (principal)",
    """CREATE TABLE spans (
        entitlement_id INTEGER NOT NULL REFERENCES entitlements (id),
        stream TEXT NOT NULL REFERENCES streams (name),
        begin_seq INTEGER NOT NULL CHECK (begin_seq >= 0),
        end_seq INTEGER CHECK (end_seq >= begin_seq),
        PRIMARY KEY (entitlement_id, stream)
    ) STRICT, WITHOUT ROWID""",
)

_STREAMS = (
    """CREATE TABLE streams (
        name TEXT PRIMARY KEY,
        source_stream_id INTEGER NOT NULL UNIQUE,
        created_at_ns INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE adapters (
        stream TEXT NOT NULL REFERENCES streams (name),
        name TEXT NOT NULL,
        registration TEXT NOT NULL,
        registered_at_ns INTEGER NOT NULL,
        PRIMARY KEY (stream, name)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE epochs (
        stream TEXT NOT NULL REFERENCES streams (name),
        epoch INTEGER NOT NULL CHECK (epoch BETWEEN 1 AND 4294967295),
        adapter TEXT NOT NULL,
        from_seq INTEGER NOT NULL CHECK (from_seq >= 1),
        at_ns INTEGER NOT NULL,
        PRIMARY KEY (stream, epoch),
        FOREIGN KEY (stream, adapter) REFERENCES adapters (stream, name)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER epochs_only_grow BEFORE INSERT ON epochs
       WHEN NEW.epoch <= (SELECT max(epoch) FROM epochs WHERE stream = NEW.stream)
       BEGIN SELECT RAISE(ABORT, 'an epoch only grows'); END""",
    """CREATE TRIGGER epochs_are_not_changed BEFORE UPDATE ON epochs
       BEGIN SELECT RAISE(ABORT, 'an epoch is never changed'); END""",
    """CREATE TRIGGER epochs_are_not_removed BEFORE DELETE ON epochs
       BEGIN SELECT RAISE(ABORT, 'an epoch is never removed'); END""",
)

_ADMIN_MESSAGES = (
    """CREATE TABLE admin_messages (
        stream TEXT NOT NULL REFERENCES streams (name),
        number INTEGER NOT NULL CHECK (number >= 1),
        at_seq INTEGER NOT NULL CHECK (at_seq >= 1),
        epoch INTEGER NOT NULL,
        text TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('registered', 'inserted', 'dropped')),
        PRIMARY KEY (stream, number)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER admin_messages_are_in_order BEFORE INSERT ON admin_messages
       WHEN NEW.number IS NOT
            (SELECT coalesce(max(number), 0) + 1 FROM admin_messages WHERE stream = NEW.stream)
       BEGIN SELECT RAISE(ABORT, 'administrative messages are numbered without holes'); END""",
    """CREATE TRIGGER admin_messages_keep_their_text BEFORE UPDATE ON admin_messages
       WHEN NEW.text <> OLD.text OR NEW.number <> OLD.number OR NEW.stream <> OLD.stream
            OR NEW.epoch < OLD.epoch OR (OLD.state <> 'registered' AND NEW.at_seq <> OLD.at_seq)
       BEGIN SELECT RAISE(ABORT, 'an administrative message keeps what it says'); END""",
    """CREATE TABLE subscriptions (
        principal TEXT NOT NULL REFERENCES principals (name),
        name TEXT NOT NULL,
        request TEXT NOT NULL,
        updated_at_ns INTEGER NOT NULL,
        PRIMARY KEY (principal, name)
    ) STRICT, WITHOUT ROWID""",
)

MIGRATIONS = (
    Migration(1, "audit log", _AUDIT),
    Migration(2, "streams, adapters, epochs", _STREAMS),
    Migration(3, "principals, tokens, entitlements", _WHO_MAY_READ),
    Migration(4, "administrative messages, desired subscriptions", _ADMIN_MESSAGES),
)
assert [migration.number for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
