"""Messages that are handed to a consumer: ranges of its queue, and the records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from store.records._records import Records, lasting_records, records_bytes, records_from
from store.state.group_leases import Lease
from store.state.offset_ranges import as_ranges


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
