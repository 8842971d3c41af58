"""Entitlements: what a principal may read and do. Nothing is allowed that none of them allows.

Each names streams by a pattern, instruments by patterns, and rights. Several add up: a message may be read if
one entitlement that is in force at its position covers it. What an entitlement covers on a stream is a span
of positions, `begin_seq` up to but not including `end_seq`; so a grant and its end fall between the same two
messages on every adapter. On streams that it names no span for (made after the grant), it is in force from
the beginning.

Rights other than reading are about what an operator does now, not about messages: they hold from the grant to
the moment of its end. `admin` includes `operate`; neither includes `read`: who may fail a stream over need
not be allowed its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from stream_admin.protocol.errors import AdminError, ProtocolError
from stream_admin.protocol.filters import FilterStep, PatternTexts, StreamFilter
from stream_admin.protocol.forms import Count, Record
from stream_admin.protocol.names import EffectiveSeq, PrincipalName, StreamName
from stream_admin.protocol.patterns import Pattern, PatternSet, PatternText

ENTITLEMENTS_MAX = 256  # in force at once, of one principal
SPANS_MAX = 4_096  # of one entitlement: as many streams as a server may have


class Right(Enum):
    READ = "read"  # the streams' messages
    OPERATE = "operate"  # failover, hand-over, admin messages
    ADMIN = "admin"  # principals, tokens, entitlements, streams


_INCLUDED = {
    Right.READ: frozenset({Right.READ}),
    Right.OPERATE: frozenset({Right.OPERATE}),
    Right.ADMIN: frozenset({Right.ADMIN, Right.OPERATE}),
}


class NotEntitled(AdminError):
    """A principal asked for something that it may not have. An administrator can change that."""

    def __init__(self, principal: str, stream: str, right: Right) -> None:
        self.principal = principal
        self.stream = stream
        self.right = right
        super().__init__(f"{principal} may not {right.value} {stream}")


@dataclass(frozen=True, slots=True)
class Span(Record):
    """Where an entitlement is in force on one stream: from `begin_seq` up to, but not at, `end_seq`."""

    stream: StreamName
    begin_seq: EffectiveSeq
    end_seq: EffectiveSeq | None  # None: for as long as it is not ended

    def check_relations(self) -> None:
        if self.end_seq is not None and self.end_seq < self.begin_seq:
            raise ProtocolError("end_seq", self.end_seq, f"at least begin_seq, which is {self.begin_seq}")

    def covers(self, seq: int) -> bool:
        return self.begin_seq <= seq and (self.end_seq is None or seq < self.end_seq)


@dataclass(frozen=True, slots=True)
class Entitlement(Record):
    """A principal, streams, instruments, rights; and where on each stream it is in force."""

    principal: PrincipalName
    streams: PatternText
    instruments: PatternTexts  # `*` alone: every instrument. Empty where `read` is not among the rights
    rights: Annotated[tuple[Right, ...], Count(len(Right), least=1)]
    spans: Annotated[tuple[Span, ...], Count(SPANS_MAX)] = ()
    is_ended: bool = False

    def check_relations(self) -> None:
        if len(set(self.rights)) != len(self.rights):
            raise ProtocolError("rights", "a right twice", "each right once")
        if (Right.READ in self.rights) != bool(self.instruments):
            allowed = "given with the right to read, and only with it"
            raise ProtocolError("instruments", f"{len(self.instruments)} patterns", allowed)
        pattern, streams = Pattern(self.streams), [span.stream for span in self.spans]
        if len(set(streams)) != len(streams):
            raise ProtocolError("spans", "a stream twice", "one span for each stream")
        for index, stream in enumerate(streams):
            if not pattern.matches(stream):
                raise ProtocolError(f"spans[{index}].stream", stream, f"one that {self.streams!r} means")

    def span_on(self, stream: str) -> Span | None:
        """Return where it is in force on a stream; None if nowhere."""
        if not Pattern(self.streams).matches(stream):
            return None
        for span in self.spans:
            if span.stream == stream:
                return span
        # A stream that was made later: covered from its first message on, unless it came after the end too.
        return None if self.is_ended else Span(stream, 0, None)


def insist_right(entitlements: Iterable[Entitlement], principal: str, stream: str, right: Right) -> None:
    """Raise NotEntitled unless one of the principal's entitlements gives a right on a stream now."""
    for entitlement in entitlements:
        assert entitlement.principal == principal, "another principal's entitlement"
        has_right = any(right in _INCLUDED[held] for held in entitlement.rights)
        if has_right and not entitlement.is_ended and Pattern(entitlement.streams).matches(stream):
            return
    raise NotEntitled(principal, stream, right)


def stream_filter(
    entitlements: Iterable[Entitlement], principal: str, stream: str, *, revision: int, from_seq: int = 0
) -> StreamFilter:
    """Return what a principal may read of a stream, step by step; what lies before `from_seq` is left out.

    Positions before `from_seq` are given the step that is in force there: nobody is sent them any more.
    """
    spans: list[tuple[Span, tuple[str, ...]]] = []
    for entitlement in entitlements:
        assert entitlement.principal == principal, "another principal's entitlement"
        span = entitlement.span_on(stream) if Right.READ in entitlement.rights else None
        if span is not None:
            spans.append((span, entitlement.instruments))
    ends = [seq for span, _ in spans for seq in (span.begin_seq, span.end_seq) if seq is not None]
    steps: list[FilterStep] = []
    for seq in sorted({from_seq, *(end for end in ends if end > from_seq)}):
        texts = (text for span, instruments in spans if span.covers(seq) for text in instruments)
        instruments = PatternSet(texts).texts
        if not steps or steps[-1].instruments != instruments:
            steps.append(FilterStep(seq if steps else 0, instruments))
    return StreamFilter(principal, stream, revision, tuple(steps))


def points_for(pattern: str, streams: Iterable[str], effective_from: Mapping[str, int]) -> dict[str, int]:
    """Return the position of a change on each stream that a pattern means, or say which one was not given.

    A change without a position would take effect at another message on each adapter. So each stream that
    exists must be given one, and no others can be.
    """
    meant = {stream for stream in streams if Pattern(pattern).matches(stream)}
    for stream in sorted(meant - set(effective_from)):
        raise ProtocolError("effective_from", None, f"given for {stream}, which {pattern!r} means")
    for stream in sorted(set(effective_from) - meant):
        raise ProtocolError("effective_from", stream, f"given only for streams that {pattern!r} means")
    return {stream: effective_from[stream] for stream in sorted(meant)}
