"""The rows of one row group in memory, and the way back: from rows to the messages that the log had, in its format."""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lightqueue.queues.matching import has_wildcard, literal_prefix
from penstock.tier.rows import place_of, restored_client_id
from store.namespaces import MARK, namespace_of
from store.records._columns import MessageColumns, Parts
from store.topics import matches

Rows = NDArray[np.int64]
_MARK: Final = MARK.encode()
READ_COLUMNS: Final = [
    *("log_offset", "timestamp", "queue_offset", "flags", "payload", "key", "tag", "client_id"),
    *("properties", "attributes"),
]
"""Topics are those of the index."""
READ_AS_DICTIONARY: Final = ["client_id"]
EVERYTHING: Final = ""
"""In place of a topic filter: the messages of all topics, also of those that `#` does not match."""


class CountedRows(NamedTuple):
    """Rows of a queue: queue_offset of the first one, of a first level the first one of its range; and their number."""

    first: int
    number: int


class GroupIndex(NamedTuple):
    """What the index says of a row group whose rows begin in [start, end) of the log."""

    start: int
    end: int
    rows: int
    topics: pa.StructArray  # of files.INDEX_SCHEMA
    levels: pa.StructArray
    keys: NDArray[np.uint64]
    nbytes: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> GroupIndex:
        start, end, rows = (batch.column(name)[0].as_py() for name in ("start", "end", "rows"))
        topics, levels, keys = (batch.column(name).values for name in ("topics", "levels", "keys"))
        return cls(start, end, rows, topics, levels, keys.to_numpy(), batch.nbytes)

    @property
    def names(self) -> pa.BinaryArray:
        """Topics as they are in the log, sorted."""
        return self.topics.field("topic")

    def has_key(self, key_hash: np.uint64) -> bool:
        """Whether a key with this hash may be here."""
        at = int(np.searchsorted(self.keys, key_hash))
        return at < len(self.keys) and self.keys[at] == key_hash

    def matching(self, topic_filter: str) -> Rows:
        """The numbers of the topics that a filter matches."""
        names = self.names
        if topic_filter == EVERYTHING:
            return np.arange(len(names))
        if not has_wildcard(topic_filter):
            topic = topic_filter.encode()
            at = place_of(names, topic)
            is_there = at < len(names) and names[at].as_py() == topic
            return np.arange(at, at + is_there)
        prefix = literal_prefix(topic_filter).encode()
        first = place_of(names, prefix)
        behind = place_of(names, prefix + b"\xff") if prefix else len(names)
        if topic_filter == f"{prefix.decode()}/#":
            return self._below(first, behind, prefix)
        found = [matches(topic_filter, name.decode(errors="replace")) for name in names[first:behind].to_pylist()]
        return first + np.flatnonzero(np.array(found, np.bool_))

    def _below(self, first: int, behind: int, prefix: bytes) -> Rows:
        """Of the topics that begin with a prefix, its own and those of levels below."""
        names = self.names[first:behind]
        fits = pc.or_(pc.starts_with(names, prefix + b"/"), pc.equal(names, prefix))
        found: Rows = first + np.flatnonzero(fits.to_numpy(zero_copy_only=False))
        return found

    def last_queue_offset(self, topic: bytes) -> int | None:
        """Of the topic's last row; None: it has none."""
        found = self.counted(topic, None)
        return None if found is None else found.first + found.number - 1

    def counted(self, topic: bytes, level: bytes | None) -> CountedRows | None:
        """What is here of a topic's queue, or of that of a first level if one is given; None: nothing."""
        entries, names = (self.topics, self.names) if level is None else (self.levels, self.levels.field("level"))
        name = topic if level is None else level
        at = place_of(names, name)
        if at == len(names) or names[at].as_py() != name:
            return None
        return CountedRows(entries[at]["first_queue_offset"].as_py(), entries[at]["count"].as_py())

    def rows_of(self, topics: Rows) -> Rows:
        """The rows of some topics, by topic."""
        if len(topics) == len(self.topics):
            return np.arange(self.rows)
        counts = self.topics.field("count").to_numpy()[topics].astype(np.int64)
        starts = self.topics.field("first_row").to_numpy()[topics] - (np.cumsum(counts) - counts)
        found: Rows = np.arange(int(counts.sum())) + np.repeat(starts, counts)
        return found


