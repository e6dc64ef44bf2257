"""The state that the log leads to: queues, sessions, retained and delayed messages. Applying has no clock and no I/O.

The index follows in steps. Each step writes all changes of sessions, peers, groups and held filters, but only some of
the queue entries, retained pointers and delayed messages, oldest first. So a replay begins at the oldest of those that
is missing; up to the index's `state_offset` it applies only those, because they may be applied twice.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from lightqueue.queues.keys import KeyIndex
from lightqueue.queues.table import QueueTable
from store.errors import UnknownRecord
from store.log.api import LogRecords
from store.log.index import Index
from store.records.records import Attribute, Record, RecordFlag, RecordType, decode_attributes
from store.settings import StoreSettings
from store.state.bans import BanStates
from store.state.changes import (
    TYPES,
    BanLifted,
    BanSet,
    DelayedEnded,
    GroupAdvanced,
    GroupDropped,
    GroupMade,
    GroupOffsetReset,
    PeerAppended,
    PeerGone,
    QueueDropped,
    ReaderAdvanced,
    ReaderForgotten,
    ReaderLost,
    SegmentsDropped,
    TopicsGone,
    decode_change,
)
from store.state.delayed import Delayed, due_of
from store.state.group_states import GroupKey, GroupStates
from store.state.log_readers import LogReaderStates
from store.state.peers import PeerStates
from store.state.retained import RetainedTopics
from store.state.sessions import Sessions
from store.state.usage import NOTHING, Counted, Usage, counted_of, delayed_item

log = logging.getLogger("penstock.store")

MOST_NAMED = 20
CROSSED = (
    "%d %s may have lost records of theirs with a part of the log, and go on with what is known: what they had done "
    "with may come again, and clients with a session are told that there is none, so that they subscribe again: %s"
)
APPLIED_TWICE = (RecordType.DELAYED_ENDED, RecordType.TOPICS_GONE, RecordType.PEER_APPENDED)
"""Record types that change parts which go to the index in steps."""


@dataclass
class Crossed:
    """Sessions and groups whose records may be lost. They go on from the known state, and get some messages again."""

    client_ids: set[str] = field(default_factory=set)
    groups: set[GroupKey] = field(default_factory=set)

    def tell(self) -> None:
        """Name them in the log."""
        names = [("sessions", self.client_ids), ("groups", {name for name, _ in self.groups})]
        for what, found in names:
            if found:
                some = ", ".join(sorted(found)[:MOST_NAMED]) + (", ..." if len(found) > MOST_NAMED else "")
                log.error(CROSSED, len(found), what, some)


class Projection:
    """The state as of `position`; the part that the index does not have yet is in memory."""

    def __init__(self, log: LogRecords, index: Index, settings: StoreSettings) -> None:
        self.index = index
        self.queues = QueueTable(log, index, settings, self._apply)
        self.keys = KeyIndex(index, self.queues.dispatcher)
        self.sessions = Sessions(index, self.queues)
        self.retained = RetainedTopics(index)
        self.delayed = Delayed(index)
        self.peers = PeerStates(index)
        self.groups = GroupStates(index, self.queues)
        self.bans = BanStates(index)
        self.log_readers = LogReaderStates(index)
        self.usage = Usage(index)
        self.position = self.applied = index.applied_offset  # the index has everything before `applied`
        self._state_offset = index.state_offset
        self.dropped_before = 0  # log_offset before which the leader of the cluster has dropped all
        self.wants_flush = False  # the index is to be flushed as it is, and given nothing until then
        self.crossed = Crossed()
        self._gap_end, self._gap_is_known = 0, False  # of the newest GAP record
        if log.base and not self._state_offset:  # nothing tells the state before it
            self._cross_gap(log.first, is_known=False)

    @property
    def state_offset(self) -> int:
        """The index has effects of records up to this log_offset."""
        return self._state_offset

    @property
    def has_news(self) -> bool:
        """Whether a write would change the index."""
        return self.applied != self.position or self.queues.has_edits

    def replay(self, start: int, data: memoryview | bytes) -> None:
        """Apply verified records that begin in the log at `start`, and write them to the index."""
        self.queues.dispatcher.apply_bytes(data)
        self.position = start + len(data)
        self.write()

    def write(self) -> None:
        """Bring the index up to date. Raises IndexFailed; then the rest stays in memory, for the next attempt."""
        while not self.write_some(self.position, may_wait=True):
            pass

    def write_some(self, until: int, may_wait: bool = False) -> bool:
        """Take a step that brings the index nearer to `until`. True if it was the last one.

        Raises IndexFailed: IndexBusy if it would take longer than a step, unless it `may_wait`.
        """
        self.sessions.stage()
        self.peers.stage()
        self.groups.stage()
        self.bans.stage()
        self.log_readers.stage()
        missing = [part.stage(until) for part in (self.queues, self.retained, self.delayed, self.usage)]
        self.keys.stage()  # after the queues' edits, which trim the keys
        applied = min([self.position, *(log_offset for log_offset in missing if log_offset is not None)])
        state_offset = max(self._state_offset, self.position)
        self.index.write(applied, state_offset, may_wait)
        self.applied, self._state_offset = applied, state_offset
        for part in (
            *(self.sessions, self.peers, self.groups, self.bans, self.log_readers),
            *(self.queues, self.retained, self.keys, self.delayed, self.usage),
        ):
            part.written()
        return applied >= until

    def _apply(self, fields: tuple[Any, ...]) -> None:
        """Apply a record that changes more than entries in queues."""
        record: Record = tuple.__new__(Record, fields)  # Record._make() is in Python, and slower
        if record.type == RecordType.MESSAGE:
            self._apply_message(record)
            return
        if record.type == RecordType.GAP:
            self._cross(record.log_offset, record.log_offset + record.length)
            return
        if record.type not in TYPES:
            raise UnknownRecord(record.log_offset, record.type)
        if record.log_offset < self._state_offset and record.type not in APPLIED_TWICE:
            return
        change = decode_change(record.type, record.payload)
        if isinstance(change, PeerAppended | PeerGone):  # first, because each Append of a gateway has one
            if record.log_offset >= self._state_offset:
                self.peers.apply(change, record.log_offset, record.timestamp_ms)
            if isinstance(change, PeerAppended) and change.counted:
                self._count_clients(change, record.log_offset)
        elif isinstance(change, DelayedEnded):
            for due_ms, first_offset in change.messages:
                self._end_delayed(due_ms, first_offset, record.log_offset)
        elif isinstance(change, TopicsGone):
            for topic in change.topics:
                self.usage.remove(Counted.TOPIC, topic.encode(), record.log_offset)
        elif isinstance(change, QueueDropped):
            for topic_filter in change.topic_filters:
                while self.queues.held.is_held(topic_filter) and self.sessions.release_some():
                    pass  # a live store released these in earlier steps
                self.queues.drop(topic_filter, record.log_offset)
        elif isinstance(change, GroupMade | GroupAdvanced | GroupOffsetReset | GroupDropped):
            self.groups.apply(change, record.log_offset)
        elif isinstance(change, BanSet | BanLifted):
            self.bans.apply(change, record.timestamp_ms)
        elif isinstance(change, SegmentsDropped):
            self.dropped_before = max(self.dropped_before, change.end)
        elif isinstance(change, ReaderAdvanced | ReaderForgotten | ReaderLost):
            self.log_readers.apply(change, record.timestamp_ms)
        else:
            self.sessions.apply(change, record.log_offset, record.timestamp_ms)

    def _cross(self, start: int, end: int) -> None:
        """Cross a GAP record. A large gap is several of them; the index may have been in the middle of it."""
        is_known = end <= self._state_offset
        if start != self._gap_end or (self._gap_is_known and not is_known):
            self._cross_gap(start, is_known)
        self._gap_end, self._gap_is_known = end, is_known

    def _cross_gap(self, log_offset: int, is_known: bool) -> None:
        """Note that records are lost. `is_known`: the index has the state after them, but not all entries."""
        groups = self.groups.cross_gap(is_known)
        self.crossed.groups.update(groups)
        if not is_known:
            self.crossed.client_ids.update(self.sessions.cross_gap(log_offset))
            self.peers.cross_gap()

    def all_applied(self) -> None:
        """Note that all of the log is applied: each later record follows all records before it."""
        self.sessions.all_applied()
        self.peers.all_applied()
        self.groups.all_applied(self.position)
        self.crossed.tell()

    def _apply_message(self, record: Record) -> None:
        attributes = decode_attributes(record.attributes)
        is_pending = bool(record.flags & RecordFlag.DELAYED)
        is_retained = bool(record.flags & RecordFlag.RETAIN) and not is_pending
        if is_retained:
            self.retained.set(record.topic, record.log_offset, removed=not record.payload)
        due_ms = first_offset = 0
        if Attribute.DUE_MS in attributes:
            due_ms, first_offset = due_of(record, attributes)
            if is_pending:
                self.delayed.set(due_ms, first_offset, record.log_offset)
            else:  # this is its dispatch
                self._end_delayed(due_ms, first_offset, record.log_offset)
        value = attributes.get(Attribute.COUNTED)
        counted, user = counted_of(value) if value else (NOTHING, "")
        usage, log_offset = self.usage, record.log_offset
        if counted & Counted.TOPIC and (is_pending or not record.flags & RecordFlag.CARRIED):
            usage.set(Counted.TOPIC, record.topic, user, log_offset)
        if is_retained and counted & Counted.RETAINED and record.payload:
            usage.set(Counted.RETAINED, record.topic, user, log_offset, len(record.topic) + len(record.payload))
        elif is_retained:
            usage.remove(Counted.RETAINED, record.topic, log_offset)
        if is_pending and counted & Counted.DELAYED:
            usage.set(Counted.DELAYED, delayed_item(due_ms, first_offset), user, log_offset)
        packet_id = attributes.get(Attribute.PACKET_ID)
        if packet_id is not None and record.log_offset >= self._state_offset:
            self.sessions.received(record.client_id.decode(), int.from_bytes(packet_id, "little"))

    def _end_delayed(self, due_ms: int, first_offset: int, log_offset: int) -> None:
        self.delayed.remove(due_ms, first_offset, log_offset)
        self.usage.remove(Counted.DELAYED, delayed_item(due_ms, first_offset), log_offset)

    def _count_clients(self, change: PeerAppended, log_offset: int) -> None:
        """Count the messages that a client of the store published, whose records lie directly before this one."""
        for bits, topic, size_bytes, due_ms, distance in change.counted:
            if bits & Counted.TOPIC:
                self.usage.set(Counted.TOPIC, topic.encode(), change.user, log_offset)
            if bits & Counted.RETAINED and not bits & Counted.DELAYED:
                self.usage.set(Counted.RETAINED, topic.encode(), change.user, log_offset, size_bytes)
            if bits & Counted.DELAYED:
                item = delayed_item(due_ms, log_offset - distance)
                self.usage.set(Counted.DELAYED, item, change.user, log_offset)
