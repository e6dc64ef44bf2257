"""One RocksDB key for one entry each of up to 64 neighbouring queues: those of topics whose ids begin alike.

Key:  n <group 8> <log_offset 8>   the group is an id without its last 6 bits; log_offset is the oldest entry's
Value, which is stored shorter (_neighbours.pxi):
        64 × (next_offset 8, last_log_offset 8)  how far the group's keys, up to this one, know each of its queues
        bits 8                     which of them have an entry here: the one before next_offset, at last_log_offset
        (size 4, tag hash 8)       of each of those entries

Every entry of a key is newer than all entries in the group's keys before it. So a queue's next_offset grows from key
to key, and a binary search finds any of its entries, whichever queues a key has. Entries that would break this order,
which can happen after a crash, have a key `e` of their own.
"""

from __future__ import annotations

from collections import OrderedDict

from lightqueue.queues._queues import (
    GROUP_BITS,
    POSITIONS_BYTES,
    neighbour_entry,
    neighbour_position,
    neighbours_key,
    packed_neighbours,
    unpacked_neighbours,
)
from store.log.index import Cursor, Index

KEYS_LOOKED_AT = 1_024  # while gathering the entries of one queue
KEYS_AROUND = 8  # while looking for the queue's next entry
BITS_BYTES = 8
LAST = (1 << 64) - 1


