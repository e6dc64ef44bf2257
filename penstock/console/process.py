"""The console as a process: it listens, serves, and ends with `penstock serve` if that started it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import uvicorn

from notify.links.address import StoreAddress, is_loopback
from penstock.config.console_settings import ConsoleSettings
from penstock.config.credentials import server_context, tls_of_gateway, token_of_client, token_of_operator
from penstock.config.settings import Settings
from penstock.console.access.callers import Callers
from penstock.console.access.logins import Logins
from penstock.console.access.state import ConsoleState
from penstock.console.app import console_app
from penstock.console.http_connections import HttpConnections
from penstock.console.observe.overview import Overview
from penstock.console.sign_on_settings import MakeSignOn, sign_on_of
from penstock.console.store.admin import AdminRequests
from penstock.console.store.connections import ConsoleStore, UserConnections
from penstock.console.store.once import PublishedOnce
from penstock.console.store.operator import OperatorConnection
from penstock.console.store.publish_rates import PublishRates
from penstock.console.store.stored_once import StoredOnce
from penstock.console.views.topics import TopicViews
from penstock.errors import UsageError
from penstock.servers.logs import announce
from penstock.servers.process import Stop, run, tune_garbage_collection
from store.version import VERSION

log = logging.getLogger("penstock.console")

BACKLOG = 256
KEEP_ALIVE_S = 30
NEXT_PORTS = 20
"""How many ports after the one that is taken are tried."""
MOST_PORT = 65_535
GRACE_S = 2
"""How long requests may go on when the console stops; streams end then."""
SWEEP_S = 5.0
SWITCH_S = 0.001
"""How long a thread that makes an answer may keep the interpreter while the loop waits for it."""
HEADS_S = 0.5
"""How often it is looked whether heads of requests are late."""


class OperatorAccess(NamedTuple):
    """How the console comes to the store as an operator."""

    address: StoreAddress
    token: str
    tls: Callable[[], ssl.SSLContext] | None


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    if settings.gateway.store is None:
        raise UsageError("no store to connect to; give its address with --store tcp://HOST:PORT")
    address = StoreAddress.parse(settings.gateway.store)
    trusted = tls_of_gateway(address, settings.gateway)
    token = token_of_operator(settings.wire)
    store = ConsoleStore(_client_url(address), token_of_client(settings.wire), token, trusted)
    operator = None
    if token or address.path:  # console.sock wants no token
        operator = OperatorAccess(address, token, None if trusted is None else lambda: trusted)
    elif not is_loopback(address.host):
        log.warning(
            "without wire.operator_token the store may count failed logins of all browsers as this console's: one that "
            "guesses passwords then locks out the others"
        )
    tls, make_sign_on = _tls(settings.console), sign_on_of(settings)
    listening = _listening(settings.console.listen)
    with listening:
        return run(
            settings,
            lambda: _serve(
                settings.console, PublishRates(settings.quota), store, operator, listening, tls, make_sign_on
            ),
        )


async def _serve(
    settings: ConsoleSettings,
    rates: PublishRates,
    store: ConsoleStore,
    operator: OperatorAccess | None,
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    make_sign_on: MakeSignOn | None,
) -> None:
    stop = Stop()
    host = host_of(settings.listen)
    log.info("penstock %s console starting, store=%s", VERSION, store.url)
    async with AsyncExitStack() as closing:
        closing.callback(log.info, "stopped")
        connections = UserConnections(store, settings.max_users, rates)
        closing.push_async_callback(connections.close)
        logins = Logins(settings.session_s)
        is_exposed = not is_loopback(host) and not settings.allow_open_beyond_loopback
        callers = Callers(connections, logins, is_exposed)
        link = None
        if operator is not None:
            link = await closing.enter_async_context(OperatorConnection(*operator))
        admin = AdminRequests(link)
        overview = Overview(settings.stuck_s, settings.sample_s)
        state = ConsoleState(
            settings,
            connections,
            callers,
            PublishedOnce(),
            StoredOnce(),
            TopicViews(),
            admin,
            overview,
            sign_on=None if make_sign_on is None else await make_sign_on(closing),
            is_secure=tls is not None,
        )
        if link is not None:
            watching = asyncio.create_task(overview.run(link))
            closing.callback(watching.cancel)
        sockets = HttpConnections(settings, state.sockets, state.refused)
        server = _HttpServer(_config(settings, state, sockets, host, tls))
        serving = asyncio.create_task(server.serve([listening]))
        closing.push_async_callback(_end, server, serving, stop)
        closing.callback(state.stopping.set)
        while not server.started:
            if serving.done() or await stop.or_tick():
                return
        tune_garbage_collection()
        sys.setswitchinterval(SWITCH_S)
        shown = f"[{host}]" if ":" in host else host
        announce("console", f"http{'s' if tls else ''}://{shown}:{listening.getsockname()[1]}")
        swept_s = looked_s = 0.0
        loop = asyncio.get_running_loop()
        while not await stop.or_tick():
            if loop.time() - looked_s > HEADS_S:
                looked_s = loop.time()
                sockets.tick(looked_s)
            if loop.time() - swept_s > SWEEP_S:
                swept_s = loop.time()
                connections.tick()
                logins.tick(swept_s)


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: Stop has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _end(server: uvicorn.Server, serving: asyncio.Task[None], stop: Stop) -> None:
    server.should_exit = True
    while not serving.done():
        server.force_exit = server.force_exit or stop.is_urgent
        await asyncio.wait((serving,), timeout=0.05)
    serving.result()


def _config(
    settings: ConsoleSettings, state: ConsoleState, sockets: HttpConnections, host: str, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    config = uvicorn.Config(
        console_app(state, host),
        http=sockets.protocol,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        limit_concurrency=settings.max_connections + 1,  # of requests too whose connections have ended
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    config.load()
    config.ssl = tls
    errors = logging.getLogger("uvicorn.error")  # with the tracebacks of what failed
    errors.handlers[:], errors.propagate = logging.getLogger("penstock").handlers, False
    errors.setLevel(logging.WARNING)
    return config


def _tls(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """Raises PenstockError."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise UsageError("console.tls_certificate and console.tls_key go together; set both")
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return server_context(settings.tls_certificate, settings.tls_key, "console.tls_certificate", "console.tls_key")


def _client_url(address: StoreAddress) -> str:
    """The address of a store as the SDK writes it."""
    if address.path:
        return address.url
    scheme, _, rest = address.url.partition("://")
    return {"tcp": "penstock", "tls": "penstocks"}[scheme] + "://" + rest


def host_of(listen: str) -> str:
    """HOST of HOST:PORT, without brackets."""
    return listen.rpartition(":")[0].strip("[]")


def _listening(listen: str) -> socket.socket:
    """A socket that listens there, or with + at the next free port. Raises UsageError."""
    host, wanted = host_of(listen), int(listen.rpartition(":")[2].removesuffix("+"))
    last = min(wanted + NEXT_PORTS, MOST_PORT) if listen.endswith("+") and wanted else wanted
    for port in range(wanted, last + 1):
        try:
            listening = _listening_at(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port < last:
                continue
            reason = error.strerror or str(error)
            raise UsageError(
                f"console {listen}: cannot listen there ({reason}); the broker goes on without its console: stop what "
                "uses the port, or choose another with console.listen (or --no-console)"
            ) from None
        if port != wanted:
            log.warning(
                "port %d is in use, so the console listens at port %d; choose one with console.listen", wanted, port
            )
        return listening
    raise AssertionError("a range of ports is never empty")


def _listening_at(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    (family, kind, *_, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
