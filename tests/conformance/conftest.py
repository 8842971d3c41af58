"""The formats under test, and a sample of each one's messages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from feeds import formats
from feeds.decoder import Decoder, new_runs
from feeds.formats import ExchangeFormat
from feeds.wire import FrameArray, empty

MIDNIGHT_NS = 1_577_682_000_000_000_000
SESSION = 0xFFFFFFF0  # the upper half of 32 bits, where signs go wrong


@dataclass(frozen=True)
class Exchange:
    """A format, and one valid message of each of its types, as its own writers make them."""

    format: ExchangeFormat
    messages: tuple[bytes, ...]

    def blocks(self, messages: Iterable[bytes]) -> bytes:
        order = byte_order(self.format)
        return b"".join(len(message).to_bytes(2, order) + message for message in messages)

    def encode(self, frames: FrameArray, decoder: Decoder) -> bytes:
        """Return frames as the exchange's blocks again; formats with times of day are told the midnight."""
        encode_frames = importlib.import_module(f"feeds.{self.format.name}.encode").encode_frames
        known = {"midnight_ns": MIDNIGHT_NS}
        wanted = inspect.signature(encode_frames).parameters
        more = {name: value for name, value in known.items() if name in wanted}
        encoded: bytes = encode_frames(frames, decoder.directory, **more)
        return encoded

    def decoder(self, frame_capacity: int = 512, first_message_seq: int = 1) -> Decoder:
        return Decoder(
            self.format,
            stream_id=0xF0000001,
            epoch=0xF0000002,
            midnight_ns=MIDNIGHT_NS,
            frame_capacity=frame_capacity,
            first_message_seq=first_message_seq,
        )

    def decode(self, decoder: Decoder, data: bytes, message_count: int, first_seq: int = 1) -> FrameArray:
        runs = new_runs(1)
        runs[0] = 0, len(data), first_seq, message_count, SESSION
        batches = [batch.copy() for batch in decoder.decode(data, runs, publish_time_ns=1_234)]
        return np.concatenate(batches) if batches else empty(0)


def byte_order(exchange_format: ExchangeFormat) -> Literal["big", "little"]:
    return "big" if exchange_format.is_prefix_big_endian else "little"


def split_blocks(data: bytes, order: Literal["big", "little"]) -> tuple[bytes, ...]:
    messages = []
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 2], order)
        messages.append(data[position + 2 : position + 2 + length])
        position += 2 + length
    return tuple(messages)


def load_exchange(name: str) -> Exchange:
    exchange_format = formats.load(name)
    writers = importlib.import_module(f"feeds.{name}.encode_kernels")
    buffer = np.zeros(1 << 16, dtype=np.uint8)
    data = buffer[: writers.exercise_kernel(buffer, 0)].tobytes()
    return Exchange(exchange_format, split_blocks(data, byte_order(exchange_format)))


@pytest.fixture(scope="session", params=formats.names())
def exchange(request: pytest.FixtureRequest) -> Exchange:
    return load_exchange(request.param)
