"""The interfaces of a log. CommitLog is the only one; docs/internals.md ("A second log") says what another would do.

A log_offset is the position of a record in bytes. All calls are made from the store's thread, except where it says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from store.errors import StoreError
from store.files.folder import DataFolder
from store.log.durations import Durations
from store.records._records import LogMemory, RecordBatch
from store.records.records import Record
from store.recovery.quarantine import Kind
from store.settings import StoreSettings

Elsewhere = Callable[[Callable[[], object]], Iterator[None]]
"""Runs work in another thread, since it waits for the disk; yields until it is done, and raises the work's errors."""


class LogPiece(NamedTuple):
    """Whole records; `log_offset` is the position of the first."""

    log_offset: int
    data: bytes


class LogPart(NamedTuple):
    """The part of a log that is dropped as a whole: records from `base` on and before `end`."""

    base: int
    end: int
    newest_ms: int
    """Unix time at which its last record was stored, or shortly after."""


class Scrubs(Protocol):
    """Reads the log again at leisure, in a thread of its own. Its figures may be asked from any thread."""

    def start(self) -> None:
        """Call it once the log is served; the log's close() ends it."""

    passes: int

    @property
    def read_bytes(self) -> int: ...

    def found_bytes(self) -> Mapping[Any, int]:
        """Bytes found not intact, by kind."""


class LogRecords(Protocol):
    """The part of a log that queues use."""

    @property
    def memory(self) -> LogMemory:
        """The bytes of each record that is kept, by log_offset, for compiled code."""

    @property
    def base(self) -> int:
        """log_offset at which the oldest part begins; 0 as long as nothing was dropped."""

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Ranges [start, end) of log_offsets that are lost to damage, in order."""


class ReadableLog(LogRecords, Protocol):
    """The records of a log, and where they stand."""

    committed: int
    """All before this log_offset can be read by ranges() and read()."""
    end: int
    """log_offset after the newest record."""

    def commit(self) -> None:
        """Let readers have what is appended. Raises StoreFull or WriteFailed."""

    def record(self, log_offset: int) -> Record:
        """The record that starts at `log_offset`. Raises LookupError if the log does not have it (any more)."""

    def timestamp_ms(self, log_offset: int) -> int:
        """Unix time at which that record was stored. Raises LookupError."""

    def ranges(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """The committed records from `start` on, verified: (log_offset, bytes) of about `limit_bytes` each.

        Raises CorruptSegment at a damaged record, after all that are in front of it.
        """

    def ranges_passing(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview, bool]]:
        """Like ranges(), over damage, and whether some lies directly before these records.

        Raises CorruptSegment only at `start`, if nothing tells that a record begins there.
        """

    def look_at(self, log_offset: int) -> None:
        """A reader is about to go on there: ranges_passing() may begin there, damaged or not."""

    def read(self, start: int, limit_bytes: int) -> LogPiece:
        """The records from `start` on, where a record or a part begins; an empty piece at the log's end.

        A batch record that is longer than the limit is entered: the records in it are returned. Raises CorruptSegment,
        also if no record begins at `start`; RecordTooLarge.
        """

    def resumes_at(self, log_offset: int) -> int | None:
        """The position to read on from so that nothing from a log_offset on is left out: itself, or the start of its
        gap.

        None: it is no position of this log. Raises CorruptSegment, OSError.
        """

    # --- places

    def begins_before(self, log_offset: int) -> int:
        """A place at or before a log_offset, and not far before, where a record certainly begins; `first` at least."""

    def before_time(self, at_ms: int) -> int:
        """The log_offset of a record before all records of `at_ms` (Unix time) or later; at least `first`."""

    def behind_time(self, at_ms: int) -> int:
        """A log_offset after all records that were stored at `at_ms` (Unix time) or before; `end` at most."""

    def parts_from(self, start: int, most: int) -> tuple[list[tuple[int, int]], bool]:
        """Where up to `most` parts begin from log_offset `start` on, each with its Unix time in ms; and whether
        there are more.
        """


class WritableLog(Protocol):
    """The way into a log, and from it to the disk."""

    largest_append_bytes: int

    @property
    def safe(self) -> int:
        """log_offset before which all bytes are as durable as the flush policy promises. No other code decides this."""

    @property
    def on_disk(self) -> int:
        """log_offset before which all bytes are on the disk, whatever the policy promises. Any thread may ask."""

    def append(self, batch: RecordBatch, from_reserve: bool = False, is_awaited: bool = True) -> int:
        """Append a batch and return the log_offset of its first record.

        Raises StoreFull, WriteFailed, DiskFailed or RecordTooLarge; then nothing was appended. `from_reserve`: the
        append may use the reserve, because it leads to freed room. Unless `is_awaited` it goes to the disk with what
        comes next, or by catch_up().
        """

    def catch_up(self) -> None:
        """Sync appends that no client waits for. Call this several times a second."""

    def hurry(self) -> None:
        """Sync everything that was committed to the disk now. Returns at once."""

    def synced(self, end: int) -> Iterator[None]:
        """Steps until all before `end` is on the disk. Raises DiskFailed if a sync has failed."""

    def tick(self, now_s: float) -> None:
        """Do the log's own upkeep, several times a second; `now_s` is monotonic. Raises StoreFull or WriteFailed."""

    def parts(self) -> list[LogPart]:
        """The parts that may be dropped, oldest first: not the one that is being written."""

    def drop_before(self, boundary: int, elsewhere: Elsewhere) -> Iterator[None]:
        """Drop the parts before `boundary`, where one of them ends, in short steps. Raises a StoreError.

        A kill in between leaves some of them, and names none as lost.
        """

    def close(self) -> None:
        """Commit, sync and close."""


