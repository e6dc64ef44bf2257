"""The address of a store that does not lead its cluster: it refuses every peer, and says who leads."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast

from notify.links.address import StoreAddress
from notify.links.tls import TlsListener
from notify.settings import WireSettings
from store.errors import WireError
from store.wire.frames import encode
from store.wire.handshake import NO_TOKENS, ServerHandshake
from store.wire.messages import Hello, Refused, RefusedReason

BACKLOG: Final = 128
WHY: Final = "another store leads the cluster, or none does at the moment"


class StandbyPort:
    """Owner of the listener and its connections. Only who has a token is told who leads."""

    def __init__(
        self,
        settings: WireSettings,
        tokens: Mapping[str, str | None],
        leader: Callable[[], str],
        of_namespaces: Mapping[str, str] = NO_TOKENS,
    ) -> None:
        """`leader`: HOST:PORT of the store that leads; empty: not known."""
        self.settings = settings
        self._tokens, self._of_namespaces = tokens, of_namespaces
        self._leader = leader
        self._listening: asyncio.AbstractServer | TlsListener | None = None
        self.open: set[asyncio.Transport] = set()

    async def listen(self, address: StoreAddress, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Nowhere, if any free port will do, or at a Unix socket: nobody knows it. Raises OSError."""
        if address.path or not address.port:
            return
        if tls is None:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(
                self.arrives, address.host, address.port, backlog=BACKLOG, reuse_address=True
            )
            return
        listener = TlsListener(tls, self.settings.handshake_timeout_s, self)
        await listener.listen(address.host, address.port, BACKLOG)
        self._listening = listener

    def close(self) -> None:
        """The address is free from now on."""
        if self._listening is not None:
            self._listening.close()
        for transport in list(self.open):
            transport.abort()

    def arrives(self) -> asyncio.Protocol:
        return _RefusedPeer(self)

    def not_secure(self, address: object, why: str) -> None:
        """Nobody is told who leads."""

    def handshake(self) -> ServerHandshake:
        return ServerHandshake(self._refuse, self._tokens, self._of_namespaces)

    def _refuse(self, _: Hello) -> Refused:
        return Refused(RefusedReason.NOT_LEADER, WHY, leader=self._leader())


class _RefusedPeer(asyncio.Protocol):
    def __init__(self, port: StandbyPort) -> None:
        self._port = port
        self._handshake = port.handshake()
        self._transport: asyncio.Transport
        self._giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        if len(self._port.open) >= self._port.settings.max_connections:
            transport.write(encode(Refused(RefusedReason.BUSY, "too many connections; see wire.max_connections")))
            transport.close()
            return
        self._port.open.add(transport)
        patience_s = self._port.settings.handshake_timeout_s
        self._giving_up = asyncio.get_running_loop().call_later(patience_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        try:
            self._transport.write(self._handshake.feed(data))
        except WireError:
            self._transport.abort()
            return
        if self._handshake.is_done:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._port.open.discard(self._transport)
        if self._giving_up is not None:
            self._giving_up.cancel()
