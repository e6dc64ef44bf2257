"""The rules of topics and filters for every package (MQTT 5.0, sections 4.7 and 4.8.2)."""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = "/"
ANY_LEVEL: Final = "+"
ANY_LEVELS: Final = "#"
MOST_TOPIC_LEVELS: Final = 200
"""Matching goes down one level at a time; MOST_TOPIC_LEVELS of store/records/_records.pxd is the same limit."""
SHARE_PREFIX: Final = "$share/"
"""A shared subscription is `$share/GROUP/FILTER`."""


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether one filter matches one topic name; a filter that starts with a wildcard matches no $-topic."""
    if topic_name.startswith("$") and topic_filter[0] in "+#":
        return False
    levels = topic_name.split(SEPARATOR)
    wanted = topic_filter.split(SEPARATOR)
    for i, want in enumerate(wanted):
        if want == ANY_LEVELS:
            return True
        if i == len(levels) or want not in (ANY_LEVEL, levels[i]):
            return False
    return len(wanted) == len(levels)
