"""The consumers of groups, their requests for messages that wait, and their acknowledgements that wait for the log.

Messages are given out when there are some: on a request, when the queue grows, and when another consumer gives messages
back. No consumer polls in a loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from lightqueue.groups.groups import NO_MAKER, GroupQueue
from lightqueue.groups.popped import NOTHING, PoppedMessages
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from notify.beginnings import beginning
from notify.errors import GroupQuota, GroupRefused, LeaseLost
from notify.local.members import Followers, Member
from notify.local.user_quotas import NO_QUOTAS, QuotaLimits
from store.errors import StoreError
from store.namespaces import namespace_of
from store.records._records import Records
from store.state.changes import GroupAdvanced
from store.state.group_settings import GroupSettings, Strategy
from store.state.group_states import GroupKey, Maker
from store.state.groups import ConsumerKey
from store.state.offset_ranges import in_ranges

MOST_POPPED = 8_192
MOST_CONSUMERS = 10_000  # of a group
MOST_WAITING = 20_000  # requests for messages of a group
FEW = 64  # messages that are not worth dividing
UNUSED_S = 5.0  # a group that was unused so long ago, and is now, is dropped
MOST_DROPPED = 100  # at a time
SHARED = "$share/{}/{}"


class PopReceiver(Protocol):
    """Where the answer to a PopRequest goes."""

    @property
    def is_closing(self) -> bool:
        """Whether its connection ends, so that an answer is lost."""

    @property
    def has_room(self) -> bool:
        """Whether it may be sent more."""


@dataclass(eq=False, slots=True)
class Consumer:
    """A consumer of a group. Its key: the name of the peer, and the name that the peer gives it."""

    queue: GroupQueue
    key: ConsumerKey


@dataclass(eq=False, slots=True)
class PopRequest:
    """A consumer asks for messages, and waits for the first until `until_s`."""

    consumer: Consumer
    receiver: PopReceiver
    most: int
    max_bytes: int
    invisible_ms: int
    until_s: float
    answer: Callable[[PoppedMessages], None]


class _Waiting:
    """The requests that wait for one group."""

    def __init__(self, followed: Queue) -> None:
        self.followed = followed
        self.polls: deque[PopRequest] = deque()
        self.said: deque[tuple[int, Callable[[StoreError | None], None]]] = deque()  # (version, answer)


class Consumers:
    """Owner of the consumers of all groups of a store. Its Member follows their queues."""

    def __init__(
        self,
        messages: MessageStore,
        followers: Followers,
        join: Callable[[str], Member],
        settle: Callable[[], None],
        quotas: QuotaLimits = NO_QUOTAS,
    ) -> None:
        """`join`, `settle`: as Hub.join() and Hub.settle()."""
        self.now_ms: Callable[[], int] = _wall_clock_ms
        self.clock: Callable[[], float] = time.monotonic  # seconds
        self._messages = messages
        self._followers = followers
        self._join = join
        self._settle = settle
        self._member: Member | None = None
        self._groups = messages.groups
        self._by_key: dict[tuple[str, str, GroupKey], Consumer] = {}
        self._waiting: dict[GroupQueue, _Waiting] = {}  # of groups that have consumers, or had them a moment ago
        self._by_queue: dict[Queue, list[GroupQueue]] = {}
        self._quotas = quotas
        self.quota_refused = {"groups": 0, "namespace_groups": 0}
        self._unused: set[GroupKey] = set()  # when it was looked last
        self._look_s = 0.0

    def hand_out(self, most_bytes: int, clock: Callable[[], float]) -> None:
        """Hand messages out over the wire. A larger message becomes a dead letter, since no answer has room for it.

        `clock`: monotonic seconds.
        """
        self.clock = clock
        self._groups.most_bytes = most_bytes

    def release_all(self) -> None:
        """End all leases from before this process began: those consumers do not come back."""
        for queue in self._groups:
            queue.group.release_all(self.now_ms())

    # --- coming and going

    def open(
        self,
        key: ConsumerKey,
        group: GroupKey,
        settings: GroupSettings | None,
        start: str,
        if_new: GroupSettings | None = None,
        maker: Maker = NO_MAKER,
        or_refuse: bool = False,
    ) -> Consumer:
        """A consumer comes; the group is made if need be. Raises StoreError, GroupRefused, NoSuchPosition.

        `if_new`: the settings of a group that is made, where `settings` are none; `maker`: who makes it. `or_refuse`:
        as in beginning().
        """
        known = self._groups.get(group)
        if known is None and settings is None:
            settings = if_new
        if known is not None and settings is not None and settings.partitions != known.settings.partitions:
            now, wanted = known.settings.partitions, settings.partitions
            raise GroupRefused(
                f"group {group[0]} has {now} partitions, not {wanted}; drop it (`penstock group drop`) or use another"
            )
        consumer = self._by_key.get((*key, group))
        if known is None:
            self._check_quota(group, maker)
        begin = partial(beginning, self._messages, group[1], start, or_refuse)
        queue = self._groups.make(group, settings, begin, maker)
        if consumer is not None:
            return consumer
        if len(queue.group.consumers) >= MOST_CONSUMERS:
            raise GroupRefused(f"group {group[0]} has {MOST_CONSUMERS} consumers already")
        if queue not in self._waiting:
            self._follow(queue)
        consumer = self._by_key[*key, group] = Consumer(queue, key)
        queue.group.join(key)
        return consumer

    def _check_quota(self, group: GroupKey, maker: Maker) -> None:
        """Whether a user may make one more group. Raises GroupQuota."""
        if maker.user is not None and self._quotas.user_groups:
            used = self._groups.count_of(maker.user)
            if used >= self._quotas.user_groups:
                self.quota_refused["groups"] += 1
                raise GroupQuota(maker.user, used)
        namespace = namespace_of(group[0])
        if self._quotas.namespace_groups and (namespace.name or self._quotas.bounds_default):
            used = sum(namespace.has_group(each.state.key[0]) for each in self._groups)
            if used >= self._quotas.namespace_groups:
                self.quota_refused["namespace_groups"] += 1
                raise GroupQuota("", used, namespace.name)

    def _drop_unused(self) -> None:
        """Groups of shared subscriptions that no session has any more, online or not, once they hold nothing."""
        shares = self._messages.sessions.shares
        unused = {
            each.state.key
            for each in self._groups
            if each.state.is_shared and each.is_unused and SHARED.format(*each.state.key) not in shares
        }
        for key in islice(unused & self._unused, MOST_DROPPED):
            with suppress(StoreError):  # it is tried again
                self.drop(key)
        self._unused = unused

    def close(self, consumer: Consumer, seen: int | None = None) -> None:
        """A consumer goes; what it had goes to others. `seen`: see Group.leave()."""
        queue = consumer.queue
        if self._by_key.pop((*consumer.key, queue.state.key), None) is None:
            return
        queue.group.leave(consumer.key, self.now_ms(), seen)
        self.end_polls(consumer)
        self._serve(queue)
        self._forget_if_idle(queue)

    def end_polls(self, consumer: Consumer) -> None:
        """Answer the requests with nothing that wait for this consumer."""
        waiting = self._waiting[consumer.queue]
        for poll in [poll for poll in waiting.polls if poll.consumer is consumer]:
            waiting.polls.remove(poll)
            poll.answer(NOTHING)

    def left(self, peer: str) -> None:
        """A peer is gone, and its consumers with it."""
        for consumer in [consumer for consumer in self._by_key.values() if consumer.key[0] == peer]:
            self.close(consumer)

    def _follow(self, queue: GroupQueue) -> None:
        if self._member is None:
            self._member = self._join("consumer groups")
            self._member.listen(self)
        queues, topic_filter = self._messages.queues, queue.state.topic_filter
        followed = queues.watch_stored(topic_filter) or queues.watch(topic_filter)
        self._followers.follow(self._member, followed, followed.next_offset)
        self._waiting[queue] = _Waiting(followed)
        self._by_queue.setdefault(followed, []).append(queue)

    def _forget_if_idle(self, queue: GroupQueue) -> None:
        waiting = self._waiting[queue]
        if queue.group.consumers or waiting.said:
            return
        del self._waiting[queue]
        followed = waiting.followed
        self._by_queue[followed].remove(queue)
        if not self._by_queue[followed]:
            del self._by_queue[followed]
        assert self._member is not None
        self._followers.unfollow(self._member, followed)

    # --- handing out

    def pop(self, poll: PopRequest) -> None:
        """Answer now, or once there is something, or once it is too late. Raises GroupRefused if too many wait."""
        queue = poll.consumer.queue
        if queue.may_have(self.now_ms()) and self._answered(poll, self._fair_share(queue)):
            return
        polls = self._waiting[queue].polls
        if poll.until_s <= self.clock():
            poll.answer(NOTHING)
        elif len(polls) >= MOST_WAITING:
            raise GroupRefused(f"{MOST_WAITING} requests wait for messages of group {queue.state.name} already")
        else:
            polls.append(poll)

    def forget(self, receiver: PopReceiver) -> None:
        """Drop the requests whose answers would go there."""
        for waiting in self._waiting.values():
            if any(poll.receiver is receiver for poll in waiting.polls):
                waiting.polls = deque(poll for poll in waiting.polls if poll.receiver is not receiver)

    def _fair_share(self, queue: GroupQueue) -> int:
        """The most that one request may have of what is ready, since other consumers are about to ask as well."""
        if queue.settings.partitions or len(queue.group.consumers) < 2:
            return MOST_POPPED
        return max(FEW, queue.ready // len(queue.group.consumers))

    def _answered(self, poll: PopRequest, most: int = MOST_POPPED) -> bool:
        """Answer a request if there is something for it. Whether it waits no more."""
        if poll.receiver.is_closing:
            return True
        if not poll.receiver.has_room:
            return False
        queue, now_ms = poll.consumer.queue, self.now_ms()
        due_ms = now_ms + (poll.invisible_ms or queue.settings.invisible_ms)
        dealt = queue.pop(poll.consumer.key, min(poll.most, most, MOST_POPPED), poll.max_bytes, now_ms, due_ms)
        if dealt.ranges:
            poll.answer(dealt)
        return bool(dealt.ranges)

    def _serve(self, queue: GroupQueue) -> None:
        """Answer the requests that wait with what there is."""
        waiting = self._waiting[queue]
        if queue.settings.partitions:
            self._serve_each(waiting.polls)
            return
        while waiting.polls and (ready := queue.ready) and queue.group.has_room:
            if not self._share_out(queue, waiting, ready):
                return

    def _serve_each(self, polls: deque[PopRequest]) -> None:
        """Give each consumer what is in its partitions."""
        for _ in range(len(polls)):
            if self._answered(polls[0]):
                polls.popleft()
            else:
                polls.rotate(-1)

    def _share_out(self, queue: GroupQueue, waiting: _Waiting, ready: int) -> bool:
        """Divide what is ready among the requests that wait. False if none was answered."""
        polls = (poll for poll in waiting.polls if poll.receiver.has_room or poll.receiver.is_closing)
        if queue.settings.strategy is Strategy.LEAST_IN_FLIGHT:
            in_flight = {poll: queue.group.consumers[poll.consumer.key].in_flight for poll in polls}
            takers = nsmallest(ready, in_flight, key=in_flight.__getitem__)
            has = [in_flight[poll] for poll in takers]
        else:
            takers = list(islice(polls, ready))
            has = [0] * len(takers)
        if not takers:
            return False
        most = [min(poll.most, MOST_POPPED) for poll in takers]
        now_ms = self.now_ms()
        records = queue.new(min(ready, sum(most)), min(poll.max_bytes for poll in takers), now_ms)
        if records is None:
            shares = zip(takers, divide(ready, most, has), strict=True)
            answered = {poll for poll, share in shares if share and self._answered(poll, share)}
        else:
            answered = _deal(queue, records, zip(takers, divide(records.count, most, has), strict=True), now_ms)
        _take_away(waiting, answered)
        return bool(answered)

    def _give_up(self, queue: GroupQueue, now_s: float) -> None:
        waiting = self._waiting[queue]
        late = [poll for poll in waiting.polls if poll.until_s <= now_s]
        if late:
            waiting.polls = deque(poll for poll in waiting.polls if poll.until_s > now_s)
        for poll in late:
            poll.answer(NOTHING)

    # --- what consumers say

    def said(self, queue: GroupQueue, answer: Callable[[StoreError | None], None] | None) -> None:
        """Something was said to a group: answer once it is in the log, and safe. What it frees is dealt at once."""
        waiting = self._waiting[queue]
        if answer is not None:
            waiting.said.append((queue.version, answer))
        if waiting.polls:
            self._serve(queue)

    def will_take(self, taken: Iterable[GroupAdvanced]) -> None:
        """An append is to come that says that these messages are done with: first the log must have that they are held.

        So the append counts whatever becomes of this process.
        """
        for each in taken:
            queue = self._groups.get((each.name, each.topic_filter))
            if queue is not None:
                queue.find(in_ranges(each.done), self.now_ms())
                self._groups.write(queue, self.now_ms())

    def check_taken(self, peer: str, taken: Iterable[GroupAdvanced]) -> None:
        """Raises LeaseLost if a group is not to count messages as done with because a peer says so.

        Another peer may have them by now: if it sends them at QoS 2, they must not come twice.
        """
        for each in taken:
            queue = self._groups.get((each.name, each.topic_filter))
            if queue is not None and not queue.may_take(in_ranges(each.done), peer):
                raise LeaseLost(each.name)

    def took(self, taken: Iterable[GroupAdvanced]) -> None:
        """The log has it."""
        for each in taken:
            queue = self._groups.get((each.name, each.topic_filter))
            if queue is not None:
                queue.took(in_ranges(each.done))
                if queue in self._waiting:
                    with suppress(StoreError):  # tick() tries it again
                        self._serve(queue)

    def reset(self, group: GroupKey, to: str) -> int:
        """Raises StoreError, GroupRefused, NoSuchPosition. Returns the queue_offset."""
        queue = self._known(group)
        queue_offset = beginning(self._messages, group[1], to, or_refuse=False)
        self._groups.reset(queue, queue_offset)
        if queue in self._waiting:
            self._serve(queue)
        return queue_offset

    def pause(self, group: GroupKey, paused: bool) -> int:
        """Deal nothing more, or go on. Returns the queue_offset before which all is done with.

        Raises StoreError, GroupRefused.
        """
        queue = self._known(group)
        self._groups.pause(queue, paused)
        if queue in self._waiting:
            self._serve(queue)
        return queue.group.acked_offset

    def drop(self, group: GroupKey) -> None:
        """Raises StoreError, GroupRefused."""
        queue = self._known(group)
        if queue.group.consumers:
            raise GroupRefused(f"group {group[0]} has {len(queue.group.consumers)} consumers; end them first")
        self._groups.drop(queue)
        if queue in self._waiting:
            self._waiting[queue].said.clear()
            self._forget_if_idle(queue)

    def _known(self, group: GroupKey) -> GroupQueue:
        queue = self._groups.get(group)
        if queue is None:
            raise GroupRefused(f"there is no group {group[0]} over {group[1]}; see `penstock group list`")
        return queue

    def listed(self, name: str) -> list[GroupQueue]:
        """The groups of this name (empty: all), in order."""
        found = (each for each in self._groups if name in ("", each.state.name))
        return sorted(found, key=lambda each: each.state.key)

    # --- the log

    def turn_ends(self) -> None:
        """Write what can be written, and answer the consumers that waited for it. Costs nothing where none waits."""
        if not self._waiting:
            return
        waiting = [(queue, each) for queue, each in self._waiting.items() if each.said]
        if not waiting:
            return
        now_ms = self.now_ms()
        due = [queue for queue, _ in waiting if queue.is_due(now_ms)]
        for queue in due:
            self._groups.write(queue, now_ms)
        if due:
            self._settle()  # others may follow the queue of dead letters
        for queue, each in waiting:
            until = queue.tried_version if queue.failure else queue.safe_version()
            while each.said and each.said[0][0] <= until:
                each.said.popleft()[1](queue.failure)
            self._forget_if_idle(queue)

    def tick(self) -> None:
        """To be called several times a second."""
        if not len(self._groups):
            return
        self._groups.tick(self.now_ms())
        self._settle()
        now_s = self.clock()
        if now_s >= self._look_s:
            self._look_s = now_s + UNUSED_S
            self._drop_unused()
        for queue in list(self._waiting):
            if self._waiting[queue].polls:
                self._serve(queue)
                self._give_up(queue, now_s)
        self.turn_ends()

    # --- StoreListener

    def wake(self) -> None:
        """Some of the queues grew."""
        if self._member is None:
            return
        for grown in self._member.take_news():
            for queue in self._by_queue.get(grown, ()):
                self._serve(queue)

    def safe_advanced(self) -> None:
        self.turn_ends()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _deal(
    queue: GroupQueue, records: Records, shares: Iterable[tuple[PopRequest, int]], now_ms: int
) -> set[PopRequest]:
    """Answer requests with what the queue gained: each with its share, in turn. The requests that were answered."""
    answered, place = set(), 0
    for poll, share in shares:
        if share:
            answered.add(poll)
        if share and not poll.receiver.is_closing:
            due_ms = now_ms + (poll.invisible_ms or queue.settings.invisible_ms)
            poll.answer(queue.hand_out_new(poll.consumer.key, records, place, share, now_ms, due_ms))
            place += share
    return answered


def _take_away(waiting: _Waiting, answered: set[PopRequest]) -> None:
    """Take out requests that were answered, which most of the time are the first."""
    polls, left = waiting.polls, len(answered)
    while left and polls[0] in answered:
        polls.popleft()
        left -= 1
    if left:
        waiting.polls = deque(poll for poll in polls if poll not in answered)


def divide(number: int, most: list[int], has: list[int]) -> list[int]:
    """Shares of a number of messages after which all have about as many; none gets more than its `most`."""
    number = min(number, sum(most))
    each, more = divmod(number, len(most)) if most else (0, 0)
    if most and each < min(most) and not any(has):
        return [each + 1] * more + [each] * (len(most) - more)
    low, high = 0, max(has, default=0) + number  # a level to which all are filled up
    while low < high:
        level = (low + high + 1) // 2
        if sum(_up_to(level, most, has)) <= number:
            low = level
        else:
            high = level - 1
    shares = list(_up_to(low, most, has))
    left = number - sum(shares)
    for i, share in enumerate(shares):
        if left and share < most[i] and has[i] + share == low:
            shares[i] += 1
            left -= 1
    return shares


def _up_to(level: int, most: list[int], has: list[int]) -> Iterable[int]:
    return (min(most[i], max(0, level - has[i])) for i in range(len(most)))
