"""The way of packets onto one line of the simulated exchange: cut, impaired, kept in order, sent.

A line has slots for packets, a free list of them, and a queue of those that wait to be sent. Packet i has the
place 2 * i in that queue; one that is to be overtaken has the place 2 * (i + d) + 1, just behind the packet d
later, and waits until that one is there. So chance decides by packet and not by clock: a seed gives the same
losses and the same order however fast the packets come. Delay only holds the head of the queue back.

Without jit a plain-Python twin of sendmmsg sends one datagram at a time.
"""

from __future__ import annotations

import ctypes
import errno
import socket
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.chance_kernels import RNG, draw, draw_below
from feeds.compiled import IS_INTERPRETED, i64, kernel
from feeds.formats import DATAGRAM_BYTES, DATAGRAM_OFFSET, ByteArray, IntArray
from feeds.itch50.messages import AT_TIME as ITCH_TIME_AT
from feeds.memory_kernels import (
    load_be16,
    load_be48,
    load_byte,
    load_le64,
    store_be16,
    store_be64,
    store_byte,
    store_le64,
)

# ---- a line's state: chance, settings, position, counts; one int64 array -----------------------------------
assert RNG == 0
LOSS = 1  # out of CHANCE_WHOLE
BURST_LOSS = 2  # that a burst of losses begins
BURST_PACKETS = 3  # how long such a burst is on average
DUPLICATION = 4
REORDERING = 5
REORDER_SPAN = 6  # a packet is overtaken by at most so many
DELAY_NS = 7
JITTER_NS = 8
MESSAGES_MIN = 9  # in one packet, drawn between these two
MESSAGES_MAX = 10
PACKET_BYTES = 11  # limit of one packet
BURST_LEFT = 12  # packets that the present burst will still swallow
PACKET_INDEX = 13  # packets offered so far
QUEUE_HEAD = 14
QUEUE_COUNT = 15
FREE_COUNT = 16  # slots on the free list
OFFERED_MESSAGES = 17
DROPPED_PACKETS = 18
DROPPED_MESSAGES = 19
DUPLICATED_PACKETS = 20
REORDERED_PACKETS = 21
SENT_PACKETS = 22
SENT_MESSAGES = 23
SENT_BYTES = 24
FAILED_PACKETS = 25  # the operating system refused them; they are lost like dropped ones
FAILED_ERRNO = 26
WAIT_COUNT = 27  # calls that found the socket's buffer full
DROP_COUNT = 28  # rows of the drops in use
LINE_FIELDS = 32
CHANCE_WHOLE = 1 << 30

# ---- rows of the queue, in a ring --------------------------------------------------------------------------
QUEUE_PLACE = 0
QUEUE_DUE_NS = 1
QUEUE_SLOT = 2
QUEUE_BYTES = 3
QUEUE_MESSAGES = 4
QUEUE_FIELDS = 5

# ---- rows of the drops: numbers of the messages that a lost packet had -------------------------------------
DROP_BEGIN = 0
DROP_END = 1
DROP_FIELDS = 2

MOLD_HEADER_BYTES = 20
MOLD_SEQUENCE_AT = 10
MOLD_COUNT_AT = 18
SESSION_BYTES = 10
PREFIX_BYTES = 2

# struct mmsghdr and struct iovec as words, see receive_kernels.
HEADER_WORDS = 8
HEADER_NAME = 0
HEADER_NAME_BYTES = 1
HEADER_VECTOR = 2
HEADER_VECTOR_COUNT = 3
VECTOR_WORDS = 2
SEND_MAX = 64  # packets in one system call

DONT_WAIT = int(socket.MSG_DONTWAIT)
TRY_AGAIN = errno.EAGAIN
NO_BUFFERS = errno.ENOBUFS
INTERRUPTED = errno.EINTR


@kernel
def happens(line: IntArray, chance: int) -> bool:
    """Decide one thing; always uses up one draw, so that settings do not shift each other's decisions."""
    return bool(draw_below(line, i64(CHANCE_WHOLE)) < chance)


@kernel
def is_lost(line: IntArray) -> bool:
    """Decide whether the next packet is lost, alone or in a burst."""
    is_burst = happens(line, line[BURST_LOSS])
    length = draw_below(line, 2 * line[BURST_PACKETS] - 1) + 1
    if is_burst and line[BURST_LEFT] == 0:
        line[BURST_LEFT] = length
    is_single = happens(line, line[LOSS])
    if line[BURST_LEFT] > 0:
        line[BURST_LEFT] -= 1
        return True
    return is_single


