"""Which topic filters match a topic name (MQTT 5, section 4.7)."""

from collections.abc import Iterable


def matches_any(topic_filters: Iterable[str], topic: str) -> bool:
    """Whether one of these filters matches.

    >>> matches_any(["live/#"], "live/7"), matches_any(["+/7"], "line/8")
    (True, False)
    """
    levels = topic.split("/")
    return any(_matches(topic_filter.split("/"), levels) for topic_filter in topic_filters)


def _matches(wanted: list[str], levels: list[str]) -> bool:
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for i, want in enumerate(wanted):
        if want == "#":
            return True
        if i == len(levels) or want not in ("+", levels[i]):
            return False
    return len(wanted) == len(levels)
