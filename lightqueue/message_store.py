"""The message store as gateways see it: one append, and everything that follows from it.

An append goes to the CommitLog, is applied at once to the queues, sessions and retained pointers in memory, and
reaches RocksDB later, a little at a time, together with the `applied_offset` it stands for. After a crash the rest is
replayed.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from lightqueue._queues import Queue
from lightqueue.absent import AbsentSessions
from lightqueue.dispatching import Dispatching
from lightqueue.groups import Groups
from lightqueue.projection import Projection
from lightqueue.upkeep import Upkeep
from lightqueue.waiting import Waiting
from store._records import RecordBatch, Records
from store.checkpoint import open_index
from store.commitlog import CommitLog
from store.errors import RecordTooLarge, StoreError
from store.folder import DataFolder
from store.records import Record
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

REPLAY_BYTES = 8 << 20


class MessageStore:
    """Owner of a data folder. All calls are made from one thread; `on_safe` alone comes from the flusher's."""

    def __init__(self, settings: StoreSettings, on_safe: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.replayed_bytes = 0
        self._next_index_write = 0.0
        self._write_until = 0  # the index is being brought up to this log_offset, a step each tick
        self._pages_forgotten_at = 0
        self._refusing: StoreError | None = None
        with ExitStack() as undo:
            self.folder = DataFolder(settings.data, settings.group_access)
            undo.callback(self.folder.close)
            self.log = CommitLog(self.folder.log, settings, on_safe)
            undo.callback(self.log.close)
            self.index = open_index(self.folder, self.log, settings.index_write_buffer_bytes)
            undo.callback(self.index.close)
            self._state = Projection(self.log, self.index, settings)
            self._replay()
            self.upkeep = Upkeep(self.log, self.folder, self._state, self.append_upkeep)
            undo.pop_all()
        self.queues = self._state.queues
        self.sessions = self._state.sessions
        self.retained = self._state.retained
        self.peers = self._state.peers
        self.groups = Groups(self.log, self.queues, self._state.groups, self._append_all, settings.group_flush_ms)
        self.bans = self._state.bans
        self.keys = self._state.keys
        self.delayed = self._state.delayed
        self.dispatching = Dispatching(self.log, self.delayed, self._append_all)
        self.absent = AbsentSessions(self.sessions, self._append_all, self.queues.is_live_only)
        self.waiting = Waiting(self.sessions, self.queues, lambda: self.end)

    def _replay(self) -> None:
        for start, data in self.log.ranges(self._state.position, REPLAY_BYTES):
            self._state.replay(start, data)
            self.replayed_bytes += len(data)
        self.log.forget_pages()
        self._state.position = self.log.end

    # --- the one way in

    def append(self, batch: RecordBatch) -> int:
        """Store records and give them to their queues. Returns the log_offset of the first.

        Raises a StoreError (StoreFull, RecordTooLarge, ...), in which case nothing happened; only if the batch is too
        large for one segment, its front part may have been stored.
        """
        start = self._append_all(batch)
        if self.absent.has_due:
            with suppress(StoreError):  # it is tried again
                self.absent.do_due()
        return start

    def _append_all(self, batch: RecordBatch) -> int:
        limit = self.log.largest_append_bytes
        if batch.size <= limit:
            return self._append(batch)
        pieces = batch.split(limit)
        largest = max(piece.size for piece in pieces)
        if largest > limit:
            raise RecordTooLarge(largest, limit)
        starts = [self._append(piece) for piece in pieces]
        return starts[0]

    def append_upkeep(self, batch: RecordBatch) -> None:
        """As append(), for what frees room in the end: it may use the room that is kept from messages."""
        for piece in batch.split(self.log.largest_append_bytes):
            self._append(piece, from_reserve=True)

    def _append(self, batch: RecordBatch, from_reserve: bool = False) -> int:
        if self._refusing is not None:
            raise self._refusing.with_traceback(None)
        start = self.log.append(batch, from_reserve)
        self.queues.dispatcher.apply_appended(self.log.memory, start, batch.size)
        self._state.position = self.log.end
        return start

    @property
    def end(self) -> int:
        """log_offset behind the newest record."""
        return self.log.end

    @property
    def safe(self) -> int:
        """Every record before this log_offset is as durable as the flush policy promises."""
        return self.log.safe

    @staticmethod
    def now_ms() -> int:
        """Unix time by the clock that stamps records."""
        return time.time_ns() // 1_000_000

    def take_grown(self) -> list[Queue]:
        """Watched queues that grew since the last call."""
        return self.queues.dispatcher.take_touched()

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        """A range of a queue; see QueueTable.read."""
        return self.queues.read(queue, start, max_records, max_bytes)

    def record(self, log_offset: int) -> Record:
        """One record by its position. Raises LookupError when it is not kept (any more)."""
        return self.log.record(log_offset)

    # --- upkeep

    def tick(self) -> bool:
        """To be called several times a second: write the index when it is time to, advance what upkeep there is.

        Takes a few milliseconds. True if the index has to be written on, or more delayed messages are due: then it is
        to be called again as soon as others have had their turn.
        """
        now_s = time.monotonic()
        try:
            self.log.commit_if_due(now_s)
            is_due = self._index_write_due(now_s)
            if is_due:
                self._next_index_write = now_s + self.settings.index_flush_ms / 1000
                self._write_until = self.log.end
            if is_due or self._state.applied < self._write_until:
                self.log.commit()
                self._state.write_some(self._write_until)
                self._refusing = None
            else:
                self.queues.evict_idle()
        except StoreError as error:
            if self._refusing is None:
                log.error("%s; messages are refused until it succeeds", error)
            self._refusing = error
        with suppress(StoreError):  # said already; it is tried again
            self.absent.tick()
        has_more_due = self.dispatching.step(self.now_ms(), now_s)
        is_releasing = self.sessions.release_some()
        self.upkeep.step(now_s)
        self.waiting.step()
        if self.log.memory.mapped_bytes_read > self._pages_forgotten_at + self.settings.mapped_resident_bytes:
            self._pages_forgotten_at = self.log.memory.mapped_bytes_read
            self.log.forget_pages()
        return has_more_due or is_releasing or (self._refusing is None and self._state.applied < self._write_until)

    def _index_write_due(self, now_s: float) -> bool:
        if self.queues.dispatcher.pending >= self.settings.index_flush_entries:
            return True
        if not self._state.has_news and self._refusing is None:
            return False
        # With `buffered` it waits for the commit that is due anyway, instead of making one more.
        return now_s >= self._next_index_write and self.log.committed == self.log.end

    def write_index(self) -> None:
        """Bring RocksDB up to date. Raises a StoreError; then everything stays in memory, for the next attempt."""
        self.log.commit()
        self._state.write()

    def close(self) -> None:
        """Write everything out and give the folder back."""
        with ExitStack() as closing:
            for part in (self.folder, self.log, self.index):
                closing.callback(part.close)
            self.groups.write_due(time.time_ns() // 1_000_000, at_once=True)
            try:
                self.write_index()
                self.index.flush()
            except StoreError as error:
                log.warning("%s: the index will be brought up to date from the log at the next start", error)
