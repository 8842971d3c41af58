"""The embedded store: streams, adapters, epochs, admin messages, subscriptions, and who may read what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from feeds.errors import LimitError
from stream_admin.database import Database
from stream_admin.migrations import MIGRATIONS, Migration
from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.messages import (
    ADAPTERS_MAX,
    AdapterRegistration,
    AdminMessage,
    AdminMessageState,
    DesiredSubscription,
    RoleGrant,
    SubscriptionRequest,
)
from stream_admin.protocol.names import LABEL
from stream_admin.sqlite_access import AccessTables, page_size
from stream_admin.store import (
    STREAMS_MAX,
    SUBSCRIPTIONS_MAX,
    Cause,
    Conflict,
    StaleEpoch,
    StreamEntry,
    Unknown,
)


class SqliteStore(AccessTables):
    """An AdminStore in one SQLite file. One process has it open at a time."""

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        super().__init__(Database(path, migrations))

    # --- streams and adapters ---------------------------------------------------------------------------

    def add_stream(self, entry: StreamEntry, cause: Cause) -> None:
        detail = f"source stream {entry.source_stream_id}"
        with self._changing(cause, "add-stream", entry.stream, detail):
            self._insist_room("streams", STREAMS_MAX, "SELECT count(*) FROM streams")
            for known in self.streams():
                if entry.stream == known.stream:
                    raise Conflict(f"stream {entry.stream} exists already")
                if entry.source_stream_id == known.source_stream_id:
                    raise Conflict(
                        f"source stream {entry.source_stream_id} is that of {known.stream} already"
                    )
            self._database.change(
                "INSERT INTO streams VALUES (?, ?, ?)", (entry.stream, entry.source_stream_id, cause.at_ns)
            )

    def streams(self) -> list[StreamEntry]:
        rows: list[Any] = self._database.rows("SELECT name, source_stream_id FROM streams ORDER BY name")
        return [StreamEntry(*row) for row in rows]

    def register_adapter(self, registration: AdapterRegistration, cause: Cause) -> None:
        """Record an adapter, or what has become of it: it started again, or moved."""
        stream, adapter = registration.stream, registration.adapter
        with self._changing(cause, "register-adapter", f"{stream}.{adapter}"):
            source_stream_id = self._source_stream_id(stream)
            if registration.source_stream_id != source_stream_id:
                allowed = f"{source_stream_id}, which is that of {stream}"
                raise ProtocolError("source_stream_id", registration.source_stream_id, allowed)
            others = [known for known in self.adapters(stream) if known.adapter != adapter]
            if len(others) >= ADAPTERS_MAX:
                raise LimitError(f"{stream} has {ADAPTERS_MAX} adapters already, the most there may be")
            self._database.change(
                "INSERT INTO adapters VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "registration = excluded.registration, registered_at_ns = excluded.registered_at_ns",
                (stream, adapter, registration.encode().decode("ascii"), cause.at_ns),
            )

    def adapters(self, stream: str) -> list[AdapterRegistration]:
        rows = self._database.rows(
            "SELECT registration FROM adapters WHERE stream = ? ORDER BY name", (stream,)
        )
        return [AdapterRegistration.decode(str(row[0]).encode("ascii")) for row in rows]

    def _source_stream_id(self, stream: str) -> int:
        rows = self._database.rows("SELECT source_stream_id FROM streams WHERE name = ?", (stream,))
        if not rows:
            raise Unknown("stream", stream)
        return int(str(rows[0][0]))

    # --- epochs -----------------------------------------------------------------------------------------

    def persist_epoch(self, grant: RoleGrant, cause: Cause) -> None:
        """Make an epoch durable, so that it can be granted. It must be greater than all before it."""
        subject, detail = grant.stream, f"epoch {grant.epoch} to {grant.adapter} from {grant.from_seq}"
        with self._changing(cause, "grant-epoch", subject, detail):
            self._source_stream_id(grant.stream)
            if all(known.adapter != grant.adapter for known in self.adapters(grant.stream)):
                raise Unknown("adapter", f"{grant.stream}.{grant.adapter}")
            newest = self._newest_epoch(grant.stream)
            if grant.epoch <= newest:
                raise StaleEpoch(grant.stream, grant.epoch, newest)
            self._database.change(
                "INSERT INTO epochs VALUES (?, ?, ?, ?, ?)",
                (grant.stream, grant.epoch, grant.adapter, grant.from_seq, cause.at_ns),
            )

    def last_epoch(self, stream: str) -> RoleGrant | None:
        rows: list[Any] = self._database.rows(
            "SELECT stream, adapter, epoch, from_seq FROM epochs WHERE stream = ? "
            "ORDER BY epoch DESC LIMIT 1",
            (stream,),
        )
        return RoleGrant(*rows[0]) if rows else None

    def epochs(self, stream: str, after: int, limit: int) -> list[RoleGrant]:
        """Return the epochs of a stream that follow `after`, oldest first."""
        rows: list[Any] = self._database.rows(
            "SELECT stream, adapter, epoch, from_seq FROM epochs WHERE stream = ? AND epoch > ? "
            "ORDER BY epoch LIMIT ?",
            (stream, after, page_size(limit)),
        )
        return [RoleGrant(*row) for row in rows]

    def _newest_epoch(self, stream: str) -> int:
        last = self.last_epoch(stream)
        return 0 if last is None else last.epoch

    # --- administrative messages ------------------------------------------------------------------------

    def register_admin_message(self, message: AdminMessage, cause: Cause) -> None:
        """Record the position that the active adapter is about to agree on with its backups.

        Only the newest epoch registers. The same again is no error; a later position replaces one that was
        not inserted (it was proposed anew); the text of a number is for ever.
        """
        if message.state is not AdminMessageState.REGISTERED:
            raise ProtocolError("state", message.state.value, "registered")
        subject, detail = message.stream, f"message {message.number} at {message.at_seq}"
        with self._changing(cause, "register-admin-message", subject, detail):
            self._source_stream_id(message.stream)
            newest = self._newest_epoch(message.stream)
            if message.epoch != newest:
                raise StaleEpoch(message.stream, message.epoch, newest)
            known = self._admin_message(message.stream, message.number)
            if known is None:
                self._database.change(
                    "INSERT INTO admin_messages VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        message.stream,
                        message.number,
                        message.at_seq,
                        message.epoch,
                        message.text,
                        message.state.value,
                    ),
                )
                return
            if known.state is not AdminMessageState.REGISTERED or known.text != message.text:
                raise Conflict(
                    f"{message.stream}: message {message.number} is {known.state.value} already, as it was"
                )
            if message.at_seq < known.at_seq:
                raise Conflict(
                    f"{message.stream}: message {message.number} must be at {known.at_seq} or later, "
                    f"was to be at {message.at_seq}"
                )
            self._database.change(
                "UPDATE admin_messages SET at_seq = ?, epoch = ? WHERE stream = ? AND number = ?",
                (message.at_seq, message.epoch, message.stream, message.number),
            )

    def settle_admin_message(self, stream: str, number: int, state: AdminMessageState, cause: Cause) -> None:
        """Record what became of a message: inserted or dropped, once and for all."""
        if state is AdminMessageState.REGISTERED:
            raise ProtocolError("state", state.value, "inserted or dropped")
        with self._changing(cause, f"admin-message-{state.value}", stream, f"message {number}"):
            known = self._admin_message(stream, number)
            if known is None:
                raise Unknown("admin message", f"{stream} {number}")
            if known.state not in (AdminMessageState.REGISTERED, state):
                raise Conflict(f"{stream}: message {number} is {known.state.value} already")
            self._database.change(
                "UPDATE admin_messages SET state = ? WHERE stream = ? AND number = ?",
                (state.value, stream, number),
            )

    def admin_messages(self, stream: str, after: int, limit: int) -> list[AdminMessage]:
        """Return the messages of a stream that follow number `after`, in order."""
        rows: list[Any] = self._database.rows(
            "SELECT stream, number, at_seq, epoch, text, state FROM admin_messages "
            "WHERE stream = ? AND number > ? ORDER BY number LIMIT ?",
            (stream, after, page_size(limit)),
        )
        return [
            AdminMessage(stream, number, at_seq, epoch, text, AdminMessageState(state))
            for stream, number, at_seq, epoch, text, state in rows
        ]

    def _admin_message(self, stream: str, number: int) -> AdminMessage | None:
        found = self.admin_messages(stream, number - 1, 1)
        return found[0] if found and found[0].number == number else None

    # --- subscriptions ----------------------------------------------------------------------------------

    def keep_subscription(
        self, principal: str, name: str, request: SubscriptionRequest, cause: Cause
    ) -> None:
        """Keep what a principal wants to have, under a name; a second one of that name replaces it."""
        LABEL.check(name, "name")
        with self._changing(cause, "keep-subscription", principal, f"{name} to {request.stream}"):
            self._insist_principal(principal)
            self._insist_room(
                f"subscriptions of {principal}",
                SUBSCRIPTIONS_MAX,
                "SELECT count(*) FROM subscriptions WHERE principal = ? AND name <> ?",
                (principal, name),
            )
            self._database.change(
                "INSERT INTO subscriptions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "request = excluded.request, updated_at_ns = excluded.updated_at_ns",
                (principal, name, request.encode().decode("ascii"), cause.at_ns),
            )

    def drop_subscription(self, principal: str, name: str, cause: Cause) -> None:
        with self._changing(cause, "drop-subscription", principal, name):
            done = self._database.change(
                "DELETE FROM subscriptions WHERE principal = ? AND name = ?", (principal, name)
            )
            if done.rowcount == 0:
                raise Unknown("subscription", f"{principal} {name}")

    def subscriptions(self, principal: str) -> list[DesiredSubscription]:
        rows: list[Any] = self._database.rows(
            "SELECT name, request, updated_at_ns FROM subscriptions WHERE principal = ? ORDER BY name",
            (principal,),
        )
        return [
            DesiredSubscription(
                principal, name, SubscriptionRequest.decode(request.encode("ascii")), updated_at_ns
            )
            for name, request, updated_at_ns in rows
        ]

    def insist_sound(self) -> None:
        """Look at every page of the file; raise SchemaError with what is wrong with it."""
        self._database.insist_sound()

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
