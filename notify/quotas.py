"""What a gateway asks of its store about users' quotas, in this process or over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from store.state.usage import NOTHING, Counted
from store.wire.messages import Message, Welcome
from store.wire.quota_messages import LiveSubscriptions, TakeMessage, Taken, TakeSubscriptions

if TYPE_CHECKING:
    from notify.local.member import Member
    from notify.local.user_quotas import UserQuotas
    from store.wire.client.requests import Answered, Outcome

MessageTaken = Callable[[Counted, str], None]
SubscriptionsTaken = Callable[[int, str], None]


class Quotas(Protocol):
    """The quotas of a store, as one gateway sees them. Answers come at once, or in a later turn."""

    @property
    def counted(self) -> Counted:
        """What has a limit."""

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


class LocalQuotas:
    """Those of a store in this process."""

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
        self._quotas.tell_live(self._member, user, number)


class RemoteQuotas:
    """Those of a store in another process. One that is older has none."""

    def __init__(
        self,
        ask: Callable[[Message, Answered], object],
        tell: Callable[[Message], None],
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


def answer(member: Member, message: TakeMessage | TakeSubscriptions, _: int) -> tuple[Taken, bytes]:
    """To a gateway in another process."""
    found: list[Taken] = []

    def then(number: int, fault: str) -> None:
        found.append(Taken(int(number), fault))

    if isinstance(message, TakeMessage):
        wanted = Counted(message.wanted & 7)
        member.quotas.take_message(message.user, wanted, message.topic.encode(), message.size_bytes, then)
    else:
        member.quotas.take_subscriptions(message.user, message.client_id, message.topic_filters, message.live, then)
    return found[0], b""


def tell_live(member: Member, message: LiveSubscriptions) -> None:
    member.quotas.tell_live(message.user, message.number)
