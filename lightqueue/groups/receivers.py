"""What a consumer group makes of one message: by its positions, what it holds, and its queue of dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lightqueue.groups.dead_letters import dead_letter_topic, filter_of_letter
from lightqueue.groups.group_queue import GroupQueue, partition_of
from lightqueue.queues.table import QueueTable
from store.namespaces import namespace_of
from store.records.records import Attribute, Record, decode_attributes
from store.state.group_leases import Lease
from store.state.receiver_states import ReceiverState

LOOK_RECORDS = 64
LOOK_BYTES = 256 << 10
LOOKS = 64
"""Reads of the dead letters for one group: 4,096 of them, or 16 MiB."""


class GroupVerdict(NamedTuple):
    """What a group makes of a message; see store.wire.operator_messages.GroupReceiver."""

    state: ReceiverState
    deliveries: int = 0
    due_ms: int = 0
    consumer: str = ""
    letter: int | None = None


def group_verdict(queues: QueueTable, found: GroupQueue, message: Record) -> Iterator[GroupVerdict | None]:
    """The verdict; None in between: a step is done."""
    queue_offset = queues.position_of(found.queue, message.log_offset)
    is_there = queue_offset < found.queue.next_offset
    if not is_there or queues.log_offset_at(found.queue, queue_offset) != message.log_offset:
        yield GroupVerdict("later")  # its queue began after the message
        return
    if found.priority_of(message) is None:
        yield GroupVerdict("filtered")
        return
    verdict = _held(found, queue_offset) or _by_position(found, queue_offset, message)
    if verdict.state == "received" and found.state.dead_letters:
        for letter in _letters(queues, found, message):
            if letter is not None:
                yield letter
                return
            yield None
    yield verdict


def _held(found: GroupQueue, queue_offset: int) -> GroupVerdict | None:
    """The verdict on a message that the group holds."""
    lease = found.group.lease(queue_offset)
    if lease is None:
        return None
    if queue_offset in found.group.dead:
        return GroupVerdict("dead_letter", lease.deliveries)  # its letter is yet to be written
    state: ReceiverState = "in_flight" if lease.serial else "retry"
    return GroupVerdict(state, lease.deliveries, lease.due_ms, _consumer_of(found, lease))


def _consumer_of(found: GroupQueue, lease: Lease) -> str:
    """The consumer of a lease, as it calls itself; its peer's name, if it does not."""
    names = (key for key, each in found.group.consumers.items() if each is lease.consumer)
    peer, name = next(names, ("", ""))
    return name or peer


def _by_position(found: GroupQueue, queue_offset: int, message: Record) -> GroupVerdict:
    partitions = found.settings.partitions
    cursor = partition_of(message, partitions) if partitions else found.priority_of(message)
    if cursor is not None and queue_offset >= found.group.positions[cursor]:
        return GroupVerdict("waiting")
    state = found.state
    if state.start is None:
        return GroupVerdict("unknown" if message.log_offset < state.began else "received")
    if queue_offset >= state.start:
        return GroupVerdict("received")
    return GroupVerdict("unknown" if state.was_reset else "later")


def _letters(queues: QueueTable, found: GroupQueue, message: Record) -> Iterator[GroupVerdict | None]:
    """The verdict on a message with a dead letter, if there is one; None in between: a step is done.

    A letter of an older release does not say of which message it is, and is passed over.
    """
    state = found.state
    queue = queues.stored(dead_letter_topic(state.name, message.topic).decode())
    if queue is None:
        return
    topic_filter = namespace_of(state.name).plain_topic(state.topic_filter)
    wanted = message.log_offset.to_bytes(8, "little")
    at = queues.position_of(queue, message.log_offset)
    for _ in range(LOOKS):
        records = queues.read(queue, at, LOOK_RECORDS, LOOK_BYTES)
        for i in range(records.count):
            letter = Record._make(records[i])
            if decode_attributes(letter.attributes).get(Attribute.LETTER_OF) != wanted:
                continue
            if filter_of_letter(letter) == topic_filter:
                yield GroupVerdict("dead_letter", letter=letter.log_offset)
                return
        if not records.count:
            return
        at = records.next
        yield None
    yield GroupVerdict("unknown")
