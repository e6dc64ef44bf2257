"""The users' quotas of a store in another process, as a gateway sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from notify.quotas import MessageTaken, SubscriptionsTaken
from store.state.usage import NOTHING, Counted
from store.wire.client.requests import Answered, Outcome
from store.wire.messages import Welcome, WireMessage
from store.wire.quota_messages import LiveSubscriptions, TakeMessage, Taken, TakeSubscriptions


class RemoteQuotas:
    """A StoreQuotas (notify.quotas) over the wire. A store of an older version has no quotas."""

    def __init__(
        self,
        ask: Callable[[WireMessage, Answered], object],
        tell: Callable[[WireMessage], None],
        welcome: Callable[[], Welcome | None],
    ) -> None:
        """`welcome`: of the connection to the store, if there is one."""
        self._ask = ask
        self._tell = tell
        self._welcome = welcome
        self._counted = NOTHING
        self.told_to = ""

    @property
    def counted(self) -> Counted:
        """As the store said last."""
        welcome = self._welcome()
        if welcome is not None:
            self._counted = Counted(welcome.counted)
            self.told_to = welcome.store_name
        return self._counted

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int, then: MessageTaken) -> None:
        def answered(answer: Outcome, _: object) -> None:
            taken = answer if isinstance(answer, Taken) else Taken(0, "the store did not say whether it may")
            then(Counted(taken.number), taken.fault)

        self._ask(TakeMessage(user, int(wanted), topic.decode(), size_bytes), answered)

    def take_subscriptions(
        self, user: str, client_id: str, topic_filters: Sequence[str], live: int | None, then: SubscriptionsTaken
    ) -> None:
        def answered(answer: Outcome, _: object) -> None:
            taken = answer if isinstance(answer, Taken) else Taken(0, "the store did not say whether it may")
            then(taken.number, taken.fault)

        self._ask(TakeSubscriptions(user, client_id, list(topic_filters), live), answered)

    def tell_live(self, user: str, number: int) -> None:
        if self.counted & Counted.SUBSCRIPTION:
            self._tell(LiveSubscriptions(user, number))
