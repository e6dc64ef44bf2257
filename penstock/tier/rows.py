"""Turns a range of the log into the rows of a row group: the messages of history, sorted by topic, then by log_offset.

The rows are those that Spark shows (penstock/columns.py); a row has what it takes to deliver the message again exactly.
Python looks at each distinct topic of a row group once, and at no single message, unless payloads are compressed.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.columns import ColumnParts, Messages
from penstock.tier.counters import QueueCounters
from store.namespaces import DEFAULT, MARK, Namespace, namespace_of
from store.records.records import RecordFlag

GROUP_BYTES: Final = 16 << 20  # of log in a row group, or one larger piece
MS_PER_DAY: Final = 86_400_000
_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
_MARK: Final = MARK.encode()
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3

FILE_SCHEMA: Final = pa.schema(
    [
        ("namespace", _NAMES),
        ("topic", _NAMES),
        ("log_offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("queue_offset", pa.int64()),
        ("flags", pa.int16()),
        ("payload", pa.binary()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("client_id", pa.string()),
        ("properties", pa.binary()),
        ("attributes", pa.binary()),
    ]
)
"""The columns of a data file. The table has the column `day` besides, which is the name of the file's folder."""

Array = NDArray[np.int64]


def restored_client_id(namespace: str, client_id: str) -> str:
    """A client identifier as it is in the log, of what the columns `namespace` and `client_id` have."""
    if client_id.startswith(MARK):
        return client_id.removeprefix(MARK + "/")
    return Namespace(namespace).client_id(client_id) if client_id else client_id


@dataclass(frozen=True)
class RowGroup:
    """Rows of one day that begin in [start, end) of the log, sorted; and what the index says of them."""

    start: int
    end: int
    day: int  # since 1970, UTC
    rows: pa.RecordBatch
    topics: list[bytes]  # distinct, sorted, as they are in the log
    counts: list[int]  # of rows of each topic
    first_offsets: list[int]  # queue_offset of each topic's first row
    levels: dict[bytes, tuple[int, int]]  # of each first level: queue_offset of the first of its rows, and their number
    key_hashes: NDArray[np.uint64]  # distinct, sorted


def ranked(names: pa.Array) -> tuple[list[bytes], NDArray[Any]]:
    """The distinct names, sorted; and for each place the number of its name, in two bytes where they are enough."""
    distinct = pc.dictionary_encode(names)
    order = pc.array_sort_indices(distinct.dictionary).to_numpy()
    rank = np.empty(len(order), np.uint16 if len(order) <= 1 << 16 else np.uint32)
    rank[order] = np.arange(len(order))
    return distinct.dictionary.take(pa.array(order)).to_pylist(), rank[distinct.indices.to_numpy()]


def place_of(names: pa.BinaryArray, name: bytes) -> int:
    """Where a name stands among sorted ones, or would stand."""
    return bisect_left(range(len(names)), name, key=lambda at: names[at].as_py())


def repeated(names: pa.Array, numbers: NDArray[Any]) -> pa.DictionaryArray:
    """A column with one of a few texts in each row, by its number."""
    distinct = names.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(pa.array(numbers)), distinct.dictionary)


class SortedMessages:
    """Messages of a piece of the log, in the order of their rows."""

    def __init__(self, messages: Messages) -> None:
        self.topics, ranks = ranked(messages.binary(messages.topic, pa.binary()))
        self.counts: Array = np.bincount(ranks, minlength=len(self.topics))
        order = np.argsort(ranks, kind="stable")  # by digits, where two bytes are enough
        self.messages = Messages(messages.data, messages.log_offset, messages.positions[order])

    @cached_property
    def of_topic(self) -> Array:
        """For each row the number of its topic."""
        return np.repeat(np.arange(len(self.topics)), self.counts)

    def queue_offsets(self, firsts: list[int]) -> pa.Array:
        """The queue_offset of each row, from that of each topic's first row."""
        starts = np.cumsum(self.counts) - self.counts
        return pa.array(np.arange(len(self.messages)) + np.repeat(np.array(firsts, np.int64) - starts, self.counts))

    def rows(self, firsts: list[int]) -> pa.RecordBatch:
        found = self.messages
        namespaces, names = plain_topics(self.topics)
        columns = [
            repeated(pa.array(namespaces, pa.string()), self.of_topic),
            repeated(pa.array(names, pa.string()), self.of_topic),
            found.column("log_offset"),
            found.column("timestamp"),
            self.queue_offsets(firsts),
            self._flags(),
            self.payload,
            _text(found.key_parts, found),
            _text(found.tag_parts, found),
            self._client_ids(namespaces),
            found.binary(found.properties, pa.binary()),
            found.binary(found.attributes, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)

    @cached_property
    def payload(self) -> pa.Array:
        return self.messages.column("payload")

    def _flags(self) -> pa.Array:
        """Without COMPRESSED, but where the payload cannot be decompressed, and is null."""
        flags = self.messages.flags.astype(np.int16)
        unreadable = self.payload.is_null().to_numpy(zero_copy_only=False)
        return pa.array(np.where(unreadable, flags, flags & ~np.int16(RecordFlag.COMPRESSED)))

    def _client_ids(self, namespaces: list[str]) -> pa.Array:
        found = _text(self.messages.client_id, self.messages)
        if not any(namespaces) and not pc.any(pc.starts_with(found, MARK)).as_py():
            return found
        ids, of_topic = found.to_pylist(), self.of_topic.tolist()
        return pa.array([plain_client_id(namespaces[of_topic[i]], each) for i, each in enumerate(ids)], pa.string())


def row_groups(messages: Messages, end: int, counters: QueueCounters) -> Iterator[RowGroup]:
    """The row groups of a piece of the log that ends at `end`: more than one if a day ends, or payloads are large."""
    days = messages.timestamps_ms // MS_PER_DAY
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(messages)]
    start = messages.log_offset
    for first, behind in pairwise(cuts):
        of_day = Messages(messages.data, messages.log_offset, messages.positions[first:behind])
        parts = list(of_day.by_plain_size())
        for number, part in enumerate(parts):
            first += len(part)
            is_last = first == len(messages) and number == len(parts) - 1
            until = end if is_last else messages.log_offset + int(messages.positions[first])
            yield _row_group(part, start, until, int(days[first - 1]), counters)
            start = until


