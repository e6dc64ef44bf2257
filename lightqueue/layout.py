"""Where the queues stand in RocksDB.

Keys:  q <kind> <name> → id 8, base 8       a queue; base = its next queue_offset when it has no entries;
                         [began 8]          a filter's: while it has had none, the log_offset it began at
       e <id 8> <queue_offset 8> → entries  20 bytes each, packed under the first one's queue_offset
All integers in keys are big-endian, so that a range read is one seek.
"""

from lightqueue._queues import ENTRY_BYTES, Queue, entry_key, pack_entry, queue_key, queue_value
from store.index import Index

__all__ = ["entry_key", "queue_key", "queue_value"]  # made where entries are staged

NEXT_ID_KEY = b"m:next_queue_id"


def pack_count(pack: bytes) -> int:
    return len(pack) // ENTRY_BYTES


def pack_before(index: Index, queue_id: int, queue_offset: int) -> tuple[int, bytes] | None:
    """The pack that starts at or before a position (the next key may belong to another queue)."""
    found = index.at_or_before(entry_key(queue_id, queue_offset))
    if found is None or found[0][:9] != entry_key(queue_id, 0)[:9]:
        return None
    return int.from_bytes(found[0][9:], "big"), found[1]


def last_pack(index: Index, queue_id: int) -> tuple[int, bytes] | None:
    return pack_before(index, queue_id, (1 << 64) - 1)


def load_queue(index: Index, kind: int, name: bytes) -> Queue:
    """A queue as it is stored, or a new one."""
    meta = index.get(queue_key(kind, name))
    if meta is None:
        return Queue(name, kind)
    queue_id, base, began = (int.from_bytes(meta[at : at + 8], "big") for at in (0, 8, 16))
    last = last_pack(index, queue_id)
    if last is None:
        return Queue(name, kind, queue_id, base, began)
    first, pack = last
    count = pack_count(pack)
    return Queue(name, kind, queue_id, first + count, pack_entry(pack, count - 1))
