"""A gateway is replaced by another process while its clients publish and subscribe: they notice nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from loadtest.chaos.part import Part
from tests.support.moved_clients import NumbersClient, Workers, finish_all, start_all
from tests.support.mqtt_byte_client import ByteClient, connect, publish
from tests.support.mqtt_swarm import Swarm, raise_descriptor_limit
from tests.support.server_process import free_port
from tests.support.upgraded_gateway import PATIENCE_S, UpgradedGateway

SETTINGS: dict[str, object] = {"gateway.sys_interval_s": 0, "gateway.connect_timeout_s": 300}
MANY, BUSY = 10_000, 300
MOST_WAITED_MS = 1_000
LARGE_BYTES = 200_000
LARGE = 40


class Place:
    """A store, and a gateway in front of it."""

    def __init__(self, folder: Path) -> None:
        self.store_url = f"tcp://127.0.0.1:{free_port()}"
        self.port = free_port()
        command = ["store", "--data", str(folder / "data"), "--listen", self.store_url]
        self.store = Part(folder / "store.log", command, {"store.flush": "async"}, admin=False)
        self.listen = [f"mqtt://127.0.0.1:{self.port}"]
        self.gateway = UpgradedGateway(folder, self.store_url, self.listen, SETTINGS)

    def close(self) -> None:
        self.gateway.kill()
        self.store.kill()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


async def meanwhile(do: Callable[[], object]) -> None:
    """Wait for something in another thread, while the clients go on."""
    await asyncio.to_thread(do)


async def progress(clients: list[NumbersClient]) -> None:
    """Wait until each client has had some more."""
    before = [len(each.received) for each in clients]
    async with asyncio.timeout(PATIENCE_S):
        for each, had in zip(clients, before, strict=True):
            await each.has_received(had + 3)


async def slow_reader(port: int) -> MqttConnection:
    """A client that reads nothing, and for which more waits than its socket takes."""
    connection, _ = await MqttConnection.open(port, Connect("slow", 5, True, 300))
    await connection.subscribe(1, "large", QoS.AT_LEAST_ONCE)
    publisher, _ = await MqttConnection.open(port, Connect("publisher", 5, True, 300))
    async with publisher:
        for number in range(LARGE):
            payload = b"%04d" % number + bytes(LARGE_BYTES)
            await publisher.publish(Publish("large", payload, QoS.AT_LEAST_ONCE, packet_id=number + 1))
    return connection


async def read_all(connection: MqttConnection) -> list[int]:
    async with connection:
        return [int((await connection.take()).payload[:4]) for _ in range(LARGE)]


@pytest.mark.asyncio
@pytest.mark.catalogue("H29")
@pytest.mark.parametrize("number", [60, pytest.param(400, marks=pytest.mark.nightly)])
async def test_clients_notice_nothing_of_an_upgrade(place: Place, number: int) -> None:
    """Nor of one that fails: none is closed, no byte is lost or doubled, and QoS 2 comes once."""
    gateway, port = place.gateway, place.port
    clients = [NumbersClient(each) for each in range(number)]
    await start_all(clients, port)
    workers, new_port = Workers(port), free_port()
    slow = await slow_reader(port)
    half, blank = ByteClient(port), ByteClient(port)
    half.send(connect(b"half"))
    half.take()
    packet = publish(b"half", b"payload", qos=1, packet_id=9)
    half.send(packet[:7])
    blank.send(connect(b"blank")[:5])

    gateway.configure(place.store_url, [f"mqtt://127.0.0.1:{free_port()}"])
    assert "gateway.listen has no" in await asyncio.to_thread(gateway.fails)
    await progress(clients)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        gateway.configure(f"tcp://127.0.0.1:{deaf.getsockname()[1]}", place.listen)
        why = await asyncio.to_thread(gateway.fails, partial(kill_once_it_has_all, gateway, deaf))
    assert "is gone" in why
    await progress(clients)
    gateway.configure(place.store_url, [*place.listen, f"mqtt://127.0.0.1:{new_port}"])
    working = asyncio.create_task(workers.publish())
    await meanwhile(gateway.upgrade)
    await progress(clients)
    (await MqttConnection.open(new_port, Connect("at the new address", 5)))[0].cut()
    half.send(packet[7:])
    assert half.take() == (0x40, b"\0\x09")
    blank.send(connect(b"blank")[5:])
    assert blank.take()[0] == 0x20
    assert await read_all(slow) == list(range(LARGE))
    await working
    await workers.finish(PATIENCE_S)
    await finish_all(clients, PATIENCE_S)
    half.close()
    blank.close()


@pytest.mark.asyncio
@pytest.mark.nightly
@pytest.mark.alone
async def test_ten_thousand_connections_wait_for_a_second_at_most(place: Place) -> None:
    """The shortest of three, as other work on the machine only adds to it."""
    raise_descriptor_limit(MANY)
    with Swarm("idle-", [f"idle/{number}" for number in range(MANY - BUSY)]) as swarm:
        swarm.connect([place.port])
        swarm.poll(swarm.all_online, PATIENCE_S)
        clients = [NumbersClient(number) for number in range(BUSY)]
        await start_all(clients, place.port)
        for _ in range(3):
            await progress(clients)
            await meanwhile(place.gateway.upgrade)
        await finish_all(clients, PATIENCE_S)
        publisher, _ = await MqttConnection.open(place.port, Connect("publisher", 5, True, 300))
        async with publisher:
            for number in range(MANY - BUSY):
                publisher.send(Publish(f"idle/{number}", b"1"))
            await publisher.publish(Publish("end", b"", QoS.AT_LEAST_ONCE, packet_id=1))
            swarm.poll(lambda: swarm.messages == MANY - BUSY, PATIENCE_S)
        assert not swarm.lost
    waited_ms = [int(each) for each in place.gateway.said(rf"serves {MANY} connections; they waited for (\d+) ms")]
    assert len(waited_ms) == 3
    assert min(waited_ms) <= MOST_WAITED_MS, waited_ms


def kill_once_it_has_all(gateway: UpgradedGateway, deaf: socket.socket) -> None:
    """The next process has taken everything, and connects to its store: it has not said that it serves."""
    pid = gateway.next_process()
    deaf.settimeout(PATIENCE_S)
    connected, _ = deaf.accept()
    os.kill(pid, signal.SIGKILL)
    connected.close()


@pytest.mark.asyncio
async def test_a_store_that_does_not_answer_in_time_is_no_reason_to_lose_a_client(place: Place) -> None:
    """And a process that is killed once it serves is as any gateway that is killed."""
    gateway, port = place.gateway, place.port
    client, _ = await MqttConnection.open(port, persistent("device"))
    await client.subscribe(1, "to/device", QoS.AT_LEAST_ONCE)
    place.store.pause()
    client.send(Publish("from/device", b"1", QoS.AT_LEAST_ONCE, packet_id=7))
    assert "after 1 s" in await asyncio.to_thread(gateway.fails)
    place.store.resume()
    assert (await client.receive(PubAck)).packet_id == 7
    await meanwhile(gateway.upgrade)
    await client.publish(Publish("to/device", b"once", QoS.AT_LEAST_ONCE, packet_id=8))
    sent = await client.receive(Publish)
    os.kill(gateway.pid, signal.SIGKILL)
    await client.ended()
    client.cut()
    gateway.start()
    again, connack = await MqttConnection.open(port, persistent("device"))
    async with again:
        assert connack.session_present
        assert (await again.take()).payload == sent.payload == b"once"
