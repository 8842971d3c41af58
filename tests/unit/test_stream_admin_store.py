"""The store: durable, private, one server at a time, schemas that only go up, rules that hold in SQL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream_admin.database import Database, SchemaError, StoreError, StoreInUse
from stream_admin.migrations import MIGRATIONS, Migration
from stream_admin.private_files import ExposedError
from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.messages import AdminMessage, AdminMessageState, RoleGrant
from stream_admin.sqlite_store import SqliteStore
from stream_admin.store import AdminStore, Conflict, StaleEpoch, StreamEntry, Unknown
from tests.unit.stream_admin_scene import DECISION, REQUEST, STREAM, WHY, registration, store_with_stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "store"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with store_with_stream(path) as opened:
        yield opened


def message(number: int, at_seq: int, epoch: int, text: str = "halt") -> AdminMessage:
    return AdminMessage(STREAM, number, at_seq, epoch, text, AdminMessageState.REGISTERED)


def test_sqlite_store_is_an_admin_store(store: SqliteStore) -> None:
    taken: AdminStore = store  # mypy compares the two
    assert taken.streams() == [StreamEntry(STREAM, 9)]


def test_everything_is_there_after_reopening(store: SqliteStore, path: Path) -> None:
    store.persist_epoch(RoleGrant(STREAM, "a", 1, 1), WHY)
    store.register_admin_message(message(1, 10, 1), WHY)
    store.keep_subscription("desk-7", "main", REQUEST, WHY)
    store.record(DECISION)
    before = (
        store.principals(),
        store.streams(),
        store.adapters(STREAM),
        store.last_epoch(STREAM),
        store.admin_messages(STREAM, 0, 10),
        store.subscriptions("desk-7"),
        store.audit(0, 100),
    )
    store.close()
    with SqliteStore(path) as again:
        assert before == (
            again.principals(),
            again.streams(),
            again.adapters(STREAM),
            again.last_epoch(STREAM),
            again.admin_messages(STREAM, 0, 10),
            again.subscriptions("desk-7"),
            again.audit(0, 100),
        )
        again.insist_sound()


def test_epochs_only_grow(store: SqliteStore) -> None:
    store.persist_epoch(RoleGrant(STREAM, "a", 3, 1), WHY)
    for epoch in (1, 2, 3):
        with pytest.raises(StaleEpoch, match=f"epoch {epoch} is stale, 3 was granted"):
            store.persist_epoch(RoleGrant(STREAM, "b", epoch, 9), WHY)
    store.persist_epoch(RoleGrant(STREAM, "b", 5, 9), WHY)
    assert [grant.epoch for grant in store.epochs(STREAM, 0, 10)] == [3, 5]
    assert store.last_epoch(STREAM) == RoleGrant(STREAM, "b", 5, 9)
    with pytest.raises(Unknown, match=r"no adapter 'XNAS\.ITCH\.z'"):
        store.persist_epoch(RoleGrant(STREAM, "z", 6, 9), WHY)
    with pytest.raises(Unknown, match="no stream 'XNYS'"):
        store.persist_epoch(RoleGrant("XNYS", "a", 6, 9), WHY)


FORBIDDEN_IN_SQL = [
    ("INSERT INTO epochs VALUES ('XNAS.ITCH', 3, 'a', 1, 0)", "an epoch only grows"),
    ("INSERT INTO epochs VALUES ('XNAS.ITCH', 9, 'nobody', 1, 0)", "FOREIGN KEY"),
    ("UPDATE epochs SET epoch = 9", "never changed"),
    ("DELETE FROM epochs", "never removed"),
    ("UPDATE audit SET reason = 'another'", "never changed"),
    ("DELETE FROM audit", "never removed"),
    ("INSERT INTO audit VALUES (999, 0, 'x', 'x', 'x', 'done', 'x', '')", "without holes"),
    ("UPDATE principals SET revision = -1", "only grows"),
    ("UPDATE admin_messages SET text = 'another'", "keeps what it says"),
    ("INSERT INTO admin_messages VALUES ('XNAS.ITCH', 7, 1, 3, 'x', 'registered')", "without holes"),
]


@pytest.mark.parametrize(("statement", "rule"), FORBIDDEN_IN_SQL)
def test_rule_holds_in_the_database_itself(statement: str, rule: str, store: SqliteStore) -> None:
    store.persist_epoch(RoleGrant(STREAM, "a", 3, 1), WHY)
    store.register_admin_message(message(1, 10, 3), WHY)
    with pytest.raises(sqlite3.IntegrityError, match=rule), store._database.writing():
        store._database.change(statement)
    assert [grant.epoch for grant in store.epochs(STREAM, 0, 10)] == [3]


def test_change_that_fails_leaves_neither_itself_nor_an_audit_entry(store: SqliteStore) -> None:
    entries = store.audit(0, 1_000)
    refusals: list[Callable[[], None]] = [
        lambda: store.add_principal("desk-7", WHY),
        lambda: store.add_stream(StreamEntry(STREAM, 77), WHY),
        lambda: store.add_stream(StreamEntry("OTHER", 9), WHY),
        lambda: store.drop_subscription("desk-7", "nothing", WHY),
        lambda: store.register_admin_message(message(1, 1, 1), WHY),
    ]
    for refused in refusals:
        with pytest.raises(StoreError):
            refused()
    with pytest.raises(ProtocolError, match="source_stream_id must be 9"):
        store.register_adapter(type(registration("c"))(STREAM, "c", 1, 8, registration("c").endpoints), WHY)
    assert store.audit(0, 1_000) == entries
    assert store.streams() == [StreamEntry(STREAM, 9)]


def test_admin_message_has_one_text_and_its_position_moves_only_forward(store: SqliteStore) -> None:
    store.persist_epoch(RoleGrant(STREAM, "a", 1, 1), WHY)
    store.register_admin_message(message(1, 10, 1), WHY)
    store.register_admin_message(message(1, 10, 1), WHY)
    store.register_admin_message(message(1, 20, 1), WHY)
    with pytest.raises(Conflict, match="must be at 20 or later"):
        store.register_admin_message(message(1, 19, 1), WHY)
    with pytest.raises(Conflict, match="already"):
        store.register_admin_message(message(1, 30, 1, "another text"), WHY)
    with pytest.raises(Conflict, match="without holes"):
        store.register_admin_message(message(3, 30, 1), WHY)
    store.persist_epoch(RoleGrant(STREAM, "b", 2, 15), WHY)
    with pytest.raises(StaleEpoch):
        store.register_admin_message(message(1, 40, 1), WHY)
    store.register_admin_message(message(1, 40, 2), WHY)
    store.settle_admin_message(STREAM, 1, AdminMessageState.INSERTED, WHY)
    store.settle_admin_message(STREAM, 1, AdminMessageState.INSERTED, WHY)
    with pytest.raises(Conflict, match="inserted already"):
        store.settle_admin_message(STREAM, 1, AdminMessageState.DROPPED, WHY)
    with pytest.raises(Conflict, match="inserted already"):
        store.register_admin_message(message(1, 50, 2), WHY)
    assert store.admin_messages(STREAM, 0, 10) == [
        AdminMessage(STREAM, 1, 40, 2, "halt", AdminMessageState.INSERTED)
    ]


def test_every_change_is_audited_with_its_actor_and_reason(store: SqliteStore) -> None:
    entries = store.audit(0, 100)
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.decision.action for entry in entries] == [
        "add-stream",
        "register-adapter",
        "register-adapter",
        "add-principal",
    ]
    assert {(entry.decision.actor, entry.decision.reason) for entry in entries} == {(WHY.actor, WHY.reason)}
    assert [entry.number for entry in store.audit(2, 1)] == [3]
    for limit in (0, 1_001):
        with pytest.raises(ProtocolError, match="limit must be"):
            store.audit(0, limit)


def test_files_are_their_owners_alone_and_refused_otherwise(store: SqliteStore, path: Path) -> None:
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    store.close()
    path.chmod(0o644)
    with pytest.raises(ExposedError, match="closed to others"):
        SqliteStore(path)
    path.chmod(0o600)
    path.parent.chmod(0o755)
    with pytest.raises(ExposedError, match="closed to others"):
        SqliteStore(path)


def test_commits_reach_the_disk(store: SqliteStore) -> None:
    assert store._database.pragma("synchronous") == 2
    assert store._database.pragma("journal_mode") == "wal"


def test_second_server_is_refused_in_this_process_and_in_another(store: SqliteStore, path: Path) -> None:
    with pytest.raises(StoreInUse, match="in use"):
        SqliteStore(path)
    program = (
        "import sys; from pathlib import Path; from stream_admin.sqlite_store import SqliteStore; "
        "SqliteStore(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "StoreInUse" in done.stderr
    store.add_principal("still-ours", WHY)


def test_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    newer = (
        *MIGRATIONS,
        Migration(len(MIGRATIONS) + 1, "of tomorrow", ("CREATE TABLE tomorrow (a INTEGER)",)),
    )
    SqliteStore(path, newer).close()
    with pytest.raises(SchemaError, match=f"must be at most {len(MIGRATIONS)}, was {len(MIGRATIONS) + 1}"):
        SqliteStore(path)
    SqliteStore(path, newer).close()


def test_older_schema_is_brought_up_step_by_step(path: Path) -> None:
    for count in range(1, len(MIGRATIONS) + 1):
        with Database(path, MIGRATIONS[:count]) as database:
            assert database.pragma("user_version") == count
    with SqliteStore(path) as store:
        store.add_principal("desk-7", WHY)


def test_step_that_fails_half_way_leaves_the_schema_before_it(path: Path) -> None:
    SqliteStore(path).close()
    broken = Migration(len(MIGRATIONS) + 1, "broken", ("CREATE TABLE half (a INTEGER)", "CREATE NONSENSE"))
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(path, (*MIGRATIONS, broken))
    with Database(path) as database:
        assert database.pragma("user_version") == len(MIGRATIONS)
        assert database.rows("SELECT name FROM sqlite_master WHERE name = 'half'") == []


def test_step_that_was_changed_after_its_release_is_noticed(path: Path) -> None:
    SqliteStore(path).close()
    changed = Migration(1, MIGRATIONS[0].name, (*MIGRATIONS[0].statements, "CREATE TABLE more (a INTEGER)"))
    with pytest.raises(SchemaError, match="step 1"):
        SqliteStore(path, (changed, *MIGRATIONS[1:]))


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4_080])
def test_file_that_is_no_database_is_refused(content: bytes, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreError):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (a INTEGER)")
    other.close()
    path.chmod(0o600)
    with pytest.raises(SchemaError, match="application_id"):
        SqliteStore(path)
