"""The messages that answer one question, in log format: chosen rows of some row groups, in the order of the log."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from penstock.tier.history import Selection

ANSWER_S: Final = 0.5  # who asks goes on from where the answer says
MOST_RECORDS: Final = 8_192


class ReadPage(NamedTuple):
    """Messages in log format, their number, the log_offset to go on from, and the first one's queue_offset (-1: the
    filter is no topic, there was a tag, or there is no message)."""

    records: bytes
    number: int
    next: int
    queue_offset: int = -1


class RecordPage:
    """The messages that one question has found so far, and the room that is left."""

    def __init__(self, max_bytes: int, limit_bytes: int, most: int = MOST_RECORDS) -> None:
        self._max_bytes, self._limit_bytes = max_bytes, limit_bytes
        self._most = min(most, MOST_RECORDS)
        self._parts: dict[int, bytes] = {}  # by the log_offset of their first message
        self._used_bytes = 0
        self.queue_offset = -1  # of the first message
        self.number = 0
        self.next = 0  # log_offset behind the last message, once it is full

    def taken(self, following: int, is_topic: bool) -> ReadPage:
        return ReadPage(self.records, self.number, following, self.queue_offset if is_topic else -1)

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

    def take(self, selections: list[Selection]) -> bool:
        """Add messages of one span. False: the page is full, `next` says where it ends."""
        if not selections:
            return True
        offsets = np.concatenate([each.log_offsets for each in selections])
        sizes = np.concatenate([each.group.sizes(each.rows) for each in selections])
        of_group = np.repeat(np.arange(len(selections)), [len(each.rows) for each in selections])
        order = np.argsort(offsets, kind="stable")
        order = order[sizes[order] <= self._limit_bytes]  # what is larger than any answer is left out
        ends = np.cumsum(sizes[order])
        number = int(np.searchsorted(ends, self._max_bytes - self._used_bytes, side="right"))
        number = min(number or (not self.number), len(order), self._most - self.number)
        if number:
            rows = np.concatenate([each.rows for each in selections])
            chosen = order[:number]
            places = ends[:number] - sizes[chosen]
            to = np.empty(int(ends[number - 1]), np.uint8)
            for i, each in enumerate(selections):
                ours = of_group[chosen] == i
                each.group.put(rows[chosen[ours]], places[ours], to)
            if not self.number:
                self.queue_offset = int(selections[of_group[chosen[0]]].group.queue_offsets[rows[chosen[0]]])
            self._parts[int(offsets[chosen[0]])] = to.tobytes()
            self._used_bytes += len(to)
            self.number += number
            self.next = int(offsets[chosen[-1]]) + 8  # any record is longer, so no other begins before
        return number == len(order)
