"""Dispatches delayed messages when they are due: each is appended again, as a normal message.

That record names the pending one, and applying it ends the pending one: so after any crash a message is either
dispatched or pending, never both and never neither (docs/adr/0015).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from lightqueue.queues.left_messages import LeftMessage, LeftMessages, Name
from store.errors import StoreError
from store.log.api import Log
from store.records._records import RecordBatch
from store.records.records import Attribute, Record, RecordFlag, RecordType, decode_attributes, encode_attribute
from store.state import expiry
from store.state.changes import DelayedEnded, encode_change
from store.state.delayed import Delayed, DelayedMessage, without

log = logging.getLogger("penstock.store")

PER_STEP = 50  # some 0.8 ms
STEP_BYTES = 1 << 20
RETRY_S = 1.0
GROWTH_BYTES = 32  # by which a record grows at most when it is appended again
ASSIGNED = (Attribute.PACKET_ID, Attribute.STORED_MS, Attribute.DUE_MS, Attribute.FIRST_OFFSET)
LATE_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


def add_again(
    batch: RecordBatch, record: Record, pending: DelayedMessage, *, is_pending: bool, late_ms: int = 0
) -> bool:
    """Append a delayed message to a batch again: to dispatch it, or to carry it as still pending.

    False: it is due, but its message expiry interval, which counts from when it is due, has passed.
    """
    properties = expiry.age(record.properties, late_ms // 1000)
    if properties is None:
        return False
    flags = record.flags & ~(RecordFlag.DELAYED | RecordFlag.CARRIED)
    if is_pending:
        flags |= RecordFlag.DELAYED | RecordFlag.CARRIED
    attributes = [
        *without(record.attributes, ASSIGNED if is_pending else (*ASSIGNED, Attribute.LEFT_BY)),
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


def record_of(log_: Log, pending: DelayedMessage) -> Record | None:
    """The record of a delayed message; None if it is gone, or too large to be appended again."""
    try:
        record = log_.record(pending.log_offset)
    except LookupError:
        return None
    return record if record.length + GROWTH_BYTES <= log_.largest_append_bytes else None


def end(batch: RecordBatch, messages: list[tuple[int, int]]) -> None:
    """Add to a batch that the delayed messages with these (due_ms, first_offset) have ended."""
    if messages:
        batch.append(*encode_change(DelayedEnded(messages)))


def _left(record: Record) -> LeftMessage | None:
    """The part of a message that its authorization needs; None: it needs none."""
    left_by = decode_attributes(record.attributes).get(Attribute.LEFT_BY)
    if left_by is None:
        return None
    return LeftMessage(left_by, record.client_id, record.topic.decode(), record.qos, record.retain)


@dataclass(slots=True)
class _Step:
    """The decisions of one step about messages that are due."""

    batch: RecordBatch = field(default_factory=RecordBatch)
    late_ms: list[int] = field(default_factory=list)  # one for each dispatched message
    expired: list[Name] = field(default_factory=list)
    refused: list[Name] = field(default_factory=list)
    lost: list[Name] = field(default_factory=list)
    to_judge: dict[Name, LeftMessage] = field(default_factory=dict)

    @property
    def ended(self) -> list[Name]:
        return [*self.expired, *self.refused, *self.lost]


class Dispatching:
    """Dispatches the due messages of a store; the caller keeps the clock's pace."""

    def __init__(self, log_: Log, delayed: Delayed, append: Callable[[RecordBatch], int]) -> None:
        self._log = log_
        self._delayed = delayed
        self._append = append
        self._resume_s = 0.0
        self._look_s = 0.0  # no look at newly due messages before this time
        self.left = LeftMessages()
        self.has_more = False  # more messages are due than the last step handled
        self.dispatched = 0
        self.expired = 0
        self.lost = 0
        self.late = [0] * (len(LATE_BOUNDS_MS) + 1)  # number of messages by lateness: LATE_BOUNDS_MS, and later
        self.late_ms = 0  # sum over all messages

    def step(self, now_ms: int, now_s: float) -> bool:
        """Dispatch some of what is due; `now_ms`: Unix time, `now_s`: monotonic. Returns `has_more`.

        If storing fails, it is tried again a second later. Messages that wait for authorization do not hold up others.
        """
        self.has_more = False
        if now_s < self._resume_s:
            return False
        verdicts = self.left.collect_verdicts()
        waiting = self.left.collect_waiting(now_s)
        due = self._delayed.due(now_ms, PER_STEP) if now_s >= self._look_s else []
        if not (verdicts or waiting or due):
            return False
        aside = [
            DelayedMessage(*name, place)
            for name in (*verdicts, *waiting)
            if (place := self._delayed.place(*name)) is not None
        ]
        step = _Step()
        done = self._decide(step, [*aside, *due], verdicts, now_ms)
        self.left.wait(pending[:2] for pending in aside[done:] if pending[:2] not in verdicts)
        self._have_judged(step, set(waiting), now_s)
        try:
            self._take(step)
        except StoreError:  # logged already where another append failed
            self.left.keep(verdicts)
            self._resume_s = now_s + RETRY_S
            return False
        self.left.keep({pending[:2]: verdicts[pending[:2]] for pending in aside[done:] if pending[:2] in verdicts})
        self.has_more = len(due) == PER_STEP or done < len(aside) + len(due) or self.left.has_verdicts
        if due and self.left.is_full and not step.batch.size:  # held up by messages that wait for authorization
            self._look_s = now_s + RETRY_S
            self.has_more = self.left.has_verdicts
        return self.has_more

    def _decide(self, step: _Step, found: list[DelayedMessage], verdicts: dict[Name, bool], now_ms: int) -> int:
        """Decide about the first of these messages, up to STEP_BYTES. Returns how many were decided."""
        for done, pending in enumerate(found):
            if step.batch.size >= STEP_BYTES:
                return done
            name = pending[:2]
            late_ms = now_ms - pending.due_ms
            record = record_of(self._log, pending)
            left = _left(record) if record is not None else None
            if record is None:
                step.lost.append(name)
            elif left is not None and name not in verdicts:
                step.to_judge[name] = left
            elif left is not None and not verdicts[name]:
                step.refused.append(name)
            elif add_again(step.batch, record, pending, is_pending=False, late_ms=late_ms):
                step.late_ms.append(late_ms)
            else:
                step.expired.append(name)
        return len(found)

    def _have_judged(self, step: _Step, waiting: set[Name], now_s: float) -> None:
        """Ask about messages. `waiting`: messages that waited before; others join them if there is room."""
        to_judge = step.to_judge
        if self.left.is_full:
            to_judge = {name: left for name, left in to_judge.items() if name in waiting}
        for name in to_judge:
            self._delayed.set_aside(*name)
        self.left.ask(to_judge, now_s)

    def _take(self, step: _Step) -> None:
        """Store the decisions, all of them or none. Raises StoreError."""
        end(step.batch, step.ended)
        if step.batch.size:
            self._append(step.batch)
        for late_ms in step.late_ms:
            self._count(late_ms)
        self.expired += len(step.expired)
        self.left.refused += len(step.refused)
        self.lost += len(step.lost)
        if step.lost:
            lost = len(step.lost)
            log.error("%d delayed messages are given up: they are not in the log any more, or too large", lost)

    def _count(self, late_ms: int) -> None:
        self.dispatched += 1
        self.late_ms += late_ms
        self.late[sum(late_ms > bound for bound in LATE_BOUNDS_MS)] += 1

    def topic_of(self, due_ms: int, first_offset: int) -> str:
        """Topic of a pending message; empty if it is not pending (any more)."""
        found = self._pending(due_ms, first_offset)
        return found[1].topic.decode() if found is not None else ""

    def copy_of(self, due_ms: int, first_offset: int) -> bytes:
        """A pending message in log format, as it would be published now; empty if it is not pending (any more)."""
        found = self._pending(due_ms, first_offset)
        batch = RecordBatch()
        if found is not None:
            add_again(batch, found[1], found[0], is_pending=False)
        return bytes(batch)

    def _pending(self, due_ms: int, first_offset: int) -> tuple[DelayedMessage, Record] | None:
        place = self._delayed.place(due_ms, first_offset)
        if place is None:
            return None
        pending = DelayedMessage(due_ms, first_offset, place)
        record = record_of(self._log, pending)
        return None if record is None else (pending, record)

    def cancel(self, due_ms: int, first_offset: int) -> bool:
        """Cancel the message that was stored at `first_offset`. False: it is not pending (any more). Raises
        StoreError.
        """
        if self._delayed.place(due_ms, first_offset) is None:
            return False
        batch = RecordBatch()
        end(batch, [(due_ms, first_offset)])
        self._append(batch)
        return True
