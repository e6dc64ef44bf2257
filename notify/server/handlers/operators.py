"""Requests of operators, and what gateways are told of them: bans, clients to disconnect, whether others are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from notify.limits import all_told
from notify.requests import operator_requests
from notify.requests.copy_requests import COPY_REQUESTS, CopyRequest, answer_copy
from notify.requests.operator_requests import OperatorRequests
from notify.server.handlers.connected import Connected, Handlers
from store.wire.base import WireMessage
from store.wire.frames import Frame
from store.wire.handshake import LOGINS_VERSION, OPERATORS_VERSION, PACING_VERSION
from store.wire.messages import Hello, Judge, Role
from store.wire.operator_messages import BanMade, BansTold, Describe, Disconnect, LoginsEnded, TellFigures
from store.wire.pace_messages import Slow
from store.wire.tier_messages import ServeTier

MOST_UNTOLD = 1_000
"""Messages that wait for a gateway, beyond which it is not told how logins ended."""


class OperatorHandlers:
    """Handles operators' requests; owner of what a peer is yet to be told of bans and of clients to disconnect."""

    def __init__(self, connected: Connected, hello: Hello, taken_over: Callable[[str], None]) -> None:
        """`taken_over`: how a gateway of an older version is told that a connection is to end."""
        self._connected = connected
        self._hub = connected.peers.hub
        self._taken_over = taken_over
        self._is_told = hello.role == Role.GATEWAY and OPERATORS_VERSION in hello.versions
        self.to_tell: list[WireMessage] = list(all_told(self._hub.bans.in_force())) if self._is_told else []
        self._shares_logins = self._is_told and LOGINS_VERSION in hello.versions
        self._is_paced = self._is_told and PACING_VERSION in hello.versions
        if self._is_paced and self._hub.pace.is_slow:
            self.to_tell.append(Slow(True))
        self._requests = OperatorRequests(self._hub, connected.peer.store)

    def collect(self) -> list[WireMessage]:
        """The messages to tell now."""
        to_tell, self.to_tell = self.to_tell, []
        return to_tell

    def told(self, message: BansTold | Disconnect | Judge | Describe | LoginsEnded | TellFigures | Slow) -> None:
        if isinstance(message, Slow):
            self.to_tell += [message] if self._is_paced else []
        elif isinstance(message, LoginsEnded):
            self.to_tell += [message] if self._shares_logins and len(self.to_tell) < MOST_UNTOLD else []
        elif self._is_told:
            self.to_tell.append(message)
        elif isinstance(message, Disconnect):
            self._taken_over(message.client_id)

    def do(self, frame: Frame, message: WireMessage) -> Iterator[None] | None:
        return self._requests.do(message, partial(self._connected.answer_when_safe, frame.request_id))

    def ban_made(self, _: Frame, message: BanMade) -> None:
        """Store a ban that a gateway made by itself."""
        self._hub.bans.made(message.kind, message.value, message.until_ms, message.reason, self._connected.peer.name)

    def logins_ended(self, _: Frame, message: LoginsEnded) -> None:
        """Tell other gateways how logins at this gateway ended."""
        self._hub.logins_ended(message, self._connected.peer.member)

    def serve_tier(self, frame: Frame, message: ServeTier) -> None:
        """The peer is a worker of the tier: it brings an answer, and is asked as soon as there is a question."""
        tier = self._hub.tier
        if message.answer is not None:
            tier.answered(self, message.number, message.answer, bytes(frame.records))
        tier.serve(self, message.first, partial(self._connected.answer, frame.request_id), message.url)

    def give_copy(self, frame: Frame, message: CopyRequest) -> None:
        """The peer is another store of the cluster, which is to follow."""
        connected = self._connected
        answer = answer_copy(self._hub.messages, message, connected.room_bytes)
        connected.figures.reads += 1
        connected.answer(frame.request_id, answer)

    def lost(self) -> None:
        """The connection is gone."""
        self._hub.tier.left(self)


HANDLERS: Handlers = {
    **dict.fromkeys(operator_requests.REQUESTS, OperatorHandlers.do),
    **dict.fromkeys(COPY_REQUESTS, OperatorHandlers.give_copy),
    ServeTier: OperatorHandlers.serve_tier,
    BanMade: OperatorHandlers.ban_made,
    LoginsEnded: OperatorHandlers.logins_ended,
}
