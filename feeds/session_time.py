"""When an exchange's day begins: dates out of file names, midnights in the exchange's own time zone."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import PurePath
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from feeds.errors import ConfigError

NS_PER_S = 1_000_000_000

# Nasdaq names its day files 12302019.NASDAQ_ITCH50 and, under the older rule, S123019-v50.txt.
_NAME_RULES = (
    (re.compile(r"(\d{8})(?!\d)"), "%m%d%Y"),
    (re.compile(r"S(\d{6})-v\d"), "%m%d%y"),
)


def session_date_of_name(path: PurePath) -> date:
    """Return the date that a day file's name begins with; a ConfigError says what else to do."""
    for pattern, form in _NAME_RULES:
        match = pattern.match(path.name)
        if match is None:
            continue
        try:
            return datetime.strptime(match[1], form).date()  # noqa: DTZ007 - a date at the exchange, no instant
        except ValueError:
            break
    raise ConfigError(
        f"{path.name}: the session's date must be given (as YYYY-MM-DD), "
        "or the name must begin with it as MMDDYYYY, like 12302019.NASDAQ_ITCH50"
    )


def parse_date(text: str) -> date:
    """Return the date written as YYYY-MM-DD."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"a session's date must be YYYY-MM-DD, was {text!r}") from None


def midnight_ns(session_date: date, time_zone: str) -> int:
    """Return the ns since 1970 UTC at which `session_date` begins in `time_zone`."""
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(f"time zone must be one of the IANA database, was {time_zone!r}") from None
    midnight = datetime(session_date.year, session_date.month, session_date.day, tzinfo=zone)
    return int(midnight.timestamp()) * NS_PER_S


def session_of_date(session_date: date) -> int:
    """Return the source_session of a day file: a file has no session name, but its date is its own."""
    return session_date.year * 10_000 + session_date.month * 100 + session_date.day
