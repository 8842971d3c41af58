"""The compiled arbitration against its plain reference, and the promises of the whole handler under loss."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from feeds import formats
from feeds.formats import BAD_BLOCKS, LINE_A, LINE_B, LINE_COUNT, LINE_RECOVERY
from feeds.lines import tables as t
from feeds.lines.events import HoleFilled, HoleOpened, Line, Lost, SessionRolled
from feeds.lines.gaps import MS, SECOND, GapConfig
from feeds.lines.handler import LineArbiter, LineConfig, LineHandler
from feeds.lines.receiver import LineReceiver, ReceiverConfig
from feeds.moldudp64 import encode_downstream
from feeds.validation import validate
from tests.line_packets import arbitrate, plain_format, read_runs
from tests.line_reference import (
    Packet,
    ReferenceArbiter,
    bad,
    data,
    end_of_session,
    heartbeat,
    message_of,
)

pytestmark = pytest.mark.kernels

# A run of the whole handler takes as long as many examples of a kernel.
few = settings(max_examples=max(settings().max_examples // 5, 5))

JUMP_LIMIT = 30
BATCH = 12

lines = st.sampled_from([LINE_A, LINE_B, LINE_RECOVERY])
sessions = st.sampled_from([7, 7, 7, 8, 8, 9])
packets = st.one_of(
    st.builds(data, lines, sessions, st.integers(1, 70), st.integers(1, 9)),
    st.builds(data, lines, sessions, st.integers(1, 70), st.integers(1, 9)),
    st.builds(data, lines, st.just(7), st.integers(1, 40), st.integers(1, 9)),
    st.builds(heartbeat, lines, sessions, st.integers(1, 110)),
    st.builds(end_of_session, lines, sessions, st.integers(1, 70)),
    st.builds(bad, lines, st.just(BAD_BLOCKS)),
)
steps = st.lists(
    st.one_of(
        st.lists(packets, max_size=BATCH),
        st.lists(packets, max_size=3),
        st.sampled_from(["give up", "give up all", "roll", "withdraw", "settle"]),
    ),
    max_size=14,
)

COUNT_FIELDS = {
    "packets": t.COUNT_PACKETS,
    "messages": t.COUNT_MESSAGES,
    "heartbeats": t.COUNT_HEARTBEATS,
    "first": t.COUNT_FIRST,
    "duplicate": t.COUNT_DUPLICATE,
    "filled": t.COUNT_FILLED,
    "early": t.COUNT_EARLY,
    "late": t.COUNT_LATE,
    "stale": t.COUNT_STALE,
    "foreign": t.COUNT_FOREIGN,
    "far": t.COUNT_FAR,
    "bad": t.COUNT_BAD + BAD_BLOCKS,
}


def compare(arbiter: LineArbiter, reference: ReferenceArbiter) -> None:
    for line in range(LINE_COUNT):
        found = {name: int(arbiter.tables.counts[line, at]) for name, at in COUNT_FIELDS.items()}
        assert found == {name: reference.counts[line][name] for name in COUNT_FIELDS}, f"line {line}"
        assert arbiter.tables.counts[line, t.COUNT_LOST] == reference.lines[line].lost, f"line {line}"
    assert arbiter.holes() == reference.holes()
    assert arbiter.value(t.ARBITER_FAR_COUNT) == reference.refused
    if reference.current is not None:
        assert arbiter.value(t.ARBITER_SESSION) == reference.current.number
        assert arbiter.value(t.ARBITER_EXPECTED) == reference.current.expected
        assert arbiter.value(t.ARBITER_HIGH) == reference.current.high
        assert arbiter.value(t.ARBITER_IS_ENDED) == reference.current.is_ended
        assert arbiter.value(t.ARBITER_IS_PROVISIONAL) == reference.current.is_provisional
        assert max(arbiter.value(t.ARBITER_SEEN_HIGH), reference.current.expected) == max(
            reference.current.seen_high, reference.current.expected
        )
    following = reference.following
    assert arbiter.value(t.NEXT_SESSION) == (t.NO_SESSION if following is None else following.number)
    if following is not None:
        assert arbiter.value(t.NEXT_FIRST) == following.first_seen
        assert arbiter.value(t.NEXT_HIGH) == following.high
        assert arbiter.value(t.NEXT_PACKETS) == following.packets
        assert arbiter.value(t.NEXT_DATA) == following.data_packets


def check_balance(arbiter: LineArbiter) -> None:
    """Every message received is in exactly one count, and every first one is somewhere."""
    counts = arbiter.tables.counts
    parts = [t.COUNT_FIRST, t.COUNT_DUPLICATE, t.COUNT_EARLY, t.COUNT_LATE, t.COUNT_STALE, t.COUNT_FOREIGN]
    assert (counts[:, t.COUNT_MESSAGES] == counts[:, [*parts, t.COUNT_FAR]].sum(axis=1)).all()
    held = 0
    for side in (t.CURRENT, t.FOLLOWING):
        begin, end = arbiter.value(t.ARBITER_ROW_BEGIN + side), arbiter.value(t.ARBITER_ROW_END + side)
        rows = arbiter.tables.rows[side, begin:end].tolist()
        held += len({seq for row in rows for seq in range(row[t.HELD_SEQ], row[t.HELD_END])})
        starts, ends = [row[t.HELD_SEQ] for row in rows], [row[t.HELD_END] for row in rows]
        assert starts == sorted(set(starts))
        assert ends == sorted(set(ends))
    gone = arbiter.value(t.ARBITER_DELIVERED) + arbiter.value(t.ARBITER_ABANDONED)
    assert counts[:, t.COUNT_FIRST].sum() == gone + held + counts[:, t.COUNT_OVERFLOW].sum()
    slots = arbiter.value(t.ARBITER_FREE_COUNT) + arbiter.value(t.ARBITER_RELEASED_COUNT)
    assert slots + arbiter.held_packets == arbiter.config.hold_slots


@given(steps=steps, start=st.one_of(st.none(), st.integers(1, 20)), order=st.sampled_from(["big", "little"]))
def test_kernel_delivers_and_counts_what_the_reference_does(
    steps: list[list[Packet] | str], start: int | None, order: str
) -> None:
    config = LineConfig(
        start="first-seen" if start is None else start,
        batch_packets=BATCH,
        slot_bytes=256,
        hold_slots=2 * BATCH * len(steps) + 1,
        jump_limit=JUMP_LIMIT,
    )
    arbiter = LineArbiter(plain_format(is_prefix_big_endian=order == "big"), config)
    reference = ReferenceArbiter(JUMP_LIMIT, start, config.gaps.patience_ns)
    delivered: list[tuple[int, int, bytes]] = []
    decoded = 0
    now_ns = 0
    for step in steps:
        now_ns += 2 * MS  # patience is a few steps
        if isinstance(step, list):
            batch = [replace(packet, time_ns=now_ns) for packet in step]
            delivered += arbitrate(arbiter, batch, order)
            decoded = arbiter.value(t.ARBITER_RUN_COUNT)
            for packet in batch:
                reference.on_packet(packet)
        elif step == "withdraw":
            arbiter.withdraw()
            reference.withdraw()
        elif step == "settle":
            if reference.current is None or not reference.current.is_provisional:
                continue
            run_count = arbiter.settle()
            delivered += read_runs(arbiter, arbiter.tables.runs[decoded:run_count], order)
            decoded = run_count
            reference.settle()
        elif step == "roll":
            if reference.following is None or reference.holes():
                continue
            run_count = arbiter.roll()
            delivered += read_runs(arbiter, arbiter.tables.runs[decoded:run_count], order)
            decoded = run_count
            reference.roll()
        else:
            for first, last in reference.holes()[: 1 if step == "give up" else None]:
                assert arbiter.value(t.ARBITER_EXPECTED) == first
                run_count = arbiter.give_up(last)
                delivered += read_runs(arbiter, arbiter.tables.runs[decoded:run_count], order)
                decoded = run_count
                reference.give_up(last)
        compare(arbiter, reference)
        check_balance(arbiter)
    assert [(session, seq) for session, seq, _ in delivered] == reference.delivered
    assert all(message == message_of(session, seq) for session, seq, message in delivered)
    assert not arbiter.tables.counts[:, t.COUNT_OVERFLOW].any()


@given(batches=st.lists(st.lists(packets, max_size=BATCH), max_size=20), hold_slots=st.integers(1, 4))
def test_a_full_hold_drops_the_furthest_and_leaves_a_hole(
    batches: list[list[Packet]], hold_slots: int
) -> None:
    config = LineConfig(
        start=1, batch_packets=BATCH, slot_bytes=256, hold_slots=hold_slots, jump_limit=JUMP_LIMIT
    )
    arbiter = LineArbiter(plain_format(), config)
    delivered: list[tuple[int, int, bytes]] = []
    for batch in batches:
        delivered += arbitrate(arbiter, batch)
        check_balance(arbiter)
        assert arbiter.held_packets <= hold_slots
    expected = arbiter.value(t.ARBITER_EXPECTED)
    assert [seq for _, seq, _ in delivered] == list(range(1, expected))
    assert all(message == message_of(session, seq) for session, seq, message in delivered)
    # Whatever is known to exist is delivered, held or a hole: nothing is forgotten.
    begin, end = arbiter.value(t.ARBITER_ROW_BEGIN), arbiter.value(t.ARBITER_ROW_END)
    rows = arbiter.tables.rows[t.CURRENT, begin:end].tolist()
    held = {seq for row in rows for seq in range(row[t.HELD_SEQ], row[t.HELD_END])}
    missing = {seq for first, last in arbiter.holes() for seq in range(first, last + 1)}
    assert held.isdisjoint(missing)
    if arbiter.value(t.ARBITER_SESSION) != t.NO_SESSION:
        assert held | missing == set(range(expected, arbiter.value(t.ARBITER_HIGH)))


def encode_packet(exchange: str, seq: int, count: int) -> bytes:
    """Return a packet of small messages as that exchange's lines carry it."""
    if exchange == "itch50":
        messages = [
            struct.pack(">cHHHIQ", b"D", 7, 0, 0, number, number) for number in range(seq, seq + count)
        ]
        return encode_downstream(b"000010059B", seq, messages)
    assert exchange == "iex", f"write a packet of {exchange} here"
    blocks = struct.pack("<HcBq", 10, b"S", ord("O"), seq) * count
    offset = (seq - 1) * 12
    header = (1, 0, 0x8004, 1, 0x4CB00000, len(blocks), count, offset, seq, 1_000 + seq)
    return struct.pack("<BBHIIHHqqq", *header) + blocks


