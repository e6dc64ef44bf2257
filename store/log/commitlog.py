"""The CommitLog: one append-only sequence of records in segment files of fixed size. A log_offset is a position in
bytes.

An append goes through a tail buffer in memory to the active segment by pwrite: that costs a quarter of a store into the
mapping, and a full disk is an error instead of a signal (docs/adr/0002). Reads use the tail buffer, else the mapping.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from store.errors import (
    NO_ROOM,
    DiskFailed,
    RecordTooLarge,
    StoreError,
    StoreFull,
    WriteFailed,
    unusable,
)
from store.files._mapping import unreadable_pages
from store.files.marks import Marks, Slot, encode_remembered
from store.files.segment import ALLOCATE_BYTES, HEADER_BYTES, Sealed, Segment, Spare, segment_path, sync_folder
from store.log.anew import Anew, Doubt
from store.log.api import Elsewhere, LogPart
from store.log.disk_room import DiskRoom
from store.log.durations import Durations
from store.log.flush import Flusher
from store.log.reading import SegmentedLog
from store.log.scrub import Scrubber
from store.records._records import RecordBatch
from store.recovery.quarantine import Finding, Quarantine
from store.recovery.recovery import open_segments
from store.recovery.recovery_rules import only_index_knows
from store.recovery.running import Running, gone_kind
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

BUFFERED_COMMIT_BYTES = 16 << 10
LIKELY_APPEND_BYTES = 1 << 20  # appended in a busy turn of a gateway
UNREADABLE = "pages of segments could not be read so far; what lies in them is lost, and all else is served"
UNREADABLE_REMEDY = "look at the disk, then run `penstock store check`"
SPARE_RETRY_S = 1.0


class CommitLog(SegmentedLog):
    """Owns the segments of a folder. For one thread, except the flusher's and the methods that the scrubber calls."""

    kept: int | None = None

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        on_flushed: Callable[[], None] = lambda: None,
        quarantine: Path | None = None,
        remembered: Slot | None = None,
    ) -> None:
        """Open or create the log of a folder.

        `quarantine`: folder for copies of damaged bytes; default: one in `folder`. `remembered`: marks as the index has
        them, beside the marks file.

        Raises FolderUnusable, StoreFull, UnknownFormat or, if `store.on_damage` is `refuse`, DamageFound.
        """
        self.folder = folder
        self.settings = settings
        self.largest_append_bytes = settings.segment_bytes - HEADER_BYTES
        self.quarantine = Quarantine(quarantine or folder / "quarantine")
        super().__init__()
        self.appends = 0
        self._disk = DiskRoom(folder, settings.reserve_bytes)
        self.scrubber = Scrubber(self, settings)
        self.marks = open_marks(folder)
        try:
            opened = open_segments(folder, settings, self.marks, self.quarantine, remembered)
            self._running = open_running(folder, settings.flush)
        except StoreError:
            self.marks.close()
            raise
        self.end = opened.end
        self.power_cut_note = _power_cut_note(self._running.flush_at_power_cut, self.end)
        self.findings = opened.findings  # of this start
        self.put_aside_from = self.quarantine.put_aside_from()
        self.lost_bytes = self.quarantine.lost_bytes()  # at all starts, by kind
        self.lost_ranges = self.quarantine.lost_ranges()  # of log_offsets, in order
        for segment in opened.segments:
            self._adopt(segment)
        self.memory.start(self.end)
        self.committed = self.end  # the file has everything before it; the rest is in memory (`buffered`)
        self._commit_due = 0.0
        self._last_ms = self._active.last_ms or 0
        self._torn = False
        self._anew: Anew | None = None
        self._unreadable = unreadable_pages()  # so many are told of
        self._forgotten_at_bytes = 0  # of mapped bytes read, when pages were forgotten last
        self._spare: Spare | None = None
        self._spare_again_s = 0.0  # when to try again to make one
        try:
            self.flusher = Flusher(settings, self.end, on_flushed, self.marks, folder)
            self.flusher.start(self._active.fd)
        except OSError as error:
            self._close_files()
            raise unusable(folder, error) from error
        self._keep_spare(time.monotonic())

    # --- what it is, and its state

    @property
    def identity(self) -> bytes:
        """The log's identity from its marks if a segment bears the same, else empty. It tells files of other logs
        apart.
        """
        known = self.marks.identity
        return known if any(segment.identity == known for segment in self.segments) else b""

    @property
    def name(self) -> bytes:
        """The same as `identity`, but also while no segment has it."""
        return self.marks.identity

    @property
    def restored_from(self) -> Sequence[tuple[str, int]]:
        """The logs that it has the beginning of; see store.files.marks."""
        return self.marks.restored_from

    def remembered(self) -> bytes:
        """The marks, which the index keeps a copy of."""
        return encode_remembered(self.marks.slot)

    def sealed(self) -> list[Sealed]:
        """The segments that are complete and on disk, oldest first. May be called from any thread."""
        segments, flushed = list(self.segments), self.flusher.flushed
        return [
            Sealed(segment.path, segment.base, following.base)
            for segment, following in pairwise(segments)
            if following.base <= flushed
        ]

    @property
    def safe(self) -> int:
        """log_offset before which all bytes are as durable as the flush policy promises. No other code decides this."""
        return self.flusher.flushed if self.settings.flush == "sync" else self.end

    @property
    def on_disk(self) -> int:
        """log_offset before which all bytes are on the disk, whatever the policy promises."""
        return self.flusher.flushed

    @property
    def sync_error(self) -> str:
        """The reason why nothing more gets to the disk; empty: it does."""
        return str(self.flusher.error) if self.flusher.error else ""

    @property
    def syncs(self) -> int:
        """The number of times that the log was synced."""
        return self.flusher.syncs

    @property
    def sync_times(self) -> Durations:
        return self.flusher.sync_times

    @property
    def file_count(self) -> int:
        return len(self.segments)

    def notes(self) -> list[str]:
        """Faults for an operator although the log works. May be called from any thread."""
        lost = ", ".join(f"{size} bytes {kind}" for kind, size in self.lost_bytes.items() if size)
        return [self.power_cut_note, f"the log lost {lost}: see {self.quarantine.folder}" if lost else ""]

    def miss(self, end: int) -> None:
        """Note that the index had applied records up to log_offset `end`: describe those that are gone and have no
        finding.

        The disk had confirmed none of these records. Raises FolderUnusable or, without room, StoreFull.
        """
        kind = gone_kind(self.settings.flush)
        finding = only_index_knows(kind, self._active.base, self.end, self.findings, end)
        if finding is None:
            return
        try:
            self.quarantine.describe(finding)
        except OSError as error:
            raise unusable(self.folder, error) from error
        log.warning("%s; see %s", finding, self.quarantine.folder)

    def fault(self) -> StoreError | None:
        """The reason why an append would fail now, or None."""
        if error := self.failed_for_good():
            return error
        if not self._disk.has_inodes():
            return StoreFull(self.folder, "inodes")
        likely = self.end + LIKELY_APPEND_BYTES
        wanted = self._active.unallocated(min(likely, self._active.limit))
        if likely > self._active.limit:  # the next one goes to a new segment
            wanted += HEADER_BYTES + min(LIKELY_APPEND_BYTES, self.largest_append_bytes)
        return StoreFull(self.folder) if wanted > self._disk.spare_bytes(from_reserve=False) else None

    def failed_for_good(self) -> StoreError | None:
        """The failure that only a restart can clear (nothing is acknowledged any more), or None."""
        return DiskFailed(self.folder, str(self.flusher.error)) if self.flusher.error else None

    def write_anew(self) -> bool:
        """Write the doubtful segments anew after a failed sync; see WritableLog. Raises DiskFailed if it fails."""
        if self._anew is None:
            flushed = self.flusher.flushed
            segments = [segment for segment in self.segments if segment.limit > flushed]
            self._anew = Anew(Doubt(segments, flushed, self.committed), self.memory, self.marks.identity)
        if not self._anew.is_done:
            return False
        anew, self._anew = self._anew, None
        try:
            if anew.error is not None:
                raise anew.error
            for old in anew.doubt.segments:
                self._replace(old)
            for sealed in self.segments[:-1]:
                sealed.give_back()
            self.flusher.resume(self._active.fd)
        except OSError as error:
            raise DiskFailed(self.folder, f"{self.flusher.error}; {error}") from error
        log.warning("%s: all bytes of a failed sync are on the disk now; messages are accepted again", self.folder)
        return True

    def _replace(self, old: Segment) -> None:
        """Open a segment's new file, which has the same bytes, in place of the old one."""
        new = Segment.open(old.path, writable=True)
        new.last_ms, new.allocated_bytes = old.last_ms, max(0, self.committed - old.base)
        self.segments[self.segments.index(old)] = new
        self.memory.unmap(old.base)
        old.close()
        self.memory.map(new.base, new.view(new.base, new.limit))

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    # --- writing

    def append(self, batch: RecordBatch, from_reserve: bool = False, is_awaited: bool = True) -> int:
        """Append a batch and return the log_offset of its first record.

        Raises StoreFull, WriteFailed, DiskFailed or RecordTooLarge; then nothing was appended. `from_reserve`: the
        append may use the reserve, because it leads to freed room. `is_awaited`: see Flusher.written().
        """
        size = batch.size
        if self.flusher.error and (failed := self.failed_for_good()):
            raise failed
        try:
            if self._torn:
                self._mend()
            if self.end + size > self.segments[-1].limit:
                self._roll(size, from_reserve)
            start = self.end
            active = self.segments[-1]
            if start + size > active.base + active.allocated_bytes:
                self._reserve(active, start + size, from_reserve)
            self._torn = True
            self._write(batch, start)
            self._torn = False
        except OSError as error:
            self.memory.truncate(self.end)
            raise self._failure(error) from error
        self.end = start + size
        self.appends += 1
        if self.committed == self.end:
            self.flusher.written(self.end, is_awaited)
        return start

    def _failure(self, error: OSError) -> StoreError:
        return StoreFull(self.folder) if error.errno in NO_ROOM else WriteFailed(self.folder, str(error))

    def _mend(self) -> None:
        """Erase the bytes that a failed append may have left in the file: a shorter append would not cover them."""
        self._active.erase_after(self.committed)
        self._torn = False

    def _reserve(self, active: Segment, end: int, from_reserve: bool) -> None:
        wanted, spare = active.unallocated(end), self._disk.spare_bytes(from_reserve)
        if wanted > spare:
            raise StoreFull(self.folder)
        active.allocate(end, min(ALLOCATE_BYTES, spare - wanted))

    @property
    def disk_free_bytes(self) -> int:
        """Room on the disk that this user may fill; at most a second old."""
        return self._disk.free_bytes

    def _write(self, batch: RecordBatch, start: int) -> None:
        timestamp_ms = self._last_ms = time.time_ns() // 1_000_000
        if self.settings.flush == "buffered" and batch.size <= self.memory.tail_room():
            self._write_later(batch, start, timestamp_ms)
            return
        if self.committed < self.end:
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
        active = self.segments[-1]
        self.memory.write(active.fd, self.committed, end, active.base)
        self.committed = end

    def commit(self) -> None:
        """Write what `buffered` still holds in memory to the file. Raises StoreFull or WriteFailed."""
        if self.committed < self.end and self._anew is None:
            try:
                self._commit_to(self.end)
            except OSError as error:
                raise self._failure(error) from error
            self.flusher.written(self.end)

    def tick(self, now_s: float) -> None:
        """Commit what is `buffered_commit_ms` old, and do other upkeep. Call it several times a second with
        time.monotonic(). Raises StoreFull or WriteFailed.
        """
        self._keep_spare(now_s)
        if self.memory.mapped_bytes_read > self._forgotten_at_bytes + self.settings.mapped_resident_bytes:
            self._forgotten_at_bytes = self.memory.mapped_bytes_read
            self.forget_pages()
        if unreadable_pages() > self._unreadable:
            self._unreadable = unreadable_pages()
            log.error("%s: %d %s; %s", self.folder, self._unreadable, UNREADABLE, UNREADABLE_REMEDY)
        if now_s >= self._commit_due:
            self.commit()

    def _roll(self, size_bytes: int, from_reserve: bool) -> None:
        if size_bytes > self.largest_append_bytes:
            raise RecordTooLarge(size_bytes, self.largest_append_bytes)
        if self._disk.spare_bytes(from_reserve) < HEADER_BYTES + size_bytes:
            raise StoreFull(self.folder)
        self.commit()
        self._begin_segment(self.marks.identity, time.time_ns() // 1_000_000)

    def _begin_segment(self, identity: bytes, created_ms: int) -> None:
        """Seal the active segment, and have the next one follow it. Raises OSError."""
        path = segment_path(self.folder, self.end)
        if path.exists():
            stray = Finding(
                "foreign", path.stem, self.end, self.end + path.stat().st_size, "it lay where the log goes on"
            )
            self.quarantine.keep_file(stray, path)
        spare = self._spare = self._spare or Spare(self.folder, self.settings.segment_bytes)
        segment = spare.become(self.end, identity, created_ms)
        # Up to here an error leaves no trace. From here on nothing fails.
        self._spare, self._spare_again_s = None, 0.0
        sealed = self._active
        self._adopt(segment)
        self.flusher.rolled(spare.sync_fd)
        sealed.last_ms = self._last_ms
        end, self.end = self.end, segment.first
        self.committed = self.end
        try:
            sealed.seal(end)
        except OSError as error:
            log.warning("%s: cannot cut the zeros off its end: %s; the next start does it", sealed.path, error)
        self.memory.map(sealed.base, sealed.view(sealed.base, sealed.limit))  # the file ends there now

    def _keep_spare(self, now_s: float) -> None:
        """Make the next segment's file ahead of need. If that fails it is tried once a second, and by the next roll."""
        if self._spare is not None or now_s < self._spare_again_s:
            return
        self._spare_again_s = now_s + SPARE_RETRY_S
        with suppress(OSError):
            self._spare = Spare(self.folder, self.settings.segment_bytes)

    def _adopt(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.memory.map(segment.base, segment.view(segment.base, segment.limit))

    def catch_up(self) -> None:
        """See Flusher.catch_up()."""
        self.flusher.catch_up()

    def hurry(self) -> None:
        """Sync everything that was committed to the disk now. Returns at once."""
        self.flusher.hurry()

    def synced(self, end: int) -> Iterator[None]:
        """Steps until all before `end` is on the disk. Raises DiskFailed if a sync has failed."""
        return self._hurried(lambda: self.flusher.flushed >= end)

    def _hurried(self, is_done: Callable[[], bool]) -> Iterator[None]:
        while not is_done():
            if error := self.failed_for_good():
                raise error
            self.flusher.hurry()
            yield

    # --- trimming, closing

    def parts(self) -> list[LogPart]:
        """The sealed segments, oldest first."""
        # The last record's time may be unknown; the next segment was created later.
        return [
            LogPart(each.base, following.base, following.created_ms if each.last_ms is None else each.last_ms)
            for each, following in pairwise(self.segments)
        ]

    def drop_before(self, boundary: int, elsewhere: Elsewhere) -> Iterator[None]:
        """Drop the segments before `boundary`, where one of them ends, in short steps. Raises a StoreError."""
        self.marks.begin_at(boundary)
        # Else a power cut could make dropped segments look lost.
        yield from self._hurried(lambda: self.marks.begin_is_safe)
        while self.segments[0].base < boundary:
            yield from elsewhere(self.pop_first().remove)
        yield from elsewhere(lambda: sync_folder(self.folder))

    def pop_first(self) -> Segment:
        """Take the oldest segment out of the log; remove() deletes it, in any thread. Raises ValueError for the active
        one.
        """
        if len(self.segments) < 2:
            raise ValueError("the active segment cannot be dropped")
        if self.marks.begin < self.segments[1].base:
            self.marks.begin_at(self.segments[1].base)
        segment = self.segments.pop(0)
        self.memory.unmap(segment.base)
        return segment

    def close(self) -> None:
        """Commit, sync and close."""
        self.scrubber.stop()
        if self._anew is not None:
            self._anew.wait()
        try:
            if self._torn:
                self._mend()
            self.commit()
        finally:
            self.flusher.stop()
            self._close_files()
        if not self.flusher.error:
            self._running.end()

    def _close_files(self) -> None:
        for segment in self.segments:
            self.memory.unmap(segment.base)
            segment.close()
        if self._spare is not None:
            with suppress(OSError):  # the next start deletes it
                self._spare.remove()
        self.marks.close()


def open_marks(folder: Path) -> Marks:
    """The marks of a log's folder. Raises FolderUnusable, StoreFull."""
    try:
        return Marks(folder)
    except OSError as error:
        raise unusable(folder, error) from error


def open_running(folder: Path, flush: str) -> Running:
    """Note in the folder that the log is open. Raises FolderUnusable, StoreFull."""
    try:
        return Running(folder, flush)
    except OSError as error:
        raise unusable(folder, error) from error


def _power_cut_note(flush: str, end: int) -> str:
    """The warning after the machine went down under a flush policy; empty if everything acknowledged was on disk."""
    if flush in ("", "sync"):
        return ""
    note = (
        f"the machine went down while the store ran with flush={flush}: messages acknowledged in the last moments "
        f"may be lost, behind log_offset {end}; flush=sync loses nothing"
    )
    log.warning("%s", note)
    return note
