"""`penstock store`: the message store as a process of its own, for gateways and clients that connect to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.version import VERSION
from lightqueue.message_store import MessageStore
from notify.address import StoreAddress, is_loopback
from notify.hub import Hub
from notify.lookup import Broadcast
from notify.redis_lookup import RedisTable
from notify.server import StoreServer
from penstock.access import Judging
from penstock.audit_file import open_audit
from penstock.client_tls import WireTls
from penstock.credentials import Tokens, tokens_of_namespaces, tokens_of_store, warn_of_shared_token
from penstock.errors import UsageError
from penstock.process import (
    DRAIN_S,
    Stop,
    check_admin_exposed,
    heed_hangup,
    listen_to_operators,
    open_admin,
    run,
    tune_garbage_collection,
)
from penstock.settings import Settings
from penstock.store_users import StoreUsers

if TYPE_CHECKING:
    from penstock.admin import Admin

log = logging.getLogger("penstock")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    address = StoreAddress.parse(settings.wire.listen, any_port=True)
    tokens = tokens_of_store(settings.wire)
    tls = WireTls(settings.wire) if address.is_tls else None
    check_exposed(address, settings, tokens)
    judging = Judging(settings.auth)
    return run(settings, lambda: _serve(settings, address, tokens, tls, judging))


async def _serve(
    settings: Settings, address: StoreAddress, tokens: Tokens, tls: WireTls | None, judging: Judging
) -> None:
    """The store with its recovery, the admin endpoint, and only then the peers; the end in reverse."""
    stop = Stop()
    heed_hangup(judging.reload, *(each.reload for each in (tls,) if each is not None))
    judging.load()
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    log.info("penstock %s store starting, data=%s flush=%s", VERSION, settings.store.data, settings.store.flush)
    warn_of_shared_token(tokens)
    server: StoreServer | None = None

    def on_safe() -> None:
        if server is not None:
            loop.call_soon_threadsafe(server.safe_advanced)

    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        messages = MessageStore(settings.store, on_safe)
        closing.callback(messages.close)
        audit, reopen_audit = open_audit(settings, closing)
        judging.audit = audit
        reloads = [judging.reload, reopen_audit]
        if tls is not None:
            tls.audit = audit
            reloads.append(tls.reload)
        heed_hangup(*reloads)
        hub = Hub(messages, waits_for_peers=True)
        hub.consumers.most_of_user = settings.quota.user_groups
        hub.bans.audit = audit
        if settings.notify.events == "broadcast":
            hub.lookup = Broadcast()
        elif settings.notify.redis_url:
            redis = RedisTable(settings.notify.redis_url, hub.gateways.__contains__)
            closing.push_async_callback(redis.close)
            redis.start()
            hub.lookup = redis.table
        of_namespaces = tokens_of_namespaces(settings.wire)
        server = serving = StoreServer(hub, settings.wire, tokens, audit, of_namespaces=of_namespaces)
        _judge_clients(serving, judging, of_namespaces, closing)
        if settings.admin is not None:
            closing.callback(_open_admin(settings.admin, server).close)
        closing.push_async_callback(server.close, DRAIN_S)
        await listen_to_operators(server, settings.store.data)
        url = await server.listen(address, tls.context if tls is not None else None)
        tune_garbage_collection()
        took_s = time.monotonic() - started_s
        log.info(
            "started in %.2f s: %d sessions, %d bytes replayed", took_s, len(messages.sessions), messages.replayed_bytes
        )
        print(f"ready {url} data={settings.store.data}", flush=True)

        def tick() -> None:
            serving.tick()
            if tls is not None:
                tls.tick()

        await stop.tick(tick)


def _judge_clients(
    server: StoreServer, judging: Judging, of_namespaces: Mapping[str, str], closing: AsyncExitStack
) -> None:
    """Where [auth] says who may come in or do what, it says so of the store's clients as well."""
    access = judging.start(closing)
    if access is None:
        return
    users = StoreUsers(access, of_namespaces)
    server.judge = users

    def again() -> None:
        users.replaced()
        server.judge_again()

    judging.on_reload(again)


def _open_admin(address: str, server: StoreServer) -> Admin:
    from gateway.metrics import read_all  # here, so that who has no use for it does not import an HTTP server
    from penstock.admin import LoopSource

    return open_admin(address, LoopSource(lambda: read_all(None, server.hub.messages, server), server.unready))


def check_exposed(address: StoreAddress, settings: Settings, tokens: Tokens) -> None:
    """Nothing listens beyond loopback for everybody unless the operator says so. Raises UsageError."""
    allowed = settings.wire.allow_open_beyond_loopback
    if address.host and not is_loopback(address.host) and not allowed:
        lacking = [
            what for what, is_there in (("a token", all(tokens.values())), ("TLS", address.is_tls)) if not is_there
        ]
        if lacking:
            raise UsageError(
                f"{address.url}: reachable by other machines without {' and without '.join(lacking)}; listen on "
                "127.0.0.1, set wire.gateway_token, wire.client_token and a tls:// address, or set "
                "wire.allow_open_beyond_loopback = true"
            )
    check_admin_exposed(settings)
