"""`penstock store`: the message store as a process of its own, for gateways and clients that connect to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from gateway.auth.left_by import LeftJudge
from gateway.auth.shared_attempts import SharedAttempts
from lightqueue.message_store import MessageStore
from lightqueue.opening import OpenStore
from notify.events.lookup import Broadcast, Lookup
from notify.events.redis_lookup import RedisTable
from notify.links.address import StoreAddress, is_loopback
from notify.local.hub import Hub
from notify.server.server import StoreServer
from notify.server.standby_port import StandbyPort
from notify.server.wire_metrics import read_steps
from penstock.config.credentials import Tokens, tokens_of_namespaces, tokens_of_store, warn_of_shared_token
from penstock.config.settings import Settings
from penstock.errors import UsageError
from penstock.servers.access import AccessLoader
from penstock.servers.audit_file import open_audit
from penstock.servers.client_tls import WireTls
from penstock.servers.companions import hold_for_tier, start_tier
from penstock.servers.facts import ProcessFacts
from penstock.servers.logs import announce
from penstock.servers.process import (
    DRAIN_S,
    Stop,
    check_admin_exposed,
    heed_hangup,
    listen_in_data_folder,
    open_admin,
    run,
    tune_garbage_collection,
)
from penstock.servers.service_manager import tell_ready
from penstock.servers.starting import Starting
from penstock.servers.store_users import StoreUsers
from penstock.servers.user_limits import quotas_of
from penstock.tracing.opening import check_tracing, open_tracing
from store.version import VERSION

if TYPE_CHECKING:
    from penstock.servers.admin import Admin
    from store.figures import Reading

log = logging.getLogger("penstock")


class ClusterPart(Protocol):
    """What a store that is one of several asks of its cluster."""

    @property
    def leader_place(self) -> str:
        """HOST:PORT at which users reach the store that leads; empty: not known."""

    async def until_leading(self, stop: Stop, on_replayed: Callable[[int, int], None]) -> OpenStore | None:
        """Follow until this store leads and serves; None: it is to stop."""

    def why_not_serving(self) -> str:
        """Why the store may not answer now; empty: it may. Asked first in each turn."""

    def tick(self) -> None:
        """Raises what ended the store's part."""

    async def leave(self, messages: MessageStore) -> None:
        """Hand over to another store."""


