"""One-way latency and throughput of 96-byte frames between two processes, beside three peers and two limits.

Latency: open loop. Frames are due at a fixed rate that every system carries, and a frame's latency counts
from when it was due, whether or not its sender was ready (`perf.open_loop`); how late the senders were is
told as lateness. The limit is a word that goes to the other core and back, in C: half of each round trip.

Throughput: as many frames as the system carries, from the moment when both ends may begin until the receiver
has the last. Peers send one message for each frame; we publish frames 256 at a time, as they come out of a
few decoded packets, and, in a case of its own, one at a time; pyzmq is shown with 256 in a message, too. The
limit is a ring in C into which one core copies frames and from which the other sums them up.

Every frame that arrives is checked for its number and summed up, by all systems alike, and the sum must be
that of what was sent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from middleware.shm.log_layout import SLOT_COUNT_DEFAULT
from middleware.shm.runtime import default_path
from perf import shm_limits
from perf.clock_kernels import Calibration, calibrate, warm_up
from perf.harness import Case, Rounds, Sample, measure_rounds
from perf.open_loop import Schedule
from perf.pairs import Team
from perf.python_ends import Task
from perf.report import Bar, Options, Report, Result, readable, value_of
from perf.shm_frames import insist_all_arrived
from perf.shm_limits import LIMIT, PING_PONG
from perf.shm_log import COMPILED, PYTHON, PYTHON_ENDS, US, start_log
from perf.shm_peers import ICEORYX2, PIPE, PYZMQ, start_iceoryx2, start_pipe, start_zmq

DESCRIPTION = (
    "96-byte frames between two processes, beside pyzmq, iceoryx2, a pipe, and bare cache lines in C"
)

RATE = 10_000  # frames/s that every system carries
HIGH_RATE = 1_000_000  # only ours
# Of a publication: what a few packets are decoded to. The size matters where the cores are far apart (a word
# takes 230 ns): there 64 at a time reached 25 to 37 M frames/s, 256 reached 32 to 66 M, one at a time 5 M.
BATCH_FRAMES = 256
SECONDS_MAX = 60.0
MOVED = 1.5

COMPILED_HANDLER = "compiled handler"
PYTHON_HANDLER = "Python handler per batch"
PYTHON_BOTH = "Python, frame by frame"
PEER_CASES = {
    PYZMQ: "PUSH/PULL over ipc",
    ICEORYX2: "publish/subscribe, polled",
    PIPE: "send_bytes/recv_bytes",
}

P50_VS_LIMIT_MAX = 4.0
COMPILED_VS_PYZMQ_MIN = 25.0
PYTHON_VS_PYZMQ_MIN = 10.0
ICEORYX2_VS_OURS_MIN = 10.0

_round_index = count(1)  # a log of its own for each round


def at_rate(case: str, frames_per_s: int) -> str:
    return f"{case}, {readable(frames_per_s).replace(' ', '')}/s"


def run(options: Options) -> Report:
    warm_up()
    calibration = calibrate()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="twintape-bench-", dir=memory_directory()))
        )
        log = stack.enter_context(start_log(directory, calibration))
        peers = {
            PYZMQ: stack.enter_context(start_zmq(directory)),
            ICEORYX2: stack.enter_context(start_iceoryx2(directory)),
            PIPE: stack.enter_context(start_pipe(directory)),
        }
        cases = [*latency_cases(options, calibration, log, peers), *throughput_cases(options, log, peers)]
        rounds = measure_rounds(cases, options.size(quick=1, full=15), options.size(quick=0, full=1))
    results = rounds.results()
    return Report(results, _bars(rounds), notes=[*_notes_on_lateness(results), *_notes_on_distance(rounds)])


def memory_directory() -> Path | None:
    """Return where logs are kept on this machine, or None for where temporary files are."""
    memory = default_path().parent
    return memory if memory.is_dir() else None


def latency_cases(
    options: Options, calibration: Calibration, log: Team, peers: dict[str, Team]
) -> list[Case]:
    steady = Schedule.at_rate(RATE, options.size(quick=100, full=600) / 1_000)
    # The log holds a whole round, so that no stall of this machine can have a receiver lapped.
    fast = Schedule.at_rate(HIGH_RATE, options.size(quick=20, full=100) / 1_000)
    assert max(steady.message_count, fast.message_count) <= SLOT_COUNT_DEFAULT * 7 // 8
    round_trips = options.size(quick=5_000, full=100_000)
    cases = [Case(LIMIT, PING_PONG, lambda: shm_limits.ping_pong(round_trips, calibration))]
    for name, way, schedule in (
        (at_rate(COMPILED_HANDLER, RATE), COMPILED, steady),
        (at_rate(PYTHON_HANDLER, RATE), PYTHON, steady),
        (at_rate(PYTHON_BOTH, RATE), PYTHON_ENDS, steady),
        (at_rate(COMPILED_HANDLER, HIGH_RATE), COMPILED, fast),
    ):
        cases.append(Case(US, name, _latency(US, log, schedule, way)))
    for system, team in peers.items():
        cases.append(Case(system, at_rate(PEER_CASES[system], RATE), _latency(system, team, steady)))
    return cases


def throughput_cases(options: Options, log: Team, peers: dict[str, Team]) -> list[Case]:
    many = options.size(quick=100_000, full=4_000_000)
    some = options.size(quick=5_000, full=200_000)
    few = options.size(quick=5_000, full=30_000)
    cases = [
        Case(LIMIT, "ring in C", lambda: shm_limits.copy_through(many, BATCH_FRAMES, SLOT_COUNT_DEFAULT)),
        Case(US, COMPILED_HANDLER, _throughput(US, log, many, BATCH_FRAMES, COMPILED)),
        Case(US, PYTHON_HANDLER, _throughput(US, log, many, BATCH_FRAMES, PYTHON)),
        Case(US, f"{COMPILED_HANDLER}, frame by frame", _throughput(US, log, many, 1, COMPILED)),
        Case(US, PYTHON_BOTH, _throughput(US, log, few, 1, PYTHON_ENDS)),
    ]
    for system, team in peers.items():
        cases.append(Case(system, PEER_CASES[system], _throughput(system, team, some, 1)))
    packed = f"{PEER_CASES[PYZMQ]}, {BATCH_FRAMES} frames in a message"
    cases.append(Case(PYZMQ, packed, _throughput(PYZMQ, peers[PYZMQ], some * 4, BATCH_FRAMES)))
    return cases


def _latency(where: str, team: Team, schedule: Schedule, way: str = "") -> Callable[[], Sample]:
    def measure() -> Sample:
        task = Task(
            schedule.message_count,
            schedule,
            seconds_max=SECONDS_MAX,
            round_index=next(_round_index),
            way=way,
            slot_count=SLOT_COUNT_DEFAULT,
        )
        found = team.run(task, task.load_seconds)
        insist_all_arrived(where, found["checksum"], task.frame_count)
        return Sample({}, str(found["checksum"]), found["latency_ns"], found["lateness_ns"])

    return measure


def _throughput(
    where: str, team: Team, frame_count: int, batch_frames: int, way: str = ""
) -> Callable[[], Sample]:
    def measure() -> Sample:
        task = Task(
            frame_count,
            batch_frames=batch_frames,
            seconds_max=SECONDS_MAX,
            round_index=next(_round_index),
            way=way,
            slot_count=SLOT_COUNT_DEFAULT,
        )
        found = team.run(task, SECONDS_MAX)
        insist_all_arrived(where, found["checksum"], frame_count)
        return Sample({"frames_per_s": frame_count * 1e9 / found["elapsed_ns"]}, str(found["checksum"]))

    return measure


def _bars(rounds: Rounds) -> list[Bar]:
    p50, rate = "latency_ns_p50", "frames_per_s"
    limit = (LIMIT, PING_PONG, p50)
    ours = (US, at_rate(COMPILED_HANDLER, RATE), p50)
    iceoryx2 = (ICEORYX2, at_rate(PEER_CASES[ICEORYX2], RATE), p50)
    pyzmq = (PYZMQ, PEER_CASES[PYZMQ], rate)
    compiled, python = (US, COMPILED_HANDLER, rate), (US, PYTHON_HANDLER, rate)
    return [
        Bar("p50_vs_limit", rounds.ratio(ours, limit), at_most=P50_VS_LIMIT_MAX),
        Bar("compiled_handler_vs_pyzmq", rounds.ratio(compiled, pyzmq), at_least=COMPILED_VS_PYZMQ_MIN),
        Bar("python_handler_vs_pyzmq", rounds.ratio(python, pyzmq), at_least=PYTHON_VS_PYZMQ_MIN),
        Bar("iceoryx2_p50_vs_ours", rounds.ratio(iceoryx2, ours), at_least=ICEORYX2_VS_OURS_MIN),
    ]


def _notes_on_lateness(results: Sequence[Result]) -> list[str]:
    """Say which senders did not keep their schedule: their latencies are those of their own lateness."""
    notes = []
    for result in results:
        if result.metric == "lateness_ns_p99":
            latency = value_of(results, result.system, result.case, "latency_ns_p99")
            if result.value > latency / 2:
                notes.append(
                    f"{result.system}, {result.case}: the sender was {readable(result.value)} ns late at "
                    f"p99, {result.value / latency:.0%} of the latency at p99"
                )
    return notes


def _notes_on_distance(rounds: Rounds) -> list[str]:
    """Say whether the way between the two cores was the same all the time, which a guest cannot know."""
    each = rounds.by_round(LIMIT, PING_PONG, "latency_ns_p50")
    if max(each) < MOVED * min(each):
        return []
    told = f"from {min(each):.0f} ns to {max(each):.0f} ns, depending on the round"
    return [f"the cores moved: a word took {told}, to go from one to the other; bars compare within rounds"]
