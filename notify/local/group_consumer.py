"""A consumer of a group in the store's own process: notify.api.GroupConsumer as calls to Consumers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from lightqueue.errors import LightQueueError
from lightqueue.groups.popped import PoppedMessages
from notify.api import LeasedMessages, Receipt
from notify.errors import GroupRefused
from notify.local.consumers import Consumers
from notify.local.polls import Consumer, PopRequest
from store.errors import StoreError
from store.ratelimit import RateLimitedLog
from store.state.group_settings import LATEST, GroupSettings
from store.state.group_states import GroupKey, Maker
from store.state.groups import ConsumerKey

_events = RateLimitedLog(logging.getLogger("penstock.store"))


class LocalConsumer:
    """A consumer of a group in this process. Its answers come at once, or when the queue grows."""

    has_room = True

    def __init__(self, consumers: Consumers, consumer: Consumer, handed: Callable[[LeasedMessages], None]) -> None:
        self.is_closing = False
        self._consumers = consumers
        self._consumer = consumer
        self._handed = handed
        self._poll = PopRequest(
            consumer, self, 0, 0, 0, math.inf, self._dealt
        )  # nothing else is wanted at the same time

    @property
    def group(self) -> GroupKey:
        return self._consumer.queue.state.key

    @property
    def name(self) -> str:
        """Among the consumers of its member."""
        return self._consumer.key[1]

    @property
    def settings(self) -> GroupSettings:
        return self._consumer.queue.settings

    def want(self, most: int, max_bytes: int, invisible_ms: int) -> None:
        poll = self._poll
        poll.most, poll.max_bytes, poll.invisible_ms = most, max_bytes, invisible_ms
        self._consumers.pop(poll)

    def stop(self) -> None:
        self._consumers.forget(self)

    def _dealt(self, dealt: PoppedMessages) -> None:
        self._handed(LeasedMessages(dealt.lasting(), dealt.ranges))

    def ack(self, receipts: list[Receipt], then: Callable[[], None] | None = None) -> None:
        for receipt in receipts:
            self._consumer.queue.ack(*receipt)
        self._said(then)

    def extend(self, receipts: list[Receipt], invisible_ms: int) -> None:
        due_ms = self._consumers.now_ms() + invisible_ms
        for receipt in receipts:
            self._consumer.queue.change_invisible(*receipt, due_ms, self._consumer.key)

    def give_back(self, receipts: list[Receipt]) -> None:
        now_ms = self._consumers.now_ms()
        for receipt in receipts:
            self._consumer.queue.reject(*receipt, now_ms, 0, "")
        self._said(None)

    def _said(self, then: Callable[[], None] | None) -> None:
        def answered(error: StoreError | None) -> None:
            if error is None and then is not None:
                then()

        self._consumers.said(self._consumer.queue, answered if then is not None else None)

    def close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._consumers.close(self._consumer)


def open_consumer(
    consumers: Consumers,
    key: ConsumerKey,
    group: GroupKey,
    if_new: GroupSettings,
    start: str,
    handed: Callable[[LeasedMessages], None],
    maker: Maker,
) -> LocalConsumer | str:
    """Open a consumer of a group. Returns, and logs, the reason if the group cannot be opened."""
    try:
        consumer = consumers.open(key, group, None, start, if_new, maker, or_refuse=start != LATEST)
        return LocalConsumer(consumers, consumer, handed)
    except (StoreError, GroupRefused, LightQueueError) as error:
        _events.warning("group", "group %s over %s: %s", *group, error)
        return str(error)
