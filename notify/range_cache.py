"""What was read from a store in another process, for all that want the same: bounded in bytes, oldest out first."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from lightqueue._queues import Queue
from store._records import Records


class _Frame(NamedTuple):
    """Ranges that came together, and so leave together: they share one buffer."""

    size_bytes: int
    ranges: list[tuple[Queue, int]]


class RangeCache:
    """Ranges of queues by the queue_offset that they were asked for."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._frames: deque[_Frame] = deque()
        self._ranges: dict[Queue, dict[int, Records]] = {}
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def get(self, queue: Queue, start: int) -> Records | None:
        """A range that has, or would have, the entry at `start`."""
        ranges = self._ranges.get(queue)
        found = ranges.get(start) if ranges else None
        if found is None and ranges:
            # Its subscribers stand close together, so there are few of them.
            found = next((each for each in ranges.values() if each.first <= start < each.next), None)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def add(self, size_bytes: int, ranges: list[tuple[Queue, int, Records]]) -> None:
        """Ranges with the queue_offset that each was asked for, which came in `size_bytes`."""
        for queue, start, records in ranges:
            self._ranges.setdefault(queue, {})[start] = records
        self._frames.append(_Frame(size_bytes, [(queue, start) for queue, start, _ in ranges]))
        self._size_bytes += size_bytes
        while self._size_bytes > self._limit_bytes and len(self._frames) > 1:
            frame = self._frames.popleft()
            self._size_bytes -= frame.size_bytes
            for queue, start in frame.ranges:
                self._drop(queue, start)

    def forget(self, queue: Queue) -> None:
        """Nobody follows this queue any more."""
        self._ranges.pop(queue, None)

    def clear(self) -> None:
        self._ranges.clear()
        self._frames.clear()
        self._size_bytes = 0

    def _drop(self, queue: Queue, start: int) -> None:
        ranges = self._ranges.get(queue)
        if ranges is not None:
            ranges.pop(start, None)
            if not ranges:
                del self._ranges[queue]
