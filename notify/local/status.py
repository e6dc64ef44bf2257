"""How a store in this process is, for the gateway beside it."""

from __future__ import annotations

from lightqueue.message_store import MessageStore


class LocalStatus:
    """A StoreStatus (notify.api)."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages

    @property
    def stored_messages(self) -> int:
        return self._messages.queues.dispatcher.messages

    @property
    def log_bytes(self) -> int:
        return self._messages.end - self._messages.log.first

    @property
    def retained(self) -> int:
        return len(self._messages.retained)

    @property
    def subscriptions(self) -> int:
        return self._messages.sessions.subscription_count

    @property
    def absent_sessions(self) -> int:
        return self._messages.sessions.offline

    @property
    def expired_sessions(self) -> int:
        return self._messages.absent.expired

    def sessions_by_namespace(self, most: int) -> dict[str, float]:
        return dict(self._messages.sessions.namespaces.most_common(most))
