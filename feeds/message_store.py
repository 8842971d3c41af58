"""Messages of an exchange session kept by number, so that a client can resume where it stopped.

A session is a list that only grows: message 1, 2, 3, ... and at last an end. SoupBinTCP's resume and
MoldUDP64's re-request are two ways of reading the same list, so they share what is here: `MessageBlock`,
a run of messages in one buffer without an object for each, and `MessageStore`, what a server reads from.
`MemoryStore` is the plain one; anything else that can answer `read` may stand in its place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feeds.errors import ConfigError, FeedError
from feeds.message_store_kernels import find_misplaced_kernel, gather_kernel

# SoupBinTCP's 16-bit length counts the type byte as well. MoldUDP64 could carry one byte more, but a
# message that only one of the two protocols can carry is of no use.
MESSAGE_BYTES_MAX = 65_534
SEQUENCE_FIRST = 1
SEQUENCE_MAX = 2**64 - 1


class MessageNotHeld(FeedError):
    """A store was asked for a number that it does not hold: not yet made, or no longer kept."""

    def __init__(self, session: str, sequence: int, first_sequence: int, next_sequence: int) -> None:
        self.session = session
        self.sequence = sequence
        self.first_sequence = first_sequence
        self.next_sequence = next_sequence
        held = f"{first_sequence} to {next_sequence - 1}" if next_sequence > first_sequence else "none"
        super().__init__(f"session {session!r}: sequence must be one that is held ({held}), was {sequence}")


@dataclass(frozen=True, slots=True, eq=False)
class MessageBlock:
    """Messages in order: message i is `buffer[offsets[i] : offsets[i] + lengths[i]]`.

    The three arrays are checked once, when the block is made, and shown read-only, so that whatever runs
    over them may trust them.
    """

    buffer: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, dtype in (("buffer", np.uint8), ("offsets", np.int64), ("lengths", np.int64)):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise ConfigError(
                    f"{name} must be a contiguous one-dimensional array of {np.dtype(dtype)}, "
                    f"was {array.ndim}-dimensional {array.dtype}"
                )
            if array.flags.writeable:  # one array type, so that kernels are compiled once
                array = array.view()
                array.flags.writeable = False
                object.__setattr__(self, name, array)
        if self.offsets.size != self.lengths.size:
            counts = f"{self.offsets.size}, were {self.lengths.size}"
            raise ConfigError(f"lengths must be as many as offsets, {counts}")
        bad = find_misplaced_kernel(self.buffer.size, self.offsets, self.lengths, MESSAGE_BYTES_MAX)
        if bad >= 0:
            raise ConfigError(
                f"message {bad} must be at most {MESSAGE_BYTES_MAX} bytes and lie within the buffer of "
                f"{self.buffer.size}, was {self.lengths[bad]} bytes at offset {self.offsets[bad]}"
            )

    @classmethod
    def of(cls, messages: Iterable[bytes]) -> MessageBlock:
        """Return a block of its own with copies of `messages`."""
        items = list(messages)
        lengths = np.fromiter((len(item) for item in items), np.int64, len(items))
        return cls(np.frombuffer(b"".join(items), np.uint8), np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return int(self.offsets.size)

    def __getitem__(self, index: int) -> bytes:
        offset = int(self.offsets[index])
        return self.buffer[offset : offset + int(self.lengths[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))

    def part(self, begin: int, end: int) -> MessageBlock:
        """Return messages `begin` to `end` (half-open) over the same memory."""
        return MessageBlock(self.buffer, self.offsets[begin:end], self.lengths[begin:end])

    @property
    def message_bytes(self) -> int:
        """The sum of the lengths."""
        return int(self.lengths.sum())


class MessageStore(Protocol):
    """What a server of stored messages needs to know about one session."""

    @property
    def session(self) -> str: ...

    @property
    def first_sequence(self) -> int:
        """The oldest number still held; `next_sequence` when none is."""
        ...

    @property
    def next_sequence(self) -> int:
        """The number that the next message will get."""
        ...

    @property
    def is_ended(self) -> bool:
        """Whether `next_sequence` will stay as it is."""
        ...

    def read(self, sequence: int, count_limit: int) -> MessageBlock:
        """Return one or more messages from `sequence` on, fewer than the limit wherever that is easier.

        Raises MessageNotHeld.
        """
        ...


@dataclass(slots=True, eq=False)
class _Chunk:
    """A stretch of a session in one allocation: filled once, from front to back, then only read."""

    first_sequence: int
    buffer: NDArray[np.uint8]
    ends: NDArray[np.int64]
    count: int = 0

    def append(self, block: MessageBlock, begin: int) -> int:
        """Take messages of `block` from `begin` on while there is room; return how many."""
        taken = gather_kernel(
            block.buffer, block.offsets, block.lengths, begin, self.buffer, self.ends, self.count
        )
        self.count += taken
        return taken

    def read(self, sequence: int, count_limit: int) -> MessageBlock:
        begin = sequence - self.first_sequence
        end = min(begin + count_limit, self.count)
        offsets = np.empty(end - begin, np.int64)
        offsets[0] = self.ends[begin - 1] if begin else 0
        offsets[1:] = self.ends[begin : end - 1]
        return MessageBlock(self.buffer, offsets, self.ends[begin:end] - offsets)


@dataclass(slots=True, eq=False)
class MemoryStore:
    """A session in memory. The oldest messages are let go when more than `retain_bytes` are held.

    What was read stays valid: a block keeps the memory that it lies in.
    """

    session: str
    retain_bytes: int = 256 << 20
    chunk_bytes: int = 1 << 20
    chunk_messages: int = 1 << 15
    is_ended: bool = field(default=False, init=False)
    next_sequence: int = field(default=SEQUENCE_FIRST, init=False)
    _chunks: list[_Chunk] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.chunk_bytes < MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"chunk_bytes must hold one message of {MESSAGE_BYTES_MAX}, was {self.chunk_bytes}"
            )
        if self.chunk_messages < 1:
            raise ConfigError(f"chunk_messages must be 1 or more, was {self.chunk_messages}")
        if self.retain_bytes < 2 * self.chunk_bytes:
            raise ConfigError(
                f"retain_bytes must be two chunks ({2 * self.chunk_bytes}) or more, was {self.retain_bytes}: "
                "the oldest chunk goes whole, and the newest must stay"
            )

    @property
    def first_sequence(self) -> int:
        return self._chunks[0].first_sequence if self._chunks else self.next_sequence

    def append(self, message: bytes) -> int:
        """Add one message and return its number."""
        return self.append_block(MessageBlock.of((message,)))

    def append_block(self, block: MessageBlock) -> int:
        """Add copies of all messages of `block` and return the number of the first."""
        if self.is_ended:
            raise FeedError(f"session {self.session!r} must be open to take messages, but it is ended")
        first_sequence = self.next_sequence
        done = 0
        while done < len(block):
            taken = self._chunks[-1].append(block, done) if self._chunks else 0
            if taken == 0:
                self._add_chunk()
            done += taken
            self.next_sequence += taken
        return first_sequence

    def end(self) -> None:
        """Declare the session complete. Ending it again changes nothing."""
        self.is_ended = True

    def read(self, sequence: int, count_limit: int) -> MessageBlock:
        """Return messages from `sequence` on, as many as lie together in memory and the limit allows."""
        if not self.first_sequence <= sequence < self.next_sequence:
            raise MessageNotHeld(self.session, sequence, self.first_sequence, self.next_sequence)
        if count_limit < 1:
            raise ConfigError(f"count_limit must be 1 or more, was {count_limit}")
        found = bisect_right(self._chunks, sequence, key=lambda chunk: chunk.first_sequence) - 1
        return self._chunks[found].read(sequence, count_limit)

    def _add_chunk(self) -> None:
        while (len(self._chunks) + 1) * self.chunk_bytes > self.retain_bytes:
            del self._chunks[0]
        self._chunks.append(
            _Chunk(
                self.next_sequence,
                np.empty(self.chunk_bytes, np.uint8),
                np.empty(self.chunk_messages, np.int64),
            )
        )
