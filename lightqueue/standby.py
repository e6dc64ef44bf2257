"""A store that follows: it writes what its cluster has accepted to its log, and applies it."""

from __future__ import annotations

from lightqueue.opening import OpenStore
from store.errors import IndexBusy
from store.log.replicated import ReplicatedLog

APPLY_S = 0.1


class Standby:
    """Owner of an open store whose records another store made. All calls are made from one thread."""

    def __init__(self, opened: OpenStore) -> None:
        assert isinstance(opened.log, ReplicatedLog)
        self.opened = opened
        self.log = opened.log
        self._next_write_s = 0.0

    def write(self, base: int, data: bytes) -> None:
        """Append accepted bytes, and apply their records. Raises a StoreError; then it must not go on."""
        state = self.opened.state
        for start, records in self.log.write_accepted(base, data):
            state.queues.dispatcher.apply_bytes(records)
            state.position = start + len(records)
        state.position = self.log.end

    def tick(self, now_s: float) -> None:
        """Give the index what is new, some at a time. Raises a StoreError."""
        state = self.opened.state
        if now_s < self._next_write_s or not state.has_news or self.opened.is_held():
            return
        try:
            is_last = state.write_some(state.position)
        except IndexBusy:
            return
        if is_last:
            self._next_write_s = now_s + APPLY_S

    def lead(self, epoch: int) -> OpenStore:
        """All is applied, and this store appends from now on."""
        self.opened.epoch = epoch
        self.opened.state.settle()
        return self.opened

    def close(self) -> None:
        """Bring the index up to what a start finds, and give the folder back."""
        self.log.keeper.settle(5.0)
        if self.log.kept >= self.opened.state.position:
            self.opened.state.write()
            self.opened.index.flush()
        self.opened.close()
