"""Merges sorted ranges of the log into wider ones: rows by topic, then by log_offset, over several row groups.

Of each range that is merged one row group is in memory. The indexes say which rows come next, so no rows are compared.
Rows and their order in the log stay as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.tier.data_files import DataFile, decoding, read_footer, read_row_group, row_group_places
from penstock.tier.errors import ObjectDamaged
from penstock.tier.files import index_of
from penstock.tier.objects import ObjectFolder
from penstock.tier.rows import (
    FILE_SCHEMA,
    GROUP_BYTES,
    RowGroup,
    counted_by_level,
    key_hashes,
    place_of,
    ranked,
    repeated,
)

ROW_BYTES: Final = 100  # of a row in memory, besides what its row group has once it is decompressed
PARTS_OF_A_GROUP: Final = 4
_KEY: Final = FILE_SCHEMA.get_field_index("key")
_RANGES, _TOPICS = [0, 1, 2, 4], [3]  # columns of an index

Places = NDArray[np.int64]


@dataclass(frozen=True)
class SortedRange:
    """Adjacent row groups of a file with the rows of [start, end) of the log, which are sorted over all of them."""

    file: DataFile
    footer: pq.FileMetaData
    groups: range
    start: int
    end: int
    levels: dict[bytes, int]  # of each first level the queue_offset of its first message here
    behind: dict[bytes, int]  # and the one after its last message here
    size_bytes: int  # in storage
    memory_bytes: int  # of its largest row group, about

    @property
    def rows(self) -> int:
        return sum(self.footer.row_group(group).num_rows for group in self.groups)

    @property
    def has_keys(self) -> bool:
        """Whether a row has a key."""
        keys = [self.footer.row_group(group).column(_KEY) for group in self.groups]
        return any(column.statistics is None or column.statistics.null_count < column.num_values for column in keys)


def sorted_ranges(objects: ObjectFolder, file: DataFile) -> list[SortedRange]:
    """The sorted ranges of a file, in its order. Raises TierError."""
    footer = read_footer(objects, file)
    index = _read_index(objects, file, _RANGES)
    with decoding(objects, index_of(file.path)):
        rows = index.read_all()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if rows["rows"].to_pylist() != [group.num_rows for group in groups]:
        raise ObjectDamaged(f"{objects.url}/{index_of(file.path)}", "it does not describe its file")
    found = []
    places = list(zip(rows["start"].to_pylist(), rows["end"].to_pylist(), strict=True))
    for (start, end), numbers in groupby(range(len(places)), places.__getitem__):
        of = [*numbers]
        levels: dict[bytes, int] = {}
        behind: dict[bytes, int] = {}
        for number in of:
            entries = rows["levels"][number].values
            columns = (entries.field(name).to_pylist() for name in ("level", "first_queue_offset", "count"))
            for name, first, count in zip(*columns, strict=True):
                levels[name] = first
                behind[name] = behind.get(name, first) + count
        sizes = [until - since for since, until in (row_group_places(footer, number) for number in of)]
        memory = max(groups[number].total_byte_size + groups[number].num_rows * ROW_BYTES for number in of)
        groups_of = range(of[0], of[-1] + 1)
        found.append(SortedRange(file, footer, groups_of, start, end, levels, behind, sum(sizes), memory))
    return found


def _read_index(objects: ObjectFolder, file: DataFile, columns: list[int]) -> pa.RecordBatchFileReader:
    name = index_of(file.path)
    data = objects.get(name)
    with decoding(objects, name):
        return pa.ipc.open_file(data, options=pa.ipc.IpcReadOptions(included_fields=columns))


class SortedRows(NamedTuple):
    """Rows by topic, then by log_offset; the topics as they are in the log, and how many rows each has."""

    rows: pa.RecordBatch
    topics: list[bytes]
    counts: Places

    def between(self, first: int, behind: int) -> "SortedRows":
        ends = np.cumsum(self.counts)
        one = int(np.searchsorted(ends, first, side="right"))
        other = int(np.searchsorted(ends, behind, side="left")) + 1
        cuts = np.concatenate(([first], np.clip(ends[one:other], first, behind)))
        return SortedRows(self.rows.slice(first, behind - first), self.topics[one:other], cuts[1:] - cuts[:-1])

    def cut(self, most_bytes: int) -> Iterator["SortedRows"]:
        """The same rows, at most so many bytes at a time, or one larger row."""
        payloads = self.rows.column("payload")
        lengths = np.diff(np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1])
        besides = (self.rows.nbytes - int(lengths.sum())) // len(lengths)
        ends = np.cumsum(lengths + np.int64(besides))
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            behind = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
            yield self.between(first, behind)
            first = behind


def joined(parts: Sequence[SortedRows]) -> SortedRows:
    """Parts that follow each other, as one."""
    topics: list[bytes] = []
    counts: list[int] = []
    for part in parts:
        more = part.counts.tolist()
        if topics and part.topics[0] == topics[-1]:
            counts[-1] += more[0]
            topics += part.topics[1:]
            counts += more[1:]
        else:
            topics += part.topics
            counts += more
    return SortedRows(pa.concat_batches([part.rows for part in parts]), topics, np.array(counts))


class _Source:
    """The place that a merge has come to in one of the ranges that it merges."""

    def __init__(self, objects: ObjectFolder, of: SortedRange, index: pa.RecordBatchFileReader) -> None:
        self._objects, self._of, self._index = objects, of, index
        self._waiting = iter(of.groups)
        self._left = len(of.groups)  # row groups that are not in memory yet
        self._rows: Any = None
        self._names = pa.array([], pa.binary())
        self._ends: Places = np.empty(0, np.int64)  # of each topic the row after its last one
        self._row_bytes = 1.0
        self._at = 0  # of the topics

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left of the row group in memory."""
        return self._at == len(self._names)

    @property
    def has_more(self) -> bool:
        """Whether there are more row groups than the one in memory."""
        return self._left > 0

    def load(self) -> pa.RecordBatch:
        """Take the next row group into memory, in place of the one that is used up."""
        self._rows = None
        group = next(self._waiting)
        self._left -= 1
        file = self._of.file
        with decoding(self._objects, index_of(file.path)):
            topics = self._index.get_batch(group).column("topics").values
        rows = read_row_group(self._objects, file, self._of.footer, group).combine_chunks()
        (self._rows,) = rows.to_batches()
        self._names = topics.field("topic")
        self._ends = np.cumsum(topics.field("count").to_numpy(), dtype=np.int64)
        if int(self._ends[-1]) != len(self._rows):
            raise ObjectDamaged(f"{self._objects.url}/{index_of(file.path)}", "it counts other rows")
        self._row_bytes = max(1.0, self._rows.nbytes / len(self._rows))
        self._at = 0
        return self._rows

    def is_at(self, topic: bytes) -> bool:
        """Whether rows of this topic come next, and are in memory."""
        return self._at < len(self._names) and bool(self._names[self._at].as_py() == topic)

    def limit(self, most_bytes: int) -> bytes | None:
        """The topic before which about so many bytes lie, all of them in memory; None: these are the last ones."""
        row = self._begins_at + int(most_bytes / self._row_bytes)
        if row < len(self._rows):
            found: bytes = self._names[int(np.searchsorted(self._ends, row, side="right"))].as_py()
            return found
        return self._names[-1].as_py() if self.has_more else None

    @property
    def _begins_at(self) -> int:
        return int(self._ends[self._at - 1]) if self._at else 0

    def take_before(self, limit: bytes | None) -> SortedRows | None:
        """The rows of the topics before this one; None: there are none."""
        until = len(self._names) if limit is None else place_of(self._names, limit)
        return self._take(until) if until > self._at else None

    def take_topic(self) -> SortedRows:
        """The rows of the next topic that are in memory."""
        return self._take(self._at + 1)

    def _take(self, until: int) -> SortedRows:
        first, behind = self._begins_at, int(self._ends[until - 1])
        counts = np.diff(self._ends[self._at : until], prepend=first)
        names = self._names.slice(self._at, until - self._at).to_pylist()
        self._at = until
        return SortedRows(self._rows.slice(first, behind - first), names, counts)


