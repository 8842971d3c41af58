"""Many datagrams per system call: recvmmsg from compiled code, straight into the arena's slots.

The message headers that recvmmsg wants are prepared once, header i over slot i, and the kernel of the
operating system rewrites only their flags and lengths. libc's symbols are linked by name, not through a
ctypes pointer: a pointer is an address of one process, and code that holds one cannot be cached on disk.
Without jit a plain-Python twin reads the same sockets one datagram at a time.

    struct mmsghdr as words   0 name | 1 name bytes | 2 vector | 3 vectors | 4 control | 5 control bytes
                              6 flags (low half) | 7 length (low half)
    struct iovec as words     0 base | 1 length
"""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.compiled import IS_INTERPRETED, kernel
from feeds.formats import (
    DATAGRAM_BYTES,
    DATAGRAM_FIELDS,
    DATAGRAM_LINE,
    DATAGRAM_OFFSET,
    DATAGRAM_TIME_NS,
    ByteArray,
    IntArray,
)
from feeds.memory_kernels import load_byte, load_le64, store_byte, store_le64

# The drawing above is of 64-bit little-endian Linux.
assert sys.byteorder == "little"
assert sys.maxsize > 1 << 32

HEADER_WORDS = 8
HEADER_VECTOR = 2
HEADER_VECTOR_COUNT = 3
HEADER_FLAGS = 6
HEADER_LENGTH = 7
VECTOR_WORDS = 2
_LOW_HALF = 0xFFFFFFFF

DONT_WAIT = int(socket.MSG_DONTWAIT)
TRUNCATED = int(socket.MSG_TRUNC)
TRY_AGAIN = errno.EAGAIN
INTERRUPTED = errno.EINTR

# A source is one socket: line A, line B, or the answers of one re-request server.
SOURCE_FD = 0  # -1: closed
SOURCE_LINE = 1
SOURCE_CALLS = 2
SOURCE_DATAGRAMS = 3
SOURCE_BYTES = 4
SOURCE_TRUNCATED = 5  # datagrams longer than a slot
SOURCE_ERRORS = 6  # calls that failed other than for want of datagrams
SOURCE_ERRNO = 7  # of the last of them
SOURCE_FIELDS = 8

RECEIVE_TURN = 0  # the source that is read first this time
RECEIVE_SHARE = 1  # slots that one source may fill in a step
RECEIVE_FED_COUNT = 2  # datagrams that were put into the slots by `feed_kernel`
RECEIVE_SLOT_BYTES = 3
RECEIVE_FIELDS = 4


class ReceiveTables(NamedTuple):
    """Everything the receive kernels work on, in one argument."""

    state: IntArray  # [RECEIVE_FIELDS]
    sources: IntArray  # [sockets, SOURCE_FIELDS]
    headers: IntArray  # [slots, HEADER_WORDS]
    vectors: IntArray  # [slots, VECTOR_WORDS]
    datagrams: IntArray  # [slots, DATAGRAM_FIELDS]


