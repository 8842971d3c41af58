"""What several files of unit tests begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from middleware.shm.runtime import Runtime
from tests.slab_members import Join, joining


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """A node of the test's own, of which nothing is there yet."""
    return Runtime(tmp_path / "node")


@pytest.fixture
def join(runtime: Runtime) -> Iterator[Join]:
    """The way to take a seat at the slab of that node."""
    with joining(runtime) as join:
        yield join
