"""What flows rely on in aio-pika and RabbitMQ."""

import asyncio
import uuid

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelPreconditionFailed, PublishError

from loadtest.chaos.wire import Wire
from loadtest.ports import HOST
from tests.support.rabbitmq_broker import MOST_MESSAGE_BYTES, RabbitMqBroker
from tests.support.rabbitmq_queues import QueueTaker

pytestmark = pytest.mark.asyncio
TIMEOUT_S = 60


@pytest.fixture
def name(rabbitmq: RabbitMqBroker) -> str:
    """Of an exchange, and a queue for keys that begin with `plant`."""
    name = f"promises-{uuid.uuid4().hex}"
    rabbitmq.make(name, {name: "plant.#"})
    return name


async def connected(port: int) -> AbstractConnection:
    return await aio_pika.connect(host=HOST, port=port, heartbeat=30, timeout=TIMEOUT_S)


def message(number: int, size: int = 1) -> aio_pika.Message:
    return aio_pika.Message(b"%d" % number * size, message_id=str(number), delivery_mode=2)


async def test_of_many_under_way_each_is_confirmed_or_returned_by_itself(rabbitmq: RabbitMqBroker, name: str) -> None:
    async with await connected(rabbitmq.port) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(name)
        keys = ["plant.1" if number % 10 else "nowhere" for number in range(300)]
        published = (exchange.publish(message(number), key) for number, key in enumerate(keys))
        answers = await asyncio.gather(*published, return_exceptions=True)
    for number, answer in enumerate(answers):
        assert isinstance(answer, PublishError) is (number % 10 == 0), answer
        assert number % 10 == 0 or not isinstance(answer, Exception)
    assert QueueTaker(rabbitmq, name).bodies() == [b"%d" % number for number in range(300) if number % 10]


async def test_publishes_under_way_fail_when_the_connection_is_cut(rabbitmq: RabbitMqBroker, name: str) -> None:
    wire = Wire(rabbitmq.port)
    connection = await connected(wire.port)
    try:
        exchange = await (await connection.channel(on_return_raises=True)).get_exchange(name)
        wire.silence()
        published = [asyncio.create_task(exchange.publish(message(number), "plant.1")) for number in range(50)]
        await asyncio.sleep(0)
        wire.cut()
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*published, return_exceptions=True)
        assert all(isinstance(answer, AMQPError | OSError | RuntimeError) for answer in answers), answers
    finally:
        await connection.close()
        wire.close()


async def test_a_message_that_is_too_large_ends_its_channel_alone(rabbitmq: RabbitMqBroker, name: str) -> None:
    async with await connected(rabbitmq.port) as connection:
        channel, other = await connection.channel(), await connection.channel()
        exchange, another = await channel.get_exchange(name), await other.get_exchange(name)
        with pytest.raises(ChannelPreconditionFailed, match="size"):
            await exchange.publish(message(1, MOST_MESSAGE_BYTES + 1), "plant.1")
        assert channel.is_closed
        await another.publish(message(2), "plant.1")
    assert QueueTaker(rabbitmq, name).bodies() == [b"2"]
