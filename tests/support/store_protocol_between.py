"""A wire between a gateway and its store, without sockets: what one says is given to the other in loop turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.remote.store import RemoteStore
from notify.server.applying import ApplyingSteps
from notify.server.conversation import Conversation
from notify.server.line import WireCounters
from notify.server.peers import Peers
from notify.settings import WireSettings
from store.errors import StoreError
from store.wire.frames import Frame, FrameReader, encode
from store.wire.handshake import VERSIONS, ClientHandshake
from store.wire.messages import Hello, Ping, Pong, Role, WireMessage

CACHE_BYTES = 1 << 20


class Loop(Protocol):
    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def time(self) -> float: ...


class WireBetween:
    """`gateway` is the Store of a gateway whose store is at the other end."""

    def __init__(self, hub: Hub, loop: Loop, patience_s: float) -> None:
        self._loop = loop
        self._scheduled = False
        self.figures = WireCounters()
        self.loses: tuple[type[WireMessage], ...] = ()  # events that do not arrive
        self.is_slow = False  # each frame to the gateway arrives in a loop turn of its own
        self._under_way: deque[Frame] = deque()  # to the gateway
        self._starts = 0
        self._patience_s = patience_s
        self.gateway = self._gateway()
        self.begin(hub)
        self.connect()

    def _gateway(self) -> RemoteStore:
        return RemoteStore(self._patience_s, CACHE_BYTES, self, self._loop.time)

    def replace_gateway(self) -> RemoteStore:
        """Another process is to have the gateway's name, once connect() is called."""
        self.cut()
        self.gateway = self._gateway()
        return self.gateway

    def begin(self, hub: Hub) -> None:
        """Another process has the store from now on."""
        self._starts += 1
        self._applying = ApplyingSteps(hub, self._loop.call_soon, self)
        self._peers = Peers(hub, WireSettings(), f"store-{self._starts}", self._loop.time)

    def cut(self) -> None:
        """The connection ends, and what is under way is lost."""
        self._under_way.clear()
        self._conversation.lost()
        self.gateway.lost()

    def connect(self) -> None:
        self._conversation = Conversation(self._peers, {Role.GATEWAY: None}, self.figures, self.wake)
        handshake = ClientHandshake(Hello(list(VERSIONS), Role.GATEWAY, "gateway"))
        self._conversation.received(handshake.greeting)
        welcome = handshake.feed(b"".join(self._conversation.outgoing()))
        assert welcome is not None
        self._reader = FrameReader(welcome.max_frame_bytes, Role.STORE)
        self._under_way.extend(self._reader.feed(handshake.rest))
        self.heartbeat()
        self.gateway.connected(welcome)

    def heartbeat(self) -> None:
        """The store was heard of just now, and so was the time by its clock."""
        self.gateway.heard_s = self._loop.time()
        self.gateway.store_clock.set(MessageStore.now_ms(), self.gateway.heard_s)

    def flush(self) -> None:
        """As a StoreSender: it is carried in the loop's next turn, as all is."""
        self.wake()

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        """What either side has to say by now, and no answer to it."""
        self._scheduled = False
        self._applying.go_on()
        if self._conversation.is_full:
            self._conversation.go_on()
        asked = b"".join(self.gateway.outgoing())
        said = b"".join(self._conversation.outgoing())
        self._under_way.extend(self._reader.feed(said))
        for _ in range(min(len(self._under_way), 1) if self.is_slow else len(self._under_way)):
            self._arrive(self._under_way.popleft())
        if asked:
            self._conversation.received(asked)
        if asked or said or self._under_way:
            self.wake()

    def _arrive(self, frame: Frame) -> None:
        if isinstance(frame.message, Ping):
            self._conversation.received(encode(Pong()))
        elif not isinstance(frame.message, self.loses):
            self.gateway.received(frame)

    def do_upkeep(self) -> None:
        """As an ApplyingOwner: the bench does that."""

    def not_applied(self, error: StoreError) -> None:
        raise error
