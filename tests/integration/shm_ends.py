"""One end of a log, ring or slab as a process of its own, for tests that look at it, stop it and kill it.

    python -m tests.integration.shm_ends DIRECTORY ROLE WHO

It says `ready` on its output and stays until its input ends.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np

from feeds import wire
from middleware.shm.log import LogReader, LogWriter
from middleware.shm.ring import RingConsumer, RingProducer, make_ring
from middleware.shm.runtime import Runtime
from middleware.shm.slab import SizeClass, Slab, SlabConfig

LOG, RING, SLAB = "XNAS.ITCH", "manager-1.in", "bodies"
SLOT_COUNT = 1 << 12
PUBLISHED, READ = 1_000, 400
RING_BYTES = 1 << 16
SLAB_CONFIG = SlabConfig((SizeClass(64, 64), SizeClass(1_024, 16)), participants=8)


def numbered(first: int, count: int) -> wire.FrameArray:
    frames = wire.empty(count)
    frames["message_seq"] = np.arange(first, first + count)
    frames["schema_id"] = wire.Schema.ORDER_DELETE
    return frames


def say_ready() -> threading.Event:
    """Say that the end is in place; the event is set when the test is done with it."""
    done = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=await_end, daemon=True).start()
    print("ready", flush=True)
    return done


def write(runtime: Runtime, who: str) -> None:
    with LogWriter.open(runtime, LOG, who=who, slot_count=SLOT_COUNT) as writer:
        writer.publish(numbered(writer.next_seq, PUBLISHED))
        done = say_ready()
        while not done.wait(0.005):
            writer.service()


def write_fast(runtime: Runtime, who: str) -> None:
    with LogWriter.open(runtime, LOG, who=who, slot_count=SLOT_COUNT) as writer:
        done = say_ready()
        while not done.is_set():
            for _ in range(100):
                writer.publish(numbered(writer.next_seq, 64))


def read(runtime: Runtime, who: str) -> None:
    with LogReader.open(runtime, LOG, who=who, is_gating=who == "recorder") as reader:
        reader.read(READ)
        say_ready().wait()


def read_fast(runtime: Runtime, who: str) -> None:
    with LogReader.open(runtime, LOG, who=who) as reader:
        done = say_ready()
        while not done.is_set():
            reader.read()
            reader.take_missed()


def produce_fast(runtime: Runtime, who: str) -> None:
    make_ring(runtime, RING, RING_BYTES)
    with RingProducer.open(runtime, RING, who=who) as producer:
        body = b"x" * 100
        producer.append_many([body] * 20)  # compiled, if need be, before anybody looks
        done = say_ready()
        while not done.is_set():
            producer.append_many([body] * 20, timeout_ns=1_000_000)


def consume_fast(runtime: Runtime, who: str) -> None:
    make_ring(runtime, RING, RING_BYTES)
    with RingConsumer.open(runtime, RING, who=who) as consumer:
        done = say_ready()
        while not done.is_set():
            if consumer.peek() is not None:
                consumer.advance()


def churn(runtime: Runtime, who: str) -> None:
    with Slab.open(runtime, SLAB, who=who, config=SLAB_CONFIG) as slab:
        done = say_ready()
        while not done.is_set():
            handle = slab.put(b"x" * 50)
            if handle is not None:
                slab.relinquish(handle, limit=1)


ROLES = {
    role.__name__: role for role in (write, write_fast, read, read_fast, produce_fast, consume_fast, churn)
}

if __name__ == "__main__":
    ROLES[sys.argv[2]](Runtime(Path(sys.argv[1])), sys.argv[3])
