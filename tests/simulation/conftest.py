"""Seeds of the simulations. A test that takes `seed` runs once for each; a failing one repeats by its seed.

TWINTAPE_SEED=8841 runs that seed alone (`make simulate SEED=8841`), TWINTAPE_SEEDS=500 the seeds 0..499.
TWINTAPE_LONG=1 is the long form: each test multiplies its own size.
"""

from __future__ import annotations

import os

import pytest

SEEDS_BY_DEFAULT = 20


def chosen_seeds() -> list[int]:
    one = os.environ.get("TWINTAPE_SEED")
    count = int(os.environ.get("TWINTAPE_SEEDS") or SEEDS_BY_DEFAULT)
    return [int(one)] if one else list(range(count))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    seeds = chosen_seeds()
    metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


@pytest.fixture(scope="session")
def seed_count() -> int:
    """How many seeds this run shares its work among."""
    return len(chosen_seeds())


@pytest.fixture(scope="session")
def is_long() -> bool:
    return os.environ.get("TWINTAPE_LONG") == "1"
