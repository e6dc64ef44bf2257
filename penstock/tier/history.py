"""The data files of the table as they are read: where a place of the log lies, and the rows that lie there.

A row group is fetched and decoded only if its index says that it has something that is wanted. Row groups that have one
range of the log in common, as compaction makes them, are read together.
"""

from __future__ import annotations

import heapq
import logging
import threading
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.tier.cache import ReadCache
from penstock.tier.commits import TableView
from penstock.tier.data_files import DataFile, decoding, listed_files, read_footer, read_row_group
from penstock.tier.errors import AnotherStoresTable, ObjectMissing, TornCommit
from penstock.tier.files import index_of
from penstock.tier.group import READ_AS_DICTIONARY, READ_COLUMNS, GroupIndex, ReadGroup, Rows
from penstock.tier.lost import LostRanges, lost_ranges
from penstock.tier.objects import ObjectFolder
from penstock.tier.record_part import Selection
from penstock.tier.table import logs_of
from store.files.segment import HEADER_BYTES

log = logging.getLogger("penstock.tier")

MOST_LOST: Final = 65_536  # lost ranges in memory: the newest
SELECTED_BYTES: Final = 300  # in memory, of which rows a filter has in a row group, besides their numbers


class Place(NamedTuple):
    """A row group, and the range of the log that its rows are of."""

    start: int
    end: int
    file: DataFile
    group: int


class Span(NamedTuple):
    """A range of the log, and the row groups that have its rows."""

    start: int
    end: int
    places: list[Place]


class _Selected(NamedTuple):
    """Rows of a row group, in the order of the log."""

    rows: Rows
    log_offsets: Rows

    @property
    def nbytes(self) -> int:
        return SELECTED_BYTES + self.rows.nbytes + self.log_offsets.nbytes


class _Files(NamedTuple):
    """The data files of one version of the table, by their first rows; `lasts`: the greatest last one up to each."""

    by_first: list[DataFile]
    lasts: list[int]
    by_last: list[DataFile]  # the greatest first
    first: int = 0  # log_offset where the history begins
    end: int = 0
    lost: LostRanges = LostRanges()


class _Index(NamedTuple):
    """The index of a data file: as it lies there, and the range of each row group."""

    data: bytes
    ranges: list[tuple[int, int]]

    @property
    def nbytes(self) -> int:
        return len(self.data) + 64 * len(self.ranges)


class _Footer(NamedTuple):
    metadata: pq.FileMetaData

    @property
    def nbytes(self) -> int:
        return int(self.metadata.serialized_size)


