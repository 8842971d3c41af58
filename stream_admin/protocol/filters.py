"""Filters: which instruments of a stream one principal may read, from which position on.

A filter is a list of steps. Each is in force from its position until the next begins, by message_seq and not
by a clock, so that active and backup change over between the same two messages, and a subscriber that takes
now one now the other sees one change.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

from stream_admin.protocol.errors import ProtocolError
from stream_admin.protocol.forms import Count, Record
from stream_admin.protocol.names import EffectiveSeq, PrincipalName, Revision, StreamName
from stream_admin.protocol.patterns import PATTERNS_MAX, PatternSet, PatternText

STEPS_MAX = 64  # changes that lie ahead at once; passed ones are left out

PatternTexts = Annotated[tuple[PatternText, ...], Count(PATTERNS_MAX, is_sorted_set=True)]


@dataclass(frozen=True, slots=True)
class FilterStep(Record):
    """From `effective_from` on, these instruments; none at all if there are no patterns."""

    effective_from: EffectiveSeq
    instruments: PatternTexts


@dataclass(frozen=True, slots=True)
class StreamFilter(Record):
    """What a principal may read of a stream. Of two for the same pair, the higher revision is the newer."""

    principal: PrincipalName
    stream: StreamName
    revision: Revision
    steps: Annotated[tuple[FilterStep, ...], Count(STEPS_MAX, least=1)]

    def check_relations(self) -> None:
        if self.steps[0].effective_from != 0:
            raise ProtocolError(
                "steps[0].effective_from", self.steps[0].effective_from, "0: the first covers all"
            )
        for index in range(1, len(self.steps)):
            before, here = self.steps[index - 1].effective_from, self.steps[index].effective_from
            if here <= before:
                raise ProtocolError(
                    f"steps[{index}].effective_from", here, f"greater than {before}, the one before"
                )

    def matcher_at(self, seq: int) -> PatternSet:
        """Return the patterns in force for the message at position `seq`."""
        return PatternSet(self.steps[self._step_index(seq)].instruments)

    def next_change_after(self, seq: int) -> int | None:
        """Return the position after `seq` from which on another matcher is in force; or None."""
        index = self._step_index(seq) + 1
        return self.steps[index].effective_from if index < len(self.steps) else None

    def is_whole_from(self, seq: int) -> bool:
        """Return whether all of the stream may be read from `seq` on, for as long as is known.

        Only then may the stream log be given: whoever has mapped a log reads all of it, now and later.
        """
        return all(PatternSet(step.instruments).is_whole for step in self.steps[self._step_index(seq) :])

    def is_nothing_from(self, seq: int) -> bool:
        """Return whether nothing may be read from `seq` on."""
        return not any(step.instruments for step in self.steps[self._step_index(seq) :])

    def _step_index(self, seq: int) -> int:
        return bisect_right(self.steps, max(seq, 0), key=lambda step: step.effective_from) - 1
