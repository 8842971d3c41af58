"""The slab: message bodies in memory that several processes share and that outlives them (B3, B5).

A participant, such as a connection manager, allocates a body, writes it, shares it and passes its handle on.
Everybody who was given the handle reads the body where it is, and relinquishes it when done; a limit that
travels on the last of these says how many there are, and whoever reaches it frees the body.

    FREE --allocate--> OWNED --share--> SHARED --relinquish: count = limit--> FREE
                         `--free--> FREE

A handle has a generation. A stale one is refused, and never shows another message's bytes.

**Through SIGKILL.** A participant has a seat of its own by its name; the seat of a killed one is its
successor's, who opens the slab under the same name, and nobody else's. What was OWNED by the dead nobody else
has heard of: `recover` frees it. What was SHARED may have been passed on or not, which only the successor can
tell, from the last record on its ring and the `tag` that each body carries: it decides. So share first, then
commit the handle to the ring, with a tag that says where.
Relinquishing with a `ticket` (a number that grows, such as the instruction's position on a ring) is done once
for each ticket: a successor that repeats the instruction in hand changes nothing if it was done already.

A Slab object belongs to one thread; another thread takes a seat of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import numpy as np

from feeds.errors import ConfigError, LimitError
from middleware.shm.arguments import INT64_MAX, integer, whole, whole_word
from middleware.shm.atomics import Words
from middleware.shm.errors import LayoutError, NotFound, ShmError
from middleware.shm.names import checked_name
from middleware.shm.runtime import Runtime
from middleware.shm.seats import Seats
from middleware.shm.slab_completion_kernels import relinquish_kernel
from middleware.shm.slab_kernels import (
    allocate_kernel,
    free_kernel,
    owned_kernel,
    read_kernel,
    share_kernel,
    view_kernel,
)
from middleware.shm.slab_layout import (
    BYTES,
    COUNT,
    COUNT_MAX,
    MY_DONE_TICKET,
    OWNED,
    OWNER_MASK,
    PLAN_SLOTS,
    SEAT_BITS,
    SEAT_MASK,
    SLOT_RECORD_WORDS,
    STATE,
    STATE_BITS,
    STATE_MASK,
    TAG,
    WORD_BYTES,
    SizeClass,
    SlabConfig,
    handle_text,
)
from middleware.shm.slab_members import (
    SEATS_FILE,
    SLAB_FILE,
    Members,
    SlabFile,
    forget,
    make_slab_file,
    open_slab_file,
    registrar,
)
from middleware.shm.slab_recovery_kernels import (
    disown_kernel,
    free_word_kernel,
    heal_kernel,
    held_kernel,
    load_kernel,
    set_done_ticket_kernel,
)
from middleware.shm.slab_slot_kernels import (
    COMPLETED,
    COUNT_EXCEEDED,
    DAMAGED,
    FULL,
    LIMIT_CONFLICT,
    NO_LIMIT,
    NOT_OWNER,
    STALE,
    TOO_LARGE,
    body_at,
    slot_at,
)

__all__ = [
    "Abandoned",
    "CompletionError",
    "NotOwner",
    "Recovery",
    "SizeClass",
    "Slab",
    "SlabConfig",
    "StaleHandle",
    "Verdict",
    "forget",
    "handle_text",
]

log = logging.getLogger(__name__)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_LISTED_AT_ONCE = 4_096


class StaleHandle(ShmError):
    """The body of a handle is gone, or there never was one. Drop the handle."""

    def __init__(self, slab: str, handle: int) -> None:
        self.handle = handle
        super().__init__(f"slab '{slab}': handle {handle_text(handle)} is stale: its body is no longer there")


class NotOwner(ShmError):
    """A body can be written, shared or given back only by who allocated it, and only until it is shared."""

    def __init__(self, slab: str, handle: int) -> None:
        self.handle = handle
        super().__init__(f"slab '{slab}': handle {handle_text(handle)} must be ours, and not shared yet")


class CompletionError(ShmError):
    """Users of a body disagree about how many they are: a mistake in who relinquishes what."""

    def __init__(self, slab: str, handle: int, problem: str) -> None:
        self.handle = handle
        super().__init__(f"slab '{slab}': handle {handle_text(handle)}: {problem}")


class Verdict(Enum):
    """What becomes of a body that a killed participant had shared."""

    KEEP = "its handle was passed on: it is its users' now"
    DISCARD = "its handle was never passed on: free it"
    UNDECIDED = "somebody else knows"


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A body that a killed participant shared, and perhaps passed on."""

    handle: int
    tag: int
    byte_count: int
    relinquished: int
    owner: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery did: slots freed, bodies kept, and what still needs somebody's verdict."""

    completed: int
    owned_freed: int
    shared_freed: int
    kept: int
    undecided: tuple[Abandoned, ...]


