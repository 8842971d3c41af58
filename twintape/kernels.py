"""`twintape kernels`: compiles every kernel ahead of time, so that processes start at once.

Hot loops live in modules named `*_kernels.py`, and the functions that Python calls end in `_kernel`. A
module that has such functions has `warm_up()`, which calls them on tiny inputs of the types that are used in
earnest; the first call compiles and leaves the machine code in the cache of `feeds.compiled`, every later
process loads it from there. A module of building blocks, which only other kernels call, needs none: they are
compiled with their callers.
"""

import argparse
import os
import pkgutil
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

PACKAGES = ("feeds", "middleware", "adapters", "stream_admin", "replay", "spark", "perf")
MODULE_SUFFIX = "_kernels"
FUNCTION_SUFFIX = "_kernel"
JOBS_MAX = 4  # more hardly helps: the longest module alone takes 20 s of the 85 s that all take one by one
JOBS_LIMIT = 64


class Warmth(NamedTuple):
    """What one module's warm-up took, and how many of its kernel variants had to be compiled."""

    module: str
    compiled_count: int
    kernel_count: int
    seconds: float

    def how(self) -> str:
        if self.compiled_count:
            return f"compiled {self.compiled_count}"
        return f"loaded {self.kernel_count}" if self.kernel_count else "nothing compiled (interpreted)"


def kernel_modules() -> list[str]:
    """Return the names of all kernel modules of ours, in the order of the layers."""
    return [name for package in PACKAGES for name in sorted(_walk(import_module(package)))]


def _walk(package: ModuleType) -> Iterator[str]:
    for found in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
        if found.ispkg:
            yield from _walk(import_module(found.name))
        elif found.name.endswith(MODULE_SUFFIX):
            yield found.name


def warm_up_of(name: str) -> Callable[[], None] | None:
    """Import a kernel module and return the function that makes its kernels ready, if it has one."""
    call: Callable[[], None] | None = getattr(import_module(name), "warm_up", None)
    return call


def is_called_from_python(name: str) -> bool:
    """Return whether a module has kernels of its own, and not building blocks alone."""
    members = vars(import_module(name)).items()
    return any(
        member.endswith(FUNCTION_SUFFIX) and getattr(value, "__module__", "") == name
        for member, value in members
    )


def warm_modules() -> list[str]:
    """Return the kernel modules that can be made ready; one that ought to be but cannot is an error."""
    from feeds.errors import ConfigError

    names = kernel_modules()
    cold = [name for name in names if is_called_from_python(name) and warm_up_of(name) is None]
    if cold:  # all of them, in one go and before minutes of compiling
        raise ConfigError(f"a module with kernels must have warm_up(), which calls them: {', '.join(cold)}")
    return [name for name in names if warm_up_of(name) is not None]


def warm_up(name: str) -> Warmth:
    """Make one module's kernels ready, compiling or loading them."""
    from feeds.compiled import compiled_here, is_compiled

    started = time.perf_counter()
    call = warm_up_of(name)
    assert call is not None, f"{name} has no warm_up(): ask warm_modules()"
    call()
    kernels = [
        value for value in vars(import_module(name)).values() if getattr(value, "__module__", "") == name
    ]
    return Warmth(
        name,
        compiled_count=sum(compiled_here(kernel) for kernel in kernels),
        kernel_count=sum(is_compiled(kernel) for kernel in kernels),
        seconds=time.perf_counter() - started,
    )


def warm_up_all(names: Sequence[str], jobs: int) -> Iterator[Warmth]:
    """Make all modules ready, several at a time where there is something to compile."""
    from feeds.compiled import is_cached

    cold = [name for name in names if not is_cached(name)]
    if jobs > 1 and len(cold) > 1:
        yield from _warm_up_together(cold, jobs)
        names = [name for name in names if name not in cold]
    yield from map(warm_up, names)


def _warm_up_together(names: Sequence[str], jobs: int) -> Iterator[Warmth]:
    """Compile in processes of their own: numba compiles one function at a time in a process.

    Two that need the same building block may both compile it; whoever finishes last writes the same code.
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Spawned, not forked: a fork of a process that already has threads and a compiler may hang.
    pool = ProcessPoolExecutor(min(jobs, len(names)), mp_context=get_context("spawn"))
    try:
        for done in as_completed([pool.submit(warm_up, name) for name in names]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="name the kernel modules and do nothing")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        help=f"compile N at a time; default: one per core, at most {JOBS_MAX}",
    )


def run(args: argparse.Namespace) -> int:
    from feeds.compiled import cache_root
    from feeds.errors import ConfigError

    names = warm_modules()
    if args.list:
        print("\n".join(names))
        return 0
    jobs = min(len(os.sched_getaffinity(0)), JOBS_MAX) if args.jobs is None else args.jobs
    if not 1 <= jobs <= JOBS_LIMIT:
        raise ConfigError(f"--jobs must be 1 to {JOBS_LIMIT}, was {jobs}")
    started = time.perf_counter()
    for number, warmth in enumerate(warm_up_all(names, jobs), start=1):
        print(
            f"({number}/{len(names)}) {warmth.module}: {warmth.how()} in {warmth.seconds:.1f} s", flush=True
        )
    print(f"{len(names)} modules ready in {time.perf_counter() - started:.1f} s, kept in {cache_root()}")
    return 0
