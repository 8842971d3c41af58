"""The clock of compiled senders and receivers: the processor's own counter, which disturbs least.

Reading the system's clock takes 24 ns here, half of what a cache line takes from core to core; reading the
counter of x86-64 takes 10. Where the system says that the counter runs at one rate whatever the core does
(constant_tsc, nonstop_tsc), differences of it are times. Everywhere else ticks are ns of the clock.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from feeds.compiled import IS_INTERPRETED, kernel
from middleware.shm.system_kernels import now_ns
from perf.report import BenchError

CALIBRATION_NS = 50_000_000
_TRIES = 64


def _has_steady_counter() -> bool:
    if platform.machine() != "x86_64":
        return False
    flags = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\nflags")[2].partition("\n")[0].split()
    )
    return {"constant_tsc", "nonstop_tsc"} <= set(flags)


HAS_STEADY_COUNTER = _has_steady_counter()


def _counter_intrinsic() -> Any:
    @intrinsic
    def counter(_typing: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            name, word = "llvm.readcyclecounter", ir.IntType(64)
            function = builder.module.globals.get(name) or ir.Function(
                builder.module, ir.FunctionType(word, []), name
            )
            return builder.call(function, [])

        return types.int64(), generate

    return counter


ticks = _counter_intrinsic() if HAS_STEADY_COUNTER and not IS_INTERPRETED else now_ns


@kernel
def read_ticks_kernel() -> int:
    return int(ticks())


@kernel
def paired_kernel(tries: int) -> tuple[int, int]:
    """Return a moment by both clocks: of several tries the one in which the two readings were closest."""
    best_ns = best_ticks = 0
    closest = 1 << 62
    for _ in range(tries):
        before = ticks()
        moment_ns = now_ns()
        after = ticks()
        if after - before < closest:
            closest = after - before
            best_ns, best_ticks = moment_ns, before + (after - before) // 2
    return best_ns, best_ticks


@dataclass(frozen=True, slots=True)
class Calibration:
    """One moment by both clocks, and the counter's rate. All processes of a run use the same one."""

    moment_ns: int
    moment_ticks: int
    ticks_per_ns: float

    def anchored(self) -> Calibration:
        """Return one that begins now, its rate taken over all the time since this one began.

        For a round whose other end reads the monotonic clock: two clocks that are a millionth apart differ by
        100 us after 100 s. Ends that both read the counter keep to one calibration, which they share exactly.
        """
        now_ns, now_ticks = paired_kernel(_TRIES)
        if now_ns - self.moment_ns < CALIBRATION_NS:
            return self
        return Calibration(now_ns, now_ticks, (now_ticks - self.moment_ticks) / (now_ns - self.moment_ns))

    def ticks_at(self, time_ns: int) -> int:
        """Return what the counter shows at `time_ns` of the monotonic clock."""
        return self.moment_ticks + round((time_ns - self.moment_ns) * self.ticks_per_ns)


def calibrate(window_ns: int = CALIBRATION_NS) -> Calibration:
    """Compare the counter with the monotonic clock over a stretch of time."""
    first_ns, first_ticks = paired_kernel(_TRIES)
    time.sleep(window_ns / 1e9)
    last_ns, last_ticks = paired_kernel(_TRIES)
    rate = (last_ticks - first_ticks) / (last_ns - first_ns)
    if not 0.01 <= rate <= 100:
        raise BenchError(f"the processor's counter must run at 0.01 to 100 ticks/ns, ran at {rate:.4g}")
    return Calibration(last_ns, last_ticks, rate)


def warm_up() -> None:
    read_ticks_kernel()
    paired_kernel(2)