@kernel
def enqueue(
    line: IntArray, queue: IntArray, place: int, due_ns: int, slot: int, packet_bytes: int, messages: int
) -> None:
    """Put a packet into the queue, behind everything that has the same or an earlier place."""
    mask = queue.shape[0] - 1
    index = line[QUEUE_HEAD] + line[QUEUE_COUNT]
    while index > line[QUEUE_HEAD] and queue[(index - 1) & mask, QUEUE_PLACE] > place:
        for field in range(QUEUE_FIELDS):
            queue[index & mask, field] = queue[(index - 1) & mask, field]
        index -= 1
    row = index & mask
    queue[row, QUEUE_PLACE] = place
    queue[row, QUEUE_DUE_NS] = due_ns
    queue[row, QUEUE_SLOT] = slot
    queue[row, QUEUE_BYTES] = packet_bytes
    queue[row, QUEUE_MESSAGES] = messages
    line[QUEUE_COUNT] += 1


@kernel
def copy_bytes(source: ByteArray, begin: int, target: ByteArray, at: int, count: int) -> None:
    whole = count & ~7
    for offset in range(0, whole, 8):
        store_le64(target, at + offset, load_le64(source, begin + offset))
    for offset in range(whole, count):
        store_byte(target, at + offset, load_byte(source, begin + offset))


@kernel
def take_slot(line: IntArray, free_slots: IntArray) -> int:
    line[FREE_COUNT] -= 1
    return i64(free_slots[line[FREE_COUNT]])


@kernel
def give_slot(line: IntArray, free_slots: IntArray, slot: int) -> None:
    free_slots[line[FREE_COUNT]] = slot
    line[FREE_COUNT] += 1


@kernel
def offer_slot(
    line: IntArray,
    slots: ByteArray,
    slot_bytes: int,
    free_slots: IntArray,
    queue: IntArray,
    slot: int,
    packet_bytes: int,
    messages: int,
    now_ns: int,
) -> bool:
    """Decide what becomes of the packet in `slot`, sent, late, twice or lost; return whether it is lost."""
    index = line[PACKET_INDEX]
    line[PACKET_INDEX] += 1
    line[OFFERED_MESSAGES] += messages
    is_dropped = is_lost(line)
    is_duplicated = happens(line, line[DUPLICATION])
    is_reordered = happens(line, line[REORDERING])
    span = line[REORDER_SPAN]
    later = 1 + draw_below(line, span)
    copy_later = draw_below(line, span + 1)
    jitter_ns = (draw(line) >> i64(33)) * line[JITTER_NS] >> i64(30)
    if is_dropped:
        line[DROPPED_PACKETS] += 1
        line[DROPPED_MESSAGES] += messages
        give_slot(line, free_slots, slot)
        return True
    due_ns = now_ns + line[DELAY_NS] + jitter_ns
    place = 2 * index
    if is_reordered:
        line[REORDERED_PACKETS] += 1
        place = 2 * (index + later) + 1
    if is_duplicated and line[FREE_COUNT] > 0:
        line[DUPLICATED_PACKETS] += 1
        twin = take_slot(line, free_slots)
        copy_bytes(slots, slot * slot_bytes, slots, twin * slot_bytes, packet_bytes)
        enqueue(line, queue, 2 * (index + copy_later) + 1, due_ns, twin, packet_bytes, messages)
    enqueue(line, queue, place, due_ns, slot, packet_bytes, messages)
    return False


