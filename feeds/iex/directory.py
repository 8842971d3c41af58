"""Instrument ids and symbols of IEX for people: the plain face of symbol_kernels.py, which explains them.

Kernels are imported inside the functions, so that naming the format costs nothing.
"""

from __future__ import annotations

import numpy as np

from feeds.errors import ConfigError
from feeds.formats import IntArray
from feeds.iex.messages import SYMBOL_BYTES


def new_directory() -> IntArray:
    """Return an empty directory, as decode_kernel keeps it."""
    from feeds.iex.symbol_kernels import DIRECTORY_WORDS

    return np.zeros(DIRECTORY_WORDS, dtype=np.int64)


def is_symbol(text: str) -> bool:
    is_plain = text.isascii() and text.isprintable() and text.strip() == text
    return is_plain and 1 <= len(text) <= SYMBOL_BYTES


def symbol_word(symbol: str) -> int:
    """Return `symbol` as the word that kernels take: eight bytes, space-padded, little-endian."""
    if not is_symbol(symbol):
        raise ConfigError(f"symbol must be 1 to {SYMBOL_BYTES} printable ASCII characters, was {symbol!r}")
    return int.from_bytes(symbol.encode("ascii").ljust(SYMBOL_BYTES), "little")


def id_of(symbol: str) -> int:
    """Return the id that every adapter gives to `symbol`, whether it was seen or not."""
    from feeds.iex.symbol_kernels import instrument_id_of

    return int(instrument_id_of(symbol_word(symbol)))


def instrument_of(directory: IntArray, symbol: str) -> int | None:
    """Return the id of `symbol` if it has been seen, else None."""
    from feeds.iex.symbol_kernels import find_symbol

    if not is_symbol(symbol):
        return None
    slot = int(find_symbol(directory, symbol_word(symbol)))
    return int(directory[2 * slot + 1]) if slot >= 0 else None


def symbol_of(directory: IntArray, instrument_id: int) -> str | None:
    """Return the symbol of an instrument id that has been seen, else None."""
    from feeds.iex.symbol_kernels import find_id

    slot = int(find_id(directory, instrument_id))
    if slot < 0:
        return None
    return int(directory[2 * slot]).to_bytes(SYMBOL_BYTES, "little").rstrip().decode("ascii")
