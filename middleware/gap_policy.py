"""What a subscriber does about a hole in its stream, step by step, each step an event that it can see.

    sibling      wait: the other stream is usually a moment behind
    fillers      take the message from a stream that is out of step
    history      ask the adapters for what is missing, one after the other
    recorder     ask the recorder
    give up      report the range as lost and go on behind it

The policy takes what the arbiter found and the time, and returns what to do. It knows no sockets and no
clock. A hole that shrinks from the left is being filled and is not asked for again; one that grows to the
right, because more is waiting behind it, is the same hole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from feeds.errors import ConfigError, IllegalTransition
from middleware.arbiter import Hole

NS_PER_MS = 1_000_000
PATIENCE_NS_MAX = 3_600_000_000_000


class Step(StrEnum):
    """Where the policy stands with the hole in front of it."""

    WHOLE = "whole"
    SIBLING = "sibling"
    FILLERS = "fillers"
    HISTORY = "history"
    RECORDER = "recorder"


class Move(StrEnum):
    HOLE_SEEN = "hole seen"
    HOLE_GONE = "hole gone"
    PATIENCE_OVER = "patience over"
    ANSWERED_EMPTY = "answered empty"


# Every legal move. Which step follows when patience is over depends on what there is to ask: `_next_step`.
TRANSITIONS: dict[Step, frozenset[Move]] = {
    Step.WHOLE: frozenset({Move.HOLE_SEEN}),
    Step.SIBLING: frozenset({Move.HOLE_GONE, Move.PATIENCE_OVER}),
    Step.FILLERS: frozenset({Move.HOLE_GONE, Move.PATIENCE_OVER}),
    Step.HISTORY: frozenset({Move.HOLE_GONE, Move.PATIENCE_OVER, Move.ANSWERED_EMPTY}),
    Step.RECORDER: frozenset({Move.HOLE_GONE, Move.PATIENCE_OVER, Move.ANSWERED_EMPTY}),
}


@dataclass(frozen=True, slots=True)
class GapPolicyConfig:
    """How long each step may take, and who can be asked. A step with nobody to ask is left out."""

    sibling_ns: int = 20 * NS_PER_MS
    fillers_ns: int = 20 * NS_PER_MS
    history_ns: int = 200 * NS_PER_MS
    recorder_ns: int = 1_000 * NS_PER_MS
    adapters: tuple[str, ...] = ()  # whose history is asked, in this order
    has_recorder: bool = False

    def __post_init__(self) -> None:
        for name in ("sibling_ns", "fillers_ns", "history_ns", "recorder_ns"):
            value = getattr(self, name)
            if not 0 <= value <= PATIENCE_NS_MAX:
                raise ConfigError(f"{name} must be 0 to {PATIENCE_NS_MAX}, was {value}")
        if len(set(self.adapters)) != len(self.adapters):
            raise ConfigError(f"adapters must be different, were {', '.join(self.adapters)}")


# --- what it asks for ---


@dataclass(frozen=True, slots=True)
class AskHistory:
    """Ask an adapter for these positions, both included; `last` is None where nobody knows the end."""

    adapter: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class AskRecorder:
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class AllowFillers:
    """Let the arbiter take messages from streams that are out of step, until the hole is gone."""

    is_allowed: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Go on behind the hole: these positions are lost to this subscriber."""

    first: int
    last: int


Action = AskHistory | AskRecorder | AllowFillers | GiveUp


# --- what it tells ---


@dataclass(frozen=True, slots=True)
class GapOpened:
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class GapStep:
    """The policy has gone a step further with the gap that begins at `first`."""

    first: int
    step: Step
    asked: str = ""  # whose history


@dataclass(frozen=True, slots=True)
class GapFilled:
    first: int
    step: Step  # during which it was filled
    waited_ns: int


@dataclass(frozen=True, slots=True)
class GapGivenUp:
    first: int
    last: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class GapStuck:
    """Nobody knows where the hole ends, so it cannot be given up: the stream is stale until one goes on."""

    first: int
    waited_ns: int


GapEvent = GapOpened | GapStep | GapFilled | GapGivenUp | GapStuck


