"""A `penstock gateway` that is replaced: its clients go to the next process, which takes its place at the store."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from gateway.broker import Broker
from gateway.handover.moving import MovingOut
from gateway.handover.state import VERSION as STATE_VERSION
from gateway.transport.listener import Listener
from notify.remote.store import RemoteStore
from notify.remote.store_link import StoreLink
from penstock.servers.handover.channel import Channel, HandOverStep
from penstock.servers.handover.gateway_state import HandedGateway, encode_state
from penstock.servers.handover.upgrade import MOVE_S, Upgrade, pass_sockets
from store.version import VERSION


class GatewayHandOver(Upgrade):
    """The replacement of a gateway whose store is another process."""

    def __init__(
        self,
        name: str,
        link: StoreLink,
        broker: Broker,
        moving: MovingOut,
        listeners: list[Listener],
        listen: list[str],
    ) -> None:
        """`name`: under which the store knows this gateway; `listen`: the addresses as in the settings."""
        super().__init__(broker, moving, listeners)
        self._name, self._listen = name, listen
        self._link = link
        self._store: RemoteStore = link.store

    def _under_way(self, held_s: float) -> str:
        return "requests to the store" if self._store.has_under_way else ""

    def _ask_last(self, then: Callable[[], None]) -> None:
        self._store.ask_last(then)

    async def _move(self, channel: Channel) -> int:
        gc.disable()  # what is made here is gone in a moment, and a collection would look at all clients
        channel.deadline_s = time.monotonic() + MOVE_S
        store = self._store
        places = store.groups.places()
        state = HandedGateway(
            version=STATE_VERSION,
            release=VERSION,
            name=self._name,
            listen=self._listen,
            store=store.handed(),
        )
        channel.send(HandOverStep.GATEWAY, encode_state(state))
        listeners = [listener.descriptors for listener in self._listeners]
        batches = self._moving.batches(store.queues.ref_of, places.__getitem__)
        return pass_sockets(channel, listeners, batches, self._link.beat_at_once)
