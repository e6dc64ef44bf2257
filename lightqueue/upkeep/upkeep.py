"""The store's own work by the clock, a little at a time: retention, trimming, dropping queues without holders.

Each change of state is a record in the log, so applying the log needs no clock.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from lightqueue.queues.projection import Projection
from lightqueue.upkeep.retention import Retention
from lightqueue.upkeep.trimming import Trimmer, trimmed_to
from store.errors import StoreError
from store.files.folder import DataFolder
from store.log.api import Log
from store.log.clock import Clock
from store.records._records import RecordBatch
from store.settings import StoreSettings
from store.state.changes import QueueDropped, TopicsGone, encode_change
from store.state.usage import Counted

log = logging.getLogger("penstock.store")

FILTERS_PER_RECORD = 256
TOPICS_PER_STEP = 50


class Upkeep:
    """Owner of the running passes of one store. Each step() is short, whatever the store's size."""

    def __init__(
        self,
        log_: Log,
        folder: DataFolder,
        settings: StoreSettings,
        state: Projection,
        append: Callable[[RecordBatch], None],
        clock: Clock,
    ) -> None:
        self._log = log_
        self._state = state
        self._append = append
        self._settings = settings
        self._retention = Retention(log_, folder, settings, state, append, clock)
        self._dropping: Iterator[None] | None = None
        self._trimming: Iterator[None] | None = None
        self._trimmed_to = trimmed_to(state.index)
        self._unheld_since: dict[str, float] = {}
        self._next_check_s = 0.0
        self._resume_s = 0.0

    def close(self) -> None:
        """Wait for the threads' work; call no step() after this."""
        self._retention.close()

    @property
    def busy(self) -> bool:
        """Whether a pass is under way, or begins with the next step."""
        return self._dropping is not None or self._trimming is not None or self._has_to_trim

    @property
    def rolled(self) -> int:
        """How often a delayed message rolled on: it was not due when its part of the log was dropped."""
        return self._retention.rolled

    @property
    def refusing(self) -> StoreError | None:
        """The reason why messages are refused: a reader of the log may not lose what retention is to drop."""
        return self._retention.holds.refusing

    def check_soon(self) -> None:
        """A reader of the log has moved: have the next step look whether something may go now."""
        self._next_check_s = 0.0

    def step(self, now_s: float) -> None:
        """Do some of the work that is due; `now_s` is monotonic. A failed pass begins anew after retention_check_s."""
        if now_s < self._resume_s:
            return
        dropping, trimming = self._dropping, self._trimming
        self._dropping = self._trimming = None
        try:
            if now_s >= self._next_check_s:
                self._next_check_s = now_s + self._settings.retention_check_s
                self._drop_unheld(now_s)
                dropping = dropping or self._due_retention()
            if trimming is None and dropping is None and self._has_to_trim:
                trimming = self._trim()
            self._dropping = _advanced(dropping)
            self._trimming = _advanced(trimming)
        except StoreError as error:
            log.error("upkeep: %s", error)
            self._resume_s = now_s + self._settings.retention_check_s

    @property
    def _has_to_trim(self) -> bool:
        return self._trimmed_to < self._log.base

    def _trim(self) -> Iterator[None]:
        first = self._log.first
        self._state.queues.edit(partial(self._state.keys.trim, first))
        yield from Trimmer(self._state.index, self._state.queues, first).steps()
        yield from self._free_topics(first)
        self._trimmed_to = first

    def _free_topics(self, first: int) -> Iterator[None]:
        """Record topics that have no message from log_offset `first` on, so that they no longer count for a user."""
        after = b""
        while topics := self._state.usage.topics(after, TOPICS_PER_STEP):
            after = topics[-1]
            gone = [topic for topic in topics if self._state.queues.topic_queue(topic).last_log_offset < first]
            names = [topic.decode() for topic in gone if self._state.usage.owner(Counted.TOPIC, topic) is not None]
            if names:
                batch = RecordBatch()
                batch.append(*encode_change(TopicsGone(names)))
                self._append(batch)
            yield

    def _due_retention(self) -> Iterator[None] | None:
        boundary = self._retention.boundary()
        return self._retention.steps(boundary) if boundary else None

    def _drop_unheld(self, now_s: float) -> None:
        """Record the drop of queues that had no holder and no watcher for queue_grace_s."""
        since = self._unheld_since
        self._unheld_since = {name: since.get(name, now_s) for name in self._state.queues.held.unheld()}
        overdue = (name for name, at_s in self._unheld_since.items() if now_s - at_s >= self._settings.queue_grace_s)
        while names := list(islice(overdue, FILTERS_PER_RECORD)):
            batch = RecordBatch()
            record_type, payload = encode_change(QueueDropped(names))
            batch.append(record_type, payload)
            self._append(batch)


def _advanced(steps: Iterator[None] | None) -> Iterator[None] | None:
    """Take one step; None after the last one."""
    if steps is None:
        return None
    try:
        next(steps)
    except StopIteration:
        return None
    return steps