class TableHistory:
    """Owner of what was read of the table, for several threads. Every method raises TierError."""

    def __init__(self, objects: ObjectFolder, cache_bytes: int) -> None:
        self._objects = objects
        self.cache = ReadCache(cache_bytes)
        self._refreshing = threading.Lock()
        self._table: TableView | None = None
        self._files = _Files([], [], [])
        self._log = ""  # whose table alone is read; empty: any

    def of_log(self, identity: str) -> None:
        """From now on refresh() refuses the table of another log, as a writer of this log does."""
        self._log = identity

    def refresh(self) -> None:
        """Look at the newest version of the table. Raises AnotherStoresTable."""
        with self._refreshing, self._objects.failures(self._objects.url):
            if self._table is None:
                self._table = TableView.opened(self._objects)
                if self._table is None:
                    raise ObjectMissing(self._objects.url, "there is no table yet")
            else:
                try:
                    self._table.look()
                except TornCommit:
                    self._table = None  # once the commit is deleted there will be another of this version
                    raise
            logs = logs_of(self._objects, self._table.table)
            newest = next(reversed(logs))
            if self._log and newest != self._log:
                raise AnotherStoresTable(self._objects.url, newest, self._log)
            found = sorted(listed_files(self._table.table))
            lasts = list(accumulate((file.last for file in found), max))
            by_last = sorted(found, key=lambda file: -file.last)
            end = self._table.version_of(newest) or 0
            lost = self._read_lost(logs, end)
            self._files = _Files(found, lasts, by_last, next(iter(logs.values())), end, lost)

    def _read_lost(self, logs: dict[str, int], end: int) -> LostRanges:
        """Ranges are put down before the commit that moves the table's end: without that there are no new ones."""
        if end == self._files.end:
            return self._files.lost
        try:
            return LostRanges(lost_ranges(self._objects, logs, end).ranges[-MOST_LOST:])
        except ObjectMissing as error:
            log.error("%s; until then readers are not told of all that is lost", error)
            return self._files.lost

    def lost_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of which there is nothing that have a place in [start, stop), in their order.

        The log begins at `stop`, after a segment's header, or further on: what the newest version does not reach is
        lost too.
        """
        files = self._files
        found = files.lost.between(start, stop)
        end = max(start, files.end)
        if end + HEADER_BYTES < stop:
            found.append((found.pop()[0] if found and found[-1][1] == end else end, stop))
        return found

    @property
    def end(self) -> int:
        """log_offset after the history."""
        return self._files.end

    @property
    def first(self) -> int:
        """log_offset where the history begins."""
        return self._files.first

    @property
    def files(self) -> list[DataFile]:
        """The data files, by their first rows."""
        return self._files.by_first

    # --- where a place of the log lies

    def spans_from(self, start: int) -> Iterator[Span]:
        """The ranges that have rows and end after `start`, in the order of the log."""
        files = self._files
        waiting = iter(files.by_first[bisect_left(files.lasts, start) :])
        file = next(waiting, None)
        found: list[Place] = []
        while found or file is not None:
            while file is not None and (not found or file.first < found[0].end):
                for place in self.places(file):
                    if place.end > start:
                        heapq.heappush(found, place)
                file = next(waiting, None)
            if found:
                first = heapq.heappop(found)
                places = [first]
                while found and found[0].start == first.start:
                    places.append(heapq.heappop(found))
                yield Span(first.start, first.end, places)

    def spans_before(self, before: int) -> Iterator[Span]:
        """The ranges that have rows and begin before a log_offset, the newest first."""
        waiting = (file for file in self._files.by_last if file.first < before)
        file = next(waiting, None)
        found: list[tuple[int, Place]] = []
        while found or file is not None:
            while file is not None and (not found or file.last >= -found[0][0]):
                for place in self.places(file):
                    if place.start < before:
                        heapq.heappush(found, (-place.start, place))
                file = next(waiting, None)
            if found:
                places = [heapq.heappop(found)[1]]
                while found and -found[0][0] == places[0].start:
                    places.append(heapq.heappop(found)[1])
                yield Span(places[0].start, places[0].end, places)

    def places(self, file: DataFile) -> list[Place]:
        """The row groups of a data file."""
        return [Place(*each, file, number) for number, each in enumerate(self._index(file).ranges)]

    # --- what lies there

    def index(self, place: Place) -> GroupIndex:
        """What the index says of a row group."""

        def read() -> GroupIndex:
            with decoding(self._objects, index_of(place.file.path)):
                return GroupIndex.of(pa.ipc.open_file(self._index(place.file).data).get_batch(place.group))

        return self.cache.get(("entry", place.file.path, place.group), read)

    def _index(self, file: DataFile) -> _Index:
        name = index_of(file.path)

        def read() -> _Index:
            data = self._objects.get(name)
            with decoding(self._objects, name):
                options = pa.ipc.IpcReadOptions(included_fields=[0, 1])
                whole = pa.ipc.open_file(data, options=options).read_all()
            return _Index(data, list(zip(whole["start"].to_pylist(), whole["end"].to_pylist(), strict=True)))

        return self.cache.get(("index", file.path), read)

    def group(self, place: Place) -> ReadGroup:
        """The rows of a row group."""

        def read() -> ReadGroup:
            index = self.index(place)
            with decoding(self._objects, place.file.path):
                return ReadGroup(index, self._rows(place.file, place.group))

        return self.cache.get(("rows", place.file.path, place.group), read)

    def has_read(self, place: Place) -> bool:
        """Whether the rows of a row group are in memory, or on their way."""
        return ("rows", place.file.path, place.group) in self.cache

    def selection(self, place: Place, topic_filter: str) -> Selection | None:
        """The rows with the topics that a filter matches; None: there are none."""

        def read() -> _Selected:
            index = self.index(place)
            topics = index.matching(topic_filter)
            if not len(topics):
                return _Selected(np.empty(0, np.int64), np.empty(0, np.int64))
            group = self.group(place)
            rows = group.sorted(index.rows_of(topics))
            return _Selected(rows, group.log_offsets[rows])

        found = self.cache.get(("selection", place.file.path, place.group, topic_filter), read)
        return Selection(self.group(place), *found) if len(found.rows) else None

    def has_selected(self, place: Place, topic_filter: str) -> bool:
        """Whether selection() need not wait for storage."""
        found = self.cache.seen(("selection", place.file.path, place.group, topic_filter))
        return found is not None and (not len(found.rows) or self.has_read(place))

    def _rows(self, file: DataFile, group: int) -> pa.Table:
        footer = self.cache.get(("footer", file.path), lambda: _Footer(read_footer(self._objects, file)))
        return read_row_group(self._objects, file, footer.metadata, group, READ_COLUMNS, READ_AS_DICTIONARY)
