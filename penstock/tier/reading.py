"""Reads history from the table, as records in log format: by pages of a topic filter, by log_offset, by key.

A question is bounded in bytes and in time. Who asks goes on from where the answer says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np

from lightqueue.queues.matching import has_wildcard
from penstock.tier.errors import ObjectMissing
from penstock.tier.group import EVERYTHING
from penstock.tier.history import Place, Span, TableHistory
from penstock.tier.part_reading import PartReading
from penstock.tier.queue_reading import QueuePage, QueueQuestion, QueueReading
from penstock.tier.read_ahead import ReadAhead
from penstock.tier.record_page import ANSWER_S, FAR_BEHIND, ReadPage, RecordPage
from penstock.tier.record_part import ChosenRows, OrderedRows, Selection
from penstock.tier.rows import hash_of_key

T = TypeVar("T")

ANSWER_BYTES: Final = 1 << 20  # of messages, or a single larger one
BEHIND_LOSS_S: Final = 10.0  # so long a message is looked for that can say of a loss in front of it


class ScanQuestion(NamedTuple):
    """Messages of a topic filter with start <= log_offset < stop, with one tag (empty: any)."""

    topic_filter: str
    start: int
    stop: int
    tag: str = ""


class KeyQuestion(NamedTuple):
    """Messages with a key and log_offset < before, of a topic filter (empty: any), since <= time < until in ms."""

    key: str
    topic_filter: str
    since_ms: int
    until_ms: int
    before: int
    most: int


class FoundRecords(NamedTuple):
    """Messages in log format, their number, and the log_offset before which to go on (0: no more)."""

    records: bytes
    number: int
    before: int


class RecordsThere(NamedTuple):
    """Of log_offsets: whether a message is there, and the messages, in log format, in this order. `queue_offset` of
    the first message."""

    found: list[bool]
    records: bytes
    queue_offset: int


class TableReader:
    """Answers questions about the table. Several threads may ask. Every method raises TierError."""

    def __init__(self, history: TableHistory, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._history = history
        self._reading = PartReading(history)
        self._ahead = ReadAhead(history, self._reading)
        self._clock = clock

    def close(self) -> None:
        """Read ahead no more."""
        self._ahead.close()

    @property
    def first(self) -> int:
        """log_offset where the history begins."""
        return self._history.first

    @property
    def end(self) -> int:
        """log_offset after the history, as it was looked at last."""
        return self._history.end

    def of_log(self, identity: str) -> None:
        """Look at the newest version of the table, which has to be of this log. Raises AnotherStoresTable."""
        self._history.of_log(identity)
        self._history.refresh()

    def scan(self, wanted: ScanQuestion, max_bytes: int, limit_bytes: int) -> ReadPage:
        """Messages, about `max_bytes`, and never more than `limit_bytes`; a single larger one is left out."""
        return self._newest(wanted.stop, lambda: self._scan(wanted, max_bytes, limit_bytes))

    def at(self, log_offsets: list[int], limit_bytes: int) -> RecordsThere:
        """Messages by their places: of fewer log_offsets if they get too long."""
        return self._newest(max(log_offsets, default=0) + 1, lambda: self._at(log_offsets, limit_bytes))

    def find(self, wanted: KeyQuestion, limit_bytes: int) -> FoundRecords:
        """Messages with a key, the newest first."""
        return self._newest(wanted.before, lambda: self._find(wanted, limit_bytes))

    def seek(self, topic_filter: str, at_ms: int | None, queue_offset: int, start: int, stop: int) -> tuple[int, bool]:
        """log_offset of the first message of a filter that was stored at a time or later, or of the topic's message
        with this queue_offset or a later one; `stop` if that is not before it. False: go on from there."""
        return self._newest(stop, lambda: self._seek(topic_filter, at_ms, queue_offset, start, stop))

    def queue(self, wanted: QueueQuestion, max_bytes: int, limit_bytes: int) -> QueuePage:
        """Messages of a queue, about `max_bytes`, and never more than `limit_bytes`."""
        return self._newest(wanted.stop, lambda: self._queue(wanted, max_bytes, limit_bytes))

    def _newest(self, until: int, read: Callable[[], T]) -> T:
        """The result of `read` of the table as it is known, if that is up to `until`; else of the newest one. Once
        more if a file was vacuumed since."""
        if until > self._history.end:
            self._history.refresh()
        try:
            return read()
        except ObjectMissing:
            self._history.refresh()
            return read()

    def _scan(self, wanted: ScanQuestion, max_bytes: int, limit_bytes: int) -> ReadPage:
        topic_filter, start, stop, tag = wanted
        before = self._ahead.came(topic_filter, tag, start)
        page = RecordPage(max_bytes, limit_bytes, lost=self._history.lost_between(start, stop))
        following, waited = self._fill(page, wanted)
        if following < stop:
            self._ahead.goes_on(before, waited, (topic_filter, tag, following), stop)
        return page.taken(following, not tag and not has_wildcard(topic_filter))

    def _fill(self, page: RecordPage, wanted: ScanQuestion) -> tuple[int, bool]:
        """The log_offset to go on from, and whether something had to be fetched."""
        began_s = self._clock()
        waited = False
        for span in self._history.spans_from(wanted.start):
            if span.start >= wanted.stop:
                break
            waited = waited or not self._reading.is_prepared(span, wanted.topic_filter)
            if not all(page.take(part, wanted.start, wanted.stop) for part in self._parts(span, wanted)):
                return page.next, waited
            patience_s = BEHIND_LOSS_S if page.waits_before(span.end) else ANSWER_S
            if self._clock() >= began_s + patience_s and span.end < wanted.stop:
                return span.end, waited
        return wanted.stop, waited

    def _parts(self, span: Span, wanted: ScanQuestion) -> Iterator[OrderedRows]:
        if not wanted.tag:
            return self._reading.parts(span, wanted.topic_filter, wanted.start, wanted.stop)
        return iter([ChosenRows(list(self._tagged(span, wanted)))])

    def _tagged(self, span: Span, wanted: ScanQuestion) -> Iterator[Selection]:
        for place in span.places:
            found = self._history.selection(place, wanted.topic_filter)
            if found is not None:
                found = found.between(wanted.start, wanted.stop)
                yield found.where(found.group.has_tag(found.rows, wanted.tag))

    def _queue(self, wanted: QueueQuestion, max_bytes: int, limit_bytes: int) -> QueuePage:
        before = self._ahead.came(wanted.topic_filter, "", wanted.start) if wanted.start else None
        reading = QueueReading(self._history, wanted, self._clock)
        page = reading.page(min(max_bytes, limit_bytes), limit_bytes)
        if page.number and page.next < wanted.stop:
            self._ahead.goes_on(before, reading.has_waited, (wanted.topic_filter, "", page.next), wanted.stop)
        if wanted.start and not wanted.queue_offset and not page.number:
            return page._replace(upcoming=reading.upcoming())
        return page

    def _at(self, log_offsets: list[int], limit_bytes: int) -> RecordsThere:
        page = RecordPage(min(ANSWER_BYTES, limit_bytes), limit_bytes)
        ends_s = self._clock() + ANSWER_S
        there: list[bool] = []
        span: Span | None = None
        spans: Iterator[Span] = iter(())
        behind = FAR_BEHIND
        for log_offset in log_offsets:
            if log_offset < behind:
                spans = self._history.spans_from(log_offset)
                span = next(spans, None)
            behind = log_offset
            while span is not None and span.end <= log_offset:
                span = next(spans, None)
            found = [] if span is None or log_offset < span.start else list(self._standing(span, log_offset))
            if not page.take(ChosenRows(found)) or (there and self._clock() >= ends_s):
                break
            there.append(bool(found) and page.has(log_offset))
        known = [each for each, is_there in zip(log_offsets, there, strict=False) if is_there]
        return RecordsThere(there, page.in_order(known), page.queue_offset)

    def _standing(self, span: Span, log_offset: int) -> Iterator[Selection]:
        for place in span.places:
            found = self._history.selection(place, EVERYTHING)
            if found is not None and len((here := found.between(log_offset, log_offset + 1)).rows):
                yield here

    def _seek(self, topic_filter: str, at_ms: int | None, queue_offset: int, start: int, stop: int) -> tuple[int, bool]:
        ends_s = self._clock() + ANSWER_S
        for span in self._history.spans_from(start):
            if span.start >= stop:
                break
            if at_ms is None:
                found = [self._counted(place, topic_filter.encode(), queue_offset) for place in span.places]
            else:
                found = [self._stored_since(place, topic_filter, at_ms) for place in span.places]
            first = min((each for each in found if each is not None), default=None)
            if first is not None:
                return min(first, stop), True
            if self._clock() >= ends_s and span.end < stop:
                return span.end, False
        return stop, True

    def _counted(self, place: Place, topic: bytes, queue_offset: int) -> int | None:
        last = self._history.index(place).last_queue_offset(topic)
        if last is None or last < queue_offset:
            return None
        found = self._history.selection(place, topic.decode())
        assert found is not None
        at = int(np.searchsorted(found.group.queue_offsets[found.rows], queue_offset))
        return int(found.log_offsets[at])

    def _stored_since(self, place: Place, topic_filter: str, at_ms: int) -> int | None:
        if place.file.latest_ms < at_ms:
            return None
        found = self._history.selection(place, topic_filter)
        if found is None:
            return None
        since = np.flatnonzero(found.group.timestamps_ms[found.rows] >= at_ms)
        return int(found.log_offsets[since[0]]) if len(since) else None

    def _find(self, wanted: KeyQuestion, limit_bytes: int) -> FoundRecords:
        page = RecordPage(min(ANSWER_BYTES, limit_bytes), limit_bytes)
        key_hash = hash_of_key(wanted.key.encode())
        ends_s = self._clock() + ANSWER_S
        found: list[int] = []
        for span in self._history.spans_before(wanted.before):
            if max(place.file.latest_ms for place in span.places) < wanted.since_ms:
                break
            of_span = [
                each
                for place in span.places
                if self._history.index(place).has_key(key_hash)
                for each in self._with_key(place, wanted)
            ]
            for log_offset, one in sorted(of_span, key=lambda each: -each[0]):
                if len(found) == wanted.most or not page.take(ChosenRows([one])):
                    return FoundRecords(page.in_order(found), len(found), log_offset + 1)
                if page.has(log_offset):
                    found.append(log_offset)
            if self._clock() >= ends_s:
                return FoundRecords(page.in_order(found), len(found), span.start)
        return FoundRecords(page.in_order(found), len(found), 0)

    def _with_key(self, place: Place, wanted: KeyQuestion) -> Iterator[tuple[int, Selection]]:
        """Messages with the key, one by one."""
        found = self._history.selection(place, wanted.topic_filter or EVERYTHING)
        if found is None:
            return
        found = found.between(0, wanted.before)
        times = found.group.timestamps_ms[found.rows]
        fits = (times >= wanted.since_ms) & (times < wanted.until_ms) & found.group.has_key(found.rows, wanted.key)
        found = found.where(fits)
        for log_offset in found.log_offsets.tolist():
            yield log_offset, found.between(log_offset, log_offset + 1)
