"""The client's connection to a store."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from penstock.sdk.address import Address
from penstock.sdk.credentials import ClientCredentials
from penstock.sdk.errors import BadOption, ConnectionLost, NotPermitted, StoreRefused, TimedOut
from penstock.sdk.message_id import StorePlace
from store.errors import HandshakeRefused, WireError
from store.namespaces import DEFAULT, Namespace, is_namespace
from store.wire import messages as wire
from store.wire.base import ANOTHER_CONNECTION
from store.wire.client.asyncio_link import AsyncioLink, LinkTimes
from store.wire.client.request_errors import RequestErrors
from store.wire.client.requests import PendingRequests, RequestRules
from store.wire.frames import Frame
from store.wire.messages import Hello, Welcome

log = logging.getLogger("penstock.client")

TICK_S = 0.1
LATE_S = 0.5  # a tick that comes later than so long says that this process stood still, not the store
TIMES = LinkTimes(longest_pause_s=2.0, connect_s=5.0, silent_heartbeats=6, silent_s=LATE_S)
MOST_PUBLISHES = 64  # without an answer; the store remembers where so many are
UNNAMED = StorePlace.of("0.0.0.0", 0)


def request_rules(timeout_s: float) -> RequestRules:
    """How this client's requests wait, and which exceptions they end with."""
    errors = RequestErrors(StoreRefused, {wire.FailureCode.NOT_PERMITTED: NotPermitted}, TimedOut, ConnectionLost)
    return RequestRules(timeout_s, wire.Publish, MOST_PUBLISHES, refuses_large=True, errors=errors)


class LinkOutbox(Protocol):
    """Messages that wait to become requests of a link."""

    def flush(self) -> None:
        """Make requests of as many of them as may be sent now."""


class LinkReader(Protocol):
    """A reading or a subscription: it follows queues, or gets messages of a group."""

    def grew(self, refs: set[int]) -> None: ...

    def reconnected(self) -> None: ...

    def tick(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


class ClientLink(AsyncioLink):
    """Owner of the connection. run() keeps it up."""

    def __init__(self, address: Address, name: str, credentials: ClientCredentials, timeout_s: float) -> None:
        super().__init__(address, TIMES, log)
        self.requests = PendingRequests(request_rules(timeout_s), self._loop.time, self.wake)
        self.left_by = b""  # what its delayed messages say of who left them
        self.user = ""  # whom the store found this client to be
        self.place = UNNAMED  # of the store, in message ids
        self.refused: HandshakeRefused | None = None
        self.readings: set[LinkReader] = set()  # those under way
        self.tried = asyncio.Event()  # once at least: let in, or refused
        self.is_up = asyncio.Event()  # while a store lets this client in
        self.elsewhere_s = 0.0  # before it connects again when another process has come under its name
        self._outbox: LinkOutbox | None = None
        self._process = os.getpid()
        self._name = name
        self._credentials = credentials
        self._ticked_s = 0.0
        self._store_ms, self._told_s = 0, 0.0

    @property
    def is_of_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody drives it here any more: it is of the process that forked this one, or its loop has ended."""
        return self._loop.is_closed() or self._process != os.getpid()

    def send_from(self, outbox: LinkOutbox) -> None:
        """Have the outbox flushed each time before requests are sent."""
        self._outbox = outbox

    # --- time

    async def tick(self) -> None:
        """Until cancelled: heartbeats, the deadlines of requests, and the end of a silent store's connection."""
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
        if self._session.welcome is not None:
            self.beat(now_s)
        elif self._transport is not None and now_s - self._session.heard_s > TIMES.connect_s:
            self._end("it takes the connection, and says nothing")

    def _store_told(self, now_ms: int) -> None:
        self._store_ms, self._told_s = now_ms, self._loop.time()

    @property
    def store_ms(self) -> int:
        """Unix time in ms by the store's clock."""
        return self._store_ms + round((self._loop.time() - self._told_s) * 1000)

    # --- a connection, as AsyncioLink asks for it

    async def _connect_once(self) -> str:
        why = await super()._connect_once()
        if ANOTHER_CONNECTION in why:
            self._away(why)
            await asyncio.sleep(self.elsewhere_s)
        return why

    def _hello(self) -> Hello:
        return self._credentials.hello(self._name)

    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        return self._trusted if self._address.is_tls else None

    def _trusted(self) -> ssl.SSLContext:
        try:
            return self._credentials.context()
        except BadOption as error:
            raise WireError(str(error)) from None

    def _connected(self, welcome: Welcome) -> None:
        self.refused = None
        names = Namespace(welcome.namespace) if is_namespace(welcome.namespace) else DEFAULT
        self.place = replace(self._place(welcome), names=names)
        self.left_by = welcome.left_by
        self.user = welcome.user
        self._store_told(welcome.now_ms)
        self.requests.connected(welcome)
        self.tried.set()
        for reading in list(self.readings):
            reading.reconnected()
        self.is_up.set()

    def _place(self, welcome: Welcome) -> StorePlace:
        if welcome.address:
            try:
                return StorePlace.parse(welcome.address)
            except (ValueError, OverflowError):
                raise WireError(f"its address {welcome.address!r} is none; set wire.advertise to IP:PORT") from None
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return StorePlace.of(*peer[:2]) if isinstance(peer, tuple) else UNNAMED

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

    def _outgoing(self) -> list[bytes]:
        if self._outbox is not None and self.requests.welcome is not None:
            self._outbox.flush()
        return self.requests.outgoing()

    def _away(self, why: str) -> None:
        self.is_up.clear()
        self.requests.lost(why)

    def _closed_without_a_word(self) -> str:
        why = "the connection was closed"
        if self._address.is_tls:
            why += "; if the store asks for certificates, give cert= and key= one that it accepts"
        return why

    def _tls_fault(self, error: ssl.SSLError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({error.verify_message}); give tls= an ssl.SSLContext that trusts it"
            )
        return f"no TLS there ({error.reason}); use penstock:// for a store without TLS"

    def _tls_ended(self, error: ssl.SSLError) -> str:
        if "CERTIFICATE" in (error.reason or ""):
            return f"it does not accept this client's certificate ({error.reason}); give cert= and key="
        return super()._tls_ended(error)

    def _refused(self, error: HandshakeRefused) -> str:
        if error.reason != wire.RefusedReason.NOT_LEADER:
            self.refused = error
            self.tried.set()
        return str(error)

    # --- leaving

    def goodbye(self, reason: str = "the client closes") -> None:
        """Send what is left, say goodbye and close: the store forgets this client at once."""
        if self.requests.welcome is not None:
            self.flush()
            super().goodbye(reason)
