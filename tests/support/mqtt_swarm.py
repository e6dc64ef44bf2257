"""Thousands of MQTT 3.1.1 clients in one process, without a loop's cost for each: epoll, plain sockets, plain bytes.

Each connects, subscribes to a filter of its own or one that all share, and counts what it gets; one that loses its
connection may connect again elsewhere. Use few methods of it at a time: connect(), then poll() until what you wait for.
"""

from __future__ import annotations

import errno
import random
import resource
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import TracebackType

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Subscribe, SubscriptionRequest
from gateway.mqtt.packets import QoS as Quality

CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x30, 0x40, 0x90
SPARE_DESCRIPTORS = 64
ADDRESSES = 64  # that the connections come from: the kernel is slow to find a port among many that are taken
RECEIVE_BYTES = 1 << 16
NO_LINGER = struct.pack("ii", 1, 0)  # closed by a reset, so that no port waits for anything


class State(Enum):
    AWAY = "not connected"
    CONNECTING = "waits for its CONNACK, or its SUBACK"
    ONLINE = "connected and subscribed"


class SwarmClient:
    """One of them. `connects`, `subscribes`: the packets that it sends for it; the second is empty once it need not."""

    __slots__ = ("_rest", "connects", "messages", "port", "socket", "state", "subscribes")

    def __init__(self, connects: bytes, subscribes: bytes) -> None:
        self.connects = connects
        self.subscribes = subscribes
        self.port = 0
        self.socket: socket.socket | None = None
        self.state = State.AWAY
        self.messages = 0
        self._rest = b""

    def packets(self, data: bytes) -> Iterable[int]:
        """The types of the packets that are complete now. Only short ones are understood, with lengths of a byte."""
        data = self._rest + data
        at = 0
        while at + 2 <= len(data) and at + 2 + data[at + 1] <= len(data):
            yield data[at] & 0xF0
            at += 2 + data[at + 1]
        self._rest = data[at:]

    def forget(self) -> None:
        self._rest = b""


class Swarm:
    """All clients, and the one epoll that they share. close() ends them."""

    def __init__(self, prefix: str, topic_filters: Sequence[str], keeps_sessions: bool = False) -> None:
        """A client for each filter; `keeps_sessions`: without the clean flag, so each has a session that stays."""
        self._keeps_sessions = keeps_sessions
        self.clients = [
            SwarmClient(
                encode(Connect(f"{prefix}{i:06}", 4, clean_start=not keeps_sessions, keep_alive_s=0), 4),
                encode(Subscribe(1, (SubscriptionRequest(name, Quality.AT_MOST_ONCE),)), 4),
            )
            for i, name in enumerate(topic_filters)
        ]
        self._epoll = select.epoll()
        self._of: dict[int, SwarmClient] = {}
        self._to_connect: deque[tuple[float, SwarmClient]] = deque()  # and not before when
        self._connecting = 0
        self.online = 0
        self.messages = 0
        self.lost = 0
        self.refused = 0
        self.ports: Sequence[int] = ()
        self.at_once = 256
        self.returns_after_s = 0.0

    def online_on(self, port: int) -> int:
        return sum(each.state is State.ONLINE and each.port == port for each in self.clients)

    def connect(self, ports: Sequence[int], clients: Iterable[SwarmClient] | None = None) -> None:
        """Have clients connect to these ports in turn, and again whenever they lose their connections."""
        self.ports = ports
        for i, client in enumerate(self.clients if clients is None else clients):
            client.port = ports[i % len(ports)]
            self._to_connect.append((0.0, client))

    def poll(self, until: Callable[[], bool], timeout_s: float) -> float:
        """Go on until a condition holds. Returns how long that took. Raises TimeoutError."""
        started_s = now_s = time.monotonic()
        while not until():
            self._begin_connections(now_s)
            for descriptor, _ in self._epoll.poll(0.001 if self._to_connect else 0.05, 256):
                client = self._of.get(descriptor)
                if client is not None:
                    self._read(client)
            now_s = time.monotonic()
            if now_s - started_s > timeout_s:
                raise TimeoutError(f"{self.online} of {len(self.clients)} clients online after {timeout_s} s")
        return time.monotonic() - started_s

    def drop_all(self) -> None:
        """All lose their connections at once, and do not come back before connect()."""
        for client in self.clients:
            self._gone(client)
        self._to_connect.clear()

    def all_online(self) -> bool:
        return self.online == len(self.clients)

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for client in self.clients:
            if client.socket is not None:
                client.socket.close()
        self._epoll.close()

    # --- one client

    def _begin_connections(self, now_s: float) -> None:
        while self._to_connect and self._connecting < self.at_once and self._to_connect[0][0] <= now_s:
            self._begin(self._to_connect.popleft()[1])

    def _begin(self, client: SwarmClient) -> None:
        client.forget()
        client.socket = each = socket.socket()
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        each.bind((f"127.0.0.{2 + len(self._of) % ADDRESSES}", 0))
        client.state = State.CONNECTING
        self._connecting += 1
        try:
            each.connect(("127.0.0.1", client.port))  # on one machine it is done at once
            each.setblocking(False)
            each.send(client.connects)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE):
                raise
            self._gone(client)
            return
        self._of[each.fileno()] = client
        self._epoll.register(each.fileno(), select.EPOLLIN)

    def _read(self, client: SwarmClient) -> None:
        assert client.socket is not None
        try:
            data = client.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(client)
            return
        for kind in client.packets(data):
            self._packet(client, kind)

    def _packet(self, client: SwarmClient, kind: int) -> None:
        assert client.socket is not None
        if kind == CONNACK and client.subscribes:
            client.socket.send(client.subscribes)
            if self._keeps_sessions:
                client.subscribes = b""
        elif kind in (CONNACK, SUBACK):
            client.state = State.ONLINE
            self._connecting -= 1
            self.online += 1
        elif kind == PUBLISH:
            client.messages += 1
            self.messages += 1

    def _gone(self, client: SwarmClient) -> None:
        assert client.socket is not None
        if client.state is State.ONLINE:
            self.online -= 1
            self.lost += 1
        else:
            self._connecting -= 1
            self.refused += 1
        if self._of.pop(client.socket.fileno(), None) is not None:
            self._epoll.unregister(client.socket.fileno())
        client.socket.close()
        client.socket = None
        client.state = State.AWAY
        client.port = random.choice(self.ports)
        pause_s = random.uniform(0.0, 2 * self.returns_after_s)
        self._to_connect.append((time.monotonic() + pause_s, client))


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process have so many descriptors. Raises ValueError that says what limits it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted + SPARE_DESCRIPTORS:
        raise ValueError(f"{wanted} connections need that many descriptors; `ulimit -Hn` is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
