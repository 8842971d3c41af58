"""From an IEX symbol to our instrument id and back.

IEX messages name a symbol and carry no number, so the number is ours to make; and it must be the same in
every adapter, also in one that joined in mid-session, so it can depend on nothing but the symbol.

A symbol of up to six characters out of A-Z and ten suffix marks is a number to the base 37, and 37**6 fits 32
bits: those symbols (all but the test symbols of a real day) have ids of their own that cannot collide. Other
symbols are hashed into what is left, 1.7e9 values: with a hundred of them the chance that any two collide is
3 in a million. Should it happen, both carry the same id in all adapters alike; the second one seen is counted
in STATE_SYMBOL_CHANGES, and `symbol_of` goes on naming the first. The number then goes through a mixer that
maps 32 bits one-to-one, so that tables may use the low bits of an id as they are. 0 means "no instrument".

The directory remembers the symbols seen: an open-addressing table from symbol to id, and one from id to the
place in the first. It is a cache and a phone book, never a source of ids: when it is full, further symbols
get their ids all the same, only more slowly, and `symbol_of` does not know them.

    [0, 2 * SLOT_COUNT)               per slot: the symbol's eight bytes as they came, 0 when free | its id
    [2 * SLOT_COUNT, 3 * SLOT_COUNT)  per slot, placed by id: 1 + the slot of the symbol, 0 when free
    [3 * SLOT_COUNT, ...)             DIRECTORY_COUNT symbols held, DIRECTORY_REFUSED look-ups found it full
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import kernel
from feeds.formats import STATE_FIELDS, STATE_SYMBOL_CHANGES, IntArray
from feeds.iex.messages import SYMBOL_BYTES

SLOT_COUNT = 1 << 17
SYMBOLS_MAX = SLOT_COUNT // 4 * 3  # fuller than that, open addressing walks too far
DIRECTORY_COUNT = 3 * SLOT_COUNT
DIRECTORY_REFUSED = 3 * SLOT_COUNT + 1
DIRECTORY_WORDS = 3 * SLOT_COUNT + 2

_SLOT_MASK = SLOT_COUNT - 1
_BY_ID = 2 * SLOT_COUNT

MARKS = b"#$*+-.=@^~"
ALPHABET = bytes(range(ord("A"), ord("Z") + 1)) + MARKS
BASE = len(ALPHABET) + 1  # digit 0 is "no character"
CODED_LENGTH_MAX = 6
CODED_COUNT = BASE**CODED_LENGTH_MAX
ID_COUNT = 1 << 32
HASHED_COUNT = ID_COUNT - CODED_COUNT
assert BASE == 37
assert HASHED_COUNT > 0

DIGITS = np.zeros(256, dtype=np.int64)
DIGITS[list(ALPHABET)] = np.arange(1, BASE)

# Odd multipliers of a 32-bit mixer (xor-shift, multiply, twice). Written so that a product of 32 bits and one
# of them stays inside int64: the second stands for 0xD35A2D97, which is the same modulo 2**32.
MIX_1 = 0x21F0AAAD
MIX_2 = 0xD35A2D97 - ID_COUNT
_LOW_32 = ID_COUNT - 1
_SPACE = 0x20


@kernel
def mix32(value: int) -> int:
    """Return a one-to-one scrambling of 32 bits; 0 stays 0."""
    value ^= value >> 16
    value = (value * MIX_1) & _LOW_32
    value ^= value >> 15
    value = (value * MIX_2) & _LOW_32
    return value ^ (value >> 15)


@kernel
def symbol_hash(symbol: int) -> int:
    """Return 32 bits that depend on all eight bytes of `symbol`."""
    low = symbol & _LOW_32
    high = (symbol >> 32) & _LOW_32
    return mix32(low ^ mix32(high ^ 0x5BD1E995))


@kernel
def symbol_length(symbol: int) -> int:
    """Return how many characters `symbol` has without padding; 0 if it is blank or not printable ASCII."""
    length = 0
    for index in range(SYMBOL_BYTES):
        character = (symbol >> (8 * index)) & 0xFF
        if character < _SPACE or character > 0x7E:
            return 0
        if character != _SPACE:
            length = index + 1
    return length if symbol & 0xFF != _SPACE else 0


@kernel
def instrument_id_of(symbol: int) -> int:
    """Return the id of a symbol (eight bytes, space-padded, as a little-endian word); 0 if it is not one."""
    length = symbol_length(symbol)
    if length == 0:
        return 0
    code = 0
    is_coded = length <= CODED_LENGTH_MAX
    for index in range(CODED_LENGTH_MAX - 1, -1, -1):
        digit = DIGITS[(symbol >> (8 * index)) & 0xFF] if index < length else 0
        is_coded = is_coded and (digit != 0 or index >= length)
        code = code * BASE + digit
    if is_coded:
        return mix32(code)
    return mix32(CODED_COUNT + symbol_hash(symbol) % HASHED_COUNT)


@kernel
def find_symbol(directory: IntArray, symbol: int) -> int:
    """Return the slot that holds `symbol`, or -1 - the free slot where it belongs."""
    slot = symbol_hash(symbol) & _SLOT_MASK
    while directory[2 * slot] != symbol:  # ends: a quarter of the slots is always free
        if directory[2 * slot] == 0:
            return -1 - slot
        slot = (slot + 1) & _SLOT_MASK
    return slot


@kernel
def find_id(directory: IntArray, instrument_id: int) -> int:
    """Return the slot of the symbol whose id this is, or -1 - the free place of the index for it."""
    place = instrument_id & _SLOT_MASK
    while directory[_BY_ID + place] != 0:
        slot = directory[_BY_ID + place] - 1
        if directory[2 * slot + 1] == instrument_id:
            return int(slot)
        place = (place + 1) & _SLOT_MASK
    return -1 - place


@kernel
def learn_symbol(directory: IntArray, state: IntArray, symbol: int) -> int:
    """Return the id of `symbol`, 0 if it is not one, and keep the pair if it is new and there is room."""
    slot = find_symbol(directory, symbol)
    if slot >= 0:
        return int(directory[2 * slot + 1])
    instrument_id = instrument_id_of(symbol)
    if instrument_id == 0:
        return 0
    if directory[DIRECTORY_COUNT] >= SYMBOLS_MAX:
        directory[DIRECTORY_REFUSED] += 1
        return instrument_id
    free_slot = -1 - slot
    place = find_id(directory, instrument_id)
    directory[2 * free_slot] = symbol
    directory[2 * free_slot + 1] = instrument_id
    directory[DIRECTORY_COUNT] += 1
    if place >= 0:
        state[STATE_SYMBOL_CHANGES] += 1
    else:
        directory[_BY_ID + (-1 - place)] = free_slot + 1
    return instrument_id


def warm_up() -> None:
    directory = np.zeros(DIRECTORY_WORDS, dtype=np.int64)
    learn_symbol(directory, np.zeros(STATE_FIELDS, dtype=np.int64), int.from_bytes(b"A".ljust(8), "little"))
