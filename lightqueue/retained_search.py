"""The retained messages that a topic filter matches, a page at a time."""

from collections.abc import Iterator

from lightqueue.matching import has_wildcard, matches
from store.retained import Retained

LOOKED_AT_PER_ENTRY = 8  # topics that a page may look at for each that it may hold


def find_retained(retained: Retained, topic_filter: str, after: str | None, limit: int) -> tuple[list[int], str | None]:
    """log_offsets of at most `limit` retained messages, and the topic to go on behind; None at the end."""
    found: list[int] = []
    for looked_at, (topic, log_offset) in enumerate(_candidates(retained, topic_filter, after), 1):
        if matches(topic_filter, topic):
            found.append(log_offset)
        if len(found) == limit or looked_at == limit * LOOKED_AT_PER_ENTRY:
            return found, topic
    return found, None


def _candidates(retained: Retained, topic_filter: str, after: str | None) -> Iterator[tuple[str, int]]:
    """Topics that a filter may match, with their log_offsets, in the order of their keys."""
    if not has_wildcard(topic_filter):
        log_offset = retained.get(topic_filter.encode()) if after is None else None
        if log_offset is not None:
            yield topic_filter, log_offset
        return
    levels = topic_filter.split("/")
    wild = next(i for i, level in enumerate(levels) if has_wildcard(level))
    parent = "/".join(levels[:wild])
    if levels[wild] == "#" and wild and after is None:  # `a/#` matches `a` as well
        log_offset = retained.get(parent.encode())
        if log_offset is not None:
            yield parent, log_offset
    prefix = parent + "/" if wild else ""
    behind = after.encode() if after is not None and after != parent else b""
    for topic, log_offset in retained.below(prefix.encode(), behind):
        yield topic.decode(), log_offset
