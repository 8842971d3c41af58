"""What README and docs tell people to type works: every command and every program on every page is run.

A page is run from top to bottom in an empty directory, so that a command may use what a program above it
wrote. `make` targets are resolved and not run (they would run this test again), and so are benchmarks, which
tests/integration/test_benches.py runs. Text that is not meant to be typed stands in fences of another kind.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perf.commands import bench_names
from twintape import cli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]
SECONDS_MAX = 240

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks_of(page: str, *languages: str) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(language, block) for language, block in _FENCE.findall(text) if language in languages]


def run(words: list[str], directory: Path) -> None:
    programs = Path(sys.executable).parent  # of the environment: `twintape` is here
    done = subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    assert done.stdout.strip(), f"{shlex.join(words)} printed nothing"


def run_command(line: str, directory: Path) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        run(["make", "-n", "-C", str(ROOT), *words], directory)
    elif program == "twintape" and words[0] == "bench" and "--list" not in words:
        bench = cli.verbs_by_name()["bench"]
        args = cli.build_parser(bench, cli.load(bench)).parse_args(words[1:])
        assert args.name in bench_names()
    elif program == "twintape":
        run([sys.executable, "-m", "twintape", *words], directory)
    else:
        pytest.fail(f"a page asks for `{line}`, which this test does not know how to check")


@pytest.mark.parametrize("page", PAGES)
def test_everything_a_page_tells_to_type_works(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page, "sh", "python")
    assert blocks, f"{page} shows nothing to type"
    for number, (language, block) in enumerate(blocks):
        if language == "python":
            program = tmp_path / f"program_{number}.py"
            program.write_text(block, encoding="utf-8")
            run([sys.executable, str(program)], tmp_path)
        else:
            for line in filter(None, map(str.strip, block.splitlines())):
                run_command(line, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_first_program_is_at_most_ten_lines() -> None:
    (program,) = [block for _, block in blocks_of("README.md", "python")]
    assert len([line for line in program.splitlines() if line.strip()]) <= 10


def test_the_two_commands_of_the_readme_are_the_ones_promised() -> None:
    assert blocks_of("README.md", "sh")[0][1].splitlines() == ["make demo", "make test"]


def test_ci_runs_what_everybody_runs() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text(encoding="utf-8")
