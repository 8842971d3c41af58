"""What an exchange is to the rest of the system: one folder below feeds/, found by its `FORMAT`.

A message format and its line protocol come as a set of kernels with fixed signatures, so that receiving,
arbitrating and decoding are written once and compiled once per exchange. Adding an exchange means adding
one folder with these files:

    messages.py           the message types: letter, size, name
    decode_kernels.py     `decode_kernel`: runs of length-prefixed messages to frames
    encode_kernels.py     writers of the exchange's own bytes, for simulation and for round-trip tests
    transport.py          packets of the line protocol, re-requests and their limits (plain, sans-IO)
    transport_kernels.py  `parse_packets_kernel`: datagrams to packet descriptors
    history.py            `new_history`: what answers re-requests when a capture is played as if live
    hop_kernels.py        `hop_kernel`: receive, parse, arbitrate and decode as one compiled step
    __init__.py           `FORMAT`, an ExchangeFormat; names kernels lazily, so importing it is cheap

The arrays that these kernels share are described here and nowhere else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feeds.errors import ConfigError

IntArray = np.ndarray[Any, np.dtype[np.int64]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

# A datagram, as the receive path hands it to parse_packets_kernel: where its bytes are, whence it came.
DATAGRAM_OFFSET = 0
DATAGRAM_BYTES = 1  # negative: cut short, only that many bytes are there (BAD_TRUNCATED)
DATAGRAM_LINE = 2
DATAGRAM_TIME_NS = 3  # arrival, by the receiver's clock (a capture's clock when read from a file)
DATAGRAM_FIELDS = 4

LINE_A = 0
LINE_B = 1
LINE_RECOVERY = 2  # answers of the re-request server
LINE_COUNT = 3

# A packet: what parse_packets_kernel makes of a datagram. Bytes of DATA packets are checked: `count`
# length-prefixed blocks fill [offset, offset + bytes) exactly.
PACKET_KIND = 0
PACKET_OFFSET = 1  # of the first block, in the same buffer as the datagram
PACKET_BYTES = 2  # of all blocks
PACKET_SEQ = 3  # of the first message; of a heartbeat or an end of session: the next number
PACKET_COUNT = 4
PACKET_SESSION = 5  # source_session of our frames: u32, the same in every adapter
PACKET_IDENTITY_0 = 6  # the session as the exchange writes it, opaque here, for re-requests
PACKET_IDENTITY_1 = 7
PACKET_LINE = 8
PACKET_TIME_NS = 9
PACKET_FIELDS = 10

KIND_DATA = 0
KIND_HEARTBEAT = 1
KIND_END = 2
KIND_BAD = 3  # PACKET_COUNT holds the reason, one of the BAD_* below

BAD_SHORT = 1  # shorter than a header
BAD_BLOCKS = 2  # a block leaves the packet, or bytes are left over
BAD_VERSION = 3  # not this protocol, version or channel
BAD_SEQUENCE = 4  # a sequence number that no session reaches (2**62 or more)
BAD_TRUNCATED = 5  # the datagram was longer than its slot, or its capture was cut
BAD_REASON_TEXT = {
    BAD_SHORT: "shorter than a packet header",
    BAD_BLOCKS: "message blocks do not fill the packet exactly",
    BAD_VERSION: "another protocol, version or channel",
    BAD_SEQUENCE: "impossible sequence number",
    BAD_TRUNCATED: "datagram cut short",
}
SEQUENCE_LIMIT = 1 << 62

# A run: consecutive messages in one stretch of length-prefixed blocks, ready to be decoded.
RUN_OFFSET = 0
RUN_BYTES = 1
RUN_SEQ = 2  # source_seq of the first message
RUN_COUNT = 3  # messages; -1: as many as the bytes hold (files)
RUN_SESSION = 4
RUN_FIELDS = 5

# The state of a decoder, in and out of decode_kernel. It stops when the frames are full and goes on from
# (RUN_INDEX, BYTE_INDEX, MESSAGE_INDEX) at the next call with the same runs.
STATE_RUN_INDEX = 0
STATE_BYTE_INDEX = 1  # bytes of the current run already taken
STATE_MESSAGE_INDEX = 2  # messages of the current run already taken
STATE_NEXT_MESSAGE_SEQ = 3
STATE_STREAM_ID = 4
STATE_EPOCH = 5
STATE_PUBLISH_NS = 6
STATE_MIDNIGHT_NS = 7  # ns since 1970 of the session date's midnight at the exchange
STATE_PROBLEM_COUNT = 8  # all so far; the last PROBLEM_SLOTS of them are in `problems`
STATE_MESSAGE_COUNT = 9  # all messages decoded so far
STATE_FRAME_COUNT = 10  # all frames made so far
STATE_SYMBOL_CHANGES = 11  # an instrument id came with another symbol than before
STATE_STOPPED = 12  # why a file's run ended early: one of STOP_*, position in STATE_BYTE_INDEX
STATE_FIELDS = 16

STOP_NONE = 0
STOP_ZERO_LENGTH = 1  # a zero length prefix: the end of a session, whatever bytes follow
STOP_CUT_SHORT = 2  # the last message leaves the bytes

# A problem: one message that became an UNPARSED frame.
PROBLEM_SEQ = 0
PROBLEM_POSITION = 1  # byte offset of the message's length prefix in the buffer
PROBLEM_REASON = 2  # wire.UnparsedReason
PROBLEM_TYPE = 3
PROBLEM_BYTES = 4
PROBLEM_FIELDS = 5
PROBLEM_SLOTS = 256

TYPE_COUNT = 256  # `counts` holds messages per type byte


@dataclass(frozen=True, slots=True)
class MessageType:
    """One row of an exchange's message table."""

    letter: bytes
    size: int
    name: str


