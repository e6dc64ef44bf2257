"""`penstock serve` is replaced by another process while clients publish and subscribe: they notice nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, QoS, Will
from gateway.mqtt.properties import Properties
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from penstock import Client
from tests.crash import strace
from tests.support.moved_clients import NumbersClient, Workers, finish_all, start_all
from tests.support.mqtt_byte_client import ByteClient, connect, publish
from tests.support.server_process import free_port
from tests.support.upgraded_gateway import PATIENCE_S
from tests.support.upgraded_store_server import KilledUpgrades, UpgradedStoreServer

SETTINGS: dict[str, object] = {"gateway.sys_interval_s": 0, "gateway.connect_timeout_s": 300, "store.flush": "async"}
LARGE_BYTES, LARGE = 200_000, 40
STALL_MS = 60_000  # it ends when the test lets it
TOPICS = (("load/a", 1), ("load/b", 2), ("load/shared", 2), ("other/shared", 1))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UpgradedStoreServer]:
    server = UpgradedStoreServer(tmp_path, SETTINGS)
    yield server
    server.kill()


async def progress(clients: list[NumbersClient]) -> None:
    """Wait until each client has had some more."""
    before = [len(each.received) for each in clients]
    async with asyncio.timeout(PATIENCE_S):
        for each, had in zip(clients, before, strict=True):
            await each.has_received(had + 3)


async def opened(port: int, client_id: str, will: Will | None = None) -> MqttConnection:
    """A connection whose session ends with it."""
    return (await MqttConnection.open(port, Connect(client_id, 5, True, 300, will=will)))[0]


async def slow_reader(port: int, client_id: str, topic_filter: str) -> MqttConnection:
    """A client that reads nothing; more waits for it than its socket takes."""
    connection = await opened(port, client_id)
    await connection.subscribe(1, topic_filter, QoS.AT_LEAST_ONCE)
    return connection


async def publish_large(port: int) -> None:
    async with await opened(port, "publisher") as publisher:
        for number in range(LARGE):
            payload = b"%04d" % number + bytes(LARGE_BYTES)
            await publisher.publish(Publish("large/x", payload, QoS.AT_LEAST_ONCE, packet_id=number + 1))


async def read_all(connection: MqttConnection) -> list[int]:
    async with connection:
        return [int((await connection.take()).payload[:4]) for _ in range(LARGE)]


@pytest.mark.asyncio
@pytest.mark.catalogue("H29")
@pytest.mark.parametrize("number", [60, pytest.param(300, marks=pytest.mark.nightly)])
async def test_clients_notice_nothing_of_an_upgrade(server: UpgradedStoreServer, number: int) -> None:
    """None is closed, no byte is lost or doubled, no session ends, no will is sent."""
    port, new_port = server.port, free_port()
    clients = [NumbersClient(each, wild=each % 5 < 2) for each in range(number)]
    await start_all(clients, port)
    slow = [await slow_reader(port, "slow", "large/x"), await slow_reader(port, "wild", "+/x")]
    await publish_large(port)
    workers = Workers(port)
    half = ByteClient(port)
    half.send(connect(b"half"))
    half.take()
    packet = publish(b"half", b"payload", qos=1, packet_id=9)
    half.send(packet[:7])
    async with AsyncExitStack() as closing:
        watcher = await closing.enter_async_context(await opened(port, "watcher"))
        await watcher.subscribe(1, "wills/#", QoS.AT_LEAST_ONCE)
        dying = await opened(port, "dying", Will("wills/of/dying", b"dead", QoS.AT_LEAST_ONCE))
        away, _ = await MqttConnection.open(port, persistent("away"))
        await away.subscribe(1, "to/away", QoS.AT_LEAST_ONCE)
        away.cut()
        await watcher.publish(Publish("to/away", b"once", QoS.AT_LEAST_ONCE, packet_id=5))

        server.configure(ports=(port, new_port))
        working = asyncio.create_task(workers.publish())
        await asyncio.to_thread(server.upgrade)
        await progress(clients)
        half.send(packet[7:])
        assert half.take() == (0x40, b"\0\x09")
        assert [await read_all(each) for each in slow] == [list(range(LARGE))] * 2
        await watcher.publish(Publish("wills/of/nobody", b"no will came before", QoS.AT_LEAST_ONCE, packet_id=6))
        assert (await watcher.take()).payload == b"no will came before"
        dying.cut()
        assert (await watcher.take()).payload == b"dead"
        away, connack = await MqttConnection.open(new_port, persistent("away"))
        async with away:
            assert connack.session_present
            assert (await away.take()).payload == b"once"
    await working
    await workers.finish(PATIENCE_S)
    await finish_all(clients, PATIENCE_S)
    half.close()


@pytest.mark.asyncio
async def test_the_old_process_opens_the_store_again_if_the_next_one_is_killed(server: UpgradedStoreServer) -> None:
    """Once the store is closed, and before the next one opens it. After that it can be replaced as before."""
    clients = [NumbersClient(each, wild=each % 5 < 2) for each in range(60)]
    await start_all(clients, server.port)
    await asyncio.to_thread(kill_the_next, server)
    await progress(clients)
    await asyncio.to_thread(server.upgrade)
    await progress(clients)
    await finish_all(clients, PATIENCE_S)


@pytest.mark.asyncio
async def test_will_due_during_an_upgrade_comes_after_it(server: UpgradedStoreServer) -> None:
    """A will, to a client whose queue is in memory only."""
    watcher = await opened(server.port, "watcher")
    await watcher.subscribe(1, "wills/+", QoS.AT_LEAST_ONCE)
    will = Will("wills/1", b"dead", QoS.AT_LEAST_ONCE, properties=Properties(will_delay_interval=1))
    away = replace(persistent("away"), will=will)
    connection, _ = await MqttConnection.open(server.port, away)
    connection.cut()
    await asyncio.to_thread(server.wait_for, lambda: server.said("client away disconnected"))
    due_s = time.monotonic() + 1

    def wait_in_between() -> None:
        with server.having_closed():
            server.wait_for(lambda: time.monotonic() > due_s)
        server.wait_for(lambda: server.said("took over"))

    await asyncio.to_thread(wait_in_between)
    async with watcher:
        assert (await watcher.take()).payload == b"dead"


def kill_the_next(server: UpgradedStoreServer) -> None:
    with server.having_closed() as following:
        os.kill(following, signal.SIGKILL)
    server.wait_for(lambda: server.said("is gone; this process goes on"))


@pytest.mark.asyncio
async def test_a_disk_that_does_not_answer_in_time_is_no_reason_to_lose_a_client(tmp_path: Path) -> None:
    """The store stays open, and the sockets in the data folder are opened again."""
    server = UpgradedStoreServer(tmp_path, SETTINGS | {"store.flush": "sync", "store.flush_timeout_ms": 60_000})
    try:
        client, _ = await MqttConnection.open(server.port, persistent("device"))
        segment = server.data / "log" / f"{0:020}.log"
        with strace.delayed(server.pid, "fdatasync", segment, STALL_MS):
            client.send(Publish("to/device", b"1", QoS.AT_LEAST_ONCE, packet_id=7))
            assert "not safe after 1 s" in await asyncio.to_thread(server.fails)
        assert (await client.receive(PubAck)).packet_id == 7
        async with Client(f"unix://{server.data / 'console.sock'}") as sdk:
            await sdk.publish("to/device", b"2")
        await asyncio.to_thread(server.upgrade)
        async with client:
            await client.publish(Publish("to/device", b"3", QoS.AT_LEAST_ONCE, packet_id=8))
    finally:
        server.kill()


@pytest.mark.asyncio
@pytest.mark.nightly
async def test_the_old_process_goes_on_if_the_next_one_refuses(server: UpgradedStoreServer) -> None:
    """It has a wrong setting, no old address, another folder, or cannot open the store."""
    clients = [NumbersClient(each, wild=each % 5 < 2) for each in range(60)]
    await start_all(clients, server.port)
    old = server.pid
    server.configure(more="unheard_of = 1")
    assert "is gone" in await asyncio.to_thread(server.fails)
    server.configure(data=server.data.with_name("other"))
    assert "store.data is" in await asyncio.to_thread(server.fails)
    server.configure(ports=(free_port(),))
    assert "gateway.listen has no" in await asyncio.to_thread(server.fails)
    server.configure()
    await progress(clients)
    await asyncio.to_thread(lock_the_folder, server)
    await progress(clients)
    assert server.pid == old
    await asyncio.to_thread(server.upgrade)
    await progress(clients)
    await finish_all(clients, PATIENCE_S)


def lock_the_folder(server: UpgradedStoreServer) -> None:
    """Others have the folder when the next process is to open it, and give it back soon."""
    with server.locked_once_closed() as following:
        server.wait_for(lambda: server.is_gone(following))
    server.wait_for(lambda: server.said("in use.*; this process goes on"))


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_kills_at_any_moment_of_an_upgrade(tmp_path: Path, seed: int, kills: int) -> None:
    """Whoever is killed: nothing acknowledged is lost, and QoS 2 comes once."""
    server = KilledUpgrades(tmp_path, SETTINGS, seed)
    try:
        load = ChaosLoad(server, seed)
        load.publisher("p5", *TOPICS)
        load.publisher("p3", *TOPICS, version=4)
        load.subscriber("s-exact", {"load/b": 2})
        load.subscriber("s-wild", {"+/shared": 2})
        load.subscriber("s-all", {"#": 2}, version=4)
        async with load.running():
            await load.upset(kills)
            await load.settle()
        assert not (complaints := load.ledger.complaints()), "\n".join([*complaints, *server.outcomes])
    finally:
        server.kill()
