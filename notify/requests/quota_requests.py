"""Requests of a gateway in another process about users' quotas."""

from __future__ import annotations

from notify.local.store import LocalStore
from store.state.usage import Counted
from store.wire.quota_messages import LiveSubscriptions, TakeMessage, Taken, TakeSubscriptions


def answer(store: LocalStore, message: TakeMessage | TakeSubscriptions, _: int) -> tuple[Taken, bytes]:
    found: list[Taken] = []

    def then(number: int, fault: str) -> None:
        found.append(Taken(int(number), fault))

    if isinstance(message, TakeMessage):
        wanted = Counted(message.wanted & 7)
        store.quotas.take_message(message.user, wanted, message.topic.encode(), message.size_bytes, then)
    else:
        store.quotas.take_subscriptions(message.user, message.client_id, message.topic_filters, message.live, then)
    return found[0], b""


def tell_live(store: LocalStore, message: LiveSubscriptions) -> None:
    store.quotas.tell_live(message.user, message.number)
