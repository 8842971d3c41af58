"""Which symbol a stock locate stands for today. Locates are ITCH's instrument ids and ours as well.

The directory is an int64 for each locate: the symbol's eight bytes as they are on the wire, 0 for none seen.
"""

from __future__ import annotations

import numpy as np

from feeds.formats import IntArray
from feeds.itch50.messages import LOCATE_COUNT

SYMBOL_BYTES = 8


def new_directory() -> IntArray:
    return np.zeros(LOCATE_COUNT, dtype=np.int64)


def symbol_of(directory: IntArray, instrument_id: int) -> str | None:
    """Return the symbol of an instrument, or None if no message has named it yet."""
    if not 0 <= instrument_id < LOCATE_COUNT or directory[instrument_id] == 0:
        return None
    raw = int(directory[instrument_id]).to_bytes(SYMBOL_BYTES, "little", signed=True)
    return raw.decode("latin-1").rstrip(" ")


def instrument_of(directory: IntArray, symbol: str) -> int | None:
    """Return the instrument that `symbol` stands for, or None if no message has named it yet."""
    try:
        raw = symbol.encode("latin-1")
    except UnicodeEncodeError:
        return None
    if not 0 < len(raw) <= SYMBOL_BYTES:
        return None
    word = int.from_bytes(raw.ljust(SYMBOL_BYTES), "little", signed=True)
    found = np.flatnonzero(directory == word)
    return int(found[0]) if found.size else None
