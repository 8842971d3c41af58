"""One rule of line arbitration each, with packets and time passed in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feeds.errors import ConfigError
from feeds.formats import BAD_SHORT, BAD_TRUNCATED, LINE_A, LINE_B, LINE_RECOVERY
from feeds.lines.events import (
    HoleFilled,
    HoleOpened,
    HoleRequested,
    HoleWithdrawn,
    JumpAccepted,
    JumpRefused,
    Line,
    LineBack,
    LineEvent,
    LineSilent,
    Lost,
    SessionDismissed,
    SessionEnded,
    SessionJoined,
    SessionRolled,
)
from feeds.lines.gaps import MS, SECOND, Fill, GapConfig, GapPolicy
from feeds.lines.handler import LineArbiter, LineConfig, LineHandler, SendRequest
from feeds.lines.tables import ARBITER_HIGH, ARBITER_RUN_COUNT, GAP_SLOTS, PAST_SLOTS
from tests.line_packets import arbitrate, plain_format, read_runs
from tests.line_reference import Packet, bad, data, end_of_session, heartbeat, message_of

pytestmark = pytest.mark.kernels

GAPS = GapConfig()
CONFIG = LineConfig(start=1, batch_packets=16, slot_bytes=512, hold_slots=8)
FIRST_SEEN = LineConfig(batch_packets=16, slot_bytes=512, hold_slots=8)


class Desk:
    """A handler with packets put in by hand and time moved by hand."""

    def __init__(self, config: LineConfig = CONFIG, server_count: int = 1) -> None:
        self.handler = LineHandler(plain_format(), config, server_count=server_count)
        self.arbiter = self.handler.arbiter
        self.now_ns = SECOND
        self.messages: list[tuple[int, int]] = []

    def put(self, *packets: Packet) -> list[tuple[int, int]]:
        """Bring packets now; return (session, number) of what they delivered."""
        stamped = [Packet(p.line, p.kind, p.session, p.seq, p.count, self.now_ns) for p in packets]
        found = arbitrate(self.arbiter, stamped)
        assert all(message == message_of(session, seq) for session, seq, message in found)
        self.messages += [(session, seq) for session, seq, _ in found]
        return [(session, seq) for session, seq, _ in found]

    def tick(self, step_ns: int = 0) -> list[SendRequest]:
        self.now_ns += step_ns
        decoded = self.arbiter.value(ARBITER_RUN_COUNT)
        requests = self.handler.on_timer(self.now_ns)
        run_count = self.arbiter.value(ARBITER_RUN_COUNT)
        found = read_runs(self.arbiter, self.arbiter.tables.runs[decoded:run_count])
        self.messages += [(session, seq) for session, seq, _ in found]
        return requests

    def events(self, *kinds: type[LineEvent]) -> list[LineEvent]:
        return [event for event in self.handler.take_events() if not kinds or isinstance(event, kinds)]


def one_message(line: int, session: int, seq: int) -> Packet:
    return data(line, session, seq, 1)


def numbers(found: list[tuple[int, int]]) -> list[int]:
    return [seq for _, seq in found]


# --- messages ---------------------------------------------------------------------------------------


def test_packets_cut_differently_on_the_lines_give_each_message_once() -> None:
    desk = Desk()
    assert numbers(desk.put(data(LINE_A, 1, 1, 5))) == [1, 2, 3, 4, 5]
    assert numbers(desk.put(data(LINE_B, 1, 1, 3))) == []
    assert numbers(desk.put(data(LINE_B, 1, 4, 6))) == [6, 7, 8, 9]
    assert desk.arbiter.counts(Line.A).first == 5
    assert desk.arbiter.counts(Line.B).first == 4
    assert desk.arbiter.counts(Line.B).duplicate == 5


def test_a_packet_in_order_becomes_one_run_where_it_lies() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 4))
    runs = desk.arbiter.tables.runs[: desk.arbiter.value(ARBITER_RUN_COUNT)]
    assert runs[:, 2:].tolist() == [[1, 4, 1]]
    assert runs[0, 0] < desk.arbiter.config.slot_bytes


def test_a_hole_is_bridged_by_the_other_line_within_one_batch_without_a_copy() -> None:
    desk = Desk()
    assert numbers(desk.put(data(LINE_A, 1, 1, 2), data(LINE_A, 1, 5, 2), data(LINE_B, 1, 1, 4))) == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    hold_offset = desk.arbiter.config.batch_packets * desk.arbiter.config.slot_bytes
    runs = desk.arbiter.tables.runs[: desk.arbiter.value(ARBITER_RUN_COUNT)]
    assert (runs[:, 0] < hold_offset).all()
    assert desk.arbiter.counts(Line.B).filled == 2


def test_a_held_packet_survives_the_next_batch_in_its_slot() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 3, 3))
    for _ in range(3):
        desk.put(heartbeat(LINE_A, 1, 6))
    assert desk.arbiter.held_packets == 1
    assert numbers(desk.put(data(LINE_B, 1, 1, 2))) == [1, 2, 3, 4, 5]
    assert desk.arbiter.held_packets == 0


def test_a_held_packet_that_others_cover_is_dropped_as_duplicate() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 5, 3), data(LINE_A, 1, 8, 3), data(LINE_B, 1, 6, 4))
    assert desk.arbiter.held_packets == 2
    assert desk.arbiter.counts(Line.B).duplicate == 4
    desk.put(data(LINE_B, 1, 4, 9))  # covers both: takes their place
    assert desk.arbiter.held_packets == 1
    assert desk.arbiter.counts(Line.B).first == 3


def test_a_full_hold_drops_what_would_be_delivered_last_and_asks_again() -> None:
    desk = Desk(LineConfig(start=1, batch_packets=16, slot_bytes=512, hold_slots=2))
    desk.put(data(LINE_A, 1, 10, 2), data(LINE_A, 1, 20, 2), data(LINE_A, 1, 30, 2))
    assert desk.arbiter.counts(Line.A).overflow == 2
    desk.put(data(LINE_A, 1, 5, 2))
    assert desk.arbiter.counts(Line.A).overflow == 4
    assert desk.arbiter.holes() == [(1, 4), (7, 9), (12, 31)]


def test_messages_before_the_joining_point_are_early_and_not_duplicates() -> None:
    desk = Desk(FIRST_SEEN)
    assert numbers(desk.put(data(LINE_A, 1, 100, 2), data(LINE_A, 1, 102, 1))) == [100, 101, 102]
    assert numbers(desk.put(data(LINE_B, 1, 98, 3))) == []
    counts = desk.arbiter.counts(Line.B)
    assert (counts.early, counts.duplicate) == (2, 1)


def test_a_heartbeat_first_joins_at_its_number() -> None:
    desk = Desk(FIRST_SEEN)
    desk.put(heartbeat(LINE_A, 1, 50))
    desk.tick()
    assert desk.events() == []  # one packet alone is not believed
    assert numbers(desk.put(data(LINE_A, 1, 50, 1))) == [50]
    desk.tick()
    assert desk.events() == [SessionJoined(desk.now_ns, 1, 50)]


def test_the_first_packet_seen_is_delivered_when_a_second_one_agrees() -> None:
    desk = Desk(FIRST_SEEN)
    assert desk.put(data(LINE_A, 1, 100, 2)) == []
    assert numbers(desk.put(data(LINE_B, 1, 100, 2))) == [100, 101]
    assert desk.arbiter.counts(Line.B).duplicate == 2


def test_the_first_packet_seen_is_delivered_in_the_end_if_no_other_comes() -> None:
    desk = Desk(FIRST_SEEN)
    desk.tick()
    desk.put(data(LINE_A, 1, 100, 2))
    desk.tick(CONFIG.silence_ns - 1)
    assert desk.messages == []
    desk.tick(1)
    assert numbers(desk.messages) == [100, 101]
    assert desk.events(SessionJoined) == [SessionJoined(desk.now_ns, 1, 100)]


@pytest.mark.parametrize("wild", [heartbeat(LINE_A, 1, 1 << 60), data(LINE_A, 1, 1 << 60, 2)])
def test_a_damaged_first_number_is_forgotten_when_the_next_packets_contradict_it(wild: Packet) -> None:
    desk = Desk(FIRST_SEEN)
    desk.put(wild)
    desk.tick()
    assert numbers(desk.put(data(LINE_A, 1, 7, 1), data(LINE_B, 1, 7, 1), data(LINE_A, 1, 8, 1))) == [7, 8]
    desk.tick()
    assert desk.events(SessionJoined) == [SessionJoined(desk.now_ns, 1, 7)]
    assert desk.handler.abandoned_count == wild.count
    assert desk.arbiter.counts(Line.A).lost == 0


def test_a_damaged_second_number_does_not_displace_a_true_first() -> None:
    desk = Desk(FIRST_SEEN)
    desk.put(data(LINE_A, 1, 5_000_000, 1), data(LINE_B, 1, 3, 1))
    assert numbers(desk.put(data(LINE_A, 1, 5_000_001, 1), data(LINE_A, 1, 5_000_002, 1))) == [
        5_000_001,
        5_000_002,
    ]
    assert desk.arbiter.holes() == []


def test_a_first_packet_of_a_stray_session_does_not_choose_the_session() -> None:
    desk = Desk(FIRST_SEEN)
    desk.put(data(LINE_A, 9, 40, 1))
    assert desk.put(data(LINE_A, 1, 7, 1), data(LINE_B, 1, 7, 1)) == [(1, 7)]


def test_an_end_of_session_alone_ends_nothing_before_it_is_joined() -> None:
    desk = Desk(FIRST_SEEN)
    desk.put(end_of_session(LINE_A, 1, 50))
    desk.tick()
    assert desk.events() == []
    desk.put(end_of_session(LINE_B, 1, 50))
    desk.tick()
    assert desk.events() == [SessionJoined(desk.now_ns, 1, 50), SessionEnded(desk.now_ns, 1, 49)]


def test_resuming_waits_for_the_given_session_and_number() -> None:
    desk = Desk(LineConfig(start=7, start_session=3, batch_packets=16, slot_bytes=512, hold_slots=8))
    assert numbers(desk.put(data(LINE_A, 3, 5, 4))) == [7, 8]
    assert desk.arbiter.counts(Line.A).early == 2


def test_bad_packets_are_counted_by_reason() -> None:
    desk = Desk()
    desk.put(bad(LINE_A, BAD_SHORT), bad(LINE_A, BAD_SHORT), bad(LINE_B, BAD_TRUNCATED))
    assert desk.arbiter.counts(Line.A).bad_packets == {"shorter than a packet header": 2}
    assert desk.arbiter.counts(Line.B).bad_packets == {"datagram cut short": 1}
    assert desk.handler.session is None


def test_one_wild_number_is_not_believed_until_another_packet_agrees() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 2), data(LINE_A, 1, 5_000_000, 2))
    assert desk.arbiter.holes() == []
    assert desk.arbiter.counts(Line.A).far == 2
    assert numbers(desk.put(data(LINE_A, 1, 3, 2))) == [3, 4]
    desk.put(data(LINE_A, 1, 7_000_000, 2), data(LINE_A, 1, 7_000_000, 2))  # copied by the network
    assert desk.arbiter.holes() == []
    desk.tick()
    assert desk.events(JumpRefused) == [JumpRefused(desk.now_ns, 1, 7_000_000, 3)]
    desk.put(data(LINE_A, 1, 7_000_002, 1))
    assert desk.arbiter.holes() == [(5, 7_000_001)]
    desk.tick()
    assert desk.events(JumpAccepted) == [JumpAccepted(desk.now_ns, 1, 5, 7_000_002)]


@pytest.mark.parametrize("packet_of", [heartbeat, end_of_session, one_message])
def test_a_jump_is_believed_when_the_other_line_names_the_same_number(
    packet_of: Callable[..., Packet],
) -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), packet_of(LINE_A, 1, 2_000_001))
    assert desk.arbiter.holes() == []
    desk.put(packet_of(LINE_B, 1, 2_000_001))
    assert desk.arbiter.holes() == [(2, 2_000_000)]


def test_a_jump_is_believed_when_the_same_line_repeats_it_later() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), heartbeat(LINE_A, 1, 2_000_001))
    desk.now_ns += GAPS.patience_ns - 1
    desk.put(heartbeat(LINE_A, 1, 2_000_001))
    assert desk.arbiter.holes() == []
    desk.now_ns += 1
    desk.put(heartbeat(LINE_A, 1, 2_000_001))
    assert desk.arbiter.holes() == [(2, 2_000_000)]


def test_a_jump_is_believed_at_the_third_time() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), *[heartbeat(LINE_A, 1, 2_000_001)] * 2)
    assert desk.arbiter.holes() == []
    desk.put(heartbeat(LINE_A, 1, 2_000_001))
    assert desk.arbiter.holes() == [(2, 2_000_000)]


def test_a_wild_number_of_the_old_session_proves_nothing_in_the_new() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), data(LINE_A, 1, 5_000_000, 1), end_of_session(LINE_A, 1, 2))
    desk.put(data(LINE_A, 2, 1, 1))
    desk.tick()
    assert desk.handler.session == 2
    desk.put(data(LINE_A, 2, 5_000_001, 1))
    assert desk.arbiter.counts(Line.A).far == 2
    assert desk.arbiter.holes() == []


# --- each line's own losses ---------------------------------------------------------------------------


def test_a_line_loses_what_it_never_brings_even_if_the_other_does() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 2), data(LINE_B, 1, 1, 8), data(LINE_A, 1, 7, 2))
    assert desk.arbiter.counts(Line.A).lost == 4
    assert desk.arbiter.counts(Line.B).lost == 0


def test_a_late_packet_of_the_same_line_undoes_its_loss_once() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 2), data(LINE_A, 1, 9, 2), data(LINE_A, 1, 4, 2), data(LINE_A, 1, 4, 2))
    counts = desk.arbiter.counts(Line.A)
    assert (counts.lost, counts.repeated, counts.reordered_packets) == (4, 2, 1)


def test_a_heartbeat_shows_the_loss_of_the_tail() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 2), heartbeat(LINE_A, 1, 5))
    assert desk.arbiter.counts(Line.A).lost == 2
    assert desk.arbiter.holes() == [(3, 4)]


def test_more_gaps_than_are_remembered_stay_lost() -> None:
    arbiter = LineArbiter(plain_format(), CONFIG)
    count = GAP_SLOTS + 10
    for gap in range(count):
        arbitrate(arbiter, [data(LINE_A, 1, 1 + 2 * gap, 1)])
    assert arbiter.counts(Line.A).lost == count - 1
    arbitrate(arbiter, [data(LINE_A, 1, 2, 1)])  # too old to be told from a repetition
    assert arbiter.counts(Line.A).lost == count - 1
    arbitrate(arbiter, [data(LINE_A, 1, 2 * count - 2, 1)])
    assert arbiter.counts(Line.A).lost == count - 2


def test_a_gap_split_when_all_are_remembered_keeps_its_newer_part() -> None:
    arbiter = LineArbiter(plain_format(), CONFIG)
    arbitrate(arbiter, [data(LINE_A, 1, 1, 1), data(LINE_A, 1, 10, 1)])  # 2 to 9 are missing
    for gap in range(1, GAP_SLOTS):
        arbitrate(arbiter, [data(LINE_A, 1, 10 + 2 * gap, 1)])
    lost = arbiter.counts(Line.A).lost
    arbitrate(arbiter, [data(LINE_A, 1, 5, 1)])  # no slot is left for both of its sides
    arbitrate(arbiter, [data(LINE_A, 1, 6, 4)])
    arbitrate(arbiter, [data(LINE_A, 1, 2, 3)])  # the older side is not remembered
    assert arbiter.counts(Line.A).lost == lost - 5


# --- holes and time -----------------------------------------------------------------------------------


def test_a_hole_gets_patience_then_a_request_then_the_next_server() -> None:
    desk = Desk(server_count=2)
    desk.put(data(LINE_A, 1, 1, 2), data(LINE_A, 1, 6, 1))
    assert desk.tick() == []
    opened_ns = desk.now_ns
    assert desk.events(HoleOpened) == [HoleOpened(opened_ns, 1, 3, 5)]
    assert desk.tick(GAPS.patience_ns - 1) == []
    assert desk.tick(1) == [SendRequest(0, b"1000 1001 3 3")]
    assert desk.tick(GAPS.retry_ns - 1) == []
    assert desk.tick(1) == [SendRequest(1, b"1000 1001 3 3")]
    assert desk.tick(2 * GAPS.retry_ns - 1) == []
    assert desk.tick(1) == [SendRequest(0, b"1000 1001 3 3")]
    requested = desk.events(HoleRequested)
    assert [event.attempt for event in requested if isinstance(event, HoleRequested)] == [1, 2, 3]


def test_a_hole_that_the_other_line_fills_in_time_is_never_asked_for() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 2, 1))
    desk.tick()
    desk.now_ns += GAPS.patience_ns // 2
    desk.put(data(LINE_B, 1, 1, 1))
    assert desk.tick() == []
    assert desk.tick(10 * GAPS.retry_ns) == []
    assert desk.events(HoleFilled) == [HoleFilled(SECOND + GAPS.patience_ns // 2, 1, 1, 1, Line.B)]


def test_a_server_that_answers_stays_the_one_that_is_asked() -> None:
    desk = Desk(server_count=2)
    desk.put(data(LINE_A, 1, 10, 1))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    assert desk.tick(GAPS.retry_ns) == [SendRequest(1, b"1000 1001 1 9")]
    desk.put(data(LINE_RECOVERY, 1, 1, 4))
    assert desk.tick() == []
    assert desk.tick(GAPS.settle_ns) == [SendRequest(1, b"1000 1001 5 5")]


def test_an_answer_in_parts_renews_the_time_of_the_rest() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 6, 1))
    desk.tick()
    for number in range(1, 5):
        desk.tick(GAPS.give_up_ns - MS)
        desk.put(data(LINE_RECOVERY, 1, number, 1))
        desk.tick()
    assert desk.events(Lost) == []
    desk.tick(GAPS.give_up_ns)
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, 5, 5)]
    assert numbers(desk.messages) == [1, 2, 3, 4, 6]


def test_what_nobody_answers_is_lost_in_one_event_each_and_delivery_goes_on() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 2, 1), data(LINE_A, 1, 5, 1), heartbeat(LINE_A, 1, 8), heartbeat(LINE_B, 1, 8))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    desk.tick(GAPS.give_up_ns - GAPS.patience_ns - 1)
    assert desk.events(Lost) == []
    desk.tick(1)
    lost = desk.events(Lost)
    assert lost == [Lost(desk.now_ns, 1, *pair) for pair in ((1, 1), (3, 4), (6, 7))]
    assert numbers(desk.messages) == [2, 5]
    assert desk.handler.lost_count == 5
    desk.put(data(LINE_RECOVERY, 1, 3, 3))
    counts = desk.arbiter.counts(Line.RECOVERY)
    assert (counts.late, counts.duplicate) == (2, 1)


def test_a_slow_line_that_brings_lost_messages_in_its_own_order_is_late_not_duplicate() -> None:
    desk = Desk()
    desk.put(data(LINE_B, 1, 1, 2), data(LINE_A, 1, 1, 2), data(LINE_A, 1, 5, 2))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    desk.tick(GAPS.give_up_ns)
    assert numbers(desk.messages) == [1, 2, 5, 6]
    desk.put(data(LINE_B, 1, 3, 2), data(LINE_B, 1, 5, 2))
    counts = desk.arbiter.counts(Line.B)
    assert (counts.late, counts.duplicate, counts.first, counts.lost) == (2, 2, 2, 0)


def test_without_a_server_a_hole_is_lost_after_the_same_time() -> None:
    desk = Desk(server_count=0)
    desk.put(data(LINE_A, 1, 2, 1))
    desk.tick()
    assert desk.tick(GAPS.give_up_ns - 1) == []
    assert desk.events(Lost) == []
    desk.tick(1)
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, 1, 1)]


@pytest.mark.parametrize("server_count", [0, 1])
def test_a_number_that_one_heartbeat_names_and_the_next_deny_is_withdrawn(server_count: int) -> None:
    desk = Desk(server_count=server_count)
    desk.put(data(LINE_A, 1, 1, 3), data(LINE_B, 1, 1, 3), heartbeat(LINE_A, 1, 900_000))
    desk.tick()
    assert desk.events(HoleOpened) == [HoleOpened(desk.now_ns, 1, 4, 899_999)]
    for _ in range(13):
        desk.now_ns += 100 * MS
        desk.put(heartbeat(LINE_A, 1, 4), heartbeat(LINE_B, 1, 4))
        desk.tick()
    found = desk.events(Lost, HoleWithdrawn, HoleFilled)
    assert found == [HoleWithdrawn(SECOND + 100 * MS, 1, 4, 899_999)]
    assert desk.handler.is_complete
    assert numbers(desk.put(data(LINE_A, 1, 4, 2), data(LINE_B, 1, 4, 2))) == [4, 5]
    assert (desk.arbiter.counts(Line.A).lost, desk.arbiter.counts(Line.A).late) == (0, 0)


def test_messages_that_flow_below_a_wrong_heartbeat_withdraw_it_too() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), heartbeat(LINE_A, 1, 50))
    desk.tick()
    desk.now_ns += GAPS.patience_ns
    assert numbers(desk.put(data(LINE_B, 1, 2, 2))) == [2, 3]
    assert desk.tick() == []
    assert desk.arbiter.value(ARBITER_HIGH) == 4
    assert desk.events(HoleWithdrawn, HoleFilled) == [
        HoleWithdrawn(desk.now_ns, 1, 4, 49),
        HoleFilled(desk.now_ns, 1, 2, 3, Line.B),
    ]


def test_one_heartbeat_that_nobody_denies_is_believed_after_silence() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), heartbeat(LINE_A, 1, 5))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    desk.tick(CONFIG.silence_ns - GAPS.patience_ns - 1)
    assert desk.events(Lost) == []
    desk.tick(1)
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, 2, 4)]


def test_a_number_named_twice_is_not_withdrawn_by_a_line_that_lags() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), heartbeat(LINE_A, 1, 5), heartbeat(LINE_B, 1, 5))
    desk.tick()
    desk.now_ns += 2 * GAPS.patience_ns
    desk.put(heartbeat(LINE_B, 1, 2))
    desk.tick()
    desk.tick(GAPS.give_up_ns)
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, 2, 4)]


def test_what_data_has_shown_is_lost_even_if_only_one_heartbeat_names_more() -> None:
    desk = Desk(LineConfig(start=1, batch_packets=16, slot_bytes=512, hold_slots=1))
    desk.put(data(LINE_A, 1, 1, 1), data(LINE_A, 1, 3, 1), data(LINE_A, 1, 6, 2), heartbeat(LINE_A, 1, 11))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    desk.tick(GAPS.give_up_ns)
    # 6 and 7 came and had no room; 8 to 10 are hearsay.
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, *pair) for pair in ((2, 2), (4, 7))]
    desk.put(heartbeat(LINE_B, 1, 11))
    desk.tick()
    assert desk.events(Lost) == [Lost(desk.now_ns, 1, 8, 10)]


def test_a_hole_that_grows_late_gives_its_new_part_the_whole_time() -> None:
    policy = GapPolicy(GAPS, server_count=0, session=1)
    policy.on_scan([(4, 13)], [], 0)
    policy.on_scan([(4, 15)], [], GAPS.patience_ns - 1)  # still one loss
    late_ns = GAPS.give_up_ns - MS
    policy.on_scan([(4, 23)], [], late_ns)
    hole = policy.take_expired(4, GAPS.give_up_ns)
    assert hole is not None
    assert (hole.first, hole.last) == (4, 15)
    assert policy.take_expired(16, late_ns + GAPS.give_up_ns - 1) is None
    assert policy.take_expired(16, late_ns + GAPS.give_up_ns) is not None


def test_never_more_messages_are_asked_for_than_allowed_and_the_lowest_first() -> None:
    config = LineConfig(
        start=1, gaps=GapConfig(outstanding_max=10), batch_packets=16, slot_bytes=512, hold_slots=8
    )
    desk = Desk(config)
    desk.put(data(LINE_A, 1, 8, 1), data(LINE_A, 1, 21, 1))
    desk.tick()
    assert [ask.datagram for ask in desk.tick(GAPS.patience_ns)] == [b"1000 1001 1 7", b"1000 1001 9 3"]
    desk.put(data(LINE_RECOVERY, 1, 1, 7))
    assert desk.tick() == []
    assert [ask.datagram for ask in desk.tick(GAPS.retry_ns)] == [b"1000 1001 9 10"]


def test_waiting_for_its_turn_costs_a_hole_no_time() -> None:
    policy = GapPolicy(GapConfig(outstanding_max=1), server_count=1, session=1)
    policy.on_scan([(1, 1), (3, 3)], [], 0)
    asked, _ = policy.due_requests(GAPS.patience_ns)
    assert [(ask.first, ask.last) for ask in asked] == [(1, 1)]
    assert policy.take_expired(1, GAPS.give_up_ns) is not None
    assert policy.take_expired(3, GAPS.give_up_ns) is None  # it was never asked for
    asked, _ = policy.due_requests(GAPS.give_up_ns)
    assert [(ask.first, ask.last) for ask in asked] == [(3, 3)]
    assert policy.take_expired(3, 2 * GAPS.give_up_ns - GAPS.patience_ns - 1) is None
    assert policy.take_expired(3, 2 * GAPS.give_up_ns - GAPS.patience_ns) is not None


def test_answers_dropped_for_want_of_room_spare_their_holes_but_not_the_first() -> None:
    policy = GapPolicy(GAPS, server_count=1, session=1)
    policy.on_scan([(1, 1), (3, 3)], [], 0)
    policy.due_requests(GAPS.patience_ns)
    policy.on_answers_dropped(GAPS.give_up_ns - MS)
    assert policy.take_expired(1, GAPS.give_up_ns) is not None
    assert policy.take_expired(3, GAPS.give_up_ns) is None


def test_a_hole_that_splits_keeps_its_history_and_names_who_filled_the_middle() -> None:
    policy = GapPolicy(GAPS, server_count=1, session=1)
    policy.on_scan([(1, 9)], [], 0)
    events = policy.on_scan([(1, 3), (7, 9)], [Fill(4, 6, Line.B)], MS)
    assert events == [HoleFilled(MS, 1, 4, 6, Line.B)]
    asked, _ = policy.due_requests(GAPS.patience_ns)
    assert [(ask.first, ask.last) for ask in asked] == [(1, 3), (7, 9)]


def test_more_holes_than_are_looked_after_wait_their_turn() -> None:
    policy = GapPolicy(GapConfig(holes_max=2), server_count=1, session=1)
    events = policy.on_scan([(1, 1), (3, 3), (5, 5)], [], 0)
    assert len(events) == 2
    events = policy.on_scan([(3, 3), (5, 5)], [], MS)
    assert HoleOpened(MS, 1, 5, 5) in events


# --- sessions -----------------------------------------------------------------------------------------


def test_a_session_that_ended_complete_rolls_at_once() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3), end_of_session(LINE_A, 1, 4))
    desk.tick()
    assert desk.events(SessionEnded) == [SessionEnded(desk.now_ns, 1, 3)]
    assert desk.put(data(LINE_A, 2, 1, 2)) == []
    desk.tick()
    assert desk.events(SessionRolled) == [SessionRolled(desk.now_ns, 1, 2)]
    assert desk.messages[3:] == [(2, 1), (2, 2)]


def test_the_new_session_waits_until_the_holes_of_the_old_are_filled() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), end_of_session(LINE_A, 1, 4), data(LINE_A, 2, 1, 1))
    desk.tick()
    assert [ask.datagram for ask in desk.tick(GAPS.patience_ns)] == [b"1000 1001 2 2"]
    desk.put(data(LINE_A, 2, 2, 1))
    assert numbers(desk.put(data(LINE_RECOVERY, 1, 2, 2))) == [2, 3]
    desk.tick()
    assert desk.messages == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def test_holes_of_the_old_session_are_given_up_before_the_roll() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), end_of_session(LINE_A, 1, 4), data(LINE_A, 2, 1, 1))
    desk.tick()
    desk.tick(GAPS.patience_ns)
    desk.tick(GAPS.give_up_ns)
    kinds = [type(event) for event in desk.events(Lost, SessionEnded, SessionRolled)]
    assert kinds == [Lost, SessionEnded, SessionRolled]
    assert desk.messages == [(1, 1), (2, 1)]


def test_a_late_packet_of_an_old_session_never_flips_back() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), end_of_session(LINE_A, 1, 2), data(LINE_A, 2, 1, 1))
    desk.tick()
    desk.put(data(LINE_B, 1, 1, 1), end_of_session(LINE_B, 1, 2), data(LINE_A, 2, 2, 1))
    desk.tick(10 * SECOND)
    assert desk.handler.session == 2
    assert desk.arbiter.counts(Line.B).stale == 1
    assert numbers(desk.messages) == [1, 1, 2]


def test_only_so_many_old_sessions_are_remembered() -> None:
    desk = Desk()
    for session in range(1, PAST_SLOTS + 3):
        desk.put(data(LINE_A, session, 1, 1), end_of_session(LINE_A, session, 2))
        desk.tick()
    assert desk.handler.session == PAST_SLOTS + 2
    desk.put(data(LINE_B, 2, 1, 1))
    assert desk.arbiter.counts(Line.B).stale == 1
    assert desk.arbiter.tables.past.tolist().count(1) == 0


def test_a_session_that_begins_at_one_and_goes_on_is_taken_up_when_the_old_is_quiet() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), data(LINE_A, 2, 1, 1), data(LINE_B, 2, 1, 1))
    desk.tick()
    assert desk.handler.session == 1
    desk.now_ns += GAPS.patience_ns - 1
    desk.put(data(LINE_A, 2, 2, 1))
    desk.tick(1)
    assert desk.handler.session == 1  # quiet for long enough, but the other has not lasted yet
    desk.put(heartbeat(LINE_A, 2, 3))
    desk.tick()
    assert desk.handler.session == 2
    assert desk.messages == [(1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    "strays",
    [
        [heartbeat(LINE_A, 9, 1)],
        [data(LINE_A, 9, 1, 1)],
        [heartbeat(LINE_A, 9, 1), heartbeat(LINE_B, 9, 1)],
        [data(LINE_A, 9, 1, 1), data(LINE_B, 9, 1, 1)],
    ],
)
def test_strays_that_name_number_one_do_not_end_a_session_in_a_pause(strays: list[Packet]) -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3))
    desk.tick(MS)
    desk.put(*strays)
    for _ in range(20):
        desk.tick(100 * MS)
    assert desk.handler.session == 1
    assert numbers(desk.put(data(LINE_A, 1, 4, 3), data(LINE_B, 1, 4, 3))) == [4, 5, 6]
    assert desk.arbiter.counts(Line.B).stale == 0


def test_heartbeats_alone_do_not_make_a_session_that_follows() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3))
    for _ in range(5):
        desk.put(heartbeat(LINE_A, 9, 1))
        desk.tick(100 * MS)
    assert desk.handler.session == 1


def test_a_session_to_resume_that_has_not_spoken_yet_is_not_left_for_a_stray() -> None:
    desk = Desk(LineConfig(start=4, start_session=3, batch_packets=16, slot_bytes=512, hold_slots=8))
    desk.tick()
    desk.put(heartbeat(LINE_A, 9, 777))
    desk.tick(CONFIG.silence_ns - 1)
    assert desk.put(data(LINE_A, 3, 4, 1)) == [(3, 4)]
    assert desk.events(SessionRolled) == []


def test_a_session_to_resume_that_never_speaks_is_left_after_silence() -> None:
    desk = Desk(LineConfig(start=4, start_session=3, batch_packets=16, slot_bytes=512, hold_slots=8))
    desk.tick()
    desk.put(data(LINE_A, 9, 1, 1))
    desk.tick(CONFIG.silence_ns)
    assert desk.messages == [(9, 1)]


def test_an_end_below_what_is_known_ends_nothing() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3), end_of_session(LINE_A, 1, 1))
    desk.tick()
    assert desk.events(SessionEnded) == []
    assert not desk.handler.is_ended
    desk.put(end_of_session(LINE_A, 1, 4))
    desk.tick()
    assert desk.events(SessionEnded) == [SessionEnded(desk.now_ns, 1, 3)]


def test_messages_from_beyond_the_end_reopen_the_session() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3), end_of_session(LINE_A, 1, 4))
    desk.tick()
    assert numbers(desk.put(data(LINE_A, 1, 4, 2))) == [4, 5]
    assert not desk.handler.is_ended
    desk.tick()
    desk.put(data(LINE_A, 2, 1, 1))  # could end only a session that has ended
    desk.tick()
    assert desk.handler.session == 1
    desk.put(end_of_session(LINE_A, 1, 6))
    desk.tick()
    ended = [event for event in desk.events(SessionEnded) if isinstance(event, SessionEnded)]
    assert [event.last for event in ended] == [3, 5]


def test_an_end_with_a_number_too_high_is_taken_back_by_heartbeats() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 3), end_of_session(LINE_A, 1, 900))
    desk.tick()
    desk.now_ns += 100 * MS
    desk.put(heartbeat(LINE_A, 1, 4), heartbeat(LINE_B, 1, 4))
    desk.tick()
    desk.tick(GAPS.give_up_ns)
    assert desk.events(Lost, SessionEnded) == []
    assert numbers(desk.put(data(LINE_A, 1, 4, 1))) == [4]


def test_a_stray_packet_of_another_session_does_not_end_ours() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), data(LINE_A, 9, 500, 1))
    for _ in range(20):
        desk.put(heartbeat(LINE_A, 1, 2))
        desk.tick(100 * MS)
    assert desk.events(SessionDismissed) != []
    assert desk.handler.session == 1
    assert desk.handler.abandoned_count == 1
    assert numbers(desk.put(data(LINE_A, 1, 2, 1))) == [2]


def test_a_session_in_mid_stream_is_taken_up_when_ours_is_silent() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1))
    desk.tick()
    desk.put(data(LINE_A, 9, 500, 1))
    desk.tick(CONFIG.silence_ns - 1)
    assert desk.handler.session == 1
    desk.tick(1)
    assert desk.handler.session == 9
    assert desk.arbiter.holes() == [(1, 499)]


def test_an_answer_cannot_start_a_session() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1), data(LINE_RECOVERY, 9, 1, 4))
    assert desk.arbiter.counts(Line.RECOVERY).foreign == 4
    desk.tick(10 * SECOND)
    assert desk.handler.session == 1


# --- silence, events, settings ----------------------------------------------------------------------


def test_a_silent_line_is_told_once_and_again_when_it_is_back() -> None:
    desk = Desk()
    desk.tick()
    desk.put(heartbeat(LINE_A, 1, 1), heartbeat(LINE_B, 1, 1))
    last_ns = desk.now_ns
    for _ in range(10):
        desk.now_ns += SECOND // 2
        desk.put(heartbeat(LINE_A, 1, 1))
        desk.tick()
    silent = desk.events(LineSilent)
    assert silent == [LineSilent(last_ns + CONFIG.silence_ns, Line.B, last_ns)]
    desk.put(heartbeat(LINE_B, 1, 1))
    desk.tick()
    assert desk.events(LineBack) == [LineBack(desk.now_ns, Line.B, desk.now_ns - last_ns)]


def test_a_line_that_never_spoke_is_silent_from_the_start() -> None:
    desk = Desk()
    desk.tick()
    desk.tick(CONFIG.silence_ns)
    assert desk.events(LineSilent) == [LineSilent(desk.now_ns, line, SECOND) for line in (Line.A, Line.B)]


def test_events_that_nobody_takes_are_dropped_and_counted() -> None:
    desk = Desk(LineConfig(start=1, batch_packets=16, slot_bytes=512, hold_slots=8, events_max=2))
    desk.put(data(LINE_A, 1, 2, 1), data(LINE_A, 1, 4, 1), data(LINE_A, 1, 6, 1))
    desk.tick()
    assert len(desk.handler.events) == 2
    assert desk.handler.events_dropped == 2


def test_nothing_is_due_while_messages_flow_without_a_hole() -> None:
    desk = Desk()
    desk.put(data(LINE_A, 1, 1, 1))
    assert desk.handler.is_due(desk.now_ns)  # to tell of the session
    desk.tick()
    desk.put(data(LINE_A, 1, 2, 1), data(LINE_B, 1, 2, 1))
    assert not desk.handler.is_due(desk.now_ns + MS)
    desk.put(data(LINE_A, 1, 4, 1))
    assert desk.handler.is_due(desk.now_ns + GAPS.patience_ns // 4)
    assert desk.handler.next_due_ns <= desk.now_ns + GAPS.patience_ns // 4


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"patience_ns": 0}, "patience_ns must be at least 1"),
        ({"give_up_ns": 100 * MS}, "give_up_ns must leave time for a request"),
        ({"retry_max_ns": 1 * MS}, "retry_max_ns must be at least retry_ns"),
        ({"settle_ns": 30 * MS}, "settle_ns must be at most retry_ns"),
    ],
)
def test_gap_settings_that_contradict_each_other_are_refused(
    settings: dict[str, int], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        GapConfig(**settings)


@pytest.mark.parametrize(
    "config, complaint",
    [
        (lambda: LineConfig(slot_bytes=100), "slot_bytes must be a multiple of 8"),
        (lambda: LineConfig(slot_bytes=8), "slot_bytes must be 64 to 65536, was 8"),
        (lambda: LineConfig(start=0), "start must be 1 to"),
        (lambda: LineConfig(start_session=4), "start must be a number when start_session is given"),
        (lambda: LineConfig(silence_ns=MS), "silence_ns must be longer than patience_ns"),
        (lambda: LineConfig(hold_slots=0), "hold_slots must be 1 to"),
    ],
)
def test_line_settings_that_cannot_be_are_refused(config: type[LineConfig], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        config()
