"""Finds the valid records in a segment's file in any state, and the holes between them. Reads only.

A record has its own log_offset, so the next one is found again after damage. If the damaged record's length is
plausible, the search begins at its end, so bytes in a client's payload are not taken for a record. Of a damaged batch
only the header is lost: the records in it have checksums of their own, and stay. But after the bytes that the disk had
confirmed, a batch stays as a whole or not at all; only there are holes of the file taken for zeros unread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import CorruptSegment
from store.files.medium import REASON, data_from, is_readable, read_part
from store.files.segment import HEADER_BYTES, READ_BYTES, read_records, written_from
from store.records._records import find_record, walk
from store.records.records import RECORD_HEADER_BYTES, RecordType

_BATCH = 2


@dataclass(frozen=True)
class Hole:
    """Bytes [start, end), as log_offsets, that are no valid records."""

    start: int
    end: int
    reason: str


@dataclass
class Salvage:
    """The contents of a segment's file between two log_offsets."""

    holes: list[Hole] = field(default_factory=list)  # a valid record follows each
    end: int = 0  # after the last valid record
    written: int = 0  # after the last byte that is not zero
    last_ms: int | None = None  # timestamp of the last valid record
    reason: str = ""  # the fault at `end`


def salvage(
    fd: int,
    base: int,
    end: int | None,
    flushed: int | None,
    on_records: Callable[[int, bytes], None] = lambda log_offset, data: None,
    first: int | None = None,
) -> Salvage:
    """Look through a segment's file up to log_offset `end`, else up to the end of the file. Raises OSError.

    `flushed`: log_offset up to which the disk had confirmed the log, if known. `on_records` gets all valid records,
    some at a time. `first`: log_offset of the first record; default: after the header.
    """
    limit = base + os.fstat(fd).st_size
    stop = limit if end is None else min(end, limit)
    found = Salvage(end=base + HEADER_BYTES if first is None else first)
    while found.end < stop:
        _take_records(fd, base, stop, found, on_records)
        if found.end >= stop:
            break
        is_confirmed = flushed is None or found.end < flushed
        following = next_record(fd, base, found.end, stop, is_confirmed, flushed)
        if following is None:
            break
        found.holes.append(Hole(found.end, following, _reason(fd, base, found, following)))
        found.end, found.reason = following, ""
    if end is not None and 0 < end - found.end < RECORD_HEADER_BYTES:
        found.end = _start_of_last(fd, base, found, first)  # no GAP record fits between it and the next segment
    if found.end < stop and (flushed is None or found.end < flushed):
        found.reason = _reason(fd, base, found, stop)
    sparse_from = None if flushed is None else flushed - base
    found.written = max(found.end, min(stop, found.end + written_from(fd, found.end - base, sparse_from)))
    return found


def _reason(fd: int, base: int, found: Salvage, end: int) -> str:
    """The reason why there is no record: it is damaged, or the disk cannot read it."""
    return found.reason if is_readable(fd, found.end - base, end - base) else REASON


def _take_records(fd: int, base: int, stop: int, found: Salvage, on_records: Callable[[int, bytes], None]) -> None:
    while found.end < stop:
        data, last_ms, reason = read_records(fd, base, found.end, stop)
        if not data:
            found.reason = reason or ""
            return
        on_records(found.end, data)
        found.last_ms = last_ms
        found.end += len(data)


def _start_of_last(fd: int, base: int, found: Salvage, first: int | None) -> int:
    """log_offset of the last valid record; if there is none after the last hole, where that hole ends."""
    at = start = found.holes[-1].end if found.holes else base + HEADER_BYTES if first is None else first
    while at < found.end:
        start = at
        at += int.from_bytes(read_part(fd, 4, at - base), "little")
    return start


def next_record(
    fd: int, base: int, damaged: int, stop: int, opens_batches: bool, sparse_from: int | None = None
) -> int | None:
    """log_offset of the first valid record after a damaged one; None if there is none before `stop`. Raises OSError.

    `sparse_from`: log_offset from which on holes of the file are skipped unread.
    """
    header = read_part(fd, RECORD_HEADER_BYTES, damaged - base)
    length = int.from_bytes(header[:4], "little")
    at = damaged + RECORD_HEADER_BYTES
    if int.from_bytes(header[8:16], "little") == damaged and not length & 7 and at <= damaged + length <= stop:
        is_batch = header[24] == _BATCH
        behind = at if is_batch and opens_batches else damaged + length
        if _is_record(fd, base, behind, stop):
            return behind
        if is_batch and not opens_batches:
            at = behind
    likely = _likely_records(fd, base, at, stop, sparse_from)
    return next((at for at in likely if _is_record(fd, base, at, stop)), None)


def _is_record(fd: int, base: int, at: int, stop: int) -> bool:
    """Whether a valid record is at this log_offset."""
    data = read_part(fd, 4, at - base)
    length = int.from_bytes(data, "little")
    return RECORD_HEADER_BYTES <= length <= stop - at and bool(read_records(fd, base, at, at + length)[0])


def _likely_records(fd: int, base: int, at: int, stop: int, sparse_from: int | None) -> Iterator[int]:
    while at < stop:
        if sparse_from is not None and at >= sparse_from:
            at = base + data_from(fd, at - base)
            if at >= stop:
                return
        data = read_part(fd, min(READ_BYTES, stop - at), at - base)
        if len(data) < RECORD_HEADER_BYTES:
            return
        place = find_record(data, at, 0, stop)
        while place >= 0:
            yield at + place
            place = find_record(data, at, place + 8, stop)
        at += len(data) - RECORD_HEADER_BYTES + 8 & ~7 if len(data) == READ_BYTES else len(data)


def resumed(path: Path, base: int, first: int, end: int, log_offset: int) -> int | None:
    """The log_offset in a segment's file to read on from, so that nothing from a log_offset on is left out.

    That is where a record begins: at the log_offset, or before it, if it lies in a GAP record. None: it lies in another
    record, so it is no position of this log. `first` to `end`: a range of valid records with the log_offset in it.
    Raises CorruptSegment, OSError.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        if read_records(fd, base, log_offset, end)[0]:
            return log_offset
        at = first
        while True:
            data, _, reason = read_records(fd, base, at, end)
            if not data:
                raise CorruptSegment(path, at, reason or "cut off")
            if log_offset < at + len(data):
                break
            at += len(data)
    finally:
        os.close(fd)
    found, _, _, kind, *_ = next(record for record in walk(data) if record[0] + record[2] > log_offset)
    return found if kind == RecordType.GAP and found < log_offset else None
