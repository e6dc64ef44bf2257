"""The connection to a store in another process: made again whenever it ends, with a growing pause in between."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import cast

from notify.links.address import StoreAddress
from notify.links.tls import WANTS_CERTIFICATE, fault_of_store
from notify.remote.store import RemoteStore
from store.errors import HandshakeRefused, WireError
from store.wire import messages as wire
from store.wire.client.session import PeerSession
from store.wire.frames import encode
from store.wire.handshake import VERSIONS
from store.wire.messages import Hello, RefusedReason, Role, Welcome
from store.wire.sockets import widen, write

log = logging.getLogger("penstock.wire")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
LONGEST_REFUSED_PAUSE_S = 5.0  # somebody has to do something first
CONNECT_TIMEOUT_S = 2.0
SILENT_HEARTBEATS = 4  # a store that says nothing for so many of them is gone
REMEDIES: dict[str, str] = {
    RefusedReason.TOKEN: "; set gateway.store_token or gateway.store_token_file to what wire.gateway_token "
    "or wire.token is there",
    RefusedReason.CERTIFICATE: "; set gateway.store_certificate and gateway.store_key to one "
    "that wire.tls_roles there names",
    RefusedReason.VERSION: "; let the store and its gateways be of the same release",
}


class StoreLink(asyncio.Protocol):
    """Owner of the connection that a RemoteStore uses. run() keeps it up."""

    def __init__(self, address: StoreAddress, name: str, token: str, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """`tls`: asked for each connection what is shown and believed; None at an address without TLS."""
        self._address = address
        self._hello = Hello(list(VERSIONS), Role.GATEWAY, name, token)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._session = PeerSession(self._hello, self._write)
        self._ended = asyncio.Event()
        self._why = ""
        self._is_refused = False  # the last time, for a reason that does not go away by itself
        self._scheduled = False
        self._is_writable = True
        self.store: RemoteStore  # set by whoever makes both
        self.welcomed = asyncio.Event()  # by a store, once at least

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        pause_s = FIRST_PAUSE_S
        said = ""
        while True:
            connects = self.store.connects
            why = await self._connect_once()
            if self.store.connects > connects:
                pause_s, said = FIRST_PAUSE_S, ""
            self.store.why_away = why
            if why != said:
                log.warning("store %s: %s; trying again", self._address.url, why)
                said = why
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_REFUSED_PAUSE_S if self._is_refused else LONGEST_PAUSE_S)

    async def _connect_once(self) -> str:
        """Why the connection ended, or did not come about."""
        self._ended.clear()
        self._session = PeerSession(self._hello, self._write)
        self._why = "it closed the connection without a word"
        if self._address.host and self._tls is None:
            self._why += "; if it wants TLS, use tls:// in gateway.store"
        elif self._tls is not None:
            self._why += f"; {WANTS_CERTIFICATE}"
        self._is_refused = False
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if address.path:
                    await self._loop.create_unix_connection(lambda: self, address.path)
                else:
                    tls = self._tls() if self._tls is not None else None
                    await self._loop.create_connection(lambda: self, address.host, address.port, ssl=tls)
        except TimeoutError:
            return "no answer; is it running, and is the address right?"
        except ssl.SSLError as error:
            self._is_refused = True
            return fault_of_store(error)
        except OSError as error:
            return f"cannot connect ({error.strerror or error}); is it running, and is the address right?"
        await self._ended.wait()
        return self._why

    def _end(self, why: str) -> None:
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Say goodbye."""
        if self._transport is not None:
            self._transport.write(encode(wire.Goodbye("the gateway stops")))
            self._transport.close()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self._is_writable = True
        widen(transport)
        self._session = PeerSession(self._hello, self._write, self._loop.time())
        transport.write(self._session.greeting)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._session.feed(data, self._loop.time()):
                if isinstance(event, Welcome):
                    self._welcomed(event)
                elif isinstance(event.message, wire.Pong):
                    self._answered(event.message.now_ms)
                else:
                    self.store.received(event)
            self._why = self._session.farewell or self._why
        except HandshakeRefused as error:
            self._is_refused = error.reason in REMEDIES
            self._end(f"not let in: {error}{REMEDIES.get(error.reason, '')}")
        except WireError as error:
            self._end(str(error))

    def _welcomed(self, welcome: Welcome) -> None:
        self._why = "the connection was closed"
        self.store.heard_s = self._session.pinged_s
        log.info("store %s: connected", self._address.url)
        self.store.connected(welcome)
        self.welcomed.set()

    def _answered(self, now_ms: int) -> None:
        """The store answered a Ping, and says what time it is."""
        self.store.heard_s = self._session.pinged_s
        self.store.store_clock.set(now_ms, self.store.heard_s)
        self.store.listener.wake()  # it may have waited for this trust

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._is_refused = True
            self._why = fault_of_store(error)
        elif error is not None:
            self._why = f"connection lost ({error})"
        self._transport = None
        if self._session.welcome is not None:
            self.store.lost()
        self._ended.set()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.wake()

    # --- sending

    def wake(self) -> None:
        """Send what there is at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send what there is."""
        if self._is_writable and self._session.welcome is not None:
            chunks = self.store.outgoing()
            if chunks and self._transport is not None:
                write(self._transport, chunks)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def tick(self) -> None:
        """To be called several times a second: heartbeats, and a store that is silent.

        What counts is when the Ping that was answered went out: a process that was stopped finds old answers waiting.
        """
        if self.store.welcome is None:
            return
        now_s = self._loop.time()
        self._session.beat(now_s)
        if self._session.is_silent(now_s, SILENT_HEARTBEATS):
            self._end("it is silent")
