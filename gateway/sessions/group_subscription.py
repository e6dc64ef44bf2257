"""A session's part in a consumer group: messages that it was handed, and those that its client has not acknowledged.

It knows nothing of sessions, so that a session can have it without a circle of imports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from gateway.mqtt._dealt import DealtMessage, DealtShare
from notify.api import GroupConsumer
from store.records._records import Records
from store.state.changes import SubscriptionState
from store.state.group_states import GroupKey

SessionT = TypeVar("SessionT")


class HandedRange:
    """Messages that were handed out together and not sent so far: `number` from queue_offset `first` on.

    They are in `records` from `place` on.
    """

    __slots__ = ("first", "is_plain", "number", "place", "records", "serial")

    def __init__(
        self, records: Records, place: int, serial: int, first: int, number: int, is_plain: bool = False
    ) -> None:
        """`is_plain`: no payload has to be decompressed before it is sent."""
        self.is_plain = is_plain
        self.records = records
        self.place = place
        self.serial = serial
        self.first = first
        self.number = number

    def skip(self, number: int) -> None:
        self.place += number
        self.first += number
        self.number -= number


class GroupSubscription(DealtShare, Generic[SessionT]):
    """One shared subscription of one session."""

    def __init__(
        self,
        session: SessionT,
        subscription: SubscriptionState,
        group: GroupKey,
        has_work: Callable[[GroupSubscription[SessionT]], object],
    ) -> None:
        """`has_work` is called when there is something to be done for this subscription."""
        super().__init__()
        self.session = session
        self.subscription = subscription
        self.seat: GroupConsumer | None = None  # until the group is joined
        self.group = group
        self.is_wanting = False  # messages were asked for, and did not come so far
        self.is_fresh = False  # it was handed a message that no consumer had before, so what went back is dealt
        self.prompt = True
        self.is_leaving = False  # the client has unsubscribed, but not acknowledged all
        self.pending: deque[HandedRange] = deque()
        self.sent_until = 0  # queue_offset: none from here on was sent
        self.settling: set[int] = set()  # queue_offsets that the client has acknowledged, but the log does not have
        self._has_work = has_work

    def was_settled(self, dealt: DealtMessage) -> None:
        """The client has acknowledged a delivery, so the group is told. Plain PUBACKs are told once a turn."""
        if dealt.qos == 2:
            self.settling.add(dealt.queue_offset)
        self._has_work(self)

    @property
    def subscription_ids(self) -> tuple[int, ...]:
        number = self.subscription.subscription_id
        return (number,) if number else ()
