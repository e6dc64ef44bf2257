"""All that is rebuilt from the log: queues, sessions, retained and delayed messages. Applying has no clock and no I/O.

The index follows in steps. Each writes all that changed of sessions, peers, groups and which filters are held, but only
so many of the queue entries, retained pointers and delayed messages, oldest first. So a replay begins at the oldest
that is missing, and up to where the index knows the sessions it applies nothing else: these may be applied twice.
"""

from typing import Any

from lightqueue.keys import KeyIndex
from lightqueue.table import LogReader, QueueTable
from store.bans import BanStates
from store.changes import (
    TYPES,
    BanLifted,
    BanSet,
    DelayedEnded,
    GroupAdvanced,
    GroupDropped,
    GroupMade,
    GroupReset,
    PeerAppended,
    PeerGone,
    QueueDropped,
    decode_change,
)
from store.delayed import Delayed, due_of
from store.errors import UnknownRecord
from store.group_states import GroupStates
from store.index import Index
from store.peers import Peers
from store.records import Attribute, Record, RecordFlag, RecordType, decode_attributes
from store.retained import Retained
from store.sessions import Sessions
from store.settings import StoreSettings


class Projection:
    """The state as of `position`; what the index does not have of it is in memory."""

    def __init__(self, log: LogReader, index: Index, settings: StoreSettings) -> None:
        self.index = index
        self.queues = QueueTable(log, index, settings, self._apply)
        self.keys = KeyIndex(index, self.queues.dispatcher)
        self.sessions = Sessions(index, self.queues.hold, self.queues.release)
        self.retained = Retained(index)
        self.delayed = Delayed(index)
        self.peers = Peers(index)
        self.groups = GroupStates(index, self.queues.hold, self.queues.release)
        self.bans = BanStates(index)
        self.position = self.applied = index.applied_offset  # before `applied` the index has everything
        self._state_offset = index.state_offset

    @property
    def has_news(self) -> bool:
        """Whether a write would tell the index anything."""
        return self.applied != self.position or self.queues.has_edits

    def replay(self, start: int, data: memoryview | bytes) -> None:
        """Apply verified records that stand in the log at `start`, and write them to the index."""
        self.queues.dispatcher.apply_bytes(data)
        self.position = start + len(data)
        self.write()

    def write(self) -> None:
        """Bring the index up to date. Raises IndexFailed; then the rest stays in memory, for the next attempt."""
        while not self.write_some(self.position):
            pass

    def write_some(self, until: int) -> bool:
        """Take a step that brings the index nearer to `until`. True if that was the last one. Raises IndexFailed."""
        self.sessions.stage()
        self.peers.stage()
        self.groups.stage()
        self.bans.stage()
        missing = [part.stage(until) for part in (self.queues, self.retained, self.delayed)]
        self.keys.stage()  # after the queues' edits, which trim them
        applied = min([self.position, *(log_offset for log_offset in missing if log_offset is not None)])
        state_offset = max(self._state_offset, self.position)
        self.index.write(applied, state_offset)
        self.applied, self._state_offset = applied, state_offset
        for part in (
            *(self.sessions, self.peers, self.groups, self.bans),
            *(self.queues, self.retained, self.keys, self.delayed),
        ):
            part.written()
        return applied >= until

    def _apply(self, fields: tuple[Any, ...]) -> None:
        """Apply a record that is more than entries in queues."""
        record = Record._make(fields)
        if record.type == RecordType.MESSAGE:
            self._apply_message(record)
            return
        if record.type not in TYPES:
            raise UnknownRecord(record.log_offset, record.type)
        if record.log_offset < self._state_offset and record.type != RecordType.DELAYED_ENDED:
            return
        change = decode_change(record.type, record.payload)
        if isinstance(change, PeerAppended | PeerGone):  # in front, as there is one in each Append of a gateway
            self.peers.apply(change, record.log_offset, record.timestamp_ms)
        elif isinstance(change, DelayedEnded):
            for due_ms, first_offset in change.messages:
                self.delayed.remove(due_ms, first_offset, record.log_offset)
        elif isinstance(change, QueueDropped):
            for topic_filter in change.topic_filters:
                self.queues.drop(topic_filter)
        elif isinstance(change, GroupMade | GroupAdvanced | GroupReset | GroupDropped):
            self.groups.apply(change, record.log_offset)
        elif isinstance(change, BanSet | BanLifted):
            self.bans.apply(change, record.timestamp_ms)
        else:
            self.sessions.apply(change, record.log_offset, record.timestamp_ms)

    def _apply_message(self, record: Record) -> None:
        attributes = decode_attributes(record.attributes)
        is_pending = record.flags & RecordFlag.DELAYED
        if record.flags & RecordFlag.RETAIN and not is_pending:
            self.retained.set(record.topic, record.log_offset, removed=not record.payload)
        if Attribute.DUE_MS in attributes:
            due_ms, first_offset = due_of(record, attributes)
            if is_pending:
                self.delayed.set(due_ms, first_offset, record.log_offset)
            else:  # this is its dispatch
                self.delayed.remove(due_ms, first_offset, record.log_offset)
        packet_id = attributes.get(Attribute.PACKET_ID)
        if packet_id is not None and record.log_offset >= self._state_offset:
            self.sessions.received(record.client_id.decode(), int.from_bytes(packet_id, "little"))
