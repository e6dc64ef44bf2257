"""The process that replaces another one: it takes what that one had, says that it serves, and goes on from there."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import pkgutil
import socket
import time
from typing import NoReturn

from gateway.auth.errors import AuthError
from gateway.handover.moving import MovingIn
from gateway.handover.state import HandOverRefused, decode_batch
from gateway.transport.listener import Listener
from penstock.servers.handover.channel import Channel, HandOverFailed, HandOverStep, close_all
from penstock.servers.handover.gateway_state import HandedGateway, decode_gateway, decode_listener
from penstock.servers.handover.next_process import SUCCEEDS
from penstock.servers.handover.predecessor import MOVE_S
from store.errors import WireError
from store.version import VERSION
from store.wire.messages import Welcome

log = logging.getLogger("penstock")

WAITS_S = 600.0
"""How long the old process may take until it is ready: it sees off clients with TLS."""
GONE_S = 10.0
PACKAGES = ("gateway", "notify.remote", "notify.events", "notify.links", "store.wire")
OTHERS = ("penstock.servers.admin",)


class Successor:
    """This process's end of the hand-over."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.gateway: HandedGateway | None = None

    @classmethod
    def of_environment(cls) -> Successor | None:
        """None if this process replaces no other one."""
        number = os.environ.pop(SUCCEEDS, "")
        if not number:
            return None
        return cls(Channel(socket.socket(fileno=int(number))))

    def begin(self) -> HandedGateway:
        """Say that this process is ready, and wait for what the gateway has. Raises HandOverFailed."""
        import_all()
        gc.collect()  # now, so that clients need not wait for it
        self._channel.send(HandOverStep.READY, VERSION.encode())
        self._channel.deadline_s = time.monotonic() + WAITS_S
        try:
            self.gateway = found = decode_gateway(self._channel.expect(HandOverStep.GATEWAY).content)
        except HandOverRefused as error:
            self.refuse(str(error))
        self._channel.deadline_s = time.monotonic() + MOVE_S
        log.info("taking over from release %s", found.release)
        return found

    def refuse(self, why: str) -> NoReturn:
        """Have the old process go on. Raises HandOverFailed."""
        self._channel.send(HandOverStep.REFUSED, why.encode())
        raise HandOverFailed(f"the old process goes on: {why}")

    def take_listeners(self, count: int) -> dict[int, list[int]]:
        """The descriptors of the sockets of each address, by its place among the old process's."""
        found: dict[int, list[int]] = {}
        for _ in range(count):
            frame = self._channel.expect(HandOverStep.LISTENER)
            found[decode_listener(frame.content).place] = frame.descriptors
            self._channel.send(HandOverStep.TAKEN)
        return found

    def take_connections(self, moving: MovingIn) -> None:
        """Raises HandOverFailed."""
        while True:
            frame = self._channel.receive()
            if frame.kind is HandOverStep.ALL:
                return
            if frame.kind is not HandOverStep.BATCH:
                close_all(frame.descriptors)
                self.refuse(f"{frame.kind.name} in place of connections")
            try:
                moving.take(decode_batch(frame.content), frame.descriptors)
            except (HandOverRefused, AuthError, KeyError, OSError, ValueError) as error:
                self.refuse(f"a connection cannot be taken over: {error!r}")
            self._channel.send(HandOverStep.TAKEN)

    def serves(self, welcome: Welcome) -> None:
        """The store let this process in under the old one's name: from now on the clients are its own.

        Raises WireError if others may have the sessions by now.
        """
        if not welcome.resumed:
            raise WireError("it has given the sessions of the old process up")
        self._channel.send(HandOverStep.SERVING)

    async def is_alone(self) -> None:
        """Wait until the old process has ended."""
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), gone.set)
        try:
            async with asyncio.timeout(GONE_S):
                await gone.wait()
        except TimeoutError:
            log.warning("the old process has not ended after %g s", GONE_S)
        finally:
            loop.remove_reader(self._channel.fileno())
            self._channel.close()


def import_all() -> None:
    """Import what this process may need, so that nothing is left to be found wrong once it serves."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith(PACKAGES):
                    raise  # what is missing is no extra
    for name in OTHERS:
        importlib.import_module(name)


def placed(listeners: list[Listener], listen: list[str], handed: list[str]) -> list[Listener]:
    """The listeners in the order of the old process's addresses. Raises HandOverRefused if one is missing."""
    places = {url: number for number, url in enumerate(listen)}
    missing = [url for url in handed if url not in places]
    if missing:
        raise HandOverRefused(f"gateway.listen has no {missing[0]} any more; start the gateway anew instead")
    return [listeners[places[url]] for url in handed]
