"""Retained messages: topic → the log_offset of the message that stands for it. A projection of the log, kept on disk.

Keys are `r` and the topic with its separators as zero bytes (no topic may contain one), so that all topics below a
level lie together, whatever characters their names have.
"""

from collections.abc import Iterator

from store.index import Index

KEY_PREFIX = b"r"


def _key(topic: bytes) -> bytes:
    return KEY_PREFIX + topic.replace(b"/", b"\0")


def _topic(key: bytes) -> bytes:
    return key[1:].replace(b"\0", b"/")


class Retained:
    """Owner of the pointers; what is newer than the index's last write is in `_fresh` (None: removed)."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._fresh: dict[bytes, int | None] = {}

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

    def below(self, prefix: bytes) -> Iterator[tuple[bytes, int]]:
        """(topic, log_offset) of the topics that start with the given whole levels (`line/7/`; empty for all)."""
        start = _key(prefix)
        stop = start[:-1] + bytes((start[-1] + 1,))
        found = {key: int.from_bytes(value, "big") for key, value in self._index.scan(start, stop)}
        for key, log_offset in self._fresh.items():
            if start <= key < stop:
                if log_offset is None:
                    found.pop(key, None)
                else:
                    found[key] = log_offset
        for key in sorted(found):
            yield _topic(key), found[key]

    def stage(self) -> None:
        """Hand what changed to the index, for its next write."""
        for key, log_offset in self._fresh.items():
            if log_offset is None:
                self._index.delete(key)
            else:
                self._index.put(key, log_offset.to_bytes(8, "big"))
        self._fresh.clear()
