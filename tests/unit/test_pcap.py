"""Captures: every format that is promised, every kind of packet, and files that are cut or damaged."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import dpkt
import pytest

from feeds import formats as f
from feeds.errors import ConfigError, LimitError
from feeds.pcap.reader import ANY_ADDRESS, ANY_PORT, CaptureError, PcapReader, open_datagrams
from feeds.pcap.writer import PcapWriter, wrap_ethernet, wrap_ip
from tests import captures as c

pytestmark = pytest.mark.kernels

TIME_NS = 1_696_246_474_224_454_321
Row = tuple[bytes, int, int]  # payload, line, time


def read_all(reader: PcapReader) -> list[Row]:
    """Return all whole datagrams as (payload, line, time)."""
    rows: list[Row] = []
    for batch in reader:
        assert len(batch.datagrams) >= 1
        for offset, length, line, time_ns in batch.datagrams.tolist():
            rows.append((batch.arena[offset : offset + max(length, 0)].tobytes(), line, time_ns))
    return rows


def read(content: bytes, **options: object) -> list[Row]:
    return read_all(PcapReader(io.BytesIO(content), **options))  # type: ignore[arg-type]


def payloads(content: bytes) -> list[bytes]:
    return [payload for payload, _, _ in read(content)]


# ------------------------------------------------------------------------------------------- file formats


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("is_ns", [True, False])
def test_pcap_is_read_in_both_byte_orders_and_both_resolutions(order: str, is_ns: bool) -> None:
    packets = [(c.ethernet(b"one"), TIME_NS), (c.ethernet(b"two"), TIME_NS + 1_000)]
    content = c.pcap_header(order, is_ns) + b"".join(
        c.pcap_record(packet, time_ns, order, is_ns) for packet, time_ns in packets
    )
    lost_ns = 0 if is_ns else TIME_NS % 1_000
    assert read(content) == [
        (b"one", f.LINE_A, TIME_NS - lost_ns),
        (b"two", f.LINE_A, TIME_NS + 1_000 - lost_ns),
    ]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    "resolution,ticks,time_ns",
    [
        (None, 1_696_246_474_224_454, 1_696_246_474_224_454_000),
        (6, 1_696_246_474_224_454, 1_696_246_474_224_454_000),
        (9, TIME_NS, TIME_NS),
        (0, 1_696_246_474, 1_696_246_474_000_000_000),
        (3, 1_696_246_474_224, 1_696_246_474_224_000_000),
        (12, 1_600_000_224_454_321_987, 1_600_000_224_454_321),
        (0x80 | 10, (1_696_246_474 << 10) + 256, 1_696_246_474_250_000_000),
        (0x80 | 32, (1_696_246_474 << 32) + (1 << 31), 1_696_246_474_500_000_000),
        (0x80 | 40, (1_000_000 << 40) + (3 << 38), 1_000_000_750_000_000),
    ],
)
def test_pcapng_times_are_right_in_any_resolution(
    order: str, resolution: int | None, ticks: int, time_ns: int
) -> None:
    options = [] if resolution is None else [c.option(9, bytes([resolution]), order)]
    content = c.section(order) + c.interface(1, order, options=[*options, c.option(0, b"", order)])
    content += c.enhanced(c.ethernet(b"payload"), ticks, order=order)
    assert read(content) == [(b"payload", f.LINE_A, time_ns)]


def test_pcapng_time_offset_is_added() -> None:
    options = [c.option(9, b"\x09"), c.option(14, struct.pack("<q", 1_000_000_000))]
    content = c.section() + c.interface(options=options) + c.enhanced(c.ethernet(b"x"), 5)
    assert read(content) == [(b"x", f.LINE_A, 1_000_000_000_000_000_005)]


def test_pcapng_interfaces_and_sections_keep_their_own_link_type_and_byte_order() -> None:
    content = (
        c.section("<")
        + c.interface(1, "<")
        + c.interface(101, "<", options=[c.option(9, b"\x09")])
        + c.enhanced(c.ip(b"raw"), 7, 1)
        + c.block(4, b"names: skipped")
        + c.enhanced(c.ethernet(b"ether"), 8, 0)
        + c.section(">")
        + c.interface(113, ">", options=[c.option(9, b"\x09", ">")])
        + c.enhanced(c.cooked(b"cooked"), 9, 0, ">")
        + c.obsolete(c.cooked(b"old"), 10, 0, ">")
    )
    reader = PcapReader(io.BytesIO(content))
    assert read_all(reader) == [
        (b"raw", 0, 7),
        (b"ether", 0, 8_000),
        (b"cooked", 0, 9),
        (b"old", 0, 10),
    ]
    assert reader.counts.other_blocks == 1
    assert reader.counts.records == reader.counts.datagrams == 4


def test_a_simple_packet_block_has_no_time_and_obeys_the_snap_length() -> None:
    packet = c.ethernet(b"whole")
    content = c.section() + c.interface(snaplen=len(packet) - 2) + c.simple(packet)
    reader = PcapReader(io.BytesIO(c.section() + c.interface() + c.simple(packet)))
    assert read_all(reader) == [(b"whole", 0, 0)]
    cut = PcapReader(io.BytesIO(content))
    (batch,) = list(cut)
    assert batch.datagrams[0, f.DATAGRAM_BYTES] == -3
    assert cut.counts.truncated == 1


def test_gzip_of_several_members_and_padding_is_one_capture() -> None:
    content = c.pcap_header() + c.pcap_record(c.ethernet(b"a"), 1) + c.pcap_record(c.ethernet(b"b"), 2)
    zipped = gzip.compress(content[:50]) + gzip.compress(content[50:]) + bytes(70_000)
    assert payloads(zipped) == [b"a", b"b"]


# ------------------------------------------------------------------------------------------------ packets


@pytest.mark.parametrize(
    "link,packet",
    [
        (1, c.ethernet(b"payload")),
        (1, c.ethernet(b"payload", (7,))),
        (1, c.ethernet(b"payload", (7, 8))),
        (1, c.ethernet(b"payload", (1, 2, 3, 4))),
        (113, c.cooked(b"payload")),
        (276, c.cooked_2(b"payload")),
        (101, c.ip(b"payload")),
        (12, c.ip(b"payload")),
        (14, c.ip(b"payload")),
        (228, c.ip(b"payload")),
        (0, struct.pack("<I", 2) + c.ip(b"payload")),
        (0, struct.pack(">I", 2) + c.ip(b"payload")),
        (108, struct.pack(">I", 2) + c.ip(b"payload")),
        (1, wrap_ethernet(b"payload", ("fe80::1", 1), ("ff02::5", 10_378))),
        (229, wrap_ip(b"payload", ("fe80::1", 1), ("ff02::5", 10_378))),
        (1, c.ethernet(b"payload") + bytes(20)),  # padded to the least Ethernet frame
    ],
)
def test_a_datagram_is_found_behind_any_link_layer(link: int, packet: bytes) -> None:
    content = c.pcap_header(link=link) + c.pcap_record(packet, TIME_NS)
    assert read(content, verify_checksums=True) == [(b"payload", f.LINE_A, TIME_NS)]


def with_ip_options(packet: bytes) -> bytes:
    """Return an IPv4 packet with four bytes of options."""
    total = struct.pack(">H", len(packet) + 4)
    return b"\x46" + packet[1:2] + total + packet[4:20] + b"\x01\x01\x01\x00" + packet[20:]


def with_extension_headers(packet: bytes) -> bytes:
    """Return an IPv6 packet with hop-by-hop and destination options in front of UDP."""
    extensions = bytes([60, 0]) + bytes(6) + bytes([17, 1]) + bytes(14)
    length = struct.pack(">H", len(packet) - 40 + len(extensions))
    return packet[:4] + length + b"\x00" + packet[7:40] + extensions + packet[40:]


def test_ip_options_and_extension_headers_are_stepped_over() -> None:
    v6 = wrap_ip(b"six", ("fe80::1", 1), ("ff02::5", 2))
    content = c.pcap_header(link=101)
    content += c.pcap_record(with_ip_options(c.ip(b"four")), 1)
    content += c.pcap_record(with_extension_headers(v6), 2)
    assert payloads(content) == [b"four", b"six"]


def set_bytes(packet: bytes, at: int, value: bytes) -> bytes:
    return packet[:at] + value + packet[at + len(value) :]


V4 = c.ip(b"payload")
V6 = wrap_ip(b"payload", ("fe80::1", 1), ("ff02::5", 2))


@pytest.mark.parametrize(
    "packet,counter",
    [
        (set_bytes(V4, 6, b"\x20\x00"), "fragments"),  # the first of several
        (set_bytes(V4, 6, b"\x00\x10"), "fragments"),  # a later one
        (set_bytes(V6, 6, b"\x2c"), "fragments"),
        (set_bytes(V4, 9, b"\x06"), "not_udp"),
        (set_bytes(V6, 6, b"\x06"), "not_udp"),
        (b"\x00" + V4[1:], "not_ip"),
        (b"\x50" + V4[1:], "not_ip"),
        (b"", "not_ip"),
        (b"\x44" + V4[1:], "malformed"),  # header of 16 bytes
        (set_bytes(V4, 2, b"\x00\x10"), "malformed"),  # total shorter than the header
        (set_bytes(V4, 2, b"\x00\x17"), "malformed"),  # no room for UDP
        (set_bytes(V4, 24, b"\x00\x07"), "malformed"),  # UDP shorter than its header
        (set_bytes(V4, 24, b"\x00\x10"), "malformed"),  # UDP longer than IP says
        (V4[:19], "cut_headers"),
        (V4[:27], "cut_headers"),
        (V6[:39], "cut_headers"),
    ],
)
def test_what_is_not_a_whole_datagram_is_counted_and_not_misread(packet: bytes, counter: str) -> None:
    good = c.pcap_record(c.ip(b"good"), 1)
    content = c.pcap_header(link=101) + good + c.pcap_record(packet, 2) + good
    reader = PcapReader(io.BytesIO(content))
    assert [payload for payload, _, _ in read_all(reader)] == [b"good", b"good"]
    counts = reader.counts
    assert getattr(counts, counter) == 1
    assert counts.records == 3 == counts.datagrams + 1


def test_other_ethernet_types_are_not_ip() -> None:
    arp = c.ethernet(b"")[:12] + b"\x08\x06" + bytes(28)
    length_field = c.ethernet(b"")[:12] + b"\x00\x20" + bytes(32)
    reader = PcapReader(io.BytesIO(c.pcap_header() + c.pcap_record(arp, 1) + c.pcap_record(length_field, 2)))
    assert read_all(reader) == []
    assert reader.counts.not_ip == 2


def test_a_packet_cut_by_the_snap_length_is_delivered_as_cut_short() -> None:
    packet = c.ethernet(b"payload", (5,))
    headers = len(packet) - len(b"payload")
    for kept in range(len(packet)):
        content = c.pcap_header() + c.pcap_record(packet[:kept], TIME_NS, wire_bytes=len(packet))
        reader = PcapReader(io.BytesIO(content))
        batches = [batch.datagrams.tolist() for batch in reader]
        if kept < headers:
            assert batches == []
            assert reader.counts.cut_headers == 1
        else:
            ((_, length, line, time_ns),) = batches[0]
            assert (length, line, time_ns) == (min(headers - kept, -1), f.LINE_A, TIME_NS)
            assert reader.counts.truncated == 1


def test_destinations_choose_the_line_and_others_are_left_out() -> None:
    content = c.pcap_header() + b"".join(
        c.pcap_record(c.ethernet(name, to=to), 1)
        for name, to in (
            (b"a", c.LINE_A_GROUP),
            (b"b", c.LINE_B_GROUP),
            (b"port", ("233.215.21.4", 99)),
            (b"other", ("233.215.21.5", 10_378)),
        )
    )
    lines = {c.LINE_A_GROUP: f.LINE_A, c.LINE_B_GROUP: f.LINE_B, (ANY_ADDRESS, 99): f.LINE_RECOVERY}
    reader = PcapReader(io.BytesIO(content), lines=lines)
    assert [row[:2] for row in read_all(reader)] == [(b"a", 0), (b"b", 1), (b"port", 2)]
    assert reader.counts.unwanted == 1


def test_an_ipv6_destination_can_be_chosen() -> None:
    content = c.pcap_header() + b"".join(
        c.pcap_record(wrap_ethernet(name, ("fe80::1", 1), (to, 9)), 1)
        for name, to in ((b"yes", "ff02::8000:0:0:5"), (b"no", "ff02::5"))
    )
    assert read(content, lines={("ff02::8000:0:0:5", ANY_PORT): f.LINE_B}) == [(b"yes", f.LINE_B, 1)]


def test_checksums_are_verified_when_asked_for() -> None:
    good, damaged = c.ethernet(b"good"), c.ethernet(b"odd")[:-1] + b"X"
    unsummed = set_bytes(c.ethernet(b"none"), 40, b"\0\0")
    content = c.pcap_header() + b"".join(c.pcap_record(packet, 1) for packet in (good, damaged, unsummed))
    reader = PcapReader(io.BytesIO(content), verify_checksums=True)
    assert [payload for payload, _, _ in read_all(reader)] == [b"good", b"none"]
    assert reader.counts.bad_checksum == 1
    assert len(read(content)) == 3


# ------------------------------------------------------------------------------- cut, damaged and hostile


PCAP = c.pcap_header() + b"".join(c.pcap_record(c.ethernet(bytes([i]) * 30), i) for i in range(5))
NG = c.section() + c.interface() + b"".join(c.enhanced(c.ethernet(bytes([i]) * 30), i) for i in range(5))
LAST_PCAP = PCAP[: -len(c.pcap_record(c.ethernet(bytes(30)), 4))]
LAST_NG = NG[: -len(c.enhanced(c.ethernet(bytes(30)), 4))]


@pytest.mark.parametrize("content,before", [(PCAP, LAST_PCAP), (NG, LAST_NG)], ids=["pcap", "pcapng"])
def test_a_file_cut_anywhere_in_its_last_packet_delivers_all_before_and_says_where(
    content: bytes, before: bytes
) -> None:
    for end in range(len(before), len(content) + 1):
        reader = PcapReader(io.BytesIO(content[:end]))
        rows = read_all(reader)
        if end in (len(before), len(content)):
            assert reader.cut is None
            assert len(rows) == 4 + (end == len(content))
        else:
            assert len(rows) == 4
            assert reader.cut is not None
            assert reader.cut.position == len(before)
            assert f"{end - len(before)} are there" in str(reader.cut)


@pytest.mark.parametrize("content", [PCAP, NG], ids=["pcap", "pcapng"])
def test_a_gzip_file_cut_anywhere_delivers_what_can_be_inflated(content: bytes) -> None:
    zipped = gzip.compress(content)
    whole = payloads(content)
    opened = 0
    for end in range(20, len(zipped)):
        try:
            reader = PcapReader(io.BytesIO(zipped[:end]))
        except CaptureError:
            continue  # not even the file header could be inflated
        opened += 1
        rows = [payload for payload, _, _ in read_all(reader)]
        assert rows == whole[: len(rows)]
        assert reader.cut is not None, f"cut at {end} went unnoticed"
    assert opened > len(zipped) // 2


def test_damaged_gzip_delivers_what_came_before_and_says_where() -> None:
    content = c.pcap_header() + b"".join(
        c.pcap_record(c.ethernet(struct.pack(">Q", i * 2_654_435_761) * 20), i) for i in range(3_000)
    )
    zipped = bytearray(gzip.compress(content))
    zipped[len(zipped) // 2] ^= 0xFF
    reader = PcapReader(io.BytesIO(bytes(zipped)))
    rows: list[bytes] = []

    def read_on() -> None:
        for batch in reader:
            for offset, length, _, _ in batch.datagrams:
                rows.append(batch.arena[offset : offset + length].tobytes())

    with pytest.raises(CaptureError) as caught:
        read_on()
    expected = payloads(content)
    assert 100 < len(rows) < 3_000
    # The damage is met some time after it happened: what was inflated in between need not be right.
    assert rows[:100] == expected[:100]
    assert 0 < caught.value.position <= len(content)


def test_bytes_behind_the_end_of_gzip_are_refused_after_everything_was_delivered() -> None:
    reader = PcapReader(io.BytesIO(gzip.compress(PCAP) + b"garbage"))
    batch = reader.read_batch()
    assert batch is not None
    assert len(batch.datagrams) == 5
    with pytest.raises(CaptureError, match="behind the end of the gzip data"):
        reader.read_batch()


@pytest.mark.parametrize(
    "content,position,reason",
    [
        (b"", 0, "an empty file"),
        (b"\xd4\xc3", 0, "was d4 c3"),
        (b"PK\x03\x04" + bytes(100), 0, "must begin with the magic of pcap or pcapng, was 50 4b 03 04"),
        (PCAP[:20], 0, "must be 24 bytes, the file has 20"),
        (set_bytes(PCAP, 4, b"\x03"), 4, "version must be 2.4, was 3.4"),
        (c.pcap_header(link=147), 20, "link type must be one of"),
        (set_bytes(PCAP, 24 + 8, b"\xff\xff\xff\x7f"), 24, "captured length must be at most 262144"),
        (set_bytes(PCAP, 24 + 4, b"\x00\xca\x9a\x3b"), 24, "less than a second, was 1000000000"),
        (set_bytes(NG, 8, b"\0\0\0\0"), 8, "byte-order magic"),
        (c.section(major=2), 12, "major version must be 1, was 2"),
        (set_bytes(NG, 4, b"\x1b"), 4, "block length must be a multiple of 4 from 28"),
        (set_bytes(NG, 28 + 4, b"\x10"), 32, "block length must be a multiple of 4 from 20"),
        (set_bytes(NG, 44, b"\x18"), 44, "the length behind a block must be 20 as before it"),
        (set_bytes(NG, 48 + 4, b"\x08"), 48, "block length must be a multiple of 4 from 12"),
        (set_bytes(NG, 48 + 4, b"\xf4\xff\xff\xff"), 48, "(buffer_bytes)"),
        (set_bytes(NG, 48 + 8, b"\x01"), 48, "one of the 1 described so far, was 1"),
        (set_bytes(NG, 48 + 20, b"\xff"), 48, "captured length must fit into its block, was 255"),
        (set_bytes(NG, 48 + 12, b"\xff\xff\xff\xff"), 48, "between 1970 and 2106"),
        (c.section() + c.enhanced(c.ethernet(b""), 1), 28, "one of the 0 described so far"),
        (c.section() + c.block(6, bytes(12)), 28, "block length"),
        (c.section() + c.interface(options=[c.option(9, b"\x13")]), 28, "10**-18 s or coarser"),
        (c.section() + c.interface(options=[c.option(9, b"\xff")]), 28, "2**-62 s or coarser"),
        (
            c.section() + c.interface(options=[c.option(14, struct.pack("<q", 1 << 62))]),
            28,
            "time offset must be within",
        ),
        (
            c.section() + c.block(1, struct.pack("<HHIHH", 1, 0, 0, 9, 500)),
            44,
            "option 9 must be at most 0 bytes, was 500",
        ),
    ],
)
def test_garbage_is_refused_with_its_position_and_the_reason(
    content: bytes, position: int, reason: str
) -> None:
    with pytest.raises(CaptureError) as caught:
        read(content, name="test.pcap")
    assert reason in str(caught.value)
    assert caught.value.position == position
    assert str(caught.value).startswith(f"test.pcap: byte {position}: ")


def test_garbage_behind_good_records_is_refused_after_they_were_delivered() -> None:
    reader = PcapReader(io.BytesIO(PCAP + b"\xff" * 40))
    batch = reader.read_batch()
    assert batch is not None
    assert len(batch.datagrams) == 5
    with pytest.raises(CaptureError) as caught:
        reader.read_batch()
    assert caught.value.position == len(PCAP)


def test_too_many_interfaces_are_a_limit_with_a_name() -> None:
    with pytest.raises(LimitError, match="at most 256 interfaces"):
        read(c.section() + c.interface() * 257)


def test_an_interface_that_cannot_be_read_does_not_stop_the_others() -> None:
    content = c.section() + c.interface(147) + c.interface(1)
    content += c.enhanced(b"bluetooth?", 1, 0) + c.enhanced(c.ethernet(b"x"), 2, 1)
    reader = PcapReader(io.BytesIO(content))
    assert [payload for payload, _, _ in read_all(reader)] == [b"x"]
    assert reader.counts.not_ip == 1


@pytest.mark.parametrize(
    "options",
    [
        {"buffer_bytes": 100},
        {"batch_datagrams": 0},
        {"lines": {}},
        {"lines": {("not an address", 1): 0}},
        {"lines": {("10.0.0.1", -1): 0}},
        {"lines": {("10.0.0.1", 70_000): 0}},
        {"lines": {("10.0.0.1", 1): 3}},
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        read(PCAP, **options)


class Trickle(io.RawIOBase):
    """A pipe that never gives more than a few bytes at a time."""

    def __init__(self, content: bytes, step: int) -> None:
        self.content = content
        self.step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        assert isinstance(buffer, memoryview)
        count = min(self.step, len(buffer), len(self.content))
        buffer[:count] = self.content[:count]
        self.content = self.content[count:]
        return count


@pytest.mark.parametrize("step", [1, 3, 50])
@pytest.mark.parametrize("content", [PCAP, NG, gzip.compress(NG)], ids=["pcap", "pcapng", "gzip"])
def test_a_pipe_that_trickles_gives_the_same_datagrams(content: bytes, step: int) -> None:
    assert read_all(PcapReader(Trickle(content, step))) == read(content)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    record = c.pcap_record(c.ethernet(bytes(1_000)), TIME_NS)
    with path.open("wb") as stream:
        stream.write(c.pcap_header())
        for _ in range(40):
            stream.write(record * 100)
    total = 0
    with open_datagrams(path, buffer_bytes=512 << 10, batch_datagrams=64) as capture:
        arenas = set()
        for batch in capture:
            arenas.add((batch.arena.ctypes.data, batch.arena.size))
            assert len(batch.datagrams) <= 64
            total += len(batch.datagrams)
    assert total == 4_000
    assert {size for _, size in arenas} == {512 << 10}
    assert len(arenas) == 1


# ------------------------------------------------------------------------------------------------- writer


def test_dpkt_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "made.pcap"
    sent = [(bytes([index]) * index, TIME_NS + index) for index in range(50)]
    with PcapWriter(path) as capture:
        for payload, time_ns in sent:
            capture.write(payload, time_ns, source=c.SOURCE, destination=c.LINE_A_GROUP)
    with path.open("rb") as stream:
        found = [dpkt.ethernet.Ethernet(packet) for _, packet in dpkt.pcap.Reader(stream)]
    assert [frame.data.data.data for frame in found] == [payload for payload, _ in sent]
    assert {frame.dst.hex(":") for frame in found} == {"01:00:5e:57:15:04"}
    for frame in found:
        ip_sum, udp_sum = frame.data.sum, frame.data.data.sum
        frame.data.sum = frame.data.data.sum = 0  # dpkt fills in what is zero
        again = dpkt.ethernet.Ethernet(bytes(frame))
        assert (again.data.sum, again.data.data.sum) == (ip_sum, udp_sum)
    with open_datagrams(path, verify_checksums=True) as reader:
        assert read_all(reader) == [(payload, f.LINE_A, time_ns) for payload, time_ns in sent]


@pytest.mark.parametrize(
    "payload,source,destination,vlan_ids",
    [
        (bytes(65_508), c.SOURCE, c.LINE_A_GROUP, ()),
        (b"", c.SOURCE, ("::1", 1), ()),
        (b"", c.SOURCE, c.LINE_A_GROUP, (4_095,)),
    ],
)
def test_a_datagram_that_cannot_be_is_not_written(
    payload: bytes, source: tuple[str, int], destination: tuple[str, int], vlan_ids: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError):
        wrap_ethernet(payload, source, destination, vlan_ids)


def test_a_time_that_pcap_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with (
        PcapWriter(tmp_path / "x.pcap") as capture,
        pytest.raises(ConfigError, match="between 1970 and 2106"),
    ):
        capture.write_packet(b"", -1)
