"""One stream's adapter group and its server in virtual time, from one seed: what decides is the real code.

Adapters die, restart, pause, slow down, lose their source lines, lose step, lie, and lose messages to and
from the server, one way or both; the server crashes and stalls; the store is slow or fails, either way.
The truth is known here, so every decision is held against it at the moment it is made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from stream_admin.failover import FailoverGroup
from stream_admin.failover_messages import (
    Action,
    AdapterLeft,
    Alarm,
    Answer,
    Audit,
    Cause,
    Command,
    Complaint,
    Directory,
    Drain,
    EpochNotPersisted,
    EpochPersisted,
    EpochRecord,
    Event,
    FailBack,
    FailOver,
    Fence,
    Grant,
    Heartbeat,
    PersistDrained,
    PersistEpoch,
    PushToSubscribers,
    StoredGroup,
    SubscriberReport,
    SubscribersCounted,
    Sync,
    Tick,
    Undrain,
)
from stream_admin.failover_settings import MILLISECOND_NS, SECOND_NS, FailoverSettings

SETTINGS = FailoverSettings(
    stream="XSIM.ITCH",
    adapters=("a", "b", "c"),
    freshness_messages=200,
    failover_interval_ns=2 * SECOND_NS,
    failovers_max=3,
    failover_window_ns=20 * SECOND_NS,
    stable_ns=500 * MILLISECOND_NS,
    hand_over_lead_messages=50,
    hand_over_ns=5 * SECOND_NS,
    unsynchronised_after_ns=8 * SECOND_NS,
)
STEP_NS = SETTINGS.heartbeat_ns
DELAY_NS_MAX = 5 * MILLISECOND_NS
STORE_NS_MAX = 30 * MILLISECOND_NS  # of a store that is well
# After an impairment has ended its effect may still lead to a decision: lag, silence and grants have to pass.
AFTERMATH_NS = 2 * (SETTINGS.freshness_ns + SETTINGS.detection_ns + SETTINGS.confirmation_ns) + 3 * SECOND_NS
REPLACEMENT_NS = SETTINGS.detection_ns + SETTINGS.stall_ns + STORE_NS_MAX + 2 * DELAY_NS_MAX + 4 * STEP_NS
# Causes for which an active that lives is replaced, so that hysteresis must hold them back.
HELD_BACK = {Cause.STALE, Cause.LINES_DOWN, Cause.OUT_OF_STEP, Cause.REPORTED}
AUTOMATIC = HELD_BACK | {Cause.DEAD, Cause.UNCONFIRMED, Cause.LEAST_BAD}
BOLD = {Cause.COMMAND, Cause.FOUNDING, Cause.LEAST_BAD}


@dataclass
class SimulatedAdapter:
    name: str
    incarnation: int = 1
    is_running: bool = True
    number: int = 0
    position: int = 0
    epoch: int = 0
    is_active: bool = False
    granted_from: int | None = None  # active from there on
    fenced_from: int | None = None  # not active from there on
    sync: Sync = Sync.SYNCHRONISED
    lines_up: int = 2
    speed_percent: int = 100
    lie_messages: int = 0
    is_paused: bool = False
    is_deaf: bool = False  # nothing from the server arrives
    is_mute: bool = False  # nothing arrives at the server
    impaired_ns: int = -AFTERMATH_NS  # when something was wrong with it last
    lied_ns: int = -AFTERMATH_NS
    delivered_sync: Sync = Sync.JOINING

    @property
    def is_impaired(self) -> bool:
        return (
            not self.is_running
            or self.is_paused
            or self.is_deaf
            or self.is_mute
            or self.lie_messages != 0
            or self.speed_percent != 100
            or self.lines_up == 0
            or self.sync is not Sync.SYNCHRONISED
        )

    def advance(self, head: int) -> None:
        if not self.is_running or self.is_paused:
            return
        if self.lines_up:
            self.position += (head - self.position) * self.speed_percent // 100
        if self.granted_from is not None and self.position + 1 >= self.granted_from:
            self.is_active, self.granted_from = True, None
        if self.fenced_from is not None and self.position + 1 >= self.fenced_from:
            self.is_active, self.fenced_from = False, None

    def on_grant(self, grant: Grant) -> None:
        if grant.incarnation == self.incarnation and grant.epoch > self.epoch:
            self.epoch = grant.epoch
            self.fenced_from, self.granted_from = None, grant.from_seq
            self.is_active = self.is_active and self.position + 1 >= grant.from_seq

    def on_fence(self, fence: Fence) -> None:
        if fence.incarnation != self.incarnation or fence.epoch <= self.epoch:
            return
        if fence.from_seq == 0:
            self.epoch = fence.epoch
            self.is_active, self.granted_from, self.fenced_from = False, None, None
        else:  # it stays active in its own epoch up to there
            self.fenced_from = fence.from_seq

    def restart(self, head: int) -> None:
        self.incarnation += 1
        self.number, self.epoch, self.is_active = 0, 0, False
        self.granted_from = self.fenced_from = None
        self.is_running, self.is_paused, self.sync, self.position = True, False, Sync.JOINING, head


@dataclass
class Simulation:
    seed: int
    group_type: type[FailoverGroup] = FailoverGroup
    steps: int = 3_000
    promotions: list[EpochRecord] = field(default_factory=list)
    granted: dict[int, tuple[str, int]] = field(default_factory=dict)
    alarm_count: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now_ns = 0
        self.head = 0
        self.adapters = {name: SimulatedAdapter(name) for name in SETTINGS.adapters}
        self.holders: dict[int, tuple[str, int]] = {}
        self.durable: dict[int, EpochRecord] = {}
        self.drained: tuple[str, ...] = ()
        self.directory: Directory | None = None
        self.group: FailoverGroup | None = None
        self.server_life = 0
        self.server_up_ns = 0
        self.stalled_until_ns = 0
        self.store_trouble_until_ns = 0
        self.command_count = 0
        self.changes_ns: list[int] = []  # of this life of the server
        self.automatic_ns: list[int] = []  # of these, since an operator acted
        self.unserved_ns: int | None = None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._start_server()

    # ---- the world

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ns + delay_ns, next(self._order), call))

    def run(self) -> None:
        for _ in range(self.steps):
            end_ns = self.now_ns + STEP_NS
            while self._queue and self._queue[0][0] <= end_ns:
                self.now_ns, _, call = heapq.heappop(self._queue)
                call()
            self.now_ns = end_ns
            self._step()

    def _step(self) -> None:
        if self.head % 7 or self.random.random() < 0.9:  # now and then the exchange is quiet for a while
            self.head += self.random.randrange(0, 40)
        if self.random.random() < 0.02:
            self._break_something()
        for adapter in self.adapters.values():
            adapter.advance(self.head)
            if adapter.is_impaired:
                adapter.impaired_ns = self.now_ns
            if adapter.lie_messages:
                adapter.lied_ns = self.now_ns
            if adapter.is_active and adapter.is_running:
                me = (adapter.name, adapter.incarnation)
                assert self.holders.setdefault(adapter.epoch, me) == me, (
                    f"two actives in epoch {adapter.epoch}"
                )
            self._send_heartbeat(adapter)
        if self.now_ns >= self.stalled_until_ns:
            self._tell(Tick())
        self._check_replacement()

    def _send_heartbeat(self, adapter: SimulatedAdapter) -> None:
        if not adapter.is_running or adapter.is_paused:
            return
        adapter.number += 1
        position = max(0, adapter.position + adapter.lie_messages)
        heartbeat = Heartbeat(
            adapter.name,
            adapter.incarnation,
            adapter.number,
            adapter.epoch,
            adapter.is_active,
            position,
            1,
            position,
            position * 1_000,
            adapter.sync,
            adapter.lines_up,
        )
        if not adapter.is_mute and self.random.random() > 0.03:
            self._later(self.random.randrange(DELAY_NS_MAX), lambda: self._deliver(adapter, heartbeat))

    def _deliver(self, adapter: SimulatedAdapter, heartbeat: Heartbeat) -> None:
        if self.now_ns < self.stalled_until_ns:  # the socket keeps it while the server stands still
            self._later(self.stalled_until_ns - self.now_ns + 1, lambda: self._deliver(adapter, heartbeat))
            return
        if heartbeat.incarnation == adapter.incarnation:
            adapter.delivered_sync = heartbeat.sync
        self._tell(heartbeat)

    def _break_something(self) -> None:
        adapter = self.random.choice(list(self.adapters.values()))
        length_ns = self.random.choice((50, 300, 1_000, 4_000)) * MILLISECOND_NS

        def until(undo: Callable[[], None]) -> None:
            self._later(length_ns, undo)

        match self.random.randrange(13):
            case 0 | 1:
                adapter.is_running = adapter.is_active = False
                adapter.impaired_ns = self.now_ns
                if self.random.random() < 0.3:
                    self._tell(AdapterLeft(adapter.name, adapter.incarnation, "stopped"))
                until(lambda: adapter.restart(self.head))
                self._later(
                    length_ns + 200 * MILLISECOND_NS, lambda: setattr(adapter, "sync", Sync.SYNCHRONISED)
                )
            case 2:
                adapter.is_paused = True
                until(lambda: setattr(adapter, "is_paused", False))
            case 3:
                adapter.speed_percent = self.random.choice((0, 1, 5))
                until(lambda: setattr(adapter, "speed_percent", 100))
            case 4:
                adapter.lines_up = 0
                until(lambda: setattr(adapter, "lines_up", 2))
            case 5:
                adapter.sync = Sync.UNSYNCHRONISED
                until(lambda: setattr(adapter, "sync", Sync.SYNCHRONISED))
            case 6:
                adapter.lie_messages = self.random.choice((-5_000, 5_000))
                until(lambda: setattr(adapter, "lie_messages", 0))
            case 7:
                adapter.is_deaf = True
                until(lambda: setattr(adapter, "is_deaf", False))
            case 8:
                adapter.is_mute = True
                until(lambda: setattr(adapter, "is_mute", False))
            case 9 if self.group is not None:
                self.group = None
                until(self._start_server)
            case 10:
                self.stalled_until_ns = self.now_ns + length_ns
            case 11:
                self.store_trouble_until_ns = self.now_ns + length_ns
            case _:
                self._command_or_report(adapter)

    def _command_or_report(self, adapter: SimulatedAdapter) -> None:
        self.command_count += 1
        who = (f"command-{self.command_count}", "operator")
        at_seq = self.random.choice((None, self.head + 60, self.head + 600, self.head))
        events: tuple[Event, ...] = (
            FailOver(*who, adapter.name, is_forced=self.random.random() < 0.2),
            FailOver(*who, None, at_seq),
            FailBack(*who, at_seq),
            Drain(*who, adapter.name),
            Undrain(*who, adapter.name),
        )
        if self.random.random() < 0.8:
            self._tell(self.random.choice(events))
            return
        self._tell(SubscribersCounted(4))
        accused = None if self.directory is None else self.directory.active
        if self.directory is None or accused is None:
            return
        voices = self.random.randrange(1, 4)  # one alone, or a quorum of four
        if voices > 1:
            self.adapters[accused].impaired_ns = self.now_ns
        for voice in range(voices):
            report = (f"principal-{voice}", accused, self.directory.epoch)
            self._tell(SubscriberReport(*report, Complaint.SILENT, self.head, "nothing for 100 ms"))

    # ---- the server and its store

    def _start_server(self) -> None:
        self.server_life += 1
        self.server_up_ns = self.now_ns
        self.stalled_until_ns = 0
        self.changes_ns, self.automatic_ns = [], []
        newest = self.durable[max(self.durable)] if self.durable else None
        self.group = self.group_type(SETTINGS, StoredGroup(newest, self.drained), self.now_ns)

    def _tell(self, event: Event) -> None:
        if self.group is None or self.now_ns < self.stalled_until_ns:
            return
        actions = self.group.on_event(event, self.now_ns)
        if isinstance(event, Command):
            assert sum(isinstance(action, Answer) for action in actions) == 1, f"{event} has no answer"
        audits = [action for action in actions if isinstance(action, Audit)]
        assert all(audit.reason for audit in audits), "a decision without a reason"
        for action in actions:
            self._carry_out(action, audits)

    def _carry_out(self, action: Action, audits: list[Audit]) -> None:
        match action:
            case PersistEpoch(record):
                assert any(audit.decision == f"promote {record.adapter}" for audit in audits), "not audited"
                self._check_promotion(record)
                self._store(record)
            case PersistDrained(adapters):
                self.drained = adapters
            case Grant():
                self._check_grant(action)
                self._send(self.adapters[action.adapter], lambda adapter: adapter.on_grant(action))
            case Fence():
                self._send(self.adapters[action.adapter], lambda adapter: adapter.on_fence(action))
            case PushToSubscribers(directory):
                assert self.directory is None or directory.epoch >= self.directory.epoch, "an epoch went back"
                self.directory = directory
            case Alarm():
                self.alarm_count += 1
            case Answer(is_accepted=True):
                self.automatic_ns = []

    def _send(self, adapter: SimulatedAdapter, call: Callable[[SimulatedAdapter], None]) -> None:
        def arrive() -> None:
            if adapter.is_running and not adapter.is_deaf:
                call(adapter)

        if self.random.random() > 0.03:
            self._later(self.random.randrange(DELAY_NS_MAX), arrive)

    def _store(self, record: EpochRecord) -> None:
        life = self.server_life
        is_troubled = self.now_ns < self.store_trouble_until_ns
        delay_ns = self.random.randrange(STORE_NS_MAX * (50 if is_troubled else 1))
        fails = is_troubled and self.random.random() < 0.5
        is_written = not fails or self.random.random() < 0.5

        def end() -> None:
            if self.server_life != life or self.group is None:
                return  # the writer died before it was written
            if is_written:
                assert record.epoch > max(self.durable, default=0), f"epoch {record.epoch} is not new"
                self.durable[record.epoch] = record
            event = EpochNotPersisted(record.epoch, "disk full") if fails else EpochPersisted(record.epoch)
            self._report(event)

        self._later(delay_ns, end)

    def _report(self, event: Event) -> None:
        if self.now_ns < self.stalled_until_ns:
            self._later(self.stalled_until_ns - self.now_ns + 1, lambda: self._report(event))
        else:
            self._tell(event)

    # ---- what must hold

    def _check_grant(self, grant: Grant) -> None:
        assert grant.epoch in self.durable, f"epoch {grant.epoch} was granted before it was durable"
        record = self.durable[grant.epoch]
        assert (record.adapter, record.incarnation) == (grant.adapter, grant.incarnation)
        if grant.epoch in self.granted:
            return
        self.granted[grant.epoch] = (grant.adapter, grant.incarnation)
        adapter = self.adapters[grant.adapter]
        was_active = self.directory is not None and self.directory.active == grant.adapter
        if not was_active and record.hand_over_from is None:
            self.changes_ns.append(self.now_ns)
            self.automatic_ns += [self.now_ns] if record.cause in AUTOMATIC else []
        if (
            record.cause not in BOLD
            and not was_active
            and self.now_ns - self.server_up_ns > SETTINGS.grace_ns
        ):
            assert adapter.delivered_sync is Sync.SYNCHRONISED, f"{adapter.name} was promoted unsynchronised"

    def _check_promotion(self, record: EpochRecord) -> None:
        self.promotions.append(record)
        before = None if self.directory is None else self.directory.active
        if before is None and self.durable:  # nobody is active now: then it is the holder of the newest epoch
            before = self.durable[max(self.durable)].adapter
        if record.cause in HELD_BACK and self.changes_ns:
            assert self.now_ns - self.changes_ns[-1] >= SETTINGS.failover_interval_ns, "flapping: too soon"
            recent = [at for at in self.automatic_ns if at > self.now_ns - SETTINGS.failover_window_ns]
            assert len(recent) < SETTINGS.failovers_max, "flapping: too many in the window"
        if record.cause in AUTOMATIC and before is not None and before != record.adapter:
            self._check_cause(self.adapters[before], record)

    def _check_cause(self, demoted: SimulatedAdapter, record: EpochRecord) -> None:
        is_excused = self.now_ns - demoted.impaired_ns <= AFTERMATH_NS
        if record.cause is Cause.STALE:  # a sibling that claims too much cannot be told from a slow active
            liars = [a for a in self.adapters.values() if self.now_ns - a.lied_ns <= AFTERMATH_NS]
            is_excused = is_excused or bool(liars)
        assert is_excused, f"{demoted.name} was well and was demoted: {record.cause.value}"

    def _check_replacement(self) -> None:
        """A dead active is replaced in time, if anybody can replace it and server and store are well."""
        name = None if self.directory is None else self.directory.active
        is_dead = self.directory is not None and self.directory.epoch > 0
        if name is not None:
            is_dead = not self.adapters[name].is_running
        up_ns = SETTINGS.grace_ns + AFTERMATH_NS
        is_well = (
            self.group is not None
            and self.now_ns - self.server_up_ns > up_ns
            and self.now_ns - self.stalled_until_ns > AFTERMATH_NS
            and self.now_ns - self.store_trouble_until_ns > AFTERMATH_NS
        )
        can_replace = any(
            self.now_ns - adapter.impaired_ns > AFTERMATH_NS
            and adapter.name not in self.drained
            and adapter.name != name
            for adapter in self.adapters.values()
        )
        if not (is_dead and is_well and can_replace):
            self.unserved_ns = None
            return
        self.unserved_ns = self.now_ns if self.unserved_ns is None else self.unserved_ns
        assert self.now_ns - self.unserved_ns <= REPLACEMENT_NS, (
            f"{name} is dead and was not replaced in time"
        )
