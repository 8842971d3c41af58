"""The server's end of a SoupBinTCP connection: who may log in, to what, and what is sent next.

A connection holds a position in a store and frames messages from there as the client takes them, so a
client that is behind costs the server no memory: it lags in the store, not in a queue.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from feeds.errors import ConfigError
from feeds.message_store import MessageNotHeld, MessageStore
from feeds.soupbintcp import protocol
from feeds.soupbintcp.connection import Connection, Move, Parting, State
from feeds.soupbintcp.events import (
    CloseReason,
    DebugText,
    Event,
    LoginAccepted,
    LoginRejected,
    UnsequencedData,
)
from feeds.soupbintcp.framing_kernels import frame_sequenced_kernel
from feeds.soupbintcp.protocol import LoginRequest, PacketType, RejectReason
from feeds.soupbintcp.settings import Settings

SERVER_TRANSITIONS = {
    State.LOGIN: {
        Move.LOGIN_ACCEPTED: State.STREAMING,
        Move.LOGIN_REFUSED: State.REJECTING,
        Move.LOGGED_OUT: State.CLOSING,
        Move.FAILED: State.CLOSING,
        Move.PEER_CLOSED: State.CLOSED,
    },
    State.REJECTING: {
        Move.LOGIN_REJECTED: State.CLOSING,
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

# Sequenced data framed in advance of what the client takes: enough for one large write.
CHUNK_BYTES = 1 << 17
READ_MESSAGES_MAX = 4_096  # more than a chunk holds, unless messages are tiny


class Authenticator(Protocol):
    """Who decides whether a username and a password belong together."""

    def verify(self, username: str, password: str) -> bool: ...


class Accounts:
    """A fixed set of accounts. Neither keeps passwords nor shows them; letter case does not count.

    The protocol wants names and passwords compared without regard to case.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        # Passwords are kept as keyed digests under a key of this process: equally long, so that comparing
        # them takes the same time whatever they are, and of no use to whoever reads a memory dump's text.
        self._key = secrets.token_bytes(32)
        self._nobody = secrets.token_bytes(hashlib.sha256().digest_size)
        self._digests: dict[str, bytes] = {}
        for username, password in passwords.items():
            LoginRequest(username, password)  # checks both against the protocol
            name = username.upper()
            if not name:
                raise ConfigError("username must not be blank")
            if name in self._digests:
                raise ConfigError(f"usernames must differ by more than letter case, {username!r} does not")
            self._digests[name] = self._digest(password)

    def __repr__(self) -> str:
        return f"Accounts({len(self._digests)} accounts)"

    def verify(self, username: str, password: str) -> bool:
        """Return whether they belong together, in the same time for unknown names and wrong passwords."""
        expected = self._digests.get(username.upper(), self._nobody)
        return hmac.compare_digest(self._digest(password), expected)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.upper().encode("ascii"), "sha256")


@dataclass(frozen=True, slots=True)
class Opening:
    """A session found for a client, and the number that it starts from."""

    store: MessageStore
    sequence: int


class SessionDirectory(Protocol):
    """Who decides what a client that may log in gets to read."""

    def open(self, request: LoginRequest) -> Opening | str:
        """Return the opening, or a sentence that says why the session is not available."""
        ...


class StoredSessions:
    """Sessions by name, one of them current: what a blank request means."""

    def __init__(self, current: MessageStore) -> None:
        self._stores: dict[str, MessageStore] = {}
        self._current = current
        self.roll_over(current)

    def roll_over(self, current: MessageStore) -> None:
        """Make `current` what new logins get by default. Earlier sessions stay available by name."""
        known = self._stores.setdefault(current.session, current)
        if known is not current:
            raise ConfigError(f"session must have a name of its own, {current.session!r} is another one's")
        self._current = current

    def forget(self, session: str) -> None:
        """Stop offering an earlier session. Connections that read it go on."""
        if session == self._current.session:
            raise ConfigError(f"session to forget must be an earlier one, {session!r} is current")
        self._stores.pop(session, None)

    def open(self, request: LoginRequest) -> Opening | str:
        store = self._stores.get(request.session) if request.session else self._current
        if store is None:
            return f"session must be blank or one of {sorted(self._stores)}, was {request.session!r}"
        # A number past the next one means that the client has messages of another session of this name.
        # Nothing good comes of counting on; it has to look before it goes on.
        sequence = request.sequence or store.next_sequence
        if not store.first_sequence <= sequence <= store.next_sequence:
            return (
                f"sequence in session {store.session!r} must be {store.first_sequence} to "
                f"{store.next_sequence}, or 0 for the next, was {sequence}"
            )
        return Opening(store, sequence)


