"""The keys of queues and entries in RocksDB.

Keys:  q <kind> <name> → id 8, base 8       a queue; base = its next queue_offset when it has no entries;
                         [began 8]          of a filter's queue without entries so far: the log_offset it began at
       e <id 8> <queue_offset 8> → entries  a pack of entries under the first one's queue_offset, shortened (_packs.pxi)
       n <group 8> <log_offset 8>           one entry each of several topics' queues (lightqueue/queues/neighbours.py)
All integers in keys are big-endian, so that a range read is one seek.
"""

from collections.abc import Iterator

from lightqueue.queues._queues import (
    ENTRY_BYTES,
    PACK_ENTRIES,
    TOPIC,
    Queue,
    entry_key,
    pack_entry,
    queue_key,
    queue_value,
    unpacked,
)
from lightqueue.queues.neighbours import Neighbours
from store.log.index import Index

__all__ = ["entry_key", "queue_key", "queue_value"]  # defined in the leaf that stages entries

NEXT_ID_KEY = b"m:next_queue_id"
ANY_BYTES = 1 << 62


def pack_count(pack: bytes) -> int:
    return len(pack) // ENTRY_BYTES


def pack_before(index: Index, queue_id: int, queue_offset: int) -> tuple[int, bytes] | None:
    """The pack under a queue's own keys that starts at or before a position; None if there is none."""
    found = index.at_or_before(entry_key(queue_id, queue_offset))
    if found is None or found[0][:9] != entry_key(queue_id, 0)[:9]:
        return None
    return int.from_bytes(found[0][9:], "big"), unpacked(found[1])


def packs_from(index: Index, queue_id: int, queue_offset: int) -> Iterator[tuple[int, bytes]]:
    """A queue's packs that start at or after a position: the first one's queue_offset, and the pack."""
    for key, value in index.scan(entry_key(queue_id, queue_offset), entry_key(queue_id + 1, 0)):
        yield int.from_bytes(key[9:], "big"), unpacked(value)


def last_pack(index: Index, queue_id: int) -> tuple[int, bytes] | None:
    return pack_before(index, queue_id, (1 << 64) - 1)


class Entries:
    """Reads queues' entries from RocksDB, under keys of their own or under those of neighbours."""

    def __init__(self, index: Index, remembered_topics: int) -> None:
        self._index = index
        self.neighbours = Neighbours(index, remembered_topics)

    def load(self, kind: int, name: bytes) -> Queue:
        """A queue as stored, or a new one."""
        meta = self._index.get(queue_key(kind, name))
        if meta is None:
            return Queue(name, kind)
        queue_id, base, began = (int.from_bytes(meta[at : at + 8], "big") for at in (0, 8, 16))
        last = last_pack(self._index, queue_id)
        end = (base, began)
        if last is not None:
            first, pack = last
            count = pack_count(pack)
            end = (first + count, pack_entry(pack, count - 1))
        if kind == TOPIC:
            end = max(end, self.neighbours.end(queue_id))
        return Queue(name, kind, queue_id, *end)

    def pack_at(
        self, queue: Queue, queue_offset: int, most: int = PACK_ENTRIES, max_bytes: int = ANY_BYTES
    ) -> tuple[int, bytes] | None:
        """Some entries of a queue, among them the one at a position, and the first one's queue_offset; None if it is
        gone.

        Entries gathered from several keys are no more than `most`, of `max_bytes` of messages.
        """
        if not queue.id:
            return None
        found = self._own_pack(queue, queue_offset)
        if found is not None:
            return found
        return self.neighbours.pack_at(queue.id, queue_offset, most, max_bytes) if queue.kind == TOPIC else None

    def log_offset_at(self, queue: Queue, queue_offset: int) -> int:
        """log_offset of one entry; 0 if it was trimmed."""
        found = self._own_pack(queue, queue_offset)
        if found is not None:
            return pack_entry(found[1], queue_offset - found[0])
        place = self.neighbours.place(queue.id, queue_offset) if queue.kind == TOPIC else None
        return place[1] if place is not None and place[0] == queue_offset else 0

    def _own_pack(self, queue: Queue, queue_offset: int) -> tuple[int, bytes] | None:
        """The pack under the queue's own keys with the entry at a position."""
        found = pack_before(self._index, queue.id, queue_offset)
        return found if found is not None and queue_offset < found[0] + pack_count(found[1]) else None

    def around(self, queue: Queue, log_offset: int) -> tuple[int, int]:
        """Two queue_offsets; the first entry at or after `log_offset` is at one of them or between them."""
        low, high = self.neighbours.around(queue.id, log_offset) if queue.kind == TOPIC and queue.id else (0, None)
        return low, queue.next_offset if high is None else high

    def first_kept(self, queue: Queue, queue_offset: int) -> int | None:
        """queue_offset of the first entry at or after a position; None if there is none."""
        if not queue.id:
            return None
        own = self._index.first(entry_key(queue.id, queue_offset), entry_key(queue.id + 1, 0))
        found = [] if own is None else [int.from_bytes(own[0][9:], "big")]
        shared = self.neighbours.first_kept(queue.id, queue_offset) if queue.kind == TOPIC else None
        return min(found if shared is None else [*found, shared], default=None)
