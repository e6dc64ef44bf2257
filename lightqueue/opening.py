"""Opens a data folder: its log, its index, and the state that both lead to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

from lightqueue.queues.projection import Projection
from store.errors import CorruptSegment, IndexDamaged, IndexFailed, StoreError
from store.files.folder import DataFolder
from store.log.api import Log, OpenLog
from store.log.checkpoint import open_index
from store.log.index import Index
from store.log.opening import open_log
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

REPLAY_BYTES = 8 << 20
WHOLE_LOG_BYTES = 1 << 62
MOST_INDEXES = 3  # as it stands, from the checkpoint, from the log


class OpenStore:
    """Owner of folder, log, index and state until close()."""

    def __init__(
        self,
        settings: StoreSettings,
        on_safe: Callable[[], None] = lambda: None,
        on_replayed: Callable[[int, int], None] = lambda done_bytes, of_bytes: None,
        opens: OpenLog = open_log,
        follows: bool = False,
    ) -> None:
        """`on_replayed` is told how much of the log was replayed, of how much. `opens` the log. `follows`: more is to
        be replayed, so the state is not settled.
        """
        self._on_safe = on_safe
        self.replayed_bytes = 0
        self.epoch = 0  # in which this store leads its cluster; 0: it has none
        self._settings = settings
        self._follows = follows
        self._durable_to = 0  # log_offset up to which the index is flushed, or is being flushed
        with ExitStack() as undo:
            self.folder = DataFolder(settings.data, settings.group_access)
            undo.callback(self.folder.close)
            self.log: Log = opens(self.folder, settings, self._said_safe)
            undo.callback(lambda: self.log.close())
            try:
                self.index, self.state = self._projected(on_replayed)
            except CorruptSegment as error:  # in an old segment, which a start does not verify
                log.error("%s:%d: %s; verifying the whole log", error.segment, error.log_offset, error.reason)
                self.log.close()
                self.log = opens(self.folder, replace(settings, verify_at_start_bytes=WHOLE_LOG_BYTES), self._said_safe)
                self.index, self.state = self._projected(on_replayed)
            undo.pop_all()

    def handed_to(self, on_safe: Callable[[], None]) -> OpenStore:
        """Pass the store to a new owner, whose `on_safe` is called from now on."""
        self._on_safe = on_safe
        return self

    def _said_safe(self) -> None:
        self._on_safe()

    def _projected(self, on_replayed: Callable[[int, int], None]) -> tuple[Index, Projection]:
        """The index, and the state that the log makes of it. One that turns out to be damaged is built again."""
        for distrusted in range(MOST_INDEXES):
            index = open_index(self.folder, self.log, self._settings, distrusted)
            with ExitStack() as undo:
                undo.callback(_close_quietly, index)
                try:
                    state = Projection(self.log, index, self._settings)
                    self._durable_to = state.applied
                    self._replay(state, on_replayed)
                except IndexDamaged as error:
                    log.warning("%s", error)
                    continue
                undo.pop_all()
                return index, state
        raise IndexFailed(self.folder.index, "is damaged however often it is built")

    def _replay(self, state: Projection, on_replayed: Callable[[int, int], None]) -> None:
        began = self.log.resumes_at(state.position) or state.position
        for start, data in self.log.ranges(began, REPLAY_BYTES):
            state.replay(start, data)
            self.replayed_bytes += len(data)
            on_replayed(start + len(data) - began, self.log.end - began)
            if self._has_much(state) and state.index.begin_flush():  # so that a kill has less to read again
                self._durable_to = state.applied
        self.log.forget_pages()
        state.position = self.log.end
        if not self._follows:
            state.all_applied()

    def _has_much(self, state: Projection) -> bool:
        return state.applied >= self._durable_to + self._settings.index_flush_log_bytes

    def make_durable(self) -> None:
        """Flush the index if it has taken in much since the last flush. Raises IndexFailed."""
        if self.log.kept is None and self._has_much(self.state) and self.index.begin_flush():
            self._durable_to = self.state.applied

    def is_held(self) -> bool:
        """Whether the index takes nothing now: it is to be flushed, and has what a crash may take out of the log.

        RocksDB keeps what it is given in memory until it is flushed, so that is when an index batch is cut. Raises
        IndexFailed.
        """
        kept = self.log.kept
        if self.state.wants_flush:
            return True
        if kept is None or not (self._has_much(self.state) or self._is_full()):
            return False
        if kept < self.state.state_offset or not self.index.begin_flush():
            return True
        self._durable_to = self.state.applied
        return False

    def _is_full(self) -> bool:
        """Whether RocksDB may soon flush by itself what it has in memory."""
        return self.index.unflushed_bytes >= self._settings.index_write_buffer_bytes // 2

    def close(self) -> None:
        """Give the folder back. What the index was not given is replayed by the next start."""
        with ExitStack() as closing:
            closing.callback(self.folder.close)
            closing.callback(self.log.close)
            closing.callback(_close_index, self.index)


def _close_index(index: Index) -> None:
    """A disk that fails here has said so already, or will when the log is closed: the log is the truth."""
    try:
        index.close()
    except StoreError as error:
        log.warning("%s: the index will be brought up to date from the log at the next start", error)


def _close_quietly(index: Index) -> None:
    with suppress(StoreError):
        index.close()
