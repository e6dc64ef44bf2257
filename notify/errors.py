"""Errors between a store and its users. Each message names the thing and the remedy."""

from store.errors import StoreError
from store.namespaces import shown


class NotifyError(Exception):
    """Base of every error of this package."""


class GroupRefused(NotifyError):
    """A group cannot do what a consumer asks."""


class LeaseLost(NotifyError, StoreError):
    """Messages that a member was handed are another one's by now, or done with."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"messages of group {group} are another gateway's by now; clients that wait for them reconnect"
        )


class NotFollowed(NotifyError, StoreError):
    """A client reads what came before it followed a queue, for which Follow asked no right."""

    def __init__(self, queue_offset: int, began: int) -> None:
        super().__init__(f"it follows the queue from {began} on, and reads {queue_offset}; ask for a page of history")


class GroupQuota(GroupRefused):
    """A user has as many groups as it may have."""

    def __init__(self, user: str, used: int, namespace: str | None = None) -> None:
        """`namespace`: the one that has as many, empty for the default one; None: the user has."""
        who = f"user {user}" if user else "clients without a user together"
        if namespace is not None:
            told = f"quota.namespace_groups: {shown(namespace)} has {used} groups, and may have no more"
        else:
            told = f"quota.user_groups: {who} made {used} groups that are there, and may make no more"
        super().__init__(told)
