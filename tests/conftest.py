"""What all tests share: hypothesis profiles and the place of the real market data."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Shared machines stall at will, so an example's time says nothing about the code: no deadlines. A failure
# prints its blob and the database keeps it, so it can be run again.
for name, examples in (("fast", 20), ("default", 100), ("long", 5_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def find_market_data() -> Path | None:
    """Return the directory of real exchange files, or None where this machine has none."""
    named = os.environ.get("TWINTAPE_TEST_DATA")
    if named is not None:
        directory = Path(named)
        if not directory.is_dir():
            raise FileNotFoundError(f"TWINTAPE_TEST_DATA must name a directory, was {named!r}")
        return directory
    directory = ROOT.parent / "shared" / "data"
    return directory if directory.is_dir() else None


@pytest.fixture(scope="session")
def market_data() -> Path:
    directory = find_market_data()
    if directory is None:
        pytest.skip("no real market data: neither TWINTAPE_TEST_DATA nor ../shared/data is there")
    return directory


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT
