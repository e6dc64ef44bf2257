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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from gateway.auth.errors import AuthError
from gateway.handover.moving import MovingIn
from gateway.handover.state import HandOverRefused, decode_batch
from gateway.transport.listener import Listener
from penstock.servers.handover.channel import Channel, HandOverFailed, HandOverStep, close_all
from penstock.servers.handover.gateway_state import (
    HandedGateway,
    HandedServer,
    decode_gateway,
    decode_listener,
    decode_server,
)
from penstock.servers.handover.next_process import SUCCEEDS
from penstock.servers.handover.upgrade import MOVE_S, OPEN_S
from store.errors import WireError
from store.version import VERSION
from store.wire.messages import Welcome

log = logging.getLogger("penstock")

WAITS_S = 600.0
"""How long the old process may take until it is ready: it sees off clients with TLS."""
GONE_S = 10.0
OF_GATEWAY = ("gateway", "notify.remote", "notify.events", "notify.links", "store.wire")
OF_SERVER = ("gateway", "notify", "lightqueue", "store")
OTHERS = ("penstock.servers.admin",)

T = TypeVar("T")


class Successor:
    """This process's end of the hand-over."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.gateway: HandedGateway | None = None
        self._server: HandedServer | None = None

    @classmethod
    def of_environment(cls) -> Successor | None:
        """None if this process replaces no other one."""
        number = os.environ.pop(SUCCEEDS, "")
        if not number:
            return None
        return cls(Channel(socket.socket(fileno=int(number))))

    def begin(self) -> HandedGateway:
        """Say that this process is ready, and wait for what the gateway has. Raises HandOverFailed."""
        self.gateway = found = self._awaited(HandOverStep.GATEWAY, decode_gateway, OF_GATEWAY)
        self._channel.deadline_s = time.monotonic() + MOVE_S
        log.info("taking over from release %s", found.release)
        return found

    def begin_server(self, data: Path, listen: Sequence[str]) -> None:
        """As begin(), of a server with its own store, whose folder is free then. Raises HandOverFailed."""
        self._server = found = self._awaited(HandOverStep.SERVER, decode_server, OF_SERVER)
        self._channel.deadline_s = time.monotonic() + OPEN_S
        log.info("taking over from release %s", found.release)
        if found.data != str(data.resolve()):
            self.refuse(f"store.data is {data.resolve()} now, and the clients' sessions are in {found.data}")
        try:
            check_addresses(listen, found.listen)
        except HandOverRefused as error:
            self.refuse(str(error))

    def _awaited(self, step: HandOverStep, decode: Callable[[bytes], T], packages: tuple[str, ...]) -> T:
        import_all(packages)
        gc.collect()  # now, so that clients need not wait for it
        self._channel.send(HandOverStep.READY, VERSION.encode())
        self._channel.deadline_s = time.monotonic() + WAITS_S
        log.info("ready to take over")
        content = self._channel.expect(step).content
        try:
            return decode(content)
        except HandOverRefused as error:
            self.refuse(str(error))

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
        self.says_serving()

    # --- of a server with its own store

    @property
    def server(self) -> HandedServer:
        assert self._server is not None
        return self._server

    def has_opened(self) -> None:
        """The store is open: ask for the sockets. Raises HandOverFailed."""
        self._channel.send(HandOverStep.TAKEN)
        self._channel.deadline_s = time.monotonic() + MOVE_S

    def says_serving(self) -> None:
        """From now on the clients are this process's own. Raises HandOverFailed."""
        self._channel.send(HandOverStep.SERVING)

    async def is_alone(self, most_s: float = GONE_S) -> None:
        """Wait until the old process has ended."""
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), gone.set)
        try:
            async with asyncio.timeout(most_s):
                await gone.wait()
        except TimeoutError:
            log.warning("the old process has not ended after %g s", most_s)
        finally:
            loop.remove_reader(self._channel.fileno())
            self._channel.close()


def import_all(packages: tuple[str, ...]) -> None:
    """Import what this process may need, so that nothing is left to be found wrong once it serves."""
    for package in packages:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith(packages):
                    raise  # what is missing is no extra
    for name in OTHERS:
        importlib.import_module(name)


def placed(listeners: list[Listener], listen: list[str], handed: list[str]) -> list[Listener]:
    """The listeners in the order of the old process's addresses. Raises HandOverRefused if one is missing."""
    check_addresses(listen, handed)
    places = {url: number for number, url in enumerate(listen)}
    return [listeners[places[url]] for url in handed]


def check_addresses(listen: Sequence[str], handed: Sequence[str]) -> None:
    """Raises HandOverRefused if one of the old process's addresses is missing."""
    missing = [url for url in handed if url not in listen]
    if missing:
        raise HandOverRefused(f"gateway.listen has no {missing[0]} any more; start the gateway anew instead")