@dataclass(frozen=True)
class ExchangeFormat:
    """One exchange's message format and line protocol. Kernels are imported when first used.

    decode_kernel(data, runs, run_count, state, counts, problems, directory, words) -> frames written
    parse_packets_kernel(data, datagrams, datagram_count, transport_state, packets) -> bad packets
    """

    name: str  # the folder's name: "itch50"
    title: str  # for people: "Nasdaq TotalView-ITCH 5.0"
    message_types: Sequence[MessageType]
    is_prefix_big_endian: bool  # of the 2-byte length before each message
    frames_per_message_max: int
    time_zone: str  # in which the session's date and midnight are meant
    has_orders: bool  # books are built from single orders; else from price levels
    transport_state_size: int
    new_directory: Callable[[], IntArray]  # instrument ids and symbols, as decode_kernel keeps them
    symbol_of: Callable[[IntArray, int], str | None]
    instrument_of: Callable[[IntArray, str], int | None]
    # (identity_0, identity_1, first sequence, message count) -> request packets, within the server's limits
    gap_requests: Callable[[int, int, int, int], list[bytes]]

    def _kernel(self, module: str, name: str) -> Callable[..., Any]:
        kernels = importlib.import_module(f"feeds.{self.name}.{module}")
        found: Callable[..., Any] = getattr(kernels, name)
        return found

    @cached_property
    def decode_kernel(self) -> Callable[..., int]:
        return self._kernel("decode_kernels", "decode_kernel")

    @cached_property
    def parse_packets_kernel(self) -> Callable[..., int]:
        return self._kernel("transport_kernels", "parse_packets_kernel")

    @cached_property
    def hop_kernel(self) -> Callable[..., int]:
        return self._kernel("hop_kernels", "hop_kernel")


def names() -> list[str]:
    """Return the names of all exchange formats: the sub-packages of feeds that have a decoder."""
    import feeds

    folder = Path(feeds.__path__[0])
    packages = [module.name for module in pkgutil.iter_modules(feeds.__path__) if module.ispkg]
    return sorted(name for name in packages if (folder / name / "decode_kernels.py").exists())


def load(name: str) -> ExchangeFormat:
    """Return the format called `name`; an unknown name is a ConfigError that lists the known ones."""
    known = names()
    if name not in known:
        raise ConfigError(f"no exchange format is called {name!r}; known: {', '.join(known)}")
    found = importlib.import_module(f"feeds.{name}").FORMAT
    assert isinstance(found, ExchangeFormat)
    return found
