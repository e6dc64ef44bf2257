"""Messages that are handed to a consumer: ranges of its queue, and the records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from store.records._records import Records, lasting_records, records_bytes, records_from, records_size
from store.state.group_leases import Lease
from store.state.groups import ConsumerKey
from store.state.offset_ranges import as_ranges

RANGE_BYTES = 40  # what a message adds to an answer besides itself, at most


class Range(NamedTuple):
    """Messages that were handed out: from `first` on, this many, for the so many-th time each."""

    serial: int
    deliveries: int
    first: int
    number: int


class PoppedMessages(NamedTuple):
    """Messages for a consumer: `number` records from `place` on, in the order of `ranges`.

    They may lie in the log's memory, so they are good until the next append.
    """

    ranges: list[Range]
    read: Records
    place: int = 0
    number: int = 0

    @property
    def records(self) -> bytes:
        return records_bytes(self.read, self.place, self.number)

    def lasting(self) -> Records:
        """The records, for longer than that."""
        return lasting_records(self.read, self.place, self.number)


class PopAnswer:
    """What a consumer is handed at a time: up to `most` messages, and no more once they have `max_bytes`."""

    def __init__(self, consumer: ConsumerKey, most: int, max_bytes: int, now_ms: int, due_ms: int) -> None:
        self.consumer = consumer
        self.most = most
        self.now_ms = now_ms
        self.due_ms = due_ms
        self.left_bytes = max_bytes
        self.count = 0
        self.alone = 0  # of these, messages that were looked at one by one
        self.looks = 0  # reads of the queue
        self.ranges: list[Range] = []
        self.parts: list[bytes | Records] = []

    @property
    def room(self) -> int:
        """The number of messages that it has room for."""
        return self.most - self.count if self.left_bytes > 0 else 0

    def takes(self, data: bytes) -> bool:
        """Add a message, unless it has too many bytes; then nothing more is added."""
        size = len(data) + RANGE_BYTES
        if self.parts and size > self.left_bytes:
            self.left_bytes = 0
            return False
        self.left_bytes -= size
        self.parts.append(data)
        return True

    def take_all(self, messages: Range, records: Records) -> None:
        """Add a range of messages."""
        self.ranges.append(messages)
        self.parts.append(records)
        self.count += records.count
        self.left_bytes -= records_size(records) + RANGE_BYTES * records.count


NOTHING = PoppedMessages([], Records(0))


def dealt(ranges: list[Range], parts: list[bytes | Records], count: int) -> PoppedMessages:
    """The messages of several reads; most of the time it is one."""
    if not parts:
        return NOTHING
    if len(parts) == 1 and isinstance(parts[0], Records):
        return PoppedMessages(ranges, parts[0], 0, count)
    data = b"".join(part if isinstance(part, bytes) else records_bytes(part) for part in parts)
    return PoppedMessages(ranges, records_from(data, 0), 0, count)


def ranges_of(leases: list[Lease]) -> Iterator[Range]:
    """The ranges of messages that leases hold."""
    for lease in leases:
        ranges = as_ranges(lease.offsets)
        for first, count in zip(ranges[::2], ranges[1::2], strict=True):
            yield Range(lease.serial, lease.deliveries, first, count)
