"""Patterns: which instruments, or which streams, somebody means. A small language of its own.

    AAPL     that name alone
    MS*      `*` is any run of characters, also none
    BRK.?    `?` is exactly one character
    ABC\\*    `\\*`, `\\?` and `\\\\` are the characters themselves (exchanges do use `*` in symbols)

Case matters, and a pattern means the whole name. `**` is refused, so that one meaning has few spellings; the
number of stars is bounded, and matching never looks back further than to the last star: its time is at most
the product of the two lengths, whatever the pattern. Nothing from outside becomes a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.forms import Text

PATTERN_LENGTH_MAX = 48
PATTERNS_MAX = 256
STARS_MAX = 8
WHOLE = "*"  # every name there is and will be; the only spelling that is recognised as such

_SHAPE = re.compile(r"(?:[!-)+->@-\[\]-~]|\\[*?\\]|\?|\*(?!\*))+", re.ASCII)
_ANY_RUN, _ANY_ONE = "run", "one"


def _has_few_stars(text: str) -> bool:
    return sum(element == _ANY_RUN for element in _elements(text)) <= STARS_MAX


def _elements(text: str) -> list[str]:
    """Return a pattern's parts: characters, and the marks for `?` and `*` (which are longer than one)."""
    elements, index = [], 0
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
            elements.append(text[index])
        else:
            elements.append({"*": _ANY_RUN, "?": _ANY_ONE}.get(character, character))
        index += 1
    return elements


PATTERN = Text(
    PATTERN_LENGTH_MAX,
    1,
    rf"a pattern (characters, '?', at most {STARS_MAX} '*', no '**'; '\' only before '*', '?', '\')",
    _SHAPE,
    is_allowed=_has_few_stars,
)
PatternText = Annotated[str, PATTERN]


@dataclass(frozen=True)
class Pattern:
    """One pattern, ready to match."""

    text: str

    def __post_init__(self) -> None:
        PATTERN.check(self.text, "pattern")

    @cached_property
    def _parts(self) -> list[str]:
        return _elements(self.text)

    @property
    def is_literal(self) -> bool:
        """Whether it means one name only."""
        return all(len(part) == 1 for part in self._parts)

    @property
    def literal(self) -> str:
        """The one name that a literal pattern means."""
        assert self.is_literal
        return "".join(self._parts)

    def matches(self, name: str) -> bool:
        """Return whether the pattern means this name."""
        parts = self._parts
        part_index = name_index = 0
        star_index, resume_index = -1, 0  # the last star passed, and up to where it has taken characters
        while name_index < len(name):
            part = parts[part_index] if part_index < len(parts) else None
            if part == _ANY_RUN:
                star_index, resume_index = part_index, name_index
                part_index += 1
            elif part is not None and part in (_ANY_ONE, name[name_index]):
                part_index += 1
                name_index += 1
            elif (
                star_index >= 0
            ):  # no fit: the last star takes one character more; earlier ones never need to
                resume_index += 1
                part_index, name_index = star_index + 1, resume_index
            else:
                return False
        return all(part == _ANY_RUN for part in parts[part_index:])


def literal_pattern(name: str) -> str:
    """Return the pattern that means this name alone."""
    return "".join(f"\\{character}" if character in "*?\\" else character for character in name)


class PatternSet:
    """Several patterns at once: a name is meant if one of them means it. The empty set means nothing."""

    __slots__ = ("_literals", "_patterns", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        """Take patterns in any order; what the whole includes, or is given twice, is left out."""
        unique = set(texts)
        self.texts: tuple[str, ...] = (WHOLE,) if WHOLE in unique else tuple(sorted(unique))
        if len(self.texts) > PATTERNS_MAX:
            raise ProtocolError("patterns", f"{len(self.texts)} patterns", f"at most {PATTERNS_MAX} patterns")
        patterns = [Pattern(text) for text in self.texts]
        # Most patterns are plain symbols: those cost one look-up together, however many there are.
        self._literals = frozenset(pattern.literal for pattern in patterns if pattern.is_literal)
        self._patterns = tuple(pattern for pattern in patterns if not pattern.is_literal)

    @property
    def is_whole(self) -> bool:
        """Whether it means everything, by saying so: `?*` might as well, but is not believed to."""
        return self.texts == (WHOLE,)

    @property
    def is_empty(self) -> bool:
        return not self.texts

    def matches(self, name: str) -> bool:
        return name in self._literals or any(pattern.matches(name) for pattern in self._patterns)

    def union(self, others: Iterable[PatternSet]) -> PatternSet:
        return PatternSet([*self.texts, *(text for other in others for text in other.texts)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternSet) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"PatternSet({list(self.texts)})"
