"""Ranges of the log of which the table has nothing: gaps, and what retention dropped before it was written."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.tier.data_files import decoding
from penstock.tier.objects import ObjectFolder

LOST_FOLDER: Final = "_penstock/lost"
LOST_SCHEMA: Final = pa.schema([("log_offset", pa.int64()), ("until", pa.int64()), ("log", pa.string())])
Range = tuple[int, int]


class LostRanges(NamedTuple):
    """Ranges in the order of the log, none of which touches another."""

    ranges: tuple[Range, ...] = ()

    def between(self, start: int, stop: int) -> list[Range]:
        """Those that have a place in [start, stop), whole."""
        first = bisect_right(self.ranges, start, key=lambda each: each[1])
        return list(self.ranges[first : max(first, bisect_left(self.ranges, stop, key=lambda each: each[0]))])


def opened_lost(objects: ObjectFolder) -> DeltaTable | None:
    """The table of lost ranges; None: nothing was ever lost. Raises TierError."""
    with objects.failures(LOST_FOLDER):
        try:
            return DeltaTable(f"{objects.delta_url}/{LOST_FOLDER}", storage_options=objects.options)
        except TableNotFoundError:
            return None


def settle_lost(objects: ObjectFolder) -> None:
    """See to it that the newest commit of that table outlives a power cut, with its files and a checkpoint of it.

    Raises TierError.
    """
    table = opened_lost(objects) if objects.folder is not None else None
    if table is None:
        return
    commits, version = f"{LOST_FOLDER}/_delta_log", f"{table.version():020}"
    logged = [each for each in objects.names(commits) if version in each or each.endswith("_last_checkpoint")]
    lines = objects.get(f"{commits}/{version}.json").splitlines()
    with decoding(objects, f"{commits}/{version}.json"):
        added = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    objects.make_durable([*(f"{LOST_FOLDER}/{path}" for path in added), *logged])


def lost_ranges(objects: ObjectFolder, logs: Mapping[str, int], end: int) -> LostRanges:
    """What the logs of a table that ends at `end` have lost. Raises TierError.

    `logs`: identities, oldest first, each with its first log_offset. What stands after the end of a log does not count
    (yet): a kill may have been in front of the range that has it.
    """
    table = opened_lost(objects)
    if table is None:
        return LostRanges()
    with objects.failures(LOST_FOLDER):
        rows: pa.Table = table.to_pyarrow_table(columns=LOST_SCHEMA.names)
    within = dict(zip(logs, pairwise((*logs.values(), end)), strict=True))
    found: list[Range] = []
    for start, until, log in zip(*(rows[name].to_pylist() for name in LOST_SCHEMA.names), strict=True):
        first, behind = within.get(log, (0, 0))
        if max(start, first) < min(until, behind):
            found.append((max(start, first), min(until, behind)))
    return LostRanges(_joined(sorted(found)))


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    found: list[Range] = []
    for start, end in ranges:
        if found and start <= found[-1][1]:
            begun = found.pop()
            start, end = begun[0], max(begun[1], end)
        found.append((start, end))
    return tuple(found)
