"""The process that is replaced: it, or its supervisor, starts the next one; it gives that all clients, and ends.

Whatever goes wrong before the next process says that it serves, this one goes on, with every plain connection.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable

from gateway.auth.errors import AuthError
from gateway.broker import Broker
from gateway.clients.draining import Draining
from gateway.handover.moving import MovingOut
from gateway.handover.state import VERSION as STATE_VERSION
from gateway.handover.state import HandOverRefused
from gateway.mqtt.reason_codes import ReasonCode
from gateway.transport.listener import Listener
from notify.remote.store import RemoteStore
from notify.remote.store_link import StoreLink
from penstock.servers.handover.channel import Channel, HandOverFailed, HandOverStep
from penstock.servers.handover.gateway_state import HandedGateway, HandedListener, encode_gateway
from penstock.servers.handover.next_process import NextProcess, StartedProcess
from penstock.servers.service_manager import tell_successor
from store.errors import StoreError
from store.version import VERSION

log = logging.getLogger("penstock")

REST_S = 1.0
"""How long what is under way may take to come to its end; then the old process goes on."""
UNDECIDED_S = 0.5
"""The part of REST_S after which clients that are still being let in are refused."""
STEP_S = 0.002
DRAIN_STEP_S = 0.01
MOVE_S = 5.0
"""How long it may take to pass all connections, and the next process to serve."""
UNANSWERED_BATCHES = 2


class Upgrade:
    """Owner of the replacement of this process. ask() begins it; `done` is called once another process serves."""

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
        self._name, self._listen = name, listen
        self._link = link
        self._store: RemoteStore = link.store
        self._broker = broker
        self._moving = moving
        self._listeners = listeners
        self._task: asyncio.Task[None] | None = None
        self._is_stopping: Callable[[], bool] = lambda: False
        self.is_over = False  # another process serves

    def ask(
        self, done: Callable[[], None], is_stopping: Callable[[], bool], following: NextProcess | None = None
    ) -> None:
        """`is_stopping`: whether this process was asked to stop, and so is not to be replaced. `following`: the process
        that the supervisor started; without one this process starts it.
        """
        if self._task is not None and not self._task.done():
            log.warning("upgrade: one is going on already")
            if following is not None:
                following.leave()
            return
        self._is_stopping = is_stopping
        self._task = asyncio.get_running_loop().create_task(self._run(done, following))

    async def _run(self, done: Callable[[], None], following: NextProcess | None) -> None:
        if following is None:
            log.info("upgrade: starting the next process")
            try:
                following = StartedProcess()
            except OSError as error:
                log.error("upgrade: the next process cannot be started: %s; this one goes on", error.strerror or error)
                return
        try:
            why = await self._pass_to(following)
        except Exception:  # a fault of this program: clients must not wait for ever
            if not following.serves_after_all():
                self._go_on()
            raise
        if why and not following.serves_after_all():
            self._go_on()
            log.error("upgrade: %s; this process goes on", why)
            return
        self.is_over = True
        tell_successor(following.pid)
        done()

    async def _pass_to(self, following: NextProcess) -> str:
        """Why that failed; empty if it did not."""
        try:
            await following.ready()
            await self._drain_staying()
            held_s = time.monotonic()
            await self._come_to_rest(held_s)
            moved_s = time.monotonic()
            count = self._move(following.channel)
        except (HandOverFailed, HandOverRefused, StoreError, AuthError) as error:
            return str(error)
        except KeyError as error:
            return f"the store does not know a queue that is followed ({error})"
        finally:
            gc.enable()
        told = "upgrade: process %d serves %d connections; they waited for %.0f ms, of which %.0f ms for the store"
        now_s = time.monotonic()
        log.info(told, following.pid, count, 1000 * (now_s - held_s), 1000 * (moved_s - held_s))
        return ""

    async def _drain_staying(self) -> None:
        """Connections with TLS or WebSocket cannot travel: they are seen off, and their clients come again."""
        for listener in self._listeners:
            if not listener.address.is_plain:
                listener.pause()
        self._moving.close_new_that_stay()
        staying, broker = self._moving.staying(), self._broker
        if not staying:
            return
        core, settings = broker.core, broker.core.settings
        log.info("upgrade: draining %d clients with TLS or WebSocket", len(staying))
        broker.registry.stop(settings.stop_will_delay_s)
        core.set_clock()
        reason, rate = ReasonCode.USE_ANOTHER_SERVER, settings.drain_clients_per_s
        draining = Draining(staying, broker.journal, reason, rate, settings.drain_timeout_s, broker.turn.now_s)
        goes_on = True
        while goes_on:
            await asyncio.sleep(DRAIN_STEP_S)
            core.set_clock()
            broker.store_batch()
            broker.store.appends.await_safe()
            goes_on = draining.go_on(broker.turn.now_s)
            broker.end_turn()
        draining.end()
        broker.end_turn()
        broker.registry.stop(0)

    async def _come_to_rest(self, held_s: float) -> None:
        """Raises HandOverFailed if something is still under way after REST_S."""
        moving, store = self._moving, self._store
        moving.hold()
        told = asyncio.Event()
        has_asked = False
        while True:
            if self._is_stopping():
                raise HandOverFailed("it was asked to stop")
            fault = moving.fault() or ("requests to the store" if store.has_under_way else "")
            if not fault and told.is_set():
                return
            if not fault and not has_asked:
                has_asked = True
                store.ask_last(told.set)
            passed_s = time.monotonic() - held_s
            if passed_s > REST_S:
                raise HandOverFailed(f"there are still {fault or 'requests to the store'} after {REST_S:g} s")
            if passed_s > UNDECIDED_S:
                moving.close_undecided()
            await asyncio.sleep(STEP_S)

    def _move(self, channel: Channel) -> int:
        """Pass everything, and wait until the next process serves. Nothing else runs here meanwhile. Returns the number
        of connections."""
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
        channel.send(HandOverStep.GATEWAY, encode_gateway(state))
        for place, listener in enumerate(self._listeners):
            channel.send(HandOverStep.LISTENER, encode_gateway(HandedListener(place=place)), listener.descriptors)
            channel.expect(HandOverStep.TAKEN)
        unanswered = count = 0
        for descriptors, packed in self._moving.batches(store.queues.ref_of, places.__getitem__):
            self._link.beat_at_once()
            channel.send(HandOverStep.BATCH, packed, descriptors)
            count += len(descriptors)
            unanswered += 1
            if unanswered >= UNANSWERED_BATCHES:
                channel.expect(HandOverStep.TAKEN)
                unanswered -= 1
        for _ in range(unanswered):
            channel.expect(HandOverStep.TAKEN)
        self._link.beat_at_once()
        channel.send(HandOverStep.ALL)
        channel.expect(HandOverStep.SERVING)
        return count

    def _go_on(self) -> None:
        self._moving.go_on()
        for listener in self._listeners:
            listener.resume()
