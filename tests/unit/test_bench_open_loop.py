"""Open-loop load and its histograms: no stall is forgotten, whoever stalled."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.histogram import LATENCY_NS_MAX, PERCENTILES, Histogram, merged
from perf.open_loop import NS_PER_S, Schedule, send_on_schedule
from perf.report import BenchError

MS = 1_000_000
US = 1_000


@dataclass
class VirtualLink:
    """Both ends in virtual time: looking at the clock takes 1 us, sending as long as it is told to."""

    now_ns: int = 0
    send_ns: dict[int, int] = field(default_factory=dict)
    usual_send_ns: int = 1 * US
    sent: list[int] = field(default_factory=list)
    arrived_ns: list[int] = field(default_factory=list)

    def clock(self) -> int:
        self.now_ns += 1 * US
        return self.now_ns

    def send(self, message: int) -> None:
        self.now_ns += self.send_ns.get(message, self.usual_send_ns)
        self.sent.append(message)
        self.arrived_ns.append(self.now_ns)

    def run(self, schedule: Schedule, first_ns: int = 5 * MS) -> tuple[np.ndarray, np.ndarray]:
        """Send everything; return (latencies, lateness)."""
        messages = range(schedule.message_count)
        begun_ns = send_on_schedule(schedule, first_ns, messages, self.send, self.clock)
        arrived_ns = np.array(self.arrived_ns, dtype=np.int64)
        return schedule.since_due(arrived_ns, first_ns), schedule.since_due(begun_ns, first_ns)


def test_a_stall_is_charged_to_every_message_that_was_due_during_it() -> None:
    schedule = Schedule.at_rate(10_000, seconds=1)
    link = VirtualLink(send_ns={4_000: 50 * MS})  # sending one message takes as long as 500 should
    latencies, lateness = link.run(schedule)

    # Message 4,000 + i was due 0.1 ms x i into the stall and had to wait for the rest of it, and for those
    # before it, which take 2 us each: one to look at the clock, one to send.
    stalled = latencies[4_000:4_500]
    expected = 50 * MS - np.arange(500) * 100 * US + np.arange(500) * 2 * US
    assert np.abs(stalled - expected).max() < 10 * US
    assert 500 <= (latencies > 10 * US).sum() <= 520  # the backlog is gone after 500 x 100 / 98 messages

    metrics = Histogram(latencies).metrics()
    assert metrics["latency_ns_p50"] <= 3 * US
    # The slowest 1 % are 100 messages of those 500, the slowest 0.1 % are 10.
    assert metrics["latency_ns_p99"] == pytest.approx(40 * MS, rel=0.02)
    assert metrics["latency_ns_p999"] == pytest.approx(49 * MS, rel=0.02)
    assert metrics["latency_ns_max"] == pytest.approx(50 * MS, rel=0.002)
    assert Histogram(lateness).metrics("lateness_ns")["lateness_ns_p99"] == pytest.approx(40 * MS, rel=0.02)

    # What counting from the moment of sending would have shown: one slow message in ten thousand.
    from_sending = np.array(link.arrived_ns) - (schedule.due_ns(5 * MS) + lateness)
    assert (from_sending > 10 * US).sum() == 1


def test_a_stall_of_the_receiver_is_charged_like_one_of_the_sender() -> None:
    schedule = Schedule.at_rate(10_000, seconds=1)
    due_ns = schedule.due_ns(0)
    arrived_ns = np.maximum(
        due_ns + 1 * US, np.where((due_ns >= 400 * MS) & (due_ns < 450 * MS), 450 * MS, 0)
    )
    metrics = Histogram(schedule.since_due(arrived_ns, 0)).metrics()
    assert metrics["latency_ns_p50"] == 1 * US
    assert metrics["latency_ns_p99"] == pytest.approx(40 * MS, rel=0.01)


def test_a_sender_that_cannot_keep_its_rate_is_later_with_every_message() -> None:
    schedule = Schedule.at_rate(10_000, seconds=0.1)
    latencies, lateness = VirtualLink(usual_send_ns=150 * US).run(schedule)
    assert lateness[0] <= 1 * US
    assert np.diff(lateness) == pytest.approx(51 * US, abs=1 * US)
    assert (latencies >= lateness).all()


def test_nothing_is_sent_before_it_is_due_and_nothing_is_left_out() -> None:
    schedule = Schedule.at_rate(100_000, seconds=0.01)
    link = VirtualLink(send_ns={10: 3 * MS})
    _, lateness = link.run(schedule)
    assert lateness.min() >= 0
    assert link.sent == list(range(1_000))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Schedule.at_rate(3, 1), "must divide"),
        (lambda: Schedule.at_rate(0, 1), "must divide"),
        (lambda: Schedule(0, 1), "1 to .* messages, was given 0"),
        (lambda: Schedule(1, NS_PER_S + 1), "an interval is 1 to"),
        (lambda: Schedule(2, 1).since_due(np.zeros(1, np.int64), 0), "2 messages were scheduled"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: object, told: str) -> None:
    assert callable(wrong)
    with pytest.raises(BenchError, match=told):
        wrong()


# --- histograms --------------------------------------------------------------------------------------

latencies = st.lists(st.integers(0, LATENCY_NS_MAX), min_size=1, max_size=200)


@given(latencies)
def test_percentiles_are_those_of_the_sorted_times_to_three_digits(times: list[int]) -> None:
    metrics = Histogram(np.array(times, dtype=np.int64)).metrics()
    ranks = [max(int(percentile * len(times) / 100 + 0.5), 1) for percentile in PERCENTILES.values()]
    exact = [sorted(max(time, 1) for time in times)[rank - 1] for rank in ranks]
    assert list(metrics) == [f"latency_ns_{name}" for name in ("p50", "p90", "p99", "p999", "p9999", "max")]
    assert list(metrics.values()) == pytest.approx(exact, rel=1e-3)


@given(latencies, latencies)
def test_merged_rounds_are_as_one_round_of_all_their_times(first: list[int], second: list[int]) -> None:
    rounds = [Histogram(np.array(times, dtype=np.int64)) for times in (first, second)]
    whole = Histogram(np.array(first + second, dtype=np.int64))
    assert merged(rounds).metrics() == whole.metrics()
    assert merged(rounds).count == len(first) + len(second)


@pytest.mark.parametrize("wrong", [[-1, 5], [1, LATENCY_NS_MAX + 1]])
def test_a_time_that_cannot_be_is_refused_and_not_clipped(wrong: list[int]) -> None:
    with pytest.raises(BenchError, match="latencies must be 0 to"):
        Histogram(np.array(wrong, dtype=np.int64))


def test_a_histogram_of_nothing_has_no_percentiles() -> None:
    with pytest.raises(BenchError, match="lateness_ns: there must be at least one time"):
        Histogram().metrics("lateness_ns")
