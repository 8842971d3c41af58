"""The compiled scanner of captured files: from the bytes of pcap and pcapng to UDP datagrams, without a copy.

A chunk of the file lies in a buffer; `scan_kernel` walks its records and writes, for every UDP datagram that
is wanted, where its payload is in that buffer. Everything else is counted by kind, so that the counts add up:
each record is a datagram or one of the COUNT_* reasons why not. pcap.py owns buffer, file and errors.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import DATAGRAM_FIELDS, IntArray
from feeds.memory_kernels import Buffer, load_be16, load_be32, load_le16, load_le32
from feeds.pcap.packet_kernels import (
    COUNT_DATAGRAMS,
    COUNT_FIELDS,
    COUNT_OTHER_BLOCKS,
    COUNT_RECORDS,
    COUNT_TRUNCATED,
    FILTER_FIELDS,
    FOUND_FIELDS,
    take_packet,
)

# The scanner's state.
SCAN_POSITION = 0  # in the buffer: where the next record begins
SCAN_IS_NG = 1
SCAN_IS_BIG_ENDIAN = 2
SCAN_INTERFACE_COUNT = 3
SCAN_BLOCK_LIMIT = 4  # the longest record or block that is believed
SCAN_FAULT = 5  # of STATUS_BAD: one of FAULT_*
SCAN_FAULT_VALUE = 6
SCAN_IS_CHECKING = 7  # UDP checksums
SCAN_FIELDS = 8

# Why scan_kernel returned.
STATUS_NEED_MORE = 0  # the next record is not whole in the buffer
STATUS_FULL = 1  # no row is left in `datagrams`
STATUS_BLOCK = 2  # a section header or an interface description: for the caller to read and step over
STATUS_BAD = 3  # what follows is not a record

FAULT_LENGTH = 1
FAULT_FRACTION = 2
FAULT_TRAILER = 3
FAULT_INTERFACE = 4
FAULT_CAPTURED = 5
FAULT_TIME = 6

# One interface: of a pcap file the only one, of a pcapng section those described so far.
INTERFACE_LINK = 0
INTERFACE_SNAPLEN = 1  # 0: no limit
INTERFACE_IS_BINARY = 2  # ticks are 2**-exponent s, else 10**-exponent s
INTERFACE_EXPONENT = 3
INTERFACE_OFFSET_NS = 4
INTERFACE_FIELDS = 5

PCAP_RECORD_BYTES = 16
NG_BLOCK_BYTES_MIN = 12
NG_SECTION = 0x0A0D0D0A
NG_INTERFACE = 1
NG_PACKET_OBSOLETE = 2
NG_PACKET_SIMPLE = 3
NG_PACKET_ENHANCED = 6
_NG_PACKET_AT = 28  # of the bytes in an enhanced or obsolete packet block
_NG_SIMPLE_AT = 12

_NS_PER_S = 1_000_000_000
_BINARY_EXPONENT_EXACT = 33  # 2**33 * 1e9 still fits int64
TIME_S_MAX = 0xFFFFFFFF  # the year 2106, where pcap ends; a later packet is damage
TIME_NS_MAX = (TIME_S_MAX + 1) * _NS_PER_S - 1
NO_TIME = -1


@kernel
def load16(buffer: Buffer, at: int, is_big_endian: int) -> int:
    return load_be16(buffer, at) if is_big_endian != 0 else load_le16(buffer, at)


@kernel
def load32(buffer: Buffer, at: int, is_big_endian: int) -> int:
    return load_be32(buffer, at) if is_big_endian != 0 else load_le32(buffer, at)


@kernel
def time_of_pcap(seconds: int, fraction: int, interface: IntArray) -> int:
    """Return ns since 1970 for a pcap time stamp, NO_TIME if its fraction is a second or more."""
    unit_ns = 1 if interface[INTERFACE_EXPONENT] == 9 else 1_000
    if fraction * unit_ns >= _NS_PER_S:
        return NO_TIME
    return seconds * _NS_PER_S + fraction * unit_ns


@kernel
def time_of_ticks(interface: IntArray, high: int, low: int) -> int:
    """Return ns since 1970 for a pcapng time stamp, NO_TIME if no clock shows that."""
    if high >= 1 << 31:
        return NO_TIME
    ticks = (high << 32) | low
    exponent = interface[INTERFACE_EXPONENT]
    if interface[INTERFACE_IS_BINARY] != 0:
        seconds = ticks >> exponent
        rest = ticks & ((1 << exponent) - 1)
        if exponent > _BINARY_EXPONENT_EXACT:
            rest >>= exponent - _BINARY_EXPONENT_EXACT
            exponent = _BINARY_EXPONENT_EXACT
        fraction_ns = (rest * _NS_PER_S) >> exponent
    else:
        per_second = 1
        for _ in range(exponent):
            per_second *= 10
        seconds = ticks // per_second
        rest = ticks - seconds * per_second
        is_finer = exponent > 9
        fraction_ns = rest // (per_second // _NS_PER_S) if is_finer else rest * (_NS_PER_S // per_second)
    if seconds > TIME_S_MAX:
        return NO_TIME
    time_ns = seconds * _NS_PER_S + fraction_ns + interface[INTERFACE_OFFSET_NS]
    return int(time_ns) if 0 <= time_ns <= TIME_NS_MAX else NO_TIME


@kernel
def refuse(scan: IntArray, fault: int, value: int) -> int:
    scan[SCAN_FAULT] = fault
    scan[SCAN_FAULT_VALUE] = value
    return STATUS_BAD


@kernel
def scan_kernel(
    buffer: Buffer,
    filled: int,
    scan: IntArray,
    interfaces: IntArray,
    filters: IntArray,
    counts: IntArray,
    found: IntArray,
    datagrams: IntArray,
    result: IntArray,  # out: [rows written]
) -> int:
    """Walk records from SCAN_POSITION on and return why it stopped, one of STATUS_*."""
    row = 0
    result[0] = 0
    is_ng = scan[SCAN_IS_NG]
    is_big_endian = scan[SCAN_IS_BIG_ENDIAN]
    is_checking = scan[SCAN_IS_CHECKING]
    position = scan[SCAN_POSITION]
    head_bytes = NG_BLOCK_BYTES_MIN if is_ng != 0 else PCAP_RECORD_BYTES
    while True:
        scan[SCAN_POSITION] = position
        result[0] = row
        if row == datagrams.shape[0]:
            return STATUS_FULL
        if filled - position < head_bytes:
            return STATUS_NEED_MORE
        interface = 0
        if is_ng == 0:
            fraction = load32(buffer, position + 4, is_big_endian)
            captured_bytes = load32(buffer, position + 8, is_big_endian)
            begin = position + PCAP_RECORD_BYTES
            if captured_bytes > scan[SCAN_BLOCK_LIMIT] - PCAP_RECORD_BYTES:
                return refuse(scan, FAULT_LENGTH, captured_bytes)
            time_ns = time_of_pcap(load32(buffer, position, is_big_endian), fraction, interfaces[0])
            if time_ns == NO_TIME:
                return refuse(scan, FAULT_FRACTION, fraction)
            next_position = begin + captured_bytes
            if next_position > filled:
                return STATUS_NEED_MORE
        else:
            block_type = load32(buffer, position, is_big_endian)
            if block_type in (NG_SECTION, NG_INTERFACE):
                return STATUS_BLOCK
            block_bytes = load32(buffer, position + 4, is_big_endian)
            is_whole = NG_BLOCK_BYTES_MIN <= block_bytes <= scan[SCAN_BLOCK_LIMIT] and block_bytes & 3 == 0
            if not is_whole:
                return refuse(scan, FAULT_LENGTH, block_bytes)
            next_position = position + block_bytes
            if next_position > filled:
                return STATUS_NEED_MORE
            trailer = load32(buffer, next_position - 4, is_big_endian)
            if trailer != block_bytes:
                return refuse(scan, FAULT_TRAILER, trailer)
            is_simple = block_type == NG_PACKET_SIMPLE
            is_packet = is_simple or block_type in (NG_PACKET_ENHANCED, NG_PACKET_OBSOLETE)
            if not is_packet:
                counts[COUNT_OTHER_BLOCKS] += 1
                position = next_position
                continue
            begin = position + (_NG_SIMPLE_AT if is_simple else _NG_PACKET_AT)
            if begin + 4 > next_position:
                return refuse(scan, FAULT_LENGTH, block_bytes)
            if block_type == NG_PACKET_ENHANCED:
                interface = load32(buffer, position + 8, is_big_endian)
            elif block_type == NG_PACKET_OBSOLETE:
                interface = load16(buffer, position + 8, is_big_endian)
            if interface >= scan[SCAN_INTERFACE_COUNT]:
                return refuse(scan, FAULT_INTERFACE, interface)
            room = next_position - 4 - begin
            if is_simple:  # it carries neither a time nor its captured length
                captured_bytes = min(load32(buffer, position + 8, is_big_endian), room)
                if interfaces[0, INTERFACE_SNAPLEN] != 0:
                    captured_bytes = min(captured_bytes, interfaces[0, INTERFACE_SNAPLEN])
                time_ns = 0
            else:
                captured_bytes = load32(buffer, position + 20, is_big_endian)
                if captured_bytes > room:
                    return refuse(scan, FAULT_CAPTURED, captured_bytes)
                high = load32(buffer, position + 12, is_big_endian)
                low = load32(buffer, position + 16, is_big_endian)
                time_ns = time_of_ticks(interfaces[interface], high, low)
                if time_ns == NO_TIME:
                    return refuse(scan, FAULT_TIME, high)
        counts[COUNT_RECORDS] += 1
        verdict = take_packet(
            buffer,
            begin,
            begin + captured_bytes,
            interfaces[interface, INTERFACE_LINK],
            time_ns,
            is_checking,
            filters,
            found,
            datagrams,
            row,
        )
        counts[verdict] += 1
        if verdict in (COUNT_DATAGRAMS, COUNT_TRUNCATED):
            row += 1
        position = next_position


def warm_up() -> None:
    """Scan one record of each format: an empty packet, and an unknown block."""
    for is_ng in (0, 1):
        buffer = np.zeros(64, dtype=np.uint8)
        scan = np.zeros(SCAN_FIELDS, dtype=np.int64)
        scan[SCAN_IS_NG] = is_ng
        scan[SCAN_INTERFACE_COUNT] = 1
        scan[SCAN_BLOCK_LIMIT] = 64
        scan_kernel(
            buffer,
            16,
            scan,
            np.zeros((1, INTERFACE_FIELDS), dtype=np.int64),
            np.zeros((1, FILTER_FIELDS), dtype=np.int64),
            np.zeros(COUNT_FIELDS, dtype=np.int64),
            np.zeros(FOUND_FIELDS, dtype=np.int64),
            np.zeros((1, DATAGRAM_FIELDS), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )
