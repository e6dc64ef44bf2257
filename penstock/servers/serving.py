"""A store and its gateway in one process, from the store's opening to its closing.

A process has one at a time. It has a second one if it was to be replaced, had closed its store for that, and the next
process did not come to serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from gateway.auth.access import Access
from gateway.auth.errors import AuthError
from gateway.broker import Broker
from gateway.handover.moving import MovingIn, MovingOut
from gateway.handover.state import VERSION as STATE_VERSION
from gateway.handover.state import HandOverRefused
from gateway.observe.metrics import read_steps
from notify.local.handed import EnteredStore, LeavingStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.server.server import StoreServer
from notify.settings import WireSettings
from penstock.config.settings import Settings
from penstock.servers.access import AccessLoader
from penstock.servers.client_tls import ClientTls
from penstock.servers.companions import hold_for_tier
from penstock.servers.facts import ProcessFacts
from penstock.servers.handover.gateway_state import HandedServer
from penstock.servers.handover.packed_server import OldServer, PackedServer
from penstock.servers.handover.successor import placed
from penstock.servers.listeners import Listeners
from penstock.servers.process import DRAIN_S, Stop, listen_in_data_folder, tune_garbage_collection
from penstock.servers.starting import Starting
from penstock.servers.store_users import StoreUsers
from penstock.servers.user_limits import quotas_of
from penstock.tracing.opening import GATEWAY, TracingParts
from store.audit import Audit
from store.version import VERSION

FRAME_ROOM_BYTES = 64 << 10
"""Of a frame beside the largest packet of a client."""
LEAVE_S = 0.3
"""How long clients at the sockets in the data folder have to go before another process takes over."""


@dataclass(frozen=True, slots=True)
class ServingParts:
    """What a process has besides, whether its store is open or not. `audit` and `access` need the store's folder."""

    settings: Settings
    tls: ClientTls
    judging: AccessLoader
    starting: Starting
    tracing: TracingParts
    audit: Callable[[], Audit]
    access: Callable[[Audit], Access | None]


class Serving:
    """Owner of the store, of what is connected to it, and of its clients."""

    def __init__(self, parts: ServingParts) -> None:
        """Open the store. Raises StoreError."""
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._closing = AsyncExitStack()
        self.is_whole = False  # open, with all its parts
        self.messages = parts.tracing.message_store(parts.settings.store, self._on_safe, parts.starting.replayed)
        self._closing.callback(self.messages.close)
        self.hub: Hub
        self.broker: Broker
        self.listeners: Listeners
        self._store: LocalStore
        self._local: StoreServer

    def _on_safe(self) -> None:
        """Called by the flusher's thread."""
        self._loop.call_soon_threadsafe(self._safe_advanced)

    def _safe_advanced(self) -> None:
        if self.is_whole:
            self.hub.safe_advanced()

    async def begin(self, stop: Stop, came: OldServer | None = None) -> int:
        """Accept clients from now on, and go on with those that `came`. Returns how many these are.

        Raises ListenError or OSError; for what `came` also HandOverFailed.
        """
        await self._begin_inside("" if came is None else GATEWAY)
        self.listeners = Listeners(self.broker, self._parts.tls)
        self._closing.push_async_callback(self.listeners.close, stop, self.tick)
        self.is_whole = True
        if came is None:
            await self.listeners.bind(self._parts.settings.gateway.listen)
            count = 0
        else:
            count = await self._take_over(came)
        tune_garbage_collection(collects=came is None)
        self.messages.log.scrubber.start()
        return count

    async def _begin_inside(self, goes_on: str) -> None:
        """All but the addresses for clients. `goes_on`: as in Hub."""
        parts, settings = self._parts, self._parts.settings
        audit = parts.audit()
        self.hub = hub = Hub(
            self.messages,
            quotas=quotas_of(settings.quota),
            audit=audit,
            reads_tier=settings.tier.reads,
            goes_on=goes_on,
        )
        hold_for_tier(hub, settings.tier)
        access, self._store = parts.access(audit), parts.tracing.local_store(hub)
        self.broker = broker = Broker(self._store, settings.gateway, self._loop, access, settings.quota, audit)
        self._closing.callback(broker.close)
        parts.tls.judges(broker.certified)
        hub.claims.ask_presence_of(broker.registry.presence)
        hub.facts = ProcessFacts(settings, lambda: read_steps(broker, hub), broker.unready, self.messages.health)
        self._closing.push_async_callback(self._close_local)
        await self.listen_in_folder()

    async def listen_in_folder(self) -> None:
        """Listen at the sockets in the data folder."""
        parts, audit = self._parts, self._parts.audit()
        access = parts.access(audit)
        self._local = local = StoreServer(self.hub, _wire(parts.settings), {}, audit, has_gateway=True)
        parts.judging.on_reload(_judge_again(self.broker, local, access))
        await listen_in_data_folder(local, parts.settings.store.data)

    async def _close_local(self) -> None:
        await self._local.close(DRAIN_S)

    @property
    def moving(self) -> MovingOut | None:
        """The clients, as they leave this process; None: they cannot."""
        clients = self.listeners.clients
        return MovingOut(self.broker, self._store, self.listeners.open, clients) if clients is not None else None

    def tick(self) -> None:
        """To be called several times a second."""
        if self.is_whole:
            self.broker.tick()
            self._local.tick()

    async def close(self) -> None:
        """Drain the clients, and close the store."""
        await self._closing.aclose()

    # --- to another process

    async def leave_folder(self) -> None:
        """See off the clients at the sockets in the data folder: they come back to whoever listens there next."""
        await self._local.close(LEAVE_S)
        self._local.peers.all_left("the store is handed over")

    def packed(self, moving: MovingOut) -> PackedServer:
        """All connections, for which nothing is under way, and what they need of the store. Raises OSError."""
        leaving, settings = LeavingStore(), self._parts.settings
        batches = list(moving.batches(leaving.ref_of, leaving.place_of))
        server = HandedServer(
            version=STATE_VERSION,
            release=VERSION,
            data=str(settings.store.data.resolve()),
            end=self.messages.end,
            listen=list(settings.gateway.listen),
            store=leaving.handed(),
        )
        return PackedServer(server, [listener.descriptors for listener in self.listeners.open], batches)

    def let_go(self, moving: MovingOut, packed: PackedServer) -> None:
        """Close the store, and no socket of what was packed(): those are the caller's from now on."""
        self._parts.judging.on_reload(_nothing)
        self.broker.close()
        moving.give_up()
        for listener in self.listeners.open:
            listener.give_up()
        self.broker.core.events.close()
        self.abandon()
        packed.server.end = self.messages.end  # a store that is closed notes what its groups have

    def abandon(self) -> None:
        """Close the store; the clients are not this process's."""
        self.is_whole = False
        self._closing.pop_all()
        self.messages.close()

    # --- from another process

    async def _take_over(self, came: OldServer) -> int:
        """Take in what the old process had, have it say that it is ours, and go on. Raises HandOverFailed."""
        listen, server, listeners = self._parts.settings.gateway.listen, came.server, self.listeners
        came.has_opened()
        sockets = came.take_listeners(len(server.listen))
        await listeners.adopt(listen, {url: sockets[place] for place, url in enumerate(server.listen)})
        if listeners.clients is None:
            came.refuse("this system has no epoll")
        try:
            in_their_order = placed(listeners.open, list(listen), server.listen)
        except HandOverRefused as error:
            came.refuse(str(error))
        entered = EnteredStore(self.hub, self._store, server.store)
        moving = MovingIn(self.broker, in_their_order, listeners.clients, entered.queue_of, entered.seat_of)
        try:
            came.take_connections(moving)
        except (HandOverRefused, AuthError, KeyError, ValueError) as error:
            came.refuse(f"a connection cannot be taken over: {error!r}")
        came.says_serving()
        count = len(moving)  # no turn of the loop comes between the first connection and here
        entered.go_on(self.broker.store_events, self.broker.registry.sessions, server.end)
        moving.begin()
        listeners.begin()
        return count


def _wire(settings: Settings) -> WireSettings:
    """The settings of the sockets in the data folder, with room for the largest packet: what a frame has no room for
    is handed to no consumer of a group, and clients of the gateway are such consumers too.
    """
    most_bytes = settings.gateway.maximum_packet_size_bytes + FRAME_ROOM_BYTES
    return replace(settings.wire, max_frame_bytes=max(settings.wire.max_frame_bytes, most_bytes))


def _judge_again(broker: Broker, local: StoreServer, access: Access | None) -> Callable[[], None]:
    """Have clients in the data folder judged by the gateway's rules. Returns what to call when these were replaced."""
    users = StoreUsers.at(local, access)
    if access is None:
        return broker.judge_again

    def again() -> None:
        broker.judge_again()
        users.replaced()
        local.judge_again()

    return again


def _nothing() -> None: ...