class ReadGroup:
    """The rows of a row group. Several threads may use it."""

    def __init__(self, index: GroupIndex, rows: pa.Table) -> None:
        """`rows`: READ_COLUMNS of the data file."""
        whole = rows.combine_chunks()
        columns = {name: _one(whole.column(name)) for name in READ_COLUMNS}
        self.log_offsets: Rows = columns["log_offset"].to_numpy()
        self.queue_offsets: Rows = columns["queue_offset"].to_numpy()
        self.timestamps_ms: Rows = columns["timestamp"].view(pa.int64()).to_numpy() // 1000
        self._keys, self._tags = columns["key"], columns["tag"]
        names = index.names
        of_topic = np.repeat(np.arange(len(names), dtype=np.int32), index.topics.field("count").to_numpy())
        self._messages = MessageColumns(
            self.log_offsets,
            self.timestamps_ms,
            columns["flags"].to_numpy(),
            _parts(names, of_topic),
            _restored(columns["client_id"], names, of_topic),
            _parts(columns["attributes"]),
            _parts(columns["properties"]),
            _parts(columns["payload"]),
        )
        self.nbytes = rows.nbytes + 2 * index.nbytes + 24 * len(self.log_offsets)

    def __len__(self) -> int:
        return len(self.log_offsets)

    @cached_property
    def by_offset(self) -> Rows:
        """All rows, in the order of the log."""
        return np.argsort(self.log_offsets)

    def sorted(self, rows: Rows) -> Rows:
        """Rows in the order of the log."""
        if len(rows) == len(self):
            return self.by_offset
        return rows[np.argsort(self.log_offsets[rows])]

    def has_tag(self, rows: Rows, tag: str) -> NDArray[np.bool_]:
        """Of each of the rows, whether it has a tag."""
        return _is_text(self._tags, rows, tag)

    def has_key(self, rows: Rows, key: str) -> NDArray[np.bool_]:
        """Of each of the rows, whether it has a key."""
        return _is_text(self._keys, rows, key)

    def sizes(self, rows: Rows) -> Rows:
        """Of the rows' records, in bytes."""
        sizes = np.empty(len(rows), np.int64)
        self._messages.sizes(rows, sizes)
        return sizes

    def put(self, rows: Rows, places: Rows, to: NDArray[np.uint8]) -> None:
        """Put the rows' records to their places in `to`."""
        self._messages.put(rows, places, to)


def _is_text(column: pa.Array, rows: Rows, text: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(pc.equal(column.take(pa.array(rows)), text), False).to_numpy(False)
    return found


def _restored(client_ids: pa.DictionaryArray, names: pa.BinaryArray, of_topic: NDArray[np.int32]) -> Parts:
    """Client identifiers as they are in the log: with the namespaces of their topics."""
    known = client_ids.dictionary.to_pylist()
    numbers = client_ids.indices.fill_null(len(known)).to_numpy().astype(np.int32)
    known.append("")
    first, behind = place_of(names, _MARK), place_of(names, _MARK + b"\xff")
    spaces = ["", *(namespace_of(name.decode(errors="replace")).name for name in names[first:behind].to_pylist())]
    if not any(spaces):
        is_marked = any(each.startswith(MARK) for each in known)
        texts = [restored_client_id("", each) for each in known] if is_marked else known
        return _parts(pa.array(texts, pa.string()), numbers)
    space_of = np.zeros(len(names), np.int64)
    space_of[first:behind] = np.arange(1, len(spaces))
    pairs, places = np.unique(space_of[of_topic] * len(known) + numbers, return_inverse=True)
    texts = [restored_client_id(spaces[pair // len(known)], known[pair % len(known)]) for pair in pairs.tolist()]
    return _parts(pa.array(texts, pa.string()), places.astype(np.int32))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _parts(column: pa.Array, numbers: NDArray[np.int32] | None = None) -> Parts:
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return Parts(places, np.frombuffer(data or b"", np.uint8), numbers)
