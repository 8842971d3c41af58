"""Latencies by percentile: HDR histograms, merged over rounds, none of the times forgotten.

A histogram keeps every time to three digits, from 1 ns to a minute, so a tail of one in a hundred thousand is
as exact as the median. Times are recorded as distinct values with their counts: the library takes about a
microsecond for each call, and a round has hundreds of thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from perf.report import BenchError

LATENCY_NS_MAX = 60_000_000_000
SIGNIFICANT_DIGITS = 3
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99, "max": 100.0}


class Histogram:
    """How often each latency occurred. Times below 1 ns, which a coarse clock may give, count as 1 ns."""

    def __init__(self, latencies_ns: NDArray[np.int64] | None = None) -> None:
        self._counts = HdrHistogram(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
        if latencies_ns is not None:
            self.record(latencies_ns)

    def record(self, latencies_ns: NDArray[np.int64]) -> None:
        """Add one round's times; what is negative or above a minute is an error, not clipped."""
        if latencies_ns.size == 0:
            return
        shortest, longest = int(latencies_ns.min()), int(latencies_ns.max())
        if shortest < 0 or longest > LATENCY_NS_MAX:
            raise BenchError(f"latencies must be 0 to {LATENCY_NS_MAX} ns, were {shortest} to {longest} ns")
        values, counts = np.unique(np.maximum(latencies_ns, 1), return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if not self._counts.record_value(value, count):
                raise BenchError(f"the histogram refuses {value} ns")

    def merge(self, other: Histogram) -> None:
        self._counts.add(other._counts)

    @property
    def count(self) -> int:
        return int(self._counts.get_total_count())

    def metrics(self, family: str = "latency_ns") -> dict[str, float]:
        """Return the usual percentiles, named as reports name them: what that share of the times keeps to."""
        if self.count == 0:
            raise BenchError(f"{family}: there must be at least one time, there was none")
        values = self._counts.get_percentile_to_value_dict(list(PERCENTILES.values()))
        return {f"{family}_{name}": float(values[point]) for name, point in PERCENTILES.items()}


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return one histogram of all rounds."""
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole
