"""The common part of batches and streams: places become log_offsets, ranges partitions, and partitions rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.columns import Messages
from penstock.spark.columns import TopicChoice, record_batch
from penstock.spark.errors import DataLost
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.logs import Log, counted_from, opened
from penstock.spark.options import At, Request
from penstock.spark.ranges import LogRange, TierRange

if TYPE_CHECKING:
    from penstock.spark.tier import TierPlaces

LEAST_PARTITION_BYTES = 16 << 20  # a task costs some 25 ms, in which so much is read
TIER_PARTITION_BYTES = 1 << 30  # of log, at most: what a task of the tier reads anew if it fails


def locate(log: LogAndTier, place: At, *, fail_on_data_loss: bool) -> int:
    """The log_offset of a place. Raises DataLost if no record is there."""
    if place.timestamp_ms is not None:
        return log.position_at(place.timestamp_ms)
    if place.log_offset is None:
        return log.end() if place.latest else log.base()
    return check_position(log, place.log_offset, fail_on_data_loss=fail_on_data_loss)


def check_position(log: LogAndTier, log_offset: int, *, fail_on_data_loss: bool) -> int:
    """Check that a log_offset can be read from; if not and data may be lost, return where the log goes on.

    Raises DataLost.
    """
    base = log.base(log_offset)
    if log_offset < base:
        if fail_on_data_loss:
            raise DataLost(f"{log.path}: log_offset {log_offset} is not kept any more, the log begins at {base}")
        return base
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


def plan(log: Log, start: int, end: int, parts: int) -> list[LogRange]:
    """So many partitions of about the same size, or fewer."""
    return [LogRange(*cut) for cut in log.split(start, end, parts)] if start < end else []


def plan_tier(history: LogAndTier, start: int, end: int, parts: int) -> list[TierRange]:
    """So many partitions of about the same size, or fewer, of what the tier has. Raises DataLost."""
    if start >= end:
        return []
    history.tier.look()
    history.tier.check(start, end)
    return history.tier.parts(start, end, max(parts, (end - start) // TIER_PARTITION_BYTES))


def parts_of(size_bytes: int, request: Request, of_bytes: int = 0) -> int:
    """Number of partitions for so many bytes, which are a part of `of_bytes` to be read."""
    if request.min_partitions:
        return max(1, round(request.min_partitions * size_bytes / max(of_bytes, size_bytes, 1)))
    return max(1, min(os.cpu_count() or 1, size_bytes // LEAST_PARTITION_BYTES))


def wanted_messages(log: Log, request: Request, start: int, end: int) -> Iterator[Messages]:
    """Matching messages that begin in [start, end), by non-empty pieces: each is overwritten by the next.

    Raises DataLost where retention has dropped some, and at a gap unless data may be lost.
    """
    matches = request.topic_matcher()
    choice = TopicChoice(matches) if matches else None
    for messages in log.messages(start, end):
        if messages.gap is not None and request.fail_on_data_loss:
            raise DataLost.at_gap(log.path, messages.gap)
        wanted = choice.of(messages) if choice else messages
        if len(wanted):
            yield wanted


def wanted_places(history: LogAndTier, request: Request, start: int, end: int) -> Iterator[Messages | TierPlaces]:
    """Where the matching messages are that begin in [start, end), in the order of the log."""

    def of_tier(first: int, behind: int) -> Iterator[Messages | TierPlaces]:
        return history.tier.places(request, first, behind)

    def of_log(first: int, behind: int) -> Iterator[tuple[Messages | TierPlaces, int]]:
        for messages in wanted_messages(history.log, request, first, behind):
            yield messages, messages.behind(len(messages) - 1)

    return history.pieces(start, end, of_tier, of_log)


def rows(request: Request, schema: pa.Schema, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. What retention drops meanwhile is read in the tier, if there is one."""
    of_log = _counted_rows if "queue_offset" in schema.names else _plain_rows
    with opened(request) as log:
        history = LogAndTier(log, request)

        def of_tier(first: int, behind: int) -> Iterator[pa.RecordBatch]:
            return history.tier.rows(request, schema, history.tier.whole(first, behind))

        yield from history.pieces(wanted.start, wanted.end, of_tier, partial(of_log, log, request, schema))


def tier_rows(request: Request, schema: pa.Schema, wanted: TierRange) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    with opened(request) as log:
        yield from LogAndTier(log, request).tier.rows(request, schema, wanted)


def _plain_rows(
    log: Log, request: Request, schema: pa.Schema, start: int, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    for messages in wanted_messages(log, request, start, end):
        for batch in messages.batches():
            yield record_batch(batch, schema), batch.behind(len(batch) - 1)


def _counted_rows(
    log: Log, request: Request, schema: pa.Schema, start: int, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows with queue_offset. If messages are dropped during the count, it would be wrong: that raises DataLost."""
    with counted_from(log, start) as offsets:
        if offsets is not None:
            for messages in wanted_messages(log, request, offsets.start, start):
                offsets.take(messages)
        for messages in wanted_messages(log, request, start, end):
            for batch in messages.batches():
                counted = None if offsets is None else offsets.take(batch)
                yield record_batch(batch, schema, counted), batch.behind(len(batch) - 1)