class ServerConnection(Connection):
    """One connection of a server, from its acceptance to its end."""

    _transitions = SERVER_TRANSITIONS
    _heartbeat = protocol.packet(PacketType.SERVER_HEARTBEAT)
    _allowed: ClassVar = {
        State.LOGIN: frozenset(
            {
                PacketType.LOGIN_REQUEST,
                PacketType.CLIENT_HEARTBEAT,
                PacketType.LOGOUT_REQUEST,
                PacketType.DEBUG,
            }
        ),
        State.STREAMING: frozenset(
            {
                PacketType.UNSEQUENCED_DATA,
                PacketType.CLIENT_HEARTBEAT,
                PacketType.LOGOUT_REQUEST,
                PacketType.DEBUG,
            }
        ),
    }

    def __init__(
        self,
        authenticator: Authenticator,
        directory: SessionDirectory,
        now_ns: int,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(settings or Settings(), State.LOGIN, now_ns)
        self.username = ""
        self.has_asked = False  # to log in
        self._rejection: LoginRejected | None = None
        self._rejection_ns = 0  # when it is sent
        self._authenticator = authenticator
        self._directory = directory
        self._store: MessageStore | None = None

    @property
    def is_logged_in(self) -> bool:
        """Whether a login was accepted, be the connection open or not."""
        return self._store is not None

    @property
    def next_deadline_ns(self) -> int | None:
        return self._rejection_ns if self.state is State.REJECTING else super().next_deadline_ns

    def on_timer(self, now_ns: int) -> list[Event]:
        if self.state is not State.REJECTING:
            return super().on_timer(now_ns)
        events: list[Event] = []
        if now_ns >= self._rejection_ns:
            self._send_rejection(now_ns, events)
        return events

    @property
    def lag_count(self) -> int:
        """How many messages of the session are there that were not framed for this client yet."""
        return self._store.next_sequence - self.next_sequence if self._store is not None else 0

    def on_messages(self, now_ns: int) -> list[Event]:
        """Frame more, if there are more and the client took what was framed before.

        To be called when the store has grown or ended, and after output was taken.
        """
        events: list[Event] = []
        store = self._store
        if self.state is not State.STREAMING or store is None:
            return events
        if self._output_bytes < CHUNK_BYTES and self.next_sequence < store.next_sequence:
            try:
                data = self._frame(store)
            except MessageNotHeld as error:
                detail = f"the client fell behind what is kept: {error}"
                self._finish(Move.FAILED, CloseReason.SLOW_CONSUMER, detail, now_ns, events)
                return events
            if not self._queue(data, now_ns, events):
                return events
        is_complete = store.is_ended and self.next_sequence == store.next_sequence
        if is_complete and self._queue(protocol.packet(PacketType.END_OF_SESSION), now_ns, events):
            detail = f"session {store.session!r} ended before #{self.next_sequence}"
            reason = CloseReason.END_OF_SESSION
            self._finish(Move.SESSION_ENDED, reason, detail, now_ns, events, parting=Parting.PATIENT)
        return events

    def _frame(self, store: MessageStore) -> bytes:
        target = np.empty(CHUNK_BYTES, np.uint8)
        position = 0
        while self.next_sequence < store.next_sequence:
            block = store.read(self.next_sequence, READ_MESSAGES_MAX)
            count, position = frame_sequenced_kernel(
                block.buffer, block.offsets, block.lengths, target, position
            )
            self.next_sequence += count
            if count < len(block):
                break
        return target[:position].tobytes()

    def _on_packet(self, kind: PacketType, payload: bytes, now_ns: int, events: list[Event]) -> None:
        if kind is PacketType.LOGIN_REQUEST:
            self._on_login(protocol.decode_login_request(payload), now_ns, events)
        elif kind is PacketType.UNSEQUENCED_DATA:
            events.append(UnsequencedData(payload))
        elif kind is PacketType.DEBUG:
            events.append(DebugText(payload.decode("ascii", "replace")))
        elif kind is PacketType.LOGOUT_REQUEST:
            self._drop_output()
            self._finish(Move.LOGGED_OUT, CloseReason.LOGGED_OUT, "the client logged out", now_ns, events)

    def _on_login(self, request: LoginRequest, now_ns: int, events: list[Event]) -> None:
        self.username = request.username
        self.has_asked = True
        if not self._authenticator.verify(request.username, request.password):
            detail = "username and password must belong to an account"
            self._reject(RejectReason.NOT_AUTHORISED, detail, now_ns, events)
            return
        opening = self._directory.open(request)
        if isinstance(opening, str):
            self._reject(RejectReason.SESSION_NOT_AVAILABLE, opening, now_ns, events)
            return
        store, sequence = opening.store, opening.sequence
        self._move(Move.LOGIN_ACCEPTED)
        self._store, self.next_sequence = store, sequence
        self._queue(protocol.encode_login_accepted(store.session, sequence), now_ns, events)
        events.append(LoginAccepted(request.username, store.session, request.sequence, sequence))
        events.extend(self.on_messages(now_ns))

    def _reject(self, reason: RejectReason, detail: str, now_ns: int, events: list[Event]) -> None:
        """Decide to say no. It is said later: who guesses passwords is to have few tries."""
        self._move(Move.LOGIN_REFUSED)
        self._rejection = LoginRejected(self.username, reason, detail)
        self._rejection_ns = now_ns + self.settings.rejection_delay_ns
        events.append(self._rejection)
        if not self.settings.rejection_delay_ns:
            self._send_rejection(now_ns, events)

    def _send_rejection(self, now_ns: int, events: list[Event]) -> None:
        assert self._rejection is not None
        self._queue(protocol.encode_login_rejected(self._rejection.reason), now_ns, events)
        detail = self._rejection.detail
        self._finish(Move.LOGIN_REJECTED, CloseReason.LOGIN_REJECTED, detail, now_ns, events)
