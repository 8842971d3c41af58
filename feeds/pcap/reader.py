"""Captured files into the receive path: pcap and pcapng, plain or gzip, to batches of UDP datagrams.

    with open_datagrams("deep.pcap.gz", lines={("233.215.21.4", 10378): LINE_A}) as capture:
        for batch in capture:
            ...  # batch.datagrams: rows of formats.DATAGRAM_*, with offsets into batch.arena

The file is read in chunks into one buffer, and a compiled scanner (pcap_kernels) notes where the datagrams
lie in it: memory does not grow with the file, and no Python object is made for a packet. That is why there is
no library in this path: on the IEX capture of the tests dpkt takes 0.12 M packets/s to their UDP payloads on
one core, and this scanner 10 M/s, or 1.2 M/s with inflating. dpkt is what the tests check it with.

Supported are both byte orders, micro- and nanoseconds, any pcapng time resolution, several interfaces and
sections; Ethernet with any VLAN tags, Linux cooked captures, raw IP and BSD loopback; UDP over IPv4 and IPv6.
Fragments are counted and never read as datagrams. A packet of which the capture kept only the beginning is
delivered with a negative length, which the packet parsers report as BAD_TRUNCATED.

A file that ends inside a record is what a killed capture leaves: all before the cut is delivered, then the
iteration ends and `cut` says where. A file that goes on with something else than a record is damaged: all
before it is delivered, then CaptureError says where and why.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from feeds.errors import ConfigError, LimitError, SourceError
from feeds.file_source import ByteStream, DamagedStream, open_source
from feeds.formats import DATAGRAM_FIELDS, LINE_A, LINE_COUNT, ByteArray, IntArray
from feeds.pcap import file_kernels as k
from feeds.pcap import packet_kernels as packet

BUFFER_BYTES_DEFAULT = 4 << 20
BUFFER_BYTES_MIN = 512 << 10  # the longest record of a pcap file, and as much again
BATCH_DATAGRAMS_DEFAULT = 8_192
INTERFACES_MAX = 256
RECORD_BYTES_MAX = 262_144  # no capture tool keeps more of one packet

_FILE_HEADER_BYTES = 24
_MAGIC_NG = b"\x0a\x0d\x0d\x0a"
# First four bytes of a pcap file -> (struct byte order, digits of a second's fraction).
_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 6),
    b"\xa1\xb2\xc3\xd4": (">", 6),
    b"\x4d\x3c\xb2\xa1": ("<", 9),
    b"\xa1\xb2\x3c\x4d": (">", 9),
}
_BYTE_ORDER_MAGICS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_LINKS = {
    packet.LINK_NULL: "BSD loopback",
    packet.LINK_ETHERNET: "Ethernet",
    packet.LINK_RAW_BSD: "raw IP",
    packet.LINK_RAW_OPENBSD: "raw IP",
    packet.LINK_RAW: "raw IP",
    packet.LINK_LOOP: "OpenBSD loopback",
    packet.LINK_COOKED: "Linux cooked",
    packet.LINK_IPV4: "raw IPv4",
    packet.LINK_IPV6: "raw IPv6",
    packet.LINK_COOKED_2: "Linux cooked v2",
}
_SECTION_BYTES_MIN = 28
_INTERFACE_BYTES_MIN = 20
_OPTION_END = 0
_OPTION_TIME_RESOLUTION = 9
_OPTION_TIME_OFFSET = 14
_DECIMAL_EXPONENT_MAX = 18
_BINARY_EXPONENT_MAX = 62

Destination = tuple[str, int]  # address and port
ANY_ADDRESS = "*"
ANY_PORT = 0


class CaptureError(SourceError):
    """A capture holds something else than records. What came before it has been delivered."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = reason
        super().__init__(f"{path}: byte {position}: {reason}")


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a capture ends in the middle of a record. Positions in gzip files are of the content."""

    position: int  # of the record that is not whole
    missing: str

    def __str__(self) -> str:
        return f"cut at byte {self.position}: {self.missing}"


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """What became of the records of a capture; `records` is the sum of the others up to `cut_headers`."""

    records: int
    datagrams: int
    truncated: int
    unwanted: int
    fragments: int
    not_udp: int
    not_ip: int
    malformed: int
    bad_checksum: int
    cut_headers: int
    other_blocks: int


class DatagramBatch(NamedTuple):
    """Datagrams whose offsets point into `arena`. Both are valid until the next batch is read."""

    arena: ByteArray
    datagrams: IntArray


def open_datagrams(
    path: str | Path,
    *,
    lines: Mapping[Destination, int] | None = None,
    buffer_bytes: int = BUFFER_BYTES_DEFAULT,
    batch_datagrams: int = BATCH_DATAGRAMS_DEFAULT,
    verify_checksums: bool = False,
) -> PcapReader:
    """Open a capture. `lines` says which destinations are wanted and what line each is; all are line A else.

    The first that fits a datagram counts; ANY_ADDRESS and ANY_PORT fit all.

    With `verify_checksums`, datagrams with a wrong UDP checksum are counted and left out, as a socket would;
    not the default, because a capture made on the sending machine shows checksums before they are filled in.
    """
    stream = Path(path).open("rb", buffering=0)  # noqa: SIM115 - the reader closes it
    try:
        return PcapReader(
            stream,
            name=str(path),
            lines=lines,
            buffer_bytes=buffer_bytes,
            batch_datagrams=batch_datagrams,
            verify_checksums=verify_checksums,
        )
    except BaseException:
        stream.close()
        raise


class PcapReader:
    """Iterates over the datagrams of a capture, batch by batch. Its `close` closes the stream."""

    def __init__(
        self,
        stream: ByteStream,
        *,
        name: str = "capture",
        lines: Mapping[Destination, int] | None = None,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        batch_datagrams: int = BATCH_DATAGRAMS_DEFAULT,
        verify_checksums: bool = False,
    ) -> None:
        if buffer_bytes < BUFFER_BYTES_MIN:
            raise ConfigError(f"buffer_bytes must be {BUFFER_BYTES_MIN} or more, was {buffer_bytes}")
        if batch_datagrams < 1:
            raise ConfigError(f"batch_datagrams must be 1 or more, was {batch_datagrams}")
        self.name = name
        self.cut: Cut | None = None
        self._buffer = np.zeros(buffer_bytes, dtype=np.uint8)
        self._view = self._buffer.data
        self._filled = 0
        self._base = 0  # file position of the buffer's first byte
        self._order = "<"
        self._scan = np.zeros(k.SCAN_FIELDS, dtype=np.int64)
        self._scan[k.SCAN_IS_CHECKING] = int(verify_checksums)
        self._interfaces = np.zeros((INTERFACES_MAX, k.INTERFACE_FIELDS), dtype=np.int64)
        self._filters = _make_filters(lines)
        self._counts = np.zeros(packet.COUNT_FIELDS, dtype=np.int64)
        self._found = np.zeros(packet.FOUND_FIELDS, dtype=np.int64)
        self._datagrams = np.zeros((batch_datagrams, DATAGRAM_FIELDS), dtype=np.int64)
        self._result = np.zeros(1, dtype=np.int64)
        self._source = open_source(stream)
        self._read_file_header()

    @property
    def counts(self) -> CaptureCounts:
        return CaptureCounts(*(int(count) for count in self._counts))

    @property
    def position(self) -> int:
        """Where the next record begins in the file."""
        return self._base + int(self._scan[k.SCAN_POSITION])

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[DatagramBatch]:
        while (batch := self.read_batch()) is not None:
            yield batch

    def read_batch(self) -> DatagramBatch | None:
        """Return the next datagrams, at least one, or None at the end (or at the cut) of the capture."""
        while True:
            status = k.scan_kernel(
                self._buffer,
                self._filled,
                self._scan,
                self._interfaces,
                self._filters,
                self._counts,
                self._found,
                self._datagrams,
                self._result,
            )
            row_count = int(self._result[0])
            if row_count:
                return DatagramBatch(self._buffer, self._datagrams[:row_count])
            if status == k.STATUS_BAD:
                raise CaptureError(self.name, self.position, self._fault_text())
            if status == k.STATUS_BLOCK and self._read_block():
                continue
            if not self._refill():
                self._note_cut()
                return None

    def _read_file_header(self) -> None:
        """Find out the format, the byte order and, of a pcap file, what all packets have in common."""
        while self._filled < _FILE_HEADER_BYTES and self._refill():
            pass
        magic = bytes(self._view[: min(4, self._filled)])
        if magic == _MAGIC_NG:
            self._scan[k.SCAN_IS_NG] = 1
            self._scan[k.SCAN_BLOCK_LIMIT] = self._buffer.size
            return
        if magic not in _MAGICS:
            found = magic.hex(" ") or "an empty file"
            raise CaptureError(self.name, 0, f"must begin with the magic of pcap or pcapng, was {found}")
        if self._filled < _FILE_HEADER_BYTES:
            reason = f"the file header must be {_FILE_HEADER_BYTES} bytes, the file has {self._filled}"
            raise CaptureError(self.name, 0, reason)
        self._order, digits = _MAGICS[magic]
        major, minor, _, _, snaplen, network = struct.unpack_from(self._order + "HHiIII", self._view, 4)
        if (major, minor) != (2, 4):
            raise CaptureError(self.name, 4, f"version must be 2.4, was {major}.{minor}")
        link = network & 0xFFFF  # above it: the length of a frame check sequence
        if link not in _LINKS:
            known = ", ".join(f"{number} ({name})" for number, name in _LINKS.items())
            raise CaptureError(self.name, 20, f"link type must be one of {known}, was {link}")
        longest = max(RECORD_BYTES_MAX, min(snaplen, self._buffer.size - k.PCAP_RECORD_BYTES))
        self._scan[k.SCAN_IS_BIG_ENDIAN] = int(self._order == ">")
        self._scan[k.SCAN_INTERFACE_COUNT] = 1
        self._scan[k.SCAN_BLOCK_LIMIT] = k.PCAP_RECORD_BYTES + longest
        self._scan[k.SCAN_POSITION] = _FILE_HEADER_BYTES
        self._interfaces[0, k.INTERFACE_LINK] = link
        self._interfaces[0, k.INTERFACE_EXPONENT] = digits

    def _refill(self) -> bool:
        """Move what is left to the buffer's front and read on; return whether anything was added."""
        begin = int(self._scan[k.SCAN_POSITION])
        if begin:
            left = self._filled - begin
            self._buffer[:left] = self._buffer[begin : self._filled].copy()
            self._base += begin
            self._scan[k.SCAN_POSITION] = 0
            self._filled = left
        try:
            count = self._source.read_into(self._view[self._filled :])
        except DamagedStream as error:
            reason = f"the compressed data is damaged: {error}"
            raise CaptureError(self.name, self._base + self._filled, reason) from error
        self._filled += count
        return count > 0

    def _note_cut(self) -> None:
        """Say where the file ends if that is not where a record does."""
        at = int(self._scan[k.SCAN_POSITION])
        left = self._filled - at
        head_bytes = k.NG_BLOCK_BYTES_MIN if self._scan[k.SCAN_IS_NG] else k.PCAP_RECORD_BYTES
        if left >= head_bytes:
            length_at = at + (4 if self._scan[k.SCAN_IS_NG] else 8)
            (length,) = struct.unpack_from(self._order + "I", self._view, length_at)
            whole = length if self._scan[k.SCAN_IS_NG] else length + head_bytes
            self.cut = Cut(self.position, f"the record should have {whole} bytes, {left} are there")
        elif left:
            self.cut = Cut(self.position, f"a record has at least {head_bytes} bytes, {left} are there")
        elif self._source.cut_reason:
            self.cut = Cut(self.position, self._source.cut_reason)

    def _read_block(self) -> bool:
        """Read the section header or interface description at hand; False if it is not whole yet."""
        at = int(self._scan[k.SCAN_POSITION])
        head = bytes(self._view[at : at + k.NG_BLOCK_BYTES_MIN])
        is_section = head[:4] == _MAGIC_NG
        if is_section:
            order = _BYTE_ORDER_MAGICS.get(head[8:12])
            if order is None:
                reason = f"byte-order magic must be 1a2b3c4d in either order, was {head[8:12].hex()}"
                raise CaptureError(self.name, self.position + 8, reason)
            self._order = order
        (block_bytes,) = struct.unpack_from(self._order + "I", head, 4)
        least = _SECTION_BYTES_MIN if is_section else _INTERFACE_BYTES_MIN
        if not least <= block_bytes <= self._buffer.size or block_bytes % 4:
            raise CaptureError(self.name, self.position + 4, self._length_text(least, block_bytes))
        if self._filled - at < block_bytes:
            return False
        block = bytes(self._view[at : at + block_bytes])
        (trailer,) = struct.unpack_from(self._order + "I", block, block_bytes - 4)
        if trailer != block_bytes:
            reason = f"the length behind a block must be {block_bytes} as before it, was {trailer}"
            raise CaptureError(self.name, self.position + block_bytes - 4, reason)
        if is_section:
            self._begin_section(block)
        else:
            self._add_interface(block)
        self._scan[k.SCAN_POSITION] = at + block_bytes
        return True

    def _begin_section(self, block: bytes) -> None:
        (major,) = struct.unpack_from(self._order + "H", block, 12)
        if major != 1:
            raise CaptureError(self.name, self.position + 12, f"major version must be 1, was {major}")
        self._scan[k.SCAN_IS_BIG_ENDIAN] = int(self._order == ">")
        self._scan[k.SCAN_INTERFACE_COUNT] = 0

    def _add_interface(self, block: bytes) -> None:
        index = int(self._scan[k.SCAN_INTERFACE_COUNT])
        if index == INTERFACES_MAX:
            raise LimitError(f"{self.name}: a section must describe at most {INTERFACES_MAX} interfaces")
        link, _, snaplen = struct.unpack_from(self._order + "HHI", block, 8)
        is_binary, exponent, offset_s = False, 6, 0
        for code, value in self._options(block, 16):
            if code == _OPTION_TIME_RESOLUTION and value:
                is_binary, exponent = bool(value[0] & 0x80), value[0] & 0x7F
            elif code == _OPTION_TIME_OFFSET and len(value) == 8:
                (offset_s,) = struct.unpack(self._order + "q", value)
        exponent_max = _BINARY_EXPONENT_MAX if is_binary else _DECIMAL_EXPONENT_MAX
        if exponent > exponent_max:
            unit = f"{2 if is_binary else 10}**-{exponent} s"
            reason = (
                f"time resolution must be {2 if is_binary else 10}**-{exponent_max} s or coarser, was {unit}"
            )
            raise CaptureError(self.name, self.position, reason)
        if abs(offset_s) > k.TIME_S_MAX:
            reason = f"time offset must be within {k.TIME_S_MAX} s, was {offset_s}"
            raise CaptureError(self.name, self.position, reason)
        self._interfaces[index] = (link, snaplen, is_binary, exponent, offset_s * 1_000_000_000)
        self._scan[k.SCAN_INTERFACE_COUNT] = index + 1

    def _options(self, block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        end = len(block) - 4
        while at + 4 <= end:
            code, length = struct.unpack_from(self._order + "HH", block, at)
            if code == _OPTION_END:
                return
            if at + 4 + length > end:
                reason = f"option {code} must be at most {end - at - 4} bytes, was {length}"
                raise CaptureError(self.name, self.position + at, reason)
            yield code, block[at + 4 : at + 4 + length]
            at += 4 + (length + 3) // 4 * 4

    def _length_text(self, least: int, found: int) -> str:
        limit = int(self._scan[k.SCAN_BLOCK_LIMIT])
        if self._scan[k.SCAN_IS_NG]:
            return f"block length must be a multiple of 4 from {least} to {limit} (buffer_bytes), was {found}"
        return f"captured length must be at most {limit - k.PCAP_RECORD_BYTES}, was {found}"

    def _fault_text(self) -> str:
        value = int(self._scan[k.SCAN_FAULT_VALUE])
        match int(self._scan[k.SCAN_FAULT]):
            case k.FAULT_LENGTH:
                return self._length_text(k.NG_BLOCK_BYTES_MIN, value)
            case k.FAULT_FRACTION:
                return f"the fraction of a second must be less than a second, was {value}"
            case k.FAULT_TRAILER:
                return f"the length behind a block must be the one before it, was {value}"
            case k.FAULT_INTERFACE:
                count = int(self._scan[k.SCAN_INTERFACE_COUNT])
                return f"interface must be one of the {count} described so far, was {value}"
            case k.FAULT_CAPTURED:
                return f"captured length must fit into its block, was {value}"
            case _:
                return f"time stamp must be between 1970 and 2106, its upper half was {value}"


def _make_filters(lines: Mapping[Destination, int] | None) -> IntArray:
    if lines is None:
        lines = {(ANY_ADDRESS, ANY_PORT): LINE_A}
    if not lines:
        raise ConfigError("lines must name at least one destination, was empty")
    rows = []
    for (address, port), line in lines.items():
        if not ANY_PORT <= port <= 0xFFFF:
            raise ConfigError(f"port must be 1 to 65535, or 0 for any, was {port}")
        if not 0 <= line < LINE_COUNT:
            raise ConfigError(f"line must be 0 to {LINE_COUNT - 1}, was {line}")
        high = low = 0
        if address != ANY_ADDRESS:
            number = _address_number(address)
            high, low = (int.from_bytes(half, "big", signed=True) for half in (number[:8], number[8:]))
        rows.append((address != ANY_ADDRESS, high, low, port, line))
    return np.array(rows, dtype=np.int64)


def _address_number(address: str) -> bytes:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ConfigError(f"address must be an IPv4 or IPv6 address, was {address!r}") from error
    return b"\0" * 10 + b"\xff\xff" + parsed.packed if parsed.version == 4 else parsed.packed
