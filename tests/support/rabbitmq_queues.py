"""What is in a queue of RabbitMQ."""

from __future__ import annotations

from typing import NamedTuple

from pika.spec import BasicProperties

from tests.support.rabbitmq_broker import RabbitMqBroker

PREFETCH = 500


class Taken(NamedTuple):
    """A message as a consumer has it."""

    routing_key: str
    properties: BasicProperties
    body: bytes


class QueueTaker:
    """Takes all that comes to a queue, and keeps it."""

    def __init__(self, rabbitmq: RabbitMqBroker, queue: str) -> None:
        self.taken: list[Taken] = []
        self._rabbitmq, self._queue = rabbitmq, queue

    def take(self) -> list[Taken]:
        """All that came so far."""
        with self._rabbitmq.channel() as channel:
            waiting = channel.queue_declare(self._queue, passive=True).method.message_count
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, properties, body in channel.consume(self._queue) if waiting else ():
                self.taken.append(Taken(method.routing_key, properties, body))
                waiting -= 1
                if not waiting or not method.delivery_tag % PREFETCH:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if not waiting:
                    break
        return self.taken

    def bodies(self) -> list[bytes]:
        return [each.body for each in self.take()]
