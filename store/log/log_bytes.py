"""Reads verified bytes of the log as they lie there, for clients that decode records themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store.errors import CorruptSegment, RecordTooLarge
from store.records._records import verify
from store.records.records import RECORD_HEADER_BYTES, RecordType

if TYPE_CHECKING:
    from store.log.commitlog import CommitLog

_LENGTH = slice(0, 4)
_TYPE = 24


class LogPiece(NamedTuple):
    """Whole records; `log_offset` is the position of the first."""

    log_offset: int
    data: bytes


def read(log: CommitLog, start: int, limit_bytes: int) -> LogPiece:
    """Read records from `start`, where a record begins or a segment ends; an empty piece at the log's end.

    A batch record that is longer than the limit is entered: the records in it are returned. Raises CorruptSegment, also
    if no record begins at `start`; RecordTooLarge.
    """
    log.commit()
    ends = [*(following.base for following in log.segments[1:]), log.committed]
    for segment, end in zip(log.segments, ends, strict=True):
        at = max(start, segment.first)
        if at >= end:
            continue
        with segment.view(at, min(end, at + limit_bytes)) as data:
            size, _, reason = verify(data, at)
            if size:
                return LogPiece(at, bytes(data[:size]))
        with segment.view(at, end) as data:
            size, _, reason = verify(data, at, 1)
            if reason or not size:
                raise CorruptSegment(segment.path, at, reason or "cut off")
            if data[_TYPE] != RecordType.BATCH:
                raise RecordTooLarge(size, limit_bytes)
        return read(log, at + RECORD_HEADER_BYTES, limit_bytes)
    return LogPiece(max(start, log.committed), b"")


def segments(log: CommitLog, start: int, most: int) -> tuple[list[tuple[int, int]], bool]:
    """(base, created_ms) of up to `most` segments from log_offset `start` on, and whether there are more."""
    found = [(segment.base, segment.created_ms) for segment in log.segments if segment.base >= start]
    return found[:most], len(found) > most