class Log(ReadableLog, WritableLog, Protocol):
    """A log, with what tells its state."""

    appends: int
    """Batches appended since the start."""

    @property
    def lost_bytes(self) -> Mapping[Kind, int]:
        """Bytes that are gone, at all starts, by kind."""

    @property
    def scrubber(self) -> Scrubs: ...

    # --- the log and its index

    put_aside_from: int
    """Bytes that once lay after this log_offset are not part of the log: an index may not have applied them."""

    @property
    def identity(self) -> bytes:
        """Tells an index of this log from those of other logs; empty: not certain."""

    @property
    def name(self) -> bytes:
        """The same as `identity`, but also while that is not certain: for peers, which remember it."""

    @property
    def restored_from(self) -> Sequence[tuple[str, int]]:
        """The logs that it was restored from, newest first: name in hexadecimal, and the log_offset from which on the
        next of them had records of its own.
        """

    @property
    def kept(self) -> int | None:
        """Of a replicated log: a crash may take all after this log_offset out of it. None: only a power cut takes
        anything, and `miss` is for that.
        """

    def remembered(self) -> bytes:
        """Bytes that the index keeps with each of its writes, for the log's next start."""

    def miss(self, end: int) -> None:
        """Note that the index had applied records up to log_offset `end`, which the log does not have.

        Raises FolderUnusable or, without room, StoreFull.
        """

    # --- its state

    def fault(self) -> StoreError | None:
        """The reason why an append would fail now, or None."""

    @property
    def sync_error(self) -> str:
        """The reason why nothing more gets to the disk; empty: it does."""

    def failed_for_good(self) -> StoreError | None:
        """The failure that only a restart can clear (nothing is acknowledged any more), or None."""

    def write_anew(self) -> bool:
        """Write doubtful bytes anew after a failed sync. Returns whether that is done; until then appends fail.

        Call it repeatedly: a thread does the work. Raises DiskFailed if it cannot be done.
        """

    def notes(self) -> list[str]:
        """Faults for an operator although the log works. May be asked of any thread."""

    @property
    def syncs(self) -> int:
        """The number of syncs to the disk."""

    @property
    def sync_times(self) -> Durations: ...

    @property
    def disk_free_bytes(self) -> int:
        """Room on the disk that this user may fill; at most a second old."""

    @property
    def file_count(self) -> int: ...

    def forget_pages(self) -> None:
        """Give mapped history back to the page cache, out of this process's resident memory."""


OpenLog = Callable[[DataFolder, StoreSettings, Callable[[], None]], Log]
"""Opens the log of a data folder. The function is called after each sync, by another thread; it only schedules work."""
