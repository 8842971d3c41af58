"""Peers of the stream log: pyzmq over ipc, iceoryx2's Python package, and a pipe of multiprocessing.

Each is driven in the way that serves it best here, one 96-byte message per frame:

pyzmq     PUSH/PULL with copies, as it advises for small messages. The receiver blocks: polling takes the core
          from pyzmq's own thread, and one message in ten then waits for milliseconds. For the same reason
          its processes may use both cores. The high-water mark is far above its default of 1,000, which
          would have the sender wait more often.
iceoryx2  publish/subscribe of a fixed-size structure. The sender loans a sample, fills it and sends it; the
          receiver polls and copies the payload out. Without overwriting: a sender that is ahead waits.
pipe      `send_bytes` and `recv_bytes` on a one-way pipe.
"""

from __future__ import annotations

import ctypes
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import iceoryx2
import zmq

from feeds.wire import FRAME_BYTES, FRAME_WORDS
from perf.pairs import Team, start_pair
from perf.python_ends import PythonReceiver, PythonSender

PYZMQ, ICEORYX2, PIPE = "pyzmq", "iceoryx2", "pipe"
HIGH_WATER_MESSAGES = 100_000
ICEORYX2_BUFFER_SAMPLES = 1_024
WAIT_MS_MAX = 60_000


# --- pyzmq ---------------------------------------------------------------------------------------------


def open_zmq_sender(address: str) -> PythonSender:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    socket.setsockopt(zmq.SNDTIMEO, WAIT_MS_MAX)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    return PythonSender(socket.send, context.destroy)


def open_zmq_receiver(address: str) -> PythonReceiver:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    socket.setsockopt(zmq.RCVTIMEO, WAIT_MS_MAX)
    socket.bind(address)
    return PythonReceiver(socket.recv, context.destroy)


def start_zmq(directory: Path) -> Team:
    address = f"ipc://{directory / 'zmq'}"
    return start_pair(PYZMQ, open_zmq_sender, open_zmq_receiver, address, is_pinned=False)


# --- iceoryx2 ------------------------------------------------------------------------------------------


class Frame(ctypes.Structure):
    """A frame as iceoryx2 wants it: a structure of fixed size."""

    _fields_ = (("words", ctypes.c_int64 * FRAME_WORDS),)


class _Iceoryx2Port:
    """A node, a service and one port of it."""

    def __init__(self, directory: Path) -> None:
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(f"{directory}/")  # its files go with ours
        self._node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)
        self.service = (
            self._node.service_builder(iceoryx2.ServiceName.new(directory.name))
            .publish_subscribe(Frame)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(ICEORYX2_BUFFER_SAMPLES)
            .open_or_create()
        )
        self.port: Any = None

    def close(self) -> None:
        self.port.delete()
        self.port = self.service = self._node = None


def open_iceoryx2_sender(directory: Path) -> PythonSender:
    end = _Iceoryx2Port(directory)
    retry = iceoryx2.BackpressureStrategy.RetryUntilDelivered
    end.port = end.service.publisher_builder().backpressure_strategy(retry).create()
    loan, move = end.port.loan_uninit, ctypes.memmove

    def send(message: bytes) -> None:
        sample = loan()
        move(sample.payload_ptr, message, FRAME_BYTES)
        sample.assume_init().send()

    return PythonSender(send, end.close)


def open_iceoryx2_receiver(directory: Path) -> PythonReceiver:
    end = _Iceoryx2Port(directory)
    end.port = end.service.subscriber_builder().create()
    take, bytes_at = end.port.receive, ctypes.string_at

    def receive() -> bytes | None:
        sample = take()
        return None if sample is None else bytes_at(sample.payload_ptr, FRAME_BYTES)

    return PythonReceiver(receive, end.close)


def start_iceoryx2(directory: Path) -> Team:
    return start_pair(ICEORYX2, open_iceoryx2_sender, open_iceoryx2_receiver, directory)


# --- a pipe --------------------------------------------------------------------------------------------


def open_pipe_sender(link: tuple[Connection, Connection]) -> PythonSender:
    link[0].close()
    return PythonSender(link[1].send_bytes, link[1].close)


def open_pipe_receiver(link: tuple[Connection, Connection]) -> PythonReceiver:
    link[1].close()  # so that a sender's death is the end of the file and not silence
    return PythonReceiver(link[0].recv_bytes, link[0].close)


def start_pipe(_directory: Path) -> Team:
    ends = Pipe(duplex=False)
    try:
        return start_pair(PIPE, open_pipe_sender, open_pipe_receiver, ends)
    finally:
        for end in ends:
            end.close()
