"""A gateway's questions to its store about users' quotas, in this process or over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from store.state.usage import Counted

MessageTaken = Callable[[Counted, str], None]
SubscriptionsTaken = Callable[[int, str], None]


class StoreQuotas(Protocol):
    """The quotas of a store, as one gateway sees them. Answers come at once, or in a later turn."""

    @property
    def counted(self) -> Counted:
        """The kinds of items that have a limit."""

    @property
    def told_to(self) -> str:
        """Another text once the store has forgotten what tell_live() said."""

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int, then: MessageTaken) -> None:
        """Grant a message that makes its topic, is retained or delayed. `then`: what it counts as; why it may not."""

    def take_subscriptions(
        self, user: str, client_id: str, topic_filters: Sequence[str], live: int | None, then: SubscriptionsTaken
    ) -> None:
        """Grant new subscriptions; see UserQuotas. `then`: how many, from the first on; why no more."""

    def tell_live(self, user: str, number: int) -> None:
        """How many subscriptions a user has here in sessions that end with their connection."""
