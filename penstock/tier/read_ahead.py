"""Reads ahead of who reads history from one page to the next, so that the next page need not wait for storage.

How far ahead grows by one range whenever a reader had to wait, and halves when ranges that were read ahead had gone
from memory before it came to them: others needed the room (as TCP finds its rate, RFC 5681).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from penstock.tier.errors import TierError
from penstock.tier.history import Place, TableHistory
from penstock.tier.part_reading import PartReading

LEAST_AHEAD: Final = 2  # ranges of one reader, with the one that it is in
MOST_AHEAD: Final = 16
MOST_READERS: Final = 256
AT_ONCE: Final = 4  # row groups on their way from storage


class AheadOfReader(NamedTuple):
    """A reader that may go on at a place: how many ranges are read ahead of it, and which row groups these are. Before
    log_offset `until`, where the first range ends, there is nothing more to read; 0: they are being read."""

    depth: int
    ahead: tuple[Place, ...]
    until: int = 0


class ReadAhead:
    """Owner of how far ahead of each reader is read. A reader is known by what it reads and where it goes on. For
    several threads."""

    def __init__(self, history: TableHistory, reading: PartReading) -> None:
        self._history = history
        self._reading = reading
        self._readers: OrderedDict[Hashable, AheadOfReader] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, "tier-ahead")

    def came(self, topic_filter: str, tag: str, start: int) -> AheadOfReader | None:
        """The reader that goes on at a place; None: it is new there."""
        with self._lock:
            return self._readers.pop((topic_filter, tag, start), None)

    def goes_on(self, before: AheadOfReader | None, waited: bool, question: tuple[str, str, int], stop: int) -> None:
        """A reader got a page, for which it had to wait for storage or not. It may go on with `question`: a topic
        filter, a tag, a log_offset."""
        depth = self._depth(before, waited, question[2])
        is_done = before is not None and depth == before.depth and question[2] < before.until
        with self._lock:
            self._readers[question] = before if is_done and before is not None else AheadOfReader(depth, ())
            while len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)
        if depth and not is_done:
            self._pool.submit(self._read, question, stop, depth)

    def _depth(self, before: AheadOfReader | None, waited: bool, at: int) -> int:
        if before is None:
            return 0  # perhaps it wants one page only
        gone = [place for place in before.ahead if place.end > at and not self._history.has_read(place)]
        if gone:
            return before.depth // 2
        return min(max(before.depth + waited, LEAST_AHEAD), MOST_AHEAD)

    def _read(self, question: tuple[str, str, int], stop: int, depth: int) -> None:
        topic_filter, _, start = question
        found: list[Place] = []
        until = 0
        with suppress(TierError):  # who comes there is told
            for span in islice(self._history.spans_from(start), depth):
                if span.start >= stop:
                    break
                found += self._reading.prepare(span, topic_filter)
                until = until or span.end
        with self._lock:
            if question in self._readers:
                self._readers[question] = AheadOfReader(depth, tuple(found), until)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
