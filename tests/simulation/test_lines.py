"""Both exchanges' lines under seeded faults: every message once and in order, or reported as lost."""

from __future__ import annotations

from typing import Any

import pytest

from feeds import formats
from feeds.formats import IntArray
from feeds.lines.events import LineEvent
from tests.simulation.line_simulation import LineSimulation
from tests.simulation.venues import VENUES

EVERY_FORMAT = pytest.mark.parametrize("format_name", sorted(VENUES))
SEEDS_TO_FIND_A_BUG = 30


def test_every_exchange_format_has_a_venue_here() -> None:
    assert sorted(VENUES) == formats.names()


@EVERY_FORMAT
def test_nothing_is_lost_while_the_server_answers(format_name: str, seed: int) -> None:
    outcome = LineSimulation(seed, format_name, is_server_up=True).run()
    assert len(outcome.delivered) == outcome.published_count
    assert not outcome.lost


@EVERY_FORMAT
def test_what_nobody_has_any_more_is_reported_exactly(format_name: str, seed: int) -> None:
    outcome = LineSimulation(seed, format_name, is_server_up=False).run()
    assert len(outcome.delivered) + outcome.lost_count == outcome.published_count


class DropsARun(LineSimulation):
    """Loses the second of several runs, without a word."""

    def _decode(self, runs: IntArray) -> None:
        super()._decode(runs[[0, *range(2, len(runs))]] if len(runs) > 1 else runs)


class RepeatsARun(LineSimulation):
    def _decode(self, runs: IntArray) -> None:
        super()._decode(runs)
        if self.random.random() < 0.05:
            super()._decode(runs)


class HidesLosses(LineSimulation):
    """Gives up without reporting it."""

    def _on_event(self, event: LineEvent) -> None:
        return


class NeverAsks(LineSimulation):
    def _ask(self, request: bytes) -> None:
        return


@pytest.mark.parametrize("broken", [DropsARun, RepeatsARun, HidesLosses, NeverAsks])
def test_the_simulation_finds_planted_bugs(broken: Any) -> None:
    for seed in range(SEEDS_TO_FIND_A_BUG):
        try:
            broken(seed, "itch50", is_server_up=broken is not HidesLosses).run()
        except AssertionError:
            return
    pytest.fail(f"{broken.__name__} went unnoticed for {SEEDS_TO_FIND_A_BUG} seeds")
