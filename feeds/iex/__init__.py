"""IEX DEEP 1.0 (and the quote of TOPS 1.6) over IEX-TP."""

from __future__ import annotations

from feeds.formats import ExchangeFormat
from feeds.iex.directory import instrument_of, new_directory, symbol_of
from feeds.iex.messages import FRAMES_PER_MESSAGE_MAX, MESSAGE_TYPES
from feeds.iex.transport import TRANSPORT_STATE_SIZE, gap_requests

FORMAT = ExchangeFormat(
    name="iex",
    title="IEX DEEP 1.0 and TOPS 1.6",
    message_types=MESSAGE_TYPES,
    is_prefix_big_endian=False,
    frames_per_message_max=FRAMES_PER_MESSAGE_MAX,
    time_zone="UTC",  # messages carry whole times, so no midnight is needed
    has_orders=False,
    transport_state_size=TRANSPORT_STATE_SIZE,
    new_directory=new_directory,
    symbol_of=symbol_of,
    instrument_of=instrument_of,
    gap_requests=gap_requests,
)
