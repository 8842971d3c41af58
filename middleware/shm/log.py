"""The stream log: one writer's frames, in shared memory, for any number of readers at their own pace.

    runtime = Runtime(default_path())
    with LogWriter.open(runtime, "XNAS.ITCH", who="adapter-a") as writer:
        writer.publish(frames)                                    # message numbers follow one another

    with LogReader.open(runtime, "XNAS.ITCH", who="my-app", start=Start.OLDEST) as reader:
        while reader.wait(timeout_ns=1_000_000_000):
            batch = reader.read()                                 # a structured array, as wire.view gives
            for missed in reader.take_missed(): ...               # what was overwritten before we came

How it works is drawn in `log_kernels.py`; who may wait for whom in `log_gates.py`.
"""

from middleware.shm.handlers import CompiledHandler, compiled_handler
from middleware.shm.log_gates import GateChange, GateEvent
from middleware.shm.log_layout import Lapped, Missed, Start
from middleware.shm.log_reader import LogReader
from middleware.shm.log_writer import LogWriter, remove_log

__all__ = [
    "CompiledHandler",
    "GateChange",
    "GateEvent",
    "Lapped",
    "LogReader",
    "LogWriter",
    "Missed",
    "Start",
    "compiled_handler",
    "remove_log",
]
