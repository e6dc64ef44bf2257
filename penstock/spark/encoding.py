"""Turns rows into records in log format: a column at a time. No Python runs per row.

The opposite of columns.py. It refuses rows that a store would refuse, while the row's number is still known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.spark.errors import BadRow
from store.namespaces import DEFAULT, MARK, SERVERS_LEVELS, Namespace
from store.records._columns import scatter
from store.records._records import RecordBatch
from store.records.publish_properties import COLUMN_PROPERTIES, USER_PROPERTY
from store.records.records import RECORD_HEADER_BYTES, Attribute, RecordFlag, RecordType

MOST_TEXT_BYTES = 65_535
MOST_SHOWN = 80  # characters of a topic in an error
HEADER = np.dtype(
    [
        ("length", "<u4"),
        ("crc", "<u4"),
        ("log_offset", "<u8"),
        ("timestamp_ms", "<u8"),
        ("type", "u1"),
        ("flags", "u1"),
        ("topic", "<u2"),
        ("client_id", "<u2"),
        ("attributes", "<u2"),
        ("properties", "<u4"),
        ("payload", "<u4"),
    ]
)
_ATTRIBUTE = np.dtype([("tag", "u1"), ("length", "<u2")])
_PROPERTY = np.dtype([("identifier", "u1"), ("length", ">u2")])
_LENGTH = np.dtype([("length", ">u2")])
_MESSAGE = bytes((RecordType.MESSAGE,))

Sizes = NDArray[np.int32]


@dataclass(frozen=True)
class RowParts:
    """Some bytes of each row: where they begin in `data`, and their length."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: Sizes

    @classmethod
    def of(cls, column: pa.Array) -> RowParts:
        """The parts of strings or binaries; empty for a null."""
        if not len(column):
            return cls(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int32))
        _, offsets_buffer, values = column.cast(pa.binary()).buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        data = np.empty(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
        lengths = np.diff(offsets).astype(np.int32)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return cls(data, offsets[:-1].astype(np.int64), lengths)

    @classmethod
    def fixed(cls, rows: NDArray[np.void], present: NDArray[np.bool_] | None = None) -> RowParts:
        """One element of a structured array for each row; empty for rows that are not `present`."""
        size = rows.dtype.itemsize
        lengths = np.full(len(rows), size, np.int32)
        if present is not None:
            lengths[~present] = 0
        return cls(rows.view(np.uint8), np.arange(len(rows), dtype=np.int64) * size, lengths)


def joined(columns: list[RowParts], count: int, align: int = 1) -> RowParts:
    """For each row its parts one after the other, with zeros up to a multiple of `align`."""
    lengths = np.zeros(count, np.int64)
    for column in columns:
        lengths += column.lengths
    lengths += -lengths % align
    ends = np.cumsum(lengths)
    starts = ends - lengths
    data = np.zeros(int(ends[-1]) if count else 0, np.uint8)
    at = starts.copy()
    for column in columns:
        scatter(column.data, column.starts, column.lengths, data, at)
    return RowParts(data, starts, lengths.astype(np.int32))


@dataclass(frozen=True)
class Defaults:
    """Values for rows that do not have them."""

    topic: str | None = None
    qos: int = 1
    retain: bool = False
    names: Namespace = DEFAULT  # of the namespace to which messages are published


class Encoder:
    """Makes records from the rows of one partition, and names the row that cannot be one."""

    def __init__(self, defaults: Defaults, partition: int) -> None:
        self._defaults = defaults
        self._partition = partition
        self._rows = 0  # encoded so far

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Encode a batch. Raises BadRow."""
        count = batch.num_rows
        topics, topic = self._topics(batch)
        payloads = batch.column("payload")
        self._refuse_where(
            pc.is_null(payloads), topics, "payload: it is null; give an empty one to remove a retained message"
        )
        attributes = self._attributes(batch, topics)
        properties = self._properties(batch, topics)
        payload = RowParts.of(payloads)
        headers = np.zeros(count, HEADER)
        headers["type"], headers["flags"] = RecordType.MESSAGE, self._flags(batch, topics)
        for name, parts in (("topic", topic), ("attributes", attributes), ("properties", properties)):
            headers[name] = parts.lengths
        headers["payload"] = payload.lengths
        content = RECORD_HEADER_BYTES + sum(
            part.lengths.astype(np.int64) for part in (topic, attributes, properties, payload)
        )
        headers["length"] = content + -content % 8
        records = joined([RowParts.fixed(headers), topic, attributes, properties, payload], count, 8)
        self._check(records, topics)
        self._rows += count
        return records.data.tobytes()

    def _topics(self, batch: pa.RecordBatch) -> tuple[pa.Array, RowParts]:
        if self._defaults.topic is not None:
            topics = pa.repeat(pa.scalar(self._defaults.topic), batch.num_rows)
        else:
            topics = batch.column("topic")
            self._refuse_where(pc.is_null(topics), topics, "topic: it is null; name one, or give the option topic")
        return topics, self._sized("topic", self._of_log(topics), topics)

    def _of_log(self, topics: pa.Array) -> pa.Array:
        """The topics as in the log. Raises BadRow."""
        names = self._defaults.names
        if not names.name:
            return topics
        texts = topics.cast(pa.string())
        self._refuse_where(
            pc.starts_with(texts, MARK), topics, f"topic: what begins with {MARK} is for the server to publish"
        )
        self._refuse_where(pc.equal(texts, ""), topics, "topic: it is empty")
        behind = pc.replace_substring_regex(texts, "^([^$]|$)", r"/\1")
        return pc.binary_join_element_wise(names.prefix, behind, "")

    def _sized(self, name: str, column: pa.Array, topics: pa.Array, most_bytes: int = MOST_TEXT_BYTES) -> RowParts:
        parts = RowParts.of(column)
        self._refuse_where(parts.lengths > most_bytes, topics, f"{name}: longer than {most_bytes} bytes")
        return parts

    def _flags(self, batch: pa.RecordBatch, topics: pa.Array) -> NDArray[np.uint8]:
        flags = np.full(batch.num_rows, self._defaults.qos, np.int64)
        if "qos" in batch.schema.names:
            flags = pc.fill_null(batch.column("qos").cast(pa.int64()), self._defaults.qos).to_numpy(
                zero_copy_only=False
            )
            self._refuse_where((flags < 0) | (flags > 2), topics, "qos: use 0, 1 or 2")
        retain = np.full(batch.num_rows, self._defaults.retain)
        if "retain" in batch.schema.names:
            retain = pc.fill_null(batch.column("retain"), self._defaults.retain).to_numpy(zero_copy_only=False)
        found: NDArray[np.uint8] = (flags + retain * int(RecordFlag.RETAIN)).astype(np.uint8)
        return found

    def _attributes(self, batch: pa.RecordBatch, topics: pa.Array) -> RowParts:
        count = batch.num_rows
        if "key" not in batch.schema.names:
            return joined([], count)
        keys = batch.column("key")
        parts = self._sized("key", keys, topics, 1024)
        heads = np.empty(count, _ATTRIBUTE)
        heads["tag"], heads["length"] = Attribute.KEY, parts.lengths
        return joined([RowParts.fixed(heads, _is_valid(keys)), parts], count)

    def _properties(self, batch: pa.RecordBatch, topics: pa.Array) -> RowParts:
        parts = []
        for each in COLUMN_PROPERTIES:
            if each.column in batch.schema.names:
                column = batch.column(each.column)
                values = self._sized(each.column, column, topics)
                heads = np.empty(batch.num_rows, _PROPERTY)
                heads["identifier"], heads["length"] = each.identifier, values.lengths
                parts += [RowParts.fixed(heads, _is_valid(column)), values]
        for name in ("user_properties", "headers"):
            if name in batch.schema.names:
                parts.append(self._pairs(name, batch.column(name), topics))
        return joined(parts, batch.num_rows)

    def _pairs(self, name: str, column: pa.Array, topics: pa.Array) -> RowParts:
        """All pairs as properties one after the other, and the bytes of each row among them."""
        offsets = column.offsets.to_numpy().astype(np.int64)
        if pa.types.is_map(column.type):
            keys, items = column.keys, column.items
        else:
            keys, items = (pc.struct_field(column.values, side) for side in ("key", "value"))
        count = len(keys)
        # Pairs that belong to no row, as those of a null may, are skipped below.
        owner = np.searchsorted(offsets, np.arange(count), side="right") - 1
        sides = []
        for side, dtype, values in (("key", _PROPERTY, keys), ("value", _LENGTH, items)):
            wrong = np.zeros(len(column), np.bool_)
            parts = RowParts.of(values)
            bad = values.is_null().to_numpy(zero_copy_only=False) | (parts.lengths > MOST_TEXT_BYTES)
            inside = (owner >= 0) & (owner < len(column))
            wrong[owner[bad & inside]] = True
            self._refuse_where(
                wrong & _is_valid(column),
                topics,
                f"{name}: a {side} that is null, or longer than {MOST_TEXT_BYTES} bytes",
            )
            heads = np.empty(count, dtype)
            if side == "key":
                heads["identifier"] = USER_PROPERTY
            heads["length"] = parts.lengths
            sides += [RowParts.fixed(heads), parts]
        flat = joined(sides, count)
        ends = np.append(flat.starts, len(flat.data))
        starts = ends[offsets[:-1]]
        lengths = (ends[offsets[1:]] - starts).astype(np.int32)
        lengths[~_is_valid(column)] = 0
        return RowParts(flat.data, starts, lengths)

    def _check(self, records: RowParts, topics: pa.Array) -> None:
        """Check the records as the store does. Raises BadRow."""
        names = topics.cast(pa.binary())
        for level in sorted(SERVERS_LEVELS):
            reserved = pc.or_(pc.equal(names, level.encode()), pc.starts_with(names, f"{level}/".encode()))
            self._refuse_where(reserved, topics, f"topic: what begins with {level} is for the server to publish")
        try:
            RecordBatch().extend_checked(records.data.data, _MESSAGE, max(len(records.data), 1))
        except ValueError as error:
            found = re.fullmatch(r"record at byte (\d+): (.*)", str(error))
            if found is None:
                raise
            row = int(np.searchsorted(records.starts, int(found[1]), side="right")) - 1
            raise self._bad(row, topics, found[2]) from None

    def _refuse_where(self, wrong: pa.Array | NDArray[np.bool_], topics: pa.Array, reason: str) -> None:
        rows = np.flatnonzero(wrong if isinstance(wrong, np.ndarray) else wrong.to_numpy(zero_copy_only=False))
        if len(rows):
            raise self._bad(int(rows[0]), topics, reason)

    def _bad(self, row: int, topics: pa.Array, reason: str) -> BadRow:
        topic = topics.cast(pa.binary())[row].as_py()
        shown = "null" if topic is None else repr(topic[:MOST_SHOWN].decode(errors="replace"))
        return BadRow(self._partition, self._rows + row, shown, reason)


def _is_valid(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found
