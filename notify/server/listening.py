"""Where peers reach a store: at a TCP address, with or without TLS, and at Unix sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from notify.errors import NotifyError
from notify.links.address import StoreAddress
from notify.links.sockets import listening_unix_socket, remove_leftover
from notify.links.tls import TlsListener, TlsListenerOwner
from notify.settings import WireSettings

BACKLOG: Final = 1_024


class WireListenError(NotifyError):
    """The store cannot listen at an address."""


class StoreListeners:
    """Owner of the sockets at which a store listens. A loop's, as their connections are."""

    def __init__(self, settings: WireSettings, owner: TlsListenerOwner) -> None:
        """`owner`: serves the connections."""
        self._settings = settings
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._public: asyncio.Server | TlsListener | None = None
        self._private: list[asyncio.Server] = []
        self._socket_paths: list[Path] = []

    @property
    def is_open(self) -> bool:
        """Whether the store listens at an address that its peers know."""
        return self._public is not None

    async def listen(self, address: StoreAddress, tls: Callable[[], ssl.SSLContext] | None) -> str:
        """Accept peers from now on; returns the URL with the port that it got. Raises WireListenError."""
        try:
            if address.path:
                await self._listen_unix(Path(address.path))
                return address.url
            if tls is not None:
                self._public = TlsListener(tls, self._settings.handshake_timeout_s, self._owner)
                await self._public.listen(address.host, address.port, BACKLOG)
            else:
                where = (address.host, address.port)
                self._public = await self._loop.create_server(self._owner.arrives, *where, backlog=BACKLOG)
        except OSError as error:
            reason = error.strerror or str(error)
            raise WireListenError(
                f"{address.url}: cannot listen there ({reason}); stop what uses it or choose another address"
            ) from error
        port = self._public.sockets[0].getsockname()[1]
        shown = f"[{address.host}]" if ":" in address.host else address.host
        return f"{'tls' if address.is_tls else 'tcp'}://{shown}:{port}"

    async def _listen_unix(self, path: Path) -> None:
        remove_leftover(path)
        mask = os.umask(0o777 & ~int(self._settings.unix_socket_mode, 8))
        try:
            self._public = await self._loop.create_unix_server(self._owner.arrives, str(path), backlog=BACKLOG)
        finally:
            os.umask(mask)
        self._socket_paths.append(path)

    async def listen_privately(self, path: Path, arrives: Callable[[], asyncio.Protocol]) -> None:
        """Listen at a Unix socket for this process's user alone; `arrives` makes the protocol of a new connection.
        Raises OSError.
        """
        listening = listening_unix_socket(path, BACKLOG, 0o600)
        self._private.append(await self._loop.create_unix_server(arrives, sock=listening))
        self._socket_paths.append(path)

    def close(self) -> None:
        """Accept no new connections; those that are open stay."""
        for server in (self._public, *self._private):
            if server is not None:
                server.close()

    def remove_sockets(self) -> None:
        """Remove the files of the Unix sockets."""
        for path in self._socket_paths:
            path.unlink(missing_ok=True)
