"""`twintape kernels`: finds every kernel module, compiles it once, and loads it from then on."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeds.errors import ConfigError
from twintape import kernels


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the test's own in the place of ours."""
    package = tmp_path / "probe_package"
    (package / "exchange").mkdir(parents=True)
    for directory in (package, package / "exchange"):
        (directory / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kernels, "PACKAGES", ("probe_package",))
    yield package
    for name in [name for name in sys.modules if name.startswith("probe_package")]:
        del sys.modules[name]


def test_kernel_modules_are_found_at_any_depth(package: Path) -> None:
    for path in ("ring_kernels.py", "plain.py", "exchange/decode_kernels.py"):
        (package / path).touch()
    assert kernels.kernel_modules() == [
        "probe_package.exchange.decode_kernels",
        "probe_package.ring_kernels",
    ]


def test_every_module_whose_kernels_would_be_compiled_late_is_named(package: Path) -> None:
    for name in ("cold", "colder"):
        (package / f"{name}_kernels.py").write_text("def add_kernel(): ...\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"probe_package\.cold_kernels, probe_package\.colder_kernels"):
        kernels.run(argparse.Namespace(list=False, jobs=1))


def test_module_of_building_blocks_is_compiled_with_its_callers(package: Path) -> None:
    (package / "block_kernels.py").write_text("def block(): ...\n", encoding="utf-8")
    (package / "user_kernels.py").write_text(
        "from probe_package.block_kernels import block\ndef use_kernel(): ...\ndef warm_up(): ...\n",
        encoding="utf-8",
    )
    assert kernels.warm_modules() == ["probe_package.user_kernels"]


def test_every_kernel_of_ours_can_be_warmed_up() -> None:
    assert "feeds.wire_kernels" in kernels.kernel_modules()
    assert kernels.warm_modules()


def test_kernels_are_compiled_once_and_then_loaded(tmp_path: Path) -> None:
    program = (
        "from twintape.kernels import warm_up_all\n"
        "if __name__ == '__main__':\n"
        "    for warmth in warm_up_all(['feeds.checksum_kernels', 'feeds.lines.receive_kernels'], jobs=2):\n"
        "        print(warmth.module, warmth.how())\n"
    )
    script = tmp_path / "program.py"  # a file: processes that are spawned read it again
    script.write_text(program, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(kernels.__file__).parent.parent),
        "TWINTAPE_KERNEL_CACHE": str(tmp_path / "cache"),
        "NUMBA_DISABLE_JIT": "0",
    }
    told = [
        subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    for words, how in zip(told, ("compiled", "loaded"), strict=True):
        assert sorted(words[0::3]) == ["feeds.checksum_kernels", "feeds.lines.receive_kernels"]
        assert set(words[1::3]) == {how}
        assert all(int(count) >= 1 for count in words[2::3])


@pytest.mark.parametrize("jobs", [0, -1, 1_000])
def test_number_of_jobs_is_limited(jobs: int) -> None:
    with pytest.raises(ConfigError, match=f"--jobs must be 1 to 64, was {jobs}"):
        kernels.run(argparse.Namespace(list=False, jobs=jobs))
