"""`twintape doctor`: what this machine has and lacks, and what to do about it.

Each check returns one finding. A finding is *required* when nothing of ours works without it; everything
else is a warning (it works, but worse) or missing (one part of the project does not work), and says what
to do next. The exit status is 1 only when something required is missing.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from twintape import machine

ROOT = Path(__file__).resolve().parent.parent

SHM = Path("/dev/shm")  # noqa: S108  not a scratch directory: the kernel's shared memory
SHM_FREE_BYTES_WANTED = 256 << 20  # the stream logs of a small node
OPEN_FILES_WANTED = 4_096  # a connection manager's clients, with room
RECEIVE_BUFFER_BYTES_WANTED = 8 << 20  # about 50 ms of a 1.5 Gbit/s burst
RECEIVE_BUFFER_LIMIT = Path("/proc/sys/net/core/rmem_max")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
FAST_CLOCKS = ("tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page")


CORE_PACKAGES = ("numba", "numpy")  # without these no process of ours starts


class Status(Enum):
    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


COLOURS = {Status.OK: 32, Status.WARNING: 33, Status.MISSING: 31}  # green, yellow, red


class Finding(NamedTuple):
    """One thing looked at: what was found, and the next step when it is not as it should be."""

    subject: str
    status: Status
    found: str
    next_step: str = ""
    is_required: bool = False


def _mib(byte_count: int) -> str:
    return f"{byte_count / (1 << 20):,.0f} MiB"


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def judge_python(version: tuple[int, int], implementation: str) -> Finding:
    is_fit = version >= machine.PYTHON_MIN and implementation == "CPython"
    wanted = ".".join(map(str, machine.PYTHON_MIN))
    return Finding(
        "Python",
        Status.OK if is_fit else Status.MISSING,
        f"{implementation} {platform.python_version()}",
        "" if is_fit else f"install CPython {wanted} or newer, then run make setup",
        is_required=True,
    )


def judge_java(java: machine.Java | None, java_home: str | None = None) -> Finding:
    wanted = f"Java {machine.JAVA_MAJOR_MIN} or newer"
    advice = f"install {wanted} for Spark (Debian: apt-get install {' or '.join(machine.JAVA_PACKAGES[:2])})"
    if java is None and java_home:
        return Finding(
            "Java",
            Status.MISSING,
            f"none where JAVA_HOME points, {java_home}",
            f"{advice}, or unset JAVA_HOME",
        )
    if java is None:
        return Finding("Java", Status.MISSING, "none", advice)
    found = f"{java.major} at {java.path}"
    if java.major < machine.JAVA_MAJOR_MIN:
        return Finding("Java", Status.MISSING, found, advice)
    return Finding("Java", Status.OK, found)


def judge_compiler(path: str | None) -> Finding:
    if path is None:
        return Finding(
            "C compiler", Status.MISSING, "none", "install gcc: benchmarks compile their limits with it"
        )
    return Finding(
        "C compiler", Status.OK, f"{path}: {machine.first_line([path, '--version']) or 'no version'}"
    )


def judge_shared_memory(total_bytes: int, free_bytes: int) -> Finding:
    found = f"{_mib(free_bytes)} free of {_mib(total_bytes)}"
    if free_bytes >= SHM_FREE_BYTES_WANTED:
        return Finding("shared memory", Status.OK, found)
    wanted = _mib(SHM_FREE_BYTES_WANTED)
    advice = f"have {wanted} free: remove old files in {SHM}, or enlarge it (mount -o remount,size=1G {SHM})"
    return Finding("shared memory", Status.WARNING, found, advice)


def judge_open_files(soft: int, hard: int) -> Finding:
    found = f"{_limit(soft)} (hard limit {_limit(hard)})"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WANTED:
        return Finding("open files", Status.OK, found)
    return Finding(
        "open files", Status.WARNING, found, f"ulimit -n {OPEN_FILES_WANTED} before starting a node"
    )


def judge_locked_memory(soft: int) -> Finding:
    found = "unlimited" if soft == resource.RLIM_INFINITY else _mib(soft)
    if soft == resource.RLIM_INFINITY or soft >= SHM_FREE_BYTES_WANTED:
        return Finding("locked memory", Status.OK, found)
    return Finding(
        "locked memory", Status.WARNING, found, "ulimit -l unlimited keeps stream logs from being swapped out"
    )


def judge_receive_buffer(limit_bytes: int) -> Finding:
    found = f"net.core.rmem_max is {_mib(limit_bytes)}"
    if limit_bytes >= RECEIVE_BUFFER_BYTES_WANTED:
        return Finding("receive buffer", Status.OK, found)
    advice = f"sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES_WANTED}: bursts overflow a smaller one"
    return Finding("receive buffer", Status.WARNING, found, advice)


def judge_cores(count: int) -> Finding:
    if count >= 2:
        return Finding("cores", Status.OK, str(count))
    return Finding(
        "cores", Status.WARNING, str(count), "two or more: an active and a backup on one core share its fate"
    )


def judge_clock(source: str) -> Finding:
    if source in FAST_CLOCKS:
        return Finding("clock source", Status.OK, source)
    return Finding(
        "clock source",
        Status.WARNING,
        source,
        f"reading it is slow; prefer {FAST_CLOCKS[0]} where the machine has it",
    )


def judge_tool(tool: machine.Tool, path: str | None, *, is_needed_now: bool) -> Finding:
    if path is not None:
        return Finding(tool.program, Status.OK, path)
    status = Status.MISSING if is_needed_now else Status.OK
    advice = f"{tool.purpose}; Debian: apt-get install {tool.package}" if is_needed_now else ""
    return Finding(
        tool.program, status, "none" if is_needed_now else f"none ({tool.purpose}; not needed yet)", advice
    )


def judge_packages(locked: dict[str, str], installed: dict[str, str]) -> Finding:
    wrong = {name: version for name, version in locked.items() if installed.get(name) != version}
    if not locked:
        return Finding(
            "packages", Status.WARNING, "no lock file beside the code", "compare with a checkout's lock"
        )
    if not wrong:
        return Finding("packages", Status.OK, f"all {len(locked)} as locked")
    shown = [f"{name} {installed.get(name, 'absent')} instead of {wrong[name]}" for name in sorted(wrong)]
    is_broken = any(name in wrong and name not in installed for name in CORE_PACKAGES)
    return Finding(
        "packages",
        Status.MISSING if is_broken else Status.WARNING,
        "; ".join(shown[:5]) + (f"; and {len(shown) - 5} more" if len(shown) > 5 else ""),
        "make setup installs the locked versions",
        is_required=is_broken,
    )


def judge_kernels(cold_modules: Sequence[str], module_count: int) -> Finding:
    if not cold_modules:
        return Finding("kernels", Status.OK, f"all {module_count} modules compiled")
    return Finding(
        "kernels",
        Status.WARNING,
        f"not compiled: {', '.join(cold_modules)}",
        "twintape kernels (otherwise the first process that needs them compiles, and starts late)",
    )


# --- asking the machine ----------------------------------------------------------------------------


def _shared_memory() -> Finding:
    if not SHM.is_dir():
        return Finding(
            "shared memory", Status.MISSING, f"no {SHM}", f"mount a tmpfs at {SHM}", is_required=True
        )
    usage = shutil.disk_usage(SHM)
    return judge_shared_memory(usage.total, usage.free)


def _receive_buffer() -> Finding:
    try:
        return judge_receive_buffer(int(RECEIVE_BUFFER_LIMIT.read_text(encoding="ascii")))
    except OSError as error:
        return Finding(
            "receive buffer", Status.WARNING, f"unknown ({error.strerror})", f"look at {RECEIVE_BUFFER_LIMIT}"
        )


def _clock() -> Finding:
    try:
        return judge_clock(CLOCK_SOURCE.read_text(encoding="ascii").strip())
    except OSError as error:
        return Finding(
            "clock source", Status.WARNING, f"unknown ({error.strerror})", f"look at {CLOCK_SOURCE}"
        )


def _packages() -> Finding:
    from importlib.metadata import distributions

    lock_files = [ROOT / name for name in machine.LOCK_FILES]
    locked: dict[str, str] = {}
    for path in lock_files:
        if path.is_file():
            locked |= machine.locked_versions(path.read_text(encoding="utf-8"))
    installed = {machine.canonical_name(found.name): found.version for found in distributions()}
    return judge_packages(locked, installed)


def _kernels() -> Finding:
    try:
        from feeds.compiled import is_cached
        from feeds.errors import ConfigError
        from twintape.kernels import warm_modules
    except ImportError as error:
        return Finding(
            "kernels",
            Status.MISSING,
            f"cannot import {error.name}",
            "make setup installs it",
            is_required=True,
        )
    try:
        names = warm_modules()
    except ConfigError as error:
        return Finding("kernels", Status.WARNING, str(error), "these compile when first used, and start late")
    return judge_kernels([name for name in names if not is_cached(name)], len(names))


def examine() -> list[Finding]:
    """Look at everything, in the order in which a person would mend it."""
    version = (sys.version_info.major, sys.version_info.minor)
    return [
        judge_python(version, platform.python_implementation()),
        _packages(),
        _kernels(),
        _shared_memory(),
        judge_cores(len(os.sched_getaffinity(0))),
        judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        judge_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        _receive_buffer(),
        _clock(),
        judge_java(machine.find_java(), os.environ.get("JAVA_HOME")),
        judge_compiler(machine.find_c_compiler()),
        *(
            judge_tool(tool, machine.find_program(tool.program), is_needed_now=True)
            for tool in machine.TEST_TOOLS
        ),
        *(
            judge_tool(tool, machine.find_program(tool.program), is_needed_now=False)
            for tool in machine.FUTURE_TOOLS
        ),
    ]


def is_fit(findings: Sequence[Finding]) -> bool:
    """Return whether everything required is there."""
    return not any(finding.is_required and finding.status is Status.MISSING for finding in findings)


# --- telling ---------------------------------------------------------------------------------------


def as_table(findings: Sequence[Finding], *, use_colour: bool) -> str:
    width = max(len(finding.subject) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        mark = f"{finding.status.value:<7}"
        if use_colour:
            mark = f"\x1b[{COLOURS[finding.status]}m{mark}\x1b[0m"
        lines.append(f"{mark}  {finding.subject:<{width}}  {finding.found}")
        if finding.next_step:
            lines.append(f"{'':7}  {'':{width}}  -> {finding.next_step}")
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    summary = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    verdict = "Twintape can run here" if is_fit(findings) else "Twintape cannot run here yet"
    return "\n".join([*lines, "", f"{verdict}: {summary}."])


def as_json(findings: Sequence[Finding]) -> str:
    rows = [{**finding._asdict(), "status": finding.status.value} for finding in findings]
    return json.dumps({"is_fit": is_fit(findings), "findings": rows}, indent=2)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, for programs")
    parser.epilog = "Exit status 1 means that something required is missing."


def run(args: argparse.Namespace) -> int:
    findings = examine()
    use_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(as_json(findings) if args.json else as_table(findings, use_colour=use_colour))
    return 0 if is_fit(findings) else 1
