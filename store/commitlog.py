"""The CommitLog: one append-only sequence of records in fixed-size segment files; log_offset is a byte position in it.

Appends go through a tail buffer in memory to the active segment by pwrite (a quarter of the cost of a store into the
mapping, and a full disk is an error instead of a signal: docs/adr/0002); reads use the tail, else the mapping.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store._records import LogMemory, RecordBatch, verify
from store.errors import CorruptSegment, DiskFailed, RecordTooLarge, StoreError, StoreFull
from store.flush import Flusher
from store.records import Record
from store.recovery import open_segments
from store.segment import ALLOCATE_BYTES, HEADER_BYTES, NO_ROOM, Segment
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

BUFFERED_COMMIT_BYTES = 16 << 10
LIKELY_APPEND_BYTES = 1 << 20  # what a gateway's busiest turn appends
RESERVE_SHARE = 20  # the reserve is at most one part in this many of the file system


class CommitLog:
    """Owns the segments of a folder. Single-threaded but for the flusher."""

    def __init__(self, folder: Path, settings: StoreSettings, on_flushed: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.settings = settings
        self.memory = LogMemory()
        self.segments: list[Segment] = []
        self.appends = 0
        segments, self.end = open_segments(folder, settings)
        for segment in segments:
            self._adopt(segment)
        self.memory.start(self.end)
        self.committed = self.end  # up to here the file has it; before that it is in memory only (`buffered`)
        self._commit_due = 0.0
        self._last_ms = self._active.last_ms or 0
        self._torn = False
        self.flusher = Flusher(settings, self.end, on_flushed)
        self.flusher.start(self._active.fd)

    # --- positions

    @property
    def base(self) -> int:
        """log_offset at which the oldest segment begins; 0 as long as nothing was dropped."""
        return self.segments[0].base

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""
        return self.segments[0].first

    @property
    def safe(self) -> int:
        """Everything before this log_offset survives what the flush policy promises. The one place that knows."""
        return self.flusher.flushed if self.settings.flush == "sync" else self.end

    def fault(self) -> StoreError | None:
        """Why an append would fail now, or None."""
        if self.flusher.error:
            return DiskFailed(self.folder, str(self.flusher.error))
        wanted = self._active.unallocated(min(self.end + LIKELY_APPEND_BYTES, self._active.limit))
        return StoreFull(self.folder) if wanted > self._spare_bytes(False) else None

    @property
    def largest_append_bytes(self) -> int:
        return self.settings.segment_bytes - HEADER_BYTES

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    # --- writing

    def append(self, batch: RecordBatch, from_reserve: bool = False) -> int:
        """Append a batch and return the log_offset of its first record.

        Raises StoreFull, DiskFailed or RecordTooLarge; then nothing was appended. `from_reserve` is for what frees
        room in the end: it may take what is kept from messages.
        """
        size = batch.size
        if self.flusher.error:
            raise DiskFailed(self.folder, str(self.flusher.error))
        try:
            self._mend()
            if self.end + size > self._active.limit:
                self._roll(size, from_reserve)
            start = self.end
            self._reserve(start + size, from_reserve)
            self._torn = True
            self._write(batch, start)
            self._torn = False
        except OSError as error:
            self.memory.truncate(self.end)
            raise self._failure(error) from error
        self.end = start + size
        self.appends += 1
        if self.committed == self.end:
            self.flusher.written(self.end)
        return start

    def _failure(self, error: OSError) -> StoreError:
        return StoreFull(self.folder) if error.errno in NO_ROOM else DiskFailed(self.folder, str(error))

    def _mend(self) -> None:
        """Erase what a failed append may have left in the file: shorter appends would not cover all of it."""
        if self._torn:
            self._active.erase_after(self.committed)
            self._torn = False

    def _reserve(self, end: int, from_reserve: bool) -> None:
        wanted = self._active.unallocated(end)
        if wanted:
            spare = self._spare_bytes(from_reserve)
            if wanted > spare:
                raise StoreFull(self.folder)
            self._active.allocate(end, min(ALLOCATE_BYTES, spare - wanted))

    def _spare_bytes(self, from_reserve: bool) -> int:
        """Room on the disk that an append may take. RocksDB bears a full disk worse than the log: it has the rest."""
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if from_reserve:
            return free
        return max(0, free - min(self.settings.reserve_bytes, disk.f_blocks * disk.f_frsize // RESERVE_SHARE))

    def _write(self, batch: RecordBatch, start: int) -> None:
        timestamp_ms = self._last_ms = time.time_ns() // 1_000_000
        if self.settings.flush == "buffered" and batch.size <= self.memory.tail_room():
            self._write_later(batch, start, timestamp_ms)
            return
        self.commit()
        if self.memory.append(batch, start, timestamp_ms):
            self._commit_to(start + batch.size)
        else:
            self.memory.write_batch(batch, self._active.fd, start, timestamp_ms, self._active.base)
            self.committed = start + batch.size

    def _write_later(self, batch: RecordBatch, start: int, timestamp_ms: int) -> None:
        if self.committed == start:
            self._commit_due = time.monotonic() + self.settings.buffered_commit_ms / 1000
        self.memory.append(batch, start, timestamp_ms)
        if start + batch.size - self.committed >= BUFFERED_COMMIT_BYTES:
            self._commit_to(start + batch.size)

    def _commit_to(self, end: int) -> None:
        self.memory.write(self._active.fd, self.committed, end, self._active.base)
        self.committed = end

    def commit(self) -> None:
        """Write what `buffered` still holds in memory to the file. Raises StoreFull or DiskFailed."""
        if self.committed < self.end:
            try:
                self._commit_to(self.end)
            except OSError as error:
                raise self._failure(error) from error
            self.flusher.written(self.end)

    def commit_if_due(self, now_s: float) -> None:
        """Commit what is buffered_commit_ms old. To be called several times a second with time.monotonic()."""
        if now_s >= self._commit_due:
            self.commit()

    def _roll(self, size_bytes: int, from_reserve: bool) -> None:
        if size_bytes > self.largest_append_bytes:
            raise RecordTooLarge(size_bytes, self.largest_append_bytes)
        if self._spare_bytes(from_reserve) < HEADER_BYTES + size_bytes:
            raise StoreFull(self.folder)
        self.commit()
        sealed = self._active
        segment = Segment.create(self.folder, self.end, self.settings.segment_bytes, 0, time.time_ns() // 1_000_000)
        self._adopt(segment)
        self.flusher.rolled(segment.fd)
        sealed.last_ms = self._last_ms
        end, self.end = self.end, segment.first
        self.committed = self.end
        sealed.seal(end)
        self.memory.map(sealed.base, sealed.view(sealed.base, sealed.limit))  # past it there is no file any more

    def _adopt(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.memory.map(segment.base, segment.view(segment.base, segment.limit))

    # --- reading

    def record(self, log_offset: int) -> Record:
        """The record that starts at `log_offset`. Raises LookupError when it is not in the log (any more)."""
        return Record._make(self.memory.record(log_offset))

    def ranges(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """The committed records from `start` on: (log_offset, mapped bytes), verified, some `limit_bytes` at a time.

        Raises CorruptSegment.
        """
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            end = following.base if following else self.committed
            at = max(start, segment.first)
            while at < end:
                with segment.view(at, end) as data:
                    size, _, reason = verify(data, at, limit_bytes)
                    if reason:
                        raise CorruptSegment(segment.path, at + size, reason)
                    with data[:size] as chunk:
                        yield at, chunk
                at += size

    def forget_pages(self) -> None:
        """Keep mapped history out of this process's resident memory."""
        for segment in self.segments:
            segment.forget_pages()

    # --- trimming, closing

    def drop_first(self) -> None:
        """Delete the oldest segment. The active one is never dropped."""
        if len(self.segments) < 2:
            raise ValueError("the active segment cannot be dropped")
        segment = self.segments.pop(0)
        self.memory.unmap(segment.base)
        segment.path.unlink()
        segment.close()

    def close(self) -> None:
        """Commit, sync and close."""
        try:
            self._mend()
            self.commit()
        finally:
            self.flusher.stop()
            for segment in self.segments:
                self.memory.unmap(segment.base)
                segment.close()
