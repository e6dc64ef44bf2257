"""A connection to an AMQP broker that consumes one queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aio_pika.abc import AbstractConnection
from aiormq import Channel
from aiormq.abc import DeliveredMessage

from penstock.flows.amqp_link import AWAY, away, closed, connected
from penstock.flows.amqp_place import AmqpPlace
from penstock.flows.errors import SinkAway
from penstock.flows.sources.amqp.messages import QueuedMessage

SETTLE_S: Final = 30.0
LOOK_S: Final = 1.0  # between two looks at the queue


class QueueLink:
    """Owner of a connection, and of its consumer. What it took and did not settle is the broker's once it ends."""

    def __init__(self, place: AmqpPlace, connection: AbstractConnection, channel: Channel, timeout_s: float) -> None:
        self._place, self._connection, self._channel = place, connection, channel
        self._timeout_s = timeout_s
        self._consumer = ""
        self._is_stuck = False

    @classmethod
    async def opened(
        cls, place: AmqpPlace, name: str, timeout_s: float, prefetch: int, took: Callable[[QueuedMessage], object]
    ) -> QueueLink:
        """`name`: by which the broker shows it. `prefetch`: of messages that are not settled. Raises SinkAway."""
        try:
            async with asyncio.timeout(timeout_s), connected(place, name) as connection:
                wrapped = connection.channel(publisher_confirms=False)
                await wrapped.initialize()
                channel = await wrapped.get_underlay_channel()
                assert isinstance(channel, Channel)
                link = cls(place, connection, channel, timeout_s)
                await channel.basic_qos(prefetch_count=prefetch)

                async def take(message: DeliveredMessage) -> None:
                    took(_message(message))

                link._consumer = str((await channel.basic_consume(place.name, take)).consumer_tag)
                return link
        except AWAY as error:
            raise away(place, error) from None

    @property
    def _is_consuming(self) -> bool:
        is_closed = self._connection.is_closed or self._channel.is_closed
        return not (is_closed or self._is_stuck) and self._consumer in self._channel.consumers

    async def waiting(self) -> int:
        """Look at the queue, after LOOK_S: how many messages no consumer has. Raises SinkAway if the link is over."""
        await asyncio.sleep(LOOK_S)
        if not self._is_consuming:
            raise SinkAway(f"{self._place}: it ended the connection, or deleted {self._place.what}")
        try:
            async with asyncio.timeout(self._timeout_s):
                declared = await self._channel.queue_declare(self._place.name, passive=True)
        except AWAY as error:
            raise away(self._place, error) from None
        return declared.message_count or 0

    async def settle(self, done: int, rejected: Sequence[int]) -> None:
        """Reject messages by their tags, then acknowledge all others up to `done`; 0: none. If the link is over the
        broker hands them out again."""
        if self._is_stuck:
            return
        try:
            async with asyncio.timeout(SETTLE_S):
                for tag in rejected:
                    await self._channel.basic_reject(tag, requeue=False, wait=False)
                if done:
                    await self._channel.basic_ack(done, multiple=True, wait=False)
        except AWAY:
            self._is_stuck = True

    async def close(self) -> None:
        await closed(self._connection)


def _message(message: DeliveredMessage) -> QueuedMessage:
    said = message.header.properties
    return QueuedMessage(
        message.delivery_tag or 0,
        bytes(message.body),
        message.routing_key or "",
        message.exchange or "",
        said.headers,
        content_type=said.content_type,
        content_encoding=said.content_encoding,
        message_id=said.message_id,
        correlation_id=said.correlation_id,
        reply_to=said.reply_to,
        message_type=said.message_type,
        timestamp=said.timestamp,
    )
