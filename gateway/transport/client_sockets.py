"""The sockets of clients in their epoll, and the event loop that looks at it."""

from __future__ import annotations

import asyncio

from gateway.mqtt._mqtt import Sockets


class ClientSockets:
    """Watches the clients' sockets, from start() until stop()."""

    def __init__(self, sockets: Sockets, loop: asyncio.AbstractEventLoop) -> None:
        self.sockets = sockets
        self._loop = loop

    def start(self) -> None:
        self._loop.add_reader(self.sockets.fileno(), self.sockets.look)

    def stop(self) -> None:
        self._loop.remove_reader(self.sockets.fileno())
