"""A consumer group at work on its queue: reading what is handed out, and having the log say what became of it.

What consumers do is merged in memory and written once in a while (group_flush_ms): a message that was handed out and
acked meanwhile costs nothing but the position. A kill forgets what was not written, so such messages come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol
from zlib import crc32

from lightqueue.groups.advances import advances
from lightqueue.groups.dead_letters import append_dead_letter
from lightqueue.groups.popped import NOTHING, RANGE_BYTES, PopAnswer, PoppedMessages, Range, dealt, ranges_of
from lightqueue.groups.priorities import PriorityTurns
from lightqueue.groups.queue_reads import QueueInTier, QueueReads
from lightqueue.queues.table import QueueTable
from store.errors import StoreError
from store.log.api import Log
from store.records._records import (
    RecordBatch,
    Records,
    has_flags,
    records_bytes,
    records_from,
    records_size,
)
from store.records.records import Attribute, Record, RecordFlag, decode_attributes, read_records
from store.state import expiry
from store.state.changes import GroupAdvanced, encode_change
from store.state.group_settings import ALL, GroupSettings, logged_tags
from store.state.group_states import GroupState
from store.state.groups import ConsumerKey, Group, PartitionOffset
from store.state.offset_ranges import as_ranges

LOOKS_PER_POP = 16  # reads of the queue for one answer, of LOOK_RECORDS each; each priority has its share of them
LOOK_RECORDS = 512
LOOK_BYTES = 1 << 20
ONE_BY_ONE = 128
"""Messages of one answer that are read one by one, as they come again or expire: each takes some 7 µs."""
MANY_CHANGES = 8_192  # are written without waiting
CHANGES_PER_MS = 64  # changes that are written at once where a consumer waits for that, since so few are quick
DEAD_PER_WRITE = 100
DEAD_BYTES = 1 << 20
FLAGS_AT = 25  # of a record
EXPIRES = int(RecordFlag.EXPIRES)
TOO_LARGE = "larger than any answer"

Append = Callable[[RecordBatch], int]


class GroupQueueOwner(Protocol):
    """The owner of the groups: what they share, and the source of what the log no longer has."""

    log: Log
    queues: QueueTable
    append: Append
    epoch: int
    flush_ms: int
    most_bytes: int

    def tier_of(self, group: GroupQueue) -> QueueInTier | None:
        """What a tier has of the group's queue; None: nothing."""

    def skipped(self, found: GroupQueue, number: int) -> None:
        """The group never gets so many messages."""


