"""The messages that answer one question, in log format: chosen rows of some row groups, in the order of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.tier.record_part import OrderedRows
from store.records._records import marked, records_bytes, records_from

ANSWER_S: Final = 0.5  # who asks goes on from where the answer says
MOST_RECORDS: Final = 8_192
FAR_BEHIND: Final = (1 << 63) - 1  # all log_offsets
MARK_BYTES: Final = 16  # a record is longer by so much at most if it says that others are lost


class ReadPage(NamedTuple):
    """Messages in log format, their number, the log_offset to go on from, and the first one's queue_offset (-1: the
    filter is no topic, there was a tag, or there is no message)."""

    records: bytes
    number: int
    next: int
    queue_offset: int = -1
    lost: int = 0
    """How many ranges before `next` are lost with no message after them here: only of a page without messages."""


class RecordPage:
    """The messages that one question has found so far, and the room that is left."""

    def __init__(
        self, max_bytes: int, limit_bytes: int, most: int = MOST_RECORDS, lost: Sequence[tuple[int, int]] = ()
    ) -> None:
        """`lost`: ranges that messages are lost in. The first message after each one says so."""
        self._untold = lost
        self._limit_bytes = limit_bytes
        self._max_bytes = max(1, min(max_bytes, limit_bytes - MARK_BYTES * len(lost)))
        self._most = min(most, MOST_RECORDS)
        self._parts: dict[int, bytes] = {}  # by the log_offset of their first message
        self._used_bytes = 0
        self.queue_offset = -1  # of the first message
        self.number = 0
        self.next = 0  # log_offset after the last message, once it is full

    def taken(self, following: int, is_topic: bool) -> ReadPage:
        """A loss that no message here says comes with the next page, which goes on from there."""
        untold = [start for start, _ in self._untold if start < following]
        if untold and self.number:
            following = max(self.next, untold[0])
        lost = 0 if self.number else len(untold)
        return ReadPage(self.records, self.number, following, self.queue_offset if is_topic else -1, lost)

    def waits_before(self, log_offset: int) -> bool:
        """Whether the next message has a loss to say, and there is none yet to end the page with."""
        return not self.number and bool(self._untold) and self._untold[0][0] < log_offset

    @property
    def records(self) -> bytes:
        return b"".join(self._parts.values())

    @property
    def left(self) -> int:
        """How many messages more may be taken."""
        return self._most - self.number

    def in_order(self, log_offsets: list[int]) -> bytes:
        """Messages that were taken one by one, in this order."""
        return b"".join(self._parts.get(each, b"") for each in log_offsets)

    def has(self, log_offset: int) -> bool:
        """Whether the message there was the one that was taken last."""
        return self.next == log_offset + 8

    def take(self, found: OrderedRows, start: int = 0, stop: int = FAR_BEHIND) -> bool:
        """Add messages with start <= log_offset < stop. False: the page is full, `next` says where it ends. What is
        larger than any answer is left out."""
        first, behind = np.searchsorted(found.log_offsets, (start, stop)).tolist()
        large: list[int] = []
        if found.largest > self._limit_bytes:
            sizes = np.diff(found.ends, prepend=0)[first:behind]
            large = (first + np.flatnonzero(sizes > self._limit_bytes)).tolist()
        for end in (*large, behind):
            if not self._take_run(found, first, end):
                return False
            first = end + 1
        return True

    def _take_run(self, found: OrderedRows, first: int, behind: int) -> bool:
        if first >= behind:
            return True
        base = int(found.ends[first - 1]) if first else 0
        left = self._max_bytes - self._used_bytes
        number = int(np.searchsorted(found.ends[first:behind], base + left, side="right"))
        number = min(number or (not self.number), behind - first, self._most - self.number)
        if number:
            if not self.number:
                self.queue_offset = int(found.queue_offsets[first])
            offsets = found.log_offsets[first : first + number]
            data = self._telling(found.records(first, first + number), offsets)
            self._parts[int(offsets[0])] = data
            self._used_bytes += len(data)
            self.number += number
            self.next = int(offsets[-1]) + 8  # any record is longer, so no other begins before
        return number == behind - first

    def _telling(self, data: bytes, log_offsets: NDArray[np.int64]) -> bytes:
        """These records; those after ranges that are lost say how many."""
        ends = [end for _, end in self._untold if end <= log_offsets[-1]]
        if not ends:
            return data
        self._untold = self._untold[len(ends) :]
        records = records_from(memoryview(data), 0)
        for i, number in Counter(np.searchsorted(log_offsets, ends).tolist()).items():
            records = marked(records, number, i)
        told = records_bytes(records)
        return told if self._used_bytes + len(told) <= self._limit_bytes else data
