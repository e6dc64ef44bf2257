"""Answers to requests that only read, each bounded in bytes and in time: a peer asks again for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from lightqueue.queues.retained_search import find_retained, heads_found
from notify.errors import NotFollowed
from notify.local.store import LocalStore
from notify.requests.contents import failure_code, filter_fault
from store.errors import StoreError
from store.records._records import Records, check_records, records_bytes
from store.records.records import Attribute, RecordType, decode_attributes
from store.wire import messages as wire
from store.wire.messages import FailureCode

ANSWER_BYTES = 1 << 20
ANSWER_S = 0.002
MOST_RANGES = 2_048
MOST_RECORDS_AT = 4_096
MOST_RETAINED = 1_000
MOST_DELAYED = 1_000
ITEM_BYTES = 32  # of one range or position in an answer, at most
_MESSAGE = bytes((RecordType.MESSAGE,))
NOT_THERE: Mapping[int, bytes] = MappingProxyType({})

Answer = tuple[wire.WireMessage, bytes]


class AnswerRoom:
    """The records of one answer: about ANSWER_BYTES, more only for a single larger record, found within ANSWER_S. A
    peer asks again for more.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._most_bytes = min(ANSWER_BYTES, limit_bytes)
        self._ends_s = time.perf_counter() + ANSWER_S
        self._used_bytes = 0
        self.parts: list[bytes] = []

    @property
    def left_bytes(self) -> int:
        if self._used_bytes and time.perf_counter() >= self._ends_s:
            return 0
        return self._most_bytes - self._used_bytes

    def is_too_large(self, data: bytes) -> bool:
        """Whether no answer can hold a record."""
        return len(data) + ITEM_BYTES > self._limit_bytes

    def fits(self, data: bytes) -> bool:
        return self._used_bytes + len(data) + ITEM_BYTES <= self._limit_bytes

    def add(self, data: bytes) -> None:
        self._used_bytes += len(data) + ITEM_BYTES
        self.parts.append(data)


def check_begun(request: wire.Read, queues: Mapping[int, Queue], began: Mapping[Queue, int]) -> None:
    """Raises NotFollowed for a range in front of where a client began to follow its queue."""
    for ref, first in request.ranges:
        queue = queues.get(ref)
        if queue is not None and first < began[queue]:
            raise NotFollowed(first, began[queue])


def read(store: LocalStore, queues: Mapping[int, Queue], request: wire.Read, limit_bytes: int) -> Answer:
    """Ranges in the requested order, fewer if they get too long. Raises a StoreError."""
    room = AnswerRoom(limit_bytes)
    ranges: list[tuple[int, int, int]] = []
    for ref, start in request.ranges[:MOST_RANGES]:
        queue = queues.get(ref)
        if queue is None:
            return wire.Failed(FailureCode.BAD_REQUEST, f"ref {ref} is not followed"), b""
        left_bytes = room.left_bytes
        if left_bytes <= 0:
            break
        most_bytes = min(request.max_bytes, left_bytes)
        records = store.queues.read(queue, start, request.max_records, most_bytes)
        count = records.count
        data = records_bytes(records)
        while count > 1 and not room.fits(data):  # the last one or two were too much
            count -= 1
            data = records_bytes(records, 0, count)
        if not room.fits(data):
            if ranges:
                break
            ranges.append((ref, records.first + 1, 0))  # larger than any frame: skipped
            continue
        room.add(data)
        first = records.first
        # Entries in RocksDB are read a pack at a time.
        while 0 < count < request.max_records and first + count < queue.next_offset:
            most_bytes = min(most_bytes - len(data), room.left_bytes)
            if most_bytes <= 0:
                break
            records = store.queues.read(queue, first + count, request.max_records - count, most_bytes)
            data = records_bytes(records)
            if not records.count or records.first != first + count or not room.fits(data):
                break
            room.add(data)
            count += records.count
        ranges.append((ref, first, count))
    return wire.Ranges(ranges), b"".join(room.parts)


