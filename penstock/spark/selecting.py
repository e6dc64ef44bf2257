"""A few topics out of many: their light queues say where their messages stand, and only those are read.

As far as the index's copy knows; what came later is scanned. The rows are those of a scan.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from penstock.spark.columns import record_batch
from penstock.spark.errors import IndexUnreadable
from penstock.spark.folder import PIECE_BYTES, LogFolder
from penstock.spark.options import Request
from penstock.spark.queue_offsets import index_of, queues_of
from penstock.spark.reading import parts_of

READ_COST_BYTES = 16 << 10  # scanned in the time that it takes to read one record by itself
MOST_TOPICS = 1_000  # looked up by the driver
MOST_ENTRIES = 1_000_000  # 20 bytes each, sent to the tasks

# docs/formats.md, and where in its queue it stands.
ENTRY = np.dtype([("log_offset", "<i8"), ("size", "<i4"), ("tag", "<u8")])
PLACE = np.dtype([("log_offset", "<i8"), ("queue_offset", "<i8"), ("size", "<i4")])


@dataclass
class Selected(InputPartition):
    """Messages by their places in the log, ascending: PLACEs as bytes."""

    places: bytes


def select(log: LogFolder, request: Request, start: int, end: int) -> tuple[list[Selected], int]:
    """Partitions of what is read by place, and the log_offset from which on the log is scanned."""
    topics = request.topics()
    if topics is None or len(topics) > MOST_TOPICS or start >= end:
        return [], start
    with ExitStack() as copies:
        try:
            index = index_of(log, copies)
        except IndexUnreadable:
            index = None
        until = 0 if index is None else min(end, index.applied_offset)
        if index is None or until <= start:
            return [], start
        queues = queues_of(index, log)
        spans = []
        for topic in topics:
            queue = queues.topic_queue(topic)
            spans.append((queue, queues.position_of(queue, start), queues.position_of(queue, until)))
        count = sum(last - first for _, first, last in spans)
        if count > MOST_ENTRIES or count * READ_COST_BYTES > until - start:
            return [], start
        packs = [pack for span in spans for pack in queues.stored_entries(*span)]
    return _parts(packs, request), until


def _parts(packs: list[tuple[int, bytes]], request: Request) -> list[Selected]:
    """Of about as many bytes each."""
    if not packs:
        return []
    places = np.concatenate([_places(*pack) for pack in packs])
    places = places[np.argsort(places["log_offset"])]
    sizes = np.cumsum(places["size"], dtype=np.int64)
    parts = parts_of(max(int(sizes[-1]), len(places) * READ_COST_BYTES), request)
    cuts = np.searchsorted(sizes, [int(sizes[-1]) * i // parts for i in range(1, parts)])
    return [Selected(part.tobytes()) for part in np.split(places, cuts) if len(part)]


def _places(first: int, pack: bytes) -> NDArray[np.void]:
    entries = np.frombuffer(pack, ENTRY)
    places = np.empty(len(entries), PLACE)
    places["log_offset"], places["size"] = entries["log_offset"], entries["size"]
    places["queue_offset"] = np.arange(first, first + len(entries))
    return places


def selected_rows(request: Request, schema: pa.Schema, wanted: Selected) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    log = LogFolder(request.path)
    places = np.frombuffer(wanted.places, PLACE)
    piece = np.cumsum(places["size"], dtype=np.int64) // PIECE_BYTES
    for some in np.split(places, np.flatnonzero(np.diff(piece)) + 1):
        offsets, sizes = np.ascontiguousarray(some["log_offset"]), np.ascontiguousarray(some["size"])
        messages, kept = log.messages_at(offsets, sizes, not request.fail_on_data_loss)
        if len(messages):
            yield record_batch(messages, schema, pa.array(some["queue_offset"][kept]))
