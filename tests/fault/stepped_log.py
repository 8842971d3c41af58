"""Ends of a stream log that are stepped through. One process does what it is told, line by line:

    publish NODE COUNT      pause, publish a batch as generation 2, pause
    skip NODE NEXT_SEQ      pause, give up all numbers below NEXT_SEQ, pause
    open_writer NODE        pause, become the log's writer (it is made if it is not there), pause
    open_reader NODE        pause, become a reader that wants to be waited for, pause
    join NODE               become a reader, for the two that follow
    catch_up                read all but the last few frames
    pause                   pause, so that all before has been done
    read HOW                pause, read them in one of three ways, pause; check them, and say what happened

The answer to `read` is a line "first count missed...": a missed range as first-last.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feeds import wire
from middleware.shm import log_kernels
from middleware.shm.log import Lapped, LogReader, LogWriter, Start, compiled_handler
from middleware.shm.runtime import Runtime
from tests.fault import log_ends
from tests.fault.log_ends import LOG_NAME
from tests.fault.stamped_frame_kernels import copy_kernel, insist_right, stamped
from tests.fault.stepping import become_steppable, pause

SLOT_COUNT = 128
READER_NAME = "stepped"
BATCH_FRAMES = 5


def _publish(node: str, count: str) -> None:
    with LogWriter.open(Runtime(Path(node)), LOG_NAME, who="stepped") as writer:
        frames = stamped(writer.next_seq, int(count), generation=2)
        pause()
        writer.publish(frames)
        pause()


def _skip(node: str, next_seq: str) -> None:
    with LogWriter.open(Runtime(Path(node)), LOG_NAME, who="stepped") as writer:
        pause()
        writer.skip_to(int(next_seq))
        pause()


def _open_writer(node: str) -> None:
    pause()
    writer = LogWriter.open(Runtime(Path(node)), LOG_NAME, who="stepped", slot_count=SLOT_COUNT)
    pause()
    writer.close()


def _open_reader(node: str) -> None:
    pause()
    reader = LogReader.open(Runtime(Path(node)), LOG_NAME, who=READER_NAME, is_gating=True)
    pause()
    reader.close()


_joined: dict[str, LogReader] = {}


def _join(node: str) -> None:
    if READER_NAME in _joined:
        _joined.pop(READER_NAME).close()
    _joined[READER_NAME] = LogReader.open(Runtime(Path(node)), LOG_NAME, who=READER_NAME, start=Start.NEXT)


def _catch_up() -> None:
    reader = _joined[READER_NAME]
    reader.read(1)  # finds out that it was lapped, if it was
    if reader.lag > BATCH_FRAMES:
        reader.read(reader.lag - BATCH_FRAMES)
    reader.take_missed()


def _read(how: str) -> None:
    reader, way = _joined[READER_NAME], _WAYS[how]
    pause()
    frames = way(reader)
    pause()
    first = reader.next_seq - len(frames)
    insist_right(frames, first)
    missed = " ".join(f"{gone.first}-{gone.last}" for gone in reader.take_missed())
    sys.stdout.write(f"{first} {len(frames)} {missed}\n")
    sys.stdout.flush()


def _by_copy(reader: LogReader) -> wire.FrameArray:
    return reader.read(BATCH_FRAMES)


def _in_place(reader: LogReader) -> wire.FrameArray:
    """Copy out what is shown, and believe it only if it was still there at the end."""
    try:
        with reader.view(BATCH_FRAMES) as frames:
            copied = wire.empty(len(frames))
            copy_kernel(wire.words(copied), wire.words(frames))
    except Lapped:
        return wire.empty(0)
    return copied


def _by_handler(reader: LogReader) -> wire.FrameArray:
    _handler.memory[0] = 0
    count = reader.poll(_handler, BATCH_FRAMES)
    assert int(_handler.memory[0]) == count
    return wire.view(_handler.memory[1 : 1 + count * wire.FRAME_WORDS])


def _keep(frames: wire.WordArray, memory: wire.WordArray) -> None:
    """A compiled handler: appends the frames that it is given to its memory, whose first word counts them."""
    for row in range(frames.shape[0]):
        for word in range(frames.shape[1]):
            memory[1 + memory[0] * frames.shape[1] + word] = frames[row, word]
        memory[0] += 1


_handler = compiled_handler(_keep, np.zeros(1 + BATCH_FRAMES * wire.FRAME_WORDS, dtype=np.int64))
_WAYS = {"copy": _by_copy, "in_place": _in_place, "handler": _by_handler}
_ACTIONS: dict[str, Callable[..., None]] = {
    "publish": _publish,
    "skip": _skip,
    "open_writer": _open_writer,
    "open_reader": _open_reader,
    "join": _join,
    "catch_up": _catch_up,
    "read": _read,
    "pause": pause,
}


def _warm_up() -> None:
    """Do everything once on a log of its own, so that what is stepped through is not the compiler."""
    log_ends.warm_up()
    with tempfile.TemporaryDirectory() as place:
        runtime = Runtime(Path(place) / "node")
        with (
            LogWriter.open(runtime, LOG_NAME, who="warm", slot_count=SLOT_COUNT) as writer,
            LogReader.open(runtime, LOG_NAME, who="warm") as reader,
        ):
            for way in _WAYS.values():
                writer.publish(stamped(writer.next_seq, BATCH_FRAMES))
                insist_right(way(reader), writer.next_seq - BATCH_FRAMES)
            writer.skip_to(writer.next_seq + 100)


if __name__ == "__main__":
    _warm_up()
    become_steppable(
        log_kernels.publish_kernel,
        log_kernels.skip_kernel,
        log_kernels.read_kernel,
        log_kernels.poll_kernel,
        log_kernels.peek_kernel,
        copy_kernel,
        log_kernels.release_kernel,
    )
    pause()
    for line in sys.stdin:
        command, *arguments = line.split()
        _ACTIONS[command](*arguments)
