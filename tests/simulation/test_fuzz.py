"""Damaged packets of both exchanges: no crash, no hang, no frame that violates its schema, nothing skipped.

`make simulate TWINTAPE_LONG=1` tries ten million packets of each exchange.
"""

from __future__ import annotations

import importlib
import random

import numpy as np
import pytest

from feeds import formats, wire
from feeds.compiled import IS_BOUNDS_CHECKED, IS_INTERPRETED
from feeds.errors import FrameError
from feeds.validation import validate
from tests.simulation.fuzzing import PacketFuzzer
from tests.simulation.venues import VENUES

pytestmark = pytest.mark.kernels

POOL_PACKETS = 300
LONG_PACKETS = 10_000_000

# Bytes that fields of both formats take: sides, flags, states, padding, extremes.
LIKELY_BYTES = b"BSYN \0\0\0\1\2QAHTOCX019\x7f\x80\xff"


def good_messages(format_name: str) -> list[bytes]:
    """Return one valid message of every type, as the exchange's own writers make them."""
    exchange = formats.load(format_name)
    writers = importlib.import_module(f"feeds.{format_name}.encode_kernels")
    buffer = np.zeros(8_192, dtype=np.uint8)
    data = buffer[: writers.exercise_kernel(buffer, 0)].tobytes()
    messages = []
    while data:
        size = int.from_bytes(data[:2], "big" if exchange.is_prefix_big_endian else "little")
        messages.append(data[2 : 2 + size])
        data = data[2 + size :]
    assert len(messages) == len(exchange.message_types)
    return messages


def make_pool(format_name: str, seed: int) -> list[bytes]:
    """Return packets of valid messages, and of messages with the right type and size and odd contents."""
    rng = random.Random(seed)
    good = good_messages(format_name)
    types = formats.load(format_name).message_types
    venue = VENUES[format_name]()
    venue.begin_session(0)
    pool = []
    sequence = 1
    for _ in range(POOL_PACKETS):
        messages = [
            rng.choice(good)
            if rng.random() < 0.6
            else kind.letter + bytes(rng.choice(LIKELY_BYTES) for _ in range(kind.size - 1))
            for kind in rng.choices(types, k=rng.randrange(1, 12))
        ]
        venue.publish(messages)
        pool.append(venue.data(sequence, messages, now_ns=1_700_000_000_000_000_000 + sequence))
        sequence += len(messages)
    return pool


@pytest.mark.parametrize("format_name", sorted(VENUES))
def test_damaged_packets_do_no_damage(format_name: str, seed: int, seed_count: int, is_long: bool) -> None:
    packet_count = 10_000
    if IS_INTERPRETED or IS_BOUNDS_CHECKED:
        packet_count = 512 if IS_INTERPRETED else 4_096
    elif is_long:
        packet_count = -(-LONG_PACKETS // seed_count)
    fuzzer = PacketFuzzer(formats.load(format_name), make_pool(format_name, seed), seed)
    report = fuzzer.run(packet_count)
    assert report.packets >= packet_count
    # The damage must reach every stage, or this test says nothing.
    assert report.bad_packets > 0
    assert report.unparsed > 0
    assert report.frames > 1.3 * report.unparsed


@pytest.mark.parametrize("format_name", sorted(VENUES))
def test_the_fuzzer_notices_a_frame_that_violates_its_schema(format_name: str) -> None:
    def spoil_and_check(frames: wire.FrameArray) -> object:
        frames["kind"][:1] = 77
        return validate(frames)

    fuzzer = PacketFuzzer(formats.load(format_name), make_pool(format_name, 0), seed=0)
    with pytest.raises(FrameError, match="kind"):
        fuzzer.run(512, spoil_and_check)
