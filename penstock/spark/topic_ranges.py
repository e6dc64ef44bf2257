"""Reads a few topics of a running store by their queues, if that is cheaper than sending the whole log.

The store says which topics match a filter, and how many messages each has between two places. It knows the topics in
its index; newer messages are scanned. The rows are the same as of a scan, topic by topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.spark.columns import record_batch
from penstock.spark.errors import DataLost, RequestFailed
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.logs import Log
from penstock.spark.options import Request
from penstock.spark.reading import parts_of
from penstock.spark.remote import RemoteLog
from penstock.spark.selecting import RECORD_BYTES, Budget, Choice, TooMuch
from store.wire.messages import FailureCode

TOPIC_BYTES = 128 << 10  # bytes of the log that are sent in the time of one topic's request


class TopicRange(NamedTuple):
    """Messages of a topic by queue_offset, without `last`. They are at or after log_offset `start`."""

    topic: str
    first: int
    last: int
    start: int


@dataclass
class OfTopics(InputPartition):
    """Ranges of some topics; all messages are before log_offset `end`."""

    ranges: tuple[TopicRange, ...]
    end: int


def choose(log: RemoteLog, request: Request, start: int, end: int) -> Choice:
    """Choose between the topics' queues and a scan of [start, end), by estimated time."""
    if not request.is_filtered:
        return Choice(start, "all of it")
    budget = Budget(end - start, TOPIC_BYTES)
    try:
        topics, until = _topics(log, request, end, budget)
        if until <= start:
            return Choice(start, "the store's index does not know yet where single topics' messages are")
        first = log.nearest(start)  # a place before the first record is one that the store's own tier has
        ranges = list(_ranges(log, sorted(topics), first, until))
        budget.read(sum(each.last - each.first for each in ranges))
    except TooMuch as reason:
        return Choice(start, str(reason))
    parts = _parts(log, ranges, parts_of(budget.entries * RECORD_BYTES, request))
    why = f"{budget.entries:,} messages of {len(ranges):,} topics, by their queues over the wire"
    return Choice(until, why, tuple(OfTopics(tuple(part), until) for part in parts if part))


def _topics(log: RemoteLog, request: Request, end: int, budget: Budget) -> tuple[set[bytes], int]:
    """The wanted topics, and the log_offset before which no other topic (a new one) has wanted messages."""
    named = request.topics()
    if named is not None:
        for _ in named:
            budget.look_up()
        return set(named), end
    found: set[bytes] = set()
    for topic_filter in request.topic_filters:
        for some in log.matching_topics(topic_filter):
            end = min(end, some.known_until)
            budget.look_at_names(some.looked_at)
            for topic in some.topics:
                if topic.encode() not in found:
                    budget.look_up()
                    found.add(topic.encode())
    return found, end


def _ranges(log: RemoteLog, topics: list[bytes], start: int, end: int) -> Iterator[TopicRange]:
    """The ranges of topics' messages in [start, end)."""
    firsts, lasts = (log.queue_offsets(place, topics) for place in (start, end))
    for topic, first, last in zip(topics, firsts, lasts, strict=True):
        if first < last:
            yield TopicRange(topic.decode(), first, last, start)


