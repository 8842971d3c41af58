"""The cache of compiled kernels never gives old code: it follows imports and the bounds-check switch."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from feeds import compiled

PROGRAM = """
import numpy as np
from feeds import reader_kernels
from feeds.compiled import compiled_here
value = reader_kernels.read_kernel(np.arange(4, dtype=np.int64))
print(int(value), compiled_here(reader_kernels.read_kernel))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small copy of the package: a kernel that freezes a constant of another module."""
    folder = tmp_path / "feeds"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    shutil.copy(Path(compiled.__file__), folder / "compiled.py")
    (folder / "layout.py").write_text("OFFSET = 1\n")
    (folder / "reader_kernels.py").write_text(
        "from feeds.compiled import kernel\n"
        "from feeds.layout import (\n    OFFSET,\n)\n"
        "@kernel\ndef read_kernel(values):\n    return values[OFFSET]\n"
    )
    return tmp_path


def run(package: Path, program: str = PROGRAM, **extra: str) -> str:
    switches = {"NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK", "NUMBA_CACHE_DIR"}
    inherited = {name: value for name, value in os.environ.items() if name not in switches}
    environment = {
        **inherited,
        "PYTHONPATH": str(package),
        "TWINTAPE_KERNEL_CACHE": str(package / "cache"),
        **extra,
    }
    finished = subprocess.run(  # the program above, on this interpreter
        [sys.executable, "-P", "-c", program],
        env=environment,
        cwd=package,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return finished.stdout.strip() or finished.stderr.strip().splitlines()[-1]


def test_a_second_process_loads_what_the_first_one_compiled(package: Path) -> None:
    assert run(package) == "1 1"
    assert run(package) == "1 0"


def test_a_changed_constant_of_an_imported_module_compiles_anew(package: Path) -> None:
    assert run(package) == "1 1"
    (package / "feeds" / "layout.py").write_text("OFFSET = 2\n")
    assert run(package) == "2 1"


def test_a_warm_cache_does_not_hide_the_bounds_check(package: Path) -> None:
    (package / "feeds" / "layout.py").write_text("OFFSET = 4\n")
    assert not run(package).startswith("IndexError")
    assert run(package, NUMBA_BOUNDSCHECK="1").startswith("IndexError")


def test_the_cache_is_private_because_its_files_are_code(package: Path) -> None:
    cache = package / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    run(package)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(directory.stat().st_mode) == 0o700 for directory in cache.iterdir())


def test_a_cache_directory_behind_a_link_is_not_used(package: Path) -> None:
    elsewhere = package / "elsewhere"
    elsewhere.mkdir()
    (package / "cache").symlink_to(elsewhere)
    assert run(package) == "1 1"
    assert run(package) == "1 1"
    assert not list(elsewhere.rglob("*.nbc"))


def test_source_that_changed_under_a_running_process_is_not_kept(package: Path) -> None:
    """The process has imported the old constant; its code must not be found by the next process."""
    change = "import pathlib, feeds.layout, feeds.compiled\n"
    change += "pathlib.Path(feeds.layout.__file__).write_text('OFFSET = 3\\n')\n"
    assert run(package, program=change + PROGRAM) == "1 1"
    assert run(package) == "3 1"
