"""Delayed messages: when each is due, and where in the log it lies. A projection of the log, kept on disk.

Keys are `d`, when it is due and where it was first stored: what is due next stands first, and what is due at once comes
in the order in which it was stored. Memory holds what the index does not have so far, however many are pending.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from store.log.index import Index
from store.records.records import Attribute, Record

KEY_PREFIX = b"d"
KEY_END = b"e"
COUNT_KEY = b"m:delayed_messages"
KEYS_PER_STEP = 300  # what stage() hands to the index at a time: some 1 ms
BACKLOG_SHARE = 128  # one part in this many of what is not in the index goes as well
MOST_STALE = 1_000  # keys in the heap beyond twice those that count before it is built anew


class DelayedMessage(NamedTuple):
    """A message that is yet to be dispatched. `first_offset` names it for good; `log_offset` is where it lies now."""

    due_ms: int
    first_offset: int
    log_offset: int


def due_of(record: Record, attributes: Mapping[int, bytes]) -> tuple[int, int]:
    """(due_ms, first_offset) of a delayed message, from its record or from that of its dispatch."""
    first = attributes.get(Attribute.FIRST_OFFSET)
    first_offset = int.from_bytes(first, "little") if first is not None else record.log_offset
    return int.from_bytes(attributes[Attribute.DUE_MS], "little"), first_offset


def _key(due_ms: int, first_offset: int = 0) -> bytes:
    return KEY_PREFIX + due_ms.to_bytes(8, "big") + first_offset.to_bytes(8, "big")


def _pending(key: bytes, log_offset: int) -> DelayedMessage:
    return DelayedMessage(int.from_bytes(key[1:9], "big"), int.from_bytes(key[9:], "big"), log_offset)


class Delayed:
    """Owner of the keys. What the index does not have is in `_fresh`, oldest first."""

    def __init__(self, index: Index) -> None:
        self._index = index
        # By key: where the message lies (None: it is not pending any more), and the log_offset that says so.
        self._fresh: OrderedDict[bytes, tuple[int | None, int]] = OrderedDict()
        self._heap: list[bytes] = []  # keys that are pending in _fresh, and some that are not any more
        # Messages pending in the index before this key are in _fresh as well. (Deleted keys are slow to step over.)
        self._floor = KEY_PREFIX
        self._aside: set[bytes] = set()  # due, but not to be found by due()
        count = index.get(COUNT_KEY)
        self._count = int.from_bytes(count, "big") if count else sum(1 for _ in index.scan(KEY_PREFIX, KEY_END))
        self._staged: list[bytes] = []
        self._staged_count = self._count

    def __len__(self) -> int:
        """The number of delayed messages, as of the index's last write."""
        return self._count

    # --- applying

    def set(self, due_ms: int, first_offset: int, log_offset: int) -> None:
        """A message is pending, and lies at `log_offset` from now on."""
        key = _key(due_ms, first_offset)
        self._fresh[key] = log_offset, log_offset
        self._fresh.move_to_end(key)
        if len(self._heap) > 2 * len(self._fresh) + MOST_STALE:
            self._heap = [key for key, (place, _) in self._fresh.items() if place is not None]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, key)

    def remove(self, due_ms: int, first_offset: int, log_offset: int) -> None:
        """A message is not pending any more: the record at `log_offset` says so."""
        key = _key(due_ms, first_offset)
        self._fresh[key] = None, log_offset
        self._fresh.move_to_end(key)
        self._aside.discard(key)

    def set_aside(self, due_ms: int, first_offset: int) -> None:
        """due() is not to find it any more: it waits for something else. Forgotten at the next start."""
        self._aside.add(_key(due_ms, first_offset))

    # --- asking

    def place(self, due_ms: int, first_offset: int) -> int | None:
        """log_offset at which a message lies that is pending; None if it is not (any more)."""
        key = _key(due_ms, first_offset)
        if key in self._fresh:
            return self._fresh[key][0]
        value = self._index.get(key)
        return int.from_bytes(value, "big") if value else None

    def due(self, now_ms: int, most: int) -> list[DelayedMessage]:
        """Up to `most` of the messages that are due and not set aside, those first that have been so for longest."""
        stop = _key(now_ms + 1)
        found = self._due_in_index(stop, most) + self._due_in_memory(stop, most)
        return sorted(found)[:most]

    def _due_in_index(self, stop: bytes, most: int) -> list[DelayedMessage]:
        if self._floor >= stop:
            return []
        scanned = self._index.scan(self._floor, stop)
        stored = ((key, value) for key, value in scanned if key not in self._fresh and key not in self._aside)
        found = list(islice(stored, most))
        self._floor = found[0][0] if found else stop
        return [_pending(key, int.from_bytes(value, "big")) for key, value in found]

    def _due_in_memory(self, stop: bytes, most: int) -> list[DelayedMessage]:
        found: dict[bytes, int] = {}
        while self._heap and self._heap[0] < stop and len(found) < most:
            key = heapq.heappop(self._heap)
            place, _ = self._fresh.get(key, (None, 0))  # it may be in the index by now
            if place is not None and key not in self._aside:
                found[key] = place
        for key in found:
            heapq.heappush(self._heap, key)
        return [_pending(key, place) for key, place in found.items()]

    def page(self, after_due_ms: int, after_offset: int, limit: int) -> list[DelayedMessage]:
        """The `limit` pending ones that are due next after (due_ms, first_offset), which need not be there itself."""
        start = _key(after_due_ms, after_offset) + b"\0"
        stored = (
            (key, int.from_bytes(value, "big"))
            for key, value in self._index.scan(start, KEY_END)
            if key not in self._fresh
        )
        fresh = ((key, place) for key, (place, _) in self._fresh.items() if place is not None and key >= start)
        newer = heapq.nsmallest(limit, fresh)
        return [_pending(key, place) for key, place in islice(heapq.merge(stored, newer), limit)]

    def older_than(
        self, log_offset: int, after: DelayedMessage | None, limit: int
    ) -> tuple[list[DelayedMessage], DelayedMessage | None]:
        """The delayed messages before `log_offset`, of the `limit` ones that follow `after` (None: the first ones).

        Also the one to go on after, or None at the end. Looks only at what the index has.
        """
        found = []
        start = _key(after.due_ms, after.first_offset) + b"\0" if after is not None else KEY_PREFIX
        for seen, (key, value) in enumerate(self._index.scan(start, KEY_END), 1):
            pending = _pending(key, int.from_bytes(value, "big"))
            if pending.log_offset < log_offset:
                found.append(pending)
            if seen == limit:
                return found, pending
        return found, None

    # --- the index

    def stage(self, until: int) -> int | None:
        """Hand some of what the index does not have to it, for its next write; once that succeeded, call written().

        All that was said before `until` goes, but no more than takes a short time. Returns the log_offset of the oldest
        that is still missing then; None if nothing is.
        """
        self._staged.clear()
        self._staged_count = self._count
        most = KEYS_PER_STEP + len(self._fresh) // BACKLOG_SHARE
        missing = None
        for key, (place, log_offset) in islice(self._fresh.items(), most + 1):
            if len(self._staged) == most or log_offset >= until:
                missing = log_offset
                break
            self._staged.append(key)
            self._staged_count += (place is not None) - (self._index.get(key) is not None)
            if place is None:
                self._index.delete(key)
            else:
                self._index.put(key, place.to_bytes(8, "big"))
        if self._staged:
            self._index.put(COUNT_KEY, self._staged_count.to_bytes(8, "big"))
        return missing

    def written(self) -> None:
        """The index has what was staged."""
        self._count = self._staged_count
        for key in self._staged:
            place, _ = self._fresh.pop(key)
            if place is not None and key not in self._aside:
                self._floor = min(self._floor, key)
        self._staged.clear()


def without(attributes: bytes, tags: tuple[Attribute, ...]) -> Iterator[bytes]:
    """The attributes but for those with these tags, as they are encoded."""
    at = 0
    while at < len(attributes):
        end = at + 3 + int.from_bytes(attributes[at + 1 : at + 3], "little")
        if attributes[at] not in tags:
            yield attributes[at:end]
        at = end
