"""The consumers of groups, their requests for messages that wait, and their acknowledgements that wait for the log.

Messages are given out when there are some: on a request, when the queue grows, and when another consumer gives messages
back. No consumer polls in a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.groups import NO_MAKER
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from notify.errors import GroupRefused, LeaseLost
from notify.local.group_making import GroupLimits, UnusedGroups, beginning
from notify.local.group_tier import GroupTier, Located
from notify.local.members import Followers, Member, MemberOwner
from notify.local.polls import Consumer, PopReceiver, PopRequest, WaitingPolls
from notify.local.tier import Tier
from notify.local.user_quotas import NO_QUOTAS, QuotaLimits
from store.errors import StoreError
from store.state.changes import GroupAdvanced
from store.state.group_settings import BadTags, GroupSettings, tags_of
from store.state.group_states import GroupKey, Maker
from store.state.groups import ConsumerKey
from store.state.offset_ranges import in_ranges

MOST_CONSUMERS = 10_000  # of a group


class Consumers:
    """Owner of the consumers of all groups of a store. Its Member follows their queues."""

    def __init__(
        self,
        messages: MessageStore,
        followers: Followers,
        owner: MemberOwner,
        tier: Tier,
        quotas: QuotaLimits = NO_QUOTAS,
    ) -> None:
        self.now_ms: Callable[[], int] = _wall_clock_ms
        self.clock: Callable[[], float] = time.monotonic  # seconds
        self._messages = messages
        self._followers = followers
        self._owner = owner
        self._member: Member | None = None
        self._groups = messages.groups
        self._by_key: dict[tuple[str, str, GroupKey], Consumer] = {}
        self._waiting: dict[GroupQueue, WaitingPolls] = {}  # of groups that have consumers, or had them a moment ago
        self._by_queue: dict[Queue, list[GroupQueue]] = {}
        self._limits = GroupLimits(messages.groups, quotas)
        self.quota_refused = self._limits.refused
        self._unused = UnusedGroups(messages)
        self._tier = GroupTier(messages, tier, self._serve_from_tier)

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
        tag: str | None = None,
        lasting: bool = False,
    ) -> Consumer:
        """A consumer comes; the group is made if need be. Raises StoreError, GroupRefused, NoSuchPosition.

        `if_new`: the settings of a group that is made, where `settings` are none; `maker`: who makes it. `or_refuse`:
        as in beginning(). `tag`: of a group that is made; None: all, or what the group has. `lasting`: as in
        Group.leave().
        """
        try:
            tags = tags_of(tag or "")
        except (BadTags, UnicodeError) as error:
            raise GroupRefused(f"group {group[0]}: {error}") from None
        known = self._groups.get(group)
        if known is not None and tag is not None and tags != known.tag_sets:
            has = f"has the tag {known.state.tag!r}" if known.state.tag else "has no tag"
            raise GroupRefused(f"group {group[0]} {has}, not {tag!r}; drop it (`penstock group drop`) or use another")
        if known is None and settings is None:
            settings = if_new
        if known is not None and settings is not None and settings.partitions != known.settings.partitions:
            now, wanted = known.settings.partitions, settings.partitions
            raise GroupRefused(
                f"group {group[0]} has {now} partitions, not {wanted}; drop it (`penstock group drop`) or use another"
            )
        if known is None and len(tags) > 1 and settings is not None and settings.partitions:
            raise GroupRefused(f"group {group[0]}: an ordered group has no priorities; name tags without `>`")
        consumer = self._by_key.get((*key, group))
        if known is None:
            self._limits.check(group, maker)
        begin = partial(beginning, self._messages, group[1], start, or_refuse, self._tier.has(group[1]))
        queue = self._groups.make(group, settings, begin, maker, tag or "")
        if consumer is not None:
            return consumer
        if len(queue.group.consumers) >= MOST_CONSUMERS:
            raise GroupRefused(f"group {group[0]} has {MOST_CONSUMERS} consumers already")
        if queue not in self._waiting:
            self._follow(queue)
        consumer = self._by_key[*key, group] = Consumer(queue, key)
        queue.group.join(key, lasting)
        return consumer

    def locate(self, group: GroupKey, start: str, then: Located, is_new: bool) -> bool:
        """Like GroupTier.locate(), of a group that is made (`is_new`) unless it is there, or moved."""
        if is_new and self._groups.get(group) is not None:
            return False
        return self._tier.locate(group[1], start, then)

    def close(self, consumer: Consumer, seen: int | None = None) -> None:
        """A consumer goes; what it had goes to others. `seen`: see Group.leave()."""
        queue = consumer.queue
        if self._by_key.pop((*consumer.key, queue.state.key), None) is None:
            return
        queue.group.leave(consumer.key, self.now_ms(), seen)
        self.end_polls(consumer)
        self._waiting[queue].serve()
        self._forget_if_idle(queue)

    def end_polls(self, consumer: Consumer) -> None:
        """Answer the requests with nothing that wait for this consumer."""
        self._waiting[consumer.queue].end(consumer)

    def left(self, peer: str) -> None:
        """A peer is gone, and its consumers with it."""
        for consumer in [consumer for consumer in self._by_key.values() if consumer.key[0] == peer]:
            self.close(consumer)

    def _follow(self, queue: GroupQueue) -> None:
        if self._member is None:
            self._member = self._owner.join("consumer groups")
            self._member.listen(self)
        queues, topic_filter = self._messages.queues, queue.state.topic_filter
        followed = queues.watch_stored(topic_filter) or queues.watch(topic_filter)
        self._followers.follow(self._member, followed, followed.next_offset)
        self._waiting[queue] = WaitingPolls(queue, followed, lambda: self.now_ms())
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
        self._waiting[poll.consumer.queue].pop(poll, self.clock())

    def _serve_from_tier(self, queue: GroupQueue) -> None:
        """The tier has answered."""
        if queue in self._waiting:
            self._waiting[queue].serve()
        if queue.group.dead:
            self._groups.write(queue, self.now_ms())

    def forget(self, receiver: PopReceiver) -> None:
        """Drop the requests whose answers would go there."""
        for waiting in self._waiting.values():
            waiting.forget(receiver)

    # --- what consumers say

    def said(self, queue: GroupQueue, answer: Callable[[StoreError | None], None] | None) -> None:
        """Something was said to a group: answer once it is in the log, and safe. What it frees is dealt at once."""
        waiting = self._waiting[queue]
        if answer is not None:
            waiting.said.append((queue.version, answer))
        if waiting.polls:
            self._waiting[queue].serve()

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
                        self._waiting[queue].serve()

    def reset(self, group: GroupKey, to: str) -> int:
        """Raises StoreError, GroupRefused, NoSuchPosition. Returns the queue_offset."""
        queue = self._known(group)
        queue_offset = beginning(self._messages, group[1], to, False, self._tier.has(group[1]))
        self._groups.reset(queue, queue_offset)
        if queue in self._waiting:
            self._waiting[queue].serve()
        return queue_offset

    def pause(self, group: GroupKey, paused: bool) -> int:
        """Deal nothing more, or go on. Returns the queue_offset before which all is done with.

        Raises StoreError, GroupRefused.
        """
        queue = self._known(group)
        self._groups.pause(queue, paused)
        if queue in self._waiting:
            self._waiting[queue].serve()
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
            self._owner.tell_changes()  # others may follow the queue of dead letters
        for queue, each in waiting:
            until = queue.tried_version if queue.failure else queue.safe_version()
            while each.said and each.said[0][0] <= until:
                each.said.popleft()[1](queue.failure)
            self._forget_if_idle(queue)

    def tick(self) -> None:
        """Call this several times a second."""
        if not len(self._groups):
            return
        self._groups.tick(self.now_ms())
        self._owner.tell_changes()
        now_s = self.clock()
        for key in self._unused.collect(now_s):
            with suppress(StoreError):  # it is tried again
                self.drop(key)
        for waiting in list(self._waiting.values()):
            if waiting.polls:
                waiting.serve()
                waiting.give_up(now_s)
        self.turn_ends()

    # --- StoreListener

    def wake(self) -> None:
        """Hand out messages, as some of the queues grew."""
        if self._member is None:
            return
        for grown in self._member.collect_news():
            for queue in self._by_queue.get(grown, ()):
                self._waiting[queue].serve()

    def safe_advanced(self) -> None:
        self.turn_ends()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
