"""Turns verified log bytes into Arrow RecordBatches: a column at a time, and only the requested columns.

Records are 8-byte aligned, so numpy gathers their header fields; the compiled leaf gathers parts of varying length. No
Python runs per record; only topics are looked at in Python, each distinct one once per piece.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.records._columns import find_attribute, find_messages, find_pairs, find_properties, gather
from store.records.compression import BadFrame, plain, stated_bytes
from store.records.publish_properties import COLUMN_PROPERTIES, ValueForm
from store.records.records import RECORD_HEADER_BYTES, Attribute, RecordFlag

MOST_ROWS = 16_384  # of a RecordBatch
MOST_PLAIN_BYTES = 64 << 20  # of a RecordBatch's payloads, once they are decompressed
US_PER_MS = 1000
# A carried message is in the log a second time, and a live-only one is in no history.
NOT_HISTORY = RecordFlag.LIVE_ONLY | RecordFlag.CARRIED | RecordFlag.DELAYED
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

Array = NDArray[np.int64]


@dataclass(frozen=True)
class ColumnParts:
    """Some bytes of each message: where they begin, and their length (-1: absent)."""

    starts: Array
    lengths: NDArray[np.int32]


class Messages:
    """The messages of a piece of the log: `data` begins at `log_offset`; message i at data[positions[i]].

    `gap`: log_offset of a GAP record in the piece, where messages were lost; None: there is none.
    """

    def __init__(self, data: NDArray[np.uint8], log_offset: int, positions: Array, gap: int | None = None) -> None:
        self.data = data
        self.log_offset = log_offset
        self.positions = positions
        self.gap = gap

    @classmethod
    def find(cls, data: NDArray[np.uint8], log_offset: int) -> "Messages":
        """The messages of history in verified bytes: each once, batches opened."""
        positions = np.empty(len(data) // RECORD_HEADER_BYTES + 1, np.int64)
        count, gap = find_messages(data, positions, NOT_HISTORY)
        return cls(data, log_offset, positions[:count], None if gap < 0 else log_offset + gap)

    def __len__(self) -> int:
        return len(self.positions)

    def where(self, chosen: NDArray[np.bool_]) -> "Messages":
        return Messages(self.data, self.log_offset, self.positions[chosen])

    def before(self, log_offset: int) -> "Messages":
        count = int(np.searchsorted(self.positions, log_offset - self.log_offset))
        gap = self.gap if self.gap is not None and self.gap < log_offset else None
        return Messages(self.data, self.log_offset, self.positions[:count], gap)

    def first(self, count: int) -> "Messages":
        return Messages(self.data, self.log_offset, self.positions[:count])

    def nearest(self, log_offset: int) -> int:
        """log_offset of the last message that begins at or before this; the piece's beginning if there is none."""
        count = int(np.searchsorted(self.positions, log_offset - self.log_offset, side="right"))
        return self.log_offset + (int(self.positions[count - 1]) if count else 0)

    def position_at(self, timestamp_ms: int) -> int:
        """log_offset of the first message that was stored at this time or later; the piece's end if there is none."""
        late = self.timestamps_ms >= timestamp_ms
        return self.log_offset + (int(self.positions[late.argmax()]) if late.any() else len(self.data))

    def places(self) -> tuple[Array, NDArray[np.int32]]:
        """log_offset and size of each message, from its header."""
        return self._header("<u8", 8).astype(np.int64), self._lengths("<u4", 0)

    def behind(self, i: int) -> int:
        """log_offset after message i."""
        return int(self.log_offset + self.positions[i] + self._header("<u4", 0)[i])

    def batches(self) -> Iterator["Messages"]:
        """The same messages, at most MOST_ROWS at a time."""
        for at in range(0, len(self), MOST_ROWS):
            rows = Messages(self.data, self.log_offset, self.positions[at : at + MOST_ROWS])
            yield from rows.by_plain_size()

    def by_plain_size(self) -> Iterator["Messages"]:
        """The same messages, with payloads of at most MOST_PLAIN_BYTES at a time, or one larger message."""
        if not self._compressed.any():
            yield self
            return
        start, total = 0, 0
        for i, is_frame in enumerate(self._compressed):
            size = stated_bytes(self._stored_payload(i)) if is_frame else int(self.payload.lengths[i])
            if i > start and total + size > MOST_PLAIN_BYTES:
                yield Messages(self.data, self.log_offset, self.positions[start:i])
                start, total = i, 0
            total += size
        yield Messages(self.data, self.log_offset, self.positions[start:])

    def _header(self, dtype: str, at: int) -> NDArray[np.int64]:
        """A field of each header, at byte `at`."""
        kind = np.dtype(dtype)
        whole = len(self.data) // kind.itemsize * kind.itemsize
        return self.data[:whole].view(kind)[(self.positions + at) // kind.itemsize]

    @property
    def flags(self) -> NDArray[np.int64]:
        """RecordFlag of each message."""
        return self._header("u1", 25)

    @property
    def timestamps_ms(self) -> Array:
        """When each message was stored."""
        return self._header("<u8", 16).astype(np.int64)

    # --- parts of the record, in their order

    @cached_property
    def topic(self) -> ColumnParts:
        return ColumnParts(self.positions + RECORD_HEADER_BYTES, self._lengths("<u2", 26))

    @cached_property
    def client_id(self) -> ColumnParts:
        return self._after(self.topic, "<u2", 28)

    @cached_property
    def attributes(self) -> ColumnParts:
        return self._after(self.client_id, "<u2", 30)

    @cached_property
    def properties(self) -> ColumnParts:
        return self._after(self.attributes, "<u4", 32)

    @cached_property
    def payload(self) -> ColumnParts:
        return self._after(self.properties, "<u4", 36)

    def _lengths(self, dtype: str, at: int) -> NDArray[np.int32]:
        return self._header(dtype, at).astype(np.int32)

    def _after(self, part: ColumnParts, dtype: str, at: int) -> ColumnParts:
        return ColumnParts(part.starts + part.lengths, self._lengths(dtype, at))

    @cached_property
    def _found_properties(self) -> tuple[list[ColumnParts], NDArray[np.int32]]:
        """The values of COLUMN_PROPERTIES, and the number of user properties."""
        found = np.empty((len(COLUMN_PROPERTIES), len(self)), np.int64)
        sizes = np.empty((len(COLUMN_PROPERTIES), len(self)), np.int32)
        pair_counts = np.empty(len(self), np.int32)
        find_properties(self.data, self.properties.starts, self.properties.lengths, found, sizes, pair_counts)
        return [ColumnParts(starts, lengths) for starts, lengths in zip(found, sizes, strict=True)], pair_counts

    def distinct_topics(self) -> tuple[list[bytes], NDArray[np.int32]]:
        """The distinct topics, and for each message the index of its topic."""
        topics = pc.dictionary_encode(self.binary(self.topic, pa.binary()))
        return topics.dictionary.to_pylist(), topics.indices.to_numpy()

    # --- columns

    def column(self, name: str) -> pa.Array:
        """A column of COLUMNS, by name."""
        return COLUMNS[name].build(self)

    def binary(self, parts: ColumnParts, type_: pa.DataType) -> pa.Array:
        """The bytes as an array of strings or binaries."""
        offsets = np.empty(len(parts.starts) + 1, np.int32)
        missing = parts.lengths < 0
        present = np.where(missing, 0, parts.lengths) if (any_missing := bool(missing.any())) else parts.lengths
        values = np.empty(int(present.sum(dtype=np.int64)), np.uint8)
        gather(self.data, parts.starts, present, offsets, values)
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if any_missing else None
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(values)]
        return pa.Array.from_buffers(type_, len(parts.starts), buffers)

    def _payload(self) -> pa.Array:
        """The payload as published; null if it was compressed and cannot be decompressed."""
        if not self._compressed.any():
            return self.binary(self.payload, pa.binary())
        payloads = (self._stored_payload(i) for i in range(len(self)))
        plain_ones = [
            _plain(each) if is_frame else each for each, is_frame in zip(payloads, self._compressed, strict=True)
        ]
        return pa.array(plain_ones, pa.binary())

    @cached_property
    def _compressed(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.flags & RecordFlag.COMPRESSED != 0
        return found

    def _stored_payload(self, i: int) -> bytes:
        start = int(self.payload.starts[i])
        return self.data[start : start + int(self.payload.lengths[i])].tobytes()

    def _qos(self) -> pa.Array:
        return pa.array((self.flags & RecordFlag.QOS_MASK).astype(np.int32))

    def _retain(self) -> pa.Array:
        return pa.array(self.flags & RecordFlag.RETAIN != 0)

    def _timestamp(self) -> pa.Array:
        times_us = self.timestamps_ms * US_PER_MS
        return pa.array(times_us).view(pa.timestamp("us", tz="UTC"))

    def _log_offset(self) -> pa.Array:
        return pa.array(self._header("<u8", 8).astype(np.int64))

    @cached_property
    def key_parts(self) -> ColumnParts | None:
        return self._attribute(Attribute.KEY)

    @cached_property
    def tag_parts(self) -> ColumnParts | None:
        return self._attribute(Attribute.TAG)

    def _attribute(self, tag: Attribute) -> ColumnParts | None:
        """The attribute with this tag; None: no message has one."""
        if not self.attributes.lengths.any():
            return None
        starts, sizes = np.empty(len(self), np.int64), np.empty(len(self), np.int32)
        find_attribute(self.data, self.attributes.starts, self.attributes.lengths, tag, starts, sizes)
        return ColumnParts(starts, sizes) if (sizes >= 0).any() else None

    def _key(self) -> pa.Array:
        parts = self.key_parts
        return pa.nulls(len(self), pa.string()) if parts is None else self.binary(parts, pa.string())

    def _property(self, row: int, type_: pa.DataType) -> pa.Array:
        if not self.properties.lengths.any():
            return pa.nulls(len(self), type_)
        return self.binary(self._found_properties[0][row], type_)

    def _user_properties(self) -> pa.Array:
        counts = self._found_properties[1]
        offsets = np.zeros(len(self) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        found = np.empty((2, int(offsets[-1])), np.int64)
        sizes = np.empty((2, int(offsets[-1])), np.int32)
        find_pairs(self.data, self.properties.starts, self.properties.lengths, found, sizes)
        sides = [self.binary(ColumnParts(found[i], sizes[i]), pa.string()) for i in range(2)]
        pairs = pa.StructArray.from_arrays(sides, fields=list(PAIRS.value_type))
        return pa.ListArray.from_arrays(pa.array(offsets), pairs).cast(PAIRS)


def _plain(frame: bytes) -> bytes | None:
    try:
        return plain(frame)
    except BadFrame:
        return None


@dataclass(frozen=True)
class Column:
    """A column that can be requested: its type, and the function that builds it."""

    type: pa.DataType
    build: Callable[[Messages], pa.Array]


def _of_property(row: int) -> Column:
    """The column of a line of COLUMN_PROPERTIES."""
    type_ = pa.binary() if COLUMN_PROPERTIES[row].form is ValueForm.BINARY else pa.string()
    return Column(type_, lambda messages: messages._property(row, type_))


def _nulls(type_: pa.DataType) -> Column:
    """A column that is null for every message."""
    return Column(type_, lambda messages: pa.nulls(len(messages), type_))


COLUMNS: dict[str, Column] = {
    "topic": Column(pa.string(), lambda m: m.binary(m.topic, pa.string())),
    "payload": Column(pa.binary(), Messages._payload),
    "qos": Column(pa.int32(), Messages._qos),
    "retain": Column(pa.bool_(), Messages._retain),
    "timestamp": Column(pa.timestamp("us", tz="UTC"), Messages._timestamp),
    "queue": Column(pa.string(), lambda m: m.binary(m.topic, pa.string())),
    "queue_offset": _nulls(pa.int64()),
    "log_offset": Column(pa.int64(), Messages._log_offset),
    "key": Column(pa.string(), Messages._key),
    "client_id": Column(pa.string(), lambda m: m.binary(m.client_id, pa.string())),
    "user_properties": Column(PAIRS, Messages._user_properties),
    **{each.column: _of_property(row) for row, each in enumerate(COLUMN_PROPERTIES)},
}
