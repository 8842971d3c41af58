"""Numbers that callers give, made plain integers before they reach a kernel or change anything.

A kernel is compiled anew, which takes seconds, for every type of number that it is given: a float, or an
integer beyond 64 bits, must never get as far as that.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from feeds.errors import ConfigError

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_EXACT_FLOAT_MAX = 1 << 53  # from here on a float stands for several integers


def integer(what: str, number: Any) -> int:
    """Return an integer of any kind as an `int`, for what nobody calculates with floats: handles."""
    try:
        return operator.index(number)
    except TypeError:
        raise ConfigError(f"{what} must be an integer, was {number!r}") from None


def whole(what: str, number: Any) -> int:
    """Return a number that is whole as an `int`: an integer of any kind, or a float such as 1e6.

    Anything else is a ConfigError that begins with `what`.
    """
    try:
        return operator.index(number)
    except TypeError:
        pass
    if isinstance(number, float | np.floating):
        near = float(number)
        if near.is_integer() and abs(near) <= _EXACT_FLOAT_MAX:
            return int(near)
    raise ConfigError(f"{what} must be a whole number, was {number!r}")


def whole_word(what: str, number: Any) -> int:
    """Return a whole number that fits a word of shared memory."""
    found = whole(what, number)
    if not INT64_MIN <= found <= INT64_MAX:
        raise ConfigError(f"{what} must be a signed 64-bit integer, was {found}")
    return found