@kernel
def cut_kernel(
    data: ByteArray,
    offsets: IntArray,
    first: int,
    first_sequence: int,
    session: ByteArray,
    line: IntArray,
    slots: ByteArray,
    slot_bytes: int,
    free_slots: IntArray,
    queue: IntArray,
    drops: IntArray,
    now_ns: int,
) -> int:
    """Cut blocks from index `first` on into packets and offer them; return how many blocks found a slot.

    `first_sequence` is the number of block 0. Two free slots are needed for a packet that may be duplicated.
    """
    count = offsets.size - 1
    index = first
    while index < count and line[FREE_COUNT] >= 2:
        spread = line[MESSAGES_MAX] - line[MESSAGES_MIN] + 1
        limit = line[MESSAGES_MIN] + draw_below(line, spread)
        end = index + 1  # a block larger than a packet was refused before
        room = line[PACKET_BYTES] - MOLD_HEADER_BYTES
        while end < count and end - index < limit and offsets[end + 1] - offsets[index] <= room:
            end += 1
        slot = take_slot(line, free_slots)
        at = slot * slot_bytes
        for byte in range(SESSION_BYTES):
            slots[at + byte] = session[byte]
        store_be64(slots, at + MOLD_SEQUENCE_AT, first_sequence + index)
        store_be16(slots, at + MOLD_COUNT_AT, end - index)
        block_bytes = offsets[end] - offsets[index]
        copy_bytes(data, offsets[index], slots, at + MOLD_HEADER_BYTES, block_bytes)
        packet_bytes = MOLD_HEADER_BYTES + block_bytes
        is_dropped = offer_slot(
            line, slots, slot_bytes, free_slots, queue, slot, packet_bytes, end - index, now_ns
        )
        if is_dropped and line[DROP_COUNT] < drops.shape[0]:
            drops[line[DROP_COUNT], DROP_BEGIN] = first_sequence + index
            drops[line[DROP_COUNT], DROP_END] = first_sequence + end
            line[DROP_COUNT] += 1
        index = end
    return index - first


@kernel
def offer_datagrams_kernel(
    data: ByteArray,
    datagrams: IntArray,
    first: int,
    message_counts: IntArray,
    line: IntArray,
    slots: ByteArray,
    slot_bytes: int,
    free_slots: IntArray,
    queue: IntArray,
    now_ns: int,
) -> int:
    """Offer packets that exist already, from row `first` on; return how many found a slot.

    None of them is longer than a slot: the caller has looked.
    """
    index = first
    while index < datagrams.shape[0] and line[FREE_COUNT] >= 2:
        packet_bytes = datagrams[index, DATAGRAM_BYTES]
        slot = take_slot(line, free_slots)
        copy_bytes(data, datagrams[index, DATAGRAM_OFFSET], slots, slot * slot_bytes, packet_bytes)
        messages = message_counts[index]
        offer_slot(line, slots, slot_bytes, free_slots, queue, slot, packet_bytes, messages, now_ns)
        index += 1
    return index - first


@kernel
def find_due_kernel(line: IntArray, queue: IntArray, now_ns: int, is_flushing: bool) -> int:
    """Return how many packets at the head of the queue may go now.

    Flushing lets those go that wait for packets which will not come; it does not shorten a delay.
    """
    mask = queue.shape[0] - 1
    newest = 2 * line[PACKET_INDEX] - 1
    due = i64(0)
    while due < line[QUEUE_COUNT]:
        row = (line[QUEUE_HEAD] + due) & mask
        is_early = queue[row, QUEUE_PLACE] > newest and not is_flushing
        if is_early or queue[row, QUEUE_DUE_NS] > now_ns:
            break
        due += 1
    return due


@kernel
def forget_kernel(line: IntArray, free_slots: IntArray, queue: IntArray, count: int) -> None:
    """Take packets off the head of the queue, as sent, and give their slots back."""
    mask = queue.shape[0] - 1
    for _ in range(count):
        row = line[QUEUE_HEAD] & mask
        line[SENT_PACKETS] += 1
        line[SENT_MESSAGES] += queue[row, QUEUE_MESSAGES]
        line[SENT_BYTES] += queue[row, QUEUE_BYTES]
        give_slot(line, free_slots, queue[row, QUEUE_SLOT])
        line[QUEUE_HEAD] += 1
        line[QUEUE_COUNT] -= 1


def _external(module: Any, function_type: Any, name: str) -> Any:
    """Return libc's function of that name, declared in `module` once."""
    return module.globals.get(name) or ir.Function(module, function_type, name)


