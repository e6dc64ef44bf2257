"""`penstock serve`: the store and a gateway in one process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from gateway.auth.access import Access
from gateway.broker import Broker
from gateway.observe.metrics import read_steps
from notify.local.hub import Hub
from notify.server.server import StoreServer
from notify.settings import WireSettings
from penstock.config.settings import Settings
from penstock.servers.access import AccessLoader
from penstock.servers.audit_file import open_audit
from penstock.servers.client_tls import ClientTls
from penstock.servers.companions import check_console_exposed, hold_for_tier, start_console, start_flows, start_tier
from penstock.servers.facts import ProcessFacts
from penstock.servers.listeners import Listeners, check_exposed, open_gateway_admin, say_who_may_connect
from penstock.servers.process import DRAIN_S, Stop, heed_hangup, listen_in_data_folder, run, tune_garbage_collection
from penstock.servers.starting import Starting
from penstock.servers.store_users import StoreUsers
from penstock.servers.user_limits import quotas_of
from penstock.tracing.opening import check_tracing, open_tracing
from store.version import VERSION

log = logging.getLogger("penstock")

FRAME_ROOM_BYTES = 64 << 10
"""Of a frame beside the largest packet of a client."""


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    check_exposed(settings)
    check_tracing(settings)
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
    broker: Broker | None = None
    starting = Starting()

    def on_safe() -> None:
        if hub is not None:
            loop.call_soon_threadsafe(hub.safe_advanced)

    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        if settings.admin is not None:
            admin = open_gateway_admin(settings.admin, lambda: broker, lambda: hub, None, lambda: starting.text)
            closing.callback(admin.close)
        parts = open_tracing(settings, "serve", closing)
        messages = parts.message_store(settings.store, on_safe, starting.replayed)
        closing.callback(messages.close)
        audit, reopen_audit = open_audit(settings, closing)
        tls.start(audit)
        heed_hangup(judging.reload, tls.reload, reopen_audit)
        hub = Hub(messages, quotas=quotas_of(settings.quota), audit=audit, reads_tier=settings.tier.reads)
        hold_for_tier(hub, settings.tier)
        access, store_here = judging.start(closing, audit), parts.local_store(hub)
        broker = serving = Broker(store_here, settings.gateway, loop, access, settings.quota, audit)
        closing.callback(serving.close)
        tls.judges(serving.certified)
        hub.claims.ask_presence_of(serving.registry.presence)
        local = StoreServer(hub, _wire(settings), {}, audit, has_gateway=True)
        judging.on_reload(_judge_again(serving, local, access))
        closing.push_async_callback(local.close, DRAIN_S)
        hub.facts = ProcessFacts(settings, lambda: read_steps(serving, hub), serving.unready, messages.health)
        await listen_in_data_folder(local, settings.store.data)

        def tick() -> None:
            tls.tick()
            judging.tick()
            serving.tick()
            local.tick()

        listeners = Listeners(serving, tls)
        closing.push_async_callback(listeners.close, stop, tick)
        await listeners.bind(settings.gateway.listen)
        tune_garbage_collection()
        messages.log.scrubber.start()
        took_s = time.monotonic() - started_s
        log.info(
            "started in %.2f s: %d sessions, %d bytes replayed", took_s, len(messages.sessions), messages.replayed_bytes
        )
        starting.is_over()
        listeners.say_ready(data=settings.store.data)
        await start_console(settings, closing, stop)
        await start_tier(settings, closing, stop)
        await start_flows(settings, closing, stop)
        await stop.tick(tick)


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
