"""The CommitLog of a store in a cluster: the same bytes as in all other stores, headers of segments included.

A leader appends, and each append is given on as the bytes that stand in the segments. A standby writes what is
accepted. A start cuts off what is after the mark, since the partition has it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

from store.errors import (
    DamagedInCluster,
    DamageFound,
    FolderUnusable,
    LogOfOneStore,
    NotLeading,
    PartitionUnusable,
    StoreError,
    unusable,
)
from store.files.folder import DataFolder
from store.files.marks import Marks, encode_remembered
from store.files.segment import (
    HEADER_BYTES,
    IDENTITY_BYTES,
    Segment,
    read_header,
    segment_header,
    segment_paths,
    sync_folder,
)
from store.files.sums import forget_sum
from store.log.api import OpenLog
from store.log.commitlog import CommitLog
from store.log.copied import finish_copy
from store.log.mark_file import MARK_FILE, MarkFile
from store.log.mark_keeper import MarkKeeper
from store.records._records import RecordBatch, verify
from store.replication.judging import ReplicaMark
from store.settings import StoreSettings

COPY_PATIENCE_S: Final = 60.0
"""For so long after it was given a piece, a store that copies may take until it follows."""

FINDINGS: Final = 3  # named in an error


class TakesAppends(Protocol):
    """The store's part in its cluster, while it leads."""

    def check(self) -> None:
        """Raises NotLeading or ReplicationBehind if take() must not be called now."""

    def take(self, data: bytes) -> None:
        """An append, as it stands in the log from the end of the one before it on."""


class ReplicatedLog(CommitLog):
    """A CommitLog up to `accepted`, and what its leader has appended after that."""

    def __init__(self, data: DataFolder, settings: StoreSettings, on_safe: Callable[[], None], file: MarkFile) -> None:
        """`on_safe` is called when `accepted` has grown. Takes over `file`. Raises as CommitLog does."""
        folder = data.log
        folder.mkdir(exist_ok=True)
        self.accepted = file.mark.accepted
        self.topic_id = file.topic_id
        self._given_s, self._given_offset = float("-inf"), 0
        try:
            cut_to(folder, self.accepted, settings.segment_bytes, _identity(file.topic_id))
        except OSError as error:
            raise unusable(folder, error) from error
        self._on_safe = on_safe
        self.taker: TakesAppends | None = None
        self._keeper: MarkKeeper | None = None
        # What is acknowledged is on brokers; the mark waits for the disk. A gap would not be in the other stores.
        settings = replace(settings, flush="async", on_damage="refuse")
        try:
            super().__init__(folder, settings, self._flushed, data.quarantine)
        except DamageFound as error:
            raise DamagedInCluster(data.path, "; ".join(error.findings[:FINDINGS])) from None
        self.power_cut_note = ""
        if self.end != max(self.accepted, HEADER_BYTES):
            self.close()
            raise FolderUnusable(
                data.path,
                f"its log ends at log_offset {self.end}, and {self.accepted} was accepted and on the disk: the disk "
                "has lost it; move the folder away, and the store begins anew",
            )
        self._last_ms = max((segment.last_ms or 0 for segment in self.segments), default=0)
        self._keeper = MarkKeeper(file, lambda: self.flusher.flushed, self.flusher.hurry)

    def _flushed(self) -> None:
        if self._keeper is not None:
            self._keeper.flushed()

    # --- how far it is

    @property
    def safe(self) -> int:
        """The log_offset before which everything is accepted, so it is on a majority of Kafka's replicas."""
        return self.accepted

    @property
    def on_disk(self) -> int:
        return min(self.flusher.flushed, self.accepted)

    def accepts(self, log_offset: int) -> None:
        """Note that this leader's appends are accepted up to a log_offset."""
        self.accepted = log_offset
        self._on_safe()

    @property
    def keeper(self) -> MarkKeeper:
        assert self._keeper is not None
        return self._keeper

    def keep(self, mark: ReplicaMark) -> None:
        """Keep a mark once the log is on the disk up to there."""
        self.keeper.keep(mark)

    @property
    def kept(self) -> int:  # type: ignore[override]
        """The index may have applied all before this log_offset for good: a start finds the log that far."""
        return self.keeper.kept.accepted

    def remembered(self) -> bytes:
        """The mark: bytes after it are cut off at the next start, so the index must not need them then."""
        slot = self.marks.slot
        return encode_remembered(slot._replace(flushed=min(slot.flushed, self.kept)))

    def miss(self, end: int) -> None:
        """Do nothing: bytes that the index knows and this log lacks are in the partition, or nobody accepted them."""

    # --- as the leader

    def gives(self, mark: ReplicaMark) -> None:
        """Keep Kafka's records after this mark for a while: another store copies the log up to it."""
        now_s = time.monotonic()
        is_first = now_s > self._given_s + COPY_PATIENCE_S
        self._given_offset = mark.offset if is_first else min(self._given_offset, mark.offset)
        self._given_s = now_s

    @property
    def given_offset(self) -> int | None:
        """Offset in the partition from which on a store that copies has to find it; None: none does. For any thread."""
        return self._given_offset if time.monotonic() < self._given_s + COPY_PATIENCE_S else None

    def not_accepted(self) -> bytes:
        """The bytes after `accepted`; of a new log, the header of its first segment."""
        return self._bytes(self.accepted)

    def _bytes(self, start: int) -> bytes:
        active = self.segments[-1]
        return bytes(active.view(start, self.end))

    def append(self, batch: RecordBatch, from_reserve: bool = False, is_awaited: bool = True) -> int:
        """Like CommitLog.append(), but also raises NotLeading and ReplicationBehind."""
        taker = self.taker
        if taker is None:
            raise NotLeading("")
        taker.check()
        start = self.end
        try:
            return super().append(batch, from_reserve, is_awaited)
        finally:
            if self.end > start:  # a segment may have begun although the append failed
                taker.take(self._bytes(start))

    def _write(self, batch: RecordBatch, start: int) -> None:
        """Timestamps never decrease, whoever leads."""
        timestamp_ms = self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
        if self.memory.append(batch, start, timestamp_ms):
            self._commit_to(start + batch.size)
        else:
            self.memory.write_batch(batch, self._active.fd, start, timestamp_ms, self._active.base)
            self.committed = start + batch.size

    # --- as a standby

    def write_accepted(self, base: int, data: bytes) -> list[tuple[int, memoryview]]:
        """Write bytes exactly as they are; returns the records among them, each run with its log_offset.

        Raises StoreFull, WriteFailed, DiskFailed, or PartitionUnusable for what is no continuation of this log.
        """
        if failed := self.failed_for_good():
            raise failed
        if base != self.accepted:
            raise StoreError(f"bytes of log_offset {base} come where the log is accepted up to {self.accepted}")
        view, found = memoryview(data), []
        at = self._same_beginning(view) if base == 0 else 0
        try:
            while at < len(view):
                at, run = self._write_next(view, at)
                found += run
        except OSError as error:
            raise self._failure(error) from error
        self.accepted = base + len(data)
        return found

    def _same_beginning(self, view: memoryview) -> int:
        """Every store makes the first header by itself, from the topic's id."""
        if bytes(view[:HEADER_BYTES]) != self.segments[0].view(0, HEADER_BYTES):
            raise PartitionUnusable(0, "it begins with the header of another log")
        return HEADER_BYTES

    def _write_next(self, view: memoryview, at: int) -> tuple[int, list[tuple[int, memoryview]]]:
        """Write a header, or records up to the next one; returns where to go on. Raises OSError."""
        header = read_header(bytes(view[at : at + HEADER_BYTES]))
        if header is not None and header.base == self.end:
            if view[at : at + HEADER_BYTES] != segment_header(header.base, header.identity, header.created_ms):
                raise PartitionUnusable(self.end, "the header of a segment of another version")
            self._begin_segment(header.identity, header.created_ms)
            return at + HEADER_BYTES, []
        start = self.end
        size, last_ms, reason = verify(view[at:], start)
        active = self.segments[-1]
        if not size:
            raise PartitionUnusable(start, f"log_offset {start}: {reason}")
        if start + size > active.limit:
            raise PartitionUnusable(start, "a segment that is larger than store.segment_bytes of this store says")
        if start + size > active.base + active.allocated_bytes:
            self._reserve(active, start + size, from_reserve=True)
        piece = view[at : at + size]
        _write_all(active.fd, piece, start - active.base)
        self.end = self.committed = start + size
        self._last_ms = max(self._last_ms, last_ms)
        self.memory.start(self.end)  # it is read from the file
        self.flusher.written(self.end)
        return at + size, [(start, piece)]

    def close(self) -> None:
        super().close()
        if self._keeper is not None:
            self._keeper.close()


