"""What tests of flows from AMQP share: the flow, messages of a queue, and what became of them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pika import BasicProperties
from pika.exceptions import AMQPError

from penstock.sync import Client
from tests.support.rabbitmq_broker import RabbitMqBroker
from tests.support.steady import SteadyWriter

TOGETHER = 50
logging.getLogger("pika").setLevel(logging.CRITICAL)  # a broker that is killed is no news here


def new_queue(rabbitmq: RabbitMqBroker) -> str:
    """A queue, and NAME.dead with what is rejected from it. An exchange of the same name leads to it."""
    name = f"in-{uuid.uuid4().hex[:12]}"
    with rabbitmq.channel() as channel:
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_declare(f"{name}.dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, name, "#")
    return name


def flow_from_queue(rabbitmq: RabbitMqBroker, queue: str, more: str = "", name: str = "orders") -> str:
    return f'[flow.{name}]\nfrom = "amqp://{rabbitmq.url}/{queue}"\nto = "penstock:"\ntimeout_s = 2\n{more}\n'


def put(rabbitmq: RabbitMqBroker, exchange: str, messages: Iterable[tuple[str, bytes, BasicProperties]]) -> None:
    """Routing keys, bodies and properties; the broker has confirmed all of them."""
    with rabbitmq.channel() as channel:
        channel.confirm_delivery()
        for routing_key, body, properties in messages:
            channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)


def with_id(message_id: str) -> BasicProperties:
    return BasicProperties(delivery_mode=2, message_id=message_id)


def waiting(rabbitmq: RabbitMqBroker, queue: str) -> int:
    """Messages that no consumer has."""
    with rabbitmq.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


def payloads(client: Client, topics: str) -> list[bytes]:
    return [message.payload for message in client.read(topics)]


class SteadyQueuer(SteadyWriter[RabbitMqBroker]):
    """Publishes numbers whose ids are the same numbers."""

    def __init__(self, rabbitmq: RabbitMqBroker, queue: str) -> None:
        self.confirmed = 0
        """The numbers below it."""
        self._queue = queue
        super().__init__(lambda: itself(rabbitmq), pause_s=0.05)

    def write(self, client: RabbitMqBroker) -> None:
        numbers = range(self.confirmed, self.confirmed + TOGETHER)
        try:
            put(client, self._queue, [(f"plant.{i % 7}.temp", b"%d" % i, with_id(str(i))) for i in numbers])
        except (AMQPError, OSError):
            return
        self.confirmed += TOGETHER


@contextmanager
def itself(rabbitmq: RabbitMqBroker) -> Iterator[RabbitMqBroker]:
    yield rabbitmq
