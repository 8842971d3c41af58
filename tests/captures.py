"""Capture files put together by hand, from the file formats' descriptions and nothing of ours."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from feeds.pcap.writer import wrap_ethernet, wrap_ip

SOURCE = ("10.1.2.3", 5_000)
LINE_A_GROUP = ("233.215.21.4", 10_378)
LINE_B_GROUP = ("233.215.21.132", 10_378)


def ethernet(payload: bytes, vlan_ids: tuple[int, ...] = (), to: tuple[str, int] = LINE_A_GROUP) -> bytes:
    return wrap_ethernet(payload, SOURCE, to, vlan_ids)


def ip(payload: bytes, to: tuple[str, int] = LINE_A_GROUP) -> bytes:
    return wrap_ip(payload, SOURCE, to)


def cooked(payload: bytes) -> bytes:
    return struct.pack(">HHH8sH", 0, 1, 6, bytes(8), 0x0800) + ip(payload)


def cooked_2(payload: bytes) -> bytes:
    return struct.pack(">HHIHBB8s", 0x0800, 0, 3, 1, 0, 6, bytes(8)) + ip(payload)


def pcap_header(order: str = "<", is_ns: bool = True, link: int = 1, snaplen: int = 65_535) -> bytes:
    magic = 0xA1B23C4D if is_ns else 0xA1B2C3D4
    return struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)


def pcap_record(
    packet: bytes, time_ns: int, order: str = "<", is_ns: bool = True, wire_bytes: int | None = None
) -> bytes:
    fraction = time_ns % 1_000_000_000 // (1 if is_ns else 1_000)
    whole = len(packet) if wire_bytes is None else wire_bytes
    return struct.pack(order + "IIII", time_ns // 1_000_000_000, fraction, len(packet), whole) + packet


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str = "<", major: int = 1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, major, 0, -1), order)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def interface(link: int = 1, order: str = "<", snaplen: int = 0, options: Sequence[bytes] = ()) -> bytes:
    return block(1, struct.pack(order + "HHI", link, 0, snaplen) + b"".join(options), order)


def enhanced(
    packet: bytes, ticks: int, index: int = 0, order: str = "<", wire_bytes: int | None = None
) -> bytes:
    whole = len(packet) if wire_bytes is None else wire_bytes
    head = struct.pack(order + "IIIII", index, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), whole)
    return block(6, head + packet, order)


def obsolete(packet: bytes, ticks: int, index: int = 0, order: str = "<") -> bytes:
    head = struct.pack(
        order + "HHIIII", index, 0xFFFF, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet)
    )
    return block(2, head + packet, order)


def simple(packet: bytes, order: str = "<", wire_bytes: int | None = None) -> bytes:
    whole = len(packet) if wire_bytes is None else wire_bytes
    return block(3, struct.pack(order + "I", whole) + packet, order)
