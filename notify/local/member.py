"""A user of the store as the hub knows it: a gateway, a client, or the consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lightqueue.queues._queues import Queue
from notify.api import NO_LISTENER, SessionListener, StoreListener

MOST_NAMED = 4_096  # queues whose names wait for one member; beyond them only the queues that it follows are kept

FollowedOf = Callable[["Member", Iterable[Queue]], list[Queue]]
"""Those of some queues that a member follows."""


class Member:
    """One user of the store: its listener, and which queues grew since it looked last."""

    def __init__(self, name: str, followed_of: FollowedOf) -> None:
        self.name = name
        self.is_gone = False
        self.anonymous = SessionHolder(self, "")  # of all its connections without a user
        self.listener: StoreListener = NO_LISTENER
        self.sessions: SessionListener = NO_LISTENER
        self.floors: dict[Queue, int] = {}  # by LIVE queue: the first queue_offset that it needs
        self._followed_of = followed_of
        self._news: dict[Queue, None] = {}
        self._named: dict[Queue, None] = {}
        self._any_grew = False

    def listen(self, listener: StoreListener, sessions: SessionListener = NO_LISTENER) -> None:
        """Tell these of events from now on."""
        self.listener, self.sessions = listener, sessions

    @property
    def has_news(self) -> bool:
        return bool(self._news or self._named or self._any_grew)

    def grew(self, queue: Queue) -> None:
        self._news[queue] = None

    def grew_named(self, queues: Iterable[Queue]) -> None:
        """Tell the member of these queues by name, whether it follows them or not.

        Beyond MOST_NAMED names only the queues that the member follows are kept, as grew() keeps them. None of those
        may be left out, since the member takes all queues that it follows for known up to the end that it is told.
        """
        if not self._any_grew:
            self._named.update(dict.fromkeys(queues))
            if len(self._named) <= MOST_NAMED:
                return
            queues, self._named, self._any_grew = self._named, {}, True
        self._news.update(dict.fromkeys(self._followed_of(self, queues)))

    def take_named(self) -> tuple[list[Queue], bool]:
        """The queues that grew_named() was given, and whether there were more than MOST_NAMED of them.

        A queue without watchers is left out: another queue may have its name by now.
        """
        named = [queue for queue in self._named if queue.watchers] if self._named else []
        others = self._any_grew
        self._named, self._any_grew = {}, False
        return named, others

    def take_news(self) -> list[Queue]:
        news, self._news = self._news, {}
        return list(news)

    def forget(self, queue: Queue) -> None:
        """The member does not follow this queue any more."""
        self._news.pop(queue, None)
        self.floors.pop(queue, None)


class SessionHolder(NamedTuple):
    """The member that has a session's connection, and the connection's user as in Claimant."""

    member: Member
    user: str | None


def holder_of(member: Member, user: str | None) -> SessionHolder:
    """One object for all anonymous clients of a member, of which there may be a hundred thousand."""
    return member.anonymous if user == "" else SessionHolder(member, user)
