"""A connection to a store in an event loop. It is made again whenever it ends, with a growing pause in between.

Of several addresses each is tried once before a pause, and the leader of a cluster first where a store names it.

A subclass says who asks and what becomes of frames: the gateway's is in notify/remote/store_link.py, the SDK's in
penstock/sdk/link.py. Received bytes are handed on as whole frames, and what a turn of the loop asks for leaves as one
write.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from store.errors import HandshakeRefused, WireError
from store.replication.epochs import HighestEpoch
from store.wire.client.address import ConnectionRound, Endpoint, StorePort, WireAddress, endpoint_of, endpoints_of
from store.wire.client.session import PeerSession
from store.wire.frames import Frame, encode
from store.wire.messages import Goodbye, Hello, RefusedReason, Role, Welcome
from store.wire.sockets import unix_address, write

LEAVING_S = 1.0
SILENT_CONNECT_S = 1.0  # for an attempt at a store that said nothing lately, where there are others
PATIENT_CONNECTS = 6  # a store that is alone may take so many times `connect_s` until it lets a peer in
LEADERLESS_PAUSE_S = 0.2  # between the rounds of a cluster in which another store leads soon
NO_CONNECTION = Hello([1], Role.CLIENT, "")
IS_IT_RUNNING = "is it running, and is the address right?"


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds between attempts (doubled after each, from `first_pause_s` to `longest_pause_s`) and for an attempt.

    A store that says nothing for `silent_heartbeats` heartbeats, and for `silent_s`, is gone.
    """

    longest_pause_s: float
    connect_s: float
    silent_heartbeats: int
    silent_s: float = 0.0
    first_pause_s: float = 0.05


