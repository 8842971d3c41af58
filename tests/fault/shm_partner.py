"""A second process for tests of shared memory: it calls functions of a test module when it is told to.

Starting Python and loading kernels takes a second, so one partner serves all tests of a module. Orders and
answers are lines of JSON on its standard input and output; what goes wrong there is on its standard error.
"""

from __future__ import annotations

import importlib
import json
import select
import subprocess
import sys
from typing import Any, Self

ANSWER_SECONDS = 60.0


class Partner:
    """The other process. `start` an order, do our own part meanwhile, then take its `answer`."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.shm_partner", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, function: str, *arguments: int | str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, *arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        assert ready, f"process {self.pid} gave no answer in {ANSWER_SECONDS:.0f} s"
        line = self._process.stdout.readline()
        assert line, f"process {self.pid} ended with {self._process.wait(ANSWER_SECONDS)}: see its stderr"
        return json.loads(line)

    def call(self, function: str, *arguments: int | str) -> Any:
        self.start(function, *arguments)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        answer = getattr(module, function)(*arguments)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
