"""Nasdaq TotalView-ITCH 5.0 over MoldUDP64, and its day files."""

from __future__ import annotations

from feeds.formats import ExchangeFormat
from feeds.itch50.directory import instrument_of, new_directory, symbol_of
from feeds.itch50.messages import FRAMES_PER_MESSAGE_MAX, MESSAGE_TYPES
from feeds.itch50.transport import TRANSPORT_STATE_SIZE, gap_requests

FORMAT = ExchangeFormat(
    name="itch50",
    title="Nasdaq TotalView-ITCH 5.0",
    message_types=MESSAGE_TYPES,
    is_prefix_big_endian=True,
    frames_per_message_max=FRAMES_PER_MESSAGE_MAX,
    time_zone="America/New_York",
    has_orders=True,
    transport_state_size=TRANSPORT_STATE_SIZE,
    new_directory=new_directory,
    symbol_of=symbol_of,
    instrument_of=instrument_of,
    gap_requests=gap_requests,
)
