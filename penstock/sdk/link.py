"""The connection to a store: made again whenever it ends, with a growing pause in between."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, cast

from penstock.sdk.address import Address
from penstock.sdk.credentials import Credentials
from penstock.sdk.errors import BadOption, ConnectionLost, NotPermitted, StoreRefused, TimedOut
from penstock.sdk.message_id import StorePlace
from store.errors import HandshakeRefused, WireError
from store.namespaces import DEFAULT, Namespace, is_namespace
from store.wire import messages as wire
from store.wire.client.request_errors import RequestErrors
from store.wire.client.requests import PendingRequests, RequestRules
from store.wire.client.session import PeerSession
from store.wire.frames import Frame, encode
from store.wire.messages import Hello, Role, Welcome

log = logging.getLogger("penstock.client")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
ATTEMPT_TIMEOUT_S = 5.0
TICK_S = 0.1
LEAVING_S = 1.0
LATE_S = 0.5  # a tick that comes later than so long says that this process stood still, not the store
SILENT_HEARTBEATS = 6  # a store that says nothing for so many of them is gone
MOST_PUBLISHES = 64  # without an answer; the store remembers where so many are
UNNAMED = StorePlace.of("0.0.0.0", 0)


def request_rules(timeout_s: float) -> RequestRules:
    """How this client's requests wait, and which exceptions they end with."""
    errors = RequestErrors(StoreRefused, {wire.FailureCode.NOT_PERMITTED: NotPermitted}, TimedOut, ConnectionLost)
    return RequestRules(timeout_s, wire.Publish, MOST_PUBLISHES, refuses_large=True, errors=errors)


