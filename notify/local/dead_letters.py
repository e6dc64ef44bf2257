"""Dead letters that an operator settles one by one: published again to their topics, or dropped (ADR 59).

Which are settled is the state of a group: `$settled` over `$dead/#`, in each namespace one. What the group has not done
with is open; it has no consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lightqueue.groups.dead_letters import PREFIX, dead_letter_topic, published_again
from lightqueue.groups.group_queue import GroupQueue
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from notify.errors import GroupRefused
from store.namespaces import Namespace, namespace_of
from store.records._records import RecordBatch, Records, records_bytes
from store.records.records import Record
from store.state.changes import GroupAdvanced, HeldRange, encode_change
from store.state.group_settings import MOST_IN_FLIGHT, GroupSettings
from store.state.group_states import GroupKey
from store.state.offset_ranges import as_ranges

SETTLED = "$settled"
SETTINGS = GroupSettings(max_deliveries=0, most_in_flight=MOST_IN_FLIGHT)
NEVER_MS = 1 << 52
"""When an open letter in front of a settled one would be handed out: never by itself."""
MOST_OPEN = MOST_IN_FLIGHT
"""Open letters in front of a settled one."""
LOOK_RECORDS = 64
LOOK_BYTES = 256 << 10
LOOKS = 64
"""Reads of the queue for one answer."""


class DeadLetter(NamedTuple):
    """`data` is its record."""

    queue_offset: int
    data: bytes


class DeadLetterDesk:
    """All calls are made from the store's thread."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages

    def end(self, group: str) -> int:
        """queue_offset where the queue of dead letters ends."""
        queue = self._queue(namespace_of(group))
        return queue.next_offset if queue is not None else 0

    def listed(
        self, group: str, after: int, most: int, most_bytes: int, then: Callable[[list[DeadLetter], int | None], None]
    ) -> Iterator[None]:
        """Look for open letters of a group from a queue_offset on, some at a time. `then` gets those found, and where
        to go on (None: that was all).
        """
        names = namespace_of(group)
        queue, state = self._queue(names), self._messages.groups.get(_key(names))
        found: list[DeadLetter] = []
        at = max(after, state.state.acked if state is not None else 0)
        left_bytes, is_full = most_bytes, False
        for _ in range(LOOKS):
            if queue is None or at >= queue.next_offset or is_full:
                break
            records = self._messages.queues.read(queue, at, LOOK_RECORDS, LOOK_BYTES)
            if not records.count:
                at = queue.next_offset
                break
            for i in range(records.count):
                at = records.first + i
                if not _is_of(group, Record._make(records[i])) or not _is_open(state, at):
                    continue
                data = records_bytes(records, i, 1)
                left_bytes -= len(data)
                is_full = len(found) >= most or (bool(found) and left_bytes < 0)
                if is_full:
                    break
                found.append(DeadLetter(at, data))
            else:
                at = records.first + records.count
            yield
        then(found, at if queue is not None and at < queue.next_offset else None)

    def settle(self, group: str, letter: tuple[int, int], again: bool, now_ms: int) -> bool:
        """Drop a letter (queue_offset, log_offset), or publish it `again`: both or neither is in the log. False if it
        is not open (any more). Raises StoreError, GroupRefused, NotPublishable.
        """
        names = namespace_of(group)
        queue, (queue_offset, log_offset) = self._queue(names), letter
        found = self._read(queue, queue_offset) if queue is not None else None
        if queue is None or found is None:
            return False
        record = Record._make(found[0])
        is_it = found.first == queue_offset and record.log_offset == log_offset and _is_of(group, record)
        if not is_it or not _is_open(self._messages.groups.get(_key(names)), queue_offset):
            return False
        batch = RecordBatch()
        batch.begin_atomic()
        if again:
            published_again(batch, group, record, now_ms)
        made = self._messages.groups.make(_key(names), SETTINGS, lambda: self._messages.queues.first_offset(queue))
        batch.append(*encode_change(self._settled(made, queue, queue_offset)))
        batch.end_atomic()
        self._messages.append(batch)
        made.rebuild()
        return True

    def _queue(self, names: Namespace) -> Queue | None:
        return self._messages.queues.stored(names.topic(f"{PREFIX}/#"))

    def _read(self, queue: Queue, queue_offset: int) -> Records | None:
        if queue_offset >= queue.next_offset:
            return None
        records = self._messages.queues.read(queue, queue_offset, 1, 1)
        return records if records.count else None

    def _settled(self, made: GroupQueue, queue: Queue, queue_offset: int) -> GroupAdvanced:
        """The record that one letter is done with; those that retention dropped are, too. Raises GroupRefused."""
        state, first = made.state, self._messages.queues.first_offset(queue)
        done = [offset for offset in state.entries if offset < first or offset == queue_offset]
        position = max(state.positions[0], first)
        held = range(position, queue_offset)
        if len(state.entries) - len(done) + len(held) > MOST_OPEN:
            raise GroupRefused(f"more than {MOST_OPEN} older dead letters are open; drop some of these first")
        position = max(position, queue_offset + 1)
        left = state.entries.keys() - set(done)
        acked = min((*left, *held[:1], position))
        ranges = (HeldRange(NEVER_MS, 0, 0, 0, (held.start, len(held))),) if held else ()
        done_ranges = tuple(as_ranges(sorted(done)))
        return GroupAdvanced(*state.key, ((0, position),), ranges, done_ranges, 0, queue.next_offset, acked, 0)


def _key(names: Namespace) -> GroupKey:
    return names.group(SETTLED), names.topic(f"{PREFIX}/#")


def _is_open(settled: GroupQueue | None, queue_offset: int) -> bool:
    return settled is None or queue_offset >= settled.state.positions[0] or queue_offset in settled.state.entries


def _is_of(group: str, record: Record) -> bool:
    """Whether a message is a dead letter of the group."""
    bare = dead_letter_topic(group, b"")
    return record.topic.startswith(bare) or record.topic == bare.removesuffix(b"/")
