"""Finds the queue_offset of each message in its topic's queue, which records do not have.

The store's index knows the queues' positions at a log_offset that it has applied; from there on messages are counted.
The index belongs to the store's process, so this module reads a copy (links to its tables, which never change).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pyarrow as pa

from lightqueue.mending.inspect import copy_of
from lightqueue.queues.table import QueueTable
from penstock.columns import Messages
from penstock.spark.errors import IndexUnreadable
from penstock.spark.folder import LogFolder
from store.files.folder import CHECKPOINT, INDEX
from store.log.index import Index
from store.records._records import LogMemory
from store.settings import StoreSettings

LEVELS_LOOKED_AT = 64  # for a message near the log's end


class TopicCounter:
    """Counts queue positions of topics from log_offset `start` on. Remembers a number for each topic seen."""

    def __init__(self, start: int, at_start: Callable[[list[bytes]], Iterable[int]]) -> None:
        """`at_start` returns the queue positions of topics at `start`."""
        self.start = start
        self._at_start = at_start
        self._next: dict[bytes, int] = {}

    def take(self, messages: Messages) -> pa.Array:
        """The queue_offsets of these messages, which must be the next ones of their topics without a gap."""
        topics, numbers = messages.distinct_topics()
        new = [topic for topic in topics if topic not in self._next]
        if new:
            self._next.update(zip(new, self._at_start(new), strict=True))
        counts = np.bincount(numbers, minlength=len(topics))
        firsts = np.fromiter(map(self._claim, topics, counts.tolist()), np.int64, len(topics))
        by_topic = np.argsort(numbers, kind="stable")
        before_of_same = np.empty(len(numbers), np.int64)
        before_of_same[by_topic] = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pa.array(firsts[numbers] + before_of_same)

    def _claim(self, topic: bytes, count: int) -> int:
        first = self._next[topic]
        self._next[topic] = first + count
        return first


@contextmanager
def queue_offsets(log: LogFolder, start: int) -> Iterator[TopicCounter | None]:
    """Queue positions at `start`, or at a place before it from which to count. None: unknown.

    Raises IndexUnreadable.
    """
    with ExitStack() as copies:
        index = index_of(log, copies)
        if index is not None:
            anchor = min(start, index.applied_offset)
            queues = queues_of(index, log)
            yield TopicCounter(
                log.resumes_at(anchor) or anchor,
                lambda topics: [queues.position_of(queues.topic_queue(topic), anchor) for topic in topics],
            )
        elif log.base() == 0:
            yield TopicCounter(0, lambda topics: [0] * len(topics))
        else:
            yield None


def queues_of(index: Index, log: LogFolder) -> QueueTable:
    """The queues of an index, for reading only."""
    return QueueTable(_LogStart(log.base()), index, StoreSettings(), lambda _: None)


def index_of(log: LogFolder, copies: ExitStack) -> Index | None:
    """A copy of the newest index that knows the beginning of this log. Raises IndexUnreadable."""
    found = False
    for name in (INDEX, CHECKPOINT):
        found = found or (log.path / name).is_dir()
        # Take the copy first: so it is never ahead of the log that is read afterwards.
        index = copies.enter_context(copy_of(log.path / name))
        if index is None:
            continue
        log.look_from(queues_of(index, log).newest_entry(LEVELS_LOOKED_AT), index.state_offset)
        if index.fits(log.base(), log.end(), log.resumes_at):
            return index
    if found and log.base():
        raise IndexUnreadable(log.path / INDEX)
    return None


class _LogStart:
    """The log for a QueueTable through which no message is read."""

    def __init__(self, first: int) -> None:
        self.base = self.first = first
        self.memory = LogMemory(1)
        self.lost_ranges: list[tuple[int, int]] = []
