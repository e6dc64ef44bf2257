"""The CommitLog: one append-only sequence of records in fixed-size segment files; log_offset is a byte position in it.

Appends go through a tail buffer in memory to the active segment by pwrite (a quarter of the cost of a store into the
mapping, and a full disk is an error instead of a signal: docs/adr/0002); reads use the tail, else the mapping.
"""

import errno
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store._records import LogMemory, RecordBatch
from store.errors import CorruptSegment, FolderUnusable, RecordTooLarge, StoreFull
from store.flush import Flusher
from store.records import Record
from store.segment import HEADER_BYTES, Segment, segment_paths
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

BUFFERED_COMMIT_BYTES = 16 << 10


class CommitLog:
    """Owns the segments of a folder. Single-threaded but for the flusher."""

    def __init__(self, folder: Path, settings: StoreSettings, on_flushed: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.settings = settings
        self.memory = LogMemory()
        self.segments: list[Segment] = []
        self.appends = 0
        self._recover()
        self._committed = self.end
        self._commit_due = 0.0
        self.flusher = Flusher(settings, self.end, on_flushed)
        self.flusher.start(self._active.fd)

    # --- positions

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""
        return self.segments[0].first

    @property
    def safe(self) -> int:
        """Everything before this log_offset survives what the flush policy promises. The one place that knows."""
        return self.flusher.flushed if self.settings.flush == "sync" else self.end

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    # --- writing

    def append(self, batch: RecordBatch) -> int:
        """Append a batch and return the log_offset of its first record.

        Raises StoreFull (nothing was appended) or RecordTooLarge.
        """
        size = batch.size
        try:
            if self.end + size > self._active.limit:
                self._roll(size)
            start = self.end
            self._active.reserve(start + size)
            self._write(batch, start)
        except OSError as error:
            self.memory.truncate(self.end)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(self.folder) from error
            raise FolderUnusable(self.folder, str(error)) from error
        self.end = start + size
        self.appends += 1
        if self._committed == self.end:
            self.flusher.written(self.end)
        return start

    def _write(self, batch: RecordBatch, start: int) -> None:
        timestamp_ms = time.time_ns() // 1_000_000
        if self.settings.flush == "buffered" and batch.size <= self.memory.tail_room():
            self.memory.append(batch, start, timestamp_ms)
            if start + batch.size - self._committed >= BUFFERED_COMMIT_BYTES:
                self._commit_to(start + batch.size)
            return
        self.commit()
        if self.memory.append(batch, start, timestamp_ms):
            self._commit_to(start + batch.size)
        else:
            self.memory.write_batch(batch, self._active.fd, start, timestamp_ms, self._active.base)
            self._committed = start + batch.size

    def _commit_to(self, end: int) -> None:
        self.memory.write(self._active.fd, self._committed, end, self._active.base)
        self._committed = end

    def commit(self) -> None:
        """Write what `buffered` still holds in memory to the file. To be called every buffered_commit_ms."""
        if self._committed < self.end:
            self._commit_to(self.end)
            self.flusher.written(self.end)

    def _roll(self, size_bytes: int) -> None:
        if size_bytes > self.settings.segment_bytes - HEADER_BYTES:
            raise RecordTooLarge(size_bytes, self.settings.segment_bytes - HEADER_BYTES)
        self.commit()
        sealed = self._active
        segment = Segment.create(self.folder, self.end, self.settings.segment_bytes, 0, time.time_ns() // 1_000_000)
        self._adopt(segment)
        sealed.seal(self.end)
        self.end = self._committed = segment.first
        self.flusher.rolled(segment.fd)

    def _adopt(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.memory.map(segment.base, segment.map)

    # --- reading

    def record(self, log_offset: int) -> Record:
        """The record that starts at `log_offset`. Raises LookupError when it is not in the log (any more)."""
        return Record._make(self.memory.record(log_offset))

    def ranges(self, start: int) -> Iterator[tuple[int, memoryview]]:
        """The committed records from `start` on: (log_offset, mapped bytes), one range a segment."""
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            end = following.base if following else self._committed
            begin = max(start, segment.first)
            if begin < end:
                yield begin, segment.view(begin, end)

    def forget_pages(self) -> None:
        """Keep mapped history out of this process's resident memory."""
        for segment in self.segments:
            segment.forget_pages()

    # --- opening, trimming, closing

    def _recover(self) -> None:
        paths = self._without_stillborn(segment_paths(self.folder))
        if not paths:
            created_ms = time.time_ns() // 1_000_000
            self._adopt(Segment.create(self.folder, 0, self.settings.segment_bytes, 0, created_ms))
            self.end = self._active.first
        else:
            for path in paths:
                self._adopt(Segment.open(path, writable=path == paths[-1]))
            self._check_sealed()
            self.end = self._recover_last()
        self.memory.start(self.end)

    @staticmethod
    def _without_stillborn(paths: list[Path]) -> list[Path]:
        """Drop a last file that a crash left without a header: nothing was ever appended to it."""
        if paths:
            with paths[-1].open("rb") as file:
                if not any(file.read(HEADER_BYTES)):
                    paths[-1].unlink()
                    return paths[:-1]
        return paths

    def _check_sealed(self) -> None:
        """Refuse to start over damage in a complete segment; the newest verify_at_start_bytes are read through."""
        verify_from = self._active.base - self.settings.verify_at_start_bytes
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            if following.base > segment.limit:
                raise CorruptSegment(segment.path, segment.limit, f"the log goes on at {following.base}: a gap")
            if following.base > verify_from:
                end, _, reason = segment.verify(following.base)
                segment.forget_pages()
                if end != following.base:
                    raise CorruptSegment(segment.path, end, reason or "zeros where records should be")

    def _recover_last(self) -> int:
        """Cut the last segment after its last valid record: what follows was never acknowledged as safe."""
        active = self._active
        end, _, reason = active.verify(active.limit)
        active.allocated_bytes = end - active.base
        if reason:
            log.warning("%s: cut at log_offset %d (%s)", active.path, end, reason)
            active.erase_after(end)
        if active.size_bytes < self.settings.segment_bytes:
            return self._reopen_sealed(end)
        return end

    def _reopen_sealed(self, end: int) -> int:
        """The last file was sealed already, or segment_bytes grew: append to a new one."""
        segment = Segment.create(self.folder, end, self.settings.segment_bytes, 0, time.time_ns() // 1_000_000)
        self._active.seal(end)
        self._adopt(segment)
        return segment.first

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
        self.commit()
        self.flusher.stop()
        for segment in self.segments:
            self.memory.unmap(segment.base)
            segment.close()

