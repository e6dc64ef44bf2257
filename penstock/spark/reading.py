"""The common part of batches and streams: places become log_offsets, ranges partitions, and partitions rows."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.columns import Messages
from penstock.spark.columns import TopicChoice, record_batch
from penstock.spark.errors import DataLost
from penstock.spark.logs import Log, counted_from, opened
from penstock.spark.options import At, Request

LEAST_PARTITION_BYTES = 16 << 20  # a task costs some 25 ms, in which so much is read


@dataclass
class LogRange(InputPartition):
    """The messages that begin in [start, end), as log_offsets."""

    start: int
    end: int


def locate(log: Log, place: At, *, fail_on_data_loss: bool) -> int:
    """The log_offset of a place. Raises DataLost if no record is there."""
    if place.timestamp_ms is not None:
        return log.position_at(place.timestamp_ms)
    if place.log_offset is None:
        return log.end() if place.latest else log.base()
    return check_position(log, place.log_offset, fail_on_data_loss=fail_on_data_loss)


def check_position(log: Log, log_offset: int, *, fail_on_data_loss: bool) -> int:
    """Check that a log_offset can be read from; if not and data may be lost, return where the log goes on.

    Raises DataLost.
    """
    if log_offset < log.base():
        if fail_on_data_loss:
            raise DataLost(f"{log.path}: log_offset {log_offset} is not kept any more, the log begins at {log.base()}")
        return log.base()
    if log_offset > log.end():
        if fail_on_data_loss:
            raise DataLost(f"{log.path}: log_offset {log_offset} is behind the log's end, {log.end()}")
        return log.end()
    if not log.is_record(log_offset):
        if fail_on_data_loss:
            raise DataLost(
                f"{log.path}: no record begins at log_offset {log_offset}; "
                "it is of another log, or the log's end was lost and written anew"
            )
        return log.nearest(log_offset)
    return log_offset


def plan(log: Log, start: int, end: int, request: Request) -> list[LogRange]:
    """Partitions of about the same size: minPartitions, else one per core if there is enough to read."""
    if start >= end:
        return []
    return [LogRange(*cut) for cut in log.split(start, end, parts_of(end - start, request))]


def parts_of(size_bytes: int, request: Request) -> int:
    """Number of partitions for so many bytes."""
    return request.min_partitions or max(1, min(os.cpu_count() or 1, size_bytes // LEAST_PARTITION_BYTES))


def wanted_messages(
    log: Log, request: Request, start: int, end: int, *, skips_lost: bool | None = None
) -> Iterator[Messages]:
    """Matching messages that begin in [start, end), by non-empty pieces: each is overwritten by the next."""
    matches = request.topic_matcher()
    choice = TopicChoice(matches) if matches else None
    for messages in log.messages(start, end, not request.fail_on_data_loss if skips_lost is None else skips_lost):
        if messages.gap is not None and request.fail_on_data_loss:
            raise DataLost.at_gap(log.path, messages.gap)
        wanted = choice.of(messages) if choice else messages
        if len(wanted):
            yield wanted


def rows(request: Request, schema: pa.Schema, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    with opened(request) as log:
        if "queue_offset" in schema.names:
            yield from _counted_rows(log, request, schema, wanted)
            return
        for messages in wanted_messages(log, request, wanted.start, wanted.end):
            for batch in messages.batches():
                yield record_batch(batch, schema)


def _counted_rows(log: Log, request: Request, schema: pa.Schema, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    """The rows with queue_offset. If messages are dropped during the count, it would be wrong: it begins anew behind
    them.
    """
    at = wanted.start
    while at < wanted.end:
        start = at if request.fail_on_data_loss else max(at, log.base())
        try:
            with counted_from(log, start) as offsets:
                if offsets is not None:
                    for messages in wanted_messages(log, request, offsets.start, start, skips_lost=False):
                        offsets.take(messages)
                for messages in wanted_messages(log, request, start, wanted.end, skips_lost=False):
                    behind = messages.behind(len(messages) - 1)
                    for batch in messages.batches():
                        yield record_batch(batch, schema, None if offsets is None else offsets.take(batch))
                    at = behind
            return
        except DataLost:
            if request.fail_on_data_loss or log.base() <= start:
                raise
