"""Limits of clients, as a store and its gateways share them: bans, as the log keeps them, and users' quotas."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from store.errors import StoreError
from store.state.bans import BanState
from store.state.changes import BanKind
from store.state.usage import Counted
from store.wire.operator_messages import BanInfo, BansTold, LoginEnd

BANS_PER_FRAME = 1_000


class StoreBans(Protocol):
    """The store's bans, for a gateway. Its listener is told of later changes."""

    def in_force(self) -> list[BanState]:
        """The bans in force, as far as this process knows them."""

    def made(self, kind: BanKind, value: str, until_ms: int, reason: str) -> None:
        """Tell the store about a ban that this gateway made by itself."""


class LoginCounts(Protocol):
    """The counts of how logins ended in other processes."""

    def take(self, ends: Iterable[LoginEnd]) -> None:
        """Count these."""


class BadBan(StoreError):
    """A ban that cannot be; says why."""


def normal(kind: BanKind, value: str) -> str:
    """The one spelling of a ban's value. Raises BadBan."""
    if kind != "address":
        return value
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise BadBan(f"{value!r} is no IP address or network, as 192.0.2.7 or 2001:db8::/64") from None
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def info_of(state: BanState) -> BanInfo:
    return BanInfo(state.kind, state.value, state.until_ms, state.reason, state.set_by, state.automatic, state.set_ms)


def state_of(info: BanInfo) -> BanState:
    return BanState(info.kind, info.value, info.until_ms, info.reason, info.set_by, info.automatic, info.set_ms)


def all_told(states: Iterable[BanState]) -> list[BansTold]:
    """Frames that say all there is."""
    infos = [info_of(state) for state in states]
    pages = [infos[at : at + BANS_PER_FRAME] for at in range(0, len(infos), BANS_PER_FRAME)] or [[]]
    return [BansTold(page, [], number == 0) for number, page in enumerate(pages)]


MessageTaken = Callable[[Counted, str], None]
SubscriptionsTaken = Callable[[int, str], None]


class StoreQuotas(Protocol):
    """The quotas of a store, as one gateway sees them. Answers come at once, or in a later turn."""

    @property
    def counted(self) -> Counted:
        """The kinds of items that have a limit."""

    @property
    def told_to(self) -> str:
        """A text that changes when the store has forgotten the numbers of tell_live()."""

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int, then: MessageTaken) -> None:
        """Grant a message that makes its topic, is retained or delayed. `then`: what it counts as; why it may not."""

    def take_subscriptions(
        self, user: str, client_id: str, topic_filters: Sequence[str], live: int | None, then: SubscriptionsTaken
    ) -> None:
        """Grant new subscriptions; see UserQuotas. `then`: how many, from the first on; why no more."""

    def tell_live(self, user: str, number: int) -> None:
        """Tell the store the number of a user's subscriptions here in sessions that end with their connection."""
