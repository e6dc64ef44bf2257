"""The side of a server process that MQTT clients and their operators see: listening, being ready, draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.auth.settings import is_auth_configured
from gateway.broker import Broker
from gateway.listener import check_exposure, listen
from gateway.reason_codes import ReasonCode
from notify.remote import RemoteStore
from penstock.process import Stop, check_admin_exposed, open_admin
from penstock.settings import Settings

if TYPE_CHECKING:
    from lightqueue.message_store import MessageStore
    from penstock.admin import Admin

DRAIN_STEP_S = 0.01


def check_exposed(settings: Settings) -> None:
    """Nothing listens beyond loopback without authentication unless the operator says so. Raises ListenError."""
    open_to_all = settings.gateway.allow_anonymous_beyond_loopback or settings.auth.allow_anonymous
    check_exposure(settings.gateway.listen, open_to_all or is_auth_configured(settings.auth))
    check_admin_exposed(settings)


def open_gateway_admin(
    address: str, broker: Callable[[], Broker | None], messages: MessageStore | None, link: RemoteStore | None
) -> Admin:
    """The admin endpoint of a gateway, and of the store where it is in the same process.

    There is no broker before the store is there; what is known of that, `link` says.
    """
    from gateway.metrics import read_all
    from penstock.admin import LoopSource

    def unready() -> str:
        found = broker()
        return found.unready() if found is not None else (link.fault() if link is not None else "") or "starting"

    return open_admin(address, LoopSource(lambda: read_all(broker(), messages, None, link), unready))


class Listeners:
    """The addresses that clients connect to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._bound: list[tuple[asyncio.Server, str]] = []

    async def bind(self, urls: tuple[str, ...]) -> None:
        """Accept clients from now on. Raises ListenError."""
        for url in urls:
            self._bound.append(await listen(self._broker, url))
        self._broker.listening = True

    def say_ready(self, where: str) -> None:
        """The lines that scripts wait for; `where` names what stands behind."""
        for _, url in self._bound:
            print(f"ready {url} {where}", flush=True)

    async def close(self, stop: Stop, tick: Callable[[], object], others: bool = False) -> None:
        """No new clients; those that are here are seen off, slowly where there are others who take them in.

        `tick` is what happens several times a second in any case.
        """
        for server, _ in self._bound:
            server.close()
        broker = self._broker
        if others and not stop.of_all:
            broker.drain(ReasonCode.USE_ANOTHER_SERVER, broker.settings.drain_clients_per_s)
        else:
            broker.drain(ReasonCode.SERVER_SHUTTING_DOWN)
        while not broker.drained() and not stop.is_urgent:
            await asyncio.sleep(DRAIN_STEP_S)
            tick()
        broker.end_draining()
        broker.events.close()
