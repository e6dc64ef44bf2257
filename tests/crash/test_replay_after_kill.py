"""A server killed in the midst of a replay: what the session was owed it gets, and asking again gives history whole."""

import asyncio

import pytest

from gateway.delivery.subscriptions import FROM_PROPERTY
from gateway.mqtt.packets import PubAck, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.properties import Properties
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from tests.conftest import SHARED_PORT_BY_NIGHT, ServerFactory
from tests.support.server_process import PenstockServer

pytestmark = SHARED_PORT_BY_NIGHT

HISTORY = 3_000
NEW = 20
WINDOW = 50
EARLIEST = Properties(user_properties=((FROM_PROPERTY, "earliest"),))


@pytest.mark.asyncio
@pytest.mark.parametrize("topic_filter", ["+/values", "plant/#"])
@pytest.mark.parametrize("taken", [0, 1_234])
async def test_history_goes_on(
    penstock_server: ServerFactory, small: dict[str, object], topic_filter: str, taken: int
) -> None:
    server = penstock_server(flush="async", settings=small)
    await publish(server, 0, HISTORY)
    connection, _ = await MqttConnection.open(server.port, persistent("reader", receive_maximum=WINDOW))
    async with connection:
        await replay(connection, topic_filter)
        acknowledged = [number_of(await connection.take()) for _ in range(taken)]
        assert acknowledged == list(range(taken))
        await connection.publish(Publish("other", b"", QoS.AT_LEAST_ONCE, packet_id=1))  # these are known by now
        in_flight = [number_of(await connection.receive(Publish)) for _ in range(WINDOW)]
        server.kill()
    assert in_flight == list(range(taken, taken + WINDOW))
    await asyncio.to_thread(server.restart)
    await publish(server, HISTORY, NEW)
    connection, connack = await MqttConnection.open(server.port, persistent("reader", receive_maximum=WINDOW))
    async with connection:
        assert connack.session_present
        came = [number_of(await connection.take())]
        while came[-1] != HISTORY + NEW - 1:
            came.append(number_of(await connection.take()))
        assert not set(came) & set(acknowledged)
        assert came[-NEW:] == list(range(HISTORY, HISTORY + NEW))
        assert came == sorted(set(came))
        await replay(connection, topic_filter)
        assert [number_of(await connection.take()) for _ in range(HISTORY + NEW)] == list(range(HISTORY + NEW))


async def replay(connection: MqttConnection, topic_filter: str) -> None:
    connection.send(Subscribe(2, (SubscriptionRequest(topic_filter, QoS.AT_LEAST_ONCE),), EARLIEST))
    assert [*map(int, (await connection.receive(SubAck)).reason_codes)] == [1]


async def publish(server: PenstockServer, first: int, count: int) -> None:
    connection, _ = await MqttConnection.open(server.port, persistent("publisher"))
    async with connection:
        for number in range(first, first + count):
            packet_id = number % 1_000 + 1
            connection.send(Publish("plant/values", b"%d" % number, QoS.AT_LEAST_ONCE, packet_id=packet_id))
            if number % 500 == 499 or number == first + count - 1:
                while (await connection.receive(PubAck)).packet_id != packet_id:
                    pass


def number_of(message: Publish) -> int:
    return int(message.payload)
