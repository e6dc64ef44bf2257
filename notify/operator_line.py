"""What a store's end of a connection does for operators, and for gateways that are told what operators did."""

from __future__ import annotations

from collections.abc import Callable

from notify.bans import all_told
from notify.operator_requests import OperatorRequests
from notify.peers import Peer
from store.wire.base import Message
from store.wire.handshake import OPERATORS_VERSION
from store.wire.messages import Hello, Role
from store.wire.operator_messages import BanMade, BansTold, Disconnect


class OperatorLine:
    """Owner of what a peer is yet to be told of bans and of clients to disconnect."""

    def __init__(self, hello: Hello, peer: Peer, taken_over: Callable[[str], None]) -> None:
        """`taken_over`: how a gateway of an older version is told that a connection is to end."""
        self._peer = peer
        self._hub = peer.hub
        self._taken_over = taken_over
        self._is_told = hello.role == Role.GATEWAY and OPERATORS_VERSION in hello.versions
        self._to_tell: list[Message] = list(all_told(self._hub.bans.in_force())) if self._is_told else []
        self.requests = OperatorRequests(self._hub, peer.member)

    def take(self) -> list[Message]:
        """What is to be told now."""
        to_tell, self._to_tell = self._to_tell, []
        return to_tell

    def told(self, message: BansTold | Disconnect) -> None:
        if self._is_told:
            self._to_tell.append(message)
        elif isinstance(message, Disconnect):
            self._taken_over(message.client_id)

    def ban_made(self, message: BanMade) -> None:
        """By the gateway itself."""
        self._hub.bans.made(message.kind, message.value, message.until_ms, message.reason, self._peer.name)
