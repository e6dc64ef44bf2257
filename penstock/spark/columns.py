"""Rows of messages for Spark: those of the chosen topics, with plain names, in batches of a good size."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import Messages
from store.namespaces import Namespace

JOINED_BYTES = 1 << 20  # of a RecordBatch joined from several
MOST_TOPICS_REMEMBERED = 100_000
OF_NAMESPACE = ("topic", "queue", "client_id")  # columns with names that have the namespace's prefix in the log


class TopicChoice:
    """Chooses messages by topic. Remembers the result for up to MOST_TOPICS_REMEMBERED topics."""

    def __init__(self, matches: Callable[[bytes], bool]) -> None:
        self._matches = matches
        self._known: dict[bytes, bool] = {}

    def of(self, messages: Messages) -> Messages:
        if not len(messages):
            return messages
        topics, numbers = messages.distinct_topics()
        wanted = np.fromiter(map(self.is_wanted, topics), np.bool_, len(topics))
        return messages if wanted.all() else messages.where(wanted[numbers])

    def is_wanted(self, topic: bytes) -> bool:
        """By its name in the log."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= MOST_TOPICS_REMEMBERED:
                self._known.clear()
            known = self._known[topic] = self._matches(topic)
        return known


def record_batch(messages: Messages, schema: pa.Schema, queue_offset: pa.Array | None = None) -> pa.RecordBatch:
    """The columns of a schema, whose names are in COLUMNS; queue_offset is not in the records."""
    columns = {} if queue_offset is None else {"queue_offset": queue_offset}
    arrays = [columns[name] if name in columns else messages.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_names(batches: Iterator[pa.RecordBatch], names: Namespace) -> Iterator[pa.RecordBatch]:
    """The same rows, with names as the clients of their namespace know them."""
    if not names.name:
        yield from batches
        return
    first_level = rf"^{re.escape(names.prefix)}(?:/|(\$))"
    for batch in batches:
        columns = [
            pc.replace_substring_regex(column, first_level, r"\1") if name in OF_NAMESPACE else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches if they are small: each batch costs Spark and its worker some 0.3 ms."""
    some: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if some and size_bytes + batch.nbytes > JOINED_BYTES:
            yield _as_one(some)
            some, size_bytes = [], 0
        some.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= JOINED_BYTES:
            yield _as_one(some)
            some, size_bytes = [], 0
    if some:
        yield _as_one(some)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (one,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return one
