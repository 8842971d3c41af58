"""What a SoupBinTCP connection tells its owner."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from feeds.message_store import MessageBlock
from feeds.soupbintcp.protocol import RejectReason, SoupError


class CloseReason(enum.Enum):
    """Why a connection is over."""

    END_OF_SESSION = "end of session"
    LOGGED_OUT = "logged out"
    LOGIN_REJECTED = "login rejected"
    LOGIN_TIMEOUT = "login timeout"
    PEER_SILENT = "peer silent"
    PEER_CLOSED = "peer closed"
    PROTOCOL_ERROR = "protocol error"
    SLOW_CONSUMER = "slow consumer"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LoginAccepted:
    """The stream begins: the next sequenced message has number `next_sequence`."""

    username: str
    session: str
    requested_sequence: int
    next_sequence: int

    @property
    def skipped_count(self) -> int:
        """How many messages that the client asked for will not come."""
        return max(self.next_sequence - self.requested_sequence, 0) if self.requested_sequence else 0


@dataclass(frozen=True, slots=True)
class LoginRejected:
    username: str
    reason: RejectReason
    detail: str


@dataclass(frozen=True, slots=True)
class SequencedData:
    """Messages `first_sequence`, `first_sequence + 1`, ... in order."""

    first_sequence: int
    block: MessageBlock


@dataclass(frozen=True, slots=True)
class UnsequencedData:
    payload: bytes


@dataclass(frozen=True, slots=True)
class DebugText:
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event of a connection. `next_sequence` is where to resume, 0 before a login."""

    reason: CloseReason
    detail: str
    next_sequence: int
    error: SoupError | None = None


Event = LoginAccepted | LoginRejected | SequencedData | UnsequencedData | DebugText | Closed
