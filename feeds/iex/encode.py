"""`encode_frames`: frames as the IEX messages they were made from."""

from __future__ import annotations

from typing import Any

import numpy as np

from feeds import wire
from feeds.errors import FrameError
from feeds.formats import IntArray
from feeds.iex import frame_kernels as kernels
from feeds.iex.messages import BLOCK_BYTES_MAX
from feeds.iex.symbol_kernels import DIRECTORY_WORDS
from feeds.wire import Schema

_ALLOWED = {
    kernels.NOT_IEX: ("schema_id", "one that an IEX message has"),
    kernels.BAD_PRICE: ("price", "a multiple of 1e-4"),
    kernels.NO_SYMBOL: ("instrument_id", "one whose symbol the directory knows"),
    kernels.PARTS_MISSING: ("part", "followed by the other parts of its message"),
    kernels.HEAD_ONLY: ("message_bytes", "at most 24, what the frame holds of a message it could not read"),
}


def encode_frames(batch: Any, directory: IntArray) -> bytes:
    """Return the length-prefixed IEX messages of the frames in `batch`.

    A frame that no IEX message can express is a FrameError, and nothing is returned of the batch.
    """
    if directory.shape != (DIRECTORY_WORDS,) or directory.dtype != np.int64:
        raise FrameError("directory", f"{directory.dtype}{directory.shape}", f"int64({DIRECTORY_WORDS},)")
    words = wire.words(batch)
    # No frame becomes more than one block, and the kernel wants room for the largest before each.
    out = np.empty((words.shape[0] + 1) * BLOCK_BYTES_MAX, dtype=np.uint8)
    status = np.zeros(kernels.STATUS_FIELDS, dtype=np.int64)
    byte_count = kernels.encode_frames_kernel(words, 0, directory, out, status)
    reason = int(status[kernels.STATUS_REASON])
    if reason != kernels.ENCODED:
        raise _complaint(wire.view(batch), int(status[kernels.STATUS_ROW]), reason)
    return out[:byte_count].tobytes()


def _complaint(frames: wire.FrameArray, row: int, reason: int) -> FrameError:
    field, allowed = _ALLOWED[reason]
    frame = frames[row]
    found: object
    if reason == kernels.NO_SYMBOL:
        found = int(frame["instrument_id"])
    elif reason == kernels.HEAD_ONLY:
        found = int(frames[row : row + 1].view(wire.FRAMES[Schema.UNPARSED])["message_bytes"][0])
    else:
        found = f"{Schema(int(frame['schema_id'])).name}, part {int(frame['part'])}"
    return FrameError(field, found, allowed, row)
