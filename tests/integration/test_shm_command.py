"""`twintape shm` beside real processes: alive, stopped, killed, and at full speed."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from middleware.shm.bell import Bell
from middleware.shm.inspection.files import Condition
from middleware.shm.inspection.look import inspect_all
from middleware.shm.log import LogWriter
from middleware.shm.runtime import ENVIRONMENT_NAME, Runtime
from tests.integration.shm_ends import LOG, PUBLISHED, READ, RING, SLAB, SLOT_COUNT
from twintape import cli

SECONDS_MAX = 60.0
LOOKS = 200

End = subprocess.Popen[str]
Start = Callable[[str, str], End]
Tell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "node"
    monkeypatch.setenv(ENVIRONMENT_NAME, str(path))
    return path


@pytest.fixture
def start(node: Path) -> Iterator[Start]:
    with ExitStack() as ends:

        def start_one(role: str, who: str) -> End:
            words = [sys.executable, "-m", "tests.integration.shm_ends", str(node), role, who]
            end = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ends.callback(finish, end)
            assert end.stdout is not None
            assert end.stdout.readline() == "ready\n"
            return end

        yield start_one


def finish(end: End) -> None:
    """Kill an end, stopped or not, and wait until it is gone."""
    end.kill()
    end.wait()
    for stream in (end.stdin, end.stdout):
        if stream is not None:
            stream.close()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["shm", *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.002)


def test_who_writes_who_reads_and_how_far_behind(start: Start, tell: Tell) -> None:
    writer, app, recorder = start("write", "adapter-a"), start("read", "app"), start("read", "recorder")

    def look() -> dict[str, Any]:
        status, told, _ = tell("inspect", LOG, "--json")
        assert status == 0
        found: dict[str, Any] = json.loads(told)
        return found

    def readers() -> dict[str, Any]:
        return {reader["name"]: reader for reader in look()["readers"]}

    wait_until(
        lambda: readers()["recorder"]["gate"] == "waited for", "the writer never waited for the recorder"
    )
    found = look()
    assert found["condition"] == "live"
    assert (found["writer"]["name"], found["writer"]["pid"]) == ("adapter-a", writer.pid)
    assert (found["oldest_seq"], found["next_seq"]) == (1, PUBLISHED + 1)
    for name, end in (("app", app), ("recorder", recorder)):
        reader = readers()[name]
        assert (reader["position"], reader["lag"]) == (READ + 1, PUBLISHED - READ)
        assert reader["lag_share"] == (PUBLISHED - READ) / SLOT_COUNT
        assert (reader["holder"]["pid"], reader["holder"]["life"]) == (end.pid, "alive")
    assert readers()["app"]["gate"] == ""

    writer.send_signal(signal.SIGSTOP)
    wait_until(lambda: look()["writer"]["life"] == "stopped", "a stopped writer does not look like one")
    assert look()["condition"] == "live"
    assert f"adapter-a ({writer.pid}) stopped" in tell("ls")[1]
    writer.send_signal(signal.SIGCONT)
    wait_until(lambda: look()["writer"]["life"] == "alive", "a continued writer still looks stopped")

    finish(app)
    wait_until(lambda: "app" not in readers() or readers()["app"]["holder"]["life"] == "dead", "app lives on")
    finish(writer)
    found = look()
    assert found["condition"] == "no writer"
    assert (found["writer"]["name"], found["writer"]["life"]) == ("adapter-a", "dead")
    status, told, _ = tell("ls")
    assert status == 0
    assert f"adapter-a ({writer.pid}) dead" in told
    assert "recorder" in told


def test_json_of_the_listing_is_for_programs(start: Start, tell: Tell, node: Path) -> None:
    writer = start("write", "adapter-a")
    (node / "rings" / "half").mkdir()
    status, told, _ = tell("ls", "--json")
    found = json.loads(told)
    assert status == 0
    assert found["runtime"] == str(node)
    log, ring = found["items"]
    assert (log["kind"], log["name"], log["condition"]) == ("log", LOG, "live")
    assert log["writers"] == [
        {"name": "adapter-a", "pid": writer.pid, "since_ns": log["writers"][0]["since_ns"], "life": "alive"}
    ]
    assert (log["first_seq"], log["next_seq"]) == (1, PUBLISHED + 1)
    assert (ring["condition"], ring["file_bytes"]) == ("unfinished", None)


def test_newest_frames_are_shown_and_nobody_sees_who_looked(start: Start, tell: Tell, node: Path) -> None:
    start("write", "adapter-a")
    status, told, _ = tell("inspect", LOG, "--frames", "3")
    assert status == 0
    numbers = [line.split()[0] for line in told.splitlines() if "order_delete" in line]
    assert numbers == [str(PUBLISHED - 2), str(PUBLISHED - 1), str(PUBLISHED)]
    frames = json.loads(tell("inspect", LOG, "--frames", "2", "--json")[1])["frames"]
    assert [frame["message_seq"] for frame in frames] == [PUBLISHED - 1, PUBLISHED]
    assert list((node / "logs" / LOG / "readers").iterdir()) == []


@pytest.mark.parametrize(
    ("roles", "kind"),
    [
        ((("write_fast", "adapter-a"), ("read_fast", "app")), "log"),
        ((("produce_fast", "manager-1"), ("consume_fast", "router")), "ring"),
        ((("churn", "manager-1"), ("churn", "manager-2")), "slab"),
    ],
)
def test_nothing_looks_damaged_that_moves_at_full_speed(
    start: Start, node: Path, roles: tuple[tuple[str, str], ...], kind: str
) -> None:
    for role, who in roles:
        start(role, who)
    runtime = Runtime(node)
    progress = []
    for _ in range(LOOKS):
        (report,) = inspect_all(runtime)
        assert (report.kind, report.condition, report.reason) == (kind, Condition.LIVE, "")
        progress.append(_progress(report))
    assert progress[0] < progress[-1], "nothing moved, so this says nothing"


def _progress(report: Any) -> int:
    from middleware.shm.inspection.report import row_of

    return row_of(report).progress or 0


def test_what_is_used_stays_and_what_nobody_uses_goes(start: Start, tell: Tell, node: Path) -> None:
    ends = [start("write", "adapter-a"), start("produce_fast", "manager-1"), start("churn", "manager-2")]
    for name, who in ((LOG, "adapter-a"), (RING, "manager-1"), (SLAB, "manager-2")):
        for extra in ((), ("--dry-run",)):
            status, told, complaint = tell("rm", name, *extra)
            assert (status, told) == (1, "")
            assert f"'{who}' (process" in complaint
    for end in ends:
        finish(end)
    status, told, _ = tell("rm", "--dry-run", LOG, RING, SLAB)
    assert status == 0
    assert told.count("would remove") == 3
    assert (node / "logs" / LOG / "log").exists()
    assert tell("rm", LOG, RING, SLAB)[0] == 0
    assert [list((node / kind).iterdir()) for kind in ("logs", "rings", "slabs")] == [[], [], []]
    LogWriter.open(Runtime(node), LOG, who="adapter-a", slot_count=SLOT_COUNT).close()


def test_bells_are_listed_and_stay(tell: Tell, node: Path) -> None:
    bell = Bell.make(Runtime(node), "router")
    bell.ring()
    status, told, _ = tell("ls")
    assert status == 0
    assert "rung 1 time " in told
    status, told, _ = tell("inspect", "router", "--json")
    assert status == 0
    assert json.loads(told)["ring_count"] == 1
    status, told, complaint = tell("rm", "bells/router")
    assert (status, told) == (1, "")
    assert "nobody can know who uses it" in complaint
    assert bell.count == Bell.open(Runtime(node), "router").count == 1


def test_a_wrong_name_stops_a_removal_before_it_begins(tell: Tell, node: Path) -> None:
    LogWriter.open(Runtime(node), LOG, who="adapter-a", slot_count=SLOT_COUNT).close()
    status, told, complaint = tell("rm", LOG, "XNAS.ITHC")
    assert (status, told) == (1, "")
    assert f"did you mean '{LOG}'?" in complaint
    assert (node / "logs" / LOG / "log").exists()


def test_what_is_named_twice_is_removed_once(tell: Tell, node: Path) -> None:
    LogWriter.open(Runtime(node), LOG, who="adapter-a", slot_count=SLOT_COUNT).close()
    status, told, complaint = tell("rm", LOG, f"logs/{LOG}", LOG)
    assert (status, complaint) == (0, "")
    assert told.count("removed log") == 1
    assert list((node / "logs").iterdir()) == []


class TestExitStatus:
    def test_a_damaged_item_is_told_and_is_a_failure_to_who_asks_for_it(self, tell: Tell, node: Path) -> None:
        LogWriter.open(Runtime(node), LOG, who="adapter-a", slot_count=SLOT_COUNT).close()
        os.truncate(node / "logs" / LOG / "log", 5_000)
        status, told, _ = tell("ls")
        assert status == 0
        assert "damaged: " in told
        assert "file size must be" in told
        status, told, _ = tell("inspect", LOG)
        assert status == 1
        assert "file size must be" in told
        status, told, _ = tell("inspect", LOG, "--json", "--frames", "3")
        assert status == 1
        assert json.loads(told)["condition"] == "damaged"

    def test_nothing_started_is_no_failure_but_a_wrong_directory_is(self, tell: Tell, node: Path) -> None:
        status, told, _ = tell("ls")
        assert status == 0
        assert f"there is no {node}: nothing has been started on this node" in told
        assert json.loads(tell("ls", "--json")[1])["items"] == []
        status, _, complaint = tell("ls", "--runtime", str(node / "typo"))
        assert status == 1
        assert "--runtime must name that of a node" in complaint

    @pytest.mark.parametrize("words", [("ls",), ("inspect", "x"), ("rm", "x")])
    def test_a_directory_that_is_not_a_nodes_is_refused(
        self, words: tuple[str, ...], tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "src").mkdir()
        monkeypatch.chdir(tmp_path)
        for path in (".", "src", str(tmp_path)):
            status, told, complaint = tell(*words, "--runtime", path)
            assert (status, told) == (1, "")
            assert "is not the runtime directory of a node: it has none of logs, rings" in complaint
            assert str(tmp_path) in complaint
        with pytest.raises(SystemExit) as stopped:
            tell(*words, "--runtime", "")
        assert stopped.value.code == 2

    def test_runtime_may_be_named_from_where_one_is(
        self, tell: Tell, node: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        LogWriter.open(Runtime(node), LOG, who="adapter-a", slot_count=SLOT_COUNT).close()
        monkeypatch.chdir(node.parent)
        assert LOG in tell("ls", "--runtime", node.name)[1]
        monkeypatch.chdir(node)
        assert LOG in tell("ls", "--runtime", ".")[1]

    def test_runtime_option_goes_before_the_environment(self, tell: Tell, node: Path, tmp_path: Path) -> None:
        LogWriter.open(Runtime(tmp_path / "other"), "other", who="a", slot_count=SLOT_COUNT).close()
        assert "other" in tell("ls", "--runtime", str(tmp_path / "other"))[1]

    @pytest.mark.parametrize(
        "words", ["", "look", "inspect", "rm", "inspect x --kind drum", "rm x --kind bell"]
    )
    def test_asked_wrongly(self, words: str, tell: Tell) -> None:
        with pytest.raises(SystemExit) as stopped:
            tell(*words.split())
        assert stopped.value.code == 2

    def test_frames_are_for_logs(self, tell: Tell, node: Path) -> None:
        Runtime(node).make_place("rings", "half")
        status, _, complaint = tell("inspect", "half", "--frames", "3")
        assert status == 1
        assert "--frames is for logs: half is a ring" in complaint


@pytest.mark.parametrize("verb", ["ls", "inspect", "rm"])
def test_help_teaches_with_lines_that_work(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["shm", verb, "--help"])
    assert stopped.value.code == 0
    shm = cli.verbs_by_name()["shm"]
    parser = cli.build_parser(shm, cli.load(shm))
    lines = [
        line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  twintape shm")
    ]
    assert lines
    for line in lines:
        command, _, _ = line.partition("|")
        args = parser.parse_args(command.split()[2:])
        assert args.shm_verb == verb


class TestWatching:
    def test_a_pipe_gets_an_object_per_line_until_the_interrupt(self, start: Start, node: Path) -> None:
        start("write", "adapter-a")
        words = [sys.executable, "-m", "twintape", "shm", "ls", "--json", "--watch"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
            try:
                assert watch.stdout is not None
                looks = [json.loads(watch.stdout.readline()) for _ in range(2)]
                watch.send_signal(signal.SIGINT)
                assert watch.wait(SECONDS_MAX) == 0
            finally:
                watch.kill()
        assert looks[0]["time_ns"] < looks[1]["time_ns"]
        assert [look["items"][0]["name"] for look in looks] == [LOG, LOG]

    def test_a_terminal_is_redrawn_until_ctrl_c(self, start: Start, node: Path) -> None:
        start("write_fast", "adapter-a")
        screen, terminal = pty.openpty()
        words = [sys.executable, "-m", "twintape", "shm", "ls", "--watch"]
        with subprocess.Popen(
            words,
            stdin=terminal,
            stdout=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
        ) as watch:
            try:
                os.close(terminal)
                seen = read_until(screen, b"/s")  # a rate is known from the second look on
                watch.send_signal(signal.SIGINT)
                assert watch.wait(SECONDS_MAX) == 0
            finally:
                watch.kill()
                os.close(screen)
        assert LOG.encode() in seen
        assert seen.count(b"KIND") >= 2


def read_until(fd: int, wanted: bytes) -> bytes:
    seen = b""
    deadline_s = time.monotonic() + SECONDS_MAX
    while wanted not in seen:
        assert time.monotonic() < deadline_s, seen
        if select.select([fd], [], [], 1.0)[0]:
            seen += os.read(fd, 65_536)
    return seen
