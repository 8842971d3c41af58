"""The layers hold, and the contracts that say so would notice if they did not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAYERS = ("twintape", "feeds", "middleware", "adapters", "stream_admin", "replay", "spark", "perf")

# "Who may know whom" of ARCHITECTURE.md: each of these imports must break a contract.
FORBIDDEN = [
    ("feeds", "middleware"),
    ("feeds", "twintape"),
    ("middleware", "adapters"),
    ("middleware", "stream_admin"),
    ("adapters", "replay"),
    ("adapters", "stream_admin"),
    ("stream_admin", "middleware"),
    ("replay", "adapters"),
    ("spark", "middleware"),
    ("spark", "perf"),
    ("perf", "twintape.cli"),
]
ALLOWED = [
    ("middleware", "feeds"),
    ("adapters", "middleware"),
    ("stream_admin", "feeds"),
    ("middleware", "stream_admin.protocol"),
    ("replay", "stream_admin.protocol"),
    ("spark", "replay"),
    ("perf", "spark"),
]


@pytest.fixture(scope="module")
def skeleton(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's contracts over empty packages, so that one import at a time can be tried."""
    root = tmp_path_factory.mktemp("layers")
    shutil.copy(project_root / "pyproject.toml", root)
    for layer in LAYERS:
        (root / layer).mkdir()
        (root / layer / "__init__.py").touch()
    (root / "stream_admin" / "protocol.py").touch()
    (root / "twintape" / "cli.py").touch()
    return root


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; sys.path.insert(0, '.'); "
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN)
def test_import_against_the_layers_is_noticed(importer: str, imported: str, skeleton: Path) -> None:
    probe = skeleton / importer / "probe.py"
    probe.write_text(f"import {imported}\n", encoding="utf-8")
    try:
        done = lint_imports(skeleton)
    finally:
        probe.unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout


def test_imports_with_the_layers_are_fine(skeleton: Path) -> None:
    probes = [skeleton / importer / f"uses_{imported.replace('.', '_')}.py" for importer, imported in ALLOWED]
    for probe, (_, imported) in zip(probes, ALLOWED, strict=True):
        probe.write_text(f"import {imported}\n", encoding="utf-8")
    try:
        done = lint_imports(skeleton)
    finally:
        for probe in probes:
            probe.unlink()
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_project_keeps_its_layers(project_root: Path) -> None:
    done = lint_imports(project_root)
    assert done.returncode == 0, done.stdout + done.stderr
