"""Retained messages: topic → the log_offset of the message that stands for it. A projection of the log, kept on disk.

Keys are `r` and the topic with its separators as zero bytes (no topic may contain one), so that all topics below a
level lie together, whatever characters their names have.
"""

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from store.log.index import Index

KEY_PREFIX = b"r"
KEY_END = b"s"
COUNT_KEY = b"m:retained_messages"
KEYS_PER_STEP = 300  # what stage() hands to the index at a time: some 1 ms
BACKLOG_SHARE = 128  # one part in this many of what is not in the index goes as well


def key_of(topic: bytes) -> bytes:
    return KEY_PREFIX + topic.replace(b"/", b"\0")


def topic_of(key: bytes) -> bytes:
    return key[1:].replace(b"\0", b"/")


class RetainedTopics:
    """Owner of the pointers. What the index does not have is in `_fresh`, oldest first: log_offset, whether removed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._fresh: OrderedDict[bytes, tuple[int, bool]] = OrderedDict()
        count = index.get(COUNT_KEY)
        self.changes = 0  # how often it was told of a message, so far
        self._count = int.from_bytes(count, "big") if count else sum(1 for _ in index.scan(KEY_PREFIX, KEY_END))
        self._order: list[bytes] | None = None  # the keys of `_fresh`
        self._staged: list[bytes] = []
        self._staged_count = self._count

    def __len__(self) -> int:
        """The number of topics with a retained message, as of the index's last write."""
        return self._count

    def set(self, topic: bytes, log_offset: int, removed: bool) -> None:
        """A retained message was stored; `removed` when its payload was empty, which takes the topic's away."""
        key = key_of(topic)
        self.changes += 1
        if key not in self._fresh:
            self._order = None
        self._fresh[key] = log_offset, removed
        self._fresh.move_to_end(key)  # whatever it replaces need not be written any more

    def get(self, topic: bytes) -> int | None:
        """log_offset of the retained message of a topic."""
        key = key_of(topic)
        if key in self._fresh:
            log_offset, removed = self._fresh[key]
            return None if removed else log_offset
        value = self._index.get(key)
        return int.from_bytes(value, "big") if value else None

    def between(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, int]]:
        """(key, log_offset) of the topics whose keys lie from `start` on and before `stop`, in order."""
        order = self._fresh_keys()
        fresh = order[bisect_left(order, start) : bisect_left(order, stop)]
        if not fresh:  # as nearly always
            for key, value in self._index.scan(start, stop):
                yield key, int.from_bytes(value, "big")
            return
        stored = (
            (key, int.from_bytes(value, "big"), False)
            for key, value in self._index.scan(start, stop)
            if key not in self._fresh
        )
        for key, log_offset, removed in heapq.merge(stored, ((key, *self._fresh[key]) for key in fresh)):
            if not removed:
                yield key, log_offset

    def below(self, prefix: bytes) -> Iterator[tuple[bytes, int]]:
        """(topic, log_offset) of the topics that start with the given whole levels (`line/7/`; empty for all)."""
        start = key_of(prefix)
        for key, log_offset in self.between(start, start[:-1] + bytes((start[-1] + 1,))):
            yield topic_of(key), log_offset

    def _fresh_keys(self) -> list[bytes]:
        """The sorted keys that the index does not have yet; they are sorted again only after a change."""
        if self._order is None:
            self._order = sorted(self._fresh)
        return self._order

    def older_than(self, log_offset: int, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Topics whose retained message lies before `log_offset`, of the `limit` that follow the topic `after`.

        Also the topic to go on after, or None at the end. Looks only at what the index has.
        """
        found = []
        start = key_of(after) + b"\0" if after else KEY_PREFIX
        for seen, (key, value) in enumerate(self._index.scan(start, KEY_END), 1):
            if int.from_bytes(value, "big") < log_offset:
                found.append(topic_of(key))
            if seen == limit:
                return found, topic_of(key)
        return found, None

    def stage(self, until: int) -> int | None:
        """Hand some of what the index does not have to it, for its next write; once that succeeded, call written().

        All that was set before `until` goes, but no more than takes a short time. Returns the log_offset of the oldest
        that is still missing then; None if nothing is.
        """
        self._staged.clear()
        self._staged_count = self._count
        most = KEYS_PER_STEP + len(self._fresh) // BACKLOG_SHARE
        missing = None
        for key, (log_offset, removed) in islice(self._fresh.items(), most + 1):
            if len(self._staged) == most or log_offset >= until:
                missing = log_offset
                break
            self._staged.append(key)
            self._staged_count += (not removed) - (self._index.get(key) is not None)
            if removed:
                self._index.delete(key)
            else:
                self._index.put(key, log_offset.to_bytes(8, "big"))
        if self._staged:
            self._index.put(COUNT_KEY, self._staged_count.to_bytes(8, "big"))
        return missing

    def written(self) -> None:
        self._count = self._staged_count
        if self._staged:
            self._order = None
        for key in self._staged:
            del self._fresh[key]