@dataclass(slots=True)
class GapPolicy:
    """One subscription's policy: call `on_hole` after every arbitration, and when `next_due_ns` has come."""

    config: GapPolicyConfig
    step: Step = Step.WHOLE
    events: list[GapEvent] = field(default_factory=list)
    _hole: Hole | None = None
    _opened_ns: int = 0
    _deadline_ns: int = 0
    _asked_count: int = 0  # adapters asked for this hole
    _is_stuck: bool = False

    @property
    def next_due_ns(self) -> int | None:
        """When to call again although nothing arrived; None while there is no hole to wait for."""
        return None if self.step is Step.WHOLE or self._is_stuck else self._deadline_ns

    def on_hole(self, hole: Hole | None, now_ns: int) -> list[Action]:
        """Take what the arbiter found last, and return what to do about it."""
        actions: list[Action] = []
        if hole is None or (self._hole is not None and hole.first != self._hole.first):
            actions += self._close(now_ns)
        if hole is None:
            return actions
        if self.step is Step.WHOLE:
            self._open(hole, now_ns)
        self._hole = hole
        if now_ns >= self._deadline_ns:
            actions += self._go_on(Move.PATIENCE_OVER, now_ns)
        return actions

    def on_empty_answer(self, now_ns: int) -> list[Action]:
        """Hear that who was asked does not have it: no need to wait longer."""
        return self._go_on(Move.ANSWERED_EMPTY, now_ns)

    def take_events(self) -> list[GapEvent]:
        events, self.events = self.events, []
        return events

    def _insist(self, move: Move) -> None:
        if move not in TRANSITIONS[self.step]:
            raise IllegalTransition(f"a gap at step '{self.step}' cannot have '{move}'")

    def _open(self, hole: Hole, now_ns: int) -> None:
        self._insist(Move.HOLE_SEEN)
        self.step = Step.SIBLING
        self._hole, self._opened_ns, self._asked_count, self._is_stuck = hole, now_ns, 0, False
        self._deadline_ns = now_ns + self.config.sibling_ns
        self.events.append(GapOpened(hole.first, hole.last))

    def _close(self, now_ns: int) -> list[Action]:
        """The hole is gone, or has become another one further on, because its beginning was filled."""
        if self.step is Step.WHOLE:
            return []
        assert self._hole is not None
        self._insist(Move.HOLE_GONE)
        self.events.append(GapFilled(self._hole.first, self.step, now_ns - self._opened_ns))
        was_filling = self.step is not Step.SIBLING
        self.step, self._hole = Step.WHOLE, None
        return [AllowFillers(is_allowed=False)] if was_filling else []

    def _go_on(self, move: Move, now_ns: int) -> list[Action]:
        """Leave the present step for the next one that can help; behind the last one, give up."""
        self._insist(move)
        assert self._hole is not None
        hole, config = self._hole, self.config
        if self._is_stuck:
            return self._give_up(hole, now_ns)
        if self.step is Step.SIBLING:
            self._enter(Step.FILLERS, hole, now_ns + config.fillers_ns)
            return [AllowFillers(is_allowed=True)]
        if self.step in (Step.FILLERS, Step.HISTORY) and self._asked_count < len(config.adapters):
            adapter = config.adapters[self._asked_count]
            self._asked_count += 1
            self._enter(Step.HISTORY, hole, now_ns + config.history_ns, adapter)
            return [AskHistory(adapter, hole.first, hole.last)]
        if self.step is not Step.RECORDER and config.has_recorder:
            self._enter(Step.RECORDER, hole, now_ns + config.recorder_ns)
            return [AskRecorder(hole.first, hole.last)]
        return self._give_up(hole, now_ns)

    def _enter(self, step: Step, hole: Hole, deadline_ns: int, asked: str = "") -> None:
        self.step, self._deadline_ns = step, deadline_ns
        self.events.append(GapStep(hole.first, step, asked))

    def _give_up(self, hole: Hole, now_ns: int) -> list[Action]:
        waited_ns = now_ns - self._opened_ns
        if hole.last is None:
            if not self._is_stuck:
                self._is_stuck = True
                self.events.append(GapStuck(hole.first, waited_ns))
            return []
        self.events.append(GapGivenUp(hole.first, hole.last, waited_ns))
        self.step, self._hole = Step.WHOLE, None
        return [AllowFillers(is_allowed=False), GiveUp(hole.first, hole.last)]
