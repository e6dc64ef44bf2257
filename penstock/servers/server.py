"""`penstock serve`: the store and a gateway in one process."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from gateway.broker import Broker
from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from notify.server.server import StoreServer
from penstock.config.settings import Settings
from penstock.servers.access import AccessLoader
from penstock.servers.audit_file import open_audit
from penstock.servers.client_tls import ClientTls
from penstock.servers.console_child import check_console_exposed, start_console
from penstock.servers.listeners import Listeners, check_exposed, open_gateway_admin, say_who_may_connect
from penstock.servers.process import DRAIN_S, Stop, heed_hangup, listen_to_operators, run, tune_garbage_collection
from penstock.servers.starting import Starting
from penstock.servers.user_limits import limit_users
from store.version import VERSION

log = logging.getLogger("penstock")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    check_exposed(settings)
    check_console_exposed(settings)
    tls, judging = ClientTls(settings.gateway), AccessLoader(settings.auth)
    return run(settings, lambda: _serve(settings, tls, judging))


async def _serve(settings: Settings, tls: ClientTls, judging: AccessLoader) -> None:
    """Start the admin endpoint, the store with its recovery, the gateway, and then accept clients; stop in reverse."""
    stop = Stop()
    heed_hangup(judging.reload, tls.reload)  # until there is an audit log
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    log.info("penstock %s starting, data=%s flush=%s", VERSION, settings.store.data, settings.store.flush)
    say_who_may_connect(settings)
    hub: Hub | None = None
    store: MessageStore | None = None
    broker: Broker | None = None
    starting = Starting()

    def on_safe() -> None:
        if hub is not None:
            loop.call_soon_threadsafe(hub.safe_advanced)

    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        if settings.admin is not None:
            admin = open_gateway_admin(settings.admin, lambda: broker, lambda: store, None, lambda: starting.text)
            closing.callback(admin.close)
        store = messages = MessageStore(settings.store, on_safe, starting.replayed)
        closing.callback(messages.close)
        audit, reopen_audit = open_audit(settings, closing)
        judging.audit = tls.audit = audit
        heed_hangup(judging.reload, tls.reload, reopen_audit)
        hub = Hub(messages)
        limit_users(hub, settings.quota)
        hub.bans.audit = audit
        access, store_here = judging.start(closing), LocalStore.join(hub, "gateway")
        broker = serving = Broker(store_here, settings.gateway, loop, access, settings.quota, audit)
        closing.callback(serving.close)
        judging.on_reload(serving.judge_again)
        tls.judges(serving.certified)
        hub.claims.presence_of = serving.registry.presence
        operators = StoreServer(hub, settings.wire, {}, audit, only_operators=True)
        closing.push_async_callback(operators.close, DRAIN_S)
        await listen_to_operators(operators, settings.store.data)

        def tick() -> None:
            tls.tick()
            judging.tick()
            serving.tick()
            operators.tick()

        listeners = Listeners(serving, tls)
        closing.push_async_callback(listeners.close, stop, tick)
        await listeners.bind(settings.gateway.listen)
        tune_garbage_collection()
        messages.scrubber.start()
        took_s = time.monotonic() - started_s
        log.info(
            "started in %.2f s: %d sessions, %d bytes replayed", took_s, len(messages.sessions), messages.replayed_bytes
        )
        starting.is_over()
        listeners.say_ready(data=settings.store.data)
        await start_console(settings, closing, stop)
        await stop.tick(tick)