def _row_group(messages: Messages, start: int, end: int, day: int, counters: QueueCounters) -> RowGroup:
    found = SortedMessages(messages)
    counts = found.counts.tolist()
    firsts = counters.take(found.topics, counts)
    of_levels = counted_by_level(found.topics, counts)
    starts = counters.take([level + b"/#" for level in of_levels], list(of_levels.values()))
    levels = {level: (at, count) for (level, count), at in zip(of_levels.items(), starts, strict=True)}
    keys = messages.key_parts
    hashes = key_hashes(messages.data, keys.starts, keys.lengths) if keys is not None else np.empty(0, np.uint64)
    return RowGroup(start, end, day, found.rows(firsts), found.topics, counts, firsts, levels, hashes)


def counted_by_level(topics: list[bytes], counts: list[int]) -> dict[bytes, int]:
    """How many messages each first level has, of those of some topics."""
    found: dict[bytes, int] = {}
    for topic, count in zip(topics, counts, strict=True):
        level = topic.partition(b"/")[0]
        found[level] = found.get(level, 0) + count
    return found


def key_hashes(data: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.uint64]:
    """FNV-1a of 64 bits of each distinct key, sorted: it says where a key may be, and never that it is there."""
    have = lengths > 0
    starts, lengths = starts[have], lengths[have]
    by_length = np.argsort(-lengths, kind="stable")  # so those that still have a byte are the first ones
    starts, lengths = starts[by_length], lengths[by_length]
    hashes = np.full(len(starts), _FNV_OFFSET, np.uint64)
    for at in range(int(lengths[0]) if len(lengths) else 0):
        left = int(np.searchsorted(-lengths, -at, side="left"))
        hashes[:left] = (hashes[:left] ^ data[starts[:left] + at]) * np.uint64(_FNV_PRIME)
    return np.unique(hashes)


def hash_of_key(key: bytes) -> np.uint64:
    """As key_hashes() has it."""
    found = _FNV_OFFSET
    for byte in key:
        found = (found ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return np.uint64(found)


def plain_topics(topics: list[bytes]) -> tuple[list[str], list[str]]:
    """Namespaces and plain names of topics as they are in the log. What no client could name is left as it is."""
    namespaces, names = [], []
    for topic in topics:
        of, plain = DEFAULT, topic.decode(errors="replace")
        if topic.startswith(_MARK):
            of, plain = _of_namespace(plain)
        namespaces.append(of.name)
        names.append(plain)
    return namespaces, names


def _of_namespace(topic: str) -> tuple[Namespace, str]:
    found = namespace_of(topic)
    plain = found.plain_topic(topic)
    return (found, plain) if found.topic(plain) == topic else (DEFAULT, topic)


def plain_client_id(namespace: str, client_id: str) -> str:
    """Without the prefix of its topic's namespace, if restored_client_id() then finds it: see docs/tier.md."""
    for text in (Namespace(namespace).plain_client_id(client_id), client_id):
        if restored_client_id(namespace, text) == client_id:
            return text
    return f"{MARK}/{client_id}"


def _text(parts: ColumnParts | None, messages: Messages) -> pa.Array:
    """A column of texts; null where there is none. What is not UTF-8, as no store accepts it, is replaced."""
    if parts is None:
        return pa.nulls(len(messages), pa.string())
    found = messages.binary(parts, pa.binary())
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else each.decode(errors="replace") for each in found.to_pylist()])
