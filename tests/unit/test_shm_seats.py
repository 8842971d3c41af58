"""Seats: one holder at a time, known by name; the dead, the closed and the forked hold none."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.errors import ConfigError
from middleware.shm.errors import InUse, LayoutError, NotFound, ShmError
from middleware.shm.seats import SEAT_BYTES, SEATS_MAX, Identity, Seats, SeatSight, see_seats

HOLDER = """
import sys
from pathlib import Path
from middleware.shm.seats import Seats
seats = Seats(Path(sys.argv[1]))
seats.take(int(sys.argv[2]), sys.argv[3], "writer")
print("seated", flush=True)
for order in sys.stdin:
    if order == "leave\\n": seats.leave(int(sys.argv[2]))
    if order == "close\\n": seats.close()
    print("done", flush=True)
"""


class Holder:
    """Another process that sits on a seat until it is told otherwise."""

    def __init__(self, path: Path, index: int, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), str(index), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "seated\n"

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        assert self._line() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seats"
    Seats(path, is_creator=True).close()
    return path


@pytest.fixture
def seats(path: Path) -> Iterator[Seats]:
    opened = Seats(path)
    yield opened
    opened.close()


@pytest.fixture
def holder(path: Path) -> Iterator[Holder]:
    other = Holder(path, 0, "first")
    yield other
    other.kill()


class TestOtherProcess:
    def test_second_is_refused_by_the_name_of_the_first(self, seats: Seats, holder: Holder) -> None:
        pid = holder.process.pid
        with pytest.raises(InUse) as raised:
            seats.take(0, "second", "writer")

        assert raised.value.role == "writer"
        assert raised.value.holder == f"'first' (process {pid})"
        assert str(raised.value) == (
            f"{seats.path.parent}: 'first' (process {pid}) is its writer already, and there can be only one"
        )
        found = seats.holder(0)
        assert found is not None
        assert (found.name, found.pid) == ("first", pid)

    def test_second_is_let_in_after_the_first_was_killed(self, seats: Seats, holder: Holder) -> None:
        holder.kill()

        assert not seats.is_taken(0)
        assert seats.holder(0) is None
        last = seats.last_holder(0)
        assert last is not None
        assert last.name == "first"
        assert seats.take(0, "second", "writer").pid == os.getpid()

    @pytest.mark.parametrize("order", ["leave", "close"])
    def test_second_is_let_in_after_the_first_has_gone(
        self, seats: Seats, holder: Holder, order: str
    ) -> None:
        holder.tell(order)
        assert not seats.is_taken(0)
        seats.take(0, "second", "writer")

    @pytest.mark.parametrize("order", ["leave", "close"])
    def test_who_left_leaves_no_name(self, seats: Seats, holder: Holder, order: str) -> None:
        """A name that stays behind is that of somebody who died."""
        holder.tell(order)
        assert seats.last_holder(0) is None
        assert see_seats(seats.path, 1) == [SeatSight(None, is_taken=False)]

    def test_onlooker_sees_the_living_and_the_dead_and_takes_nothing(
        self, path: Path, seats: Seats, holder: Holder
    ) -> None:
        ours = seats.take(2, "second", "reader")
        living, nobody, us = see_seats(path, 3)
        assert living.identity is not None
        assert (living.identity.name, living.is_taken) == ("first", True)
        assert nobody == SeatSight(None, is_taken=False)
        assert us == SeatSight(ours, is_taken=True)

        holder.kill()
        dead = see_seats(path, 1)[0]
        assert dead == SeatSight(living.identity, is_taken=False)

    def test_first_free_seat_is_found_and_a_full_house_refused(self, seats: Seats, holder: Holder) -> None:
        assert holder.process.poll() is None
        index, _identity = seats.take_any(0, 2, "second", "producer")
        assert index == 1
        with pytest.raises(InUse, match="each of 2 others is its producer"):
            seats.take_any(0, 2, "third", "producer")


class TestSameProcess:
    def test_two_openings_exclude_each_other(self, path: Path, seats: Seats) -> None:
        seats.take(0, "first", "writer")
        other = Seats(path)
        with pytest.raises(InUse, match="'first'"):
            other.take(0, "second", "writer")
        other.take(1, "second", "reader")
        other.close()

    def test_closing_one_opening_gives_away_nothing_of_another(self, path: Path, seats: Seats) -> None:
        """A plain lock of a process would be gone as soon as any of its openings is closed."""
        seats.take(0, "first", "writer")
        Seats(path).close()
        other = Seats(path)
        assert other.is_taken(0)
        other.close()

    def test_one_opening_cannot_take_a_seat_twice(self, seats: Seats) -> None:
        seats.take(0, "first", "writer")
        with pytest.raises(InUse, match="'first'"):
            seats.take(0, "second", "writer")
        assert seats.take_any(0, 3, "second", "reader")[0] == 1

    def test_seat_can_be_taken_again_after_leaving(self, path: Path, seats: Seats) -> None:
        other = Seats(path)
        for name in ("first", "second"):
            seats.take(5, name, "reader")
            assert other.is_taken(5)
            seats.leave(5)
            assert not other.is_taken(5)
        other.close()

    def test_closing_frees_every_seat_and_can_be_repeated(self, path: Path) -> None:
        first, second = Seats(path), Seats(path)
        for index in range(3):
            first.take(index, "first", "reader")
        first.close()
        first.close()
        assert not first.is_open
        assert [second.take(index, "second", "reader").name for index in range(3)] == ["second"] * 3
        second.close()

    def test_dropping_it_unclosed_frees_its_seats(self, path: Path, seats: Seats) -> None:
        dropped = Seats(path)
        dropped.take(0, "first", "writer")
        assert seats.is_taken(0)
        del dropped
        gc.collect()
        assert not seats.is_taken(0)

    def test_name_is_checked_before_the_seat_is_taken(self, path: Path, seats: Seats) -> None:
        with pytest.raises(ConfigError, match="a name must be"):
            seats.take(0, "not a name", "writer")
        other = Seats(path)
        assert not other.is_taken(0)
        other.close()

    @pytest.mark.parametrize("index", [-1, SEATS_MAX])
    def test_seat_that_does_not_exist_is_refused(self, seats: Seats, index: int) -> None:
        with pytest.raises(IndexError, match=f"must be 0 to {SEATS_MAX - 1}, was {index}"):
            seats.take(index, "first", "reader")

    def test_longest_name_fits_its_record(self, seats: Seats) -> None:
        seats.take(SEATS_MAX - 1, "x" * 64, "reader")
        found = seats.last_holder(SEATS_MAX - 1)
        assert found is not None
        assert found.name == "x" * 64

    def test_seat_whose_name_cannot_be_written_stays_free(
        self, path: Path, seats: Seats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_arguments: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(ShmError, match="No space left on device"):
                seats.take(0, "first", "writer")
        other = Seats(path)
        other.take(0, "second", "writer")
        other.close()


class TestFork:
    def test_fork_of_the_holder_does_not_keep_the_seat(self, path: Path) -> None:
        """The holder dies, its child lives on: the seat is free."""
        program = (
            "import os, signal, sys\nfrom pathlib import Path\nfrom middleware.shm.seats import Seats\n"
            "seats = Seats(Path(sys.argv[1]))\nseats.take(0, 'first', 'writer')\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    assert not seats.is_open\n"
            "    print(os.getpid(), flush=True)\n"
            "    signal.pause()\n"
            "sys.stdin.readline()\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        seats = Seats(path)
        try:
            assert seats.is_taken(0), "the fork must not free its parent's seat either"
            parent.kill()
            parent.wait()
            os.kill(child_pid, 0)  # it is still there
            seats.take(0, "second", "writer")
        finally:
            parent.kill()
            os.kill(child_pid, 9)
            parent.communicate()
            seats.close()


class TestFile:
    def test_new_file_is_its_owner_alone(self, path: Path) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_missing_file_is_not_found(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="there is no"):
            Seats(tmp_path / "seats")
        with pytest.raises(NotFound, match="there is no"):
            see_seats(tmp_path / "seats", 1)

    def test_other_kind_of_file_is_refused(self, tmp_path: Path, path: Path) -> None:
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to(path)
        for name in ("directory", "fifo", "link"):
            with pytest.raises(LayoutError, match="file must be a file of seats, was "):
                Seats(tmp_path / name)
            with pytest.raises(LayoutError, match="file must be a file of seats, was "):
                see_seats(tmp_path / name, 1)

    def test_records_may_begin_further_on_in_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "mixed"
        path.write_bytes(b"\xee" * 4_096)
        seats = Seats(path, first_byte=4_096)
        seats.take(1, "first", "reader")
        data = path.read_bytes()
        seats.close()
        assert data[: 4_096 + SEAT_BYTES] == b"\xee" * 4_096 + bytes(SEAT_BYTES)
        assert b'"first"' in data[4_096 + SEAT_BYTES :]

    @given(record=st.binary(max_size=SEAT_BYTES))
    def test_damaged_record_names_nobody_or_somebody_but_never_fails(self, record: bytes) -> None:
        found = Identity.unpacked(record.ljust(SEAT_BYTES, b"\0"))
        assert found is None or str(found)

    @pytest.mark.parametrize(
        "record",
        [
            b"",
            b"\xff" * SEAT_BYTES,
            b"[" * SEAT_BYTES,
            b"[1]",
            b'{"name": "x"}',
            b'{"name": "x", "pid": Infinity, "since_ns": 1}',
            b'{"name": "x", "pid": NaN, "since_ns": 1}',
            b'{"name": "x", "pid": null, "since_ns": 1}',
            b'{"name": "\\u001b[2J", "pid": 1, "since_ns": 1}',
        ],
    )
    def test_record_that_says_nothing_sensible_names_nobody(self, record: bytes) -> None:
        assert Identity.unpacked(record.ljust(SEAT_BYTES, b"\0")) is None

    def test_holder_without_a_name_is_another_process(self, path: Path, seats: Seats) -> None:
        seats.take(0, "first", "writer")
        path.write_bytes(b"\xff" * SEAT_BYTES)
        other = Seats(path)
        with pytest.raises(InUse, match="another process is its writer"):
            other.take(0, "second", "writer")
        other.close()
