"""A consumer group: which messages of its queue are whose, and until when. No I/O, and whoever calls brings the clock.

A message is named by its queue_offset. It is first found (and parked in its lane), then handed out, then settled:
acked, or a dead letter. Handed out means that it is one consumer's until `due_ms`; then anybody may get it. What a
consumer says of it bears the `serial` under which it got it. That counts until the message is handed out again, also
after `due_ms`, and not once the consumer left; too late, it is stale and changes nothing.

An ordered group has a lane per partition, which is one consumer's: it hands out one message at a time, and the next
once that is settled. Any other group has one lane, for everybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from store.state.changes import Held
from store.state.group_hands import Consumer, Hand, HandAlarms, Lane
from store.state.group_settings import GroupSettings
from store.state.offset_ranges import as_ranges

Place = tuple[int, int]  # (partition, queue_offset)
ConsumerKey = tuple[str, str]  # the peer, and what the peer calls it
Entry = tuple[int, int, int, int]  # (due_ms, deliveries, serial, partition)

SERIALS_PER_MS = 1_000
MOST_UNWRITTEN = 262_144
TOO_OFTEN = "delivered too often"


class Group:
    """What is dealt to whom. It begins with what the log says; held_and_done() is what the log does not say yet."""

    def __init__(self, settings: GroupSettings, positions: Iterable[int], entries: Mapping[int, Entry]) -> None:
        self.settings = settings
        self.consumers: dict[ConsumerKey, Consumer] = {}
        self.dead: dict[int, str] = {}  # by queue_offset: what is to become a dead letter, and why
        self.waiting = 0  # for a retry
        self._is_ordered = settings.partitions > 0
        self._lanes = [Lane(position) for position in positions]
        self._entries: dict[int, Hand] = {}
        self._deadlines = HandAlarms(self._fall_due)
        self._ready: deque[Hand] = deque()  # of a group without order
        self._dirty: set[int] = set()
        self._has_moved = False
        self._last_serial = 0
        alike: dict[Entry, list[int]] = {}
        for offset in sorted(entries):
            alike.setdefault(entries[offset], []).append(offset)
        for (due_ms, deliveries, serial, partition), offsets in alike.items():
            self._hold(Hand(offsets, partition, serial, deliveries, due_ms))
            self._last_serial = max(self._last_serial, serial)
        self._dirty.clear()

    # --- consumers

    def join(self, key: ConsumerKey) -> None:
        """A consumer comes. Of an ordered group it gets its share of the partitions."""
        if key not in self.consumers:
            self.consumers[key] = Consumer()
            self._rebalance()

    def leave(self, key: ConsumerKey, now_ms: int) -> None:
        """A consumer is gone; what it had is to be handed out again, at once."""
        consumer = self.consumers.pop(key, None)
        if consumer is None:
            return
        self._release(consumer.hands, now_ms)
        self._rebalance()

    def release_all(self, now_ms: int) -> None:
        """Whoever had something, before this process began, does not come back."""
        self._release([hand for hand in dict.fromkeys(self._entries.values()) if hand.serial], now_ms)

    def _release(self, hands: Iterable[Hand], now_ms: int) -> None:
        for hand in list(hands):
            self.waiting += hand.left
            self._dirty.update(self._left_of(hand))
            hand.serial, hand.due_ms, hand.consumer = 0, now_ms, None
            self._deadlines.cancel(hand)
            self._fall_due(hand)

    def _rebalance(self) -> None:
        """Share the partitions out evenly, and move no more of them than that takes."""
        if not self._is_ordered or not self.consumers:
            return
        share, extra = divmod(len(self._lanes), len(self.consumers))
        by_number = sorted(self.consumers.values(), key=lambda each: -len(each.partitions))
        quotas = [(each, share + (i < extra)) for i, each in enumerate(by_number)]
        for each, quota in quotas:
            del each.partitions[quota:]
        taken = {partition for each in by_number for partition in each.partitions}
        free = [partition for partition in range(len(self._lanes)) if partition not in taken]
        for each, quota in quotas:
            wanted = quota - len(each.partitions)
            each.partitions += free[:wanted]
            del free[:wanted]

    # --- finding messages

    def look_from(self, key: ConsumerKey) -> int | None:
        """From which queue_offset on to look for more for a consumer; None: it has no use for more."""
        if not self._is_ordered:
            return self._lanes[0].next if self.room > 0 else None
        lanes = (self._lanes[partition] for partition in self.consumers[key].partitions)
        idle = [lane.next for lane in lanes if lane.out is None and not lane.parked]
        return min(idle) if idle and self.room > 0 else None

    @property
    def room(self) -> int:
        """How many messages more may be found (of an ordered group: handed out). None while the log takes nothing."""
        if len(self._dirty) > MOST_UNWRITTEN:
            return 0
        parked = 0 if self._is_ordered else len(self._lanes[0].parked)
        return self.settings.most_in_flight - len(self._entries) - parked

    @property
    def has_room(self) -> bool:
        """Whether anything can be handed out: what waits again always can be."""
        return self.room > 0 or bool(self._ready)

    @property
    def looked_until(self) -> int:
        """Of a group without order: all before this queue_offset was found."""
        return self._lanes[0].next

    @property
    def found_ready(self) -> int:
        """Of a group without order: what was found, or given back, and is nobody's."""
        found = len(self._lanes[0].parked)
        return found + sum(hand.left for hand in self._ready) if self._ready else found

    def found(self, start: int, first: int, partitions: Sequence[int]) -> None:
        """From `start` on the queue has nothing up to `first`, and from there on messages of these partitions."""
        until = first + len(partitions)
        lanes = {number: lane for number, lane in enumerate(self._lanes) if start <= lane.next < until}
        self._has_moved = self._has_moved or bool(lanes)
        if not self._is_ordered:
            for lane in lanes.values():
                lane.parked.extend(self._not_held(range(max(first, lane.next), until)))
                lane.next = until
            return
        most_parked = max(1, self.settings.most_in_flight // len(self._lanes))
        for offset, partition in enumerate(partitions, first):
            own = lanes.get(partition)
            if own is None or offset < own.next or offset in self._entries:
                continue
            if len(own.parked) < most_parked:
                own.parked.append(offset)
            else:
                own.next = offset  # it goes on from here when it has room
                del lanes[partition]
        for lane in lanes.values():
            lane.next = until

    def _not_held(self, offsets: range) -> Iterable[int]:
        """After a crash something may be held already that lies behind the position."""
        return offsets if not self._entries else [each for each in offsets if each not in self._entries]

    # --- handing out

    def available(self, key: ConsumerKey, most: int) -> list[Place]:
        """What a consumer may be given now, in order: what was in vain so far, then what is parked."""
        if self._is_ordered:
            return list(islice(self._first_of(self.consumers[key].partitions), most))
        places: list[Place] = []
        for hand in self._ready:
            if len(hand.offsets) > 2 * hand.left:
                hand.offsets = self._left_of(hand)
            left = (offset for offset in hand.offsets if self._entries.get(offset) is hand)
            places += [(0, offset) for offset in islice(left, most - len(places))]
            if len(places) == most:
                return places
        parked = islice(self._lanes[0].parked, most - len(places))
        return places + [(0, offset) for offset in parked]

    def _first_of(self, partitions: Iterable[int]) -> Iterator[Place]:
        """The message that is next in each partition, if it may be handed out."""
        room = self.room
        for partition in partitions:
            lane = self._lanes[partition]
            if lane.out is not None:
                if self._entries[lane.out].is_ready:
                    yield partition, lane.out
            elif lane.parked and room > 0:
                room -= 1
                yield partition, lane.parked[0]

    def hand_out(self, key: ConsumerKey, places: Sequence[Place], now_ms: int, due_ms: int) -> list[Hand]:
        """Give a consumer what was available; together what was delivered equally often."""
        consumer = self.consumers[key]
        if self._is_ordered:  # the next time the others come first
            served = dict.fromkeys(partition for partition, _ in places)
            consumer.partitions = [each for each in consumer.partitions if each not in served] + list(served)
        hands = []
        self._last_serial = max(self._last_serial + 1, now_ms * SERIALS_PER_MS)
        for deliveries, partition, offsets in self._alike(places):
            for offset in offsets:
                self._take(partition, offset)
            hand = Hand(offsets, partition, self._last_serial, deliveries + 1, due_ms)
            hand.consumer = consumer
            consumer.hands[hand] = None
            self._hold(hand)
            hands.append(hand)
        while self._ready and not self._ready[0].left:
            self._ready.popleft()
        return hands

    def is_new(self, first: int, count: int) -> bool:
        """Whether nobody had any of these, of a group without order, and nothing that was found comes before them."""
        lane = self._lanes[0]
        return not lane.parked and lane.next <= first and self._entries.keys().isdisjoint(range(first, first + count))

    def hand_out_new(self, key: ConsumerKey, offsets: range, now_ms: int, due_ms: int) -> Hand:
        """Give a consumer what was found just now and is_new(); before it the queue has nothing."""
        self._lanes[0].next = offsets.stop
        self._has_moved = True
        self._last_serial = max(self._last_serial + 1, now_ms * SERIALS_PER_MS)
        hand = Hand(offsets, 0, self._last_serial, 1, due_ms)
        hand.consumer = self.consumers[key]
        hand.consumer.hands[hand] = None
        self._hold(hand)
        return hand

    def _alike(self, places: Sequence[Place]) -> Iterator[tuple[int, int, list[int]]]:
        """(deliveries so far, partition, queue_offsets) of places that can be one Hand."""
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
        """Take a message from where it is, parked or another Hand's."""
        if offset in self._entries:
            self._drop(offset)
            return
        parked = self._lanes[partition].parked
        if parked[0] == offset:
            parked.popleft()
        else:
            parked.remove(offset)
        self._has_moved = True

    # --- what consumers say

    def ack(self, serial: int, first: int, count: int) -> list[int]:
        """These messages are done with. Those of which that is stale."""
        entries = self._entries
        hand = entries.get(first)
        offsets = range(first, first + count)
        if hand is None or not serial or hand.serial != serial or self._is_ordered:
            return self._each(serial, first, count, lambda offset, _: self._drop(offset))
        is_all = hand.left == count and hand.offsets == offsets
        if count > 1 and not is_all and not all(entries.get(offset) is hand for offset in offsets):
            return self._each(serial, first, count, lambda offset, _: self._drop(offset))
        for offset in offsets:
            del entries[offset]
        self._dirty.update(offsets)
        self._settled(hand, count)
        return []

    def took(self, offsets: Iterable[int]) -> None:
        """These messages are done with, whoever has them."""
        for offset in offsets:
            if offset in self._entries:
                self.dead.pop(offset, None)
                self._drop(offset)

    def change_invisible(
        self, serial: int, first: int, count: int, due_ms: int, key: ConsumerKey | None = None
    ) -> list[int]:
        """They are their consumer's until another time, from now on. Those of which that is stale.

        `key`: the consumer, who may be one that was handed them before the store was restarted.
        """
        moved: dict[Hand, list[int]] = {}
        stale = self._each(serial, first, count, lambda offset, hand: moved.setdefault(hand, []).append(offset))
        for hand, offsets in moved.items():
            if hand.consumer is None and key in self.consumers:
                hand.consumer = self.consumers[key]
                hand.consumer.hands[hand] = None
            self._move(hand, offsets, serial, due_ms)
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
        """They are to be tried again after a while (None: as the settings say), or never (`dead` says why).

        `unseen`: this delivery does not count.
        """
        moved: dict[Hand, list[int]] = {}
        stale = self._each(serial, first, count, lambda offset, hand: moved.setdefault(hand, []).append(offset))
        for hand, offsets in moved.items():
            delay = self.settings.retry_delay_ms(hand.deliveries) if delay_ms is None else delay_ms
            why = dead or (TOO_OFTEN if self._is_last(hand) and not unseen else "")
            self._move(hand, offsets, 0, now_ms + delay, why, hand.deliveries - unseen)
        return stale

    def _each(self, serial: int, first: int, count: int, then: Callable[[int, Hand], object]) -> list[int]:
        stale = []
        for offset in range(first, first + count):
            hand = self._entries.get(offset)
            if hand is None or hand.serial != serial or not serial:
                stale.append(offset)
            else:
                then(offset, hand)
        return stale

    def _move(
        self, hand: Hand, offsets: list[int], serial: int, due_ms: int, dead: str = "", deliveries: int | None = None
    ) -> None:
        consumer = hand.consumer if serial else None
        for offset in offsets:
            self._drop(offset)
        deliveries = hand.deliveries if deliveries is None else deliveries
        moved = Hand(offsets, hand.partition, serial, deliveries, due_ms)
        moved.consumer = consumer
        if consumer is not None:
            consumer.hands[moved] = None
        self._hold(moved, dead)

    # --- what the owner of the queue says

    def gone(self, place: Place) -> None:
        """There is no such message any more."""
        self._take(*place)

    def doom(self, place: Place, why: str) -> None:
        """It can be handed to nobody, and is to become a dead letter."""
        self._take(*place)
        self._hold(Hand([place[1]], place[0], 0, 0, 0), why)

    def run(self, now_ms: int) -> None:
        """What was handed out long enough ago, or waited long enough, may be handed out again."""
        self._deadlines.run(now_ms)

    def buried(self, offsets: Iterable[int]) -> None:
        """The dead letters are written."""
        for offset in offsets:
            if self.dead.pop(offset, None) is not None:
                self._drop(offset)

    # --- what is held

    def _hold(self, hand: Hand, dead: str = "") -> None:
        offsets = hand.offsets
        self._entries.update(dict.fromkeys(offsets, hand))
        self._dirty.update(offsets)
        if not hand.serial:
            self.waiting += len(offsets)
        if self._is_ordered:
            self._lanes[hand.partition].out = offsets[0]
        if dead:
            self.dead.update(dict.fromkeys(offsets, dead))
        else:
            self._deadlines.set(hand)

    def _drop(self, offset: int) -> None:
        hand = self._entries.pop(offset)
        self._dirty.add(offset)
        if not hand.serial:
            self.waiting -= 1
        if self._is_ordered:
            self._lanes[hand.partition].out = None
        self._settled(hand, 1)

    def _settled(self, hand: Hand, number: int) -> None:
        hand.left -= number
        if not hand.left:
            self._deadlines.cancel(hand)
            if hand.consumer is not None:
                del hand.consumer.hands[hand]

    def _left_of(self, hand: Hand) -> list[int]:
        entries = self._entries
        return [offset for offset in hand.offsets if entries.get(offset) is hand]

    def _is_last(self, hand: Hand) -> bool:
        return 0 < self.settings.max_deliveries <= hand.deliveries

    def _fall_due(self, hand: Hand) -> None:
        if hand.is_ready:
            return
        if self._is_last(hand):
            left = self._left_of(hand)
            self._move(hand, left, 0, hand.due_ms, TOO_OFTEN)
            return
        hand.is_ready = True
        if not self._is_ordered:
            self._ready.append(hand)

    # --- for the log, and for people

    @property
    def has_changes(self) -> bool:
        return self._has_moved or bool(self._dirty)

    @property
    def changes(self) -> int:
        """About how much there is to be said."""
        return len(self._dirty)

    def held_and_done(self, logged: Mapping[int, Entry]) -> tuple[list[Held], list[int]]:
        """What the log does not say: what is held now, and what is done with of that which it says is held."""
        held: dict[Hand, list[int]] = {}
        done: list[int] = []
        for offset in sorted(self._dirty):
            hand = self._entries.get(offset)
            if hand is not None:
                held.setdefault(hand, []).append(offset)
            elif offset in logged:
                done.append(offset)
        found = [
            Held(hand.due_ms, hand.deliveries, hand.serial, hand.partition, tuple(as_ranges(offsets)))
            for hand, offsets in held.items()
        ]
        return found, as_ranges(done)

    def deliveries(self, offset: int) -> int:
        """How often a message was handed out that is held."""
        return self._entries[offset].deliveries

    def written(self) -> None:
        """The log says all of it."""
        self._dirty.clear()
        self._has_moved = False

    @property
    def positions(self) -> list[int]:
        return [lane.position for lane in self._lanes]

    @property
    def in_flight(self) -> int:
        """Messages that somebody has."""
        return len(self._entries) - self.waiting

    @property
    def acked_offset(self) -> int:
        """All before this queue_offset is done with."""
        return min((*self._entries, *self.positions))

    def lag(self, end: int) -> int:
        """How many messages are not done with in a queue that ends at `end`; more where partitions are far apart."""
        parked = sum(len(lane.parked) for lane in self._lanes)
        return end - min(lane.next for lane in self._lanes) + parked + len(self._entries)