def new_receive_tables(
    arena: ByteArray, slot_count: int, slot_bytes: int, sources: list[tuple[int, int]]
) -> ReceiveTables:
    """Return tables over the first `slot_count` slots of `arena`; sources are (file descriptor, line)."""
    assert slot_count * slot_bytes <= arena.size
    vectors = np.zeros((slot_count, VECTOR_WORDS), dtype=np.int64)
    vectors[:, 0] = arena.ctypes.data + np.arange(slot_count) * slot_bytes
    vectors[:, 1] = slot_bytes
    headers = np.zeros((slot_count, HEADER_WORDS), dtype=np.int64)
    headers[:, HEADER_VECTOR] = vectors.ctypes.data + np.arange(slot_count) * VECTOR_WORDS * 8
    headers[:, HEADER_VECTOR_COUNT] = 1
    rows = np.zeros((len(sources), SOURCE_FIELDS), dtype=np.int64)
    for index, (fd, line) in enumerate(sources):
        rows[index, SOURCE_FD] = fd
        rows[index, SOURCE_LINE] = line
    state = np.zeros(RECEIVE_FIELDS, dtype=np.int64)
    state[RECEIVE_SHARE] = max(slot_count // max(len(sources), 1), 1)
    state[RECEIVE_SLOT_BYTES] = slot_bytes
    datagrams = np.zeros((slot_count, DATAGRAM_FIELDS), dtype=np.int64)
    return ReceiveTables(state, rows, headers, vectors, datagrams)


def _external(module: Any, function_type: Any, name: str) -> Any:
    """Return libc's function of that name, declared in `module` once."""
    return module.globals.get(name) or ir.Function(module, function_type, name)


def _receive_intrinsic() -> Any:
    @intrinsic
    def receive_many(_typing_context: Any, fd: Any, headers: Any, first: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int32, int64, pointer = ir.IntType(32), ir.IntType(64), cgutils.voidptr_t
            array = context.make_array(signature.args[1])(context, builder, args[1])
            descriptor, begin, limit = (
                context.cast(builder, args[index], signature.args[index], types.int64) for index in (0, 2, 3)
            )
            offset = builder.mul(begin, int64(HEADER_WORDS * 8))
            address = builder.gep(builder.bitcast(array.data, pointer), [offset])
            receive_type = ir.FunctionType(int32, [int32, pointer, int32, int32, pointer])
            receive = _external(builder.module, receive_type, "recvmmsg")
            place = _external(builder.module, ir.FunctionType(int32.as_pointer(), []), "__errno_location")
            received = builder.call(
                receive,
                [
                    builder.trunc(descriptor, int32),
                    address,
                    builder.trunc(limit, int32),
                    int32(DONT_WAIT),
                    pointer(None),  # no time-out: MSG_DONTWAIT never waits
                ],
            )
            reason = builder.load(builder.call(place, []))
            is_failed = builder.icmp_signed("<", received, int32(0))
            return builder.sext(builder.select(is_failed, builder.neg(reason), received), int64)

        return types.int64(fd, headers, first, count), generate

    return receive_many


if IS_INTERPRETED:

    def receive_into_slots(fd: int, tables: ReceiveTables, first: int, count: int) -> int:
        """Do what recvmmsg does, with Python's own socket calls, one datagram at a time."""
        source = socket.socket(fileno=int(fd))
        received = 0
        try:
            for index in range(int(first), int(first + count)):
                base, slot_bytes = tables.vectors[index].tolist()
                slot = (ctypes.c_char * slot_bytes).from_address(base)
                length, _, flags, _ = source.recvmsg_into([slot], 0, DONT_WAIT)
                tables.headers[index, HEADER_FLAGS] = flags
                tables.headers[index, HEADER_LENGTH] = length
                received += 1
        except OSError as error:
            return received if received else -int(error.errno or errno.EIO)
        finally:
            source.detach()  # it is not ours to close
        return received

else:
    _receive_many = _receive_intrinsic()

    @kernel
    def receive_into_slots(fd: int, tables: ReceiveTables, first: int, count: int) -> int:
        """Fill slots from `first` on with up to `count` datagrams; return how many, or minus the errno."""
        return int(_receive_many(fd, tables.headers, first, count))


@kernel
def describe_datagrams(tables: ReceiveTables, source: int, first: int, received: int, time_ns: int) -> None:
    """Make datagram rows of the headers that the last call filled."""
    row = tables.sources[source]
    slot_bytes = tables.state[RECEIVE_SLOT_BYTES]
    total_bytes = 0
    for index in range(first, first + received):
        length = tables.headers[index, HEADER_LENGTH] & _LOW_HALF
        total_bytes += length
        if tables.headers[index, HEADER_FLAGS] & TRUNCATED:
            row[SOURCE_TRUNCATED] += 1
            length = -length
        tables.datagrams[index, DATAGRAM_OFFSET] = index * slot_bytes
        tables.datagrams[index, DATAGRAM_BYTES] = length
        tables.datagrams[index, DATAGRAM_LINE] = row[SOURCE_LINE]
        tables.datagrams[index, DATAGRAM_TIME_NS] = time_ns
    row[SOURCE_DATAGRAMS] += received
    row[SOURCE_BYTES] += total_bytes


@kernel
def receive_kernel(tables: ReceiveTables, time_ns: int) -> int:
    """Take what the sockets have, without waiting; return how many datagrams are described.

    Sources take turns at being first, so that neither line wins every tie of arrival.
    """
    state = tables.state
    count = state[RECEIVE_FED_COUNT]
    state[RECEIVE_FED_COUNT] = 0
    source_count = tables.sources.shape[0]
    turn = state[RECEIVE_TURN]
    for step in range(source_count):
        source = (turn + step) % source_count
        row = tables.sources[source]
        room = min(state[RECEIVE_SHARE], tables.datagrams.shape[0] - count)
        if row[SOURCE_FD] < 0 or room == 0:
            continue
        received = receive_into_slots(row[SOURCE_FD], tables, count, room)
        row[SOURCE_CALLS] += 1
        if received > 0:
            describe_datagrams(tables, source, count, received, time_ns)
            count += received
        elif received != -TRY_AGAIN and received != -INTERRUPTED and received != 0:
            row[SOURCE_ERRORS] += 1
            row[SOURCE_ERRNO] = -received
    if source_count > 0:
        state[RECEIVE_TURN] = (turn + 1) % source_count
    return int(count)


@kernel
def feed_kernel(
    data: ByteArray,
    datagrams: IntArray,
    first: int,
    count: int,
    arena: ByteArray,
    tables: ReceiveTables,
) -> int:
    """Copy datagrams that were read from elsewhere into free slots; return how many found room."""
    slot_bytes = tables.state[RECEIVE_SLOT_BYTES]
    fed = tables.state[RECEIVE_FED_COUNT]
    room = min(count, tables.datagrams.shape[0] - fed)
    for index in range(room):
        source = first + index
        length = datagrams[source, DATAGRAM_BYTES]
        present = min(abs(length), slot_bytes)
        target = (fed + index) * slot_bytes
        offset = datagrams[source, DATAGRAM_OFFSET]
        word_end = present & ~7
        for at in range(0, word_end, 8):
            store_le64(arena, target + at, load_le64(data, offset + at))
        for at in range(word_end, present):
            store_byte(arena, target + at, load_byte(data, offset + at))
        tables.datagrams[fed + index, DATAGRAM_OFFSET] = target
        tables.datagrams[fed + index, DATAGRAM_BYTES] = length if 0 <= length <= slot_bytes else -present
        tables.datagrams[fed + index, DATAGRAM_LINE] = datagrams[source, DATAGRAM_LINE]
        tables.datagrams[fed + index, DATAGRAM_TIME_NS] = datagrams[source, DATAGRAM_TIME_NS]
    tables.state[RECEIVE_FED_COUNT] = fed + room
    return int(room)


def warm_up() -> None:
    arena = np.zeros(256, dtype=np.uint8)
    tables = new_receive_tables(arena, 2, 64, [(-1, 0)])
    datagrams = np.zeros((1, DATAGRAM_FIELDS), dtype=np.int64)
    feed_kernel(arena, datagrams, 0, 1, arena, tables)
    receive_kernel(tables, 0)
