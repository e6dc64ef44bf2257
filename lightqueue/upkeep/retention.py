"""Retention: drops the log's oldest segments, by size and by age, without losing state that must outlive them.

    carry       retained and delayed messages in these segments are appended again, flagged CARRIED; retained ones that
                have expired are removed
    checkpoint  the index is copied, since it can no longer be rebuilt from the beginning
    give up     readers of the log that have not read them are told so, by a record
    tell        the other stores of a cluster are told to drop them too
    drop        the files are deleted; queue entries that point there are trimmed afterwards (trimming.py)

A crash between any two of these loses nothing: the next run does the rest. A thread does the work that waits for the
disk, copying the index and deleting files: deleting 256 MiB takes about 100 ms (python -m tests.bench.retention).
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lightqueue.queues.projection import Projection
from lightqueue.upkeep.dispatching import add_again, record_of
from lightqueue.upkeep.holds import LogHolds
from store.errors import IndexFailed
from store.files.folder import DataFolder
from store.log.api import Log
from store.log.checkpoint import publish_checkpoint, write_checkpoint
from store.log.clock import Clock
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, decode_attributes, encode_attribute
from store.settings import StoreSettings
from store.state import expiry
from store.state.changes import SegmentsDropped, encode_change
from store.state.delayed import DelayedMessage
from store.state.usage import Counted, counted_value

TOPICS_PER_STEP = 200
DELAYED_PER_STEP = 1_000
CARRY_BYTES = 256 << 10
FLUSH_PATIENCE_S = 60.0  # for flushing the index; RocksDB does not report that it has given up
CARRIED_ATTRIBUTES = (Attribute.STORED_MS, Attribute.KEY, Attribute.TAG)


class Retention:
    """The retention rules of one store; the caller keeps the clock's pace."""

    def __init__(
        self,
        log: Log,
        folder: DataFolder,
        settings: StoreSettings,
        state: Projection,
        append: Callable[[RecordBatch], None],
        clock: Clock,
    ) -> None:
        self._log = log
        self._clock = clock
        self._folder = folder
        self._state = state
        self._append = append
        self._settings = settings
        self.rolled = 0  # times that a delayed message was appended again because its part of the log was to be dropped
        self.holds = LogHolds(log, state.log_readers, settings, append)
        self._worker = ThreadPoolExecutor(1, "penstock-retention")

    def close(self) -> None:
        """Wait for work under way."""
        self._worker.shutdown()

    def _elsewhere(self, work: Callable[[], object]) -> Iterator[None]:
        """Run work in the thread; yields until it is done. Raises the work's errors."""
        doing = self._worker.submit(work)
        while not doing.done():
            yield
        doing.result()

    def boundary(self) -> int:
        """log_offset before which the oldest parts are to be dropped now; 0: none is."""
        oldest_s = self._clock.now_s() - (self._settings.retention_age_s or 0)
        boundary = 0
        for part in self._log.parts():
            stored_s = self._clock.without_jumps(part.newest_ms / 1000)
            too_old = self._settings.retention_age_s is not None and stored_s < oldest_s
            if not too_old and not self._too_large(part.base):
                break
            boundary = part.end
        return self.holds.within(boundary)

    def _too_large(self, base: int) -> bool:
        limit = self._settings.retention_bytes
        return limit is not None and self._log.end - base > limit

    def steps(self, boundary: int) -> Iterator[None]:
        """Drop the parts before `boundary`; each step is short. Raises StoreError."""
        while self._state.applied < boundary:  # until then the index may point, and replay may begin, before it
            yield
        yield from self._carry(boundary)
        yield from self._carry_delayed(boundary)
        yield from self._checkpoint()
        self.holds.give_up(boundary)
        if self._log.kept is not None:
            batch = RecordBatch()
            batch.append(*encode_change(SegmentsDropped(boundary)))
            self._append(batch)
        yield from self._log.drop_before(boundary, self._elsewhere)

    def follow(self, boundary: int) -> Iterator[None]:
        """Drop what the leader of the cluster has dropped; it has carried on what must stay. Raises StoreError."""
        while self._state.applied < boundary:
            yield
        yield from self._checkpoint()
        yield from self._log.drop_before(boundary, self._elsewhere)

    def _carry(self, boundary: int) -> Iterator[None]:
        """Append the retained messages before `boundary` again."""
        after: bytes | None = b""
        while after is not None:
            topics, after = self._state.retained.older_than(boundary, after, TOPICS_PER_STEP)
            batch = RecordBatch()
            for topic in topics:
                log_offset = self._state.retained.get(topic)
                if log_offset is not None and log_offset < boundary:
                    self._carry_one(batch, topic, log_offset)
                if batch.size >= CARRY_BYTES:
                    self._append(batch)
                    batch.clear()
            self._append(batch)
            yield

    def _carry_one(self, batch: RecordBatch, topic: bytes, log_offset: int) -> None:
        try:
            record = self._log.record(log_offset)
        except LookupError:
            _remove(batch, topic)
            return
        now_ms = time.time_ns() // 1_000_000
        properties = expiry.age(record.properties, (now_ms - record.timestamp_ms) // 1000)
        if properties is None:
            _remove(batch, topic)
            return
        attributes = decode_attributes(record.attributes)
        attributes.setdefault(Attribute.STORED_MS, record.timestamp_ms.to_bytes(8, "little"))
        kept = [encode_attribute(tag, attributes[tag]) for tag in CARRIED_ATTRIBUTES if tag in attributes]
        owner = self._state.usage.owner(Counted.RETAINED, topic)
        if owner is not None:  # it still counts against the user's quota
            kept.append(encode_attribute(Attribute.COUNTED, counted_value(Counted.RETAINED, owner[0])))
        batch.append(
            RecordType.MESSAGE,
            record.payload,
            topic=topic,
            client_id=record.client_id,
            attributes=b"".join(kept),
            properties=properties,
            flags=record.flags | RecordFlag.CARRIED,
        )

    def _carry_delayed(self, boundary: int) -> Iterator[None]:
        """Append the delayed messages before `boundary` that are not due yet again."""
        delayed = self._state.delayed
        after: DelayedMessage | None = None
        is_last = False
        while not is_last:
            found, after = delayed.older_than(boundary, after, DELAYED_PER_STEP)
            is_last = after is None
            batch = RecordBatch()
            for pending in found:
                if delayed.place(pending.due_ms, pending.first_offset) == pending.log_offset:
                    record = record_of(self._log, pending)
                    if record is not None:  # else it is given up when it is due
                        self.rolled += add_again(batch, record, pending, is_pending=True)
                if batch.size >= CARRY_BYTES:
                    self._append(batch)
                    batch.clear()
            self._append(batch)
            yield

    def _checkpoint(self) -> Iterator[None]:
        """Replace the checkpoint once all carried records, and all that the new copy has applied, are on disk."""
        while not self._begins_flush():  # the copy has only what is flushed
            yield
        yield
        yield from self._index_flushed()
        yield from self._elsewhere(partial(write_checkpoint, self._folder))
        end = self._log.end  # the index may have been written meanwhile
        yield from self._log.synced(end)
        yield from self._elsewhere(partial(publish_checkpoint, self._folder))

    def _begins_flush(self) -> bool:
        """Flush the index; in a cluster once what it has cannot be cut off the log by a crash any more."""
        kept = self._log.kept
        state = self._state
        state.wants_flush = kept is not None and kept < state.state_offset
        if not state.wants_flush:
            state.index.flush(wait=False)
        return not state.wants_flush

    def _index_flushed(self) -> Iterator[None]:
        """Wait until the index is flushed. Raises IndexFailed after FLUSH_PATIENCE_S."""
        begun_s = time.monotonic()
        while self._state.index.is_flushing:
            if time.monotonic() - begun_s > FLUSH_PATIENCE_S:
                raise IndexFailed(self._folder.index, f"was not flushed within {FLUSH_PATIENCE_S:.0f} s")
            yield


def _remove(batch: RecordBatch, topic: bytes) -> None:
    """Append a retained message without a payload, which removes the topic's retained message."""
    batch.append(RecordType.MESSAGE, b"", topic=topic, flags=RecordFlag.RETAIN | RecordFlag.CARRIED)