def serve(settings: Settings, cluster: ClusterPart | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    address = StoreAddress.parse(settings.wire.listen, any_port=True)
    tokens = tokens_of_store(settings.wire)
    tls = WireTls(settings.wire) if address.is_tls else None
    check_exposed(address, settings, tokens)
    check_tracing(settings)
    judging = AccessLoader(settings.auth)
    return run(settings, lambda: _serve(settings, address, tokens, tls, judging, cluster))


async def _serve(
    settings: Settings,
    address: StoreAddress,
    tokens: Tokens,
    tls: WireTls | None,
    judging: AccessLoader,
    cluster: ClusterPart | None,
) -> None:
    """Start the admin endpoint, the store with its recovery, and then accept peers; stop in reverse."""
    stop = Stop()
    heed_hangup(judging.reload, *(each.reload for each in (tls,) if each is not None))
    judging.load()
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    log.info("penstock %s store starting, data=%s flush=%s", VERSION, settings.store.data, settings.store.flush)
    warn_of_shared_token(tokens)
    server: StoreServer | None = None
    starting = Starting()

    def on_safe() -> None:
        if server is not None:
            call = loop.call_soon_threadsafe if cluster is None else loop.call_soon  # flusher, or a turn
            call(server.safe_advanced)

    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        if settings.admin is not None:
            closing.callback(_open_admin(settings.admin, lambda: server, starting).close)
        parts = open_tracing(settings, "store", closing)
        opened: OpenStore | None = None
        if cluster is not None:
            opened = await _lead(settings, cluster, address, tokens, tls, stop, starting)
            if opened is None:
                return
        messages = parts.message_store(settings.store, on_safe, starting.replayed, opened)
        closing.callback(messages.close)
        if cluster is not None:
            closing.push_async_callback(cluster.leave, messages)
        audit, reopen_audit = open_audit(settings, closing)
        reloads = [judging.reload, reopen_audit]
        if tls is not None:
            tls.start(audit)
            reloads.append(tls.reload)
        heed_hangup(*reloads)
        hub = Hub(messages, True, quotas_of(settings.quota), audit, settings.tier.reads)
        hub.look_up(_lookup(settings, hub.gateways.__contains__, closing))
        hold_for_tier(hub, settings.tier)
        of_namespaces = tokens_of_namespaces(settings.wire)
        server = serving = StoreServer(hub, settings.wire, tokens, audit, of_namespaces=of_namespaces)
        if cluster is not None:
            serving.led_by(cluster)
        _judge_clients(serving, judging, of_namespaces, closing)
        closing.push_async_callback(_close, server, messages)
        hub.facts = ProcessFacts(settings, lambda: read_steps(serving), serving.unready, messages.health)
        await listen_in_data_folder(server, settings.store.data)
        url = await server.listen(address, tls.context if tls is not None else None)
        tune_garbage_collection()
        messages.log.scrubber.start()
        took_s = time.monotonic() - started_s
        log.info(
            "started in %.2f s: %d sessions, %d bytes replayed", took_s, len(messages.sessions), messages.replayed_bytes
        )
        starting.is_over()
        announce("ready", url, data=settings.store.data)
        tell_ready()
        await start_tier(settings, closing, stop)

        ticks = [each.tick for each in (serving, cluster, tls) if each is not None]
        await stop.tick(lambda: [tick() for tick in ticks])


async def _lead(
    settings: Settings,
    cluster: ClusterPart,
    address: StoreAddress,
    tokens: Tokens,
    tls: WireTls | None,
    stop: Stop,
    starting: Starting,
) -> OpenStore | None:
    """Follow, and tell users who leads, until this store does; None: it is to stop."""
    of_namespaces = tokens_of_namespaces(settings.wire)
    port = StandbyPort(settings.wire, tokens, lambda: cluster.leader_place, of_namespaces)
    try:
        await port.listen(address, tls.context if tls is not None else None)
    except OSError as error:
        log.warning("%s: nobody is told there who leads: %s", address.url, error)
    try:
        return await cluster.until_leading(stop, starting.replayed)
    finally:
        port.close()


def _lookup(settings: Settings, has_gateway: Callable[[object], bool], closing: AsyncExitStack) -> Lookup | None:
    """Which gateways are told of what grew; None: those that follow it."""
    if settings.notify.events == "broadcast":
        return Broadcast()
    if not settings.notify.redis_url:
        return None
    redis = RedisTable(settings.notify.redis_url, has_gateway)
    closing.push_async_callback(redis.close)
    redis.start()
    return redis.table


async def _close(server: StoreServer, messages: MessageStore) -> None:
    """Close the server. If the disk has failed, do not wait: the answers that peers wait for do not come."""
    await server.close(0 if messages.log.failed_for_good() else DRAIN_S)


def _judge_clients(
    server: StoreServer, judging: AccessLoader, of_namespaces: Mapping[str, str], closing: AsyncExitStack
) -> None:
    """Apply the rules of [auth] to the store's clients as well."""
    access = judging.start(closing, server.audit)
    users = StoreUsers.at(server, access, of_namespaces)
    if access is None:
        return
    loop = asyncio.get_running_loop()
    shared = SharedAttempts(access.attempts, server.hub, loop.time, loop.call_soon)
    server.hub.count_logins(shared)
    server.hub.judges.judge_clients_by(LeftJudge(access, server.events, server.audit, Counter()).judge)

    def again() -> None:
        users.replaced()
        server.judge_again()

    judging.on_reload(again)


def _open_admin(address: str, server: Callable[[], StoreServer | None], starting: Starting) -> Admin:
    """The admin endpoint of a store; `server` returns it once the start is over."""
    from penstock.servers.admin import LoopSource  # imported here, since most processes need no HTTP server

    def readings() -> Iterator[list[Reading]]:
        found = server()
        return read_steps(found) if found is not None else iter(())

    def unready() -> str:
        found = server()
        return found.unready() if found is not None else "stopping"

    def health() -> str:
        found = server()
        return found.hub.messages.health() if found is not None else ""

    return open_admin(address, LoopSource(readings, unready, health, lambda: starting.text))


def check_exposed(address: StoreAddress, settings: Settings, tokens: Tokens) -> None:
    """Refuse an open address beyond loopback unless the operator allows it. Raises UsageError."""
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
