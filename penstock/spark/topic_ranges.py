"""Topics by name from a store that runs: it reads their queues, where that is cheaper than to send the whole log.

The store is asked how many messages each has between two places. The rows are those of a scan, topic by topic.
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
from penstock.spark.selecting import RECORD_BYTES, Choice

TOPIC_BYTES = 128 << 10  # of the log are sent in the time that it takes to ask for a topic's messages
MOST_TOPICS = 10_000  # asked about


class TopicRange(NamedTuple):
    """Messages of a topic by queue_offset, `last` not included. `start`: they stand from this log_offset on."""

    topic: str
    first: int
    last: int
    start: int


@dataclass
class OfTopics(InputPartition):
    """Ranges of some topics; all stand before log_offset `end`."""

    ranges: tuple[TopicRange, ...]
    end: int


def choose(log: RemoteLog, request: Request, start: int, end: int) -> Choice:
    """Between the topics' queues and a scan of [start, end), by estimate."""
    names = request.topics()
    if names is None:
        return Choice(start, "over the wire")
    scan_bytes = end - start
    if len(names) > MOST_TOPICS or len(names) * TOPIC_BYTES > scan_bytes:
        return Choice(start, "to ask for each topic would take long beside it")
    topics = sorted(names)
    firsts, lasts = (log.queue_offsets(place, topics) for place in (start, end))
    found = zip(topics, firsts, lasts, strict=True)
    ranges = [TopicRange(topic.decode(), first, last, start) for topic, first, last in found if first < last]
    count = sum(each.last - each.first for each in ranges)
    if len(names) * TOPIC_BYTES + count * RECORD_BYTES > scan_bytes:
        return Choice(start, "the topics have too many messages to be read one by one")
    parts = _parts(log, ranges, parts_of(count * RECORD_BYTES, request))
    why = f"{count:,} messages of {len(ranges):,} topics, by their queues over the wire"
    return Choice(end, why, tuple(OfTopics(tuple(part), end) for part in parts if part))


def _parts(log: RemoteLog, ranges: list[TopicRange], parts: int) -> Iterator[list[TopicRange]]:
    """Cut into so many of about as many messages each."""
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
                range_ = TopicRange(range_.topic, cut, range_.last, log.place_in_topic(range_.topic, cut))
            else:
                range_ = next(left, None)
        yield some


def topic_rows(log: RemoteLog, request: Request, schema: pa.Schema, wanted: OfTopics) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost if some are not kept any more, unless they may be missing."""
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
