"""Delayed messages get into their queues once they are due: each is appended again, as a message like any other.

That record names the one that was pending, and applying it ends that: so a message is dispatched or pending after any
crash, never both and never neither (docs/adr/0015).
"""

import logging
from collections.abc import Callable

from store import expiry
from store._records import RecordBatch
from store.changes import DelayedEnded, encode_change
from store.commitlog import CommitLog
from store.delayed import Delayed, Pending, without
from store.errors import StoreError
from store.records import Attribute, Record, RecordFlag, RecordType, encode_attribute

log = logging.getLogger("penstock.store")

PER_STEP = 500  # some 8 ms
STEP_BYTES = 1 << 20
RETRY_S = 1.0
GROWTH_BYTES = 32  # at most, of a record by being appended again
ASSIGNED = (Attribute.PACKET_ID, Attribute.STORED_MS, Attribute.DUE_MS, Attribute.FIRST_OFFSET)
LATE_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


def add_again(batch: RecordBatch, record: Record, pending: Pending, *, is_pending: bool, late_ms: int = 0) -> bool:
    """Add a delayed message to a batch once more: as one that is to be dispatched, or as one that is still pending.

    False: it is to be dispatched, but its message expiry interval, which counts from when it is due, is over.
    """
    properties = expiry.age(record.properties, late_ms // 1000)
    if properties is None:
        return False
    flags = record.flags & ~(RecordFlag.DELAYED | RecordFlag.CARRIED)
    if is_pending:
        flags |= RecordFlag.DELAYED | RecordFlag.CARRIED
    attributes = [
        *without(record.attributes, ASSIGNED),
        encode_attribute(Attribute.FIRST_OFFSET, pending.first_offset.to_bytes(8, "little")),
        encode_attribute(Attribute.DUE_MS, pending.due_ms.to_bytes(8, "little")),
    ]
    batch.append(
        RecordType.MESSAGE,
        record.payload,
        topic=record.topic,
        client_id=record.client_id,
        attributes=b"".join(attributes),
        properties=properties,
        flags=flags,
    )
    return True


def record_of(log_: CommitLog, pending: Pending) -> Record | None:
    """The record of a delayed message; None if it is gone, or could not be appended once more for its size."""
    try:
        record = log_.record(pending.log_offset)
    except LookupError:
        return None
    return record if record.length + GROWTH_BYTES <= log_.largest_append_bytes else None


def end(batch: RecordBatch, messages: list[tuple[int, int]]) -> None:
    """Add to a batch that these (due_ms, first_offset) are pending no more."""
    if messages:
        batch.append(*encode_change(DelayedEnded(messages)))


class Dispatching:
    """Dispatches what is due in a store; the caller keeps the clock's pace."""

    def __init__(self, log_: CommitLog, delayed: Delayed, append: Callable[[RecordBatch], int]) -> None:
        self._log = log_
        self._delayed = delayed
        self._append = append
        self._resume_s = 0.0
        self.has_more = False  # more is due than the last step did
        self.dispatched = 0
        self.expired = 0
        self.lost = 0
        self.late = [0] * (len(LATE_BOUNDS_MS) + 1)  # how many were dispatched so late: LATE_BOUNDS_MS, and later
        self.late_ms = 0  # of all together

    def step(self, now_ms: int, now_s: float) -> bool:
        """Dispatch some of what is due; `now_ms`: Unix time, `now_s`: monotonic. Returns `has_more`.

        What cannot be stored is tried again a second later.
        """
        self.has_more = False
        due = self._delayed.due(now_ms, PER_STEP) if now_s >= self._resume_s else []
        if due:
            try:
                done = self._dispatch(due, now_ms)
                self.has_more = done == PER_STEP or done < len(due)
            except StoreError:  # said already, by whoever else wants to store something
                self._resume_s = now_s + RETRY_S
        return self.has_more

    def _dispatch(self, due: list[Pending], now_ms: int) -> int:
        """Dispatch the first of them, up to STEP_BYTES; how many that were. Raises StoreError; then none was."""
        batch = RecordBatch()
        dispatched, expired, lost = [], [], []
        done = 0
        for pending in due:
            if batch.size >= STEP_BYTES:
                break
            done += 1
            late_ms = now_ms - pending.due_ms
            record = record_of(self._log, pending)
            if record is None:
                lost.append(pending)
            elif add_again(batch, record, pending, is_pending=False, late_ms=late_ms):
                dispatched.append(late_ms)
            else:
                expired.append(pending)
        end(batch, [(pending.due_ms, pending.first_offset) for pending in expired + lost])
        self._append(batch)
        for late_ms in dispatched:
            self._count(late_ms)
        self.expired += len(expired)
        self.lost += len(lost)
        if lost:
            log.error("%d delayed messages are given up: they are not in the log any more, or too large", len(lost))
        return done

    def _count(self, late_ms: int) -> None:
        self.dispatched += 1
        self.late_ms += late_ms
        self.late[sum(late_ms > bound for bound in LATE_BOUNDS_MS)] += 1

    def topic_of(self, due_ms: int, first_offset: int) -> str:
        """Of a message that is pending; empty if it is not (any more)."""
        place = self._delayed.place(due_ms, first_offset)
        record = record_of(self._log, Pending(due_ms, first_offset, place)) if place is not None else None
        return record.topic.decode() if record is not None else ""

    def cancel(self, due_ms: int, first_offset: int) -> bool:
        """Take a message back that was stored at `first_offset`. False: it is not pending (any more). StoreError."""
        if self._delayed.place(due_ms, first_offset) is None:
            return False
        batch = RecordBatch()
        end(batch, [(due_ms, first_offset)])
        self._append(batch)
        return True
