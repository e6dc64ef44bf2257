"""Which topic filters match a topic name (MQTT 5, section 4.7)."""

from collections.abc import Iterable
from typing import Final

from store.topics import matches
from store.wire.messages import Welcome

TOPICS_REMEMBERED: Final = 100_000


def matches_any(topic_filters: Iterable[str], topic: str) -> bool:
    """Whether one of these filters matches.

    >>> matches_any(["live/#"], "live/7"), matches_any(["+/7"], "line/8")
    (True, False)
    """
    return any(matches(topic_filter, topic) for topic_filter in topic_filters)


class LiveOnlyTopics:
    """The topics whose messages the store keeps in no queue. Any thread may ask."""

    def __init__(self) -> None:
        self._known: tuple[Welcome | None, dict[str, bool]] = (None, {})  # what a Welcome says of topics asked about

    def has(self, topic: str, welcome: Welcome | None) -> bool:
        """Whether the store that said this Welcome keeps no messages of the topic; False while none has said one."""
        said_by, known = self._known
        if said_by is not welcome:
            known = {}
            self._known = welcome, known
        found = known.get(topic)
        if found is None:
            found = welcome is not None and matches_any(welcome.live_only, topic)
            if len(known) >= TOPICS_REMEMBERED:
                known.clear()
            known[topic] = found
        return found
