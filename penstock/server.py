"""`penstock serve`: start-up, main loop and shutdown, in that order."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import time

import uvloop

from gateway.broker import TICK_S, Broker
from gateway.listener import check_exposure, listen
from lightqueue.message_store import MessageStore
from penstock.logs import set_up_logging
from penstock.settings import Settings

log = logging.getLogger("penstock")


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    set_up_logging(settings.log_level, settings.log_format)
    check_exposure(settings.gateway.listen, settings.gateway.allow_anonymous_beyond_loopback)
    _raise_descriptor_limit()
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    safe_advanced: list[Broker] = []

    def on_safe() -> None:
        for broker in safe_advanced:
            loop.call_soon_threadsafe(broker.safe_advanced)

    store = MessageStore(settings.store, on_safe)
    try:
        broker = Broker(store, settings.gateway, loop)
        safe_advanced.append(broker)
        broker.start()
        servers = [await listen(broker, url) for url in settings.gateway.listen]
        _tune_garbage_collection()
        log.info("started in %.2f s, replayed %d bytes", time.monotonic() - started_s, store.replayed_bytes)
        for _, url in servers:
            print(f"ready {url} data={settings.store.data}", flush=True)
        await _until_stopped(broker)
        for server, _ in servers:
            server.close()
        await _drain(broker, settings.gateway.drain_timeout_s)
    finally:
        safe_advanced.clear()
        store.close()
    return 0


async def _until_stopped(broker: Broker) -> None:
    """The main loop: everything happens in callbacks, but for the tick."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    while not stopped.is_set():
        broker.tick()
        try:
            await asyncio.wait_for(stopped.wait(), TICK_S)
        except TimeoutError:
            continue


async def _drain(broker: Broker, timeout_s: float) -> None:
    """Let clients know, store what they sent, and wait until it is safe."""
    broker.drain()
    deadline = time.monotonic() + timeout_s
    while not broker.quiet and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        broker.end_turn()


def _tune_garbage_collection() -> None:
    """What start-up made stays; per-turn garbage has no cycles, so full collections can be rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


