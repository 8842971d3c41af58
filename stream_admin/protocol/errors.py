"""The errors of the administration protocol, split by what the caller should do. None quotes a secret."""

from __future__ import annotations

from feeds.errors import TwintapeError

_SHOWN_CHARACTERS_MAX = 60


class AdminError(TwintapeError):
    """Something between the administration server and its clients is not as it must be."""


class ProtocolError(AdminError):
    """A document or a value in it breaks the protocol. Correct the named field and send it again."""

    def __init__(self, field: str, found: object, allowed: str, *, is_secret: bool = False) -> None:
        self.field = field
        self.allowed = allowed
        was = "it is not shown, because it may be a secret" if is_secret else f"was {shown(found)}"
        super().__init__(f"{field} must be {allowed}, {was}")


class TicketRefused(AdminError):
    """A ticket does not open this stream here and now: ask the administration server for another.

    `claim` names the one that failed. What the others say stays unsaid: whoever presents a ticket that is not
    theirs learns nothing from it.
    """

    def __init__(self, claim: str, reason: str) -> None:
        self.claim = claim
        self.reason = reason
        super().__init__(f"ticket refused: {claim} {reason}")


def shown(value: object) -> str:
    """Return a value as an error may quote it: whoever sent it does not choose how long our log line is."""
    # A long text is cut before repr, or an error about 64 KiB would first make a copy of four times that.
    if isinstance(value, str | bytes):
        text = repr(value[:_SHOWN_CHARACTERS_MAX])
        return text if len(value) <= _SHOWN_CHARACTERS_MAX else f"{text}... ({len(value)} long)"
    if isinstance(value, bool | None):
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    return f"a {type(value).__name__}"
