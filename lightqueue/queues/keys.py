"""The index of message keys: 32 bits of each key's hash and the message's place, in RocksDB over the log.

The log has parts of 64 MiB. The items of all parts but the newest are sorted by hash; those of the newest are in memory
by age, and in RocksDB as well, so that a start replays nothing for them:

    k <part 8> <first item 8> → items       sorted, up to 512 under the first one's key
    l <log_offset of the first 8> → items   of the newest part, by age, up to 1,024 together; only the last key grows

An item is 8 bytes: the hash's 32 bits above the place in its part, in bytes. All integers in keys are big-endian, those
in values little-endian. The newest parts are searched first, each with one seek, and retention deletes a range of keys.
A hash only says where to look: the reader compares the key itself (docs/adr/0020-keys-lie-by-parts-of-the-log.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from lightqueue.queues._queues import Dispatcher, KeyPart, key_hash, places_in_order
from store.log.index import Index

PART_PREFIX = b"k"
RUN_PREFIX = b"l"
PART_BITS = 26
PART_KEYS = 512
RUN_KEYS = 1_024
PLACES_AT_A_TIME = 512
END = (1 << 64) - 1


def part_key(part: int, item: int) -> bytes:
    return PART_PREFIX + part.to_bytes(8, "big") + item.to_bytes(8, "big")


def run_key(log_offset: int) -> bytes:
    return RUN_PREFIX + log_offset.to_bytes(8, "big")


class KeyIndex:
    """Owner of the index's keys. Some parts of the log are in memory; the dispatcher adds items to the newest."""

    def __init__(self, index: Index, dispatcher: Dispatcher) -> None:
        self._index = index
        self._parts = dispatcher.key_parts
        self._staged: list[tuple[KeyPart, int]] = []
        self._is_sealing = False
        newest = index.at_or_before(part_key(END, END))
        if newest is not None and newest[0].startswith(PART_PREFIX):
            dispatcher.keys_from = (int.from_bytes(newest[0][1:9], "big") + 1) << PART_BITS
        for key, items in index.scan(RUN_PREFIX, part_after(RUN_PREFIX)):
            part = dispatcher.key_part(int.from_bytes(key[1:], "big") >> PART_BITS)
            part.load(items)
            dispatcher.keys_from = part.log_offset(part.count - 1) + 1

    def stage(self) -> None:
        """Stage the new items for the index's next write; call written() after it.

        At most one complete part is sorted with it. A million keys take about 2 ms, sorting a part about 5 ms.
        """
        self._is_sealing = len(self._parts) > 1
        if self._is_sealing:
            self._seal(self._parts[0])
        self._staged = [(part, part.count) for part in self._parts if part.written < part.count]
        for part, count in self._staged:
            if self._is_sealing and part is self._parts[0]:
                continue
            for at in range(part.written - part.written % RUN_KEYS, count, RUN_KEYS):
                self._index.put(run_key(part.log_offset(at)), part.run(at, RUN_KEYS))

    def _seal(self, part: KeyPart) -> None:
        for first, items in part.in_order(PART_KEYS):
            self._index.put(part_key(part.number, first), items)
        self._index.delete_range(run_key(part.start), run_key(part.start + (1 << PART_BITS)))

    def written(self) -> None:
        """Note that the index has written what was staged."""
        for part, count in self._staged:
            part.written = count
        if self._is_sealing:
            self._parts.popleft()
        self._staged = []
        self._is_sealing = False

    def trim(self, first: int) -> None:
        """Forget items before log_offset `first`, except in the part that contains it. Call it before stage()."""
        kept = first >> PART_BITS
        self._index.delete_range(part_key(0, 0), part_key(kept, 0))
        self._index.delete_range(run_key(0), run_key(kept << PART_BITS))
        while len(self._parts) > 1 and self._parts[0].number < kept:
            self._parts.popleft()
        if self._parts and self._parts[0].number < kept:
            self._parts[0].clear()

    def candidates(self, key: bytes, before: int) -> Iterator[int]:
        """log_offsets before `before` where a message with this key may be, newest first."""
        hashed = key_hash(key)
        for part in reversed(self._parts):
            places = [before]
            while places:
                before = places[-1]
                places = part.places(hashed, before, PLACES_AT_A_TIME)
                yield from places
            before = min(before, part.start)
        yield from self._ordered_candidates(hashed, before)

    def _ordered_candidates(self, hashed: int, before: int) -> Iterator[int]:
        """The candidates in parts that are sorted by hash."""
        while before > 0:
            part, place = divmod(before - 1, 1 << PART_BITS)
            found = self._index.at_or_before(part_key(part, hashed << 32 | place))
            if found is None or not found[0].startswith(PART_PREFIX):
                return
            there, first = int.from_bytes(found[0][1:9], "big"), int.from_bytes(found[0][9:], "big")
            if there < part:
                before = (there + 1) << PART_BITS
                continue
            yield from places_in_order(found[1], part, hashed, before)
            begins_before = first >> 32 == hashed  # it may begin in the piece before this one
            before = (part << PART_BITS) + (first & 0xFFFFFFFF if begins_before else 0)


def part_after(prefix: bytes) -> bytes:
    return bytes((prefix[0] + 1,))
