"""`spark.readStream.format("penstock")`: the same rows as a batch, a range of the log at a time.

A position is the log_offset from which to go on. The log is one sequence for all topics, so a range has the same rows
whenever it is read again, and new topics need no discovery. The log's identity goes with a position, which means
nothing in another log. Checkpoints of earlier versions have none, and get one with their next batch.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.spark.columns import joined, plain_names
from penstock.spark.errors import AnotherLog, BadSparkOption
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.logs import Log, open_log
from penstock.spark.options import LOG_IDENTITY, LOG_POSITION, At, Request
from penstock.spark.ranges import LogRange, TierRange
from penstock.spark.reading import (
    check_position,
    locate,
    parts_of,
    plan,
    plan_tier,
    rows,
    tier_rows,
    wanted_places,
)
from penstock.spark.remote import RemoteLog
from penstock.spark.workers import keep_modules

Offset = dict[str, Any]  # LOG_POSITION: int, LOG_IDENTITY: str; without an identity where a stream begins

# While no wanted message comes, a position stays where it is, so that Spark runs no batches without rows: up to here.
QUIET_BYTES = 64 << 20
NOTED_EVERY_S = 1.0  # interval of position reports while there is nothing to read


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver's planning process as long as the query; read() runs in the workers."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        if request.ending is not None:
            raise BadSparkOption("a stream has no end: endingOffsets and endingTimestamp are for spark.read")
        self.request = request
        self.schema = schema
        self._log: Log | None = None  # only where the query is planned
        self._history: LogAndTier | None = None
        self._target: int | None = None  # of trigger AvailableNow
        self._noted_s = 0.0
        self._quiet = (0, 0)  # no wanted message is between these log_offsets

    @property
    def log(self) -> Log:
        if self._log is None:
            self._log = open_log(self.request)
        return self._log

    @property
    def history(self) -> LogAndTier:
        if self._history is None:
            self._history = LogAndTier(self.log, self.request)
        return self._history

    def initialOffset(self) -> Offset:
        starting = self.request.starting or At(latest=True)
        return {LOG_POSITION: locate(self.history, starting, fail_on_data_loss=self.request.fail_on_data_loss)}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.request.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.log.end()

    def reportLatestOffset(self) -> Offset:
        return self._offset(self.log.end())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch: after so many wanted messages, or the end of the log."""
        position: int = start[LOG_POSITION]
        end = self.log.end() if self._target is None else self._target
        first = self._readable(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._target is None and end - position < QUIET_BYTES and self._is_quiet(first, end):
            self._note(end)
            return start
        last = max(first, end if most is None else self._end_of(first, end, most))
        return self._offset(last) if last != position else start

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = (self._readable(offset) for offset in (start, end))
        request, seam = self.request, self.history.seam(first, last)
        cold = plan_tier(self.history, first, seam, parts_of(seam - first, request, last - first))
        return [*cold, *plan(self.log, seam, last, parts_of(last - seam, request, last - first))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_modules()
        if isinstance(partition, TierRange):
            found = tier_rows(self.request, self.schema, partition)
        elif isinstance(partition, LogRange):
            found = rows(self.request, self.schema, partition)
        else:
            return iter(())
        return plain_names(joined(found), self.request.names)

    def commit(self, end: Offset) -> None:
        """Have the store show this stream's position; nothing depends on it."""
        self._noted_s = 0.0
        self._note(end[LOG_POSITION])

    def stop(self) -> None:
        if isinstance(self._log, RemoteLog):
            self._log.close()

    def _note(self, log_offset: int) -> None:
        """Report the position, at most once in NOTED_EVERY_S."""
        name = self.request.consumer_name
        if name and isinstance(self.log, RemoteLog) and time.monotonic() - self._noted_s > NOTED_EVERY_S:
            self.log.note_reader(name, log_offset)
            self._noted_s = time.monotonic()

    def _offset(self, log_offset: int) -> Offset:
        identity = self.log.identity()
        return {LOG_POSITION: log_offset} | ({LOG_IDENTITY: identity} if identity else {})

    def _readable(self, offset: Offset) -> int:
        """The log_offset to read from. Raises AnotherLog, DataLost."""
        fails = self.request.fail_on_data_loss
        theirs, ours = offset.get(LOG_IDENTITY, ""), self.log.identity()
        if fails and theirs and ours and theirs != ours:
            raise AnotherLog(self.log.path, theirs, ours)
        return check_position(self.history, offset[LOG_POSITION], fail_on_data_loss=fails)

    def _is_quiet(self, start: int, end: int) -> bool:
        quiet_from, quiet_until = self._quiet
        known = quiet_until if quiet_from == start and quiet_until <= end else start
        quiet = next(wanted_places(self.history, self.request, known, end), None) is None
        self._quiet = (start, end if quiet else known)
        return quiet

    def _end_of(self, start: int, end: int, most: int) -> int:
        """The log_offset after the next `most` wanted messages; `end` if there are fewer."""
        for places in wanted_places(self.history, self.request, start, end):
            if most <= len(places):
                return places.behind(most - 1)
            most -= len(places)
        return end
