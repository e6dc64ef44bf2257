"""The replacement of this process: it, or its supervisor, starts the next one; it gives that all clients, and ends.

Whatever goes wrong before the next process says that it serves, this one goes on, with every plain connection.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from gateway.auth.errors import AuthError
from gateway.broker import Broker
from gateway.clients.draining import Draining
from gateway.handover.moving import MovingOut, PackedBatch
from gateway.handover.state import HandOverRefused
from gateway.mqtt.reason_codes import ReasonCode
from gateway.transport.listener import Listener
from penstock.servers.handover.channel import Channel, HandOverFailed, HandOverStep
from penstock.servers.handover.gateway_state import HandedListener, encode_state
from penstock.servers.handover.next_process import NextProcess, StartedProcess
from penstock.servers.service_manager import tell_successor
from store.errors import StoreError

log = logging.getLogger("penstock")

REST_S = 1.0
"""How long what is under way may take to come to its end; then the old process goes on."""
UNDECIDED_S = 0.5
"""The part of REST_S after which clients that are still being let in are refused."""
STEP_S = 0.002
DRAIN_STEP_S = 0.01
MOVE_S = 5.0
"""How long it may take to pass all connections, and the next process to serve."""
OPEN_S = 60.0
"""How long the next process may take to open the store."""
UNANSWERED_BATCHES = 2


class Upgrade(ABC):
    """Owner of the replacement of this process. ask() begins it; `done` is called once another process serves."""

    def __init__(self, broker: Broker, moving: MovingOut, listeners: list[Listener]) -> None:
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
                await self._go_on()
            raise
        if why and not following.serves_after_all():
            await self._go_on()
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
            count = await self._move(following.channel)
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
        moving = self._moving
        moving.hold()
        told = asyncio.Event()
        has_asked = False
        while True:
            if self._is_stopping():
                raise HandOverFailed("it was asked to stop")
            self._help()
            fault = moving.fault() or self._under_way(time.monotonic() - held_s)
            if not fault and told.is_set():
                return
            if not fault and not has_asked:
                has_asked = True
                self._ask_last(told.set)
            passed_s = time.monotonic() - held_s
            if passed_s > REST_S:
                raise HandOverFailed(f"there are still {fault or 'requests to the store'} after {REST_S:g} s")
            if passed_s > UNDECIDED_S:
                moving.close_undecided()
            await asyncio.sleep(STEP_S)

    # --- what depends on where the store is

    def _help(self) -> None:
        """Have what is under way come to its end. Called every STEP_S."""
        self._broker.store.appends.await_safe()

    @abstractmethod
    def _under_way(self, held_s: float) -> str:
        """What besides the clients' is still under way; empty: nothing is. `held_s`: since when clients wait, in s."""

    @abstractmethod
    def _ask_last(self, then: Callable[[], None]) -> None:
        """Have `then` called once the store has dealt with all that it was told so far."""

    @abstractmethod
    async def _move(self, channel: Channel) -> int:
        """Pass everything, and wait until the next process serves. Nothing else runs here meanwhile. Returns the number
        of connections."""

    async def _go_on(self) -> None:
        self._moving.go_on()
        for listener in self._listeners:
            listener.resume()


def pass_sockets(
    channel: Channel,
    listeners: Iterable[Sequence[int]],
    batches: Iterable[PackedBatch],
    beat: Callable[[], object] = lambda: None,
) -> int:
    """Pass the sockets of each address and all connections, and wait until the next process serves. It blocks.

    `beat` is called now and then. Returns the number of connections. Raises HandOverFailed.
    """
    for place, descriptors in enumerate(listeners):
        channel.send(HandOverStep.LISTENER, encode_state(HandedListener(place=place)), descriptors)
        channel.expect(HandOverStep.TAKEN)
    unanswered = count = 0
    for descriptors, packed in batches:
        beat()
        channel.send(HandOverStep.BATCH, packed, descriptors)
        count += len(descriptors)
        unanswered += 1
        if unanswered >= UNANSWERED_BATCHES:
            channel.expect(HandOverStep.TAKEN)
            unanswered -= 1
    for _ in range(unanswered):
        channel.expect(HandOverStep.TAKEN)
    beat()
    channel.send(HandOverStep.ALL)
    channel.expect(HandOverStep.SERVING)
    return count
