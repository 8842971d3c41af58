"""Open-loop load: messages are due at times fixed beforehand, and lateness is charged to every message.

A sender that waits for its receiver, or for itself, sends less while something is slow, and a benchmark that
counts from the moment of sending then never sees the wait: it omits the messages that should have been sent.
Here message `i` is due at `first + i * interval` whatever happened before, and its latency is counted from
then. A stall of 10 ms at 10,000 messages/s shows as a hundred late messages, not as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perf.report import BenchError

NS_PER_S = 1_000_000_000
MESSAGES_MAX = 100_000_000

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`message_count` messages, `interval_ns` apart."""

    message_count: int
    interval_ns: int

    def __post_init__(self) -> None:
        if not 1 <= self.message_count <= MESSAGES_MAX:
            raise BenchError(f"a schedule has 1 to {MESSAGES_MAX} messages, was given {self.message_count}")
        if not 1 <= self.interval_ns <= NS_PER_S:
            raise BenchError(f"an interval is 1 to {NS_PER_S} ns, was {self.interval_ns}")

    @classmethod
    def at_rate(cls, messages_per_s: int, seconds: float) -> Schedule:
        """Return the schedule of a steady rate; the rate must have a whole number of ns between messages."""
        if not 1 <= messages_per_s <= NS_PER_S or NS_PER_S % messages_per_s:
            raise BenchError(f"a rate must divide {NS_PER_S}, was {messages_per_s} messages/s")
        return cls(max(int(messages_per_s * seconds), 1), NS_PER_S // messages_per_s)

    @property
    def messages_per_s(self) -> float:
        return NS_PER_S / self.interval_ns

    @property
    def duration_ns(self) -> int:
        return self.message_count * self.interval_ns

    def due_ns(self, first_ns: int = 0) -> NDArray[np.int64]:
        """Return when each message is due."""
        return first_ns + np.arange(self.message_count, dtype=np.int64) * self.interval_ns

    def since_due(self, times_ns: NDArray[np.int64], first_ns: int) -> NDArray[np.int64]:
        """Return how long after its due time each message was sent (lateness) or arrived (latency)."""
        if times_ns.shape != (self.message_count,):
            raise BenchError(f"{self.message_count} messages were scheduled, {times_ns.shape} times measured")
        return times_ns - self.due_ns(first_ns)


def send_on_schedule(
    schedule: Schedule,
    first_ns: int,
    messages: Sequence[Message],
    send: Callable[[Message], object],
    clock: Callable[[], int],
) -> NDArray[np.int64]:
    """Send each message when it is due, or at once if that has passed; return when each was begun.

    Nothing is skipped and nothing waits for an answer. Waiting for the due time is by looking at the clock:
    a sleep would add its own lateness, which is microseconds, to every latency.
    """
    begun_ns = [0] * schedule.message_count
    due_ns, interval_ns = first_ns, schedule.interval_ns
    for index, message in enumerate(messages):
        now_ns = clock()
        while now_ns < due_ns:
            now_ns = clock()
        begun_ns[index] = now_ns
        send(message)
        due_ns += interval_ns
    return np.array(begun_ns, dtype=np.int64)
