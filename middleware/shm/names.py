"""Names of logs, rings, slabs and readers. They become file names, so few characters are allowed in them."""

from __future__ import annotations

import re

from feeds.errors import ConfigError

NAME_BYTES_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def checked_name(name: str) -> str:
    """Return `name` if it can be one; it cannot hide a file, leave its directory or pass for a flag."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        shown = name if len(name) <= NAME_BYTES_MAX else f"{name[:NAME_BYTES_MAX]}..."
        raise ConfigError(
            f"a name must be 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', the first a letter or a "
            f"digit, was {shown!r}"
        )
    return name
