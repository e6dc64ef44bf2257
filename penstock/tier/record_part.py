"""Rows of row groups in the order of the log, and the messages that they are, in log format."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.tier.group import ReadGroup, Rows
from store.records._columns import scatter


class Selection(NamedTuple):
    """Rows of a row group in the order of the log, and where they are in the log."""

    group: ReadGroup
    rows: Rows
    log_offsets: Rows

    def between(self, start: int, stop: int) -> Selection:
        """Those with start <= log_offset < stop."""
        first, behind = np.searchsorted(self.log_offsets, (start, stop)).tolist()
        return Selection(self.group, self.rows[first:behind], self.log_offsets[first:behind])

    def where(self, fits: NDArray[np.bool_]) -> Selection:
        return Selection(self.group, self.rows[fits], self.log_offsets[fits])


class ChosenRows:
    """Rows of one or several row groups, in the order of the log. Their records are made when they are wanted."""

    def __init__(self, selections: list[Selection]) -> None:
        self._groups = [each.group for each in selections]
        self._rows = _joined([each.rows for each in selections])
        self._of_group = np.repeat(np.arange(len(selections)), [len(each.rows) for each in selections])
        log_offsets = _joined([each.log_offsets for each in selections])
        sizes = _joined([each.group.sizes(each.rows) for each in selections])
        if len(selections) > 1:
            order = np.argsort(log_offsets)
            self._rows, self._of_group = self._rows[order], self._of_group[order]
            log_offsets, sizes = log_offsets[order], sizes[order]
        self.log_offsets: Rows = log_offsets
        self.ends: Rows = np.cumsum(sizes)
        """Where the record of each row ends, if all of them stand one after the other."""

    @property
    def size_bytes(self) -> int:
        """Of all records."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def largest(self) -> int:
        """Size of the largest record, in bytes."""
        return _largest(self.ends)

    @cached_property
    def queue_offsets(self) -> Rows:
        found = np.empty(len(self._rows), np.int64)
        for ours, group in self._by_group(0, len(self._rows)):
            found[ours] = group.queue_offsets[self._rows[ours]]
        return found

    def records(self, first: int, behind: int) -> bytes:
        """Of some rows, by their places here."""
        return self._put_together(first, behind).tobytes()

    def _put_together(self, first: int, behind: int) -> NDArray[np.uint8]:
        base = int(self.ends[first - 1]) if first else 0
        starts = np.concatenate(([0], self.ends[first : behind - 1] - base))
        to = np.empty(int(self.ends[behind - 1]) - base, np.uint8)
        for ours, group in self._by_group(first, behind):
            group.put(self._rows[ours], starts[ours - first], to)
        return to

    def _by_group(self, first: int, behind: int) -> list[tuple[Rows, ReadGroup]]:
        """The places of each group's rows, by row: a group's columns are read much faster from front to back."""
        found = []
        for number, group in enumerate(self._groups):
            ours = first + np.flatnonzero(self._of_group[first:behind] == number)
            if len(ours):
                found.append((ours[np.argsort(self._rows[ours])], group))
        return found

    def made(self) -> RecordPart:
        """With the records of all rows, for pages to come."""
        to = self._put_together(0, len(self._rows)) if len(self._rows) else np.empty(0, np.uint8)
        return RecordPart(self.log_offsets, self.queue_offsets, self.ends, self.largest, to)


class RecordPart(NamedTuple):
    """Messages of chosen topics in the order of the log, put together once for all pages that have some of them."""

    log_offsets: Rows
    queue_offsets: Rows
    ends: Rows
    largest: int
    data: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + 24 * len(self.log_offsets)

    def records(self, first: int, behind: int) -> bytes:
        """Of some messages, by their places here."""
        return self.data[int(self.ends[first - 1]) if first else 0 : int(self.ends[behind - 1])].tobytes()

    def between(self, start: int, stop: int) -> RecordPart:
        """Those with start <= log_offset < stop."""
        first, behind = np.searchsorted(self.log_offsets, (start, stop)).tolist()
        begin = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first:behind] - begin
        data = self.data[begin : begin + int(ends[-1]) if len(ends) else begin]
        return RecordPart(self.log_offsets[first:behind], self.queue_offsets[first:behind], ends, _largest(ends), data)


OrderedRows = ChosenRows | RecordPart


def merged(parts: list[RecordPart]) -> RecordPart:
    """The messages of all of these, in the order of the log."""
    log_offsets = _joined([each.log_offsets for each in parts])
    sizes = _joined([np.diff(each.ends, prepend=0) for each in parts])
    order = np.argsort(log_offsets)
    ends = np.cumsum(sizes[order])
    places = np.empty(len(order), np.int64)
    places[order] = ends - sizes[order]
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = 0
    for each in parts:
        behind = at + len(each.ends)
        lengths = sizes[at:behind]
        scatter(each.data, each.ends - lengths, lengths.astype(np.int32), data, places[at:behind])
        at = behind
    queue_offsets = _joined([each.queue_offsets for each in parts])[order]
    return RecordPart(log_offsets[order], queue_offsets, ends, _largest(ends), data)


def _largest(ends: Rows) -> int:
    return int(np.diff(ends, prepend=0).max(initial=0))


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
