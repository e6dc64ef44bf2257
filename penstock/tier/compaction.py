"""Replaces the small files of a day by few large ones, whose rows are sorted over more and more of the log.

The dispatcher writes a file for each commit. Adjacent files of a day are merged once they are together much larger than
the largest of them, so a row is written anew only into a file that is many times larger, or into its last one.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby, pairwise
from typing import ClassVar, Final

import pyarrow as pa

from penstock.tier.chores import Chore
from penstock.tier.data_files import DataFile
from penstock.tier.errors import MergeDiffers, ObjectMissing, TierError
from penstock.tier.files import FileWriter, WrittenFile, index_of, is_merged
from penstock.tier.merging import RangeMerge, SortedRange, checksum, sorted_ranges
from penstock.tier.objects import ObjectFolder
from penstock.tier.rows import GROUP_BYTES
from penstock.tier.table import TierTable

log = logging.getLogger("penstock.tier")

MB: Final = 1 << 20
COMMITS_PER_LOOK: Final = 16
"""It looks for files to merge after so many commits: there is nothing before that, unless a day has ended."""


@dataclass(frozen=True)
class MergeRules:
    """Bounds of files, of what is merged at once, and of memory. `full`: what is that large is not merged again."""

    growth: int = 12  # how many times as large as its largest file a merge of the newest day is
    full_bytes: int = 256 * MB
    full_log_bytes: int = 2048 * MB
    most_bytes: int = 512 * MB
    most_log_bytes: int = 4096 * MB
    most_files: int = 64
    sorted_log_bytes: int = 128 * MB  # a sorted range is of so much of the log
    group_bytes: int = GROUP_BYTES // 2  # in memory, of a row group that is written
    memory_bytes: int = 7 * GROUP_BYTES  # of row groups that are read

    def is_full(self, size_bytes: int, log_bytes: int) -> bool:
        return size_bytes >= self.full_bytes or log_bytes >= self.full_log_bytes

    def is_done(self, file: DataFile) -> bool:
        """Whether a file stays as it is for good. One that another program has written has no index, and stays."""
        try:
            return is_merged(file.path) and self.is_full(2 * file.size_bytes, 2 * (file.last - file.first))
        except ValueError:
            return True

    def is_narrow(self, file: DataFile) -> bool:
        """Whether merging the file with no other makes its sorted ranges wider."""
        return not is_merged(file.path) and file.last - file.first > self.group_bytes


def next_merge(files: Sequence[DataFile], rules: MergeRules, left_out: Collection[str] = ()) -> Sequence[DataFile]:
    """The files to be merged next, which are adjacent in the log and of one day; none: all is well.

    `left_out`: paths of files that stay as they are.
    """
    newest = max(files, key=lambda file: file.last).day if files else ""
    best: Sequence[DataFile] = ()
    for day, of_day in groupby(sorted(files, key=lambda file: (file.day, file.first)), lambda file: file.day):
        for stays, run in groupby(of_day, lambda file: rules.is_done(file) or file.path in left_out):
            if not stays:
                best = max(best, _best_of(list(run), rules, day != newest), key=len)
    return best


def _best_of(run: Sequence[DataFile], rules: MergeRules, is_over: bool) -> Sequence[DataFile]:
    """The most adjacent files of a run that are worth merging. `is_over`: the day gets no more files."""
    best: Sequence[DataFile] = ()
    for first in range(len(run)):
        total = largest = narrow = 0
        for behind in range(first, min(len(run), first + rules.most_files)):
            total += run[behind].size_bytes
            largest = max(largest, run[behind].size_bytes)
            narrow += run[behind].size_bytes * rules.is_narrow(run[behind])
            number, log_bytes = behind + 1 - first, run[behind].last - run[first].first
            if number > 1 and (total > rules.most_bytes or log_bytes > rules.most_log_bytes):
                break
            is_worth_it = rules.is_full(total, log_bytes) or total >= (2 if is_over else rules.growth) * largest
            if number > len(best) and (is_worth_it or (is_over and 2 * narrow > total)):
                best = run[first : behind + 1]
    return best


class FileMerge:
    """Writes the rows of some files of a day into fewer files. They count for nothing before they are committed."""

    def __init__(
        self, objects: ObjectFolder, files: Sequence[DataFile], all_files: Sequence[DataFile], rules: MergeRules
    ) -> None:
        """`files` are of one day, in the order of the log; `all_files`: of the table."""
        self.files = files
        self.written: list[WrittenFile] = []
        self.paths: list[str] = []  # of everything that was begun
        self._objects, self._rules = objects, rules
        first, last = files[0].first, files[-1].last
        merged = {file.path for file in files}
        self._between = [
            (file.first, file.last)
            for file in all_files
            if file.first <= last and file.last >= first and file.path not in merged
        ]
        self._day = (date.fromisoformat(files[0].day) - date(1970, 1, 1)).days
        self._writer: FileWriter | None = None

    def steps(self) -> Iterator[None]:
        """Do the work, some 50 ms of it in each step. Raises TierError."""
        ranges = []
        for file in self.files:
            ranges += sorted_ranges(self._objects, file)
            yield
        has_keys = any(each.has_keys for each in ranges)
        difference = 0
        for together in self._wider(sorted(ranges, key=lambda each: each.start)):
            writer = self._writer_for(sum(each.size_bytes for each in together), together[0].start, has_keys)
            merge = RangeMerge(self._objects, together, self._rules.group_bytes)
            for group in merge.row_groups(self._day):
                if group is not None:
                    writer.write(group)
                    difference -= checksum(group.rows)
                yield
            difference += merge.checksum
        self._finish_writer()
        listed = sum(each.rows for each in ranges)
        if sum(file.rows for file in self.written) != listed or difference % (1 << 64):
            raise MergeDiffers(self._objects.url, len(self.files))

    def _wider(self, ranges: Sequence[SortedRange]) -> Iterator[Sequence[SortedRange]]:
        """Those that are merged into one range each: within the bounds, and with no row of another file between."""
        first = 0
        counted = dict(ranges[0].behind) if ranges else {}  # of each first level, in the wider range so far
        for behind in range(1, len(ranges) + 1):
            part = ranges[first : behind + 1]
            if behind == len(ranges) or not self._fits(part) or not _goes_on(counted, ranges[behind]):
                yield ranges[first:behind]
                first, counted = behind, {}
            if behind < len(ranges):
                counted.update(ranges[behind].behind)

    def _fits(self, ranges: Sequence[SortedRange]) -> bool:
        rules = self._rules
        return (
            ranges[-1].end - ranges[0].start <= rules.sorted_log_bytes
            and sum(each.size_bytes for each in ranges) <= rules.most_bytes
            and sum(each.memory_bytes for each in ranges) <= rules.memory_bytes
            and not any(
                before.end <= last and first < behind.start
                for before, behind in pairwise(ranges[-2:])
                if before.end < behind.start
                for first, last in self._between
            )
        )

    def _writer_for(self, size_bytes: int, start: int, has_keys: bool) -> FileWriter:
        """The file that a range of so many bytes goes to."""
        if self._writer is not None and self._writer.size_bytes + size_bytes > self._rules.most_bytes:
            self._finish_writer()
        if self._writer is None:
            self._writer = FileWriter(self._objects, self._day, start, True, has_keys)
            self.paths += self._writer.paths
        return self._writer

    def _finish_writer(self) -> None:
        if self._writer is not None:
            self.written.append(self._writer.finish())
            self._writer = None


def _goes_on(counted: Mapping[bytes, int], added: SortedRange) -> bool:
    """Whether the queue_offsets of first levels are adjacent; they are not where messages were lost."""
    return all(counted.get(level, first) == first for level, first in added.levels.items())


class Compactor(Chore):
    """Owner of the merges of a table, of which there is one at a time."""

    undone: ClassVar[str] = "files of the history are not merged"

    def __init__(self, objects: ObjectFolder, table: TierTable, rules: MergeRules | None = None) -> None:
        super().__init__(objects)
        self._table = table
        self._rules = rules or MergeRules()
        self._merge: FileMerge | None = None
        self._steps: Iterator[None] = iter(())
        self._commits = COMMITS_PER_LOOK  # since it looked last for something to do
        self._unreadable: set[str] = set()  # files that are missing or damaged: they are not looked at again

    def range_committed(self) -> None:
        """There is a file more."""
        self._commits += 1

    def _step(self) -> bool:
        if self._merge is None:
            return self._commits >= COMMITS_PER_LOOK and self._begin()
        try:
            next(self._steps)
        except StopIteration:
            merge, self._merge = self._merge, None  # from here on its files may be the table's
            self._table.replace(merge.files, merge.written)
            log.info("merged %d files of %s into %d", len(merge.files), merge.files[0].day, len(merge.written))
            pa.default_memory_pool().release_unused()
        return True

    def _begin(self) -> bool:
        files = self._table.files()
        chosen = next_merge(files, self._rules, self._unreadable)
        if not chosen:
            self._commits = 0
            return False
        self._merge = FileMerge(self._objects, chosen, files, self._rules)
        self._steps = self._merge.steps()
        return True

    def _failed(self, error: TierError) -> None:
        """Go on without a file that cannot be read, or later if it is something else."""
        found: list[str] = []
        if isinstance(error, ObjectMissing) and self._merge is not None:
            found = [file.path for file in self._merge.files if error.where.endswith((file.path, index_of(file.path)))]
        self._unreadable.update(found)
        if not found:
            super()._failed(error)

    def abandon(self) -> None:
        """Delete what an unfinished merge has left, as far as storage answers."""
        merge, self._merge = self._merge, None
        if merge is not None:
            self._steps = iter(())
            try:
                self._objects.delete(merge.paths)
            except TierError as error:
                log.info("files of a merge that was not finished stay until the table is vacuumed: %s", error)

    @property
    def begun(self) -> list[str]:
        """Paths of files that do not count yet."""
        return self._merge.paths if self._merge is not None else []
