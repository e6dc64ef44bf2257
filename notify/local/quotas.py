"""The users' quotas of a store in this process, as one gateway sees them."""

from __future__ import annotations

from collections.abc import Sequence

from notify.local.member import Member
from notify.local.user_quotas import UserQuotas
from notify.quotas import MessageTaken, SubscriptionsTaken
from store.state.usage import Counted


class LocalQuotas:
    """A QuotaLimits (notify.quotas) whose answers come at once."""

    told_to = "this process"

    def __init__(self, quotas: UserQuotas, member: Member) -> None:
        self._quotas = quotas
        self._member = member

    @property
    def counted(self) -> Counted:
        return self._quotas.counted

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int, then: MessageTaken) -> None:
        then(*self._quotas.take_message(user, wanted, topic, size_bytes))

    def take_subscriptions(
        self, user: str, client_id: str, topic_filters: Sequence[str], live: int | None, then: SubscriptionsTaken
    ) -> None:
        then(*self._quotas.take_subscriptions(self._member, user, client_id, topic_filters, live))

    def tell_live(self, user: str, number: int) -> None:
        self._quotas.unlogged.tell_live(self._member, user, number)
