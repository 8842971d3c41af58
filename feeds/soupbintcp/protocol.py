"""The bytes of SoupBinTCP 3.00: packet types, their fields, and what is wrong with a wrong one.

    | length u16, big-endian: 1 + payload | type (1) | payload |

    L  login request    client   username(6) password(10) requested session(10) requested sequence(20)
    A  login accepted   server   session(10) sequence of the next sequenced message(20)
    J  login rejected   server   reason(1)
    S  sequenced data   server   one message; its number is not sent, both sides count
    U  unsequenced data either   one message
    H  heartbeat        server   R heartbeat  client   Z end of session  server   O logout  client   (empty)
    +  debug            either   free text

Text is ASCII. Senders disagree on the side that is padded, so what is read is stripped on both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from feeds.errors import ConfigError, SourceError
from feeds.message_store import MESSAGE_BYTES_MAX, SEQUENCE_MAX

LENGTH_BYTES = 2
PACKET_LENGTH_MAX = 65_535
USERNAME_BYTES = 6
PASSWORD_BYTES = 10
SESSION_BYTES = 10
SEQUENCE_BYTES = 20
_PADDING = b" \x00"


class PacketType(enum.IntEnum):
    """The type byte."""

    LOGIN_REQUEST = ord("L")
    LOGIN_ACCEPTED = ord("A")
    LOGIN_REJECTED = ord("J")
    SEQUENCED_DATA = ord("S")
    UNSEQUENCED_DATA = ord("U")
    SERVER_HEARTBEAT = ord("H")
    CLIENT_HEARTBEAT = ord("R")
    END_OF_SESSION = ord("Z")
    LOGOUT_REQUEST = ord("O")
    DEBUG = ord("+")


class RejectReason(enum.Enum):
    """Why a login was not accepted."""

    NOT_AUTHORISED = "A"
    SESSION_NOT_AVAILABLE = "S"


# Types whose length never varies; all others carry at least the type byte.
EXACT_LENGTH = {
    PacketType.LOGIN_REQUEST: 1 + USERNAME_BYTES + PASSWORD_BYTES + SESSION_BYTES + SEQUENCE_BYTES,
    PacketType.LOGIN_ACCEPTED: 1 + SESSION_BYTES + SEQUENCE_BYTES,
    PacketType.LOGIN_REJECTED: 2,
    PacketType.SERVER_HEARTBEAT: 1,
    PacketType.CLIENT_HEARTBEAT: 1,
    PacketType.END_OF_SESSION: 1,
    PacketType.LOGOUT_REQUEST: 1,
}
assert EXACT_LENGTH[PacketType.LOGIN_REQUEST] == 47
assert EXACT_LENGTH[PacketType.LOGIN_ACCEPTED] == 31


class SoupError(SourceError):
    """A SoupBinTCP connection did not go as it should. Connecting again may help."""


class PacketError(SoupError):
    """The peer sent a packet that the protocol, or this point of it, does not allow."""

    def __init__(self, what: str, found: object, allowed: object) -> None:
        self.field = what
        self.found = found
        self.allowed = allowed
        super().__init__(f"SoupBinTCP {what} must be {allowed}, was {found}")


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """What a client asks for. A blank session is the current one, sequence 0 whatever comes next."""

    username: str
    password: str = field(repr=False)
    session: str = ""
    sequence: int = 1

    def __post_init__(self) -> None:
        _check_text("username", self.username, USERNAME_BYTES)
        _check_text("password", self.password, PASSWORD_BYTES, is_secret=True)
        _check_text("requested session", self.session, SESSION_BYTES)
        _check_sequence("requested sequence", self.sequence)


def packet(kind: PacketType, payload: bytes = b"") -> bytes:
    """Return one packet. Raises ConfigError for a payload that no length can express."""
    if len(payload) > MESSAGE_BYTES_MAX:
        raise ConfigError(f"a payload must be at most {MESSAGE_BYTES_MAX} bytes, was {len(payload)}")
    return (1 + len(payload)).to_bytes(LENGTH_BYTES, "big") + bytes((kind,)) + payload


def encode_login_request(request: LoginRequest) -> bytes:
    """Return the packet for `request`: names padded on the right, session and number on the left."""
    payload = (
        request.username.encode("ascii").ljust(USERNAME_BYTES)
        + request.password.encode("ascii").ljust(PASSWORD_BYTES)
        + request.session.encode("ascii").rjust(SESSION_BYTES)
        + _encode_number(request.sequence)
    )
    return packet(PacketType.LOGIN_REQUEST, payload)


def decode_login_request(payload: bytes) -> LoginRequest:
    """Return the request in a payload of the right length. Raises PacketError, never showing the password."""
    password_begin = USERNAME_BYTES
    session_begin = password_begin + PASSWORD_BYTES
    sequence_begin = session_begin + SESSION_BYTES
    return LoginRequest(
        username=_decode_text("username", payload[:password_begin]),
        password=_decode_text("password", payload[password_begin:session_begin], is_secret=True),
        session=_decode_text("requested session", payload[session_begin:sequence_begin]),
        sequence=decode_number("requested sequence", payload[sequence_begin:]),
    )


def encode_login_accepted(session: str, next_sequence: int) -> bytes:
    """Return the packet that lets a client in."""
    _check_text("session", session, SESSION_BYTES)
    _check_sequence("sequence", next_sequence)
    payload = session.encode("ascii").rjust(SESSION_BYTES) + _encode_number(next_sequence)
    return packet(PacketType.LOGIN_ACCEPTED, payload)


def decode_login_accepted(payload: bytes) -> tuple[str, int]:
    """Return the session and the number of its next sequenced message. Raises PacketError."""
    session = _decode_text("session", payload[:SESSION_BYTES])
    sequence = decode_number("sequence", payload[SESSION_BYTES:])
    if sequence < 1:
        raise PacketError("sequence in login accepted", sequence, "1 or more")
    return session, sequence


def encode_login_rejected(reason: RejectReason) -> bytes:
    """Return the packet that turns a client away."""
    return packet(PacketType.LOGIN_REJECTED, reason.value.encode("ascii"))


def decode_login_rejected(payload: bytes) -> RejectReason:
    """Return the reason. Raises PacketError."""
    for reason in RejectReason:
        if payload == reason.value.encode("ascii"):
            return reason
    raise PacketError("reject reason", payload, " or ".join(repr(reason.value) for reason in RejectReason))


def decode_number(what: str, raw: bytes) -> int:
    """Return a padded ASCII number. Raises PacketError unless it is digits and fits 64 bits."""
    digits = raw.strip(_PADDING)
    # bytes.isdigit knows ASCII digits alone, while int() would take "1_000", "+1" and more.
    if not digits.isdigit():
        raise PacketError(what, raw, "ASCII digits padded with spaces")
    number = int(digits)
    if number > SEQUENCE_MAX:
        raise PacketError(what, number, f"at most {SEQUENCE_MAX}")
    return number


def check_head(length: int, length_max: int) -> None:
    """Raise PacketError unless `length` may stand in front of a packet."""
    if not 1 <= length <= length_max:
        raise PacketError("packet length", length, f"1 to {length_max}")


def check_type(kind: int, allowed: frozenset[PacketType], when: str) -> PacketType:
    """Return the type. Raises PacketError if there is none such, or not at this point."""
    if kind not in allowed:
        names = ", ".join(f"{chr(one)!r}" for one in sorted(allowed))
        raise PacketError(f"packet type {when}", repr(bytes((kind,)))[1:], f"one of {names}")
    return PacketType(kind)


def check_length(kind: PacketType, length: int) -> None:
    """Raise PacketError if this type has one length and this is not it."""
    exact = EXACT_LENGTH.get(kind, length)
    if length != exact:
        raise PacketError(f"length of a packet of type {chr(kind)!r}", length, exact)


def _encode_number(number: int) -> bytes:
    return str(number).encode("ascii").rjust(SEQUENCE_BYTES)


def _decode_text(what: str, raw: bytes, *, is_secret: bool = False) -> str:
    text = raw.strip(_PADDING)
    if not all(0x20 <= byte < 0x7F for byte in text):
        raise PacketError(what, "(not shown)" if is_secret else raw, "printable ASCII padded with spaces")
    return text.decode("ascii")


def _check_text(what: str, text: str, bytes_max: int, *, is_secret: bool = False) -> None:
    shown = "(not shown)" if is_secret else repr(text)
    if len(text) > bytes_max or not all(" " <= letter <= "~" for letter in text) or text != text.strip(" "):
        raise ConfigError(
            f"{what} must be at most {bytes_max} printable ASCII characters without outer spaces, was {shown}"
        )


def _check_sequence(what: str, sequence: int) -> None:
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ConfigError(f"{what} must be 0 to {SEQUENCE_MAX}, was {sequence}")
