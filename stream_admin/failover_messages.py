"""What happens to an adapter group, and what is to be done about it: the words between decisions and shell.

Events come in with the time, actions go out. A position is the message_seq that was published last; an epoch
is the highest that an adapter knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from feeds.errors import ConfigError
from stream_admin.failover_states import AdapterState, GroupPhase

EPOCH_MAX = 2**32 - 1  # the frame's field
NUMBER_MAX = 2**63 - 1
EVIDENCE_CHARS_MAX = 500
Evidence = tuple[tuple[str, int | str], ...]


class Sync(Enum):
    """What an adapter says of itself."""

    JOINING = "joining"
    SYNCHRONISED = "synchronised"
    UNSYNCHRONISED = "unsynchronised"


class Complaint(Enum):
    """What a subscriber says of its active stream."""

    SILENT = "silent"
    BROKEN = "broken"
    BEHIND = "behind"


class Cause(Enum):
    """Why a role changes; every audit entry of a change has one."""

    FOUNDING = "the stream is new"
    DEAD = "the active is dead"
    STALE = "the active is behind its sibling"
    LINES_DOWN = "the active has lost its source lines"
    OUT_OF_STEP = "the active is unsynchronised"
    REPORTED = "subscribers report the active"
    UNCONFIRMED = "the grant was not confirmed"
    COMMAND = "an operator's command"
    HAND_OVER = "a planned hand-over"
    HAND_OVER_ABORTED = "a hand-over was aborted"
    RENEWED = "a change came to nothing, and the store may remember it"
    LEAST_BAD = "no synchronised adapter came back in time"


class AlarmKind(Enum):
    NO_CANDIDATE = "no synchronised adapter to promote"
    UNSYNCHRONISED_PROMOTED = "an unsynchronised adapter was promoted"
    TOO_MANY_FAILOVERS = "too many failovers, an operator must act"
    STORE_SLOW = "the store does not confirm an epoch"
    STORE_BEHIND = "an adapter knows a newer epoch than the store"
    IMPOSTOR = "an adapter claims an epoch that another holds"
    SERVER_STALLED = "this server stood still"


def _check_number(what: str, value: int, maximum: int = NUMBER_MAX) -> None:
    if not 0 <= value <= maximum:
        raise ConfigError(f"{what} must be 0 to {maximum}, was {value}")


# ---- events


@dataclass(frozen=True, slots=True)
class AdapterJoined:
    adapter: str
    incarnation: int  # grows with every start of the adapter


@dataclass(frozen=True, slots=True)
class AdapterLeft:
    adapter: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    adapter: str
    incarnation: int
    number: int  # grows within an incarnation: what was overtaken on the way is not believed
    epoch: int
    is_active: bool
    position: int
    session: int
    source_seq: int
    source_time_ns: int  # the exchange's clock in the newest message
    sync: Sync
    lines_up: int
    lag_ns: int = (
        0  # the adapter's clock less the exchange's: for people; clocks of two hosts are not compared
    )

    def __post_init__(self) -> None:
        _check_number(f"heartbeat of {self.adapter}: epoch", self.epoch, EPOCH_MAX)
        for field in (
            "incarnation",
            "number",
            "position",
            "session",
            "source_seq",
            "source_time_ns",
            "lines_up",
        ):
            _check_number(f"heartbeat of {self.adapter}: {field}", getattr(self, field))


@dataclass(frozen=True, slots=True)
class SubscribersCounted:
    principal_count: int  # principals with at least one subscriber


@dataclass(frozen=True, slots=True)
class SubscriberReport:
    principal: str
    adapter: str
    epoch: int
    complaint: Complaint
    position: int  # what the subscriber has delivered
    evidence: str

    def __post_init__(self) -> None:
        _check_number(f"report of {self.principal}: epoch", self.epoch, EPOCH_MAX)
        _check_number(f"report of {self.principal}: position", self.position)
        if len(self.evidence) > EVIDENCE_CHARS_MAX:
            raise ConfigError(
                f"report of {self.principal}: evidence must have at most {EVIDENCE_CHARS_MAX} characters, "
                f"had {len(self.evidence)}"
            )


@dataclass(frozen=True, slots=True)
class EpochPersisted:
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochNotPersisted:
    """The store failed; whether the epoch is durable is not known, so its number is not used again."""

    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. One is due every heartbeat_ns."""


@dataclass(frozen=True, slots=True)
class Command:
    command_id: str
    operator: str


@dataclass(frozen=True, slots=True)
class FailOver(Command):
    """Now, or at a named position; `is_forced` also takes an adapter that is not synchronised."""

    to: str | None = None
    at_seq: int | None = None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class HandOver(Command):
    to: str
    at_seq: int | None = None


@dataclass(frozen=True, slots=True)
class FailBack(Command):
    """A hand-over to the preferred adapter."""

    at_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Drain(Command):
    """The adapter is not to be promoted, and hands over if it is active."""

    adapter: str


@dataclass(frozen=True, slots=True)
class Undrain(Command):
    adapter: str


Event = (
    AdapterJoined
    | AdapterLeft
    | Heartbeat
    | SubscribersCounted
    | SubscriberReport
    | EpochPersisted
    | EpochNotPersisted
    | Tick
    | FailOver
    | HandOver
    | FailBack
    | Drain
    | Undrain
)

# ---- what the store keeps


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Who holds an epoch, from which position on, and after whom."""

    epoch: int
    adapter: str
    incarnation: int
    from_seq: int
    cause: Cause
    hand_over_from: str | None = None  # until from_seq this one is active, with the epoch before
    last_position: int = 0  # the highest that anybody had reported


@dataclass(frozen=True, slots=True)
class StoredGroup:
    record: EpochRecord | None = None
    drained: tuple[str, ...] = ()


# ---- actions


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class PersistDrained:
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    adapter: str
    incarnation: int
    epoch: int
    from_seq: int


@dataclass(frozen=True, slots=True)
class Fence:
    """From position `from_seq` on (0: at once) the adapter is not active: `epoch` owns the stream."""

    adapter: str
    incarnation: int
    epoch: int
    from_seq: int = 0


@dataclass(frozen=True, slots=True)
class Directory:
    """What subscribers are told; it follows from durable epochs only."""

    stream: str
    epoch: int
    active: str | None
    from_seq: int
    next_active: str | None  # of a hand-over under way, at from_seq
    adapters: tuple[tuple[str, AdapterState], ...]


@dataclass(frozen=True, slots=True)
class PushToSubscribers:
    directory: Directory


@dataclass(frozen=True, slots=True)
class Audit:
    at_ns: int
    phase: GroupPhase
    decision: str
    reason: str
    evidence: Evidence = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    kind: AlarmKind
    text: str


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    kind: AlarmKind


@dataclass(frozen=True, slots=True)
class Answer:
    """To an operator's command."""

    command_id: str
    is_accepted: bool
    reason: str


Action = (
    PersistEpoch | PersistDrained | Grant | Fence | PushToSubscribers | Audit | Alarm | AlarmCleared | Answer
)
