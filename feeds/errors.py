"""The errors of feeds/, split by what the caller should do; each carries its facts as attributes."""

from __future__ import annotations


class TwintapeError(Exception):
    """Anything we raise on purpose. The command line prints it as one sentence, without a traceback."""


class ConfigError(TwintapeError):
    """The caller asked for something that cannot be: correct the argument or the configuration."""


class FeedError(TwintapeError):
    """Something on the way from the exchange to a frame went wrong."""


class SourceError(FeedError):
    """The exchange, or a file of its messages, gave something unusable. Another copy may help."""


class SnapshotError(SourceError):
    """A snapshot broke off, is incomplete or contradicts itself. None of it is used; another may do."""

    def __init__(self, message: str, instrument_id: int | None = None) -> None:
        self.instrument_id = instrument_id  # None where it is not about a single instrument's book
        super().__init__(message)


class FrameError(FeedError):
    """A frame breaks its own layout. It must not be passed on."""

    def __init__(self, field: str, found: object, allowed: object, frame_index: int = 0) -> None:
        self.field = field
        self.found = found
        self.allowed = allowed
        self.frame_index = frame_index
        super().__init__(f"frame {frame_index}: {field} must be {allowed}, was {found!r}")


class LimitError(FeedError):
    """A limit on size, count or time was reached; the message names it and the setting that moves it."""


class IllegalTransition(FeedError):
    """A state machine was given an event that its table does not list; its state is unchanged."""
