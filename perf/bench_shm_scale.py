"""How the stream log scales: 1 to 16 readers of one log, and 1 to 64 logs between two processes.

Readers are processes. The writer has a core for itself and the readers share the others. A writer that waits
for the slowest of them shows what they can take together, beside a bare ring in C that does the same; one
that waits for nobody, as logs do by default, shows what readers cost the writer: they then miss what they are
late for, and every frame is either delivered or reported as missed.

What limits each curve is said with the table, from figures of the run: how long the writer was held up, how
much a ring in C and a memory copy reach, what calls cost, and how large the logs are beside the caches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median

from middleware.shm.log_layout import SLOT_COUNT_DEFAULT
from perf import shm_limits
from perf.bench_shm import BATCH_FRAMES, SECONDS_MAX, memory_directory
from perf.clock_kernels import calibrate, warm_up
from perf.harness import Case, Sample, measure_rounds
from perf.pairs import Team, Worker, some_cores
from perf.python_ends import Task
from perf.report import Bar, Curve, Options, Report
from perf.shm_frames import insist_all_arrived
from perf.shm_limits import LIMIT
from perf.shm_log import COMPILED, US, Link, LogReceiver, LogSender, make_link
from perf.shm_logs import start_logs
from perf.shm_scale_limits import cache_bytes, what_limits_logs, what_limits_readers

DESCRIPTION = "1 to 16 readers of one log beside a ring in C, 1 to 64 logs in one process, what limits them"

READER_COUNTS = (1, 2, 4, 8, 16)
LOG_COUNTS = (1, 2, 4, 8, 16, 32, 64)
QUICK_COUNTS = (1, 2)
LOG_SLOTS = 1 << 14  # of each of many logs
WRITER_SHARE_MIN = 0.5

READERS_AXIS, LOGS_AXIS = "readers", "logs"
WRITER, EACH, ALL = "writer_frames_per_s", "reader_frames_per_s", "aggregate_frames_per_s"
HELD, MISSED = "writer_held_share", "missed_share"
LOGS_RATE, IDLE_POLL, IDLE_PUBLISH = "logs_frames_per_s", "idle_poll_ns", "idle_publish_ns"

_round_index = count(1)


def readers_case(reader_count: int) -> str:
    return f"{reader_count} reader{'s' if reader_count > 1 else ''}"


def logs_case(log_count: int) -> str:
    return f"{log_count} log{'s' if log_count > 1 else ''}"


def run(options: Options) -> Report:
    warm_up()
    reader_counts = QUICK_COUNTS if options.quick else READER_COUNTS
    log_counts = QUICK_COUNTS if options.quick else LOG_COUNTS
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="twintape-bench-", dir=memory_directory()))
        )
        link = make_link(directory, calibrate())
        crew = stack.enter_context(Team(start_crew(link, max(reader_counts))))
        memory = shm_limits.MemoryCopy(options.size(quick=1 << 24, full=1 << 28))
        logs = stack.enter_context(start_logs(link))
        cases = [
            *readers_cases(options, crew.workers, reader_counts),
            *(Case(US, logs_case(n), logs_round(options, logs, n)) for n in log_counts),
            Case(LIMIT, shm_limits.COPY, memory.measure),
        ]
        rounds = measure_rounds(cases, options.size(quick=1, full=5), options.size(quick=0, full=1))
    report = Report(
        rounds.results(),
        curves=[
            *(
                Curve(m, READERS_AXIS, {readers_case(n): n for n in reader_counts})
                for m in (WRITER, EACH, ALL, HELD, MISSED)
            ),
            *(
                Curve(m, LOGS_AXIS, {logs_case(n): n for n in log_counts})
                for m in (LOGS_RATE, IDLE_POLL, IDLE_PUBLISH)
            ),
        ],
    )
    few, many = readers_case(min(reader_counts)), readers_case(max(reader_counts))
    share = rounds.ratio((US, many, WRITER), (US, few, WRITER))
    by_readers = {n: readers_case(n) for n in reader_counts}
    by_logs = {n: logs_case(n) for n in log_counts}
    return replace(
        report,
        bars=[Bar("writer_many_vs_one_reader", share, at_least=WRITER_SHARE_MIN)],
        notes=[
            *what_limits_readers(report, by_readers, len(some_cores(2)) - 1),
            *what_limits_logs(report, by_logs, LOG_SLOTS, BATCH_FRAMES, cache_bytes()),
        ],
    )


def start_crew(link: Link, reader_count: int) -> list[Worker]:
    """Start a writer on the first core and readers on the others, which they share if need be."""
    writer_core, *reader_cores = some_cores(2)
    workers = [Worker("writer", LogSender, link, {writer_core})]
    for index in range(reader_count):
        core = reader_cores[-1 - index % len(reader_cores)]
        own_link = replace(link, reader_index=index, is_sharing=reader_count > len(reader_cores))
        workers.append(Worker(f"reader {index}", LogReceiver, own_link, {core}))
    return workers


def readers_cases(options: Options, workers: Sequence[Worker], reader_counts: Sequence[int]) -> list[Case]:
    frames = options.size(quick=100_000, full=4_000_000)
    cases = []
    for n in reader_counts:
        team = Team(workers[: 1 + n])
        cases += [
            Case(LIMIT, readers_case(n), ring_round(frames, n)),
            Case(US, readers_case(n), held_round(team, frames, n)),
            Case(US, readers_case(n), free_round(team, frames * 2)),
        ]
    return cases


def ring_round(frame_count: int, reader_count: int) -> Callable[[], Sample]:
    def measure() -> Sample:
        sample = shm_limits.copy_through(frame_count, BATCH_FRAMES, SLOT_COUNT_DEFAULT, reader_count)
        each = sample.metrics["frames_per_s"]
        return Sample({EACH: each, ALL: each * reader_count}, sample.checksum)

    return measure


def held_round(team: Team, frame_count: int, reader_count: int) -> Callable[[], Sample]:
    """All readers get all frames: the writer waits for the slowest."""

    def measure() -> Sample:
        task = _task(frame_count, SLOT_COUNT_DEFAULT, held_by=reader_count)
        writer, *readers = team.run_each([task] * len(team.workers), SECONDS_MAX)
        for index, reader in enumerate(readers):
            insist_all_arrived(f"reader {index}", reader["checksum"], frame_count)
        elapsed_ns = [reader["elapsed_ns"] for reader in readers]
        metrics = {
            EACH: median(frame_count * 1e9 / spent for spent in elapsed_ns),
            ALL: frame_count * reader_count * 1e9 / max(elapsed_ns),
            HELD: writer["held_share"],
        }
        return Sample(metrics, f"{reader_count} readers of {frame_count} frames")

    return measure


def free_round(team: Team, frame_count: int) -> Callable[[], Sample]:
    """The writer waits for nobody; what the readers are late for they miss, and know it."""

    def measure() -> Sample:
        task = _task(frame_count, SLOT_COUNT_DEFAULT, held_by=0)
        writer, *readers = team.run_each([task] * len(team.workers), SECONDS_MAX)
        missed = sum(reader["missed_count"] for reader in readers)
        metrics = {
            WRITER: frame_count * 1e9 / writer["sending_ns"],
            MISSED: missed / (frame_count * len(readers)),
        }
        return Sample(metrics, f"{len(readers)} readers of {frame_count} frames, delivered or missed")

    return measure


def logs_round(options: Options, team: Team, log_count: int) -> Callable[[], Sample]:
    """As many frames in all, however many logs they are spread over."""
    frames = options.size(quick=1 << 15, full=1 << 22)

    def measure() -> Sample:
        task = _task(frames // log_count, LOG_SLOTS, log_count=log_count)
        found = team.run(task, SECONDS_MAX)
        metrics = {LOGS_RATE: frames * 1e9 / found["elapsed_ns"]}
        metrics |= {name: found[name] for name in (IDLE_POLL, IDLE_PUBLISH)}
        return Sample(metrics, f"{log_count} logs of {task.frame_count} frames")

    return measure


def _task(frame_count: int, slot_count: int, *, held_by: int = 1, log_count: int = 1) -> Task:
    return Task(
        frame_count,
        batch_frames=BATCH_FRAMES,
        seconds_max=SECONDS_MAX,
        round_index=next(_round_index),
        way=COMPILED,
        slot_count=slot_count,
        held_by=held_by,
        log_count=log_count,
    )
