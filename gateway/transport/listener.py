"""The listening sockets for clients, and the rate at which connections are accepted."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from gateway.access.connection_limits import DESCRIPTORS, LISTENER_MAX_CONNECTIONS, PER_ADDRESS
from gateway.access.quotas import Bucket
from gateway.broker import Broker
from gateway.listen_address import ListenAddress, ListenError
from gateway.mqtt._mqtt import Sockets
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Entrance, address_of
from gateway.transport.layers import Above
from gateway.transport.proxy_protocol import ProxyHeader
from gateway.transport.tls import InTurn, TlsLayer
from notify.links.sockets import listening_socket, listening_unix_socket
from notify.links.tls import RETRY_S
from store.files.descriptors import first_of_operators

BACKLOG = 4096
ACCEPTS_AT_ONCE = 16
"""Accepted in one turn of the loop, so that a storm of clients does not delay connected ones."""
BURST_S = 0.1
"""Connections due within so much time may be accepted together."""
BANS_TOLD_PER_S = 10
"""Clients at banned addresses that get a CONNACK; others are closed without one, and all of them with TLS."""
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 300, 30, 5
"""When the system probes a silent connection; MQTT's keep alive may be off."""

TlsContext = Callable[[], ssl.SSLContext]


class Listener:
    """Accepts the clients of one address, from open() until close()."""

    def __init__(
        self,
        broker: Broker,
        address: ListenAddress,
        tls: TlsContext | None,
        in_turn: InTurn,
        clients: Sockets | None = None,
    ) -> None:
        """`tls`: gives the context for new connections. Raises ListenError if it is None and needed.

        Accepted connections are served by `clients`; without it, by the loop.
        """
        if address.is_tls and tls is None:
            raise ListenError(f"{address}: TLS needs gateway.tls_certificate and gateway.tls_key; set both")
        self.address = address
        self._broker = broker
        self._connections = broker.connections
        self._settings = broker.core.settings
        self._proxies = _networks(self._settings.proxies) if address.proxy_protocol else []
        self._tls = tls
        self._in_turn = in_turn
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unread: set[ProxyHeader] = set()  # connections whose proxy has not sent its header
        most = self._settings.listener_max_connections or self._settings.max_connections
        self.entrance = Entrance(most, address.namespace)
        self._is_paused = False
        self._descriptors = first_of_operators()
        self._allowed = 0.0  # connections that may be accepted now
        self._allowed_at_s = self._loop.time()
        self._told_bans = Bucket(BANS_TOLD_PER_S, 1.0, self._loop.time())

    # --- listening

    async def open(self) -> None:
        """Listen. Raises ListenError."""
        try:
            self._sockets = await self._bind()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ListenError(
                f"{self.address}: cannot listen there ({reason}); stop what uses it or choose another "
                f"{'path' if self.address.path else 'port'}"
            ) from error
        self._begin()

    def _begin(self) -> None:
        if not self.address.path:
            self.address = self.address.at_port(self._sockets[0].getsockname()[1])
        for each in self._sockets:
            self._listen(each)

    def adopt(self, descriptors: Sequence[int]) -> None:
        """Listen at sockets that another process listened at, once resume() is called. Raises OSError."""
        self._is_paused = True
        self._sockets = [socket.socket(fileno=each) for each in descriptors]
        for each in self._sockets:
            each.setblocking(False)
        self._begin()

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the listening sockets."""
        return [each.fileno() for each in self._sockets]

    def give_up(self) -> list[int]:
        """Listen no more, and close nothing: the sockets, whose descriptors these are, are the caller's."""
        self.pause()
        for header in list(self._unread):
            header.abort()
        sockets, self._sockets = self._sockets, []
        return [each.detach() for each in sockets]

    def pause(self) -> None:
        """Accept no client until resume(): they wait in the system's queue."""
        self._is_paused = True
        for each in self._sockets:
            self._loop.remove_reader(each)

    def resume(self) -> None:
        self._is_paused = False
        for each in self._sockets:
            self._listen(each)

    async def _bind(self) -> list[socket.socket]:
        if self.address.fd is not None:
            shared = socket.socket(fileno=self.address.fd)
            shared.setblocking(False)
            if shared.family != socket.AF_UNIX:
                _prepare(shared)
            return [shared]
        if self.address.path:
            return [listening_unix_socket(Path(self.address.path), BACKLOG, int(self._settings.unix_socket_mode, 8))]
        host, port = self.address.host, self.address.port
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                place = (where[0], port, *where[2:])
                sockets.append(listening_socket(family, place, BACKLOG, self._settings.reuse_port))
                port = sockets[0].getsockname()[1]  # a free port is the same at all addresses
                _prepare(sockets[-1])
        except OSError:
            for each in sockets:
                each.close()
            raise
        return sockets

    def close(self) -> None:
        """Accept no more clients; connected ones stay."""
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets.clear()
        if self.address.path and self.address.fd is None:
            Path(self.address.path).unlink(missing_ok=True)
        for header in list(self._unread):
            header.abort()

    # --- accepting

    def _listen(self, listening: socket.socket) -> None:
        if listening in self._sockets and not self._is_paused:
            self._loop.add_reader(listening, self._accept, listening)

    def _rest(self, listening: socket.socket, seconds: float) -> None:
        """Stop accepting for a while. New connections wait in the system's queue."""
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._listen, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            wait_s = self._wait_s()
            if wait_s:
                self._rest(listening, wait_s)
                return
            try:
                # accept() makes an object of it, by six more system calls.
                accepted, address = listening._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # it left already
                continue
            except OSError as error:  # no descriptors to spare, as a rule
                self._broker.core.events.warning("accept", "%s: cannot accept: %s", self.address, error.strerror)
                self._rest(listening, RETRY_S)
                return
            self._allowed -= 1
            if accepted >= self._descriptors:
                self._connections.limits.refuse(address_of(address), DESCRIPTORS)
                os.close(accepted)
                continue
            if self.address.proxy_protocol and listening.family != socket.AF_UNIX and not self._is_proxy(address):
                why = "no PROXY protocol header is taken from it: it is not among gateway.proxies"
                self._connections.count_bad_start(address_of(address), ProtocolError(ReasonCode.NOT_AUTHORIZED, why))
                os.close(accepted)
                continue
            if self._is_kept_out(address) or self._is_one_too_many(address):
                os.close(accepted)
                continue
            if len(self._unread) >= self.entrance.most:
                self._broker.core.events.warning("limit", "%s: refused, too many have sent no header yet", self.address)
                self._connections.turned_away[LISTENER_MAX_CONNECTIONS] += 1
                os.close(accepted)
                continue
            os.set_blocking(accepted, False)
            if self._clients is not None:
                self._open(accepted, self._clients, address)
                continue
            task = self._loop.create_task(self._let_in(socket.socket(fileno=accepted), address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_proxy(self, peer: tuple[str, int]) -> bool:
        address = ip_address(peer[0].partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)

    def _wait_s(self) -> float:
        """Seconds until the next connection may be accepted."""
        rate = self._settings.listener_connects_per_s
        if not rate:
            return 0
        now_s = self._loop.time()
        most = max(1.0, rate * BURST_S)
        self._allowed = min(most, self._allowed + (now_s - self._allowed_at_s) * rate)
        self._allowed_at_s = now_s
        return 0 if self._allowed >= 1 else (1 - self._allowed) / rate

    def _is_kept_out(self, address: object) -> bool:
        """Whether to close a client without an answer, since its address is banned. A proxy's clients are checked
        later.
        """
        broker, bans = self._broker, self._broker.ban_sweep.bans
        if not len(bans) or self.address.proxy_protocol or not isinstance(address, tuple):
            return False
        now_ms = broker.turn.now_ms
        if bans.find(address[0], "", "", now_ms) is None:
            return False
        told = self._told_bans
        told.refill(self._loop.time())
        if told.tokens >= 1 and not self.address.is_tls:
            told.tokens -= 1
            return False
        bans.refuses(address[0], "", "", now_ms)
        return True

    def _is_one_too_many(self, address: object) -> bool:
        """Whether the address has all its connections. A proxy's clients are counted once their own address
        is known.
        """
        limits = self._connections.limits
        if self.address.proxy_protocol or not isinstance(address, tuple) or not limits.is_full(address[0]):
            return False
        limits.refuse(address_of(address), PER_ADDRESS)
        return True

    def _open(self, fd: int, clients: Sockets, address: object) -> None:
        """Serve a connection by its descriptor alone: a socket object takes 100 bytes more."""
        try:
            clients.open(fd, self._protocol(fd), address)
        except OSError as error:  # no memory for it, as a rule
            self._broker.core.events.warning("accept", "%s: cannot accept: %s", self.address, error.strerror)

    async def _let_in(self, accepted: socket.socket, address: object) -> None:
        make = partial(self._protocol, accepted.fileno(), address)
        try:
            await self._loop.connect_accepted_socket(make, accepted)  # type: ignore[type-var]
        except OSError:  # it left already
            accepted.close()

    def _protocol(self, fd: int, address: object = None) -> Above | ProxyHeader:
        """The Connection of a new socket with its layers. `address`: of the client, if the transport does not
        keep it.
        """
        connection = Connection(self._connections, self.entrance)
        connection.left_from = address
        protocol: Above = connection
        settings = self._settings
        if self.address.is_plain:
            connection.fd = fd  # asking the transport costs an object that it keeps
            return connection
        if self.address.is_websocket:
            from gateway.transport.websocket import (
                WebSocketLayer,  # imported here, since most gateways need no HTTP
            )

            protocol = WebSocketLayer(protocol, connection, settings)
        if self.address.is_tls:
            assert self._tls is not None
            protocol = TlsLayer(
                protocol, connection, self._tls(), settings.tls_user_name, self._in_turn, self._broker.certified
            )
        if not self.address.proxy_protocol:
            return protocol
        header = ProxyHeader(protocol, self._proxy_said)
        self._unread.add(header)
        late_s = self._broker.turn.now_s + settings.connect_timeout_s
        self._broker.core.deadlines.set(header, late_s, lambda: self._too_late(header))
        return header

    # --- the PROXY protocol

    def _proxy_said(self, header: ProxyHeader, error: ProtocolError | None) -> None:
        self._unread.discard(header)
        self._broker.core.deadlines.cancel(header)
        if error is not None:
            self._connections.count_bad_start(header.peer, error)

    def _too_late(self, header: ProxyHeader) -> None:
        late = ProtocolError(ReasonCode.MAXIMUM_CONNECT_TIME, "no PROXY protocol header in time")
        self._proxy_said(header, late)
        header.abort()


def _networks(texts: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    """Raises ListenError."""
    try:
        return [ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise ListenError(f"gateway.proxies: {error}; name addresses or networks, as 10.0.0.0/8") from None


def _prepare(listening: socket.socket) -> None:
    """Set options that accepted connections inherit: no delay for small packets, and probes of dead connections."""
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", PROBE_AFTER_S), ("TCP_KEEPINTVL", PROBE_EVERY_S), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, option):  # not on every system
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
