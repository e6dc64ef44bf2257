"""LIVE queues: they are in memory, for filters that only clean sessions use, and spill to RocksDB for slow readers."""

from functools import partial

from lightqueue.queues._queues import LIVE, Dispatcher, Queue
from lightqueue.queues.held_filters import Edit
from lightqueue.queues.layout import entry_key
from lightqueue.queues.matching import FilterTrie
from store.log.index import Index

LIVE_SHARE = 8  # one in so many of the LIVE queues with entries is looked at in one step


class LiveQueues:
    """Owner of these queues, of their entries in RocksDB, and of the trie that finds them for a topic."""

    def __init__(self, index: Index, dispatcher: Dispatcher, tail_entries: int, edit: Edit) -> None:
        """`tail_entries`: that a queue keeps in memory."""
        self._index = index
        self._dispatcher = dispatcher
        self._tail_entries = tail_entries
        self._edit = edit
        self._queues: dict[str, Queue] = {}
        self.trie: FilterTrie[Queue] = FilterTrie()
        self._spilling: list[tuple[Queue, int]] = []  # in the index's next write, with so many entries
        self._spilled: set[Queue] = set()  # with entries in RocksDB

    def __len__(self) -> int:
        return len(self._queues)

    def watched(self, topic_filter: str) -> Queue:
        """The queue of a filter, which is made if need be."""
        queue = self._queues.get(topic_filter)
        if queue is None:
            queue = self._queues[topic_filter] = Queue(topic_filter.encode(), LIVE)
            self.trie.set(topic_filter, queue)
            self._dispatcher.generation += 1
        return queue

    def drop(self, queue: Queue) -> None:
        """The last watcher is gone."""
        name = queue.name.decode()
        del self._queues[name]
        self.trie.remove(name)
        self._dispatcher.generation += 1
        self._delete_spilled(queue)

    def shorten(self, least: int) -> list[Queue]:
        """Drop entries that no watcher needs, of `least` queues or a share of all. Returns those that must spill."""
        live = self._dispatcher.live
        spilling = []
        for _ in range(min(len(live), least + len(live) // LIVE_SHARE)):
            queue = live.popleft()
            if self._must_spill(queue):
                spilling.append(queue)
            if queue.oldest_missing:
                live.append(queue)
        return spilling

    def _must_spill(self, queue: Queue) -> bool:
        """Shorten a queue's tail; True if it must move to RocksDB because a slow watcher still needs it."""
        if not queue.watchers:
            queue.drop_oldest(0)
            return False
        limit = self._tail_entries
        wanted = queue.next_offset - max(queue.floor, queue.tail_first_offset)
        if queue.spills and wanted > limit:
            return True
        if queue.floor >= queue.tail_first_offset:
            self._delete_spilled(queue)
        queue.drop_oldest(limit)
        return False

    def _delete_spilled(self, queue: Queue) -> None:
        """Delete a queue's entries in RocksDB, which no watcher needs any more."""
        if queue in self._spilled:
            self._spilled.remove(queue)
            self._edit(partial(self._index.delete_range, entry_key(queue.id, 0), entry_key(queue.id + 1, 0)))

    def stage(self, spilling: list[Queue], cost: int, per_cost: int, puts: list[tuple[bytes, bytes]]) -> int:
        """Add entries of these queues to the `puts` of the index's next write. Returns the rest of the cost.

        A queue costs 1, and 1 more for each `per_cost` entries.
        """
        self._spilling.clear()
        for queue in spilling:
            count = queue.stage(cost * per_cost, puts)
            self._spilling.append((queue, count))
            cost = max(0, cost - 1 - count // per_cost)
        return cost

    def written(self) -> None:
        """The index has written the entries that were staged."""
        for queue, count in self._spilling:
            queue.let_go(count)
            self._spilled.add(queue)

    def spilled_ids(self) -> list[int]:
        """Ids of the queues that have entries in RocksDB."""
        return [queue.id for queue in self._spilled]
