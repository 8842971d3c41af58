"""Users of a slab as processes of their own, for tests that kill them.

Churners use the slab for themselves, as fast as they can. Managers and a router do what the messaging server
will do (B3 to B5), in small: a manager stores a body and commits its handle on its ring to the router; the
router commits an instruction on the ring of every manager, the last with the limit, and then advances; each
manager reads the body, relinquishes it with the instruction's position as ticket, and then advances.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from middleware.shm import (
    bell_kernels,
    ring_kernels,
    slab_completion_kernels,
    slab_kernels,
    slab_recovery_kernels,
    system_kernels,
    waiting_kernels,
)
from middleware.shm.ring import Record, RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.slab import Abandoned, SizeClass, Slab, SlabConfig, Verdict
from middleware.shm.slab_completion_kernels import relinquish_kernel
from tests.fault import slab_user_kernels
from tests.fault.slab_user_kernels import churn_kernel
from tests.fault.stepping import become_steppable, pause

SLAB = "bodies"
CONFIG = SlabConfig((SizeClass(64, 24), SizeClass(192, 24)), participants=8)
MANAGERS = 3
STOP_FILE = "stop"  # in the runtime directory: managers send nothing more once it is there
RING_BYTES = 1 << 13
PATIENCE_NS = 2_000_000
ROUNDS = 2_000

MESSAGE = struct.Struct("<qqI")  # handle, serial, checksum of the body
INSTRUCTION = struct.Struct("<qqqqqI")  # handle, manager, its ring's position, serial, limit or 0, checksum
BODY_HEAD = struct.Struct("<qq")  # manager, serial


def ring_names(manager: int) -> tuple[str, str]:
    """Return the names of a manager's ring to the router and of that back to it."""
    return f"up-{manager}", f"down-{manager}"


def make_rings(runtime: Runtime) -> None:
    for manager in range(MANAGERS):
        for name in ring_names(manager):
            make_ring(runtime, name, RING_BYTES)


def churn(path: str, who: str, seed: str) -> None:
    """Recover what a predecessor left, which was passed to nobody, and use the slab for ever."""
    randomness = random.Random(int(seed))
    with Slab.open(Runtime(Path(path)), SLAB, who=who, config=CONFIG) as slab:
        slab.recover(lambda body: Verdict.DISCARD if body.owner == who else Verdict.UNDECIDED)
        ticket = slab.last_ticket + 1
        while True:
            ticket = churn_kernel(
                slab.words, slab.plan, slab.private, randomness.getrandbits(31), ROUNDS, ticket
            )
            assert ticket > 0, f"foreign bytes or a wrong answer: {ticket}"


def last_serial(up: RingProducer) -> int:
    """Return the serial of the last message that a manager committed; 0 if there is none."""
    last = up.last_committed()
    return 0 if last is None else int(MESSAGE.unpack(last.body)[1])


def settle(slab: Slab, who: str, committed_serial: int) -> None:
    """Decide about what the predecessor shared: its tag is the serial, and the ring says how far it came."""

    def decide(body: Abandoned) -> Verdict:
        if body.owner != who:
            return Verdict.UNDECIDED
        return Verdict.KEEP if body.tag <= committed_serial else Verdict.DISCARD

    slab.recover(decide)


def execute(slab: Slab, record: Record) -> None:
    """Do what an instruction says, unless a predecessor has done it."""
    handle, manager, _, serial, limit, checksum = INSTRUCTION.unpack(record.body)
    ticket = record.position + 1
    if ticket > slab.last_ticket:
        body = slab.view(handle).data
        assert zlib.crc32(body) == checksum, f"foreign bytes in message {serial} of manager {manager}"
        assert BODY_HEAD.unpack_from(body) == (manager, serial)
    slab.relinquish(handle, limit=limit or None, ticket=ticket)