class RangeMerge:
    """Merges ranges of one day, in the order of the log, into one range."""

    def __init__(self, objects: ObjectFolder, ranges: Sequence[SortedRange], group_bytes: int = GROUP_BYTES) -> None:
        self.start = min(each.start for each in ranges)
        self.end = max(each.end for each in ranges)
        self.checksum = 0  # of the rows that were read
        self._group_bytes = group_bytes
        self._levels: dict[bytes, int] = {}
        for each in reversed(ranges):
            self._levels |= each.levels
        indexes = {each.file.path: _read_index(objects, each.file, _TOPICS) for each in ranges}
        self._sources = [_Source(objects, each, indexes[each.file.path]) for each in ranges]
        self._parts: list[SortedRows] = []
        self._size_bytes = 0

    def row_groups(self, day: int) -> Iterator[RowGroup | None]:
        """The row groups of the wider range; None after each step of the work that gave none."""
        while self._sources:
            for source in self._sources:
                if source.is_used_up:
                    self._load(source)
                    yield None
            for rows in self._next():
                for part in [rows] if rows.rows.nbytes <= self._group_bytes else rows.cut(self._group_bytes):
                    if self._size_bytes + part.rows.nbytes > self._group_bytes and self._parts:
                        yield self._row_group(day)
                    self._parts.append(part)
                    self._size_bytes += part.rows.nbytes
            self._sources = [each for each in self._sources if each.has_more or not each.is_used_up]
        if self._parts:
            yield self._row_group(day)

    def _load(self, source: _Source) -> None:
        self.checksum += checksum(source.load())

    def _next(self) -> Iterator[SortedRows]:
        """The rows of the next topics, of which all that there is is in memory; or those of one topic in turn."""
        share = self._group_bytes // (PARTS_OF_A_GROUP * len(self._sources))
        limits = [found for source in self._sources if (found := source.limit(share)) is not None]
        limit = min(limits, default=None)
        taken = [rows for source in self._sources if (rows := source.take_before(limit)) is not None]
        if taken:
            yield _sorted(taken)
            return
        assert limit is not None
        for source in self._sources:
            while source.is_at(limit):
                yield _sorted([source.take_topic()])
                if source.is_used_up and source.has_more:
                    self._load(source)

    def _row_group(self, day: int) -> RowGroup:
        found = joined(self._parts)
        self._parts, self._size_bytes = [], 0
        firsts = pa.array(np.cumsum(found.counts) - found.counts)
        of_topic = np.repeat(np.arange(len(found.topics)), found.counts)
        columns = [
            repeated(column.take(firsts), of_topic) if pa.types.is_dictionary(field.type) else column
            for column, field in zip(found.rows.columns, FILE_SCHEMA, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)
        counts = found.counts.tolist()
        queue_offsets = rows.column("queue_offset").take(firsts).to_pylist()
        levels = {
            level: (self._levels[level], count) for level, count in counted_by_level(found.topics, counts).items()
        }
        hashes = _hashes_of(rows.column("key"))
        return RowGroup(self.start, self.end, day, rows, found.topics, counts, queue_offsets, levels, hashes)


def checksum(rows: pa.RecordBatch) -> int:
    """Of which rows these are, in any order."""
    return int(rows.column("log_offset").to_numpy().sum())


def _sorted(taken: Sequence[SortedRows]) -> SortedRows:
    """Rows of some ranges, in the order of the log, as those of one. A copy: a slice keeps a row group in memory."""
    names = pa.array([name for each in taken for name in each.topics], pa.binary())
    topics, ranks = ranked(names)
    of_topic = np.repeat(ranks, np.concatenate([each.counts for each in taken]))
    order = np.argsort(of_topic, kind="stable")
    rows = pa.concat_batches([each.rows for each in taken]).take(pa.array(order))
    return SortedRows(rows, topics, np.bincount(of_topic, minlength=len(topics)))


def _hashes_of(keys: pa.StringArray) -> NDArray[np.uint64]:
    if keys.null_count == len(keys):
        return np.empty(0, np.uint64)
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    return key_hashes(np.frombuffer(data or b"", np.uint8), places[:-1], np.diff(places))
