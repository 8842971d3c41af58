"""The client's end of a SoupBinTCP connection: log in, count what comes, know where to resume."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from feeds.errors import IllegalTransition
from feeds.message_store import MessageBlock
from feeds.soupbintcp import protocol
from feeds.soupbintcp.connection import Connection, Move, Parting, State
from feeds.soupbintcp.events import (
    CloseReason,
    DebugText,
    Event,
    LoginAccepted,
    LoginRejected,
    SequencedData,
    UnsequencedData,
)
from feeds.soupbintcp.framing_kernels import scan_sequenced_kernel
from feeds.soupbintcp.protocol import LoginRequest, PacketError, PacketType, RejectReason
from feeds.soupbintcp.settings import Settings

CLIENT_TRANSITIONS = {
    State.IDLE: {Move.LOGIN_SENT: State.LOGIN, Move.FAILED: State.CLOSING, Move.PEER_CLOSED: State.CLOSED},
    State.LOGIN: {
        Move.LOGIN_ACCEPTED: State.STREAMING,
        Move.LOGIN_REJECTED: State.CLOSING,
        Move.LOGGED_OUT: State.CLOSING,
        Move.FAILED: State.CLOSING,
        Move.PEER_CLOSED: State.CLOSED,
    },
    State.STREAMING: {
        Move.SESSION_ENDED: State.CLOSING,
        Move.LOGGED_OUT: State.CLOSING,
        Move.FAILED: State.CLOSING,
        Move.PEER_CLOSED: State.CLOSED,
    },
    State.CLOSING: {Move.PEER_CLOSED: State.CLOSED, Move.LINGER_EXPIRED: State.CLOSED},
    State.CLOSED: {},
}

_REJECT_DETAIL = {
    RejectReason.NOT_AUTHORISED: "the server does not know this username and password",
    RejectReason.SESSION_NOT_AVAILABLE: "the server does not have this session from this number on",
}

# Messages that one event holds at most, so that the scratch space stays small: a read from a socket gives
# fewer, unless they are tiny.
_RUN_MESSAGES_MAX = 16_384


class ClientConnection(Connection):
    """One connection of a client, from login to end. For another try, make another."""

    _transitions = CLIENT_TRANSITIONS
    _heartbeat = protocol.packet(PacketType.CLIENT_HEARTBEAT)
    _allowed: ClassVar = {
        State.LOGIN: frozenset(
            {
                PacketType.LOGIN_ACCEPTED,
                PacketType.LOGIN_REJECTED,
                PacketType.SERVER_HEARTBEAT,
                PacketType.DEBUG,
            }
        ),
        State.STREAMING: frozenset(
            {
                PacketType.SEQUENCED_DATA,
                PacketType.UNSEQUENCED_DATA,
                PacketType.SERVER_HEARTBEAT,
                PacketType.END_OF_SESSION,
                PacketType.DEBUG,
            }
        ),
    }

    def __init__(self, request: LoginRequest, now_ns: int, settings: Settings | None = None) -> None:
        super().__init__(settings or Settings(), State.IDLE, now_ns)
        self.request = request
        self.session = ""
        self._offsets = np.empty(_RUN_MESSAGES_MAX, np.int64)
        self._lengths = np.empty(_RUN_MESSAGES_MAX, np.int64)

    def login(self, now_ns: int) -> list[Event]:
        """Queue the login request. Raises IllegalTransition if that was done before."""
        events: list[Event] = []
        self._move(Move.LOGIN_SENT)
        self._login_deadline_ns = now_ns + self.settings.login_ns
        self._queue(protocol.encode_login_request(self.request), now_ns, events)
        return events

    def logout(self, now_ns: int) -> list[Event]:
        """Say good-bye and end. Raises IllegalTransition when there is nothing to leave."""
        if not self.is_open:
            raise IllegalTransition(f"logout must come while connected, the state was {self.state.value}")
        events: list[Event] = []
        if self._queue(protocol.packet(PacketType.LOGOUT_REQUEST), now_ns, events):
            reason = CloseReason.LOGGED_OUT
            self._finish(Move.LOGGED_OUT, reason, "we logged out", now_ns, events, parting=Parting.PEER_FIRST)
        return events

    def _take_packet(
        self, kind: PacketType, buffer: bytes, begin: int, end: int, now_ns: int, events: list[Event]
    ) -> int:
        if kind is not PacketType.SEQUENCED_DATA:
            return super()._take_packet(kind, buffer, begin, end, now_ns, events)
        view = np.frombuffer(buffer, np.uint8)
        count, run_end = scan_sequenced_kernel(
            view, begin, self.settings.packet_length_max, self._offsets, self._lengths
        )
        block = MessageBlock(view, self._offsets[:count].copy(), self._lengths[:count].copy())
        events.append(SequencedData(self.next_sequence, block))
        self.next_sequence += count
        return run_end

    def _on_packet(self, kind: PacketType, payload: bytes, now_ns: int, events: list[Event]) -> None:
        if kind is PacketType.LOGIN_ACCEPTED:
            self._on_accepted(payload, events)
        elif kind is PacketType.LOGIN_REJECTED:
            reason = protocol.decode_login_rejected(payload)
            detail = _REJECT_DETAIL[reason]
            events.append(LoginRejected(self.request.username, reason, detail))
            self._finish(Move.LOGIN_REJECTED, CloseReason.LOGIN_REJECTED, detail, now_ns, events)
        elif kind is PacketType.UNSEQUENCED_DATA:
            events.append(UnsequencedData(payload))
        elif kind is PacketType.DEBUG:
            events.append(DebugText(payload.decode("ascii", "replace")))
        elif kind is PacketType.END_OF_SESSION:
            detail = f"session {self.session!r} ended before #{self.next_sequence}"
            self._finish(Move.SESSION_ENDED, CloseReason.END_OF_SESSION, detail, now_ns, events)

    def _on_accepted(self, payload: bytes, events: list[Event]) -> None:
        session, next_sequence = protocol.decode_login_accepted(payload)
        wanted = self.request.session
        if wanted and session != wanted:
            # Counting on in another session would give wrong numbers to right messages.
            raise PacketError("session in login accepted", repr(session), f"{wanted!r}, as requested")
        self._move(Move.LOGIN_ACCEPTED)
        self.session, self.next_sequence = session, next_sequence
        events.append(LoginAccepted(self.request.username, session, self.request.sequence, next_sequence))
