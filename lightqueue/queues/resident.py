"""Which topics' queues are objects. Of the others it is remembered where they end, as far as there is room."""

import time
from collections import deque
from collections.abc import Callable

from lightqueue.queues._queues import LEVEL, TOPIC, Dispatcher, Queue, Topic, Way, give_memory_back
from lightqueue.queues.layout import Entries
from store.settings import StoreSettings

LOOKS_PER_LOAD = 2
COMPACT_BELOW = 4  # a table of topics that has held so many times as many is made anew
LEAST_COMPACTED = 1_000
IDLE_S = 10.0  # after so long without a message a topic's queue leaves, after twice as long at the latest
MOST_WAYS = 10_000  # for one more all begin anew


class Residents:
    """Owner of topics' and first levels' queues: near `cached_topics` of them stay, besides those in use."""

    def __init__(
        self, entries: Entries, settings: StoreSettings, dispatcher: Dispatcher, match: Callable[[bytes], list[Queue]]
    ) -> None:
        self._entries = entries
        self._most = settings.cached_topics
        self._dispatcher = dispatcher
        self._match = match
        self.levels: dict[bytes, Queue] = {}
        self._ways: dict[tuple[Queue, ...], int] = {}  # numbers in dispatcher.ways, by level and filters
        self._ways_of = 0  # the generation that they are of
        self._queues: deque[Queue] = deque()  # those to be evicted first in front
        self._peak = 0  # topics in memory since the table of them was made
        self._newest = self._idle_before = 0  # log_offsets
        self._trimmed_at = 0  # the newest message when freed memory was last given back
        self._next_mark_s = 0.0
        self._looks = 0  # that are to be taken at queues before the next mark

    def load(self, name: bytes) -> Topic:
        """A topic whose queue is not in memory; others may leave for it."""
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
        """Where messages to a topic go besides its own queue, as a number in dispatcher.ways, for this generation."""
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
        """Let go of some that are idle: what is stored of them is read, or remembered, when they are needed.

        Looks at no more than `most`; at each once in IDLE_S, unless there are too many.
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
            if self._trimmed_at != self._newest == self._idle_before:  # nothing came since the last mark
                self._trimmed_at = self._newest
                give_memory_back()
            self._looks = len(self._queues)

    def _compact(self) -> None:
        topics = self._dispatcher.topics
        self._peak = max(self._peak, len(topics))
        if self._peak > COMPACT_BELOW * max(len(topics), LEAST_COMPACTED):
            self._dispatcher.compact()
            self._peak = len(topics)
