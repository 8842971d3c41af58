"""What a line handler tells its owner: dataclasses, in the order in which things happened.

A range `first` to `last` includes both ends. An event says by its session and numbers where in the stream it
belongs: frames with lower numbers of that session came before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from feeds.formats import LINE_A, LINE_B, LINE_RECOVERY


class Line(IntEnum):
    """Whence a packet came."""

    A = LINE_A
    B = LINE_B
    RECOVERY = LINE_RECOVERY

    def __str__(self) -> str:
        return "recovery" if self is Line.RECOVERY else f"line {self.name}"


@dataclass(frozen=True, slots=True)
class LineEvent:
    """Anything worth telling; `at_ns` is the time that the handler was given."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class SessionJoined(LineEvent):
    """There is a session to follow; its messages from `first` on will be delivered.

    Told when a second packet has spoken for it, if it was joined at the first number seen.
    """

    session: int
    first: int


@dataclass(frozen=True, slots=True)
class HoleOpened(LineEvent):
    """Both lines are behind with these messages. Holes that close at once are counted, not announced."""

    session: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HoleRequested(LineEvent):
    """The re-request server `server` was asked for these messages, for the `attempt`-th time."""

    session: int
    first: int
    last: int
    server: int
    attempt: int


@dataclass(frozen=True, slots=True)
class HoleFilled(LineEvent):
    """These messages of an announced hole arrived after all; `by` is None if several lines mixed them."""

    session: int
    first: int
    last: int
    by: Line | None


@dataclass(frozen=True, slots=True)
class HoleWithdrawn(LineEvent):
    """These messages of an announced hole do not exist yet: a heartbeat named a number too high."""

    session: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class JumpRefused(LineEvent):
    """Packets (`packets` since the last such event) lay too far ahead to be believed, the last at `seq`."""

    session: int
    seq: int
    packets: int


@dataclass(frozen=True, slots=True)
class JumpAccepted(LineEvent):
    """A second packet agreed: the stream did jump, from `first`, which was next, to `seq`."""

    session: int
    first: int
    seq: int


@dataclass(frozen=True, slots=True)
class Lost(LineEvent):
    """These messages could not be had in time. Delivery went on behind them."""

    session: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SessionEnded(LineEvent):
    """The exchange closed the session and everything up to `last` was delivered or reported lost.

    If messages come from beyond `last` all the same, they are delivered, and the end is told again.
    """

    session: int
    last: int


@dataclass(frozen=True, slots=True)
class SessionRolled(LineEvent):
    """Delivery goes on with number 1 of `session`; `previous` will never be delivered again."""

    previous: int
    session: int


@dataclass(frozen=True, slots=True)
class SessionDismissed(LineEvent):
    """Packets of another session came, but ours went on and theirs stopped: they were strays."""

    session: int


@dataclass(frozen=True, slots=True)
class LineSilent(LineEvent):
    """Neither message nor heartbeat on this line since `since_ns`."""

    line: Line
    since_ns: int


@dataclass(frozen=True, slots=True)
class LineBack(LineEvent):
    """A silent line speaks again."""

    line: Line
    silent_ns: int
