"""The entries of queues in an index, under any keys, for tests that look into RocksDB."""

from lightqueue.queues._queues import (
    GROUP_BITS,
    neighbour_entry,
    neighbour_position,
    pack_entry,
    unpacked,
    unpacked_neighbours,
)
from lightqueue.queues.layout import entry_key, pack_count
from lightqueue.queues.neighbours import group_of
from lightqueue.queues.table import LIVE_ID_BIT
from store.log.index import Index

Entries = dict[int, list[tuple[int, int]]]  # by queue id: (queue_offset, log_offset), ascending


def stored_entries(index: Index) -> Entries:
    """All but those of live queues; no queue_offset may be there twice."""
    found: dict[int, dict[int, int]] = {}

    def note(queue_id: int, queue_offset: int, log_offset: int) -> None:
        assert queue_offset not in found.setdefault(queue_id, {}), (queue_id, queue_offset)
        found[queue_id][queue_offset] = log_offset

    for key, value in index.scan(b"e", entry_key(LIVE_ID_BIT, 0)):
        pack = unpacked(value)
        for i in range(pack_count(pack)):
            note(int.from_bytes(key[1:9], "big"), int.from_bytes(key[9:], "big") + i, pack_entry(pack, i))
    newest: dict[int, int] = {}  # by group
    for key, stored in index.scan(b"n", b"o"):
        value = unpacked_neighbours(stored)
        group, places = group_of(key), []
        for queue_id in range(group << GROUP_BITS, (group + 1) << GROUP_BITS):
            if neighbour_entry(value, queue_id) is not None:
                next_offset, log_offset = neighbour_position(value, queue_id)
                note(queue_id, next_offset - 1, log_offset)
                places.append(log_offset)
        if places:
            assert newest.get(group, 0) < min(places) == int.from_bytes(key[9:], "big")
            newest[group] = max(places)
    return {queue_id: sorted(entries.items()) for queue_id, entries in found.items()}


def stored_ends(index: Index) -> dict[int, int]:
    """By queue id: the next queue_offset of those of which groups' keys say one."""
    newest = {group_of(key): unpacked_neighbours(value) for key, value in index.scan(b"n", b"o")}
    positions = {
        queue_id: neighbour_position(value, queue_id)[0]
        for group, value in newest.items()
        for queue_id in range(group << GROUP_BITS, (group + 1) << GROUP_BITS)
    }
    return {queue_id: next_offset for queue_id, next_offset in positions.items() if next_offset}


def neighbours_keys(index: Index) -> int:
    """How many keys of neighbours there are."""
    return sum(1 for _ in index.scan(b"n", b"o"))
