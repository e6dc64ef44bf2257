"""`penstock serve`: start-up, main loop and shutdown, in that order."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop

from gateway.broker import TICK_S, Broker
from gateway.listener import check_exposure, listen
from gateway.version import VERSION
from lightqueue.message_store import MessageStore
from notify.hub import Hub
from penstock.logs import set_up_logging
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.admin import Admin

log = logging.getLogger("penstock")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    set_up_logging(settings.log_level, settings.log_format)
    _check_exposure(settings)
    _raise_descriptor_limit()
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    parts = Parts()
    try:
        broker = await _start_up(settings, parts)
        await _main_loop(broker)
    finally:
        await _shut_down(parts, settings.gateway.drain_timeout_s)
    return 0


@dataclass(slots=True)
class Parts:
    """What has been started so far."""

    store: MessageStore | None = None
    broker: Broker | None = None
    admin: Admin | None = None
    listeners: list[tuple[asyncio.Server, str]] = field(default_factory=list)


async def _start_up(settings: Settings, parts: Parts) -> Broker:
    """The store with its recovery, the gateway, the admin endpoint, and only then the clients."""
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    log.info("penstock %s starting, data=%s flush=%s", VERSION, settings.store.data, settings.store.flush)

    def on_safe() -> None:
        if parts.broker is not None:
            loop.call_soon_threadsafe(parts.broker.safe_advanced)

    store = parts.store = MessageStore(settings.store, on_safe)
    broker = parts.broker = Broker(Hub(store).join("gateway"), settings.gateway, loop)
    if settings.admin is not None:
        parts.admin = _open_admin(settings.admin, broker, store)
    for url in settings.gateway.listen:
        parts.listeners.append(await listen(broker, url))
    broker.listening = True
    _tune_garbage_collection()
    took_s = time.monotonic() - started_s
    log.info("started in %.2f s: %d sessions, %d bytes replayed", took_s, len(store.sessions), store.replayed_bytes)
    for _, url in parts.listeners:
        print(f"ready {url} data={settings.store.data}", flush=True)
    return broker


async def _main_loop(broker: Broker) -> None:
    """Everything happens in callbacks, but for the tick."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        log.info("stopping: %s", number.name)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    while not stopped.is_set():
        broker.tick()
        try:
            await asyncio.wait_for(stopped.wait(), TICK_S)
        except TimeoutError:
            continue


async def _shut_down(parts: Parts, drain_timeout_s: float) -> None:
    """No new clients; goodbye to those that are here; what they sent is stored; then everything is closed."""
    for server, _ in parts.listeners:
        server.close()
    if parts.broker is not None:
        await _drain(parts.broker, drain_timeout_s)
    if parts.admin is not None:
        parts.admin.close()
    parts.broker = None  # what becomes safe from here on is of interest to nobody
    if parts.store is not None:
        parts.store.close()
        log.info("stopped")


async def _drain(broker: Broker, timeout_s: float) -> None:
    """Let clients know, store what they sent, and wait until it is safe."""
    broker.drain()
    deadline = time.monotonic() + timeout_s
    while not broker.quiet and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        broker.end_turn()
    broker.events.close()


def _open_admin(address: str, broker: Broker, store: MessageStore) -> Admin:
    from gateway.metrics import read_all  # here, so that who has no use for it does not import an HTTP server
    from penstock.admin import Admin, AdminSource

    source = AdminSource(lambda: read_all(broker, store), broker.unready)
    admin = Admin(address, source, asyncio.get_running_loop())
    print(f"admin {admin.url}", flush=True)
    return admin


def _check_exposure(settings: Settings) -> None:
    allowed = settings.gateway.allow_anonymous_beyond_loopback
    check_exposure(settings.gateway.listen, allowed)
    if settings.admin is not None:
        from penstock.admin import check_admin_exposure

        check_admin_exposure(settings.admin, allowed)


def _tune_garbage_collection() -> None:
    """What start-up made stays; per-turn garbage has no cycles, so full collections can be rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
