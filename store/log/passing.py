"""Reads on behind damage that arises while the store runs, as readers do behind what a start finds."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from store.errors import CorruptSegment
from store.files.medium import read_part
from store.ratelimit import RateLimitedLog
from store.recovery.salvage import next_record

if TYPE_CHECKING:
    from store.files.segment import Segment
    from store.log.commitlog import CommitLog

EVENTS = RateLimitedLog(logging.getLogger("penstock.store"))
MOST_PLACES = 4_096  # remembered; the oldest are forgotten


def ranges_passing(log: CommitLog, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview, bool]]:
    """As CommitLog.ranges(), over damage, and whether some lies directly before these records.

    Raises CorruptSegment only at `start`, if nothing tells that a record begins there.
    """
    at, is_behind_damage = start, False
    while True:
        try:
            for where, chunk in log.ranges(at, limit_bytes):
                yield where, chunk, is_behind_damage
                is_behind_damage = False
            return
        except CorruptSegment as error:
            damaged = error.log_offset
            if damaged == start and damaged not in log.damaged_places and not _claims_record(log, damaged):
                raise
            EVENTS.error("damaged", "passed over damage: %s", error)
            _note(log, damaged)
            at, is_behind_damage = _behind(log, damaged), True


def look_at(log: CommitLog, log_offset: int) -> None:
    """Note damage where a reader is about to go on."""
    try:
        for _ in log.ranges(log_offset, 1):
            return
    except CorruptSegment as error:
        _note(log, error.log_offset)


def _note(log: CommitLog, log_offset: int) -> None:
    """Remember where a damaged record is: a reader may go on there, whatever its bytes say."""
    places = log.damaged_places
    while len(places) >= MOST_PLACES:
        del places[next(iter(places))]
    places[log_offset] = None


def _claims_record(log: CommitLog, log_offset: int) -> bool:
    """Whether the bytes there say that a record begins there, which need not be valid."""
    segment, _ = _segment_at(log, log_offset)
    with _opened(segment.path) as fd:
        return int.from_bytes(read_part(fd, 8, log_offset + 8 - segment.base), "little") == log_offset


def _behind(log: CommitLog, log_offset: int) -> int:
    """log_offset of the next valid record behind a damaged one, else where its segment ends."""
    segment, end = _segment_at(log, log_offset)
    with _opened(segment.path) as fd:
        return next_record(fd, segment.base, log_offset, end, opens_batches=True) or end


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a segment's file: a sealed one keeps none."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _segment_at(log: CommitLog, log_offset: int) -> tuple[Segment, int]:
    """The segment that has a log_offset, and where it ends."""
    end = log.committed
    for segment in reversed(log.segments):
        if segment.base <= log_offset:
            return segment, end
        end = segment.base
    raise AssertionError(log_offset)
