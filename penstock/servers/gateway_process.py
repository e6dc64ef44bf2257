"""`penstock gateway`: a gateway that connects to a store in another process. It has no durable state."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from contextlib import AsyncExitStack, suppress

from gateway.auth.shared_attempts import SharedAttempts
from gateway.broker import Broker
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
from penstock.servers.listeners import Listeners, check_exposed, open_gateway_admin, say_who_may_connect
from penstock.servers.process import SUPERVISED, Stop, heed_hangup, run, tune_garbage_collection
from penstock.tracing.opening import check_tracing, open_tracing
from store.version import VERSION

log = logging.getLogger("penstock")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    if settings.gateway.store is None:
        raise UsageError("no store to connect to; give its address with --store tcp://HOST:PORT")
    address = StoreAddress.parse(settings.gateway.store)
    token = token_of_gateway(settings.gateway)
    tls = StoreTls(address, settings.gateway)
    check_exposed(settings)
    check_tracing(settings)
    client_tls, judging = ClientTls(settings.gateway), AccessLoader(settings.auth)
    return run(settings, lambda: _serve(settings, address, token, tls, client_tls, judging))


async def _serve(
    settings: Settings,
    address: StoreAddress,
    token: str,
    tls: StoreTls,
    client_tls: ClientTls,
    judging: AccessLoader,
) -> None:
    """Accept clients once the store is there; if it goes away later, they stay connected, and wait."""
    stop = Stop()
    heed_hangup(judging.reload, client_tls.reload, tls.reload)
    judging.load()
    loop = asyncio.get_running_loop()
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
    log.info("penstock %s gateway %s starting, store=%s", VERSION, name, address.url)
    say_who_may_connect(settings)
    patience_s, cache_bytes = settings.gateway.store_patience_s, settings.gateway.range_cache_bytes

    broker: Broker | None = None
    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        parts = open_tracing(settings, "gateway", closing)

        def store_of(link: StoreLink) -> RemoteStore:
            return parts.remote_store(patience_s, cache_bytes, link.flush, link.wake, loop.time)

        link = StoreLink(address, name, token, tls.context if tls.is_set else None, store_of)
        store = link.store
        if settings.admin is not None:
            closing.callback(open_gateway_admin(settings.admin, lambda: broker, lambda: None, store).close)
        if settings.notify.events == "lookup" and settings.notify.redis_url:
            redis = RedisEntry(settings.notify.redis_url, name, store.queues.watched, settings.notify.redis_lease_ms)
            closing.push_async_callback(redis.close)
            redis.start()
        connecting = asyncio.create_task(link.run())
        closing.push_async_callback(_end, link, connecting)
        if await stop.or_event(link.welcomed):
            return
        supervised = os.environ.get(SUPERVISED, "")
        audit, reopen_audit = open_audit(settings, closing, supervised, has_data_folder=bool(supervised))
        for each in (client_tls, tls):
            each.start(audit)
        heed_hangup(judging.reload, client_tls.reload, tls.reload, reopen_audit)
        access = judging.start(closing, audit)
        if access is not None:
            shared = SharedAttempts(access.attempts, store.bans.logins_ended, loop.time, loop.call_soon)
            store.bans.count_logins = shared.take
        broker = serving = Broker(store, settings.gateway, loop, access, settings.quota, audit)
        closing.callback(serving.close)
        serving.store_events.facts = _facts(settings, serving, store)
        judging.on_reload(serving.judge_again)
        client_tls.judges(serving.certified)

        def tick() -> None:
            link.tick()
            client_tls.tick()
            judging.tick()
            tls.tick()
            serving.tick()

        listeners = Listeners(broker, client_tls)
        closing.push_async_callback(listeners.close, stop, tick, others=True)
        await listeners.bind(settings.gateway.listen)
        tune_garbage_collection()
        listeners.say_ready(store=address.url)
        await stop.tick(tick)


def _facts(settings: Settings, broker: Broker, store: RemoteStore) -> ProcessFacts:
    """What operators are told of this process."""
    return ProcessFacts(settings, lambda: read_steps(broker, None, store), broker.unready, lambda: "")


async def _end(link: StoreLink, connecting: asyncio.Task[None]) -> None:
    link.goodbye("the gateway stops")
    connecting.cancel()
    with suppress(asyncio.CancelledError):
        await connecting
