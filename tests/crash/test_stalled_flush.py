"""A disk that does not answer: no false success, an error within flush_timeout_ms, no harm once it answers again."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.mqtt.packets import Connect, PubAck, Publish, PubRec, QoS
from loadtest.chaos.ledger import until
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import ServerFactory
from tests.crash import strace
from tests.support.server_process import PenstockServer

Answer = TypeVar("Answer")

FLUSH_TIMEOUT_MS = 300
STALL_MS = 60_000  # it ends when the test lets it
# The timeout, a tick, and what two busy cores and a debugger add.
ANSWER_WITHIN_S = 5


@pytest.fixture
def server(penstock_server: ServerFactory, small: dict[str, object]) -> PenstockServer:
    return penstock_server(flush="sync", settings=small | {"store.flush_timeout_ms": FLUSH_TIMEOUT_MS})


def segment_of(server: PenstockServer) -> Path:
    return server.data / "log" / f"{0:020}.log"


@pytest.mark.asyncio
@pytest.mark.catalogue("A2")
async def test_an_mqtt_5_client_is_told(server: PenstockServer) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
    async with connection:
        await connection.publish(Publish("stall/a", b"before", QoS.AT_LEAST_ONCE, packet_id=1))
        with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
            for packet_id in (2, 3, 4):
                connection.send(Publish("stall/a", b"in", QoS.AT_LEAST_ONCE, packet_id=packet_id))
            for packet_id in (2, 3, 4):
                ack = await within(connection.receive(PubAck))
                assert (ack.packet_id, ack.reason_code >= 0x80) == (packet_id, True)
        await accepted_again(server)
        await connection.publish(Publish("stall/a", b"after", QoS.AT_LEAST_ONCE, packet_id=5))


@pytest.mark.asyncio
async def test_an_mqtt_3_client_loses_its_connection(server: PenstockServer) -> None:
    connection, _ = await MqttConnection.open(server.port, Connect("three", 4, clean_start=True))
    async with connection:
        with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
            connection.send(Publish("stall/a", b"in", QoS.AT_LEAST_ONCE, packet_id=1))
            with pytest.raises(ConnectionError):
                await within(connection.receive(PubAck))
        await accepted_again(server)


@pytest.mark.asyncio
async def test_a_connect_and_a_subscribe_are_not_answered_with_success(server: PenstockServer) -> None:
    known, _ = await MqttConnection.open(server.port, persistent("known"))
    async with known:
        with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
            refused, connack = await within(MqttConnection.open(server.port, persistent("new")))
            refused.cut()
            assert connack.reason_code >= 0x80
            with pytest.raises((ConnectionError, TimeoutError)):
                await within(known.subscribe(1, "stall/#", QoS.AT_LEAST_ONCE))
        await accepted_again(server)


@pytest.mark.asyncio
@pytest.mark.parametrize("killed", [False, True])
async def test_a_packet_id_that_was_refused_is_free_again(server: PenstockServer, killed: bool) -> None:
    """The refused message is in the log all the same: its identifier must not make the next one a duplicate."""
    await watch(server)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
            connection.send(Publish("stall/twice", b"refused", QoS.EXACTLY_ONCE, packet_id=9))
            assert (await within(connection.receive(PubRec))).reason_code >= 0x80
        await accepted_again(server)
    if killed:
        await asyncio.to_thread(server.restart)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        await connection.publish_once(Publish("stall/twice", b"accepted", QoS.EXACTLY_ONCE, packet_id=9))
    assert await watched(server) in ([b"refused", b"accepted"], [b"accepted"])


@pytest.mark.asyncio
@pytest.mark.parametrize("killed", [False, True])
async def test_publisher_cut_off_by_a_stalled_flush_sends_again_without_a_duplicate(
    server: PenstockServer, killed: bool
) -> None:
    """An MQTT 3.1.1 client cannot be told, so it sends its QoS 2 message again under the same identifier."""
    await watch(server)
    publish = Publish("stall/twice", b"once", QoS.EXACTLY_ONCE, packet_id=9)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher", version=4))
    async with connection:
        with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
            connection.send(publish)
            with pytest.raises(ConnectionError):
                await within(connection.receive(PubRec))
        await accepted_again(server)
    if killed:
        await asyncio.to_thread(server.restart)
    connection, connack = await MqttConnection.open(server.port, persistent("publisher", version=4))
    async with connection:
        assert connack.session_present
        publish.dup = True
        await connection.publish_once(publish)
    assert await watched(server) == [b"once"]


@pytest.mark.asyncio
async def test_publisher_gone_before_a_failed_flush_sends_again(server: PenstockServer) -> None:
    """So an MQTT 5 client too sends it again under the same identifier."""
    await watch(server)
    publish = Publish("stall/twice", b"once", QoS.EXACTLY_ONCE, packet_id=9)
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    with strace.delayed(server.process.pid, "fdatasync", segment_of(server), STALL_MS):
        async with connection:
            connection.send(publish)
            await until(lambda: b"once" in segment_of(server).read_bytes(), "the record")
        await until(lambda: "did not confirm a flush" in server.log_text(), "the error")
    await accepted_again(server)
    connection, connack = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        assert connack.session_present
        publish.dup = True
        await connection.publish_once(publish)
    assert await watched(server) == [b"once"]


async def watch(server: PenstockServer) -> None:
    watcher, _ = await MqttConnection.open(server.port, persistent("watcher"))
    async with watcher:
        await watcher.subscribe(1, "stall/twice", QoS.AT_LEAST_ONCE)


async def watched(server: PenstockServer) -> list[bytes]:
    """What the watcher has got since it left."""
    watcher, _ = await MqttConnection.open(server.port, persistent("watcher"))
    async with watcher:
        await watcher.publish(Publish("stall/twice", b"end", QoS.AT_LEAST_ONCE, packet_id=1))
        payloads = []
        while (message := await watcher.take()).payload != b"end":
            payloads.append(message.payload)
        return payloads


async def within(answer: Awaitable[Answer]) -> Answer:
    return await asyncio.wait_for(answer, ANSWER_WITHIN_S)


async def accepted_again(server: PenstockServer) -> None:
    """Publish until it is acknowledged: the disk answers again."""
    async with asyncio.timeout(20):
        while True:
            connection, _ = await MqttConnection.open(server.port, Connect(clean_start=True))
            async with connection:
                connection.send(Publish("stall/again", b"", QoS.AT_LEAST_ONCE, packet_id=1))
                if (await connection.receive(PubAck)).reason_code < 0x80:
                    return
