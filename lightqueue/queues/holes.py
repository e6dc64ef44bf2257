"""What queues have entries for, and the log has no more: how a read passes over it, and how much that was."""

from __future__ import annotations

import logging
from typing import Protocol

from lightqueue.queues._queues import Queue
from store.ratelimit import RateLimitedLog
from store.records._records import LogMemory

EVENTS = RateLimitedLog(logging.getLogger("penstock.lightqueue"))

MOST_NOTED = 65_536  # places of which it is known how many messages are lost in front of them; the oldest are forgotten


class LogReader(Protocol):
    """What queues need of the log."""

    @property
    def memory(self) -> LogMemory: ...

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Which parts of it are lost to damage, in order."""


class Places(Protocol):
    """Where the entries of queues stand."""

    def log_offset_at(self, queue: Queue, queue_offset: int) -> int:
        """log_offset of one entry; 0 where it was trimmed."""

    def position_of(self, queue: Queue, log_offset: int, low: int = 0) -> int:
        """The first queue_offset whose entry is at or after `log_offset`."""


class Holes:
    """Owner of what is known of them."""

    def __init__(self, log: LogReader, places: Places) -> None:
        self._log = log
        self._places = places
        self._lost: dict[tuple[Queue, int], int] = {}  # messages, by the queue_offset behind them
        self.are_known = False  # somebody has come past one

    def skip(self, queue: Queue, start: int, error: LookupError) -> tuple[int, int]:
        """Where to go on after an entry whose record cannot be read, and how many messages are lost in front of that.

        What retention dropped is not lost.
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
        """Of the entries [start, kept), which stand before the oldest record, those that retention did not drop."""
        lost = 0
        for begin, end in self._log.lost_ranges:
            if begin >= self._log.first:
                break
            low = self._places.position_of(queue, begin, start)
            lost += max(0, min(self._places.position_of(queue, end, start), kept) - low)
        return lost

    def note(self, queue: Queue, queue_offset: int, lost: int) -> None:
        """Directly in front of this place so many messages are lost: whoever begins there later is told as well.

        A queue may end there so far, or what stands there may be handed out again.
        """
        while len(self._lost) >= MOST_NOTED:
            self._lost.pop(next(iter(self._lost)))
        self._lost[queue, queue_offset] = lost
        self.are_known = True

    def before(self, queue: Queue, queue_offset: int) -> int:
        """How many messages are lost directly in front of a place, as far as somebody has come past them."""
        return self._lost.get((queue, queue_offset), 0)
