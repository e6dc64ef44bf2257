"""Entries whose record the log has lost: how a read skips them, and how many messages that were."""

from __future__ import annotations

import logging
from typing import Protocol

from lightqueue.queues._queues import Queue
from store.log.api import LogRecords
from store.ratelimit import RateLimitedLog

EVENTS = RateLimitedLog(logging.getLogger("penstock.lightqueue"))

MOST_NOTED = 65_536  # positions with a count of messages lost before them; the oldest are forgotten


class Places(Protocol):
    """The places of queues' entries."""

    def log_offset_at(self, queue: Queue, queue_offset: int) -> int:
        """log_offset of one entry; 0 where it was trimmed."""

    def position_of(self, queue: Queue, log_offset: int, low: int = 0) -> int:
        """The first queue_offset whose entry is at or after `log_offset`."""


class Holes:
    """Owner of the counts of lost messages."""

    def __init__(self, log: LogRecords, places: Places) -> None:
        self._log = log
        self._places = places
        self._lost: dict[tuple[Queue, int], int] = {}  # number of messages, by the queue_offset after them
        self.are_known = False  # a read has skipped at least one hole

    def skip(self, queue: Queue, start: int, error: LookupError) -> tuple[int, int]:
        """The queue_offset to go on at after an entry whose record cannot be read, and the messages lost before it.

        Messages that retention dropped do not count as lost.
        """
        kept = self._places.position_of(queue, self._log.first, start)
        if kept > start:
            return kept, self._lost_in_front_of_log(queue, start, kept)
        EVENTS.error("damaged", "passed over a damaged record: %s", error)
        at = self._places.log_offset_at(queue, start)
        for begin, end in self._log.lost_ranges:
            if begin <= at < end:
                behind = max(start + 1, self._places.position_of(queue, end, start))
                return behind, behind - start
        return start + 1, 1

    def _lost_in_front_of_log(self, queue: Queue, start: int, kept: int) -> int:
        """The number of entries in [start, kept), which point before the oldest record, that retention did
        not drop.
        """
        lost = 0
        for begin, end in self._log.lost_ranges:
            if begin >= self._log.first:
                break
            low = self._places.position_of(queue, begin, start)
            lost += max(0, min(self._places.position_of(queue, end, start), kept) - low)
        return lost

    def note(self, queue: Queue, queue_offset: int, lost: int) -> None:
        """Note how many messages are lost directly before this position, for later reads that begin there.

        Such a read happens if the queue ends there so far, or if its messages are delivered again.
        """
        while len(self._lost) >= MOST_NOTED:
            self._lost.pop(next(iter(self._lost)))
        self._lost[queue, queue_offset] = lost
        self.are_known = True

    def before(self, queue: Queue, queue_offset: int) -> int:
        """Messages lost directly before a position, as far as a read has skipped them."""
        return self._lost.get((queue, queue_offset), 0)
