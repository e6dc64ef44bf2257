"""A replay that stands far back must not bring QoS 2 messages again that are done with."""

import asyncio

import pytest

from gateway.delivery.subscriptions import FROM_PROPERTY
from gateway.mqtt.packets import PubComp, Publish, PubRec, PubRel, QoS, SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import SHARED_PORT_BY_NIGHT, ServerFactory
from tests.support.server_process import PenstockServer

pytestmark = SHARED_PORT_BY_NIGHT

OLD = 20
EARLIEST = Properties(user_properties=((FROM_PROPERTY, "earliest"),))


@pytest.mark.asyncio
@pytest.mark.parametrize("killed", [False, True])
async def test_done_is_done(killed: bool, penstock_server: ServerFactory, small: dict[str, object]) -> None:
    server = penstock_server(flush="async", settings=small)
    await publish(server, *(Publish("old/a", b"old", QoS.AT_LEAST_ONCE, packet_id=1) for _ in range(OLD)))
    connection, _ = await MqttConnection.open(server.port, persistent("reader", receive_maximum=3))
    async with connection:
        await connection.subscribe(1, "new/#", QoS.EXACTLY_ONCE)
        await publish(
            server,
            Publish("new/a", b"unacknowledged", QoS.AT_LEAST_ONCE, packet_id=1),
            Publish("new/a", b"done", QoS.EXACTLY_ONCE, packet_id=2),
        )
        assert (await connection.receive(Publish)).payload == b"unacknowledged"
        await complete(connection, await connection.receive(Publish))
        request = SubscriptionRequest("old/#", QoS.AT_LEAST_ONCE)
        connection.send(Subscribe(2, (request,), EARLIEST))
        await connection.receive(SubAck)
        assert (await connection.receive(Publish)).payload == b"old"
        if killed:
            server.kill()
    if killed:
        await asyncio.to_thread(server.restart)
    assert b"done" not in await everything(server)


async def publish(server: PenstockServer, *messages: Publish) -> None:
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        for message in messages:
            await (connection.publish(message) if message.qos == 1 else connection.publish_once(message))


async def complete(connection: MqttConnection, message: Publish) -> None:
    """The receiver's half of QoS 2; the server has the PUBCOMP when it answers what was sent behind it."""
    assert (message.qos, message.payload) == (QoS.EXACTLY_ONCE, b"done")
    assert message.packet_id is not None
    connection.send(PubRec(message.packet_id))
    await connection.receive(PubRel)
    connection.send(PubComp(message.packet_id))
    await connection.publish(Publish("other", b"", QoS.AT_LEAST_ONCE, packet_id=1))


async def everything(server: PenstockServer) -> list[bytes]:
    """All that comes after a reconnection, up to a last message."""
    connection, connack = await MqttConnection.open(server.port, persistent("reader"))
    async with connection:
        assert connack.session_present
        connection.send(Publish("new/a", b"last", QoS.AT_LEAST_ONCE, packet_id=1))
        payloads = [(await connection.take()).payload]
        while payloads[-1] != b"last":
            payloads.append((await connection.take()).payload)
        return payloads
