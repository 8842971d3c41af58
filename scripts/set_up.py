"""Makes `.venv` ready for work, step by step, and does only the steps that are not done yet.

Every step has a key, a digest of what it depends on, and writes it into the state file when it has
finished; a step whose key is there is skipped. A step that was stopped half-way (Ctrl-C, kill, a full
disk) leaves its name under "begun"; pip may then have left half a package behind that looks whole, so the
next run makes the environment anew. Packages come from whatever index pip is configured for; which
versions, and that they are the right bytes, is in the lock files.

Runs with nothing but Python 3.11: `scripts/setup` finds one and starts this.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from twintape import machine  # noqa: E402  the path above makes it importable before it is installed

Process = subprocess.Popen[bytes]

VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STATE_FILE = VENV / "setup-state.json"
LOG_FILE = VENV / "setup.log"
BUILD_LOCK = ROOT / machine.BUILD_LOCK
PACKAGE_LOCK = ROOT / machine.PACKAGE_LOCK
KERNEL_PACKAGES = ("feeds", "middleware", "adapters", "replay", "spark", "perf")

STEP_SECONDS_MAX = 3_600  # a slow line needs many minutes for Spark's 450 MB; a hung one must end
LOG_TAIL_LINES = 25
PIP = (str(VENV_PYTHON), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input")
PIP_INSTALL = (*PIP, "install", "--progress-bar", "off", "--no-deps", "--no-build-isolation")
APT_ENVIRONMENT = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
APT_OPTIONS = ("-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=120")


class SetUpError(Exception):
    """A step cannot be done; the message says what to do."""


class Step(NamedTuple):
    """One thing the set-up does, and the digest of everything it depends on."""

    name: str
    key: str
    work: Callable[[], None]
    leaves_half_packages: bool = False


def digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.blake2b(digest_size=12)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    parts: list[bytes] = []
    for path in sorted(paths):
        parts += [str(path.relative_to(ROOT)).encode(), path.read_bytes()]
    return digest(parts)


# --- what is done already --------------------------------------------------------------------------


def read_state() -> dict[str, str]:
    """Return step -> key of what is done; empty when there is no state or it cannot be read."""
    try:
        state = json.loads(STATE_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(state: dict[str, str]) -> None:
    scratch = STATE_FILE.with_suffix(".new")
    scratch.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    scratch.replace(STATE_FILE)


def without(state: dict[str, str], name: str) -> dict[str, str]:
    return {other: key for other, key in state.items() if other != name}


def waiting_steps(steps: Sequence[Step], state: dict[str, str]) -> list[Step]:
    """Return the steps to do, in order: all of them when the environment itself is not to be trusted."""
    by_name = {step.name: step for step in steps}
    begun = by_name.get(state.get("begun", ""))
    environment = steps[0]
    if state.get(environment.name) != environment.key or (begun is not None and begun.leaves_half_packages):
        return list(steps)
    return [step for step in steps if state.get(step.name) != step.key]


# --- running programs and showing where we are ----------------------------------------------------


def last_log_line() -> str:
    """Return the newest line of the log, for the progress display."""
    with LOG_FILE.open("rb") as log:
        log.seek(max(0, LOG_FILE.stat().st_size - 2_000))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def start(
    words: Sequence[str], output: IO[bytes] | int, environment: dict[str, str] | None = None
) -> Process:
    """Start a program that shares our lock.

    Should we be killed, a pip that goes on by itself keeps the lock, so that the next run waits for its
    end instead of working against it. Hence `close_fds=False`: the lock is the only descriptor of ours
    that can be inherited.
    """
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=ROOT,
        close_fds=False,
    )


def run_logged(words: Sequence[str], environment: dict[str, str] | None = None) -> int:
    """Run a program with its output in the log; on a terminal, show its newest line. Return its status."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 7
    deadline = time.monotonic() + STEP_SECONDS_MAX
    with LOG_FILE.open("ab") as log:
        log.write(f"\n$ {' '.join(words)}\n".encode())
        log.flush()
        with start(words, log, environment) as process:
            try:
                while True:
                    try:
                        return process.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        if time.monotonic() > deadline:
                            raise SetUpError(f"{words[0]} took more than {STEP_SECONDS_MAX} s") from None
                        if is_terminal:
                            print(f"\r\x1b[2K      {last_log_line()[:width]}", end="", flush=True)
            finally:
                if process.poll() is None:
                    process.terminate()
                if is_terminal:
                    print("\r\x1b[2K", end="", flush=True)


