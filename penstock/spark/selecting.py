"""Reads a few of many topics by their light queues, which have the places of their messages.

Only as far as the index's copy goes; newer messages are scanned. The rows are the same as of a scan. A filter with
wildcards becomes the topics that match it: the index has every topic with a kept message, so the filter itself needs no
queue.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from lightqueue.queues._queues import Queue
from lightqueue.queues.table import QueueTable
from penstock.spark.columns import record_batch
from penstock.spark.errors import DataLost
from penstock.spark.folder import PIECE_BYTES, LogFolder
from penstock.spark.log_and_tier import LogAndTier
from penstock.spark.options import Request
from penstock.spark.queue_offsets import queues_of
from penstock.spark.reading import parts_of
from store.log.index import Index

# Bytes of the log that are scanned in the time that each of these takes:
RECORD_BYTES = 8 << 10  # reading one record by itself
NAME_BYTES = 8 << 10  # comparing one topic with the filters
TOPIC_BYTES = 32 << 10  # finding where a topic's entries begin and end
LOOK_UP_SHARE = 1 / 2  # share of a scan's time for looking up topics before the driver gives up
MOST_TOPICS = 10_000  # looked up by the driver
MOST_ENTRIES = 1_000_000  # 20 bytes each, sent to the tasks

# docs/formats.md; PLACE adds the queue_offset.
ENTRY = np.dtype([("log_offset", "<i8"), ("size", "<i4"), ("tag", "<u8")])
PLACE = np.dtype([("log_offset", "<i8"), ("queue_offset", "<i8"), ("size", "<i4")])


@dataclass
class Selected(InputPartition):
    """Messages by their places in the log, ascending: PLACEs as bytes."""

    places: bytes


class TooMuch(Exception):
    """Reading by place would take longer than a scan; the message says why."""


@dataclass(frozen=True)
class Choice:
    """Partitions to read by place, the log_offset from which the log is scanned, and the reason in words."""

    scanned_from: int
    why: str
    selected: tuple[InputPartition, ...] = ()


def select(log: LogFolder, request: Request, index: Index | None, start: int, end: int) -> Choice:
    """Choose between light queues and a scan of [start, end), by estimated time."""
    if not request.is_filtered:
        return Choice(start, "all of it")
    until = 0 if index is None else min(end, index.applied_offset)
    if index is None or until <= start:
        return Choice(start, "no index knows where single topics' messages are")
    queues = queues_of(index, log)
    try:
        budget = Budget(until - start, TOPIC_BYTES)
        spans = list(_spans(queues, request, (start, until), budget))
    except TooMuch as reason:
        return Choice(start, str(reason))
    packs = [pack for span in spans for pack in queues.stored_entries(*span)]
    why = f"{budget.entries:,} messages of {len(spans):,} topics, by their light queues"
    return Choice(until, why, tuple(_parts(packs, request)))


class Budget:
    """The work that reading by place may take before a scan is cheaper. Raises TooMuch."""

    def __init__(self, scan_bytes: int, topic_bytes: int) -> None:
        """`topic_bytes`: bytes of the log that are scanned in the time of one topic's lookup."""
        self._scan_bytes = scan_bytes
        self._topic_bytes = topic_bytes
        self._looked_up_bytes = 0
        self.topics = 0
        self.entries = 0

    def look_at_names(self, count: int) -> None:
        self._look_up(NAME_BYTES * count)

    def look_up(self) -> None:
        self.topics += 1
        self._look_up(self._topic_bytes)

    def _look_up(self, cost_bytes: int) -> None:
        self._looked_up_bytes += cost_bytes
        if self._looked_up_bytes > self._scan_bytes * LOOK_UP_SHARE or self.topics > MOST_TOPICS:
            raise TooMuch("to look up all topics that may match would take long beside it")

    def read(self, count: int) -> None:
        self.entries += count
        if self.entries > MOST_ENTRIES or self._looked_up_bytes + self.entries * RECORD_BYTES > self._scan_bytes:
            raise TooMuch("the topics have too many messages to be read one by one")


def _spans(
    queues: QueueTable, request: Request, places: tuple[int, int], budget: Budget
) -> Iterator[tuple[Queue, int, int]]:
    """The queues of wanted topics, with the queue_offsets between two places in the log."""
    for topic in _topics(queues, request, budget):
        budget.look_up()
        queue = queues.topic_queue(topic)
        if queue.next_offset:
            first, last = (queues.position_of(queue, place) for place in places)
            budget.read(last - first)
            yield queue, first, last


def _topics(queues: QueueTable, request: Request, budget: Budget) -> Iterator[bytes]:
    """The wanted topics, as far as the index knows them."""
    named, matches = request.topics(), request.topic_matcher()
    if named is not None or matches is None:
        yield from named or ()
        return
    for prefix in request.topic_prefixes():
        for topic in queues.topic_names(prefix):
            budget.look_at_names(1)
            if matches(topic):
                yield topic


def _parts(packs: list[tuple[int, bytes]], request: Request) -> list[Selected]:
    """Partitions of about as many bytes each."""
    if not packs:
        return []
    places = np.concatenate([_places(*pack) for pack in packs])
    places = places[np.argsort(places["log_offset"])]
    sizes = np.cumsum(places["size"], dtype=np.int64)
    parts = parts_of(max(int(sizes[-1]), len(places) * RECORD_BYTES), request)
    cuts = np.searchsorted(sizes, [int(sizes[-1]) * i // parts for i in range(1, parts)])
    return [Selected(part.tobytes()) for part in np.split(places, cuts) if len(part)]


def _places(first: int, pack: bytes) -> NDArray[np.void]:
    entries = np.frombuffer(pack, ENTRY)
    places = np.empty(len(entries), PLACE)
    places["log_offset"], places["size"] = entries["log_offset"], entries["size"]
    places["queue_offset"] = np.arange(first, first + len(entries))
    return places


def selected_rows(request: Request, schema: pa.Schema, wanted: Selected) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost if some are kept neither in the log nor in the tier, unless data may be
    lost.
    """
    log = LogFolder(request.path)
    history = LogAndTier(log, request)
    places = np.frombuffer(wanted.places, PLACE)
    offsets = places["log_offset"]

    def of_log(start: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        left = places[(offsets >= start) & (offsets < end)]
        piece = np.cumsum(left["size"], dtype=np.int64) // PIECE_BYTES
        for some in np.split(left, np.flatnonzero(np.diff(piece)) + 1):
            at, sizes = np.ascontiguousarray(some["log_offset"]), np.ascontiguousarray(some["size"])
            messages, kept = log.messages_at(at, sizes, not request.fail_on_data_loss)
            if not kept.all() and history.has_tier and at[0] < log.base():
                raise DataLost(f"{log.path}: log_offset {at[0]} is not kept any more")  # the tier has it
            if len(messages):
                batch = record_batch(messages, schema, pa.array(some["queue_offset"][kept]))
                yield batch, int(some["log_offset"][-1]) + 1

    def of_tier(start: int, end: int) -> Iterator[pa.RecordBatch]:
        return history.tier.rows(request, schema, history.tier.whole(start, end))

    if len(places):
        yield from history.pieces(int(offsets[0]), int(offsets[-1]) + 1, of_tier, of_log)
