"""`penstock serve --gateways N`: a store and N gateways that share the MQTT port, as supervised processes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.listen_address import ListenAddress
from gateway.transport.listener import BACKLOG
from notify.links.sockets import listening_unix_socket
from penstock.config.settings import Settings, render
from penstock.servers.access import AccessLoader
from penstock.servers.children import Child, ChildFailed
from penstock.servers.companions import check_console_exposed, start_console, start_flows
from penstock.servers.gateway_children import GatewayChild, Replacements
from penstock.servers.listeners import check_exposed
from penstock.servers.logs import announce
from penstock.servers.process import Stop, open_admin, run
from penstock.servers.service_manager import tell_ready
from store.version import VERSION

if TYPE_CHECKING:
    from penstock.servers.admin import Admin

log = logging.getLogger("penstock")

NO_TOKENS: dict[str, Any] = {
    "token": "",
    "gateway_token": "",
    "client_token": "",
    "operator_token": "",
} | dict.fromkeys(("token_file", "gateway_token_file", "client_token_file", "operator_token_file"))
GRACE_S = 5.0  # beyond drain_timeout_s, before a child is killed


def serve(settings: Settings, gateways: int) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    check_exposed(settings)
    check_console_exposed(settings)
    AccessLoader(settings.auth)  # reports errors in its files once, not once per gateway
    return run(settings, lambda: _serve(settings, gateways))


async def _serve(settings: Settings, gateways: int) -> None:
    stop = Stop()
    log.info("penstock %s starting: a store and %d gateways, data=%s", VERSION, gateways, settings.store.data)
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        unix_mode = int(settings.gateway.unix_socket_mode, 8)
        reserved = [undo.enter_context(_Reserved(url, unix_mode)) for url in settings.gateway.listen]
        urls = tuple(each.url for each in reserved)
        fds = tuple(fd for each in reserved for fd in each.fds)
        address = f"unix://{folder}/store.sock"
        gateway = replace(settings.gateway, listen=urls, store=address, reuse_port=True, store_ca_file=None)
        gateway = replace(gateway, store_token="", store_token_file=None)
        # No other user can connect to that socket.
        wire = replace(settings.wire, **NO_TOKENS, unix_socket_mode="0600")
        config = folder / "penstock.toml"
        admin = None if settings.admin is None else "127.0.0.1:0"
        shared = replace(settings, wire=wire, gateway=gateway, admin=admin)
        config.write_text(render(shared, hide_secrets=False), encoding="utf-8")
        grace_s = settings.gateway.drain_timeout_s + GRACE_S
        given = ["--config", str(config)]
        store = Child("store", ["store", "--listen", address, *given], grace_s, fds)
        names = [f"gateway-{i}" for i in range(1, gateways + 1)]
        in_front = [GatewayChild(name, ["gateway", *given], grace_s, fds) for name in names]
        children, replacements = [store, *in_front], Replacements(in_front, stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload_all, children)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, replacements.ask)
        async with AsyncExitStack() as closing:  # gateways end before the store does
            if settings.admin is not None:
                closing.callback(_open_admin(settings.admin, children).close)
            closing.push_async_callback(replacements.end)
            for part in ([store], in_front):
                closing.push_async_callback(_end_all, part, stop)
                for child in part:
                    await child.start()
                for child in part:
                    if not await child.is_ready(stop):
                        return
            for each in reserved:
                announce("ready", str(each.address), data=settings.store.data, gateways=gateways)
            tell_ready()
            await start_console(settings, closing, stop)
            await start_flows(settings, closing, stop)
            while not await stop.or_tick():
                pass


def _open_admin(address: str, children: Sequence[Child]) -> Admin:
    from penstock.servers.supervisor_admin import Processes  # imported here, since most processes need no HTTP server

    return open_admin(address, Processes(children))


def _reload_all(children: Sequence[Child]) -> None:
    """On SIGHUP, have each child read its files again, and reopen its audit log."""
    for child in children:
        child.send_signal(signal.SIGHUP)


async def _end_all(children: Sequence[Child], stop: Stop) -> None:
    await asyncio.gather(*(child.end(stop) for child in children))


class _Reserved:
    """An address that stays reserved while the processes that share it come and go; port 0 becomes a free one.

    Each process listens on the same port by itself. A Unix socket is inherited (`fds`).
    """

    def __init__(self, url: str, unix_mode: int) -> None:
        address = ListenAddress.parse(url)
        self.fds: tuple[int, ...] = ()
        try:
            self._socket = (
                listening_unix_socket(Path(address.path), BACKLOG, unix_mode) if address.path else _bound(address)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            place = "path" if address.path else "port"
            raise ChildFailed(
                f"{url}: cannot listen there ({reason}); stop what uses it or choose another {place}"
            ) from error
        self.address = address
        if address.path:
            self.fds = (self._socket.fileno(),)
        else:
            self.address = address.at_port(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address for processes that share it."""
        return str(replace(self.address, fd=self.fds[0]) if self.fds else self.address)

    def __enter__(self) -> _Reserved:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self.address.path:
            Path(self.address.path).unlink(missing_ok=True)


def _bound(address: ListenAddress) -> socket.socket:
    """A bound socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address.host, address.port))
    except OSError:
        bound.close()
        raise
    return bound
