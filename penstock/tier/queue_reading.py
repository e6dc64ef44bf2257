"""Reads the queue of a topic or of a first level on from a queue_offset, by the numbers in the indexes.

A topic's rows have their queue_offsets. Those of a first level are counted in the order of the log, from the one at the
beginning of their sorted range on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lightqueue.queues.matching import has_wildcard
from penstock.tier.data_files import DataFile
from penstock.tier.group import CountedRows, Rows
from penstock.tier.history import Span, TableHistory
from penstock.tier.record_page import ANSWER_S, RecordPage
from penstock.tier.record_part import ChosenRows, Selection


class QueueQuestion(NamedTuple):
    """Messages of a topic or of `level/#` from a queue_offset on, with start <= log_offset < stop; at most `most`."""

    topic_filter: str
    queue_offset: int
    start: int
    stop: int
    most: int


class QueuePage(NamedTuple):
    """Messages in log format with adjacent queue_offsets, their number, the log_offset to go on from, and the first
    one's queue_offset (-1: there is no message before `next`). `upcoming`: see QueueRead."""

    records: bytes
    number: int
    next: int
    queue_offset: int
    upcoming: int = -1


class _Numbered(NamedTuple):
    """Rows of a span that a queue has, in the order of the log."""

    parts: list[Selection]
    log_offsets: Rows
    queue_offsets: Rows

    def taken(self, first: int, behind: int) -> list[Selection]:
        """Some of them, by their places here."""
        start, stop = int(self.log_offsets[first]), int(self.log_offsets[behind - 1]) + 1
        return [found for each in self.parts if len((found := each.between(start, stop)).rows)]

    def sizes(self, behind: int) -> Rows:
        """Of the records of the first ones, in bytes."""
        parts = self.taken(0, behind)
        order = np.argsort(np.concatenate([each.log_offsets for each in parts]), kind="stable")
        sizes: Rows = np.concatenate([each.group.sizes(each.rows) for each in parts])[order]
        return sizes


