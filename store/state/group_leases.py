"""The parts of a consumer group: leases on messages, what each consumer has, and how far each partition is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from store.replication.epochs import SERIAL_BITS, is_same_epoch, number_of_serial, serial_in_epoch
from store.state.changes import HeldRange
from store.state.consumer_work import ConsumerWork
from store.state.offset_ranges import as_ranges

Entry = tuple[int, int, int, int]  # (due_ms, deliveries, serial, partition)

SERIALS_PER_MS = 1_000
MOST_OF_CLOCK = 1 << (SERIAL_BITS - 1)  # of a clock that is far ahead
SLACK = 1_024  # entries of leases that are settled already, besides as many as there are others


class Lease:
    """Messages that one consumer was given together until `due_ms`, or that wait together for a retry (`serial` 0)."""

    __slots__ = ("alarm", "consumer", "deliveries", "due_ms", "is_ready", "left", "offsets", "partition", "serial")

    def __init__(self, offsets: Sequence[int], partition: int, serial: int, deliveries: int, due_ms: int) -> None:
        self.offsets = offsets  # some of them may belong to another Lease by now, or be settled
        self.left = len(offsets)
        self.partition = partition
        self.serial = serial
        self.deliveries = deliveries
        self.due_ms = due_ms
        self.alarm = 0  # which entry of LeaseAlarms is its; 0: none
        self.is_ready = False  # to be handed out again
        self.consumer: Assignment | None = None


def leases_of(entries: Mapping[int, Entry]) -> Iterator[Lease]:
    """The leases of messages that the log says are held, by queue_offset; those with equal entries are one."""
    alike: dict[Entry, list[int]] = {}
    for offset in sorted(entries):
        alike.setdefault(entries[offset], []).append(offset)
    for (due_ms, deliveries, serial, partition), offsets in alike.items():
        yield Lease(offsets, partition, serial, deliveries, due_ms)


def held_and_done(
    offsets: Iterable[int], entries: Mapping[int, Lease], logged: Mapping[int, Entry]
) -> tuple[list[HeldRange], list[int]]:
    """Of these messages, in order: those that are held now, and ranges of those in the log that are done with."""
    held: dict[Lease, list[int]] = {}
    done: list[int] = []
    for offset in offsets:
        lease = entries.get(offset)
        if lease is not None:
            held.setdefault(lease, []).append(offset)
        elif offset in logged:
            done.append(offset)
    found = [
        HeldRange(lease.due_ms, lease.deliveries, lease.serial, lease.partition, tuple(as_ranges(each)))
        for lease, each in held.items()
    ]
    return found, as_ranges(done)


class LeaseSerials:
    """Gives each lease of a group its serial: a number that grows, in the epoch of this store."""

    def __init__(self, epoch: int) -> None:
        """`epoch`: in which this store began to lead its cluster; 0: it has none."""
        self._epoch = epoch
        self._last_number = 0

    def saw(self, serial: int) -> None:
        """The log has a lease with this serial, so those to come are later."""
        self._last_number = max(self._last_number, number_of_serial(serial))

    def next(self, now_ms: int) -> int:
        """The serial of the next lease."""
        self._last_number = max(self._last_number + 1, min(now_ms * SERIALS_PER_MS, MOST_OF_CLOCK))
        return serial_in_epoch(self._epoch, self._last_number)

    def is_later(self, serial: int, seen: int) -> bool:
        """True if this process gave a serial after `seen`, which may be of a store that led before."""
        if not is_same_epoch(serial, serial_in_epoch(self._epoch, 0)):
            return False
        return not is_same_epoch(serial, seen) or serial > seen


class Assignment:
    """The leases and partitions of one consumer. `peer`: whose it is; `is_lasting`: its leases outlive it."""

    def __init__(self, peer: str, is_lasting: bool = False) -> None:
        self.peer = peer
        self.is_lasting = is_lasting
        self.leases: dict[Lease, None] = {}
        self.partitions: list[int] = []
        self.work: ConsumerWork | None = None  # as it tells, for people to see

    def take(self, lease: Lease) -> None:
        """The messages of a lease are this consumer's."""
        lease.consumer = self
        self.leases[lease] = None

    @property
    def in_flight(self) -> int:
        """The number of messages that the consumer has."""
        return sum(lease.left for lease in self.leases)


def assign_partitions(consumers: list[Assignment], partitions: int) -> None:
    """Share the partitions of an ordered group out evenly, and move no more of them than that takes."""
    share, extra = divmod(partitions, len(consumers))
    by_number = sorted(consumers, key=lambda each: -len(each.partitions))
    quotas = [(each, share + (i < extra)) for i, each in enumerate(by_number)]
    for each, quota in quotas:
        del each.partitions[quota:]
    taken = {partition for each in by_number for partition in each.partitions}
    free = [partition for partition in range(partitions) if partition not in taken]
    for each, quota in quotas:
        wanted = quota - len(each.partitions)
        each.partitions += free[:wanted]
        del free[:wanted]


class PartitionCursor:
    """The position in the queue of a partition or priority, and its messages that were found and not handed out yet."""

    def __init__(self, next_offset: int) -> None:
        self.next = next_offset
        self.parked: deque[int] = deque()
        self.ready: deque[Lease] = deque()  # of a group without order: what is to be handed out again
        self.out: int | None = None  # of an ordered group: what has to be settled first

    @property
    def position(self) -> int:
        """Everything of this partition before it was handed out."""
        return self.parked[0] if self.parked else self.next

    @property
    def found(self) -> int:
        """The number of messages that may be handed out without looking for more, in a group without order."""
        return len(self.parked) + sum(lease.left for lease in self.ready) if self.ready else len(self.parked)

    def unpark(self, offset: int) -> None:
        """Remove a parked message, which is mostly the first."""
        if self.parked[0] == offset:
            self.parked.popleft()
        else:
            self.parked.remove(offset)

    def go_beyond(self, offset: int) -> None:
        """Look for messages after `offset` only, and forget those up to there that are parked."""
        while self.parked and self.parked[0] <= offset:
            self.parked.popleft()
        self.next = max(self.next, offset + 1)


class LeaseAlarms:
    """When leases end. Each lease has one alarm, so this does less than store.state.deadlines."""

    def __init__(self, then: Callable[[Lease], None]) -> None:
        self._then = then
        self._heap: list[tuple[int, int, Lease]] = []
        self._pending = 0
        self._last = 0

    def __len__(self) -> int:
        """The number of leases with an alarm."""
        return self._pending

    def set(self, lease: Lease) -> None:
        """Set the alarm of a lease that has none."""
        self._last += 1
        lease.alarm = self._last
        heappush(self._heap, (lease.due_ms, self._last, lease))
        self._pending += 1
        if len(self._heap) > 2 * self._pending + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].alarm == entry[1]]
            heapify(self._heap)

    def cancel(self, lease: Lease) -> None:
        if lease.alarm:
            lease.alarm = 0
            self._pending -= 1

    def run(self, now_ms: int) -> None:
        """Tell of what is due, oldest first."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, lease = heappop(self._heap)
            if lease.alarm == number:
                self.cancel(lease)
                self._then(lease)
