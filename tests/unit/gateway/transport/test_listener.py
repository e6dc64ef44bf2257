"""A Listener's clients over real sockets: all on one epoll, or each with a transport of the loop's."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest
import uvloop

from gateway.broker import Broker
from gateway.listen_address import ListenAddress
from gateway.mqtt._mqtt import HAS_EPOLL, Sockets
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Disconnect, PingReq, PingResp, Publish, QoS
from gateway.settings import GatewaySettings
from gateway.transport.listener import Listener
from gateway.transport.tls import InTurn
from lightqueue.message_store import MessageStore
from notify.local.hub import Hub
from notify.local.store import LocalStore
from tests.support.mqtt_slow_reader import RawClient
from tests.support.mqtt_swarm import raise_descriptor_limit
from tests.support.stores import small, wait_until

TICK_S = 0.02
BUFFER_BYTES = 100_000
CLIENTS = 5_000


class Gateway:
    """A gateway on a loop in a thread of its own."""

    def __init__(self, folder: Path, on_epoll: bool) -> None:
        self.broker: Broker
        self.port = 0
        self._folder = folder
        self._on_epoll = on_epoll
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def __enter__(self) -> Gateway:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        store = MessageStore(small(self._folder))
        settings = GatewaySettings(write_buffer_bytes=BUFFER_BYTES)
        broker = self.broker = Broker(LocalStore.join(Hub(store), "gateway"), settings, loop)
        clients = None
        if self._on_epoll:
            clients = Sockets(broker.turn, broker.connections.read_buffer, loop.call_soon)
            loop.add_reader(clients.fileno(), clients.look)
        listener = Listener(broker, ListenAddress.parse("mqtt://127.0.0.1:0"), None, InTurn(loop.call_soon), clients)
        await listener.open()
        self.port = listener.address.port
        self._ready.set()
        while not self._stop.is_set():
            broker.tick()
            await asyncio.sleep(TICK_S)
        listener.close()
        if clients is not None:
            loop.remove_reader(clients.fileno())
        store.close()

    def until(self, condition: Callable[[Broker], object]) -> None:
        wait_until(lambda: bool(condition(self.broker)))


@pytest.fixture(params=["one epoll", "the loop's transports"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    if request.param == "one epoll" and not HAS_EPOLL:
        pytest.skip("this system has no epoll")
    with Gateway(tmp_path, request.param == "one epoll") as gateway:
        yield gateway


def test_a_slow_reader_gets_all_of_it_in_order(gateway: Gateway) -> None:
    reader = RawClient(gateway.port, "reader")
    reader.subscribe("t", QoS.AT_LEAST_ONCE)
    publisher = RawClient(gateway.port, "publisher")
    payloads = [b"%d " % number + bytes(50_000) for number in range(200)]
    for number, payload in enumerate(payloads):
        publisher.send(Publish("t", payload, QoS.AT_LEAST_ONCE, packet_id=number + 1))
        next(publisher.packets())
    gateway.until(lambda broker: broker.registry.sessions["reader"].connection.paused)
    waiting = gateway.broker.registry.sessions["reader"].connection.waiting_bytes
    assert 0 < waiting < 2 * BUFFER_BYTES + len(payloads[0]) + (1 << 20)
    assert reader.payloads(len(payloads), most_bytes=9_999) == payloads
    gateway.until(lambda broker: not broker.registry.sessions["reader"].connection.paused)
    for each in (reader, publisher):
        each.close()
    gateway.until(lambda broker: not broker.connections.table.connections)


def reset(plain: socket.socket) -> None:
    """Leave without a word."""
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.close()


def test_a_connection_knows_its_address_after_its_end(gateway: Gateway) -> None:
    plain = socket.create_connection(("127.0.0.1", gateway.port))
    plain.sendall(encode(Connect("a"), 5))
    gateway.until(lambda broker: "a" in broker.registry.sessions)
    connection, port = gateway.broker.registry.sessions["a"].connection, plain.getsockname()[1]
    reset(plain)
    gateway.until(lambda broker: connection.transport is None)
    assert connection.peer == f"127.0.0.1:{port}"
    assert connection.host == "127.0.0.1"


def test_a_client_that_half_closes_is_gone(gateway: Gateway) -> None:
    client = socket.create_connection(("127.0.0.1", gateway.port))
    client.settimeout(20)
    client.sendall(encode(Connect("half", 4), 4))
    assert client.recv(4, socket.MSG_WAITALL) == b"\x20\2\0\0"
    client.sendall(encode(PingReq(), 4))
    client.shutdown(socket.SHUT_WR)
    assert client.recv(2, socket.MSG_WAITALL) == encode(PingResp(), 4)
    assert client.recv(1) == b""
    client.close()
    gateway.until(lambda broker: not broker.connections.table.connections)


def test_connect_publish_and_disconnect_in_one_segment(gateway: Gateway) -> None:
    reader = RawClient(gateway.port, "reader")
    reader.subscribe("t", QoS.AT_MOST_ONCE)
    client = socket.create_connection(("127.0.0.1", gateway.port))
    packets = (Connect("brief", 4), Publish("t", b"all I have"), Disconnect())
    client.sendall(b"".join(encode(packet, 4) for packet in packets))
    assert reader.payloads(1) == [b"all I have"]
    gateway.until(lambda broker: broker.connections.table.connections == 1)
    client.close()
    reader.close()


@pytest.mark.slow
def test_a_client_that_sends_without_end_keeps_nobody_waiting(gateway: Gateway) -> None:
    quiet = RawClient(gateway.port, "quiet")
    firehose = socket.create_connection(("127.0.0.1", gateway.port))
    firehose.sendall(encode(Connect("firehose", 4), 4))
    stop = threading.Event()
    block = encode(Publish("nobody/reads", bytes(100)), 4) * 1_000

    def pour() -> None:
        while not stop.is_set():
            firehose.sendall(block)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        for _ in range(20):
            quiet.send(PingReq())
            assert next(quiet.packets()) == PingResp()
    finally:
        stop.set()
        thread.join()
        firehose.close()
        quiet.close()
    gateway.until(lambda broker: not broker.connections.table.connections)


@pytest.mark.slow
def test_five_thousand_leave_at_once(gateway: Gateway) -> None:
    raise_descriptor_limit(2 * CLIENTS)
    stays = RawClient(gateway.port, "stays")
    clients = []
    for number in range(CLIENTS):
        clients.append(socket.create_connection(("127.0.0.1", gateway.port)))
        clients[-1].sendall(encode(Connect(f"c{number}", 4), 4))
    gateway.until(lambda broker: broker.connections.table.online == CLIENTS + 1)
    for each in clients:
        each.close()  # over an unread CONNACK, so it is a reset
    gateway.until(lambda broker: broker.connections.table.connections == 1)
    stays.send(PingReq())
    assert next(stays.packets()) == PingResp()
    stays.close()
