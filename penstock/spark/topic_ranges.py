"""Reads a few topics of a running store by their queues, if that is cheaper than sending the whole log.

The store says which topics match a filter, and how many messages each has between two places. It knows the topics in
its index; newer messages are scanned. The rows are the same as of a scan, topic by topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.spark.columns import record_batch
from penstock.spark.errors import DataLost
from penstock.spark.options import Request
from penstock.spark.reading import parts_of
from penstock.spark.remote import RemoteLog
from penstock.spark.selecting import RECORD_BYTES, Budget, Choice, TooMuch

TOPIC_BYTES = 128 << 10  # bytes of the log that are sent in the time of one topic's request


class TopicRange(NamedTuple):
    """Messages of a topic by queue_offset, without `last`. They are at or behind log_offset `start`."""

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
        ranges = list(_ranges(log, sorted(topics), start, until))
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


def topic_rows(log: RemoteLog, request: Request, schema: pa.Schema, wanted: OfTopics) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost if some are not kept any more, unless data may be lost."""
    for range_ in wanted.ranges:
        expected = range_.first
        for queue_offset, messages in log.topic_messages(range_.topic, range_.start, wanted.end):
            if queue_offset > expected and not request.fail_on_data_loss:
                expected = min(queue_offset, range_.last)
            if queue_offset != expected:
                break
            for batch in messages.first(range_.last - expected).batches():
                yield record_batch(batch, schema, pa.array(np.arange(expected, expected + len(batch))))
                expected += len(batch)
            if expected == range_.last:
                break
        if expected < range_.last and request.fail_on_data_loss:
            what = f"message {expected} of topic '{range_.topic}'"
            raise DataLost(f"{log.path}: {what} is not kept any more, or is larger than a frame")
