"""Strict checks of frames from outside: `validate` names the first frame and field that is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from feeds import checksum_kernels
from feeds import validation_kernels as kernels
from feeds.errors import FrameError
from feeds.validation_kernels import BoolArray, IntArray
from feeds.wire import (
    ALLOWED,
    FRAME_BYTES,
    FRAME_WORDS,
    FRAMES,
    HEADER_BYTES,
    KIND_OF_SCHEMA,
    PAYLOAD_WORD,
    PAYLOADS,
    VERSION,
    Flag,
    FrameArray,
    Schema,
    place,
    view,
    words,
)

_KNOWN_FLAGS = sum(int(flag) for flag in Flag)
_RULES: list[tuple[Schema, str]] = sorted(ALLOWED)


def _make_tables() -> tuple[IntArray, int, IntArray, IntArray, IntArray, BoolArray]:
    kinds = np.zeros(kernels.SCHEMA_SLOTS, dtype=np.int64)
    unnamed = np.zeros((kernels.SCHEMA_SLOTS, FRAME_WORDS - PAYLOAD_WORD), dtype=np.int64)
    for schema in Schema:
        kinds[schema] = KIND_OF_SCHEMA[schema]
        unnamed[schema] = _unnamed_bits(schema)
    begin = np.zeros(kernels.SCHEMA_SLOTS + 1, dtype=np.int64)
    places = np.zeros((len(_RULES), kernels.RULE_FIELDS), dtype=np.int64)
    allowed = np.zeros((len(_RULES), 256), dtype=np.bool_)
    for index, (schema, field) in enumerate(_RULES):
        begin[schema + 1 :] = index + 1
        where = place(field, schema)
        assert where.byte_count == 1
        places[index] = where.word, where.shift
        allowed[index, list(ALLOWED[schema, field])] = True
    return kinds, _KNOWN_FLAGS, unnamed, begin, places, allowed


def _unnamed_bits(schema: Schema) -> IntArray:
    payload = PAYLOADS[schema]
    free = np.full(payload.itemsize, 0xFF, dtype=np.uint8)
    for name in payload.names or ():
        offset, size = place(name, schema).offset - HEADER_BYTES, payload[name].itemsize
        free[offset : offset + size] = 0
    return free.view(np.int64)


_TABLES = _make_tables()


def validate(batch: Any, check_crc: bool = False) -> FrameArray:
    """Return `batch` as frames if every one of them keeps to its layout, else raise a FrameError.

    With `check_crc`, every frame must also carry its right CRC32C, as behind a disk or a network.
    """
    frames = view(batch)
    frame_words = words(frames)
    found = np.zeros(1, dtype=np.int64)
    verdict = kernels.find_violation_kernel(frame_words, 0, *_TABLES, found)
    if verdict != kernels.GOOD:
        raise _complaint(frames, int(found[0]), verdict)
    if check_crc:
        row = checksum_kernels.find_bad_crc_kernel(frame_words)
        if row >= 0:
            expected = checksum_kernels.frame_crc(frame_words, row)
            raise FrameError("crc32c", f"{int(frames[row]['crc32c']):#010x}", f"{expected:#010x}", row)
    return frames


def stamp_crc(batch: Any) -> None:
    """Write every frame's CRC32C into it, before it leaves for a disk or a network."""
    checksum_kernels.stamp_crc_kernel(words(batch))


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of any bytes."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    return int(checksum_kernels.crc32c_kernel(buffer, buffer.size))


def _complaint(frames: FrameArray, row: int, verdict: int) -> FrameError:
    header = frames[row]
    if verdict == kernels.BAD_LENGTH:
        return FrameError("length", int(header["length"]), FRAME_BYTES, row)
    if verdict == kernels.BAD_VERSION:
        return FrameError("version", int(header["version"]), VERSION, row)
    if verdict == kernels.BAD_SCHEMA:
        return FrameError("schema_id", int(header["schema_id"]), f"one of 1..{max(Schema)}", row)
    schema = Schema(int(header["schema_id"]))
    if verdict == kernels.BAD_KIND:
        kind = KIND_OF_SCHEMA[schema]
        return FrameError("kind", int(header["kind"]), f"{int(kind)} ({kind.name}) for {schema.name}", row)
    if verdict == kernels.BAD_FLAGS:
        return FrameError("flags", f"{int(header['flags']):#06x}", f"within {_KNOWN_FLAGS:#06x}", row)
    if verdict == kernels.BAD_UNNAMED_BYTES:
        payload = frames[row : row + 1].view(np.uint8)[HEADER_BYTES:]
        stray = payload.view(np.int64) & _unnamed_bits(schema)
        offset = HEADER_BYTES + int(np.flatnonzero(stray.view(np.uint8))[0])
        return FrameError(
            f"{schema.name} byte {offset}", int(payload[offset - HEADER_BYTES]), "0 (not named by it)", row
        )
    _, field = _RULES[verdict - kernels.RULE_BASE]
    value = bytes(frames[row : row + 1].view(np.uint8))[place(field, schema).offset]
    is_text = FRAMES[schema][field].kind == "S"
    return FrameError(
        f"{schema.name}.{field}",
        bytes([value]) if is_text else value,
        f"one of {_values_text(ALLOWED[schema, field], is_text)}",
        row,
    )


def _values_text(values: bytes, is_text: bool) -> str:
    return ", ".join(repr(bytes([value])) if is_text else str(value) for value in values)
