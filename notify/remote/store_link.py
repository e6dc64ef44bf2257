"""The gateway's connection to a store in another process."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from notify.links.address import StoreAddress
from notify.links.tls import WANTS_CERTIFICATE, fault_of_store
from notify.remote.store import RemoteStore
from store.errors import HandshakeRefused
from store.wire.client.asyncio_link import AsyncioLink, LinkTimes
from store.wire.frames import Frame, encode
from store.wire.handshake import VERSIONS
from store.wire.messages import Hello, Ping, Pong, RefusedReason, Role, Welcome
from store.wire.sockets import widen

log = logging.getLogger("penstock.wire")

TIMES = LinkTimes(longest_pause_s=0.5, connect_s=2.0, silent_heartbeats=4)
LONGEST_REFUSED_PAUSE_S = 5.0  # after a refusal that lasts until a person acts
REMEDIES: dict[str, str] = {
    RefusedReason.TOKEN: "; set gateway.store_token or gateway.store_token_file to what wire.gateway_token "
    "or wire.token is there",
    RefusedReason.CERTIFICATE: "; set gateway.store_certificate and gateway.store_key to one "
    "that wire.tls_roles there names",
    RefusedReason.VERSION: "; let the store and its gateways be of the same release",
}


class StoreSuccessor(Protocol):
    """A process that takes another process's place at the store."""

    def serves(self, welcome: Welcome) -> None:
        """The store let this process in; nothing came of it so far. Raises WireError if it came too late."""


class StoreLink(AsyncioLink):
    """Owner of the connection that a RemoteStore uses. run() keeps it up."""

    def __init__(
        self,
        address: StoreAddress,
        name: str,
        token: str,
        tls: Callable[[], ssl.SSLContext] | None,
        store_of: Callable[[StoreLink], RemoteStore],
    ) -> None:
        """`tls` makes the TLS context of each connection; None at an address without TLS. `store_of` makes the
        store that sends over this link."""
        super().__init__(address, TIMES, log)
        self._gateway = Hello(list(VERSIONS), Role.GATEWAY, name, token)
        self._make_tls = tls
        self._successor: StoreSuccessor | None = None
        self.store = store_of(self)

    def take_place(self, successor: StoreSuccessor) -> None:
        """This process takes the place of another one: `successor` is told of the next Welcome."""
        self._successor = successor

    def _hello(self) -> Hello:
        return self._gateway

    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        return self._make_tls

    def _connected(self, welcome: Welcome) -> None:
        self._why = "the connection was closed"
        self.store.heard_s = self._session.pinged_s
        if self._successor is not None:
            successor, self._successor = self._successor, None
            successor.serves(welcome)
        self.store.connected(welcome)

    def _received(self, frame: Frame) -> None:
        if isinstance(frame.message, Pong):
            self._answered(frame.message.now_ms)
        else:
            self.store.received(frame)

    def _answered(self, now_ms: int) -> None:
        """The store answered a Ping, and says what time it is."""
        self.store.heard_s = self._session.pinged_s
        self.store.store_clock.set(now_ms, self.store.heard_s)
        self.store.listener.wake()  # it may have waited for this trust

    def _outgoing(self) -> list[bytes]:
        return self.store.outgoing()

    def _away(self, why: str) -> None:
        self.store.why_away = why

    def _closed_without_a_word(self) -> str:
        why = "it closed the connection without a word"
        if self._make_tls is not None:
            return f"{why}; {WANTS_CERTIFICATE}"
        return f"{why}; if it wants TLS, use tls:// in gateway.store" if self._address.host else why

    def _tls_fault(self, error: ssl.SSLError) -> str:
        self._longest_pause_s = LONGEST_REFUSED_PAUSE_S
        return fault_of_store(error)

    def _tls_ended(self, error: ssl.SSLError) -> str:
        return self._tls_fault(error)

    def _refused(self, error: HandshakeRefused) -> str:
        if error.reason in REMEDIES:
            self._longest_pause_s = LONGEST_REFUSED_PAUSE_S
        return f"not let in: {error}{REMEDIES.get(error.reason, '')}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        widen(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._session.welcome is not None:
            self.store.lost()

    def beat_at_once(self) -> None:
        """Say that this gateway is there, past the event loop, which is busy. Not with TLS, which only the loop has."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() or transport.get_extra_info("sslcontext"):
            return
        plain_socket = transport.get_extra_info("socket")
        if plain_socket is not None:
            with suppress(OSError):  # a full buffer, or a connection that has ended
                os.write(plain_socket.fileno(), encode(Ping()))

    def tick(self) -> None:
        """Call this several times a second: it sends heartbeats, and ends the connection of a silent store.

        What counts is when the Ping that was answered went out: a process that was stopped finds old answers waiting.
        """
        if self.store.welcome is not None:
            self.beat(self._loop.time())