class QueueReading:
    """One question about a queue."""

    def __init__(self, history: TableHistory, wanted: QueueQuestion, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._history = history
        self._wanted = wanted
        self._clock = clock
        self._ends_s = clock() + ANSWER_S
        self._topic = wanted.topic_filter.encode()
        is_level = has_wildcard(wanted.topic_filter)
        self._level = wanted.topic_filter.partition("/")[0].encode() if is_level else None
        self.has_waited = False  # something had to be fetched

    def page(self, max_bytes: int, limit_bytes: int) -> QueuePage:
        """About `max_bytes`, and never more than `limit_bytes`; a larger message is left out. Raises TierError."""
        wanted = self._wanted
        stop = min(wanted.stop, self._history.end)
        page = RecordPage(max_bytes, limit_bytes, wanted.most)
        first = -1
        for span in self._history.spans_from(wanted.start or self._begin()):
            if span.start >= stop:
                break
            number = first + page.number if first >= 0 else wanted.queue_offset
            counted = self._counted(span)
            if counted is not None and counted.first + counted.number > number:
                found = self._numbered(span, counted.first, number, stop)
                at, count = self._run(found, number if first >= 0 else None, page.left, limit_bytes)
                if count:
                    first = int(found.queue_offsets[at]) if first < 0 else first
                    before = page.number
                    page.take(ChosenRows(found.taken(at, at + count)))
                    count = page.number - before
                if at + count < len(found.log_offsets):
                    following = page.next if first >= 0 else int(found.log_offsets[at - 1]) + 1
                    return QueuePage(page.records, page.number, following, first)
            if self._clock() >= self._ends_s and span.end < stop:
                return QueuePage(page.records, page.number, span.end, first)
        return QueuePage(page.records, page.number, stop, first)

    def _run(self, found: _Numbered, number: int | None, most: int, limit_bytes: int) -> tuple[int, int]:
        """The place of the first message that can be taken, and how many adjacent ones follow from there on. `number`:
        the one that it must have."""
        behind = min(len(found.log_offsets), most)
        if not behind:
            return 0, 0
        fits = found.sizes(behind) <= limit_bytes
        numbers = found.queue_offsets[:behind]
        if number is not None and int(numbers[0]) != number:
            return 0, 0
        first = 0 if number is not None or not fits.any() else int(np.argmax(fits))
        if not fits[first]:
            return (behind if number is None else 0), 0
        goes_on = fits[first:] & (numbers[first:] == int(numbers[first]) + np.arange(behind - first))
        return first, int(np.argmin(goes_on)) if not goes_on.all() else len(goes_on)

    def upcoming(self) -> int:
        """The queue_offset of the queue's next message at `start`: one more than that of the last one before it.

        -1: there is none, something is lost after it, or it takes too long to find. Raises TierError.
        """
        start = self._wanted.start
        for span in self._history.spans_before(start):
            counted = self._counted(span)
            number = None if counted is None else self._number_at(span, counted, start)
            if number is not None:
                return -1 if self._history.lost_between(span.start, start) else number
            if self._clock() >= self._ends_s:
                break
        return -1

    def _number_at(self, span: Span, counted: CountedRows, start: int) -> int | None:
        """Of the message at `start` or after it; None: the span has none before."""
        if span.end <= start:
            return counted.first + counted.number
        found = [self._history.selection(place, self._wanted.topic_filter) for place in span.places]
        before = sum(int(np.searchsorted(each.log_offsets, start)) for each in found if each is not None)
        return counted.first + before if before else None

    # --- where the queue is

    def _begin(self) -> int:
        """log_offset before which the queue has smaller numbers only. Halves the files, and looks at some indexes."""
        files = self._history.files
        low, high = 0, len(files)
        while high - low > 1 and self._clock() < self._ends_s:
            middle = (low + high) // 2
            at, first = self._first_from(files, middle, high)
            if first is not None and first <= self._wanted.queue_offset:
                low = at
            else:
                high = middle
        return files[low].first if files else 0

    def _first_from(self, files: list[DataFile], low: int, high: int) -> tuple[int, int | None]:
        """The first file with messages of the queue, and the number of the first of these."""
        for at in range(low, high):
            places = self._history.places(files[at])
            counted = [self._history.index(place).counted(self._topic, self._level) for place in places]
            first = min((each.first for each in counted if each is not None), default=None)
            if first is not None or self._clock() >= self._ends_s:
                return at, first
        return high, None

    def _counted(self, span: Span) -> CountedRows | None:
        found = [self._history.index(place).counted(self._topic, self._level) for place in span.places]
        there = [each for each in found if each is not None]
        if not there:
            return None
        return CountedRows(min(each.first for each in there), sum(each.number for each in there))

    def _numbered(self, span: Span, first: int, number: int, stop: int) -> _Numbered:
        """The rows of a span with this queue_offset or a later one, from `start` on and before `stop`. `first`: the
        queue_offset of the queue's first row there."""
        topic_filter, history = self._wanted.topic_filter, self._history
        self.has_waited |= not all(history.has_selected(each, topic_filter) for each in span.places)
        found = [history.selection(place, topic_filter) for place in span.places]
        parts = [each for each in found if each is not None]
        log_offsets = np.concatenate([each.log_offsets for each in parts])
        order = np.argsort(log_offsets, kind="stable")
        log_offsets = log_offsets[order]
        if self._level is None:
            numbers = np.concatenate([each.group.queue_offsets[each.rows] for each in parts])[order]
        else:
            numbers = first + np.arange(len(log_offsets))
        low, high = np.searchsorted(log_offsets, (self._wanted.start, stop)).tolist()
        low = max(low, int(np.searchsorted(numbers, number)))
        return _Numbered(parts, log_offsets[low:high], numbers[low:high])