damage = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=2)


@pytest.mark.parametrize("exchange", formats.names())
@given(
    cuts=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3), lines, damage), max_size=60),
    noise=st.lists(st.binary(max_size=80), max_size=5),
)
def test_damaged_datagrams_never_break_order_or_schema(
    exchange: str, cuts: list[tuple[int, int, int, list[tuple[int, int]]]], noise: list[bytes]
) -> None:
    datagrams = list(noise)
    for seq, count, _, flips in cuts:
        content = bytearray(encode_packet(exchange, seq, count))
        for position, value in flips:
            content[position % len(content)] = value
        datagrams.append(bytes(content))
    rows = np.zeros((len(datagrams), formats.DATAGRAM_FIELDS), dtype=np.int64)
    lengths = np.array([len(content) for content in datagrams], dtype=np.int64)
    rows[:, formats.DATAGRAM_BYTES] = lengths
    rows[:, formats.DATAGRAM_OFFSET] = np.cumsum(lengths) - lengths
    rows[len(noise) :, formats.DATAGRAM_LINE] = [line for _, _, line, _ in cuts]
    rows[:, formats.DATAGRAM_TIME_NS] = MS + np.arange(len(datagrams)) * MS
    config = ReceiverConfig(
        lines=LineConfig(start=1, batch_packets=8, slot_bytes=256, hold_slots=16),
        session_date=date(2024, 3, 8),
        frame_capacity=16,
    )
    receiver = LineReceiver(formats.load(exchange), 1, config)
    arena = np.frombuffer(b"".join(datagrams) + b"\0", dtype=np.uint8).copy()
    found: list[tuple[int, int, int]] = []
    for frames in chain(receiver.frames_of(arena, rows), receiver.frames_at_end(SECOND)):
        validate(frames)
        keys = (frames[name].tolist() for name in ("source_session", "source_seq", "part"))
        found += zip(*keys, strict=True)
    check_balance(receiver.handler.arbiter)
    sessions_seen = list(dict.fromkeys(session for session, _, _ in found))
    in_order = sorted(set(found), key=lambda key: (sessions_seen.index(key[0]), *key[1:]))
    assert found == in_order


