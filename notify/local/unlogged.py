"""Items of users' quotas that are not in the log: connections without a session there, and their subscriptions."""

from __future__ import annotations

from collections import Counter

from notify.local.member import Member
from store.namespaces import namespace_of


class Unlogged:
    """Owner of these counts. A key is the name of a user, or of a namespace, as in UserQuotas."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, ...]] = {}  # by client_id: the users and namespaces that it counts for
        self._sessions: Counter[str] = Counter()
        self._subscriptions: dict[Member, Counter[str]] = {}  # by user
        self._subscriptions_in: Counter[str] = Counter()  # of all members, by namespace

    # --- sessions

    def holds(self, client_id: str, keys: tuple[str, ...]) -> None:
        """A connection counts as a session for these."""
        self.lets_go(client_id)
        self._keys[client_id] = keys
        self._sessions.update(keys)

    def lets_go(self, client_id: str) -> None:
        """The connection is gone, or the log has its session."""
        for key in self._keys.pop(client_id, ()):
            self._sessions[key] -= 1
            if not self._sessions[key]:
                del self._sessions[key]

    def sessions(self, key: str) -> int:
        return self._sessions[key]

    # --- subscriptions

    def tell_live(self, member: Member, user: str, number: int) -> None:
        """How many subscriptions a member has of a user whose sessions the log does not have."""
        of_member = self._subscriptions.setdefault(member, Counter())
        self._subscriptions_in[namespace_of(user).name] += number - of_member[user]
        of_member[user] = number
        if not number:
            del of_member[user]
        if not of_member:
            del self._subscriptions[member]

    def left(self, member: Member) -> None:
        for user in list(self._subscriptions.get(member, ())):
            self.tell_live(member, user, 0)

    def subscriptions_of(self, user: str) -> int:
        return sum(each[user] for each in self._subscriptions.values())

    def subscriptions_in(self, namespace: str) -> int:
        return self._subscriptions_in[namespace]
