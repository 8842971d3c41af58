"""What all tests share: hypothesis profiles, what the marks mean, and the place of the real market data."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from feeds.compiled import IS_INTERPRETED

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what compiled kernels cannot show, and say how it is run; the last stage of `make test` does."""
    if IS_INTERPRETED:
        return
    for item in items:
        if item.get_closest_marker("interpreted") is not None:
            command = f"NUMBA_DISABLE_JIT=1 pytest -m interpreted {item.location[0]}"
            item.add_marker(pytest.mark.skip(reason=f"kernels are compiled in this run: {command}"))


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
