"""Trims queue entries whose messages retention has dropped, a few keys at a time.

A queue's oldest entries are its first keys, so each pass costs one seek per queue and one step per deleted key. Packs
that straddle the boundary stay. A queue left without entries keeps its next queue_offset, as its `q` key's base. Groups
of neighbours are trimmed likewise; a group's newest key stays without entries, because it has the positions of the
group's queues.
"""

from collections.abc import Iterator
from functools import partial

from lightqueue.queues._queues import neighbours_key, newest_neighbour, pack_entry, unpacked_neighbours
from lightqueue.queues.layout import entry_key, pack_count, packs_from, queue_value
from lightqueue.queues.neighbours import group_of, without_entries
from lightqueue.queues.table import QueueTable
from store.log.index import Index

TRIMMED_KEY = b"m:trimmed"
KEYS_PER_STEP = 200


class Trimmer:
    """One pass over all queues. Its changes go to RocksDB with the table's next writes."""

    def __init__(self, index: Index, queues: QueueTable, first: int) -> None:
        self._index = index
        self._queues = queues
        self._first = first  # log_offset of the oldest record kept
        self._keys_left = KEYS_PER_STEP

    def steps(self) -> Iterator[None]:
        """Run; each step reads about KEYS_PER_STEP keys."""
        after = b"q"
        while (found := self._index.first(after, b"r")) is not None:
            key, value = found
            yield from self._trim(int.from_bytes(value[:8], "big"), key)
            yield from self._pause()
            after = key + b"\0"
        yield from self._trim_groups()
        for queue_id in self._queues.live.spilled_ids():
            yield from self._trim(queue_id, None)
        self._queues.edit(partial(self._index.put, TRIMMED_KEY, self._first.to_bytes(8, "big")))

    def _pause(self) -> Iterator[None]:
        self._keys_left -= 1
        if self._keys_left <= 0:
            self._keys_left = KEYS_PER_STEP
            yield

    def _trim(self, queue_id: int, queue_key: bytes | None) -> Iterator[None]:
        """Delete a queue's packs that lie wholly before `first`."""
        start = 0
        while True:
            gone, start, more = self._gone(queue_id, start)
            if gone:
                self._queues.edit(partial(self._delete, gone))
                if queue_key is not None and self._queues.held.is_known(queue_key, queue_id):
                    # Always in the same write as the deletes: a queue without entries goes on from this base.
                    self._queues.edit(partial(self._index.put, queue_key, queue_value(queue_id, start)))
            if not more:
                return
            yield from self._pause()

    def _gone(self, queue_id: int, start: int) -> tuple[list[bytes], int, bool]:
        """Keys to delete from queue_offset `start` on, the queue_offset after them, and whether there may be more."""
        gone: list[bytes] = []
        for first, pack in packs_from(self._index, queue_id, start):
            count = pack_count(pack)
            if pack_entry(pack, count - 1) >= self._first:
                return gone, start, False
            gone.append(entry_key(queue_id, first))
            start = first + count
            self._keys_left -= 1
            if self._keys_left <= 0:
                return gone, start, True
        return gone, start, False

    def _trim_groups(self) -> Iterator[None]:
        """Delete groups' keys that lie wholly before `first`; a group's newest key only loses its entries."""
        after = b"n"
        while (found := self._index.first(after, b"o")) is not None:
            group = group_of(found[0])
            start: bytes | None = found[0]
            while start is not None:
                start = self._trim_group(group, start)
                yield from self._pause()
            after = neighbours_key(group + 1, 0)

    def _trim_group(self, group: int, start: bytes) -> bytes | None:
        """Like _trim_groups() for one group, from a key on; returns the key to go on from, or None at the end."""
        gone: list[bytes] = []
        last: tuple[bytes, bytes] | None = None  # the last key that lies wholly before `first`
        for key, stored in self._index.scan(start, neighbours_key(group + 1, 0)):
            value = unpacked_neighbours(stored)
            if last is not None:
                gone.append(last[0])
            last = (key, value) if newest_neighbour(value) < self._first else None
            self._keys_left -= 1
            if last is None or (gone and self._keys_left <= 0):
                break
        if gone:
            self._queues.edit(partial(self._delete, gone))
        if last is not None and gone and self._keys_left <= 0:
            return last[0]
        if last is not None and newest_neighbour(last[1]):
            self._queues.edit(partial(self._index.put, last[0], without_entries(last[1])))
        return None

    def _delete(self, keys: list[bytes]) -> None:
        for key in keys:
            self._index.delete(key)


def trimmed_to(index: Index) -> int:
    """log_offset before which no queue has entries any more."""
    return int.from_bytes(index.get(TRIMMED_KEY) or b"", "big")
