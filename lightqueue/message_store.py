"""The message store as gateways see it: one append, and everything that follows from it.

An append goes to the log, is applied at once to the queues, sessions and retained pointers in memory, and
reaches RocksDB later, a little at a time, together with the `applied_offset` it stands for. After a crash the rest is
replayed.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from lightqueue.groups.groups import Groups
from lightqueue.opening import OpenStore
from lightqueue.queues._queues import Queue, read_at
from lightqueue.queues.waiting import Waiting
from lightqueue.upkeep.absent import AbsentSessions
from lightqueue.upkeep.applying import ALL_WORK, FIRST_WORK, Applying
from lightqueue.upkeep.dispatching import Dispatching
from lightqueue.upkeep.upkeep import Upkeep
from store.errors import (
    IndexBusy,
    IndexDamaged,
    IndexFailed,
    IndexStuck,
    RecordTooLarge,
    StoreError,
    StoreFull,
)
from store.log.api import Log, OpenLog
from store.log.clock import Clock
from store.log.opening import open_log
from store.records._records import RecordBatch, Records
from store.records.records import Record
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

INDEX_PATIENCE_S = 10.0
"""For so long the index may fail to be written with room on the disk: once there is room again RocksDB goes on by
itself, within 5 s; after other errors it never does."""
INDEX_BEHIND = 2
"""Messages are stored as long as what the index lacks is at most so many times what it is given at once."""


class MessageStore:
    """Owner of a data folder. All calls are made from one thread; `on_safe` alone comes from the flusher's."""

    def __init__(
        self,
        settings: StoreSettings,
        on_safe: Callable[[], None] = lambda: None,
        on_replayed: Callable[[int, int], None] = lambda done_bytes, of_bytes: None,
        opens: OpenLog = open_log,
        opened: OpenStore | None = None,
    ) -> None:
        """`on_replayed` is told how much of the log was replayed, of how much. `opens` the log, unless it is `opened`
        already.
        """
        self.settings = settings
        opened = opened.handed_to(on_safe) if opened else OpenStore(settings, on_safe, on_replayed, opens)
        self._opened = opened
        self.replayed_bytes = opened.replayed_bytes
        self._next_index_write = 0.0
        self._write_until = 0  # the index is being brought up to this log_offset, a step each tick
        self._refusing: StoreError | None = None
        self._index_error: IndexFailed | None = None  # of its last write
        self._index_failing_since_s: float | None = None
        self.clock = Clock(settings.clock_jump_s)
        self.folder = opened.folder
        self.log: Log = opened.log
        self.index, self._state = opened.index, opened.state
        with ExitStack() as undo:
            undo.callback(opened.close)
            self.upkeep = Upkeep(self.log, self.folder, settings, self._state, self.append_upkeep, self.clock)
            undo.pop_all()
        self.queues = self._state.queues
        self.applying = Applying(self.log.memory, self.queues.dispatcher, self._applied)
        self.sessions = self._state.sessions
        self.retained = self._state.retained
        self.peers = self._state.peers
        self.groups = Groups(
            self.log, self.queues, self._state.groups, self._append_all, settings.group_flush_ms, opened.epoch
        )
        self.bans = self._state.bans
        self.log_readers = self._state.log_readers
        self.keys = self._state.keys
        self.usage = self._state.usage
        self.delayed = self._state.delayed
        self.dispatching = Dispatching(self.log, self.delayed, self._append_all)
        self.absent = AbsentSessions(self.sessions, self._append_all, self.queues.is_live_only, self.clock)
        self.waiting = Waiting(self.sessions, self.queues, lambda: self.end)

    # --- the one way in

    def append(self, batch: RecordBatch, is_awaited: bool = True) -> int:
        """Store records and give them to their queues. Returns the log_offset of the first.

        Unless `is_awaited`, they go to the disk with what comes next, or by the next tick().

        Raises a StoreError (StoreFull, RecordTooLarge, ...), in which case nothing happened; only if the batch is too
        large for one segment, its front part may have been stored.
        """
        start = self._append_all(batch, is_awaited)
        if self.absent.has_due:
            self.do_due()
        return start

    def append_in_steps(self, batch: RecordBatch) -> int:
        """Like append(); but of what takes long to apply some is left to `applying`, once all is in the log."""
        if batch.size > self.log.largest_append_bytes:
            return self.append(batch)
        start = self._append(batch, most_work=FIRST_WORK)
        if self.absent.has_due:
            self.do_due()
        return start

    def do_due(self) -> None:
        """Do what became due by what was applied: wills, and ends of sessions. Not in the middle of an append."""
        if not self.applying.left_bytes:
            with suppress(StoreError):  # it is tried again
                self.absent.do_due()

    def _append_all(self, batch: RecordBatch, is_awaited: bool = True) -> int:
        limit = self.log.largest_append_bytes
        if batch.size <= limit:
            return self._append(batch, is_awaited=is_awaited)
        pieces = batch.split(limit)
        largest = max(piece.size for piece in pieces)
        if largest > limit:
            raise RecordTooLarge(largest, limit)
        starts = [self._append(piece) for piece in pieces]
        return starts[0]

    def append_upkeep(self, batch: RecordBatch) -> None:
        """Like append(), for what frees room in the end: it may use the room that is kept from messages."""
        for piece in batch.split(self.log.largest_append_bytes):
            self._append(piece, from_reserve=True)

    def _append(
        self, batch: RecordBatch, from_reserve: bool = False, is_awaited: bool = True, most_work: int = ALL_WORK
    ) -> int:
        if self.applying.left_bytes:
            self.applying.finish()
        if self._refusing is not None:
            raise self._refusing.with_traceback(None)
        if not from_reserve and (error := self.upkeep.refusing) is not None:
            raise error.with_traceback(None)
        start = self.log.append(batch, from_reserve, is_awaited)
        size = batch.size
        try:
            done = self.queues.dispatcher.apply_appended(self.log.memory, start, size, most_work)
        except StoreError:
            if most_work == ALL_WORK:
                raise
            self.applying.fails(start, size)  # the log has it, so it is stored
            return start
        if done < size:
            self.applying.begin(start + done, size - done)
        self._state.position = start + done
        return start

    def _applied(self, position: int) -> None:
        self._state.position = position

    @property
    def epoch(self) -> int:
        """The epoch in which this store leads its cluster; 0: it has no cluster."""
        return self._opened.epoch

    @property
    def end(self) -> int:
        """log_offset after the newest record that is in all its queues, as is every one before it."""
        return self.applying.position if self.applying.left_bytes else self.log.end

    @property
    def safe(self) -> int:
        """Every record before this log_offset is as durable as the flush policy promises, and in its queues."""
        return min(self.log.safe, self.applying.position) if self.applying.left_bytes else self.log.safe

    @staticmethod
    def now_ms() -> int:
        """Unix time by the clock that stamps records."""
        return time.time_ns() // 1_000_000

    def collect_grown(self) -> list[Queue]:
        """Watched queues that grew since the last call."""
        return self.queues.dispatcher.collect_touched()

    def fault(self) -> StoreError | None:
        """The reason why messages cannot be stored now, or None."""
        if self.index.is_damaged:
            return IndexDamaged(self.folder.index, "does not read back")
        return self.log.fault() or self._refusing or self.upkeep.refusing

    def health(self) -> str:
        """A fault for an operator although the store works; empty if there is none. Asked of any thread."""
        rotten = ", ".join(f"{size} bytes {kind}" for kind, size in self.log.scrubber.found_bytes().items() if size)
        notes = [
            *self.log.notes(),
            f"{self._index_error}; it is tried again" if self._index_error is not None else "",
            f"scrubbing found {rotten}: penstock store check {self.folder.path} says what to do" if rotten else "",
        ]
        return "; ".join(note for note in notes if note)

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        """A range of a queue; see QueueTable.read."""
        return self.queues.read(queue, start, max_records, max_bytes)

    def record(self, log_offset: int) -> Record:
        """One record by its position. Raises LookupError when it is not kept (any more)."""
        return self.log.record(log_offset)

    def records_at(self, log_offsets: list[int]) -> Records:
        """Records by their positions. Raises LookupError as record()."""
        return read_at(self.log.memory, log_offsets)

    # --- upkeep

    def tick(self) -> bool:
        """Call this several times a second: write the index when it is time to, advance what upkeep there is.

        Takes a few milliseconds. True if the index has to be written on, or more delayed messages are due: then it is
        to be called again as soon as others have had their turn. Raises DiskFailed,
        IndexDamaged or IndexStuck where only a new start helps, unless `store.on_failed_sync` or `store.on_damage` says
        otherwise.
        """
        error = self.log.failed_for_good()
        if error is not None and self.settings.on_failed_sync == "exit":
            raise error
        if error is not None and self.settings.on_failed_sync == "rewrite" and not self.log.write_anew():
            return False  # a thread reads what everything else here would change
        if self.index.is_damaged and self.settings.on_damage == "quarantine":
            raise IndexDamaged(self.folder.index, "does not read back")
        now_s = time.monotonic()
        try:
            self.log.tick(now_s)
            self.log.catch_up()
            is_due = self._index_write_due(now_s)
            if is_due:
                self._next_index_write = now_s + self.settings.index_flush_ms / 1000
                self._write_until = self.end
            if (is_due or self._state.applied < self._write_until) and not self._opened.is_held():
                self.log.commit()
                self._state.write_some(self._write_until)
                self._opened.make_durable()
                self._refusing = self._index_error = self._index_failing_since_s = None
            else:
                self.queues.evict_idle()
        except IndexFailed as error:
            self._index_fails(error, now_s)
        except StoreError as error:
            self._refuse(error)
        if self.applying.left_bytes:
            return False  # what follows may store something
        with suppress(StoreError):  # said already; it is tried again
            self.absent.tick()
        has_more_due = self.dispatching.step(self.now_ms(), now_s)
        is_releasing = self.sessions.release_some()
        self.upkeep.step(now_s)
        self.waiting.step()
        is_writing = self._refusing is None and self._index_error is None and self._state.applied < self._write_until
        return has_more_due or is_releasing or is_writing

    def _refuse(self, error: StoreError) -> None:
        if self._refusing is None:
            log.error("%s; messages are refused until it succeeds", error)
        self._refusing = error

    def _index_fails(self, error: IndexFailed, now_s: float) -> None:
        """The log is the truth, so messages are stored as long as what waits for the index is bounded.

        Raises IndexStuck if it has failed for too long, and not for want of room.
        """
        if self._index_error is None and not isinstance(error, IndexBusy):
            log.error("%s; it is tried again, and messages go to the log meanwhile", error)
        self._index_error = error
        behind_bytes = self.log.end - self._state.applied
        if (
            self.queues.dispatcher.pending >= INDEX_BEHIND * self.settings.index_flush_entries
            or behind_bytes >= INDEX_BEHIND * self.settings.index_flush_log_bytes
        ):
            self._refuse(error)
        if isinstance(error, IndexBusy) or isinstance(self.log.fault(), StoreFull):
            self._index_failing_since_s = None
        elif self._index_failing_since_s is None:
            self._index_failing_since_s = now_s
        elif now_s - self._index_failing_since_s > INDEX_PATIENCE_S:
            raise IndexStuck(self.folder.index, now_s - self._index_failing_since_s) from error

    def _index_write_due(self, now_s: float) -> bool:
        if self.queues.dispatcher.pending >= self.settings.index_flush_entries:
            return True
        if not self._state.has_news and self._refusing is None and self._index_error is None:
            return False
        # With `buffered` it waits for the commit that is due anyway, instead of making one more.
        return now_s >= self._next_index_write and self.log.committed == self.log.end

    def write_index(self) -> None:
        """Bring RocksDB up to date. Raises a StoreError; then everything stays in memory, for the next attempt."""
        self.log.commit()
        self._state.write()

    def close(self) -> None:
        """Write everything out and give the folder back."""
        self.upkeep.close()
        with suppress(StoreError):  # the next start applies it
            self.applying.finish()
        with ExitStack() as closing:
            closing.callback(self._opened.close)
            self.groups.write_due(time.time_ns() // 1_000_000, at_once=True)
            try:
                self.write_index()
                self.index.flush()
            except StoreError as error:
                log.warning("%s: the index will be brought up to date from the log at the next start", error)
