"""Finds the retained messages that match a topic filter, a page at a time.

Topics are walked in the order of their keys. Ranges that cannot match are jumped over, so the cost depends on levels
with a `+`, not on the topics below them: `+/7/state` reads one or two keys for each name of the first level.
"""

import time
from collections.abc import Iterator

from lightqueue.queues._queues import heads_at
from lightqueue.queues.matching import has_wildcard
from store.log.api import ReadableLog
from store.state.retained import RetainedTopics, key_of, topic_of
from store.topics import matches

HEADS_S = 0.002
STEPS_BEFORE_JUMP = 12  # a jump costs as much as so many steps

BEHIND_BELOW = b"\1"  # appended to a key: follows it and all keys below it


def find_retained(
    retained: RetainedTopics, topic_filter: str, after: str | None, limit: int
) -> tuple[list[int], str | None]:
    """log_offsets of at most `limit` retained messages, and the topic to go on after; None at the end.

    Reads at most `limit` topics: a thousand take 3 ms, whether or not they match.
    """
    found: list[int] = []
    for looked_at, (topic, log_offset) in enumerate(_candidates(retained, topic_filter, after), 1):
        if matches(topic_filter, topic):
            found.append(log_offset)
        if looked_at == limit:
            return found, topic
    return found, None


def heads_found(
    log: ReadableLog, log_offsets: list[int], goes_on_behind: str | None
) -> tuple[list[tuple[int, int, bytes]], str | None]:
    """(log_offset, QoS, client_id) of messages of find_retained(), and the topic to go on after; None at the end.

    A message is verified before it is used: 0.1 ms for each MiB, and more if it is read from the disk. So messages not
    reached after HEADS_S are left to the next page; at least one is read.
    """
    ends_s = time.perf_counter() + HEADS_S
    heads: list[tuple[int, int, bytes]] = []
    for number, log_offset in enumerate(log_offsets, 1):
        heads += heads_at(log.memory, [log_offset])
        if heads and number < len(log_offsets) and time.perf_counter() >= ends_s:
            return heads, log.record(heads[-1][0]).topic.decode()
    return heads, goes_on_behind


def _candidates(retained: RetainedTopics, topic_filter: str, after: str | None) -> Iterator[tuple[str, int]]:
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
    start = key_of((parent + "/" if wild else "").encode())
    stop = start[:-1] + bytes((start[-1] + 1,))
    if after is not None and after != parent:
        start = key_of(after.encode()) + b"\0"
    for key, log_offset in _jumping(retained, levels, start, stop):
        yield topic_of(key).decode(), log_offset


def _jumping(retained: RetainedTopics, levels: list[str], start: bytes, stop: bytes) -> Iterator[tuple[bytes, int]]:
    """The keys between two keys, without most of those that cannot match."""
    wanted = [level.encode() for level in levels]
    while start < stop:
        target, steps = b"", 0
        for key, log_offset in retained.between(start, stop):
            if key >= target:
                yield key, log_offset
                target, steps = _next_key(wanted, key), 0
                continue
            steps += 1
            if steps == STEPS_BEFORE_JUMP:
                break
        else:
            return
        start = target


def _next_key(wanted: list[bytes], key: bytes) -> bytes:
    """The lowest key after this one that the filter may match; empty if there is none."""
    topic = key[1:].split(b"\0")
    plus = -1  # the last level that the filter leaves open
    for i, level in enumerate(wanted):
        if level == b"#":
            return b""
        if i == len(topic):  # too short: topics below it may match
            return key + b"\0" + (b"" if level == b"+" else level)
        if level == b"+":
            plus = i
        elif level > topic[i]:
            return _joined([*topic[:i], level])
        elif level < topic[i]:
            return _joined(topic[: plus + 1]) + BEHIND_BELOW if plus >= 0 else b""
    return key + BEHIND_BELOW if len(topic) == len(wanted) else _joined(topic[: len(wanted)]) + BEHIND_BELOW


def _joined(levels: list[bytes]) -> bytes:
    return key_of(b"/".join(levels))