class Reader(Protocol):
    """Somebody who follows queues, or gets messages of a group."""

    def grew(self, refs: set[int]) -> None: ...

    def reconnected(self) -> None: ...

    def tick(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Link(asyncio.Protocol):
    """Owner of the connection. run() keeps it up."""

    def __init__(self, address: Address, name: str, credentials: Credentials, timeout_s: float) -> None:
        self.requests = PendingRequests(request_rules(timeout_s), asyncio.get_running_loop().time, self.wake)
        self.left_by = b""  # what its delayed messages say of who left them
        self.welcomed = asyncio.Event()  # by a store, once at least
        self.place = UNNAMED  # of the store, in message ids
        self.refused: HandshakeRefused | None = None
        self.before_sending: Callable[[], None] = lambda: None
        self.readings: set[Reader] = set()  # those under way
        self.tried = asyncio.Event()  # once at least: let in, or refused
        self.on_welcome: Callable[[], None] = lambda: None
        self._address = address
        self._name = name
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._leaving: asyncio.Transport | None = None
        self._session = PeerSession(Hello([1], Role.CLIENT, name), self._write)  # until there is a connection
        self._ended = asyncio.Event()
        self._why = ""
        self._is_scheduled = False
        self._is_writable = True
        self._ticked_s = 0.0
        self._store_ms, self._told_s = 0, 0.0

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        pause_s = FIRST_PAUSE_S
        said = ""
        while True:
            why = await self._connect_once()
            if self._session.welcome is not None:
                pause_s, said = FIRST_PAUSE_S, ""
            self.requests.lost(why)
            if why != said:
                log.warning("store %s: %s; trying again", self._address.url, why)
                said = why
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def tick(self) -> None:
        """What goes by the clock, until cancelled: heartbeats, a store that is silent, requests that wait too long."""
        self._ticked_s = self._loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._loop.time()
            if now_s - self._ticked_s > TICK_S + LATE_S:
                self._session.heard_s = now_s
            self._ticked_s = now_s
            self.requests.tick()
            for reading in list(self.readings):
                reading.tick()
            self._beat(now_s)

    def _beat(self, now_s: float) -> None:
        session = self._session
        if session.welcome is None:
            if self._transport is not None and now_s - session.heard_s > ATTEMPT_TIMEOUT_S:
                self._end("it takes the connection, and says nothing")
            return
        session.beat(now_s)
        if session.is_silent(now_s, SILENT_HEARTBEATS, LATE_S):
            self._end("it is silent")

    async def _connect_once(self) -> str:
        """Why the connection ended, or did not come about."""
        self._ended.clear()
        self._session = PeerSession(self._credentials.hello(self._name), self._write)
        self._why = "the connection was closed"
        if self._address.is_tls:
            self._why += "; if the store asks for certificates, give cert= and key= one that it accepts"
        address = self._address
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                if address.path:
                    await self._loop.create_unix_connection(lambda: self, address.path)
                else:
                    tls = self._credentials.context() if address.is_tls else None
                    await self._loop.create_connection(lambda: self, address.host, address.port, ssl=tls)
        except TimeoutError:
            return "no answer; is it running, and is the address right?"
        except ssl.SSLCertVerificationError as error:
            return (
                f"its certificate is not trusted ({error.verify_message}); give tls= an ssl.SSLContext that trusts it"
            )
        except BadOption as error:
            return str(error)
        except ssl.SSLError as error:
            return f"no TLS there ({error.reason}); use penstock:// for a store without TLS"
        except OSError as error:
            return f"cannot connect ({error.strerror or error}); is it running, and is the address right?"
        try:
            await self._ended.wait()
        finally:
            self._transport_abort()
        return self._why

    def _end(self, why: str) -> None:
        self._why = why
        self._transport_abort()

    def _transport_abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def goodbye(self) -> None:
        """The last word: the store forgets this client at once."""
        if self._transport is not None and self.requests.welcome is not None:
            self._flush()
            self._transport.write(encode(wire.Goodbye("the client closes")))
            self._transport.close()
            self._leaving, self._transport = self._transport, None

    async def left(self) -> None:
        """Once the connection is closed: TLS says goodbye as well, and a store that hangs is not waited for."""
        if self._leaving is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVING_S):
                    await self._ended.wait()
            self._leaving.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self._is_writable = True
        self._session = PeerSession(self._credentials.hello(self._name), self._write, self._loop.time())
        transport.write(self._session.greeting)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._session.feed(data, self._loop.time()):
                if isinstance(event, Welcome):
                    self._welcomed(event)
                else:
                    self._received(event)
            self._why = self._session.farewell or self._why
        except HandshakeRefused as error:
            self.refused = error
            self.tried.set()
            self._end(str(error))
        except WireError as error:
            self._end(str(error))

    def _received(self, frame: Frame) -> None:
        match frame.message:
            case wire.Pong(now_ms):
                self._store_told(now_ms)
            case _ if frame.request_id:
                self.requests.received(frame)
            case wire.Grew(queues):
                refs = {ref for ref, _ in queues}
                for reading in list(self.readings):
                    reading.grew(refs)
            case _:
                pass  # how far the log is safe, for one

    def _welcomed(self, welcome: Welcome) -> None:
        self.refused = None
        names = Namespace(welcome.namespace) if is_namespace(welcome.namespace) else DEFAULT
        self.place = replace(self._place(welcome), names=names)
        self.left_by = welcome.left_by
        self._store_told(welcome.now_ms)
        log.info("store %s: connected", self._address.url)
        self.requests.connected(welcome)
        self.tried.set()
        self.welcomed.set()
        for reading in list(self.readings):
            reading.reconnected()
        self.on_welcome()

    def _store_told(self, now_ms: int) -> None:
        self._store_ms, self._told_s = now_ms, self._loop.time()

    @property
    def store_ms(self) -> int:
        """Unix time in ms by the store's clock."""
        return self._store_ms + round((self._loop.time() - self._told_s) * 1000)

    def _place(self, welcome: Welcome) -> StorePlace:
        if welcome.address:
            try:
                return StorePlace.parse(welcome.address)
            except (ValueError, OverflowError):
                raise WireError(f"its address {welcome.address!r} is none; set wire.advertise to IP:PORT") from None
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return StorePlace.of(*peer[:2]) if isinstance(peer, tuple) else UNNAMED

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
            self._why = f"it does not accept this client's certificate ({error.reason}); give cert= and key="
        elif error is not None:
            self._why = f"connection lost ({error})"
        self._transport = None
        self._ended.set()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.wake()

    # --- sending

    def wake(self) -> None:
        """Send what there is at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def at_once(self, do: Callable[[], None]) -> None:
        """Send in this turn of the loop what `do` asks for: one more turn for that costs as much as the sending."""
        self._is_scheduled = True
        try:
            do()
        finally:
            self._flush()

    def _flush(self) -> None:
        is_possible = self._is_writable and self.requests.welcome is not None
        try:
            if is_possible:
                self.before_sending()  # what this asks for goes now: one more turn for it would find nothing
        finally:
            self._is_scheduled = False
        if is_possible:
            chunks = self.requests.outgoing()
            if chunks:
                self._write(b"".join(chunks))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
