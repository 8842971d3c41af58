"""`twintape kernels`: compiles every kernel ahead of time, so that processes start at once.

Hot loops live in modules named `*_kernels.py`, and the functions that Python calls end in `_kernel`. A
module that has such functions has `warm_up()`, which calls them on tiny inputs of the types that are used in
earnest; the first call compiles and leaves the machine code in the cache of `feeds.compiled`, every later
process loads it from there. A module of building blocks, which only other kernels call, needs none: they are
compiled with their callers.
"""

import argparse
import pkgutil
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

PACKAGES = ("feeds", "middleware", "adapters", "stream_admin", "replay", "spark", "perf")
MODULE_SUFFIX = "_kernels"
FUNCTION_SUFFIX = "_kernel"


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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="name the kernel modules and do nothing")


def run(args: argparse.Namespace) -> int:
    names = warm_modules()
    if args.list:
        print("\n".join(names))
        return 0
    from feeds.compiled import cache_root

    started = time.perf_counter()
    for number, name in enumerate(names, start=1):
        warmth = warm_up(name)
        print(
            f"({number}/{len(names)}) {warmth.module}: {warmth.how()} in {warmth.seconds:.1f} s", flush=True
        )
    print(f"{len(names)} modules ready in {time.perf_counter() - started:.1f} s, kept in {cache_root()}")
    return 0
