"""What a store does on its own, by the clock, a little at a time: retention, trimming, dropping queues nobody holds.

Whatever of it changes state does so by a record in the log, so applying stays free of any clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from lightqueue.retention import Retention
from lightqueue.trimming import Trimmer, trimmed_to
from store._records import RecordBatch
from store.changes import QueueDropped, encode_change

if TYPE_CHECKING:
    from lightqueue.message_store import MessageStore

FILTERS_PER_RECORD = 256


class Upkeep:
    """Owner of the running passes of one store. Each step() is short, whatever the store's size."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._settings = store.settings
        self._retention = Retention(store)
        self._dropping: Iterator[None] | None = None
        self._trimming: Iterator[None] | None = None
        self._trimmed_to = trimmed_to(store.index)
        self._unheld_since: dict[str, float] = {}
        self._next_check_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a pass is under way, or to be begun at the next step."""
        return self._dropping is not None or self._trimming is not None or self._has_to_trim

    def step(self, now_s: float) -> None:
        """Do some of what is due. `now_s` is monotonic. Raises StoreError; the pass then starts anew another time."""
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + self._settings.retention_check_s
            self._check(now_s)
        dropping, self._dropping = self._dropping, None
        if dropping is not None:
            self._dropping = _advanced(dropping)
        if self._trimming is not None:
            self._trimming = _advanced(self._trimming)
        elif self._dropping is None and self._has_to_trim:
            self._trimmed_to = self._store.log.first
            self._trimming = Trimmer(self._store.index, self._store.queues, self._trimmed_to).steps()

    @property
    def _has_to_trim(self) -> bool:
        return self._trimmed_to < self._store.log.base

    def _check(self, now_s: float) -> None:
        self._drop_unheld(now_s)
        if self._dropping is None:
            count = self._retention.droppable()
            if count:
                self._dropping = self._retention.steps(count)

    def _drop_unheld(self, now_s: float) -> None:
        """Have the log say that queues go which nobody has held or watched for queue_grace_s."""
        since = self._unheld_since
        self._unheld_since = {name: since.get(name, now_s) for name in self._store.queues.unheld()}
        overdue = (name for name, at_s in self._unheld_since.items() if now_s - at_s >= self._settings.queue_grace_s)
        while names := list(islice(overdue, FILTERS_PER_RECORD)):
            batch = RecordBatch()
            record_type, payload = encode_change(QueueDropped(names))
            batch.append(record_type, payload)
            self._store.append_upkeep(batch)


def _advanced(steps: Iterator[None]) -> Iterator[None] | None:
    """Take one step; None once it was the last."""
    try:
        next(steps)
    except StopIteration:
        return None
    return steps
