"""Cleaning up behind a member of the hub that is gone, in steps: its sessions are closed, its queues unfollowed.

A gateway may have had a hundred thousand clients, and the store serves others meanwhile. A claim of one of the sessions
does not wait for its turn (Claims.claim).
"""

from __future__ import annotations

from collections.abc import Mapping

from lightqueue.queues._queues import Queue
from notify.local.claims import Claims
from notify.local.followers import Followers
from notify.local.member import Member
from store.errors import StoreError

SESSIONS_PER_STEP = 50  # some 1 ms
QUEUES_PER_STEP = 250


class Departure:
    """The cleaning up behind one member; see Hub.leave()."""

    def __init__(self, claims: Claims, followers: Followers, member: Member, followed: Mapping[Queue, int]) -> None:
        """`followed`: queues, and how many times each."""
        self._claims = claims
        self._followers = followers
        self._member = member
        self._client_ids = claims.held_by(member)  # the last come first
        self._followed = list(followed.items())

    @property
    def is_over(self) -> bool:
        return not self._client_ids and not self._followed

    def step(self) -> None:
        """Do some of it. Raises a StoreError; then try again later."""
        client_ids = self._client_ids[-SESSIONS_PER_STEP:]
        if client_ids:
            try:
                self._claims.close_left(self._member, client_ids)
            except StoreError:
                self._followed_no_more()
                raise
            del self._client_ids[-SESSIONS_PER_STEP:]
        else:
            self._followed_no_more()

    def _followed_no_more(self) -> None:
        for queue, times in self._followed[-QUEUES_PER_STEP:]:
            for _ in range(times):
                self._followers.unfollow(self._member, queue)
        del self._followed[-QUEUES_PER_STEP:]
