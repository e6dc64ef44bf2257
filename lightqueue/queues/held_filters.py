"""The queues of filters that durable sessions and groups hold, if no topic or first level has such a queue already."""

from collections.abc import Callable
from functools import partial

from lightqueue.queues._queues import FILTER, Dispatcher, Queue
from lightqueue.queues.layout import Entries, entry_key, queue_key, queue_value
from lightqueue.queues.matching import FilterTrie
from store.log.index import Index

Edit = Callable[[Callable[[], None]], None]
"""QueueTable.edit()."""


class HeldFilters:
    """Owner of these queues, of their keys in the index, and of the trie that finds them for a topic."""

    def __init__(self, index: Index, entries: Entries, dispatcher: Dispatcher, edit: Edit) -> None:
        self._index = index
        self._dispatcher = dispatcher
        self._edit = edit
        self._queues: dict[str, Queue] = {}
        self._born: dict[str, int] = {}  # by filter: log_offset from which its queue has all matches
        self.trie: FilterTrie[Queue] = FilterTrie()
        prefix = queue_key(FILTER, b"")
        for key, value in list(index.scan(prefix, queue_key(FILTER + 1, b""))):
            born = int.from_bytes(value[16:24], "big")  # 0 once retention has dropped the first entries
            self._adopt(entries.load(FILTER, key[len(prefix) :]), born)

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic_filter: str) -> Queue | None:
        return self._queues.get(topic_filter)

    def born(self, topic_filter: str) -> int | None:
        """log_offset from which a filter's queue has all matches; None if the filter has no queue."""
        return self._born.get(topic_filter)

    def make(self, topic_filter: str, queue_id: int, log_offset: int) -> Queue:
        """A queue for a filter, which has all matches from `log_offset` on."""
        queue = Queue(topic_filter.encode(), FILTER)
        queue.be_born(queue_id, log_offset)
        self._adopt(queue, log_offset)
        value = queue_value(queue.id, 0) + log_offset.to_bytes(8, "big")
        self._edit(partial(self._index.put, queue_key(FILTER, queue.name), value))
        return queue

    def _adopt(self, queue: Queue, born: int) -> None:
        name = queue.name.decode()
        self._queues[name], self._born[name] = queue, born
        self.trie.set(name, queue)
        self._dispatcher.generation += 1

    def drop(self, topic_filter: str) -> Queue | None:
        """Delete a filter's queue and its entries. Returns the queue; None if there was none."""
        queue = self._queues.pop(topic_filter, None)
        if queue is not None:
            del self._born[topic_filter]
            self.trie.remove(topic_filter)
            self._dispatcher.generation += 1
            self._edit(partial(self._index.delete, queue_key(FILTER, queue.name)))
            self._edit(partial(self._index.delete_range, entry_key(queue.id, 0), entry_key(queue.id + 1, 0)))
            self._dispatcher.forget(queue)
        return queue

    def is_held(self, topic_filter: str) -> bool:
        """Whether a durable session or group holds a filter that has a queue of its own."""
        queue = self._queues.get(topic_filter)
        return queue is not None and queue.holders > 0

    def unheld(self) -> list[str]:
        """Filters whose queue has no holder and no watcher."""
        return [name for name, queue in self._queues.items() if not queue.holders and not queue.watchers]

    def is_known(self, key: bytes, queue_id: int) -> bool:
        """Whether the queue stored under `key` still exists: a dropped one may not be deleted yet."""
        prefix = queue_key(FILTER, b"")
        if not key.startswith(prefix):
            return True
        held = self._queues.get(key[len(prefix) :].decode())
        return held is not None and held.id == queue_id