def _send_intrinsic() -> Any:
    @intrinsic
    def send_many(_typing_context: Any, fd: Any, headers: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int32, int64, pointer = ir.IntType(32), ir.IntType(64), cgutils.voidptr_t
            array = context.make_array(signature.args[1])(context, builder, args[1])
            descriptor, limit = (
                context.cast(builder, args[index], signature.args[index], types.int64) for index in (0, 2)
            )
            send_type = ir.FunctionType(int32, [int32, pointer, int32, int32])
            send = _external(builder.module, send_type, "sendmmsg")
            place = _external(builder.module, ir.FunctionType(int32.as_pointer(), []), "__errno_location")
            address = builder.bitcast(array.data, pointer)
            words = [builder.trunc(descriptor, int32), address, builder.trunc(limit, int32), int32(DONT_WAIT)]
            sent = builder.call(send, words)
            reason = builder.load(builder.call(place, []))
            is_failed = builder.icmp_signed("<", sent, int32(0))
            return builder.sext(builder.select(is_failed, builder.neg(reason), sent), int64)

        return types.int64(fd, headers, count), generate

    return send_many


if IS_INTERPRETED:

    def send_headers(fd: int, headers: IntArray, vectors: IntArray, count: int) -> int:
        """Do what sendmmsg does, with Python's own socket calls, one datagram at a time."""
        target = socket.socket(fileno=int(fd))
        sent = 0
        try:
            for index in range(int(count)):
                name_bytes = int(headers[index, HEADER_NAME_BYTES])
                name = ctypes.string_at(int(headers[index, HEADER_NAME]), name_bytes)
                address = (socket.inet_ntoa(name[4:8]), int.from_bytes(name[2:4], "big"))
                slot = (int(headers[index, HEADER_VECTOR]) - vectors.ctypes.data) // (8 * VECTOR_WORDS)
                base, length = vectors[slot].tolist()
                target.sendto(ctypes.string_at(base, length), DONT_WAIT, address)
                sent += 1
        except OSError as error:
            return sent if sent else -int(error.errno or errno.EIO)
        finally:
            target.detach()  # it is not ours to close
        return sent

else:
    _send_many = _send_intrinsic()

    @kernel
    def send_headers(fd: int, headers: IntArray, vectors: IntArray, count: int) -> int:
        """Send the packets of the first `count` headers; return how many went, or minus the errno."""
        return int(_send_many(fd, headers, count)) if vectors.size > 0 else 0


@kernel
def send_kernel(
    fd: int,
    line: IntArray,
    free_slots: IntArray,
    queue: IntArray,
    headers: IntArray,
    vectors: IntArray,
    vectors_address: int,
    due: int,
) -> int:
    """Send the first `due` packets of the queue; return how many left it. Fewer: the socket is full."""
    mask = queue.shape[0] - 1
    done = i64(0)
    while done < due:
        count = min(due - done, SEND_MAX)
        for index in range(count):
            row = (line[QUEUE_HEAD] + index) & mask
            slot = queue[row, QUEUE_SLOT]
            vectors[slot, 1] = queue[row, QUEUE_BYTES]
            headers[index, HEADER_VECTOR] = vectors_address + slot * (8 * VECTOR_WORDS)
        sent = send_headers(fd, headers, vectors, count)
        if sent > 0:
            forget_kernel(line, free_slots, queue, sent)
            done += sent
        elif sent == -TRY_AGAIN or sent == -NO_BUFFERS:
            line[WAIT_COUNT] += 1
            break
        elif sent != -INTERRUPTED:
            # The packet at the head cannot be sent at all (no route, too long): it is lost on this line.
            row = line[QUEUE_HEAD] & mask
            line[FAILED_PACKETS] += 1
            line[FAILED_ERRNO] = -sent
            give_slot(line, free_slots, queue[row, QUEUE_SLOT])
            line[QUEUE_HEAD] += 1
            line[QUEUE_COUNT] -= 1
            done += 1
    return done


@kernel
def find_blocks_kernel(data: ByteArray, end: int, offsets: IntArray) -> int:
    """Find where the blocks of `data[:end]` begin; return how many, at most as many as `offsets` holds.

    `offsets[count]` is where the last one ends. The caller vouches for the framing.
    """
    at = i64(0)
    count = i64(0)
    offsets[0] = 0
    while at < end and count + 1 < offsets.size:
        at += PREFIX_BYTES + load_be16(data, at)
        count += 1
        offsets[count] = at
    return count


@kernel
def count_until_kernel(data: ByteArray, offsets: IntArray, begin: int, end: int, until_ns: int) -> int:
    """Return how many ITCH blocks from `begin` on, before `end`, are not later than a time of day."""
    index = begin
    while index < end and load_be48(data, offsets[index] + PREFIX_BYTES + ITCH_TIME_AT) <= until_ns:
        index += 1
    return index - begin


def warm_up() -> None:
    from feeds.exchange.lines import warm_up_line

    warm_up_line()
