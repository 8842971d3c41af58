"""Writes UDP datagrams into a pcap file with nanosecond times: for recording, and to make test captures.

    with PcapWriter(path) as capture:
        capture.write(payload, time_ns, source=("10.0.0.1", 10378), destination=("233.215.21.4", 10378))

Datagrams are wrapped in UDP, IPv4 (or IPv6) and Ethernet headers with right lengths and checksums, so that
any tool reads the file and tcpreplay can send it. Multicast goes to the Ethernet address of its group.
"""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from feeds.errors import ConfigError

UDP_PAYLOAD_BYTES_MAX = 65_507  # over IPv4
VLAN_ID_MAX = 4_094
_FILE_HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)
_RECORD = struct.Struct("<IIII")
_NS_PER_S = 1_000_000_000
_STATION = bytes.fromhex("020000000001")  # locally administered: nobody's real card
_PEER = bytes.fromhex("020000000002")
_PROTOCOL_UDP = 17
_HOPS = 64

Endpoint = tuple[str, int]


class PcapWriter:
    """An open capture file. What was written is in the file when it is closed; use it in a `with`."""

    def __init__(self, path: str | Path) -> None:
        self._stream: BinaryIO = Path(path).open("wb")  # noqa: SIM115 - closed by close()
        self._stream.write(_FILE_HEADER)

    def write(
        self,
        payload: bytes,
        time_ns: int,
        *,
        source: Endpoint,
        destination: Endpoint,
        vlan_ids: tuple[int, ...] = (),
    ) -> None:
        """Append one datagram."""
        self.write_packet(wrap_ethernet(payload, source, destination, vlan_ids), time_ns)

    def write_packet(self, packet: bytes, time_ns: int, wire_bytes: int | None = None) -> None:
        """Append an Ethernet frame; `wire_bytes` says how long it was if this is only its beginning."""
        seconds, fraction_ns = divmod(time_ns, _NS_PER_S)
        if not 0 <= seconds < 1 << 32:
            raise ConfigError(f"time_ns must be between 1970 and 2106, was {time_ns}")
        whole_bytes = len(packet) if wire_bytes is None else wire_bytes
        self._stream.write(_RECORD.pack(seconds, fraction_ns, len(packet), whole_bytes) + packet)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wrap_ethernet(
    payload: bytes, source: Endpoint, destination: Endpoint, vlan_ids: tuple[int, ...] = ()
) -> bytes:
    """Return the Ethernet frame (without its check sequence) that carries `payload` in UDP."""
    network = wrap_ip(payload, source, destination)
    target = ipaddress.ip_address(destination[0])
    station = _group_address(target) if target.is_multicast else _PEER
    tags = b""
    for index, vlan_id in enumerate(vlan_ids):
        if not 1 <= vlan_id <= VLAN_ID_MAX:
            raise ConfigError(f"vlan id must be 1 to {VLAN_ID_MAX}, was {vlan_id}")
        is_outer = index < len(vlan_ids) - 1
        tags += struct.pack(">HH", 0x88A8 if is_outer else 0x8100, vlan_id)
    return station + _STATION + tags + struct.pack(">H", 0x0800 if target.version == 4 else 0x86DD) + network


def wrap_ip(payload: bytes, source: Endpoint, destination: Endpoint) -> bytes:
    """Return the IP packet that carries `payload` in UDP from `source` to `destination`."""
    if len(payload) > UDP_PAYLOAD_BYTES_MAX:
        raise ConfigError(f"payload must be at most {UDP_PAYLOAD_BYTES_MAX} bytes, was {len(payload)}")
    origin = ipaddress.ip_address(source[0])
    target = ipaddress.ip_address(destination[0])
    if origin.version != target.version:
        raise ConfigError(f"source and destination must be of one IP version, were {origin} and {target}")
    udp_bytes = 8 + len(payload)
    udp = struct.pack(">HHHH", source[1], destination[1], udp_bytes, 0) + payload
    if target.version == 4:
        pseudo = origin.packed + target.packed + struct.pack(">HH", _PROTOCOL_UDP, udp_bytes)
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + udp_bytes, 0, 0x4000, _HOPS, _PROTOCOL_UDP, 0)
        header += origin.packed + target.packed
        header = header[:10] + struct.pack(">H", _checksum(header)) + header[12:]
    else:
        pseudo = origin.packed + target.packed + struct.pack(">II", udp_bytes, _PROTOCOL_UDP)
        header = (
            struct.pack(">IHBB", 6 << 28, udp_bytes, _PROTOCOL_UDP, _HOPS) + origin.packed + target.packed
        )
    checksum = _checksum(pseudo + udp) or 0xFFFF  # 0 would say that there is none
    return header + udp[:6] + struct.pack(">H", checksum) + udp[8:]


def _group_address(group: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    if group.version == 4:
        return bytes((0x01, 0x00, 0x5E, group.packed[1] & 0x7F)) + group.packed[2:]
    return b"\x33\x33" + group.packed[12:]


def _checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
