"""A consumer group: which consumer has which messages of its queue, and until when. No I/O; the caller gives the time.

A message is named by its queue_offset. It is first found (and parked at a cursor), then leased, then settled: acked, or
a dead letter. A lease gives it to one consumer until `due_ms`; then any consumer may get it. An acknowledgement bears
the `serial` of the lease. It counts until the message is leased again, also after `due_ms`, and not once the consumer
left (but for a lasting one); an acknowledgement that comes too late is stale and changes nothing.

An ordered group has a cursor for each partition, and each partition has one consumer: one message at a time is leased,
the next once that is settled. Any other group has one cursor for all consumers, or with priorities one for each: then
a message's priority stands where an ordered group has its partition, 0 comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from store.state.changes import HeldRange
from store.state.consumer_work import ConsumerWork, joined_work
from store.state.group_leases import (
    Assignment,
    Entry,
    Lease,
    LeaseAlarms,
    LeaseSerials,
    PartitionCursor,
    assign_partitions,
    held_and_done,
    leases_of,
)
from store.state.group_settings import GroupSettings

PartitionOffset = tuple[int, int]  # (partition or priority, queue_offset)
ConsumerKey = tuple[str, str]  # the peer, and what the peer calls it

MOST_UNWRITTEN = 262_144
TOO_OFTEN = "delivered too often"


class Group:
    """The leases of a group. It begins with what the log says; held_and_done() is what the log does not say yet."""

    def __init__(
        self, settings: GroupSettings, positions: Iterable[int], entries: Mapping[int, Entry], epoch: int = 0
    ) -> None:
        """`epoch`: in which this store began to lead its cluster; 0: it has none."""
        self.settings = settings
        self.consumers: dict[ConsumerKey, Assignment] = {}
        self.dead: dict[int, str] = {}  # by queue_offset: messages that become dead letters, and why
        self.waiting = 0  # for a retry
        self._is_ordered = settings.partitions > 0
        self.cursors = [PartitionCursor(position) for position in positions]  # by partition or priority
        self._entries: dict[int, Lease] = {}
        self._deadlines = LeaseAlarms(self._fall_due)
        self._dirty: set[int] = set()
        self._has_moved = False
        self._serials = LeaseSerials(epoch)
        for lease in leases_of(entries):
            lease.partition = min(lease.partition, len(self.cursors) - 1)  # of what the group had before
            self._hold(lease)
            self._serials.saw(lease.serial)
        self._dirty.clear()

    # --- consumers

    @property
    def work(self) -> ConsumerWork | None:
        """The joined reports of the group's consumers about their work; None: there are none."""
        return joined_work(each.work for each in self.consumers.values())

    def join(self, key: ConsumerKey, is_lasting: bool = False) -> None:
        """A consumer comes. Of an ordered group it gets its share of the partitions. `is_lasting`: see leave()."""
        if key not in self.consumers:
            self.consumers[key] = Assignment(key[0], is_lasting)
            self._rebalance()

    def leave(self, key: ConsumerKey, now_ms: int, seen: int | None = None) -> None:
        """A consumer is gone. What it had is handed out again: at once, or of a lasting one when its leases end.

        `seen`: deliveries with a later serial than this did not reach it, and do not count; None: all count.
        """
        consumer = self.consumers.pop(key, None)
        if consumer is None:
            return
        if not consumer.is_lasting:
            for lease in consumer.leases:
                if seen is not None and self._serials.is_later(lease.serial, seen):
                    lease.deliveries -= 1
            self._release(consumer.leases, now_ms)
        self._rebalance()

    def release_all(self, now_ms: int) -> None:
        """End all leases from before this process began: those consumers do not come back."""
        self._release([lease for lease in dict.fromkeys(self._entries.values()) if lease.serial], now_ms)

    def _release(self, leases: Iterable[Lease], now_ms: int) -> None:
        for lease in list(leases):
            self.waiting += lease.left
            self._dirty.update(self._left_of(lease))
            lease.serial, lease.due_ms, lease.consumer = 0, now_ms, None
            self._deadlines.cancel(lease)
            self._fall_due(lease)

    def _rebalance(self) -> None:
        if self._is_ordered and self.consumers:
            assign_partitions(list(self.consumers.values()), len(self.cursors))

    # --- finding messages

    def look_from(self, key: ConsumerKey, priority: int = 0) -> int | None:
        """The queue_offset from which on to look for more messages for a consumer; None: it can take no more."""
        if not self._is_ordered:
            return self.cursors[priority].next if self.room > 0 else None
        cursors = (self.cursors[partition] for partition in self.consumers[key].partitions)
        idle = [cursor.next for cursor in cursors if cursor.out is None and not cursor.parked]
        return min(idle) if idle and self.room > 0 else None

    @property
    def room(self) -> int:
        """The number of messages that may still be found (in an ordered group: handed out).

        None while the log takes nothing.
        """
        if len(self._dirty) > MOST_UNWRITTEN:
            return 0
        parked = 0 if self._is_ordered else sum(len(cursor.parked) for cursor in self.cursors)
        return self.settings.most_in_flight - len(self._entries) - parked

    @property
    def has_room(self) -> bool:
        """Whether anything can be handed out: what waits again always can be."""
        return self.room > 0 or any(cursor.ready for cursor in self.cursors)

    @property
    def looked_until(self) -> int:
        """The queue_offset before which everything was found, in a group without order."""
        return min(cursor.next for cursor in self.cursors)

    @property
    def found_ready(self) -> int:
        """The number of messages that were found or given back and that no consumer has, in a group without order."""
        return sum(cursor.found for cursor in self.cursors)

    def found(self, start: int, first: int, partitions: Sequence[int], priority: int = 0) -> None:
        """Add found messages, by partition, from `first` on. The queue has nothing between `start` and `first`.

        `priority`: of all of them, in a group without order.
        """
        until = first + len(partitions)
        if not self._is_ordered:
            cursor = self.cursors[priority]
            if start <= cursor.next < until:
                cursor.parked.extend(self._not_held(range(max(first, cursor.next), until)))
                cursor.next, self._has_moved = until, True
            return
        cursors = {number: cursor for number, cursor in enumerate(self.cursors) if start <= cursor.next < until}
        self._has_moved = self._has_moved or bool(cursors)
        most_parked = max(1, self.settings.most_in_flight // len(self.cursors))
        for offset, partition in enumerate(partitions, first):
            own = cursors.get(partition)
            if own is None or offset < own.next or offset in self._entries:
                continue
            if len(own.parked) < most_parked:
                own.parked.append(offset)
            else:
                own.next = offset  # it goes on from here when it has room
                del cursors[partition]
        for cursor in cursors.values():
            cursor.next = until

    def _not_held(self, offsets: range) -> Iterable[int]:
        """The given queue_offsets without those that are held: after a crash some after the position may be."""
        return offsets if not self._entries else [each for each in offsets if each not in self._entries]

    # --- handing out

    def available(self, key: ConsumerKey, most: int, priority: int = 0) -> list[PartitionOffset]:
        """The messages that a consumer may get now, in order: those that failed before, then those that are parked.

        `priority`: of those of a group without order.
        """
        if self._is_ordered:
            return list(islice(self._first_of(self.consumers[key].partitions), most))
        places: list[PartitionOffset] = []
        for lease in self.cursors[priority].ready:
            if len(lease.offsets) > 2 * lease.left:
                lease.offsets = self._left_of(lease)
            left = (offset for offset in lease.offsets if self._entries.get(offset) is lease)
            places += [(priority, offset) for offset in islice(left, most - len(places))]
            if len(places) == most:
                return places
        parked = islice(self.cursors[priority].parked, most - len(places))
        return places + [(priority, offset) for offset in parked]

    def _first_of(self, partitions: Iterable[int]) -> Iterator[PartitionOffset]:
        """The message that is next in each partition, if it may be handed out."""
        room = self.room
        for partition in partitions:
            cursor = self.cursors[partition]
            if cursor.out is not None:
                if self._entries[cursor.out].is_ready:
                    yield partition, cursor.out
            elif cursor.parked and room > 0:
                room -= 1
                yield partition, cursor.parked[0]

    def hand_out(self, key: ConsumerKey, places: Sequence[PartitionOffset], now_ms: int, due_ms: int) -> list[Lease]:
        """Give a consumer what was available; together what was delivered equally often."""
        consumer = self.consumers[key]
        if self._is_ordered:  # the next time the others come first
            served = dict.fromkeys(partition for partition, _ in places)
            consumer.partitions = [each for each in consumer.partitions if each not in served] + list(served)
        leases = []
        serial = self._serials.next(now_ms)
        for deliveries, partition, offsets in self._alike(places):
            for offset in offsets:
                self._take(partition, offset)
            lease = Lease(offsets, partition, serial, deliveries + 1, due_ms)
            consumer.take(lease)
            self._hold(lease)
            leases.append(lease)
        for cursor in self.cursors:
            while cursor.ready and not cursor.ready[0].left:
                cursor.ready.popleft()
        return leases

    def is_new(self, first: int, count: int, priority: int = 0) -> bool:
        """True if these messages were never leased, and no found one comes before them, in a group without order."""
        cursor = self.cursors[priority]
        return (
            not cursor.parked and cursor.next <= first and self._entries.keys().isdisjoint(range(first, first + count))
        )

    def hand_out_new(self, key: ConsumerKey, offsets: range, now_ms: int, due_ms: int, priority: int = 0) -> Lease:
        """Give a consumer what was found just now and is_new(); before it the queue has nothing."""
        self.cursors[priority].next = offsets.stop
        self._has_moved = True
        lease = Lease(offsets, priority, self._serials.next(now_ms), 1, due_ms)
        self.consumers[key].take(lease)
        self._hold(lease)
        return lease

    def _alike(self, places: Sequence[PartitionOffset]) -> Iterator[tuple[int, int, list[int]]]:
        """(deliveries so far, partition, queue_offsets) of places that can be one Lease."""
        offsets: list[int] = []
        last = (0, 0)
        for partition, offset in places:
            held = self._entries.get(offset)
            alike = (held.deliveries if held is not None else 0, partition)
            if offsets and alike != last:
                yield *last, offsets
                offsets = []
            last = alike
            offsets.append(offset)
        if offsets:
            yield *last, offsets

    def _take(self, partition: int, offset: int) -> None:
        """Take a message from where it is, parked or another Lease's."""
        if offset in self._entries:
            self._drop(offset)
            return
        self.cursors[partition].unpark(offset)
        self._has_moved = True

    # --- what consumers say

    def ack(self, serial: int, first: int, count: int) -> list[int]:
        """Acknowledge messages. Returns the queue_offsets whose lease has ended (stale), which changes nothing."""
        entries = self._entries
        lease = entries.get(first)
        offsets = range(first, first + count)
        if lease is None or not serial or lease.serial != serial or self._is_ordered:
            return self._each(serial, first, count, lambda offset, _: self._drop(offset))
        is_all = lease.left == count and lease.offsets == offsets
        if count > 1 and not is_all and not all(entries.get(offset) is lease for offset in offsets):
            return self._each(serial, first, count, lambda offset, _: self._drop(offset))
        for offset in offsets:
            del entries[offset]
        self._dirty.update(offsets)
        self._settled(lease, count)
        return []

    def took(self, offsets: Iterable[int]) -> None:
        """Remove messages that are done with, whichever consumer has them."""
        for offset in offsets:
            if offset in self._entries:
                self.dead.pop(offset, None)
                self._drop(offset)

    def may_take(self, place: PartitionOffset, peer: str) -> bool:
        """Whether a peer's consumers may be done with a message: it is not done with, and no other peer has it.

        A store that was killed may have handed it out without the log saying so: then nobody has it here.
        """
        partition, offset = place
        lease = self._entries.get(offset)
        if lease is not None:
            return lease.consumer is None or lease.consumer.peer == peer
        return offset >= self.cursors[partition].position

    def find(self, place: PartitionOffset, now_ms: int) -> None:
        """Hold a message that a peer may_take() and that is not held, so that the log can say that it is done with.

        What comes before it is held too, and waits for a consumer. Of an ordered group that was done with before.
        """
        partition, offset = place
        cursor = self.cursors[partition]
        if offset in self._entries:
            return
        if self._is_ordered:
            if cursor.out is not None:
                self._drop(cursor.out)
            found = [offset]
        else:
            found = list(takewhile(lambda each: each <= offset, cursor.parked))
            found += self._not_held(range(cursor.next, offset + 1))
        cursor.go_beyond(offset)
        self._has_moved = True
        self._hold(Lease(found, partition, 0, 0, now_ms))
        self.run(now_ms)

    def change_invisible(
        self, serial: int, first: int, count: int, due_ms: int, key: ConsumerKey | None = None
    ) -> list[int]:
        """Change the time until which messages are leased. Returns the queue_offsets whose lease has ended (stale).

        `key`: the consumer, who may be one that was handed them before the store was restarted.
        """
        moved: dict[Lease, list[int]] = {}
        stale = self._each(serial, first, count, lambda offset, lease: moved.setdefault(lease, []).append(offset))
        for lease, offsets in moved.items():
            if lease.consumer is None and key in self.consumers:
                self.consumers[key].take(lease)
            self._move(lease, offsets, serial, due_ms)
        return stale

    def reject(
        self,
        serial: int,
        first: int,
        count: int,
        now_ms: int,
        delay_ms: int | None = None,
        dead: str = "",
        unseen: bool = False,
    ) -> list[int]:
        """Try them again after a while (None: as the settings say), or never (`dead` says why).

        `unseen`: this delivery does not count.
        """
        moved: dict[Lease, list[int]] = {}
        stale = self._each(serial, first, count, lambda offset, lease: moved.setdefault(lease, []).append(offset))
        for lease, offsets in moved.items():
            delay = self.settings.retry_delay_ms(lease.deliveries) if delay_ms is None else delay_ms
            why = dead or (TOO_OFTEN if self._is_last(lease) and not unseen else "")
            self._move(lease, offsets, 0, now_ms + delay, why, lease.deliveries - unseen)
        return stale

    def _each(self, serial: int, first: int, count: int, then: Callable[[int, Lease], object]) -> list[int]:
        stale = []
        for offset in range(first, first + count):
            lease = self._entries.get(offset)
            if lease is None or lease.serial != serial or not serial:
                stale.append(offset)
            else:
                then(offset, lease)
        return stale

    def _move(
        self, lease: Lease, offsets: list[int], serial: int, due_ms: int, dead: str = "", deliveries: int | None = None
    ) -> None:
        consumer = lease.consumer if serial else None
        for offset in offsets:
            self._drop(offset)
        deliveries = lease.deliveries if deliveries is None else deliveries
        moved = Lease(offsets, lease.partition, serial, deliveries, due_ms)
        if consumer is not None:
            consumer.take(moved)
        self._hold(moved, dead)

    # --- what the owner of the queue says

    def gone(self, place: PartitionOffset) -> None:
        """Remove a message that is no longer in the queue."""
        self._take(*place)

    def doom(self, place: PartitionOffset, why: str) -> None:
        """No consumer can have it: it becomes a dead letter."""
        self._take(*place)
        self._hold(Lease([place[1]], place[0], 0, 0, 0), why)

    def run(self, now_ms: int) -> None:
        """Messages whose lease or retry delay has ended may be handed out again."""
        self._deadlines.run(now_ms)

    def buried(self, offsets: Iterable[int]) -> None:
        """The dead letters are written."""
        for offset in offsets:
            if self.dead.pop(offset, None) is not None:
                self._drop(offset)

    # --- what is held

    def _hold(self, lease: Lease, dead: str = "") -> None:
        offsets = lease.offsets
        self._entries.update(dict.fromkeys(offsets, lease))
        self._dirty.update(offsets)
        if not lease.serial:
            self.waiting += len(offsets)
        if self._is_ordered:
            self.cursors[lease.partition].out = offsets[0]
        if dead:
            self.dead.update(dict.fromkeys(offsets, dead))
        else:
            self._deadlines.set(lease)

    def _drop(self, offset: int) -> None:
        lease = self._entries.pop(offset)
        self._dirty.add(offset)
        if not lease.serial:
            self.waiting -= 1
        if self._is_ordered:
            self.cursors[lease.partition].out = None
        self._settled(lease, 1)

    def _settled(self, lease: Lease, number: int) -> None:
        lease.left -= number
        if not lease.left:
            self._deadlines.cancel(lease)
            if lease.consumer is not None:
                del lease.consumer.leases[lease]

    def _left_of(self, lease: Lease) -> list[int]:
        entries = self._entries
        return [offset for offset in lease.offsets if entries.get(offset) is lease]

    def _is_last(self, lease: Lease) -> bool:
        return 0 < self.settings.max_deliveries <= lease.deliveries

    def _fall_due(self, lease: Lease) -> None:
        if lease.is_ready:
            return
        if self._is_last(lease):
            left = self._left_of(lease)
            self._move(lease, left, 0, lease.due_ms, TOO_OFTEN)
            return
        lease.is_ready = True
        if not self._is_ordered:
            self.cursors[lease.partition].ready.append(lease)

    # --- for the log, and for people

    @property
    def has_changes(self) -> bool:
        return self._has_moved or bool(self._dirty)

    @property
    def changes(self) -> int:
        """About how many changes the log does not have."""
        return len(self._dirty)

    def held_and_done(self, logged: Mapping[int, Entry]) -> tuple[list[HeldRange], list[int]]:
        """Changes that the log does not have: messages held now, and those of its held messages that are done with."""
        return held_and_done(sorted(self._dirty), self._entries, logged)

    def lease(self, offset: int) -> Lease | None:
        """The lease of a message that a consumer has, or that waits for a retry; None: it is not held."""
        return self._entries.get(offset)

    def written(self) -> None:
        """The log says all of it."""
        self._dirty.clear()
        self._has_moved = False

    @property
    def positions(self) -> list[int]:
        return [cursor.position for cursor in self.cursors]

    @property
    def in_flight(self) -> int:
        """Messages that consumers have."""
        return len(self._entries) - self.waiting

    @property
    def acked_offset(self) -> int:
        """All before this queue_offset is done with."""
        return min((*self._entries, *self.positions))

    def lag(self, end: int) -> int:
        """The number of messages before `end` that are not done with; too many if partitions are far apart."""
        parked = sum(len(cursor.parked) for cursor in self.cursors)
        return end - min(cursor.next for cursor in self.cursors) + parked + len(self._entries)
