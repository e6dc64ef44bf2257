"""`penstock gateway`: a gateway that connects to a store in another process. It has no durable state."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from gateway.auth.shared_attempts import SharedAttempts
from gateway.broker import Broker
from gateway.handover.moving import MovingIn, MovingOut
from gateway.handover.state import HandOverRefused
from gateway.observe.metrics import read_steps
from notify.events.redis_lookup import RedisEntry
from notify.links.address import StoreAddress
from notify.remote.store import RemoteStore
from notify.remote.store_link import StoreLink
from penstock.config.credentials import token_of_gateway
from penstock.config.settings import Settings
from penstock.errors import UsageError
from penstock.servers.access import AccessLoader
from penstock.servers.audit_file import open_audit
from penstock.servers.client_tls import ClientTls, StoreTls
from penstock.servers.facts import ProcessFacts
from penstock.servers.handover.predecessor import GatewayHandOver
from penstock.servers.handover.signalled import UpgradeSignal
from penstock.servers.handover.successor import Successor, placed
from penstock.servers.listeners import Listeners, check_exposed, open_gateway_admin, say_who_may_connect
from penstock.servers.logs import announce
from penstock.servers.process import SUPERVISED, Stop, heed_hangup, run, tune_garbage_collection
from penstock.tracing.opening import check_tracing, open_tracing
from store.version import VERSION

log = logging.getLogger("penstock")

CONNECT_S = 3.0
"""How long a process that takes over may take to connect to the store."""


def serve(settings: Settings, standby: bool = False) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code. `standby`: listen only once SIGUSR1 comes."""
    if settings.gateway.store is None:
        raise UsageError("no store to connect to; give its address with --store tcp://HOST:PORT")
    address = StoreAddress.parse(settings.gateway.store)
    token = token_of_gateway(settings.gateway)
    tls = StoreTls(address, settings.gateway)
    check_exposed(settings)
    check_tracing(settings)
    client_tls, judging = ClientTls(settings.gateway), AccessLoader(settings.auth)
    parts = GatewayParts(settings, address, token, tls, client_tls, judging, standby)
    return run(settings, lambda: _serve(parts))


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What a gateway is made of before its loop runs."""

    settings: Settings
    address: StoreAddress
    token: str
    tls: StoreTls
    client_tls: ClientTls
    judging: AccessLoader
    is_standby: bool = False


async def _serve(gateway: GatewayParts) -> None:
    """Accept clients once the store is there; if it goes away later, they stay connected, and wait."""
    settings, judging, client_tls, tls = gateway.settings, gateway.judging, gateway.client_tls, gateway.tls
    stop = Stop()
    heed_hangup(judging.reload, client_tls.reload, tls.reload)
    upgrade, successor, wanted = UpgradeSignal(stop), Successor.of_environment(), asyncio.Event()
    if gateway.is_standby:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, wanted.set)
    judging.load()
    handed = successor.begin() if successor is not None else None
    name = handed.name if handed is not None else f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
    log.info("penstock %s gateway %s starting, store=%s", VERSION, name, gateway.address.url)
    say_who_may_connect(settings)

    broker: Broker | None = None
    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        link = _link(gateway, name, closing)
        store = link.store
        if handed is not None:
            store.take_over(handed.store)

        def open_admin() -> None:
            if settings.admin is not None:
                closing.callback(open_gateway_admin(settings.admin, lambda: broker, lambda: None, store).close)

        if successor is None:
            open_admin()
        _enter_table(settings, name, store, upgrade, closing)
        if successor is None:
            _connect(link, upgrade, closing)
            if await stop.or_event(link.welcomed):
                return
        broker = serving = _broker(gateway, store, closing)

        def tick() -> None:
            link.tick()
            client_tls.tick()
            judging.tick()
            tls.tick()
            serving.tick()

        listeners = Listeners(broker, client_tls)
        if successor is not None:
            came = await _take_over(gateway, successor, serving, store, listeners)
            _connect(link, upgrade, closing)
            await _take_place(successor, link, came, listeners)
        closing.push_async_callback(_close, listeners, stop, tick, upgrade)
        tune_garbage_collection(collects=successor is None)
        if successor is None:
            if gateway.is_standby:
                announce("standby", gateway.address.url)
                if await stop.tick_until(wanted, tick):  # all that takes time is done
                    return
            await listeners.bind(settings.gateway.listen)
        listeners.say_ready(store=gateway.address.url)
        if listeners.clients is not None:
            moving = MovingOut(broker, store, listeners.open, listeners.clients)
            listen = list(settings.gateway.listen)
            upgrade.can_begin(GatewayHandOver(name, link, broker, moving, listeners.open, listen))
        if successor is not None:
            alone = asyncio.create_task(successor.is_alone())
            alone.add_done_callback(lambda task: None if task.cancelled() else open_admin())
        await stop.tick(tick)


def _link(gateway: GatewayParts, name: str, closing: AsyncExitStack) -> StoreLink:
    """The connection to the store, which is not made so far."""
    settings = gateway.settings
    parts = open_tracing(settings, "gateway", closing)
    patience_s, cache_bytes = settings.gateway.store_patience_s, settings.gateway.range_cache_bytes
    clock = asyncio.get_running_loop().time

    def store_of(link: StoreLink) -> RemoteStore:
        return parts.remote_store(patience_s, cache_bytes, link, clock)

    return StoreLink(
        gateway.address, name, gateway.token, gateway.tls.context if gateway.tls.is_set else None, store_of
    )


def _enter_table(
    settings: Settings, name: str, store: RemoteStore, upgrade: UpgradeSignal, closing: AsyncExitStack
) -> None:
    """Have stores find in Redis what this gateway follows. Whoever takes over has the same entry."""
    if settings.notify.events != "lookup" or not settings.notify.redis_url:
        return
    redis = RedisEntry(settings.notify.redis_url, name, store.queues.watched, settings.notify.redis_lease_ms)

    async def close() -> None:
        if not upgrade.is_over:
            await redis.close()

    closing.push_async_callback(close)
    redis.start()


def _connect(link: StoreLink, upgrade: UpgradeSignal, closing: AsyncExitStack) -> None:
    closing.push_async_callback(_end, link, asyncio.create_task(link.run()), upgrade)


def _broker(gateway: GatewayParts, store: RemoteStore, closing: AsyncExitStack) -> Broker:
    settings, judging, client_tls, tls = gateway.settings, gateway.judging, gateway.client_tls, gateway.tls
    loop = asyncio.get_running_loop()
    supervised = os.environ.get(SUPERVISED, "")
    audit, reopen_audit = open_audit(settings, closing, supervised, has_data_folder=bool(supervised))
    for each in (client_tls, tls):
        each.start(audit)
    heed_hangup(judging.reload, client_tls.reload, tls.reload, reopen_audit)
    access = judging.start(closing, audit)
    if access is not None:
        shared = SharedAttempts(access.attempts, store.bans, loop.time, loop.call_soon)
        store.bans.count_logins(shared)
    broker = Broker(store, settings.gateway, loop, access, settings.quota, audit)
    closing.callback(broker.close)
    broker.store_events.facts = _facts(settings, broker, store)
    judging.on_reload(broker.judge_again)
    client_tls.judges(broker.certified)
    return broker


async def _take_over(
    gateway: GatewayParts, successor: Successor, broker: Broker, store: RemoteStore, listeners: Listeners
) -> MovingIn:
    """Take what the old process has, without reading or writing any of it. Raises HandOverFailed."""
    handed, listen = successor.gateway, gateway.settings.gateway.listen
    assert handed is not None
    sockets = successor.take_listeners(len(handed.listen))
    await listeners.adopt(listen, {url: sockets[place] for place, url in enumerate(handed.listen)})
    try:
        in_their_order = placed(listeners.open, list(listen), handed.listen)
    except HandOverRefused as error:
        successor.refuse(str(error))
    if listeners.clients is None:
        successor.refuse("this system has no epoll")
    consumers = handed.store.consumers
    moving = MovingIn(
        broker,
        in_their_order,
        listeners.clients,
        store.queues.taken,
        lambda place, handed_to: store.groups.take_over(consumers[place], handed_to),
    )
    successor.take_connections(moving)
    return moving


async def _take_place(successor: Successor, link: StoreLink, moving: MovingIn, listeners: Listeners) -> None:
    """Connect to the store in the old process's place, and serve. Raises HandOverFailed."""
    link.take_place(successor)
    try:
        async with asyncio.timeout(CONNECT_S):
            await link.welcomed.wait()
    except TimeoutError:
        successor.refuse("the store cannot be reached")
    count = len(moving)
    moving.begin()
    link.store.queues.drop_unread()
    listeners.begin()
    log.info("took over %d connections", count)


def _facts(settings: Settings, broker: Broker, store: RemoteStore) -> ProcessFacts:
    """What operators are told of this process."""
    return ProcessFacts(settings, lambda: read_steps(broker, None, store), broker.unready, lambda: "")


async def _close(listeners: Listeners, stop: Stop, tick: Callable[[], object], upgrade: UpgradeSignal) -> None:
    if not upgrade.is_over:
        await listeners.close(stop, tick, others=True)


async def _end(link: StoreLink, connecting: asyncio.Task[None], upgrade: UpgradeSignal) -> None:
    if not upgrade.is_over:
        link.goodbye("the gateway stops")
    connecting.cancel()
    with suppress(asyncio.CancelledError):
        await connecting
