"""Which topic filters match a topic name (MQTT 5, section 4.7)."""

from collections.abc import Iterable

from store.topics import matches


def matches_any(topic_filters: Iterable[str], topic: str) -> bool:
    """Whether one of these filters matches.

    >>> matches_any(["live/#"], "live/7"), matches_any(["+/7"], "line/8")
    (True, False)
    """
    return any(matches(topic_filter, topic) for topic_filter in topic_filters)
