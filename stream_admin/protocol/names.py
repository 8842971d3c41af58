"""Names and numbers of the protocol: the one place that says which characters, how long, from where to where.

A name becomes a file name (an adapter's stream log is `<stream>.<adapter>`), a label of a metric, a word on
a command line. So few characters are allowed, an adapter's has no dot (or `A.B` + `c` and `A` + `B.c` would
be one log), and the two lengths leave a log's name within what shared memory allows (64).
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from stream_admin.protocol.forms import Integer, Text

STREAM_NAME_LENGTH_MAX = 40
ADAPTER_NAME_LENGTH_MAX = 20
LOG_NAME_LENGTH_MAX = 64
assert STREAM_NAME_LENGTH_MAX + 1 + ADAPTER_NAME_LENGTH_MAX <= LOG_NAME_LENGTH_MAX

_DOTTED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*", re.ASCII)
_HEX = re.compile(r"[0-9a-f]*", re.ASCII)
_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", re.ASCII)

_DOTTED_ALLOWED = "letters, digits, '.', '_' or '-', the first a letter or a digit,"
_PLAIN_ALLOWED = "letters, digits, '_' or '-', the first a letter or a digit,"
_PRINCIPAL_ALLOWED = "letters, digits, '.', '_', '@' or '-', the first a letter or a digit,"

STREAM_NAME = Text(STREAM_NAME_LENGTH_MAX, 1, _DOTTED_ALLOWED, _DOTTED)
ADAPTER_NAME = Text(ADAPTER_NAME_LENGTH_MAX, 1, _PLAIN_ALLOWED, _PLAIN)
LOG_NAME = Text(LOG_NAME_LENGTH_MAX, 1, _DOTTED_ALLOWED, _DOTTED)
PRINCIPAL_NAME = Text(64, 1, _PRINCIPAL_ALLOWED, _PRINCIPAL)
LABEL = Text(64, 1, _DOTTED_ALLOWED, _DOTTED)

INT64_MAX = 2**63 - 1
UINT32_MAX = 2**32 - 1

StreamName = Annotated[str, STREAM_NAME]
AdapterName = Annotated[str, ADAPTER_NAME]
LogName = Annotated[str, LOG_NAME]
PrincipalName = Annotated[str, PRINCIPAL_NAME]
Label = Annotated[str, LABEL]  # of a line, a token, a kept subscription
Sentence = Annotated[str, Text(400, 1, "a sentence")]  # a reason that people will read
Remark = Annotated[str, Text(2_000, 0)]
AdminText = Annotated[str, Text(1_000, 1)]
KeyId = Annotated[str, Text(16, 16, "lower-case hexadecimal digits", _HEX)]
Nonce = Annotated[str, Text(32, 32, "lower-case hexadecimal digits", _HEX)]
PublicKeyHex = Annotated[str, Text(64, 64, "lower-case hexadecimal digits", _HEX)]

# Frames carry these; kernels hold them in int64, so 64-bit ones end at its last value.
MessageSeq = Annotated[int, Integer(1, INT64_MAX)]  # a position that a message has, or the next will have
EffectiveSeq = Annotated[int, Integer(0, INT64_MAX)]  # from here on; 0: from the stream's beginning
SourceSeq = Annotated[int, Integer(0, INT64_MAX)]
SourceSession = Annotated[int, Integer(0, UINT32_MAX)]
SourceStreamId = Annotated[int, Integer(1, 2**31 - 1)]  # bit 31 marks administrative messages
EpochNumber = Annotated[int, Integer(1, UINT32_MAX)]
EpochKnown = Annotated[int, Integer(0, UINT32_MAX)]  # 0: none was granted yet
AdminNumber = Annotated[int, Integer(1, INT64_MAX)]
Incarnation = Annotated[int, Integer(1, INT64_MAX)]
Revision = Annotated[int, Integer(0, INT64_MAX)]
TimeNs = Annotated[int, Integer(0, INT64_MAX)]  # since 1970
DurationNs = Annotated[int, Integer(0, INT64_MAX)]
Port = Annotated[int, Integer(1, 65_535)]


def is_host(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address without a zone, or a host name."""
    try:
        return "%" not in text and bool(str(ipaddress.ip_address(text)))
    except ValueError:
        labels = text.removesuffix(".").split(".")
        # All digits in the last label would be an address gone wrong (10.0.0.256), never a name.
        return all(_HOST_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()


def is_clean_absolute_path(text: str) -> bool:
    """Return whether a path says plainly where it leads: from the root, no `..`, no `.`, no empty step."""
    steps = text.split("/")
    return text == "/" or (steps[0] == "" and all(step not in ("", ".", "..") for step in steps[1:]))


HostName = Annotated[str, Text(253, 1, "a host name or an address", is_allowed=is_host)]
AbsolutePath = Annotated[
    str, Text(512, 1, "an absolute path without '.' and '..'", is_allowed=is_clean_absolute_path)
]


def log_name(stream: str, adapter: str) -> str:
    """Return the name of an adapter's stream log."""
    STREAM_NAME.check(stream, "stream")
    ADAPTER_NAME.check(adapter, "adapter")
    return f"{stream}.{adapter}"
