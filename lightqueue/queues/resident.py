"""The cache of topics' queues as objects. Of other topics only the queue's end is remembered, as far as there
is room.
"""

import time
from collections import deque
from collections.abc import Callable

from lightqueue.queues._queues import LEVEL, TOPIC, Dispatcher, Queue, Topic, Way, give_memory_back
from lightqueue.queues.layout import Entries
from store.settings import StoreSettings

LOOKS_PER_LOAD = 2
COMPACT_BELOW = 4  # rebuild the table of topics if it once had this many times as many
LEAST_COMPACTED = 1_000
IDLE_S = 10.0  # seconds without a message until a topic's queue is evicted; it takes at most twice as long
MOST_WAYS = 10_000  # one more, and all are made again


class Residents:
    """Owner of topics' and first levels' queues: about `cached_topics` of them stay, besides those in use."""

    def __init__(
        self, entries: Entries, settings: StoreSettings, dispatcher: Dispatcher, match: Callable[[bytes], list[Queue]]
    ) -> None:
        self._entries = entries
        self._most = settings.cached_topics
        self._dispatcher = dispatcher
        self._match = match
        self.levels: dict[bytes, Queue] = {}
        self._ways: dict[tuple[Queue, ...], int] = {}  # indexes into dispatcher.ways, by level and filters
        self._ways_of = 0  # the generation of _ways
        self._queues: deque[Queue] = deque()  # next one to evict first
        self._peak = 0  # most topics in memory since the table was made
        self._newest = self._idle_before = 0  # log_offsets
        self._trimmed_at = 0  # the newest message when freed memory was last given back
        self._next_mark_s = 0.0
        self._looks = 0  # queues to look at before the next mark

    def load(self, name: bytes) -> Topic:
        """Load a topic whose queue is not in memory; others may be evicted for it."""
        self.evict(LOOKS_PER_LOAD)
        own = self._dispatcher.remembered(name) or self._entries.load(TOPIC, name)
        level = self.level(name.split(b"/", 1)[0])
        level.holders += 1
        self._queues.append(own)
        return Topic(name, own, level)

    def topic(self, name: bytes) -> Topic:
        topic = self._dispatcher.topics.get(name)
        if topic is None:
            topic = self.load(name)
            self._dispatcher.topics[name] = topic
        return topic

    def level(self, name: bytes) -> Queue:
        """The queue of a first level."""
        queue = self.levels.get(name)
        if queue is None:
            queue = self.levels[name] = self._entries.load(LEVEL, name)
            self._queues.append(queue)
        return queue

    def way(self, name: bytes) -> int:
        """Index into dispatcher.ways of the queues, besides its own, that get a topic's messages in this generation."""
        ways = self._dispatcher.ways
        if len(ways) >= min(MOST_WAYS, self._most):
            self._dispatcher.generation += 1
        if self._ways_of != self._dispatcher.generation:
            for way in ways:
                way.level.holders -= 1
            ways.clear()
            self._ways.clear()
            self._ways_of = self._dispatcher.generation
        level, filters = self.level(name.split(b"/", 1)[0]), self._match(name)
        number = self._ways.get((level, *filters))
        if number is None:
            number = self._ways[level, *filters] = len(ways)
            ways.append(Way(level, filters))
            level.holders += 1
        return number

    def evict(self, most: int) -> None:
        """Evict idle queues; their stored or remembered state is read when they are needed.

        Looks at no more than `most` queues; at each once in IDLE_S, unless there are too many.
        """
        self._mark()
        topics = self._dispatcher.topics
        for _ in range(min(most, len(self._queues))):
            is_crowded = max(len(topics), len(self.levels)) > self._most
            if not is_crowded and not self._looks:
                break
            self._looks = max(0, self._looks - 1)
            queue = self._queues.popleft()
            if not queue.idle or (queue.last_log_offset >= self._idle_before and not is_crowded):
                self._queues.append(queue)
            elif queue.kind == LEVEL:
                del self.levels[queue.name]
            else:
                topics.pop(queue.name).level.holders -= 1
                self._dispatcher.ends.put(queue)
        self._compact()

    def _mark(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_mark_s:
            self._next_mark_s = now_s + IDLE_S
            self._idle_before, self._newest = self._newest, self._dispatcher.newest
            if self._trimmed_at != self._newest == self._idle_before:  # no message since the last mark
                self._trimmed_at = self._newest
                give_memory_back()
            self._looks = len(self._queues)

    def _compact(self) -> None:
        topics = self._dispatcher.topics
        self._peak = max(self._peak, len(topics))
        if self._peak > COMPACT_BELOW * max(len(topics), LEAST_COMPACTED):
            self._dispatcher.compact()
            self._peak = len(topics)
