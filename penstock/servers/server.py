"""`penstock serve`: the store and a gateway in one process."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from contextlib import AsyncExitStack

from gateway.auth.access import Access
from gateway.listen_address import ListenError
from penstock.config.settings import Settings
from penstock.servers.access import AccessLoader
from penstock.servers.audit_file import open_audit
from penstock.servers.client_tls import ClientTls
from penstock.servers.companions import check_console_exposed, start_console, start_flows, start_tier
from penstock.servers.handover.packed_server import PackedServer
from penstock.servers.handover.server_handover import ServerHandOver
from penstock.servers.handover.signalled import UpgradeSignal
from penstock.servers.handover.successor import Successor
from penstock.servers.listeners import check_exposed, open_gateway_admin, say_who_may_connect
from penstock.servers.process import Stop, heed_hangup, run
from penstock.servers.serving import Serving, ServingParts
from penstock.servers.starting import Starting
from penstock.tracing.opening import check_tracing, open_tracing
from store.audit import Audit
from store.errors import StoreError
from store.version import VERSION

log = logging.getLogger("penstock")

REOPEN_S = 10.0
"""How long it is tried to open the store again that the next process did not come to serve."""
REOPEN_STEP_S = 0.05
REGAIN_S = 0.5
ALONE_S = 60.0
"""How long the old process may take to end: the console, the tier and the flows end with it."""


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
    log.info("penstock %s starting, data=%s flush=%s", VERSION, settings.store.data, settings.store.flush)
    say_who_may_connect(settings)
    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        server = ServerWithStore(settings, tls, judging, stop, closing)
        successor = Successor.of_environment()
        if successor is None:
            server.open_admin()
            await server.start()
        else:
            judging.load()
            await server.take_over(successor)
            if await _is_alone(successor, server, stop):
                server.open_admin()
        if not stop.is_asked:
            await start_console(settings, closing, stop)
            await start_tier(settings, closing, stop)
            await start_flows(settings, closing, stop)
        await stop.tick(server.tick)


async def _is_alone(successor: Successor, server: ServerWithStore, stop: Stop) -> bool:
    """Serve until the old process has ended, and what it started. False: this one should stop."""
    alone = asyncio.Event()
    waiting = asyncio.create_task(successor.is_alone(ALONE_S))
    waiting.add_done_callback(lambda _: alone.set())
    return not await stop.tick_until(alone, server.tick)


class ServerWithStore:
    """Owner of what serves in this process, and of what outlives its store."""

    def __init__(
        self, settings: Settings, tls: ClientTls, judging: AccessLoader, stop: Stop, closing: AsyncExitStack
    ) -> None:
        self._settings, self._tls, self._judging = settings, tls, judging
        self._stop, self._closing = stop, closing
        self._started_s = time.monotonic()
        self._serving: Serving | None = None
        self._starting = Starting()
        self._audit: Audit | None = None
        self._access: list[Access | None] = []
        self._failure: Exception | None = None
        self._upgrade = UpgradeSignal(stop)
        self._handing_over: ServerHandOver | None = None
        tracing = open_tracing(settings, "serve", closing)
        self._parts = ServingParts(settings, tls, judging, self._starting, tracing, self._open_audit, self._open_access)

    def open_admin(self) -> None:
        if self._settings.admin is not None:
            found = self._found
            admin = open_gateway_admin(
                self._settings.admin,
                lambda: serving.broker if (serving := found()) is not None else None,
                lambda: serving.hub if (serving := found()) is not None else None,
                None,
                lambda: self._starting.text,
            )
            self._closing.callback(admin.close)

    # --- opening

    async def start(self) -> None:
        """Open the store, and accept clients. Raises StoreError or ListenError."""
        serving = Serving(self._parts)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(serving.close)
            await serving.begin(self._stop)
            undo.pop_all()
        self._closing.push_async_callback(self._close)  # before what begin() opened is closed
        self._serves(serving)
        serving.listeners.say_ready(data=self._settings.store.data)

    async def take_over(self, successor: Successor) -> None:
        """Open the store that another process has closed, and go on with its clients. Raises HandOverFailed."""
        successor.begin_server(self._settings.store.data, self._settings.gateway.listen)
        self._started_s = time.monotonic()
        try:
            serving = Serving(self._parts)
        except (StoreError, OSError) as error:
            successor.refuse(str(error))
        async with AsyncExitStack() as undo:
            undo.callback(serving.abandon)
            try:
                count = await serving.begin(self._stop, successor)
            except (StoreError, ListenError, OSError) as error:
                successor.refuse(str(error))
            undo.pop_all()
        self._closing.push_async_callback(self._close)
        self._serves(serving)
        serving.listeners.say_ready(data=self._settings.store.data)
        log.info("took over %d connections", count)

    async def _reopen(self, packed: PackedServer) -> None:
        """The next process does not serve: open the store again, and go on with the clients that were packed."""
        self._serving, self._started_s = None, time.monotonic()
        self._upgrade.cannot_begin()
        deadline_s = time.monotonic() + REOPEN_S
        while True:
            try:
                serving = Serving(self._parts)
                break
            except StoreError as error:
                if time.monotonic() > deadline_s or self._stop.is_urgent:
                    self._fails(error)
                    raise
            await asyncio.sleep(REOPEN_STEP_S)
        try:
            await serving.begin(self._stop, packed)
        except Exception as error:  # whatever it is, the clients must not wait for ever
            serving.abandon()
            self._fails(error)
            raise
        self._serves(serving)
        asyncio.get_running_loop().call_later(REGAIN_S, _regain)

    def _fails(self, error: Exception) -> None:
        log.critical("the store cannot be opened again: %s", error)
        self._failure = error
        self._stop.end()

    def _serves(self, serving: Serving) -> None:
        self._serving = serving
        messages, took_s = serving.messages, time.monotonic() - self._started_s
        log.info(
            "started in %.2f s: %d sessions, %d bytes replayed", took_s, len(messages.sessions), messages.replayed_bytes
        )
        self._starting.is_over()
        moving = serving.moving
        if moving is not None:
            self._handing_over = ServerHandOver(serving, moving, self._reopen)
            self._upgrade.can_begin(self._handing_over)

    def _open_audit(self) -> Audit:
        if self._audit is None:
            self._audit, reopen_audit = open_audit(self._settings, self._closing)
            self._tls.start(self._audit)
            heed_hangup(self._judging.reload, self._tls.reload, reopen_audit)
        return self._audit

    def _open_access(self, audit: Audit) -> Access | None:
        if not self._access:
            self._access.append(self._judging.start(self._closing, audit))
        return self._access[0]

    # --- serving

    def _found(self) -> Serving | None:
        return self._serving if self._serving is not None and self._serving.is_whole else None

    def tick(self) -> None:
        """To be called several times a second."""
        self._tls.tick()
        self._judging.tick()
        if self._serving is not None:
            self._serving.tick()

    async def _close(self) -> None:
        """The end, unless another process serves."""
        if self._handing_over is not None:
            await self._handing_over.settled()
        if self._upgrade.is_over:
            return
        if self._serving is not None:
            await self._serving.close()
        if self._failure is not None:
            raise self._failure


def _regain() -> None:
    """Free what served before: it is kept out of collections, as all that is made at a start."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
