"""Whether clients may still read what they have open, asked again once the answers of another server have expired.

New rules end the connections of users; another server does not say when it would answer otherwise. So each client is
asked about in rounds, as often as answers expire: about the queues that it follows and the groups that it consumes.
Without an answer everything stays as it is, as with MQTT.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from lightqueue.queues.table import filter_of
from notify.requests.group_requests import GroupRequests
from notify.requests.permissions import SUBSCRIBE, plain_permission
from notify.requests.users import Permission
from notify.server.conversation import Conversation
from notify.server.peers import Peer
from notify.steps import STEP_S, Steps

MOST_ASKED = 64
"""Questions about all clients that wait for answers at a time."""
MOST_ASKED_OF_ONE = 8


class OpenRights:
    """The open things of one client whose permissions are checked again, and how far a round is with them."""

    def __init__(
        self, conversation: Conversation, groups: GroupRequests, take_away: Callable[[Permission], None]
    ) -> None:
        """`take_away`: end what is open; it is not called for a connection that ends already."""
        self.conversation = conversation
        self.take_away = take_away
        self.due_s: float | None = None
        self.round: Iterator[Permission] | None = None  # None: no round is under way
        self.asked: set[Permission] = set()  # without an answer so far
        self.is_set_aside = False  # until one of these is answered
        self._groups = groups

    @property
    def asks_again_s(self) -> int:
        """Seconds until permissions are asked again; 0: no other server is asked."""
        user = self.conversation.permits.user
        return user.asks_again_s if user is not None and not self.conversation.is_closing else 0

    def begin(self) -> None:
        peer = self.conversation.peer
        self.round = _open_of(peer, self._groups) if peer is not None else None

    def next(self) -> Permission | None:
        """The next one; None: the round is over."""
        wanted = next(self.round, None) if self.round is not None and not self.conversation.is_closing else None
        if wanted is None:
            self.round = None
        return wanted

    def hear(self, wanted: Permission, allowed: bool | None) -> None:
        """Take an answer; None: there was none."""
        if allowed is False and not self.conversation.is_closing:
            self.take_away(wanted)


def _open_of(peer: Peer, groups: GroupRequests) -> Iterator[Permission]:
    """The permissions that a client would need to open again what it has open."""
    names = peer.own.names
    for queue in list(peer.followed.refs):
        if queue in peer.followed.refs:
            yield plain_permission(Permission(SUBSCRIBE, filter_of(queue)), names)
    for group in groups.open_of(peer.name):
        yield plain_permission(Permission(SUBSCRIBE, group.state.topic_filter, group.state.name), names)


class RightsReview:
    """Owner of the rounds. In each turn of the loop some rights are judged, of one client after the other."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._ready: deque[OpenRights] = deque()
        self._asked = 0
        self._is_in_step = False
        self._steps = Steps(self._some, call_soon)

    def tick(self, rights: OpenRights, now_s: float) -> None:
        """Call this several times a second for each client."""
        lasts_s = rights.asks_again_s
        if not lasts_s or rights.round is not None:
            return
        if rights.due_s is not None and now_s >= rights.due_s:
            rights.due_s = None
            rights.begin()
            self._go_on(rights)
        rights.due_s = rights.due_s or now_s + lasts_s

    def stop(self) -> None:
        self._steps.stop()

    def _go_on(self, rights: OpenRights) -> None:
        self._ready.append(rights)
        self._start()

    def _start(self) -> None:
        if not self._is_in_step:  # an answer may come while it is asked for
            self._steps.start()

    def _some(self) -> bool:
        self._is_in_step = True
        try:
            ends_s = time.perf_counter() + STEP_S
            while self._ready and self._asked < MOST_ASKED:
                self._judge_one(self._ready.popleft())
                if time.perf_counter() >= ends_s:
                    break
        finally:
            self._is_in_step = False
        return bool(self._ready) and self._asked < MOST_ASKED

    def _judge_one(self, rights: OpenRights) -> None:
        wanted = rights.next()
        if wanted is None:
            return
        permits = rights.conversation.permits
        allowed = permits.known(wanted)
        if allowed is not None:
            rights.hear(wanted, allowed)
        elif wanted not in rights.asked:
            rights.asked.add(wanted)
            self._asked += 1
            permits.ask(wanted, partial(self._heard, rights, wanted))
        rights.is_set_aside = len(rights.asked) >= MOST_ASKED_OF_ONE
        if not rights.is_set_aside:
            self._ready.append(rights)

    def _heard(self, rights: OpenRights, wanted: Permission, allowed: bool | None) -> None:
        self._asked -= 1
        rights.asked.discard(wanted)
        rights.hear(wanted, allowed)
        if rights.is_set_aside:
            rights.is_set_aside = False
            self._ready.append(rights)
        self._start()
