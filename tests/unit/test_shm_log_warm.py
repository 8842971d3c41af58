"""Nothing of the log is compiled while it is used: a stall of seconds in the middle of a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feeds.compiled import IS_INTERPRETED

WARMED = [
    "feeds.wire_kernels",
    "middleware.shm.log_kernels",
    "middleware.shm.system_kernels",
    "middleware.shm.waiting_kernels",
    "middleware.shm.word_access_kernels",
]

# A file, because the processes that compile in parallel read it again.
WARM_UP = """
import sys
from twintape.kernels import warm_up_all
if __name__ == "__main__":
    for warmth in warm_up_all(sys.argv[1:], jobs=2):
        print(warmth.module)
"""

USE = """
import json, sys
from pathlib import Path
import numpy as np
from feeds import wire
from feeds.compiled import compiled_here
from middleware.shm.log import LogReader, LogWriter, compiled_handler, remove_log
from middleware.shm.runtime import Runtime

def count(frames, memory):
    memory[0] += frames.shape[0]

def frames(first, number):
    made = wire.empty(number)
    made["message_seq"] = np.arange(first, first + number)
    return made

runtime = Runtime(Path(sys.argv[1]))
writer = LogWriter.open(runtime, "A", who="a", slot_count=1024)
relay = LogWriter.open(runtime, "B", who="a", slot_count=1024)
reader = LogReader.open(runtime, "A", who="r", is_gating=True)
writer.publish(frames(1, 4))                                     # writable
writer.publish(wire.words(frames(5, 4)))
writer.publish(frames(9, 4).tobytes())                           # read-only
writer.publish_one(frames(13, 1))
with reader.view(np.int32(3)) as shown:
    relay.publish(shown)                                         # read-only, and another log's memory
assert len(reader.read(2)) == 2
assert reader.poll(lambda batch: None, np.uint64(2)) == 2
handler = compiled_handler(count)
assert reader.poll(handler, 1 << 70) == 6 and handler.memory[0] == 6
assert not reader.wait(1000)
writer.publish(frames(14, 3000))                                 # past the gate's patience, and around
assert len(reader.read()) and reader.take_missed()
writer.skip_to(5000)
writer.service()
writer.end()
assert reader.is_ended is False and reader.is_gated is False and reader.oldest_seq and reader.lag
reader.close(); writer.close(); relay.close()
remove_log(runtime, "A")

found, compiled = 0, {}
for name, module in list(sys.modules.items()):
    if name.startswith(("feeds.", "middleware.")):
        for key, function in vars(module).items():
            if hasattr(function, "stats") and function.__module__ == name:
                found += sum(function.stats.cache_hits.values())
                if compiled_here(function):
                    compiled[f"{name}.{key}"] = [str(each) for each in function.stats.cache_misses]
print(json.dumps({"loaded": found, "compiled": compiled}))
"""


@pytest.mark.skipif(IS_INTERPRETED, reason="nothing is compiled in this run")
def test_a_log_in_use_compiles_nothing_that_was_warmed_up(tmp_path: Path, project_root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(project_root)}

    def run(program: str, *arguments: str) -> str:
        script = tmp_path / "program.py"
        script.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert sorted(run(WARM_UP, *WARMED).split()) == WARMED
    told = json.loads(run(USE, str(tmp_path / "node")))
    assert told["compiled"] == {}
    assert told["loaded"] >= 8  # the test looks at the right functions: it has seen them loaded
