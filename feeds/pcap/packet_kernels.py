"""From one captured packet to its UDP datagram: link layer, VLAN tags, IPv4 or IPv6, UDP; compiled.

Nothing is guessed: a packet is a datagram that somebody asked for, or one of the COUNT_* reasons why not.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import (
    DATAGRAM_BYTES,
    DATAGRAM_FIELDS,
    DATAGRAM_LINE,
    DATAGRAM_OFFSET,
    DATAGRAM_TIME_NS,
    IntArray,
)
from feeds.memory_kernels import Buffer, load_be16, load_be32, load_be64, load_byte

# Counts: what became of each record.
COUNT_RECORDS = 0
COUNT_DATAGRAMS = 1  # delivered, whole
COUNT_TRUNCATED = 2  # delivered as cut short: the capture kept only its beginning
COUNT_UNWANTED = 3  # UDP to a destination that was not asked for
COUNT_FRAGMENTS = 4  # pieces of an IP packet: never put together, never read as a datagram
COUNT_NOT_UDP = 5
COUNT_NOT_IP = 6  # another protocol, or a link type that we cannot read
COUNT_MALFORMED = 7  # headers that contradict themselves
COUNT_BAD_CHECKSUM = 8
COUNT_CUT_HEADERS = 9  # the capture kept so little that not even the UDP header is whole
COUNT_OTHER_BLOCKS = 10  # pcapng blocks that are neither packets nor descriptions; not among the records
COUNT_FIELDS = 11

# One wanted destination. An IPv4 address is the last 32 bits of ::ffff:a.b.c.d.
FILTER_HAS_ADDRESS = 0
FILTER_ADDRESS_HIGH = 1
FILTER_ADDRESS_LOW = 2
FILTER_PORT = 3  # 0: any
FILTER_LINE = 4
FILTER_FIELDS = 5

LINK_NULL = 0
LINK_ETHERNET = 1
LINK_RAW_BSD = 12
LINK_RAW_OPENBSD = 14
LINK_RAW = 101
LINK_LOOP = 108
LINK_COOKED = 113
LINK_IPV4 = 228
LINK_IPV6 = 229
LINK_COOKED_2 = 276

_ETHER_IPV4 = 0x0800
_ETHER_IPV6 = 0x86DD
_VLAN_TAGS_MAX = 8
_IPV6_EXTENSIONS_MAX = 8
_PROTOCOL_UDP = 17
_UDP_BYTES = 8
# What find_udp writes into `found`.
UDP_AT = 0
UDP_LIMIT = 1  # where the IP packet says that it ends
UDP_ADDRESSES_AT = 2
UDP_ADDRESS_BYTES = 3  # of both addresses
UDP_HIGH = 4  # destination
UDP_LOW = 5
FOUND_FIELDS = 6

# find_network's answers, beside the offset of an IP header.
_NO_NETWORK = -1
_CUT_SHORT = -2


@kernel
def find_network(buffer: Buffer, begin: int, end: int, link: int, found: IntArray) -> int:
    """Return where the network header begins, its Ethernet type in found[0]; or _NO_NETWORK or _CUT_SHORT."""
    found[0] = 0
    if link == LINK_ETHERNET:
        type_at = begin + 12
    elif link == LINK_COOKED:
        type_at = begin + 14
    elif link == LINK_COOKED_2:
        type_at = begin
    else:
        at = begin
        if link in (LINK_NULL, LINK_LOOP):
            at += 4  # the address family, in whatever byte order: the IP version says the same
        elif (
            link != LINK_RAW
            and link != LINK_RAW_BSD
            and link != LINK_RAW_OPENBSD
            and link != LINK_IPV4
            and link != LINK_IPV6
        ):
            return _NO_NETWORK
        if at < end:
            version = load_byte(buffer, at) >> 4
            found[0] = _ETHER_IPV4 if version == 4 else (_ETHER_IPV6 if version == 6 else 0)
        return at
    if type_at + 2 > end:
        return _CUT_SHORT
    ether_type = load_be16(buffer, type_at)
    at = type_at + (20 if link == LINK_COOKED_2 else 2)
    for _ in range(_VLAN_TAGS_MAX):
        is_tag = ether_type == 0x8100 or ether_type == 0x88A8 or ether_type == 0x9100 or ether_type == 0x9200
        if not is_tag:
            break
        if at + 4 > end:
            return _CUT_SHORT
        ether_type = load_be16(buffer, at + 2)
        at += 4
    found[0] = ether_type
    return at


@kernel
def checksum_words(buffer: Buffer, begin: int, byte_count: int) -> int:
    """Return the sum of big-endian 16-bit words, an odd last byte padded with zero."""
    total = 0
    for at in range(begin, begin + byte_count - 1, 2):
        total += load_be16(buffer, at)
    if byte_count & 1:
        total += load_byte(buffer, begin + byte_count - 1) << 8
    return total


@kernel
def is_checksum_good(
    buffer: Buffer, addresses_at: int, address_bytes: int, udp_at: int, udp_bytes: int
) -> bool:
    if load_be16(buffer, udp_at + 6) == 0:  # the sender made none
        return True
    total = checksum_words(buffer, addresses_at, address_bytes) + _PROTOCOL_UDP + udp_bytes
    total += checksum_words(buffer, udp_at, udp_bytes)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


@kernel
def find_udp(buffer: Buffer, begin: int, end: int, link: int, found: IntArray) -> int:
    """Find the UDP header of a packet; return COUNT_DATAGRAMS, or the reason why there is none."""
    at = find_network(buffer, begin, end, link, found)
    ether_type = found[0]
    if at == _CUT_SHORT:
        return COUNT_CUT_HEADERS
    if at == _NO_NETWORK or (ether_type != _ETHER_IPV4 and ether_type != _ETHER_IPV6):
        return COUNT_NOT_IP
    if ether_type == _ETHER_IPV4:
        if at + 20 > end:
            return COUNT_CUT_HEADERS
        header_bytes = (load_byte(buffer, at) & 0xF) * 4
        total_bytes = load_be16(buffer, at + 2)
        if load_byte(buffer, at) >> 4 != 4 or header_bytes < 20 or total_bytes < header_bytes:
            return COUNT_MALFORMED
        if load_be16(buffer, at + 6) & 0x3FFF != 0:  # more fragments, or not the first
            return COUNT_FRAGMENTS
        if load_byte(buffer, at + 9) != _PROTOCOL_UDP:
            return COUNT_NOT_UDP
        found[UDP_AT] = at + header_bytes
        found[UDP_LIMIT] = at + total_bytes
        found[UDP_ADDRESSES_AT] = at + 12
        found[UDP_ADDRESS_BYTES] = 8
        found[UDP_HIGH] = 0
        found[UDP_LOW] = (0xFFFF << 32) | load_be32(buffer, at + 16)
        return COUNT_DATAGRAMS
    if at + 40 > end:
        return COUNT_CUT_HEADERS
    if load_byte(buffer, at) >> 4 != 6:
        return COUNT_MALFORMED
    next_header = load_byte(buffer, at + 6)
    position = at + 40
    found[UDP_LIMIT] = position + load_be16(buffer, at + 4)
    for _ in range(_IPV6_EXTENSIONS_MAX):
        if next_header == 44:  # a fragment header
            return COUNT_FRAGMENTS
        if next_header != 0 and next_header != 43 and next_header != 60:
            break
        if position + 8 > end:
            return COUNT_CUT_HEADERS
        next_header = load_byte(buffer, position)
        position += 8 + 8 * load_byte(buffer, position + 1)
    if next_header != _PROTOCOL_UDP:
        return COUNT_NOT_UDP
    found[UDP_AT] = position
    found[UDP_ADDRESSES_AT] = at + 8
    found[UDP_ADDRESS_BYTES] = 32
    found[UDP_HIGH] = load_be64(buffer, at + 24)
    found[UDP_LOW] = load_be64(buffer, at + 32)
    return COUNT_DATAGRAMS


@kernel
def line_of(filters: IntArray, high: int, low: int, port: int) -> int:
    """Return the line of a destination, -1 if nobody asked for it. The first filter that fits decides."""
    for index in range(filters.shape[0]):
        is_address = filters[index, FILTER_HAS_ADDRESS] == 0 or (
            filters[index, FILTER_ADDRESS_HIGH] == high and filters[index, FILTER_ADDRESS_LOW] == low
        )
        if is_address and (filters[index, FILTER_PORT] == 0 or filters[index, FILTER_PORT] == port):
            return int(filters[index, FILTER_LINE])
    return -1


@kernel
def take_packet(
    buffer: Buffer,
    begin: int,
    end: int,
    link: int,
    time_ns: int,
    is_checking: int,
    filters: IntArray,
    found: IntArray,
    datagrams: IntArray,
    row: int,
) -> int:
    """Put the datagram of one captured packet into `row`; return what the packet is, one of COUNT_*."""
    verdict = find_udp(buffer, begin, end, link, found)
    if verdict != COUNT_DATAGRAMS:
        return verdict
    udp_at = found[UDP_AT]
    if udp_at + _UDP_BYTES > found[UDP_LIMIT]:
        return COUNT_MALFORMED
    if udp_at + _UDP_BYTES > end:
        return COUNT_CUT_HEADERS
    udp_bytes = load_be16(buffer, udp_at + 4)
    if udp_bytes < _UDP_BYTES or udp_at + udp_bytes > found[UDP_LIMIT]:
        return COUNT_MALFORMED
    line = line_of(filters, found[UDP_HIGH], found[UDP_LOW], load_be16(buffer, udp_at + 2))
    if line < 0:
        return COUNT_UNWANTED
    payload_at = udp_at + _UDP_BYTES
    payload_bytes = udp_bytes - _UDP_BYTES
    if payload_at + payload_bytes > end:
        verdict = COUNT_TRUNCATED
        payload_at = min(payload_at, end - 1)  # if no byte of it is there, the last one before it stands in
        payload_bytes = payload_at - end  # negative says "cut short"
    elif is_checking != 0 and not is_checksum_good(
        buffer, found[UDP_ADDRESSES_AT], found[UDP_ADDRESS_BYTES], udp_at, udp_bytes
    ):
        return COUNT_BAD_CHECKSUM
    datagrams[row, DATAGRAM_OFFSET] = payload_at
    datagrams[row, DATAGRAM_BYTES] = payload_bytes
    datagrams[row, DATAGRAM_LINE] = line
    datagrams[row, DATAGRAM_TIME_NS] = time_ns
    return verdict


def warm_up() -> None:
    take_packet(
        np.zeros(64, dtype=np.uint8),
        0,
        64,
        LINK_RAW,
        0,
        0,
        np.zeros((1, FILTER_FIELDS), dtype=np.int64),
        np.zeros(FOUND_FIELDS, dtype=np.int64),
        np.zeros((1, DATAGRAM_FIELDS), dtype=np.int64),
        0,
    )
