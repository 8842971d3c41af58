"""Two private network namespaces joined by a veth pair: real packets, and nobody else's network touched."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class VethPair:
    """Names and addresses of the two ends, each in a namespace of its own."""

    sender_space: str
    receiver_space: str
    sender_device: str
    receiver_device: str
    sender_address: str = "10.99.7.1"
    receiver_address: str = "10.99.7.2"


def missing_needs(*programs: str) -> str | None:
    """Return what this machine lacks for such a test, None if it lacks nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in ("ip", *programs) if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    probe = f"twintape-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    run("ip", "netns", "del", probe)
    return None


def run(*words: str) -> None:
    """Run a command that must succeed; its complaint becomes the error."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


@contextmanager
def veth_pair() -> Iterator[VethPair]:
    """Make the namespaces and the pair; both are gone afterwards, whatever happened."""
    number = os.getpid() % 100_000
    pair = VethPair(f"twintape-send-{number}", f"twintape-recv-{number}", f"tts{number}", f"ttr{number}")
    spaces = (pair.sender_space, pair.receiver_space)
    made = []
    try:
        for space in spaces:
            run("ip", "netns", "add", space)
            made.append(space)
        run(
            *("ip", "link", "add", pair.sender_device, "netns", pair.sender_space, "mtu", "1600"),
            *("type", "veth", "peer", "name", pair.receiver_device, "netns", pair.receiver_space),
        )
        ends = (
            (pair.sender_space, pair.sender_device, pair.sender_address),
            (pair.receiver_space, pair.receiver_device, pair.receiver_address),
        )
        for space, device, address in ends:
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", device)
            run("ip", "-n", space, "link", "set", device, "mtu", "1600", "up")
        with inside(pair.receiver_space):
            # The exchange's own address has no route here; its packets are wanted all the same.
            for name in ("all", pair.receiver_device):
                Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
        yield pair
    finally:
        for space in made:
            run("ip", "netns", "del", space)


@contextmanager
def inside(space: str) -> Iterator[None]:
    """Let this thread live in a namespace: sockets opened meanwhile stay there."""
    with Path("/proc/thread-self/ns/net").open("rb") as home, Path(f"/run/netns/{space}").open("rb") as away:
        _set_namespace(away.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