def run_or_fail(words: Sequence[str]) -> None:
    status = run_logged(words)
    if status != 0:
        raise SetUpError(f"'{' '.join(words)}' ended with status {status}")


# --- the steps -------------------------------------------------------------------------------------


def has_venv_module() -> bool:
    words = [sys.executable, "-I", "-c", "import ensurepip, venv"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def make_environment() -> None:
    """Create .venv from nothing. Debian splits the means to do so from Python itself."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if not has_venv_module() and machine.may_install_packages():
        subprocess.run(["apt-get", *APT_OPTIONS, "update", "-q"], capture_output=True, check=False)
        subprocess.run(
            ["apt-get", *APT_OPTIONS, "install", "-qy", "--no-install-recommends", package],
            capture_output=True,
            check=False,
            env=APT_ENVIRONMENT,
        )
    if not has_venv_module():
        raise SetUpError(
            f"this Python cannot make environments: install {package} (apt-get install {package})"
        )
    words = [sys.executable, "-I", "-m", "venv", "--clear", str(VENV)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SetUpError(f"'{' '.join(words)}' failed:\n{done.stdout}")


def install_build_tools() -> None:
    run_or_fail([*PIP_INSTALL, "--require-hashes", "-r", str(BUILD_LOCK)])


def install_packages() -> None:
    run_or_fail([*PIP_INSTALL, "--require-hashes", "-r", str(PACKAGE_LOCK)])
    remove_strangers()
    run_or_fail([*PIP, "check"])


def remove_strangers() -> None:
    """Uninstall what an older lock brought and this one does not name, so that all machines are alike."""
    listing = subprocess.run([*PIP, "list", "--format", "json"], capture_output=True, text=True, check=True)
    installed = {machine.canonical_name(row["name"]) for row in json.loads(listing.stdout)}
    wanted = {
        "twintape",
        *machine.locked_versions(BUILD_LOCK.read_text(encoding="utf-8")),
        *machine.locked_versions(PACKAGE_LOCK.read_text(encoding="utf-8")),
    }
    strangers = sorted(installed - wanted)
    if strangers:
        run_or_fail([*PIP, "uninstall", "-y", *strangers])


def install_project() -> None:
    """Put the project itself, editable, and its `twintape` command into the environment."""
    run_or_fail([*PIP_INSTALL, "--editable", str(ROOT)])


def known_package(choices: Sequence[str]) -> str | None:
    return next((name for name in choices if run_logged(["apt-cache", "show", "-q", name]) == 0), None)


def apt_install(choices: Sequence[str]) -> bool:
    """Install the first of the packages that this release has; return whether that worked."""
    package = known_package(choices)
    words = ["apt-get", *APT_OPTIONS, "install", "-qy", "--no-install-recommends"]
    return package is not None and run_logged([*words, package], APT_ENVIRONMENT) == 0


def missing_system_packages() -> dict[str, tuple[str, ...]]:
    """Return what is lacking here, in words, and the Debian packages of which one mends it."""
    missing: dict[str, tuple[str, ...]] = {
        tool.program: (tool.package,) for tool in machine.missing_tools(machine.TEST_TOOLS)
    }
    if not machine.has_fit_java():
        missing[f"Java {machine.JAVA_MAJOR_MIN} or newer for Spark"] = machine.JAVA_PACKAGES
    return missing


def install_system_packages() -> None:
    """Add Java and the tests' tools where we may; say in one sentence what is left to do where we may not."""
    if machine.may_install_packages():
        failed = [choices for choices in missing_system_packages().values() if not apt_install(choices)]
        if failed:  # a fresh container has no package lists, an old one has stale ones
            run_logged(["apt-get", *APT_OPTIONS, "update", "-q"], APT_ENVIRONMENT)
            for choices in failed:
                apt_install(choices)
    left = missing_system_packages()
    if left:
        wishes = ", ".join(f"{what} (Debian: {' or '.join(choices)})" for what, choices in left.items())
        print(f"      Please install what this machine lacks: {wishes}; all else works without.")


def compile_kernels() -> None:
    """Compile the hot path, passing the command's own progress through."""
    words = [str(VENV / "bin" / "twintape"), "kernels"]
    with LOG_FILE.open("ab") as log:
        log.write(f"\n$ {' '.join(words)}\n".encode())
        with start(words, subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                print(f"      {line.decode(errors='replace').rstrip()}", flush=True)
    if process.returncode != 0:
        raise SetUpError(f"'{' '.join(words)}' ended with status {process.returncode}")


def kernel_sources() -> list[Path]:
    return [path for package in KERNEL_PACKAGES for path in (ROOT / package).rglob("*.py")]


def plan() -> list[Step]:
    build_key, package_key = digest_files([BUILD_LOCK]), digest_files([BUILD_LOCK, PACKAGE_LOCK])
    project_key = digest_files([ROOT / "pyproject.toml", ROOT / "twintape" / "__init__.py"])
    system_key = digest(repr(entry).encode() for entry in (machine.JAVA_PACKAGES, machine.TEST_TOOLS))
    kernel_key = digest([package_key.encode(), digest_files(kernel_sources()).encode()])
    return [
        # The environment's programs name their interpreter by its full path, so a moved tree needs a new one.
        Step("environment", str(ROOT), make_environment, leaves_half_packages=True),
        Step("build tools", build_key, install_build_tools, leaves_half_packages=True),
        Step("packages", package_key, install_packages, leaves_half_packages=True),
        Step("project", project_key, install_project, leaves_half_packages=True),
        Step("system packages", system_key, install_system_packages),
        Step("kernels", kernel_key, compile_kernels),
    ]


def run_steps(steps: Sequence[Step]) -> None:
    for number, step in enumerate(steps, start=1):
        print(f"[{number}/{len(steps)}] {step.name} ...", flush=True)
        started = time.monotonic()
        if VENV.is_dir():
            write_state({**without(read_state(), step.name), "begun": step.name})
        step.work()
        # Read again: making the environment anew threw away the state along with everything it spoke of.
        write_state({**without(read_state(), "begun"), step.name: step.key})
        print(f"      {time.monotonic() - started:.1f} s", flush=True)


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Hold the set-up's lock: two runs at once would tear at one environment.

    The locked file must outlive .venv, hence pyproject.toml.
    """
    with (ROOT / "pyproject.toml").open("rb") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another set-up of this tree is running; waiting for it ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def show_log_tail() -> None:
    """Show how the last program in the log ended."""
    if LOG_FILE.exists():
        last = LOG_FILE.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
        sys.stderr.write("\n".join(f"  | {line}" for line in last.splitlines()[-LOG_TAIL_LINES:]) + "\n")
        sys.stderr.write(f"The whole log is in {LOG_FILE.relative_to(ROOT)}\n")


def main(words: Sequence[str]) -> int:
    steps = plan()
    if list(words) == ["--is-ready"]:
        return 1 if waiting_steps(steps, read_state()) else 0
    if words:
        sys.stderr.write(f"set_up.py takes --is-ready or nothing, found {' '.join(words)!r}\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` stops us as Ctrl-C does
    try:
        with only_one_at_a_time():
            run_steps(waiting_steps(steps, read_state()))
    except KeyboardInterrupt:
        sys.stderr.write("\nset-up stopped; the next run repairs what is half done\n")
        return 130
    except (SetUpError, OSError, subprocess.SubprocessError) as error:
        show_log_tail()
        sys.stderr.write(f"set-up failed: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
