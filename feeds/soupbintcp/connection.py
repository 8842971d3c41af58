"""What both ends of a SoupBinTCP connection share: framing, time, output, and the way to an end.

A connection here is a machine without sockets: bytes and the time go in, events come out, and what is to
be sent waits in `take_output`. Times are any monotonic clock in nanoseconds. Nothing that a peer sends
makes a machine raise: it ends the connection, and the last event, `Closed`, says why.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

from feeds.errors import IllegalTransition
from feeds.soupbintcp import protocol
from feeds.soupbintcp.events import Closed, CloseReason, Event
from feeds.soupbintcp.protocol import LENGTH_BYTES, PacketError, PacketType, SoupError
from feeds.soupbintcp.settings import SECOND_NS, Settings

FOREVER_NS = 2**63 - 1


class State(enum.Enum):
    """Where a connection is in its life."""

    IDLE = "idle"  # client only: connected, nothing said yet
    LOGIN = "login"
    REJECTING = "rejecting"  # server only: the answer to the login is no, and is not sent yet
    STREAMING = "streaming"
    CLOSING = "closing"  # the last bytes go out; what comes in is not looked at any more
    CLOSED = "closed"


class Move(enum.Enum):
    """What takes a connection from one state to another."""

    LOGIN_SENT = "login sent"
    LOGIN_ACCEPTED = "login accepted"
    LOGIN_REFUSED = "login refused"
    LOGIN_REJECTED = "login rejected"
    SESSION_ENDED = "session ended"
    LOGGED_OUT = "logged out"
    FAILED = "failed"
    PEER_CLOSED = "peer closed"
    LINGER_EXPIRED = "linger expired"


class Parting(enum.Enum):
    """How an end that leaves the open states goes on to close."""

    AT_ONCE = "at once"  # shut our direction, wait `linger_ns` for the peer's
    PEER_FIRST = "peer first"  # the same, but the peer may close first: it was told, and should
    PATIENT = "patient"  # the same, and a peer that shows life has `drain_ns` to read what is under way


Transitions = Mapping[State, Mapping[Move, State]]


class Connection:
    """The common half of client and server; a subclass knows its packets."""

    _transitions: ClassVar[Transitions]
    _allowed: ClassVar[Mapping[State, frozenset[PacketType]]]
    _heartbeat: ClassVar[bytes]

    def __init__(self, settings: Settings, state: State, now_ns: int) -> None:
        self.settings = settings
        self.state = state
        self.next_sequence = 0
        self.close_event: Closed | None = None
        self._login_deadline_ns = now_ns + settings.login_ns
        self._closing_deadline_ns = 0
        self._shut_ns = 0
        self._is_shut_due = False
        self._parting = Parting.AT_ONCE
        self._received_ns = now_ns
        self._sent_ns = now_ns
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._output_since_ns = 0  # when output began to wait, while there is some
        self._input = bytearray()
        self._input_bytes_wanted = LENGTH_BYTES
        self._login_phase_bytes = 0
        self._is_reading_paused = False

    # What a caller asks.

    @property
    def is_open(self) -> bool:
        """Whether packets still mean something."""
        return self.state in (State.LOGIN, State.STREAMING)

    @property
    def has_output(self) -> bool:
        return self._output_bytes > 0

    @property
    def is_drained(self) -> bool:
        """Whether all that this end will ever send was taken, and its direction should be shut."""
        return self._is_shut_due and not self._output_bytes

    @property
    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do, unless something else happens first."""
        silence_deadline_ns = self._received_ns + self.settings.peer_silence_ns
        if self.state is State.CLOSING:
            if not self._is_shut_due:
                return self._shut_ns
            is_patient = self._parting is Parting.PATIENT
            return min(self._closing_deadline_ns, silence_deadline_ns if is_patient else FOREVER_NS)
        if not self.is_open:
            return None
        deadlines = [self._login_deadline_ns] if self.state is State.LOGIN else []
        if self._output_bytes:
            deadlines.append(self._output_since_ns + self.settings.stall_ns)
        elif self.state is State.STREAMING:
            deadlines.append(self._sent_ns + self.settings.heartbeat_ns)
        if self.state is State.STREAMING and not self._is_reading_paused:
            deadlines.append(silence_deadline_ns)
        return min(deadlines)

    # What happens to a connection.

    def on_bytes(self, data: bytes, now_ns: int) -> list[Event]:
        """Take what arrived and return what it means."""
        events: list[Event] = []
        self._received_ns = now_ns
        if not self.is_open or not data:
            return events
        if self.state is State.LOGIN:
            self._login_phase_bytes += len(data)
        buffer = bytes(data)  # events refer to this memory, so it must not be the caller's to change
        if self._input:
            self._input += data
            # A long packet in many small pieces is looked at once, when it is whole.
            if len(self._input) < self._input_bytes_wanted:
                return events
            buffer = bytes(self._input)
        try:
            consumed = self._consume(buffer, now_ns, events)
        except PacketError as error:
            self._finish(Move.FAILED, CloseReason.PROTOCOL_ERROR, str(error), now_ns, events, error)
            return events
        self._input[:] = buffer[consumed:]
        return events

    def on_timer(self, now_ns: int) -> list[Event]:
        """Do what is due: a heartbeat, or giving up. Calling early or often does no harm."""
        events: list[Event] = []
        settings = self.settings
        deadline_ns = self.next_deadline_ns
        if deadline_ns is None or now_ns < deadline_ns:
            return events
        if self.state is State.CLOSING:
            if self._is_shut_due:
                self._move(Move.LINGER_EXPIRED)
                self._drop_output()
            self._is_shut_due = True
            return events
        silence_ns = now_ns - self._received_ns
        if self.state is State.LOGIN and now_ns >= self._login_deadline_ns:
            detail = f"no login within {settings.login_ns / SECOND_NS:g} s"
            self._finish(Move.FAILED, CloseReason.LOGIN_TIMEOUT, detail, now_ns, events)
        elif (
            self.state is State.STREAMING
            and not self._is_reading_paused
            and silence_ns >= settings.peer_silence_ns
        ):
            detail = f"nothing received for {silence_ns / SECOND_NS:g} s"
            self._finish(Move.FAILED, CloseReason.PEER_SILENT, detail, now_ns, events)
        elif self._output_bytes:
            if now_ns >= self._output_since_ns + settings.stall_ns:
                waited = f"waited {settings.stall_ns / SECOND_NS:g} s (stall_ns)"
                detail = f"{self._output_bytes} bytes of output {waited} and none was taken"
                self._finish(Move.FAILED, CloseReason.SLOW_CONSUMER, detail, now_ns, events)
        elif self.state is State.STREAMING and now_ns >= self._sent_ns + settings.heartbeat_ns:
            self._queue(self._heartbeat, now_ns, events)
        return events

    def on_peer_closed(self, now_ns: int, detail: str = "") -> list[Event]:
        """Note that nothing more will come, whatever the reason."""
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        if self.state is State.CLOSING:
            self._move(Move.PEER_CLOSED)
        else:
            if self._input:
                in_packet = f"{len(self._input)} bytes into a packet that was not completed"
                detail = f"{detail}, {in_packet}" if detail else in_packet
            self._finish(
                Move.PEER_CLOSED, CloseReason.PEER_CLOSED, detail or "the peer closed", now_ns, events
            )
        self._drop_output()
        return events

    def stop(self, now_ns: int, detail: str = "stopped by its owner") -> list[Event]:
        """End the connection from this side without a word of the protocol."""
        events: list[Event] = []
        if self.state not in (State.CLOSING, State.CLOSED):
            self._finish(Move.FAILED, CloseReason.STOPPED, detail, now_ns, events)
        return events

    def pause_reading(self) -> None:
        """Note that bytes are left in the socket on purpose, so that silence proves nothing."""
        self._is_reading_paused = True

    def resume_reading(self, now_ns: int) -> None:
        """Note that bytes are read again: from here on silence counts anew."""
        self._is_reading_paused = False
        self._received_ns = now_ns

    def take_output(self, now_ns: int) -> bytes:
        """Return what is to be sent and forget it here."""
        if not self._output_bytes:
            return b""
        data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._drop_output()
        self._sent_ns = now_ns
        return data

    def send_unsequenced(self, payload: bytes, now_ns: int) -> list[Event]:
        """Queue a message outside the sequence. Raises IllegalTransition before login or after the end."""
        return self._send(PacketType.UNSEQUENCED_DATA, payload, now_ns)

    def send_debug(self, text: str, now_ns: int) -> list[Event]:
        """Queue a line for the people at the other end; what is not ASCII goes as `?`."""
        return self._send(PacketType.DEBUG, text.encode("ascii", "replace"), now_ns)

    # For subclasses.

    def _on_packet(self, kind: PacketType, payload: bytes, now_ns: int, events: list[Event]) -> None:
        raise NotImplementedError

    def _consume(self, buffer: bytes, now_ns: int, events: list[Event]) -> int:
        """Act on every whole packet in `buffer`; return how many bytes they took."""
        position = 0
        while self.is_open:
            available = len(buffer) - position
            if self.state is State.LOGIN:
                # What is left of the buffer may belong to the time after the login.
                self._check_login_phase(self._login_phase_bytes - available)
            if available < LENGTH_BYTES:
                self._input_bytes_wanted = LENGTH_BYTES
                break
            length = int.from_bytes(buffer[position : position + LENGTH_BYTES], "big")
            protocol.check_head(length, self._length_max())
            if available <= LENGTH_BYTES:
                self._input_bytes_wanted = LENGTH_BYTES + 1
                break
            kind = protocol.check_type(
                buffer[position + LENGTH_BYTES], self._allowed[self.state], f"in state {self.state.value}"
            )
            protocol.check_length(kind, length)
            if available < LENGTH_BYTES + length:
                self._input_bytes_wanted = LENGTH_BYTES + length
                break
            end = position + LENGTH_BYTES + length
            position = self._take_packet(kind, buffer, position, end, now_ns, events)
        return position if self.is_open else len(buffer)

    def _take_packet(
        self, kind: PacketType, buffer: bytes, begin: int, end: int, now_ns: int, events: list[Event]
    ) -> int:
        """Act on the packet at `begin`, or on a run of packets that starts with it; return where it ends."""
        self._on_packet(kind, buffer[begin + LENGTH_BYTES + 1 : end], now_ns, events)
        return end

    def _length_max(self) -> int:
        is_known = self.state is State.STREAMING
        return (
            self.settings.packet_length_max
            if is_known
            else min(self.settings.packet_length_max, self.settings.login_phase_bytes_max)
        )

    def _check_login_phase(self, bytes_used: int) -> None:
        if bytes_used > self.settings.login_phase_bytes_max:
            allowed = f"at most {self.settings.login_phase_bytes_max} (login_phase_bytes_max)"
            raise PacketError("bytes before a login", bytes_used, allowed)

    def _send(self, kind: PacketType, payload: bytes, now_ns: int) -> list[Event]:
        if self.state is not State.STREAMING:
            raise IllegalTransition(
                f"{kind.name.lower()} must be sent while streaming, the state was {self.state.value}"
            )
        events: list[Event] = []
        self._queue(protocol.packet(kind, payload), now_ns, events)
        return events

    def _queue(self, data: bytes, now_ns: int, events: list[Event]) -> bool:
        """Add to the output and return True; a peer that left too much of it lying ends the connection."""
        if self._output_bytes + len(data) > self.settings.output_bytes_max:
            detail = (
                f"output must wait at most {self.settings.output_bytes_max} bytes long (output_bytes_max), "
                f"was {self._output_bytes + len(data)}"
            )
            self._finish(Move.FAILED, CloseReason.SLOW_CONSUMER, detail, now_ns, events)
            return False
        if not self._output_bytes:
            self._output_since_ns = now_ns
        self._output.append(data)
        self._output_bytes += len(data)
        return True

    def _drop_output(self) -> None:
        self._output.clear()
        self._output_bytes = 0

    def _move(self, move: Move) -> None:
        target = self._transitions[self.state].get(move)
        if target is None:
            raise IllegalTransition(f"{move.value!r} is not possible in state {self.state.value!r}")
        self.state = target

    def _finish(
        self,
        move: Move,
        reason: CloseReason,
        detail: str,
        now_ns: int,
        events: list[Event],
        error: SoupError | None = None,
        parting: Parting = Parting.AT_ONCE,
    ) -> None:
        """Leave the open states, by `move`, and say so once.

        To close on unread heartbeats of the peer would reset the connection and destroy what is under way
        to it, so closing has a part where we only wait.
        """
        self._move(move)
        if move is Move.FAILED:  # a peer that failed us is owed nothing more
            self._drop_output()
        self._input.clear()
        self._parting = parting
        self._is_shut_due = parting is Parting.AT_ONCE
        self._shut_ns = now_ns + self.settings.courtesy_ns
        is_patient = parting is Parting.PATIENT
        self._closing_deadline_ns = now_ns + (
            self.settings.drain_ns if is_patient else self.settings.linger_ns
        )
        self.close_event = Closed(reason, detail, self.next_sequence, error)
        events.append(self.close_event)
