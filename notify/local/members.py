"""Users of the store as the hub knows them: gateways, clients, the consumer groups; and who follows which queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from lightqueue.queues._queues import LIVE, Queue
from lightqueue.queues.table import QueueTable
from notify.api import NO_LISTENER, SessionListener, StoreListener
from store.wire.operator_messages import BansTold, LoginsEnded
from store.wire.pace_messages import Slow

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

    def collect_named(self) -> tuple[list[Queue], bool]:
        """The queues that grew_named() was given, and whether there were more than MOST_NAMED of them.

        A queue without watchers is left out: another queue may have its name by now.
        """
        named = [queue for queue in self._named if queue.watchers] if self._named else []
        others = self._any_grew
        self._named, self._any_grew = {}, False
        return named, others

    def collect_news(self) -> list[Queue]:
        news, self._news = self._news, {}
        return list(news)

    def forget(self, queue: Queue) -> None:
        """The member does not follow this queue any more."""
        self._news.pop(queue, None)
        self.floors.pop(queue, None)


class MemberOwner(Protocol):
    """The hub, as its parts call it."""

    def join(self, name: str) -> Member:
        """A new user of the store. Its listen() is to be called before anything else."""

    def tell_changes(self, acting: Member | None = None) -> None:
        """Something was stored, or a session is free: tell whom it concerns. `acting` looks by itself."""

    def tell(self, message: BansTold) -> None:
        """Tell all members."""

    def tell_gateways(self, message: Slow | LoginsEnded, but: Member | None = None) -> None:
        """Tell all gateways in other processes, `but` one."""

    def session_listeners(self) -> Iterable[SessionListener]:
        """Those of all members."""


class SessionHolder(NamedTuple):
    """The member that has a session's connection, and the connection's user as in Claimant."""

    member: Member
    user: str | None


def holder_of(member: Member, user: str | None) -> SessionHolder:
    """The holder of a session.

    A member's anonymous clients share one object, as there may be a hundred thousand of them.
    """
    return member.anonymous if user == "" else SessionHolder(member, user)


class Followers:
    """Owner of who follows a queue, and of the floors of LIVE queues."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        # By queue: its followers, and how many times each follows it. Most queues have one follower, that follows once.
        # Then the follower stands there alone, since a hundred thousand dicts take much memory.
        self._followers: dict[Queue, Member | dict[Member, int]] = {}

    def members(self, queue: Queue) -> Iterable[Member]:
        """All followers of a queue."""
        followers = self._followers.get(queue, ())
        return (followers,) if isinstance(followers, Member) else followers

    def follow(self, member: Member, queue: Queue, position: int) -> None:
        followers = self.of(queue)
        followers[member] = followers.get(member, 0) + 1
        self._set_followers(queue, followers)
        if queue.kind == LIVE:
            member.floors.setdefault(queue, position)

    def unfollow(self, member: Member, queue: Queue) -> None:
        followers = self.of(queue)
        followers[member] -= 1
        if not followers[member]:
            del followers[member]
            member.forget(queue)
        self._set_followers(queue, followers)
        self._queues.unwatch(queue)

    def of(self, queue: Queue) -> dict[Member, int]:
        """The followers of a queue, and how many times each follows it."""
        followers = self._followers.get(queue)
        return {followers: 1} if isinstance(followers, Member) else followers or {}

    def followed_of(self, member: Member, queues: Iterable[Queue]) -> list[Queue]:
        """The queues, of the given ones, that a member follows."""
        none: dict[Member, int] = {}
        found = ((queue, self._followers.get(queue, none)) for queue in queues)
        return [queue for queue, who in found if who is member or (isinstance(who, dict) and member in who)]

    def _set_followers(self, queue: Queue, followers: dict[Member, int]) -> None:
        if not followers:
            del self._followers[queue]
        elif len(followers) == 1 and 1 in followers.values():
            (self._followers[queue],) = followers
        else:
            self._followers[queue] = followers

    def needed_from(self, member: Member, floors: Iterable[tuple[Queue, int]]) -> None:
        """Keep the entries of a LIVE queue that its slowest follower needs."""
        for queue, floor in floors:
            if queue.kind == LIVE and queue in self._followers:
                member.floors[queue] = floor
                self._queues.needed_from(queue, min(each.floors[queue] for each in self.of(queue)))
