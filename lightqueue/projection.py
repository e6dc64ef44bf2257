"""All that is rebuilt from the log: queues, sessions, retained pointers. Applying a record has no clock and no I/O."""

from typing import Protocol

from lightqueue.table import LogReader, QueueTable
from store.changes import TYPES, QueueDropped, decode_change
from store.errors import IndexFailed, UnknownRecord
from store.index import Index
from store.records import Attribute, Record, RecordFlag, RecordType, decode_attributes, read_records
from store.retained import Retained
from store.sessions import Sessions
from store.settings import StoreSettings


class Part(Protocol):
    """What has changes in memory that the index does not have yet."""

    def stage(self) -> None: ...

    def written(self) -> None: ...


class Projection:
    """The state as of `applied`; what is newer than the index's last write is in memory."""

    def __init__(self, log: LogReader, index: Index, settings: StoreSettings) -> None:
        self._index = index
        self.queues = QueueTable(log, index, settings, self._apply)
        self.sessions = Sessions(index, self.queues.hold, self.queues.release)
        self.retained = Retained(index)
        self.applied = self._written = index.applied_offset
        self._parts: tuple[Part, ...] = (self.queues, self.sessions, self.retained)

    @property
    def has_news(self) -> bool:
        """Whether a write would tell the index anything."""
        return self.applied != self._written or self.queues.has_edits

    def replay(self, start: int, data: memoryview | bytes) -> None:
        """Apply verified records that stand in the log at `start`, and write them to the index."""
        self.queues.dispatcher.apply_bytes(data)
        self.applied = start + len(data)
        self.write()

    def write(self) -> None:
        """Bring the index up to date. Raises IndexFailed; then everything stays in memory, for the next attempt."""
        for part in self._parts:
            part.stage()
        try:
            self._index.write(self.applied)
        except IndexFailed:
            self.queues.not_written()
            raise
        self._written = self.applied
        for part in self._parts:
            part.written()

    def _apply(self, data: bytes) -> None:
        """Apply a record that is more than entries in queues."""
        (record,) = read_records(memoryview(data))
        if record.type == RecordType.MESSAGE:
            self._apply_message(record)
            return
        if record.type not in TYPES:
            raise UnknownRecord(record.log_offset, record.type)
        change = decode_change(record.type, record.payload)
        if isinstance(change, QueueDropped):
            for topic_filter in change.topic_filters:
                self.queues.drop(topic_filter)
        else:
            self.sessions.apply(change, record.log_offset, record.timestamp_ms)

    def _apply_message(self, record: Record) -> None:
        if record.flags & RecordFlag.RETAIN:
            self.retained.set(record.topic, record.log_offset if record.payload else None)
        packet_id = decode_attributes(record.attributes).get(Attribute.PACKET_ID)
        if packet_id is not None:
            self.sessions.received(record.client_id.decode(), int.from_bytes(packet_id, "little"))
