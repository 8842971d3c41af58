"""The ends of two rings as processes of their own, for tests that kill them: a producer, and a relay between.

A relay is what the router is: it commits what it makes of a record on the second ring and only then advances
on the first. When it starts, the last record of the second ring tells it what its predecessor still did.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from middleware.shm import bell_kernels, ring_kernels, system_kernels, waiting_kernels
from middleware.shm.ring import RingConsumer, RingProducer
from middleware.shm.runtime import Runtime
from tests.fault import ring_relay_kernels
from tests.fault.ring_relay_kernels import (
    BODY_BYTES_MAX,
    RELAYED_BYTES_MAX,
    SCRATCH_WORDS,
    produce_kernel,
    relay_kernel,
)
from tests.fault.stepping import become_steppable, pause

FIRST_RING, SECOND_RING = "first", "second"
PATIENCE_NS = 20_000_000
TOGETHER = (1, 1, 2, 7, 64)  # how many records are committed at once


def last_number(producer: RingProducer) -> int:
    """Return the number of the last record on the first ring; -1 on a new one."""
    last = producer.last_committed()
    return -1 if last is None else int.from_bytes(last.body[:8], "little")


def passed_on_before(outward: RingProducer) -> int:
    """Return the first ring's position of the record that was last passed on; -1 if there is none."""
    last = outward.last_committed()
    return -1 if last is None else int.from_bytes(last.body[:8], "little")


def produce(path: str, who: str, seed: str) -> None:
    """Commit records, from where the last producer stopped, for ever."""
    randomness = random.Random(int(seed))
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    with RingProducer.open(Runtime(Path(path)), FIRST_RING, who=who) as producer:
        number = last_number(producer) + 1
        while True:
            together = randomness.choice(TOGETHER)
            count = produce_kernel(
                producer.words, producer.state, scratch, number, randomness.randint(1, 400), together
            )
            assert count >= 0, "the first ring is damaged"
            number += count
            producer.wait_room(BODY_BYTES_MAX, PATIENCE_NS)


def relay(path: str, who: str, seed: str) -> None:
    """Pass records on, each exactly once, for ever."""
    randomness = random.Random(int(seed))
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    runtime = Runtime(Path(path))
    with (
        RingConsumer.open(runtime, FIRST_RING, who=who) as inward,
        RingProducer.open(runtime, SECOND_RING, who=who) as outward,
    ):
        passed_on = passed_on_before(outward)
        while True:
            count = relay_kernel(
                inward.words,
                inward.state,
                outward.words,
                outward.state,
                scratch,
                passed_on,
                randomness.choice(TOGETHER),
            )
            assert count >= 0, "a ring is damaged"
            if count == 0 and inward.wait(PATIENCE_NS):
                outward.wait_room(RELAYED_BYTES_MAX, PATIENCE_NS)


ROLES = {"producer": produce, "relay": relay}


def warm_up() -> None:
    for kernels in (system_kernels, waiting_kernels, bell_kernels, ring_kernels, ring_relay_kernels):
        kernels.warm_up()


# ---- to be stepped through


def append_stepped(path: str) -> None:
    """Commit three numbered records at once, in a ring that two of them do not fit before the end of."""
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    with RingProducer.open(Runtime(Path(path)), FIRST_RING, who="stepped") as producer:
        number = last_number(producer) + 1
        become_steppable()
        pause()
        produce_kernel(producer.words, producer.state, scratch, number, 3, 2)
        pause()


def relay_stepped(path: str) -> None:
    """Pass two records on."""
    scratch = np.zeros(SCRATCH_WORDS, dtype=np.int64)
    runtime = Runtime(Path(path))
    with (
        RingConsumer.open(runtime, FIRST_RING, who="stepped") as inward,
        RingProducer.open(runtime, SECOND_RING, who="stepped") as outward,
    ):
        passed_on = passed_on_before(outward)
        arguments = (inward.words, inward.state, outward.words, outward.state, scratch, passed_on, 2)
        become_steppable()
        pause()
        relay_kernel(*arguments)
        pause()


STEPPED = {"append": append_stepped, "relay": relay_stepped}

if __name__ == "__main__":
    warm_up()
    STEPPED[sys.argv[1]](sys.argv[2])
