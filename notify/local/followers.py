"""Which members of the hub follow which queue."""

from __future__ import annotations

from collections.abc import Iterable

from lightqueue.queues._queues import LIVE, Queue
from lightqueue.queues.table import QueueTable
from notify.local.member import Member


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
        """Those of these queues that a member follows."""
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
