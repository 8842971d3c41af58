"""The failover decisions under seeded faults; planted bugs show that it would notice wrong ones."""

from __future__ import annotations

import pytest

from stream_admin.failover import FailoverGroup
from stream_admin.failover_hysteresis import Hysteresis
from stream_admin.failover_members import Member
from stream_admin.failover_messages import Cause, EpochRecord, StoredGroup
from stream_admin.failover_settings import FailoverSettings
from tests.simulation.failover_simulation import Simulation

SEEDS_TO_FIND_A_BUG = 100
WORLDS_PER_SEED = 2
WORLDS_PER_SEED_LONG = 100


def test_every_decision_stands_up_to_the_truth(seed: int, is_long: bool) -> None:
    worlds = WORLDS_PER_SEED_LONG if is_long else WORLDS_PER_SEED
    for world in range(worlds):
        Simulation(seed * 10_000 + world).run()


def test_the_faults_reach_every_cause() -> None:
    seen: set[Cause] = set()
    for seed in range(SEEDS_TO_FIND_A_BUG):
        simulation = Simulation(seed)
        simulation.run()
        seen.update(record.cause for record in simulation.promotions)
        # These two are rare, unit tests show them.
        if seen >= set(Cause) - {Cause.LEAST_BAD, Cause.RENEWED}:
            return
    pytest.fail(f"no simulation led to {set(Cause) - seen}")


class ReusesEpochsAfterARestart(FailoverGroup):
    def __init__(self, settings: FailoverSettings, stored: StoredGroup, now_ns: int) -> None:
        super().__init__(settings, stored, now_ns)
        self.epoch_reserved = max(0, self.epoch_reserved - 1)

    def _check_epoch(self, heartbeat: object) -> None:
        """Forgets what adapters know, too: that alone would have hidden the bug."""


class GrantsBeforeItIsDurable(FailoverGroup):
    def _ask_store(self, record: EpochRecord) -> None:
        super()._ask_store(record)
        self._on_persisted(record.epoch)


class NoHysteresis(Hysteresis):
    def refusal(self, now_ns: int) -> str | None:
        return None


class Flaps(FailoverGroup):
    def __init__(self, settings: FailoverSettings, stored: StoredGroup, now_ns: int) -> None:
        super().__init__(settings, stored, now_ns)
        self.hysteresis = NoHysteresis(settings)


class BlamesAdaptersForItsOwnStalls(FailoverGroup):
    def _pass_time(self, now_ns: int) -> None:
        self.now_ns = now_ns


class DoesNotLookAgainWhenDurable(FailoverGroup):
    def unfit_for(self, incarnation: int, member: Member, *, is_bold: bool) -> str | None:
        return None if member.is_alive else super().unfit_for(incarnation, member, is_bold=is_bold)


class NoticesNoDeath(FailoverGroup):
    def _vanish(self, member: Member, reason: str) -> None:
        if member is not self.active:
            super()._vanish(member, reason)


@pytest.mark.parametrize(
    "broken",
    [
        ReusesEpochsAfterARestart,
        GrantsBeforeItIsDurable,
        Flaps,
        BlamesAdaptersForItsOwnStalls,
        DoesNotLookAgainWhenDurable,
        NoticesNoDeath,
    ],
)
def test_the_simulation_finds_planted_bugs(broken: type[FailoverGroup]) -> None:
    for seed in range(SEEDS_TO_FIND_A_BUG):
        try:
            Simulation(seed, broken).run()
        except AssertionError:
            return
    pytest.fail(f"{broken.__name__} went unnoticed for {SEEDS_TO_FIND_A_BUG} seeds")