# --- the handler under loss, in virtual time --------------------------------------------------------


def cut(rng: random.Random, line: int, session: int, total: int) -> list[Packet]:
    """Cut messages 1 to `total` of a session into packets, at this line's own places."""
    found = []
    seq = 1
    while seq <= total:
        count = min(rng.choice([1, 1, 2, 3, 5, 8, 13]), total + 1 - seq)
        found.append(data(line, session, seq, count))
        seq += count
    return found


def disturb(rng: random.Random, sent: list[Packet], loss: float) -> Iterator[tuple[float, Packet]]:
    """Yield (arrival, packet): some lost, some twice, some later than those behind them."""
    for index, packet in enumerate(sent):
        if rng.random() < loss:
            continue
        yield index + (rng.uniform(0, 6) if rng.random() < 0.1 else rng.random()), packet
        if rng.random() < 0.05:
            yield index + rng.uniform(0, 8), packet


class Server:
    """A re-request server that answers at most `answer_max` messages a packet, late, and not always."""

    def __init__(self, rng: random.Random, totals: dict[int, int], loss: float, refused: set[int]) -> None:
        self.rng = rng
        self.totals = totals
        self.loss = loss
        self.refused = refused  # numbers it never gives out

    def answer(self, request: bytes, now_ns: int) -> list[tuple[int, Packet]]:
        identity, _, first, count = (int(word) for word in request.split())
        session = identity // 1_000
        last = min(first + count - 1, self.totals[session])
        answers: list[tuple[int, Packet]] = []
        seq = first
        while seq <= last and len(answers) < 3:
            end = seq
            while end <= last and end not in self.refused and end - seq < 10:
                end += 1
            if end > seq and self.rng.random() >= self.loss:
                arrival_ns = now_ns + int(self.rng.uniform(0.2, 3) * MS)
                answers.append((arrival_ns, data(LINE_RECOVERY, session, seq, end - seq)))
            seq = max(end, seq + 1)
        return answers


