"""Ranges that were read from a store in another process, shared by all readers: bounded in bytes, oldest out first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

import msgspec

from lightqueue.queues._queues import Queue
from store.records._records import Records

RANGE_BYTES = 600  # about what a range takes besides its records


class _Frame(msgspec.Struct, frozen=True):
    """Ranges that came together, and so leave together: they share one buffer."""

    size_bytes: int
    ranges: list[tuple[Queue, int]]


class _Ranges:
    """The cached ranges of one queue."""

    __slots__ = ("by_start", "starts")

    def __init__(self) -> None:
        self.by_start: dict[int, Records] = {}
        self.starts: list[int] = []  # the same, in order

    def add(self, start: int, records: Records) -> None:
        if start not in self.by_start:
            if self.starts and start < self.starts[-1]:
                self.starts.insert(bisect_left(self.starts, start), start)
            else:
                self.starts.append(start)
        self.by_start[start] = records

    def drop(self, start: int) -> None:
        if self.by_start.pop(start, None) is not None:
            del self.starts[bisect_left(self.starts, start)]

    def get(self, start: int) -> Records | None:
        found = self.by_start.get(start)
        if found is None:
            at = bisect_right(self.starts, start)
            nearest = self.by_start[self.starts[at - 1]] if at else None
            if nearest is not None and nearest.first <= start < nearest.next:
                return nearest
        return found


class RangeCache:
    """Ranges of queues by the queue_offset that they were asked for."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._frames: deque[_Frame] = deque()
        self._ranges: dict[Queue, _Ranges] = {}
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def get(self, queue: Queue, start: int) -> Records | None:
        """A range that has, or would have, the entry at `start`."""
        ranges = self._ranges.get(queue)
        found = ranges.get(start) if ranges is not None else None
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def get_many(self, queues: Iterable[Queue], starts: Iterable[int]) -> list[Records | None]:
        """Like get() for each of some queues."""
        ranges_of, found = self._ranges, []
        for queue, start in zip(queues, starts, strict=True):
            ranges = ranges_of.get(queue)
            records = ranges.by_start.get(start) if ranges is not None else None
            found.append(records if records is not None or ranges is None else ranges.get(start))
        misses = found.count(None)
        self.misses += misses
        self.hits += len(found) - misses
        return found

    def has(self, queue: Queue, start: int) -> bool:
        ranges = self._ranges.get(queue)
        return ranges is not None and ranges.get(start) is not None

    def add(self, size_bytes: int, ranges: list[tuple[Queue, int, Records]]) -> None:
        """Ranges with the queue_offset that each was asked for, which came in `size_bytes`."""
        for queue, start, records in ranges:
            of_queue = self._ranges.get(queue)
            if of_queue is None:
                of_queue = self._ranges[queue] = _Ranges()
            of_queue.add(start, records)
        size_bytes += len(ranges) * RANGE_BYTES
        self._frames.append(_Frame(size_bytes, [(queue, start) for queue, start, _ in ranges]))
        self._size_bytes += size_bytes
        while self._size_bytes > self._limit_bytes and len(self._frames) > 1:
            frame = self._frames.popleft()
            self._size_bytes -= frame.size_bytes
            for queue, start in frame.ranges:
                self._drop(queue, start)

    def forget(self, queue: Queue) -> None:
        """No reader here follows this queue any more."""
        self._ranges.pop(queue, None)

    def clear(self) -> None:
        self._ranges.clear()
        self._frames.clear()
        self._size_bytes = 0

    def _drop(self, queue: Queue, start: int) -> None:
        ranges = self._ranges.get(queue)
        if ranges is not None:
            ranges.drop(start)
            if not ranges.starts:
                del self._ranges[queue]
