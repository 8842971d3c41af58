"""Seeded random numbers in integers only, so that a seed gives the same bytes on every machine.

The generator's state is word RNG of an int64 array that its owner keeps for other things as well.
"""

from __future__ import annotations

import numpy as np

from feeds.compiled import i64, kernel
from feeds.formats import IntArray

RNG = 0  # never 0 itself

_LOW_57 = (1 << 57) - 1
_LOW_63 = (1 << 63) - 1


@kernel
def draw(state: IntArray) -> int:
    """Return 63 random bits (Marsaglia's xorshift: shifts wrap silently with and without the compiler)."""
    bits = state[RNG]
    bits ^= bits << i64(13)
    bits ^= (bits >> i64(7)) & i64(_LOW_57)
    bits ^= bits << i64(17)
    state[RNG] = bits
    return i64(bits & i64(_LOW_63))


@kernel
def draw_below(state: IntArray, limit: int) -> int:
    """Return a number in [0, limit), for limits below 2**31."""
    return ((draw(state) >> i64(31)) * limit) >> i64(32)


def warm_up() -> None:
    draw_below(np.ones(1, np.int64), 2)
