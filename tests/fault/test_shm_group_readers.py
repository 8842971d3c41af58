"""A node that lets its group read: another user follows the log, is waited for, and can change nothing.

Users are numbers that need not exist; becoming one needs root, which CI has.
"""

import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feeds import wire
from middleware.shm import log_kernels, word_access_kernels
from middleware.shm.errors import PermissionsError, ShmError
from middleware.shm.log import GateChange, GateEvent, LogReader, LogWriter
from middleware.shm.log_layout import open_log
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats

GUEST, STRANGER, GROUP, OTHER_GROUP = 43_101, 43_102, 43_200, 43_201

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, to become another user; CI runs it as root"
)


def look_around(runtime: Runtime, go_on: Callable[[], None]) -> list[str]:
    """Do what a guest may do and try what it may not; return what became of it."""
    try:
        reader = LogReader.open(runtime, "T", who="guest", is_gating=True)
    except ShmError as error:
        return [f"join: {type(error).__name__}"]
    told = [f"joined at {reader.next_seq}"]
    go_on()
    told += [f"gated {reader.is_gated}", f"read {len(reader.read())}"]
    place = runtime.place("logs", "T")
    for what, attempt in (
        ("log", lambda: open_log(place, is_writable=True)),
        ("seat", lambda: Seats(place / "writer")),
    ):
        try:
            attempt()
            told.append(f"{what}: opened")
        except ShmError as error:
            told.append(f"{what}: {type(error).__name__}")
    reader.close()
    return told


def frames(first: int, count: int) -> wire.FrameArray:
    batch = wire.empty(count)
    batch["message_seq"] = np.arange(first, first + count)
    return batch


@pytest.fixture
def shared_runtime() -> Iterator[Runtime]:
    with tempfile.TemporaryDirectory() as directory:  # not tmp_path: guests may not get into pytest's own
        Path(directory).chmod(0o755)
        runtime = Runtime(Path(directory) / "node", is_group_readable=True)
        runtime.prepare()
        for path in (runtime.path, *runtime.path.iterdir()):
            os.chown(path, -1, GROUP)
        yield runtime


class Guest:
    """A forked child that became another user. Forked, because that user may not run our interpreter."""

    def __init__(self, runtime: Runtime, user: int, group: int) -> None:
        for module in (log_kernels, word_access_kernels):
            module.warm_up()  # it may not read compiled kernels from our cache either
        self._told, told = os.pipe()
        go_on, self._go_on = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:

            def wait() -> None:
                os.write(told, b"joined\n")
                os.read(go_on, 1)

            try:
                os.setgroups([])
                os.setgid(group)
                os.setuid(user)
                lines = look_around(runtime, wait)
                os.write(told, "\n".join(lines).encode())
            except BaseException:
                os.write(told, traceback.format_exc().encode())
                raise
            finally:
                os._exit(0)
        os.close(told)
        os.close(go_on)

    def wait_joined(self) -> None:
        told = os.read(self._told, 7)
        assert told == b"joined\n", told + os.read(self._told, 10_000)

    def go_on(self) -> list[str]:
        os.write(self._go_on, b".")
        return self.finish()

    def finish(self) -> list[str]:
        with os.fdopen(self._told) as told:
            return told.read().splitlines()

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._go_on)


@pytest.fixture
def guests() -> Iterator[list[Guest]]:
    all_guests: list[Guest] = []
    yield all_guests
    for guest in all_guests:
        guest.end()


def test_a_guest_of_the_group_reads_and_is_waited_for_but_can_write_nothing(
    shared_runtime: Runtime, guests: list[Guest]
) -> None:
    with LogWriter.open(shared_runtime, "T", who="adapter", slot_count=128) as writer:
        writer.publish(frames(1, 10))
        guest = Guest(shared_runtime, GUEST, GROUP)
        guests.append(guest)
        guest.wait_joined()
        events: list[GateEvent] = []
        while not events:  # bounded by the test's own time limit
            events = writer.service()
        assert [(event.reader, event.change) for event in events] == [("guest", GateChange.OPENED)]
        assert guest.go_on() == [
            "joined at 1",
            "gated True",
            "read 10",
            "log: PermissionsError",
            "seat: PermissionsError",
        ]


def test_a_stranger_is_refused(shared_runtime: Runtime, guests: list[Guest]) -> None:
    LogWriter.open(shared_runtime, "T", who="adapter", slot_count=128).close()
    guests.append(Guest(shared_runtime, STRANGER, OTHER_GROUP))
    assert guests[0].finish() == ["join: PermissionsError"]


def test_another_users_directory_is_not_believed_without_the_group(shared_runtime: Runtime) -> None:
    LogWriter.open(shared_runtime, "T", who="adapter", slot_count=128).close()
    os.chown(shared_runtime.path, GUEST, GROUP)
    with pytest.raises(PermissionsError, match=f"belongs to user {GUEST}"):
        LogReader.open(Runtime(shared_runtime.path), "T", who="reader")