class GroupQueue:
    """A group and the queue that it deals out. All calls are made from the store's thread."""

    def __init__(self, owner: GroupQueueOwner, state: GroupState) -> None:
        self._owner = owner
        self.state = state
        queue = owner.queues.stored(state.topic_filter)
        assert queue is not None  # the group holds it
        self.queue = queue
        self.tag_sets = logged_tags(state.tag)  # by priority
        self._reads = [
            QueueReads(
                owner.log,
                owner.queues,
                queue,
                tags,
                lambda: owner.tier_of(self),
                (lambda number: owner.skipped(self, number)) if tags is self.tag_sets[-1] else None,
            )
            for tags in self.tag_sets
        ]
        self.reads = self._reads[-1]
        self._turns = PriorityTurns(len(self.tag_sets))
        self.group = self._group()
        self.version = 0  # counts what consumers said
        self.logged_version = 0  # what of it is in the log
        self._safe_version = 0
        self._unsafe: deque[tuple[int, int]] = deque()  # (version, where the log ended when it had that)
        self.failure: StoreError | None = None  # why the last attempt to write failed ...
        self.tried_version = 0  # what was to be written by it
        self._written_ms = 0
        self._changed_ms: int | None = None  # when the first thing happened that is not written
        self._waits = False  # what was found could not be read now: the tier is asked

    @property
    def settings(self) -> GroupSettings:
        return self.group.settings

    @property
    def lag(self) -> int:
        return self.group.lag(self.queue.next_offset)

    @property
    def is_unused(self) -> bool:
        """Whether the group has no consumer and holds nothing, so that it can be dropped."""
        group = self.group
        return not (self.state.paused or group.consumers or group.in_flight or group.waiting or group.dead or self.lag)

    @property
    def ready(self) -> int:
        """About how many messages may be handed out now; of a group without order."""
        if self.state.paused:
            return 0
        found = self.group.found_ready
        for reads, cursor in zip(self._reads, self.group.cursors, strict=False):
            if cursor.next < self.queue.next_offset and not reads.waits_for(cursor.next):
                return found + self.queue.next_offset - cursor.next
        return found

    # --- handing out

    def may_have(self, now_ms: int) -> bool:
        """Whether pop() may find something; it is much quicker."""
        self.group.run(now_ms)
        if self.state.paused:
            return False
        return bool(self.settings.partitions) or (self.group.has_room and self.ready > 0)

    def new(self, most: int, max_bytes: int, now_ms: int) -> Records | None:
        """The new records of the queue, for hand_out_new(), if any consumer may have them, in order.

        None if other messages come first or each message has to be looked at; then call pop().
        """
        group = self.group
        group.run(now_ms)
        if self.settings.partitions or group.found_ready or len(self.tag_sets) > 1:
            return None
        records = self._read(group.looked_until, most, max_bytes)
        return records if self._is_whole(records, max_bytes) else None

    def _is_whole(self, records: Records, max_bytes: int, priority: int = 0) -> bool:
        """True if all of these records can be handed out at once without a look at each message."""
        if not records.count or has_flags(records, EXPIRES):
            return False
        size = records_size(records) + RANGE_BYTES * records.count
        return size <= min(max_bytes, self._owner.most_bytes) and self.group.is_new(
            records.first, records.count, priority
        )

    def hand_out_new(
        self, consumer: ConsumerKey, records: Records, place: int, count: int, now_ms: int, due_ms: int
    ) -> PoppedMessages:
        """Lease out the next so many of what new() found."""
        first = records.first + place
        leased = self._lease_new(consumer, range(first, first + count), now_ms, due_ms)
        return PoppedMessages([leased], records, place, count)

    def _lease_new(self, consumer: ConsumerKey, offsets: range, now_ms: int, due_ms: int, priority: int = 0) -> Range:
        self._changed_ms = self._changed_ms or now_ms
        lease = self.group.hand_out_new(consumer, offsets, now_ms, due_ms, priority)
        return Range(lease.serial, lease.deliveries, offsets.start, len(offsets))

    def pop(self, consumer: ConsumerKey, most: int, max_bytes: int, now_ms: int, due_ms: int) -> PoppedMessages:
        """Lease out up to `most` messages, and no more once they have `max_bytes`; one that is larger goes alone.

        Those that come again or expire are ONE_BY_ONE at most.
        """
        self.group.run(now_ms)
        if self.state.paused:
            return NOTHING
        answer = PopAnswer(consumer, most, max_bytes, now_ms, due_ms)
        if len(self.tag_sets) == 1:
            self._fill(answer, 0, most)
        else:
            self._turns.fill(answer, self._fill)
        return dealt(answer.ranges, answer.parts, answer.count)

    def _fill(self, answer: PopAnswer, priority: int, most: int) -> None:
        """Lease out up to `most` messages of one priority."""
        group, consumer = self.group, answer.consumer
        most += answer.count
        self._waits = False
        read: dict[int, bytes] = {}
        for looks in range(LOOKS_PER_POP // len(self.tag_sets)):
            if answer.looks >= LOOKS_PER_POP:
                break
            answer.looks += 1
            places: list[PartitionOffset] = []
            number = min(most - answer.count, ONE_BY_ONE - answer.alone)
            available = [] if self._waits else group.available(consumer, number, priority)
            for place, data in self._readable(available, read, answer.now_ms):
                if not answer.takes(data):
                    break
                places.append(place)
            if places:
                answer.count += len(places)
                answer.alone += len(places)
                self._changed_ms = self._changed_ms or answer.now_ms
                answer.ranges += ranges_of(group.hand_out(consumer, places, answer.now_ms, answer.due_ms))
            start = group.look_from(consumer, priority)
            is_full = answer.left_bytes <= 0 or answer.count >= most or answer.alone >= ONE_BY_ONE
            if is_full or start is None or start >= self.queue.next_offset:
                break
            if self.settings.partitions and answer.parts and looks:  # partitions without messages would have it look on
                break
            records = self._read(start, most - answer.count, answer.left_bytes, priority)
            if not records.count and records.first == start:  # the tier is asked
                break
            if not self.settings.partitions and self._is_whole(records, answer.left_bytes, priority):
                offsets = range(records.first, records.first + records.count)
                leased = self._lease_new(consumer, offsets, answer.now_ms, answer.due_ms, priority)
                answer.take_all(leased, records)
                read = {}
            else:
                if records.count > LOOK_RECORDS:
                    records = self._read(start, LOOK_RECORDS, answer.left_bytes, priority)
                read = self._find(start, records, priority)

    def _read(self, start: int, wanted: int, max_bytes: int, priority: int = 0) -> Records:
        is_ordered, room = self.settings.partitions > 0, self.group.room
        number, size = (LOOK_RECORDS, LOOK_BYTES) if is_ordered else (min(wanted, room), max_bytes)
        return self._reads[priority].read(start, number, size)

    def _find(self, start: int, records: Records, priority: int = 0) -> dict[int, bytes]:
        """Note what was read from `start` on. The messages, by queue_offset, until the next append."""
        count, partitions = records.count, self.settings.partitions
        found = list(_partitions(records, partitions)) if partitions else range(count)
        self.group.found(start, records.first, found, priority)
        return {records.first + i: records_bytes(records, i, 1) for i in range(count)}

    def _readable(
        self, places: list[PartitionOffset], read: dict[int, bytes], now_ms: int
    ) -> Iterator[tuple[PartitionOffset, bytes]]:
        """The messages of these places that can be handed out. The others are done with."""
        for place in places:
            data = read.get(place[1]) or self.reads.record(place[1])
            if data is None:
                self._waits = True
            elif not data or _is_expired(data, now_ms):
                self.group.gone(place)
                if not data:
                    self.reads.gone()
            elif len(data) > self._owner.most_bytes:
                self.group.doom(place, TOO_LARGE)
            else:
                yield place, self.reads.telling(place[1], data)

    # --- what consumers say; what is stale of it

    def ack(self, serial: int, first: int, count: int) -> list[int]:
        return self._said(self.group.ack(serial, first, count))

    def change_invisible(
        self, serial: int, first: int, count: int, due_ms: int, consumer: ConsumerKey | None = None
    ) -> list[int]:
        return self._said(self.group.change_invisible(serial, first, count, due_ms, consumer))

    def may_take(self, offsets: Iterable[int], peer: str) -> bool:
        """Whether a peer's consumers may be done with all of these: none is done with, and no other peer has one."""
        return all(self.group.may_take(place, peer) for place in self._places(offsets))

    def find(self, offsets: Iterable[int], now_ms: int) -> None:
        """Hold those of these messages that no consumer has: an earlier process handed them out."""
        for place in self._places(offsets):
            if self.tag_sets != [ALL]:
                self._look_until(place)
            self.group.find(place, now_ms)

    def _look_until(self, place: PartitionOffset) -> None:
        """Find the group's messages with one priority up to a place, since those between them are not its."""
        priority, offset = place
        cursor, reads = self.group.cursors[priority], self._reads[priority]
        while cursor.next <= offset:
            start = cursor.next
            records = reads.read(start, LOOK_RECORDS, LOOK_BYTES)
            if not records.count and records.first == start:  # the tier is asked
                break
            self._find(start, records, priority)

    def _places(self, offsets: Iterable[int]) -> Iterator[PartitionOffset]:
        """The places of the messages that are in the queue."""
        for offset in offsets:
            if not self.settings.partitions and len(self.tag_sets) == 1 and offset < self.queue.next_offset:
                yield 0, offset
            elif self.settings.partitions and (data := self.reads.record(offset)):
                yield next(_partitions(records_from(data, 0), self.settings.partitions)), offset
            elif len(self.tag_sets) > 1 and (data := self.reads.record(offset)):
                (record,) = read_records(memoryview(data))
                priority = self.priority_of(record)
                if priority is not None:
                    yield priority, offset

    def priority_of(self, record: Record) -> int | None:
        """The number of the group's tags that a message belongs to, 0 comes first; None: the group does not have it."""
        tag = decode_attributes(record.attributes).get(Attribute.TAG)
        return next((i for i, each in enumerate(self.tag_sets) if (tag in each.tags) != each.others), None)

    def took(self, offsets: Iterable[int]) -> None:
        """The log has it already that these are done with."""
        self.group.took(offsets)

    def reject(
        self, serial: int, first: int, count: int, now_ms: int, delay_ms: int | None, dead: str, unseen: bool = False
    ) -> list[int]:
        return self._said(self.group.reject(serial, first, count, now_ms, delay_ms, dead, unseen))

    def _said(self, stale: list[int]) -> list[int]:
        self.version += 1
        return stale

    # --- the log

    def is_due(self, now_ms: int) -> bool:
        """True if it is time to write the changes to the log."""
        group = self.group
        if not (group.has_changes or self.logged_version != self.version or group.dead):
            return False
        if self._changed_ms is None:
            self._changed_ms = now_ms
        if group.changes >= MANY_CHANGES:
            return True
        flush_ms = self._owner.flush_ms
        passed_ms = now_ms - self._written_ms
        if self.logged_version != self.version:
            return not 0 <= passed_ms < flush_ms or group.changes <= CHANGES_PER_MS * (passed_ms + 1)
        return not (0 <= passed_ms < flush_ms or 0 <= now_ms - self._changed_ms < flush_ms)

    def write(self, now_ms: int) -> None:
        """Write to the log what it does not have. Raises a StoreError; then try again later."""
        group, state = self.group, self.state
        self.tried_version = self.version
        self._written_ms = now_ms
        self._changed_ms = None
        held, done = group.held_and_done(state.entries)
        more = len(state.positions) - len(group.cursors)  # than the group has, whose making may be lost
        now = group.positions + [max(group.positions)] * more
        positions = [each for each in enumerate(now) if each[1] != state.positions[each[0]]]
        if held or done or positions:
            batch = RecordBatch()
            known = self.queue.next_offset, group.acked_offset, self.settings.partitions
            for advanced in advances(state, held, done, positions, known):
                batch.append(*encode_change(advanced))
            self._owner.append(batch)
        group.written()
        if self.logged_version != self.version:
            self.safe_version()
            self._unsafe.append((self.version, self._owner.log.end))
            self.logged_version = self.version
        if group.dead:
            self._bury(now_ms)

    def safe_version(self) -> int:
        """Everything up to this version is in the log, and safe."""
        safe = self._owner.log.safe
        while self._unsafe and self._unsafe[0][1] <= safe:
            self._safe_version = self._unsafe.popleft()[0]
        return self._safe_version

    def _bury(self, now_ms: int) -> None:
        """Write dead letters, as many as is good at a time; they and that they are done with, or neither."""
        most_bytes = self._owner.log.largest_append_bytes
        left_bytes = min(DEAD_BYTES, most_bytes // 4)
        batch = RecordBatch()
        batch.begin_atomic()
        offsets: list[int] = []
        count = 0
        for offset, why in islice(self.group.dead.items(), DEAD_PER_WRITE):
            data = self.reads.record(offset)
            if data is None:  # the tier is asked
                continue
            left_bytes -= len(data)
            if offsets and left_bytes < 0:
                break
            offsets.append(offset)
            lease = self.group.lease(offset)
            deliveries = lease.deliveries if lease is not None else 0
            for record in read_records(memoryview(data)):
                count += append_dead_letter(batch, self.state, record, why, deliveries, now_ms, most_bytes // 2)
        if not offsets:
            return
        done = tuple(as_ranges(sorted(offsets)))
        batch.append(*encode_change(GroupAdvanced(*self.state.key, done=done, dead=count)))
        batch.end_atomic()
        self._owner.append(batch)
        self.group.buried(offsets)
        if not self.group.dead:
            self.group.written()

    def rebuild(self) -> None:
        """The state was set from outside: all leases end."""
        consumers = list(self.group.consumers)
        self.close()
        self.group = self._group()
        for key in consumers:
            self.group.join(key)

    def _group(self) -> Group:
        state = self.state
        number = state.settings.partitions or len(self.tag_sets)
        positions = state.positions if len(state.positions) == number else [min(state.positions)] * number
        return Group(state.settings, positions, state.entries, self._owner.epoch)

    def close_what_is_done(self) -> None:
        """Stop reading the tier where no more of it is needed. Call this now and then."""
        for each in self._reads:
            each.close_if_done(self.group.acked_offset)

    def close(self) -> None:
        """Stop reading the tier."""
        for each in self._reads:
            each.close()


def _partitions(records: Records, count: int) -> Iterator[int]:
    for i in range(records.count):
        yield partition_of(Record._make(records[i]), count)


def partition_of(record: Record, count: int) -> int:
    """The partition of a record: the CRC-32 of its key, or without a key of its topic, modulo `count`."""
    key = decode_attributes(record.attributes).get(Attribute.KEY, record.topic) if record.attributes else record.topic
    return crc32(key) % count


def _is_expired(data: bytes, now_ms: int) -> bool:
    if not data[FLAGS_AT] & EXPIRES:
        return False
    record = next(read_records(memoryview(data)))
    return expiry.age(record.properties, (now_ms - record.timestamp_ms) // 1000) is None
