"""A connection to a store for programs without an event loop: one request at a time, and every call waits."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from store.errors import HandshakeRefused, StoreAway, WireError
from store.wire.client.address import ConnectionRound, Endpoint, StorePort, WireAddress, endpoints_of
from store.wire.client.session import PeerSession
from store.wire.frames import Frame, encode
from store.wire.messages import Goodbye, Hello, Ping, RefusedReason, Welcome, WireMessage
from store.wire.sockets import unix_address

READ_BYTES = 1 << 20
ANOTHER_S = 3.0  # a store that says nothing for so long is left, where there are others
SILENT_HEARTBEATS = 4  # or for so many of its heartbeats, if that is longer

TlsContext = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class BlockingTimes:
    """The timeouts of a link, in seconds.

    `connect_s`: for a TCP connection. `silent_s`: for the next byte. `idle_s`: a link without a request for so long
    closes itself; until then a thread sends heartbeats. None: the link lives for a few requests and sends none.
    """

    connect_s: float
    silent_s: float
    idle_s: float | None = None


def connect(address: WireAddress, tls: TlsContext | None, times: BlockingTimes, hello: Hello) -> BlockingLink:
    """A connection to the store, or to the one that leads a cluster; with TLS if `tls` is given.

    Each endpoint is tried once. Where there are several, none has long: one that stands still takes connections, and
    another one leads by then. Raises OSError, of which ssl.SSLError is one, HandshakeRefused, StoreAway or WireError.
    """
    if address.path:
        return BlockingLink(_open_unix_socket(address.path, times), hello, times)
    found = _endpoints(address.ports)
    stores = ConnectionRound(found)
    is_one_of_several = len(set(found)) > 1
    opening = times
    if is_one_of_several:
        opening = replace(times, connect_s=min(times.connect_s, ANOTHER_S), silent_s=min(times.silent_s, ANOTHER_S))
    while True:
        try:
            return BlockingLink(_open_socket(_next(stores), tls, opening), hello, times, is_one_of_several)
        except HandshakeRefused as error:
            if error.reason != RefusedReason.NOT_LEADER:
                raise
            stores.leader(error.leader)
            if stores.is_over:
                raise
        except (OSError, StoreAway, WireError):
            if stores.is_over:
                raise


def _next(stores: ConnectionRound) -> Endpoint:
    """Raises OSError if the name of the leader is not known, StoreAway if nothing is left to try."""
    if (place := stores.to_look_up()) is not None:
        stores.found(_endpoints((place,)))
    if stores.is_over:
        raise StoreAway(f"{place} is to lead, and was tried")
    return stores.next()


def _endpoints(ports: tuple[StorePort, ...]) -> list[Endpoint]:
    """Raises OSError if no name is known."""
    found: list[Endpoint] = []
    unknown: OSError | None = None
    for place in ports:
        try:
            found += endpoints_of(place, socket.getaddrinfo(*place, type=socket.SOCK_STREAM))
        except OSError as error:
            unknown = error
    if not found and unknown is not None:
        raise unknown
    return found


def _open_unix_socket(path: str, times: BlockingTimes) -> socket.socket:
    """Raises OSError."""
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(times.silent_s)
        with unix_address(Path(path)) as address:
            found.connect(address)
    except OSError:
        found.close()
        raise
    return found


def _open_socket(endpoint: Endpoint, tls: TlsContext | None, times: BlockingTimes) -> socket.socket:
    """Raises OSError."""
    found = socket.create_connection((endpoint.ip, endpoint.port), times.connect_s)
    try:
        found.settimeout(times.silent_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found if tls is None else tls().wrap_socket(found, server_hostname=endpoint.host)
    except OSError:
        found.close()
        raise


class BlockingLink:
    """One connection that a store has let in. Every method but close() raises StoreAway or WireError."""

    def __init__(
        self, connected: socket.socket, hello: Hello, times: BlockingTimes, is_one_of_several: bool = False
    ) -> None:
        """Shake hands on a connected socket. `is_one_of_several`: another store may lead by now, if this one is silent.
        Raises HandshakeRefused as well.
        """
        self._socket = connected
        self._times = times
        self._silent_s = min(times.silent_s, ANOTHER_S) if is_one_of_several else times.silent_s
        self._frames: deque[Frame] = deque()
        self._using = threading.Lock()  # the socket: with TLS it cannot be read and written at the same time
        self._wait_s = self._silent_s  # for a byte, before the store is asked whether it is there
        self._used_s = 0.0
        self._closed = threading.Event()
        self._session = PeerSession(hello, self.send_bytes)
        try:
            self.send_bytes(self._session.greeting)
            while self._session.welcome is None:
                self._take()
        except (HandshakeRefused, StoreAway, WireError):
            connected.close()
            raise
        self.welcome: Welcome = self._session.welcome
        peer = connected.getpeername() if connected.family != socket.AF_UNIX else ()
        self.peer: tuple[str, int] | None = (peer[0], peer[1]) if peer else None  # IP and port; None: a Unix socket
        heartbeat_s = self.welcome.heartbeat_ms / 1000
        if is_one_of_several:  # the store says something with each of its heartbeats
            self._silent_s = min(times.silent_s, max(ANOTHER_S, SILENT_HEARTBEATS * heartbeat_s))
        if times.idle_s is not None:
            self._wait_s = heartbeat_s
            threading.Thread(target=self._beat, args=(times.idle_s,), daemon=True).start()

    def send(self, message: WireMessage, request_id: int = 0, records: bytes = b"") -> None:
        """Send a message; a request has a request_id."""
        self.send_bytes(encode(message, request_id, records))

    def send_bytes(self, data: bytes) -> None:
        """Send whole frames."""
        try:
            with self._using:
                self._socket.settimeout(self._times.silent_s)
                self._socket.sendall(data)
        except OSError as error:
            raise StoreAway(f"connection lost ({error})") from None

    def receive(self) -> Frame:
        """Wait for the next answer."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.request_id:
                    return frame
            if self._session.farewell:
                raise StoreAway(self._session.farewell)
            self._take()

    def _take(self) -> None:
        self._frames += [event for event in self._session.feed(self._received()) if isinstance(event, Frame)]

    def _received(self) -> bytes:
        deadline_s = time.monotonic() + self._silent_s
        while True:
            self._used_s = time.monotonic()
            try:
                with self._using:
                    self._socket.settimeout(self._wait_s)
                    data = self._socket.recv(READ_BYTES)
                break
            except TimeoutError:
                if time.monotonic() >= deadline_s:
                    raise StoreAway("no answer (it is silent)") from None
                self.send(Ping())
            except OSError as error:
                raise StoreAway(f"no answer ({error})") from None
        if not data:
            raise StoreAway("the store closed the connection")
        return data

    def _beat(self, idle_s: float) -> None:
        """Send heartbeats while no other thread waits for an answer. Close an idle link: its answers are not read."""
        while not self._closed.wait(self._wait_s):
            if time.monotonic() - self._used_s > idle_s:
                self.close("nothing to be asked")
                return
            with suppress(StoreAway):
                if not self._using.locked():
                    self.send(Ping())

    def close(self, goodbye: str = "") -> None:
        """Close the connection. After a `goodbye` the store forgets this name at once, except a producer's."""
        self._closed.set()
        if goodbye:
            with suppress(StoreAway):
                self.send(Goodbye(goodbye))
        self._socket.close()
