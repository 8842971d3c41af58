"""No benchmark rots: each runs at its tiny size and reports figures. How good they are is not judged here."""

import json
from pathlib import Path

import pytest

from perf.commands import bench_names
from twintape import cli

# A peer that cannot run is an error, never a missing row.
SYSTEMS = {
    "decode": {"twintape", "itchfeed", "meatpy", "itch-book", "limit"},
    "shm": {"twintape", "pyzmq", "iceoryx2", "pipe", "limit"},
    "shm-scale": {"twintape", "limit"},
}


@pytest.mark.serial
@pytest.mark.parametrize("name", bench_names())
def test_bench_reports_figures_and_bars_at_its_tiny_size(name: str, tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    assert cli.main(["bench", name, "--quick", "--json", str(figures), "--picture", str(picture)]) == 0
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert told["bench"] == name
    systems = {result["system"] for result in told["results"]}
    assert "twintape" in systems
    assert len(systems) > 1, "a benchmark compares us with a peer or with the limit"
    assert systems >= SYSTEMS.get(name, set())
    assert told["bars"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_there_are_benches() -> None:
    assert bench_names()
