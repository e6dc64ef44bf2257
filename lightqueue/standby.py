"""A store that follows: it writes what its cluster has accepted to its log, and applies it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lightqueue.opening import OpenStore
from lightqueue.upkeep.retention import Retention
from store.errors import IndexBusy, NotLeading, StoreError
from store.log.clock import Clock
from store.log.replicated import ReplicatedLog
from store.records._records import RecordBatch
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

APPLY_S = 0.1
DROP_AGAIN_S = 10.0  # after an attempt that failed


class Standby:
    """Owner of an open store whose records another store made. All calls are made from one thread."""

    def __init__(self, opened: OpenStore, settings: StoreSettings) -> None:
        assert isinstance(opened.log, ReplicatedLog)
        self.opened = opened
        self.log = opened.log
        clock = Clock(settings.clock_jump_s)
        self._retention = Retention(opened.log, opened.folder, settings, opened.state, _appends_nothing, clock)
        self._dropping: Iterator[None] | None = None
        self._next_drop_s = 0.0
        self._next_write_s = 0.0

    def write(self, base: int, data: bytes) -> None:
        """Append accepted bytes, and apply their records. Raises a StoreError; then it must not go on."""
        state = self.opened.state
        for start, records in self.log.write_accepted(base, data):
            state.queues.dispatcher.apply_bytes(records)
            state.position = start + len(records)
        state.position = self.log.end

    def tick(self, now_s: float) -> None:
        """Give the index what is new, and drop what the leader has dropped, some at a time. Raises a StoreError."""
        self._drop_some(now_s)
        state = self.opened.state
        if now_s < self._next_write_s or not state.has_news or self.opened.is_held():
            return
        try:
            is_last = state.write_some(state.position)
        except IndexBusy:
            return
        if is_last:
            self._next_write_s = now_s + APPLY_S

    def _drop_some(self, now_s: float) -> None:
        boundary = self.opened.state.dropped_before
        if self._dropping is None and self.log.base < boundary and now_s >= self._next_drop_s:
            self._dropping = self._retention.follow(boundary)
        try:
            if self._dropping is not None:
                next(self._dropping)
        except StopIteration:
            self._dropping = None
        except StoreError as error:
            log.error("what the leader has dropped stays here for now: %s", error)
            self._dropping, self._next_drop_s = None, now_s + DROP_AGAIN_S
            self.opened.state.wants_flush = False

    def _stop_dropping(self) -> None:
        """Leave the rest to whoever leads, or to the next start."""
        self._dropping = None
        self.opened.state.wants_flush = False
        self._retention.close()

    def lead(self, epoch: int) -> OpenStore:
        """All is applied, and this store appends from now on."""
        self._stop_dropping()
        self.opened.epoch = epoch
        self.opened.state.all_applied()
        return self.opened

    def close(self) -> None:
        """Bring the index up to what a start finds, and give the folder back."""
        self._stop_dropping()
        self.log.keeper.wait_kept(5.0)
        if self.log.kept >= self.opened.state.position:
            self.opened.state.write()
            self.opened.index.flush()
        self.opened.close()


def _appends_nothing(_: RecordBatch) -> None:
    raise NotLeading("")
