"""`@kernel`: how hot functions are compiled and where the machine code is kept.

numba's own on-disk cache looks only at the file that defines a function. A kernel that calls a kernel of
another module, or freezes another module's constant, would keep running the old code after that other
file changed; and a cache filled without bounds checks silently ignores NUMBA_BOUNDSCHECK=1. So every
module's kernels live in a directory of their own whose name is a digest of the module, of all modules of
ours that it imports, and of the switches that change the generated code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core import config as numba_config

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

IS_INTERPRETED = bool(numba_config.DISABLE_JIT)
IS_BOUNDS_CHECKED = bool(numba_config.BOUNDSCHECK)

_STARTED = time.time() - 0.01  # a file's time may be one tick of the kernel (4 ms) behind the clock

# For kernels: numpy's int64 with the type of a plain integer, which is what the compiler makes of both.
i64 = cast("Callable[[Any], int]", np.int64)

# Kernels that use raw pointers fall back to checked array access in both of these modes.
IS_CHECKED = IS_INTERPRETED or IS_BOUNDS_CHECKED

_OUR_PACKAGES = ("feeds", "middleware", "adapters", "replay", "spark", "perf", "tests")
_IMPORT_LINE = re.compile(
    rf"^(?:from|import)\s+((?:{'|'.join(_OUR_PACKAGES)})(?:\.\w+)*)(?:\s+import\s+(\([^)]*\)|.*))?",
    re.MULTILINE,
)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled by numba, without the GIL, cached on disk; unchanged when jit is off.

    A kernel allocates nothing, so it is compiled without reference counts (`_nrt`): numba would count the
    users of an array at every call that is not inlined, with atomic instructions that wait for all stores
    before them. An early version of the books' kernel went from 215 to 141 ns per frame without them.
    """
    return _compile(function)


def inlined_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return a kernel that becomes part of every kernel that calls it."""
    return _compile(function, forceinline=True)


def _compile(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    if IS_INTERPRETED:
        return function
    previous = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(_module_cache_dir(function.__module__))
    # Source that changed since this process began may not be the source that it imported: compile it for
    # this process alone, or the old code would be kept under the name of the new.
    is_cached = _is_private(cache_root()) and not _has_changed(function.__module__)
    settings: dict[str, Any] = {"nogil": True, "cache": is_cached, "error_model": "numpy", "_nrt": False}
    try:
        compiled = numba.njit(**(settings | options))(function)
    finally:
        numba_config.CACHE_DIR = previous
    return cast("Callable[P, R]", compiled)


def cache_root() -> Path:
    """Return the directory below which all compiled kernels are kept, private to this user.

    Cache files are pickles, so a directory that others may write to would run their code: it is made with
    mode 0700, inside the environment where that is ours to write, else in the user's cache directory.
    """
    override = os.environ.get("TWINTAPE_KERNEL_CACHE") or os.environ.get("NUMBA_CACHE_DIR")
    if override:
        return Path(override)
    in_environment = sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK)
    if in_environment:
        return Path(sys.prefix) / "kernels"
    home_cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home_cache) / "twintape" / "kernels"


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether `function` has machine code in this process (loaded or just made)."""
    return bool(getattr(function, "signatures", ()))


def compiled_here(function: Callable[..., Any]) -> int:
    """Return how many variants of `function` this process had to compile because no cache held them."""
    stats = getattr(function, "stats", None)
    return sum(stats.cache_misses.values()) if stats is not None else 0


def is_cached(module_name: str) -> bool:
    """Return whether machine code of this module, as it is now, is on disk."""
    return any(_module_cache_dir(module_name).rglob("*.nbc"))


@functools.cache
def _is_private(root: Path) -> bool:
    """Return whether the cache directory, made if need be, is ours and closed to writes by anyone else."""
    root.mkdir(parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        log.warning("%s is not a directory of ours: kernels are compiled anew in every process", root)
        return False
    root.chmod(0o700)
    return True


def _has_changed(module_name: str) -> bool:
    return any(path.stat().st_mtime > _STARTED for path in _source_closure(module_name))


@functools.cache
def _module_cache_dir(module_name: str) -> Path:
    digest = hashlib.blake2b(digest_size=10)
    digest.update(f"numba {numba.__version__} bounds {IS_BOUNDS_CHECKED}".encode())
    for path in sorted(_source_closure(module_name)):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    directory = cache_root() / f"{module_name.rpartition('.')[2]}-{digest.hexdigest()}"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


@functools.cache
def _source_closure(module_name: str) -> frozenset[Path]:
    """Return the files of `module_name` and of every module of ours that it imports, however indirectly."""
    found: set[Path] = set()
    waiting = [module_name]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _module_file(name)
        if path is None:
            continue
        found.add(path)
        for base, names in _imports_of(path):
            waiting.append(base)
            base_file = _module_file(base)
            if base_file is not None and base_file.name == "__init__.py":  # only a package has sub-modules
                waiting.extend(f"{base}.{piece}" for piece in names)
    return frozenset(found)


@functools.cache
def _imports_of(path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    text = path.read_text(encoding="utf-8")
    return tuple(
        (match[1], tuple(re.findall(r"\w+", match[2] or ""))) for match in _IMPORT_LINE.finditer(text)
    )


@functools.cache
def _module_file(name: str) -> Path | None:
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file) if file and file.endswith(".py") else None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None  # `from feeds.wire import HEADER`: HEADER is a name, not a module
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)
