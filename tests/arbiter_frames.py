"""Frames for tests of the arbiter, made plainly: what one adapter publishes, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from feeds import wire
from feeds.wire import ADMIN_STREAM, Flag, Kind, Schema, WordArray

STREAM = 7


@dataclass(frozen=True, slots=True)
class Message:
    """One frame, as a test thinks of it. For an administrative one `seq` is its number and `session` is 0."""

    position: int
    seq: int
    session: int = 1
    part: int = 0
    is_last: bool = True
    is_admin: bool = False
    epoch: int = 1
    is_unsynced: bool = False
    instrument: int = 5

    @property
    def key(self) -> tuple[bool, int, int, int]:
        return self.is_admin, self.session, self.seq, self.part

    def at(self, position: int) -> Message:
        return replace(self, position=position)


def words_of(messages: Sequence[Message] | Iterable[Message]) -> WordArray:
    """Return the frames of some messages, as kernels take them."""
    messages = list(messages)
    frames = wire.empty(len(messages))
    for frame, message in zip(frames, messages, strict=True):
        frame["length"], frame["version"] = wire.FRAME_BYTES, wire.VERSION
        frame["kind"] = Kind.ADMIN if message.is_admin else Kind.DATA
        frame["flags"] = (Flag.LAST_PART if message.is_last else 0) | (
            Flag.UNSYNCED if message.is_unsynced else 0
        )
        frame["source_stream_id"] = STREAM | (ADMIN_STREAM if message.is_admin else 0)
        frame["source_session"], frame["source_seq"] = message.session, message.seq
        frame["part"], frame["message_seq"] = message.part, message.position
        frame["schema_id"] = Schema.ADMIN if message.is_admin else Schema.TRADE
        frame["instrument_id"], frame["epoch"] = message.instrument, message.epoch
    return wire.words(frames)


def messages_of(frames: wire.FrameArray) -> list[Message]:
    """Return what frames say, as tests think of it."""
    return [
        Message(
            position=int(frame["message_seq"]),
            seq=int(frame["source_seq"]),
            session=int(frame["source_session"]),
            part=int(frame["part"]),
            is_last=bool(int(frame["flags"]) & Flag.LAST_PART),
            is_admin=int(frame["kind"]) == Kind.ADMIN,
            epoch=int(frame["epoch"]),
            is_unsynced=bool(int(frame["flags"]) & Flag.UNSYNCED),
            instrument=int(frame["instrument_id"]),
        )
        for frame in frames
    ]
