"""The SQLite file under the store: private, opened by one server at a time, migrated, written safely.

What has been committed is on the disk (write-ahead log, synchronous=FULL); what has not never was, wherever
the process is killed. The lock that keeps a second server out is the kernel's, and goes with its process.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from stream_admin.migrations import MIGRATIONS, Migration
from stream_admin.private_files import insist_private_file, make_private_directory, make_private_file
from stream_admin.protocol.errors import AdminError

APPLICATION_ID = 0x74_74_61_70  # "ttap", in the header: no other program's database is taken for ours
LOCK_PATIENCE_S = 0.5  # a predecessor that is being stopped may take a moment; a dead one takes none

_BOOKKEEPING = """CREATE TABLE migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, applied_at_ns INTEGER NOT NULL
) STRICT"""


class StoreError(AdminError):
    """The store cannot do what was asked."""


class StoreInUse(StoreError):
    """Another process has the store open. There is one administration server for a store: stop the other."""


class SchemaError(StoreError):
    """The file is no store of ours, or of another version. Use the program that made it, or another file."""


class Database:
    """One connection, used by any thread, one at a time."""

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        """Open the database at `path`; make it, and its directory, where there is none."""
        self.path = path
        self._lock = threading.RLock()
        make_private_directory(path.parent)
        make_private_file(path)
        for suffix in ("-wal", "-shm"):  # SQLite makes them with the mode of the database
            sibling = path.with_name(path.name + suffix)
            if sibling.exists():
                insist_private_file(sibling)
        self._connection = sqlite3.connect(
            path, timeout=LOCK_PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._set_up()
            self._migrate(migrations)
        except sqlite3.OperationalError as error:
            self._connection.close()
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreInUse(f"{path} is in use by another process") from error
            raise StoreError(f"{path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise SchemaError(f"{path} is not a database, or it is damaged: {error}") from error
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        for pragma in (
            "locking_mode = EXCLUSIVE",  # before anything is read: it holds from the first access on
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "trusted_schema = OFF",
            "cell_size_check = ON",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        mode = self.pragma("journal_mode")
        if mode != "wal":
            raise StoreError(f"{self.path}: journal_mode must be wal, was {mode}: is it on a local disk?")

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        """Bring the schema to ours, one step and one transaction at a time."""
        with self.writing():  # also takes the lock
            application_id, version = self.pragma("application_id"), int(str(self.pragma("user_version")))
            is_empty = not self.rows("SELECT name FROM sqlite_master LIMIT 1")
            if is_empty and application_id == 0:
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(_BOOKKEEPING)
            elif application_id != APPLICATION_ID:
                allowed = f"application_id must be {APPLICATION_ID}"
                raise SchemaError(f"{self.path}: {allowed}, was {application_id}")
        newest = len(migrations)
        if version > newest:
            raise SchemaError(f"{self.path}: schema version must be at most {newest}, was {version}")
        applied = self.rows("SELECT number, digest FROM migrations ORDER BY number")
        if [number for number, _ in applied] != list(range(1, version + 1)):
            raise SchemaError(f"{self.path}: schema version is {version}, but the steps on record are others")
        for (number, digest), migration in zip(applied, migrations, strict=False):
            if digest != migration.digest:
                raise SchemaError(f"{self.path}: step {number} ({migration.name}) was another then")
        for migration in migrations[version:]:
            with self.writing():
                for statement in migration.statements:
                    self._connection.execute(statement)
                self._connection.execute(
                    "INSERT INTO migrations VALUES (?, ?, ?, ?)",
                    (migration.number, migration.name, migration.digest, time.time_ns()),
                )
                self._connection.execute(f"PRAGMA user_version = {migration.number}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make everything inside one transaction: at its end committed and on the disk, or nothing of it."""
        with self._lock:
            if self._connection.in_transaction:  # part of a greater change: that one commits
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the store in all queries inside: no other thread changes it meanwhile."""
        with self._lock:
            yield

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return everything that a query finds; queries say themselves how much that may be."""
        with self._lock:
            return self._connection.execute(query, parameters).fetchall()

    def change(self, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement of a transaction."""
        assert self._connection.in_transaction, "changes are made inside `writing`"
        return self._connection.execute(statement, parameters)

    def pragma(self, name: str) -> object:
        return self.rows(f"PRAGMA {name}")[0][0]

    def insist_sound(self) -> None:
        """Have SQLite look at every page; raise SchemaError with what it finds."""
        findings = [str(row[0]) for row in self.rows("PRAGMA integrity_check(20)")]
        strays = self.rows("PRAGMA foreign_key_check")
        if findings != ["ok"] or strays:
            found = f"{'; '.join(findings)}; {len(strays)} rows refer to nothing"
            raise SchemaError(f"{self.path} is damaged: {found}")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
