"""Limits of clients, as a store in another process tells them: bans, users' quotas, and the pace of publishers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from notify.api import SessionListener
from notify.limits import LoginCounts, MessageTaken, SubscriptionsTaken, state_of
from store.state.bans import BanKey, BanState
from store.state.changes import BanKind
from store.state.usage import NOTHING, Counted
from store.wire.base import WireMessage
from store.wire.client.requests import Outcome, PendingRequests
from store.wire.handshake import LOGINS_VERSION, OPERATORS_VERSION, PACING_VERSION
from store.wire.messages import Welcome
from store.wire.operator_messages import BanMade, BansTold, Disconnect, LoginsEnded
from store.wire.pace_messages import Behind, Slow
from store.wire.quota_messages import LiveSubscriptions, TakeMessage, Taken, TakeSubscriptions


class ConnectedStore(Protocol):
    """The connection to a store, as the parts of a RemoteStore see it."""

    @property
    def welcome(self) -> Welcome | None:
        """What the store said when it was made; None: there is none."""


class RemoteBans:
    """Owner of what a store in another process has told of bans."""

    def __init__(self, requests: PendingRequests, connection: ConnectedStore) -> None:
        self._states: dict[BanKey, BanState] = {}
        self._tell = requests.tell
        self._connection = connection
        self._login_counts: LoginCounts | None = None

    def count_logins(self, counts: LoginCounts) -> None:
        """Set `counts`, which is told how logins end in other processes."""
        self._login_counts = counts

    def in_force(self) -> list[BanState]:
        return list(self._states.values())

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str) -> None:
        if self._knows(OPERATORS_VERSION):
            self._tell(BanMade(kind, value, until_ms, reason))

    def logins_ended(self, ended: LoginsEnded) -> None:
        """Tell the store how logins at this gateway ended."""
        if self._knows(LOGINS_VERSION):
            self._tell(ended)

    def _knows(self, version: int) -> bool:
        """True if there is a connection to a store of this version or a later one."""
        welcome = self._connection.welcome
        return welcome is not None and welcome.version >= version

    def heard(self, message: WireMessage, listener: SessionListener) -> bool:
        """Take what the store says of bans and operators, and pass it on. False: it is something else."""
        if isinstance(message, BansTold):
            self._take(message, listener)
        elif isinstance(message, LoginsEnded):
            if self._login_counts is not None:
                self._login_counts.take(message.ends)
        elif isinstance(message, Disconnect):
            listener.told(message)
        else:
            return False
        return True

    def _take(self, message: BansTold, listener: SessionListener) -> None:
        lifted = list(message.lifted)
        if message.anew:
            stay = {(info.kind, info.value) for info in message.bans}
            lifted = [key for key in self._states if key not in stay]
        for key in lifted:
            self._states.pop(key, None)
        self._states.update(((info.kind, info.value), state_of(info)) for info in message.bans)
        listener.told(BansTold(message.bans, lifted, False))


class RemoteQuotas:
    """A StoreQuotas (notify.limits) over the wire. A store of an older version has no quotas."""

    def __init__(self, requests: PendingRequests, connection: ConnectedStore) -> None:
        self._ask, self._tell = requests.ask, requests.tell
        self._connection = connection
        self._counted = NOTHING
        self.told_to = ""

    @property
    def counted(self) -> Counted:
        """The counted things, as the store told them last."""
        welcome = self._connection.welcome
        if welcome is not None:
            self._counted = Counted(welcome.counted)
            self.told_to = welcome.store_name
        return self._counted

    def take_over(self, welcome: Welcome) -> None:
        """Take over what the store told another process."""
        self._counted, self.told_to = Counted(welcome.counted), welcome.store_name

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


class RemotePace:
    """Lag of this gateway, as it told its store, and of other gateways. Each connection begins anew."""

    def __init__(self, requests: PendingRequests) -> None:
        self._tell = requests.tell
        self._is_told = self._knows = False
        self.is_slow = False  # some gateway is behind, perhaps this one

    def connected(self, welcome: Welcome) -> None:
        self._knows = welcome.version >= PACING_VERSION
        self._is_told = self.is_slow = False

    def heard(self, message: WireMessage) -> bool:
        """Take what the store says of this. False: it is something else."""
        if isinstance(message, Slow):
            self.is_slow = message.is_slow
        return isinstance(message, Slow)

    def tell(self, is_behind: bool) -> None:
        """Whether subscribers of this gateway are behind, now."""
        if self._knows and is_behind != self._is_told:
            self._is_told = is_behind
            self._tell(Behind(is_behind))