def manage(path: str, number: str, seed: str) -> None:
    """Be a connection manager: send messages and execute instructions, for ever."""
    runtime, manager, who = Runtime(Path(path)), int(number), f"manager-{number}"
    randomness = random.Random(int(seed))
    up_name, down_name = ring_names(manager)
    with (
        RingProducer.open(runtime, up_name, who=who) as up,
        RingConsumer.open(runtime, down_name, who=who) as down,
        Slab.open(runtime, SLAB, who=who) as slab,
    ):
        serial = last_serial(up)
        settle(slab, who, serial)
        while True:
            is_sending = not (runtime.path / STOP_FILE).exists()
            for _ in range(randomness.randint(1, 8) if is_sending else 0):
                if not up.wait_room(MESSAGE.size, 0):
                    break
                content = BODY_HEAD.pack(manager, serial + 1) + randomness.randbytes(
                    randomness.randint(0, 150)
                )
                handle = slab.put(content, tag=serial + 1)
                if handle is None:
                    break
                serial += 1
                assert up.append(MESSAGE.pack(handle, serial, zlib.crc32(content))) is not None
            if down.consume(lambda record: execute(slab, record), 16) == 0:
                down.wait(PATIENCE_NS)


def route(path: str, who: str) -> None:
    """Be the router: an instruction for every manager, exactly once, for ever."""
    runtime = Runtime(Path(path))
    with contextlib.ExitStack() as stack:
        ups = [
            stack.enter_context(RingConsumer.open(runtime, ring_names(manager)[0], who=who))
            for manager in range(MANAGERS)
        ]
        downs = [
            stack.enter_context(RingProducer.open(runtime, ring_names(manager)[1], who=who))
            for manager in range(MANAGERS)
        ]
        lasts = [down.last_committed() for down in downs]
        issued = [None if last is None else INSTRUCTION.unpack(last.body)[1:3] for last in lasts]

        def route_next(manager: int, *, is_begun: bool) -> bool:
            """Route the next message of a manager; with `is_begun`, only one that is partly routed."""
            record = ups[manager].peek()
            if record is None or (is_begun and (manager, record.position) not in issued):
                return False
            handle, serial, checksum = MESSAGE.unpack(record.body)
            for target, down in enumerate(downs):
                if issued[target] == (manager, record.position):
                    continue  # by our predecessor, whose last act it was on that ring
                limit = MANAGERS if target == MANAGERS - 1 else 0
                instruction = INSTRUCTION.pack(handle, manager, record.position, serial, limit, checksum)
                while down.append(instruction, PATIENCE_NS) is None:
                    pass
                issued[target] = (manager, record.position)
            ups[manager].advance()
            return True

        for manager in range(MANAGERS):  # what our predecessor had in hand, before anything hides its traces
            route_next(manager, is_begun=True)
        while True:
            routed = [route_next(manager, is_begun=False) for manager in range(MANAGERS)]
            if not any(routed):
                ups[0].wait(PATIENCE_NS // 10)


ROLES = {"churner": churn, "manager": manage, "router": route}


def warm_up() -> None:
    for kernels in (system_kernels, waiting_kernels, bell_kernels, ring_kernels):
        kernels.warm_up()
    for kernels in (slab_kernels, slab_completion_kernels, slab_recovery_kernels, slab_user_kernels):
        kernels.warm_up()


# ---- to be stepped through

STEPPED_TICKET = 5


def relinquish_stepped(path: str, handle: str, limit: str) -> None:
    """Relinquish one body, with a ticket."""
    with Slab.open(Runtime(Path(path)), SLAB, who="stepped") as slab:
        what = (int(handle), int(limit), STEPPED_TICKET)
        become_steppable(relinquish_kernel)
        pause()
        relinquish_kernel(slab.words, slab.plan, slab.private, *what)
        pause()


def put_stepped(path: str) -> None:
    """Allocate a body and share it."""
    with Slab.open(Runtime(Path(path)), SLAB, who="stepped") as slab:
        become_steppable(slab_kernels.allocate_kernel, slab_kernels.share_kernel)
        pause()
        handle = slab_kernels.allocate_kernel(slab.words, slab.plan, slab.private, 8, 1)
        slab_kernels.share_kernel(slab.words, slab.plan, slab.private, handle)
        pause()


STEPPED: dict[str, Callable[..., None]] = {"relinquish": relinquish_stepped, "put": put_stepped}

if __name__ == "__main__":
    warm_up()
    STEPPED[sys.argv[1]](*sys.argv[2:])
