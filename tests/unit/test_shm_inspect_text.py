"""What the inspector found, found by name, and in words that fit any terminal."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeds.errors import ConfigError
from middleware.shm import mapping
from middleware.shm.bell import Bell
from middleware.shm.errors import NotFound
from middleware.shm.inspection import command
from middleware.shm.inspection.look import KINDS, find, inspect_all, kind_named
from middleware.shm.inspection.removal import REMOVABLE
from middleware.shm.inspection.table import (
    Column,
    Piece,
    age_text,
    bytes_text,
    moment_text,
    plain,
    shown,
    table,
)
from middleware.shm.inspection.text import listing
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.ring import make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.slab import Slab
from tests.unit.shm_scene import BELL, LOG, RING, SLOTS, SMALL, publish, rows


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "node")


@pytest.fixture
def writer(runtime: Runtime) -> Iterator[LogWriter]:
    with LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS) as writer:
        yield writer


class TestFinding:
    @pytest.fixture(autouse=True)
    def items(self, runtime: Runtime) -> None:
        LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a", slot_count=SLOTS).close()
        LogWriter.open(runtime, "both", who="adapter-a", slot_count=SLOTS).close()
        make_ring(runtime, "both", capacity_bytes=4_096)

    @pytest.mark.parametrize(
        ("word", "kind", "expected"),
        [
            ("XNAS.ITCH", None, (LOG, "XNAS.ITCH")),
            ("logs/both", None, (LOG, "both")),
            ("ring/both", None, (RING, "both")),
            ("both", "ring", (RING, "both")),
        ],
    )
    def test_a_name_is_found(
        self, runtime: Runtime, word: str, kind: str | None, expected: tuple[object, str]
    ) -> None:
        assert find(runtime, word, kind_named(kind) if kind else None) == expected

    @pytest.mark.parametrize(
        ("word", "kind", "error", "told"),
        [
            ("XNAS.ITHC", None, NotFound, "did you mean 'XNAS.ITCH'?"),
            ("zzz", None, NotFound, "there are XNAS.ITCH, both"),
            ("XNAS.ITCH", "slab", NotFound, "there is none at all"),
            ("bells/both", None, NotFound, "no bell 'both'"),
            ("both", None, ConfigError, "logs/both or rings/both"),
            ("rings/both", "log", ConfigError, "and not a log"),
            ("drums/both", None, ConfigError, "one of log, ring, slab, bell"),
            ("../../etc", None, ConfigError, "one of log, ring, slab, bell"),
            ("logs/..", None, ConfigError, "a name must be"),
            ("", None, ConfigError, "a name must be"),
        ],
    )
    def test_a_wrong_name_is_told_what_there_is(
        self, runtime: Runtime, word: str, kind: str | None, error: type[Exception], told: str
    ) -> None:
        with pytest.raises(error, match=told.replace("?", r"\?")):
            find(runtime, word, kind_named(kind) if kind else None)

    def test_the_command_knows_every_kind(self) -> None:
        assert tuple(kind.name for kind in KINDS) == command.KIND_NAMES
        assert tuple(kind.name for kind in REMOVABLE) == command.REMOVABLE_NAMES

    def test_a_bell_of_the_same_name_is_not_in_the_way_of_a_removal(self, runtime: Runtime) -> None:
        Bell.make(runtime, "XNAS.ITCH")
        with pytest.raises(ConfigError, match=r"logs/XNAS\.ITCH or bells/XNAS\.ITCH"):
            find(runtime, "XNAS.ITCH")
        assert find(runtime, "XNAS.ITCH", among=REMOVABLE) == (LOG, "XNAS.ITCH")
        assert find(runtime, "bells/XNAS.ITCH", among=REMOVABLE) == (BELL, "XNAS.ITCH")


class TestText:
    def test_columns_are_left_out_by_rank_until_the_rest_fits(self) -> None:
        columns = (Column("A"), Column("B", rank=2), Column("C", rank=1), Column("D"))
        cells = [[Piece("1" * 10), Piece("2" * 10), Piece("3" * 10), Piece("")]]
        assert plain(table(columns, cells, None)[0]).split() == ["A", "B", "C"]
        assert plain(table(columns, cells, 30)[0]).split() == ["A", "C"]
        assert plain(table(columns, cells, 21)[0]).split() == ["A"]
        assert plain(table(columns, cells, 3)[0]).split() == ["A"]

    @pytest.mark.parametrize("width", [20, 40, 80, 160])
    def test_a_listing_fits_any_terminal_down_to_what_must_be_said(
        self, runtime: Runtime, writer: LogWriter, width: int
    ) -> None:
        publish(writer, 100)
        with LogReader.open(runtime, "XNAS.ITCH", who="app"):
            lines = [plain(line) for line in listing(list(rows(runtime).values()), width, {})]
        assert all("XNAS.ITCH" in line and "live" in line and "100 (39.1%) app" in line for line in lines[1:])
        if width >= 80:
            assert max(map(len, lines)) <= width
        assert ("adapter-a" in lines[1]) == (width >= 80)
        assert ("KiB" in lines[1]) == (width >= 160)

    def test_a_rate_is_shown_where_it_is_known(self, runtime: Runtime, writer: LogWriter) -> None:
        lines = listing(list(rows(runtime).values()), None, {("log", "XNAS.ITCH"): 1_234_567.4})
        assert "1,234,567/s" in plain(lines[1])

    def test_a_report_is_what_json_can_say(self, runtime: Runtime, writer: LogWriter) -> None:
        make_ring(runtime, "in", capacity_bytes=4_096)
        Slab.open(runtime, "bodies", who="manager-1", config=SMALL).close()
        Bell.make(runtime, "router")
        for report in inspect_all(runtime):
            content = json.loads(json.dumps(command._plain(report)))
            assert content["name"] == report.name
            assert content["facts"]["file_bytes"] > mapping.HEADER_BYTES

    @pytest.mark.parametrize(
        ("byte_count", "told"),
        [(0, "0 B"), (1_023, "1023 B"), (1_024, "1 KiB"), (1_536, "1.5 KiB"), (5 << 30, "5 GiB")],
    )
    def test_sizes(self, byte_count: int, told: str) -> None:
        assert bytes_text(byte_count) == told

    @pytest.mark.parametrize(
        ("age_ns", "told"),
        [
            (900, "1 us"),
            (2_500_000, "2.5 ms"),
            (1_500_000_000, "1.5 s"),
            (90 * 10**9, "1.5 min"),
            (36 * 3600 * 10**9, "1.5 d"),
        ],
    )
    def test_ages(self, age_ns: int, told: str) -> None:
        assert age_text(age_ns) == told

    def test_moments_of_a_damaged_record_do_not_fail(self) -> None:
        assert moment_text(1_700_000_000_000_000_000) == "2023-11-14 22:13:20 UTC"
        assert moment_text(1 << 80) == f"{1 << 80} ns"

    @pytest.mark.parametrize(
        ("name", "told"), [("a.b-C_1", "a.b-C_1"), ("a\nb", r"a\nb"), ("\udc80", r"\udc80")]
    )
    def test_names_are_shown_without_what_a_terminal_obeys(self, name: str, told: str) -> None:
        assert shown(name) == told