class Slab:
    """One participant's view of a slab. Open it with `Slab.open`; use it from one thread."""

    def __init__(
        self, name: str, who: str, file: SlabFile, seats: Seats, members: Members, mine: Words
    ) -> None:
        self.name = name
        self.who = who
        self.config = file.config
        self.words = file.words  # these three are what kernels take
        self.plan = file.plan
        self.private = mine
        self._path = file.path
        self._memory: Bytes = file.words.view(np.uint8)
        self._seats = seats
        self._members = members

    @classmethod
    def open(cls, runtime: Runtime, name: str, *, who: str, config: SlabConfig | None = None) -> Self:
        """Take a seat at a slab; with a configuration, make the slab where it is missing."""
        checked_name(who)
        if config is None:
            runtime.check()
            place = runtime.place("slabs", name)
            if not (place / SLAB_FILE).exists():
                raise NotFound(f"there is no slab '{name}' in {runtime.path}: its first user makes it")
        else:
            place = runtime.make_place("slabs", name)
        seats = Seats(place / SEATS_FILE, is_creator=True)
        try:
            with registrar(seats, who):
                seats.insist_current()
                if config is None:
                    file = open_slab_file(place / SLAB_FILE)
                else:
                    file = make_slab_file(place / SLAB_FILE, name, config, runtime.file_mode)
                members = Members(file, seats)
                mine = members.sit(who)
        except BaseException:
            seats.close()
            raise
        return cls(name, who, file, seats, members, mine)

    def allocate(self, byte_count: int, tag: int = 0) -> int | None:
        """Return the handle of a new body, ours to write, or None while the slab is full.

        The tag is what our successor will be shown should we be killed; let it say where the handle goes.
        """
        self._insist_open()
        size, label = whole("byte_count", byte_count), whole_word("a tag", tag)
        if not 0 <= size <= self.config.body_bytes_max:
            raise LimitError(
                f"slab '{self.name}': a body must be 0 to {self.config.body_bytes_max} bytes (the largest "
                f"of its size classes), was {size}"
            )
        handle = allocate_kernel(self.words, self.plan, self.private, size, label)
        assert handle != TOO_LARGE
        return handle if handle != FULL else None

    def body(self, handle: int) -> Bytes:
        """Return the memory of a body that we own, to write to until it is shared."""
        handle = self._checked(handle)
        byte_count = owned_kernel(self.words, self.plan, self.private, handle)
        return self._bytes(handle, self._accepted(byte_count, handle))

    def share(self, handle: int) -> None:
        """Finish a body: from now on everybody who is given the handle can read it, and nobody may write."""
        handle = self._checked(handle)
        self._accepted(share_kernel(self.words, self.plan, self.private, handle), handle)

    def put(self, data: bytes | bytearray | memoryview | Bytes, tag: int = 0) -> int | None:
        """Allocate, write and share in one go; return the handle, or None while the slab is full."""
        content = np.frombuffer(data, dtype=np.uint8)
        handle = self.allocate(content.size, tag)
        if handle is not None:
            self.body(handle)[:] = content
            self.share(handle)
        return handle

    def view(self, handle: int) -> Bytes:
        """Return a shared body where it is, read-only: good until we relinquish it, and not longer."""
        handle = self._checked(handle)
        byte_count = view_kernel(self.words, self.plan, handle)
        view = self._bytes(handle, self._accepted(byte_count, handle))
        view.flags.writeable = False
        return view

    def read(self, handle: int) -> bytes:
        """Return a copy of a shared body, whole or not at all: safe without a share in it, too."""
        handle = self._checked(handle)
        byte_count = self._accepted(view_kernel(self.words, self.plan, handle), handle)
        target = np.empty(-(-byte_count // WORD_BYTES), dtype=np.int64)
        answer = read_kernel(self.words, self.plan, handle, target)
        # Another message of another length may have its place by now.
        byte_count = self._accepted(STALE if answer == TOO_LARGE else answer, handle)
        return target.tobytes()[:byte_count]

    def relinquish(self, handle: int, *, limit: int | None = None, ticket: int = 0) -> bool:
        """Be done with a body, once; return whether it is gone by that.

        `limit` says how many users relinquish it in all, and is given by one of them. `ticket`, a number that
        grows from 1 on, makes this happen once for each ticket, also when our successor repeats it.
        """
        handle = self._checked(handle)
        limit_given = NO_LIMIT if limit is None else whole("a limit", limit)
        if limit is not None and not 1 <= limit_given <= COUNT_MAX:
            raise LimitError(f"slab '{self.name}': a limit must be 1 to {COUNT_MAX} users, was {limit}")
        number = whole("a ticket", ticket)
        if not 0 <= number < INT64_MAX:
            raise ConfigError(f"a ticket must be 0 (none) to {INT64_MAX - 1}, was {ticket}")
        answer = relinquish_kernel(self.words, self.plan, self.private, handle, limit_given, number)
        return self._accepted(answer, handle) == COMPLETED

    @property
    def last_ticket(self) -> int:
        """The last ticket that we, or a predecessor on our seat, relinquished with; 0 if there is none."""
        return int(self.private[MY_DONE_TICKET])

    def restart_tickets(self) -> None:
        """Begin at 1 again: what gives the tickets, a ring, was made anew."""
        self._insist_open()
        set_done_ticket_kernel(self.words, self.private, 0)

    def free(self, handle: int) -> None:
        """Give back a body that we own and have not shared."""
        handle = self._checked(handle)
        self._accepted(free_kernel(self.words, self.plan, self.private, handle), handle)

    def recover(self, decide: Callable[[Abandoned], Verdict] | None = None) -> Recovery:
        """Deal with what killed participants left. Anybody may do so, any time, and several at once.

        Frees what they owned alone and what everybody has relinquished, and asks `decide` about each body
        that they had shared. What it leaves undecided stays as it is, for another to decide.
        """
        self._insist_open()
        completed = heal_kernel(self.words, self.plan, self.private)
        owned_freed = shared_freed = kept = 0
        undecided = []
        for handle, word in self._held_by_dead():
            if word & STATE_MASK == OWNED:
                owned_freed += free_word_kernel(self.words, self.plan, self.private, handle, word)
                continue
            body = self._abandoned(handle, word)
            if body is None:
                continue  # its users are done with it, or somebody else recovers, too
            verdict = decide(body) if decide is not None else Verdict.UNDECIDED
            if verdict is Verdict.DISCARD and body.relinquished:
                log.warning(
                    "slab '%s': %s of '%s' was to be discarded, but was relinquished %d times: keeping it",
                    self.name,
                    handle_text(handle),
                    body.owner,
                    body.relinquished,
                )
                verdict = Verdict.KEEP
            if verdict is Verdict.DISCARD:
                shared_freed += free_word_kernel(self.words, self.plan, self.private, handle, word)
            elif verdict is Verdict.KEEP:
                kept += disown_kernel(self.words, self.plan, handle, word)
            else:
                undecided.append(body)
        return Recovery(completed, owned_freed, shared_freed, kept, tuple(undecided))

    def _held_by_dead(self) -> Iterator[tuple[int, int]]:
        """Yield handle and state word of every slot whose owner is dead."""
        handles, states = (np.zeros(_LISTED_AT_ONCE, dtype=np.int64) for _ in range(2))
        slot, slot_count = 0, int(self.plan[PLAN_SLOTS])
        dead: set[int] = set()  # for good, while the living have to be asked for again
        while slot < slot_count:
            slot, listed = held_kernel(self.words, self.plan, slot, handles, states)
            owners = (states[:listed] >> STATE_BITS & OWNER_MASK).tolist()
            dead |= {owner for owner in set(owners) - dead if self._members.is_dead(owner, self.private)}
            found = zip(handles[:listed].tolist(), states[:listed].tolist(), owners, strict=True)
            yield from [(handle, word) for handle, word, owner in found if owner in dead]

    def _abandoned(self, handle: int, word: int) -> Abandoned | None:
        record = np.zeros(SLOT_RECORD_WORDS, dtype=np.int64)
        at = slot_at(self.plan, handle)
        if at < 0:
            raise LayoutError(self._path, "state of a slot", f"{word:#018x}", "a word that a slab can write")
        load_kernel(self.words, at, SLOT_RECORD_WORDS, record)
        again = np.zeros(1, dtype=np.int64)
        load_kernel(self.words, at + STATE, 1, again)
        if again[0] != word:
            return None
        relinquished = int(record[COUNT]) >> SEAT_BITS & COUNT_MAX
        owner = self._members.name(word >> STATE_BITS & SEAT_MASK)
        return Abandoned(handle, int(record[TAG]), int(record[BYTES]), relinquished, owner)

    def _bytes(self, handle: int, byte_count: int) -> Bytes:
        begin = body_at(self.plan, handle) * WORD_BYTES
        return self._memory[begin : begin + byte_count]

    def _accepted(self, answer: int, handle: int) -> int:
        """Return an answer that is no refusal; raise what a refusal means."""
        if answer >= 0:
            return answer
        if answer == STALE:
            raise StaleHandle(self.name, handle)
        if answer == NOT_OWNER:
            raise NotOwner(self.name, handle)
        if answer == LIMIT_CONFLICT:
            raise CompletionError(self.name, handle, "its limit was set already, to another number")
        if answer == COUNT_EXCEEDED:
            raise CompletionError(self.name, handle, "it was relinquished more often than its limit allows")
        assert answer == DAMAGED
        field = f"body length of {handle_text(handle)}"
        raise LayoutError(self._path, field, "out of range", "0 to the size of its slot")

    def _checked(self, handle: int) -> int:
        """Return what can be a handle as kernels take it; of anything else there is no body."""
        self._insist_open()
        number = integer("a handle", handle)
        if not 0 < number <= INT64_MAX:
            raise StaleHandle(self.name, number)
        return number

    def _insist_open(self) -> None:
        if not self._seats.is_open:
            raise ShmError(f"slab '{self.name}' was closed by '{self.who}', or by a fork of its process")

    def close(self) -> None:
        """Leave in order: free what is ours alone, leave what we shared to its users, give up the seat."""
        if self._seats.is_open:
            self._members.leave(self.private)
            self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
