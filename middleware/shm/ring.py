"""A ring: a queue of records between two processes, either of which may die and be replaced.

One producer commits records, one consumer consumes them, in order, each once. Everything that matters is in
the file (ring_kernels.py draws it), so whoever takes a dead end's seat continues where it stopped:

    make_ring(runtime, "manager-1.in", capacity_bytes=1 << 20)

    with RingProducer.open(runtime, "manager-1.in", who="manager-1") as producer:
        position = producer.append(header_and_handle)      # None: the ring is full

    with RingConsumer.open(runtime, "manager-1.in", who="router") as consumer:
        while (record := consumer.peek()) is not None:      # no copy
            route(record.position, record.body)
            consumer.advance()                              # only now is it consumed

What a producer has committed is never lost, and what a consumer has advanced past is never shown again; what
it has seen but not advanced past is shown to its replacement. A producer that starts reads `last_committed`,
whether or not it was consumed since, and so knows what its predecessor still did.

An end belongs to one thread at a time. Kernels use `end.words` and `end.state` with the moves of
ring_kernels.py, and ring the bell themselves.
"""

from middleware.shm.ring_consumer import Batch, RingConsumer
from middleware.shm.ring_end import Record
from middleware.shm.ring_file import make_ring, remove_ring
from middleware.shm.ring_producer import RingProducer

__all__ = [
    "Batch",
    "Record",
    "RingConsumer",
    "RingProducer",
    "make_ring",
    "remove_ring",
]
