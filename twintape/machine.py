"""What this machine has: programs, versions and limits, asked with the standard library alone.

The set-up uses it before anything is installed, `twintape doctor` afterwards, so that both look for the
same things in the same way.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

JAVA_MAJOR_MIN = 17  # what Spark 4 runs on
PYTHON_MIN = (3, 11)

BUILD_LOCK = "requirements-build.lock"
PACKAGE_LOCK = "requirements.lock"
LOCK_FILES = (BUILD_LOCK, PACKAGE_LOCK)

# Newest first: a release of Debian or Ubuntu has at least one of them.
JAVA_PACKAGES = ("openjdk-21-jre-headless", "openjdk-17-jre-headless", "openjdk-25-jre-headless")

# Where administrators' programs are; ordinary users often lack these on their PATH.
_ADMIN_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")

_PROBE_SECONDS = 20

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


class Java(NamedTuple):
    """One Java runtime: where it is and its major version (8, 17, 21 ...)."""

    path: str
    major: int


class Tool(NamedTuple):
    """A program, the Debian package it comes in, and what we use it for."""

    program: str
    package: str
    purpose: str


TEST_TOOLS = (
    Tool("tcpreplay", "tcpreplay", "sends real captures through a network namespace"),
    Tool("ip", "iproute2", "makes the network namespaces of the tests"),
)

# Nothing needs these yet, so the set-up leaves them alone and the doctor only mentions them.
FUTURE_TOOLS = (
    Tool("cmake", "cmake", "will build the network transport"),
    Tool("nft", "nftables", "will drop packets in fault drills"),
)


def find_program(name: str) -> str | None:
    """Return the path of a program, looking into the administrators' directories too."""
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), *_ADMIN_DIRECTORIES))
    return shutil.which(name, path=places)


def missing_tools(tools: Iterable[Tool]) -> list[Tool]:
    return [tool for tool in tools if find_program(tool.program) is None]


def find_c_compiler() -> str | None:
    """Return the C compiler: the one that CC names, else gcc, cc or clang."""
    named = os.environ.get("CC")
    for name in ([named] if named else []) + ["gcc", "cc", "clang"]:
        path = find_program(name)
        if path is not None:
            return path
    return None


def first_line(words: Iterable[str]) -> str | None:
    """Run a program and return the first line it prints (either stream), or None if it cannot run."""
    try:
        done = subprocess.run(
            [*words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else None


def java_major(version_line: str) -> int | None:
    """Return 17 for `openjdk version "17.0.9" ...`, 8 for `"1.8.0_292"`, None for anything else."""
    match = _JAVA_VERSION.search(version_line)
    return int(match[1]) if match else None


def find_java() -> Java | None:
    """Return the Java that Spark would start: JAVA_HOME's, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = find_program(str(Path(home) / "bin" / "java")) if home else find_program("java")
    line = first_line([path, "-version"]) if path is not None else None
    major = java_major(line) if line is not None else None
    return Java(path, major) if path is not None and major is not None else None


def has_fit_java() -> bool:
    java = find_java()
    return java is not None and java.major >= JAVA_MAJOR_MIN


def may_install_packages() -> bool:
    """Return whether Debian packages can be installed from here: root, and apt-get is there."""
    return os.geteuid() == 0 and find_program("apt-get") is not None


def canonical_name(name: str) -> str:
    """Return a distribution's name as package indexes compare it (`Iex_Parser` is `iex-parser`)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_versions(lock_text: str) -> dict[str, str]:
    """Return the versions that a lock file pins, by canonical name."""
    return {canonical_name(name): version for name, version in _LOCKED.findall(lock_text)}
