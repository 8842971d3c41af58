"""Re-requests stay below what servers grant, and waiting for one's turn costs no hole its life."""

from __future__ import annotations

from feeds.lines.events import Line
from feeds.lines.gaps import MS, SECOND, Fill, GapConfig, GapPolicy

HOLES = [(first, first) for first in range(1, 400, 2)]


def ask(policy: GapPolicy, now_ns: int) -> list[int]:
    return [request.first for request in policy.due_requests(now_ns)[0]]


def test_requests_keep_to_the_rate_lowest_numbers_first() -> None:
    config = GapConfig(requests_per_second=50, requests_burst=10)
    policy = GapPolicy(config, server_count=1)
    policy.on_scan(HOLES, [], now_ns=0)
    asked = ask(policy, 10 * MS)
    assert asked == [first for first, _ in HOLES[:10]]
    later = [first for step in range(1, 101) for first in ask(policy, (10 + step * 10) * MS)]
    assert 45 <= len(later) <= 51  # one second of it
    assert later[0] == 1  # what delivery stands before comes first


def test_a_hole_that_waited_its_turn_is_asked_again_before_it_is_given_up() -> None:
    policy = GapPolicy(GapConfig(requests_per_second=2, requests_burst=2), server_count=1)
    policy.on_scan([(1, 1), (5, 5)], [], now_ns=0)
    assert ask(policy, 5 * MS) == [1, 5]
    # The server answers for 1 only; the answer for 5 got lost and there is no token for it yet.
    policy.on_scan([(5, 5)], [Fill(1, 1, Line.RECOVERY)], now_ns=900 * MS)
    assert policy.take_expired(5, 1_100 * MS) is None
    assert ask(policy, 1_100 * MS) == [5]
    assert policy.take_expired(5, 1_200 * MS) is not None


def test_a_silent_server_holds_up_nobody() -> None:
    policy = GapPolicy(GapConfig(requests_per_second=1, requests_burst=2), server_count=1)
    policy.on_scan([(1, 1)], [], now_ns=0)
    assert ask(policy, 5 * MS) == [1]
    assert policy.take_expired(1, 5 * MS + SECOND) is not None
