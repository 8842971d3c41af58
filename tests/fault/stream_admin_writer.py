"""A process that changes the administration store without end, for a test that kills it.

After each change that has returned it says so in a file of its own, one line at a time: what stands there was
promised to somebody.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from stream_admin.entitlements import Entitlement, Right
from stream_admin.protocol.messages import AdminMessage, AdminMessageState, RoleGrant
from stream_admin.sqlite_store import SqliteStore
from tests.unit.stream_admin_scene import STREAM, WHY, registration


def warm_up() -> None:
    """Nothing here is compiled."""


def all_admin_messages(store: SqliteStore) -> Iterator[AdminMessage]:
    after = 0
    while page := store.admin_messages(STREAM, after, 500):
        yield from page
        after = page[-1].number


def write(path: str, promises: str, seed: str) -> None:
    randomness = random.Random(int(seed))
    fd = os.open(promises, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with SqliteStore(Path(path)) as store:
        number = sum(1 for _ in all_admin_messages(store))
        while True:
            last = store.last_epoch(STREAM)
            epoch = 1 if last is None else last.epoch + 1
            store.persist_epoch(RoleGrant(STREAM, randomness.choice("ab"), epoch, epoch), WHY)
            os.write(fd, f"epoch {epoch}\n".encode())
            instruments = (f"S{epoch}",)
            held = store.entitlements("desk-7")
            if len(held) < 3:
                entitlement = Entitlement("desk-7", "*", instruments, (Right.READ,))
                granted = store.grant(entitlement, {STREAM: epoch}, WHY)
                os.write(fd, f"grant {granted}\n".encode())
            else:
                store.end_entitlement(held[0].number, {STREAM: epoch}, WHY)
                os.write(fd, f"end {held[0].number}\n".encode())
            store.register_adapter(registration("a", incarnation=epoch), WHY)
            number += 1
            message = AdminMessage(STREAM, number, epoch, epoch, "hello", AdminMessageState.REGISTERED)
            store.register_admin_message(message, WHY)
            os.write(fd, f"message {number}\n".encode())


def make(path: str) -> None:
    """Make a new store, and stay."""
    with SqliteStore(Path(path)):
        signal.pause()


ROLES = {"write": write, "make": make}
