"""The administration store under SIGKILL: what was promised stands, what was half done never was."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from stream_admin.protocol.messages import AuditEntry, RoleGrant
from stream_admin.sqlite_store import SqliteStore
from tests.fault.killing import Nursery, is_long, seeded, wait_until
from tests.fault.stream_admin_writer import all_admin_messages
from tests.unit.stream_admin_scene import STREAM, store_with_stream

ROUNDS = 400 if is_long() else 20


def all_epochs(store: SqliteStore) -> list[RoleGrant]:
    epochs: list[RoleGrant] = []
    while page := store.epochs(STREAM, epochs[-1].epoch if epochs else 0, 500):
        epochs += page
    return epochs


def all_audit(store: SqliteStore) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    while page := store.audit(entries[-1].number if entries else 0, 500):
        entries += page
    return entries


def promised(promises: Path, kind: str) -> list[int]:
    lines = promises.read_text().splitlines(keepends=True) if promises.exists() else []
    words = [line.split() for line in lines if line.endswith("\n")]
    return [int(number) for name, number in words if name == kind]


def has_more(promises: Path, known_before: int) -> bool:
    return len(promised(promises, "epoch")) > known_before


def check(store: SqliteStore, promises: Path) -> int:
    """Compare the store with what was promised, and its tables with its audit log; return the last epoch."""
    store.insist_sound()
    epochs = [grant.epoch for grant in all_epochs(store)]
    assert epochs == list(range(1, len(epochs) + 1)), "an epoch was skipped or lost"
    assert set(promised(promises, "epoch")) <= set(epochs)
    assert set(promised(promises, "message")) <= {message.number for message in all_admin_messages(store)}

    entries = [entry.decision for entry in all_audit(store)]
    granted = sum(entry.action == "grant" for entry in entries)
    ended = [entry.detail for entry in entries if entry.action == "end-entitlement"]
    held = store.entitlements("desk-7")
    # Each change is there with its entry, or neither is.
    assert sum(entry.action == "grant-epoch" for entry in entries) == len(epochs)
    assert sum(entry.action == "register-admin-message" for entry in entries) == len(
        list(all_admin_messages(store))
    )
    assert granted - len(ended) == len(held)
    assert {f"entitlement {number}" for number in promised(promises, "end")} <= set(ended)
    assert len(promised(promises, "grant")) <= granted
    assert all(len(entry.entitlement.spans) == 1 for entry in held), "an entitlement without its span"
    assert store.reading_filter("desk-7", STREAM, len(epochs)).revision == granted + len(ended)
    return len(epochs)


def test_killed_server_keeps_its_promises_and_no_half_change(tmp_path: Path) -> None:
    path, promises = tmp_path / "db" / "store", tmp_path / "promises"
    store_with_stream(path).close()
    epoch_before = 0
    with seeded() as randomness, Nursery("tests.fault.stream_admin_writer") as nursery:
        for _ in range(ROUNDS):
            known_before = len(promised(promises, "epoch"))
            writer = nursery.start("write", str(path), str(promises), str(randomness.getrandbits(32)))
            wait_until(partial(has_more, promises, known_before), "the writer's first epoch")
            # Not to wait for anything: it is the moment of the kill that is chosen.
            time.sleep(randomness.uniform(0, 0.02))
            writer.kill()
            with SqliteStore(path) as store:
                epoch = check(store, promises)
            assert epoch > epoch_before
            epoch_before = epoch


def test_server_killed_while_it_makes_its_store_leaves_one_that_opens(tmp_path: Path) -> None:
    with seeded() as randomness, Nursery("tests.fault.stream_admin_writer") as nursery:
        for number in range(ROUNDS):
            path = tmp_path / f"db{number}" / "store"
            maker = nursery.start("make", str(path))
            time.sleep(randomness.uniform(0, 0.015))
            maker.kill()
            with SqliteStore(path) as store:
                store.insist_sound()
                assert store.streams() == []
                assert store.audit(0, 10) == []
