"""Which topics' queues are in memory. Of the others it is remembered where they end, as far as there is room."""

from collections import deque

from lightqueue._queues import LEVEL, TOPIC, Dispatcher, Ends, Queue, Topic
from lightqueue.layout import load_queue
from store.index import Index
from store.settings import StoreSettings

LOOKS_PER_LOAD = 2
COMPACT_BELOW = 4  # a table of topics that has held so many times as many is made anew


class Residents:
    """Owner of topics' and first levels' queues: near `cached_topics` of them stay, besides those in use."""

    def __init__(self, index: Index, settings: StoreSettings, dispatcher: Dispatcher) -> None:
        self._index = index
        self._most = settings.cached_topics
        self._dispatcher = dispatcher
        self._ends = Ends(settings.remembered_topics)
        self.levels: dict[bytes, Queue] = {}
        self._queues: deque[Queue] = deque()  # those to be evicted first in front
        self._peak = 0  # topics in memory since the table of them was made

    def load(self, name: bytes) -> Topic:
        """A topic that is not in memory; others may leave for it."""
        self.evict(LOOKS_PER_LOAD)
        own = self._ends.queue(name, TOPIC) or load_queue(self._index, TOPIC, name)
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
            queue = self.levels[name] = load_queue(self._index, LEVEL, name)
            self._queues.append(queue)
        return queue

    def evict(self, most: int) -> None:
        """Let go of some that are idle: what is stored of them is read, or remembered, when they are needed.

        Looks at no more than `most`. Those in use are looked at again when all others have been.
        """
        topics = self._dispatcher.topics
        for _ in range(min(most, len(self._queues))):
            if max(len(topics), len(self.levels)) <= self._most:
                break
            queue = self._queues.popleft()
            if not queue.idle:
                self._queues.append(queue)
            elif queue.kind == LEVEL:
                del self.levels[queue.name]
            else:
                topics.pop(queue.name).level.holders -= 1
                self._ends.put(queue)
        self._compact()

    def _compact(self) -> None:
        topics = self._dispatcher.topics
        self._peak = max(self._peak, len(topics))
        if self._peak > COMPACT_BELOW * max(len(topics), self._most):
            self._dispatcher.compact()
            self._peak = len(topics)
