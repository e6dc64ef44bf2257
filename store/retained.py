"""Retained messages: topic → the log_offset of the message that stands for it. A projection of the log, kept on disk.

Keys are `r` and the topic with its separators as zero bytes (no topic may contain one), so that all topics below a
level lie together, whatever characters their names have.
"""

import heapq
from collections.abc import Iterator

from store.index import Index

KEY_PREFIX = b"r"
KEY_END = b"s"
COUNT_KEY = b"m:retained_messages"


def _key(topic: bytes) -> bytes:
    return KEY_PREFIX + topic.replace(b"/", b"\0")


def _topic(key: bytes) -> bytes:
    return key[1:].replace(b"\0", b"/")


class Retained:
    """Owner of the pointers; what is newer than the index's last write is in `_fresh` (None: removed)."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._fresh: dict[bytes, int | None] = {}
        count = index.get(COUNT_KEY)
        self._count = int.from_bytes(count, "big") if count else sum(1 for _ in index.scan(KEY_PREFIX, KEY_END))
        self._staged_count = self._count

    def __len__(self) -> int:
        """How many topics have a retained message, as of the index's last write."""
        return self._count

    def set(self, topic: bytes, log_offset: int | None) -> None:
        """A retained message was stored; None when its payload was empty, which removes it."""
        self._fresh[_key(topic)] = log_offset

    def get(self, topic: bytes) -> int | None:
        """log_offset of the retained message of a topic."""
        key = _key(topic)
        if key in self._fresh:
            return self._fresh[key]
        value = self._index.get(key)
        return int.from_bytes(value, "big") if value else None

    def below(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """(topic, log_offset) of the topics that start with the given whole levels (`line/7/`; empty for all).

        Only those that follow the topic `after`, if one is given.
        """
        start = _key(prefix)
        stop = start[:-1] + bytes((start[-1] + 1,))
        if after:
            start = _key(after) + b"\0"
        fresh = {key: log_offset for key, log_offset in self._fresh.items() if start <= key < stop}
        stored = (
            (key, int.from_bytes(value, "big")) for key, value in self._index.scan(start, stop) if key not in fresh
        )
        newer = sorted((key, log_offset) for key, log_offset in fresh.items() if log_offset is not None)
        for key, log_offset in heapq.merge(stored, newer):
            yield _topic(key), log_offset

    def older_than(self, log_offset: int, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Topics whose retained message lies before `log_offset`, of the `limit` that follow the topic `after`.

        Also the topic to go on after, or None at the end. Looks only at what the index has.
        """
        found = []
        start = _key(after) + b"\0" if after else KEY_PREFIX
        for seen, (key, value) in enumerate(self._index.scan(start, KEY_END), 1):
            if int.from_bytes(value, "big") < log_offset:
                found.append(_topic(key))
            if seen == limit:
                return found, _topic(key)
        return found, None

    def stage(self) -> None:
        """Hand what changed to the index, for its next write; once that succeeded, written() is to be called."""
        self._staged_count = self._count
        for key, log_offset in self._fresh.items():
            self._staged_count += (log_offset is not None) - (self._index.get(key) is not None)
            if log_offset is None:
                self._index.delete(key)
            else:
                self._index.put(key, log_offset.to_bytes(8, "big"))
        if self._fresh:
            self._index.put(COUNT_KEY, self._staged_count.to_bytes(8, "big"))

    def written(self) -> None:
        self._count = self._staged_count
        self._fresh.clear()
