"""`spark.read.format("penstock")`."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.columns import joined, plain_names
from penstock.spark.errors import IndexUnreadable
from penstock.spark.folder import LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.logs import opened
from penstock.spark.options import At, Request
from penstock.spark.queue_offsets import index_of
from penstock.spark.ranges import LogRange, TierRange
from penstock.spark.reading import locate, parts_of, plan, plan_tier, rows, tier_rows
from penstock.spark.remote import RemoteLog
from penstock.spark.selecting import Selected, select, selected_rows
from penstock.spark.topic_ranges import OfTopics, choose, topic_rows
from penstock.spark.workers import keep_modules
from store.log.index import Index

TAIL_BYTES = 32 << 20  # a tail this large takes as long to read for the log's end as an index to copy
BOUNDS = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


@dataclass(frozen=True)
class Plan:
    """The partitions of a query, the reason for them, and the size of the log range."""

    parts: tuple[InputPartition, ...]
    why: str
    range_bytes: int
    tier_bytes: int = 0  # of the range, which the log does not have any more

    def __str__(self) -> str:
        """One line for people."""
        scanned = sum(part.end - part.start for part in self.parts if isinstance(part, LogRange))
        in_log = self.range_bytes - self.tier_bytes
        ways = [f"read by place ({self.why})"] if scanned < in_log else []
        if self.tier_bytes:
            ways.insert(0, f"read {self.tier_bytes:,} bytes in the tier")
        if scanned or not ways:
            ways.append(f"scan {scanned:,} bytes" + ("" if scanned < in_log else f" ({self.why})"))
        return f"{', '.join(ways)} of {self.range_bytes:,} bytes of the log, in {len(self.parts)} partitions"


class BatchReader(DataSourceReader):
    """Reads the messages that are in the log when the query is planned."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        self.request = request
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        keep_modules()
        return list(self.plan().parts)

    def plan(self) -> Plan:
        """Decide which ranges and topics are read, and how."""
        with ExitStack() as opening:
            log = opening.enter_context(opened(self.request))
            # First of all: an index knows of a record near the log's end.
            index = index_for(log, self.request, opening) if isinstance(log, LogFolder) else None
            history = LogAndTier(log, self.request)
            start, end = self.range_of(history)
            while True:
                found = self._planned(history, index, (start, history.seam(start, end), end))
                if history.seam(start, end) == start + found.tier_bytes:
                    return found
                # Retention has dropped some of it meanwhile, and what is there was counted from after that.

    def _planned(self, history: LogAndTier, index: Index | None, places: tuple[int, int, int]) -> Plan:
        """`places`: where it begins, where the log takes over, and where it ends."""
        log, request = history.log, self.request
        start, seam, end = places
        cold = plan_tier(history, start, seam, parts_of(seam - start, request, end - start))
        if isinstance(log, LogFolder):
            choice = select(log, request, index, seam, end)
        else:
            choice = choose(log, request, seam, end)
        first = choice.scanned_from
        scanned = plan(log, first, end, parts_of(end - first, request, end - first + seam - start))
        return Plan((*cold, *choice.selected, *scanned), choice.why, end - start, seam - start)

    def range_of(self, log: LogAndTier) -> tuple[int, int]:
        """The log_offsets [start, end) to read."""
        request = self.request
        start = locate(log, request.starting or At(), fail_on_data_loss=request.fail_on_data_loss)
        end = locate(log, request.ending or At(latest=True), fail_on_data_loss=request.fail_on_data_loss)
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_modules()
        return plain_names(joined(self._rows(partition)), self.request.names)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Selected):
            return selected_rows(self.request, self.schema, partition)
        if isinstance(partition, TierRange):
            return tier_rows(self.request, self.schema, partition)
        if isinstance(partition, OfTopics):
            return self._topic_rows(partition)
        # Spark makes up a partition if there is nothing to read.
        return rows(self.request, self.schema, partition) if isinstance(partition, LogRange) else iter(())

    def _topic_rows(self, partition: OfTopics) -> Iterator[pa.RecordBatch]:
        with opened(self.request) as log:
            assert isinstance(log, RemoteLog)
            yield from topic_rows(log, LogAndTier(log, self.request), self.request, self.schema, partition)


def index_for(log: LogFolder, request: Request, copies: ExitStack) -> Index | None:
    """An index, if single topics are wanted or the log's end is far away; else None."""
    if not request.is_filtered and log.tail_bytes() < TAIL_BYTES:
        return None
    try:
        return index_of(log, copies)
    except IndexUnreadable:
        return None


class PushingReader(BatchReader):
    """Accepts some of a query's WHERE: equal topics exactly; bounds of log_offset only narrow the range.

    A class of its own, since Spark refuses a reader with pushFilters unless it is configured for it.
    """

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        super().__init__(request, schema)
        self.least = 0  # log_offsets
        self.most = 2**63 - 2

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if isinstance(condition, EqualTo | In) and condition.attribute == ("topic",):
                self._narrow(condition.value if isinstance(condition, In) else (condition.value,))
                continue
            if isinstance(condition, BOUNDS) and condition.attribute == ("log_offset",):
                self._bound(condition)
            yield condition

    def range_of(self, log: LogAndTier) -> tuple[int, int]:
        start, end = super().range_of(log)
        if start < self.least < end:
            start = max(start, log.nearest(self.least))
        elif self.least >= end:
            start = end
        return start, min(end, self.most + 1)

    def _narrow(self, topics: Iterable[str | None]) -> None:
        wanted = frozenset(self.request.names.topic(topic).encode() for topic in topics if topic is not None)
        before = self.request.only_topics
        self.request = replace(self.request, only_topics=wanted if before is None else wanted & before)

    def _bound(self, condition: BOUNDS) -> None:
        if not isinstance(condition, LessThan | LessThanOrEqual):
            self.least = max(self.least, condition.value)
        if not isinstance(condition, GreaterThan | GreaterThanOrEqual):
            self.most = min(self.most, condition.value)
