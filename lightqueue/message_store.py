"""The message store as gateways see it: one append, and everything that follows from it.

An append goes to the CommitLog, is applied at once to the queues, sessions and retained pointers in memory, and
reaches RocksDB later, together with the `applied_offset` it stands for. After a crash the rest is replayed.
"""

import logging
import shutil
import time
from collections.abc import Callable

from lightqueue._queues import Queue
from lightqueue.table import QueueTable
from store._records import RecordBatch, Records, boundary
from store.changes import QueueDropped, decode_change
from store.commitlog import CommitLog
from store.folder import DataFolder
from store.index import Index
from store.records import Attribute, Record, RecordFlag, RecordType, decode_attributes, read_records
from store.retained import Retained
from store.sessions import Sessions
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

REPLAY_BYTES = 8 << 20


class MessageStore:
    """Owner of a data folder. All calls are made from one thread; `on_safe` alone comes from the flusher's."""

    def __init__(self, settings: StoreSettings, on_safe: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.folder = DataFolder(settings.data)
        self.log = CommitLog(self.folder.log, settings, on_safe)
        self.index = self._open_index()
        self.queues = QueueTable(self.log, self.index, settings, self._apply)
        self.sessions = Sessions(self.index, self.queues.hold, self.queues.release)
        self.retained = Retained(self.index)
        self.replayed_bytes = 0
        self._applied = self.index.applied_offset
        self._next_index_write = 0.0
        self._pages_forgotten_at = 0
        self._replay()

    def _open_index(self) -> Index:
        index = Index(self.folder.index, self.settings.index_write_buffer_bytes)
        if index.applied_offset > self.log.end:
            log.warning("%s: is ahead of the log, so it is built again", self.folder.index)
            index.close()
            shutil.rmtree(self.folder.index)
            index = Index(self.folder.index, self.settings.index_write_buffer_bytes)
        return index

    def _replay(self) -> None:
        for start, data in self.log.ranges(self._applied):
            while data:
                size = boundary(data, REPLAY_BYTES)
                self.queues.dispatcher.apply_bytes(data[:size])
                self.replayed_bytes += size
                self._applied = start + size
                start += size
                data = data[size:]
                self._write_index()
        self.log.forget_pages()
        self._applied = self.log.end

    # --- the one way in

    def append(self, batch: RecordBatch) -> int:
        """Store records and give them to their queues. Returns the log_offset of the first.

        Raises store.errors.StoreFull, in which case nothing happened.
        """
        start = self.log.append(batch)
        self.queues.dispatcher.apply_appended(self.log.memory, start, batch.size)
        self._applied = self.log.end
        return start

    @property
    def end(self) -> int:
        """log_offset behind the newest record."""
        return self.log.end

    @property
    def safe(self) -> int:
        """Every record before this log_offset is as durable as the flush policy promises."""
        return self.log.safe

    def take_grown(self) -> list[Queue]:
        """Watched queues that grew since the last call."""
        grown: list[Queue] = self.queues.dispatcher.take_touched()
        return grown

    def _apply(self, data: bytes) -> None:
        """Apply one record that is more than entries in queues."""
        (record,) = read_records(memoryview(data))
        if record.type == RecordType.MESSAGE:
            self._apply_message(record)
            return
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

    # --- reading

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records:
        """A range of a queue; see QueueTable.read."""
        return self.queues.read(queue, start, max_records, max_bytes)

    def record(self, log_offset: int) -> Record:
        """One record by its position. Raises LookupError when it is not kept (any more)."""
        return self.log.record(log_offset)

    # --- upkeep

    def tick(self) -> None:
        """To be called several times a second: write the index when it is time to."""
        now = time.monotonic()
        if now >= self._next_index_write or self.queues.dispatcher.pending >= self.settings.index_flush_entries:
            self._next_index_write = now + self.settings.index_flush_ms / 1000
            self._write_index()
        if self.log.memory.mapped_bytes_read > self._pages_forgotten_at + self.settings.mapped_resident_bytes:
            self._pages_forgotten_at = self.log.memory.mapped_bytes_read
            self.log.forget_pages()

    def _write_index(self) -> None:
        self.log.commit()
        self.queues.stage()
        self.sessions.stage()
        self.retained.stage()
        self.index.write(self._applied)
        self.queues.evict_idle()

    def close(self) -> None:
        """Write everything out and give the folder back."""
        self._write_index()
        self.index.flush()
        self.index.close()
        self.log.close()
        self.folder.close()
