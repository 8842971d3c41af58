"""How lost ITCH messages are asked for: requests to a MoldUDP64 re-request server, cut to what it answers.

feeds/moldudp64.py knows the packets; here is what this feed does with them.
"""

from __future__ import annotations

from feeds.errors import ConfigError
from feeds.formats import SEQUENCE_LIMIT

TRANSPORT_STATE_SIZE = 3  # int64s that transport_kernels keeps between calls

# A server answers one request with one packet, however much was asked for. 36 add orders, the commonest of
# the large messages, fill a packet of 1,400 bytes: asking for more at once would leave the rest to another
# round trip, asking for less would spend the server's request limit on half-empty packets.
REQUEST_MESSAGES_MAX = 36


def session_identity(session: bytes) -> tuple[int, int]:
    """Return a session's ten bytes as the two integers that packet descriptors carry."""
    if len(session) != 10:
        raise ConfigError(f"a MoldUDP64 session must be 10 bytes, was {session!r}")
    return int.from_bytes(session[:8], "little", signed=True), int.from_bytes(session[8:], "little")


def session_of_identity(identity_0: int, identity_1: int) -> bytes:
    """Return the ten bytes that `session_identity` took."""
    return int(identity_0).to_bytes(8, "little", signed=True) + int(identity_1).to_bytes(2, "little")


def gap_requests(identity_0: int, identity_1: int, first_seq: int, message_count: int) -> list[bytes]:
    """Return the request packets that together ask for `message_count` messages from `first_seq` on."""
    from feeds.moldudp64 import RequestPacket, encode_request  # pulls in numpy; formats are imported by name

    if first_seq < 1 or message_count < 1 or first_seq + message_count > SEQUENCE_LIMIT:
        raise ConfigError(
            f"a request must be for 1 or more messages between 1 and {SEQUENCE_LIMIT - 1}, "
            f"was for {message_count} from {first_seq}"
        )
    session = session_of_identity(identity_0, identity_1)
    end = first_seq + message_count
    return [
        encode_request(RequestPacket(session, begin, min(REQUEST_MESSAGES_MAX, end - begin)))
        for begin in range(first_seq, end, REQUEST_MESSAGES_MAX)
    ]
