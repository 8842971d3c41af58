"""What limits the curves of `bench shm-scale`, in words made of the run's own figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from feeds.wire import FRAME_BYTES
from perf.report import Report, readable
from perf.shm_limits import COPY, LIMIT
from perf.shm_log import US

MOSTLY = 0.5
FALLEN = 0.8  # of the best

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE = re.compile(r"(\d+)([KMG]?)")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def what_limits_readers(report: Report, cases: Mapping[int, str], core_count: int) -> list[str]:
    """Say how far readers of one log scale: by their cores, by the writer, or by memory."""

    def figure(system: str, reader_count: int, metric: str) -> float:
        return report.value_of(system, cases[reader_count], metric)

    few, many = min(cases), max(cases)
    together, alone = (figure(US, n, "aggregate_frames_per_s") for n in (many, few))
    held = figure(US, many, "writer_held_share")
    copied = report.value_of(LIMIT, COPY, "bytes_per_s")
    if held >= MOSTLY:
        cause = f"the readers' {_cores(core_count)}, for which the writer waits {held:.0%} of the time"
    else:
        cause = f"the writer, which waits for the readers only {held:.0%} of the time"
    free_few, free_many = (figure(US, n, "writer_frames_per_s") for n in (few, many))
    bare = figure(LIMIT, many, "aggregate_frames_per_s")
    taking = (
        f"readers: {many} on {_cores(core_count)} take {readable(together)} frames/s together, "
        f"{together / alone:.2f} times what {few} takes; the limit is {cause}"
    )
    beside = (
        f"readers: a bare ring in C gives {many} of them {readable(bare)} frames/s together, and the log "
        f"{together / bare:.0%} of that; its {readable(together * FRAME_BYTES)} bytes/s are "
        f"{together * FRAME_BYTES / copied:.0%} of what one core copies from memory to memory"
    )
    writing = (
        f"writer: waiting for nobody, it publishes {readable(free_few)} frames/s with {few} reader and "
        f"{readable(free_many)} with {many} ({free_many / free_few:.0%}), who then miss "
        f"{figure(US, many, 'missed_share'):.0%} of the frames"
    )
    return [taking, beside, writing]


def what_limits_logs(
    report: Report,
    cases: Mapping[int, str],
    slot_count: int,
    batch_frames: int,
    caches: Mapping[str, int],
) -> list[str]:
    """Say how far logs in one process scale: by the calls that each needs, or by what the caches hold."""
    rates = {n: report.value_of(US, case, "logs_frames_per_s") for n, case in cases.items()}
    many, best = max(rates), max(rates, key=lambda n: rates[n])
    poll_ns, publish_ns = (
        report.value_of(US, cases[many], f"idle_{what}_ns") for what in ("poll", "publish")
    )
    call_share = max(poll_ns, publish_ns) / (batch_frames * 1e9 / rates[many])
    speed = (
        f"logs: {readable(rates[many])} frames/s over {many}, {rates[many] / rates[best]:.0%} of the best, "
        f"which is {readable(rates[best])} over {best}; a call that has nothing to do takes {poll_ns:.0f} ns "
        f"to poll and {publish_ns:.0f} to publish, {call_share:.0%} of what a batch of {batch_frames} takes"
    )
    notes = [speed]
    fallen = [n for n in sorted(rates) if n > best and rates[n] < FALLEN * rates[best]]
    if call_share >= MOSTLY:
        notes.append("logs: the limit is the calls from Python, one for each log and turn")
    elif fallen:
        notes.append(_why_fallen(best, fallen[0], slot_count * FRAME_BYTES, caches))
    else:
        notes.append(f"logs: up to {many} the rate stays above {FALLEN:.0%} of the best")
    return notes


def _why_fallen(best: int, fallen: int, log_bytes: int, caches: Mapping[str, int]) -> str:
    """Name the cache that still holds the logs at the best rate and no longer holds those behind the fall."""
    crossed = [name for name, held in caches.items() if best * log_bytes <= held < fallen * log_bytes]
    told = (
        f"logs: from {fallen} on, which are {readable(fallen * log_bytes)} bytes, the rate is below "
        f"{FALLEN:.0%} of the best, with {best} of {readable(best * log_bytes)} bytes together"
    )
    if crossed:
        sizes = " and ".join(f"{name} with its {readable(caches[name])} bytes" for name in crossed)
        return f"{told}; the limit is {sizes}"
    return f"{told}; no cache ends between the two, so it is not what the caches hold"


def _cores(core_count: int) -> str:
    return f"{core_count} core{'s' if core_count > 1 else ''}"


def cache_bytes(directory: Path = _CACHES) -> dict[str, int]:
    """Return the sizes of the caches that hold data, by their level: {"L1": 32768, ...}; empty if unknown."""
    sizes: dict[str, int] = {}
    for cache in sorted(directory.glob("index*")):
        kind, level, size = (
            (cache / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size")
        )
        match = _SIZE.fullmatch(size)
        if kind != "Instruction" and match:
            sizes[f"L{level}"] = int(match[1]) * _SCALE[match[2]]
    return sizes
