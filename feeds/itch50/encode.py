"""`encode_frames`: frames as the ITCH 5.0 messages they were made from."""

from __future__ import annotations

from typing import Any

import numpy as np

from feeds import wire
from feeds.errors import FrameError
from feeds.formats import IntArray
from feeds.itch50 import frame_kernels as kernels
from feeds.itch50.messages import BLOCK_BYTES_MAX, LOCATE_COUNT, TIME_MASK
from feeds.wire import Schema

_ALLOWED = {
    kernels.NOT_ITCH: ("schema_id", "one that an ITCH 5.0 message has"),
    kernels.BAD_PRICE: ("price", "a multiple of 1e-4 (1e-8 in breaker levels) within ITCH's bits"),
    kernels.BAD_TIME: ("event_time_ns", f"0 to {TIME_MASK} ns after midnight"),
    kernels.BAD_INSTRUMENT: ("instrument_id", f"a stock locate, below {LOCATE_COUNT}"),
    kernels.NO_SYMBOL: ("instrument_id", "one whose symbol the directory knows"),
    kernels.PARTS_MISSING: ("part", "followed by the other parts of its message"),
    kernels.HEAD_ONLY: ("message_bytes", "at most 24, what the frame holds of a message it could not read"),
}


def encode_frames(batch: Any, directory: IntArray, midnight_ns: int) -> bytes:
    """Return the length-prefixed ITCH messages of the frames in `batch`.

    A frame that no ITCH message can express is a FrameError, and nothing is returned of the batch.
    """
    if directory.shape != (LOCATE_COUNT,) or directory.dtype != np.int64:
        raise FrameError("directory", f"{directory.dtype}{directory.shape}", f"int64({LOCATE_COUNT},)")
    words = wire.words(batch)
    # No frame becomes more than one block, and the kernel wants room for the largest before each.
    out = np.empty((words.shape[0] + 1) * BLOCK_BYTES_MAX, dtype=np.uint8)
    status = np.zeros(kernels.STATUS_FIELDS, dtype=np.int64)
    byte_count = kernels.encode_frames_kernel(words, 0, midnight_ns, directory, out, status)
    reason = int(status[kernels.STATUS_REASON])
    if reason != kernels.ENCODED:
        raise _complaint(wire.view(batch), int(status[kernels.STATUS_ROW]), reason, midnight_ns)
    return out[:byte_count].tobytes()


def _complaint(frames: wire.FrameArray, row: int, reason: int, midnight_ns: int) -> FrameError:
    field, allowed = _ALLOWED[reason]
    frame = frames[row]
    found: object
    if reason == kernels.BAD_TIME:
        found = f"{int(frame['event_time_ns']) - midnight_ns} ns after midnight"
    elif reason in (kernels.BAD_INSTRUMENT, kernels.NO_SYMBOL):
        found = int(frame["instrument_id"])
    elif reason == kernels.HEAD_ONLY:
        found = int(frames[row : row + 1].view(wire.FRAMES[Schema.UNPARSED])["message_bytes"][0])
    else:
        schema = Schema(int(frame["schema_id"]))
        found = f"{schema.name}, part {int(frame['part'])}"
    return FrameError(field, found, allowed, row)
