"""The part of a server process that faces MQTT clients and operators: listening, readiness, draining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.auth.settings import is_auth_configured
from gateway.broker import Broker
from gateway.listen_address import ListenAddress, check_exposure
from gateway.mqtt._mqtt import HAS_EPOLL, Sockets
from gateway.mqtt.reason_codes import ReasonCode
from gateway.transport.client_sockets import ClientSockets
from gateway.transport.listener import Listener
from gateway.transport.tls import InTurn
from notify.remote.store import RemoteStore
from penstock.config.settings import Settings
from penstock.servers.client_tls import ClientTls
from penstock.servers.logs import announce
from penstock.servers.process import Stop, check_admin_exposed, open_admin
from penstock.servers.service_manager import tell_ready

if TYPE_CHECKING:
    from notify.local.hub import Hub
    from penstock.servers.admin import Admin

log = logging.getLogger("penstock")

DRAIN_STEP_S = 0.01


def check_exposed(settings: Settings) -> None:
    """Refuse addresses beyond loopback without authentication unless the operator allows them. Raises ListenError."""
    addresses = tuple(ListenAddress.parse(url) for url in settings.gateway.listen)
    check_exposure(addresses, are_credentials_needed(settings), settings.auth.allow_anonymous)
    check_admin_exposed(settings)


def say_who_may_connect(settings: Settings) -> None:
    if are_credentials_needed(settings):
        for address in (ListenAddress.parse(url) for url in settings.gateway.listen):
            if is_auth_configured(settings.auth) and not (address.is_local or address.is_tls):
                log.warning(
                    "%s: passwords and tokens of clients cross the network in the clear there; listen on %s:// instead",
                    address,
                    "wss" if address.is_websocket else "mqtts",
                )
        return
    if all(ListenAddress.parse(url).is_local for url in settings.gateway.listen):
        log.info("no client needs a password, so only this machine can connect")
    else:
        log.info("no client needs a password, and other machines can connect (auth.allow_anonymous)")


def are_credentials_needed(settings: Settings) -> bool:
    """Whether clients must authenticate."""
    addresses = [ListenAddress.parse(url) for url in settings.gateway.listen]
    certificates = settings.gateway.tls_client_certificates == "required"
    return is_auth_configured(settings.auth) or (
        certificates and all(each.is_tls or each.is_local for each in addresses)
    )


def open_gateway_admin(
    address: str,
    broker: Callable[[], Broker | None],
    hub: Callable[[], Hub | None],
    link: RemoteStore | None,
    starting: Callable[[], str] = lambda: "",
) -> Admin:
    """The admin endpoint of a gateway, and of the store if it is in the same process.

    There is no broker before the store is there; until then `link` or `starting` gives the reason.
    """
    from gateway.observe.metrics import read_steps
    from penstock.servers.admin import LoopSource

    def unready() -> str:
        found = broker()
        return found.unready() if found is not None else (link.fault() if link is not None else "") or "starting"

    def health() -> str:
        found = hub()
        return found.messages.health() if found is not None else ""

    source = LoopSource(lambda: read_steps(broker(), hub(), link), unready, health, starting)
    return open_admin(address, source)


class Listeners:
    """The addresses that clients connect to."""

    def __init__(self, broker: Broker, tls: ClientTls) -> None:
        self._broker = broker
        self._tls = tls
        self._loop = loop = asyncio.get_running_loop()
        self._in_turn = InTurn(loop.call_soon)
        self.open: list[Listener] = []
        self.clients: ClientSockets | None = None  # None: there is no epoll, so the loop serves them
        if HAS_EPOLL:
            self.clients = ClientSockets(Sockets(broker.turn, broker.connections.read_buffer, loop.call_soon), loop)

    async def bind(self, urls: tuple[str, ...]) -> None:
        """Accept clients from now on. Raises ListenError."""
        if self.clients is not None:
            self.clients.start()
        for url in urls:
            listener = self._listener(url)
            await listener.open()
            self.open.append(listener)
        self._broker.listening()

    def _listener(self, url: str) -> Listener:
        context = self._tls.context if self._tls.is_set else None
        sockets = self.clients.sockets if self.clients is not None else None
        return Listener(self._broker, ListenAddress.parse(url), context, self._in_turn, sockets)

    async def adopt(self, urls: tuple[str, ...], handed: Mapping[str, Sequence[int]]) -> None:
        """Listen where another process did, and at addresses that are new; accept no client before begin().

        Raises ListenError or OSError.
        """
        for url in urls:
            listener = self._listener(url)
            listener.pause()
            if url in handed:
                listener.adopt(handed[url])
            else:
                await listener.open()
            self.open.append(listener)

    def begin(self) -> None:
        """Accept clients, after adopt()."""
        for listener in self.open:
            listener.resume()
        self._broker.listening()

    def say_ready(self, **where: object) -> None:
        """Print the lines that scripts wait for; `where` names the store behind the gateway."""
        for listener in self.open:
            announce("ready", str(listener.address), **where)
        tell_ready()

    async def close(self, stop: Stop, tick: Callable[[], object], others: bool = False) -> None:
        """Stop listening and disconnect the clients, slowly if `others` (other gateways) take them in.

        `tick` is called several times a second meanwhile.
        """
        for listener in self.open:
            listener.close()
        broker = self._broker
        if others and not stop.of_all:
            broker.drain(ReasonCode.USE_ANOTHER_SERVER, broker.core.settings.drain_clients_per_s)
        else:
            broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
        while not broker.drained() and not stop.is_urgent:
            await asyncio.sleep(DRAIN_STEP_S)
            tick()
        broker.end_draining()
        broker.core.events.close()