def replicated_in(topic_id: str) -> OpenLog:
    """Opens the log of a data folder whose cluster has its partition in the topic of that id."""

    def opens(data: DataFolder, settings: StoreSettings, on_safe: Callable[[], None]) -> ReplicatedLog:
        finish_copy(data.path)
        if segment_paths(data.log) and not (data.path / MARK_FILE).exists():
            raise LogOfOneStore(data.path)
        return ReplicatedLog(data, settings, on_safe, MarkFile(data.path, topic_id))

    return opens


def cut_to(folder: Path, accepted: int, segment_bytes: int, identity: bytes) -> None:
    """Cut off the log after what was accepted; where there is none, begin it as every store does. Raises OSError."""
    marks = Marks(folder, identity)
    try:
        paths = segment_paths(folder)
        if not paths and accepted == 0:
            Segment.create(folder, 0, segment_bytes, marks.identity, 0).close()
        for path in reversed(paths):
            base = int(path.stem)
            if base and base >= accepted:
                path.unlink()
                continue
            forget_sum(folder, base)
            end = max(accepted, base + HEADER_BYTES) - base
            os.truncate(path, end)
            os.truncate(path, max(segment_bytes, end))  # the leader says whether it goes on in this one
            break
        sync_folder(folder)
        end = max(accepted, HEADER_BYTES)
        marks.start(marks.begin, end if marks.flushed is None else min(end, marks.flushed))
    finally:
        marks.close()


def _identity(topic_id: str) -> bytes:
    """The identity of the log that begins in a topic."""
    return blake2b(topic_id.encode(), digest_size=IDENTITY_BYTES).digest()


def _write_all(fd: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written
