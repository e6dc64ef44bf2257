"""Messages that keep a connection alive or end it: Ping, Pong, Goodbye."""

from __future__ import annotations

import logging
from typing import NoReturn

from notify.server.handlers.connected import Connected, Handlers
from notify.server.peer_names import is_producers
from store.errors import WireError
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.messages import Role, WireMessage

log = logging.getLogger("penstock.wire")


class LifeHandlers:
    """Handles what the peer says of one connection itself."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected

    def ping(self, _: Frame, __: wire.Ping) -> None:
        connected = self._connected
        connected.out.tell(wire.Pong(connected.peers.hub.messages.now_ms()))

    def pong(self, _: Frame, __: wire.Pong) -> None:
        self._connected.answers.ponged(self._connected.peer)

    def goodbye(self, _: Frame, message: wire.Goodbye) -> None:
        # Of clients there may be many a second.
        connected, peer = self._connected, self._connected.peer
        level = logging.INFO if peer.role is Role.GATEWAY else logging.DEBUG
        log.log(level, "peer %s said goodbye: %s", peer.name, message.reason)
        connected.out.is_closing = True
        connected.peers.left(peer, "goodbye", for_good=not is_producers(peer.name))

    def unexpected(self, _: Frame, message: WireMessage) -> NoReturn:
        raise WireError(f"{type(message).__name__} in the middle of a connection")


HANDLERS: Handlers = {
    wire.Ping: LifeHandlers.ping,
    wire.Pong: LifeHandlers.pong,
    wire.Goodbye: LifeHandlers.goodbye,
    wire.Hello: LifeHandlers.unexpected,
}