def run_lines(
    seed: int, totals: dict[int, int], loss: float, *, server_loss: float, refused: set[int], hold_slots: int
) -> tuple[LineHandler, list[tuple[int, int, bytes]]]:
    """Send whole sessions over two disturbed lines into a handler, until it has finished the last."""
    rng = random.Random(seed)
    gaps = GapConfig(retry_max_ns=40 * MS, give_up_ns=150 * MS, outstanding_max=64, holes_max=16)
    config = LineConfig(start=1, gaps=gaps, batch_packets=16, slot_bytes=256, hold_slots=hold_slots)
    handler = LineHandler(plain_format(), config, server_count=2)
    server = Server(rng, totals, server_loss, refused)
    on_the_way: list[tuple[int, Packet]] = []
    begin_ns = MS
    for session, total in totals.items():
        for line in (LINE_A, LINE_B):
            sent = cut(rng, line, session, total)
            for arrival, packet in disturb(rng, sent, loss):
                on_the_way.append((begin_ns + int(arrival * MS / 10), packet))
            last_ns = begin_ns + len(sent) * MS // 10
            on_the_way += [
                (last_ns + pause * 10 * MS, end_of_session(line, session, total + 1)) for pause in range(1, 4)
            ]
        begin_ns = max(arrival_ns for arrival_ns, _ in on_the_way) + MS
    delivered: list[tuple[int, int, bytes]] = []
    now_ns = 0
    deadline_ns = begin_ns + 60_000 * MS
    while not (handler.is_ended and handler.session == max(totals)):
        now_ns += rng.choice([MS // 10, MS // 2])
        assert now_ns < deadline_ns, "the last session was not finished in time"
        on_the_way.sort(key=lambda pair: pair[0])
        ready = 0
        while ready < min(len(on_the_way), 16) and on_the_way[ready][0] <= now_ns:
            ready += 1
        batch = [
            Packet(packet.line, packet.kind, packet.session, packet.seq, packet.count, now_ns)
            for _, packet in on_the_way[:ready]
        ]
        del on_the_way[:ready]
        delivered += arbitrate(handler.arbiter, batch)
        decoded = handler.arbiter.value(t.ARBITER_RUN_COUNT)
        if handler.is_due(now_ns):
            for request in handler.on_timer(now_ns):
                on_the_way += server.answer(request.datagram, now_ns)
            run_count = handler.arbiter.value(t.ARBITER_RUN_COUNT)
            delivered += read_runs(handler.arbiter, handler.arbiter.tables.runs[decoded:run_count])
        check_balance(handler.arbiter)
    handler.on_timer(now_ns)
    return handler, delivered


@pytest.mark.parametrize("hold_slots", [4, 512])
@few
@given(seed=st.integers(0, 2**32))
def test_every_message_comes_once_and_in_order_while_the_server_answers(seed: int, hold_slots: int) -> None:
    note(f"seed {seed}, hold_slots {hold_slots}")
    totals = {1: 400, 2: 300}
    handler, delivered = run_lines(seed, totals, 0.05, server_loss=0.1, refused=set(), hold_slots=hold_slots)
    assert delivered == [
        (session, seq, message_of(session, seq))
        for session, total in totals.items()
        for seq in range(1, total + 1)
    ]
    events = handler.take_events()
    assert [event for event in events if isinstance(event, Lost)] == []
    assert [event.session for event in events if isinstance(event, SessionRolled)] == [2]
    opened = sum(event.last - event.first + 1 for event in events if isinstance(event, HoleOpened))
    filled = sum(event.last - event.first + 1 for event in events if isinstance(event, HoleFilled))
    assert opened == filled
    assert handler.events_dropped == 0


@few
@given(seed=st.integers(0, 2**32))
def test_exactly_the_right_holes_are_reported_when_nobody_answers(seed: int) -> None:
    note(f"seed {seed}")
    total = 600
    refused = {seq for seq in range(1, total + 1) if random.Random(seed ^ seq).random() < 0.3}
    handler, delivered = run_lines(seed, {1: total}, 0.2, server_loss=0.0, refused=refused, hold_slots=512)
    lost = [
        seq
        for event in handler.take_events()
        if isinstance(event, Lost)
        for seq in range(event.first, event.last + 1)
    ]
    numbers = [seq for _, seq, _ in delivered]
    assert numbers == sorted(set(numbers))
    assert lost == sorted(set(range(1, total + 1)) - set(numbers))
    assert set(lost) <= refused
    assert handler.lost_count == len(lost)
    assert handler.arbiter.counts(Line.RECOVERY).late == 0
