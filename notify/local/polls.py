"""Requests of consumers for messages that wait, and how what a group has is divided among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from lightqueue.groups.group_queue import GroupQueue
from lightqueue.groups.popped import NOTHING, PoppedMessages
from lightqueue.queues._queues import Queue
from notify.errors import GroupRefused
from store.errors import StoreError
from store.records._records import Records
from store.state.group_settings import Strategy
from store.state.groups import ConsumerKey

MOST_POPPED = 8_192
MOST_WAITING = 20_000  # requests for messages of a group
FEW = 64  # messages that are not worth dividing


class PopReceiver(Protocol):
    """The receiver of the answer to a PopRequest."""

    @property
    def is_closing(self) -> bool:
        """True if the receiver's connection ends, so that an answer is lost."""

    @property
    def has_room(self) -> bool:
        """True if the receiver may be sent more."""


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


class WaitingPolls:
    """Owner of the requests that wait for one group. `followed`: the queue that the group is over."""

    def __init__(self, queue: GroupQueue, followed: Queue, now_ms: Callable[[], int]) -> None:
        self.queue = queue
        self.followed = followed
        self.polls: deque[PopRequest] = deque()
        self.said: deque[tuple[int, Callable[[StoreError | None], None]]] = deque()  # (version, answer)
        self._now_ms = now_ms

    def pop(self, poll: PopRequest, now_s: float) -> None:
        """Answer now, or once there is something, or once it is too late. Raises GroupRefused if too many wait."""
        if self.queue.may_have(self._now_ms()) and self._answered(poll, self._fair_share()):
            return
        if poll.until_s <= now_s:
            poll.answer(NOTHING)
        elif len(self.polls) >= MOST_WAITING:
            name = self.queue.state.name
            raise GroupRefused(f"{MOST_WAITING} requests wait for messages of group {name} already")
        else:
            self.polls.append(poll)

    def end(self, consumer: Consumer) -> None:
        """Answer the requests with nothing that wait for this consumer."""
        for poll in [poll for poll in self.polls if poll.consumer is consumer]:
            self.polls.remove(poll)
            poll.answer(NOTHING)

    def forget(self, receiver: PopReceiver) -> None:
        """Drop the requests whose answers would go there."""
        if any(poll.receiver is receiver for poll in self.polls):
            self.polls = deque(poll for poll in self.polls if poll.receiver is not receiver)

    def _fair_share(self) -> int:
        """The most that one request may have of what is ready, since other consumers are about to ask as well."""
        if self.queue.settings.partitions or len(self.queue.group.consumers) < 2:
            return MOST_POPPED
        return max(FEW, self.queue.ready // len(self.queue.group.consumers))

    def _answered(self, poll: PopRequest, most: int = MOST_POPPED) -> bool:
        """Answer a request if there is something for it. Whether it waits no more."""
        if poll.receiver.is_closing:
            return True
        if not poll.receiver.has_room:
            return False
        queue, now_ms = poll.consumer.queue, self._now_ms()
        due_ms = now_ms + (poll.invisible_ms or queue.settings.invisible_ms)
        dealt = queue.pop(poll.consumer.key, min(poll.most, most, MOST_POPPED), poll.max_bytes, now_ms, due_ms)
        if dealt.ranges:
            poll.answer(dealt)
        return bool(dealt.ranges)

    def serve(self) -> None:
        """Answer the requests that wait with what there is."""
        queue = self.queue
        if queue.settings.partitions:
            self._serve_each()
            return
        while self.polls and (ready := queue.ready) and queue.group.has_room:
            if not self._share_out(ready):
                return

    def _serve_each(self) -> None:
        """Give each consumer what is in its partitions."""
        polls = self.polls
        for _ in range(len(polls)):
            if self._answered(polls[0]):
                polls.popleft()
            else:
                polls.rotate(-1)

    def _share_out(self, ready: int) -> bool:
        """Divide what is ready among the requests that wait. False if none was answered."""
        queue = self.queue
        polls = (poll for poll in self.polls if poll.receiver.has_room or poll.receiver.is_closing)
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
        now_ms = self._now_ms()
        records = queue.new(min(ready, sum(most)), min(poll.max_bytes for poll in takers), now_ms)
        if records is None:
            shares = zip(takers, divide(ready, most, has), strict=True)
            answered = {poll for poll, share in shares if share and self._answered(poll, share)}
        else:
            answered = _deal(queue, records, zip(takers, divide(records.count, most, has), strict=True), now_ms)
        self._take_away(answered)
        return bool(answered)

    def give_up(self, now_s: float) -> None:
        """Answer the requests with nothing that waited for long enough."""
        late = [poll for poll in self.polls if poll.until_s <= now_s]
        if late:
            self.polls = deque(poll for poll in self.polls if poll.until_s > now_s)
        for poll in late:
            poll.answer(NOTHING)

    def _take_away(self, answered: set[PopRequest]) -> None:
        """Take out requests that were answered, which most of the time are the first."""
        polls, left = self.polls, len(answered)
        while left and polls[0] in answered:
            polls.popleft()
            left -= 1
        if left:
            self.polls = deque(poll for poll in polls if poll not in answered)


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
