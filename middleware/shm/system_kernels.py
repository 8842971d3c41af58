"""What kernels ask of the operating system: the time, and to sleep until a word of shared memory changes.

libc's functions are linked by name, so that the machine code can be kept on disk. A futex looks at 32 bits:
the lower half of a word. Waiting needs no right to write, so a reader may sleep on memory that it has mapped
read-only; waking needs no memory at all but the address.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import time
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from feeds.compiled import IS_INTERPRETED, i64, kernel
from middleware.shm.atomics import Words, load_acquire

NS_PER_S = 1_000_000_000
ALL_WAITERS = 0x7FFFFFFF
WOKEN = 0
TIMED_OUT = -errno.ETIMEDOUT
CHANGED = -errno.EAGAIN  # the word no longer held what the caller saw
INTERRUPTED = -errno.EINTR

_CLOCK_MONOTONIC = 1
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1  # not PRIVATE: the waiter and the waker are different processes
_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98}
assert sys.byteorder == "little"  # the half that a futex looks at is the first
assert platform.machine() in _SYSCALL_NUMBERS, f"no futex number is known for {platform.machine()}"
_FUTEX = _SYSCALL_NUMBERS[platform.machine()]

_int64, _int32, _bytes = ir.IntType(64), ir.IntType(32), cgutils.voidptr_t
_untyped: Any = cgutils  # numba types only some of it
_timespec = ir.LiteralStructType([_int64, _int64])


def _libc(module: Any, name: str, answer: Any, arguments: list[Any]) -> Any:
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(answer, arguments), name)


def _now_intrinsic() -> Any:
    @intrinsic
    def now(_typing: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            clock = _libc(builder.module, "clock_gettime", _int32, [_int32, _timespec.as_pointer()])
            answer = _untyped.alloca_once(builder, _timespec)
            builder.call(clock, [_int32(_CLOCK_MONOTONIC), answer])
            seconds, rest = (builder.load(_untyped.gep_inbounds(builder, answer, 0, half)) for half in (0, 1))
            return builder.add(builder.mul(seconds, _int64(NS_PER_S)), rest)

        return types.int64(), generate

    return now


def _futex_intrinsic() -> Any:
    @intrinsic
    def futex(_typing: Any, words: Any, index: Any, operation: Any, value: Any, timeout_ns: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            place, kind, number, patience = (
                context.cast(builder, args[which], signature.args[which], types.int64)
                for which in range(1, 5)
            )
            address = builder.gep(builder.bitcast(array.data, _int64.as_pointer()), [place])
            limit = _untyped.alloca_once(builder, _timespec)
            for half, amount in enumerate(
                (builder.sdiv(patience, _int64(NS_PER_S)), builder.srem(patience, _int64(NS_PER_S)))
            ):
                builder.store(amount, _untyped.gep_inbounds(builder, limit, 0, half))
            call = _libc(builder.module, "syscall", _int64, [_int64] * 7)
            nothing = _int64(0)
            answer = builder.call(
                call,
                [
                    _int64(_FUTEX),
                    builder.ptrtoint(address, _int64),
                    kind,
                    number,
                    builder.ptrtoint(limit, _int64),
                    nothing,
                    nothing,
                ],
            )
            reason_at = _libc(builder.module, "__errno_location", _int32.as_pointer(), [])
            reason = builder.sext(builder.load(builder.call(reason_at, [])), _int64)
            is_failed = builder.icmp_signed("<", answer, nothing)
            return builder.select(is_failed, builder.neg(reason), answer)

        return types.int64(words, index, operation, value, timeout_ns), generate

    return futex


def _yield_intrinsic() -> Any:
    @intrinsic
    def give_way(_typing: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            builder.call(_libc(builder.module, "sched_yield", _int32, []), [])
            return context.get_dummy_value()

        return types.void(), generate

    return give_way


if IS_INTERPRETED:
    _call = ctypes.CDLL(None, use_errno=True).syscall

    class _Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_int64), ("rest", ctypes.c_int64))

    def now_ns() -> int:
        return time.monotonic_ns()

    def give_way() -> None:
        os.sched_yield()

    def _futex(words: Words, index: int, operation: int, value: int, timeout_ns: int) -> int:
        limit = _Timespec(*divmod(int(timeout_ns), NS_PER_S))
        address = ctypes.c_void_p(words.ctypes.data + 8 * int(index))
        answer = int(
            _call(_FUTEX, address, operation, ctypes.c_uint32(int(value)), ctypes.byref(limit), 0, 0)
        )
        return answer if answer >= 0 else -ctypes.get_errno()

else:
    now_ns = _now_intrinsic()
    give_way = _yield_intrinsic()
    _futex = _futex_intrinsic()


@kernel
def futex_wait(words: Words, index: int, seen: int, timeout_ns: int) -> int:
    """Sleep until the word's lower half is no longer that of `seen` and somebody wakes us.

    Returns WOKEN, CHANGED (at once), TIMED_OUT or INTERRUPTED; who wakes looks again in any case.
    """
    return int(_futex(words, index, _FUTEX_WAIT, i64(seen) & i64(0xFFFFFFFF), timeout_ns))


@kernel
def futex_wake(words: Words, index: int, count: int) -> int:
    """Wake up to `count` sleepers of a word, in any process; return how many were woken."""
    return int(_futex(words, index, _FUTEX_WAKE, count, 0))


@kernel
def wake_all_kernel(words: Words, index: int) -> int:
    """Wake everybody who sleeps on a word; return how many that were."""
    return futex_wake(words, index, ALL_WAITERS)


@kernel
def exercise_kernel(words: Words) -> int:
    """Use every call once, so that the warm-up compiles them all."""
    give_way()
    futex_wake(words, 0, ALL_WAITERS)
    seen = load_acquire(words, 0)
    return now_ns() if futex_wait(words, 0, seen + 1, 1) == CHANGED else 0


def warm_up() -> None:
    words = np.zeros(8, dtype=np.int64)
    exercise_kernel(words)
    wake_all_kernel(words, 0)
