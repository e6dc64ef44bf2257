"""The tier's table, as Spark reads it: from its storage, not through the store.

A task has a list of data files. A file that is not there any more was merged into others, which have the same rows of
the same day and the same range of the log: the task goes on in those, after what it has read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.columns import MOST_ROWS
from penstock.spark.columns import TopicChoice
from penstock.spark.errors import DataLost, TierUnreadable
from penstock.spark.options import Request
from penstock.spark.ranges import TierRange
from penstock.spark.tier_rows import AS_DICTIONARY, TierRows, stored_columns
from penstock.tier.data_files import DataFile, decoding, read_footer, read_row_group
from penstock.tier.errors import ObjectMissing, StorageRefuses, StorageUnreachable, TierError
from penstock.tier.files import index_of
from penstock.tier.group import GroupIndex
from penstock.tier.listing import TableListing, newest_listing
from penstock.tier.objects import ObjectFolder, options_of

Offsets = NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)


class FileSpan(NamedTuple):
    """Row groups of a file whose rows are sorted as one; they begin in [start, end) of the log."""

    start: int
    end: int
    groups: list[int]


class TierPlaces(NamedTuple):
    """Where some messages are in the log, ascending."""

    log_offsets: Offsets

    def __len__(self) -> int:
        return len(self.log_offsets)

    def behind(self, i: int) -> int:
        """A log_offset after message i, and before the next: any record is longer."""
        return int(self.log_offsets[i]) + 8


class Wanted(NamedTuple):
    """What is read of the files: these columns of rows with start <= log_offset < end, of topics that are wanted, and
    not before a time. `given`: log_offsets of rows that are left out."""

    choice: TopicChoice | None
    columns: list[str]
    start: int
    end: int
    since_ms: int = 0
    given: Offsets = _NONE


class TierFiles:
    """The table of a log. Raises TierUnreadable, DataLost."""

    def __init__(self, request: Request, log_identity: Callable[[], str]) -> None:
        """`log_identity`: of the log that is read with it; empty if an early version wrote it."""
        assert request.tier is not None
        self._url = request.tier
        self._identity = log_identity
        self._patience_s = request.store.patience_s if request.store is not None else 60.0
        self._fails = request.fail_on_data_loss
        self._opened: ObjectFolder | None = None
        self._listed: TableListing | None = None

    @property
    def _objects(self) -> ObjectFolder:
        if self._opened is None:
            options = options_of(os.environ) | {"retry_timeout": f"{self._patience_s:.0f}s"}
            self._opened = ObjectFolder(self._url, options, only_reads=True)
        return self._opened

    @property
    def listing(self) -> TableListing:
        """The version of the table that was looked at last."""
        return self._listed or self.look()

    def look(self) -> TableListing:
        """Look at the newest version of the table."""
        with self._failures():
            found = newest_listing(self._objects)
        ours = self._identity()
        if ours and found.identity != ours:
            raise TierUnreadable(
                f"{self._url}: the table is of the log {found.identity}, and the log to be read is {ours}; "
                "give the option tier what `tier.url` of this store says (a store that was restored has its table once "
                "`penstock tier` has run)"
            )
        self._listed = found
        return found

    def urls(self, listing: TableListing) -> list[str]:
        """Of the data files, as Spark's own readers take them."""
        with self._failures():
            folder = self._objects.folder
        root = f"file://{folder}" if folder is not None else self._url.replace("s3://", "s3a://", 1)
        return [f"{root.rstrip('/')}/{file.path}" for file in listing.files]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Errors of the tier in words for who reads with Spark."""
        try:
            yield
        except StorageRefuses as error:
            raise TierUnreadable(f"{error.fault}; {_CREDENTIALS}") from error
        except StorageUnreachable as error:
            raise TierUnreadable(f"{error.fault}; is it there, and does the option tier name it rightly?") from error
        except TierError as error:
            raise TierUnreadable(f"{error}; the option tier is what `tier.url` of the store says") from error

    # --- what it has

    def check(self, start: int, end: int) -> None:
        """See that [start, end) is there, unless data may be lost. Raises DataLost."""
        if end > self.listing.end:
            self.look()
        if not self._fails:
            return
        listing = self.listing
        holes = [(max(start, first), min(end, last)) for first, last in listing.lost if first < end and last > start]
        if start < listing.first:
            holes.insert(0, (start, min(end, listing.first)))
        if end > listing.end:
            holes.append((max(start, listing.end), end))
        if holes:
            raise DataLost(
                f"{self._url}: log_offset {holes[0][0]} to {holes[0][1]} is neither in the log nor in the tier"
            )

    def position_at(self, timestamp_ms: int, end: int) -> int:
        """log_offset of the first message that was stored at this time or later; `end` if there is none before."""
        best = end
        for file in self.listing.between(0, end):
            if file.first >= best:
                break
            if file.latest_ms >= timestamp_ms:
                wanted = Wanted(None, ["log_offset", "timestamp"], 0, best, timestamp_ms)
                for _, rows in self._of_file(file, wanted):
                    best = min(best, int(rows.log_offsets.min()))
                    break
        return best

    def parts(self, start: int, end: int, count: int) -> list[TierRange]:
        """Partitions of about as many bytes each, by the newest version."""
        pieces = list(self._pieces(self.look().between(start, end), start, end, count))
        target = max(1, sum(size for _, size in pieces) // count)
        found: list[TierRange] = []
        some: list[tuple[DataFile, int, int]] = []
        size_bytes = 0
        for piece, size in pieces:
            some.append(piece)
            size_bytes += size
            if size_bytes >= target:
                found.append(TierRange(tuple(some)))
                some, size_bytes = [], 0
        return [*found, TierRange(tuple(some))] if some else found

    def _pieces(
        self, files: list[DataFile], start: int, end: int, count: int
    ) -> Iterator[tuple[tuple[DataFile, int, int], int]]:
        """Files, cut where they are much larger than a partition, with their sizes in bytes."""
        target = sum(file.size_bytes for file in files) // count
        for file in files:
            first, behind = max(start, file.first), min(end, file.last + 1)
            if file.size_bytes < target * 3 // 2 or count == 1:
                yield (file, first, behind), file.size_bytes
                continue
            with self._failures():
                footer = read_footer(self._objects, file)
            spans = [span for span in _spans(footer) if span.start < behind and span.end > first]
            ends = [min(behind, following.start) for following in spans[1:]]
            for span, until in zip(spans, [*ends, behind], strict=True):
                size = sum(footer.row_group(group).total_byte_size for group in span.groups)
                yield (file, max(first, span.start), until), size * file.size_bytes // _total_bytes(footer)

    # --- rows

    def rows(self, request: Request, schema: pa.Schema, wanted: TierRange) -> Iterator[pa.RecordBatch]:
        """The rows of a partition: by row group, in it by topic, of a topic in the order of the log."""
        columns = stored_columns(schema.names, request.is_filtered)
        choice = _choice_of(request)
        for file, start, end in wanted.files:
            for _, rows in self._of_file(file, Wanted(choice, columns, start, end)):
                for at in range(0, len(rows), MOST_ROWS):
                    yield rows.record_batch(schema, at, min(at + MOST_ROWS, len(rows)))

    def whole(self, start: int, end: int) -> TierRange:
        """[start, end) as one partition. Raises DataLost."""
        self.check(start, end)
        files = self.listing.between(start, end)
        return TierRange(tuple((file, max(start, file.first), min(end, file.last + 1)) for file in files))

    def places(self, request: Request, start: int, end: int) -> Iterator[TierPlaces]:
        """Where the wanted messages in [start, end) are, in the order of the log, by pieces that are not empty."""
        self.check(start, end)
        columns = stored_columns((), request.is_filtered)
        for files in _apart(self.listing.between(start, end)):
            wanted = Wanted(_choice_of(request), columns, start, end)
            several = [self._of_file(file, wanted) for file in files]
            if len(several) == 1:
                yield from _by_span(several[0])
            else:
                found = [rows.log_offsets for each in several for _, rows in each]
                if found:
                    yield TierPlaces(np.sort(np.concatenate(found)))

    def _of_file(self, file: DataFile, wanted: Wanted) -> Iterator[tuple[int, TierRows]]:
        """The wanted rows of a file, by row group, each with the beginning of its span; of others if it was merged."""
        at, given = wanted.start, [wanted.given]
        try:
            footer = read_footer(self._objects, file)
            index: _FileIndex | None = None
            for span in _spans(footer):
                if span.end <= wanted.start or span.start >= wanted.end:
                    continue
                at, given = max(span.start, wanted.start), [wanted.given]
                for group in span.groups:
                    if wanted.since_ms and _latest_ms(footer, group) < wanted.since_ms:
                        continue
                    if wanted.choice is not None:
                        index = index or _FileIndex(self._objects, file, wanted.choice)
                        if not index.may_have(group):
                            continue
                    table = read_row_group(self._objects, file, footer, group, wanted.columns, AS_DICTIONARY)
                    rows = _chosen(TierRows(table.combine_chunks()), table, wanted)
                    if len(rows):
                        yield span.start, rows
                        given.append(rows.log_offsets)
            return
        except ObjectMissing as error:
            instead = self._instead_of(file, error)
        except TierError:
            with self._failures():
                raise
        wanted = wanted._replace(start=at, given=np.concatenate(given))
        for each in instead:
            yield from self._of_file(
                each, wanted._replace(start=max(at, file.first), end=min(wanted.end, file.last + 1))
            )

    def _instead_of(self, file: DataFile, error: ObjectMissing) -> list[DataFile]:
        """The files that have the rows of one that is gone."""
        files = [each for each in self.look().between(file.first, file.last + 1) if each.day == file.day]
        if not files or any(each.path == file.path for each in files):
            with self._failures():
                raise error
        return files


_CREDENTIALS: Final = (
    "give the environment of driver and executors (AWS_ACCESS_KEY_ID, ...; spark.executorEnv) "
    "the rights to list and read there"
)


def _choice_of(request: Request) -> TopicChoice | None:
    matches = request.topic_matcher()
    return None if matches is None else TopicChoice(matches)


class _FileIndex:
    """Which row groups of a file may have wanted topics. Without the index beside the file: all of them."""

    def __init__(self, objects: ObjectFolder, file: DataFile, choice: TopicChoice) -> None:
        self._objects = objects
        self._name = index_of(file.path)
        self._choice = choice
        try:
            self._data: bytes | None = objects.get(self._name)
        except ObjectMissing:
            self._data = None

    def may_have(self, group: int) -> bool:
        if self._data is None:
            return True
        with decoding(self._objects, self._name):
            index = GroupIndex.of(pa.ipc.open_file(self._data).get_batch(group))
        return any(map(self._choice.is_wanted, index.names.to_pylist()))


def _chosen(rows: TierRows, table: pa.Table, wanted: Wanted) -> TierRows:
    offsets = rows.log_offsets
    fits = (offsets >= wanted.start) & (offsets < wanted.end)
    if len(wanted.given):
        fits &= ~np.isin(offsets, wanted.given)
    if wanted.since_ms:
        times: Offsets = table["timestamp"].combine_chunks().view(pa.int64()).to_numpy() // 1000
        fits &= times >= wanted.since_ms
    rows = rows.where(fits)
    return rows.of_topics(wanted.choice.is_wanted) if wanted.choice is not None and len(rows) else rows


def _spans(footer: pq.FileMetaData) -> list[FileSpan]:
    """The row groups of a file, those together that have a range of the log in common; in the order of the log."""
    column = footer.schema.names.index("log_offset")
    stated = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
    found: list[FileSpan] = []
    for first, last, group in sorted((each.min, each.max, group) for group, each in enumerate(stated)):
        if found and first < found[-1].end:
            before = found.pop()
            found.append(FileSpan(before.start, max(before.end, last + 1), [*before.groups, group]))
        else:
            found.append(FileSpan(first, last + 1, [group]))
    return [span._replace(groups=sorted(span.groups)) for span in found]


def _latest_ms(footer: pq.FileMetaData, group: int) -> int:
    column = footer.schema.names.index("timestamp")
    latest: datetime = footer.row_group(group).column(column).statistics.max
    return round(latest.timestamp() * 1000)


def _total_bytes(footer: pq.FileMetaData) -> int:
    total: int = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    return max(total, 1)


def _apart(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Files by their first rows; together those that overlap, as files of several days do if a clock was set back."""
    some: list[DataFile] = []
    last = -1
    for file in files:
        if some and file.first > last:
            yield some
            some = []
        some.append(file)
        last = max(last, file.last)
    if some:
        yield some


def _by_span(groups: Iterable[tuple[int, TierRows]]) -> Iterator[TierPlaces]:
    some: list[Offsets] = []
    of = -1
    for start, rows in groups:
        if some and start != of:
            yield TierPlaces(np.sort(np.concatenate(some)))
            some = []
        some.append(rows.log_offsets)
        of = start
    if some:
        yield TierPlaces(np.sort(np.concatenate(some)))
