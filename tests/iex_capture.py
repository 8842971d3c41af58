"""The real IEX capture through the whole path, once, and what its frames say in the exchange's own words."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feeds import formats as f
from feeds import wire
from feeds.decoder import Decoder
from feeds.iex import FORMAT
from feeds.pcap.reader import CaptureCounts, PcapReader, open_datagrams
from feeds.wire import Schema, StatusType

CAPTURE = Path("iex") / "deep-2023-10-02.pcap.gz"

STATUS_LETTERS = {
    StatusType.SYSTEM: "S",
    StatusType.TRADING: "H",
    StatusType.RETAIL_INTEREST: "I",
    StatusType.OPERATIONAL: "O",
    StatusType.SHORT_SALE: "P",
    StatusType.SECURITY_EVENT: "E",
}


@dataclass(frozen=True)
class DecodedCapture:
    """Everything that came out of a capture."""

    counts: CaptureCounts
    packets: f.IntArray
    frames: wire.FrameArray
    decoder: Decoder

    def symbol(self, instrument_id: int) -> str:
        """Return the symbol of an instrument; one that was never named is an error here."""
        found = self.decoder.symbol_of(int(instrument_id))
        assert found is not None, f"instrument {instrument_id} has no symbol"
        return found


def runs_of(packets: f.IntArray) -> f.IntArray:
    """Return the runs of packets that arrived in order, without loss: one for each packet with data."""
    data = packets[packets[:, f.PACKET_KIND] == f.KIND_DATA]
    runs = np.zeros((len(data), f.RUN_FIELDS), dtype=np.int64)
    runs[:, f.RUN_OFFSET] = data[:, f.PACKET_OFFSET]
    runs[:, f.RUN_BYTES] = data[:, f.PACKET_BYTES]
    runs[:, f.RUN_SEQ] = data[:, f.PACKET_SEQ]
    runs[:, f.RUN_COUNT] = data[:, f.PACKET_COUNT]
    runs[:, f.RUN_SESSION] = data[:, f.PACKET_SESSION]
    return runs


@functools.cache
def decode_capture(path: Path) -> DecodedCapture:
    """Return the frames of a capture whose one line has no gaps."""
    with open_datagrams(path) as capture:
        decoded = decode_reader(capture)
        assert capture.cut is None
        return decoded


def decode_reader(capture: PcapReader) -> DecodedCapture:
    """Return the frames of every packet that a capture delivers, as they come."""
    decoder = Decoder(FORMAT, stream_id=9)
    transport = np.zeros(FORMAT.transport_state_size, dtype=np.int64)
    all_packets = [np.zeros((0, f.PACKET_FIELDS), dtype=np.int64)]
    all_frames = [wire.empty(0)]
    for batch in capture:
        count = len(batch.datagrams)
        packets = np.zeros((count, f.PACKET_FIELDS), dtype=np.int64)
        FORMAT.parse_packets_kernel(batch.arena, batch.datagrams, count, transport, packets)
        all_packets.append(packets)
        all_frames.extend(frames.copy() for frames in decoder.decode(batch.arena, runs_of(packets)))
    return DecodedCapture(capture.counts, np.concatenate(all_packets), np.concatenate(all_frames), decoder)


def messages_of(capture: DecodedCapture) -> Iterator[Mapping[str, Any]]:
    """Yield each source message as its frames tell it: type letter, time, symbol, and fields in IEX units."""
    frames = capture.frames
    schemas = frames["schema_id"]
    typed = {schema: frames.view(wire.FRAMES[Schema(schema)]) for schema in np.unique(schemas)}
    for row in np.flatnonzero(frames["part"] == 0):
        schema = schemas[row]
        frame = typed[schema][row]
        told: dict[str, Any] = {"time": int(frame["event_time_ns"]), "seq": int(frame["source_seq"])}
        if frame["instrument_id"]:
            told["symbol"] = capture.symbol(frame["instrument_id"])
        if schema == Schema.STATUS:
            told["type"] = STATUS_LETTERS[StatusType(int(frame["status_type"]))]
            told["state"] = bytes(frame["state"]).decode()
            told["detail"] = bytes(frame["detail"]).decode()
            told["reason"] = bytes(frame["reason"]).decode()
        elif schema == Schema.LEVEL:
            told["type"] = "8" if frame["side"] == b"B" else "5"
            told |= {"size": int(frame["size"]), "price": int(frame["price"]) // 100_000}
            told["flags"] = int(frame["is_event_complete"])
        elif schema == Schema.TRADE:
            told["type"] = "T"
            told |= {"size": int(frame["size"]), "price": int(frame["price"]) // 100_000}
            told |= {"flags": int(frame["conditions"]), "trade_id": int(frame["trade_id"])}
        else:
            assert schema == Schema.INSTRUMENT, f"the capture has no message of schema {schema}"
            close = typed[Schema.OFFICIAL_PRICE][row + 1]
            assert (close["part"], close["price_type"]) == (1, b"P")
            told["type"] = "D"
            told |= {"flags": int(frame["instrument_flags"]), "lot": int(frame["round_lot"])}
            told |= {"close": int(close["price"]) // 100_000, "tier": int(frame["luld_tier"])}
            assert bytes(frame["symbol"]).decode() == told["symbol"]
        yield told