class AsyncioLink(asyncio.Protocol, ABC):
    """Owner of the connection. run() keeps it up."""

    def __init__(self, address: WireAddress, times: LinkTimes, log: logging.Logger) -> None:
        self.welcomed = asyncio.Event()  # by a store, once at least
        self._address = address
        self._times = times
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._leaving: asyncio.Transport | None = None
        self._session = PeerSession(NO_CONNECTION, self._send)
        self._stores = ConnectionRound()
        self._endpoint: Endpoint | None = None  # of the connection; None: of a Unix socket
        self._silent: set[Endpoint] = set()  # that said nothing lately
        self._is_alone = True  # there is one endpoint
        self._epochs = HighestEpoch()
        self._ended = asyncio.Event()
        self._heard = asyncio.Event()  # by a Welcome, or by the end of the connection
        self._why = ""  # the connection ended
        self._longest_pause_s = times.longest_pause_s  # after the last attempt
        self._is_scheduled = False
        self._is_writable = True

    # --- what a subclass says

    @abstractmethod
    def _hello(self) -> Hello:
        """The Hello of the next connection."""

    @abstractmethod
    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        """The function that makes the context of the next connection; None: without TLS."""

    @abstractmethod
    def _connected(self, welcome: Welcome) -> None:
        """The store let this peer in. May raise WireError."""

    @abstractmethod
    def _received(self, frame: Frame) -> None:
        """Deal with a frame that is no Ping and no Goodbye. May raise WireError."""

    @abstractmethod
    def _outgoing(self) -> list[bytes]:
        """The bytes to send now."""

    @abstractmethod
    def _away(self, why: str) -> None:
        """A connection ended, or was not made; the next attempt follows after a pause."""

    @abstractmethod
    def _closed_without_a_word(self) -> str:
        """The reason why a store may have closed a connection before its Welcome."""

    @abstractmethod
    def _tls_fault(self, error: ssl.SSLError) -> str:
        """The reason why a TLS handshake failed, and the remedy."""

    @abstractmethod
    def _refused(self, error: HandshakeRefused) -> str:
        """The reason why the store did not let this peer in, and the remedy."""

    def _tls_ended(self, error: ssl.SSLError) -> str:
        """The reason why a connection with TLS ended: a store may check a certificate after the handshake."""
        return f"connection lost ({error})"

    # --- connecting

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        pause_s = self._times.first_pause_s
        said = ""
        while True:
            self._longest_pause_s = self._times.longest_pause_s
            why = await self._connect_round()
            if self._session.welcome is not None:
                pause_s, said = self._times.first_pause_s, ""
            if why != said:
                self._log.warning("store %s: %s; trying again", self._address.url, why)
                said = why
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, self._longest_pause_s)

    async def _connect_round(self) -> str:
        """Try each endpoint, until a connection was made and has ended. Returns why nothing is left to be tried."""
        whys: dict[str, None] = {}
        while True:
            why = await self._connect_once()
            whys[f"{self._endpoint}: {why}" if self._endpoint and self._address.others else why] = None
            self._away("; ".join(whys))
            if self._session.welcome is not None:
                self._stores = ConnectionRound()
            if self._stores.is_over:
                return "; ".join(whys)

    async def _connect_once(self) -> str:
        """Returns why the connection ended, or was not made."""
        self._ended.clear()
        self._heard.clear()
        self._session = PeerSession(NO_CONNECTION, self._send)
        self._endpoint = None
        self._why = self._closed_without_a_word()
        try:
            if self._stores.is_over and not self._address.path:
                found = await self._endpoints()
                self._silent.intersection_update(found)
                self._is_alone = len(set(found)) == 1
                self._stores = ConnectionRound(found, self._silent)
            if (place := self._stores.to_look_up()) is not None:
                self._stores.found(await self._looked_up(place))
                if self._stores.is_over:
                    return f"{place} is to lead, and was tried"
            self._endpoint = self._stores.next() if not self._address.path else None
            async with asyncio.timeout(self._connect_s):
                await self._connect()
        except TimeoutError:
            self._note_silence()
            return f"no answer; {IS_IT_RUNNING}"
        except WireError as error:
            return str(error)
        except ssl.SSLError as error:
            return self._tls_fault(error)
        except OSError as error:
            return f"cannot connect ({error.strerror or error}); {IS_IT_RUNNING}"
        try:
            await self._until_ended()
        finally:
            self._abort()
        return self._why

    @property
    def _connect_s(self) -> float:
        """For an attempt at an endpoint."""
        is_silent = self._endpoint in self._silent and not self._is_alone
        return min(self._times.connect_s, SILENT_CONNECT_S) if is_silent else self._times.connect_s

    async def _until_ended(self) -> None:
        """A store that stands still takes connections, and says nothing."""
        patience_s = self._connect_s * (PATIENT_CONNECTS if self._is_alone else 1)
        try:
            async with asyncio.timeout(patience_s):
                await self._heard.wait()
        except TimeoutError:
            self._note_silence()
            self._end(f"no answer; {IS_IT_RUNNING}")
        await self._ended.wait()

    def _note_silence(self) -> None:
        if self._endpoint is not None:
            self._silent.add(self._endpoint)

    async def _connect(self) -> None:
        if self._address.path:
            with unix_address(Path(self._address.path)) as path:
                await self._loop.create_unix_connection(lambda: self, path)
            return
        endpoint = self._endpoint
        assert endpoint is not None
        tls = self._tls()
        context = tls() if tls is not None else None
        name = endpoint.host if context is not None else None
        await self._loop.create_connection(lambda: self, endpoint.ip, endpoint.port, ssl=context, server_hostname=name)

    async def _endpoints(self) -> list[Endpoint]:
        """Raises OSError if no name is known, TimeoutError."""
        found: list[Endpoint] = []
        unknown: OSError | None = None
        for place in self._address.ports:
            endpoint = endpoint_of(place)
            try:
                found += await self._looked_up(place) if endpoint is None else [endpoint]
            except (OSError, TimeoutError) as error:
                unknown = error
        if not found and unknown is not None:
            raise unknown
        return found

    async def _looked_up(self, place: StorePort) -> list[Endpoint]:
        """Raises OSError, TimeoutError."""
        async with asyncio.timeout(self._times.connect_s):
            infos = await self._loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        return endpoints_of(place, infos)

    # --- disconnecting

    def _end(self, why: str) -> None:
        self._why = why
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def goodbye(self, reason: str) -> None:
        """Say goodbye and close: the store forgets this peer at once."""
        if self._transport is not None:
            self._transport.write(encode(Goodbye(reason)))
            self._transport.close()
            self._leaving, self._transport = self._transport, None

    async def left(self) -> None:
        """Wait until the connection is closed: TLS says goodbye as well. A store that hangs is given LEAVING_S."""
        if self._leaving is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVING_S):
                    await self._ended.wait()
            self._leaving.abort()

    async def leave(self, reason: str, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Say goodbye, end the tasks that drive this link, and wait until the connection is closed."""
        self.goodbye(reason)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.left()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base
        self._is_writable = True
        self._session = PeerSession(self._hello(), self._send, self._loop.time())
        transport.write(self._session.greeting)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._session.feed(data, self._loop.time()):
                if isinstance(event, Welcome):
                    if not self._epochs.admits(event.epoch):
                        raise WireError("it led the cluster before, and does not know of the store that leads now")
                    self._log.info("store %s: connected", self._address.url)
                    self._connected(event)
                    self._silent.clear()
                    self._heard.set()
                    self.welcomed.set()
                else:
                    self._received(event)
            self._why = self._session.farewell or self._why
        except HandshakeRefused as error:
            if error.reason == RefusedReason.NOT_LEADER:
                self._longest_pause_s = min(self._longest_pause_s, LEADERLESS_PAUSE_S)
                self._stores.leader(error.leader)
            self._end(self._refused(error))
        except WireError as error:
            self._end(str(error))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._why = self._tls_ended(error)
        elif error is not None:
            self._why = f"connection lost ({error})"
        self._transport = None
        self._heard.set()
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
            self._loop.call_soon(self._flush_scheduled)

    def at_once(self, do: Callable[[], None]) -> None:
        """Send in this turn of the loop what `do` asks for: one more turn for that costs as much as the sending."""
        self._is_scheduled = True
        try:
            do()
        finally:
            self._flush_scheduled()

    def _flush_scheduled(self) -> None:
        try:
            self.flush()  # what this asks for goes now: one more turn for it would find nothing
        finally:
            self._is_scheduled = False

    def flush(self) -> None:
        """Send what there is."""
        if self._is_writable and self._session.welcome is not None:
            chunks = self._outgoing()
            if chunks and self._transport is not None:
                write(self._transport, chunks)

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def beat(self, now_s: float) -> None:
        """Call this several times a second: it sends heartbeats, and ends the connection of a silent store."""
        self._session.beat(now_s)
        if self._session.is_silent(now_s, self._times.silent_heartbeats, self._times.silent_s):
            self._note_silence()
            self._end("it is silent")
