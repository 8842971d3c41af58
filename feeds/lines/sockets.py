"""The sockets of a receive path: opened, sized, joined to their groups, waited for, asked what they lost."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from feeds.errors import ConfigError, SourceError

# Linux's numbers, which Python's socket module does not name.
SO_RCVBUFFORCE = 33
SO_MEMINFO = 55
_MEMINFO = struct.Struct("9I")
_MEMINFO_DROPS = 8
_GROUP_REQUEST = struct.Struct("4s4si")  # struct ip_mreqn: group, address of the interface, its index

BUFFER_BYTES_MIN = 4_096
BUFFER_BYTES_MAX = 1 << 30
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a line's datagrams arrive, or where a re-request server listens. IPv4.

    A multicast `host` is joined on `interface`, the name or the address of one of this machine's
    interfaces; without one the routing table chooses.
    """

    host: str
    port: int
    interface: str | None = None

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(self.host)
        except ValueError:
            raise ConfigError(f"host must be an IPv4 address, was {self.host!r}") from None
        if not 0 <= self.port <= 0xFFFF:
            raise ConfigError(f"port must be 0 to 65535, was {self.port}")
        if self.interface is not None and not self.is_multicast:
            raise ConfigError(f"interface is for multicast groups, and {self.host} is none")

    @property
    def is_multicast(self) -> bool:
        return ipaddress.IPv4Address(self.host).is_multicast

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def open_line_socket(endpoint: Endpoint, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket that receives what is sent to `endpoint`."""
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        line.setblocking(False)
        set_receive_buffer(line, buffer_bytes)
        if endpoint.is_multicast:
            # Active and backup may share a host, and each must have its own copy of a group. An address of
            # our own is not shared: the second to bind it would silently take the first one's datagrams.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A group is bound by its own address: bound to all addresses, a socket would also receive every
        # other group that anyone on this host has joined on the same port.
        line.bind((endpoint.host, endpoint.port))
        if endpoint.is_multicast:
            line.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _group_request(endpoint))
    except OSError as error:
        line.close()
        raise SourceError(f"cannot listen on {endpoint}: {error.strerror}") from error
    except BaseException:
        line.close()
        raise
    return line


def open_server_socket(endpoint: Endpoint, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket connected to a re-request server, so that nobody else can answer."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        server.setblocking(False)
        set_receive_buffer(server, buffer_bytes)
        server.connect((endpoint.host, endpoint.port))
    except OSError as error:
        server.close()
        raise SourceError(f"cannot reach re-request server {endpoint}: {error.strerror}") from error
    except BaseException:
        server.close()
        raise
    return server


def _group_request(endpoint: Endpoint) -> bytes:
    address, index = bytes(4), 0
    if endpoint.interface is not None:
        try:
            address = ipaddress.IPv4Address(endpoint.interface).packed
        except ValueError:
            try:
                index = socket.if_nametoindex(endpoint.interface)
            except OSError:
                known = ", ".join(name for _, name in socket.if_nameindex())
                raise ConfigError(
                    f"interface must be an address or one of {known}, was {endpoint.interface!r}"
                ) from None
    return _GROUP_REQUEST.pack(ipaddress.IPv4Address(endpoint.host).packed, address, index)


def set_receive_buffer(line: socket.socket, buffer_bytes: int) -> None:
    """Ask for a receive buffer, beyond the limit where we may; `receive_buffer` tells what we got."""
    if not BUFFER_BYTES_MIN <= buffer_bytes <= BUFFER_BYTES_MAX:
        raise ConfigError(
            f"a receive buffer must be {BUFFER_BYTES_MIN} to {BUFFER_BYTES_MAX} bytes, was {buffer_bytes}"
        )
    try:
        line.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer_bytes)
    except PermissionError:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


def receive_buffer(line: socket.socket) -> int:
    """Return the bytes of a socket's receive buffer, as they were asked for (Linux tells the double)."""
    return line.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def dropped_datagrams(line: socket.socket) -> int:
    """Return how many datagrams the system dropped because this socket's buffer was full."""
    answer = line.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
    return int(_MEMINFO.unpack(answer)[_MEMINFO_DROPS])


class SocketWaiter:
    """Waits until one of several sockets has a datagram."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._fds: set[int] = set()

    def add(self, source: socket.socket) -> None:
        self._poll.register(source, select.POLLIN)
        self._fds.add(source.fileno())

    def clear(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
        self._fds.clear()

    def wait(self, timeout_ns: int) -> bool:
        """Return whether there is something to read, after at most `timeout_ns` (0: ask and return)."""
        # Rounded up: a wait that ends just before a deadline would be followed by a spin until it.
        timeout_ms = -(-max(timeout_ns, 0) // NS_PER_MS)
        return bool(self._poll.poll(timeout_ms))


def steady_clock() -> Callable[[], int]:
    """Return a clock of ns since 1970 that never steps: the wall clock of now, moved on by the monotonic one.

    Timers run on it, and frames carry it; a correction of the wall clock must neither fire every timer at
    once nor stop them all.
    """
    offset_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns
    return lambda: monotonic_ns() + offset_ns
