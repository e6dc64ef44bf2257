"""The options of a consumer group in subscribe(): checked once, then put as on the wire."""

from __future__ import annotations

import re
from datetime import timedelta
from operator import index
from typing import TypedDict

from msgspec.structs import replace

from penstock.sdk.errors import BadOption, BadPosition
from penstock.sdk.positions import Position, where
from store.state.group_settings import (
    MOST_DELIVERIES,
    MOST_IN_FLIGHT,
    MOST_MS,
    MOST_PARTITIONS,
    BadTags,
    GroupSettings,
    tags_of,
)

PARTITIONS = 16  # of an ordered group that names no number
MOST_PREFETCH = 65_536
MOST_WHY_CHARACTERS = 1_024
MOST_NAME_CHARACTERS = 255
_NAME = re.compile(rf"[^/+#\x00]{{1,{MOST_NAME_CHARACTERS}}}")

Duration = timedelta | float


class GroupOptions(TypedDict, total=False):
    """How a group deals its messages out. The last consumer that says something decides, for all consumers.

    ordered: messages with one key (or of one topic, where they have no key) come one after the other, in their order:
        the next once the one before is settled; else anybody gets any message.
    partitions: of an ordered group: into how many its keys are sorted, 1 to 256 (16). So many messages are at work at
        a time, and so many consumers are of use. It cannot be changed later.
    invisible: how long a message is its consumer's (30 s); then others get it. A timedelta, or seconds.
    max_deliveries: a message that was handed out so often in vain is a dead letter (16); 0: never.
    retry_after: how long a message waits after retry() (1 s), the next time twice as long, and so on.
    retry_most: but no longer than this (10 minutes).
    most_in_flight: messages that the consumers of the group may have together (10,000).
    """

    ordered: bool
    partitions: int
    invisible: Duration
    max_deliveries: int
    retry_after: Duration
    retry_most: Duration
    most_in_flight: int


def group_settings(
    *,
    ordered: bool | None = None,
    partitions: int | None = None,
    invisible: Duration | None = None,
    max_deliveries: int | None = None,
    retry_after: Duration | None = None,
    retry_most: Duration | None = None,
    most_in_flight: int | None = None,
) -> GroupSettings | None:
    """The settings for these options; None if there are none: the group stays as it is. Raises BadOption, or TypeError.

    >>> group_settings(ordered=True, invisible=60).invisible_ms
    60000
    """
    if partitions is None:
        partitions = PARTITIONS if ordered else None
    elif ordered is False:
        raise BadOption("partitions= is for ordered groups; leave it out, or say ordered=True")
    given = {
        "partitions": _number("partitions", partitions, 1, MOST_PARTITIONS),
        "invisible_ms": _milliseconds_or_none("invisible", invisible),
        "max_deliveries": _number("max_deliveries", max_deliveries, 0, MOST_DELIVERIES),
        "retry_ms": _milliseconds_or_none("retry_after", retry_after),
        "retry_most_ms": _milliseconds_or_none("retry_most", retry_most),
        "most_in_flight": _number("most_in_flight", most_in_flight, 1, MOST_IN_FLIGHT),
    }
    said = {name: value for name, value in given.items() if value is not None}
    return replace(GroupSettings(), **said) if said or ordered is not None else None


def group_name(name: str) -> str:
    """Raises BadOption."""
    if not _NAME.fullmatch(name):
        raise BadOption(f"group={name!r}; use 1 to {MOST_NAME_CHARACTERS} characters without / + and #")
    return name


def group_start(start: Position) -> str:
    """Where a new group begins, as the wire says it. Raises BadPosition."""
    if isinstance(start, int):
        raise BadPosition(f"start={start!r}: a group begins at 'earliest', 'now', a time, or '@7' (a queue_offset)")
    found = where(start)
    return "latest" if found == "now" else found


def group_tag(tag: str | None) -> str | None:
    """Raises BadOption."""
    try:
        tags_of(tag or "")
    except (BadTags, UnicodeError) as error:
        raise BadOption(f"tag={tag!r}: {error}") from None
    return tag


def prefetch_of(prefetch: int) -> int:
    """Raises BadOption."""
    found = _number("prefetch", prefetch, 1, MOST_PREFETCH)
    assert found is not None
    return found


def milliseconds(what: str, time: Duration, least: int = 1) -> int:
    """Raises BadOption.

    >>> milliseconds("invisible", timedelta(seconds=90)), milliseconds("invisible", 0.25)
    (90000, 250)
    """
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    if not least <= seconds * 1000 <= MOST_MS:
        raise BadOption(f"{what}={time}; use {least} ms to {MOST_MS // 86_400_000} days")
    return round(seconds * 1000)


def why_dead(why: str) -> str:
    """Raises BadOption."""
    if not 0 < len(why) <= MOST_WHY_CHARACTERS:
        raise BadOption(f"a message is rejected for a reason of 1 to {MOST_WHY_CHARACTERS} characters")
    return why


def _milliseconds_or_none(what: str, time: Duration | None) -> int | None:
    return None if time is None else milliseconds(what, time)


def _number(what: str, number: int | None, least: int, most: int) -> int | None:
    if number is not None and not least <= index(number) <= most:
        raise BadOption(f"{what}={number!r}; use {least} to {most}")
    return number
