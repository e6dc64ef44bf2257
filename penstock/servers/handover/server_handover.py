"""A `penstock serve` that is replaced: it closes its store, and the next process gets its clients and the folder."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.handover.moving import MovingOut
from penstock.servers.handover.channel import Channel, HandOverStep
from penstock.servers.handover.gateway_state import encode_state
from penstock.servers.handover.packed_server import PackedServer
from penstock.servers.handover.upgrade import MOVE_S, OPEN_S, UNDECIDED_S, Upgrade, pass_sockets
from penstock.servers.serving import Serving

log = logging.getLogger("penstock")


class ServerHandOver(Upgrade):
    """The replacement of a server with its own store."""

    def __init__(self, serving: Serving, moving: MovingOut, reopen: Callable[[PackedServer], Awaitable[None]]) -> None:
        """`reopen`: open the store again in this process, and go on with these clients."""
        super().__init__(serving.broker, moving, serving.listeners.open)
        self._serving = serving
        self._reopen = reopen
        self._leaving: asyncio.Task[None] | None = None  # clients of the data folder's sockets, once they were told
        self._packed: PackedServer | None = None  # once the store is closed here

    async def settled(self) -> None:
        """Wait, if the clients are on their way, until it is known who serves them."""
        if self._packed is not None and self._task is not None:
            await asyncio.wait([self._task])
            self._task.exception()  # it was said already

    def _help(self) -> None:
        super()._help()
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._serving.leave_folder())
        self._serving.hub.consumers.tick()

    def _under_way(self, held_s: float) -> str:
        if self._leaving is None or not self._leaving.done():
            return "clients of the data folder's sockets"
        if self._broker.deliverer.has_more and held_s < UNDECIDED_S:
            return "messages for clients"
        return ""

    def _ask_last(self, then: Callable[[], None]) -> None:
        then()

    async def _move(self, channel: Channel) -> int:
        began_s = time.monotonic()
        packed = self._serving.packed(self._moving)
        self._packed = packed
        packed_s = time.monotonic()
        self._serving.let_go(self._moving, packed)
        closed_s = time.monotonic()
        count = await asyncio.get_running_loop().run_in_executor(None, partial(_pass, channel, packed))
        told = "upgrade: the state was packed in %.0f ms, the store closed in %.0f ms; the next process took %.0f ms"
        now_s = time.monotonic()
        log.info(told, 1000 * (packed_s - began_s), 1000 * (closed_s - packed_s), 1000 * (now_s - closed_s))
        return count

    async def _go_on(self) -> None:
        if self._packed is not None:
            await self._reopen(self._packed)
            return
        if self._leaving is not None:
            await self._leaving
            self._leaving = None
            await self._serving.listen_in_folder()
        await super()._go_on()


def _pass(channel: Channel, packed: PackedServer) -> int:
    channel.deadline_s = time.monotonic() + OPEN_S
    channel.send(HandOverStep.SERVER, encode_state(packed.server))
    channel.expect(HandOverStep.TAKEN)
    channel.deadline_s = time.monotonic() + MOVE_S
    return pass_sockets(channel, packed.listeners, packed.batches)
