"""Places to read from or up to, as people give them and as the store understands them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.sdk.errors import BadPosition

Moment = str | datetime | timedelta
Position = Moment | int

SHAPE = (
    "use 'earliest', 'now', '-90s', '-15m', '-1h', '-7d', an RFC 3339 time, a datetime, a timedelta (so long ago), "
    "a log_offset (int), or '@7' for a queue_offset"
)
_TEXT = re.compile(r"earliest|now|-\d{1,9}[smhd]|@\d{1,18}")


def where(position: Position) -> str:
    """The position as a Seek has it. Raises BadPosition.

    >>> where(4096), where(timedelta(hours=1)), where("-1h")
    ('=4096', '-3600s', '-1h')
    """
    match position:
        case bool():
            pass
        case int() if 0 <= position < 1 << 60:
            return f"={position}"
        case timedelta():
            return f"-{round(abs(position.total_seconds()))}s"
        case datetime():
            return position.astimezone(UTC).isoformat()
        case str() if _TEXT.fullmatch(position):
            return position
        case str():
            try:
                return datetime.fromisoformat(position).astimezone(UTC).isoformat()
            except (ValueError, OverflowError):
                pass
    raise BadPosition(f"{position!r} is no place in the log; {SHAPE}")


def moment(time: Moment) -> str:
    """The same for times alone. Raises BadPosition.

    >>> moment(timedelta(days=1))
    '-86400s'
    """
    found = where(time)
    if found[0] in "=@":
        raise BadPosition(f"{time!r} is no time; {SHAPE.partition(', a log_offset')[0]}")
    return found
