"""A wire between a gateway and its store, without sockets: what one says is given to the other in loop turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lightqueue.message_store import MessageStore
from notify.conversation import Conversation
from notify.figures import Figures
from notify.hub import Hub
from notify.peers import Peers
from notify.remote import RemoteStore
from notify.settings import WireSettings
from store.wire.frames import FrameReader, encode
from store.wire.handshake import VERSIONS, ClientHandshake
from store.wire.messages import Hello, Message, Ping, Pong, Role

CACHE_BYTES = 1 << 20


class Loop(Protocol):
    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def time(self) -> float: ...


class WireBetween:
    """`gateway` is the Store of a gateway whose store is at the other end."""

    def __init__(self, hub: Hub, loop: Loop, patience_s: float) -> None:
        self._loop = loop
        self._scheduled = False
        self.figures = Figures()
        self.loses: tuple[type[Message], ...] = ()  # events that do not arrive
        peers = Peers(hub, WireSettings(), "store", loop.time)
        self._conversation = Conversation(peers, {Role.GATEWAY: None}, self.figures, lambda _: self._wake())
        self.gateway = RemoteStore(patience_s, CACHE_BYTES, self._wake, self._wake, loop.time)
        handshake = ClientHandshake(Hello(list(VERSIONS), Role.GATEWAY, "gateway"))
        self._conversation.received(handshake.greeting)
        welcome = handshake.feed(b"".join(self._conversation.outgoing()))
        assert welcome is not None
        self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
        self.heartbeat()
        self.gateway.connected(welcome)

    def heartbeat(self) -> None:
        """The store was heard of just now, and so was the time by its clock."""
        self.gateway.heard_s = self._loop.time()
        self.gateway.store_clock.set(MessageStore.now_ms(), self.gateway.heard_s)

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        """What either side has to say by now, and no answer to it."""
        self._scheduled = False
        asked = b"".join(self.gateway.outgoing())
        said = b"".join(self._conversation.outgoing())
        for frame in self._reader.feed(said):
            if isinstance(frame.message, Ping):
                self._conversation.received(encode(Pong()))
            elif not isinstance(frame.message, self.loses):
                self.gateway.received(frame)
        if asked:
            self._conversation.received(asked)
        if asked or said:
            self._wake()
