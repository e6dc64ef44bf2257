"""One version of the table, for a program that decodes the data files by itself: its files, and what it covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.tier.commits import TableView
from penstock.tier.data_files import DataFile, listed_files
from penstock.tier.errors import NotOurTable, ObjectMissing
from penstock.tier.lost import lost_ranges
from penstock.tier.objects import ObjectFolder
from penstock.tier.table import logs_of

_NO_TABLE: Final = "there is no table yet"


@dataclass(frozen=True)
class TableListing:
    """The history of the log `identity`: [first, end) of its log_offsets, but for the ranges that were lost.

    `files` are in the order of their first rows. Files of one day have no range of the log in common.
    """

    version: int
    identity: str
    first: int
    end: int
    files: tuple[DataFile, ...]
    lost: tuple[tuple[int, int], ...] = ()

    def between(self, start: int, end: int) -> list[DataFile]:
        """The files with rows in [start, end), perhaps."""
        return [file for file in self.files if file.first < end and file.last >= start]


def newest_listing(objects: ObjectFolder) -> TableListing:
    """Of the newest version. Raises TierError."""
    view = TableView.opened(objects)
    if view is None:
        raise ObjectMissing(objects.url, _NO_TABLE)
    logs = logs_of(objects, view.table)
    identity = next(reversed(logs))
    end = view.version_of(identity)
    if end is None:
        raise NotOurTable(objects.url, f"the table does not say how far it has log {identity}")
    with objects.failures(objects.url):
        files = tuple(sorted(listed_files(view.table)))
        version = view.table.version()
    lost = lost_ranges(objects, logs, end)
    return TableListing(version, identity, next(iter(logs.values())), end, files, lost.ranges)