class Neighbours:
    """Finds entries in groups' keys, and caches the newest key of each group, as far as there is room."""

    def __init__(self, index: Index, remembered_topics: int) -> None:
        self._index = index
        self._most = (remembered_topics >> GROUP_BITS) + 1
        self._newest: OrderedDict[int, bytes] = OrderedDict()  # by group, values as stored; empty: the group has no key

    def positions(self, group: int) -> bytes:
        """Positions of a group's queues as of its newest key; empty if it has none."""
        found = self._newest.get(group)
        if found is None:
            last = self._index.at_or_before(neighbours_key(group, LAST))
            is_ours = last is not None and last[0][:9] == neighbours_key(group, 0)[:9]
            found = last[1] if last is not None and is_ours else b""
            self.remember({group: found})
        return unpacked_neighbours(found)[:POSITIONS_BYTES] if found else b""

    def remember(self, newest: dict[int, bytes]) -> None:
        """Cache the values of groups' keys that were just written."""
        self._newest.update(newest)
        while len(self._newest) > self._most:
            self._newest.popitem(last=False)

    def end(self, queue_id: int) -> tuple[int, int]:
        """(next queue_offset, log_offset of the entry before it) of a queue, as far as these keys know; else zeros."""
        return neighbour_position(self.positions(queue_id >> GROUP_BITS), queue_id)

    def place(self, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """(queue_offset, log_offset) of a queue's first entry at or after a queue_offset that these keys ever had.

        It may have been trimmed.
        """
        end = self.end(queue_id)
        return self._place(self._cursor(queue_id), queue_id, queue_offset, end) if end[0] > queue_offset else None

    def around(self, queue_id: int, log_offset: int) -> tuple[int, int | None]:
        """Two queue_offsets: entries before the first lie before `log_offset`, entries from the second on do not."""
        group = queue_id >> GROUP_BITS
        if self.end(queue_id)[1] < log_offset:
            return self.end(queue_id)[0], None
        cursor = self._cursor(queue_id)
        found = cursor.at_or_before(neighbours_key(group, log_offset))
        if found is not None and neighbour_position(found[1], queue_id)[1] >= log_offset:
            found = cursor.at_or_before(neighbours_key(group, log_offset_of(found[0]) - 1))
        low = 0 if found is None else neighbour_position(found[1], queue_id)[0]
        following = cursor.at_or_after(neighbours_key(group, 0)) if found is None else cursor.next()
        for _ in range(KEYS_AROUND):
            there = (0, 0) if following is None else neighbour_position(following[1], queue_id)
            if there[0] > low and there[1] >= log_offset:
                return low, there[0] - 1
            low = max(low, there[0])  # if the next one's is more than one higher, an entry between was trimmed
            following = None if following is None else cursor.next()
        return low, None

    def pack_at(self, queue_id: int, queue_offset: int, most: int, max_bytes: int) -> tuple[int, bytes] | None:
        """The entry at a queue_offset and those that follow it in the next keys; None if it is not in these keys.

        At most `most` entries; stops with the one that brings the messages to `max_bytes`.
        """
        end = self.end(queue_id)
        if end[0] <= queue_offset:
            return None
        cursor = self._cursor(queue_id)
        place = self._place(cursor, queue_id, queue_offset, end)
        if place[0] != queue_offset:
            return None
        pack = self._gather(cursor, queue_id, place, min(most, end[0] - queue_offset), max_bytes)
        return (queue_offset, pack) if pack else None

    def first_kept(self, queue_id: int, queue_offset: int) -> int | None:
        """queue_offset of a queue's first kept entry at or after another."""
        end = self.end(queue_id)
        cursor = None
        while queue_offset < end[0]:
            cursor = cursor or self._cursor(queue_id)
            place = self._place(cursor, queue_id, queue_offset, end)
            if self._gather(cursor, queue_id, place):
                return place[0]
            queue_offset = place[0] + 1  # trimmed; after the oldest kept key no entry is missing
        return None

    def _cursor(self, queue_id: int) -> GroupCursor:
        group = queue_id >> GROUP_BITS
        return GroupCursor(self._index.cursor(neighbours_key(group, 0), neighbours_key(group + 1, 0)))

    def _gather(
        self, cursor: GroupCursor, queue_id: int, place: tuple[int, int], most: int = 1, max_bytes: int = 1
    ) -> bytes:
        """Entries from one on whose (queue_offset, log_offset) is known; empty if it was trimmed."""
        pack: list[bytes] = []
        found = cursor.at_or_before(neighbours_key(queue_id >> GROUP_BITS, place[1]))
        for _ in range(KEYS_LOOKED_AT):
            entry = None if found is None else neighbour_entry(found[1], queue_id)
            if found is not None and entry is not None:
                if neighbour_position(found[1], queue_id)[0] != place[0] + len(pack) + 1:
                    break  # the next entry has a key of its own
                pack.append(entry)
                max_bytes -= entry_size(entry)
            if found is None or not pack or len(pack) >= most or max_bytes <= 0:
                break
            found = cursor.next()
        return b"".join(pack)

    @staticmethod
    def _place(cursor: GroupCursor, queue_id: int, queue_offset: int, end: tuple[int, int]) -> tuple[int, int]:
        """Like place(), with `end`: the queue_offset + 1 and log_offset of a later entry.

        Guesses in turn the entry's place if messages came evenly, and the middle of the range.
        """
        group = queue_id >> GROUP_BITS
        before, behind = (0, 0), end  # queue_offset + 1 and log_offset: of an entry before, of one not before
        low, high = 0, end[1]  # range of log_offsets whose keys may have to be read
        is_even = True
        while behind[0] != queue_offset + 1:
            guess = (low + high) // 2
            if is_even:
                share = (queue_offset + 1 - before[0]) / (behind[0] - before[0])
                guess = min(max(low, before[1] + int((behind[1] - before[1]) * share)), high)
            is_even = not is_even
            found = cursor.at_or_before(neighbours_key(group, guess))
            there = (0, 0) if found is None else neighbour_position(found[1], queue_id)
            if found is not None and there[0] > queue_offset:
                behind, high = there, log_offset_of(found[0]) - 1
                continue
            found = cursor.at_or_after(neighbours_key(group, 0)) if found is None else cursor.next()
            if found is None:  # cannot happen while RocksDB has the key of `end`
                break
            there = neighbour_position(found[1], queue_id)
            if there[0] > queue_offset:
                behind = there
                break
            before, low = there, log_offset_of(found[0]) + 1
        return behind[0] - 1, behind[1]


class GroupCursor:
    """A place among the keys of a group; reads return a key and its value at full length."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        return _read(self._cursor.at_or_before(key))

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        return _read(self._cursor.at_or_after(key))

    def next(self) -> tuple[bytes, bytes] | None:
        return _read(self._cursor.next())


def _read(found: tuple[bytes, bytes] | None) -> tuple[bytes, bytes] | None:
    return None if found is None else (found[0], unpacked_neighbours(found[1]))


def without_entries(value: bytes) -> bytes:
    """A key's value with the positions of its queues and no entries, as stored."""
    return packed_neighbours(value[:POSITIONS_BYTES] + bytes(BITS_BYTES))


def entry_size(entry: bytes) -> int:
    """Size of the entry's message in bytes."""
    return int.from_bytes(entry[8:12], "little")


def group_of(key: bytes) -> int:
    """The group in a key."""
    return int.from_bytes(key[1:9], "big")


def log_offset_of(key: bytes) -> int:
    """log_offset of the oldest entry under a key."""
    return int.from_bytes(key[9:], "big")
