"""Reading a log of segments: by record, by range, over damage that arises while the store runs, and by time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import CorruptSegment, RecordTooLarge
from store.files.medium import read_part
from store.files.segment import Segment
from store.log.api import LogPiece
from store.ratelimit import RateLimitedLog
from store.records._records import LogMemory, verify
from store.records.records import RECORD_HEADER_BYTES, Record, RecordType
from store.recovery.salvage import next_record, resumed

EVENTS = RateLimitedLog(logging.getLogger("penstock.store"))
MOST_PLACES = 4_096  # of damage, remembered; the oldest are forgotten
_TYPE = 24


class SegmentedLog:
    """The segments of a log, oldest first, and what reads them. All are kept by the class that writes them."""

    def __init__(self) -> None:
        self.memory = LogMemory()
        self.segments: list[Segment] = []
        self.committed = 0  # the files have everything before it
        self.end = 0
        self._damaged: dict[int, None] = {}  # places where reads met damage since the start

    @property
    def base(self) -> int:
        """log_offset at which the oldest segment begins; 0 as long as nothing was dropped."""
        return self.segments[0].base

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""
        return self.segments[0].first

    def commit(self) -> None:
        """Let the files have everything. Raises StoreFull or WriteFailed."""
        raise NotImplementedError

    # --- records

    def record(self, log_offset: int) -> Record:
        """The record that starts at `log_offset`. Raises LookupError if the log does not have it (any more)."""
        return Record._make(self.memory.record(log_offset))

    def timestamp_ms(self, log_offset: int) -> int:
        """Unix time at which that record was stored. Raises LookupError."""
        return self.memory.timestamp_ms(log_offset)

    def ranges(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """The committed records from `start` on, verified: (log_offset, mapped bytes) of about `limit_bytes` each.

        Raises CorruptSegment at a damaged record, after all that are in front of it.
        """
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            end = following.base if following else self.committed
            at = max(start, segment.first)
            while at < end:
                with segment.view(at, end) as data:
                    size, _, reason = verify(data, at, limit_bytes)
                    if reason and not size:
                        raise CorruptSegment(segment.path, at + size, reason)
                    with data[:size] as chunk:
                        yield at, chunk
                at += size

    def read(self, start: int, limit_bytes: int) -> LogPiece:
        """Read records from `start`, where a record begins or a segment ends; an empty piece at the log's end.

        A batch record that is longer than the limit is entered: the records in it are returned. Raises CorruptSegment,
        also if no record begins at `start`; RecordTooLarge.
        """
        self.commit()
        ends = [*(following.base for following in self.segments[1:]), self.committed]
        for segment, end in zip(self.segments, ends, strict=True):
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
            return self.read(at + RECORD_HEADER_BYTES, limit_bytes)
        return LogPiece(max(start, self.committed), b"")

    def forget_pages(self) -> None:
        """Give mapped history back to the page cache, out of this process's resident memory."""
        for segment in self.segments:
            segment.forget_pages()

    # --- over damage that arises while the store runs, as readers do after what a start finds

    def ranges_passing(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview, bool]]:
        """Like ranges(), over damage, and whether some lies directly before these records.

        Raises CorruptSegment only at `start`, if nothing tells that a record begins there.
        """
        at, is_behind_damage = start, False
        while True:
            try:
                for where, chunk in self.ranges(at, limit_bytes):
                    yield where, chunk, is_behind_damage
                    is_behind_damage = False
                return
            except CorruptSegment as error:
                damaged = error.log_offset
                if damaged == start and damaged not in self._damaged and not self._claims_record(damaged):
                    raise
                EVENTS.error("damaged", "passed over damage: %s", error)
                self._note_damage(damaged)
                at, is_behind_damage = self._behind(damaged), True

    def look_at(self, log_offset: int) -> None:
        """Note damage where a reader is about to go on."""
        try:
            for _ in self.ranges(log_offset, 1):
                return
        except CorruptSegment as error:
            self._note_damage(error.log_offset)

    def _note_damage(self, log_offset: int) -> None:
        """Remember where a damaged record is: a reader may go on there, whatever its bytes say."""
        while len(self._damaged) >= MOST_PLACES:
            del self._damaged[next(iter(self._damaged))]
        self._damaged[log_offset] = None

    def _claims_record(self, log_offset: int) -> bool:
        """Whether the bytes there say that a record begins there, which need not be valid."""
        segment, _ = self._segment_at(log_offset)
        with _opened(segment.path) as fd:
            return int.from_bytes(read_part(fd, 8, log_offset + 8 - segment.base), "little") == log_offset

    def _behind(self, log_offset: int) -> int:
        """log_offset of the next valid record after a damaged one, else where its segment ends."""
        segment, end = self._segment_at(log_offset)
        with _opened(segment.path) as fd:
            return next_record(fd, segment.base, log_offset, end, opens_batches=True) or end

    def _segment_at(self, log_offset: int) -> tuple[Segment, int]:
        """The segment that has a log_offset, and where it ends."""
        end = self.committed
        for segment in reversed(self.segments):
            if segment.base <= log_offset:
                return segment, end
            end = segment.base
        raise AssertionError(log_offset)

    # --- places

    def resumes_at(self, log_offset: int) -> int | None:
        """The position to read on from so that nothing from a log_offset on is left out: itself, or the start of its
        gap.

        None: it is no position of this log. Raises CorruptSegment, OSError.
        """
        end = self.committed
        for segment in reversed(self.segments):
            if segment.base <= log_offset:
                if log_offset <= segment.first or log_offset >= end:
                    return log_offset if log_offset <= self.end else None
                return resumed(segment.path, segment.base, segment.first, end, log_offset)
            end = segment.base
        return None

    def begins_before(self, log_offset: int) -> int:
        """The base of the segment with a log_offset; `first` at least."""
        return max((segment.first for segment in self.segments if segment.first <= log_offset), default=self.first)

    def before_time(self, at_ms: int) -> int:
        """The base of the newest segment that was made before `at_ms` (Unix time); `first` at least."""
        return max((segment.first for segment in self.segments if segment.created_ms < at_ms), default=self.first)

    def behind_time(self, at_ms: int) -> int:
        """The base of the oldest segment that was made after `at_ms` (Unix time); `end` at most."""
        return min((segment.base for segment in self.segments if segment.created_ms > at_ms), default=self.end)

    def parts_from(self, start: int, most: int) -> tuple[list[tuple[int, int]], bool]:
        """(base, created_ms) of up to `most` segments from log_offset `start` on, and whether there are more."""
        found = [(segment.base, segment.created_ms) for segment in self.segments if segment.base >= start]
        return found[:most], len(found) > most


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a segment's file: a sealed one keeps none."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)