def _parts(log: RemoteLog, ranges: list[TopicRange], parts: int) -> Iterator[list[TopicRange]]:
    """Divide ranges into `parts` of about as many messages each."""
    total = sum(each.last - each.first for each in ranges)
    left = iter(ranges)
    range_ = next(left, None)
    done = 0
    for i in range(1, parts + 1):
        some = []
        while range_ is not None and (wanted := total * i // parts - done):
            cut = min(range_.first + wanted, range_.last)
            some.append(range_._replace(last=cut))
            done += cut - range_.first
            if cut < range_.last:
                range_ = range_._replace(first=cut, start=_place(log, range_, cut))
            else:
                range_ = next(left, None)
        yield some


def _place(log: RemoteLog, range_: TopicRange, queue_offset: int) -> int:
    """log_offset of a message of a range; the range's beginning if the message is lost: its reader finds that out."""
    try:
        return log.place_in_topic(range_.topic, queue_offset)
    except DataLost:
        return range_.start


def topic_rows(
    log: RemoteLog, history: LogAndTier, request: Request, schema: pa.Schema, wanted: OfTopics
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost if some are kept neither in the log nor in the tier, unless data may be
    lost.
    """
    for range_ in wanted.ranges:
        expected = range_.first
        found = _kept_rows if history.has_tier else _rows_in_log
        for batch, behind in found(history, request, schema, range_, wanted.end):
            yield batch
            expected = behind
        if expected < range_.last and request.fail_on_data_loss:
            what = f"message {expected} of topic '{range_.topic}'"
            raise DataLost(f"{log.path}: {what} is not kept any more, or is larger than a frame")


Counted = tuple[pa.RecordBatch, int]
"""Rows of a topic, and the queue_offset after the last."""


def _rows_in_log(
    history: LogAndTier, request: Request, schema: pa.Schema, range_: TopicRange, end: int
) -> Iterator[Counted]:
    """Rows of a range as far as there is none missing, unless data may be lost."""
    assert isinstance(history.log, RemoteLog)
    expected = range_.first
    for queue_offset, messages in history.log.topic_messages(range_.topic, range_.start, end):
        if queue_offset > expected and not request.fail_on_data_loss:
            expected = min(queue_offset, range_.last)
        if queue_offset != expected:
            break
        for batch in messages.first(range_.last - expected).batches():
            rows = record_batch(batch, schema, pa.array(np.arange(expected, expected + len(batch))))
            expected += len(batch)
            yield rows, expected
        if expected == range_.last:
            break


def _kept_rows(
    history: LogAndTier, request: Request, schema: pa.Schema, range_: TopicRange, end: int
) -> Iterator[Counted]:
    """Rows of a range, those in the tier that the log has dropped since it was planned; as far as none is missing."""
    expected = range_.first
    columns = schema if "queue_offset" in schema.names else schema.append(pa.field("queue_offset", pa.int64()))
    only = replace(request, only_topics=frozenset([range_.topic.encode()]))

    def of_tier(start: int, behind: int) -> Iterator[pa.RecordBatch]:
        return history.tier.rows(only, columns, history.tier.whole(start, behind))

    def of_log(start: int, behind: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        return _in_log(history.log, columns, range_.topic, start, behind)

    for batch in history.pieces(range_.start, end, of_tier, of_log):
        places = batch.column("queue_offset").to_numpy()
        chosen = batch.filter(pa.array((places >= expected) & (places < range_.last)))
        if chosen.num_rows:
            found = chosen.column("queue_offset").to_numpy()
            if found[0] != expected and request.fail_on_data_loss:
                return
            expected = int(found[-1]) + 1
            yield chosen.select(schema.names), expected
        if expected == range_.last:
            return


def _in_log(log: Log, schema: pa.Schema, topic: str, start: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A topic's messages in the log, each piece with the log_offset after it. Raises DataLost if some were dropped."""
    assert isinstance(log, RemoteLog)
    first = log.nearest(start)
    if start < log.base():
        raise DataLost(f"{log.path}: log_offset {start} is not kept any more")
    try:
        for queue_offset, messages in log.topic_messages(topic, first, end):
            at = queue_offset
            for batch in messages.batches():
                log_offsets, sizes = batch.places()
                counted = pa.array(np.arange(at, at + len(batch)))
                at += len(batch)
                yield record_batch(batch, schema, counted), int(log_offsets[-1]) + int(sizes[-1])
    except RequestFailed as error:
        if error.code != FailureCode.UNAVAILABLE:
            raise
        raise DataLost(str(error)) from error  # it was dropped just now, and the store's own tier is away