def read_positions(
    store: LocalStore, request: wire.ReadAt, limit_bytes: int, of_tier: Mapping[int, bytes] = NOT_THERE
) -> Answer:
    """Messages by their log_offsets, fewer if they get too long. `of_tier`: those that the tier was asked for."""
    room = AnswerRoom(limit_bytes)
    found: list[bool] = []
    not_in_log = set(store.tier_reads.not_in_log(request.log_offsets))
    for log_offset in request.log_offsets[:MOST_RECORDS_AT]:
        is_next = log_offset in not_in_log and log_offset not in of_tier  # of those to ask the tier for
        if room.left_bytes <= 0 or is_next:
            break
        data = of_tier[log_offset] if log_offset in of_tier else _message_at(store.messages, log_offset)
        if data and not room.fits(data) and not room.is_too_large(data):
            break
        is_found = bool(data) and room.fits(data)
        room.add(data if is_found else b"")
        found.append(is_found)
    return wire.RecordsAt(found), b"".join(room.parts)


def find_retained_messages(store: LocalStore, request: wire.Retained, limit_bytes: int) -> Answer:
    """A page of retained messages, without payloads. Raises a StoreError."""
    messages = store.messages
    left_bytes = max(limit_bytes - wire.MOST_NAME_CHARACTERS, limit_bytes // 2)
    limit = min(request.limit, MOST_RETAINED)
    heads, after = heads_found(
        messages.log, *find_retained(messages.retained, request.topic_filter, request.after or None, limit)
    )
    found: list[tuple[int, int, bytes]] = []
    for head in heads:
        left_bytes -= len(head[2]) + ITEM_BYTES
        if left_bytes < 0 and found:
            after = messages.record(found[-1][0]).topic.decode()
            break
        found.append(head)
    return wire.RetainedFound(found, after), b""


def list_delayed(store: LocalStore, request: wire.ListDelayed, limit_bytes: int) -> Answer:
    """A page of pending delayed messages, without payloads. Raises a StoreError."""
    messages = store.messages
    limit = min(request.limit, MOST_DELAYED)
    page = messages.delayed.page(*request.after, limit)
    found: list[tuple[int, int, str, bytes]] = []
    left_bytes = limit_bytes
    for pending in page:
        try:
            record = messages.record(pending.log_offset)
        except LookupError:
            continue  # it is given up once it is due
        key = decode_attributes(record.attributes).get(Attribute.KEY, b"")
        left_bytes -= len(record.topic) + len(key) + ITEM_BYTES
        if left_bytes < 0 and found:
            log_offset, due_ms, _, _ = found[-1]
            return wire.DelayedFound(found, (due_ms, log_offset)), b""
        found.append((pending.first_offset, pending.due_ms, record.topic.decode(), key))
    following = (page[-1].due_ms, page[-1].first_offset) if len(page) == limit else None
    return wire.DelayedFound(found, following), b""


def _message_at(messages: MessageStore, log_offset: int) -> bytes:
    """A message in log format, empty if there is none. Bytes in a payload may look like a record, so it is checked."""
    if log_offset & 7:
        return b""
    with suppress(LookupError, ValueError, StoreError):
        data = records_bytes(_records_at(messages, log_offset))
        check_records(data, _MESSAGE)
        return data
    return b""


def _records_at(messages: MessageStore, log_offset: int) -> Records:
    return messages.records_at([log_offset])


def locate(store: LocalStore, message: wire.Locate, answer: Callable[[wire.WireMessage], None]) -> None:
    """Call `answer` with the position, now or later."""
    fault = filter_fault(message.topic_filter)
    if fault:
        answer(wire.Failed(wire.FailureCode.BAD_REQUEST, f"topic filter {fault}"))
        return

    def then(position: int | None) -> None:
        if position is None:
            text = f"{message.where!r} is no position in a stored queue of {message.topic_filter!r}"
            answer(wire.Failed(wire.FailureCode.NO_SUCH_POSITION, text))
        else:
            answer(wire.Located(position))

    try:
        store.queues.locate(message.topic_filter, message.where, then)
    except StoreError as error:
        answer(wire.Failed(failure_code(error), str(error)))
